//! Environment of a process: as it was started with, and as its C library has it by now.

use super::elf::LoadedImage;
use super::facts::{MOST, read_own};
use super::maps::{MappedFile, Maps};
use super::memory::ReadMemory;
use crate::event::Tgid;

/// Names of the C library's file: glibc since 2.34, glibc before, and musl.
const C_LIBRARIES: [&str; 3] = ["libc.so", "libc-2", "ld-musl-x86_64"];

/// Names of the variable that points to the environment (`environ(7)`).
const VARIABLES: [&str; 2] = ["environ", "__environ"];

/// The most variables that are looked at, and bytes of one.
const MAX_VARIABLES: usize = 4096;
const MAX_BYTES: usize = 16 << 10;

/// Values of chosen variables, in the order in which they were asked for; `None` for one that is not set.
pub type Values<const N: usize> = [Option<String>; N];

/// Returns values from the environment that the program was started with (`/proc/PID/environ`). `None` if it cannot
/// be read.
pub fn at_start<const N: usize>(tgid: Tgid, names: [&str; N]) -> Option<Values<N>> {
    let bytes = read_own(tgid, "environ", MOST);
    let entries = bytes.split(|&byte| byte == 0);
    (!bytes.is_empty()).then(|| pick(entries, names))
}

/// Returns values from the environment in the memory of the process, which `setenv` changes and `/proc` does not show.
/// `None` if it cannot be read.
pub fn by_now<const N: usize>(
    tgid: Tgid,
    maps: &Maps,
    memory: &impl ReadMemory,
    names: [&str; N],
) -> Option<Values<N>> {
    let pointer = pointer(tgid, maps)?;
    let entries = entries(memory, pointer)?;
    Some(pick(entries.iter().map(Vec::as_slice), names))
}

/// Returns the address of `environ`. A program that refers to the variable may have the library's copy of it.
fn pointer(tgid: Tgid, maps: &Maps) -> Option<u64> {
    let program = std::fs::read_link(format!("/proc/{}/exe", tgid.0)).ok();
    let files = maps.files();
    let program = files
        .iter()
        .find(|file| Some(&file.path) == program.as_ref());
    let address = |file: &MappedFile| {
        let loaded = LoadedImage::open(file, tgid).ok()?;
        let symbol = loaded.image.first_symbol(&VARIABLES).ok()??;
        Some(loaded.address_of(symbol))
    };
    let library = || C_LIBRARIES.iter().find_map(|name| maps.library(name));
    program.and_then(address).or_else(|| address(&library()?))
}

/// Reads all entries; `None` if one cannot be read, since it may be the one that counts.
fn entries(memory: &impl ReadMemory, pointer: u64) -> Option<Vec<Vec<u8>>> {
    let list = memory.read_u64(pointer).ok()?;
    // Nothing has set it: the program may have a copy of the variable that was not found.
    if list == 0 {
        return None;
    }
    let mut entries = Vec::new();
    for at in 0..MAX_VARIABLES as u64 {
        let entry = memory.read_u64(list.checked_add(8 * at)?).ok()?;
        if entry == 0 {
            return Some(entries);
        }
        // A longer one is none of those that are asked for.
        let text = memory.read_c_string(entry, MAX_BYTES);
        match text {
            Ok(text) => entries.push(text),
            Err(error) if error.cause == super::memory::Cause::TooLong => {}
            Err(_) => return None,
        }
    }
    None
}

/// Picks the first entry of each name, as `getenv` does.
fn pick<'a, const N: usize>(
    entries: impl Iterator<Item = &'a [u8]> + Clone,
    names: [&str; N],
) -> Values<N> {
    names.map(|name| {
        let value = |entry: &'a [u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        let value = entries.clone().find_map(value)?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::ProcessMemory;
    use crate::process::memory::fake::FakeMemory;

    /// Memory with an environment of these entries.
    fn memory(entries: &[&str]) -> FakeMemory {
        let mut memory = FakeMemory::default();
        let mut list = Vec::new();
        for (at, entry) in (0..).zip(entries) {
            let address = 0x10_0000 + at * 0x1000;
            memory.map(address, [entry.as_bytes(), &[0; 64]].concat());
            list.extend_from_slice(&address.to_le_bytes());
        }
        list.extend_from_slice(&[0; 8]);
        memory.map(0x1000, 0x2000_u64.to_le_bytes().to_vec());
        memory.map(0x2000, list);
        memory
    }

    #[test]
    fn the_first_entry_of_a_name_counts() {
        let memory = memory(&["A=1", "AB=2", "A=3", "C="]);
        let entries = entries(&memory, 0x1000).expect("it is readable");
        let entries = entries.iter().map(Vec::as_slice);
        let found = pick(entries, ["A", "C", "D"]);
        assert_eq!(found, [Some("1".to_owned()), Some(String::new()), None]);
    }

    #[test]
    fn an_environment_that_is_partly_unreadable_is_unknown() {
        let mut broken = memory(&["A=1"]);
        broken.write(0x2000, &0x77_u64.to_le_bytes());
        assert_eq!(entries(&broken, 0x1000), None);
        let mut endless = FakeMemory::default();
        endless.map(0x1000, 0x2000_u64.to_le_bytes().to_vec());
        endless.map(0x2000, 0x1000_u64.to_le_bytes().repeat(MAX_VARIABLES));
        assert_eq!(entries(&endless, 0x1000), None);
    }

    #[test]
    fn the_environment_of_a_running_program_is_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("CUDA_VISIBLE_DEVICES", "3,1")
            .spawn()
            .expect("sleep starts");
        let tgid = Tgid(child.id());
        let names = ["CUDA_VISIBLE_DEVICES", "MEMPROBE_UNSET"];
        let expected = Some([Some("3,1".to_owned()), None]);
        let until_found = |read: &dyn Fn() -> Option<Values<2>>| {
            (0..200).find_map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                read().filter(|values| values[0].is_some())
            })
        };
        // The kernel sets it after the call of `spawn` has gone on.
        assert_eq!(until_found(&|| at_start(tgid, names)), expected);
        // The dynamic loader sets the variable of the C library before the program runs.
        let read = || {
            by_now(
                tgid,
                &Maps::of(tgid).ok()?,
                &ProcessMemory::new(tgid),
                names,
            )
        };
        assert_eq!(until_found(&read), expected);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
}

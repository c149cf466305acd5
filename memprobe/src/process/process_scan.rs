//! Finds the host's processes that use CUDA, by their mapped libraries.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use memchr::memmem;

use super::facts::read_own;
use super::maps::{DeviceNumber, MappedFile, Maps};
use crate::event::Tgid;

/// Path fragments of libraries that only CUDA programs map: the driver, the runtime, and PyTorch's library
/// with the CUDA caching allocator.
const LIBRARIES: [&[u8]; 3] = [b"/libcuda.so", b"/libcudart.so", b"/libc10_cuda.so"];

/// Path fragments of PyTorch's libraries, which builds without CUDA have too.
const PYTORCH: [&[u8]; 2] = [b"/libtorch_cpu.so", b"/libtorch_python.so"];

/// Library that makes a process one for memprobe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLibrary {
    /// CUDA, or PyTorch with CUDA.
    Cuda,
    /// PyTorch without CUDA.
    PyTorch,
}

/// The dynamic loader of glibc, which maps a process's libraries.
const LOADER: &[u8] = b"/ld-linux-x86-64.so";

const MOST: u64 = 16 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanResult {
    /// Processes that have mapped a CUDA library and were not reported before.
    pub users: Vec<Tgid>,
    /// One process for each dynamic loader file not seen before; a probe on that file reports mapped libraries.
    pub loaders: Vec<Tgid>,
}

#[derive(Debug, Default)]
pub struct HostScan {
    known: HashMap<u32, ProcessState>,
    loaders: HashSet<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum ProcessState {
    User,
    /// No CUDA at the last check. The next check is due in `due` scans; then the interval `pause` doubles.
    Other {
        due: u32,
        pause: u32,
    },
}

const LONGEST_PAUSE: u32 = 64;

impl HostScan {
    /// Checks every new process, and the others at growing intervals, since most never use CUDA.
    pub fn look(&mut self) -> io::Result<ScanResult> {
        let own = std::process::id();
        let mut there = HashSet::new();
        let mut found = ScanResult::default();
        for pid in pids()? {
            there.insert(pid);
            if pid != own && self.is_due(pid) {
                self.look_at(Tgid(pid), &mut found);
            }
        }
        self.known.retain(|pid, _| there.contains(pid));
        Ok(found)
    }

    fn is_due(&mut self, pid: u32) -> bool {
        match self.known.get_mut(&pid) {
            None => true,
            Some(ProcessState::User) => false,
            Some(ProcessState::Other { due, .. }) => {
                *due = due.saturating_sub(1);
                *due == 0
            }
        }
    }

    fn look_at(&mut self, tgid: Tgid, found: &mut ScanResult) {
        let pause = match self.known.get(&tgid.0) {
            Some(ProcessState::Other { pause, .. }) => (pause * 2).min(LONGEST_PAUSE),
            _ => 1,
        };
        let maps = read_maps(tgid);
        let known = if uses_cuda(&maps) {
            found.users.push(tgid);
            ProcessState::User
        } else {
            ProcessState::Other { due: pause, pause }
        };
        self.known.insert(tgid.0, known);
        if let Some(loader) = loader(&maps)
            && !self.loaders.contains(loader)
        {
            self.loaders.insert(loader.to_vec());
            found.loaders.push(tgid);
        }
    }
}

pub(super) fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

pub fn is_user(tgid: Tgid) -> bool {
    uses_cuda(&read_maps(tgid))
}

/// Returns the library that a process has loaded. Fails if memprobe may not read its mappings, or it has none, as a
/// thread of the kernel.
pub fn library_of(tgid: Tgid) -> io::Result<Option<GpuLibrary>> {
    let maps = read_maps(tgid);
    if maps.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let has_pytorch = || PYTORCH.iter().any(|name| lines(&maps, name).any(is_code));
    Ok(if uses_cuda(&maps) {
        Some(GpuLibrary::Cuda)
    } else {
        has_pytorch().then_some(GpuLibrary::PyTorch)
    })
}

/// Returns the processes that have mapped a file as executable, each with its mappings. memprobe itself is
/// left out, and so is every process that it may not inspect, because it cannot probe those either.
pub fn processes_mapping(dev: DeviceNumber, inode: u64) -> io::Result<Vec<(Tgid, MappedFile)>> {
    let own = std::process::id();
    let number = format!(" {inode} ");
    let mut users = Vec::new();
    for tgid in pids()?.into_iter().filter(|pid| *pid != own).map(Tgid) {
        let maps = read_maps(tgid);
        // Most processes do not map the file, and searching is faster than parsing.
        if memmem::find(&maps, number.as_bytes()).is_none() {
            continue;
        }
        let mut files = Maps::parse(&maps).files();
        files.retain(|file| (file.dev, file.inode) == (dev, inode) && file.is_executable());
        users.extend(files.into_iter().map(|file| (tgid, file)));
    }
    Ok(users)
}

/// Empty if the process is gone or memprobe may not inspect it; it cannot be probed then either.
fn read_maps(tgid: Tgid) -> Vec<u8> {
    read_own(tgid, "maps", MOST)
}

fn uses_cuda(maps: &[u8]) -> bool {
    LIBRARIES.iter().any(|name| lines(maps, name).any(is_code))
}

/// Returns device, inode and path of the dynamic loader, as its maps lines contain them.
fn loader(maps: &[u8]) -> Option<&[u8]> {
    let line = lines(maps, LOADER).next()?;
    line.splitn(4, |byte| *byte == b' ').nth(3)
}

/// True if the mapping is executable. A file that is only read, as memprobe does, does not count.
fn is_code(line: &[u8]) -> bool {
    // "start-end perms offset device inode path".
    let perms = line.splitn(3, |byte| *byte == b' ').nth(1);
    perms.is_some_and(|perms| perms.contains(&b'x'))
}

fn lines<'a>(maps: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    memmem::find_iter(maps, name).map(|place| {
        let start = maps[..place].iter().rposition(|byte| *byte == b'\n');
        let line = &maps[start.map_or(0, |newline| newline + 1)..];
        let end = line.iter().position(|byte| *byte == b'\n');
        &line[..end.unwrap_or(line.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON: &[u8] = b"5600-5700 r-xp 00001000 08:01 77 /usr/bin/python3.11\n\
        7f00-7f10 r--p 00000000 08:01 41 /usr/lib64/ld-linux-x86-64.so.2\n\
        7f10-7f20 r-xp 00001000 08:01 41 /usr/lib64/ld-linux-x86-64.so.2\n";

    #[test]
    fn users_of_cuda_are_known_by_their_libraries() {
        assert!(!uses_cuda(PYTHON));
        for library in ["libcuda.so.1", "libcudart.so.13", "libc10_cuda.so"] {
            let mut maps = PYTHON.to_vec();
            maps.extend(format!("7f30-7f40 r--p 0 08:01 9 /opt/x/{library}\n").bytes());
            assert!(!uses_cuda(&maps), "{library} is only read");
            maps.extend(format!("7f40-7f50 r-xp 0 08:01 9 /opt/x/{library}\n").bytes());
            assert!(uses_cuda(&maps), "{library}");
        }
        assert!(!uses_cuda(
            b"7f30-7f40 r--p 0 08:01 9 /opt/notlibcudart.so.13\n"
        ));
        assert!(!uses_cuda(b""));
    }

    #[test]
    fn users_of_a_file_are_found_among_all_processes() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let tgid = Tgid(child.id());
        let file = loop {
            let maps = Maps::of(tgid).unwrap();
            if let Some(file) = maps.library("libc.so") {
                break file;
            }
            std::thread::yield_now();
        };
        let users = processes_mapping(file.dev, file.inode).unwrap();
        let found = users.iter().find(|(user, _)| *user == tgid);
        assert_eq!(found.map(|(_, file)| file.inode), Some(file.inode));
        let own = Tgid(std::process::id());
        assert!(users.iter().all(|(user, _)| *user != own));
        assert_eq!(processes_mapping(file.dev, u64::MAX).unwrap(), []);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn loaders_are_distinguished_by_their_file() {
        // The offsets of the two mappings differ; the file is the same.
        let first = loader(PYTHON).unwrap();
        assert_eq!(first, b"08:01 41 /usr/lib64/ld-linux-x86-64.so.2");
        assert_eq!(loader(b"1-2 r--p 0 08:01 9 /usr/bin/python\n"), None);
    }

    #[test]
    fn a_process_is_looked_at_ever_more_seldom_and_forgotten_when_it_ends() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let mut scan = HostScan::default();
        let first = scan.look().unwrap();
        assert!(!first.users.contains(&Tgid(child.id())));
        assert!(!first.users.contains(&Tgid(std::process::id())));
        let mut looks = Vec::new();
        for look in 1..40 {
            if scan.is_due(child.id()) {
                looks.push(look);
                scan.look_at(Tgid(child.id()), &mut ScanResult::default());
            }
        }
        assert_eq!(looks, [1, 3, 7, 15, 31]);
        child.kill().unwrap();
        child.wait().unwrap();
        scan.look().unwrap();
        assert!(!scan.known.contains_key(&child.id()));
    }

    #[test]
    fn each_loader_is_reported_once() {
        let mut scan = HostScan::default();
        let loaders = scan.look().unwrap().loaders;
        assert!(
            !loaders.is_empty(),
            "something on this host is linked dynamically"
        );
        assert!(scan.look().unwrap().loaders.is_empty());
    }
}

//! Kernel resources of a memprobe process: BPF programs, maps, links, and breakpoints.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;

use memprobe_common::ProcessConfig;

/// `BPF_PROG_GET_NEXT_ID`, `BPF_MAP_GET_NEXT_ID`, `BPF_LINK_GET_NEXT_ID` of `enum bpf_cmd`
/// (linux/bpf.h), each with its key in `/proc/PID/fdinfo`.
const KINDS: [(i64, &str); 3] = [(11, "prog_id"), (12, "map_id"), (31, "link_id")];

/// Start of `union bpf_attr` for these commands: the previous id and the id found.
#[repr(C)]
#[derive(Default)]
struct NextId {
    start_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// Size in bytes of a process's entry in the kernel map (`ProcessConfig` in memprobe-common).
pub const PROCESS_BYTES: u64 = size_of::<ProcessConfig>() as u64;

/// A kernel object: its kind and its id.
pub type Held = (&'static str, u32);

/// Returns all BPF objects in the kernel, of every program.
pub fn held_by_the_kernel() -> BTreeSet<Held> {
    let mut held = BTreeSet::new();
    for (command, kind) in KINDS {
        let mut ids = NextId::default();
        while next_id(command, &mut ids) {
            held.insert((kind, ids.next_id));
            ids.start_id = ids.next_id;
        }
    }
    held
}

/// Finds the next id after `ids.start_id`; returns false if there is none.
fn next_id(command: i64, ids: &mut NextId) -> bool {
    // SAFETY: the kernel reads and writes at most the given size of `ids`, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ids as *mut NextId,
            size_of::<NextId>(),
        )
    };
    result == 0
}

/// Returns the objects that a process holds through its open files.
pub fn held_by(pid: u32) -> BTreeSet<Held> {
    let mut held = BTreeSet::new();
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process is there");
    for file in files {
        // The descriptor may be closed by now.
        let Ok(text) = fs::read_to_string(file.expect("an entry").path()) else {
            continue;
        };
        for line in text.lines() {
            let Some((word, number)) = line.split_once(':') else {
                continue;
            };
            let kind = KINDS.iter().find(|(_, kind)| *kind == word);
            if let (Some((_, kind)), Ok(id)) = (kind, number.trim().parse()) {
                held.insert((*kind, id));
            }
        }
    }
    held
}

/// Returns the number of entries in a process's hash map, chosen by the size of its values in
/// bytes.
///
/// # Panics
///
/// If the process has no such map, or the kernel does not report it.
pub fn entries(pid: u32, value_bytes: impl Fn(u64) -> bool) -> usize {
    /// `BPF_MAP_TYPE_HASH` (linux/bpf.h).
    const HASH: u64 = 1;
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process is there");
    for file in files {
        let text = fs::read_to_string(file.expect("an entry").path()).unwrap_or_default();
        let number = |word: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let (_, number) = lines.find(|(name, _)| *name == word)?;
            number.trim().parse::<u64>().ok()
        };
        if number("map_type") == Some(HASH) && number("value_size").is_some_and(&value_bytes) {
            let id = number("map_id").and_then(|id| u32::try_from(id).ok());
            return keys(id.expect("maps have ids"));
        }
    }
    panic!("process {pid} has no such map");
}

/// Counts the keys of a map with 32-bit keys.
fn keys(map: u32) -> usize {
    /// `BPF_MAP_GET_FD_BY_ID` and `BPF_MAP_GET_NEXT_KEY` of `enum bpf_cmd` (linux/bpf.h).
    const GET_FD_BY_ID: i64 = 14;
    const GET_NEXT_KEY: i64 = 4;
    /// Part of `union bpf_attr` for `BPF_MAP_GET_NEXT_KEY`.
    #[repr(C)]
    struct NextKey {
        map_fd: u32,
        pad: u32,
        key: u64,
        next_key: u64,
    }
    let ids = NextId {
        start_id: map,
        ..NextId::default()
    };
    // SAFETY: the kernel reads at most the given size of `ids`.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            GET_FD_BY_ID,
            &raw const ids,
            size_of::<NextId>(),
        )
    };
    let fd = i32::try_from(fd).expect("a descriptor");
    assert!(fd >= 0, "map {map}: {}", std::io::Error::last_os_error());
    let (mut key, mut next) = (0_u32, 0_u32);
    let mut count = 0;
    loop {
        let attributes = NextKey {
            map_fd: fd.unsigned_abs(),
            pad: 0,
            key: if count == 0 {
                0
            } else {
                (&raw const key) as u64
            },
            next_key: (&raw mut next) as u64,
        };
        // SAFETY: both addresses point to 32-bit values that outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                GET_NEXT_KEY,
                &raw const attributes,
                size_of::<NextKey>(),
            )
        };
        if result != 0 {
            break;
        }
        key = next;
        count += 1;
    }
    // SAFETY: our own descriptor, not used after this.
    unsafe { libc::close(fd) };
    count
}

/// Counts the bytes of a library's code in a process that differ from its file. Code has no
/// relocations, so the differences are the kernel's breakpoints.
pub fn patched_bytes(pid: u32, library: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process is there");
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("its memory can be read");
    let mut patched = 0;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, permissions, offset, _, _, path] = fields[..] else {
            continue;
        };
        if !permissions.contains('x') || !path.ends_with(library) {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let (start, end) = range.split_once('-').expect("a range");
        let length = usize::try_from(hex(end) - hex(start)).expect("it is mapped");
        let (mut there, mut stored) = (vec![0; length], vec![0; length]);
        memory.read_exact_at(&mut there, hex(start)).expect("read");
        let file = fs::File::open(path).expect("the library can be read");
        // The last page may extend beyond the end of the file.
        let read = file.read_at(&mut stored, hex(offset)).expect("read");
        patched += (0..read).filter(|&at| there[at] != stored[at]).count();
    }
    patched
}

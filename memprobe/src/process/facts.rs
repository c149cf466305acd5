//! Facts from a process's `/proc` files and from files of its Python packages.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use super::maps::Maps;
use super::process_scan;
use super::root::ProcessRoot;
use super::status::Status;
use crate::event::Tgid;

/// The most bytes read of a command line, an environment or a version file.
pub(super) const MOST: u64 = 256 << 10;

/// Returns the command line, joined by spaces; empty if it cannot be read.
pub fn command_line(tgid: Tgid) -> String {
    let words = read_own(tgid, "cmdline", MOST);
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    words.trim_end().to_owned()
}

/// Returns the name that the kernel has for a process, which a zombie keeps; empty if it cannot be read.
pub fn name(tgid: Tgid) -> String {
    let name = read_own(tgid, "comm", MOST);
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Most threads of a process whose names are read.
const MAX_THREADS: usize = 4096;

/// Returns the names of a process's threads, as far as they can be read.
pub fn thread_names(tgid: Tgid) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", tgid.0));
    let threads = threads.into_iter().flatten().flatten().take(MAX_THREADS);
    let name = |thread: fs::DirEntry| {
        let file = fs::File::open(thread.path().join("comm")).ok()?;
        let name = read(file, MOST);
        Some(String::from_utf8_lossy(&name).trim_end().to_owned())
    };
    threads.filter_map(name).collect()
}

/// Returns the words of the command line; empty if it cannot be read.
pub fn command_words(tgid: Tgid) -> Vec<String> {
    let bytes = read_own(tgid, "cmdline", MOST);
    let words = bytes.split(|byte| *byte == 0);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// Returns the descendants of a process, parents before children, without the process itself.
pub fn descendants(tgid: Tgid) -> Vec<Tgid> {
    let processes = process_scan::pids()
        .unwrap_or_default()
        .into_iter()
        .map(Tgid);
    let processes = processes.filter_map(|process| Some((process, parent(process)?)));
    let processes: Vec<_> = processes.collect();
    let mut family = vec![tgid];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        let children = processes.iter().filter(|(_, of)| *of == parent);
        for (child, _) in children {
            if !family.contains(child) {
                family.push(*child);
            }
        }
        at += 1;
    }
    family.remove(0);
    family
}

/// Returns the CPU time of all threads of a process in 1/100 s (`utime` plus `stime` in proc(5), in
/// `USER_HZ`); `None` if it cannot be read.
pub fn ran(tgid: Tgid) -> Option<u64> {
    let stat = read_own(tgid, "stat", MOST);
    let stat = String::from_utf8_lossy(&stat);
    // The name in front may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

pub fn parent(tgid: Tgid) -> Option<Tgid> {
    Status::of(tgid).ok()?.parent
}

/// Returns device and inode of the program that a process runs; `None` if memprobe may not inspect it.
pub fn program(tgid: Tgid) -> Option<(u64, u64)> {
    let file = fs::metadata(format!("/proc/{}/exe", tgid.0)).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the minor numbers of the GPUs' device nodes that a process sees (`/dev/nvidiaN`): a container has only some.
/// Empty if there is none, as on a machine without the driver.
pub fn nvidia_nodes(tgid: Tgid) -> Vec<u32> {
    /// `NV_MAJOR_DEVICE_NUMBER`, open-gpu-kernel-modules 595.45.04.
    const MAJOR: u32 = 195;
    let entries = fs::read_dir(format!("/proc/{}/root/dev", tgid.0));
    let minor = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("nvidia")?;
        let number: u32 = number.parse().ok()?;
        let node = entry.metadata().ok()?.rdev();
        let is_gpu = rustix::fs::major(node) == MAJOR && rustix::fs::minor(node) == number;
        is_gpu.then_some(number)
    };
    let entries = entries.into_iter().flatten().flatten();
    entries.take(65_536).filter_map(minor).collect()
}

/// Returns PyTorch's version, such as `2.15.0+cu132`, from the `version.py` next to its libraries. `None` if
/// those were deleted or replaced after loading, because the file may then belong to another version.
pub fn torch_version(tgid: Tgid) -> Option<String> {
    let maps = Maps::of(tgid).ok()?;
    let library = maps.library("libc10.so").filter(|file| !file.deleted)?;
    let package = library.path.parent()?.parent()?;
    let root = ProcessRoot::of(tgid).ok()?;
    let file = root.open_shown(&package.join("version.py")).ok()?;
    parse_version(&String::from_utf8_lossy(&read(file, MOST)))
}

fn parse_version(text: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__"))?;
    let value = line
        .trim_start()
        .strip_prefix('=')?
        .trim()
        .trim_matches(['\'', '"']);
    let plausible = value.len() < 64
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c));
    (plausible && !value.is_empty()).then(|| value.to_owned())
}

/// Reads one of the process's files in `/proc`, or the part of it before an error; empty if it cannot be opened.
pub(super) fn read_own(tgid: Tgid, name: &str, most: u64) -> Vec<u8> {
    let file = fs::File::open(format!("/proc/{}/{name}", tgid.0));
    file.map_or_else(|_| Vec::new(), |file| read(file, most))
}

fn read(file: fs::File, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The part read before an error is good enough for a description, and its complete lines are valid.
    let _ = file.take(most).read_to_end(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_torch_is_read_from_its_own_file() {
        let text = "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.15.0+cu132'\ndebug = False\n";
        assert_eq!(parse_version(text).as_deref(), Some("2.15.0+cu132"));
    }

    #[test]
    fn a_version_that_is_no_version_is_refused() {
        assert_eq!(parse_version("__version__ = '\x1b[31m'"), None);
        assert_eq!(parse_version("__version__ = ''"), None);
        assert_eq!(parse_version("nothing"), None);
    }

    #[test]
    fn a_child_is_found_among_the_descendants_of_its_parent() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        let found = descendants(Tgid(std::process::id()));
        assert!(found.contains(&Tgid(child.id())), "{found:?}");
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    #[test]
    fn reads_the_command_line_of_this_process() {
        assert!(command_line(Tgid(std::process::id())).contains("memprobe"));
        assert_eq!(command_line(Tgid(0)), "");
    }
}

//! Host memory that a process may still take: the machine's, and what the limits of its cgroups leave.

use std::fs;
use std::path::{Path, PathBuf};

use super::facts::{MOST, read_own};
use crate::event::{Bytes, Tgid};

/// Mount point of the unified cgroup hierarchy (`cgroups(7)`).
const CGROUPS: &str = "/sys/fs/cgroup";

/// Most levels of cgroups that are looked at.
const MAX_LEVELS: usize = 64;

/// Memory that a process may still take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    pub bytes: Bytes,
    /// Cgroup whose limit leaves so little; `None` if it is the machine's memory.
    pub cgroup: Option<String>,
}

/// Returns the memory that a process may still take. `None` if the machine does not say.
pub fn available_to(tgid: Tgid) -> Option<AvailableMemory> {
    let machine = AvailableMemory {
        bytes: machine(&fs::read_to_string("/proc/meminfo").ok()?)?,
        cgroup: None,
    };
    let own = read_own(tgid, "cgroup", MOST);
    let own = String::from_utf8_lossy(&own);
    let limits = unified(&own).map(|path| levels(Path::new(CGROUPS), path));
    let limits = limits.into_iter().flatten();
    Some(limits.fold(machine, |least, limit| {
        if limit.bytes < least.bytes {
            limit
        } else {
            least
        }
    }))
}

/// Parses `MemAvailable` of `/proc/meminfo`.
fn machine(text: &str) -> Option<Bytes> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib.checked_mul(1024)?))
}

/// Returns the path in the unified hierarchy from the text of `/proc/PID/cgroup`.
fn unified(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A path above memprobe's own root of cgroups cannot be found under the mount point.
    (!path.split('/').any(|part| part == "..")).then_some(path)
}

/// Returns what the limit of a cgroup and of each above it leaves.
fn levels(mount: &Path, path: &str) -> Vec<AvailableMemory> {
    let mut limits = Vec::new();
    let mut at = PathBuf::from(path.trim_start_matches('/'));
    for _ in 0..MAX_LEVELS {
        limits.extend(left(&mount.join(&at), &at));
        if !at.pop() {
            break;
        }
    }
    limits
}

/// Returns what the limit of one cgroup leaves; `None` without a limit. Its file cache counts as free, since the
/// kernel drops it first.
fn left(folder: &Path, name: &Path) -> Option<AvailableMemory> {
    let number = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cache = statistics
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "));
    let cache = cache
        .and_then(|bytes| bytes.trim().parse().ok())
        .unwrap_or(0);
    let used = used.saturating_sub(cache);
    Some(AvailableMemory {
        bytes: Bytes(limit.saturating_sub(used)),
        cgroup: Some(format!("/{}", name.display())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_in_kibibytes() {
        let text = "MemTotal:       2048 kB\nMemFree: 100 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(machine(text), Some(Bytes(1 << 20)));
        assert_eq!(machine("MemTotal: 5 kB"), None);
        assert_eq!(machine("MemAvailable: many kB"), None);
    }

    #[test]
    fn only_the_unified_hierarchy_is_looked_at() {
        assert_eq!(unified("12:memory:/a\n0::/job/step\n"), Some("/job/step"));
        assert_eq!(unified("12:memory:/a\n"), None);
        assert_eq!(unified("0::/../other"), None);
    }

    #[test]
    fn the_limit_of_each_level_counts_without_its_file_cache() {
        let mount = tempfile::tempdir().expect("a folder");
        let job = mount.path().join("job");
        let step = job.join("step");
        fs::create_dir_all(&step).expect("made");
        let write = |folder: &Path, file: &str, text: &str| {
            fs::write(folder.join(file), text).expect("written");
        };
        write(&step, "memory.max", "max\n");
        write(&step, "memory.current", "100\n");
        write(&job, "memory.max", "1000\n");
        write(&job, "memory.current", "700\n");
        write(&job, "memory.stat", "anon 400\ninactive_file 300\n");
        let limits = levels(mount.path(), "/job/step");
        let expected = AvailableMemory {
            bytes: Bytes(600),
            cgroup: Some("/job".to_owned()),
        };
        assert_eq!(limits, [expected]);
    }

    #[test]
    fn this_machine_says_how_much_is_there() {
        let available = available_to(Tgid(std::process::id())).expect("it is known");
        assert!(available.bytes > Bytes(0));
    }
}

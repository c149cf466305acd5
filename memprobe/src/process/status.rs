//! `/proc/PID/status`: a process's user, capabilities and IDs in its PID namespaces.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::event::Tgid;

/// The most bytes read of a status file; the kernel writes some 2 KiB.
const MOST: u64 = 64 << 10;

/// The content of a status file (`proc_pid_status(5)`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// `State`: one letter, such as `S` for sleeping, `T` for stopped, `Z` for a zombie.
    pub state: Option<char>,
    /// `NStgid`: the process ID in each PID namespace from the reader's to the process's own, outermost
    /// first. One entry if both share a namespace.
    pub tgids: Vec<Tgid>,
    /// `NSpid`: like `tgids`, for the thread that the file describes.
    pub tids: Vec<u32>,
    pub uid: Option<u32>,
    /// The process of the thread that the file describes.
    pub tgid: Option<Tgid>,
    pub parent: Option<Tgid>,
    /// `TracerPid`: the thread that traces this one.
    pub tracer: Option<u32>,
    pub threads: Option<u64>,
    /// `CapEff`: the effective capabilities.
    pub effective: Capabilities,
    /// `CapBnd`: the limit on capabilities that the process and its children can gain.
    pub bounding: Capabilities,
    /// `Seccomp`: 0 off, 1 strict, 2 filter.
    pub seccomp: u8,
    /// `voluntary_ctxt_switches`: times that the thread gave up its processor to wait.
    pub voluntary_switches: Option<u64>,
}

impl Status {
    /// Fails with `NotFound` if there is no such process, and `ESRCH` if it has just ended.
    pub fn of(tgid: Tgid) -> io::Result<Self> {
        Self::read(format!("/proc/{}/status", tgid.0))
    }

    pub fn of_memprobe() -> io::Result<Self> {
        Self::read("/proc/self/status")
    }

    pub fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    pub fn parse(text: &str) -> Self {
        let mut status = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            let numbers = || {
                value
                    .split_ascii_whitespace()
                    .map_while(|word| word.parse().ok())
            };
            match name {
                "State" => status.state = value.chars().next(),
                "NStgid" => status.tgids = numbers().map(Tgid).collect(),
                "NSpid" => status.tids = numbers().collect(),
                "Uid" => status.uid = numbers().nth(1),
                "Tgid" => status.tgid = value.parse().ok().map(Tgid),
                "PPid" => status.parent = value.parse().ok().map(Tgid),
                "TracerPid" => status.tracer = value.parse().ok().filter(|&tracer| tracer != 0),
                "Threads" => status.threads = value.parse().ok(),
                "CapEff" => status.effective = Capabilities::parse(value),
                "CapBnd" => status.bounding = Capabilities::parse(value),
                "voluntary_ctxt_switches" => status.voluntary_switches = value.parse().ok(),
                "Seccomp" => status.seccomp = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        status
    }

    /// Returns the process ID in its own PID namespace, if that is not memprobe's.
    pub fn inner_tgid(&self) -> Option<Tgid> {
        match self.tgids.as_slice() {
            [_, .., inner] => Some(*inner),
            _ => None,
        }
    }
}

/// A set of capabilities (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capabilities(pub u64);

/// One capability, by its number in `include/uapi/linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability(u32, &'static str);

impl Capability {
    /// Trace processes of other users and read their memory.
    pub const SYS_PTRACE: Self = Self(19, "CAP_SYS_PTRACE");
    /// Every privileged operation without a capability of its own.
    pub const SYS_ADMIN: Self = Self(21, "CAP_SYS_ADMIN");
    /// `perf_event_open` on everything (5.8).
    pub const PERFMON: Self = Self(38, "CAP_PERFMON");
    /// Load programs and maps (5.8).
    pub const BPF: Self = Self(39, "CAP_BPF");
    /// Open `/proc/PID/map_files` (5.9).
    pub const CHECKPOINT_RESTORE: Self = Self(40, "CAP_CHECKPOINT_RESTORE");

    pub const USED: [Self; 5] = [
        Self::SYS_ADMIN,
        Self::SYS_PTRACE,
        Self::BPF,
        Self::PERFMON,
        Self::CHECKPOINT_RESTORE,
    ];

    pub const fn name(self) -> &'static str {
        self.1
    }
}

impl Capabilities {
    fn parse(hex: &str) -> Self {
        Self(u64::from_str_radix(hex, 16).unwrap_or(0))
    }

    pub const fn has(self, capability: Capability) -> bool {
        self.0 >> capability.0 & 1 == 1
    }

    pub fn used(self) -> Vec<&'static str> {
        let used = Capability::USED.into_iter();
        used.filter(|capability| self.has(*capability))
            .map(Capability::name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_A_CONTAINER: &str = "Name:\tpython\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t20511\n\
        Uid:\t1000\t1001\t1000\t1000\nNStgid:\t20511\t312\t7\nNSpid:\t20513\t314\t9\nThreads:\t12\n\
        CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\nSeccomp:\t2\n";

    #[test]
    fn a_process_in_nested_namespaces_has_a_number_in_each() {
        let status = Status::parse(IN_A_CONTAINER);
        assert_eq!(status.tgids, [Tgid(20511), Tgid(312), Tgid(7)]);
        assert_eq!(status.inner_tgid(), Some(Tgid(7)));
        assert_eq!(status.tids.last(), Some(&9));
        assert_eq!(status.uid, Some(1001));
        assert_eq!(status.threads, Some(12));
        assert_eq!((status.state, status.seccomp), (Some('S'), 2));
    }

    #[test]
    fn a_process_of_our_own_namespace_has_no_inner_number() {
        assert_eq!(Status::parse("NStgid:\t77\n").inner_tgid(), None);
        assert_eq!(Status::of_memprobe().unwrap().inner_tgid(), None);
    }

    #[test]
    fn capabilities_are_listed_by_name() {
        let docker = Status::parse(IN_A_CONTAINER).effective;
        assert_eq!(docker.used(), Vec::<&str>::new());
        let root = Capabilities::parse("000001ffffffffff");
        assert_eq!(root.used().len(), Capability::USED.len());
        assert!(Capabilities::parse("0000000000200000").has(Capability::SYS_ADMIN));
    }

    #[test]
    fn nonsense_gives_nothing() {
        let status = Status::parse("Uid:\tx\nNStgid:\t-1\nCapEff:\tzz\nSeccomp:\t300\n\0\nThreads");
        assert_eq!(status, Status::default());
    }
}

//! The running kernel: its version, and field offsets from its own types (BTF).

use std::fmt;
use std::fs;

use anyhow::{Context as _, Result};

use super::kernel_types::KernelTypes;
pub use super::preflight::preflight;

/// The oldest kernel that has what the programs need: `bpf_ringbuf_*` (5.8) and perf links for uprobes (5.15).
pub const OLDEST: Release = Release(5, 15, 0);

pub const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// The first releases of each stable series in which uprobes need CAP_SYS_ADMIN again, whatever
/// other capabilities there are (the fix of CVE-2025-38466, "perf: Revert to requiring
/// CAP_SYS_ADMIN for uprobes"). Distributions carry it to other versions too.
const UPROBES_NEED_SYS_ADMIN: [Release; 4] = [
    Release(6, 1, 146),
    Release(6, 6, 99),
    Release(6, 12, 39),
    Release(6, 16, 0),
];

/// The version of a kernel: major, minor, and the number of the stable release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    /// The numbers of a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let numbers = release.trim().split(|c: char| !c.is_ascii_digit());
        let mut numbers = numbers.map(|number| number.parse().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        Some(Self(major, minor, numbers.next().flatten().unwrap_or(0)))
    }

    /// True if this version requires CAP_SYS_ADMIN for uprobes; earlier ones accept CAP_PERFMON.
    pub fn has_uprobes_for_sys_admin_only(self) -> bool {
        let [series @ .., newest] = UPROBES_NEED_SYS_ADMIN;
        let has_fix = |fixed: &Self| (fixed.0, fixed.1) == (self.0, self.1) && *fixed <= self;
        self >= newest || series.iter().any(has_fix)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)?;
        match self.2 {
            0 => Ok(()),
            stable => write!(f, ".{stable}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOffsets {
    /// `task_struct.thread.fsbase`: the thread pointer of the running thread.
    pub fsbase: u64,
    /// `task_struct.pid`: a thread's number.
    pub pid: u64,
    /// `task_struct.tgid`: a process's number.
    pub tgid: u64,
    /// `task_struct.signal`: what the threads of a process share.
    pub signal: u64,
    /// `signal_struct.live`: how many of them live.
    pub live: u64,
}

impl TaskOffsets {
    pub fn of_this_kernel() -> Result<Self> {
        let file = fs::read(KERNEL_TYPES).with_context(|| format!("reading {KERNEL_TYPES}"))?;
        let types = KernelTypes::parse(&file).with_context(|| format!("parsing {KERNEL_TYPES}"))?;
        Ok(Self {
            fsbase: types
                .offset("task_struct", "thread.fsbase")
                .context("memprobe knows x86-64 only so far")?,
            pid: types.offset("task_struct", "pid")?,
            tgid: types.offset("task_struct", "tgid")?,
            signal: types.offset("task_struct", "signal")?,
            live: types.offset("signal_struct", "live")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_up_to_its_stable_number() {
        assert_eq!(
            Release::parse("6.18.44-fc-v657\n"),
            Some(Release(6, 18, 44))
        );
        assert_eq!(Release::parse("6.1.0-18-amd64"), Some(Release(6, 1, 0)));
        assert_eq!(Release::parse("5.15"), Some(Release(5, 15, 0)));
        assert_eq!(Release::parse("linux"), None);
        assert_eq!(Release::parse("6"), None);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(Release(5, 9, 200) < OLDEST && OLDEST < Release(5, 15, 1));
        assert_eq!(Release(5, 15, 0).to_string(), "5.15");
        assert_eq!(Release(6, 1, 146).to_string(), "6.1.146");
    }

    #[test]
    fn each_stable_series_has_its_own_release_since_which_uprobes_need_more() {
        for since in [Release(6, 1, 146), Release(6, 12, 40), Release(6, 18, 0)] {
            assert!(since.has_uprobes_for_sys_admin_only(), "{since}");
        }
        for before in [
            Release(6, 1, 145),
            Release(6, 6, 98),
            Release(6, 8, 0),
            OLDEST,
        ] {
            assert!(!before.has_uprobes_for_sys_admin_only(), "{before}");
        }
    }

    #[test]
    fn this_kernel_gives_the_offset_of_the_thread_pointer() {
        if !fs::exists(KERNEL_TYPES).unwrap_or(false) {
            eprintln!("skipped: this kernel does not publish its types");
            return;
        }
        let offsets = TaskOffsets::of_this_kernel().expect("the kernel's types have them");
        let fsbase = offsets.fsbase;
        assert!(fsbase.is_multiple_of(8) && fsbase < 32 * 1024, "{fsbase}");
        assert_eq!(offsets.tgid, offsets.pid + 4, "declared side by side");
    }
}

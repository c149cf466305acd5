//! The machine that memprobe runs on, and what memprobe may do there: read from `/proc` and `/sys`,
//! judged by [`super::preflight`].

use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::{self, Release};
use crate::process::container::{self, Container};
use crate::process::namespace::{Kind, Namespace};
use crate::process::status::{Capabilities, Status};

#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// `uname -r`.
    pub release: String,
    pub version: Option<Release>,
    /// True if the kernel publishes its types (BTF).
    pub types: bool,
    pub effective: Capabilities,
    pub bounding: Capabilities,
    /// `Seccomp` of memprobe: 0 off, 1 strict, 2 filter.
    pub seccomp: u8,
    pub pid_namespace: Option<Namespace>,
    pub user_namespace: Option<Namespace>,
    pub container: Option<Container>,
    /// `none`, `integrity` or `confidentiality` (`kernel_lockdown(7)`).
    pub lockdown: Option<String>,
    pub perf_event_paranoid: Option<i64>,
    pub unprivileged_bpf_disabled: Option<i64>,
    /// `net.core.bpf_jit_enable`.
    pub jit: Option<i64>,
    pub ptrace_scope: Option<i64>,
    /// True if `perf_event_open` offers uprobes.
    pub uprobes: bool,
    pub tracefs: Option<PathBuf>,
    /// Bytes that memprobe may lock (`RLIMIT_MEMLOCK`); `None` for no limit.
    pub locked_memory: Option<u64>,
    /// Bytes that memprobe's control group may use; `None` for no limit.
    pub memory_limit: Option<u64>,
}

/// The perf PMU of uprobes (4.17, CONFIG_UPROBE_EVENTS).
const UPROBE_PMU: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Mount points of tracefs: its own, and the older one under debugfs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

impl Machine {
    pub fn read() -> Self {
        let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let status = Status::of_memprobe().unwrap_or_default();
        let number = |path| read(path)?.parse().ok();
        let lockdown = read("/sys/kernel/security/lockdown");
        Self {
            version: Release::parse(&release),
            release,
            types: fs::exists(kernel::KERNEL_TYPES).unwrap_or(false),
            effective: status.effective,
            bounding: status.bounding,
            seccomp: status.seccomp,
            pid_namespace: Namespace::of_memprobe(Kind::Pid),
            user_namespace: Namespace::of_memprobe(Kind::User),
            container: container::of_memprobe(),
            lockdown: lockdown.as_deref().and_then(chosen),
            perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
            jit: number("/proc/sys/net/core/bpf_jit_enable"),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            uprobes: fs::exists(UPROBE_PMU).unwrap_or(false),
            tracefs: TRACEFS
                .into_iter()
                .find(|path| Path::new(path).join("events").is_dir())
                .map(PathBuf::from),
            locked_memory: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
            memory_limit: memory_limit(),
        }
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The word in brackets: `none [integrity] confidentiality`.
fn chosen(words: &str) -> Option<String> {
    let (_, rest) = words.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The least of the limits on memory that are seen at memprobe's own control group: `memory.max` of
/// version 2, `memory.limit_in_bytes` of version 1.
fn memory_limit() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let paths = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        match rest.split_once(':')? {
            ("", path) => Some(format!("/sys/fs/cgroup{path}/memory.max")),
            (controllers, path) if controllers.split(',').any(|name| name == "memory") => {
                Some(format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    // In a container the path is often that of the host, and the own group lies at the top.
    let tops = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    paths
        .chain(tops.map(str::to_owned))
        .filter_map(|path| read(&path)?.parse().ok())
        .filter(|limit| *limit < UNLIMITED)
        .min()
}

/// Version 1 writes "no limit" as the largest number of whole pages.
const UNLIMITED: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_lockdown_stands_in_brackets() {
        let mode = chosen("none [integrity] confidentiality");
        assert_eq!(mode.as_deref(), Some("integrity"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read();
        assert!(machine.version.is_some(), "{}", machine.release);
        assert!(machine.pid_namespace.is_some());
    }
}

//! Checks of the machine and of memprobe's rights, from facts that were read before anything is changed.

use anyhow::Result;

use super::finding::{Finding, Level};
use super::kernel::{KERNEL_TYPES, OLDEST, Release, TaskOffsets};
use super::machine::Machine;
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::process::namespace::Namespace;
use crate::process::status::{Capabilities, Capability};

/// Upper bound of memprobe's memory beside its ring buffer: programs, maps, its own data.
const COMFORTABLE: u64 = 128 << 20;

/// Since this release memory of maps is charged to the control group and not to `RLIMIT_MEMLOCK`
/// (kernel/bpf/memalloc, 5.11).
const COUNTS_IN_CONTROL_GROUP: (u32, u32) = (5, 11);

/// Checks what attaching needs before anything is touched.
pub fn preflight() -> Result<()> {
    let machine = Machine::read();
    let mut needed = machine.needed().into_iter();
    let failure = needed.find(|finding| finding.level == Level::Fail);
    failure.map_or(Ok(()), |finding| Err(finding.into()))
}

impl Machine {
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.needed();
        findings.push(self.thread_pointer());
        findings.push(self.perf_events());
        findings.push(self.unprivileged_bpf());
        findings.push(self.seccomp());
        findings.push(self.container());
        findings.push(self.locked_memory());
        findings.push(self.memory());
        findings.push(self.jit());
        findings.push(self.tracepoints());
        findings
    }

    /// Problems that keep memprobe from working, in the order in which to solve them.
    fn needed(&self) -> Vec<Finding> {
        vec![
            self.kernel(),
            self.types(),
            self.capabilities(),
            self.user_namespace(),
            self.pid_namespace(),
            self.lockdown(),
            self.uprobes(),
            self.ptrace(),
        ]
    }

    fn kernel(&self) -> Finding {
        let release = &self.release;
        let machine = std::env::consts::ARCH;
        let finding = match self.version {
            None => Finding::fail(
                "kernel",
                format!("the kernel calls itself {release:?}, which is no version"),
                format!("Use Linux {OLDEST} or newer."),
            ),
            Some(version) if version < OLDEST => Finding::fail(
                "kernel",
                format!("this kernel is {release}; memprobe needs Linux {OLDEST} or newer"),
                "Update the kernel and try again.",
            ),
            Some(_) if machine != "x86_64" => Finding::fail(
                "kernel",
                format!("this machine is {machine}; memprobe's probes know x86-64 only"),
                "Run memprobe on an x86-64 machine.",
            ),
            Some(_) => Finding::ok("kernel", format!("Linux {release} on {machine}")),
        };
        finding
            .with("release", release.as_str())
            .with("oldest", OLDEST.to_string())
    }

    fn types(&self) -> Finding {
        match self.types {
            true => Finding::ok("kernel_types", KERNEL_TYPES),
            false => Finding::fail(
                "kernel_types",
                format!(
                    "this kernel does not publish its types ({KERNEL_TYPES} is missing), which memprobe needs to \
                     find a thread's Python stack"
                ),
                "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y (every large distribution's is); in a container, \
                 mount /sys.",
            ),
        }
    }

    fn thread_pointer(&self) -> Finding {
        let offset = match TaskOffsets::of_this_kernel() {
            Ok(offsets) => offsets.fsbase,
            Err(error) => return Finding::from_error("thread_pointer", Level::Fail, error),
        };
        let found = format!("{offset} bytes into a thread's task_struct");
        Finding::ok("thread_pointer", found).with("offset", offset)
    }

    fn capabilities(&self) -> Finding {
        let has = |capability| self.effective.has(capability);
        let strict = (self.version).is_some_and(Release::has_uprobes_for_sys_admin_only);
        let pair = has(Capability::BPF) && has(Capability::PERFMON);
        let finding = if has(Capability::SYS_ADMIN) {
            Finding::ok("capabilities", listed(self.effective))
        } else if pair && !strict {
            Finding::warn(
                "capabilities",
                format!(
                    "{}: without CAP_SYS_ADMIN it depends on this kernel whether it allows uprobes",
                    listed(self.effective)
                ),
                "If a probe is refused below, run memprobe with sudo.",
            )
        } else if pair {
            Finding::fail(
                "capabilities",
                format!(
                    "attaching needs CAP_SYS_ADMIN: since Linux 6.1.146, 6.6.99, 6.12.39 and 6.16 CAP_BPF and \
                     CAP_PERFMON are not enough for uprobes (CVE-2025-38466), and this is {}",
                    self.release
                ),
                self.how_to_be_root(),
            )
        } else {
            Finding::fail(
                "capabilities",
                format!(
                    "attaching needs root (CAP_SYS_ADMIN: the kernel allows uprobes to nobody else), and memprobe \
                     has {}",
                    listed(self.effective)
                ),
                self.how_to_be_root(),
            )
        };
        finding
            .with("effective", self.effective.used())
            .with("bounding", self.bounding.used())
            .with("uprobes_need_sys_admin", strict)
    }

    fn how_to_be_root(&self) -> String {
        if self.bounding.has(Capability::SYS_ADMIN) {
            return "Run it with sudo: sudo memprobe …".to_owned();
        }
        "sudo cannot give it here, as it was taken from every process of this container or service. Run memprobe on \
         the host with sudo, or in a container started with --privileged --pid=host."
            .to_owned()
    }

    fn user_namespace(&self) -> Finding {
        let own = "memprobe runs in a user namespace of its own (a rootless container, or `unshare -U`): being root \
                   there counts for nothing with the kernel's probes";
        let remedy = "Run memprobe on the host with sudo.";
        let is_first = self.user_namespace.map(|own| own == Namespace::FIRST_USER);
        namespace("user_namespace", is_first, own, remedy)
    }

    fn pid_namespace(&self) -> Finding {
        let own = "memprobe runs in a PID namespace of its own (a container without the host's PIDs): the kernel \
                   numbers processes otherwise than memprobe sees them";
        let remedy = "Run memprobe on the host with sudo, or in a container started with --pid=host (Kubernetes: \
                      hostPID: true).";
        let is_first = self.pid_namespace.map(|own| own == Namespace::FIRST_PID);
        namespace("pid_namespace", is_first, own, remedy)
    }

    fn lockdown(&self) -> Finding {
        let mode = self.lockdown.as_deref();
        let finding = match mode {
            Some("confidentiality") => Finding::fail(
                "lockdown",
                "the kernel is locked down for confidentiality, which forbids programs to read its memory, and \
                 memprobe's must find the running thread",
                "Start the machine with lockdown=integrity on the kernel's command line (kernel_lockdown(7)).",
            ),
            Some(mode) => Finding::ok("lockdown", mode),
            None => Finding::ok("lockdown", "none"),
        };
        finding.with("mode", mode)
    }

    fn uprobes(&self) -> Finding {
        match self.uprobes {
            true => Finding::ok("uprobes", "offered by perf_event_open"),
            false => Finding::fail(
                "uprobes",
                "this kernel offers no uprobes (/sys/bus/event_source/devices/uprobe is missing)",
                "Use a kernel built with CONFIG_UPROBE_EVENTS=y (every large distribution's is); in a container, \
                 mount /sys.",
            ),
        }
    }

    fn ptrace(&self) -> Finding {
        let can = self.effective.has(Capability::SYS_PTRACE);
        let finding = match self.ptrace_scope {
            Some(3) => Finding::fail(
                "ptrace",
                "kernel.yama.ptrace_scope is 3: nobody may read another process's memory, not even root",
                "Set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and restart the machine (3 cannot be undone while it \
                 runs).",
            ),
            _ if can => Finding::ok("ptrace", "memory of every process can be read"),
            Some(scope @ 1..) => Finding::warn(
                "ptrace",
                format!(
                    "without CAP_SYS_PTRACE, and with kernel.yama.ptrace_scope {scope}, memprobe may read the memory \
                     of no process that it did not start"
                ),
                self.how_to_be_root(),
            ),
            _ => Finding::warn(
                "ptrace",
                "without CAP_SYS_PTRACE memprobe may read the memory of its own user's processes only",
                self.how_to_be_root(),
            ),
        };
        finding.with("ptrace_scope", self.ptrace_scope)
    }

    fn perf_events(&self) -> Finding {
        let (level, exempt) = (self.perf_event_paranoid, Capability::PERFMON);
        self.restriction("perf_events", "perf_event_paranoid", level, exempt)
            .with("paranoid", level)
    }

    fn unprivileged_bpf(&self) -> Finding {
        let (level, exempt) = (self.unprivileged_bpf_disabled, Capability::BPF);
        let setting = "unprivileged_bpf_disabled";
        self.restriction("unprivileged_bpf", setting, level, exempt)
            .with("disabled", level)
    }

    /// A setting of the kernel that restricts processes without a capability.
    fn restriction(
        &self,
        check: &'static str,
        setting: &str,
        level: Option<i64>,
        exempt: Capability,
    ) -> Finding {
        let mut exempt = [exempt, Capability::SYS_ADMIN].into_iter();
        let exempt = exempt.find(|capability| self.effective.has(*capability));
        let setting = match level {
            Some(level) => format!("kernel.{setting} is {level}"),
            None => format!("kernel.{setting} cannot be read"),
        };
        match exempt {
            Some(exempt) => Finding::ok(check, format!("{setting}; {} is above it", exempt.name())),
            None => Finding::note(check, format!("{setting}; it binds memprobe")),
        }
    }

    fn seccomp(&self) -> Finding {
        let finding = match self.seccomp {
            0 => Finding::ok("seccomp", "no filter"),
            _ => Finding::note(
                "seccomp",
                "memprobe runs under a filter of system calls, as containers do; whether it lets bpf and \
                 perf_event_open through is tried below",
            ),
        };
        finding.with("mode", self.seccomp)
    }

    fn container(&self) -> Finding {
        match &self.container {
            None => Finding::ok("container", "memprobe runs in none"),
            Some(container) => Finding::note("container", format!("memprobe runs in {container}"))
                .with("engine", container.engine.name())
                .with("id", container.id.as_str()),
        }
    }

    fn locked_memory(&self) -> Finding {
        let limit = match self.locked_memory {
            None => "no limit".to_owned(),
            Some(bytes) => format!("at most {}", human(Bytes(bytes))),
        };
        let is_old = |version: Release| (version.0, version.1) < COUNTS_IN_CONTROL_GROUP;
        let counted = self.version.is_some_and(is_old);
        let finding = match (counted, self.locked_memory) {
            (true, Some(bytes)) if bytes < COMFORTABLE => Finding::warn(
                "locked_memory",
                format!("{limit}, and this kernel counts maps against it"),
                "Raise it: ulimit -l unlimited.",
            ),
            (true, _) => Finding::ok("locked_memory", limit),
            (false, _) => Finding::ok(
                "locked_memory",
                format!("{limit}; this kernel does not count maps against it"),
            ),
        };
        finding.with("limit", self.locked_memory)
    }

    fn memory(&self) -> Finding {
        let text = |limit| format!("memprobe's control group may use {}", human(Bytes(limit)));
        let remedy = "Raise the container's or service's memory limit to 256 MiB.";
        let finding = match self.memory_limit {
            Some(limit @ ..COMFORTABLE) => Finding::warn("memory_limit", text(limit), remedy),
            Some(limit) => Finding::ok("memory_limit", text(limit)),
            None => Finding::ok("memory_limit", "none"),
        };
        finding.with("limit", self.memory_limit)
    }

    fn jit(&self) -> Finding {
        let finding = match self.jit {
            Some(0) => Finding::warn(
                "bpf_jit",
                "net.core.bpf_jit_enable is 0: the kernel interprets memprobe's programs, which slows the target",
                "sudo sysctl net.core.bpf_jit_enable=1",
            ),
            Some(_) => Finding::ok("bpf_jit", "programs are compiled"),
            // The file is there in the first network namespace only.
            None => Finding::note("bpf_jit", "net.core.bpf_jit_enable cannot be read here"),
        };
        finding.with("enabled", self.jit)
    }

    fn tracepoints(&self) -> Finding {
        match &self.tracefs {
            Some(path) => Finding::ok("tracepoints", format!("tracefs at {}", path.display()))
                .with("tracefs", path.display().to_string()),
            None => Finding::note(
                "tracepoints",
                "tracefs is not mounted; memprobe's probes do without",
            ),
        }
    }
}

fn namespace(check: &'static str, is_first: Option<bool>, own: &str, remedy: &str) -> Finding {
    match is_first {
        Some(true) => Finding::ok(check, "the machine's own"),
        Some(false) => Finding::fail(check, own, remedy),
        None => Finding::note(check, "/proc does not tell"),
    }
}

/// The capabilities that memprobe has a use for, or that there are none.
fn listed(capabilities: Capabilities) -> String {
    let used = capabilities.used();
    match used.len() {
        0 => "none of the capabilities that it uses".to_owned(),
        _ => used.join(", "),
    }
}

#[cfg(test)]
mod tests;

//! Capabilities of memprobe itself: each of its threads gives up what it does not need.

use rustix::io;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capabilities for the whole run.
///
/// - probes, which come with each library that a process loads: `SYS_ADMIN` (uprobes since Linux 6.1.146, and all of
///   BPF before 5.8), `BPF`, `PERFMON`;
/// - reading processes and their files: `SYS_PTRACE`, `DAC_READ_SEARCH`, `CHECKPOINT_RESTORE` (`/proc/PID/map_files`);
/// - outputs in directories of the caller, and giving them to the caller: `DAC_OVERRIDE`, `CHOWN`, `FOWNER`.
const RUNNING: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);

/// Capabilities for the start besides: becoming the caller for a command (`SETUID`, `SETGID`), and priority
/// (`SYS_NICE`).
const STARTING: CapabilitySet = RUNNING
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SYS_NICE);

/// Stage of a run of memprobe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStage {
    /// Until the programs are loaded and the command is started.
    Starting,
    Running,
}

/// Gives up the capabilities of the calling thread, and of threads that it starts later, that `stage` does not need.
/// The bounding set stays as it is: a command as root and helpers of the NVIDIA driver (nvidia-modprobe) need theirs.
pub fn reduce_to(stage: RunStage) -> io::Result<()> {
    let needed = match stage {
        RunStage::Starting => STARTING,
        RunStage::Running => RUNNING,
    };
    let now = capabilities(None)?;
    let reduced = CapabilitySets {
        effective: now.effective & needed,
        permitted: now.permitted & needed,
        inheritable: now.inheritable & needed,
    };
    set_capabilities(None, reduced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_up_what_it_does_not_need_and_the_others_keep_theirs() {
        let before = capabilities(None).unwrap();
        let after = std::thread::spawn(|| {
            reduce_to(RunStage::Starting).unwrap();
            let starting = capabilities(None).unwrap();
            reduce_to(RunStage::Running).unwrap();
            // It cannot get back what it gave up.
            let sets = CapabilitySets {
                effective: starting.effective,
                ..capabilities(None).unwrap()
            };
            assert_eq!(
                set_capabilities(None, sets).is_ok(),
                starting.effective == sets.permitted
            );
            (starting, capabilities(None).unwrap())
        });
        let (starting, running) = after.join().unwrap();
        assert_eq!(starting.effective, before.effective & STARTING);
        assert_eq!(running.effective, before.effective & RUNNING);
        assert_eq!(running.permitted, before.permitted & RUNNING);
        assert_eq!(capabilities(None).unwrap(), before);
    }
}

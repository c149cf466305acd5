//! A process by number, as long as it lives.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit, test_kill_process,
};

use crate::event::Tgid;
use crate::process::run_state::RunState;
use crate::python::DetectError;

/// Watched process, held by a pidfd: a reuse of its number is noticed.
#[derive(Debug)]
pub struct Watched {
    pub tgid: Tgid,
    /// None where memprobe has no descriptors left.
    exit: Option<OwnedFd>,
}

impl Watched {
    pub fn open(tgid: Tgid) -> Result<Self> {
        match (pidfd(tgid), RunState::of(tgid)) {
            // A command of memprobe that has ended has what it did in the records.
            (Ok(_), RunState::Zombie(parent)) if parent.0 != std::process::id() => {
                let error = DetectError::Zombie(parent);
                bail!("process {}: {error}", tgid.0)
            }
            (Ok(exit), _) => Ok(Self {
                tgid,
                exit: Some(exit),
            }),
            (Err(Errno::SRCH | Errno::INVAL | Errno::NOENT), _) => bail!(
                "there is no process {}.\nFind the right one with `pgrep -af python` (a thread's number is not enough: \
                 give the process's own).",
                tgid.0
            ),
            (Err(error), _) => Err(error).with_context(|| format!("watching process {}", tgid.0)),
        }
    }

    /// [`Self::open`], with `None` for a process that has ended.
    pub fn if_there(tgid: Tgid) -> Option<Self> {
        let exit = match pidfd(tgid) {
            Ok(exit) => Some(exit),
            Err(Errno::MFILE | Errno::NFILE) => None,
            Err(_) => return None,
        };
        Some(Self { tgid, exit })
    }

    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for the end of the process; false if it lives on after `patience`.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let Some(exit) = &self.exit else {
            return number(self.tgid).is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        };
        // A pidfd becomes readable when the process ends and stays so.
        let mut descriptors = [PollFd::new(exit, PollFlags::IN)];
        let patience = Timespec::try_from(patience).unwrap_or_default();
        poll(&mut descriptors, Some(&patience)).is_ok_and(|ready| ready > 0)
    }
}

fn pidfd(tgid: Tgid) -> Result<OwnedFd, Errno> {
    number(tgid).map_or(Err(Errno::SRCH), |pid| pidfd_open(pid, PidfdFlags::empty()))
}

fn number(tgid: Tgid) -> Option<Pid> {
    i32::try_from(tgid.0).ok().and_then(Pid::from_raw)
}

/// Lets memprobe open as many files as it may: it holds one for each process and each probe. Not to
/// be called before a command is started, which would inherit it.
pub fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Without it there is room for the first thousand.
    let _ = setrlimit(Resource::Nofile, raised);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_has_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        let watched = Watched::open(Tgid(child.id())).expect("it runs");
        assert!(!watched.has_ended());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(watched.has_ended());
        let unheld = Watched {
            tgid: Tgid(std::process::id()),
            exit: None,
        };
        assert!(!unheld.has_ended());
        assert!(Watched::if_there(Tgid(0)).is_none());
    }
}

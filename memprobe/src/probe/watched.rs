//! A process by number, as long as it lives.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::event::Tgid;

/// A process that memprobe looks at; its number cannot come to mean another one unnoticed.
#[derive(Debug)]
pub struct Watched {
    /// Its number.
    pub tgid: Tgid,
    exit: OwnedFd,
}

impl Watched {
    /// Takes hold of a process.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(tgid: Tgid) -> Result<Self> {
        match pidfd(tgid) {
            Ok(exit) => Ok(Self { tgid, exit }),
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => bail!(
                "there is no process {}.\nFind the right one with `pgrep -af python` (a thread's number is not enough: \
                 give the process's own).",
                tgid.0
            ),
            Err(error) => Err(error).with_context(|| format!("watching process {}", tgid.0)),
        }
    }

    /// As [`Self::open`], where a process that is no more is nothing to speak of.
    pub fn if_there(tgid: Tgid) -> Option<Self> {
        let exit = pidfd(tgid).ok()?;
        Some(Self { tgid, exit })
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        // A pidfd becomes readable when the process ends and stays so.
        let mut descriptors = [PollFd::new(&self.exit, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

fn pidfd(tgid: Tgid) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(tgid.0).ok().and_then(Pid::from_raw);
    pid.map_or(Err(Errno::SRCH), |pid| pidfd_open(pid, PidfdFlags::empty()))
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
        assert!(Watched::if_there(Tgid(0)).is_none());
    }
}

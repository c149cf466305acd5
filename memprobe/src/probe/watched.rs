//! A process by number, as long as it lives.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

use super::descriptor::watch_process;
use crate::event::Tgid;

/// A process that memprobe looks at; its number cannot come to mean another one unnoticed.
pub struct Watched {
    /// Its number.
    pub tgid: Tgid,
    exit: AsyncFd<OwnedFd>,
}

impl Watched {
    /// Takes hold of a process. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(tgid: Tgid) -> Result<Self> {
        let pid = i32::try_from(tgid.0).ok().and_then(Pid::from_raw);
        let fd = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(fd)) => fd,
            Some(Err(Errno::SRCH | Errno::INVAL | Errno::NOENT)) | None => bail!(
                "there is no process {}.\nFind the right one with `pgrep -af python` (a thread's number is not enough: \
                 give the process's own).",
                tgid.0
            ),
            Some(Err(error)) => {
                return Err(error).with_context(|| format!("watching process {}", tgid.0));
            }
        };
        let exit = watch_process(fd).context("watching the process's end")?;
        Ok(Self { tgid, exit })
    }

    /// Waits until the process has ended.
    pub async fn ended(&self) {
        // A pidfd becomes readable when the process ends and stays so; an error is as good.
        let _ = self.exit.readable().await;
    }
}

//! Looks at the host from time to time, beside everything else: which processes use CUDA, and what
//! the driver says. On a thread of its own, since both take milliseconds.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use tokio::sync::mpsc as channel;

use super::priority;
use crate::cuda::nvml::{Driver, Pids, Sample};
use crate::process::namespace::{Kind, Namespace};
use crate::process::process_scan::{HostScan, ScanResult};

const EVERY: Duration = Duration::from_secs(2);
/// Scans between attempts to open a driver that could not be opened.
const DRIVER_AGAIN: u32 = 30;

/// Returns true if memprobe sees processes under the numbers that the driver gives.
pub(crate) fn has_pids_of_the_driver() -> bool {
    Namespace::of_memprobe(Kind::Pid) == Some(Namespace::FIRST_PID)
}

/// Asks the driver once; it takes some milliseconds a device.
pub(crate) fn sample_driver() -> Result<Sample, String> {
    Driver::open()?.sample(&HostPids::default())
}

#[derive(Debug)]
pub(crate) struct Seen {
    /// Processes that were not known to use CUDA before.
    pub(crate) found: ScanResult,
    /// Sample of the driver, or the reason why there is none.
    pub(crate) driver: Result<Sample, String>,
}

/// The thread that looks. Dropped, it ends.
pub(crate) struct ProcessMonitor {
    seen: channel::UnboundedReceiver<Seen>,
    /// Closed when this is dropped.
    _alive: mpsc::Sender<()>,
}

impl ProcessMonitor {
    /// Looks at `/proc` if there is a `scan`, then at the driver and at both every two seconds.
    pub(crate) fn begin(mut scan: Option<HostScan>) -> Result<(Self, ScanResult)> {
        let (send, seen) = channel::unbounded_channel();
        let (alive, ended) = mpsc::channel::<()>();
        let first = scan.as_mut().map(HostScan::look).transpose();
        let first = first.context("reading /proc")?.unwrap_or_default();
        std::thread::Builder::new()
            .name("lookout".to_owned())
            .spawn(move || {
                priority::take_turns();
                let mut looking = Looking::new(scan);
                while send.send(looking.look()).is_ok()
                    && ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout)
                {}
            })
            .context("starting a thread")?;
        let monitor = Self {
            seen,
            _alive: alive,
        };
        Ok((monitor, first))
    }

    pub(crate) async fn next(&mut self) -> Seen {
        match self.seen.recv().await {
            Some(seen) => seen,
            // The thread is gone: nothing more will be seen.
            None => std::future::pending().await,
        }
    }
}

struct Looking {
    /// `None` if the watched processes are known already.
    scan: Option<HostScan>,
    driver: Result<Driver, String>,
    driver_again: u32,
    pids: HostPids,
}

/// Process ids of the host, if memprobe sees them.
pub(super) struct HostPids {
    are_visible: bool,
}

impl Default for HostPids {
    fn default() -> Self {
        Self {
            are_visible: has_pids_of_the_driver(),
        }
    }
}

impl Pids for HostPids {
    fn exists(&self, pid: u32) -> Option<bool> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let exists = pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH));
        self.are_visible.then_some(exists)
    }
}

impl Looking {
    fn new(scan: Option<HostScan>) -> Self {
        Self {
            scan,
            driver: Driver::open(),
            driver_again: DRIVER_AGAIN,
            pids: HostPids::default(),
        }
    }

    fn look(&mut self) -> Seen {
        if self.driver.is_err() {
            self.driver_again -= 1;
            if self.driver_again == 0 {
                self.driver = Driver::open();
                self.driver_again = DRIVER_AGAIN;
            }
        }
        let driver = match &self.driver {
            Ok(driver) => driver.sample(&self.pids),
            Err(error) => Err(error.clone()),
        };
        // It could be read at first: what cannot be now is looked at the next time.
        let found = self.scan.as_mut().and_then(|scan| scan.look().ok());
        Seen {
            found: found.unwrap_or_default(),
            driver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_exists_until_it_has_ended() {
        let pids = HostPids { are_visible: true };
        assert_eq!(pids.exists(std::process::id()), Some(true));
        // The first process is another user's, mostly.
        assert_eq!(pids.exists(1), Some(true));
        for nobody in [0, u32::MAX, i32::MAX as u32] {
            assert_eq!(pids.exists(nobody), Some(false));
        }
        let others = HostPids { are_visible: false };
        assert_eq!(others.exists(std::process::id()), None);
    }
}

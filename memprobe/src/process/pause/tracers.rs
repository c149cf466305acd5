//! Other programs that trace the process: of all tracers, only one at a time may stop it (`PTRACE_SEIZE` fails with
//! EPERM).

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::PauseError;
use crate::event::Tgid;
use crate::process::run_state::tracer;

/// The longest wait for another tracer. A second memprobe and profilers that sample let the process run on within a
/// second or so, a debugger does not.
const MAX_TRACED: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(1);

/// Stops a process by `pause`, again each time that another tracer has let it run on.
/// Fails with [`PauseError::Traced`] if a tracer stays.
pub(super) fn once_untraced<R>(
    tgid: Tgid,
    mut pause: impl FnMut() -> Result<R, PauseError>,
) -> Result<R, PauseError> {
    let deadline = Instant::now() + MAX_TRACED;
    loop {
        let paused = pause();
        if !matches!(paused, Err(PauseError::Traced(_))) || !becomes_untraced(tgid, deadline) {
            return paused;
        }
    }
}

/// Waits until no thread of a process is traced; returns false if one is at the deadline.
fn becomes_untraced(tgid: Tgid, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        if !is_traced(tgid) {
            return true;
        }
        thread::sleep(POLL);
    }
    false
}

fn is_traced(tgid: Tgid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", tgid.0));
    let names = threads.into_iter().flatten().flatten();
    let mut tids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.any(|tid| tracer(tgid, tid).is_some())
}

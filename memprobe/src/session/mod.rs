//! Sessions: probed processes, from kernel records to a stream of events.

mod before_attach;
pub(crate) mod event;
pub(crate) mod host;
mod poll;
pub(crate) mod priority;
pub(crate) mod process;
pub(crate) mod process_monitor;
pub(crate) mod startup_check;

use crate::event::TimeNs;

/// Now, on the clock of the events (`bpf_ktime_get_ns` is `CLOCK_MONOTONIC`).
pub(crate) fn now() -> TimeNs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    TimeNs(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

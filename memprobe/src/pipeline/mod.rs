//! The rooms put together: what each verb does from probe to screen or file.

pub mod doctor;
pub mod estimate;
pub mod host;
pub mod live;
pub mod record;
pub mod snapshot;
pub mod top;
mod trace;

mod attribution_feed;
mod before_attach;
mod command;
mod interrupts;
mod naming;
mod priority;
mod process;
mod process_monitor;
mod process_view;
mod progress;
mod recorder;
mod session;
mod source;
mod startup_check;
mod tensor_reader;

use crate::event::TimeNs;
pub use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
pub use crate::probe::diagnostics::enable as enable_diagnostics;

/// Now, on the clock of the events (`bpf_ktime_get_ns` is `CLOCK_MONOTONIC`).
fn now() -> TimeNs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    TimeNs(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// One thread is enough: the programs in the kernel do not wait for user space. Those that read memory for long take
/// turns with the target.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(priority::take_turns)
        .build()?)
}

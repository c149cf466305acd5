//! The rooms put together: what each verb does from probe to screen or file.

pub mod attach;
pub mod doctor;
pub mod estimate;
pub mod host;
pub mod messages;
pub mod record;
pub mod snapshot;
pub mod stdout;
pub mod top;

mod naming;
mod process_view;
mod screen;

use std::io;

use anyhow::Context as _;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub use self::naming::Naming;
pub use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::diagnostics;
pub use crate::probe::loader::{Wanted, Watch};
use crate::process::capabilities::{RunStage, reduce_to};
pub use crate::process::pause::allow_longest as allow_longest_pause;
use crate::process::pause::{Stops, stops};
use crate::session::priority;
use crate::view::{counted, milliseconds};

/// User as whom memprobe runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandUser {
    /// The user who called sudo; memprobe's own user without sudo.
    Caller,
    /// The user of memprobe.
    Same,
}

/// Prints diagnostics of the kernel programs from now on.
pub fn enable_diagnostics() {
    diagnostics::enable(messages::print);
}

/// Returns a sentence on all stops of processes by memprobe; `None` without any.
fn stops_line() -> Option<String> {
    let Stops {
        number,
        total,
        longest,
    } = stops();
    let (total, longest) = (milliseconds(total), milliseconds(longest));
    let more = format!(", the longest {longest}");
    let more = if number > 1 { more.as_str() } else { "" };
    (number > 0).then(|| {
        let times = counted(number, "time");
        format!("stopped processes {times}, {total} in all{more}")
    })
}

/// Gives up what no part of memprobe needs. To be called before any thread is started.
pub fn begin_start() -> anyhow::Result<()> {
    reduce_to(RunStage::Starting).context("giving up capabilities")
}

/// Ends the start of a run, with the programs loaded and the command started: raises the priority of this thread, and
/// gives up what the rest does not need. Not before: a command would inherit both.
fn end_start() -> anyhow::Result<()> {
    priority::come_first();
    reduce_to(RunStage::Running).context("giving up capabilities")
}

/// One thread is enough, as the kernel programs wait for nobody. Threads that read memory take turns with the target.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(priority::take_turns)
        .build()?)
}

/// Ctrl-C, a polite kill, and a closed terminal.
struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    /// Listens from now on. Signals before [`Self::next`] are kept.
    fn new() -> io::Result<Self> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self {
            signals: [interrupt?, terminate?, hangup?],
        })
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

//! The rooms put together: what each verb does from probe to screen or file.

pub mod attach;
pub mod choose;
pub mod doctor;
pub mod editor;
pub mod estimate;
pub mod explain;
pub mod export;
pub mod host;
pub mod html;
pub mod messages;
pub mod record;
pub mod replay;
pub mod snapshot;
pub mod source;
pub mod stdout;
pub mod suspend;
pub mod top;
pub mod watch;

mod before_attach;
mod naming;
mod partial_output;
mod process_view;
mod saving;
mod screen;
mod waiting;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::task::Poll;

use anyhow::Context as _;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub use self::before_attach::BaselineReading;
pub use self::naming::Naming;
pub use self::source::SourceRecording;
pub use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::diagnostics;
pub use crate::probe::kernel::preflight as check_kernel;
pub use crate::probe::loader::{Wanted, Watch};
use crate::process::capabilities::{RunStage, reduce_to};
pub use crate::process::pause::allow_longest as allow_longest_pause;
use crate::process::pause::{Stops, stops};
pub use crate::process::process_search::MatchScope;
use crate::session::priority;
pub use crate::tui::ThemeChoice;
pub use crate::view::ReplayPlace;
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

/// Writes a text that stays on the terminal after the screen.
fn print_summary(text: &str) {
    let mut out = io::stdout().lock();
    // A terminal that is gone must not turn the end into an error.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
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

/// A signal that ends memprobe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndSignal(SignalKind);

impl EndSignal {
    /// The signal of Ctrl-C.
    const INTERRUPT: Self = Self(SignalKind::interrupt());

    /// The signal of a closed terminal.
    const HANGUP: Self = Self(SignalKind::hangup());

    const ALL: [SignalKind; 4] = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];

    /// True for the signals of Ctrl-C and Ctrl-\.
    fn is_of_keyboard(self) -> bool {
        [SignalKind::interrupt(), SignalKind::quit()].contains(&self.0)
    }

    /// Exit status as of a shell: 128 and the number of the signal.
    fn exit_code(self) -> ExitCode {
        ExitCode::from(self.status())
    }

    fn status(self) -> u8 {
        u8::try_from(128 + self.0.as_raw_value()).unwrap_or(u8::MAX)
    }
}

/// The signals of Ctrl-C, Ctrl-\, a polite kill, and a closed terminal.
struct Interrupts {
    signals: [Signal; EndSignal::ALL.len()],
}

impl Interrupts {
    /// Listens from now on. Signals before [`Self::next`] are kept.
    fn new() -> io::Result<Self> {
        let [interrupt, terminate, hangup, quit] = EndSignal::ALL.map(signal);
        Ok(Self {
            signals: [interrupt?, terminate?, hangup?, quit?],
        })
    }

    async fn next(&mut self) -> EndSignal {
        std::future::poll_fn(|context| {
            for (kind, signal) in EndSignal::ALL.into_iter().zip(&mut self.signals) {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(EndSignal(kind));
                }
            }
            Poll::Pending
        })
        .await
    }
}

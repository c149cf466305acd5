//! `top`: from the processes of a host to the screen, or to a table that is printed once.

use std::io::{BufWriter, ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::host::{PATIENCE, Scope, Watching};
use super::interrupts::Interrupts;
use super::source::Sources;
use crate::event::{CaptureOptions, Detail, GraphTracking, Tgid};
use crate::ledger::host::HostCaps;
use crate::ledger::snapshot::host::HostSnapshot;
use crate::probe::catalog::DriverCalls;
use crate::probe::kernel;
use crate::report;
use crate::session::priority;
use crate::tui::host::{HostCommand, HostTitle, HostView};
use crate::tui::{self, SourceText};

/// Interval of screen updates.
const REFRESH: Duration = Duration::from_millis(250);

/// Interval of screen updates without news, for trends and the clock.
const REFRESH_QUIET: Duration = Duration::from_secs(1);

/// One run of the live screen of many processes.
pub struct Top {
    pub scope: Scope,
    pub capture: CaptureOptions,
    /// Treatment of libcuda.
    pub driver: DriverCalls,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
    pub keep_ended: Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the cap is reached.
    Always,
    /// A limited time.
    For(Duration),
}

/// One table of many processes.
pub struct Once {
    pub scope: Scope,
    /// Treatment of libcuda.
    pub driver: DriverCalls,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
    /// Time to watch before the table is printed.
    pub listen: Duration,
    pub options: report::HostOptions,
}

impl Top {
    /// Shows the processes until the user leaves.
    ///
    /// # Errors
    /// When the kernel refuses, or there is no terminal, with what to do.
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        super::runtime()?.block_on(self.run_inside())
    }

    async fn run_inside(self) -> Result<ExitCode> {
        let interrupts = Interrupts::new()?;
        let caps = HostCaps {
            fade: match self.keep_ended {
                Keep::Always => u64::MAX,
                Keep::For(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            },
            ..HostCaps::default()
        };
        let mut watching =
            Watching::begin(self.scope, self.capture, self.driver, self.ring_bytes, caps)?;
        let mut screen = Screen::open(&mut watching, self.scope, interrupts);
        let outcome = show(&mut watching, &mut screen).await;
        screen.close()?;
        outcome.map(|()| ExitCode::SUCCESS)
    }
}

/// Feeds the screen until it closes.
async fn show(watching: &mut Watching, screen: &mut Screen) -> Result<()> {
    loop {
        let turn = tokio::select! {
            turn = screen.turn() => turn,
            waited = watching.wait() => waited.map(|()| Turn::Nothing)?,
        };
        watching.drain()?;
        match turn {
            Turn::Nothing => {}
            Turn::Refresh => screen.refresh_if_due(watching),
            Turn::Asked(command) => screen.execute(command, watching),
            Turn::Closed => return Ok(()),
        }
    }
}

impl Once {
    /// Prints the processes once.
    ///
    /// # Errors
    /// When the kernel refuses, with what to do, or the table cannot be written.
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        let snapshot = super::runtime()?.block_on(self.look())?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let written = report::write_host(&snapshot, &self.options, &mut out);
        match written.and_then(|()| out.flush()) {
            // A reader that has seen enough (`| head`).
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written.context("writing the table")?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Listens for as long as is asked, and until every process is probed or known not to be.
    async fn look(&self) -> Result<HostSnapshot> {
        let mut interrupts = Interrupts::new()?;
        // The table shows neither purposes nor lines of the forward pass.
        let capture = CaptureOptions {
            detail: Detail::Lines,
            graph: GraphTracking::Off,
        };
        let mut watching = Watching::begin(
            self.scope,
            capture,
            self.driver,
            self.ring_bytes,
            HostCaps::default(),
        )?;
        let begun = Instant::now();
        loop {
            let heard = begun.elapsed();
            if heard >= PATIENCE.max(self.listen) || (heard >= self.listen && watching.is_settled())
            {
                break;
            }
            tokio::select! {
                () = interrupts.next() => bail!("interrupted before the table was complete"),
                waited = watching.wait() => waited?,
            }
            watching.drain()?;
            watching.host.tick(crate::session::now());
        }
        Ok(watching.host.snapshot(crate::session::now()))
    }
}

/// Next action of the screen.
enum Turn {
    Nothing,
    Refresh,
    Asked(HostCommand),
    Closed,
}

/// The screen, on a thread of its own.
struct Screen {
    views: watch::Sender<HostView>,
    commands: mpsc::UnboundedReceiver<HostCommand>,
    quit: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
    ticks: tokio::time::Interval,
    interrupts: Interrupts,
    refreshed: Instant,
}

impl Screen {
    fn open(watching: &mut Watching, scope: Scope, interrupts: Interrupts) -> Self {
        let first = HostView {
            host: Arc::new(watching.host.snapshot(crate::session::now())),
            process: None,
        };
        let (views, shown) = watch::channel(first);
        let (command, commands) = mpsc::unbounded_channel();
        let (quit, asked_to_quit) = watch::channel(false);
        let title = match scope {
            Scope::Host => HostTitle {
                name: "memprobe top".to_owned(),
                instead: "`memprobe top --once`",
            },
            Scope::Family(Tgid(root)) => HostTitle {
                name: format!("memprobe attach --children --pid {root}"),
                instead: "`memprobe record -o DIR/`",
            },
        };
        let thread = std::thread::spawn(move || {
            priority::take_turns();
            let sources =
                Box::new(|tgid| Box::new(Sources::of(tgid)) as Box<dyn SourceText + Send>);
            tui::host::run(shown, command, sources, asked_to_quit, title)
        });
        let mut ticks = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            views,
            commands,
            quit,
            thread: Some(thread),
            ticks,
            interrupts,
            refreshed: Instant::now(),
        }
    }

    /// Waits for the next thing that the screen wants or gets.
    async fn turn(&mut self) -> Turn {
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(HostCommand::Quit) | None => Turn::Closed,
                Some(command) => Turn::Asked(command),
            },
            _ = self.ticks.tick() => Turn::Refresh,
            () = self.interrupts.next() => Turn::Closed,
        }
    }

    fn execute(&mut self, command: HostCommand, watching: &mut Watching) {
        match command {
            HostCommand::Open(tgid) => watching.open(tgid),
            HostCommand::Close => watching.close(),
            HostCommand::Ask(command) => watching.execute(command),
            HostCommand::Quit => {}
        }
        self.refresh(watching);
    }

    fn refresh_if_due(&mut self, watching: &mut Watching) {
        if watching.take_news() || self.refreshed.elapsed() >= REFRESH_QUIET {
            self.refresh(watching);
        }
    }

    fn refresh(&mut self, watching: &mut Watching) {
        let now = crate::session::now();
        self.refreshed = Instant::now();
        watching.host.tick(now);
        let process = watching.show_opened(now);
        self.views.send_replace(HostView {
            host: Arc::new(watching.host.snapshot(now)),
            process,
        });
    }

    /// Gives the terminal back, whatever happened.
    fn close(&mut self) -> Result<()> {
        self.quit.send_replace(true);
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Ok(outcome)) => outcome.context("showing the screen"),
            Some(Err(_)) => bail!("the screen failed; please report what was printed above"),
            None => Ok(()),
        }
    }
}

//! `attach`: from the probes to the screen.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::interrupts::Interrupts;
use super::process_view::ProcessView;
use super::source::Sources;
use crate::event::{CaptureOptions, Tgid};
use crate::ledger::snapshot::TargetState;
use crate::ledger::{Analysis, Ledger};
use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::session::event::HostItem;
use crate::session::host::HostSession;
use crate::session::priority;
use crate::session::process::{self, Origin};
use crate::tui::{self, Command};

/// Interval of screen updates.
const REFRESH: Duration = Duration::from_millis(200);

/// One run of `memprobe attach`.
pub struct Live {
    /// The process to watch.
    pub tgid: Tgid,
    pub detail: Detail,
    pub allocators: Allocators,
    pub graph: GraphTracking,
    /// Treatment of libcuda.
    pub driver: DriverCalls,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
}

impl Live {
    /// Shows the process until the user leaves.
    ///
    /// # Errors
    /// When the process cannot be probed, with what to do.
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        super::runtime()?.block_on(self.run_inside())
    }

    async fn run_inside(self) -> Result<ExitCode> {
        let watched = Watched::open(self.tgid)?;
        let target = process::identified(self.tgid);
        let interrupts = Interrupts::new()?;
        let model = Ledger::new(target, crate::session::now());
        let mut screen = Screen::open(model, self.tgid, interrupts);
        let outcome = self.show(watched, &mut screen).await;
        screen.close()?;
        outcome.map(|()| ExitCode::SUCCESS)
    }

    fn capture(&self) -> CaptureOptions {
        CaptureOptions {
            detail: self.detail,
            graph: self.graph,
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            watch: Watch::One,
            detail: self.detail,
            allocators: self.allocators,
            graph: self.graph,
            driver: self.driver,
        }
    }

    /// Feeds the screen until it closes.
    async fn show(&self, watched: Watched, screen: &mut Screen) -> Result<()> {
        let mut session = HostSession::load(self.wanted(), self.ring_bytes)?;
        session.add(watched, Origin::Running)?;
        priority::come_first();
        let mut seen = Seen::Nothing;
        loop {
            tokio::select! {
                closed = screen.turn() => if closed { return Ok(()) },
                () = session.wait(), if seen != Seen::End => {}
            }
            session.drain(|event| {
                let model = &mut screen.model;
                match event.item {
                    HostItem::Event(event) => {
                        let change = model.apply(&event);
                        screen.opened.apply(&event, &change, model);
                    }
                    HostItem::Waiting(what) => model.health.state = TargetState::Waiting(what),
                    HostItem::Attached {
                        target,
                        probes,
                        missing,
                    } => {
                        model.target = target;
                        model.health.probes = probes;
                        model.health.capture = self.capture();
                        model.health.missing = missing;
                        model.health.state = TargetState::Running;
                        seen = Seen::Probes;
                    }
                    HostItem::Refused(error) => return Err(error.into()),
                    HostItem::Ended if seen == Seen::Nothing => bail!(
                        "process {} ended before it used PyTorch's allocators",
                        self.tgid.0
                    ),
                    HostItem::Ended => {
                        model.health.state = TargetState::Exited;
                        seen = Seen::End;
                    }
                    HostItem::Executed(target) => {
                        *model = Ledger::new(target, crate::session::now());
                        screen.opened.begin_anew();
                    }
                    HostItem::Found { .. } | HostItem::Notice(_) | HostItem::SnapshotPoint(_) => {}
                }
                Ok(())
            })?;
            if let Some(names) = screen.opened.names(&screen.model) {
                let change = screen.model.apply(&names);
                screen.opened.apply(&names, &change, &screen.model);
            }
        }
    }
}

/// Progress of the process on the screen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Nothing was seen of it.
    Nothing,
    /// Its probes were in place.
    Probes,
    /// Ended after its probes were in place.
    End,
}

/// The screen, on a thread of its own, and the model that it shows.
struct Screen {
    model: Ledger,
    opened: ProcessView,
    commands: mpsc::UnboundedReceiver<Command>,
    quit: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
    ticks: tokio::time::Interval,
    interrupts: Interrupts,
}

impl Screen {
    fn open(model: Ledger, tgid: Tgid, interrupts: Interrupts) -> Self {
        let opened = ProcessView::new(tgid, &model, crate::session::now());
        let news = opened.news();
        let (command, commands) = mpsc::unbounded_channel();
        let (quit, asked_to_quit) = watch::channel(false);
        let sources = Box::new(Sources::of(tgid));
        let thread = std::thread::spawn(move || {
            priority::take_turns();
            tui::run(news, command, sources, asked_to_quit)
        });
        let mut ticks = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            model,
            opened,
            commands,
            quit,
            thread: Some(thread),
            ticks,
            interrupts,
        }
    }

    /// Waits for the next thing that the screen wants or gets; says whether it was closed.
    async fn turn(&mut self) -> bool {
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(Command::Quit) | None => true,
                Some(command) => {
                    self.opened.execute(command);
                    self.refresh();
                    false
                }
            },
            () = self.opened.taken() => false,
            _ = self.ticks.tick() => {
                self.refresh();
                false
            }
            () = self.interrupts.next() => true,
        }
    }

    fn refresh(&mut self) {
        let now = crate::session::now();
        self.model.tick(now);
        let snapshot = self.model.snapshot(now, self.opened.grouping());
        self.opened.show(snapshot);
    }

    /// Gives the terminal back, whatever happened.
    fn close(&mut self) -> Result<()> {
        self.quit.send_replace(true);
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Ok(outcome)) => outcome.context("showing the screen"),
            Some(Err(_)) => {
                anyhow::bail!("the screen failed; please report what was printed above")
            }
            None => Ok(()),
        }
    }
}

//! `attach`: from the probes to the screen.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::interrupts::Interrupts;
use super::session::{self, Origin, Session};
use super::source::Sources;
use crate::event::Tgid;
use crate::model::Model;
use crate::model::snapshot::{Grouping, Snapshot, TargetState};
use crate::probe::kernel;
use crate::probe::watched::Watched;
use crate::tui::{self, Command};

/// How often the screen gets something new to show.
const REFRESH: Duration = Duration::from_millis(200);

/// One run of `memprobe attach`.
pub struct Live {
    /// The process to watch.
    pub tgid: Tgid,
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
        let target = session::identified(self.tgid);
        let interrupts = Interrupts::new()?;
        let model = Model::new(target, super::now());
        let mut screen = Screen::open(model, self.tgid, interrupts);
        let outcome = self.show(watched, &mut screen).await;
        screen.close()?;
        outcome.map(|()| ExitCode::SUCCESS)
    }

    /// Feeds the screen until it closes.
    async fn show(&self, watched: Watched, screen: &mut Screen) -> Result<()> {
        let loader = session::load(self.ring_bytes)?;
        let (tell, mut told) = mpsc::unbounded_channel::<String>();
        let attach = Session::attach(loader, watched, Origin::Running, move |what| {
            // The screen may be closed already; then nobody needs to be told.
            let _ = tell.send(what.to_owned());
        });
        tokio::pin!(attach);
        let mut session = loop {
            tokio::select! {
                session = &mut attach => break session?,
                Some(what) = told.recv() => screen.model.set_state(TargetState::Waiting(what)),
                closed = screen.turn() => if closed { return Ok(()) },
            }
        };
        screen.model.set_target(session.target().clone());
        screen.model.set_probes(session.probes().to_vec());
        screen.model.set_state(TargetState::Running);
        let mut ended = false;
        loop {
            tokio::select! {
                closed = screen.turn() => if closed { return Ok(()) },
                end = session.wait_or_end(), if !ended => ended = end,
            }
            let model = &mut screen.model;
            session.drain(|event| {
                model.apply(event);
                Ok(())
            })?;
            if ended {
                screen.model.set_state(TargetState::Exited);
            }
        }
    }
}

/// The screen, on a thread of its own, and the model that it shows.
struct Screen {
    model: Model,
    grouping: Grouping,
    snapshots: watch::Sender<Arc<Snapshot>>,
    commands: mpsc::UnboundedReceiver<Command>,
    quit: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
    ticks: tokio::time::Interval,
    interrupts: Interrupts,
}

impl Screen {
    fn open(model: Model, tgid: Tgid, interrupts: Interrupts) -> Self {
        let first = Arc::new(model.snapshot(super::now(), Grouping::default()));
        let (snapshots, shown) = watch::channel(first);
        let (command, commands) = mpsc::unbounded_channel();
        let (quit, asked_to_quit) = watch::channel(false);
        let sources = Box::new(Sources::of(tgid));
        let thread = std::thread::spawn(move || tui::run(shown, command, sources, asked_to_quit));
        let mut ticks = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            model,
            grouping: Grouping::default(),
            snapshots,
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
                Some(Command::SetGrouping(grouping)) => {
                    self.grouping = grouping;
                    self.refresh();
                    false
                }
                Some(Command::Quit) | None => true,
            },
            _ = self.ticks.tick() => {
                self.refresh();
                false
            }
            () = self.interrupts.next() => true,
        }
    }

    fn refresh(&mut self) {
        let now = super::now();
        self.model.tick(now);
        self.snapshots
            .send_replace(Arc::new(self.model.snapshot(now, self.grouping)));
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

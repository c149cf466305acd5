//! A screen on a thread of its own: its commands, its updates, and the signals that end it.

use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Interrupts;
use crate::session::priority;

pub(super) struct ScreenThread<C> {
    commands: mpsc::UnboundedReceiver<C>,
    quit: watch::Sender<bool>,
    thread: Option<JoinHandle<Result<()>>>,
    ticks: Interval,
    interrupts: Interrupts,
}

pub(super) enum Turn<C> {
    Refresh,
    Asked(C),
    Closed,
}

impl<C: Send + 'static> ScreenThread<C> {
    /// Starts `run`, to be refreshed at each interval.
    pub(super) fn start(
        interrupts: Interrupts,
        refresh: Duration,
        run: impl FnOnce(mpsc::UnboundedSender<C>, watch::Receiver<bool>) -> Result<()> + Send + 'static,
    ) -> Self {
        let (command, commands) = mpsc::unbounded_channel();
        let (quit, asked_to_quit) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            priority::take_turns();
            run(command, asked_to_quit)
        });
        let mut ticks = interval_at(Instant::now() + refresh, refresh);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            commands,
            quit,
            thread: Some(thread),
            ticks,
            interrupts,
        }
    }

    /// Waits for the next thing that the screen wants or gets.
    pub(super) async fn turn(&mut self) -> Turn<C> {
        tokio::select! {
            command = self.commands.recv() => command.map_or(Turn::Closed, Turn::Asked),
            _ = self.ticks.tick() => Turn::Refresh,
            () = self.interrupts.next() => Turn::Closed,
        }
    }

    /// Gives the terminal back, whatever happened.
    pub(super) fn close(&mut self) -> Result<()> {
        self.quit.send_replace(true);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome.context("showing the screen"),
            Some(Err(_)) => bail!("the screen failed; please report what was printed above"),
            None => Ok(()),
        }
    }
}

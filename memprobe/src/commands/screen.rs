//! A screen on a thread of its own: its commands, updates, ending signals, and the source text that it shows.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{EndSignal, Interrupts, editor};
use crate::event::Tgid;
use crate::process::capabilities::{RunStage, reduce_to};
use crate::process::root::ProcessRoot;
use crate::session::priority;
use crate::tui::SourceText;

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
    Interrupted(EndSignal),
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
            reduce_to(RunStage::Running).context("giving up capabilities")?;
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

    pub(super) async fn turn(&mut self) -> Turn<C> {
        tokio::select! {
            command = self.commands.recv() => command.map_or(Turn::Closed, Turn::Asked),
            _ = self.ticks.tick() => Turn::Refresh,
            signal = self.interrupts.next() => {
                // The terminal sends it to every program on it.
                if signal.is_of_keyboard() && editor::is_open() {
                    Turn::Refresh
                } else {
                    Turn::Interrupted(signal)
                }
            }
        }
    }

    /// Returns a command that came meanwhile.
    pub(super) fn waiting(&mut self) -> Option<C> {
        self.commands.try_recv().ok()
    }

    pub(super) fn close(&mut self) -> Result<()> {
        self.quit.send_replace(true);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome.context("showing the screen"),
            Some(Err(_)) => bail!("the screen failed; please report what was printed above"),
            None => Ok(()),
        }
    }
}

const LARGEST: u64 = 8 << 20;
const MOST: usize = 256;

pub(super) struct Sources {
    tgid: Tgid,
    files: HashMap<String, Option<Vec<String>>>,
}

impl Sources {
    pub(super) fn of(tgid: Tgid) -> Self {
        Self {
            tgid,
            files: HashMap::new(),
        }
    }

    fn lines(&mut self, file: &str) -> Option<&[String]> {
        if !self.files.contains_key(file) {
            if self.files.len() >= MOST {
                self.files.clear();
            }
            self.files.insert(file.to_owned(), self.read(file));
        }
        self.files.get(file)?.as_deref()
    }

    fn read(&self, file: &str) -> Option<Vec<String>> {
        let root = ProcessRoot::of(self.tgid).ok()?;
        let opened = root.open(Path::new(file)).ok()?;
        if opened.metadata().ok()?.len() > LARGEST {
            return None;
        }
        let mut bytes = Vec::new();
        opened.take(LARGEST).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.lines().map(str::to_owned).collect())
    }
}

impl SourceText for Sources {
    fn line(&mut self, file: &str, line: u32) -> Option<String> {
        let at = usize::try_from(line).ok()?.checked_sub(1)?;
        self.lines(file)?.get(at).cloned()
    }

    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>> {
        let first = line.saturating_sub(radius).max(1);
        let count = usize::try_from(line.saturating_add(radius) - first).ok()? + 1;
        let lines = self.lines(file)?;
        let start = usize::try_from(first).ok()? - 1;
        let numbered = (first..).zip(lines.iter().skip(start).take(count).cloned());
        Some(numbered.collect())
    }

    fn edit(&mut self, file: &str, line: u32) -> Result<(), String> {
        // It may be another text afterwards.
        self.files.remove(file);
        editor::open(self.tgid, file, line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_of_a_file_are_numbered_from_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.py");
        fs::write(&path, "import torch\nx = torch.zeros(3)\nprint(x)\n").expect("written");
        let file = path.to_str().expect("UTF-8");
        let mut sources = Sources::of(Tgid(std::process::id()));
        assert_eq!(sources.line(file, 2).as_deref(), Some("x = torch.zeros(3)"));
        assert_eq!(sources.line(file, 0), None);
        assert_eq!(sources.line(file, 9), None);
        let around = sources.around(file, 1, 1).expect("read");
        assert_eq!(
            around,
            [
                (1, "import torch".to_owned()),
                (2, "x = torch.zeros(3)".to_owned())
            ]
        );
        assert_eq!(sources.line("<string>", 1), None);
    }
}

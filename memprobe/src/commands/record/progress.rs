//! The line that `record` writes about itself while it runs.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::commands::messages;
use crate::event::{Bytes, Losses, bytes};
use crate::view::{clock, count, counted};

const ON_TERMINAL: Duration = Duration::from_millis(500);
/// Minimum interval of other lines on a terminal.
const BETWEEN_LINES: Duration = Duration::from_millis(100);
/// Interval of the progress line elsewhere, where each is a new line.
const OFF_TERMINAL: Duration = Duration::from_secs(10);

pub(crate) struct Progress {
    quiet: bool,
    terminal: bool,
    started: Instant,
    /// Duration of the recording, once it is over.
    recorded: Option<Duration>,
    shown: Option<Instant>,
    said: HashSet<String>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct ProgressFigures {
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) losses: Losses,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            terminal: messages::go_to_a_terminal(),
            started: Instant::now(),
            recorded: None,
            shown: None,
            said: HashSet::new(),
        }
    }

    pub(in crate::commands) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn say(&mut self, text: &str) {
        if !self.quiet {
            self.clear();
            messages::print(text);
        }
    }

    pub(crate) fn say_once(&mut self, text: &str) {
        if self.said.insert(text.to_owned()) {
            self.say(text);
        }
    }

    pub(super) fn start(&mut self) {
        self.started = Instant::now();
        self.shown = None;
    }

    /// Stops the clock, after `duration` if it is given.
    pub(super) fn end(&mut self, duration: Option<Duration>) {
        self.recorded = duration.or_else(|| Some(self.started.elapsed()));
    }

    pub(super) fn show(&mut self, figures: ProgressFigures) {
        let every = if self.terminal {
            ON_TERMINAL
        } else {
            OFF_TERMINAL
        };
        if self.quiet || self.shown.unwrap_or(self.started).elapsed() < every {
            return;
        }
        self.shown = Some(Instant::now());
        if self.terminal {
            messages::replace_line(&self.line(figures));
        } else {
            messages::print(&self.line(figures));
        }
    }

    /// Shows a line on a terminal until the next one, and nothing elsewhere.
    pub(in crate::commands) fn show_line(&mut self, line: &str) {
        let is_early = self
            .shown
            .is_some_and(|shown| shown.elapsed() < BETWEEN_LINES);
        if !self.quiet && self.terminal && !is_early {
            self.shown = Some(Instant::now());
            messages::replace_line(line);
        }
    }

    pub(in crate::commands) fn clear(&mut self) {
        if self.terminal && self.shown.take().is_some() {
            messages::replace_line("");
        }
    }

    pub(super) fn line(&self, figures: ProgressFigures) -> String {
        let lost = figures.losses.events + figures.losses.stacks + figures.losses.malformed;
        let uses = match figures.losses.uses {
            0 => String::new(),
            uses => format!(
                "  {} without a purpose: the ring buffer was half full",
                counted(uses, "block")
            ),
        };
        format!(
            "{}  {} events  {} written  lost {lost}{uses}",
            clock(self.recorded.unwrap_or_else(|| self.started.elapsed())),
            count(figures.events),
            bytes::human(Bytes(figures.bytes)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_time_events_size_and_losses() {
        let progress = Progress::new(true);
        let losses = Losses {
            events: 2,
            stacks: 1,
            ..Losses::default()
        };
        let line = progress.line(ProgressFigures {
            events: 12_345,
            bytes: 1 << 20,
            losses,
        });
        assert_eq!(line, "00:00:00  12,345 events  1.00 MiB written  lost 3");
        let uses = Losses { uses: 4, ..losses };
        let line = progress.line(ProgressFigures {
            events: 1,
            bytes: 1,
            losses: uses,
        });
        assert!(
            line.ends_with("lost 3  4 blocks without a purpose: the ring buffer was half full")
        );
    }
}

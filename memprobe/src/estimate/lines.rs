//! Lines of Python that hold memory at the peak, and those that save memory for backward.

use std::collections::HashMap;

use super::LineAtPeak;
use crate::event::{Bytes, NoStack};
use crate::ledger::snapshot::Site;

/// Maximum number of lines; the excess shares one row.
const MOST: usize = 1 << 18;

/// Identifies a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LineId(u32);

impl LineId {
    /// Line of blocks without a known stack.
    pub(super) const NONE: Self = Self(0);
    /// Line of blocks beyond [`MOST`] lines.
    const OTHERS: Self = Self(1);
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
}

/// One line. Its value at a peak is saved at its first change after that peak.
#[derive(Debug)]
struct Line {
    site: Site,
    now: Held,
    at_peak: Held,
    /// Number of the peak that `at_peak` belongs to.
    peak: u64,
    /// Bytes of this line freed so far by backward pass `pass`.
    saved: u64,
    pass: u64,
}

#[derive(Debug)]
pub(super) struct Lines {
    lines: Vec<Line>,
    by_site: HashMap<Site, LineId>,
    /// Number of the latest peak.
    peak: u64,
    /// Number of the current backward pass.
    pass: u64,
    saved: u64,
    /// Backward pass with most saved bytes.
    most: Saved,
}

/// Bytes saved for one backward pass.
#[derive(Debug, Default)]
struct Saved {
    bytes: u64,
    by_line: HashMap<u32, u64>,
}

impl Default for Lines {
    fn default() -> Self {
        let mut lines = Self {
            lines: Vec::new(),
            by_site: HashMap::new(),
            peak: 0,
            pass: 0,
            saved: 0,
            most: Saved::default(),
        };
        for reason in [NoStack::Lost.as_str(), "too many lines to tell apart"] {
            lines.define(Site::NoLine {
                thread: "".into(),
                reason,
            });
        }
        lines
    }
}

impl Lines {
    /// Returns the line of a site, adding it if it is new.
    pub(super) fn define(&mut self, site: Site) -> LineId {
        if let Some(line) = self.by_site.get(&site) {
            return *line;
        }
        let Ok(next) = u32::try_from(self.lines.len()) else {
            return LineId::OTHERS;
        };
        if self.lines.len() >= MOST {
            return LineId::OTHERS;
        }
        self.by_site.insert(site.clone(), LineId(next));
        self.lines.push(Line {
            site,
            now: Held::default(),
            at_peak: Held::default(),
            peak: 0,
            saved: 0,
            pass: 0,
        });
        LineId(next)
    }

    pub(super) fn site(&self, line: LineId) -> Site {
        self.lines[line.0 as usize].site.clone()
    }

    /// Counts an allocated block.
    pub(super) fn take(&mut self, line: LineId, bytes: u64) {
        let now = &mut self.changing(line).now;
        now.bytes = now.bytes.saturating_add(bytes);
        now.blocks += 1;
    }

    /// Counts a freed block.
    pub(super) fn give_back(&mut self, line: LineId, bytes: u64) {
        let now = &mut self.changing(line).now;
        now.bytes = now.bytes.saturating_sub(bytes);
        now.blocks = now.blocks.saturating_sub(1);
    }

    /// Marks the current state as the peak.
    pub(super) fn is_peak(&mut self) {
        self.peak += 1;
    }

    /// Counts a block from before the current backward pass that the pass freed.
    pub(super) fn was_saved(&mut self, line: LineId, bytes: u64) {
        let pass = self.pass;
        let line = &mut self.lines[line.0 as usize];
        if line.pass != pass {
            line.pass = pass;
            line.saved = 0;
        }
        line.saved = line.saved.saturating_add(bytes);
        self.saved = self.saved.saturating_add(bytes);
    }

    /// Ends the current backward pass.
    pub(super) fn backward_ended(&mut self) {
        if self.saved > self.most.bytes {
            let of_pass = (0..).zip(&self.lines);
            let of_pass = of_pass.filter(|(_, line)| line.pass == self.pass && line.saved > 0);
            self.most = Saved {
                bytes: self.saved,
                by_line: of_pass.map(|(at, line)| (at, line.saved)).collect(),
            };
        }
        self.saved = 0;
        self.pass += 1;
    }

    /// Most bytes saved for one backward pass.
    pub(super) fn saved(&self) -> Bytes {
        Bytes(self.most.bytes)
    }

    /// Lines that held memory at the peak or saved some for backward, largest first.
    pub(super) fn rows(&self) -> Vec<LineAtPeak> {
        let rows = (0..).zip(&self.lines).map(|(at, line): (u32, _)| {
            let held = match line.peak == self.peak {
                true => line.at_peak,
                false => line.now,
            };
            LineAtPeak {
                site: line.site.clone(),
                held: Bytes(held.bytes),
                blocks: held.blocks,
                saved: Bytes(self.most.by_line.get(&at).copied().unwrap_or(0)),
            }
        });
        let mut rows: Vec<_> = rows
            .filter(|row| row.held.0 > 0 || row.saved.0 > 0)
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.held, row.saved)));
        rows
    }

    /// Returns the line for a change, after saving its value at the peak.
    fn changing(&mut self, line: LineId) -> &mut Line {
        let line = &mut self.lines[line.0 as usize];
        if line.peak != self.peak {
            line.peak = self.peak;
            line.at_peak = line.now;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Frame;

    fn site(line: u32) -> Site {
        Site::Line(Frame {
            file: "train.py".into(),
            line,
            function: "f".into(),
            library: None,
        })
    }

    fn held(lines: &Lines) -> Vec<(u64, u64, u64)> {
        let rows = lines.rows().into_iter();
        rows.map(|row| (row.held.0, row.blocks, row.saved.0))
            .collect()
    }

    #[test]
    fn bytes_of_a_line_at_the_peak_survive_later_events() {
        let mut lines = Lines::default();
        let (a, b) = (lines.define(site(1)), lines.define(site(2)));
        lines.take(a, 100);
        lines.is_peak();
        lines.take(b, 10);
        lines.is_peak();
        lines.give_back(a, 100);
        lines.take(b, 20);
        assert_eq!(held(&lines), [(100, 1, 0), (10, 1, 0)]);
        assert_eq!(lines.define(site(1)), a);
    }

    #[test]
    fn the_backward_pass_for_which_most_was_saved_counts() {
        let mut lines = Lines::default();
        let (a, b) = (lines.define(site(1)), lines.define(site(2)));
        for (line, bytes) in [(a, 5), (b, 7)] {
            lines.take(line, bytes);
            lines.is_peak();
        }
        lines.was_saved(a, 5);
        lines.was_saved(b, 7);
        lines.backward_ended();
        lines.was_saved(a, 6);
        lines.backward_ended();
        assert_eq!(lines.saved(), Bytes(12));
        assert_eq!(held(&lines), [(7, 1, 7), (5, 1, 5)]);
    }
}

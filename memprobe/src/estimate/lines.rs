//! Lines of Python that hold memory at the peak, and those that save memory for backward.

use std::collections::HashMap;

use super::LineAtPeak;
use crate::attribution::high_water_mark::{AtPeak, HeldBytes};
use crate::event::Bytes;
use crate::ledger::snapshot::Grouping;
use crate::ledger::{DenseMap, Ledger, SiteRef};

#[derive(Debug, Default)]
struct Line {
    held: HeldBytes,
    /// Bytes of this line freed so far by backward pass `pass`.
    saved: u64,
    pass: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: DenseMap<SiteRef, Line>,
    peak: u64,
    pass: u64,
    saved: u64,
    /// Backward pass with most saved bytes.
    most: Saved,
}

#[derive(Debug, Default)]
struct Saved {
    bytes: u64,
    by_line: HashMap<SiteRef, u64>,
}

impl Lines {
    pub(super) fn take(&mut self, line: SiteRef, bytes: u64) {
        let held = &mut self.lines.get_or_default(line).held;
        held.add(bytes, self.peak, AtPeak::Gone);
    }

    pub(super) fn give_back(&mut self, line: SiteRef, bytes: u64) {
        let held = &mut self.lines.get_or_default(line).held;
        held.release(bytes, self.peak);
    }

    pub(super) fn is_peak(&mut self) {
        self.peak += 1;
    }

    /// Counts a block from before the current backward pass that the pass freed.
    pub(super) fn was_saved(&mut self, line: SiteRef, bytes: u64) {
        let line = self.lines.get_or_default(line);
        if line.pass != self.pass {
            line.pass = self.pass;
            line.saved = 0;
        }
        line.saved = line.saved.saturating_add(bytes);
        self.saved = self.saved.saturating_add(bytes);
    }

    pub(super) fn backward_ended(&mut self) {
        if self.saved > self.most.bytes {
            let of_pass = self.lines.iter();
            let of_pass = of_pass.filter(|(_, line)| line.pass == self.pass && line.saved > 0);
            self.most = Saved {
                bytes: self.saved,
                by_line: of_pass.map(|(at, line)| (at, line.saved)).collect(),
            };
        }
        self.saved = 0;
        self.pass += 1;
    }

    pub(super) fn saved(&self) -> Bytes {
        Bytes(self.most.bytes)
    }

    /// Lines that held memory at the peak or saved some for backward, largest first.
    pub(super) fn rows(&self, ledger: &Ledger) -> Vec<LineAtPeak> {
        let rows = self.lines.iter().map(|(at, line)| {
            let holding = line.held.holding(self.peak);
            LineAtPeak {
                site: ledger.site_of(at, Grouping::User).clone(),
                held: holding.at_peak,
                blocks: holding.at_peak_blocks,
                saved: Bytes(self.most.by_line.get(&at).copied().unwrap_or(0)),
            }
        });
        let mut rows: Vec<_> = rows
            .filter(|row| row.held.0 > 0 || row.saved.0 > 0)
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.held, row.saved)));
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::{Context, Event, Frame, Stack, StackId, StackKind, Target, TimeNs};

    /// A ledger with two lines, of which the second has two stacks.
    fn ledger() -> (Ledger, SiteRef, SiteRef) {
        let mut ledger = Ledger::new(Target::default(), TimeNs(0));
        let mut line = |id: u32, line: u32, caller: u32| {
            let frame = |line| Frame {
                file: "train.py".into(),
                line,
                function: "f".into(),
                library: None,
            };
            let stack = Stack {
                kind: StackKind::Python,
                frames: vec![frame(line), frame(caller)],
                truncated: false,
                context: Context::default(),
            };
            ledger.apply(&Event::Stack(StackId(id), Arc::new(stack)));
            ledger.site_ref(ledger.stack_ref(StackId(id)), Grouping::User)
        };
        let (a, b) = (line(1, 1, 8), line(2, 2, 8));
        assert_eq!(line(3, 2, 9), b);
        (ledger, a, b)
    }

    fn held(lines: &Lines, ledger: &Ledger) -> Vec<(u64, u64, u64)> {
        let rows = lines.rows(ledger).into_iter();
        rows.map(|row| (row.held.0, row.blocks, row.saved.0))
            .collect()
    }

    #[test]
    fn bytes_of_a_line_at_the_peak_survive_later_events() {
        let (mut lines, (ledger, a, b)) = (Lines::default(), ledger());
        lines.take(a, 100);
        lines.is_peak();
        lines.take(b, 10);
        lines.is_peak();
        lines.give_back(a, 100);
        lines.take(b, 20);
        assert_eq!(held(&lines, &ledger), [(100, 1, 0), (10, 1, 0)]);
    }

    #[test]
    fn the_backward_pass_for_which_most_was_saved_counts() {
        let (mut lines, (ledger, a, b)) = (Lines::default(), ledger());
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
        assert_eq!(held(&lines, &ledger), [(7, 1, 7), (5, 1, 5)]);
    }
}

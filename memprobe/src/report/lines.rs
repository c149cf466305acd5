//! Selection and order of a device's lines, and the sum of hidden ones.

use std::cmp::Reverse;

use super::ReportOptions;
use crate::event::Frame;
use crate::ledger::snapshot::{DeviceSnapshot, LineRow, Site};

/// Lines of one device: the shown ones in order, and sums.
pub(super) struct Lines<'a> {
    pub shown: Vec<&'a LineRow>,
    pub hidden: Sum,
    pub all: Sum,
}

/// Sum of several lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub lines: usize,
    pub live: u64,
    pub live_blocks: u64,
    pub allocs: u64,
}

impl Sum {
    fn of<'a>(rows: impl IntoIterator<Item = &'a LineRow>) -> Self {
        rows.into_iter().fold(Self::default(), |sum, row| Self {
            lines: sum.lines + 1,
            live: sum.live.saturating_add(row.live.0),
            live_blocks: sum.live_blocks.saturating_add(row.live_blocks),
            allocs: sum.allocs.saturating_add(row.allocs),
        })
    }
}

impl<'a> Lines<'a> {
    pub(super) fn of(device: &'a DeviceSnapshot, options: &ReportOptions) -> Self {
        Self::among(&device.lines, options)
    }

    pub(super) fn among(lines: &'a [LineRow], options: &ReportOptions) -> Self {
        let mut shown: Vec<&LineRow> = lines.iter().collect();
        shown.sort_by(|one, other| {
            let key = |row: &LineRow| {
                let figures = [row.peak.0, row.live.0, row.live_blocks, row.allocs];
                Reverse(options.sort.rank(figures))
            };
            key(one)
                .cmp(&key(other))
                .then_with(|| words(&one.site).cmp(&words(&other.site)))
        });
        let rest = shown.split_off(options.top.of(shown.len()));
        Self {
            shown,
            hidden: Sum::of(rest),
            all: Sum::of(lines),
        }
    }
}

/// Sort key of equal rows, for an order that is the same in every run.
fn words(site: &Site) -> (u8, &str, u32, &str, &str) {
    match site {
        Site::Line(frame) => (0, &frame.file, frame.line, &frame.function, ""),
        Site::Backward(frame) => (1, &frame.file, frame.line, &frame.function, ""),
        Site::Node { forward, name } => (2, &forward.file, forward.line, &forward.function, name),
        Site::NoLine { thread, reason } => (3, thread, 0, reason, ""),
    }
}

/// Callers of a row's line, nearest first, on its stack that holds most. A line of the forward pass
/// has the callers of its forward stack, not those of `backward()`.
pub(super) fn callers(row: &LineRow) -> &[Frame] {
    let stack = row.stacks.first().map(|row| &*row.stack);
    let node = stack.and_then(|stack| stack.context.node.as_ref());
    let stack = match (&row.site, node.and_then(|node| node.forward.as_ref())) {
        (Site::Node { .. }, Some(forward)) => Some(&**forward),
        _ => stack,
    };
    let stack = stack.map(|stack| &*stack.frames).unwrap_or_default();
    let at = row
        .site
        .frame()
        .and_then(|line| stack.iter().position(|frame| frame == line));
    at.map_or(&[], |at| &stack[at + 1..])
}

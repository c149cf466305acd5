//! Text tables whose last column takes the remaining width.

use std::fmt::Write;

use super::super::table::{push_line, strong, weak};
use crate::report::Colour;
use crate::view::{CUT, fit, fit_middle, width as columns};

/// Minimum width of a name.
const NARROWEST: usize = 24;

/// Width below which a line that does not fit is dropped rather than cut.
const SHORTEST_SITE: usize = 14;

/// Maximum width of a cell of unlimited length, such as a shape.
const WIDEST: usize = 40;

/// Alignment of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A row: its cells, its name, and the line that allocated it.
#[derive(Default)]
pub(super) struct Cells {
    pub(super) cells: Vec<String>,
    pub(super) name: String,
    pub(super) site: String,
    /// Continuation lines, indented like the name.
    pub(super) more: Vec<String>,
}

/// Heading and alignment of each column; the name follows them.
pub(super) type Head<'a> = [(&'a str, Align)];

/// Appends the headings and the rows; returns the width of the first column.
pub(super) fn push(
    text: &mut String,
    head: &Head,
    last: &str,
    rows: &[Cells],
    width: usize,
    colour: Colour,
) -> usize {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(at, (title, _))| {
            let cells = rows.iter().filter_map(|row| row.cells.get(at));
            let widest = cells.map(|cell| columns(cell)).max().unwrap_or(0);
            widest.clamp(title.len(), WIDEST)
        })
        .collect();
    let used: usize = widths.iter().map(|width| width + 2).sum();
    let available = width.saturating_sub(used).max(NARROWEST);
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.zip(&widths).zip(head) {
            let cell = fit(cell, *width, CUT);
            let space = " ".repeat(width - columns(&cell));
            // Writing to a string cannot fail.
            let _ = match align {
                Align::Left => write!(line, "{cell}{space}  "),
                Align::Right => write!(line, "{space}{cell}  "),
            };
        }
        line
    };
    let titles = line(&mut head.iter().map(|(title, _)| *title));
    push_line(text, &strong(colour, &format!("{titles}{last}")));
    for row in rows {
        let cells = line(&mut row.cells.iter().map(String::as_str));
        let name = fit_middle(&row.name, available, CUT);
        let left = available - columns(&name);
        let mut site = String::new();
        if !row.site.is_empty() {
            let whole = format!("  at {}", row.site);
            if columns(&whole) <= left || left >= SHORTEST_SITE {
                site = weak(colour, &fit(&whole, left, CUT));
            }
        }
        push_line(text, &format!("{cells}{name}{site}"));
        for more in &row.more {
            let line = format!("{:used$}{}", "", fit_middle(more, available, CUT));
            push_line(text, &weak(colour, &line));
        }
    }
    widths.first().copied().unwrap_or(0)
}

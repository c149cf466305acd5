//! Text tables: numbers right-aligned, a last column of text left-aligned.

use std::fmt::Write as _;

use super::table::{Style, push_line};
use crate::view::{CUT, fit, width};

/// Minimum width of the last column, in columns.
const NARROWEST: usize = 20;

/// Cells of a row; the last one is text.
pub(super) type Cells = Vec<String>;

/// Writes rows, of which the first holds the headings.
pub(super) fn lay_out(text: &mut String, rows: &[Cells], columns: usize, style: Style) {
    let numbers = rows.iter().map(|cells| cells.len().saturating_sub(1));
    let numbers = numbers.max().unwrap_or(0);
    let widths: Vec<usize> = (0..numbers)
        .map(|column| {
            let cells = rows.iter().filter_map(|cells| cells.get(column));
            cells.map(|cell| width(cell)).max().unwrap_or(0)
        })
        .collect();
    let used: usize = widths.iter().map(|width| width + 2).sum();
    let available = columns.saturating_sub(used).max(NARROWEST);
    for (at, cells) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:>width$}  ");
        }
        if let Some(words) = cells.get(numbers) {
            line.push_str(&fit(words, available, CUT));
        }
        match at {
            0 => push_line(text, &style.strong(&line)),
            _ => push_line(text, &line),
        }
    }
}

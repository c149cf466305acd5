//! Table of CUDA memory outside the caching allocator, by library and kind.

use ratatui::text::{Line, Span};

use crate::event::DeviceIndex;
use crate::event::bytes::human;
use crate::ledger::snapshot::{CudaSnapshot, LineRow, OutsideRow};
use crate::tui::theme::Theme;
use crate::view::{FileNames, clean, count, fit};

/// Lines shown for each library.
const LINES: usize = 3;

/// Returns the lines of the table.
pub(super) fn lines(cuda: &CudaSnapshot, theme: &Theme) -> Vec<Line<'static>> {
    if cuda.rows.is_empty() {
        let words = " No other CUDA memory was allocated since attach.";
        return vec![Line::from(words)];
    }
    let head = format!(
        " {:>10}  {:>10}  {:>7}  {:<16} LIBRARY",
        "LIVE", "PEAK", "BLOCKS", "KIND"
    );
    let mut lines = vec![Line::from(Span::styled(head, theme.strong()))];
    for row in &cuda.rows {
        lines.push(Line::from(library(row, theme)));
        let mut by_size: Vec<&LineRow> = row.lines.iter().collect();
        by_size.sort_by_key(|line| std::cmp::Reverse((line.live, line.peak)));
        lines.extend(by_size.iter().take(LINES).map(|line| {
            let name = FileNames::default().site(&line.site);
            let text = format!("   {:>10}  {name}", human(line.live));
            Line::from(Span::styled(
                fit(&text, 76, theme.glyphs.cut),
                theme.faint(),
            ))
        }));
    }
    let total = format!(" {:>10}  in all", human(cuda.live()));
    lines.push(Line::from(Span::styled(total, theme.strong())));
    lines
}

fn library(row: &OutsideRow, theme: &Theme) -> String {
    let space = row.space.as_str();
    let kind = match row.device {
        Some(device) => format!("{space} {device}"),
        None if row.space.is_on_device() => format!("{space} {}", DeviceIndex::UNKNOWN),
        None => space.to_owned(),
    };
    let name = row.library.rsplit('/').next().unwrap_or(&row.library);
    let text = format!(
        " {:>10}  {:>10}  {:>7}  {kind:<16} {}",
        human(row.live),
        human(row.peak),
        count(row.live_blocks),
        clean(name)
    );
    fit(&text, 76, theme.glyphs.cut)
}

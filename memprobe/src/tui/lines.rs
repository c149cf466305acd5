//! Drawing of the table of lines.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::SourceText;
use super::callers::{Direction, End};
use super::columns::Columns;
use super::list::{self, ColumnPosition, Side};
use super::sort::Column;
use super::state::State;
use super::table::{Figures, Fold, Row, Subject};
use super::theme::Theme;
use crate::event::bytes::{human, signed};
use crate::event::{Bytes, Frame};
use crate::ledger::snapshot::Grouping;
use crate::view::{
    BEFORE_ATTACH, UNACCOUNTED, clean, counted, fit, percent, rate, short_count, width,
};

/// Columns of the fold mark.
pub const MARK: u16 = 2;
/// Minimum columns of source text.
const LEAST_SOURCE: usize = 14;
/// Minimum width of names and source text together; a narrower table has no source column.
const MIN_NAME_AND_SOURCE: usize = 44;

/// Returns the indentation of a tree level, in columns.
pub fn indent(depth: usize) -> u16 {
    // Indentation stops at depth 8 to keep names on the screen.
    2 * depth.min(8) as u16
}

/// Draws the column heads, with an arrow at the sort column.
pub fn draw_head(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    let columns = Columns::of(area.width);
    let orders = |column| (column == state.sort.column).then_some(state.sort.order);
    for place in &columns.numbers {
        let head = (place.column.head(), Side::Right);
        list::draw_head(buffer, area, place, head, orders(place.column), theme);
    }
    let start = (columns.line + MARK).min(area.width);
    let available = usize::from(area.width - start);
    let place = ColumnPosition {
        column: Column::Line,
        start,
        wide: area.width - start,
    };
    let head = (Column::Line.head(), Side::Left);
    list::draw_head(buffer, area, &place, head, orders(Column::Line), theme);
    let grouping = match state.grouping {
        Grouping::User => "your code (i) ",
        Grouping::Innermost => "innermost (i) ",
    };
    if available > grouping.len() + 8 {
        let start = area.right() - grouping.len() as u16;
        buffer.set_string(start, area.y, grouping, theme.bar());
    }
}

/// Draws the visible rows.
pub fn draw_rows(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    sources: &mut dyn SourceText,
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    let columns = Columns::of(area.width);
    let rows = state
        .table
        .rows
        .iter()
        .enumerate()
        .skip(state.selection.offset)
        .take(usize::from(area.height));
    let visible: Vec<(usize, &Row, String)> = rows
        .map(|(place, row)| (place, row, name(row, state, theme)))
        .collect();
    let start = source_start(&visible, &columns);
    for ((place, row, name), y) in visible.iter().zip(area.y..) {
        let line = Rect {
            y,
            height: 1,
            ..area
        };
        if *place == state.selection.cursor {
            list::draw_selected(buffer, line, theme);
        }
        draw_figures(buffer, line, &columns, row, state, theme);
        draw_name(buffer, line, &columns, row, name, start, theme);
        let source = row.subject.frame().filter(|_| shows_source(row));
        if let (Some(start), Some(frame)) = (start, source) {
            draw_source(buffer, line, start, frame, sources, theme);
        }
    }
}

/// Returns false for a closed chain of several frames, which has no single source line.
fn shows_source(row: &Row) -> bool {
    match &row.subject {
        Subject::Branch(_, chain, ..) => chain.len() == 1 || row.fold == Fold::Open,
        _ => true,
    }
}

fn number(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn draw_figures(
    buffer: &mut Buffer,
    line: Rect,
    columns: &Columns,
    row: &Row,
    state: &State,
    theme: &Theme,
) {
    if matches!(row.subject, Subject::Frame(..)) {
        return;
    }
    let whole = state
        .device()
        .map_or(0, |device| i128::from(device.totals.allocated.0));
    let Figures {
        live,
        peak,
        blocks,
        rate: per_second,
    } = row.figures;
    for ColumnPosition {
        column,
        start,
        wide,
    } in &columns.numbers
    {
        let text = match column {
            Column::Live => number(live.map(amount)),
            Column::Peak => number(peak.map(human)),
            Column::Blocks => number(blocks.map(short_count)),
            Column::Rate => number(per_second.map(rate)),
            Column::Share => number(live.map(|live| percent(live, whole))),
            Column::Line => continue,
        };
        let style = match column {
            Column::Live if row.depth == 0 => theme.strong(),
            _ => Style::new(),
        };
        let wide = usize::from(*wide);
        let start = line.x + start;
        let available = usize::from(line.right().saturating_sub(start));
        buffer.set_stringn(
            start,
            line.y,
            format!("{text:>wide$}"),
            wide.min(available),
            style,
        );
    }
    if let (Some((start, wide)), Some(live)) = (columns.bar, live) {
        draw_bar(
            buffer,
            Rect {
                x: line.x + start,
                width: wide,
                ..line
            },
            live,
            whole,
            theme,
        );
    }
}

/// Formats bytes; negative ones occur if the ledger has more than the allocator.
fn amount(bytes: i128) -> String {
    match u64::try_from(bytes) {
        Ok(bytes) => human(Bytes(bytes)),
        Err(_) => signed(i64::try_from(bytes).unwrap_or(i64::MIN)),
    }
}

fn draw_bar(buffer: &mut Buffer, area: Rect, part: i128, whole: i128, theme: &Theme) {
    if part <= 0 || whole <= 0 {
        return;
    }
    let steps = i128::from(area.width) * 8;
    let filled = (part.saturating_mul(steps) / whole).clamp(1, steps) as usize;
    for cell in 0..area.width {
        let fill = filled.saturating_sub(usize::from(cell) * 8).min(8);
        buffer.set_string(
            area.x + cell,
            area.y,
            theme.glyphs.growing[fill],
            theme.allocated(),
        );
    }
}

/// Returns the start column of source text: after the longest visible name, if space remains.
fn source_start(visible: &[(usize, &Row, String)], columns: &Columns) -> Option<u16> {
    let available = usize::from(columns.end.saturating_sub(columns.line));
    let longest = visible
        .iter()
        .filter(|(_, row, _)| row.subject.frame().is_some() && shows_source(row))
        .map(|(_, row, name)| usize::from(indent(row.depth) + MARK) + width(name))
        .max()?;
    let names = longest.min(available * 2 / 3);
    (available >= MIN_NAME_AND_SOURCE.max(names + 2 + LEAST_SOURCE))
        .then(|| columns.line + names as u16 + 2)
}

fn draw_name(
    buffer: &mut Buffer,
    line: Rect,
    columns: &Columns,
    row: &Row,
    name: &str,
    source: Option<u16>,
    theme: &Theme,
) {
    let start = (line.x + columns.line + indent(row.depth)).min(line.right());
    let mark = match row.fold {
        Fold::Leaf => " ",
        Fold::Closed => theme.glyphs.closed,
        Fold::Open => theme.glyphs.open,
    };
    buffer.set_stringn(
        start,
        line.y,
        mark,
        usize::from(line.right() - start),
        theme.strong(),
    );
    let start = (start + MARK).min(line.right());
    let end = match source {
        Some(at) if row.subject.frame().is_some() && shows_source(row) => line.x + at - 1,
        _ => line.right(),
    };
    let available = usize::from(end.saturating_sub(start));
    let text = fit(name, available, theme.glyphs.cut);
    buffer.set_stringn(start, line.y, text, available, Style::new());
}

fn draw_source(
    buffer: &mut Buffer,
    line: Rect,
    start: u16,
    frame: &Frame,
    sources: &mut dyn SourceText,
    theme: &Theme,
) {
    let Some(text) = sources.line(&frame.file, frame.line) else {
        return;
    };
    let start = line.x + start;
    let available = usize::from(line.right().saturating_sub(start));
    let text = fit(clean(text.trim()).trim(), available, theme.glyphs.cut);
    buffer.set_stringn(start, line.y, text, available, theme.faint());
}

/// Returns the name of a row.
fn name(row: &Row, state: &State, theme: &Theme) -> String {
    let glyphs = &theme.glyphs;
    let arrow = |direction: &Direction| match direction {
        Direction::Callers => glyphs.caller,
        Direction::Callees => glyphs.callee,
    };
    match &row.subject {
        Subject::Site(site) => state.names.site(site),
        Subject::BeforeAttach(_) => BEFORE_ATTACH.to_owned(),
        Subject::Unaccounted => UNACCOUNTED.to_owned(),
        Subject::Frame(direction, frame) => {
            format!("{} {}", arrow(direction), state.names.frame(frame))
        }
        Subject::Branch(direction, chain, end, forks) => {
            let arrow = arrow(direction);
            let chain = if row.fold == Fold::Open {
                &chain[..chain.len().min(1)]
            } else {
                chain
            };
            let mut steps: Vec<String> =
                chain.iter().map(|frame| state.names.frame(frame)).collect();
            match end {
                _ if *forks > 0 && row.fold == Fold::Open => {}
                _ if *forks > 0 => steps.push(format!("({forks} branches)")),
                Some(End::Truncated) => steps.push("(more frames, not recorded)".to_owned()),
                Some(End::NotKept) => steps.push("(stacks not recorded)".to_owned()),
                Some(End::Outermost) if chain.is_empty() => steps.push("(no caller)".to_owned()),
                Some(End::Innermost) if chain.is_empty() => {
                    steps.push("(the line itself)".to_owned())
                }
                _ => {}
            }
            format!("{arrow} {}", steps.join(&format!(" {arrow} ")))
        }
    }
}

/// Draws the sum of the table, and its difference to the allocator's total if there is one.
pub fn draw_sum(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    let Some(device) = state.device() else { return };
    if area.is_empty() {
        return;
    }
    let table = &state.table;
    let allocated = i128::from(device.totals.allocated.0);
    let dot = theme.glyphs.dot;
    let (text, style) = if state.filter.is_active() {
        let share = percent(table.shown_live, table.all_live);
        let text = format!(
            "shown {} of {} ({share}) {dot} {} of {} rows {dot} filter /{}/ (Esc: all)",
            amount(table.shown_live),
            amount(table.all_live),
            table.shown,
            table.all,
            clean(state.filter.pattern()),
        );
        (text, theme.strong())
    } else if table.all_live == allocated {
        let rows = counted(table.all as u64, "row");
        (
            format!("sum {} = allocated {dot} {rows}", amount(table.all_live)),
            theme.faint(),
        )
    } else {
        let off = amount(allocated - table.all_live);
        (
            format!(
                "sum {} is not what is allocated: {off} off",
                amount(table.all_live)
            ),
            theme.bad(),
        )
    };
    let text = format!("  {text}");
    let available = usize::from(area.width);
    buffer.set_stringn(
        area.x,
        area.y,
        fit(&text, available, theme.glyphs.cut),
        available,
        style,
    );
}

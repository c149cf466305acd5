//! Drawing of the table of categories.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::list::{self, ColumnPosition, Side};
use super::super::sort::Order;
use super::super::table::Fold;
use super::super::theme::Theme;
use super::graph::{letter, style};
use super::rows::{Column, Row};
use super::state::CategoriesState;
use crate::attribution::tables::{CoverageStart, DeviceCategories, Portion};
use crate::event::Bytes;
use crate::event::bytes::{human, short, signed};
use crate::view::{count, counted, fit, percent, sureness, width};

/// Columns: width, and minimum width of a table that shows the column.
const COLUMNS: [(Column, u16, u16); 7] = [
    (Column::Live, 9, 0),
    (Column::AtPeak, 8, 50),
    (Column::Most, 8, 60),
    (Column::Share, 6, 94),
    (Column::Blocks, 8, 102),
    (Column::Category, 29, 0),
    (Column::How, 8, 68),
];

/// Minimum width for a rule column; narrower tables show the rule in place of the name.
const MIN_WIDTH_FOR_RULES: u16 = 84;

/// Returns the columns that fit, from left to right.
fn columns(width: u16) -> Vec<ColumnPosition<Column>> {
    let (mut places, start) = list::places(width, &COLUMNS);
    if width >= MIN_WIDTH_FOR_RULES {
        places.push(ColumnPosition {
            column: Column::Rule,
            start,
            wide: width - start,
        });
    }
    places
}

/// Returns the column at a cell of the head.
pub fn column_at(width: u16, x: u16) -> Column {
    list::column_at(&columns(width), x).unwrap_or(Column::Rule)
}

fn is_number(column: Column) -> bool {
    !matches!(column, Column::Category | Column::How | Column::Rule)
}

/// Draws the column heads, with an arrow at the sort column.
pub fn draw_head(buffer: &mut Buffer, area: Rect, state: &CategoriesState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    for place in columns(area.width) {
        let falls = state.reversed == (place.column == Column::Category);
        let orders = (place.column == state.order).then_some(match falls {
            true => Order::Falling,
            false => Order::Climbing,
        });
        let side = match is_number(place.column) {
            true => Side::Right,
            false => Side::Left,
        };
        let head = (place.column.head(), side);
        list::draw_head(buffer, area, &place, head, orders, theme);
    }
}

/// Draws the visible rows.
pub fn draw_rows(
    buffer: &mut Buffer,
    area: Rect,
    state: &CategoriesState,
    allocated: Bytes,
    theme: &Theme,
) {
    let names = match area.width {
        MIN_WIDTH_FOR_RULES.. => RuleNames::Beside,
        _ => RuleNames::Here,
    };
    let rows = state.rows.iter().enumerate().skip(state.selection.offset);
    for ((at, row), y) in rows.zip(area.y..area.bottom()) {
        let line = Rect {
            y,
            height: 1,
            ..area
        };
        if at == state.selection.cursor {
            list::draw_selected(buffer, line, theme);
        }
        for ColumnPosition {
            column,
            start,
            wide,
        } in columns(area.width)
        {
            let (start, available) = (area.x + start, usize::from(wide));
            match column {
                Column::Category => {
                    draw_name(
                        buffer,
                        Rect {
                            x: start,
                            width: wide,
                            ..line
                        },
                        row,
                        names,
                        theme,
                    );
                }
                _ if is_number(column) => {
                    let text = fit(&figure(column, row, allocated), available, theme.glyphs.cut);
                    let style = match column {
                        Column::Live => theme.strong(),
                        _ => Style::new(),
                    };
                    buffer.set_stringn(start, y, format!("{text:>available$}"), available, style);
                }
                _ => {
                    let (how, rule) = decided(row);
                    let text = if column == Column::How {
                        how.to_owned()
                    } else {
                        rule
                    };
                    let text = fit(&text, available, theme.glyphs.cut);
                    buffer.set_stringn(start, y, text, available, theme.faint());
                }
            }
        }
    }
}

/// Position of a rule's text.
#[derive(Clone, Copy)]
enum RuleNames {
    /// In a separate column.
    Beside,
    /// In place of the name.
    Here,
}

fn draw_name(buffer: &mut Buffer, area: Rect, row: &Row, names: RuleNames, theme: &Theme) {
    let available = usize::from(area.width);
    let mark = match row.fold {
        Fold::Leaf => " ",
        Fold::Closed => theme.glyphs.closed,
        Fold::Open => theme.glyphs.open,
    };
    let (indent, name) = match (&row.rule, names) {
        (None, _) => ("", row.name()),
        (Some(_), RuleNames::Beside) => ("    ", "of these"),
        (Some(rule), RuleNames::Here) => ("  ", rule.rule.as_str()),
    };
    buffer.set_stringn(
        area.x,
        area.y,
        format!("{indent}{mark} "),
        available,
        Style::new(),
    );
    let start = area.x + (width(indent) + width(mark) + 1) as u16;
    let left = usize::from(area.right().saturating_sub(start));
    if row.rule.is_none() && left > 2 {
        buffer.set_string(
            start,
            area.y,
            letter(row.portion),
            style(row.portion, theme),
        );
        let text = fit(name, left - 2, theme.glyphs.cut);
        buffer.set_stringn(start + 2, area.y, text, left - 2, Style::new());
    } else {
        buffer.set_stringn(
            start,
            area.y,
            fit(name, left, theme.glyphs.cut),
            left,
            Style::new(),
        );
    }
}

fn figure(column: Column, row: &Row, allocated: Bytes) -> String {
    let bytes = match column {
        Column::Live => Some(row.live),
        Column::AtPeak => Some(row.at_peak),
        Column::Most => row.most,
        Column::Share => return percent(row.live.into(), allocated.0.into()),
        _ => return row.blocks.map_or_else(|| "-".to_owned(), count),
    };
    match bytes {
        Some(bytes @ ..0) => format!("-{}", short(Bytes(bytes.unsigned_abs()))),
        Some(bytes) => short(Bytes(bytes.unsigned_abs())),
        None => "-".to_owned(),
    }
}

/// Returns the confidence of a row, and the rule that assigned it.
fn decided(row: &Row) -> (&'static str, String) {
    match (row.portion, &row.rules[..]) {
        (Portion::BeforeAttach, _) => {
            let rule = match row.since {
                CoverageStart::Attach => "live when memprobe attached",
                CoverageStart::Opening => "live when opened; t reads its category",
            };
            ("exact", rule.to_owned())
        }
        (Portion::Unaccounted, _) => ("exact", "events were lost".to_owned()),
        (Portion::Of(_), []) => ("-", String::new()),
        (Portion::Of(_), [only]) => (sureness(only.rule), only.rule.as_str().to_owned()),
        (Portion::Of(_), [first, more @ ..]) => {
            let text = format!("{} (and {} more)", first.rule.as_str(), more.len());
            (sureness(first.rule), text)
        }
    }
}

/// Draws the sum of the table, and its difference to the allocator's total if there is one.
pub fn draw_sum(
    buffer: &mut Buffer,
    area: Rect,
    state: &CategoriesState,
    device: &DeviceCategories,
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    let whole = state.rows.iter().filter(|row| row.rule.is_none());
    let sum: i128 = whole.clone().map(|row| i128::from(row.live)).sum();
    let dot = theme.glyphs.dot;
    let off = i128::from(device.totals.allocated.0) - sum;
    let sum = human(Bytes(u64::try_from(sum).unwrap_or(0)));
    let (text, style) = if off == 0 {
        let rows = counted(whole.count() as u64, "row");
        (format!("sum {sum} = allocated {dot} {rows}"), theme.faint())
    } else {
        let off = signed(i64::try_from(off).unwrap_or(i64::MAX));
        (
            format!("sum {sum} is not what is allocated: {off} off"),
            theme.bad(),
        )
    };
    let available = usize::from(area.width);
    let text = fit(&format!("  {text}"), available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, text, available, style);
}

/// Summarizes the selected row in one line.
pub fn summary(row: &Row) -> String {
    let (how, rule) = decided(row);
    let name = row.name();
    format!("{name}: {how}   {rule}")
}

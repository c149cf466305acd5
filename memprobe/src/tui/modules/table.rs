//! Drawing of the tables of modules and layers.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::lines::MARK;
use super::super::list::{self, Side};
use super::super::sort::Order;
use super::super::table::Fold;
use super::super::theme::Theme;
use super::columns::{Column, columns};
use super::rows::{Row, RowKey};
use super::state::{Alike, ModulesState};
use super::subject::{Figures, ModulesView, Subject, Then};
use crate::attribution::tables::{Category, CoverageStart, Layer, ModuleScope, Pass, Sums};
use crate::event::Bytes;
use crate::event::bytes::{human, signed};
use crate::view::{
    clean, count, counted, fit, fit_middle, iteration, iterations_by, peak, percent, width,
};

/// Deepest indentation level.
const DEEPEST_INDENT: usize = 16;

/// Draws the totals of the device, or of the iteration.
pub fn draw_account(
    buffer: &mut Buffer,
    area: Rect,
    state: &ModulesState,
    subject: &Subject,
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    let mut text = match &subject.moment {
        None => now(subject),
        Some(then) => iteration_of(then, subject),
    };
    if state.alike == Alike::Apart && subject.knows_modules != Some(false) {
        text.push_str("   one by one (i)");
    }
    let available = usize::from(area.width);
    let text = fit(&text, available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, text, available, theme.allocated());
}

fn now(subject: &Subject) -> String {
    let allocated = subject.allocated;
    if subject.knows_modules == Some(false) {
        return format!(
            "  allocated {}   no call of a module was seen",
            human(allocated)
        );
    }
    let rows = subject.modules.iter();
    let modules: u64 = rows.map(|row| row.total.bytes().0).sum();
    format!(
        "  allocated {}   by modules {} ({})   {} {}",
        human(allocated),
        human(Bytes(modules)),
        percent(modules.into(), allocated.0.into()),
        peak(subject.since),
        human(subject.peak),
    )
}

/// Describes the iteration: number, epoch, peak, and bytes at its end.
fn iteration_of(then: &Then, subject: &Subject) -> String {
    let Some(row) = &then.iteration else {
        return format!("  {}", iterations_by(then.source));
    };
    let mut text = format!("  iteration {}", iteration(row.number, row.kind));
    if let Some((first, last)) = then.whole {
        text.push_str(&format!(" of {first} to {last}"));
    }
    if let Some(epoch) = row.epoch {
        text.push_str(&format!(", epoch {epoch}"));
    }
    let cached = row.end.reserved.0.saturating_sub(row.end.allocated.0);
    text.push_str(&format!(
        "   peak {}   at its end {}, cached {}",
        human(subject.peak),
        human(row.end.allocated),
        human(Bytes(cached)),
    ));
    text
}

/// Draws the column heads, with an arrow at the sort column.
pub fn draw_head(buffer: &mut Buffer, area: Rect, state: &ModulesState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    for place in columns(area.width, state.view, state.table.recomputed) {
        let falls = state.reversed == (place.column == Column::Module);
        let orders = (place.column == state.order).then_some(match falls {
            true => Order::Falling,
            false => Order::Climbing,
        });
        let (start, side) = match place.column {
            // Names start after the fold mark.
            Column::Module => (place.start + MARK, Side::Left),
            _ => (place.start, Side::Right),
        };
        let place = list::ColumnPosition { start, ..place };
        let head = (place.column.head(state.view), side);
        list::draw_head(buffer, area, &place, head, orders, theme);
    }
}

/// Draws the visible rows.
pub fn draw_rows(
    buffer: &mut Buffer,
    area: Rect,
    state: &ModulesState,
    allocated: Bytes,
    theme: &Theme,
) {
    let places = columns(area.width, state.view, state.table.recomputed);
    let rows = state
        .table
        .rows
        .iter()
        .enumerate()
        .skip(state.selection.offset);
    for ((at, row), y) in rows.zip(area.y..area.bottom()) {
        let line = Rect {
            y,
            height: 1,
            ..area
        };
        if at == state.selection.cursor {
            list::draw_selected(buffer, line, theme);
        }
        for place in &places {
            let wide = usize::from(place.wide.min(area.width.saturating_sub(place.start)));
            let start = area.x + place.start;
            if place.column == Column::Module {
                draw_name(
                    buffer,
                    Rect {
                        x: start,
                        width: wide as u16,
                        ..line
                    },
                    row,
                    theme,
                );
                continue;
            }
            let text = fit(&place.column.cell(row, allocated), wide, theme.glyphs.cut);
            let style = match place.column {
                Column::Live => theme.strong(),
                _ => Style::new(),
            };
            buffer.set_stringn(start, y, format!("{text:>wide$}"), wide, style);
        }
    }
}

fn draw_name(buffer: &mut Buffer, area: Rect, row: &Row, theme: &Theme) {
    let mark = match row.fold {
        Fold::Leaf => " ",
        Fold::Closed => theme.glyphs.closed,
        Fold::Open => theme.glyphs.open,
    };
    let indent = "  ".repeat(row.depth.min(DEEPEST_INDENT));
    let available = usize::from(area.width);
    let before = format!("{indent}{mark} ");
    buffer.set_stringn(area.x, area.y, &before, available, Style::new());
    let start = area.x + width(&before).min(available) as u16;
    let left = usize::from(area.right().saturating_sub(start));
    let text = match row.key {
        RowKey::Module(_) => fit_middle(&called(row), left, theme.glyphs.cut),
        _ => fit(&row.name, left, theme.glyphs.cut),
    };
    buffer.set_stringn(start, area.y, text, left, Style::new());
}

/// Returns the name of a row, with the number of modules if it stands for several.
fn called(row: &Row) -> String {
    match row.count {
        1 => row.name.clone(),
        several => format!("{} ({})", row.name, count(several)),
    }
}

/// Draws the sum of the table, and its difference to the allocator's total if there is one.
pub fn draw_sum(
    buffer: &mut Buffer,
    area: Rect,
    state: &ModulesState,
    allocated: Bytes,
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    let table = &state.table;
    let dot = theme.glyphs.dot;
    let amount = |bytes: i128| match u64::try_from(bytes) {
        Ok(bytes) => human(Bytes(bytes)),
        Err(_) => signed(i64::try_from(bytes).unwrap_or(i64::MIN)),
    };
    let all = counted(table.all as u64, "row");
    let (text, style) = if state.filter.is_active() {
        let text = format!(
            "shown {} of {} ({}) {dot} {} of {all} {dot} filter /{}/ (Esc: all)",
            amount(table.shown_live),
            amount(table.all_live),
            percent(table.shown_live, table.all_live),
            table.shown,
            clean(state.filter.pattern()),
        );
        (text, theme.strong())
    } else if table.all_live == i128::from(allocated.0) {
        let what = match state.view {
            ModulesView::Now => "allocated",
            ModulesView::Then => "allocated at the peak of the iteration",
        };
        let text = format!("sum {} = {what} {dot} {all}", amount(table.all_live));
        (text, theme.faint())
    } else {
        let off = amount(i128::from(allocated.0) - table.all_live);
        let text = format!(
            "sum {} is not what is allocated: {off} off",
            amount(table.all_live)
        );
        (text, theme.bad())
    };
    let available = usize::from(area.width);
    let text = fit(&format!("  {text}"), available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, text, available, style);
}

/// Summarizes the selected row in one line.
pub fn summary(row: &Row) -> String {
    let what = match &row.key {
        RowKey::Module(path) => path.clone(),
        RowKey::Before(CoverageStart::Opening) => {
            return "live when the process was opened: t reads its category".into();
        }
        RowKey::Before(CoverageStart::Attach) => {
            return "live when memprobe attached: its modules are unknown".into();
        }
        RowKey::Unaccounted => {
            return "the allocator's total less all known blocks: events were lost".into();
        }
        RowKey::Other(ModuleScope::Outside) => {
            "outside module calls: parameters, optimizers, losses".to_owned()
        }
        RowKey::Other(ModuleScope::BackwardUnknown) => {
            "backward, through operations of unknown modules".to_owned()
        }
        RowKey::Other(_) => row.name.clone(),
    };
    match &row.figures {
        None => what,
        Some((Figures::Now(own), Figures::Now(total))) => summary_now(what, row, own, total),
        Some((own, Figures::Then(total))) => summary_then(what, own.bytes(), total),
        // Impossible: both figures are of the same kind.
        Some((Figures::Then(_), Figures::Now(_))) => what,
    }
}

fn summary_now(what: String, row: &Row, own: &Sums, total: &Sums) -> String {
    let mut facts = vec![what, format!("own {}", human(own.all.live))];
    facts.push(match total.all.peak {
        Some(peak) => format!("peak {}", human(peak)),
        None => format!("{} in one row: no common peak", count(row.count)),
    });
    let then = total.all.at_peak;
    facts.push(format!("{} at the device's peak", human(then)));
    let again = total.pass(Pass::Recompute).live;
    if again > Bytes(0) {
        facts.push(format!("{} computed again", human(again)));
    }
    facts.push(counted(total.all.live_blocks, "block"));
    facts.join("   ")
}

/// Lists all categories with bytes, whether or not they have a column.
fn summary_then(what: String, own: Bytes, total: &Layer) -> String {
    let mut facts = vec![what, format!("own {}", human(own))];
    let held = Category::ALL.iter();
    let held = held.map(|category| (category.as_str(), total.of(*category)));
    let held = held.filter(|(_, bytes)| *bytes > 0);
    facts.extend(held.map(|(name, bytes)| format!("{name} {}", human(Bytes(bytes)))));
    facts.join("   ")
}

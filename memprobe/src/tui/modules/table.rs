//! The table of modules on the screen.

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
use crate::bytes::{human, signed};
use crate::event::Bytes;
use crate::label::{clean, count, counted, fit, fit_middle, percent, width};
use crate::model::snapshot::why::{DeviceModules, Pass, Place};

/// Levels that are indented; deeper ones stand below the last.
const DEEPEST_INDENT: usize = 16;

/// What the device holds, and what of it modules asked for.
pub fn draw_account(
    buffer: &mut Buffer,
    area: Rect,
    state: &ModulesState,
    device: &DeviceModules,
    theme: &Theme,
) {
    let room = usize::from(area.width);
    let rows = device.tree.modules.iter();
    let modules: u64 = rows.map(|row| row.total.all.live.0).sum();
    let allocated = device.totals.allocated;
    let share = percent(modules.into(), allocated.0.into());
    let mut text = format!(
        "  allocated {}   by modules {} ({share})   peak {}",
        human(allocated),
        human(Bytes(modules)),
        human(device.tree.peak.totals.allocated),
    );
    if !device.tree.knows_modules {
        text = format!(
            "  allocated {}   no call of a module was seen",
            human(allocated)
        );
    } else if state.alike == Alike::Apart {
        text.push_str("   each alone (i)");
    }
    if !area.is_empty() {
        let text = fit(&text, room, theme.glyphs.cut);
        buffer.set_stringn(area.x, area.y, text, room, theme.allocated());
    }
}

/// Heads of the columns; the one that orders has an arrow.
pub fn draw_head(buffer: &mut Buffer, area: Rect, state: &ModulesState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    for place in columns(area.width, state.table.recomputed) {
        let falls = state.reversed == (place.column == Column::Module);
        let orders = (place.column == state.order).then_some(match falls {
            true => Order::Falling,
            false => Order::Climbing,
        });
        let (start, side) = match place.column {
            // Names stand behind the mark of a row that can be opened.
            Column::Module => (place.start + MARK, Side::Left),
            _ => (place.start, Side::Right),
        };
        let place = list::Place { start, ..place };
        let head = (place.column.head(), side);
        list::draw_head(buffer, area, &place, head, orders, theme);
    }
}

/// The rows that are on the screen.
pub fn draw_rows(
    buffer: &mut Buffer,
    area: Rect,
    state: &ModulesState,
    allocated: Bytes,
    theme: &Theme,
) {
    let places = columns(area.width, state.table.recomputed);
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
    let room = usize::from(area.width);
    let before = format!("{indent}{mark} ");
    buffer.set_stringn(area.x, area.y, &before, room, Style::new());
    let start = area.x + width(&before).min(room) as u16;
    let left = usize::from(area.right().saturating_sub(start));
    let text = match row.key {
        RowKey::Module(_) => fit_middle(&called(row), left, theme.glyphs.cut),
        _ => fit(&row.name, left, theme.glyphs.cut),
    };
    buffer.set_stringn(start, area.y, text, left, Style::new());
}

/// Its name, and how many modules it stands for.
fn called(row: &Row) -> String {
    match row.count {
        1 => row.name.clone(),
        several => format!("{} ({})", row.name, count(several)),
    }
}

/// What the table adds up to.
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
        let text = format!("sum {} = allocated {dot} {all}", amount(table.all_live));
        (text, theme.faint())
    } else {
        let off = amount(i128::from(allocated.0) - table.all_live);
        let text = format!(
            "sum {} is not what is allocated: {off} off",
            amount(table.all_live)
        );
        (text, theme.bad())
    };
    let room = usize::from(area.width);
    let text = fit(&format!("  {text}"), room, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, text, room, style);
}

/// The selected row in one line.
pub fn summary(row: &Row) -> String {
    let what = match &row.key {
        RowKey::Module(path) => path.clone(),
        RowKey::BeforeAttach => {
            return "live when memprobe attached: which modules asked for it cannot be known"
                .into();
        }
        RowKey::Unaccounted => {
            return "the allocator's total less all known blocks: events were lost".into();
        }
        RowKey::Other(Place::Outside) => {
            "no module was called: parameters, optimizers, losses".to_owned()
        }
        RowKey::Other(Place::BackwardUnknown) => {
            "backward, through operations whose module is not known".to_owned()
        }
        RowKey::Other(_) => row.name.clone(),
    };
    let Some((own, total)) = &row.sums else {
        return what;
    };
    let mut facts = vec![what, format!("own {}", human(own.all.live))];
    facts.push(match total.all.peak {
        Some(peak) => format!("peak {}", human(peak)),
        None => format!("{} alike: no peak of all together", count(row.count)),
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

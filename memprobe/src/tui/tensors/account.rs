//! Top of the screen of tensors: process, devices, and accounting of their memory.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::header::draw_title;
use super::super::theme::Theme;
use super::state::TensorsState;
use crate::event::Bytes;
use crate::event::Target;
use crate::event::bytes::{human, signed};
use crate::tensors::DeviceTable;
use crate::view::{fit, process};

/// Draws program, command and process.
pub fn draw_header(buffer: &mut Buffer, area: Rect, target: &Target, theme: &Theme) {
    let right: Vec<String> = process(target).into_iter().collect();
    draw_title(buffer, area, "memprobe tensors", target, &right, theme);
}

/// Draws the device tabs; the selected one is highlighted.
pub fn draw_devices(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    let shown = state.shown_device().map(|table| table.device);
    let tabs = state.devices().iter().flat_map(|table| {
        let text = format!(" {} {} ", table.device, human(held(table)));
        let style = if Some(table.device) == shown {
            theme.bar_strong()
        } else {
            theme.faint()
        };
        [Span::styled(text, style), Span::raw("  ")]
    });
    let line = Line::from(tabs.collect::<Vec<_>>());
    buffer.set_line(area.x, area.y, &line, area.width);
}

fn held(table: &DeviceTable) -> Bytes {
    match table.account.totals {
        Some(totals) => totals.allocated,
        None => table.account.held(),
    }
}

/// Draws the allocator's total and its parts.
pub fn draw_account(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    let Some(table) = state.shown_device() else {
        return;
    };
    let account = &table.account;
    let mut facts = Vec::new();
    if let Some(totals) = account.totals {
        facts.push(format!("allocated {}", human(totals.allocated)));
    }
    facts.push(format!("tensors {}", human(account.tensors)));
    let more = [
        ("no tensor", add(account.blocks, account.bare)),
        ("rounding", add(account.rounding, account.uncovered)),
        ("not the allocator's", account.outside),
    ];
    for (words, bytes) in more {
        if bytes != Bytes(0) {
            facts.push(format!("{words} {}", human(bytes)));
        }
    }
    if let Some(rest) = account.remainder.filter(|rest| *rest != 0) {
        facts.push(format!("remainder {}", signed(rest)));
    }
    let available = usize::from(area.width);
    let text = format!("  {}", facts.join("   "));
    if !area.is_empty() {
        let text = fit(&text, available, theme.glyphs.cut);
        buffer.set_stringn(area.x, area.y, text, available, theme.allocated());
    }
}

fn add(one: Bytes, other: Bytes) -> Bytes {
    Bytes(one.0.saturating_add(other.0))
}

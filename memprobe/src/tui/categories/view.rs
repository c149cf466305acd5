//! Drawing of the whole screen of categories from its state.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::super::header::draw_devices;
use super::super::layout::{are_within, beneath};
use super::super::notice::{draw_detail, draw_words};
use super::super::overlay::{draw_box, entry};
use super::super::secondary_screens::{draw_note, draw_title_of};
use super::super::state::State;
use super::super::status::draw_key_list;
use super::super::tabs::{Tab, draw_tabs};
use super::super::theme::Theme;
use super::super::view::draw_too_small;
use super::layout::Layout;
use super::state::CategoriesState;
use super::{graph, iterations, table};
use crate::attribution::tables::DeviceCategories;
use crate::event::bytes::human;
use crate::view::{fit, peak, span};

/// Draws the screen at the size that `state` was given. `lines`, the state of the screen of lines, has the
/// process, the devices and the status.
pub fn draw(buffer: &mut Buffer, state: &CategoriesState, lines: &State, theme: &Theme) {
    let area = buffer.area;
    let is_within = |it: &Layout| are_within(area, it.header, [it.status, it.keys]);
    let Some(layout) = state.layout().filter(is_within) else {
        draw_too_small(buffer, lines);
        return;
    };
    draw_title_of(buffer, layout.header, "memprobe categories", lines, theme);
    draw_tabs(buffer, layout.tabs, Tab::Categories, theme);
    draw_devices(buffer, layout.devices, lines, theme);
    if let Some(device) = state.shown_device() {
        draw_account(buffer, layout.account, device, theme);
        graph::draw_graph(buffer, layout.graph, device, theme);
        table::draw_head(buffer, layout.head, state, theme);
        table::draw_rows(buffer, layout.rows, state, device.totals.allocated, theme);
        table::draw_sum(buffer, layout.sum, state, device, theme);
        iterations::draw_iterations(buffer, layout.iterations, device, theme);
    } else {
        let (first, second) = match state.has_data() {
            false => ("Waiting for the first table of categories.", ""),
            true => (
                "No categories on this device.",
                "They exist for PyTorch's allocators, not for calls into CUDA.",
            ),
        };
        draw_words(buffer, layout.rows, first, second, theme);
    }
    if let Some(row) = state.selected() {
        draw_detail(buffer, layout.detail, &table::summary(row), theme);
    }
    draw_note(buffer, layout.status, state.note, lines, theme);
    draw_keys(buffer, layout.keys, lines, theme);
    if let Some(scroll) = state.help {
        let body = beneath(layout.tabs, layout.status);
        draw_box(buffer, body, " Help ", &help(theme), scroll, theme);
    }
}

/// Draws the allocated bytes, the peak, the current phase and the age of the last heap snapshot.
fn draw_account(buffer: &mut Buffer, area: Rect, device: &DeviceCategories, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let read = device.read_before.map_or_else(
        || "inferred (t: read)".to_owned(),
        |ago| {
            let (exact, ago) = (human(device.exact), span(Duration::from_nanos(ago)));
            format!("read {ago} ago: {exact} exact")
        },
    );
    let text = format!(
        "  allocated {}   {} {}   phase: {}   {read}",
        human(device.totals.allocated),
        peak(device.since),
        human(device.peak),
        device.phase.as_str()
    );
    let available = usize::from(area.width);
    let text = fit(&text, available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, text, available, theme.allocated());
}

fn draw_keys(buffer: &mut Buffer, area: Rect, lines: &State, theme: &Theme) {
    let mut keys = vec![
        // Key, its action, and its drop rank: the highest is dropped first where space is short.
        (theme.glyphs.arrows, "move", 6),
        ("Enter", "rules", 2),
        ("*", "all rules", 5),
        ("<>", "sort", 4),
        ("r", "reverse", 9),
        ("Space", "pause", 3),
        ("?", "help", 2),
        ("q", "quit", 0),
    ];
    if lines.shown.devices.len() > 1 {
        keys.insert(5, ("d", "device", 5));
    }
    draw_key_list(buffer, area, keys, theme);
}

/// Returns the help text: keys, columns and terms.
fn help(theme: &Theme) -> Vec<Line<'static>> {
    let entries: [(&str, &str); 24] = [
        (
            theme.glyphs.arrows,
            "or j k, PgUp PgDn, Home End, wheel: move",
        ),
        (
            "Enter",
            "the rules that decided on a category; so does a click on it",
        ),
        ("*", "the rules of all categories"),
        (
            "< > or F6",
            "sort by another column, or a click on its head",
        ),
        ("r", "reverse the order"),
        (
            "Tab or d",
            "next device                      D  previous device",
        ),
        ("Space", "pause the screen; memprobe goes on counting"),
        (
            "c or Esc",
            "back to lines     m  modules     L  layers     t  tensors",
        ),
        ("q Ctrl-C", "quit; the process runs on"),
        ("", ""),
        (
            "letters",
            "the graph draws each category by the letter of its row",
        ),
        ("phase", "what the program did at its last allocation"),
        (
            "AT PEAK",
            "bytes at the device's peak since attach or opening",
        ),
        (
            "MOST",
            "largest value of the moments in the graph: for each step,",
        ),
        ("", "the moment with most allocated bytes"),
        ("exact", "read from PyTorch or its objects, or a difference"),
        (
            "inferred",
            "from when it was allocated and freed, by the named rule",
        ),
        ("so far", "inferred; later events may change it"),
        (
            "before",
            "attach: live at attach; opening: live when opened",
        ),
        (
            "activation",
            "saved by a forward pass for the backward pass",
        ),
        (
            "temporary",
            "freed soon, by the part of the program that allocated it",
        ),
        ("workspace", "not a tensor: scratch memory of a library"),
        (
            "LIVE AT END",
            "allocated at the end of the iteration; if it grows: a leak",
        ),
        (
            "CACHED",
            "reserved by PyTorch's allocator but not allocated",
        ),
    ];
    entries
        .iter()
        .map(|(key, text)| entry(key, text, theme))
        .collect()
}

//! Drawing of the whole screen of modules or layers from its state.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::Line;

use super::super::header::draw_devices;
use super::super::input::Focus;
use super::super::layout::{are_within, beneath};
use super::super::notice::{draw_detail, draw_words};
use super::super::overlay::{draw_box, entry};
use super::super::secondary_screens::{draw_note, draw_title_of};
use super::super::state::State;
use super::super::status::{Prompt, draw_last_line};
use super::super::tabs::{Tab, draw_tabs};
use super::super::tensors::layout::Layout;
use super::super::theme::Theme;
use super::super::view::draw_too_small;
use super::state::ModulesState;
use super::subject::{ModulesView, Subject};
use super::table;
use crate::view::clean;

/// Draws the screen at the size that `state` was given. `lines`, the state of the screen of lines, has the
/// process, the devices and the status. Returns the position of the visible cursor, if any.
pub fn draw(
    buffer: &mut Buffer,
    state: &ModulesState,
    lines: &State,
    theme: &Theme,
) -> Option<Position> {
    let area = buffer.area;
    let is_within = |it: &Layout| are_within(area, it.header, [it.status, it.keys]);
    let Some(layout) = state.layout().filter(is_within) else {
        draw_too_small(buffer, lines);
        return None;
    };
    let (title, tab) = match state.view {
        ModulesView::Now => ("memprobe modules", Tab::Modules),
        ModulesView::Then => ("memprobe layers", Tab::Layers),
    };
    draw_title_of(buffer, layout.header, title, lines, theme);
    draw_tabs(buffer, layout.tabs, tab, theme);
    if lines.shown.devices.len() > 1 {
        draw_devices(buffer, layout.devices, lines, theme);
    }
    if let Some(subject) = &state.subject {
        let allocated = subject.allocated;
        table::draw_account(buffer, layout.account, state, subject, theme);
        table::draw_head(buffer, layout.head, state, theme);
        table::draw_rows(buffer, layout.rows, state, allocated, theme);
        // An iteration no longer kept has no sum.
        if subject.moment.as_ref().is_none_or(|then| then.is_stored) {
            table::draw_sum(buffer, layout.sum, state, allocated, theme);
        }
    }
    draw_nothing(buffer, layout.rows, state, theme);
    if let Some(row) = state.selected() {
        draw_detail(buffer, layout.detail, &table::summary(row), theme);
    }
    draw_note(buffer, layout.status, state.note, lines, theme);
    let cursor = draw_keys(buffer, layout.keys, state, lines, theme);
    if let Some(scroll) = state.help {
        let body = beneath(layout.tabs, layout.status);
        draw_box(
            buffer,
            body,
            " Help ",
            &help(state.view, theme),
            scroll,
            theme,
        );
    }
    cursor
}

/// Draws the reason for missing modules, and a remedy.
fn draw_nothing(buffer: &mut Buffer, area: Rect, state: &ModulesState, theme: &Theme) {
    let rows = state.table.rows.len() as u16;
    let free = Rect {
        y: area.y + rows.min(area.height),
        height: area.height.saturating_sub(rows),
        ..area
    };
    let none = String::new;
    let (first, second) = match &state.subject {
        None if !state.has_data() => ("Waiting for the first table of modules.", none()),
        None => (
            "No modules on this device.",
            "They exist for PyTorch's allocators, not for calls into CUDA.".to_owned(),
        ),
        Some(_) if state.filter.is_active() && rows == 0 => (
            "No module matches the filter.",
            format!(
                "/{}/   Esc shows all modules.",
                clean(state.filter.pattern())
            ),
        ),
        Some(subject) if subject.knows_modules == Some(false) => (
            "No call of a torch.nn.Module was seen.",
            "The program makes none, or memprobe cannot see its modules.".to_owned(),
        ),
        Some(Subject {
            moment: Some(then), ..
        }) if then.iteration.is_none() => (
            "No iteration yet.",
            "An optimizer step ends one, or zero_grad() or a batch starts one.".to_owned(),
        ),
        Some(Subject {
            moment: Some(then), ..
        }) if !then.is_stored => (
            "The memory of modules in this iteration is gone.",
            "] leads to later ones.".to_owned(),
        ),
        Some(_) => return,
    };
    draw_words(buffer, free, first, &second, theme);
}

/// Draws the key hints, or the prompt. Returns the position of the prompt's cursor.
fn draw_keys(
    buffer: &mut Buffer,
    area: Rect,
    state: &ModulesState,
    lines: &State,
    theme: &Theme,
) -> Option<Position> {
    let mut keys = vec![
        // Key, its action, and its drop rank: the highest is dropped first where space is short.
        (theme.glyphs.arrows, "move", 6),
        ("Enter", "open", 2),
        ("*", "open all", 5),
        ("/", "filter", 3),
        ("<>", "sort", 4),
        ("r", "reverse", 9),
        ("i", "alike", 5),
        ("Space", "pause", 7),
        ("?", "help", 2),
        ("q", "quit", 0),
    ];
    if state.view == ModulesView::Then {
        keys.insert(8, ("[]", "iteration", 2));
    }
    if lines.shown.devices.len() > 1 {
        keys.insert(7, ("d", "device", 5));
    }
    let prompt = (state.focus() == Focus::Prompt).then_some(Prompt {
        filter: &state.filter,
        looks_in: "paths of modules",
        shown: state.table.shown,
        all: state.table.all,
    });
    draw_last_line(buffer, area, prompt, keys, theme)
}

/// Returns the help text: keys, columns and terms.
fn help(tells: ModulesView, theme: &Theme) -> Vec<Line<'static>> {
    let keys: [(&str, &str); 9] = [
        (
            theme.glyphs.arrows,
            "or j k, PgUp PgDn, Home End, wheel: move",
        ),
        ("Enter", "open the row, or close it; so does a click on it"),
        (
            "Right Left",
            "open; close or go up the tree    *  open all beneath",
        ),
        ("/", "filter paths by regular expression     Esc  clear it"),
        (
            "< > or F6",
            "sort by another column, or a click on its head",
        ),
        ("r", "reverse the order"),
        (
            "i",
            "modules that differ only in a number: one row, or each",
        ),
        (
            "Tab or d",
            "next device                      D  previous device",
        ),
        ("Space", "pause the screen; memprobe goes on counting"),
    ];
    let more: &[(&str, &str)] = match tells {
        ModulesView::Now => &NOW,
        ModulesView::Then => &THEN,
    };
    let all = keys.iter().chain(more);
    all.map(|(key, text)| entry(key, text, theme)).collect()
}

const NOW: [(&str, &str); 13] = [
    (
        "L",
        "layers: memory of modules in an iteration, by category",
    ),
    ("m or Esc", "back to lines     c  categories     t  tensors"),
    ("q Ctrl-C", "quit; the process runs on"),
    ("", ""),
    ("LIVE", "live bytes of the module and its submodules"),
    ("OWN", "of these, without submodules"),
    (
        "PEAK",
        "largest LIVE; unknown for several modules in one row",
    ),
    (
        "AT PEAK",
        "bytes at the device's peak since attach or opening",
    ),
    ("FORWARD", "live bytes allocated in forward passes"),
    (
        "RECOMPUTE",
        "live bytes of recomputation (activation checkpointing)",
    ),
    (
        "BACKWARD",
        "live bytes of backward passes, by forward module",
    ),
    ("SHARE", "share of all allocated bytes"),
    (
        "outside",
        "parameters are made outside of calls: t lists them",
    ),
];

const THEN: [(&str, &str); 13] = [
    ("[ ]", "previous and next iteration; the last one is live"),
    (
        "L or Esc",
        "back to lines     m  modules     c  categories     t  tensors",
    ),
    ("q Ctrl-C", "quit; the process runs on"),
    ("", ""),
    ("AT PEAK", "bytes at the device's peak in the iteration"),
    ("OWN", "of these, without submodules"),
    ("ACTIVATIONS", "activations saved for the backward pass"),
    ("WEIGHTS", "parameters and buffers; t shows their modules"),
    ("GRADIENTS", "of parameters"),
    ("INTERMED.", "intermediate gradients: those of activations"),
    ("OPTIMIZER", "optimizer state"),
    ("OTHER", "temporaries, workspaces and unknown"),
    (
        "inferred",
        "every category, by the rules on c, until t reads the tensors",
    ),
];

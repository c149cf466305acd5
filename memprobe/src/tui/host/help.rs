//! Help for the table of processes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::super::overlay::{draw_box, entry};
use super::super::theme::Theme;
use super::state::HostState;

/// Draws the help if it is open.
pub fn draw_help(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    if let Some(scroll) = state.help {
        draw_box(buffer, area, " Help ", &help(theme), scroll, theme);
    }
}

/// Returns the help text: keys, columns and terms.
fn help(theme: &Theme) -> Vec<Line<'static>> {
    let keys = [
        (
            theme.glyphs.arrows,
            "or j k, PgUp PgDn, Home End, wheel: move",
        ),
        (
            "Enter",
            "open the process: lines, modules, categories, tensors; Esc back",
        ),
        ("/", "filter by regular expression     Esc  clear it"),
        ("< > or F6", "sort by another column, or click on its head"),
        (
            "1 to 9",
            "PID USER RANK ALLOC RESERVED DRIVER PEAK TREND COMMAND",
        ),
        ("r", "sort the other way"),
        (
            "Space",
            "pause: the screen stands still, memprobe goes on counting",
        ),
        (
            "a",
            "all that have loaded CUDA, or only who may hold memory",
        ),
        ("q Ctrl-C", "quit; every process runs on unharmed"),
        ("", ""),
        (
            "? before",
            "PID: the process waits for something, such as torch",
        ),
        (
            "! before",
            "PID: it cannot be probed; the line beneath says why",
        ),
        ("x before", "PID: it has ended, and its row will go"),
        (
            "DEV",
            "cuda devices as the process numbers them; gpu0 as the driver",
        ),
        (
            "ALLOC",
            "bytes of live blocks of PyTorch's allocator, all devices",
        ),
        ("RESERVED", "bytes that the allocator has from the driver"),
        (
            "DRIVER",
            "all that the driver counts: allocator, context, libraries",
        ),
        ("PEAK", "the most that ALLOC was since memprobe came"),
        (
            "TREND 1m",
            "ALLOC over the last minute; sorts by what it has grown",
        ),
        (
            "TOP LINE",
            "the line that holds most, and its part of ALLOC",
        ),
        (
            "LOST",
            "events the kernel could not pass on; raise the buffer size",
        ),
        (
            "LEDGER OFF",
            "memprobe and an allocator disagreed without a loss: a bug",
        ),
    ];
    keys.iter()
        .map(|(key, text)| entry(key, text, theme))
        .collect()
}

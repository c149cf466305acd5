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
        ("r", "reverse the order"),
        ("Space", "pause the screen; memprobe goes on counting"),
        ("a", "all processes with CUDA, or only those with memory"),
        ("q Ctrl-C", "quit; the processes run on"),
        ("", ""),
        (
            "? before",
            "PID: the process waits for something, such as torch",
        ),
        (
            "! before",
            "PID: it cannot be probed; the line beneath says why",
        ),
        ("x before", "PID: it has ended; its row will disappear"),
        (
            "DEV",
            "cuda devices as the process numbers them; gpu0 as the driver",
        ),
        (
            "ALLOC",
            "bytes of live blocks of PyTorch's allocator, all devices",
        ),
        ("RESERVED", "bytes that the allocator got from the driver"),
        (
            "DRIVER",
            "bytes that the driver counts: allocator, context, libraries",
        ),
        ("PEAK", "largest ALLOC since memprobe started"),
        ("TREND 1m", "ALLOC over the last minute; sorts by growth"),
        (
            "TOP LINE",
            "the line with most bytes, and its share of ALLOC",
        ),
        (
            "LOST",
            "events that the kernel dropped; raise --buffer-size",
        ),
        (
            "LEDGER OFF",
            "memprobe and an allocator disagree without a loss: a bug",
        ),
    ];
    keys.iter()
        .map(|(key, text)| entry(key, text, theme))
        .collect()
}

//! Parts around the table of categories: their graph over time, and the latest iterations.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::plot::{PlotFrame, PlotScale, columns};
use super::super::table_screen::cell_text;
use super::super::theme::Theme;
use crate::attribution::tables::{
    Category, DeviceCategories, IterationRow, Portion, Portions, Source,
};
use crate::event::Bytes;
use crate::view::table::{self, Align, Column, OnScreen};
use crate::view::{duration, fit, iteration, iterations_by, span};

pub const fn letter(portion: Portion) -> &'static str {
    match portion {
        Portion::BeforeAttach => "B",
        Portion::Of(Category::Parameter) => "P",
        Portion::Of(Category::OptimizerState) => "O",
        Portion::Of(Category::Gradient) => "G",
        Portion::Of(Category::Activation) => "A",
        Portion::Of(Category::Input) => "I",
        Portion::Of(Category::KvCache) => "K",
        Portion::Of(Category::IntermediateGradient) => "g",
        Portion::Of(Category::Temporary) => "T",
        Portion::Of(Category::Workspace) => "W",
        Portion::Of(Category::Unknown) => "?",
        Portion::Unaccounted => "!",
    }
}

pub fn style(portion: Portion, theme: &Theme) -> Style {
    let place = Portion::ALL.iter().position(|one| *one == portion);
    place.map_or_else(Style::new, |at| theme.portion(at))
}

/// Draws each category as a letter that the table repeats, so that the graph is readable without colour.
pub fn draw_graph(buffer: &mut Buffer, area: Rect, device: &DeviceCategories, theme: &Theme) {
    let top = device.points.iter().map(total).max().unwrap_or(0);
    let label = Bytes(u64::try_from(top).unwrap_or(u64::MAX));
    let length = device.step.saturating_mul(device.points.len() as u64);
    let frame = PlotFrame {
        scale: PlotScale {
            bottom: Bytes(0),
            top: label,
        },
        ago: (length > 0).then(|| span(Duration::from_nanos(length))),
        legend: Vec::new(),
        ticks: Vec::new(),
    };
    let Some(plot) = frame.draw(buffer, area, theme) else {
        return;
    };
    for (x, point) in (plot.x..).zip(columns(&device.points, plot.width, highest)) {
        for row in 0..plot.height {
            if let Some(portion) = portion_at(&point, top, row, plot.height) {
                let y = plot.bottom() - 1 - row;
                buffer.set_string(x, y, letter(portion), style(portion, theme));
            }
        }
    }
}

fn highest(points: &[Portions]) -> Portions {
    let highest = points.iter().max_by_key(|point| total(point));
    highest.copied().unwrap_or_default()
}

/// Clamps negative bytes to 0: unaccounted memory can be negative.
fn held(bytes: i64) -> u128 {
    u128::from(u64::try_from(bytes).unwrap_or(0))
}

fn total(point: &Portions) -> u128 {
    point.iter().map(|bytes| held(*bytes)).sum()
}

/// Returns the portion that covers most of a cell; `None` if less than half is covered. Rows count from below.
fn portion_at(point: &Portions, top: u128, row: u16, rows: u16) -> Option<Portion> {
    // Integers only: heights are scaled by the number of rows.
    let (low, high) = (u128::from(row) * top, u128::from(row + 1) * top);
    let mut below = 0;
    let mut most: (u128, Option<Portion>) = (0, None);
    let mut covered = 0;
    for (portion, bytes) in Portion::ALL.into_iter().zip(point) {
        let above = below + held(*bytes) * u128::from(rows);
        let part = above.min(high).saturating_sub(below.max(low));
        covered += part;
        if part > most.0 {
            most = (part, Some(portion));
        }
        below = above;
    }
    most.1.filter(|_| covered * 2 >= top)
}

const ITERATION_COLUMNS: [Column<IterationRow>; 6] = table::columns![|row: IterationRow|
    label("ITERATION").screen(14, 0) => iteration(row.number, row.kind),
    figure("TOOK").screen(12, 0) => took(Duration::from_nanos(row.length)),
    figure("PEAK").short().screen(9, 0) => row.peak,
    figure("LIVE AT END").short().screen(12, 54) => row.end.allocated,
    figure("CACHED").short().screen(9, 64) => row.end.cached(),
    figure("ALLOCS").screen(9, 74) => row.allocs,
];

pub fn draw_iterations(buffer: &mut Buffer, area: Rect, device: &DeviceCategories, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let available = usize::from(area.width);
    let head = Rect { height: 1, ..area };
    buffer.set_style(head, theme.bar());
    let mut text = line(area.width, |column, _| column.head.to_owned());
    let by = format!("   by {}", iterations_by(device.source));
    if device.source != Source::Nothing && text.len() + by.len() < available {
        text.push_str(&by);
    }
    buffer.set_stringn(area.x, area.y, text, available, theme.bar());
    if device.iterations.is_empty() || device.source == Source::Nothing {
        let none = "  Nothing marks iterations: no step, zero_grad() or batch was seen.";
        if area.height > 1 {
            let text = fit(none, available, theme.glyphs.cut);
            buffer.set_stringn(area.x, area.y + 1, text, available, theme.faint());
        }
        return;
    }
    for (row, y) in device.iterations.iter().zip(area.y + 1..area.bottom()) {
        let text = line(area.width, |column, screen| {
            let wide = usize::from(screen.wide);
            cell_text(&(column.value)(row), screen.precision, wide, theme)
        });
        let text = fit(&text, available, theme.glyphs.cut);
        buffer.set_stringn(area.x, y, text, available, Style::new());
    }
}

/// Joins the texts of the columns that fit a width.
fn line(width: u16, text: impl Fn(&Column<IterationRow>, &OnScreen) -> String) -> String {
    let mut line = " ".to_owned();
    for column in &ITERATION_COLUMNS {
        if let Some(screen) = column.screen.filter(|screen| width >= screen.least) {
            let (wide, text) = (usize::from(screen.wide), text(column, &screen));
            line.push_str(&match column.align {
                Align::Right => format!(" {text:>wide$}"),
                Align::Left | Align::Trail => format!(" {text:<wide$}"),
            });
        }
    }
    line
}

/// Formats a duration; one below a second in milliseconds.
fn took(length: Duration) -> String {
    match length.as_secs() {
        0 => span(length),
        _ => duration(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(before: i64, parameters: i64, lost: i64) -> Portions {
        let mut point = Portions::default();
        (point[0], point[1], point[10]) = (before, parameters, lost);
        point
    }

    #[test]
    fn portions_are_stacked_by_their_bytes() {
        let point = point(50, 25, 0);
        let at = |row| portion_at(&point, 100, row, 4).map(letter);
        assert_eq!(
            [at(0), at(1), at(2), at(3)],
            [Some("B"), Some("B"), Some("P"), None]
        );
    }

    #[test]
    fn negative_portions_take_no_rows() {
        let point = point(100, 0, -50);
        assert_eq!(total(&point), 100);
        assert_eq!(portion_at(&point, 100, 3, 4).map(letter), Some("B"));
        assert_eq!(portion_at(&point, 0, 0, 4), None);
    }

    #[test]
    fn a_short_peak_is_never_left_out() {
        let mut points = vec![point(1, 0, 0); 1000];
        points[777] = point(1, 99, 0);
        let columns = columns(&points, 50, highest);
        assert_eq!(columns.len(), 50);
        assert_eq!(
            columns.iter().filter(|column| total(column) == 100).count(),
            1
        );
        assert!(self::columns(&[], 50, highest).is_empty());
    }

    #[test]
    fn no_two_portions_share_a_letter() {
        let letters: std::collections::HashSet<_> = Portion::ALL.map(letter).into();
        assert_eq!(letters.len(), Portion::ALL.len());
    }
}

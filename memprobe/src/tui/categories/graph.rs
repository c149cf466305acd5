//! Graph of memory over time, with categories stacked. Each category is drawn as a letter that the table
//! repeats, so that the graph is readable without colour.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::super::theme::{Ink, Theme};
use crate::attribution::tables::{Category, DeviceCategories, Portion, Portions};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::view::span;

/// Columns of the labels at the left.
const LABELS: u16 = 12;

pub fn letter(portion: Portion) -> &'static str {
    match portion {
        Portion::BeforeAttach => "B",
        Portion::Of(Category::Parameter) => "P",
        Portion::Of(Category::OptimizerState) => "O",
        Portion::Of(Category::Gradient) => "G",
        Portion::Of(Category::Activation) => "A",
        Portion::Of(Category::Input) => "I",
        Portion::Of(Category::IntermediateGradient) => "g",
        Portion::Of(Category::Temporary) => "T",
        Portion::Of(Category::Workspace) => "W",
        Portion::Of(Category::Unknown) => "?",
        Portion::Unaccounted => "!",
    }
}

/// Returns the style of a portion's letter.
pub fn style(portion: Portion, theme: &Theme) -> Style {
    let colour = match portion {
        Portion::BeforeAttach => Color::Gray,
        Portion::Of(Category::Parameter) => Color::Blue,
        Portion::Of(Category::OptimizerState) => Color::Magenta,
        Portion::Of(Category::Gradient) => Color::Yellow,
        Portion::Of(Category::Activation) => Color::Green,
        Portion::Of(Category::Input) => Color::Cyan,
        Portion::Of(Category::IntermediateGradient) => Color::LightYellow,
        Portion::Of(Category::Temporary) => Color::LightRed,
        Portion::Of(Category::Workspace) => Color::LightMagenta,
        Portion::Of(Category::Unknown) => Color::DarkGray,
        Portion::Unaccounted => Color::Red,
    };
    match theme.ink {
        Ink::Colour => theme.bar().fg(colour),
        Ink::Emphasis | Ink::Plain => Style::new(),
    }
}

/// Draws the graph and, in its last row, the time axis.
pub fn draw_graph(buffer: &mut Buffer, area: Rect, device: &DeviceCategories, theme: &Theme) {
    if area.height < 2 || area.width <= LABELS {
        return;
    }
    let plot = Rect {
        x: area.x + LABELS,
        width: area.width - LABELS,
        height: area.height - 1,
        ..area
    };
    let top = device.points.iter().map(total).max().unwrap_or(0);
    draw_labels(buffer, area, top, theme);
    let columns = columns(&device.points, usize::from(plot.width));
    for (x, point) in (plot.x..plot.right()).zip(columns) {
        for row in 0..plot.height {
            if let Some(portion) = portion_at(point, top, row, plot.height) {
                let y = plot.bottom() - 1 - row;
                buffer.set_string(x, y, letter(portion), style(portion, theme));
            }
        }
    }
    draw_axis(
        buffer,
        Rect {
            y: plot.bottom(),
            height: 1,
            ..plot
        },
        device,
        theme,
    );
}

/// Clamps negative bytes to 0: unaccounted memory can be negative.
fn held(bytes: i64) -> u128 {
    u128::from(u64::try_from(bytes).unwrap_or(0))
}

fn total(point: &Portions) -> u128 {
    point.iter().map(|bytes| held(*bytes)).sum()
}

/// Returns the highest point of each column. Fewer points than columns are stretched.
fn columns(points: &[Portions], width: usize) -> Vec<&Portions> {
    let column = |x: usize| {
        let from = x * points.len() / width;
        let to = ((x + 1) * points.len() / width).max(from + 1);
        points
            .get(from..to)?
            .iter()
            .max_by_key(|point| total(point))
    };
    (0..width).map_while(column).collect()
}

/// Returns the portion that covers most of a cell; `None` if less than half of the cell is covered. Rows
/// count from the bottom.
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

fn draw_labels(buffer: &mut Buffer, area: Rect, top: u128, theme: &Theme) {
    let plot = area.height - 1;
    let top = u64::try_from(top).unwrap_or(u64::MAX);
    for row in 0..plot {
        let text = match row {
            0 => human(Bytes(top)),
            _ if plot >= 4 && plot.is_multiple_of(2) && row == plot / 2 => human(Bytes(top / 2)),
            _ => String::new(),
        };
        let text = format!("{text:>11}{}", theme.glyphs.wall);
        buffer.set_string(area.x, area.y + row, text, theme.faint());
    }
}

fn draw_axis(buffer: &mut Buffer, axis: Rect, device: &DeviceCategories, theme: &Theme) {
    let glyphs = &theme.glyphs;
    let rule = glyphs.rule.repeat(usize::from(axis.width));
    buffer.set_string(axis.x, axis.y, rule, theme.faint());
    let zero = format!("0 {}", glyphs.wall);
    buffer.set_string(axis.x - 3, axis.y, zero, theme.faint());
    let length = device.step.saturating_mul(device.points.len() as u64);
    let ago = format!(" {} ago ", span(Duration::from_nanos(length)));
    let now = " now ";
    if ago.len() + now.len() + 6 <= usize::from(axis.width) {
        buffer.set_string(axis.x + 1, axis.y, &ago, theme.faint());
        let end = axis.right() - 1 - now.len() as u16;
        buffer.set_string(end, axis.y, now, theme.faint());
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
        let columns = columns(&points, 50);
        assert_eq!(columns.len(), 50);
        assert_eq!(
            columns.iter().filter(|column| total(column) == 100).count(),
            1
        );
        assert!(self::columns(&[], 50).is_empty());
    }

    #[test]
    fn no_two_portions_share_a_letter() {
        let letters: std::collections::HashSet<_> = Portion::ALL.map(letter).into();
        assert_eq!(letters.len(), Portion::ALL.len());
    }
}

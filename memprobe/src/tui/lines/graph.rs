//! Graph of the totals over time: allocated as a filled area, reserved as a dotted line above it. The shapes
//! differ, so that the graph is readable without colour.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::theme::Theme;
use crate::bytes::human;
use crate::event::{Bytes, Totals};
use crate::label::span;
use crate::model::snapshot::Timeline;

/// Columns of the labels at the left.
const LABELS: u16 = 12;

/// Draws the graph and, in its last row, the time axis.
pub fn draw_graph(buffer: &mut Buffer, area: Rect, timeline: &Timeline, theme: &Theme) {
    if area.height < 2 || area.width <= LABELS {
        return;
    }
    let plot = Rect {
        x: area.x + LABELS,
        width: area.width - LABELS,
        height: area.height - 1,
        ..area
    };
    let top = timeline
        .points
        .iter()
        .map(|point| point.allocated.max(point.reserved))
        .max();
    let top = top.unwrap_or_default();
    draw_labels(buffer, area, top, theme);
    let columns = columns(&timeline.points, usize::from(plot.width));
    for (x, totals) in (plot.x..plot.right()).zip(columns) {
        draw_column(buffer, x, plot, totals, top, theme);
    }
    let axis = Rect {
        y: plot.bottom(),
        height: 1,
        ..plot
    };
    draw_axis(buffer, axis, timeline, theme);
}

/// Returns the highest totals of each column. Fewer points than columns are stretched.
fn columns(points: &[Totals], width: usize) -> Vec<Totals> {
    if points.is_empty() {
        return Vec::new();
    }
    let column = |x: usize| {
        let from = x * points.len() / width;
        let to = ((x + 1) * points.len() / width).max(from + 1);
        let highest = points[from..to].iter().copied().reduce(Totals::higher);
        highest.unwrap_or_default()
    };
    (0..width).map(column).collect()
}

/// Scales bytes to eighths of a cell. A nonzero value is at least one eighth high.
fn eighths(bytes: Bytes, top: Bytes, rows: u16) -> usize {
    if top.0 == 0 {
        return 0;
    }
    let steps = u128::from(rows) * 8;
    let height = (u128::from(bytes.0) * steps + u128::from(top.0) / 2) / u128::from(top.0);
    let least = u128::from(bytes.0 > 0);
    height.clamp(least, steps) as usize
}

fn draw_column(buffer: &mut Buffer, x: u16, plot: Rect, totals: Totals, top: Bytes, theme: &Theme) {
    let filled = eighths(totals.allocated, top, plot.height);
    let reserved = eighths(totals.reserved, top, plot.height);
    for row in 0..plot.height {
        let y = plot.bottom() - 1 - row;
        let beneath = usize::from(row) * 8;
        let fill = filled.saturating_sub(beneath).min(8);
        let glyph = theme.glyphs.rising[fill];
        if glyph != " " {
            buffer.set_string(x, y, glyph, theme.allocated());
        } else if (beneath + 1..=beneath + 8).contains(&reserved) {
            let glyph = theme.glyphs.dotted[(reserved - beneath - 1) / 2];
            buffer.set_string(x, y, glyph, theme.reserved());
        }
    }
}

fn draw_labels(buffer: &mut Buffer, area: Rect, top: Bytes, theme: &Theme) {
    let plot = area.height - 1;
    let mut label = |row: u16, bytes: Bytes| {
        let text = format!("{:>11}{}", human(bytes), theme.glyphs.wall);
        buffer.set_string(area.x, area.y + row, text, theme.faint());
    };
    for row in 0..plot {
        match row {
            0 => label(0, top),
            _ if plot >= 4 && plot.is_multiple_of(2) && row == plot / 2 => {
                label(row, Bytes(top.0 / 2))
            }
            _ => {}
        }
    }
    for row in 1..plot {
        let wall = Rect {
            x: area.x + LABELS - 1,
            y: area.y + row,
            width: 1,
            height: 1,
        };
        buffer.set_string(wall.x, wall.y, theme.glyphs.wall, theme.faint());
    }
}

fn draw_axis(buffer: &mut Buffer, axis: Rect, timeline: &Timeline, theme: &Theme) {
    let glyphs = &theme.glyphs;
    let rule = glyphs.rule.repeat(usize::from(axis.width));
    buffer.set_string(axis.x, axis.y, rule, theme.faint());
    buffer.set_string(
        axis.x - 3,
        axis.y,
        format!("0 {}", glyphs.wall),
        theme.faint(),
    );
    let length = timeline.step.saturating_mul(timeline.points.len() as u64);
    let legend = Line::from(vec![
        Span::styled(
            format!(" {} allocated ", glyphs.rising[8]),
            theme.allocated(),
        ),
        Span::styled(
            format!(" {} reserved ", glyphs.dotted[2].repeat(2)),
            theme.reserved(),
        ),
    ]);
    let (ago, now) = (
        format!(" {} ago ", span(Duration::from_nanos(length))),
        " now ",
    );
    let texts = ago.len() + legend.width() + now.len() + 6;
    if texts <= usize::from(axis.width) && length > 0 {
        buffer.set_string(axis.x + 1, axis.y, &ago, theme.faint());
        buffer.set_string(
            axis.right() - 1 - now.len() as u16,
            axis.y,
            now,
            theme.faint(),
        );
    }
    let middle = axis.x + axis.width.saturating_sub(legend.width() as u16) / 2;
    buffer.set_line(middle, axis.y, &legend, axis.right().saturating_sub(middle));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(allocated: u64) -> Totals {
        Totals {
            allocated: Bytes(allocated),
            reserved: Bytes(allocated * 2),
        }
    }

    #[test]
    fn a_short_peak_is_never_averaged_away() {
        let mut points = vec![totals(1); 1000];
        points[777] = totals(100);
        let columns = columns(&points, 50);
        assert_eq!(columns.len(), 50);
        assert_eq!(
            columns.iter().map(|column| column.allocated.0).max(),
            Some(100)
        );
    }

    #[test]
    fn few_points_fill_the_width() {
        let columns = columns(&[totals(1), totals(2)], 10);
        assert_eq!(
            columns
                .iter()
                .filter(|column| column.allocated.0 == 1)
                .count(),
            5
        );
    }

    #[test]
    fn heights_lie_between_nothing_and_the_top() {
        assert_eq!(eighths(Bytes(0), Bytes(100), 4), 0);
        assert_eq!(eighths(Bytes(1), Bytes(u64::MAX), 4), 1);
        assert_eq!(eighths(Bytes(u64::MAX), Bytes(u64::MAX), 4), 32);
        assert_eq!(eighths(Bytes(5), Bytes(0), 4), 0);
    }
}

//! Graph of the totals over time: allocated as a filled area, reserved as a dotted line above it. The shapes
//! differ, so that the graph is readable without colour.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::plot::{columns, draw_frame};
use super::super::theme::Theme;
use crate::event::{Bytes, Totals};
use crate::ledger::snapshot::Timeline;

pub fn draw_graph(buffer: &mut Buffer, area: Rect, timeline: &Timeline, theme: &Theme) {
    let points = timeline.points.iter();
    let top = points
        .map(|point| point.allocated.max(point.reserved))
        .max();
    let top = top.unwrap_or_default();
    let length = timeline.step.saturating_mul(timeline.points.len() as u64);
    let allocated = format!(" {} allocated ", theme.glyphs.rising[8]);
    let reserved = format!(" {} reserved ", theme.glyphs.dotted[2].repeat(2));
    let legend = Line::from(vec![
        Span::styled(allocated, theme.allocated()),
        Span::styled(reserved, theme.reserved()),
    ]);
    let Some(plot) = draw_frame(buffer, area, top, length, &legend, theme) else {
        return;
    };
    for (x, totals) in (plot.x..).zip(columns(&timeline.points, plot.width, highest)) {
        draw_column(buffer, x, plot, totals, top, theme);
    }
}

fn highest(points: &[Totals]) -> Totals {
    let highest = points.iter().copied().reduce(Totals::higher);
    highest.unwrap_or_default()
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
        let columns = columns(&points, 50, highest);
        assert_eq!(columns.len(), 50);
        assert_eq!(
            columns.iter().map(|column| column.allocated.0).max(),
            Some(100)
        );
    }

    #[test]
    fn few_points_fill_the_width() {
        let points = [totals(1), totals(2)];
        let columns = columns(&points, 10, highest);
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

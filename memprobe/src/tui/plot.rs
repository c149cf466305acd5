//! Frame of a graph over time: labels at the left, an axis in the last row.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::theme::Theme;
use crate::event::Bytes;
use crate::event::bytes::{human, short};
use crate::view::width;

const LABELS: u16 = 12;

/// Ends of the vertical axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlotScale {
    pub bottom: Bytes,
    pub top: Bytes,
}

impl PlotScale {
    /// Returns the height of a value in eighths of a cell. A value above the bottom is at least one eighth high.
    pub fn eighths(self, bytes: Bytes, rows: u16) -> usize {
        let all = u128::from(self.top.0.saturating_sub(self.bottom.0));
        let value = u128::from(bytes.0.saturating_sub(self.bottom.0));
        if all == 0 {
            return 0;
        }
        let steps = u128::from(rows) * 8;
        let height = (value * steps + all / 2) / all;
        let least = u128::from(value > 0);
        height.clamp(least, steps) as usize
    }

    /// Labels a value. One that would read like the top is labelled by its distance to it.
    fn label(self, bytes: Bytes) -> String {
        if bytes == Bytes(0) {
            return "0 ".to_owned();
        }
        let text = human(bytes);
        if bytes != self.top && text == human(self.top) {
            return format!("-{}", short(Bytes(self.top.0 - bytes.0)));
        }
        text
    }

    fn middle(self) -> Bytes {
        Bytes(self.bottom.0 + self.top.0.saturating_sub(self.bottom.0) / 2)
    }
}

/// Frame around a graph.
pub struct PlotFrame {
    pub scale: PlotScale,
    /// Time at the left end; `None` without any.
    pub ago: Option<String>,
    /// Parts of the legend, the most important first: those that fit are drawn.
    pub legend: Vec<Line<'static>>,
    /// Columns with a tick on the axis.
    pub ticks: Vec<u16>,
}

impl PlotFrame {
    /// Returns the columns of a graph in this area.
    pub const fn width(area: Rect) -> u16 {
        area.width.saturating_sub(LABELS)
    }

    /// Draws the frame. Returns the area within; `None` without space.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) -> Option<Rect> {
        if area.height < 2 || area.width <= LABELS {
            return None;
        }
        let (wide, high) = (Self::width(area), area.height - 1);
        let plot = Rect::new(area.x + LABELS, area.y, wide, high);
        let wall = theme.glyphs.wall;
        for row in 0..=high {
            let text = match row {
                0 => self.scale.label(self.scale.top),
                _ if row == high => self.scale.label(self.scale.bottom),
                _ if high >= 4 && high.is_multiple_of(2) && row == high / 2 => {
                    self.scale.label(self.scale.middle())
                }
                _ => String::new(),
            };
            let text = format!("{text:>11}{wall}");
            buffer.set_string(area.x, area.y + row, text, theme.faint());
        }
        self.draw_axis(buffer, Rect::new(plot.x, plot.bottom(), wide, 1), theme);
        Some(plot)
    }

    fn draw_axis(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        let glyphs = &theme.glyphs;
        let rule = glyphs.rule.repeat(usize::from(area.width));
        buffer.set_string(area.x, area.y, rule, theme.faint());
        for x in self.ticks.iter().filter(|x| **x < area.width) {
            buffer.set_string(area.x + x, area.y, glyphs.tick, theme.faint());
        }
        let available = usize::from(area.width);
        let now = " now ";
        let ago = self.ago.as_ref().map(|ago| format!(" {ago} ago "));
        let ago = ago.unwrap_or_default();
        // Each end keeps a cell of the axis beside its text.
        let ends = if ago.is_empty() {
            0
        } else {
            ago.len() + now.len() + 6
        };
        let mut legend = Line::default();
        for part in &self.legend {
            if legend.width() + part.width() + ends <= available {
                let spans = part.spans.iter().cloned();
                legend
                    .spans
                    .extend(spans.map(|span| span.patch_style(part.style)));
            }
        }
        let shows_ends = ends > 0 && legend.width() + ends <= available;
        if shows_ends {
            buffer.set_string(area.x + 1, area.y, &ago, theme.faint());
            let end = area.right() - 1 - width(now) as u16;
            buffer.set_string(end, area.y, now, theme.faint());
        }
        let middle = area.x + area.width.saturating_sub(legend.width() as u16) / 2;
        // The left text may be longer than the right one.
        let least = area.x + if shows_ends { ago.len() as u16 + 2 } else { 0 };
        let most = area.right().saturating_sub(legend.width() as u16);
        let middle = middle.max(least).min(most.max(area.x));
        buffer.set_line(middle, area.y, &legend, area.right() - middle);
    }
}

/// Returns one value for each column: that of its points together. Fewer points than columns are stretched.
pub fn columns<'a, T, U>(points: &'a [T], width: u16, together: impl Fn(&'a [T]) -> U) -> Vec<U> {
    let width = usize::from(width);
    let column = |x: usize| {
        let from = x * points.len() / width;
        let to = ((x + 1) * points.len() / width).max(from + 1);
        points.get(from..to).map(&together)
    };
    (0..width).map_while(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_lie_between_the_ends() {
        let scale = |bottom, top| PlotScale {
            bottom: Bytes(bottom),
            top: Bytes(top),
        };
        assert_eq!(scale(0, 100).eighths(Bytes(0), 4), 0);
        assert_eq!(scale(0, u64::MAX).eighths(Bytes(1), 4), 1);
        assert_eq!(scale(0, u64::MAX).eighths(Bytes(u64::MAX), 4), 32);
        assert_eq!(scale(0, 0).eighths(Bytes(5), 4), 0);
        assert_eq!(scale(50, 100).eighths(Bytes(50), 4), 0);
        assert_eq!(scale(50, 100).eighths(Bytes(75), 4), 16);
        assert_eq!(scale(50, 100).eighths(Bytes(7), 4), 0);
        assert_eq!(scale(50, 100).eighths(Bytes(200), 4), 32);
    }

    #[test]
    fn labels_that_would_read_alike_are_distances() {
        let gib = 1 << 30;
        let scale = PlotScale {
            bottom: Bytes(12 * gib - 3000),
            top: Bytes(12 * gib),
        };
        assert_eq!(scale.label(scale.top), "12.00 GiB");
        assert_eq!(scale.label(scale.bottom), "-2.93 KiB");
        assert_eq!(scale.label(Bytes(0)), "0 ");
    }
}

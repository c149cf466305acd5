//! Graph of a device's totals over time, readable without colour: allocated bytes as a filled area, reserved bytes as a
//! dotted line above it, marks as letters and lines.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::plot::{PlotFrame, PlotScale, columns};
use super::super::theme::Theme;
use crate::event::bytes::short;
use crate::event::{Bytes, TimeNs};
use crate::ledger::snapshot::{
    DeviceTimeline, ReplayMoment, TimeWindow, Timeline, TimelineMarks, TotalsPoint,
};
use crate::view::span;

/// Least cells between marks of iterations on average; closer ones are left out.
const BETWEEN_MARKS: usize = 4;

/// Lower end of the vertical axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Axis {
    #[default]
    FromZero,
    /// From the lowest allocated bytes in the window.
    FromLowest,
}

/// Time that the right end of a graph of all time stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GraphEnd {
    #[default]
    Now,
    /// The end of a recording: the ends have no labels.
    Recording,
}

/// Part of the timeline that the graph shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphView {
    pub axis: Axis,
    pub window: TimeWindow,
    pub end: GraphEnd,
}

impl GraphView {
    /// Changes the axis. Returns a note about it.
    pub fn next_axis(&mut self) -> &'static str {
        let (axis, note) = match self.axis {
            Axis::FromZero => (Axis::FromLowest, "graph: from the lowest bytes (y: from 0)"),
            Axis::FromLowest => (Axis::FromZero, "graph: from 0 (y: from the lowest bytes)"),
        };
        self.axis = axis;
        note
    }

    /// Changes the window. Returns a note about it.
    pub fn next_window(&mut self) -> &'static str {
        let (window, note) = match self.window {
            TimeWindow::All => (TimeWindow::TenSeconds, "graph: the last 10 s (x: 1 min)"),
            TimeWindow::TenSeconds => (TimeWindow::Minute, "graph: the last 1 min (x: 10 min)"),
            TimeWindow::Minute => (TimeWindow::TenMinutes, "graph: the last 10 min (x: all)"),
            TimeWindow::TenMinutes => (TimeWindow::All, "graph: since attach (x: 10 s)"),
        };
        self.window = window;
        note
    }
}

/// Memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    pub bytes: Bytes,
    /// The device behind the ordinal is inferred.
    pub is_inferred: bool,
}

/// Place of the line of the capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CapacityLine {
    Unknown,
    Drawn(Bytes),
    /// Too far above the totals: a graph up to it would be flat.
    Above,
}

/// Chooses the scale, and the place of the capacity. The axis grows for its line, at most to twice the length.
fn scale(
    points: &[TotalsPoint],
    axis: Axis,
    capacity: Option<Capacity>,
) -> (PlotScale, CapacityLine) {
    let highest = |point: &TotalsPoint| point.high.allocated.max(point.high.reserved);
    let top = points.iter().map(highest).max().unwrap_or_default();
    let lowest = points.iter().map(|point| point.low.allocated).min();
    let bottom = match axis {
        Axis::FromZero => Bytes(0),
        Axis::FromLowest => lowest.unwrap_or_default(),
    };
    // Without a change there is no other axis.
    let bottom = if bottom == top { Bytes(0) } else { bottom };
    let scale = PlotScale { bottom, top };
    let Some(capacity) = capacity.map(|capacity| capacity.bytes) else {
        return (scale, CapacityLine::Unknown);
    };
    let above = capacity.0.saturating_sub(top.0);
    if top == Bytes(0) || above > top.0 - bottom.0 {
        return (scale, CapacityLine::Above);
    }
    let top = top.max(capacity);
    (PlotScale { bottom, top }, CapacityLine::Drawn(capacity))
}

/// Draws the graph of a window.
pub fn draw_graph(
    buffer: &mut Buffer,
    area: Rect,
    timeline: &DeviceTimeline,
    capacity: Option<Capacity>,
    view: GraphView,
    theme: &Theme,
) {
    let shown = timeline.window(view.window);
    let (scale, line) = scale(&shown.points, view.axis, capacity);
    let wide = PlotFrame::width(area);
    let drawn = columns_of(shown, view.window, wide);
    let marks = Marks::of(&drawn);
    let length = view.window.length().unwrap_or_else(|| shown.length());
    let has_ends = view.end == GraphEnd::Now || view.window != TimeWindow::All;
    let frame = PlotFrame {
        scale,
        ago: (length > 0 && has_ends).then(|| span(Duration::from_nanos(length))),
        legend: legend(&drawn, line, capacity, &marks, theme),
        ticks: ticks(&drawn, &marks),
    };
    let Some(plot) = frame.draw(buffer, area, theme) else {
        return;
    };
    let column = GraphColumn {
        plot,
        scale,
        line,
        theme,
    };
    for (x, point) in (plot.x..plot.right()).zip(&drawn) {
        let Some(point) = point else {
            column.draw_empty(buffer, x);
            continue;
        };
        column.draw(buffer, x, point, marks.has_iteration(&point.marks));
        column.draw_letter(buffer, x, &point.marks);
    }
}

/// Draws the cursor of a replay, and its mark B, on the graph of the whole recording.
pub fn draw_cursors(
    buffer: &mut Buffer,
    area: Rect,
    timeline: &DeviceTimeline,
    (view, moment): (GraphView, &ReplayMoment),
    theme: &Theme,
) {
    if view.window != TimeWindow::All || area.height < 2 {
        return;
    }
    let mark = moment.mark.as_ref().map(|mark| (mark.time, "B"));
    let cursors = mark.into_iter().chain([(moment.time, "A")]);
    for (time, letter) in cursors {
        let Some(x) = column_at(area, &timeline.all, time) else {
            continue;
        };
        for y in area.y..area.bottom() - 1 {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                cell.set_symbol(theme.glyphs.wall);
                cell.set_style(theme.strong());
            }
        }
        buffer.set_string(x, area.bottom() - 1, letter, theme.strong());
    }
}

/// Returns the column of a time in the graph of a timeline; `None` outside.
fn column_at(area: Rect, timeline: &Timeline, time: TimeNs) -> Option<u16> {
    let wide = u64::from(PlotFrame::width(area));
    let points = timeline.points.len() as u64;
    let point = time.0.saturating_sub(timeline.start.0) / timeline.step.max(1);
    let column = (point.min(points.checked_sub(1)?) * wide).div_ceil(points);
    let left = area.right() - PlotFrame::width(area);
    let column = u16::try_from(column.min(wide.checked_sub(1)?)).ok()?;
    Some(left + column)
}

/// Returns the time at a column of the graph; `None` outside.
pub fn time_at(area: Rect, timeline: &DeviceTimeline, view: GraphView, x: u16) -> Option<TimeNs> {
    let wide = PlotFrame::width(area);
    let column = u64::from(x.checked_sub(area.right() - wide)?);
    let shown = timeline.window(view.window);
    let length = view.window.length().unwrap_or_else(|| shown.length());
    let end = shown.start.0.saturating_add(shown.length());
    let start = end.saturating_sub(length);
    let passed = u128::from(length) * u128::from(2 * column + 1) / u128::from(2 * wide.max(1));
    Some(TimeNs(start.saturating_add(u64::try_from(passed).ok()?)))
}

/// Returns a point for each column, `None` before the first. A window of a fixed length ends at the right; all time is
/// stretched.
fn columns_of(timeline: &Timeline, window: TimeWindow, wide: u16) -> Vec<Option<TotalsPoint>> {
    let steps = window.length().map(|length| length / timeline.step.max(1));
    let steps = steps.map_or(0, |steps| usize::try_from(steps).unwrap_or(0));
    let missing = steps.saturating_sub(timeline.points.len());
    let absent = std::iter::repeat_n(None, missing);
    let points = timeline.points.iter().copied().map(Some);
    let points: Vec<Option<TotalsPoint>> = absent.chain(points).collect();
    columns(&points, wide, |points| {
        let points = points.iter().flatten().copied();
        points.reduce(TotalsPoint::with)
    })
}

/// Number of marks of one kind.
type MarkNumber = fn(&TimelineMarks) -> u32;

/// Kinds of marks that are drawn.
struct Marks {
    iterations: Option<MarkNumber>,
    /// Name of the marks of iterations.
    name: &'static str,
    has_ooms: bool,
    has_readings: bool,
}

impl Marks {
    fn of(drawn: &[Option<TotalsPoint>]) -> Self {
        let marks: Vec<&TimelineMarks> = drawn.iter().flatten().map(|point| &point.marks).collect();
        let sum = |number: MarkNumber| -> usize {
            marks.iter().map(|marks| number(marks) as usize).sum()
        };
        let kinds: [(MarkNumber, &'static str); 3] = [
            (|marks| marks.steps, "step"),
            (|marks| marks.zero_grads, "zero_grad"),
            (|marks| marks.batches, "batch"),
        ];
        let mut seen = kinds.into_iter().filter(|(number, _)| sum(*number) > 0);
        // Marks that are too close together would only hide the graph.
        let is_clear = |number| sum(number) * BETWEEN_MARKS <= marks.len();
        let iterations = seen.next().filter(|(number, _)| is_clear(*number));
        Self {
            iterations: iterations.map(|(number, _)| number),
            name: iterations.map_or("", |(_, name)| name),
            has_ooms: sum(|marks| marks.ooms) > 0,
            has_readings: sum(|marks| marks.readings) > 0,
        }
    }

    fn has_iteration(&self, marks: &TimelineMarks) -> bool {
        self.iterations.is_some_and(|number| number(marks) > 0)
    }
}

/// Returns the columns of the axis with a mark of an iteration.
fn ticks(drawn: &[Option<TotalsPoint>], marks: &Marks) -> Vec<u16> {
    let columns = (0_u16..).zip(drawn);
    let marked = columns.filter_map(|(x, point)| Some((x, point.as_ref()?)));
    let marked = marked.filter(|(_, point)| marks.has_iteration(&point.marks));
    marked.map(|(x, _)| x).collect()
}

/// Returns the parts of the legend, the most important first.
fn legend(
    drawn: &[Option<TotalsPoint>],
    line: CapacityLine,
    capacity: Option<Capacity>,
    marks: &Marks,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let glyphs = &theme.glyphs;
    let swings = |point: &TotalsPoint| point.low.allocated != point.high.allocated;
    let area = match drawn.iter().flatten().any(swings) {
        true => format!(
            " {}{} allocated (low-high) ",
            glyphs.rising[8], glyphs.swing
        ),
        false => format!(" {} allocated ", glyphs.rising[8]),
    };
    let dotted = glyphs.dotted[2].repeat(2);
    let mut parts = vec![
        Line::styled(area, theme.allocated()),
        Line::styled(format!(" {dotted} reserved "), theme.reserved()),
    ];
    if marks.has_ooms {
        let mark = Span::styled(" ! ", theme.bad());
        parts.push(Line::from(vec![mark, Span::raw(" out of memory ")]));
    }
    if let Some(Capacity { bytes, is_inferred }) = capacity {
        let doubt = if is_inferred { "?" } else { "" };
        let text = match line {
            CapacityLine::Above => format!(" GPU{doubt} {} (above) ", short(bytes)),
            _ => format!(" {} GPU{doubt} {} ", glyphs.level.repeat(2), short(bytes)),
        };
        parts.push(Line::styled(text, theme.capacity()));
    }
    if marks.iterations.is_some() {
        let text = format!(" {} {} ", glyphs.moment, marks.name);
        parts.push(Line::styled(text, theme.faint()));
    }
    if marks.has_readings {
        let mark = Span::styled(" t ", theme.still());
        parts.push(Line::from(vec![mark, Span::raw(" tensors read ")]));
    }
    parts
}

/// Columns of one graph.
struct GraphColumn<'a> {
    plot: Rect,
    scale: PlotScale,
    line: CapacityLine,
    theme: &'a Theme,
}

impl GraphColumn<'_> {
    /// Heights in eighths of a cell.
    fn eighths(&self, bytes: Bytes) -> usize {
        self.scale.eighths(bytes, self.plot.height)
    }

    /// Row from below in which the line of the capacity lies.
    fn line_row(&self) -> Option<u16> {
        let CapacityLine::Drawn(bytes) = self.line else {
            return None;
        };
        let eighths = self.eighths(bytes).checked_sub(1)?;
        u16::try_from(eighths / 8).ok()
    }

    fn draw(&self, buffer: &mut Buffer, x: u16, point: &TotalsPoint, is_marked: bool) {
        let (low, high) = (point.low.allocated, point.high.allocated);
        let (low, high) = (self.eighths(low), self.eighths(high));
        let reserved = self.eighths(point.high.reserved);
        let (glyphs, line) = (&self.theme.glyphs, self.line_row());
        for row in 0..self.plot.height {
            let beneath = usize::from(row) * 8;
            let fill = high.saturating_sub(beneath).min(8);
            let area = match fill {
                // A cell that is filled for a part of the time.
                8 if low < beneath + 4 => glyphs.swing,
                fill => glyphs.rising[fill],
            };
            let (glyph, style) = if area != " " {
                (area, self.theme.allocated())
            } else if line == Some(row) {
                (glyphs.level, self.theme.capacity())
            } else if (beneath + 1..=beneath + 8).contains(&reserved) {
                let glyph = glyphs.dotted[(reserved - beneath - 1) / 2];
                (glyph, self.theme.reserved())
            } else if is_marked {
                (glyphs.moment, self.theme.faint())
            } else {
                continue;
            };
            self.set(buffer, x, row, glyph, style);
        }
    }

    /// Draws a column of a time before attach.
    fn draw_empty(&self, buffer: &mut Buffer, x: u16) {
        if let Some(row) = self.line_row() {
            let style = self.theme.capacity();
            self.set(buffer, x, row, self.theme.glyphs.level, style);
        }
    }

    /// Draws the letter of a rare mark in the top row.
    fn draw_letter(&self, buffer: &mut Buffer, x: u16, marks: &TimelineMarks) {
        let top = self.plot.height - 1;
        if marks.ooms > 0 {
            self.set(buffer, x, top, "!", self.theme.bad());
        } else if marks.readings > 0 {
            self.set(buffer, x, top, "t", self.theme.still());
        }
    }

    fn set(&self, buffer: &mut Buffer, x: u16, row: u16, glyph: &str, style: Style) {
        buffer.set_string(x, self.plot.bottom() - 1 - row, glyph, style);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::{COLOUR, blank};
    use super::*;
    use crate::event::Totals;

    const GIB: u64 = 1 << 30;

    fn totals(allocated: u64) -> Totals {
        Totals {
            allocated: Bytes(allocated),
            reserved: Bytes(allocated),
        }
    }

    fn steady(allocated: u64, steps: usize) -> Timeline {
        Timeline {
            step: 25_000_000,
            points: vec![TotalsPoint::at(totals(allocated)); steps],
            ..Timeline::default()
        }
    }

    fn timeline(points: Vec<TotalsPoint>) -> DeviceTimeline {
        let all = Timeline {
            points,
            ..steady(0, 0)
        };
        DeviceTimeline {
            recent: [all.clone(), all.clone(), all.clone()],
            all,
        }
    }

    fn drawn(timeline: &DeviceTimeline, capacity: Option<u64>, view: GraphView) -> Vec<String> {
        let mut buffer = blank((120, 6));
        let capacity = capacity.map(|bytes| Capacity {
            bytes: Bytes(bytes),
            is_inferred: false,
        });
        let area = buffer.area;
        draw_graph(&mut buffer, area, timeline, capacity, view, &COLOUR);
        let rows = buffer.content().chunks(120);
        let row =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect();
        rows.map(row).collect()
    }

    const LOWEST: GraphView = GraphView {
        axis: Axis::FromLowest,
        window: TimeWindow::All,
        end: GraphEnd::Now,
    };

    #[test]
    fn a_column_of_the_graph_and_its_time_lead_to_each_other() {
        let area = Rect::new(3, 2, 92, 6);
        for steps in [1, 7, 80, 1200] {
            let timeline = timeline(vec![TotalsPoint::default(); steps]);
            let left = area.right() - PlotFrame::width(area);
            assert_eq!(
                time_at(area, &timeline, GraphView::default(), left - 1),
                None
            );
            for x in left..area.right() {
                let time = time_at(area, &timeline, GraphView::default(), x).unwrap();
                let column = column_at(area, &timeline.all, time).unwrap();
                let wide = 80_usize.div_ceil(steps) as u16;
                assert!(
                    x.abs_diff(column) <= wide,
                    "{steps} steps: {x} and {column}"
                );
            }
        }
    }

    #[test]
    fn a_short_peak_is_never_averaged_away() {
        let mut all = steady(1, 1000);
        all.points[777] = TotalsPoint::at(totals(100));
        let columns = columns_of(&all, TimeWindow::All, 50);
        let highest = columns.iter().flatten().map(|point| point.high.allocated.0);
        assert_eq!((columns.len(), highest.max()), (50, Some(100)));
    }

    #[test]
    fn few_points_fill_the_width_and_a_window_that_is_not_full_ends_at_the_right() {
        let all = steady(1, 2);
        let count = |window| columns_of(&all, window, 10).iter().flatten().count();
        assert_eq!(count(TimeWindow::All), 10);
        let columns = columns_of(&steady(1, 100), TimeWindow::TenSeconds, 40);
        assert_eq!(columns.iter().flatten().count(), 10);
        assert!(columns[29].is_none() && columns[30].is_some());
    }

    #[test]
    fn a_change_of_one_percent_is_seen_from_the_lowest_bytes() {
        let mut points = steady(12 * GIB, 108).points;
        points[54..].fill(TotalsPoint::at(totals(12 * GIB - 100 * (1 << 20))));
        let timeline = timeline(points);
        let from_zero = drawn(&timeline, None, GraphView::default());
        assert!(from_zero[3].contains(&"█".repeat(108)), "{from_zero:?}");
        let from_lowest = drawn(&timeline, None, LOWEST);
        assert!(from_lowest[0].contains("█"), "{from_lowest:?}");
        assert!(!from_lowest[3].contains(&"█".repeat(60)), "{from_lowest:?}");
        assert!(from_lowest[5].contains("11.90 GiB"), "{from_lowest:?}");
    }

    #[test]
    fn equal_bytes_are_drawn_from_zero() {
        let timeline = timeline(steady(5 * GIB, 10).points);
        let rows = drawn(&timeline, None, LOWEST);
        assert!(rows[5].trim_start().starts_with("0 "), "{rows:?}");
        assert!(rows[0].contains('█'), "{rows:?}");
    }

    #[test]
    fn what_swings_within_a_column_is_drawn_lighter() {
        let point = TotalsPoint {
            low: totals(GIB),
            ..TotalsPoint::at(totals(2 * GIB))
        };
        let rows = drawn(&timeline(vec![point; 10]), None, GraphView::default());
        assert!(
            rows[0].contains("▒▒▒") && rows[4].contains("███"),
            "{rows:?}"
        );
        assert!(rows[5].contains("low-high"), "{rows:?}");
    }

    #[test]
    fn the_capacity_is_a_line_unless_it_is_far_above() {
        let near = timeline(steady(10 * GIB, 10).points);
        let rows = drawn(&near, Some(16 * GIB), GraphView::default());
        assert!(rows[0].starts_with("  16.00 GiB"), "{rows:?}");
        assert!(rows[0].contains("╌╌╌╌"), "{rows:?}");
        assert!(rows[5].contains("GPU 16.0 GiB "), "{rows:?}");
        let rows = drawn(&near, Some(80 * GIB), GraphView::default());
        assert!(!rows[..5].concat().contains('╌'), "{rows:?}");
        assert!(rows[5].contains("GPU 80.0 GiB (above)"), "{rows:?}");
        assert!(!drawn(&near, None, GraphView::default())[5].contains("GPU"));
    }

    #[test]
    fn marks_of_iterations_ooms_and_readings_are_drawn() {
        let mut points = steady(GIB, 108).points;
        points[100].high = totals(2 * GIB);
        for at in [10, 30, 50] {
            points[at].marks.steps = 1;
            // Steps come first.
            points[at + 1].marks.batches = 1;
        }
        points[60].marks.ooms = 1;
        points[70].marks.readings = 1;
        let rows = drawn(&timeline(points), None, GraphView::default());
        let at = |row: usize, column: usize| rows[row].chars().nth(12 + column);
        assert_eq!([at(1, 10), at(1, 11)], [Some('┊'), Some(' ')], "{rows:?}");
        assert_eq!([at(0, 60), at(0, 70)], [Some('!'), Some('t')], "{rows:?}");
        for text in ["┊ step", "! ", "out of memory", "tensors read"] {
            assert!(rows[5].contains(text), "{text}: {rows:?}");
        }
    }

    #[test]
    fn marks_that_are_close_together_are_left_out() {
        let mut points = steady(GIB, 108).points;
        points.iter_mut().for_each(|point| point.marks.steps = 1);
        points[100].high = totals(2 * GIB);
        let rows = drawn(&timeline(points), None, GraphView::default());
        assert!(!rows.concat().contains('┊'), "{rows:?}");
    }

    #[test]
    fn keys_go_through_all_views_and_back() {
        let mut view = GraphView::default();
        let mut notes = std::collections::HashSet::new();
        for _ in 0..4 {
            notes.insert(view.next_window());
        }
        notes.extend([view.next_axis(), view.next_axis()]);
        assert_eq!((view, notes.len()), (GraphView::default(), 6));
    }
}

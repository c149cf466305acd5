//! Screen of lines: live memory by line of Python, with the callers of each.

mod baseline;
mod callers;
mod graph;
mod panels;
mod rows;
#[cfg(test)]
mod screens;
mod stacks;

use std::cell::RefCell;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use ratatui::text::Line;

use super::bars::Tab;
use super::context::ProcessContext;
use super::input::InputEvent;
use super::replay;
use super::table_screen::{
    Content, Fold, Needs, Note, Query, Reaction, RowOf, SIDE_BY_SIDE, ScreenContext, ScreenLayout,
    ScreenParts, ScreenRequest, SourcePlace, TableOf, TableScreen, TableState,
};
use super::theme::Theme;
use super::{Command, SourceText};
use crate::event::Frame;
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Site, Snapshot, TargetState};
use crate::view::table::Column;
use crate::view::{
    CHANGE, FileNames, GROWTH, GROWTH_PER_ITERATION, RATE, baseline_meaning, baseline_owner, clean,
    fit_end, line_columns, whole_frame, width,
};

pub use graph::Capacity;
use graph::{GraphEnd, GraphView};
use rows::{BaselineObjects, LineData, LineKey, LineSubject};

/// Minimum height for both the graph and source text beneath the table.
const MIN_HEIGHT_FOR_BOTH: u16 = 32;

const COLUMNS: [Column<LineData>; 22] = line_columns();

/// Returns the place of the column with a heading.
#[cfg(test)]
fn column(head: &str) -> usize {
    let place = COLUMNS.iter().position(|column| column.head == head);
    place.expect("a column with this heading")
}

pub struct LineList {
    sources: RefCell<Box<dyn SourceText + Send>>,
    source: bool,
    grouping: Grouping,
    graph: GraphView,
    /// `None` before any device was used.
    shown: Option<LineTable>,
}

impl TableScreen<LineList> {
    /// Returns the time at a place in the graph of a replay, in nanoseconds since its begin.
    pub(in crate::tui) fn time_at(&self, context: &ProcessContext, at: Position) -> Option<u64> {
        let moment = replay::moment(&context.feed.shown)?;
        let area = self.layout(context)?.graph;
        let is_free = self.state.overlay.is_none() && area.contains(at);
        let timeline = &context.device().filter(|_| is_free)?.timeline;
        let time = graph::time_at(area, timeline, self.content.graph, at.x)?;
        Some(time.0.saturating_sub(moment.start.0))
    }
}

/// Lines of one device of a snapshot.
struct LineTable {
    snapshot: Arc<Snapshot>,
    /// Index among the devices of the snapshot.
    device: usize,
}

impl LineTable {
    fn device(&self) -> &DeviceSnapshot {
        &self.snapshot.devices[self.device]
    }

    /// Returns the same device at the marked moment of a replay; `None` without a mark.
    fn marked(&self) -> Option<Option<&DeviceSnapshot>> {
        let mark = replay::moment(&self.snapshot)?.mark.as_ref()?;
        let mut devices = mark.snapshot.devices.iter();
        Some(devices.find(|device| device.index == self.device().index))
    }
}

impl LineList {
    pub fn new(sources: Box<dyn SourceText + Send>) -> Self {
        Self {
            sources: RefCell::new(sources),
            source: false,
            grouping: Grouping::default(),
            graph: GraphView::default(),
            shown: None,
        }
    }

    /// Opens a line in the user's editor. Returns the reason if it cannot be opened.
    pub fn edit(&self, place: &SourcePlace) -> Result<(), String> {
        self.sources.borrow_mut().edit(&place.file, place.line)
    }

    fn regroup(&mut self, context: &ProcessContext, state: &mut TableState<LineKey>) -> Reaction {
        if context.feed.is_paused() {
            return Reaction::Note("paused: press Space to continue, then i".into());
        }
        self.grouping = match self.grouping {
            Grouping::User => Grouping::Innermost,
            Grouping::Innermost => Grouping::User,
        };
        if context.feed.shown.health.state == TargetState::Exited {
            state.note = Some("regrouping the last state".into());
        }
        Reaction::Request(ScreenRequest::Send(Command::SetGrouping(self.grouping)))
    }

    fn source_line(&self, data: &LineData) -> Option<String> {
        self.source_of(data.subject.frame()?)
    }

    fn source_of(&self, frame: &Frame) -> Option<String> {
        let text = self.sources.borrow_mut().line(&frame.file, frame.line)?;
        Some(clean(text.trim()).trim().to_owned())
    }
}

static PARTS: ScreenParts<LineData> = ScreenParts {
    tab: Some(Tab::Lines),
    columns: &COLUMNS,
    searched: "path, line and function",
    keys: &[
        ("Enter", "open", 2),
        ("s", "source", 3),
        ("x y", "graph", 7),
        ("i", "group", 8),
    ],
    help: "\
Enter       open the row, or close it; so does a click on it
Right Left  open; close or go up the tree    *  open all beneath
s           source text around the selected line
S           all stacks of the row, each frame with its source text
i           frame that names a line: your own code, or the innermost
x           graph of the last 10 s, 1 min, 10 min, or since attach
y           graph from the lowest bytes in it, or from 0
z           reset: PEAK and GROWTH of lines count from now on
",
    terms: "\
LIVE        live bytes of the line; PEAK its largest value
BLOCKS      live blocks; ALLOC/s recent allocations a second
SHARE       share of all allocated bytes; the column adds up to 100%
GROWTH/it   bytes an iteration by which the lowest live bytes rise, so
            without what it frees; an arrow behind it: steadily. An
            iteration is a step of the first optimizer, without any a
            zero_grad() or batch; GROWTH/min: a minute, without iterations
graph       dark: allocated all the time of a column, light: for a part of
            it; dotted: reserved; dashed: the memory of the GPU, unless it
            is far above; marks: steps of the optimizer (without any
            zero_grad or batches), ! out of memory, t tensors read
cached      reserved by PyTorch's allocator but not allocated
before      attach: live at attach, so without a line
unaccounted allocator's total less known blocks; 0 unless events are lost
LOST        events that the kernel dropped; raise --buffer-size
LEDGER OFF  memprobe and the allocator disagree without a loss: a bug
SLOW        probe that is single-stepped: ten times the cost
",
};

impl Content for LineList {
    type Key = LineKey;
    type Data = LineData;
    type Context = ProcessContext;

    /// Peaks do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "PEAK";
    const NOTHING_BENEATH: &'static str = "nothing beneath: no other frame is known here";

    fn parts(&self) -> &'static ScreenParts<LineData> {
        &PARTS
    }

    fn shows(&self, column: &Column<LineData>) -> bool {
        let shown = self.shown.as_ref();
        match column.head {
            CHANGE => shown.and_then(LineTable::marked).is_some(),
            // A moment of a recording has no rates.
            RATE | GROWTH => shown.is_none_or(|it| replay::moment(&it.snapshot).is_none()),
            _ => true,
        }
    }

    fn head(&self, column: &Column<LineData>) -> &'static str {
        let device = self.shown.as_ref().map(LineTable::device);
        let iterations = device.and_then(|device| device.iterations_per_minute);
        match column.head {
            GROWTH if iterations.is_some() => GROWTH_PER_ITERATION,
            head => head,
        }
    }

    fn hint(&self) -> Option<String> {
        let grouping = match self.grouping {
            Grouping::User => "your code (i) ",
            Grouping::Innermost => "innermost (i) ",
        };
        Some(grouping.to_owned())
    }

    fn build(&mut self, query: &mut Query<LineKey>, context: &ProcessContext) -> TableOf<Self> {
        self.shown = context.device().and_then(|shown| {
            let snapshot = &context.feed.shown;
            let mut devices = snapshot.devices.iter();
            let device = devices.position(|device| device.index == shown.index)?;
            Some(LineTable {
                snapshot: Arc::clone(snapshot),
                device,
            })
        });
        let Some(device) = context.device() else {
            return TableOf::<Self>::default();
        };
        let frames = device.lines.iter().filter_map(|line| line.site.frame());
        let names = FileNames::of(frames.map(|frame| &frame.file));
        rows::table(device, self, &names, query)
    }

    fn keys_beneath(&self, row: &RowOf<Self>, context: &ProcessContext) -> Vec<LineKey> {
        let site = match &row.key {
            LineKey::Site(site) | LineKey::Branch(site, ..) | LineKey::Frame(site, ..) => site,
            LineKey::BeforeAttach => {
                let device = context.device();
                return device
                    .map_or_else(Vec::new, |device| baseline::keys(&device.before_attach));
            }
            _ => return Vec::new(),
        };
        let lines = context.device().map_or(&[][..], |device| &device.lines);
        let line = lines.iter().find(|line| line.site == *site);
        let keys = line.map(rows::keys_beneath).unwrap_or_default();
        keys.into_iter().collect()
    }

    fn handle(
        &mut self,
        event: InputEvent,
        state: &mut TableState<LineKey>,
        context: &ProcessContext,
    ) -> Reaction {
        match event {
            InputEvent::Regroup => return self.regroup(context, state),
            InputEvent::GraphWindow => state.note = Some(self.graph.next_window().into()),
            InputEvent::GraphAxis => state.note = Some(self.graph.next_axis().into()),
            InputEvent::Source => self.source = !self.source,
            InputEvent::Stacks => return Reaction::Detail,
            InputEvent::ResetPeaks if context.feed.shown.health.state == TargetState::Exited => {
                return Reaction::Note("the process has ended: its peaks stay".into());
            }
            InputEvent::ResetPeaks => {
                state.note = Some("PEAK and GROWTH count from now on".into());
                return Reaction::Request(ScreenRequest::Send(Command::ResetPeaks));
            }
            InputEvent::Back if self.source => self.source = false,
            _ => return Reaction::Ignored,
        }
        Reaction::Done
    }

    fn needs(&self, width: u16, height: u16, context: &ProcessContext) -> Needs {
        // Source text beneath the table takes the graph's place on a screen of usual height.
        let crowded = self.source && width < SIDE_BY_SIDE && height < MIN_HEIGHT_FOR_BOTH;
        Needs {
            totals: match height {
                14.. => 2,
                8.. => 1,
                _ => 0,
            },
            graph: match height {
                19.. if !crowded => height / 5 + 1,
                _ => 0,
            },
            source: self.source,
            ..context.needs(height)
        }
    }

    fn draw_around(
        screen: &TableScreen<Self>,
        buffer: &mut Buffer,
        layout: &ScreenLayout,
        context: &ProcessContext,
        theme: &Theme,
    ) {
        if let Some(device) = context.device() {
            let outside = context.feed.shown.cuda.live();
            let losses = &context.feed.shown.health.losses;
            panels::draw_totals(buffer, layout.totals, (device, losses), outside, theme);
            let moment = replay::moment(&context.feed.shown);
            let timeline = &device.timeline;
            let view = GraphView {
                end: match moment {
                    Some(_) => GraphEnd::Recording,
                    None => GraphEnd::Now,
                },
                ..screen.content.graph
            };
            graph::draw_graph(
                buffer,
                layout.graph,
                timeline,
                context.capacity(),
                view,
                theme,
            );
            if let Some(moment) = moment {
                graph::draw_cursors(buffer, layout.graph, timeline, (view, moment), theme);
            }
        }
        let frame = screen.selected().and_then(|row| row.data.subject.frame());
        let sources = screen.content.sources.borrow_mut();
        panels::draw_source(buffer, layout.source, frame, sources, theme);
    }

    fn nothing(screen: &TableScreen<Self>, context: &ProcessContext) -> Option<[Note; 2]> {
        let health = &context.feed.shown.health;
        let (first, second) = match &health.state {
            _ if !screen.table.rows.is_empty() => return None,
            _ if screen.table.all > 0 => return screen.no_match("line", "lines"),
            TargetState::Waiting(_) | TargetState::Running if health.stopped.is_some() => {
                let reason = clean(health.stopped.as_deref().unwrap_or_default());
                return Some([reason.into(), "".into()]);
            }
            TargetState::Waiting(event) => {
                let first = format!("Waiting for {}", clean(event));
                let second = "memprobe continues as soon as that happens.";
                return Some([first.into(), second.into()]);
            }
            _ if context.device().is_some() => ("Nothing is allocated on this device.", ""),
            TargetState::Exited => ("The target has ended.", "memprobe saw no GPU memory of it."),
            TargetState::Replay(_) => (
                "No GPU memory was allocated up to this moment.",
                "Right goes on to later moments; End goes to the last one.",
            ),
            TargetState::Recording => (
                "This recording has no GPU memory.",
                "Was it taken while the target trained?",
            ),
            TargetState::Running => {
                let first = "No GPU memory was allocated since memprobe attached.";
                let second = match &health.unread_at_attach {
                    Some(reason) => format!("Memory from before is unknown: {}", clean(reason)),
                    None => "The first allocation will appear here.".to_owned(),
                };
                return Some([first.into(), second.into()]);
            }
        };
        Some([first.into(), second.into()])
    }

    fn place(&self, row: &RowOf<Self>) -> Option<SourcePlace> {
        SourcePlace::of(row.data.subject.frame()?)
    }

    fn full_detail(&self, row: &RowOf<Self>, theme: &Theme) -> (&'static str, Vec<Line<'static>>) {
        (
            " Stacks, innermost frame first ",
            stacks::lines(self, row, theme),
        )
    }

    fn aside(&self, row: &RowOf<Self>) -> Option<String> {
        let shows = row.data.shows_source(row.fold);
        shows.then(|| self.source_line(&row.data)).flatten()
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let device = context.device()?;
        Some((device.totals.allocated.0.into(), "allocated"))
    }

    fn detail(&self, row: &RowOf<Self>, wide: usize, cut: &str) -> Vec<String> {
        let subject = &row.data.subject;
        let text = match (subject, subject.frame()) {
            (_, Some(frame)) => {
                let kind = match subject {
                    LineSubject::Site(Site::Backward(_) | Site::Node { .. }) => "backward of ",
                    _ => "",
                };
                let place = format!("{kind}{}", whole_frame(frame));
                let source = self.source_line(&row.data).unwrap_or_default();
                // The path is cut in favour of the source text, but keeps half of the width.
                let least = (wide / 2).max(wide.saturating_sub(width(&source) + 2));
                let place = fit_end(&place, least, cut);
                format!("{place}  {source}")
            }
            (LineSubject::BeforeAttach(_), _) if row.fold == Fold::Closed => {
                "live when memprobe attached: Enter opens what the process's objects say of it"
                    .to_owned()
            }
            (LineSubject::BeforeAttach(_), _) if row.fold == Fold::Open => {
                "live when memprobe attached: below is what the process's objects say of it"
                    .to_owned()
            }
            (LineSubject::BeforeAttach(BaselineObjects::BeingRead), _) => {
                "live when memprobe attached: the process's objects are being read to say what it is"
                    .to_owned()
            }
            (LineSubject::BeforeAttach(BaselineObjects::Settled), _) => {
                "live when memprobe attached: its lines are unknown".to_owned()
            }
            (LineSubject::BaselineKind(kind), _) => baseline_meaning(*kind).to_owned(),
            (LineSubject::BaselineOwner(kind, owner), _) => {
                let meaning = baseline_meaning(*kind);
                let least = (wide / 2).max(wide.saturating_sub(width(meaning) + 2));
                let owner = fit_end(&baseline_owner(owner), least, cut);
                format!("{owner}  {meaning}")
            }
            (LineSubject::BeforeAttach(BaselineObjects::NoBlocks(unread)), _) => {
                let unread = clean(unread);
                format!("live when memprobe attached, one row for all: {unread}")
            }
            (LineSubject::Unaccounted, _) => {
                "the allocator's total less all known blocks: events were lost".to_owned()
            }
            (LineSubject::Site(Site::NoLine { thread, reason }), _) if thread.is_empty() => {
                format!("no line is known: {reason}")
            }
            (LineSubject::Site(Site::NoLine { thread, reason }), _) => {
                format!("thread {} allocated: {reason}", clean(thread))
            }
            _ => String::new(),
        };
        vec![text]
    }
}

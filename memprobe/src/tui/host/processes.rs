//! Table of processes.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::style::Style;
use ratatui::text::Span;

use super::super::bars::{StatusLine, Tab};
use super::super::context::Feed;
use super::super::input::InputEvent;
use super::super::table_screen::{
    Content, DeviceTabs, KeyHint, Needs, Note, Query, Reaction, RowOf, ScreenContext, ScreenLayout,
    ScreenParts, ScreenRequest, ScreenTitle, TableOf, TableRow, TableScreen, TableState,
};
use super::super::theme::Theme;
use super::panels::{self, ProcessSums};
use crate::event::Tgid;
use crate::event::bytes::human;
use crate::ledger::snapshot::host::{DriverSnapshot, HostSnapshot, ProcessRow, ProcessState};
use crate::view::table::Column;
use crate::view::{
    HostExtent, PROCESS_COLUMNS, ProcessEntry, budget_fact, clean, count, counted, rate,
    top_line_names,
};

pub struct HostContext {
    pub(super) name: String,
    pub(super) feed: Feed<HostSnapshot>,
    pub(super) extent: HostExtent,
}

impl HostContext {
    pub fn new(snapshot: Arc<HostSnapshot>, name: String) -> Self {
        Self {
            name,
            feed: Feed::new(snapshot),
            extent: HostExtent::default(),
        }
    }
}

impl ScreenContext for HostContext {
    fn handle(&mut self, event: InputEvent) -> Option<Note> {
        match event {
            InputEvent::Pause => self.feed.pause(),
            InputEvent::Extent => {
                self.extent = match self.extent {
                    HostExtent::Holders => HostExtent::All,
                    HostExtent::All => HostExtent::Holders,
                };
            }
            InputEvent::Redraw => {}
            _ => return Some("this key works on the screen of a process: Enter opens it".into()),
        }
        None
    }

    fn title(&self, _tab: Option<Tab>) -> ScreenTitle {
        panels::title(self)
    }

    fn devices(&self) -> DeviceTabs {
        DeviceTabs::default()
    }

    fn status(&self, theme: &Theme) -> StatusLine {
        let health = &self.feed.shown.health;
        let mut facts = Vec::new();
        if self.feed.is_paused() {
            facts.push((1, "Space: continue".to_owned()));
        }
        if let Some((looked, all)) = self.feed.shown.looking() {
            facts.push((0, format!("looking at processes: {looked} of {all}")));
        }
        facts.push((3, format!("{} ev/s", rate(health.events_per_second))));
        facts.push((5, counted(health.events, "event")));
        facts.extend((!health.losses.any()).then(|| (2, "lost 0".to_owned())));
        if health.disagreements > 0 {
            facts.push((0, format!("LEDGER OFF {}x", count(health.disagreements))));
        }
        facts.extend((health.budget.as_ref()).map(|budget| (1, budget_fact(budget))));
        if health.untracked > 0 {
            facts.push((0, format!("{} more without room", count(health.untracked))));
        }
        StatusLine {
            word: if self.feed.is_paused() {
                ("PAUSED", theme.still())
            } else {
                ("LIVE", theme.good())
            },
            losses: health.losses,
            text: None,
            facts,
        }
    }

    fn needs(&self, height: u16) -> Needs {
        Needs {
            detail: match height {
                0..12 => 0,
                12..16 => 1,
                _ => 2,
            },
            ..Needs::default()
        }
    }

    fn keys(&self) -> Vec<KeyHint> {
        vec![("Space", "pause", 5)]
    }

    fn help(&self) -> Cow<'static, str> {
        "\
Space       pause the screen; memprobe goes on counting
q Ctrl-C    quit; the processes run on
"
        .into()
    }

    fn number(&self) -> String {
        let within = self.feed.shown.processes.iter();
        human(ProcessSums::of(within).totals.allocated)
    }
}

pub struct Processes {
    host: Arc<HostSnapshot>,
    /// Sums of all processes of the extent.
    pub(super) all: ProcessSums,
    /// Sums of the processes that match the filter.
    pub(super) sums: ProcessSums,
}

impl Processes {
    pub fn new(host: Arc<HostSnapshot>) -> Self {
        Self {
            host,
            all: ProcessSums::default(),
            sums: ProcessSums::default(),
        }
    }
}

static PARTS: ScreenParts<ProcessEntry> = ScreenParts {
    tab: None,
    columns: &PROCESS_COLUMNS,
    searched: "PID, user, command, container, rank, line",
    keys: &[("Enter", "open process", 1), ("a", "all", 8)],
    help: "\
Enter       open the process: lines, modules, categories, tensors; Esc back
1 to 9      PID USER RANK ALLOC RESERVED DRIVER PEAK TREND COMMAND
a           all processes with CUDA, or only those with memory
",
    terms: "\
? before    PID: the process waits for something, such as torch
! before    PID: it cannot be probed; the line beneath says why
x before    PID: it has ended; its row will disappear
DEV         GPUs as nvidia-smi numbers them; 0? is inferred, cuda:0 is
            the process's own number, where the GPU is not known
ALLOC       bytes of live blocks of PyTorch's allocator, all devices
RESERVED    bytes that the allocator got from the driver
DRIVER      bytes that the driver counts: allocator, context, libraries
PEAK        largest ALLOC since memprobe started
GROWTH/min  bytes a minute by which the lowest ALLOC rises; with an arrow:
            steadily
TREND 1m    ALLOC over the last minute; sorts by growth
TOP LINE    the line with most bytes, and its share of ALLOC
LOST        events that the kernel dropped; raise --buffer-size
LEDGER OFF  memprobe and an allocator disagree without a loss: a bug
",
};

impl Content for Processes {
    type Key = Tgid;
    type Data = ProcessEntry;
    type Context = HostContext;

    const FIRST_SORT: &'static str = "PEAK";
    const DIGITS: &'static [&'static str] = &[
        "PID", "USER", "RANK", "ALLOC", "RESERVED", "DRIVER", "PEAK", "TREND 1m", "COMMAND",
    ];

    fn parts(&self) -> &'static ScreenParts<ProcessEntry> {
        &PARTS
    }

    fn shows(&self, column: &Column<ProcessEntry>) -> bool {
        let mut processes = self.host.processes.iter();
        match column.head {
            "CONTAINER" => processes.any(|row| row.target.container.is_some()),
            "RANK" => processes.any(|row| row.facts.rank.is_some()),
            _ => true,
        }
    }

    fn build(&mut self, query: &mut Query<Tgid>, context: &HostContext) -> TableOf<Self> {
        self.host = Arc::clone(&context.feed.shown);
        let processes = &context.feed.shown.processes;
        let names = Arc::new(top_line_names(processes));
        let within = |row: &&ProcessRow| context.extent.includes(&self.host, row);
        self.all = ProcessSums::of(processes.iter().filter(within));
        let mut places: Vec<usize> = (0..processes.len()).collect();
        places.retain(|at| within(&&processes[*at]));
        // Ties are broken by the driver's figure, then by PID.
        places.sort_by_key(|at| (Reverse(processes[*at].driver_total()), processes[*at].tgid));
        let entry = |at: usize| {
            let line = ProcessEntry {
                host: Arc::clone(&self.host),
                at,
                names: Arc::clone(&names),
            };
            (TableRow::leaf(processes[at].tgid, line), ())
        };
        let entries = places.into_iter().map(entry).collect();
        let allocated = |row: &RowOf<Self>| {
            let totals = row.data.process().totals().unwrap_or_default();
            totals.allocated.0.into()
        };
        let searched = |row: &RowOf<Self>| panels::searched(row.data.process());
        let table = query.table(self, entries, allocated, searched, |_, ()| Vec::new());
        self.sums = ProcessSums::of(table.rows.iter().map(|row| row.data.process()));
        table
    }

    fn enter(&self, row: &RowOf<Self>) -> Reaction {
        let process = row.data.process();
        match &process.state {
            // Some refused processes have events all the same.
            ProcessState::Refused(reason) if process.events == 0 => {
                Reaction::Note(format!("nothing to open: {}", clean(reason)).into())
            }
            _ => Reaction::Request(ScreenRequest::Open(process.tgid)),
        }
    }

    fn handle(
        &mut self,
        event: InputEvent,
        _state: &mut TableState<Tgid>,
        _context: &HostContext,
    ) -> Reaction {
        match event {
            // Esc from a process must not leave memprobe.
            InputEvent::Back => Reaction::Note("q quits".into()),
            InputEvent::Save => Reaction::Note("open a process first: w there saves it".into()),
            _ => Reaction::Ignored,
        }
    }

    fn needs(&self, width: u16, height: u16, context: &HostContext) -> Needs {
        let devices = match &context.feed.shown.driver {
            DriverSnapshot::Devices(devices) => devices.len(),
            DriverSnapshot::Unasked | DriverSnapshot::Silent(_) => 1,
        };
        Needs {
            devices: match height {
                10.. => panels::device_lines(width, devices).min(height / 4),
                _ => 0,
            },
            ..context.needs(height)
        }
    }

    fn draw_around(
        _screen: &TableScreen<Self>,
        buffer: &mut Buffer,
        layout: &ScreenLayout,
        context: &HostContext,
        theme: &Theme,
    ) {
        panels::draw_devices(buffer, layout.devices, &context.feed.shown.driver, theme);
    }

    fn nothing(screen: &TableScreen<Self>, _context: &HostContext) -> Option<[Note; 2]> {
        match (screen.table.shown, screen.table.all) {
            (0, 0) => Some([
                "No process on this host has loaded CUDA.".into(),
                "The first that does will appear here.".into(),
            ]),
            (0, _) => screen.no_match("process", "processes"),
            _ => None,
        }
    }

    fn mark(&self, row: &RowOf<Self>, theme: &Theme) -> Option<Span<'static>> {
        let (mark, style) = match row.data.process().state {
            ProcessState::Probed => (" ", Style::new()),
            ProcessState::Found | ProcessState::Waiting(_) => ("?", theme.faint()),
            ProcessState::Refused(_) => ("!", theme.faint()),
            ProcessState::Ended => ("x", theme.faint()),
        };
        Some(Span::styled(mark, style))
    }

    fn sum(&self, table: &TableOf<Self>, filters: bool) -> Option<String> {
        let hidden = self.host.processes.len() - table.all;
        Some(match (filters, hidden) {
            _ if self.host.processes.is_empty() => return None,
            (true, _) => format!("shown {} of {}: {}", table.shown, table.all, self.sums),
            (false, 0) => format!("{}: {}", processes(table.all), self.all),
            (false, hidden) => format!(
                "{}: {}, {hidden} without memory (a: all)",
                processes(table.all),
                self.all
            ),
        })
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        panels::summary(row.data.process(), &self.host.driver)
    }
}

pub(super) fn processes(number: usize) -> String {
    match number {
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    }
}

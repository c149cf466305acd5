//! Table of processes.

use std::cmp::Reverse;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::style::Style;
use ratatui::text::Span;

use super::super::context::Feed;
use super::super::input::InputEvent;
use super::super::status::StatusLine;
use super::super::table_screen::{
    Cell, Column, Content, DeviceTabs, KeyHint, Layout, Needs, Note, Query, Reaction, Row, RowOf,
    ScreenContext, ScreenRequest, TableOf, TableScreen, TableState, Title,
};
use super::super::tabs::Tab;
use super::super::theme::Theme;
use super::{detail, header, rows};
use crate::event::Tgid;
use crate::event::bytes::human;
use crate::ledger::snapshot::host::{
    DriverSnapshot, HostSnapshot, ProcessRow, ProcessState, TREND_STEPS,
};
use crate::view::{
    FileNames, clean, count, counted, device_list, process_state, rank, rate, short_command,
    top_line,
};
use rows::{ProcessVisibility, Sums};

type ProcessColumn = Column<Processes>;

const COLUMNS: [ProcessColumn; 12] = [
    ProcessColumn::number("PID", 7, 0, |list, row| {
        let tgid = list.process(row).tgid.0;
        Cell::Ranked(tgid.into(), tgid.to_string())
    })
    .climbing(),
    ProcessColumn::text("USER", 8, 72, |list, row| {
        Cell::text(list.process(row).facts.user.as_deref().map(clean))
    }),
    ProcessColumn::text(CONTAINER, 12, 112, |list, row| {
        Cell::text(list.process(row).target.container.as_deref().map(clean))
    }),
    ProcessColumn::number(RANK, 5, 90, |list, row| {
        let rank_of = list.process(row).facts.rank;
        rank_of.map_or(Cell::Unknown, |of| Cell::Ranked(of.global.into(), rank(of)))
    })
    .climbing(),
    ProcessColumn::number("DEV", 5, 56, |list, row| devices(list.process(row))).climbing(),
    ProcessColumn::number("ALLOC", 8, 0, |list, row| {
        let totals = list.process(row).totals();
        Cell::short_bytes(totals.map(|totals| totals.allocated))
    })
    .styled(Theme::strong),
    ProcessColumn::number("RESERVED", 8, 64, |list, row| {
        let totals = list.process(row).totals();
        Cell::short_bytes(totals.map(|totals| totals.reserved))
    }),
    ProcessColumn::number("DRIVER", 8, 40, |list, row| {
        Cell::short_bytes(list.process(row).driver_total())
    }),
    ProcessColumn::number("PEAK", 8, 72, |list, row| {
        let row = list.process(row);
        Cell::short_bytes(row.totals().map(|_| row.peak.allocated))
    }),
    ProcessColumn::number("TREND 1m", 10, 112, |list, row| {
        match &list.process(row).trend.points[..] {
            [] => Cell::Unknown,
            points => Cell::Trend(points.to_vec(), TREND_STEPS),
        }
    })
    .styled(Theme::allocated),
    ProcessColumn::text("COMMAND", 0, 0, |list, row| {
        Cell::Text(short_command(&list.process(row).target.command))
    }),
    ProcessColumn::text("TOP LINE", 0, 96, |list, row| {
        let row = list.process(row);
        Cell::text(
            match (&row.state, process_state(row), top_line(row, &list.names)) {
                (ProcessState::Ended, Some(ended), Some(top)) => {
                    Some(format!("{ended}: {}", top.trim()))
                }
                (_, Some(state), _) => Some(state),
                (_, None, top) => top,
            },
        )
    }),
];

/// Heads of the columns that are shown only if a process needs them.
const CONTAINER: &str = "CONTAINER";
const RANK: &str = "RANK";

const ALLOC: usize = 5;

fn devices(row: &ProcessRow) -> Cell {
    let own = row.devices.first().map(|device| u32::from(device.index.0));
    let first = own.or_else(|| row.driver.first().map(|held| held.device));
    match (first, device_list(row)) {
        (Some(first), Some(text)) => Cell::Ranked(first.into(), text),
        (_, text) => Cell::text(text),
    }
}

/// Processes of a host, and the command that shows them.
pub struct HostContext {
    pub(super) name: String,
    pub(super) feed: Feed<HostSnapshot>,
    pub(super) extent: ProcessVisibility,
}

impl HostContext {
    pub fn new(snapshot: Arc<HostSnapshot>, name: String) -> Self {
        Self {
            name,
            feed: Feed::new(snapshot),
            extent: ProcessVisibility::default(),
        }
    }
}

impl ScreenContext for HostContext {
    fn handle(&mut self, event: InputEvent) -> Option<Note> {
        match event {
            InputEvent::Pause => self.feed.pause(),
            InputEvent::Extent => {
                self.extent = match self.extent {
                    ProcessVisibility::Holders => ProcessVisibility::All,
                    ProcessVisibility::All => ProcessVisibility::Holders,
                };
            }
            InputEvent::Redraw => {}
            _ => return Some("this key works on the screen of a process: Enter opens it".into()),
        }
        None
    }

    fn title(&self, _tab: Option<Tab>) -> Title {
        header::title(self)
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
        facts.push((3, format!("{} ev/s", rate(health.events_per_second))));
        facts.push((5, counted(health.events, "event")));
        facts.extend((!health.losses.any()).then(|| (2, "lost 0".to_owned())));
        if health.disagreements > 0 {
            facts.push((0, format!("LEDGER OFF {}x", count(health.disagreements))));
        }
        if health.untracked > 0 {
            facts.push((0, format!("{} more without room", count(health.untracked))));
        }
        StatusLine {
            word: match self.feed.is_paused() {
                true => ("PAUSED", theme.still()),
                false => ("LIVE", theme.good()),
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

    fn help(&self) -> &'static str {
        "\
Space       pause the screen; memprobe goes on counting
q Ctrl-C    quit; the processes run on
"
    }

    fn number(&self) -> String {
        let within = self.feed.shown.processes.iter();
        human(Sums::of(within).totals.allocated)
    }
}

/// Processes shown.
pub struct Processes {
    host: Arc<HostSnapshot>,
    names: FileNames,
    /// Sums of all processes of the extent.
    pub(super) all: Sums,
    /// Sums of the processes that match the filter.
    pub(super) sums: Sums,
}

impl Processes {
    pub fn new(host: Arc<HostSnapshot>) -> Self {
        Self {
            host,
            names: FileNames::default(),
            all: Sums::default(),
            sums: Sums::default(),
        }
    }

    /// Returns the process of a row.
    pub fn process(&self, row: &RowOf<Self>) -> &ProcessRow {
        &self.host.processes[row.data]
    }
}

impl Content for Processes {
    type Key = Tgid;
    /// Index of the process in the snapshot.
    type Data = usize;
    type Context = HostContext;

    const SEARCHED: &'static str = "PID, user, command, container, rank, line";
    const FIRST_SORT: usize = ALLOC;
    const DIGITS: Option<&'static [usize]> = Some(&[0, 1, 3, 5, 6, 7, 8, 9, 10]);

    fn columns(&self) -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn shows(&self, column: &Column<Self>) -> bool {
        let mut processes = self.host.processes.iter();
        match column.head {
            CONTAINER => processes.any(|row| row.target.container.is_some()),
            RANK => processes.any(|row| row.facts.rank.is_some()),
            _ => true,
        }
    }

    fn build(&mut self, query: &mut Query<Tgid>, context: &HostContext) -> TableOf<Self> {
        self.host = Arc::clone(&context.feed.shown);
        let processes = &context.feed.shown.processes;
        self.names = rows::names(processes);
        let within = |row: &&ProcessRow| rows::is_within(&self.host, context.extent, row);
        self.all = Sums::of(processes.iter().filter(within));
        let mut places: Vec<usize> = (0..processes.len())
            .filter(|at| within(&&processes[*at]))
            .collect();
        // Ties are broken by the driver's figure, then by PID.
        places.sort_by_key(|at| (Reverse(processes[*at].driver_total()), processes[*at].tgid));
        let entry = |at: usize| (Row::leaf(processes[at].tgid, at), ());
        let entries = places.into_iter().map(entry).collect();
        let allocated = |row: &RowOf<Self>| {
            let totals = processes[row.data].totals().unwrap_or_default();
            totals.allocated.0.into()
        };
        let searched = |row: &RowOf<Self>| rows::searched(&processes[row.data]);
        let table = query.table(self, entries, allocated, searched, |_, ()| Vec::new());
        self.sums = Sums::of(table.rows.iter().map(|row| &processes[row.data]));
        table
    }

    fn enter(&self, row: &RowOf<Self>) -> Reaction {
        let process = self.process(row);
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
                10.. => header::device_lines(width, devices).min(height / 4),
                _ => 0,
            },
            ..context.needs(height)
        }
    }

    fn draw_around(
        _screen: &TableScreen<Self>,
        buffer: &mut Buffer,
        layout: &Layout,
        context: &HostContext,
        theme: &Theme,
    ) {
        header::draw_devices(buffer, layout.devices, &context.feed.shown.driver, theme);
    }

    fn nothing(screen: &TableScreen<Self>, _context: &HostContext) -> Option<(String, String)> {
        let pattern = clean(screen.state.query.filter.pattern());
        let (first, second) = match (screen.table.shown, screen.table.all) {
            (0, 0) => (
                "No process on this host has loaded CUDA.".to_owned(),
                "The first that does will appear here.",
            ),
            (0, _) => (
                format!("No process matches /{pattern}/"),
                "Esc shows all processes.",
            ),
            _ => return None,
        };
        Some((first, second.to_owned()))
    }

    fn mark(&self, row: &RowOf<Self>, theme: &Theme) -> Option<Span<'static>> {
        let (mark, style) = match self.process(row).state {
            ProcessState::Probed => (" ", Style::new()),
            ProcessState::Waiting(_) => ("?", theme.faint()),
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
        detail::lines(self.process(row), &self.host.driver)
    }

    fn own_keys(&self) -> &'static [KeyHint] {
        &[("Enter", "open process", 1), ("a", "all", 8)]
    }

    fn help(&self) -> [&'static str; 2] {
        [KEYS, TERMS]
    }
}

/// Counts processes in words.
pub(super) fn processes(number: usize) -> String {
    match number {
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    }
}

const KEYS: &str = "\
Enter       open the process: lines, modules, categories, tensors; Esc back
1 to 9      PID USER RANK ALLOC RESERVED DRIVER PEAK TREND COMMAND
a           all processes with CUDA, or only those with memory
";

const TERMS: &str = "\
? before    PID: the process waits for something, such as torch
! before    PID: it cannot be probed; the line beneath says why
x before    PID: it has ended; its row will disappear
DEV         cuda devices as the process numbers them; gpu0 as the driver
ALLOC       bytes of live blocks of PyTorch's allocator, all devices
RESERVED    bytes that the allocator got from the driver
DRIVER      bytes that the driver counts: allocator, context, libraries
PEAK        largest ALLOC since memprobe started
TREND 1m    ALLOC over the last minute; sorts by growth
TOP LINE    the line with most bytes, and its share of ALLOC
LOST        events that the kernel dropped; raise --buffer-size
LEDGER OFF  memprobe and an allocator disagree without a loss: a bug
";

//! `replay`: from a recording to the screen, at a moment that the user moves.

mod reading;

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch;

use super::Interrupts;
use super::process_view::AttributionShown;
use super::screen::{ScreenThread, Turn};
use super::source::RecordedText;
use super::stdout;
use crate::attribution::iterations::Iteration;
use crate::event::{Bytes, DeviceIndex, TimeNs};
use crate::ledger::snapshot::{
    Grouping, LineRow, ReplayMark, ReplayMoment, ReplayUnit, Site, Snapshot, TargetState,
};
use crate::ledger::{Ledger, Refused};
use crate::recording::{RecordingDamage, RecordingError};
use crate::report::limit_warning;
use crate::tui::{self, Command, News, ReplaySeek, Saving, Tensors, ThemeChoice};
use crate::view::ReplayPlace;
use reading::{OpenBy, OpenedRecording, RecordingReading, ScreenPlayer};

/// Without a command nothing changes: this only bounds the wait for signals.
const REFRESH: Duration = Duration::from_secs(1);

/// Nanoseconds of a step by seconds.
const SECOND: i128 = 1_000_000_000;

/// Note on a recording without its oldest part, until it is read.
const COUNTS_OF_DROPPED: &str = "until the recording is read, peaks and counts of lines include the part that --max-size \
                                 dropped";

/// Reason why a recording shows no tensors.
const NO_TENSORS: &str = "a recording has the memory of each line, and not the tensors of the process: `memprobe snapshot` \
                          reads those of a running process";

pub struct ReplayScreen {
    /// Recording of memprobe, or a memory snapshot that PyTorch pickled.
    pub file: PathBuf,
    /// First moment; the end without one.
    pub at: Option<ReplayPlace>,
    pub theme: ThemeChoice,
}

impl ReplayScreen {
    pub fn run(self) -> Result<ExitCode> {
        let name = self.file.display().to_string();
        if !stdout::is_terminal() {
            bail!("the screen needs a terminal: `memprobe report {name}` prints the recording");
        }
        let place = self.at.unwrap_or(ReplayPlace::End);
        let by = match place {
            ReplayPlace::Iteration(_) => OpenBy::WholeRecording,
            _ => OpenBy::Keyframes,
        };
        let open = |by| OpenedRecording::open(&self.file, by).with_context(|| name.clone());
        let opened = open(by)?;
        let player = &opened.player;
        if player.overview.events == 0 && player.ledger().totals().is_none() {
            bail!(
                "{name}: this recording has no GPU memory: was it taken while the program trained?"
            );
        }
        let mut replay = ReplayState::new(opened);
        let mut note = replay.seek(ReplaySeek::To(place))?;
        if replay.postponed.is_some() {
            replay = ReplayState::new(open(OpenBy::WholeRecording)?);
            note = replay.seek(ReplaySeek::To(place))?;
        }
        if let Some(note) = note {
            bail!("{name}: {note}");
        }
        super::runtime()?.block_on(show(replay, self.theme))
    }
}

/// Shows the screens until the user leaves them.
async fn show(mut replay: ReplayState, theme: ThemeChoice) -> Result<ExitCode> {
    let interrupts = Interrupts::new()?;
    let news = replay.news();
    let sources = Box::new(RecordedText::new(replay.player.sources.clone()));
    let mut thread = ScreenThread::start(interrupts, REFRESH, move |command, quit| {
        tui::run(news, command, sources, quit, theme)
    });
    let status = loop {
        let turn = tokio::select! {
            turn = thread.turn() => turn,
            whole = replay.whole() => {
                replay.install(whole?)?;
                continue;
            }
        };
        match turn {
            Turn::Closed | Turn::Asked(Command::Quit) => break ExitCode::SUCCESS,
            Turn::Interrupted(signal) => break signal.exit_code(),
            Turn::Refresh => replay.show_progress(),
            Turn::Asked(command) => {
                // A drag asks for more moments than can be shown: the last one counts.
                let mut command = command;
                while let Some(next) = thread.waiting() {
                    if !(is_drag(command) && is_drag(next)) {
                        replay.execute(command)?;
                    }
                    command = next;
                }
                if command == Command::Quit {
                    break ExitCode::SUCCESS;
                }
                replay.execute(command)?;
            }
        }
    };
    thread.close()?;
    Ok(status)
}

fn is_drag(command: Command) -> bool {
    matches!(command, Command::Seek(ReplaySeek::To(ReplayPlace::Time(_))))
}

/// A marked moment, in both groupings.
struct MarkedMoment {
    marks: [Arc<ReplayMark>; 2],
}

/// Number of an iteration, and its first and last moment.
#[derive(Clone, Copy)]
struct IterationSpan {
    number: u64,
    begin: TimeNs,
    end: TimeNs,
}

impl IterationSpan {
    fn of(iteration: &Iteration) -> Option<Self> {
        iteration.is_numbered().then_some(Self {
            number: iteration.number,
            begin: iteration.begin,
            end: iteration.end,
        })
    }
}

/// A replay with what its screens get.
struct ReplayState {
    player: ScreenPlayer,
    /// Reading of the whole recording, for iterations and analyses.
    reading: Option<RecordingReading>,
    /// Movement that needs the whole recording.
    postponed: Option<ReplaySeek>,
    iterations: Vec<IterationSpan>,
    refused: Refused,
    damage: Option<RecordingDamage>,
    /// The moment shown, and the memory events up to it.
    time: TimeNs,
    events: u64,
    unit: ReplayUnit,
    is_unit_chosen: bool,
    grouping: Grouping,
    mark: Option<MarkedMoment>,
    attribution: AttributionShown,
    snapshots: watch::Sender<Arc<Snapshot>>,
    tensors: watch::Sender<Tensors>,
    saving: watch::Sender<Saving>,
}

impl ReplayState {
    /// Begins at the end of a recording.
    fn new(opened: OpenedRecording) -> Self {
        let OpenedRecording { player, reading } = opened;
        let end = player.overview.end;
        let last = player.ledger().snapshot(end, Grouping::default());
        let iterations = iterations(&player);
        Self {
            refused: player.ledger().refused(),
            damage: player.damage,
            time: end,
            events: player.events(),
            unit: first_unit(&iterations),
            is_unit_chosen: false,
            iterations,
            player,
            reading,
            postponed: None,
            grouping: Grouping::default(),
            mark: None,
            attribution: AttributionShown::default(),
            snapshots: watch::Sender::new(Arc::new(last)),
            tensors: watch::Sender::default(),
            saving: watch::Sender::default(),
        }
    }

    /// Waits until the whole recording is read; for ever if it is.
    async fn whole(&mut self) -> Result<ScreenPlayer, RecordingError> {
        match &mut self.reading {
            Some(reading) => reading.finished().await,
            None => std::future::pending().await,
        }
    }

    /// Goes on with the whole recording, at the same moment.
    fn install(&mut self, mut player: ScreenPlayer) -> Result<()> {
        self.refused = player.ledger().refused();
        self.damage = player.damage;
        // The whole recording is read up to its end, and its analyses go back with the cursor.
        self.iterations = iterations(&player);
        // Numbers of events differ if some are missing.
        match self.damage {
            Some(_) => player.seek_time(self.time)?,
            None => player.seek(self.events)?,
        }
        self.events = player.events();
        if !self.is_unit_chosen {
            self.unit = first_unit(&self.iterations);
        }
        (self.player, self.reading) = (player, None);
        let numbers = self.iterations.as_slice();
        for mark in self.mark.iter_mut().flat_map(|mark| &mut mark.marks) {
            let mark = Arc::make_mut(mark);
            mark.iteration = iteration_at(numbers, mark.time);
        }
        match self.postponed.take() {
            Some(seek) => {
                self.saving.send_replace(Saving::Nothing);
                self.execute(Command::Seek(seek))
            }
            None => {
                self.attribution.forget();
                self.show();
                Ok(())
            }
        }
    }

    /// Shows how much of the recording is read.
    fn show_progress(&mut self) {
        if self.reading.is_some() {
            self.show();
        }
    }

    fn news(&self) -> News {
        News {
            snapshots: self.snapshots.subscribe(),
            tensors: self.tensors.subscribe(),
            reasons: self.attribution.subscribe(),
            saving: self.saving.subscribe(),
        }
    }

    fn execute(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Seek(seek) => {
                if let Some(note) = self.seek(seek)? {
                    self.saving.send_replace(Saving::Failed(note.into()));
                }
            }
            Command::SetGrouping(grouping) => self.grouping = grouping,
            Command::Explain(wanted) => self.attribution.explain(wanted),
            Command::TakeTensors | Command::SaveTensors => {
                self.tensors
                    .send_replace(Tensors::Failed(NO_TENSORS.into()));
            }
            Command::SaveRecording | Command::ResetPeaks | Command::Quit => {}
        }
        self.show();
        Ok(())
    }

    /// Goes to another moment. Returns the reason if there is none.
    fn seek(&mut self, seek: ReplaySeek) -> Result<Option<String>> {
        self.postponed = None;
        if self.is_damaged() && seek != ReplaySeek::NextUnit {
            return Ok(Some(self.postpone(seek, "this moment")));
        }
        let missing = match seek {
            ReplaySeek::To(place) => self.go_to(place)?,
            ReplaySeek::Step(by) => {
                self.step(by)?;
                None
            }
            ReplaySeek::NextUnit => {
                self.is_unit_chosen = true;
                self.unit = match self.unit {
                    ReplayUnit::Iteration => ReplayUnit::Second,
                    ReplayUnit::Second => ReplayUnit::Event,
                    ReplayUnit::Event if self.iterations.is_empty() => ReplayUnit::Second,
                    ReplayUnit::Event => ReplayUnit::Iteration,
                };
                None
            }
            ReplaySeek::ToggleMark => {
                self.toggle_mark();
                None
            }
        };
        if self.is_damaged() && seek != ReplaySeek::NextUnit {
            return Ok(Some(
                self.postpone(seek, "the recording is damaged here: this moment"),
            ));
        }
        self.attribution.forget();
        self.show();
        Ok(missing)
    }

    /// Moves when the whole recording is read. Returns a note about that.
    fn postpone(&mut self, seek: ReplaySeek, place: &str) -> String {
        self.postponed = Some(seek);
        let percent = self.reading.as_ref().map_or(0, RecordingReading::percent);
        format!("{place} is shown when the recording is read ({percent} % so far)")
    }

    /// True if the cursor is behind damage whose extent is not known yet: the moment shown stays.
    fn is_damaged(&self) -> bool {
        self.reading.is_some() && self.player.damage.is_some()
    }

    fn go_to(&mut self, place: ReplayPlace) -> Result<Option<String>, RecordingError> {
        let overview = &self.player.overview;
        match place {
            ReplayPlace::Start => {
                let start = overview.start;
                self.go_to_event(0)?;
                if !self.is_damaged() {
                    self.time = start;
                }
            }
            ReplayPlace::End => self.go_to_event(overview.events)?,
            ReplayPlace::Event(events) => self.go_to_event(events)?,
            ReplayPlace::Peak => match overview.highest_peak() {
                Some(peak) => self.go_to_event(peak.events)?,
                None => {
                    return Ok(Some(
                        "this recording has no peak: no allocator event".to_owned(),
                    ));
                }
            },
            ReplayPlace::OutOfMemory => {
                let here = self.events;
                let next = overview.ooms.iter().find(|events| **events > here);
                match next.or(overview.ooms.first()).copied() {
                    Some(events) => self.go_to_event(events)?,
                    None => {
                        return Ok(Some("this recording has no out-of-memory error".to_owned()));
                    }
                }
            }
            ReplayPlace::Time(since) => {
                let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
                let time = TimeNs(overview.start.0.saturating_add(since));
                self.go_to_time(time)?;
            }
            ReplayPlace::Iteration(number) => {
                if self.reading.is_some() {
                    let name = format!("iteration {number}");
                    return Ok(Some(self.postpone(ReplaySeek::To(place), &name)));
                }
                let found = self.iterations.iter().find(|it| it.number == number);
                match (found, self.iterations.last()) {
                    (Some(found), _) => self.go_to_time(found.begin)?,
                    (None, Some(last)) => {
                        let last = last.number;
                        return Ok(Some(format!(
                            "no iteration {number}: the last one is {last}"
                        )));
                    }
                    (None, None) => return Ok(Some("this recording has no iterations".to_owned())),
                }
            }
        }
        Ok(None)
    }

    fn go_to_event(&mut self, events: u64) -> Result<(), RecordingError> {
        self.player.seek(events)?;
        if !self.is_damaged() {
            let last = self.player.ledger().last_event();
            self.time = last.unwrap_or(self.player.overview.start);
            self.events = self.player.events();
        }
        Ok(())
    }

    fn go_to_time(&mut self, time: TimeNs) -> Result<(), RecordingError> {
        let overview = &self.player.overview;
        let time = time.clamp(overview.start, overview.end);
        self.player.seek_time(time)?;
        if !self.is_damaged() {
            self.time = time;
            self.events = self.player.events();
        }
        Ok(())
    }

    fn step(&mut self, by: isize) -> Result<(), RecordingError> {
        match self.unit {
            ReplayUnit::Event => {
                let events = self.events.saturating_add_signed(by as i64);
                self.go_to_event(events)
            }
            ReplayUnit::Second => {
                let time = i128::from(self.time.0) + by as i128 * SECOND;
                self.go_to_time(TimeNs(u64::try_from(time.max(0)).unwrap_or(u64::MAX)))
            }
            ReplayUnit::Iteration => {
                let begun = self.iterations.partition_point(|it| it.begin < self.time);
                let here = self.iterations.get(begun);
                let is_at_begin = here.is_some_and(|it| it.begin == self.time);
                // Within an iteration, the first step back leads to its begin.
                let place = match by {
                    0.. if is_at_begin => begun.saturating_add_signed(by),
                    0.. => begun.saturating_add_signed(by - 1),
                    _ => begun.saturating_add_signed(by),
                };
                let overview = &self.player.overview;
                let time = match self.iterations.get(place) {
                    Some(_) if by < 0 && begun.checked_add_signed(by).is_none() => overview.start,
                    Some(found) => found.begin,
                    None => overview.end,
                };
                self.go_to_time(time)
            }
        }
    }

    fn toggle_mark(&mut self) {
        if self.mark.take().is_some() {
            return;
        }
        let mark = |grouping| {
            Arc::new(ReplayMark {
                time: self.time,
                iteration: self.iteration(),
                snapshot: self.player.ledger().snapshot(self.time, grouping),
            })
        };
        let marks = [Grouping::User, Grouping::Innermost].map(mark);
        self.mark = Some(MarkedMoment { marks });
    }

    /// Returns the number of the iteration of this moment.
    fn iteration(&self) -> Option<u64> {
        iteration_at(&self.iterations, self.time)
    }

    fn show(&mut self) {
        if self.is_damaged() {
            return;
        }
        let snapshot = Arc::new(self.snapshot());
        let ledger = self.player.ledger();
        if let Some(analyses) = self.player.analyses() {
            self.attribution
                .show(analyses, &snapshot, ledger, self.grouping);
        }
        self.snapshots.send_replace(snapshot);
    }

    fn snapshot(&self) -> Snapshot {
        let ledger: &Ledger = self.player.ledger();
        let mut snapshot = ledger.snapshot(self.time, self.grouping);
        let mark = self.mark.as_ref().map(|mark| match self.grouping {
            Grouping::User => Arc::clone(&mark.marks[0]),
            Grouping::Innermost => Arc::clone(&mark.marks[1]),
        });
        for (index, timeline) in &self.player.overview.timelines {
            let mut devices = snapshot.devices.iter_mut();
            if let Some(device) = devices.find(|device| device.index == *index) {
                device.timeline.all.clone_from(timeline);
                complete_lines(&mut device.lines, mark.as_deref(), *index);
            }
        }
        let header = &self.player.header;
        snapshot.target.clone_from(&header.target);
        let health = &mut snapshot.health;
        health.probes.clone_from(&header.probes);
        health
            .missing
            .extend(limit_warning("the recording", &self.refused));
        health
            .missing
            .extend(self.damage.map(|damage| damage.to_string()));
        let is_partial = self.reading.is_some() && header.dropped.is_some();
        health
            .missing
            .extend(is_partial.then(|| COUNTS_OF_DROPPED.to_owned()));
        health.state = TargetState::Replay(Box::new(ReplayMoment {
            start: self.player.overview.start,
            end: self.player.overview.end,
            time: self.time,
            events: self.events,
            all_events: self.player.overview.events,
            iteration: self.iteration(),
            all_iterations: self.iterations.last().map_or(0, |last| last.number),
            percent_read: self.reading.as_ref().map(RecordingReading::percent),
            unit: self.unit,
            mark,
        }));
        snapshot
    }
}

/// Returns the iterations of a recording; none before it is read.
fn iterations(player: &ScreenPlayer) -> Vec<IterationSpan> {
    let Some(analyses) = player.analyses() else {
        return Vec::new();
    };
    let rows = analyses.categories.iterations().rows;
    rows.iter().filter_map(IterationSpan::of).collect()
}

fn first_unit(iterations: &[IterationSpan]) -> ReplayUnit {
    match iterations.is_empty() {
        true => ReplayUnit::Second,
        false => ReplayUnit::Iteration,
    }
}

/// Returns the number of the iteration of a moment.
fn iteration_at(iterations: &[IterationSpan], time: TimeNs) -> Option<u64> {
    let begun = iterations.partition_point(|it| it.begin <= time);
    let last = iterations.get(begun.checked_sub(1)?)?;
    (time <= last.end).then_some(last.number)
}

/// Adds lines that hold memory at the mark alone: their first allocation comes later.
fn complete_lines(lines: &mut Vec<LineRow>, mark: Option<&ReplayMark>, device: DeviceIndex) {
    let devices = mark.into_iter().flat_map(|mark| &mark.snapshot.devices);
    let marked = devices.filter(|found| found.index == device);
    let marked: Vec<&LineRow> = marked.flat_map(|device| &device.lines).collect();
    let known: HashSet<Site> = lines.iter().map(|line| line.site.clone()).collect();
    for line in marked
        .into_iter()
        .filter(|line| !known.contains(&line.site))
    {
        lines.push(LineRow {
            site: line.site.clone(),
            live: Bytes(0),
            peak: Bytes(0),
            live_blocks: 0,
            allocs: 0,
            alloc_bytes: Bytes(0),
            allocs_per_second: 0.0,
            growth: None,
            stacks: Vec::new(),
        });
    }
}

//! `replay`: from a recording to the screen, at a moment that the user moves.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch;

use super::Interrupts;
use super::process_view::{AttributionShown, ScreenAnalyses};
use super::screen::{ScreenThread, Turn};
use super::source::RecordedText;
use super::stdout;
use super::waiting::show_while;
use crate::attribution::iterations::Iteration;
use crate::event::{Bytes, DeviceIndex, TimeNs};
use crate::ledger::snapshot::{
    Grouping, LineRow, ReplayMark, ReplayMoment, ReplayUnit, Site, Snapshot, TargetState, Timeline,
};
use crate::ledger::{Ledger, Refused};
use crate::recording::{RecordingDamage, RecordingError, SeekableRecording};
use crate::replay::{Player, ReplayProgress};
use crate::report::limit_warning;
use crate::tui::{self, Command, News, ReplaySeek, Saving, Tensors, ThemeChoice};
use crate::view::{ReplayPlace, clean, counted};

/// Without a command nothing changes: this only bounds the wait for signals.
const REFRESH: Duration = Duration::from_secs(1);

/// Nanoseconds of a step by seconds.
const SECOND: i128 = 1_000_000_000;

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
        let player = opened(&self.file).with_context(|| name.clone())?;
        if player.overview.events == 0 && player.ledger().totals().is_none() {
            bail!(
                "{name}: this recording has no GPU memory: was it taken while the program trained?"
            );
        }
        let mut replay = ReplayState::new(player);
        let place = self.at.unwrap_or(ReplayPlace::End);
        if let Some(note) = replay.seek(ReplaySeek::To(place))? {
            bail!("{name}: {note}");
        }
        super::runtime()?.block_on(show(replay, self.theme))
    }
}

fn opened(file: &Path) -> Result<Player<ScreenAnalyses>, RecordingError> {
    let name = clean(&file.display().to_string());
    let (copied, replayed) = (AtomicU64::new(0), AtomicU64::new(0));
    let line = || {
        let replayed = replayed.load(Ordering::Relaxed);
        let (verb, events) = match replayed {
            0 => ("reading", copied.load(Ordering::Relaxed)),
            _ => ("replaying", replayed),
        };
        format!("{verb} {name}: {}", counted(events, "event"))
    };
    show_while(line, || {
        let recording = SeekableRecording::open(file, |events| {
            copied.store(events, Ordering::Relaxed);
            Ok(())
        })?;
        Player::open(recording, ScreenAnalyses::default(), |progress| {
            if let ReplayProgress::Replayed(events) = progress {
                replayed.store(events, Ordering::Relaxed);
            }
            Ok(())
        })
    })
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
        match thread.turn().await {
            Turn::Closed | Turn::Asked(Command::Quit) => break ExitCode::SUCCESS,
            Turn::Interrupted(signal) => break signal.exit_code(),
            Turn::Refresh => {}
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
    player: Player<ScreenAnalyses>,
    /// Totals of the whole recording.
    timelines: Vec<(DeviceIndex, Timeline)>,
    iterations: Vec<IterationSpan>,
    refused: Refused,
    damage: Option<RecordingDamage>,
    time: TimeNs,
    unit: ReplayUnit,
    grouping: Grouping,
    mark: Option<MarkedMoment>,
    attribution: AttributionShown,
    snapshots: watch::Sender<Arc<Snapshot>>,
    tensors: watch::Sender<Tensors>,
    saving: watch::Sender<Saving>,
}

impl ReplayState {
    /// Begins at the end of a recording.
    fn new(player: Player<ScreenAnalyses>) -> Self {
        let end = player.overview.end;
        let last = player.ledger().snapshot(end, Grouping::default());
        let devices = last.devices.iter();
        let timelines = devices
            .map(|device| (device.index, device.timeline.all.clone()))
            .collect();
        let iterations = player.analyses().categories.iterations();
        let iterations: Vec<_> = iterations
            .rows
            .iter()
            .filter_map(IterationSpan::of)
            .collect();
        Self {
            refused: player.ledger().refused(),
            damage: player.damage,
            time: end,
            unit: match iterations.is_empty() {
                true => ReplayUnit::Second,
                false => ReplayUnit::Iteration,
            },
            timelines,
            iterations,
            player,
            grouping: Grouping::default(),
            mark: None,
            attribution: AttributionShown::default(),
            snapshots: watch::Sender::new(Arc::new(last)),
            tensors: watch::Sender::default(),
            saving: watch::Sender::default(),
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
        let missing = match seek {
            ReplaySeek::To(place) => self.go_to(place)?,
            ReplaySeek::Step(by) => {
                self.step(by)?;
                None
            }
            ReplaySeek::NextUnit => {
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
        self.attribution.forget();
        self.show();
        Ok(missing)
    }

    fn go_to(&mut self, place: ReplayPlace) -> Result<Option<String>, RecordingError> {
        let overview = &self.player.overview;
        match place {
            ReplayPlace::Start => {
                let start = overview.start;
                self.player.seek(0)?;
                self.time = start;
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
                let here = self.player.events();
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
        let last = self.player.ledger().last_event();
        self.time = last.unwrap_or(self.player.overview.start);
        Ok(())
    }

    fn go_to_time(&mut self, time: TimeNs) -> Result<(), RecordingError> {
        let overview = &self.player.overview;
        let time = time.clamp(overview.start, overview.end);
        self.player.seek_time(time)?;
        self.time = time;
        Ok(())
    }

    fn step(&mut self, by: isize) -> Result<(), RecordingError> {
        match self.unit {
            ReplayUnit::Event => {
                let events = self.player.events().saturating_add_signed(by as i64);
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
        let begun = self.iterations.partition_point(|it| it.begin <= self.time);
        let last = self.iterations.get(begun.checked_sub(1)?)?;
        (self.time <= last.end).then_some(last.number)
    }

    fn show(&mut self) {
        let snapshot = Arc::new(self.snapshot());
        let (analyses, ledger) = (self.player.analyses(), self.player.ledger());
        self.attribution
            .show(analyses, &snapshot, ledger, self.grouping);
        self.snapshots.send_replace(snapshot);
    }

    fn snapshot(&self) -> Snapshot {
        let ledger: &Ledger = self.player.ledger();
        let mut snapshot = ledger.snapshot(self.time, self.grouping);
        let mark = self.mark.as_ref().map(|mark| match self.grouping {
            Grouping::User => Arc::clone(&mark.marks[0]),
            Grouping::Innermost => Arc::clone(&mark.marks[1]),
        });
        for (index, timeline) in &self.timelines {
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
        health.state = TargetState::Replay(Box::new(ReplayMoment {
            start: self.player.overview.start,
            end: self.player.overview.end,
            time: self.time,
            events: self.player.events(),
            all_events: self.player.overview.events,
            iteration: self.iteration(),
            all_iterations: self.iterations.last().map_or(0, |last| last.number),
            unit: self.unit,
            mark,
        }));
        snapshot
    }
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

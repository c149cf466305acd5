//! The stretches of time between what PyTorch marks, of which iterations are made.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::course::Turn;
use super::epochs::{Epoch, Epochs, Loaders, NO_LOADER};
use super::moments::{Moment, Revision};
use super::phase::Phase;
use crate::event::{Beginning, Bytes, DeviceIndex, Mark, Tid, TimeNs, Totals};
use crate::model::snapshot::Site;

/// Laps that are kept; older ones are counted.
pub(super) const MOST_LAPS: usize = 100_000;

/// Places from which optimizers step that are told apart; later ones count as one.
const MOST_KEYS: usize = 4096;

/// Finished laps whose peaks are put right when a block turns out to be for something else.
const STILL_OPEN: usize = 16;

/// Threads of which it is known whether they were at the line of `--iteration`.
const MOST_THREADS: usize = 4096;

/// What iterations are told apart by. Each is better than those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nothing tells.
    #[default]
    Nothing,
    /// The next batch of a `DataLoader`.
    Batches,
    /// `Optimizer.zero_grad()`.
    ZeroGrads,
    /// `Optimizer.step()`.
    Steps,
    /// A line that the user named.
    Line,
}

/// A line at which an iteration begins, as the user names it: `serve.py:41`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationLine {
    /// The file: its path, or the end of it.
    pub file: String,
    /// The line.
    pub line: u32,
}

impl IterationLine {
    /// Reads `FILE:LINE`.
    pub fn parse(words: &str) -> Option<Self> {
        let (file, line) = words.rsplit_once(':')?;
        let line = line.parse().ok().filter(|line| *line > 0)?;
        let file = file.trim_start_matches("./");
        (!file.is_empty()).then(|| Self {
            file: file.to_owned(),
            line,
        })
    }

    /// Whether a frame stands at it.
    pub(super) fn is_at(&self, file: &str, line: u32) -> bool {
        let outside = file.strip_suffix(self.file.as_str());
        line == self.line && outside.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }
}

/// One device in one lap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LapDevice {
    /// The moment at which most was allocated.
    pub peak: Moment,
    /// The totals at the end.
    pub end: Totals,
    /// Blocks that were allocated.
    pub allocs: u64,
    /// Bytes of those.
    pub alloc_bytes: u64,
    /// The lap in which `peak` was, by how many had ended before.
    pub(super) lap: u64,
}

/// What a lap was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LapKind {
    /// From the start to the first pass, batch or `zero_grad()`.
    Preamble,
    /// Modules were called without grad, before anything was learned.
    Evaluation,
    /// Anything else.
    #[default]
    Training,
}

/// A stretch of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Lap {
    pub(super) kind: LapKind,
    /// The laps that it is made of, by how many had ended before.
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) begin: TimeNs,
    pub(super) end: TimeNs,
    /// Batches that began in it.
    pub(super) batches: u32,
    /// Backward passes that began in it.
    pub(super) backwards: u32,
    /// Which optimizer stepped at its end, or from where gradients were set to zero at its beginning.
    pub(super) key: Option<u32>,
    /// The epoch of the first batch that something was learned from in it.
    pub(super) epoch: Option<Epoch>,
    pub(super) devices: BTreeMap<DeviceIndex, LapDevice>,
}

impl Lap {
    /// Goes on with the next lap.
    pub(super) fn extend(&mut self, next: &Self) {
        self.end = next.end;
        self.last = next.last;
        self.batches = self.batches.saturating_add(next.batches);
        self.backwards = self.backwards.saturating_add(next.backwards);
        self.key = next.key.or(self.key);
        self.epoch = self.epoch.or(next.epoch);
        for (index, device) in &next.devices {
            let own = self.devices.entry(*index).or_default();
            if device.peak.totals.allocated >= own.peak.totals.allocated {
                own.peak.clone_from(&device.peak);
                own.lap = device.lap;
            }
            own.end = device.end;
            own.allocs = own.allocs.saturating_add(device.allocs);
            own.alloc_bytes = own.alloc_bytes.saturating_add(device.alloc_bytes);
        }
    }
}

/// The laps of a process.
#[derive(Debug, Default)]
pub(super) struct Laps {
    source: Source,
    keys: HashMap<(Arc<str>, Option<Site>), u32>,
    at_line: HashMap<Tid, bool>,
    loaders: Loaders,
    current: Lap,
    begun: bool,
    evaluated: bool,
    trained: bool,
    stepped: bool,
    done: VecDeque<Lap>,
    dropped: u64,
    ended: u64,
    forgotten: u64,
    unnamed: u64,
}

impl Laps {
    pub(super) fn new(has_line: bool) -> Self {
        let source = match has_line {
            true => Source::Line,
            false => Source::Nothing,
        };
        Self {
            source,
            ..Self::default()
        }
    }

    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// All laps that are kept, the one that is not finished last.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Lap> {
        self.done.iter().chain([&self.current])
    }

    /// Laps that are kept no more.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Laps that ended so far.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Threads that were forgotten for want of room: at the line of `--iteration`, they count as new.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Steps, zeroed gradients and batches from places for which there was no room: they count as one place.
    pub(super) fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Says when everything began.
    pub(super) fn start(&mut self, time: TimeNs) {
        if self.done.is_empty() && self.current.devices.is_empty() {
            (self.current.begin, self.current.end) = (time, time);
        }
    }

    /// A device is now as it says; gives whether the lap never held more.
    pub(super) fn record(
        &mut self,
        index: DeviceIndex,
        now: &Moment,
        allocated: Option<Bytes>,
    ) -> bool {
        let device = self.current.devices.entry(index).or_default();
        let is_highest = now.totals.allocated >= device.peak.totals.allocated;
        if is_highest {
            device.peak.clone_from(now);
            device.lap = self.current.last;
        }
        device.end = now.totals;
        if let Some(size) = allocated {
            device.allocs = device.allocs.saturating_add(1);
            device.alloc_bytes = device.alloc_bytes.saturating_add(size.0);
        }
        self.current.end = self.current.end.max(now.time);
        is_highest
    }

    /// The oldest lap that [`Self::revise`] puts right.
    pub(super) fn oldest_open(&self) -> u64 {
        let oldest = self.done.len().saturating_sub(STILL_OPEN);
        self.done.get(oldest).map_or(0, |lap| lap.first)
    }

    /// Puts right what a block was for.
    pub(super) fn revise(&mut self, index: DeviceIndex, revision: Revision) {
        let laps = self.done.iter_mut().rev().take(STILL_OPEN);
        for lap in laps.chain([&mut self.current]) {
            if let Some(device) = lap.devices.get_mut(&index) {
                device.peak.revise(revision);
            }
        }
    }

    /// The program went over to another phase; `now` is what devices hold.
    pub(super) fn turn(&mut self, turn: Turn, now: Now<'_>) {
        if turn.ended == Phase::OptimizerStep && self.stepped && self.source == Source::Steps {
            self.cut(LapKind::Training, &now);
        }
        let learns = turn.began == Phase::Forward || turn.began.is_of_backward();
        if learns || turn.began == Phase::Evaluation {
            self.begin(&now);
        }
        let by_marks = matches!(self.source, Source::Steps | Source::ZeroGrads);
        if turn.began == Phase::Evaluation && !self.trained {
            self.evaluated = true;
        } else if learns {
            if self.evaluated && !self.trained && by_marks {
                self.cut(LapKind::Evaluation, &now);
            }
            self.trained = true;
        }
        if turn.began.is_of_backward() && !turn.ended.is_of_backward() {
            self.current.backwards = self.current.backwards.saturating_add(1);
        }
    }

    /// PyTorch marked a beginning, from a line.
    pub(super) fn mark(&mut self, mark: &Mark, site: Option<&Site>, now: Now<'_>) {
        let key = self.key(mark, site);
        match mark.begins {
            Beginning::Step => {
                self.raise(Source::Steps);
                if self.source == Source::Steps {
                    if self.stepped {
                        self.cut(LapKind::Training, &now);
                    }
                    self.current.key = Some(key);
                    self.stepped = true;
                }
            }
            Beginning::ZeroGrad => {
                self.begin(&now);
                self.raise(Source::ZeroGrads);
                if self.source == Source::ZeroGrads {
                    if self.current.key.is_some() {
                        self.cut(LapKind::Training, &now);
                    }
                    self.current.key = Some(key);
                }
            }
            Beginning::NextBatch => {
                self.loaders.next_batch(key);
                self.begin(&now);
                self.raise(Source::Batches);
                if self.source == Source::Batches && self.current.batches > 0 {
                    self.cut(LapKind::Training, &now);
                }
                self.current.batches = self.current.batches.saturating_add(1);
            }
        }
    }

    /// Memory is asked for in a phase.
    pub(super) fn pass(&mut self, phase: Phase) {
        if let Some(epoch) = self.loaders.pass(phase) {
            self.current.epoch.get_or_insert(epoch);
        }
    }

    /// What is said of epochs, and of which loader.
    pub(super) fn epochs(&self) -> (Epochs, u32) {
        self.loaders.says()
    }

    /// A thread asks for memory, from below the line that the user named or from elsewhere.
    pub(super) fn ask(&mut self, tid: Tid, at_line: bool, now: Now<'_>) {
        if self.source != Source::Line {
            return;
        }
        if self.at_line.len() >= MOST_THREADS && !self.at_line.contains_key(&tid) {
            self.forgotten = self.forgotten.saturating_add(self.at_line.len() as u64);
            self.at_line.clear();
        }
        let before = self.at_line.insert(tid, at_line).unwrap_or(false);
        if at_line && !before {
            let kind = match self.begun {
                true => LapKind::Training,
                false => LapKind::Preamble,
            };
            self.begun = true;
            self.cut(kind, &now);
        }
    }

    /// The first thing that is no preparation.
    fn begin(&mut self, now: &Now<'_>) {
        if !self.begun && self.source != Source::Line {
            self.begun = true;
            self.cut(LapKind::Preamble, now);
        }
    }

    /// A better source makes one lap of what worse ones took apart.
    fn raise(&mut self, source: Source) {
        if source <= self.source {
            return;
        }
        self.source = source;
        let mut merged: Option<Lap> = None;
        let mut kept = VecDeque::new();
        for lap in std::mem::take(&mut self.done) {
            match (&mut merged, lap.kind) {
                (None, LapKind::Preamble) => kept.push_back(lap),
                (None, _) => merged = Some(lap),
                (Some(merged), _) => merged.extend(&lap),
            }
        }
        if let Some(mut merged) = merged {
            merged.extend(&self.current);
            merged.kind = LapKind::Training;
            merged.key = None;
            self.current = merged;
        }
        self.current.key = None;
        self.done = kept;
    }

    fn cut(&mut self, kind: LapKind, now: &Now<'_>) {
        let number = self.ended.saturating_add(1);
        let devices = now.0.iter().map(|(index, moment)| {
            let device = LapDevice {
                peak: (*moment).clone(),
                end: moment.totals,
                lap: number,
                ..LapDevice::default()
            };
            (*index, device)
        });
        let next = Lap {
            first: number,
            last: number,
            begin: self.current.end,
            end: self.current.end,
            devices: devices.collect(),
            ..Lap::default()
        };
        let mut done = std::mem::replace(&mut self.current, next);
        done.kind = kind;
        self.done.push_back(done);
        if self.done.len() > MOST_LAPS {
            self.done.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        self.ended = self.ended.saturating_add(1);
        (self.evaluated, self.trained, self.stepped) = (false, false, false);
    }

    fn key(&mut self, mark: &Mark, site: Option<&Site>) -> u32 {
        let number = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let key = (Arc::clone(&mark.class), site.cloned());
        match self.keys.get(&key) {
            Some(known) => *known,
            None if self.keys.len() < MOST_KEYS => *self.keys.entry(key).or_insert(number),
            None => {
                self.unnamed = self.unnamed.saturating_add(1);
                NO_LOADER
            }
        }
    }
}

/// What each device holds now.
pub(super) struct Now<'a>(pub(super) Vec<(DeviceIndex, &'a Moment)>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_named_by_the_end_of_its_path() {
        let line = IterationLine::parse("serve.py:41").expect("a line");
        assert!(line.is_at("/srv/serve.py", 41) && line.is_at("serve.py", 41));
        assert!(!line.is_at("/srv/observe.py", 41) && !line.is_at("/srv/serve.py", 4));
        assert!(IterationLine::parse("./app/serve.py:1").is_some());
        for wrong in ["serve.py", "serve.py:", "serve.py:0", ":7", "serve.py:x"] {
            assert_eq!(IterationLine::parse(wrong), None, "{wrong}");
        }
    }
}

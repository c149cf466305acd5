//! Step intervals: the time between two marks of PyTorch (or hits of a line), from which iterations are
//! built.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::category::Composition;
use super::epochs::{Epoch, Epochs, Loaders, NO_LOADER};
use super::line_visits::{LineAllocation, LineVisits};
use super::moments::{Moment, Revision};
use super::phase::Phase;
use super::phase_tracker::PhaseTransition;
use crate::event::{Bytes, DeviceIndex, MarkedPhase, PhaseMark, TimeNs, Totals};
use crate::ledger::snapshot::Site;

/// Step intervals stored; older ones are only counted.
pub(super) const MAX_INTERVALS: usize = 100_000;

/// Call sites of optimizer steps told apart; later ones share one number.
const MAX_KEYS: usize = 4096;

/// Finished step intervals whose peaks are revised when the category of a block changes.
const STILL_OPEN: usize = 16;

/// Signal that separates iterations. Later variants take precedence over earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    #[default]
    Nothing,
    /// Backward passes that recur, without any mark of PyTorch.
    Backwards,
    /// The next batch of a `DataLoader`.
    Batches,
    ZeroGrads,
    Steps,
    Line,
}

/// Line at which an iteration begins, as given by the user: `serve.py:41`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationLine {
    /// Path of the file, or the end of it.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
}

impl IterationLine {
    pub fn parse(words: &str) -> Option<Self> {
        let (file, line) = words.rsplit_once(':')?;
        let line = line.parse().ok().filter(|line| *line > 0)?;
        let file = file.trim_start_matches("./");
        (!file.is_empty()).then(|| Self {
            file: file.to_owned(),
            line,
        })
    }

    /// True if a frame is at this line.
    pub(super) fn is_at(&self, file: &str, line: u32) -> bool {
        let outside = file.strip_suffix(self.file.as_str());
        line == self.line && outside.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntervalDevice {
    pub peak: Moment,
    pub end: Totals,
    pub allocs: u64,
    pub alloc_bytes: u64,
    /// Number of the step interval that contains `peak`.
    pub(super) interval: u64,
}

/// Devices of an interval, in the order of their index. A program of 100,000 iterations keeps as many of these, so that
/// each has room for its own devices only: a node of a `BTreeMap` has room for 11.
#[derive(Clone, Debug, Default)]
pub(super) struct IntervalDevices(Vec<(DeviceIndex, IntervalDevice)>);

impl IntervalDevices {
    fn place(&self, index: DeviceIndex) -> Result<usize, usize> {
        self.0.binary_search_by_key(&index, |(known, _)| *known)
    }

    fn get(&self, index: DeviceIndex) -> Option<&IntervalDevice> {
        self.place(index).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, index: DeviceIndex) -> Option<&mut IntervalDevice> {
        let at = self.place(index).ok()?;
        Some(&mut self.0[at].1)
    }

    fn get_or_default(&mut self, index: DeviceIndex) -> &mut IntervalDevice {
        let at = self.place(index).unwrap_or_else(|at| {
            self.0.reserve_exact(1);
            self.0.insert(at, (index, IntervalDevice::default()));
            at
        });
        &mut self.0[at].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(DeviceIndex, IntervalDevice)> {
        self.0.iter()
    }

    pub(super) fn into_vec(self) -> Vec<(DeviceIndex, IntervalDevice)> {
        self.0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IntervalKind {
    /// From the start to the first pass, batch, `zero_grad()` or hit of the user's line.
    Preamble,
    /// Modules called without grad, before the first pass with grad.
    Evaluation,
    #[default]
    Training,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StepInterval {
    pub(super) kind: IntervalKind,
    /// Numbers of the intervals merged into it: a number is the count of intervals ended before.
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) begin: TimeNs,
    pub(super) end: TimeNs,
    pub(super) batches: u32,
    pub(super) backwards: u32,
    /// Call site of the optimizer step at its end, of the `zero_grad()` at its beginning, or of its last
    /// backward pass.
    pub(super) key: Option<u32>,
    pub(super) epoch: Option<Epoch>,
    pub(super) devices: IntervalDevices,
}

impl StepInterval {
    pub(super) fn extend(&mut self, next: &Self) {
        self.end = next.end;
        self.last = next.last;
        self.batches = self.batches.saturating_add(next.batches);
        self.backwards = self.backwards.saturating_add(next.backwards);
        self.key = next.key.or(self.key);
        self.epoch = self.epoch.or(next.epoch);
        for (index, device) in next.devices.iter() {
            let own = self.devices.get_or_default(*index);
            if !own.peak.is_above(&device.peak) {
                own.peak.clone_from(&device.peak);
                own.interval = device.interval;
            }
            own.end = device.end;
            own.allocs = own.allocs.saturating_add(device.allocs);
            own.alloc_bytes = own.alloc_bytes.saturating_add(device.alloc_bytes);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct StepIntervals {
    pub(super) source: Source,
    keys: HashMap<(Arc<str>, Option<Site>), u32>,
    pub(super) line_visits: LineVisits,
    loaders: Loaders,
    current: StepInterval,
    begun: bool,
    evaluated: bool,
    trained: bool,
    stepped: bool,
    /// Copies of the state share them: few of the many are ever revised.
    done: VecDeque<Arc<StepInterval>>,
    pub(super) dropped: u64,
    pub(super) ended: u64,
    /// Marks from call sites beyond the limit, which share one number.
    pub(super) unnamed: u64,
}

impl StepIntervals {
    pub(super) fn new(has_line: bool) -> Self {
        let source = if has_line {
            Source::Line
        } else {
            Source::Nothing
        };
        Self {
            source,
            ..Self::default()
        }
    }

    /// All stored intervals; the unfinished one is last.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &StepInterval> {
        self.done.iter().map(|done| &**done).chain([&self.current])
    }

    /// Number of finished intervals that are stored.
    pub(super) fn stored(&self) -> usize {
        self.done.len()
    }

    pub(super) fn start(&mut self, time: TimeNs) {
        if self.done.is_empty() && self.current.devices.0.is_empty() {
            (self.current.begin, self.current.end) = (time, time);
        }
    }

    /// Records the state of a device. Returns true if the interval's peak is now.
    pub(super) fn record(
        &mut self,
        index: DeviceIndex,
        now: &Moment,
        allocated: Option<Bytes>,
    ) -> bool {
        let device = self.current.devices.get_or_default(index);
        let is_highest = !device.peak.is_above(now);
        if is_highest {
            device.peak.clone_from(now);
            device.interval = self.current.last;
        }
        device.end = now.totals;
        if let Some(size) = allocated {
            device.allocs = device.allocs.saturating_add(1);
            device.alloc_bytes = device.alloc_bytes.saturating_add(size.0);
        }
        self.current.end = self.current.end.max(now.time);
        is_highest
    }

    /// Number of the oldest interval that [`Self::revise`] changes.
    pub(super) fn oldest_open(&self) -> u64 {
        let oldest = self.done.len().saturating_sub(STILL_OPEN);
        self.done.get(oldest).map_or(0, |interval| interval.first)
    }

    /// Revises the category of a block at the stored peaks.
    pub(super) fn revise(&mut self, index: DeviceIndex, revision: Revision) {
        let recent = self.done.iter_mut().rev().take(STILL_OPEN);
        let recent = recent.map(Arc::make_mut);
        for interval in recent.chain([&mut self.current]) {
            if let Some(device) = interval.devices.get_mut(index) {
                device.peak.revise(revision);
            }
        }
    }

    /// Revises the categories of blocks at all stored peaks, however old.
    pub(super) fn revise_all(&mut self, index: DeviceIndex, mut revisions: Vec<Revision>) {
        revisions.sort_unstable_by_key(|revision| revision.born);
        let mut revisions = revisions.into_iter().peekable();
        let [mut taken, mut added] = [Composition::default(), Composition::default()];
        let mut is_revised = false;
        let mut exchanged = |device: &IntervalDevice| {
            let ordinal = device.peak.ordinal;
            while let Some(revision) = revisions.next_if(|revision| revision.born <= ordinal) {
                taken.add(revision.from, revision.size);
                added.add(revision.to, revision.size);
                is_revised = true;
            }
            is_revised.then(|| (taken.clone(), added.clone()))
        };
        // Peaks are in the order of their events, as are the intervals.
        for interval in &mut self.done {
            let exchange = interval.devices.get(index).and_then(&mut exchanged);
            if let Some((taken, added)) = exchange
                && let Some(device) = Arc::make_mut(interval).devices.get_mut(index)
            {
                device.peak.composition.exchange(&taken, &added);
            }
        }
        if let Some(device) = self.current.devices.get_mut(index)
            && let Some((taken, added)) = exchanged(device)
        {
            device.peak.composition.exchange(&taken, &added);
        }
    }

    /// Gives blocks from before attach their category at all stored peaks.
    pub(super) fn name_past(&mut self, index: DeviceIndex, blocks: &Composition) {
        let done = self.done.iter_mut().map(Arc::make_mut);
        for interval in done.chain([&mut self.current]) {
            if let Some(device) = interval.devices.get_mut(index) {
                device.peak.name(blocks);
            }
        }
    }

    /// Handles a phase transition; `now` is the state of each device.
    pub(super) fn turn(&mut self, turn: PhaseTransition, now: Now<'_>) {
        let computes = matches!(turn.began, Phase::Forward | Phase::Evaluation);
        if computes && self.current.backwards > 0 && self.source <= Source::Backwards {
            self.end_interval(IntervalKind::Training, &now);
        }
        if turn.ended == Phase::OptimizerStep && self.stepped && self.source == Source::Steps {
            self.end_interval(IntervalKind::Training, &now);
        }
        let learns = turn.began == Phase::Forward || turn.began.is_of_backward();
        if learns || turn.began == Phase::Evaluation {
            self.begin(&now);
        }
        let ends = [Source::Backwards, Source::ZeroGrads, Source::Steps].contains(&self.source);
        if turn.began == Phase::Evaluation && !self.trained {
            self.evaluated = true;
        } else if learns {
            if self.evaluated && !self.trained && ends {
                self.end_interval(IntervalKind::Evaluation, &now);
            }
            self.trained = true;
        }
        if turn.began.is_of_backward() && !turn.ended.is_of_backward() {
            self.current.backwards = self.current.backwards.saturating_add(1);
        }
    }

    /// Handles the beginning of a backward pass, after [`Self::turn`]. The second one separates iterations.
    pub(super) fn begin_backward(&mut self, site: Option<&Site>) {
        if self.source > Source::Backwards {
            return;
        }
        self.current.key = Some(self.key(&"".into(), site));
        let finished = |interval: &StepInterval| interval.backwards > 0;
        if self.done.back().is_some_and(|last| finished(last)) {
            self.source = Source::Backwards;
        }
    }

    pub(super) fn mark(&mut self, mark: &PhaseMark, site: Option<&Site>, now: Now<'_>) {
        let key = self.key(&mark.class, site);
        match mark.phase {
            MarkedPhase::Step => {
                self.raise(Source::Steps);
                if self.source == Source::Steps {
                    if self.stepped {
                        self.end_interval(IntervalKind::Training, &now);
                    }
                    self.current.key = Some(key);
                    self.stepped = true;
                }
            }
            MarkedPhase::ZeroGrad => {
                self.begin(&now);
                self.raise(Source::ZeroGrads);
                if self.source == Source::ZeroGrads {
                    if self.current.key.is_some() {
                        self.end_interval(IntervalKind::Training, &now);
                    }
                    self.current.key = Some(key);
                }
            }
            MarkedPhase::NextBatch => {
                self.loaders.next_batch(key);
                self.begin(&now);
                self.raise(Source::Batches);
                if self.source == Source::Batches && self.current.batches > 0 {
                    self.end_interval(IntervalKind::Training, &now);
                }
                self.current.batches = self.current.batches.saturating_add(1);
            }
        }
    }

    pub(super) fn pass(&mut self, phase: Phase) {
        if let Some(epoch) = self.loaders.pass(phase) {
            self.current.epoch.get_or_insert(epoch);
        }
    }

    /// Epochs, and the loader they belong to.
    pub(super) fn epochs(&self) -> (Epochs, u32) {
        self.loaders.says()
    }

    /// Handles an allocation for the user's line.
    pub(super) fn ask(&mut self, allocation: LineAllocation, now: Now<'_>) {
        if self.source == Source::Line && self.line_visits.allocate(allocation) {
            let kind = if self.begun {
                IntervalKind::Training
            } else {
                IntervalKind::Preamble
            };
            self.begun = true;
            self.end_interval(kind, &now);
        }
    }

    fn begin(&mut self, now: &Now<'_>) {
        if !self.begun && self.source != Source::Line {
            self.begun = true;
            self.end_interval(IntervalKind::Preamble, now);
        }
    }

    /// Switches to a better source: merges the intervals made by weaker ones.
    fn raise(&mut self, source: Source) {
        if source <= self.source {
            return;
        }
        self.source = source;
        let mut merged: Option<StepInterval> = None;
        let mut retained = VecDeque::new();
        for interval in std::mem::take(&mut self.done) {
            match (&mut merged, interval.kind) {
                (None, IntervalKind::Preamble) => retained.push_back(interval),
                (None, _) => merged = Some(Arc::unwrap_or_clone(interval)),
                (Some(merged), _) => merged.extend(&interval),
            }
        }
        if let Some(mut merged) = merged {
            merged.extend(&self.current);
            merged.kind = IntervalKind::Training;
            merged.key = None;
            self.current = merged;
        }
        self.current.key = None;
        self.done = retained;
    }

    fn end_interval(&mut self, kind: IntervalKind, now: &Now<'_>) {
        let number = self.ended.saturating_add(1);
        let devices = now.0.iter().map(|(index, moment)| {
            let device = IntervalDevice {
                peak: (*moment).clone(),
                end: moment.totals,
                interval: number,
                ..IntervalDevice::default()
            };
            (*index, device)
        });
        let next = StepInterval {
            first: number,
            last: number,
            begin: self.current.end,
            end: self.current.end,
            // In the order of their index: the moments come from a map.
            devices: IntervalDevices(devices.collect()),
            ..StepInterval::default()
        };
        let mut done = std::mem::replace(&mut self.current, next);
        done.kind = kind;
        self.done.push_back(Arc::new(done));
        if self.done.len() > MAX_INTERVALS {
            self.done.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        self.ended = self.ended.saturating_add(1);
        (self.evaluated, self.trained, self.stepped) = (false, false, false);
    }

    fn key(&mut self, class: &Arc<str>, site: Option<&Site>) -> u32 {
        let number = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let key = (Arc::clone(class), site.cloned());
        match self.keys.get(&key) {
            Some(known) => *known,
            None if self.keys.len() < MAX_KEYS => *self.keys.entry(key).or_insert(number),
            None => {
                self.unnamed = self.unnamed.saturating_add(1);
                NO_LOADER
            }
        }
    }
}

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

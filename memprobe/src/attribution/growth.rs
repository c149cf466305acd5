//! Growth from iteration to iteration: leak suspects.
//!
//! Each allocation group is sampled at the end of every step interval. Several intervals form an iteration,
//! if several optimizers step in turn; they are combined once their number is known. For a program without
//! iterations, time is cut into equal windows and each window is sampled at its lowest level. Short-lived
//! memory is absent at some moment of each window.

mod fit;
mod retainers;
mod series;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

pub use fit::Fit;
use retainers::SnapshotRetainers;
pub use retainers::{GrowthRetainer, RetainedGrowth, RetainerAmount};
use series::{MAX_STEPS, Series, SeriesLevel, SeriesSteps};

use super::AttributionLedger;
use super::allocation_groups::{AllocationGroup, AllocationGroups};
use super::groups::BlockChange;
use super::iterations::{IterationKind, IterationLine, Source};
use crate::event::{Bytes, DeviceIndex, Event, TimeNs};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{Analysis, Change, Ledger};

/// Length of the first windows: 1 ms, in nanoseconds.
const FIRST_WINDOW: u64 = 1_000_000;

/// Cap on stored level changes over all series of a track; above it pairs of steps are merged.
const MAX_CHANGES: usize = 1 << 22;

const MAX_SUSPECTS: usize = 1000;

/// Least growth of a suspect in bytes: eight of the smallest blocks.
const LEAST_GROWTH: u64 = 8 * 512;

/// Least growth of a suspect as a fraction of the device's peak: 1/10,000.
const LEAST_SHARE: u64 = 10_000;

/// Bytes held by each allocation group at each step.
#[derive(Clone, Debug)]
pub struct GrowthLedger {
    categories: AttributionLedger,
    ended: u64,
    groups: AllocationGroups<SeriesLevel>,
    intervals: Track,
    windows: Track,
    window: Window,
    devices: BTreeMap<DeviceIndex, OnDevice>,
    retainers: SnapshotRetainers,
}

#[derive(Clone, Debug, Default)]
struct OnDevice {
    allocated: u64,
    low: u64,
    peak: u64,
    intervals: Series,
    windows: Series,
}

#[derive(Clone, Debug)]
struct Window {
    start: Option<TimeNs>,
    /// Nanoseconds.
    length: u64,
    /// Lowest level of each group that changed in this window.
    lows: HashMap<usize, SeriesLevel>,
}

#[derive(Clone, Debug, Default)]
struct Track {
    steps: SeriesSteps,
    series: Vec<Series>,
    changes: usize,
    /// Groups whose last sample may differ from their current level.
    stale: HashSet<usize>,
}

impl Track {
    fn touch(&mut self, part: usize) {
        self.stale.insert(part);
    }

    /// Samples all groups; `level` gives the sample of a group from its current level.
    fn sample(
        &mut self,
        live: &AllocationGroups<SeriesLevel>,
        level: impl Fn(usize, SeriesLevel) -> SeriesLevel,
    ) {
        self.series.resize(live.values().len(), Series::default());
        let stale = std::mem::take(&mut self.stale);
        for part in stale {
            let (Some(series), Some(live)) = (self.series.get_mut(part), live.value(part)) else {
                continue;
            };
            if series.take(&self.steps, level(part, *live)) {
                self.changes += 1;
            }
            if *live != series.last() {
                self.stale.insert(part);
            }
        }
    }

    fn must_halve(&self) -> bool {
        self.steps.is_full() || (self.changes > MAX_CHANGES && self.steps.whole() > 32)
    }

    fn halve(&mut self) {
        self.changes = self.series.iter_mut().map(Series::halve).sum();
        self.steps.stride = self.steps.stride.saturating_mul(2);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepUnit {
    /// Iterations per step; levels are those at the end of intervals, the lowest of each step. A step has
    /// whole intervals, so this can be a fraction, even below 1.
    Iterations(f64),
    /// Nanoseconds of a window; its level is the lowest within it.
    Window(u64),
}

impl StepUnit {
    /// Iterations, or seconds, per step.
    pub fn per_step(self) -> f64 {
        match self {
            Self::Iterations(iterations) => iterations,
            Self::Window(nanoseconds) => nanoseconds as f64 / 1e9,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Growth {
    pub step: StepUnit,
    pub points: usize,
    /// Steps left out at the beginning, in which programs reach their size.
    pub left_out: usize,
    pub needed: usize,
    pub least: Bytes,
    /// Growth of the allocator's total; `None` if it does not clearly grow.
    pub total: Option<Rate>,
    pub knows_modules: bool,
    /// Growing lines, fastest first.
    pub lines: Vec<Suspect>,
    pub modules: Vec<Suspect>,
    pub tensors: Vec<Suspect>,
    /// Time of the heap snapshot behind the retainers; `None` without one.
    pub read: Option<TimeNs>,
    pub retained: RetainedGrowth,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Bytes per iteration, or per second.
    pub bytes: f64,
    /// Blocks per iteration, or per second; 0 for totals.
    pub blocks: f64,
    /// Share of the steps with growth, 0 to 1.
    pub grew: f64,
    /// Bytes at the first step fitted.
    pub first: Bytes,
    pub last: Bytes,
}

/// Line, module or tensor type that grows.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspect {
    pub rate: Rate,
    /// Allocation group that gained most bytes; it has the growing line, module or tensor type.
    pub part: AllocationGroup,
    /// Retainers at [`Growth::read`].
    pub retained: RetainedGrowth,
}

impl GrowthLedger {
    pub fn new(grouping: Grouping, line: Option<IterationLine>) -> Self {
        Self {
            categories: AttributionLedger::new(line),
            ended: 0,
            groups: AllocationGroups::new(grouping),
            intervals: Track::default(),
            windows: Track::default(),
            window: Window {
                start: None,
                length: FIRST_WINDOW,
                lows: HashMap::new(),
            },
            devices: BTreeMap::new(),
            retainers: SnapshotRetainers::default(),
        }
    }

    /// Updates the groups, without the step intervals.
    fn follow(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        let moment = ledger.moment(event);
        if let Some((_, now)) = &moment {
            self.pass_windows(now.time);
        }
        if let Event::BlockLabels(names) = event {
            self.retainers.take(names, &self.groups, ledger);
        }
        let lows = &mut self.window.lows;
        let (intervals, windows) = (&mut self.intervals, &mut self.windows);
        self.groups.apply(change, ledger, |group, entry, change| {
            let level = &mut entry.value;
            let low = lows.entry(group).or_insert(*level);
            level.change(change);
            *low = low.lower(*level);
            intervals.touch(group);
            windows.touch(group);
        });
        if let Some((device, now)) = moment {
            let allocated = now.totals.allocated.0;
            let device = self.devices.entry(device).or_insert_with(|| OnDevice {
                low: allocated,
                ..OnDevice::default()
            });
            device.allocated = allocated;
            device.low = device.low.min(allocated);
            device.peak = device.peak.max(allocated);
        }
    }

    /// Number of step intervals per iteration; `None` if iterations are unknown.
    pub fn intervals_per_iteration(&self) -> Option<f64> {
        let iterations = self.categories.iterations();
        let of_kind = |kinds: &[IterationKind]| {
            let rows = iterations.rows.iter();
            rows.filter(|row| kinds.contains(&row.kind)).count() as f64
        };
        let whole = of_kind(&[IterationKind::Whole]);
        if iterations.source == Source::Nothing || whole < 1.0 {
            return None;
        }
        let others = of_kind(&[IterationKind::Before, IterationKind::Evaluation]);
        let intervals = self.ended.saturating_sub(iterations.dropped) as f64;
        let each = ((intervals - others) / whole).max(1.0);
        // Step intervals before iterations were recognized, and evaluations in between, belong to no
        // iteration.
        let nearest = each.round();
        Some(if (each - nearest).abs() <= 0.15 * nearest {
            nearest
        } else {
            each
        })
    }

    fn end_interval(&mut self) {
        if self.intervals.must_halve() {
            self.intervals.halve();
            for device in self.devices.values_mut() {
                device.intervals.halve();
            }
        }
        self.intervals.sample(&self.groups, |_, live| live);
        for device in self.devices.values_mut() {
            let level = SeriesLevel {
                live: device.allocated,
                blocks: 0,
            };
            device.intervals.take(&self.intervals.steps, level);
        }
        self.intervals.steps.taken += 1;
    }

    fn pass_windows(&mut self, time: TimeNs) {
        let start = *self.window.start.get_or_insert(time);
        let passed = time.0.saturating_sub(start.0);
        while passed / self.window.length >= MAX_STEPS || self.windows.changes > MAX_CHANGES {
            // A window longer than the elapsed time gains nothing.
            if self.window.length > passed {
                break;
            }
            self.lengthen_windows();
        }
        while self.windows.steps.taken < passed / self.window.length {
            self.end_window();
        }
    }

    /// Merges pairs of windows. The current window is extended backward if it is the second of its pair.
    fn lengthen_windows(&mut self) {
        let taken = self.windows.steps.taken;
        if !taken.is_multiple_of(2) {
            self.reopen_last_window();
        }
        self.windows.halve();
        for device in self.devices.values_mut() {
            device.windows.halve();
        }
        self.windows.steps.stride = 1;
        self.windows.steps.taken = taken / 2;
        self.window.length = self.window.length.saturating_mul(2);
    }

    /// Carries the lows of the last finished window over to the current one.
    fn reopen_last_window(&mut self) {
        for (part, series) in self.windows.series.iter().enumerate() {
            let last = series.last();
            let Some(live) = self.groups.value(part) else {
                continue;
            };
            let low = self.window.lows.get(&part).unwrap_or(live);
            if last.live < low.live {
                self.window.lows.insert(part, last);
                self.windows.stale.insert(part);
            }
        }
        for device in self.devices.values_mut() {
            device.low = device.low.min(device.windows.last().live);
        }
    }

    fn end_window(&mut self) {
        let lows = std::mem::take(&mut self.window.lows);
        self.windows.sample(&self.groups, |part, live| {
            lows.get(&part).copied().unwrap_or(live)
        });
        for device in self.devices.values_mut() {
            let level = SeriesLevel {
                live: device.low,
                blocks: 0,
            };
            device.windows.take(&self.windows.steps, level);
            device.low = device.allocated;
        }
        self.windows.steps.taken += 1;
    }

    /// Growth on a device; `None` for an unknown device. Without `intervals_per_iteration` it fits time windows.
    pub fn growth(
        &self,
        device: DeviceIndex,
        intervals_per_iteration: Option<f64>,
    ) -> Option<Growth> {
        let on = self.devices.get(&device)?;
        let least = (on.peak / LEAST_SHARE).max(LEAST_GROWTH);
        let (track, total, look) = match intervals_per_iteration {
            Some(intervals) => (
                &self.intervals,
                &on.intervals,
                StepSelection::at_iterations(&self.intervals, intervals, least),
            ),
            None => {
                let look = StepSelection::at_windows(&self.windows, self.window.length, least);
                (&self.windows, &on.windows, look)
            }
        };
        let levels = |name: usize| {
            let levels = look.levels(track.series.get(name)?);
            let changed = levels.windows(2).any(|pair| pair[0] != pair[1]);
            changed.then_some(levels)
        };
        let grown = || {
            let parts = self.groups.on(device);
            parts.filter_map(|(name, entry)| Some((&entry.group, levels(name)?)))
        };
        let lines = self.suspects(device, &look, grown, |part| &part.origin.site);
        let modules = self.suspects(device, &look, grown, |part| &part.origin.place);
        let tensors = self.suspects(device, &look, grown, |part| &part.what);
        let sites = lines.iter().map(|line| &line.part.origin.site);
        let suspected: HashSet<&Site> = sites.collect();
        let of_lines = self.groups.on(device);
        let of_lines = of_lines.filter(|(_, entry)| suspected.contains(&entry.group.origin.site));
        let retained = self.retainers.of(of_lines.map(|(name, _)| name));
        Some(Growth {
            step: look.step,
            points: look.whole - look.left_out,
            left_out: look.left_out,
            needed: fit::FEWEST_STEPS,
            least: Bytes(look.least),
            total: look.rate(&look.levels(total)),
            knows_modules: self.groups.knows_modules(),
            lines,
            modules,
            tensors,
            read: self.retainers.time,
            retained,
        })
    }

    /// Suspects of a device by the key `who` of their groups, with their retainers.
    fn suspects<'a, K, Grown>(
        &'a self,
        device: DeviceIndex,
        look: &StepSelection,
        grown: impl Fn() -> Grown,
        who: impl Fn(&AllocationGroup) -> &K,
    ) -> Vec<Suspect>
    where
        K: Eq + Hash + 'a,
        Grown: Iterator<Item = (&'a AllocationGroup, Vec<SeriesLevel>)>,
    {
        let suspects = look.suspects(grown, &who);
        let variables = &self.categories.root_variables;
        let named = |suspect: Suspect| Suspect {
            part: variables.named_group(&suspect.part),
            ..suspect
        };
        if self.retainers.time.is_none() || suspects.is_empty() {
            return suspects.into_iter().map(named).collect();
        }
        let mut parts: HashMap<&K, Vec<usize>> = HashMap::new();
        for (name, entry) in self.groups.on(device) {
            parts.entry(who(&entry.group)).or_default().push(name);
        }
        let with_retainers = suspects.into_iter().map(|suspect| {
            let parts = parts.get(who(&suspect.part)).into_iter().flatten();
            let retained = self.retainers.of(parts.copied());
            Suspect {
                retained,
                ..named(suspect)
            }
        });
        with_retainers.collect()
    }
}

impl Analysis for GrowthLedger {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.categories.apply(event, change, ledger);
        if self.categories.intervals_ended() > self.ended {
            self.ended = self.categories.intervals_ended();
            self.end_interval();
        }
        self.follow(event, change, ledger);
    }
}

impl SeriesLevel {
    fn change(&mut self, change: BlockChange) {
        match change {
            BlockChange::Added(size) => {
                self.live = self.live.saturating_add(size.0);
                self.blocks = self.blocks.saturating_add(1);
            }
            BlockChange::Removed(size) => {
                self.live = self.live.saturating_sub(size.0);
                self.blocks = self.blocks.saturating_sub(1);
            }
            BlockChange::NotTracked(_) => {}
        }
    }
}

struct StepSelection {
    step: StepUnit,
    /// Samples per step.
    together: usize,
    whole: usize,
    left_out: usize,
    /// Least growth in bytes.
    least: u64,
}

impl StepSelection {
    fn at_iterations(track: &Track, intervals_per_iteration: f64, least: u64) -> Self {
        let stride = track.steps.stride as f64;
        let intervals = intervals_per_iteration.max(1.0);
        // Each step spans a whole iteration, because levels alternate between its intervals.
        let together = ((intervals / stride).round() as usize).max(1);
        let whole = track.steps.whole() / together;
        Self {
            step: StepUnit::Iterations(together as f64 * stride / intervals),
            together,
            whole,
            left_out: whole.div_ceil(10).max(2).min(whole),
            least,
        }
    }

    fn at_windows(track: &Track, length: u64, least: u64) -> Self {
        let whole = track.steps.whole();
        Self {
            step: StepUnit::Window(length),
            together: 1,
            whole,
            left_out: whole.div_ceil(4),
            least,
        }
    }

    fn levels(&self, series: &Series) -> Vec<SeriesLevel> {
        let levels = series.levels(self.whole * self.together);
        let steps = levels.chunks_exact(self.together).skip(self.left_out);
        let lowest = |step: &[SeriesLevel]| step.iter().copied().reduce(SeriesLevel::lower);
        steps.filter_map(lowest).collect()
    }

    fn rate(&self, levels: &[SeriesLevel]) -> Option<Rate> {
        let of = |figure: fn(&SeriesLevel) -> u64| levels.iter().map(figure).collect::<Vec<_>>();
        let live = of(|level| level.live);
        let fit = fit::fit(&live)?;
        let steps = self.whole.saturating_sub(self.left_out + 1) as f64;
        let (first, last) = (*live.first()?, *live.last()?);
        (fit.slope * steps >= self.least as f64).then(|| Rate {
            bytes: fit.slope / self.step.per_step(),
            blocks: fit::theil_sen(&of(|level| level.blocks)) / self.step.per_step(),
            grew: fit.grew,
            first: Bytes(first),
            last: Bytes(last),
        })
    }

    /// Fits the sums of groups with equal `who`. Only the [`MAX_SUSPECTS`] largest gains are fitted.
    fn suspects<'a, K, Grown>(
        &self,
        grown: impl Fn() -> Grown,
        who: impl Fn(&AllocationGroup) -> &K,
    ) -> Vec<Suspect>
    where
        K: Eq + Hash + 'a,
        Grown: Iterator<Item = (&'a AllocationGroup, Vec<SeriesLevel>)>,
    {
        let mut gains: HashMap<&K, i128> = HashMap::new();
        for (part, levels) in grown() {
            *gains.entry(who(part)).or_default() += gain(&levels);
        }
        let mut gains: Vec<_> = gains.into_iter().filter(|(_, gain)| *gain > 0).collect();
        gains.sort_by_key(|(_, gain)| Reverse(*gain));
        gains.truncate(MAX_SUSPECTS);
        let groups = gains.into_iter().map(|(who, _)| (who, Group::default()));
        let mut groups: HashMap<&K, Group<'a>> = groups.collect();
        for (part, levels) in grown() {
            if let Some(group) = groups.get_mut(who(part)) {
                group.add(part, &levels);
            }
        }
        let suspects = groups.into_values().filter_map(|group| {
            Some(Suspect {
                rate: self.rate(&group.levels)?,
                part: group.most?.1.clone(),
                retained: RetainedGrowth::default(),
            })
        });
        let mut suspects: Vec<_> = suspects.collect();
        suspects.sort_by(|one, other| other.rate.bytes.total_cmp(&one.rate.bytes));
        suspects
    }
}

#[derive(Default)]
struct Group<'a> {
    levels: Vec<SeriesLevel>,
    /// Group with the largest gain, and that gain in bytes.
    most: Option<(i128, &'a AllocationGroup)>,
}

impl<'a> Group<'a> {
    fn add(&mut self, part: &'a AllocationGroup, levels: &[SeriesLevel]) {
        self.levels.resize(levels.len(), SeriesLevel::default());
        for (sum, level) in self.levels.iter_mut().zip(levels) {
            sum.live = sum.live.saturating_add(level.live);
            sum.blocks = sum.blocks.saturating_add(level.blocks);
        }
        let gain = gain(levels);
        if self.most.is_none_or(|(most, _)| gain > most) {
            self.most = Some((gain, part));
        }
    }
}

/// Bytes gained between the first and the last step.
fn gain(levels: &[SeriesLevel]) -> i128 {
    let of = |level: Option<&SeriesLevel>| level.map_or(0, |level| i128::from(level.live));
    of(levels.last()) - of(levels.first())
}

#[cfg(test)]
mod tests;

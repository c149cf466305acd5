//! Memory of one device by category and by stack, now and at recorded moments.

use hashbrown::HashMap;

use super::category::{CategoryRule, Composition};
use super::high_water_mark::{AtPeak, HeldBytes};
use super::layer_history::{LayerHistory, LayerKey, Shift};
use super::lifecycle::{Lifecycle, is_saved};
use super::moments::{Moment, Revision};
use super::phase::{ClassifiedPhase, Phase};
use crate::event::{Bytes, TimeNs};
use crate::ledger::TotalsSample;
use crate::ledger::snapshot::Timeline;

/// Caps on stored differences between step intervals, for [`StackHistory::Everything`] and [`StackHistory::Latest`].
/// Above the cap the oldest intervals are dropped.
const MAX_DIFFERENCES: [usize; 2] = [1 << 22, 1 << 18];

/// Blocks counted by allocating stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StackHistory {
    /// Activations only, without history.
    #[default]
    Saved,
    /// All blocks, now and in the latest step intervals.
    Latest,
    /// All blocks, now and in all step intervals.
    Everything,
}

impl StackHistory {
    const fn most_differences(self) -> usize {
        match self {
            Self::Saved => 0,
            Self::Latest => MAX_DIFFERENCES[1],
            Self::Everything => MAX_DIFFERENCES[0],
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct DeviceAttribution {
    pub(super) now: Moment,
    pub(super) peak: Moment,
    /// Bytes without a known category when the peak was reached.
    unknown_then: u64,
    /// Times the peak rose: the number that rows compare with.
    pub(super) peaks: u64,
    pub(super) timeline: Timeline<Moment>,
    pub(super) blocks: [u64; CategoryRule::ALL.len()],
    /// Blocks by the phase that allocated them, and allocated bytes by phase and rule.
    pub(super) phases: HashMap<Phase, HeldBytes>,
    pub(super) judged: HashMap<ClassifiedPhase, u64>,
    /// Bytes held, by allocating stack and category.
    pub(super) held: LayerHistory,
    follows: StackHistory,
    /// Sum of all categories, in bytes.
    known: u64,
}

impl DeviceAttribution {
    /// Bytes of a copy.
    pub(super) fn copy_bytes(&self) -> u64 {
        let points = self.timeline.points.len() * size_of::<Moment>();
        points as u64 + self.held.copy_bytes()
    }

    /// State before any block is known, in step interval `interval`.
    pub(super) fn new(start: TotalsSample, follows: StackHistory, interval: u64) -> Self {
        let mut device = Self {
            now: Moment::default(),
            peak: Moment::default(),
            unknown_then: 0,
            timeline: Timeline::default(),
            peaks: 0,
            blocks: [0; CategoryRule::ALL.len()],
            phases: HashMap::new(),
            judged: HashMap::new(),
            held: LayerHistory::new(interval, follows.most_differences()),
            follows,
            known: 0,
        };
        device.take_totals(start);
        device.peak.clone_from(&device.now);
        device.unknown_then = device.now.unknown();
        device.timeline = Timeline::new(start.time, device.now.clone());
        device
    }

    fn take_totals(&mut self, totals: TotalsSample) {
        self.now.time = self.now.time.max(totals.time);
        self.now.totals = totals.totals;
        self.now.composition.unaccounted = totals.unaccounted;
        self.balance();
    }

    /// Counts all allocated bytes without a category as from before attach.
    fn balance(&mut self) {
        let composition = &mut self.now.composition;
        let unaccounted = i128::from(composition.unaccounted) + i128::from(self.known);
        let rest = i128::from(self.now.totals.allocated.0) - unaccounted;
        composition.before_attach = u64::try_from(rest).unwrap_or(0);
    }

    pub(super) fn pass(&mut self, time: TimeNs) {
        self.timeline.extend_to(time, &self.now);
    }

    pub(super) fn count(&mut self, judged: ClassifiedPhase, size: Bytes) {
        let bytes = self.judged.entry(judged).or_default();
        *bytes = bytes.saturating_add(size.0);
    }

    pub(super) fn hold(&mut self, block: &Lifecycle, size: u64, judged: ClassifiedPhase) {
        self.add(block, size, judged, AtPeak::Gone);
        if let Some(place) = self.place(block.origin, block.rule) {
            self.held.add(place, size, self.peaks);
        }
    }

    fn add(&mut self, block: &Lifecycle, size: u64, judged: ClassifiedPhase, was: AtPeak) {
        self.known = self.known.saturating_add(size);
        self.now.composition.add(block.rule, size);
        self.blocks[block.rule as usize] += 1;
        let row = self.phases.entry(judged.phase).or_default();
        row.add(size, self.peaks, was);
    }

    pub(super) fn release(&mut self, block: &Lifecycle, size: u64) {
        self.known = self.known.saturating_sub(size);
        self.now.composition.take(block.rule, size);
        let blocks = &mut self.blocks[block.rule as usize];
        *blocks = blocks.saturating_sub(1);
        if let Some(row) = self.phases.get_mut(&block.phase) {
            row.release(size, self.peaks);
        }
        if let Some(place) = self.place(block.origin, block.rule) {
            self.held.release(place, size, self.peaks);
        }
    }

    /// Adds a live block that counted as from before attach: it was live at all moments since. [`Self::name_past`]
    /// corrects those of the whole device.
    pub(super) fn name(&mut self, block: &Lifecycle, size: u64, judged: ClassifiedPhase) {
        self.add(block, size, judged, AtPeak::Live);
        self.shift(block, size, [None, self.place(block.origin, block.rule)], 0);
        self.balance();
    }

    /// Gives blocks from before attach their category at the recorded moments.
    pub(super) fn name_past(&mut self, blocks: &Composition) {
        let points = self.timeline.points.iter_mut();
        points
            .chain([&mut self.peak])
            .for_each(|moment| moment.name(blocks));
    }

    /// Changes the rule of a live block, also at past moments. Step intervals before `oldest` stay unchanged.
    pub(super) fn revise(&mut self, block: &Lifecycle, revision: Revision, oldest: u64) {
        let Revision { size, from, to, .. } = revision;
        self.now.composition.change(from, to, size);
        self.peak.revise(revision);
        self.timeline.revise(revision);
        let blocks = &mut self.blocks[from as usize];
        *blocks = blocks.saturating_sub(1);
        self.blocks[to as usize] += 1;
        let origin = block.origin;
        let places = [self.place(origin, from), self.place(origin, to)];
        self.shift(block, size, places, oldest);
    }

    pub(super) fn rename(&mut self, block: &Lifecycle, size: u64, origin: u32) {
        let from = self.place(block.origin, block.rule);
        self.shift(block, size, [from, self.place(origin, block.rule)], 0);
    }

    /// Key under which a block is counted by stack; `None` if it is not counted.
    fn place(&self, origin: u32, rule: CategoryRule) -> Option<LayerKey> {
        let counts = self.follows != StackHistory::Saved || is_saved(rule);
        counts.then_some((origin, rule.category()))
    }

    fn shift(&mut self, block: &Lifecycle, size: u64, places: [Option<LayerKey>; 2], oldest: u64) {
        if places[0] == places[1] {
            return;
        }
        let was = if self.peak.ordinal >= block.born {
            AtPeak::Live
        } else {
            AtPeak::Gone
        };
        let shift = Shift {
            size,
            born: block.born,
            peak: self.peaks,
            was,
            oldest,
        };
        self.held.shift(places, shift);
    }

    /// Takes the totals of the ledger after event number `ordinal`. Returns true if the device's peak is now.
    pub(super) fn report(&mut self, totals: TotalsSample, ordinal: u64) -> bool {
        self.now.ordinal = ordinal;
        self.take_totals(totals);
        self.timeline.raise(&self.now);
        let is_peak = self.now.is_above(&self.peak) && self.is_known_better();
        if is_peak {
            self.peaks += 1;
            self.peak.clone_from(&self.now);
            self.unknown_then = self.now.unknown();
        }
        is_peak
    }

    /// False if the bytes of the peak are as many as now, and were known no worse when they were reached. Categories
    /// that were likely then may be unknown by now, as those of the current moment will be.
    fn is_known_better(&self) -> bool {
        let is_higher = self.now.totals.allocated > self.peak.totals.allocated;
        is_higher || self.now.unknown() < self.unknown_then
    }
}

//! Memory of one device by category and by stack, now and at recorded moments.

use std::collections::HashMap;

use super::category::CategoryRule;
use super::layer_history::{LayerHistory, LayerKey, Shift};
use super::lifecycle::{Block, is_saved};
use super::moments::{Divided, Moment, Revision};
use super::peak;
use super::phase::{ClassifiedPhase, Phase};
use super::rows::{AtPeak, Holding};
use crate::event::{Action, AtAttach, Bytes, MemoryEvent, TimeNs, Totals};
use crate::ledger::device::ADDRESS_LIMIT;

/// Caps on stored differences between step intervals, for [`StackHistory::Everything`] and [`StackHistory::Latest`].
/// Above the cap the oldest intervals are dropped.
const MOST_DIFFERENCES: [usize; 2] = [1 << 22, 1 << 18];

/// Blocks counted by allocating stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackHistory {
    /// Activations only, without history.
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
            Self::Latest => MOST_DIFFERENCES[1],
            Self::Everything => MOST_DIFFERENCES[0],
        }
    }
}

#[derive(Debug)]
pub(super) struct Device {
    pub(super) now: Moment,
    pub(super) peak: Moment,
    /// Times the peak rose: the number that rows compare with.
    pub(super) peaks: u64,
    pub(super) divided: Divided,
    pub(super) blocks: [u64; CategoryRule::ALL.len()],
    /// Blocks by the phase that allocated them, and allocated bytes by phase and rule.
    pub(super) phases: HashMap<Phase, Holding>,
    pub(super) judged: HashMap<ClassifiedPhase, u64>,
    /// Bytes held, by allocating stack and category.
    pub(super) held: LayerHistory,
    follows: StackHistory,
    /// Sum of all categories, in bytes.
    known: u64,
}

impl Device {
    /// State found at attach, in step interval `interval`.
    pub(super) fn found(found: &AtAttach, follows: StackHistory, interval: u64) -> Self {
        Self::with(found.totals, found.time, follows, interval)
    }

    /// State just before the first event seen on the device.
    pub(super) fn before(event: &MemoryEvent, follows: StackHistory, interval: u64) -> Self {
        Self::with(event.totals_before(), event.time, follows, interval)
    }

    /// Current state according to the [`crate::ledger::Model`], for a ledger that starts late.
    pub(super) fn late(is: &peak::DeviceTotals, follows: StackHistory, interval: u64) -> Self {
        let mut device = Self::with(is.totals, is.time, follows, interval);
        let allocated = i128::from(is.totals.allocated.0);
        let before = (allocated - i128::from(is.unaccounted)).clamp(0, ADDRESS_LIMIT.into());
        let composition = &mut device.now.composition;
        composition.before_attach = u64::try_from(before).unwrap_or(0);
        composition.unaccounted = i64::try_from(allocated - before).unwrap_or(0);
        device.peak = device.now.clone();
        device.divided = Divided::new(device.now.clone());
        device
    }

    fn with(totals: Totals, time: TimeNs, follows: StackHistory, interval: u64) -> Self {
        let mut now = Moment {
            time,
            totals,
            ..Moment::default()
        };
        now.composition.before_attach = totals.allocated.0;
        Self {
            peak: now.clone(),
            divided: Divided::new(now.clone()),
            now,
            peaks: 0,
            blocks: [0; CategoryRule::ALL.len()],
            phases: HashMap::new(),
            judged: HashMap::new(),
            held: LayerHistory::new(interval, follows.most_differences()),
            follows,
            known: 0,
        }
    }

    /// Extends the timeline with the current state up to `time`.
    pub(super) fn pass(&mut self, time: TimeNs) {
        self.divided.extend_to(time, &self.now);
    }

    /// Counts an allocation by phase and rule.
    pub(super) fn count(&mut self, judged: ClassifiedPhase, size: Bytes) {
        let bytes = self.judged.entry(judged).or_default();
        *bytes = bytes.saturating_add(size.0);
    }

    /// Adds a live block.
    pub(super) fn hold(&mut self, block: &Block, judged: ClassifiedPhase) {
        self.known = self.known.saturating_add(block.size);
        self.now.composition.add(block.rule, block.size);
        self.blocks[block.rule as usize] += 1;
        let row = self.phases.entry(judged.phase).or_default();
        row.add(block.size, self.peaks, AtPeak::Gone);
        if let Some(place) = self.place(block.origin, block.rule) {
            self.held.add(place, block.size, self.peaks);
        }
    }

    /// Removes a freed block.
    pub(super) fn release(&mut self, block: &Block) {
        self.known = self.known.saturating_sub(block.size);
        self.now.composition.take(block.rule, block.size);
        let blocks = &mut self.blocks[block.rule as usize];
        *blocks = blocks.saturating_sub(1);
        if let Some(row) = self.phases.get_mut(&block.phase) {
            row.release(block.size, self.peaks);
        }
        if let Some(place) = self.place(block.origin, block.rule) {
            self.held.release(place, block.size, self.peaks);
        }
    }

    /// Subtracts a freed block that was live at attach.
    pub(super) fn free_from_before(&mut self, size: u64) {
        let before = &mut self.now.composition.before_attach;
        *before = before.saturating_sub(size);
    }

    /// Changes the rule of a live block, also at past moments. Step intervals before `oldest` stay unchanged.
    pub(super) fn revise(&mut self, block: &Block, revision: Revision, oldest: u64) {
        let Revision { size, from, to, .. } = revision;
        self.now.composition.change(from, to, size);
        self.peak.revise(revision);
        self.divided.revise(revision);
        let blocks = &mut self.blocks[from as usize];
        *blocks = blocks.saturating_sub(1);
        self.blocks[to as usize] += 1;
        let origin = block.origin;
        let places = [self.place(origin, from), self.place(origin, to)];
        self.shift(block, places, oldest);
    }

    /// Counts a live block under another stack.
    pub(super) fn rename(&mut self, block: &Block, origin: u32) {
        let from = self.place(block.origin, block.rule);
        self.shift(block, [from, self.place(origin, block.rule)], 0);
    }

    /// Key under which a block is counted by stack; `None` if it is not counted.
    fn place(&self, origin: u32, rule: CategoryRule) -> Option<LayerKey> {
        let counts = self.follows != StackHistory::Saved || is_saved(rule);
        counts.then_some((origin, rule.category()))
    }

    fn shift(&mut self, block: &Block, places: [Option<LayerKey>; 2], oldest: u64) {
        if places[0] == places[1] {
            return;
        }
        let was = match self.peak.ordinal >= block.born {
            true => AtPeak::Live,
            false => AtPeak::Gone,
        };
        let shift = Shift {
            peak: self.peaks,
            was,
            oldest,
        };
        self.held.shift(block, places, shift);
    }

    /// Updates the totals with those of an event, in the same way as the model.
    pub(super) fn report(&mut self, event: &MemoryEvent, ordinal: u64) {
        let allocated = self.now.totals.allocated.0;
        let expected = match event.action {
            Action::Alloc => allocated.saturating_add(event.size.0),
            Action::Free => allocated.saturating_sub(event.size.0),
            _ => allocated,
        };
        let predicted = Totals {
            allocated: Bytes(expected.min(ADDRESS_LIMIT)),
            reserved: self.now.totals.reserved,
        };
        self.now.totals = event.totals.unwrap_or(predicted);
        self.now.time = self.now.time.max(event.time);
        self.now.ordinal = ordinal;
        let known = i128::from(self.known) + i128::from(self.now.composition.before_attach);
        let rest = i128::from(self.now.totals.allocated.0) - known;
        self.now.composition.unaccounted = rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        if self.peak.rise_to(&self.now) {
            self.peaks += 1;
        }
        self.divided.rise(&self.now);
    }
}

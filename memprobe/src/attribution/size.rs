//! Model size: memory held by modules, and memory allocated by them in one iteration.
//!
//! Allocations are counted by stack, kind and step interval. The iteration is chosen later, once its
//! intervals are known. A late change of a block's category is applied to the interval that allocated it.

mod table;

pub use table::{ModelSize, ModuleSize, Sizes};

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::category::Category;
use super::lifecycle::{Lifecycle, TensorInfo};
use super::module_aliases::HoldingModule;
use super::phase::Phase;
use crate::event::tensors::TensorKind;
use crate::event::{DeviceIndex, LabeledBlock};
use crate::ledger::{BlockId, Ledger, PerBlock};

/// Cap on counters over all step intervals; beyond it the oldest intervals are dropped.
const MAX_SUMS: usize = 1 << 18;

const NOWHERE: u32 = 0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub blocks: u64,
    /// Bytes of the tensors in the blocks if known; otherwise as `rounded`.
    pub bytes: u64,
    /// Bytes as rounded by the allocator.
    pub rounded: u64,
}

impl Amount {
    fn of(bytes: u64, rounded: u64) -> Self {
        Self {
            blocks: 1,
            bytes,
            rounded,
        }
    }

    pub fn and(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_add(other.blocks),
            bytes: self.bytes.saturating_add(other.bytes),
            rounded: self.rounded.saturating_add(other.rounded),
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(other.blocks),
            bytes: self.bytes.saturating_sub(other.bytes),
            rounded: self.rounded.saturating_sub(other.rounded),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Made {
    /// Forward pass or evaluation, not known to be saved for a backward pass.
    Unsaved,
    /// Forward pass, saved for the backward pass.
    Saved,
    Recomputed,
    /// Backward pass, without gradients of parameters.
    Backward,
    Gradient,
    /// Not an intermediate variable of the model.
    Other,
}

impl Made {
    fn of(phase: Phase, category: Category) -> Self {
        match (category, phase) {
            (Category::Gradient, _) => Self::Gradient,
            (
                Category::Parameter
                | Category::OptimizerState
                | Category::Input
                | Category::Workspace,
                _,
            ) => Self::Other,
            (_, Phase::Recompute) => Self::Recomputed,
            (_, Phase::Backward) => Self::Backward,
            (Category::Activation, _) => Self::Saved,
            (_, Phase::Forward | Phase::Evaluation) => Self::Unsaved,
            (_, Phase::OptimizerStep | Phase::DataLoading | Phase::Other) => Self::Other,
        }
    }
}

#[derive(Clone, Debug)]
struct IntervalAllocations {
    number: u64,
    /// Number of its first allocation event.
    born: u64,
    /// True if a block of it may be a tensor or a workspace ([`TensorInfo::Unknown`]).
    is_uncertain: bool,
    made: HashMap<(DeviceIndex, u32, Made), Amount>,
}

/// Parameters and buffers by device and module.
type SizesByModule = BTreeMap<(DeviceIndex, Option<HoldingModule>), ModuleSize>;

/// Allocations of the latest step intervals, and memory held by modules.
#[derive(Clone, Debug, Default)]
pub(super) struct AllocationCounts {
    intervals: VecDeque<IntervalAllocations>,
    sums: usize,
    forgotten: u64,
    /// Bytes of the tensor in each live block, if known.
    asked: PerBlock<u64>,
    /// Heap snapshot in which modules held most, because a program takes its model apart before it ends.
    /// `None` before the first.
    pub(super) module_sizes: Option<SizesByModule>,
    reading: SizesByModule,
}

impl AllocationCounts {
    pub(super) fn make(&mut self, id: BlockId, life: &Lifecycle, interval: u64, ledger: &Ledger) {
        if self
            .intervals
            .back()
            .is_none_or(|last| last.number != interval)
        {
            self.intervals.push_back(IntervalAllocations {
                number: interval,
                born: life.born,
                is_uncertain: false,
                made: HashMap::new(),
            });
        }
        if let Some(current) = self.intervals.back_mut() {
            current.is_uncertain |= life.tensor_info == TensorInfo::Unknown;
        }
        let block = ledger.block(id);
        let purpose = ledger.purpose(block.purpose);
        let requested = purpose.and_then(|purpose| purpose.tensor()?.requested);
        // A tensor larger than the block is not its content.
        let bytes = requested.filter(|bytes| *bytes <= block.size);
        match bytes {
            Some(bytes) => self.asked.insert(id, bytes.0),
            None => self.release(id),
        }
        let made = Made::of(life.phase, life.rule.category());
        let amount = Amount::of(bytes.unwrap_or(block.size).0, block.size.0);
        let at = self.intervals.len().saturating_sub(1);
        self.count(at, (block.device, life.origin, made), amount);
        self.forget();
    }

    pub(super) fn release(&mut self, id: BlockId) {
        self.asked.remove(id);
    }

    /// Moves an allocation to the kind of its new category.
    pub(super) fn revise(&mut self, id: BlockId, life: &Lifecycle, to: Category, ledger: &Ledger) {
        let from = Made::of(life.phase, life.rule.category());
        let to = Made::of(life.phase, to);
        let (Some(at), true) = (self.interval_of(life.born), from != to) else {
            return;
        };
        let (device, amount) = (ledger.block(id).device, self.amount(id, ledger));
        let made = &mut self.intervals[at].made;
        if let Some(sum) = made.get_mut(&(device, life.origin, from)) {
            *sum = sum.without(amount);
            self.count(at, (device, life.origin, to), amount);
        }
    }

    /// Index of the interval in which event number `born` allocated; `None` if it was dropped.
    fn interval_of(&self, born: u64) -> Option<usize> {
        let after = self
            .intervals
            .partition_point(|interval| interval.born <= born);
        after.checked_sub(1)
    }

    pub(super) fn begin_reading(&mut self) {
        self.reading = BTreeMap::new();
    }

    pub(super) fn name(&mut self, id: BlockId, named: &LabeledBlock, ledger: &Ledger) {
        let amount = self.amount(id, ledger);
        let sizes = self.reading.entry((named.device, HoldingModule::of(named)));
        let sum = match named.kind {
            Some(TensorKind::Parameter) => &mut sizes.or_default().parameters,
            Some(TensorKind::Buffer) => &mut sizes.or_default().buffers,
            _ => return,
        };
        *sum = sum.and(amount);
    }

    /// Ends the heap snapshot. It replaces the stored one if modules hold no less in it.
    pub(super) fn end_reading(&mut self) {
        let reading = std::mem::take(&mut self.reading);
        let bytes = |sizes: &SizesByModule| {
            let each = sizes.values();
            let each = each.map(|sizes| sizes.parameters.and(sizes.buffers).rounded);
            each.fold(0, u64::saturating_add)
        };
        let most = self.module_sizes.as_ref().map_or(0, bytes);
        if !reading.is_empty() && bytes(&reading) >= most {
            self.module_sizes = Some(reading);
        }
    }

    fn amount(&self, id: BlockId, ledger: &Ledger) -> Amount {
        let rounded = ledger.block(id).size.0;
        Amount::of(self.asked.get(id).copied().unwrap_or(rounded), rounded)
    }

    fn count(&mut self, interval: usize, key: (DeviceIndex, u32, Made), amount: Amount) {
        let Some(interval) = self.intervals.get_mut(interval) else {
            return;
        };
        let (device, _, made) = key;
        let has_capacity = interval.made.len() < MAX_SUMS || interval.made.contains_key(&key);
        let key = if has_capacity {
            key
        } else {
            (device, NOWHERE, made)
        };
        let before = interval.made.len();
        let sum = interval.made.entry(key).or_default();
        *sum = sum.and(amount);
        self.sums += interval.made.len() - before;
    }

    fn forget(&mut self) {
        while self.sums > MAX_SUMS && self.intervals.len() > 1 {
            if let Some(oldest) = self.intervals.pop_front() {
                self.sums = self.sums.saturating_sub(oldest.made.len());
                self.forgotten = self.forgotten.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests;

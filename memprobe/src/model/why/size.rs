//! How large a model is: what its modules keep, and what they make in one iteration.
//!
//! What is made is counted by the stack that asked for it and by what it is for, lap by lap, so that an iteration can be chosen once it
//! is known which laps make one. What a block is for is often known only later: it is then put right in the lap that it was made in.

mod table;

pub use table::{ModelSize, Size, Sizes};

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::category::Category;
use super::fate::{Block, Key};
use super::phase::Phase;
use crate::event::{DeviceIndex, NamedBlock};
use crate::tensors::TensorKind;

/// Sums that are kept of all laps together; of older laps they are forgotten.
const MOST_SUMS: usize = 1 << 18;

/// The origin of what nothing is known of.
const NOWHERE: u32 = 0;

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Blocks of the allocator.
    pub blocks: u64,
    /// Bytes of the tensors in them, where those are known; otherwise as `rounded`.
    pub bytes: u64,
    /// Bytes as the allocator rounded them.
    pub rounded: u64,
}

impl Amount {
    /// One block.
    fn of(bytes: u64, rounded: u64) -> Self {
        Self {
            blocks: 1,
            bytes,
            rounded,
        }
    }

    /// Both together.
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

/// What a block that is made counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Made {
    /// By a forward pass, and gone before the backward pass; or not known to be saved for it.
    Passing,
    /// By a forward pass, and saved for the backward pass.
    Saved,
    /// By a forward pass once more.
    Recomputed,
    /// By a backward pass; no gradient of a parameter.
    Backward,
    /// The gradient of a parameter.
    Gradient,
    /// No variable of the model.
    Beside,
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
            ) => Self::Beside,
            (_, Phase::Recompute) => Self::Recomputed,
            (_, Phase::Backward) => Self::Backward,
            (Category::Activation, _) => Self::Saved,
            (_, Phase::Forward | Phase::Evaluation) => Self::Passing,
            (_, Phase::OptimizerStep | Phase::DataLoading | Phase::Other) => Self::Beside,
        }
    }
}

/// What was made in a lap.
#[derive(Debug)]
struct Lap {
    number: u64,
    /// The event before which it began.
    born: u64,
    made: HashMap<(DeviceIndex, u32, Made), Amount>,
}

/// What a module keeps, by the process's own objects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    parameters: Amount,
    buffers: Amount,
}

/// What modules keep on a device, by the path that the process's own objects give them.
type KeptByModule = BTreeMap<(DeviceIndex, Option<Arc<str>>), Kept>;

/// What was made in the last laps, and what is kept.
#[derive(Debug, Default)]
pub(super) struct Making {
    laps: VecDeque<Lap>,
    sums: usize,
    /// Laps that are kept no more.
    forgotten: u64,
    /// Bytes of the tensor in each live block, where they are known.
    asked: HashMap<Key, u64>,
    /// What modules kept when the process's objects were read and they kept most: later a program that ends takes its
    /// model apart. `None` until any did.
    pub(super) kept: Option<KeptByModule>,
    /// What they keep by the reading that is being taken.
    reading: KeptByModule,
}

impl Making {
    /// A block is made, for a tensor of so many bytes where there is one.
    pub(super) fn make(&mut self, key: Key, block: &Block, asked: Option<u64>, lap: u64) {
        if self.laps.back().is_none_or(|last| last.number != lap) {
            self.laps.push_back(Lap {
                number: lap,
                born: block.born,
                made: HashMap::new(),
            });
        }
        // A tensor that does not fit is not what the block is for.
        let bytes = asked.filter(|asked| *asked <= block.size);
        match bytes {
            Some(bytes) => self.asked.insert(key, bytes),
            None => self.asked.remove(&key),
        };
        let made = Made::of(block.phase, block.rule.category());
        let amount = Amount::of(bytes.unwrap_or(block.size), block.size);
        let at = self.laps.len().saturating_sub(1);
        self.count(at, (key.0, block.origin, made), amount);
        self.forget();
    }

    /// A block is gone.
    pub(super) fn release(&mut self, key: &Key) {
        self.asked.remove(key);
    }

    /// What a live block is for turns out to be something else.
    pub(super) fn revise(&mut self, key: Key, block: &Block, to: Category) {
        let from = Made::of(block.phase, block.rule.category());
        let to = Made::of(block.phase, to);
        let lap = self.laps.iter().rposition(|lap| lap.born <= block.born);
        let (Some(at), true) = (lap, from != to) else {
            return;
        };
        let amount = Amount::of(self.bytes(&key, block.size), block.size);
        if let Some(sum) = self.laps[at].made.get_mut(&(key.0, block.origin, from)) {
            *sum = sum.without(amount);
            self.count(at, (key.0, block.origin, to), amount);
        }
    }

    /// The process's objects were read: they say the following.
    pub(super) fn begin_reading(&mut self) {
        self.reading = BTreeMap::new();
    }

    /// They say this of a block.
    pub(super) fn name(&mut self, named: &NamedBlock) {
        let key = (named.device, named.addr);
        let amount = Amount::of(self.bytes(&key, named.size.0), named.size.0);
        let kept = self.reading.entry((named.device, named.module.clone()));
        let sum = match named.kind {
            Some(TensorKind::Parameter) => &mut kept.or_default().parameters,
            Some(TensorKind::Buffer) => &mut kept.or_default().buffers,
            _ => return,
        };
        *sum = sum.and(amount);
    }

    /// That was all: it counts where modules keep no less than by an earlier reading.
    pub(super) fn end_reading(&mut self) {
        let reading = std::mem::take(&mut self.reading);
        let bytes = |kept: &KeptByModule| {
            let each = kept.values();
            let each = each.map(|kept| kept.parameters.and(kept.buffers).rounded);
            each.fold(0, u64::saturating_add)
        };
        let most = self.kept.as_ref().map_or(0, bytes);
        if !reading.is_empty() && bytes(&reading) >= most {
            self.kept = Some(reading);
        }
    }

    fn bytes(&self, key: &Key, rounded: u64) -> u64 {
        let asked = self.asked.get(key).copied();
        asked.filter(|asked| *asked <= rounded).unwrap_or(rounded)
    }

    fn count(&mut self, lap: usize, key: (DeviceIndex, u32, Made), amount: Amount) {
        let Some(lap) = self.laps.get_mut(lap) else {
            return;
        };
        let (device, _, made) = key;
        let has_room = lap.made.len() < MOST_SUMS || lap.made.contains_key(&key);
        let key = match has_room {
            true => key,
            false => (device, NOWHERE, made),
        };
        let before = lap.made.len();
        let sum = lap.made.entry(key).or_default();
        *sum = sum.and(amount);
        self.sums += lap.made.len() - before;
    }

    fn forget(&mut self) {
        while self.sums > MOST_SUMS && self.laps.len() > 1 {
            if let Some(oldest) = self.laps.pop_front() {
                self.sums = self.sums.saturating_sub(oldest.made.len());
                self.forgotten = self.forgotten.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests;

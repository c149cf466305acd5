//! Retainers of growing memory, from the last heap snapshot.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::attribution::allocation_groups::AllocationGroups;
use crate::event::{BlockLabels, Bytes, LabeledBlock, TimeNs};
use crate::ledger::Ledger;

/// Cap on pairs of group and retainer; blocks beyond it have no named retainer.
const MOST: usize = 1 << 18;

const MAX_OF_ONE: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainerAmount {
    pub blocks: u64,
    /// Bytes as rounded by the allocator.
    pub bytes: Bytes,
}

impl RetainerAmount {
    fn add(&mut self, other: Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = Bytes(self.bytes.0.saturating_add(other.bytes.0));
    }
}

/// Retainer: a variable, container, module or optimizer that keeps blocks alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowthRetainer {
    /// The variable, or all slots of a container: `train.py:12 main() -> losses[*]`.
    pub by: Arc<str>,
    /// Class of that container, module or optimizer; `None` for a variable of the tensor itself.
    pub class: Option<Arc<str>>,
    /// First reference beyond the retained tensor, such as `grad_fn MulBackward0`; `None` for its own memory.
    pub through: Option<Arc<str>>,
    /// One of the tensors that lead to the blocks: `train.py:12 main() -> losses[17]`.
    pub slot: Option<Arc<str>>,
    /// Operation that saved one of the blocks for the backward pass.
    pub saved_by: Option<Arc<str>>,
    pub retained: RetainerAmount,
    /// Blocks with no other retainer found.
    pub exclusive: RetainerAmount,
}

/// Retainers of a suspect. `retainers`, `others` and `nobody` add up to `live`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetainedGrowth {
    pub live: RetainerAmount,
    /// Largest first, by bytes.
    pub retainers: Vec<GrowthRetainer>,
    /// Blocks of retainers beyond the limits.
    pub others: RetainerAmount,
    /// Blocks that no name leads to.
    pub nobody: RetainerAmount,
}

/// The fields `by`, `class` and `through` of a retainer.
type Who = (Arc<str>, Option<Arc<str>>, Option<Arc<str>>);

/// Retainers in the last heap snapshot, by allocation group.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapshotRetainers {
    pub(super) time: Option<TimeNs>,
    parts: HashMap<usize, OfPart>,
    distinct: usize,
}

#[derive(Clone, Debug, Default)]
struct OfPart {
    retainers: HashMap<Who, GrowthRetainer>,
    others: RetainerAmount,
    nobody: RetainerAmount,
}

impl SnapshotRetainers {
    pub(super) fn take<V: Default>(
        &mut self,
        names: &BlockLabels,
        groups: &AllocationGroups<V>,
        ledger: &Ledger,
    ) {
        *self = Self {
            time: Some(names.time),
            ..Self::default()
        };
        for block in &names.blocks {
            let id = ledger.block_at(block.device, block.addr);
            let id = id.filter(|id| ledger.block(*id).size == block.size);
            if let Some(group) = id.and_then(|id| groups.group_of(id)) {
                self.add(group, block);
            }
        }
    }

    fn add(&mut self, part: usize, block: &LabeledBlock) {
        let amount = RetainerAmount {
            blocks: 1,
            bytes: block.size,
        };
        let part = self.parts.entry(part).or_default();
        let Some(retainer) = &block.retainer else {
            return part.nobody.add(amount);
        };
        let (class, through) = (&retainer.class, &retainer.through);
        let who = (Arc::clone(&retainer.by), class.clone(), through.clone());
        if self.distinct >= MOST && !part.retainers.contains_key(&who) {
            return part.others.add(amount);
        }
        let entry = part.retainers.entry(who).or_insert_with(|| {
            self.distinct += 1;
            GrowthRetainer {
                by: Arc::clone(&retainer.by),
                class: class.clone(),
                through: through.clone(),
                slot: retainer.slot.clone(),
                saved_by: block.saved_by.clone(),
                retained: RetainerAmount::default(),
                exclusive: RetainerAmount::default(),
            }
        });
        entry.retained.add(amount);
        if retainer.exclusive {
            entry.exclusive.add(amount);
        }
    }

    pub(super) fn of(&self, parts: impl Iterator<Item = usize>) -> RetainedGrowth {
        let mut result = RetainedGrowth::default();
        let mut retainers: HashMap<Who, GrowthRetainer> = HashMap::new();
        for part in parts.filter_map(|part| self.parts.get(&part)) {
            result.nobody.add(part.nobody);
            result.others.add(part.others);
            for (who, retainer) in &part.retainers {
                match retainers.get_mut(who) {
                    Some(known) => {
                        known.retained.add(retainer.retained);
                        known.exclusive.add(retainer.exclusive);
                    }
                    None => {
                        retainers.insert(who.clone(), retainer.clone());
                    }
                }
            }
        }
        result.retainers = retainers.into_values().collect();
        result.retainers.sort_by(|one, other| {
            let order =
                |it: &GrowthRetainer| (Reverse(it.retained.bytes), Reverse(it.retained.blocks));
            let names = |it: &GrowthRetainer| (Arc::clone(&it.by), it.through.clone());
            order(one)
                .cmp(&order(other))
                .then_with(|| names(one).cmp(&names(other)))
        });
        result.live = result.nobody;
        result.live.add(result.others);
        for retainer in &result.retainers {
            result.live.add(retainer.retained);
        }
        let shown = result.retainers.len().min(MAX_OF_ONE);
        for left_out in result.retainers.drain(shown..) {
            result.others.add(left_out.retained);
        }
        result
    }
}

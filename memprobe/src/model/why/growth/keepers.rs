//! Retainers of growing memory, from the last heap snapshot.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::event::{Bytes, NamedBlock, Names, TimeNs};
use crate::model::why::parts::Parts;

/// Cap on pairs of group and retainer; blocks beyond it have no named retainer.
const MOST: usize = 1 << 18;

/// Retainers listed for one suspect.
const MOST_OF_ONE: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub blocks: u64,
    /// Bytes as rounded by the allocator.
    pub bytes: Bytes,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = Bytes(self.bytes.0.saturating_add(other.bytes.0));
    }
}

/// Retainer: a variable, container, module or optimizer that keeps blocks alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
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
    /// Blocks retained.
    pub keeps: Amount,
    /// Blocks with no other retainer found.
    pub alone: Amount,
}

/// Retainers of a suspect. `keepers`, `others` and `nobody` add up to `live`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Live blocks at the snapshot.
    pub live: Amount,
    /// Largest first, by bytes.
    pub keepers: Vec<Keeper>,
    /// Blocks of retainers beyond the limits.
    pub others: Amount,
    /// Blocks that no name leads to.
    pub nobody: Amount,
}

/// Identity of a retainer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Who {
    by: Arc<str>,
    class: Option<Arc<str>>,
    through: Option<Arc<str>>,
}

/// Retainers in the last heap snapshot, by allocation group.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    time: Option<TimeNs>,
    parts: HashMap<usize, OfPart>,
    told_apart: usize,
}

#[derive(Debug, Default)]
struct OfPart {
    keepers: HashMap<Who, Keeper>,
    others: Amount,
    nobody: Amount,
}

impl Keepers {
    /// Replaces the content with a new heap snapshot.
    pub(super) fn take(&mut self, names: &Names, parts: &Parts) {
        *self = Self {
            time: Some(names.time),
            ..Self::default()
        };
        for block in &names.blocks {
            if let Some(part) = parts.at(block.device, block.addr, block.size) {
                self.add(part, block);
            }
        }
    }

    /// Time of the snapshot; `None` without one.
    pub(super) fn time(&self) -> Option<TimeNs> {
        self.time
    }

    fn add(&mut self, part: usize, block: &NamedBlock) {
        let amount = Amount {
            blocks: 1,
            bytes: block.size,
        };
        let part = self.parts.entry(part).or_default();
        let Some(kept) = &block.kept else {
            return part.nobody.add(amount);
        };
        let who = Who {
            by: Arc::clone(&kept.by),
            class: kept.class.clone(),
            through: kept.through.clone(),
        };
        if self.told_apart >= MOST && !part.keepers.contains_key(&who) {
            return part.others.add(amount);
        }
        let keeper = part.keepers.entry(who).or_insert_with(|| {
            self.told_apart += 1;
            Keeper {
                by: Arc::clone(&kept.by),
                class: kept.class.clone(),
                through: kept.through.clone(),
                slot: kept.slot.clone(),
                saved_by: block.saved_by.clone(),
                keeps: Amount::default(),
                alone: Amount::default(),
            }
        });
        keeper.keeps.add(amount);
        if kept.alone {
            keeper.alone.add(amount);
        }
    }

    /// Retainers of several groups, combined.
    pub(super) fn of(&self, parts: impl Iterator<Item = usize>) -> Kept {
        let mut kept = Kept::default();
        let mut keepers: HashMap<Who, Keeper> = HashMap::new();
        for part in parts.filter_map(|part| self.parts.get(&part)) {
            kept.nobody.add(part.nobody);
            kept.others.add(part.others);
            for (who, keeper) in &part.keepers {
                match keepers.get_mut(who) {
                    Some(known) => {
                        known.keeps.add(keeper.keeps);
                        known.alone.add(keeper.alone);
                    }
                    None => {
                        keepers.insert(who.clone(), keeper.clone());
                    }
                }
            }
        }
        kept.keepers = keepers.into_values().collect();
        kept.keepers.sort_by(|one, other| {
            let order = |it: &Keeper| (Reverse(it.keeps.bytes), Reverse(it.keeps.blocks));
            let names = |it: &Keeper| (Arc::clone(&it.by), it.through.clone());
            order(one)
                .cmp(&order(other))
                .then_with(|| names(one).cmp(&names(other)))
        });
        kept.live = kept.nobody;
        kept.live.add(kept.others);
        for keeper in &kept.keepers {
            kept.live.add(keeper.keeps);
        }
        let told = kept.keepers.len().min(MOST_OF_ONE);
        for left_out in kept.keepers.drain(told..) {
            kept.others.add(left_out.keeps);
        }
        kept
    }
}

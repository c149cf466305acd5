//! Who kept what grows, at the last moment at which the process's objects were read.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::event::{Bytes, NamedBlock, Names, TimeNs};
use crate::model::why::parts::Parts;

/// Keepers that are told apart, of all parts together; of what comes on top nobody is named.
const MOST: usize = 1 << 18;

/// Keepers that are told of one suspect.
const MOST_OF_ONE: usize = 100;

/// Blocks, by number and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub blocks: u64,
    /// Bytes, as the allocator rounded them.
    pub bytes: Bytes,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = Bytes(self.bytes.0.saturating_add(other.bytes.0));
    }
}

/// Somebody who keeps blocks alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The variable, or all slots of a container: `train.py:12 main() -> losses[*]`.
    pub by: Arc<str>,
    /// The class of that container.
    pub class: Option<Arc<str>>,
    /// The first step beyond its tensor, such as `grad_fn MulBackward0`.
    pub through: Option<Arc<str>>,
    /// One of the tensors that lead to the blocks: `train.py:12 main() -> losses[17]`.
    pub slot: Option<Arc<str>>,
    /// The operation that keeps one of the blocks for the backward pass.
    pub saved_by: Option<Arc<str>>,
    /// What it keeps.
    pub keeps: Amount,
    /// What of it nobody else keeps, as far as was found.
    pub alone: Amount,
}

/// Who kept the blocks of a suspect. `keepers`, `others` and `nobody` add up to `live`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// What was live of it then.
    pub live: Amount,
    /// Those who kept it, most bytes first.
    pub keepers: Vec<Keeper>,
    /// What is kept by more than are told apart.
    pub others: Amount,
    /// What no name leads to.
    pub nobody: Amount,
}

/// What tells keepers apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Who {
    by: Arc<str>,
    class: Option<Arc<str>>,
    through: Option<Arc<str>>,
}

/// What the process's objects said last, part by part.
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
    /// Takes what the process's objects say; what they said before is of another moment.
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

    /// When that was; `None` where they were not read.
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

    /// Who kept these parts.
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

//! Groups of blocks: blocks of equal device, origin and purpose.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::event::{Bytes, DeviceIndex, Module, PurposeId};
use crate::ledger::StackRef;
use crate::ledger::snapshot::{Grouping, PurposeInfo};
use crate::ledger::{BlockId, Change, Freed, Ledger, LiveBlock, PerBlock, PerStack};

/// Cap on groups; the excess is one group per device.
const MAX_GROUPS: usize = 1 << 18;

/// Origin of blocks, as far as an analysis tells it apart.
pub(crate) trait GroupOrigin: Clone + Eq + Hash {
    /// Origin of the blocks that a stack allocated.
    fn of(stack: StackRef, ledger: &Ledger, grouping: Grouping) -> Self;

    /// Origin of the blocks beyond the cap.
    fn too_many() -> Self;
}

/// Blocks that an analysis does not tell apart: equal origin and equal purpose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockGroup<O> {
    pub origin: Arc<O>,
    /// Tensor type or other purpose.
    pub what: PurposeInfo,
}

/// Change of a group by an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockChange {
    pub(super) size: Bytes,
    pub(super) kind: ChangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// A block became live.
    Added,
    /// A block was allocated, but beyond the ledger's cap on live blocks.
    NotTracked,
    Removed,
}

/// Group, with the value that an analysis keeps for it.
#[derive(Debug)]
pub(crate) struct GroupEntry<O, V> {
    pub(super) device: DeviceIndex,
    pub(super) group: BlockGroup<O>,
    pub(super) value: V,
}

/// Groups of a process, and the group of each live block.
#[derive(Debug)]
pub(crate) struct Groups<O, V> {
    grouping: Grouping,
    origins: PerStack<Arc<O>>,
    entries: Vec<GroupEntry<O, V>>,
    by_key: HashMap<(DeviceIndex, BlockGroup<O>), u32>,
    /// `by_key` by numbers, because hashing a group hashes all its names.
    by_number: hashbrown::HashMap<(DeviceIndex, StackRef, PurposeId), u32>,
    live: PerBlock<u32>,
    knows_modules: bool,
}

impl<O: GroupOrigin, V: Default> Groups<O, V> {
    pub(crate) fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            origins: PerStack::default(),
            entries: Vec::new(),
            by_key: HashMap::new(),
            by_number: hashbrown::HashMap::new(),
            live: PerBlock::default(),
            knows_modules: false,
        }
    }

    /// Applies a change of the ledger; calls `emit` with the index of each changed group.
    pub(crate) fn apply(
        &mut self,
        change: &Change,
        ledger: &Ledger,
        mut emit: impl FnMut(usize, &mut GroupEntry<O, V>, BlockChange),
    ) {
        match change {
            Change::Stack(stack) => self.define(*stack, ledger),
            Change::Allocated {
                block,
                is_tracked,
                replaced,
            } => {
                for ended in replaced {
                    self.release(*ended, ledger, &mut emit);
                }
                let kind = if *is_tracked {
                    ChangeKind::Added
                } else {
                    ChangeKind::NotTracked
                };
                self.add(*block, kind, ledger, &mut emit);
            }
            Change::Freed(Freed::Known(block)) => self.release(*block, ledger, &mut emit),
            // No other change concerns a block seen being allocated.
            _ => {}
        }
    }

    /// Starts from the current state of a ledger; calls `emit` for each live block.
    pub(crate) fn start(
        &mut self,
        ledger: &Ledger,
        mut emit: impl FnMut(usize, &mut GroupEntry<O, V>, BlockChange),
    ) {
        for (stack, _) in ledger.stacks() {
            self.define(stack, ledger);
        }
        for (id, _) in ledger.blocks().filter(|(_, block)| !block.is_baseline) {
            self.add(id, ChangeKind::Added, ledger, &mut emit);
        }
    }

    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.entries.iter().map(|entry| &entry.value)
    }

    pub(crate) fn value(&self, group: usize) -> Option<&V> {
        self.entries.get(group).map(|entry| &entry.value)
    }

    /// Group of a live block that was seen being allocated.
    pub(crate) fn group_of(&self, block: BlockId) -> Option<usize> {
        self.live.get(block).map(|group| *group as usize)
    }

    pub(crate) fn on(
        &self,
        device: DeviceIndex,
    ) -> impl Iterator<Item = (usize, &GroupEntry<O, V>)> {
        let all = self.entries.iter().enumerate();
        all.filter(move |(_, entry)| entry.device == device)
    }

    /// True if any stack has module information; never without module tracing.
    pub(crate) fn knows_modules(&self) -> bool {
        self.knows_modules
    }

    fn define(&mut self, stack: StackRef, ledger: &Ledger) {
        self.knows_modules |= ledger.stack(stack).context.module != Module::Outside;
    }

    fn add(
        &mut self,
        id: BlockId,
        kind: ChangeKind,
        ledger: &Ledger,
        emit: &mut impl FnMut(usize, &mut GroupEntry<O, V>, BlockChange),
    ) {
        let block = ledger.block(id);
        let group = self.group_for(block, ledger);
        if kind == ChangeKind::Added {
            self.live.insert(id, group);
        }
        let (group, size) = (group as usize, block.size);
        emit(group, &mut self.entries[group], BlockChange { size, kind });
    }

    fn release(
        &mut self,
        id: BlockId,
        ledger: &Ledger,
        emit: &mut impl FnMut(usize, &mut GroupEntry<O, V>, BlockChange),
    ) {
        if let Some(group) = self.live.remove(id) {
            let (group, size) = (group as usize, ledger.block(id).size);
            let kind = ChangeKind::Removed;
            emit(group, &mut self.entries[group], BlockChange { size, kind });
        }
    }

    fn group_for(&mut self, block: &LiveBlock, ledger: &Ledger) -> u32 {
        let numbers = (block.device, block.stack, block.purpose);
        if let Some(group) = self.by_number.get(&numbers) {
            return *group;
        }
        let origin = match self.origins.get(block.stack) {
            Some(origin) => Arc::clone(origin),
            None => {
                let origin = Arc::new(O::of(block.stack, ledger, self.grouping));
                self.origins.insert(block.stack, Arc::clone(&origin));
                origin
            }
        };
        let what = ledger.purpose_info(block.purpose);
        // A purpose may be defined later.
        let is_final = block.purpose < PurposeId::FIRST || what != PurposeInfo::Unknown;
        let group = self.intern(block.device, BlockGroup { origin, what });
        if self.by_number.len() >= MAX_GROUPS {
            self.by_number.clear();
        }
        if is_final {
            self.by_number.insert(numbers, group);
        }
        group
    }

    fn intern(&mut self, device: DeviceIndex, group: BlockGroup<O>) -> u32 {
        let key = (device, group);
        if let Some(known) = self.by_key.get(&key) {
            return *known;
        }
        let (device, group) = match self.entries.len() < MAX_GROUPS {
            true => key,
            false => {
                let origin = Arc::new(O::too_many());
                let what = PurposeInfo::TooMany;
                (device, BlockGroup { origin, what })
            }
        };
        let next = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let key = (device, group.clone());
        let index = *self.by_key.entry(key).or_insert(next);
        if index == next {
            self.entries.push(GroupEntry {
                device,
                group,
                value: V::default(),
            });
        }
        index
    }
}

//! Groups of blocks: blocks of equal device, origin and purpose.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::event::{Bytes, DeviceIndex, Module, PurposeId};
use crate::ledger::StackRef;
use crate::ledger::snapshot::{Grouping, PurposeInfo};
use crate::ledger::{BlockId, Change, CompactIndex, Ledger, LiveBlock, PerBlock, PerStack};

/// Cap on groups; the excess is one group per device.
const MAX_GROUPS: usize = 1 << 18;

/// Origin of blocks, as far as an analysis tells it apart.
pub(crate) trait GroupOrigin: Clone + Eq + Hash {
    fn of(stack: StackRef, ledger: &Ledger, grouping: Grouping) -> Self;

    /// Origin of the blocks beyond the cap.
    fn too_many() -> Self;
}

/// Blocks that an analysis does not tell apart: equal origin and equal purpose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockGroup<O> {
    pub origin: Arc<O>,
    pub what: PurposeInfo,
}

/// Change of a group by a block of so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockChange {
    Added(Bytes),
    /// A block was allocated, but beyond the ledger's cap on live blocks.
    NotTracked(Bytes),
    Removed(Bytes),
}

impl BlockChange {
    pub(super) fn allocated(size: Bytes, is_tracked: bool) -> Self {
        if is_tracked {
            Self::Added(size)
        } else {
            Self::NotTracked(size)
        }
    }
}

/// Group, with the value that an analysis keeps for it.
#[derive(Clone, Debug)]
pub(crate) struct GroupEntry<O, V> {
    pub(super) device: DeviceIndex,
    pub(super) group: BlockGroup<O>,
    pub(super) value: V,
}

/// Groups of a process, and the group of each live block.
#[derive(Clone, Debug)]
pub(crate) struct Groups<O, V> {
    grouping: Grouping,
    origins: PerStack<Arc<O>>,
    entries: Vec<GroupEntry<O, V>>,
    by_key: HashMap<(DeviceIndex, BlockGroup<O>), u32>,
    /// `by_key` by numbers, because hashing a group hashes all its names.
    by_number: hashbrown::HashMap<(DeviceIndex, StackRef, PurposeId), u32>,
    live: PerBlock<CompactIndex>,
    knows_modules: bool,
}

impl<O: GroupOrigin, V: Default> Default for Groups<O, V> {
    fn default() -> Self {
        Self::new(Grouping::default())
    }
}

impl<O, V> Groups<O, V> {
    /// Bytes of a copy, without what the values point to.
    pub(super) fn copy_bytes(&self) -> u64 {
        let key = size_of::<(DeviceIndex, BlockGroup<O>, u32)>();
        let entry = size_of::<GroupEntry<O, V>>() + key;
        let number = size_of::<(DeviceIndex, StackRef, PurposeId, u32)>();
        let groups = self.entries.len() * entry + self.by_number.len() * number;
        groups as u64 + self.origins.bytes() + self.live.bytes()
    }
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
        if let Change::Stack(stack) = change {
            self.define(*stack, ledger);
        }
        for ended in change.ended() {
            self.release(*ended, ledger, &mut emit);
        }
        if let Some((block, is_tracked)) = change.allocated() {
            self.add(block, is_tracked, ledger, &mut emit);
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
            self.add(id, true, ledger, &mut emit);
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
        self.live.get(block).map(|group| group.index())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &BlockGroup<O>> {
        self.entries.iter().map(|entry| &entry.group)
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
        is_tracked: bool,
        ledger: &Ledger,
        emit: &mut impl FnMut(usize, &mut GroupEntry<O, V>, BlockChange),
    ) {
        let block = ledger.block(id);
        let group = self.group_for(block, ledger);
        if is_tracked {
            self.live.insert(id, CompactIndex::of(group as usize));
        }
        let (group, change) = (
            group as usize,
            BlockChange::allocated(block.size, is_tracked),
        );
        emit(group, &mut self.entries[group], change);
    }

    fn release(
        &mut self,
        id: BlockId,
        ledger: &Ledger,
        emit: &mut impl FnMut(usize, &mut GroupEntry<O, V>, BlockChange),
    ) {
        if let Some(group) = self.live.remove(id) {
            let (group, change) = (group.index(), BlockChange::Removed(ledger.block(id).size));
            emit(group, &mut self.entries[group], change);
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
        let key = if self.entries.len() < MAX_GROUPS {
            key
        } else {
            let (origin, what) = (Arc::new(O::too_many()), PurposeInfo::TooMany);
            (key.0, BlockGroup { origin, what })
        };
        let entries = &mut self.entries;
        let entry = self.by_key.entry(key);
        let (device, group) = entry.key().clone();
        *entry.or_insert_with(|| {
            entries.push(GroupEntry {
                device,
                group,
                value: V::default(),
            });
            u32::try_from(entries.len() - 1).unwrap_or(u32::MAX)
        })
    }
}

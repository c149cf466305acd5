//! Division of memory from before attach by the labels of its blocks.
//!
//! A label belongs to a block, not to an address: it ends with the block. An address that is used again is another
//! block, which was allocated after attach.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::block_store::{BlockId, BlockStore};
use super::dense::{CompactIndex, PerBlock};
use super::packed_labels::{PackedLabels, baseline_of};
use super::snapshot::{BaselineGroup, BaselineKind, BaselineOwner};
use crate::event::{BlockLabels, Bytes, DeviceIndex, TimeNs};

/// Cap on groups; beyond it the owner of a kind is not told apart.
const MAX_GROUPS: usize = 1 << 12;

type GroupKey = (DeviceIndex, BaselineKind, BaselineOwner);

/// Blocks from before attach by kind and owner.
#[derive(Clone, Debug, Default)]
pub(super) struct BaselineGroups {
    groups: Vec<(GroupKey, u64, u64)>,
    by_key: HashMap<GroupKey, usize>,
    blocks: PerBlock<CompactIndex>,
    /// Labels of live blocks.
    last: Option<PackedLabels>,
}

impl BaselineGroups {
    /// Adopts the labels of blocks that have been live since before attach.
    pub(super) fn label(&mut self, labels: &BlockLabels, store: &BlockStore) {
        let earlier = self.last.take();
        let mut packed = earlier.unwrap_or_else(|| PackedLabels::of(labels));
        packed.begin(labels, store);
        for (id, block) in baseline_of(labels, store) {
            packed.insert(id, block);
            self.leave(id, block.size);
            let (kind, owner) = (BaselineKind::of(block), BaselineOwner::of(block));
            let group = self.group((block.device, kind, owner));
            let (_, live, blocks) = &mut self.groups[group];
            *live = live.saturating_add(block.size.0);
            *blocks = blocks.saturating_add(1);
            self.blocks.insert(id, CompactIndex::of(group));
        }
        packed.end();
        self.last = Some(packed);
    }

    /// Removes a block that has ended.
    pub(super) fn release(&mut self, id: BlockId, size: Bytes) {
        if let Some(labels) = &mut self.last {
            labels.release(id);
        }
        self.leave(id, size);
    }

    /// Takes a block out of its group.
    fn leave(&mut self, id: BlockId, size: Bytes) {
        let Some(group) = self.blocks.remove(id) else {
            return;
        };
        if let Some((_, live, blocks)) = self.groups.get_mut(group.index()) {
            *live = live.saturating_sub(size.0);
            *blocks = blocks.saturating_sub(1);
        }
    }

    fn group(&mut self, key: GroupKey) -> usize {
        if let Some(known) = self.by_key.get(&key) {
            return *known;
        }
        let key = match self.groups.len() < MAX_GROUPS {
            true => key,
            false => (key.0, key.1, BaselineOwner::default()),
        };
        let groups = &mut self.groups;
        *self.by_key.entry(key.clone()).or_insert_with(|| {
            groups.push((key, 0, 0));
            groups.len() - 1
        })
    }

    /// Time of the last reading; `None` without one.
    pub(super) fn labeled(&self) -> Option<TimeNs> {
        self.last.as_ref().map(|labels| labels.time)
    }

    /// Groups of a device with live blocks, largest first.
    pub(super) fn of(&self, device: DeviceIndex) -> Vec<BaselineGroup> {
        let own = self.groups.iter();
        let own = own.filter(|((own, ..), _, blocks)| *own == device && *blocks > 0);
        let mut groups: Vec<_> = own
            .map(|((_, kind, owner), live, blocks)| BaselineGroup {
                kind: *kind,
                owner: owner.clone(),
                live: Bytes(*live),
                blocks: *blocks,
            })
            .collect();
        groups.sort_by(|one, other| {
            let rank = |group: &BaselineGroup| (Reverse(group.live), group.kind);
            rank(one)
                .cmp(&rank(other))
                .then_with(|| one.owner.cmp(&other.owner))
        });
        groups
    }

    /// Labels of the blocks that are live; `None` if no reading named any.
    pub(super) fn keyframe(&self, store: &BlockStore) -> Option<BlockLabels> {
        Some(self.last.as_ref()?.unpack(store))
    }

    /// Bytes of its tables of blocks.
    pub(super) fn copy_bytes(&self) -> u64 {
        let labels = self.last.as_ref().map_or(0, PackedLabels::bytes);
        self.blocks.bytes() + labels
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::tensors::TensorKind;
    use crate::event::{
        Action, Address, AtAttach, Event, LabeledBlock, MemoryEvent, PurposeId, StackId, Target,
        Tgid, Tid, Totals,
    };
    use crate::ledger::Ledger;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    fn totals(allocated: u64) -> Totals {
        Totals {
            allocated: Bytes(allocated),
            reserved: Bytes(1 << 20),
        }
    }

    fn memory(action: Action, addr: u64, size: u64, allocated: u64) -> Event {
        Event::Memory(MemoryEvent {
            time: TimeNs(addr + allocated),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DEVICE),
            totals: Some(totals(allocated)),
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        })
    }

    /// A ledger with blocks of 512, 1024 and 2048 bytes from before attach.
    fn attached() -> Ledger {
        let mut ledger = Ledger::new(Target::default(), TimeNs(0));
        ledger.apply(&Event::AtAttach(AtAttach {
            time: TimeNs(0),
            tgid: Tgid(7),
            device: Some(DEVICE),
            totals: totals(3584),
            peak: totals(3584),
            unread: None,
        }));
        for (addr, size) in [(0x1000, 512), (0x2000, 1024), (0x3000, 2048)] {
            ledger.apply(&memory(Action::Held, addr, size, 3584));
        }
        ledger
    }

    fn labels(blocks: &[(u64, u64, &str)]) -> Event {
        let blocks = blocks.iter().map(|(addr, size, module)| LabeledBlock {
            kind: Some(TensorKind::Parameter),
            module: Some((*module).into()),
            ..LabeledBlock::unlabeled(Address(*addr), Bytes(*size), DEVICE)
        });
        Event::BaselineLabels(Arc::new(BlockLabels {
            time: TimeNs(9),
            tgid: Tgid(7),
            blocks: blocks.collect(),
            optimizers: Vec::new(),
            tags: Vec::new(),
        }))
    }

    /// Parts of the device by kind, with their bytes, and the bytes of each owner.
    fn parts(ledger: &Ledger) -> Vec<(BaselineKind, u64, Vec<u64>)> {
        let snapshot = ledger.snapshot(TimeNs(0), crate::ledger::snapshot::Grouping::User);
        let before = &snapshot.devices[0].before_attach;
        let parts = before.parts();
        assert_eq!(
            parts.iter().map(|part| part.live.0).sum::<u64>(),
            before.live.0
        );
        let owners = |groups: &[&BaselineGroup]| groups.iter().map(|it| it.live.0).collect();
        let parts = parts.iter();
        parts
            .map(|part| (part.kind, part.live.0, owners(&part.groups)))
            .collect()
    }

    #[test]
    fn a_label_ends_with_its_block_and_does_not_pass_to_the_next_one_there() {
        let mut ledger = attached();
        ledger.apply(&labels(&[(0x1000, 512, "a"), (0x2000, 1024, "b")]));
        let all = [
            (BaselineKind::Parameter, 1536, vec![1024, 512]),
            (BaselineKind::Unread, 2048, vec![]),
        ];
        assert_eq!(parts(&ledger), all);
        ledger.apply(&memory(Action::Free, 0x2000, 1024, 2560));
        ledger.apply(&memory(Action::Alloc, 0x2000, 1024, 3584));
        let rest = [
            (BaselineKind::Unread, 2048, vec![]),
            (BaselineKind::Parameter, 512, vec![512]),
        ];
        let mut now = parts(&ledger);
        now.sort_by_key(|(_, live, _)| Reverse(*live));
        assert_eq!(now, rest);
        // Neither does a later label of an address that is used again.
        ledger.apply(&labels(&[(0x2000, 1024, "b")]));
        assert_eq!(parts(&ledger).len(), 2);
    }

    #[test]
    fn an_allocation_over_a_block_whose_free_was_missed_ends_its_label() {
        let mut ledger = attached();
        ledger.apply(&labels(&[(0x3000, 2048, "c")]));
        ledger.apply(&memory(Action::Alloc, 0x3200, 512, 4096));
        assert_eq!(parts(&ledger), [(BaselineKind::Unread, 1536, vec![])]);
    }

    #[test]
    fn another_size_is_another_block_and_a_new_label_replaces_the_old_one() {
        let mut ledger = attached();
        ledger.apply(&labels(&[(0x1000, 1024, "a"), (0x2000, 1024, "b")]));
        ledger.apply(&labels(&[(0x2000, 1024, "c")]));
        let all = [
            (BaselineKind::Parameter, 1024, vec![1024]),
            (BaselineKind::Unread, 2560, vec![]),
        ];
        assert_eq!(parts(&ledger), all);
    }

    #[test]
    fn a_recording_that_begins_later_has_the_labels_too() {
        let mut ledger = attached();
        ledger.apply(&labels(&[(0x1000, 512, "a"), (0x2000, 1024, "b")]));
        ledger.apply(&memory(Action::Free, 0x2000, 1024, 2560));
        let mut copy = Ledger::new(Target::default(), TimeNs(0));
        for event in ledger.restate(TimeNs(20_000), 100).events {
            copy.apply(&event);
        }
        assert_eq!(parts(&copy), parts(&ledger));
    }
}

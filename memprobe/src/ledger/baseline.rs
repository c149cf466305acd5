//! Division of memory from before attach by the labels of its blocks.
//!
//! A label belongs to a block, not to an address: it ends with the block. An address that is used again is another
//! block, which was allocated after attach.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::block_store::{BlockId, BlockStore};
use super::dense::{CompactIndex, PerBlock};
use super::snapshot::{BaselineGroup, BaselineKind, BaselineOwner};
use crate::event::{BlockLabels, Bytes, DeviceIndex, LabeledBlock, TimeNs};

/// Cap on groups; beyond it the owner of a kind is not told apart.
const MAX_GROUPS: usize = 1 << 12;

type GroupKey = (DeviceIndex, BaselineKind, BaselineOwner);

/// Blocks from before attach by kind and owner.
#[derive(Clone, Debug, Default)]
pub(super) struct BaselineGroups {
    groups: Vec<(GroupKey, u64, u64)>,
    by_key: HashMap<GroupKey, usize>,
    blocks: PerBlock<CompactIndex>,
    /// Labels read last.
    last: Option<Arc<BlockLabels>>,
}

impl BaselineGroups {
    /// Adopts the labels of blocks that have been live since before attach.
    pub(super) fn label(&mut self, labels: &Arc<BlockLabels>, store: &BlockStore) {
        for (id, block) in baseline_of(labels, store) {
            self.release(id, block.size);
            let (kind, owner) = (BaselineKind::of(block), BaselineOwner::of(block));
            let group = self.group((block.device, kind, owner));
            let (_, live, blocks) = &mut self.groups[group];
            *live = live.saturating_add(block.size.0);
            *blocks = blocks.saturating_add(1);
            self.blocks.insert(id, CompactIndex::of(group));
        }
        self.last = Some(Arc::clone(labels));
    }

    /// Removes a block that has ended.
    pub(super) fn release(&mut self, id: BlockId, size: Bytes) {
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

    /// Labels read last, of the blocks that are live; `None` without any.
    pub(super) fn restate(&self, now: TimeNs, store: &BlockStore) -> Option<BlockLabels> {
        let last = self.last.as_ref()?;
        let live = baseline_of(last, store).map(|(_, block)| block.clone());
        let labels = BlockLabels {
            time: now,
            tgid: last.tgid,
            blocks: live.collect(),
            optimizers: Vec::new(),
        };
        (!labels.blocks.is_empty()).then_some(labels)
    }
}

/// Labels of live blocks from before attach.
fn baseline_of<'a>(
    labels: &'a BlockLabels,
    store: &'a BlockStore,
) -> impl Iterator<Item = (BlockId, &'a LabeledBlock)> {
    labels.blocks.iter().filter_map(|named| {
        let id = store.at(named.device, named.addr)?;
        let block = store.get(id);
        (block.is_baseline && block.size == named.size).then_some((id, named))
    })
}

//! Labels of a recording that is being written, for its keyframes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::event::{Address, BlockLabels, DeviceIndex, Event};
use crate::ledger::Ledger;

/// Latest labels, without the blocks that have ended since.
#[derive(Default)]
pub(super) struct LabelTracker {
    last: Option<Arc<BlockLabels>>,
    /// Places of labelled blocks that no later event has touched.
    untouched: BTreeSet<(DeviceIndex, Address)>,
}

impl LabelTracker {
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::BlockLabels(labels) => {
                let places = labels.blocks.iter().map(|block| (block.device, block.addr));
                self.untouched = places.collect();
                self.last = Some(Arc::clone(labels));
            }
            Event::Memory(event) if !self.untouched.is_empty() => {
                if let Some(device) = event.device {
                    self.untouched.remove(&(device, event.addr));
                }
            }
            _ => {}
        }
    }

    /// Labels of the blocks that are live since the reading; `None` without a reading.
    pub(super) fn live(&self, ledger: &Ledger) -> Option<Arc<BlockLabels>> {
        let last = self.last.as_ref()?;
        let blocks = last.blocks.iter().filter(|named| {
            let block = ledger.block_at(named.device, named.addr);
            self.untouched.contains(&(named.device, named.addr))
                && block.is_some_and(|id| ledger.block(id).size == named.size)
        });
        Some(Arc::new(BlockLabels {
            blocks: blocks.cloned().collect(),
            time: last.time,
            tgid: last.tgid,
            optimizers: last.optimizers.clone(),
            // The ledger has those of segments that are still there.
            tags: Vec::new(),
        }))
    }
}

//! Live blocks from before attach: those of a ledger or, where a recording has none, a table of its own.

use hashbrown::HashMap;

use crate::event::{Action, Address, Bytes, DeviceIndex, MemoryEvent};
use crate::ledger::Ledger;

/// Most blocks of a table, as many as can get a label.
const MAX_BLOCKS: usize = 1 << 20;

/// Blocks on GPUs that have been live since before attach.
pub(in crate::commands) trait LiveBaseline {
    /// Bytes of all of them.
    fn bytes(&self) -> u64;

    fn has(&self, device: DeviceIndex, addr: Address, size: Bytes) -> bool;
}

impl LiveBaseline for Ledger {
    fn bytes(&self) -> u64 {
        self.held_before_attach().0
    }

    fn has(&self, device: DeviceIndex, addr: Address, size: Bytes) -> bool {
        self.block_at(device, addr).is_some_and(|id| {
            let block = self.block(id);
            device != DeviceIndex::CPU && block.is_baseline && block.size == size
        })
    }
}

/// Blocks from before attach, by the events since.
#[derive(Default)]
pub(super) struct BaselineBlocks {
    blocks: HashMap<(DeviceIndex, Address), Bytes>,
    bytes: u64,
}

impl BaselineBlocks {
    pub(super) fn apply(&mut self, event: &MemoryEvent) {
        let Some(device) = event.device.filter(|device| *device != DeviceIndex::CPU) else {
            return;
        };
        match event.action {
            Action::Held if self.blocks.len() < MAX_BLOCKS => {
                self.blocks.insert((device, event.addr), event.size);
                self.bytes = self.bytes.saturating_add(event.size.0);
            }
            Action::Alloc | Action::Free => {
                if let Some(size) = self.blocks.remove(&(device, event.addr)) {
                    self.bytes = self.bytes.saturating_sub(size.0);
                }
            }
            _ => {}
        }
    }
}

impl LiveBaseline for BaselineBlocks {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn has(&self, device: DeviceIndex, addr: Address, size: Bytes) -> bool {
        self.blocks.get(&(device, addr)) == Some(&size)
    }
}

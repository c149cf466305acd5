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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{AtAttach, Event, PurposeId, StackId, Target, Tgid, Tid, TimeNs, Totals};

    const GPU: DeviceIndex = DeviceIndex(0);
    const SIZE: Bytes = Bytes(512);

    fn event(action: Action, addr: u64, device: DeviceIndex) -> MemoryEvent {
        MemoryEvent {
            time: TimeNs(addr),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: SIZE,
            device: Some(device),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        }
    }

    #[test]
    fn a_table_and_a_ledger_know_the_same_blocks() {
        let totals = Totals {
            allocated: Bytes(4 * SIZE.0),
            reserved: Bytes(1 << 20),
        };
        let mut ledger = Ledger::new(Target::default(), TimeNs(0));
        ledger.apply(&Event::AtAttach(AtAttach {
            time: TimeNs(0),
            tgid: Tgid(7),
            device: Some(GPU),
            totals,
            peak: totals,
            unread: None,
        }));
        let mut table = BaselineBlocks::default();
        for (action, addr, device) in [
            (Action::Held, 0x1000, GPU),
            (Action::Held, 0x2000, GPU),
            (Action::Held, 0x3000, GPU),
            // Made after attach: on the host, on the GPU, and in place of a block whose free was missed.
            (Action::Alloc, 0x1000, DeviceIndex::CPU),
            (Action::Alloc, 0x4000, GPU),
            (Action::Alloc, 0x3000, GPU),
            (Action::Free, 0x2000, GPU),
        ] {
            let event = event(action, addr, device);
            table.apply(&event);
            ledger.apply(&Event::Memory(event));
        }
        let known = |baseline: &dyn Fn(u64, DeviceIndex, Bytes) -> bool| {
            let all = [0x1000, 0x2000, 0x3000, 0x4000];
            let all = all.into_iter().filter(|addr| baseline(*addr, GPU, SIZE));
            let all: Vec<_> = all.collect();
            (
                all,
                baseline(0x1000, GPU, Bytes(1024)),
                baseline(0x1000, DeviceIndex::CPU, SIZE),
            )
        };
        let of_table = known(&|addr, device, size| table.has(device, Address(addr), size));
        let of_ledger = known(&|addr, device, size| ledger.has(device, Address(addr), size));
        assert_eq!(of_table, (vec![0x1000], false, false));
        assert_eq!(of_ledger, of_table);
        assert_eq!(
            (table.bytes(), LiveBaseline::bytes(&ledger)),
            (SIZE.0, SIZE.0)
        );
    }
}

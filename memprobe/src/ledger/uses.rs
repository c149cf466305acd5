//! Purposes of live blocks, from the events: tensors, workspaces, scratch memory and others
//! recognized by a native function.

use std::collections::HashMap;
use std::sync::Arc;

use super::Model;
use crate::event::{
    Action, Address, BlockPurpose, BlockPurposes, Bytes, DeviceIndex, Event, Frame, PurposeId,
};

/// Bytes, line and purpose of a block; `None` if it is not live.
pub type Known = Option<(Bytes, Option<Frame>, Option<Arc<BlockPurpose>>)>;

/// Ledgers of live blocks.
#[derive(Clone, Copy)]
pub struct Ledgers<'a> {
    /// Lines of blocks.
    pub lines: &'a Model,
    /// Purposes of blocks.
    pub uses: &'a BlockUses,
}

impl Ledgers<'_> {
    /// Block at an address: its bytes, line and purpose.
    pub fn at(self, device: DeviceIndex, addr: Address) -> Known {
        let (size, site) = self.lines.block_at(device, addr)?;
        Some((size, site.cloned(), self.uses.at(device, addr, size)))
    }
}

/// Maximum number of blocks, about 40 bytes each; the purpose of others is unknown.
const MOST: usize = 1 << 21;

/// Purpose of each live block, if recorded.
#[derive(Clone, Debug, Default)]
pub struct BlockUses {
    uses: BlockPurposes,
    live: HashMap<(DeviceIndex, Address), (Bytes, PurposeId)>,
    left_out: u64,
}

impl BlockUses {
    /// Applies the next event of the stream.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::BlockPurpose(id, is) => self.uses.define(*id, is),
            Event::Memory(event) => {
                let Some(device) = event.device else { return };
                let place = (device, event.addr);
                match event.action {
                    Action::Alloc if event.shape < PurposeId::FIRST => {
                        self.live.remove(&place);
                    }
                    Action::Alloc if self.live.len() >= MOST && !self.live.contains_key(&place) => {
                        self.left_out = self.left_out.saturating_add(1);
                    }
                    Action::Alloc => {
                        self.live.insert(place, (event.size, event.shape));
                    }
                    Action::Free => {
                        self.live.remove(&place);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// Purpose of the live block of this size at an address; `None` if unknown.
    pub fn at(&self, device: DeviceIndex, addr: Address, size: Bytes) -> Option<Arc<BlockPurpose>> {
        let &(known, id) = self.live.get(&(device, addr))?;
        self.uses.get(id).filter(|_| known == size).cloned()
    }

    /// Purposes by id.
    pub fn definitions(&self) -> &BlockPurposes {
        &self.uses
    }

    /// Number of blocks beyond the limit.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{MemoryEvent, Purpose, StackId, Tgid, Tid, TimeNs};

    fn event(action: Action, addr: u64, shape: PurposeId) -> Event {
        Event::Memory(MemoryEvent {
            time: TimeNs(1),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(512),
            device: Some(DeviceIndex(0)),
            totals: None,
            stack: StackId::NONE,
            shape,
            call: None,
        })
    }

    #[test]
    fn a_block_has_its_use_until_it_is_freed_or_handed_out_anew() {
        let workspace = Arc::new(BlockPurpose::Other(Purpose {
            what: Some("cuBLAS workspace".into()),
            function: "at::cuda::f".into(),
            library: "libtorch_cuda.so".into(),
        }));
        let mut uses = BlockUses::default();
        uses.apply(&Event::BlockPurpose(
            PurposeId::FIRST,
            Arc::clone(&workspace),
        ));
        let at = |uses: &BlockUses, size| uses.at(DeviceIndex(0), Address(0x1000), Bytes(size));
        uses.apply(&event(Action::Alloc, 0x1000, PurposeId::FIRST));
        assert_eq!(at(&uses, 512), Some(Arc::clone(&workspace)));
        assert_eq!(at(&uses, 1024), None);
        uses.apply(&event(Action::Free, 0x1000, PurposeId::NONE));
        assert_eq!(at(&uses, 512), None);
        uses.apply(&event(Action::Alloc, 0x1000, PurposeId::FIRST));
        uses.apply(&event(Action::Alloc, 0x1000, PurposeId::NO_TENSOR));
        assert_eq!(at(&uses, 512), None);
        assert_eq!(uses.left_out(), 0);
    }
}

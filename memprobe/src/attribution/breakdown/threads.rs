//! Keys of blocks by the thread that allocated them.

use std::sync::Arc;

use super::BlockKeys;
use crate::event::{Event, MemoryEvent};
use crate::ledger::{BlockId, Ledger};

/// The TID of the allocating thread. A live block does not tell it.
pub(super) struct AllocatingThread;

impl BlockKeys for AllocatingThread {
    fn key(&self, allocation: &MemoryEvent, _block: BlockId, _ledger: &Ledger) -> u64 {
        allocation.tid.0.into()
    }

    fn name(&self, event: &Event) -> Option<(u64, Arc<str>)> {
        match event {
            Event::Thread(tid, name) => Some((tid.0.into(), Arc::clone(name))),
            _ => None,
        }
    }
}

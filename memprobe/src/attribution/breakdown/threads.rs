//! Keys of blocks by the thread that allocated them: its TID.

use std::sync::Arc;

use super::BlockKeys;
use crate::event::Event;

pub(super) static KEYS: BlockKeys = BlockKeys {
    of_allocation: |allocation| allocation.tid.0.into(),
    of_block: |_| None,
    name: |event| match event {
        Event::Thread(tid, name) => Some((tid.0.into(), Arc::clone(name))),
        _ => None,
    },
};

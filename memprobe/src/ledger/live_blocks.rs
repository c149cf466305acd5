//! Live blocks and stacks of the model, for ledgers that start later.

use std::sync::Arc;

use super::Model;
use crate::event::{Address, Bytes, DeviceIndex, Stack, StackId, TimeNs};
use crate::ledger::DeviceTotals;

#[derive(Clone, Copy, Debug)]
pub struct LiveBlock<'a> {
    pub device: DeviceIndex,
    pub addr: Address,
    pub size: Bytes,
    pub origin: BlockOrigin<'a>,
}

/// Call site of a live block.
#[derive(Clone, Copy, Debug)]
pub enum BlockOrigin<'a> {
    /// Live when memprobe attached.
    BeforeAttach,
    /// The stack was lost, or there was no room for it.
    Unknown,
    /// Stack at the allocation; its id may identify another one by now.
    Stack(&'a Arc<Stack>),
}

impl Model {
    /// Stacks by id, in no particular order.
    pub fn stacks(&self) -> impl Iterator<Item = (StackId, &Arc<Stack>)> {
        self.names.stacks()
    }

    /// State of each device, labelled with `now`.
    pub fn moments(&self, now: TimeNs) -> impl Iterator<Item = (DeviceIndex, DeviceTotals)> {
        let devices = self.devices.iter();
        devices.map(move |(index, device)| (*index, device.moment(now)))
    }

    /// Live blocks of PyTorch's allocators that the ledger tracks.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock<'_>> {
        let devices = self.devices.iter();
        devices.flat_map(|(index, device)| device.live_blocks(*index))
    }
}

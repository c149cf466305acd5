//! What is known by now, for ledgers beside this one that begin later.

use std::sync::Arc;

use super::Model;
use super::why::peak::Moment;
use crate::event::{Address, Bytes, DeviceIndex, Stack, StackId, TimeNs};

/// A live block.
#[derive(Clone, Copy, Debug)]
pub struct LiveBlock<'a> {
    /// The device that it lies on.
    pub device: DeviceIndex,
    /// Where.
    pub addr: Address,
    /// Its bytes.
    pub size: Bytes,
    /// Who allocated it.
    pub maker: Maker<'a>,
}

/// Who allocated a block.
#[derive(Clone, Copy, Debug)]
pub enum Maker<'a> {
    /// It was live when memprobe attached.
    BeforeAttach,
    /// Nobody knows: its stack was lost, or there was no room for it.
    Unknown,
    /// This stack, as it was then: its number may stand for another by now.
    Stack(&'a Arc<Stack>),
}

impl Model {
    /// What the numbers of stacks stand for, in no particular order.
    pub fn stacks(&self) -> impl Iterator<Item = (StackId, &Arc<Stack>)> {
        self.names.stacks()
    }

    /// What each device holds, as of `now`.
    pub fn moments(&self, now: TimeNs) -> impl Iterator<Item = (DeviceIndex, Moment)> {
        let devices = self.devices.iter();
        devices.map(move |(index, device)| (*index, device.moment(now)))
    }

    /// The live blocks of PyTorch's allocators that are followed.
    pub fn live_blocks(&self) -> impl Iterator<Item = LiveBlock<'_>> {
        let devices = self.devices.iter();
        devices.flat_map(|(index, device)| device.live_blocks(*index))
    }
}

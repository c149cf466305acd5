//! The contexts whose device is known.

use hashbrown::HashMap;

use super::{CONTEXTS, ThreadContext};
use crate::event::DeviceIndex;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ContextOrigin {
    Primary,
    /// Made of a green context: memory goes with the primary one.
    Green,
    Created {
        /// References taken by `cuCtxCreate` and `cuCtxAttach`, less those returned by `cuCtxDetach`.
        uses: u64,
    },
}

#[derive(Default)]
pub(super) struct Known(HashMap<u64, (DeviceIndex, ContextOrigin)>);

impl Known {
    /// Device of a context; unknown for an unknown context.
    pub(super) fn place_of(&self, context: u64) -> ThreadContext {
        match self.0.get(&context) {
            Some((device, ContextOrigin::Primary | ContextOrigin::Green)) => {
                ThreadContext::primary(*device)
            }
            known => ThreadContext {
                device: known.map(|(device, _)| *device),
                context: Some(context),
            },
        }
    }

    pub(super) fn device_of(&self, context: u64) -> Option<DeviceIndex> {
        self.0.get(&context).map(|(device, _)| *device)
    }

    pub(super) fn is_of_another(&self, context: u64, device: DeviceIndex) -> bool {
        self.device_of(context).is_some_and(|known| known != device)
    }

    pub(super) fn is_green(&self, context: u64) -> bool {
        let known = self.0.get(&context);
        known.is_some_and(|(_, origin)| *origin == ContextOrigin::Green)
    }

    /// The primary context of a device; there is one at a time.
    pub(super) fn primary_of(&self, device: DeviceIndex) -> Option<u64> {
        let mut known = self.0.iter();
        let (context, _) = known.find(|(_, known)| **known == (device, ContextOrigin::Primary))?;
        Some(*context)
    }

    /// The primary context of a device, and those made of its green contexts.
    pub(super) fn primaries_of(&self, device: DeviceIndex) -> Vec<u64> {
        let mut primaries = self.primaries();
        primaries.retain(|context| self.device_of(*context) == Some(device));
        primaries
    }

    /// [`Self::primaries_of`] for every device.
    pub(super) fn primaries(&self) -> Vec<u64> {
        let known = self.0.iter();
        let primaries = known.filter(|(_, (_, origin))| {
            matches!(origin, ContextOrigin::Primary | ContextOrigin::Green)
        });
        primaries.map(|(context, _)| *context).collect()
    }

    pub(super) fn insert(&mut self, context: u64, device: DeviceIndex, origin: ContextOrigin) {
        if self.0.len() < CONTEXTS || self.0.contains_key(&context) {
            self.0.insert(context, (device, origin));
        }
    }

    pub(super) fn learn(&mut self, context: u64, device: DeviceIndex) {
        if !self.0.contains_key(&context) {
            self.insert(context, device, ContextOrigin::Primary);
        }
    }

    pub(super) fn remove(&mut self, context: u64) {
        self.0.remove(&context);
    }

    pub(super) fn add_use(&mut self, context: u64) {
        if let Some((_, ContextOrigin::Created { uses })) = self.0.get_mut(&context) {
            *uses = uses.saturating_add(1);
        }
    }

    /// A use less: how many are left, where that is known.
    pub(super) fn drop_use(&mut self, context: u64) -> Option<u64> {
        match self.0.get_mut(&context) {
            Some((_, ContextOrigin::Created { uses })) => {
                *uses = uses.saturating_sub(1);
                Some(*uses)
            }
            _ => None,
        }
    }
}

//! Physical memory of CUDA's virtual memory management: it is held until its handle was released as often as it was
//! taken and nothing of it is mapped any more (CUDA Driver API, "Virtual Memory Management").

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::event::{Bytes, DeviceIndex, TimeNs};
use crate::symbolize::segments::Owner;

/// The most handles and mappings that are followed.
const MOST: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Memory {
    owner: Owner,
    device: Option<DeviceIndex>,
    /// The return of `cuMemCreate`.
    created: TimeNs,
    /// Handles given out and not released.
    handles: u64,
    mappings: u64,
}

#[derive(Default)]
pub struct Physical {
    memory: HashMap<u64, Memory>,
    /// By address: size and handle.
    mappings: BTreeMap<u64, (u64, u64)>,
    aliases: HashMap<u64, u64>,
}

/// Memory that `cuMemMap` mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Handle of its creation.
    pub handle: u64,
    pub owner: Owner,
    pub device: Option<DeviceIndex>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped {
    pub addr: u64,
    pub owner: Owner,
    /// The handle, if that was all that kept its memory.
    pub gone: Option<u64>,
}

impl Physical {
    /// `cuMemCreate`.
    pub fn create(&mut self, handle: u64, owner: Owner, device: Option<DeviceIndex>, at: TimeNs) {
        if self.memory.len() < MOST || self.memory.contains_key(&handle) {
            let memory = Memory {
                owner,
                device,
                created: at,
                handles: 1,
                mappings: 0,
            };
            self.memory.insert(handle, memory);
        }
    }

    /// `cuMemRetainAllocationHandle` for the memory at `addr`; `handle` need not be the one that was mapped.
    pub fn retain(&mut self, handle: u64, addr: u64) {
        let before = self.mappings.range(..=addr).next_back();
        let mapped = before.filter(|(start, (size, _))| addr - **start < *size);
        let known = mapped.map_or(handle, |(_, (_, mapped))| *mapped);
        let Some(memory) = self.memory.get_mut(&known) else {
            return;
        };
        memory.handles += 1;
        if known != handle && self.aliases.len() < MOST {
            self.aliases.insert(handle, known);
        }
    }

    /// `cuMemImportFromShareableHandle`, which gave `handle`: another reference, if that is memory of this process.
    pub fn import(&mut self, handle: u64) {
        let handle = self.original(handle);
        if let Some(memory) = self.memory.get_mut(&handle) {
            memory.handles += 1;
        }
    }

    /// Handles a `cuMemRelease` that was entered at `entered`; returns the memory that it frees, by the handle
    /// of its creation. A handle released as often as it was given may name another object afterwards, even
    /// before the call has returned.
    pub fn release(&mut self, handle: u64, entered: TimeNs) -> Option<(u64, Owner)> {
        let handle = self.original(handle);
        let memory = self.memory.get_mut(&handle)?;
        if memory.created > entered {
            return None;
        }
        memory.handles = memory.handles.checked_sub(1)?;
        self.remove_unused(handle)
    }

    fn remove_unused(&mut self, handle: u64) -> Option<(u64, Owner)> {
        let memory = self.memory.get(&handle)?;
        let owner = memory.owner;
        (memory.handles == 0 && memory.mappings == 0).then(|| {
            self.memory.remove(&handle);
            self.aliases.retain(|_, original| *original != handle);
            (handle, owner)
        })
    }

    /// True for a handle whose memory was seen being made.
    pub fn is_known(&self, handle: u64) -> bool {
        self.memory.contains_key(&self.original(handle))
    }

    fn original(&self, handle: u64) -> u64 {
        self.aliases.get(&handle).copied().unwrap_or(handle)
    }

    /// `cuMemMap`: the memory that is mapped; `None` for memory that was not seen being made, or of another process,
    /// and for a multicast object.
    pub fn map(&mut self, addr: u64, size: Bytes, handle: u64) -> Option<Mapped> {
        let handle = self.original(handle);
        let memory = self.memory.get_mut(&handle)?;
        if self.mappings.len() >= MOST || memory.handles == 0 {
            return None;
        }
        memory.mappings += 1;
        self.mappings.insert(addr, (size.0, handle));
        Some(Mapped {
            handle,
            owner: memory.owner,
            device: memory.device,
        })
    }

    /// `cuMemUnmap`: what was mapped there.
    pub fn unmap(&mut self, addr: u64, size: Bytes) -> Vec<Unmapped> {
        let end = addr.saturating_add(size.0);
        let inside = self.mappings.range(addr..end);
        let inside: Vec<_> = inside.map(|(addr, (_, handle))| (*addr, *handle)).collect();
        let unmapped = inside.into_iter().map(|(addr, handle)| {
            self.mappings.remove(&addr);
            let owner = self.memory.get_mut(&handle).map_or(Owner::Other, |memory| {
                memory.mappings = memory.mappings.saturating_sub(1);
                memory.owner
            });
            let gone = self.remove_unused(handle).map(|(handle, _)| handle);
            Unmapped { addr, owner, gone }
        });
        unmapped.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Bytes = Bytes(2 << 20);

    fn made() -> Physical {
        let mut physical = Physical::default();
        physical.create(7, Owner::Other, Some(DeviceIndex(1)), TimeNs(1));
        physical
    }

    #[test]
    fn memory_that_is_mapped_outlives_its_handle() {
        let mut physical = made();
        let mapped = physical.map(0x20_0000, PAGE, 7);
        let expected = Mapped {
            handle: 7,
            owner: Owner::Other,
            device: Some(DeviceIndex(1)),
        };
        assert_eq!(mapped, Some(expected));
        assert_eq!(physical.release(7, TimeNs(2)), None);
        let unmapped = physical.unmap(0x20_0000, PAGE);
        assert_eq!(
            unmapped,
            [Unmapped {
                addr: 0x20_0000,
                owner: Owner::Other,
                gone: Some(7)
            }]
        );
    }

    #[test]
    fn a_handle_outlives_its_mappings() {
        let mut physical = made();
        physical.map(0x20_0000, PAGE, 7);
        physical.map(0x60_0000, PAGE, 7);
        let unmapped = physical.unmap(0, Bytes(u64::MAX));
        assert_eq!(unmapped.len(), 2);
        assert!(unmapped.iter().all(|unmapped| unmapped.gone.is_none()));
        physical.retain(7, 0);
        assert_eq!(physical.release(7, TimeNs(2)), None);
        assert_eq!(physical.release(7, TimeNs(2)), Some((7, Owner::Other)));
        assert_eq!(
            physical.release(7, TimeNs(2)),
            None,
            "released once too often"
        );
    }

    #[test]
    fn two_handles_of_one_memory_keep_it_both() {
        let mut physical = made();
        physical.map(0x20_0000, PAGE, 7);
        physical.retain(8, 0x20_1000);
        assert_eq!(physical.release(7, TimeNs(2)), None);
        physical.unmap(0x20_0000, PAGE);
        assert_eq!(physical.release(8, TimeNs(2)), Some((7, Owner::Other)));
    }

    #[test]
    fn only_what_begins_within_is_unmapped() {
        let mut physical = made();
        physical.map(0x20_0000, PAGE, 7);
        physical.map(0x40_0000, PAGE, 7);
        assert_eq!(physical.unmap(0x40_0000, PAGE).len(), 1);
        assert_eq!(physical.unmap(0x40_0000, PAGE).len(), 0);
        assert_eq!(physical.unmap(u64::MAX - 1, PAGE).len(), 0);
    }

    #[test]
    fn memory_that_is_imported_again_is_held_by_that_handle_too() {
        let mut physical = made();
        physical.import(7);
        assert_eq!(physical.release(7, TimeNs(2)), None);
        assert_eq!(physical.release(7, TimeNs(2)), Some((7, Owner::Other)));
        physical.import(7);
        assert_eq!(physical.release(7, TimeNs(2)), None, "gone already");
    }

    #[test]
    fn a_handle_that_was_released_may_be_the_number_of_another_object() {
        let mut physical = made();
        physical.map(0x20_0000, PAGE, 7);
        assert_eq!(physical.release(7, TimeNs(2)), None);
        // A multicast object has the number now.
        assert_eq!(physical.map(0x40_0000, PAGE, 7), None);
        assert_eq!(physical.release(7, TimeNs(2)), None);
        assert_eq!(physical.unmap(0x40_0000, PAGE), []);
        assert_eq!(physical.unmap(0x20_0000, PAGE)[0].gone, Some(7));
    }

    #[test]
    fn memory_of_another_process_is_none_of_ours() {
        let mut physical = Physical::default();
        physical.import(9);
        assert_eq!(physical.map(0x1000, PAGE, 9), None);
        assert_eq!(physical.release(9, TimeNs(2)), None);
        assert_eq!(physical.unmap(0x1000, PAGE), []);
    }

    #[test]
    fn a_release_that_returns_after_its_handle_was_given_again_leaves_the_new_memory() {
        let mut physical = Physical::default();
        physical.create(7, Owner::Other, None, TimeNs(30));
        assert_eq!(physical.release(7, TimeNs(20)), None);
        assert_eq!(physical.release(7, TimeNs(40)), Some((7, Owner::Other)));
    }
}

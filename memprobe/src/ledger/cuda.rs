//! Ledger of CUDA memory outside the caching allocator.
//!
//! It has two views: by library and kind of memory, and by device. The latter treats CUDA's calls
//! as the allocator, for processes without a caching allocator.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::block_store::BlockStore;
use super::call_sites::{CallSiteId, CallSites, Tally};
use super::change::Change;
use super::definitions::{Definitions, StackRef};
use super::device::{ADDRESS_LIMIT, DeviceLedger};
use super::keyframe::{
    CudaGroupKeyframe, CudaKeyframe, CudaMemoryKeyframe, CudaName, LedgerKeyframe,
};
use super::snapshot::{
    CudaKindTotal, CudaSnapshot, DeviceSnapshot, Grouping, OutsideRow, SoftwareLayer,
};
use crate::event::{Bytes, CudaCall, CudaMemoryKind, DeviceIndex, MemoryEvent, TimeNs, Totals};

/// Maximum number of groups; the excess is counted under [`OTHERS`].
const MAX_GROUPS: usize = 4096;

const OTHERS: &str = "(other libraries)";

/// Library name of a call without a known stack.
const UNKNOWN: &str = "(unknown library)";

#[derive(Clone, Debug, Default)]
pub(super) struct CudaLedger {
    live: HashMap<CudaName, LiveMemory>,
    groups: Vec<Group>,
    by_key: HashMap<Key, usize>,
    kinds: BTreeMap<CudaMemoryKind, Tally>,
    /// Devices in the view that treats CUDA's calls as the allocator.
    devices: BTreeMap<DeviceIndex, DeviceLedger>,
    layer: SoftwareLayer,
}

impl CudaName {
    fn of(event: &MemoryEvent, space: CudaMemoryKind) -> Self {
        match space {
            // Both are objects of the driver: no two live ones have the same number.
            CudaMemoryKind::Array | CudaMemoryKind::Context => Self::Array(event.addr.0),
            CudaMemoryKind::Virtual => Self::Handle(event.addr.0),
            CudaMemoryKind::Device
            | CudaMemoryKind::Pool
            | CudaMemoryKind::Managed
            | CudaMemoryKind::Pinned
            | CudaMemoryKind::Registered
            | CudaMemoryKind::Imported => Self::Address(event.addr.0),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct LiveMemory {
    size: Bytes,
    group: usize,
    holder: CallSiteId,
    on_device: Option<(DeviceIndex, CallSiteId)>,
}

type Key = (Arc<str>, CudaMemoryKind, Option<DeviceIndex>);

#[derive(Clone, Debug)]
struct Group {
    key: Key,
    tally: Tally,
    holders: CallSites,
}

impl CudaLedger {
    pub(super) fn alloc(
        &mut self,
        event: &MemoryEvent,
        call: CudaCall,
        started: TimeNs,
        store: &mut BlockStore,
    ) -> Change {
        if call.space != CudaMemoryKind::Context {
            self.layer = self.layer.max(SoftwareLayer::of(call));
        }
        let name = CudaName::of(event, call.space);
        self.end(name, event.time, store);
        let stack = store.definitions.stack_ref(event.stack);
        let group = self.group_of(event, (stack, call.space), store);
        let is_tracked = store.budget.take_block();
        let on_device = call.space.is_on_device().then(|| {
            let index = event.device.unwrap_or(DeviceIndex::UNKNOWN);
            let nothing = Totals::default();
            let new = || DeviceLedger::with(index, nothing, nothing, started);
            let device = self.devices.entry(index).or_insert_with(new);
            let holder = device.call_sites.of(stack, event.tid, store);
            device.call_sites.count(holder, event.size, is_tracked);
            if is_tracked {
                device.begin(event.size);
                device.set_totals(event.time, device.live_totals());
            }
            (index, holder)
        });
        let kind = self.kinds.entry(call.space).or_default();
        kind.count(event.size.0, is_tracked);
        let group_ = &mut self.groups[group];
        let holder = group_.holders.of(stack, event.tid, store);
        group_.holders.count(holder, event.size, is_tracked);
        group_.tally.count(event.size.0, is_tracked);
        if is_tracked {
            let memory = LiveMemory {
                size: event.size,
                group,
                holder,
                on_device,
            };
            self.live.insert(name, memory);
        }
        Change::Cuda
    }

    /// Handles a free by CUDA. Memory from before attach is unknown and not counted.
    pub(super) fn free(
        &mut self,
        event: &MemoryEvent,
        call: CudaCall,
        store: &mut BlockStore,
    ) -> Change {
        if call.space != CudaMemoryKind::Context {
            self.layer = self.layer.max(SoftwareLayer::of(call));
        }
        self.end(CudaName::of(event, call.space), event.time, store);
        Change::Cuda
    }

    fn end(&mut self, name: CudaName, time: TimeNs, store: &mut BlockStore) {
        let Some(memory) = self.live.remove(&name) else {
            return;
        };
        store.budget.give_block_back();
        let group = &mut self.groups[memory.group];
        group.holders.release(memory.holder, memory.size);
        group.tally.release(memory.size.0);
        let kind = self.kinds.entry(group.key.1).or_default();
        kind.release(memory.size.0);
        let device = memory
            .on_device
            .and_then(|(index, holder)| Some((self.devices.get_mut(&index)?, holder)));
        if let Some((device, holder)) = device {
            device.end(memory.size, Some(holder));
            device.set_totals(time, device.live_totals());
        }
    }

    pub(super) fn keyframe(&self) -> CudaKeyframe {
        let groups = self.groups.iter().map(|group| {
            let (library, space, device) = group.key.clone();
            CudaGroupKeyframe {
                library,
                space,
                device,
                counts: group.tally.keyframe(),
                call_sites: group.holders.keyframe(),
            }
        });
        let live = self.live.iter().map(|(name, memory)| {
            let on_device = memory.on_device;
            CudaMemoryKeyframe {
                name: *name,
                size: memory.size,
                group: memory.group as u32,
                call_site: memory.holder.place(),
                on_device: on_device.map(|(device, holder)| (device, holder.place())),
            }
        });
        let peaks = self.kinds.iter().map(|(kind, tally)| (*kind, tally.peak));
        CudaKeyframe {
            layer: self.layer,
            peaks: peaks.collect(),
            groups: groups.collect(),
            devices: self.devices.values().map(DeviceLedger::keyframe).collect(),
            live: live.collect(),
        }
    }

    pub(super) fn of_keyframe(
        keyframe: &LedgerKeyframe,
        store: &mut BlockStore,
    ) -> Result<Self, &'static str> {
        let state = &keyframe.cuda;
        let mut cuda = Self {
            layer: state.layer,
            ..Self::default()
        };
        for (kind, peak) in &state.peaks {
            cuda.kinds.entry(*kind).or_default().peak = *peak;
        }
        for group in &state.groups {
            let kind = cuda.kinds.entry(group.space).or_default();
            kind.add_counts(&group.counts);
            let key = (Arc::clone(&group.library), group.space, group.device);
            let mut tally = Tally::default();
            tally.add_counts(&group.counts);
            tally.peak = group.counts.peak;
            cuda.by_key.insert(key.clone(), cuda.groups.len());
            cuda.groups.push(Group {
                key,
                tally,
                holders: CallSites::of_keyframe(&group.call_sites, store)?,
            });
        }
        for device in &state.devices {
            let restored = DeviceLedger::of_keyframe(device, keyframe, store)?;
            cuda.devices.insert(device.index, restored);
        }
        for memory in &state.live {
            cuda.restore_memory(memory, store)?;
        }
        Ok(cuda)
    }

    fn restore_memory(
        &mut self,
        memory: &CudaMemoryKeyframe,
        store: &mut BlockStore,
    ) -> Result<(), &'static str> {
        const IMPOSSIBLE: &str = "a keyframe with impossible CUDA memory";
        let group = memory.group as usize;
        let into = self.groups.get_mut(group).ok_or(IMPOSSIBLE)?;
        let holder = into.holders.at(memory.call_site)?;
        if memory.size.0 > ADDRESS_LIMIT || !store.budget.take_block() {
            return Err(IMPOSSIBLE);
        }
        into.holders.restore_block(holder, memory.size);
        into.tally.add_live(memory.size.0);
        let kind = self.kinds.entry(into.key.1).or_default();
        kind.add_live(memory.size.0);
        let mut on_device = None;
        if let Some((index, place)) = memory.on_device {
            let device = self.devices.get_mut(&index).ok_or(IMPOSSIBLE)?;
            let holder = device.call_sites.at(place)?;
            device.call_sites.restore_block(holder, memory.size);
            device.begin(memory.size);
            on_device = Some((index, holder));
        }
        let restored = LiveMemory {
            size: memory.size,
            group,
            holder,
            on_device,
        };
        match self.live.insert(memory.name, restored) {
            None => Ok(()),
            Some(_) => Err(IMPOSSIBLE),
        }
    }

    fn group_of(
        &mut self,
        event: &MemoryEvent,
        (stack, space): (StackRef, CudaMemoryKind),
        store: &BlockStore,
    ) -> usize {
        let stack = &store.definitions.stack(stack).stack;
        let library = stack.calling_library().cloned();
        let is_on_host = matches!(space, CudaMemoryKind::Pinned | CudaMemoryKind::Registered);
        let device = event.device.filter(|_| !is_on_host);
        let key = (library.unwrap_or_else(|| UNKNOWN.into()), space, device);
        if let Some(group) = self.by_key.get(&key) {
            return *group;
        }
        let key = if self.groups.len() < MAX_GROUPS {
            key
        } else {
            (OTHERS.into(), space, device)
        };
        let (groups, new) = (&mut self.groups, key.clone());
        *self.by_key.entry(key).or_insert_with(|| {
            groups.push(Group {
                key: new,
                tally: Tally::default(),
                holders: CallSites::default(),
            });
            groups.len() - 1
        })
    }

    pub(super) fn call_sites_mut(&mut self) -> impl Iterator<Item = &mut CallSites> {
        let groups = self.groups.iter_mut().map(|group| &mut group.holders);
        let devices = self.devices.values_mut();
        groups.chain(devices.map(|device| &mut device.call_sites))
    }

    /// Devices on which a library got memory.
    pub(super) fn devices_with_memory(&self) -> impl Iterator<Item = DeviceIndex> {
        self.groups.iter().filter_map(|group| group.key.2)
    }

    /// Live bytes that lie on a device; `None` for memory whose device is not known.
    pub(super) fn live_on(&self, device: Option<DeviceIndex>) -> u64 {
        let groups = self.groups.iter().filter(|group| {
            let (_, space, on) = &group.key;
            space.is_on_device() && *on == device
        });
        groups.map(|group| group.tally.live).sum()
    }

    /// Memory on devices by library, largest first; also of processes without a caching allocator.
    pub(super) fn on_devices(
        &self,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> Vec<OutsideRow> {
        self.rows(CudaMemoryKind::is_on_device, grouping, definitions)
    }

    /// Contexts by library, with the lines that made them.
    pub(super) fn contexts(
        &self,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> Vec<OutsideRow> {
        let is_context = |space| space == CudaMemoryKind::Context;
        self.rows(is_context, grouping, definitions)
    }

    fn rows(
        &self,
        is_listed: impl Fn(CudaMemoryKind) -> bool,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> Vec<OutsideRow> {
        let groups = self.groups.iter().filter(|group| is_listed(group.key.1));
        let mut rows: Vec<_> = groups
            .map(|group| row(group, grouping, definitions))
            .collect();
        rows.sort_by(|one, other| (other.live, &one.library).cmp(&(one.live, &other.library)));
        rows
    }

    /// Snapshot for views. With a caching allocator it has all groups, otherwise those not known to
    /// be on a device.
    pub(super) fn snapshot(
        &self,
        allocator_speaks: bool,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> CudaSnapshot {
        let is_listed = |group: &&Group| {
            let space = group.key.1;
            let has_size = !matches!(space, CudaMemoryKind::Context | CudaMemoryKind::Imported);
            has_size && (allocator_speaks || !space.is_on_device())
        };
        let mut rows: Vec<_> = self
            .groups
            .iter()
            .filter(is_listed)
            .map(|group| row(group, grouping, definitions))
            .collect();
        rows.sort_by(|one, other| {
            let key = |row: &OutsideRow| (std::cmp::Reverse((row.live, row.peak)), row.space);
            key(one)
                .cmp(&key(other))
                .then_with(|| (&one.library, one.device).cmp(&(&other.library, other.device)))
        });
        CudaSnapshot {
            layer: if allocator_speaks {
                SoftwareLayer::Allocator
            } else {
                self.layer
            },
            rows,
            kinds: self.totals_by_kind(),
        }
    }

    fn totals_by_kind(&self) -> Vec<CudaKindTotal> {
        let kinds = self.kinds.iter();
        let kinds = kinds.filter(|(kind, _)| **kind != CudaMemoryKind::Context);
        let total = |(kind, tally): (&CudaMemoryKind, &Tally)| CudaKindTotal {
            kind: *kind,
            live: Bytes(tally.live),
            peak: Bytes(tally.peak),
            live_blocks: tally.blocks,
            allocs: tally.allocs,
        };
        kinds.map(total).collect()
    }

    /// Devices in the view that treats CUDA's calls as the allocator.
    pub(super) fn devices(
        &self,
        now: TimeNs,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> Vec<DeviceSnapshot> {
        let devices = self.devices.values();
        devices
            .map(|device| device.snapshot(now, grouping, definitions))
            .collect()
    }
}

fn row(group: &Group, grouping: Grouping, definitions: &Definitions) -> OutsideRow {
    let (library, space, device) = group.key.clone();
    OutsideRow {
        library,
        space,
        device,
        live: Bytes(group.tally.live),
        peak: Bytes(group.tally.peak),
        live_blocks: group.tally.blocks,
        allocs: group.tally.allocs,
        lines: group.holders.rows(grouping, definitions),
    }
}

/// Returns the CUDA call of an event if its size is plausible: sums of all live memory must fit.
pub(super) fn plausible(event: &MemoryEvent) -> Option<CudaCall> {
    event.call.filter(|_| event.size.0 <= ADDRESS_LIMIT)
}

#[cfg(test)]
mod tests;

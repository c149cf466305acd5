//! Live blocks of a process, and the events that correct them after a time without probes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::event::{
    Action, Address, AtAttach, Bytes, DeviceIndex, Event, MemoryEvent, PurposeId, StackId, Tgid,
    Tid, TimeNs, Totals,
};

/// Blocks of the caching allocator that the emitted events leave live, without their stacks.
#[derive(Debug, Default)]
pub(super) struct LiveBlocks {
    blocks: HashMap<(DeviceIndex, Address), Bytes>,
    devices: BTreeMap<DeviceIndex, DeviceTotals>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DeviceTotals {
    last: Totals,
    peak: Totals,
}

/// The allocator's state when the probes were in place again.
#[derive(Debug, Default)]
pub(super) struct FoundBlocks {
    devices: BTreeMap<DeviceIndex, AtAttach>,
    blocks: HashMap<(DeviceIndex, Address), Bytes>,
    /// Reason why the blocks are unknown.
    unread: Option<Arc<str>>,
}

impl FoundBlocks {
    /// Adds an event of the baseline. Returns any other event.
    pub(super) fn push(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::AtAttach(found) => {
                if found.unread.is_some() {
                    self.unread.clone_from(&found.unread);
                }
                if let Some(device) = found.device {
                    self.devices.insert(device, found);
                }
                None
            }
            Event::Memory(memory) if memory.action == Action::Held => {
                let device = memory.device.unwrap_or(DeviceIndex::UNKNOWN);
                self.blocks.insert((device, memory.addr), memory.size);
                None
            }
            other => Some(other),
        }
    }

    pub(super) fn unread(&self) -> Option<&Arc<str>> {
        self.unread.as_ref()
    }
}

/// Time, process and stack of correcting events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Correction {
    pub(super) time: TimeNs,
    pub(super) tgid: Tgid,
    /// Stack of blocks that were allocated without probes.
    pub(super) stack: StackId,
}

impl LiveBlocks {
    /// Follows an emitted event.
    pub(super) fn apply(&mut self, event: &Event) {
        let Event::Memory(memory) = event else {
            if let Event::AtAttach(found) = event
                && let Some(index) = found.device
            {
                let device = self.devices.entry(index).or_default();
                device.last = found.totals;
                device.peak = device.peak.higher(found.peak).higher(found.totals);
            }
            return;
        };
        let Some(index) = memory.device.filter(|device| *device != DeviceIndex::CPU) else {
            return;
        };
        match memory.action {
            Action::Alloc | Action::Held => {
                self.blocks.insert((index, memory.addr), memory.size);
            }
            Action::Free => {
                self.blocks.remove(&(index, memory.addr));
            }
            _ => {}
        }
        if let Some(totals) = memory.totals {
            let device = self.devices.entry(index).or_default();
            device.last = totals;
            device.peak = device.peak.higher(totals);
        }
    }

    /// Returns the events that lead to the found state, and follows them. Blocks that are gone were freed. A block at the
    /// same address with the same size counts as the same. Any other was allocated without probes. Where the blocks could
    /// not be read, all of them count as freed, and the totals stay unexplained.
    pub(super) fn correct(&mut self, found: &FoundBlocks, by: Correction) -> Vec<Event> {
        let mut changes: BTreeMap<DeviceIndex, DeviceChanges> = BTreeMap::new();
        for (place, size) in &self.blocks {
            if found.blocks.get(place) != Some(size) {
                let device = changes.entry(place.0).or_default();
                device.freed.push((place.1, *size));
            }
        }
        for (place, size) in &found.blocks {
            if self.blocks.get(place) != Some(size) {
                let device = changes.entry(place.0).or_default();
                device.allocated.push((place.1, *size));
            }
        }
        for device in found.devices.keys() {
            changes.entry(*device).or_default();
        }
        let mut events = Vec::new();
        for (index, changes) in changes {
            let at_attach = found.devices.get(&index);
            let totals = at_attach.map(|found| found.totals).unwrap_or_default();
            changes.push_events(index, totals, by, &mut events);
            events.extend(self.raised_peak(at_attach, by));
        }
        events.iter().for_each(|event| self.apply(event));
        events
    }

    /// Says that a device had a higher peak meanwhile, by the allocator's statistics.
    fn raised_peak(&self, found: Option<&AtAttach>, by: Correction) -> Option<Event> {
        let found = found?;
        let known = self
            .devices
            .get(&found.device?)
            .copied()
            .unwrap_or_default();
        (known.peak.higher(found.peak) != known.peak).then(|| {
            Event::AtAttach(AtAttach {
                time: by.time,
                ..found.clone()
            })
        })
    }
}

#[derive(Debug, Default)]
struct DeviceChanges {
    freed: Vec<(Address, Bytes)>,
    allocated: Vec<(Address, Bytes)>,
}

impl DeviceChanges {
    /// Adds frees first, so that no total is above those of both ends.
    fn push_events(
        mut self,
        device: DeviceIndex,
        end: Totals,
        by: Correction,
        events: &mut Vec<Event>,
    ) {
        self.freed.sort_unstable();
        self.allocated.sort_unstable();
        let sum = |blocks: &[(Address, Bytes)]| {
            let sizes = blocks.iter().map(|(_, size)| size.0);
            sizes.fold(0, u64::saturating_add)
        };
        let start = end.allocated.0.saturating_add(sum(&self.freed));
        let mut allocated = start.saturating_sub(sum(&self.allocated));
        let freed = self.freed.into_iter().map(|block| (Action::Free, block));
        let new = self.allocated.into_iter();
        let new = new.map(|block| (Action::Alloc, block));
        events.extend(freed.chain(new).map(|(action, (addr, size))| {
            let (next, stack) = match action {
                Action::Free => (allocated.saturating_sub(size.0), StackId::NONE),
                _ => (allocated.saturating_add(size.0), by.stack),
            };
            allocated = next;
            Event::Memory(MemoryEvent {
                time: by.time,
                tgid: by.tgid,
                tid: Tid::UNKNOWN,
                action,
                addr,
                size,
                device: Some(device),
                totals: Some(Totals {
                    allocated: Bytes(next),
                    reserved: end.reserved,
                }),
                stack,
                shape: PurposeId::NONE,
                call: None,
            })
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::ledger::snapshot::Grouping;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const BY: Correction = Correction {
        time: TimeNs(9),
        tgid: Tgid(7),
        stack: StackId(5),
    };

    fn event(action: Action, addr: u64, size: u64, allocated: u64) -> Event {
        Event::Memory(MemoryEvent {
            time: TimeNs(1),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DEVICE),
            totals: Some(Totals::of(allocated, 8192)),
            stack: StackId(1),
            shape: PurposeId::NONE,
            call: None,
        })
    }

    fn found(blocks: &[(u64, u64)], peak: u64) -> FoundBlocks {
        let sum = blocks.iter().map(|(_, size)| size).sum();
        let mut found = FoundBlocks::default();
        let at_attach = Event::AtAttach(AtAttach {
            time: TimeNs(8),
            tgid: Tgid(7),
            device: Some(DEVICE),
            totals: Totals::of(sum, 8192),
            peak: Totals::of(peak, 8192),
            unread: None,
        });
        assert_eq!(found.push(at_attach), None);
        for (addr, size) in blocks {
            assert_eq!(found.push(event(Action::Held, *addr, *size, sum)), None);
        }
        found
    }

    /// Two blocks of 512 bytes at 0 and 512, live in a ledger too.
    fn scene() -> (LiveBlocks, Ledger) {
        let mut live = LiveBlocks::default();
        let mut ledger = Ledger::default();
        for event in [
            event(Action::Alloc, 0, 512, 512),
            event(Action::Alloc, 512, 512, 1024),
        ] {
            live.apply(&event);
            ledger.apply(&event);
        }
        (live, ledger)
    }

    fn memory_events(events: &[Event]) -> Vec<(Action, u64, u64, u64)> {
        let memory = events.iter().filter_map(|event| match event {
            Event::Memory(it) => Some(it),
            _ => None,
        });
        let allocated = |it: &MemoryEvent| it.totals.map_or(0, |totals| totals.allocated.0);
        memory
            .map(|it| (it.action, it.addr.0, it.size.0, allocated(it)))
            .collect()
    }

    #[test]
    fn what_did_not_change_needs_no_event() {
        let (mut live, _) = scene();
        let events = live.correct(&found(&[(0, 512), (512, 512)], 1024), BY);
        assert_eq!(events, []);
    }

    #[test]
    fn the_ledger_has_the_allocators_blocks_and_totals_afterwards() {
        let (mut live, mut ledger) = scene();
        let events = live.correct(&found(&[(512, 512), (2048, 1024)], 1536), BY);
        assert_eq!(
            memory_events(&events),
            [
                (Action::Free, 0, 512, 512),
                (Action::Alloc, 2048, 1024, 1536)
            ]
        );
        events.iter().for_each(|event| _ = ledger.apply(event));
        let snapshot = ledger.snapshot(TimeNs(10), Grouping::User);
        let device = &snapshot.devices[0];
        assert_eq!(
            (device.totals.allocated, device.live_blocks),
            (Bytes(1536), 2)
        );
        assert_eq!((device.unaccounted, snapshot.health.disagreements), (0, 0));
    }

    #[test]
    fn another_size_at_the_same_address_is_another_block() {
        let (mut live, _) = scene();
        let events = live.correct(&found(&[(0, 256), (512, 512)], 1024), BY);
        assert_eq!(
            memory_events(&events),
            [(Action::Free, 0, 512, 512), (Action::Alloc, 0, 256, 768)]
        );
    }

    #[test]
    fn a_peak_that_was_not_seen_is_the_allocators_own() {
        let (mut live, mut ledger) = scene();
        let events = live.correct(&found(&[(0, 512), (512, 512)], 4096), BY);
        events.iter().for_each(|event| _ = ledger.apply(event));
        let snapshot = ledger.snapshot(TimeNs(10), Grouping::User);
        assert_eq!(snapshot.devices[0].peak.allocated, Bytes(4096));
        assert_eq!(
            live.correct(&found(&[(0, 512), (512, 512)], 4096), BY),
            [],
            "it is known by now"
        );
    }

    #[test]
    fn a_device_whose_blocks_are_unknown_has_none_that_are_wrong() {
        let (mut live, mut ledger) = scene();
        let mut unread = FoundBlocks::default();
        assert_eq!(
            unread.push(Event::AtAttach(AtAttach {
                time: TimeNs(8),
                tgid: Tgid(7),
                device: Some(DEVICE),
                totals: Totals::of(3000, 8192),
                peak: Totals::of(3000, 8192),
                unread: Some("damaged".into()),
            })),
            None
        );
        let events = live.correct(&unread, BY);
        events.iter().for_each(|event| _ = ledger.apply(event));
        let snapshot = ledger.snapshot(TimeNs(10), Grouping::User);
        let device = &snapshot.devices[0];
        assert_eq!(device.totals.allocated, Bytes(3000));
        assert_eq!((device.unaccounted, device.live_blocks), (3000, 0));
    }
}

//! Determines the blocks live at attach, from the allocator's tables and the events that arrived meanwhile.
//!
//! The process keeps running, so the tables show no single moment. A block whose first event is a free was live at
//! attach, one whose first event is an allocation was not, and one without an event was if the tables list it.
//! The result counts only if the sizes add up to the allocator's own total before the first event.
//!
//! A device without an event has only its statistics. A thread can be in the middle of a free then: the tables and the
//! statistics are without the block already, and the event comes after the blocks are settled. That first event
//! corrects the device's baseline. No other thread is in the way: the allocator holds the device's lock until the
//! event (`DeviceCachingAllocator::free`, c10/cuda/CUDACachingAllocator.cpp@v2.0.0 to @v2.15.0).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;

use super::tables::AllocatorTables;
use crate::event::{
    Action, Address, AtAttach, Bytes, DeviceIndex, Event, MemoryEvent, PurposeId, StackId, Tgid,
    Tid, TimeNs, Totals,
};

pub const MAX_EVENTS: usize = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the allocator's tables have {} bytes on cuda:{} where its total is {}", .tables.0, .device.0, .allocated.0
)]
pub struct TotalMismatch {
    pub device: DeviceIndex,
    pub tables: Bytes,
    pub allocated: Bytes,
}

/// Holds back the events of a process until its blocks at attach are known, and emits those blocks first.
#[derive(Debug)]
pub struct Reconciler {
    tgid: Tgid,
    since: TimeNs,
    /// Before `settled`: held-back events in order. After: events to emit after `baselines`.
    events: VecDeque<Event>,
    settled: bool,
    /// Blocks of each device at attach, emitted before `events`. Events would take six times the memory.
    baselines: VecDeque<DeviceBaseline>,
    latest: TimeNs,
    has_lost: bool,
    /// Settled devices without an event so far.
    unproven: BTreeMap<DeviceIndex, Before>,
}

/// The events of a device that was settled, not emitted yet.
#[derive(Debug)]
struct DeviceBaseline {
    /// `None` once it was emitted.
    at_attach: Option<AtAttach>,
    /// Time, device and totals of `held`.
    time: TimeNs,
    device: DeviceIndex,
    totals: Totals,
    held: std::vec::IntoIter<(Address, Bytes)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Before {
    totals: Totals,
    peak: Totals,
    /// True if the allocator's totals are known, from an event or from statistics that did not change.
    certain: bool,
    held: u64,
}

impl Reconciler {
    pub fn new(tgid: Tgid, since: TimeNs) -> Self {
        Self {
            tgid,
            since,
            events: VecDeque::new(),
            settled: false,
            baselines: VecDeque::new(),
            latest: since,
            has_lost: false,
            unproven: BTreeMap::new(),
        }
    }

    pub fn push(&mut self, event: Event) {
        match &event {
            Event::Memory(memory) => {
                self.latest = self.latest.max(memory.time);
                self.prove(memory);
            }
            Event::Loss(losses) => self.has_lost |= losses.events > 0 || losses.malformed > 0,
            _ => {}
        }
        self.events.push_back(event);
    }

    pub fn latest(&self) -> TimeNs {
        self.latest
    }

    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// True if everything was emitted, and later events prove nothing: none of them need come here any more.
    pub fn is_over(&self) -> bool {
        self.settled
            && self.unproven.is_empty()
            && self.baselines.is_empty()
            && self.events.is_empty()
    }

    /// True if events are missing. A correct sum then proves nothing: one block may stand for another.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    pub fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS
    }

    /// Returns the next event in order. Returns `None` until the blocks at attach are settled.
    pub fn pop(&mut self) -> Option<Event> {
        if !self.settled {
            return None;
        }
        while let Some(baseline) = self.baselines.front_mut() {
            if let Some(at_attach) = baseline.at_attach.take() {
                return Some(Event::AtAttach(at_attach));
            }
            if let Some((addr, size)) = baseline.held.next() {
                let DeviceBaseline {
                    time,
                    device,
                    totals,
                    ..
                } = *baseline;
                return Some(self.held(time, device, addr, size, totals));
            }
            self.baselines.pop_front();
        }
        self.events.pop_front()
    }

    /// Settles the blocks at attach by the tables. The caller has pushed every event up to the moment of reading them.
    /// Fails with [`TotalMismatch`]. The reconciler is then unchanged, and the tables can be read again.
    pub fn settle(&mut self, tables: &AllocatorTables) -> Result<(), TotalMismatch> {
        let firsts = self.firsts();
        let mut held: Vec<(DeviceIndex, Address, Bytes)> = Vec::with_capacity(tables.blocks.len());
        let blocks = tables.blocks.iter();
        let untouched = blocks.filter(|block| !firsts.contains_key(&block.addr));
        held.extend(untouched.map(|block| (block.device, block.addr, block.size)));
        let freed = firsts.iter();
        let freed = freed.filter(|(_, first)| first.action == Action::Free);
        held.extend(freed.filter_map(|(addr, first)| Some((first.device?, *addr, first.size))));
        drop(firsts);
        held.sort_unstable();
        let mut devices = self.before(tables);
        for (device, _, size) in &held {
            let before = devices.entry(*device).or_default();
            before.held = before.held.saturating_add(size.0);
        }
        let wrong = devices
            .iter()
            .find(|(_, before)| !before.certain || before.held != before.totals.allocated.0);
        if let Some((device, before)) = wrong {
            return Err(TotalMismatch {
                device: *device,
                tables: Bytes(before.held),
                allocated: before.totals.allocated,
            });
        }
        let proven = self.totals_before_events();
        self.prepend_baseline(&devices, &held, None);
        devices.retain(|device, _| !proven.contains_key(device));
        self.unproven = devices;
        Ok(())
    }

    /// Compares a settled device's statistics with its first event. A block whose free had begun when the tables were
    /// read was live at attach.
    fn prove(&mut self, event: &MemoryEvent) {
        let (Some(device), Some(after)) = (event.device, event.totals) else {
            return;
        };
        let Some(settled) = self.unproven.remove(&device) else {
            return;
        };
        let before = event.undo(after).allocated;
        let missing = before.0.checked_sub(settled.totals.allocated.0);
        if event.action != Action::Free || missing != Some(event.size.0) {
            return;
        }
        let totals = Totals {
            allocated: before,
            ..settled.totals
        };
        let peak = settled.peak.higher(totals);
        self.events.extend([
            self.at_attach(event.time, Some(device), totals, peak, None),
            self.held(event.time, device, event.addr, event.size, totals),
        ]);
    }

    fn at_attach(
        &self,
        time: TimeNs,
        device: Option<DeviceIndex>,
        totals: Totals,
        peak: Totals,
        unread: Option<Arc<str>>,
    ) -> Event {
        Event::AtAttach(AtAttach {
            time,
            tgid: self.tgid,
            device,
            totals,
            peak,
            unread,
        })
    }

    fn held(
        &self,
        time: TimeNs,
        device: DeviceIndex,
        addr: Address,
        size: Bytes,
        totals: Totals,
    ) -> Event {
        Event::Memory(MemoryEvent {
            time,
            tgid: self.tgid,
            tid: Tid::UNKNOWN,
            action: Action::Held,
            addr,
            size,
            device: Some(device),
            totals: Some(totals),
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        })
    }

    /// Settles without the tables: memory at attach is reported as one number, and `reason` gives the reason.
    pub fn give_up(&mut self, tables: Option<&AllocatorTables>, reason: &str) {
        let none = AllocatorTables::default();
        let devices = self.before(tables.unwrap_or(&none));
        self.prepend_baseline(&devices, &[], Some(reason.into()));
    }

    fn firsts(&self) -> HashMap<Address, &MemoryEvent> {
        let mut firsts = HashMap::new();
        for event in self.memory_events().filter(|event| event.device.is_some()) {
            if matches!(event.action, Action::Alloc | Action::Free) {
                firsts.entry(event.addr).or_insert(event);
            }
        }
        firsts
    }

    fn memory_events(&self) -> impl Iterator<Item = &MemoryEvent> {
        self.events.iter().filter_map(|event| match event {
            // The tables do not list CPU memory.
            Event::Memory(memory) if memory.device != Some(DeviceIndex::CPU) => Some(memory),
            _ => None,
        })
    }

    /// Totals of each device before its first event: from that event, or from the statistics without one.
    fn before(&self, tables: &AllocatorTables) -> BTreeMap<DeviceIndex, Before> {
        let mut devices = BTreeMap::new();
        for counters in &tables.devices {
            let before = Before {
                totals: counters.totals,
                peak: counters.peak,
                certain: counters.steady,
                held: 0,
            };
            devices.insert(counters.device, before);
        }
        for (device, totals) in self.totals_before_events() {
            let before: &mut Before = devices.entry(device).or_default();
            before.totals = totals;
            before.peak = before.peak.higher(totals);
            before.certain = true;
        }
        devices
    }

    fn totals_before_events(&self) -> BTreeMap<DeviceIndex, Totals> {
        let mut segments: HashMap<DeviceIndex, u64> = HashMap::new();
        let mut totals = BTreeMap::new();
        for event in self.memory_events() {
            let Some(device) = event.device else { continue };
            if totals.contains_key(&device) {
                continue;
            }
            // Modulo 2^64: intermediate values may be negative, the final sum is not.
            let grown = segments.entry(device).or_default();
            match event.action {
                Action::SegmentAlloc => *grown = grown.wrapping_add(event.size.0),
                Action::SegmentFree => *grown = grown.wrapping_sub(event.size.0),
                _ => {}
            }
            if let Some(after) = event.totals {
                let mut before = event.undo(after);
                before.reserved.0 = before.reserved.0.wrapping_sub(*grown);
                totals.insert(device, before);
            }
        }
        totals
    }

    fn prepend_baseline(
        &mut self,
        devices: &BTreeMap<DeviceIndex, Before>,
        held: &[(DeviceIndex, Address, Bytes)],
        unread: Option<Arc<str>>,
    ) {
        let first = self.memory_events().map(|event| event.time).min();
        let time = first.map_or(self.since, |first| first.min(self.since));
        for (device, before) in devices {
            // Skip devices that the process never used.
            if before.peak.higher(before.totals) == Totals::default() {
                continue;
            }
            let here = held.iter().filter(|(on, ..)| on == device);
            let here: Vec<_> = here.map(|(_, addr, size)| (*addr, *size)).collect();
            self.baselines.push_back(DeviceBaseline {
                at_attach: Some(AtAttach {
                    time,
                    tgid: self.tgid,
                    device: Some(*device),
                    totals: before.totals,
                    peak: before.peak,
                    unread: unread.clone(),
                }),
                time,
                device: *device,
                totals: before.totals,
                held: here.into_iter(),
            });
        }
        if self.baselines.is_empty() && unread.is_some() {
            let none = Totals::default();
            self.events
                .push_front(self.at_attach(time, None, none, none, unread));
        }
        self.settled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Losses;
    use crate::torch::allocator::tables::{DeviceCounters, HeldBlock};

    const CUDA_0: DeviceIndex = DeviceIndex(0);

    /// An allocator on two devices whose events go to a reconciler.
    struct Scene {
        reconciler: Reconciler,
        totals: [Totals; 2],
        time: u64,
    }

    impl Scene {
        fn with(allocated: u64) -> Self {
            let totals = Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(1 << 21),
            };
            Self {
                reconciler: Reconciler::new(Tgid(7), TimeNs(100)),
                totals: [totals; 2],
                time: 100,
            }
        }

        fn event(&mut self, action: Action, addr: u64, size: u64) -> MemoryEvent {
            self.time += 1;
            let allocated = &mut self.totals[0].allocated.0;
            match action {
                Action::Alloc => *allocated += size,
                Action::Free => *allocated -= size,
                Action::SegmentAlloc => self.totals[0].reserved.0 += size,
                _ => {}
            }
            let event = MemoryEvent {
                time: TimeNs(self.time),
                tgid: Tgid(7),
                tid: Tid(7),
                action,
                addr: Address(addr),
                size: Bytes(size),
                device: Some(CUDA_0),
                totals: (action != Action::SegmentAlloc).then_some(self.totals[0]),
                stack: StackId::NONE,
                shape: PurposeId::NONE,
                call: None,
            };
            self.reconciler.push(Event::Memory(event));
            event
        }

        fn tables(&self, blocks: &[(u64, u64)]) -> AllocatorTables {
            AllocatorTables {
                devices: vec![DeviceCounters {
                    device: CUDA_0,
                    totals: self.totals[0],
                    peak: self.totals[0],
                    steady: true,
                }],
                blocks: blocks.iter().map(|block| on(0, *block)).collect(),
                gone: Vec::new(),
            }
        }

        /// The emitted blocks at attach, and the number of other memory events.
        fn emitted(&mut self) -> (Vec<(u64, u64)>, usize) {
            let events: Vec<_> = std::iter::from_fn(|| self.reconciler.pop()).collect();
            let held: Vec<_> = events
                .iter()
                .filter_map(|event| match event {
                    Event::Memory(held) if held.action == Action::Held => {
                        Some((held.addr.0, held.size.0))
                    }
                    _ => None,
                })
                .collect();
            let others = events.iter().filter(|event| match event {
                Event::Memory(memory) => memory.action != Action::Held,
                _ => false,
            });
            (held, others.count())
        }
    }

    fn on(device: u8, (addr, size): (u64, u64)) -> HeldBlock {
        HeldBlock {
            addr: Address(addr),
            size: Bytes(size),
            requested: Bytes(size),
            device: DeviceIndex(device),
            stream: 0,
        }
    }

    #[test]
    fn in_a_process_that_does_nothing_the_tables_are_the_truth() {
        let mut scene = Scene::with(1536);
        let tables = scene.tables(&[(0, 512), (1024, 1024)]);
        assert_eq!(scene.reconciler.pop(), None);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        assert_eq!(scene.emitted(), (vec![(0, 512), (1024, 1024)], 0));
    }

    #[test]
    fn what_was_freed_meanwhile_was_live_and_what_was_allocated_was_not() {
        let mut scene = Scene::with(1536);
        scene.event(Action::Free, 0, 512);
        scene.event(Action::Alloc, 4096, 2048);
        scene.event(Action::Alloc, 0, 512);
        scene.event(Action::Free, 0, 512);
        // The tables were read at some moment in between.
        let tables = scene.tables(&[(0, 512), (1024, 1024), (4096, 2048)]);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        assert_eq!(scene.emitted(), (vec![(0, 512), (1024, 1024)], 4));
    }

    #[test]
    fn it_is_over_when_each_device_had_an_event_and_all_was_emitted() {
        let mut scene = Scene::with(512);
        let tables = scene.tables(&[(0x7000, 512)]);
        scene.reconciler.settle(&tables).expect("the sums agree");
        assert!(!scene.reconciler.is_over(), "the baseline was not emitted");
        scene.emitted();
        assert!(
            !scene.reconciler.is_over(),
            "the first event may be a late free"
        );
        scene.event(Action::Alloc, 0x9000, 1024);
        assert!(!scene.reconciler.is_over(), "the event was not emitted");
        scene.emitted();
        assert!(scene.reconciler.is_over());
    }

    #[test]
    fn a_block_that_the_tables_missed_is_no_truth() {
        let mut scene = Scene::with(1536);
        scene.event(Action::Alloc, 4096, 2048);
        let tables = scene.tables(&[(0, 512), (4096, 2048)]);
        let mismatch = TotalMismatch {
            device: CUDA_0,
            tables: Bytes(512),
            allocated: Bytes(1536),
        };
        assert_eq!(scene.reconciler.settle(&tables), Err(mismatch));
        assert!(!scene.reconciler.is_settled());
        let tables = scene.tables(&[(0, 512), (1024, 1024), (4096, 2048)]);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        assert_eq!(scene.emitted(), (vec![(0, 512), (1024, 1024)], 1));
    }

    #[test]
    fn rejects_moving_statistics_like_a_wrong_sum() {
        let mut scene = Scene::with(512);
        let mut tables = scene.tables(&[(0, 512)]);
        tables.devices[0].steady = false;
        assert!(scene.reconciler.settle(&tables).is_err());
        scene.event(Action::Free, 0, 512);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
    }

    #[test]
    fn segments_that_came_before_the_first_block_are_no_part_of_what_was_reserved() {
        let mut scene = Scene::with(512);
        let before = scene.totals[0];
        scene.event(Action::SegmentAlloc, 1 << 30, 1 << 21);
        scene.event(Action::Alloc, 1 << 30, 512);
        let tables = scene.tables(&[(0, 512)]);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        let Some(Event::AtAttach(at_attach)) = scene.reconciler.pop() else {
            panic!("what was there comes first")
        };
        assert_eq!((at_attach.totals, at_attach.time), (before, TimeNs(100)));
    }

    #[test]
    fn each_device_must_add_up_and_one_without_memory_is_not_reported() {
        let mut scene = Scene::with(512);
        let mut tables = scene.tables(&[(0, 512)]);
        let mut other = tables.devices[0];
        other.device = DeviceIndex(1);
        tables.devices.push(other);
        assert_eq!(
            scene
                .reconciler
                .settle(&tables)
                .map_err(|reason| reason.device),
            Err(DeviceIndex(1))
        );
        tables.devices[1].totals = Totals::default();
        tables.devices[1].peak = Totals::default();
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        let emitted = std::iter::from_fn(|| scene.reconciler.pop());
        assert_eq!(
            emitted
                .filter(|event| matches!(event, Event::AtAttach(_)))
                .count(),
            1
        );
    }

    #[test]
    fn a_block_whose_free_had_begun_before_the_first_event_was_live_at_attach() {
        let mut scene = Scene::with(1536);
        // The tables and the statistics are without the block, and its event is not there yet.
        let mut tables = scene.tables(&[(1024, 1024)]);
        tables.devices[0].totals.allocated = Bytes(1024);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        assert_eq!(scene.emitted(), (vec![(1024, 1024)], 0));
        scene.event(Action::Free, 0, 512);
        let Some(Event::AtAttach(corrected)) = scene.reconciler.pop() else {
            panic!("the corrected totals come first")
        };
        assert_eq!(corrected.totals.allocated, Bytes(1536));
        assert_eq!(scene.emitted(), (vec![(0, 512)], 1));
    }

    #[test]
    fn only_the_first_event_of_a_device_corrects_its_statistics() {
        let mut scene = Scene::with(1536);
        let tables = scene.tables(&[(0, 512), (1024, 1024)]);
        assert_eq!(scene.reconciler.settle(&tables), Ok(()));
        assert_eq!(scene.emitted().0.len(), 2);
        scene.event(Action::Free, 0, 512);
        scene.totals[0].allocated.0 += 512;
        scene.event(Action::Free, 4096, 512);
        assert_eq!(scene.emitted(), (vec![], 2));
    }

    #[test]
    fn after_a_loss_the_events_are_not_all_there() {
        let mut scene = Scene::with(512);
        let loss = |events, stacks| {
            Event::Loss(Losses {
                events,
                stacks,
                ..Losses::default()
            })
        };
        scene.reconciler.push(loss(0, 5));
        assert!(
            !scene.reconciler.has_lost(),
            "the event is there, without its stack"
        );
        scene.reconciler.push(loss(1, 5));
        assert!(scene.reconciler.has_lost());
    }

    #[test]
    fn without_tables_reports_the_totals_and_the_reason() {
        let mut scene = Scene::with(1536);
        scene.event(Action::Free, 0, 512);
        scene.reconciler.give_up(None, "torn");
        let Some(Event::AtAttach(at_attach)) = scene.reconciler.pop() else {
            panic!("what was there comes first")
        };
        assert_eq!(at_attach.totals.allocated, Bytes(1536));
        assert_eq!(at_attach.unread.as_deref(), Some("torn"));
        assert_eq!(scene.emitted(), (vec![], 1));
    }

    #[test]
    fn without_tables_and_events_reports_only_the_reason() {
        let mut scene = Scene::with(0);
        scene.reconciler.give_up(None, "another backend");
        let Some(Event::AtAttach(at_attach)) = scene.reconciler.pop() else {
            panic!("the reason comes first")
        };
        assert_eq!(at_attach.device, None);
        assert_eq!(scene.reconciler.pop(), None);
        scene.event(Action::Alloc, 0, 512);
        assert_eq!(scene.emitted(), (vec![], 1));
    }
}

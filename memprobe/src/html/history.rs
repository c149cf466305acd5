//! Events of each device during the replay: the allocator's totals after each, failed requests, and segments.

use std::collections::BTreeMap;

use super::window::{DeviceEvents, EventSample, HeldEvents};
use crate::attribution::AttributionLedger;
use crate::attribution::PeakAnalysis;
use crate::attribution::allocations::{AllocationHistory, EventNumber};
use crate::attribution::segments::{SegmentExtent, SegmentLedger};
use crate::event::{Action, Address, DeviceIndex, Event};
use crate::ledger::{Analysis, Change, Ledger};

/// Cap on segments of all devices over time.
const MAX_SEGMENTS: usize = 1 << 18;

/// Allocations, and the totals of their devices after each event, as far as a page shows them.
#[derive(Debug)]
pub(super) struct PageHistory {
    allocations: AllocationHistory,
    devices: BTreeMap<DeviceIndex, DeviceEvents>,
    /// Most events of a device in a page.
    most: usize,
}

/// The history that a page shows.
#[derive(Debug)]
pub(super) struct HeldHistory {
    pub allocations: AllocationHistory,
    pub devices: BTreeMap<DeviceIndex, HeldEvents>,
}

impl PageHistory {
    /// Keeps what a page of at most `most` events of each device needs.
    pub(super) fn new(most: usize) -> Self {
        Self {
            allocations: AllocationHistory::default(),
            devices: BTreeMap::new(),
            most,
        }
    }

    /// Ends the replay.
    pub(super) fn finish(mut self, ledger: &Ledger, categories: &AttributionLedger) -> HeldHistory {
        self.forget();
        self.allocations.finish(ledger, categories);
        let devices = self.devices.into_iter();
        HeldHistory {
            allocations: self.allocations,
            devices: devices.map(|(device, it)| (device, it.finish())).collect(),
        }
    }

    /// Forgets the allocations that no page shows any more.
    fn forget(&mut self) {
        let devices = &self.devices;
        self.allocations.forget_ended(|allocation| {
            let device = devices.get(&allocation.device);
            device.is_none_or(|device| device.may_show(allocation))
        });
    }
}

impl PeakAnalysis for PageHistory {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        self.allocations.apply(event, change, ledger, categories);
        let Event::Memory(memory) = event else { return };
        let Some((device, sample)) = ledger.moment(event) else {
            return;
        };
        let most = self.most;
        let events = self.devices.entry(device);
        let events = events.or_insert_with(|| DeviceEvents::new(most));
        if memory.action == Action::OutOfMemory {
            events.refuse(memory.size, ledger.stack_ref(memory.stack));
        }
        events.push(EventSample {
            number: self.allocations.events(),
            time: sample.time,
            allocated: sample.totals.allocated.0,
            reserved: sample.totals.reserved.0,
            before_attach: sample.before_attach.0,
        });
        if self.allocations.has_grown(self.most / 4) {
            self.forget();
        }
    }
}

/// A segment from the event that announced it to the one that returned it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSpan {
    pub extent: SegmentExtent,
    /// Memory events of the allocators before it.
    pub begin: EventNumber,
    /// [`EventNumber::END`] while it exists.
    pub end: EventNumber,
}

/// Segments of each device over time.
#[derive(Debug, Default)]
pub(super) struct SegmentSpans {
    ledger: SegmentLedger,
    events: u64,
    pub spans: BTreeMap<DeviceIndex, Vec<SegmentSpan>>,
    /// Index of the span of each segment that exists.
    open: BTreeMap<(DeviceIndex, Address), usize>,
    /// Reason why the allocator's tables could not be read.
    pub unread: Option<String>,
    /// Segments beyond the cap.
    pub left_out: u64,
}

impl Analysis for SegmentSpans {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.ledger.apply(event, change, ledger);
        match event {
            Event::Memory(memory) => match (memory.action, memory.device) {
                (Action::SegmentAlloc, Some(device)) => {
                    let extent = self.ledger.extent_at(device, memory.addr);
                    self.close(device, memory.addr);
                    extent.into_iter().for_each(|it| self.begin(device, it));
                }
                (Action::SegmentFree, Some(device)) => self.close(device, memory.addr),
                (Action::Alloc | Action::Free | Action::Held | Action::OutOfMemory, _) => {
                    self.events += 1;
                }
                _ => {}
            },
            Event::Segments(reading) => {
                self.unread = reading.unread.as_deref().map(str::to_owned);
                for device in &reading.devices {
                    self.read(device.device);
                }
            }
            _ => {}
        }
    }
}

impl SegmentSpans {
    /// Joins the segments of a reading with those that exist.
    fn read(&mut self, device: DeviceIndex) {
        let now: BTreeMap<Address, SegmentExtent> = self
            .ledger
            .extents(device)
            .map(|it| (it.addr, it))
            .collect();
        let range = (device, Address(0))..=(device, Address(u64::MAX));
        let known: Vec<(Address, usize)> = self
            .open
            .range(range)
            .map(|((_, addr), at)| (*addr, *at))
            .collect();
        for (addr, at) in known {
            let span = self.spans.get_mut(&device).and_then(|it| it.get_mut(at));
            match (span, now.get(&addr)) {
                (Some(span), Some(extent)) if span.extent.size == extent.size => {
                    span.extent = *extent;
                }
                _ => self.close(device, addr),
            }
        }
        for (addr, extent) in now {
            if !self.open.contains_key(&(device, addr)) {
                self.begin(device, extent);
            }
        }
    }

    fn begin(&mut self, device: DeviceIndex, extent: SegmentExtent) {
        let count: usize = self.spans.values().map(Vec::len).sum();
        if count >= MAX_SEGMENTS {
            self.left_out += 1;
            return;
        }
        let spans = self.spans.entry(device).or_default();
        self.open.insert((device, extent.addr), spans.len());
        spans.push(SegmentSpan {
            extent,
            begin: EventNumber(self.events),
            end: EventNumber::END,
        });
    }

    fn close(&mut self, device: DeviceIndex, addr: Address) {
        let at = self.open.remove(&(device, addr));
        let spans = self.spans.get_mut(&device);
        if let Some(span) = at.zip(spans).and_then(|(at, spans)| spans.get_mut(at)) {
            span.end = EventNumber(self.events);
        }
    }
}

//! Events of each device during the replay: the allocator's totals after each, failed requests, and segments.

use std::collections::BTreeMap;

use crate::attribution::AttributionLedger;
use crate::attribution::PeakAnalysis;
use crate::attribution::allocations::{AllocationHistory, EventNumber};
use crate::attribution::segments::{SegmentExtent, SegmentLedger};
use crate::event::{Action, Address, Bytes, DeviceIndex, Event, TimeNs};
use crate::ledger::{Analysis, Change, Ledger, StackRef};

/// Cap on segments of all devices over time.
const MAX_SEGMENTS: usize = 1 << 18;

/// Cap on failed requests.
const MAX_FAILED: usize = 1 << 12;

/// Allocations, and the totals of their devices after each event.
#[derive(Debug, Default)]
pub(super) struct PageHistory {
    pub allocations: AllocationHistory,
    pub devices: BTreeMap<DeviceIndex, DeviceEvents>,
}

/// Events of one device, in order.
#[derive(Debug, Default)]
pub(super) struct DeviceEvents {
    /// Number of each event among those of all devices.
    pub numbers: Vec<EventNumber>,
    pub samples: Vec<EventSample>,
    pub failed: Vec<RefusedRequest>,
}

/// State of a device after an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventSample {
    pub time: TimeNs,
    pub allocated: u64,
    pub reserved: u64,
    pub before_attach: u64,
}

/// A request that ended in an out-of-memory error.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedRequest {
    /// Index among the events of its device.
    pub event: usize,
    pub size: Bytes,
    pub stack: StackRef,
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
        let events = self.devices.entry(device).or_default();
        if memory.action == Action::OutOfMemory && events.failed.len() < MAX_FAILED {
            events.failed.push(RefusedRequest {
                event: events.samples.len(),
                size: memory.size,
                stack: ledger.stack_ref(memory.stack),
            });
        }
        events.numbers.push(self.allocations.events());
        let last = events.samples.last().map(|sample| sample.time);
        events.samples.push(EventSample {
            // Threads may report out of order by microseconds; the axis of time is monotonic.
            time: sample.time.max(last.unwrap_or_default()),
            allocated: sample.totals.allocated.0,
            reserved: sample.totals.reserved.0,
            before_attach: sample.before_attach.0,
        });
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

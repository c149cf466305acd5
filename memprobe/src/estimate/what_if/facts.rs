//! Facts about a recorded run that are known only at its end: pools, streams, and the limits of its devices.

use std::collections::BTreeMap;

use super::place_of;
use crate::attribution::segments::SegmentLedger;
use crate::estimate::allocator::settings::AllocatorSettings;
use crate::estimate::allocator::{CachingAllocator, PoolPlace, Ties};
use crate::event::{
    Action, Address, Bytes, DeviceIndex, Event, MemoryEvent, Pool, SegmentReading, Totals,
};
use crate::ledger::{Analysis, Change, Ledger};

/// First replay.
#[derive(Clone, Debug, Default)]
pub struct WhatIfFacts {
    /// Settings of the recorded run in its environment.
    given: AllocatorSettings,
    segments: SegmentLedger,
    devices: BTreeMap<DeviceIndex, DeviceFacts>,
    last: BTreeMap<DeviceIndex, PoolPlace>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DeviceFacts {
    /// Settings of the recorded run in its environment.
    given: AllocatorSettings,
    /// True if a reading showed a segment that is not expandable.
    has_fixed: bool,
    /// Expandable segments by their begin.
    expandable: BTreeMap<u64, (Pool, u64)>,
    /// The most that was reserved, up to the first failed request.
    pub(super) peak_reserved: Bytes,
    pub(super) before_attach: Bytes,
    last: Totals,
    /// First failed request.
    pub(super) failure: Option<CapacityBounds>,
}

/// Bounds of the memory that CUDA could give the allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapacityBounds {
    pub(super) least: Bytes,
    pub(super) most: Bytes,
}

impl DeviceFacts {
    /// Settings of the recorded run: those of its environment, unless its segments show otherwise.
    pub(super) fn settings(&self) -> AllocatorSettings {
        AllocatorSettings {
            expandable: !self.expandable.is_empty() || self.given.expandable && !self.has_fixed,
            ..self.given
        }
    }

    fn memory(&mut self, event: &MemoryEvent) {
        if self.failure.is_some() {
            return;
        }
        if let Some(totals) = event.totals {
            self.peak_reserved = self.peak_reserved.max(totals.reserved);
            self.last = totals;
        }
        if event.action == Action::OutOfMemory {
            // What the request would have taken from CUDA.
            let mut trial = CachingAllocator::with_settings(self.settings(), Ties::default(), None);
            let needed = trial.malloc(event.size).map(|_| trial.totals.reserved);
            let needed = needed.unwrap_or(event.size);
            let failed = self.last.reserved.0.saturating_add(needed.0);
            self.failure = Some(CapacityBounds {
                least: self.peak_reserved,
                most: Bytes(failed.saturating_sub(1)).max(self.peak_reserved),
            });
        }
    }
}

impl WhatIfFacts {
    /// Begins with the settings in the environment of the recorded run.
    pub fn with_settings(given: AllocatorSettings) -> Self {
        Self {
            given,
            ..Self::default()
        }
    }

    fn device_mut(&mut self, index: DeviceIndex) -> &mut DeviceFacts {
        let given = self.given;
        self.devices.entry(index).or_insert_with(|| DeviceFacts {
            given,
            ..DeviceFacts::default()
        })
    }

    /// The facts, to be used from the begin of the recording.
    pub(super) fn restarted(self) -> Self {
        Self {
            segments: SegmentLedger::with_facts_of(&self.segments),
            last: BTreeMap::new(),
            ..self
        }
    }

    pub(super) fn device(&self, index: DeviceIndex) -> &DeviceFacts {
        static NONE: DeviceFacts = DeviceFacts {
            given: AllocatorSettings::DEFAULT,
            has_fixed: false,
            expandable: BTreeMap::new(),
            peak_reserved: Bytes(0),
            before_attach: Bytes(0),
            last: Totals::of(0, 0),
            failure: None,
        };
        self.devices.get(&index).unwrap_or(&NONE)
    }

    /// Stream and pool of the segment around an address; `None` if they are unknown.
    pub(super) fn place(&mut self, device: DeviceIndex, addr: Address) -> Option<PoolPlace> {
        let read = self.segments.owner_at(device, addr);
        let expandable = || {
            let segments = &self.devices.get(&device)?.expandable;
            let (_, owner) = segments.range(..=addr.0).next_back()?;
            Some(*owner)
        };
        let place = place_of(read.or_else(expandable));
        self.last.insert(device, place.unwrap_or_default());
        place
    }

    /// Stream and pool of the last request.
    pub(super) fn last_place(&self, device: DeviceIndex) -> PoolPlace {
        self.last.get(&device).copied().unwrap_or_default()
    }

    /// Follows the segments in the second replay.
    pub(super) fn follow(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.segments.apply(event, change, ledger);
    }

    fn read(&mut self, reading: &SegmentReading) {
        for device in &reading.devices {
            let facts = self.device_mut(device.device);
            for segment in &device.segments {
                if let Some(begin) = segment.expandable {
                    let owner = (segment.pool, segment.stream);
                    facts.expandable.insert(begin.0, owner);
                } else {
                    facts.has_fixed = true;
                }
            }
        }
    }
}

impl Analysis for WhatIfFacts {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.segments.apply(event, change, ledger);
        match event {
            Event::Segments(reading) => self.read(reading),
            Event::AtAttach(found) => {
                if let Some(index) = found.device {
                    let facts = self.device_mut(index);
                    facts.before_attach = found.totals.allocated;
                    facts.last = found.totals;
                }
            }
            Event::Memory(memory) if *change != Change::Malformed => {
                if let Some(index) = memory.device {
                    self.device_mut(index).memory(memory);
                }
            }
            _ => {}
        }
    }
}

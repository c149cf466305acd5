//! Summary of a process for the table of processes; cheap to call often.

use super::device::DeviceLedger;
use super::snapshot::host::{DeviceRow, Holder};
use super::snapshot::{Grouping, GrowthRate};
use super::{Ledger, TotalsSample};
use crate::event::{Action, Bytes, DeviceIndex, Event, MemoryEvent, TimeNs, Totals};

impl Ledger {
    /// Allocator totals, summed over all devices; `None` before the first allocator event.
    pub fn totals(&self) -> Option<Totals> {
        let totals = self.devices.values().map(|device| device.totals);
        totals.reduce(|sum, totals| Totals {
            allocated: Bytes(sum.allocated.0.saturating_add(totals.allocated.0)),
            reserved: Bytes(sum.reserved.0.saturating_add(totals.reserved.0)),
        })
    }

    /// Device of an allocator event, and its state after the event; `None` for other events.
    pub fn moment(&self, event: &Event) -> Option<(DeviceIndex, TotalsSample)> {
        match event {
            Event::AtAttach(found) => {
                let index = found.device?;
                Some((index, self.devices.get(&index)?.moment(found.time)))
            }
            Event::Memory(event) => Some((event.device?, self.moment_of(event)?)),
            _ => None,
        }
    }

    /// State of an allocator event's device after it; `None` for segments and calls of CUDA.
    pub fn moment_of(&self, event: &MemoryEvent) -> Option<TotalsSample> {
        Some(self.device_of(event)?.moment(event.time))
    }

    /// Device of an allocator event, and the allocator's totals there after it; `None` for segments and calls of CUDA.
    pub fn totals_after(&self, event: &MemoryEvent) -> Option<(DeviceIndex, Totals)> {
        Some((event.device?, self.device_of(event)?.totals))
    }

    fn device_of(&self, event: &MemoryEvent) -> Option<&DeviceLedger> {
        match event.action {
            Action::Alloc | Action::Free | Action::Held | Action::OutOfMemory => {
                self.devices.get(&event.device?)
            }
            _ => None,
        }
    }

    /// State of each device, labelled with `now`.
    pub fn moments(&self, now: TimeNs) -> impl Iterator<Item = (DeviceIndex, TotalsSample)> {
        let devices = self.devices.iter();
        devices.map(move |(index, device)| (*index, device.moment(now)))
    }

    pub fn device_rows(&self) -> Vec<DeviceRow> {
        let devices = self.devices.iter();
        let row = |(index, device): (&_, &DeviceLedger)| DeviceRow {
            index: *index,
            totals: device.totals,
            peak: device.peak,
        };
        devices.map(row).collect()
    }

    /// Growth of the allocators' totals, summed over all devices; steady if that of any device is.
    pub fn growth(&self) -> Option<GrowthRate> {
        let growths = self.devices.values().filter_map(DeviceLedger::growth);
        growths.reduce(|sum, growth| GrowthRate {
            per_minute: sum.per_minute.saturating_add(growth.per_minute),
            is_steady: sum.is_steady || growth.is_steady,
        })
    }

    /// Call site that holds most on any one device, and its bytes; `None` if nothing is live.
    pub fn top_holder(&self, grouping: Grouping) -> Option<(Holder, Bytes)> {
        let of_each = self.devices.values();
        of_each
            .filter_map(|device| device.top_holder(grouping, &self.store.definitions))
            .max_by_key(|(_, live)| *live)
            .filter(|(_, live)| live.0 > 0)
    }
}

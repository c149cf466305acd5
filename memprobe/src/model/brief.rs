//! What a table of many processes says of one: cheap to ask again and again.

use super::Model;
use super::snapshot::Grouping;
use super::snapshot::host::{DeviceRow, Holder};
use super::why::peak::Moment;
use crate::event::{Action, Bytes, DeviceIndex, Event, Totals};

impl Model {
    /// The allocator's own totals, summed over all devices; `None` before the first was heard of.
    pub fn totals(&self) -> Option<Totals> {
        let totals = self.devices.values().map(|device| device.totals());
        totals.reduce(|sum, totals| Totals {
            allocated: Bytes(sum.allocated.0.saturating_add(totals.allocated.0)),
            reserved: Bytes(sum.reserved.0.saturating_add(totals.reserved.0)),
        })
    }

    /// What an event was about, where that is a device of an allocator, and what that holds by now.
    pub fn moment(&self, event: &Event) -> Option<(DeviceIndex, Moment)> {
        let (index, time) = match event {
            Event::AtAttach(found) => (found.device?, found.time),
            Event::Memory(event) => match event.action {
                Action::Alloc | Action::Free | Action::Held | Action::OutOfMemory => {
                    (event.device?, event.time)
                }
                _ => return None,
            },
            _ => return None,
        };
        let device = self.devices.get(&index)?;
        Some((index, device.moment(time)))
    }

    /// The allocator's own totals of each device.
    pub fn device_rows(&self) -> Vec<DeviceRow> {
        let devices = self.devices.iter();
        let row = |(index, device): (&_, &super::device::Device)| DeviceRow {
            index: *index,
            totals: device.totals(),
            peak: device.peak(),
        };
        devices.map(row).collect()
    }

    /// Who holds most on any one device, and how much; `None` where nobody holds anything.
    pub fn top_holder(&self, grouping: Grouping) -> Option<(Holder, Bytes)> {
        let of_each = self.devices.values();
        of_each
            .filter_map(|device| device.top_holder(grouping))
            .max_by_key(|(_, live)| *live)
            .filter(|(_, live)| live.0 > 0)
    }

    /// Memory events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Memory events per second, lately.
    pub fn events_per_second(&self) -> f64 {
        self.events_rate.per_second()
    }

    /// Where the ledger and the allocator disagreed without a loss that explains it.
    pub fn disagreements(&self) -> u64 {
        self.agreement.disagreements()
    }

    /// Events that are none of an allocator.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

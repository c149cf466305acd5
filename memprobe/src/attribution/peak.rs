//! Peak of each device, and the memory of each allocation group at that moment.

use super::allocation_groups::{AllocationGroup, AllocationGroups};
pub use super::high_water_mark::Holding;
use super::high_water_mark::{HeldBytes, HighWaterMarks};
use crate::event::{DeviceIndex, Event};
use crate::ledger::snapshot::Grouping;
use crate::ledger::{Analysis, Change, Ledger, TotalsSample};

/// Memory of each allocation group at the peak of each device, updated by every event.
#[derive(Debug)]
pub struct PeakLedger {
    groups: AllocationGroups<HeldBytes>,
    marks: HighWaterMarks,
}

#[derive(Clone, Debug)]
pub struct PeakView {
    /// The peak. `parts`, `before_attach` and `unaccounted` add up to `totals.allocated`.
    pub moment: TotalsSample,
    /// Groups with live memory at the peak, in no particular order.
    pub parts: Vec<(AllocationGroup, Holding)>,
    pub knows_modules: bool,
}

impl PeakLedger {
    pub fn new(grouping: Grouping) -> Self {
        Self {
            groups: AllocationGroups::new(grouping),
            marks: HighWaterMarks::default(),
        }
    }

    /// Memory of a device at its peak; `None` for an unknown device.
    pub fn view(&self, device: DeviceIndex) -> Option<PeakView> {
        let mark = self.marks.get(device)?;
        let parts = self.groups.on(device).filter_map(|(_, entry)| {
            let holding = entry.value.holding(mark.number);
            (holding.at_peak_blocks > 0).then(|| (entry.group.clone(), holding))
        });
        Some(PeakView {
            moment: mark.moment,
            parts: parts.collect(),
            knows_modules: self.groups.knows_modules(),
        })
    }
}

impl Analysis for PeakLedger {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        let Self { groups, marks } = self;
        marks.pass(event, ledger, |mark| {
            groups.apply(change, ledger, |_, entry, change| {
                entry.value.change(change, mark);
            });
        });
    }
}

#[cfg(test)]
mod tests;

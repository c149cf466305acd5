//! Peak of each device, and the memory of each allocation group at that moment.

use super::allocation_groups::{AllocationGroup, AllocationGroups};
pub use super::high_water_mark::Holding;
use super::high_water_mark::{HeldBytes, HighWaterMarks, PeakAnalysis};
use super::ledger::AttributionLedger;
use crate::event::{DeviceIndex, Event};
use crate::ledger::snapshot::Grouping;
use crate::ledger::{Change, Ledger, TotalsSample};

/// Memory of each allocation group at the peak of each device, updated by every event.
#[derive(Clone, Debug)]
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

    /// Memory of a device at its peak, with the names that `categories` has for modules; `None` for an unknown device.
    pub fn view(&self, device: DeviceIndex, categories: &AttributionLedger) -> Option<PeakView> {
        let mark = self.marks.get(device)?;
        let parts = self.groups.on(device).filter_map(|(_, entry)| {
            let holding = entry.value.holding(mark.number);
            let variables = &categories.root_variables;
            (holding.at_peak_blocks > 0).then(|| (variables.named_group(&entry.group), holding))
        });
        Some(PeakView {
            moment: mark.moment,
            parts: parts.collect(),
            knows_modules: self.groups.knows_modules(),
        })
    }
}

impl PeakAnalysis for PeakLedger {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        let Self { groups, marks } = self;
        marks.pass(event, ledger, categories, |mark| {
            groups.apply(change, ledger, |_, entry, change| {
                entry.value.change(change, mark);
            });
        });
    }
}

#[cfg(test)]
mod tests;

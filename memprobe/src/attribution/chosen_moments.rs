//! Memory of each device at chosen moments: its peak, the end, an out-of-memory error, or the peak of an iteration.
//!
//! It takes two replays of the same events. The first ([`MomentSearch`]) knows at its end after which event each moment
//! was, and the final category of each block then. The second ([`MomentLedger`]) sums the live blocks at these events.

use std::collections::{BTreeMap, HashSet};

use super::allocation_groups::{AllocationGroup, AllocationGroups};
use super::groups::BlockChange;
use super::iterations::IterationLine;
use super::ledger::{AttributionLedger, counted_moment};
use super::moments::Moment;
use crate::event::{Action, Bytes, DeviceIndex, Event};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{Analysis, Change, Ledger, TotalsSample};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChosenMoment {
    /// The most allocated bytes of the device.
    Peak,
    End,
    /// The last out-of-memory error.
    OutOfMemory,
    /// The most allocated bytes of the device in the iteration with this number.
    Iteration(u64),
}

/// First replay: categories, and the moments of out-of-memory errors.
#[derive(Debug)]
pub struct MomentSearch {
    pub categories: AttributionLedger,
    /// State of each device at the last error.
    out_of_memory: BTreeMap<DeviceIndex, Moment>,
}

/// Moment of a device, with the bytes of each category.
#[derive(Clone, Debug)]
pub struct FoundMoment {
    pub moment: Moment,
    /// Iteration around it; `None` if it has no number.
    pub iteration: Option<u64>,
}

/// Second replay: the live blocks at the moments that the first one found.
#[derive(Debug)]
pub struct MomentLedger {
    groups: AllocationGroups<LiveSum>,
    ordinal: u64,
    wanted: BTreeMap<u64, Vec<DeviceIndex>>,
    taken: BTreeMap<(DeviceIndex, u64), LiveParts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LiveSum {
    bytes: u64,
    blocks: u64,
}

/// Live memory of one device by group, with indices of groups.
#[derive(Clone, Debug)]
struct LiveParts {
    sample: TotalsSample,
    parts: Vec<(usize, LiveSum)>,
}

/// Memory of one device at a moment. `parts`, `before_attach` and `unaccounted` add up to `found.moment.totals.allocated`.
#[derive(Clone, Debug)]
pub struct MemoryAt {
    pub found: FoundMoment,
    pub parts: Vec<GroupMemory>,
    pub before_attach: Bytes,
    pub unaccounted: i64,
}

#[derive(Clone, Debug)]
pub struct GroupMemory {
    pub group: AllocationGroup,
    pub bytes: u64,
    pub blocks: u64,
}

impl MomentSearch {
    pub fn new(line: Option<IterationLine>) -> Self {
        Self {
            categories: AttributionLedger::new(line),
            out_of_memory: BTreeMap::new(),
        }
    }

    /// Moments by device; devices that lack this moment are left out.
    pub fn find(&self, wanted: ChosenMoment) -> BTreeMap<DeviceIndex, FoundMoment> {
        let table = self.categories.iterations();
        let devices = self.categories.devices.iter();
        let moments: BTreeMap<DeviceIndex, Moment> = match wanted {
            ChosenMoment::Peak => devices
                .map(|(index, device)| (*index, device.peak.clone()))
                .collect(),
            ChosenMoment::End => devices
                .map(|(index, device)| (*index, device.now.clone()))
                .collect(),
            ChosenMoment::OutOfMemory => self.out_of_memory.clone(),
            ChosenMoment::Iteration(number) => {
                let mut rows = table.rows.iter().filter(|row| row.is_numbered());
                let row = rows.find(|row| row.number == number);
                let devices = row.into_iter().flat_map(|row| &row.devices);
                devices
                    .map(|(index, device)| (*index, device.peak.clone()))
                    .collect()
            }
        };
        let found = moments.into_iter().map(|(index, moment)| {
            let around = table.at(moment.time).filter(|row| row.is_numbered());
            let iteration = match wanted {
                ChosenMoment::Iteration(number) => Some(number),
                _ => around.map(|row| row.number),
            };
            (index, FoundMoment { moment, iteration })
        });
        found.collect()
    }

    /// First and last number of an iteration; `None` without any.
    pub fn iterations(&self) -> Option<(u64, u64)> {
        let table = self.categories.iterations();
        let numbered = table.rows.iter().filter(|row| row.is_numbered());
        let numbers: Vec<u64> = numbered.map(|row| row.number).collect();
        Some((*numbers.first()?, *numbers.last()?))
    }
}

impl Analysis for MomentSearch {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.categories.apply(event, change, ledger);
        if let Event::Memory(memory) = event
            && memory.action == Action::OutOfMemory
        {
            let devices = self.categories.devices.iter();
            self.out_of_memory = devices
                .map(|(index, device)| (*index, device.now.clone()))
                .collect();
        }
    }
}

impl MomentLedger {
    pub fn new<'a>(grouping: Grouping, wanted: impl Iterator<Item = &'a FoundOnDevices>) -> Self {
        let mut by_ordinal: BTreeMap<u64, Vec<DeviceIndex>> = BTreeMap::new();
        for (index, found) in wanted.flatten() {
            let devices = by_ordinal.entry(found.moment.ordinal).or_default();
            devices.push(*index);
        }
        Self {
            groups: AllocationGroups::new(grouping),
            ordinal: 0,
            wanted: by_ordinal,
            taken: BTreeMap::new(),
        }
    }

    /// Sites of all allocations of the recording, live at a moment or not.
    pub fn sites(&self) -> HashSet<&Site> {
        self.groups.all().map(|group| &group.origin.site).collect()
    }

    pub fn knows_modules(&self) -> bool {
        self.groups.knows_modules()
    }

    /// Memory at a moment that [`Self::new`] was given.
    pub fn memory_at(
        &self,
        device: DeviceIndex,
        found: FoundMoment,
        names: &MomentSearch,
    ) -> MemoryAt {
        let Some(taken) = self.taken.get(&(device, found.moment.ordinal)) else {
            // Before the first event of the device, all is from before attach.
            return MemoryAt {
                parts: Vec::new(),
                before_attach: found.moment.totals.allocated,
                unaccounted: 0,
                found,
            };
        };
        let variables = &names.categories.root_variables;
        let entries: BTreeMap<usize, _> = self.groups.on(device).collect();
        let parts = taken.parts.iter().filter_map(|(at, live)| {
            let entry = entries.get(at)?;
            Some(GroupMemory {
                group: variables.named_group(&entry.group),
                bytes: live.bytes,
                blocks: live.blocks,
            })
        });
        MemoryAt {
            parts: parts.collect(),
            before_attach: taken.sample.before_attach,
            unaccounted: taken.sample.unaccounted,
            found,
        }
    }

    fn take(&mut self, ledger: &Ledger, event: &Event) {
        let Some(devices) = self.wanted.get(&self.ordinal) else {
            return;
        };
        let Event::Memory(memory) = event else { return };
        let samples: BTreeMap<_, _> = ledger.moments(memory.time).collect();
        for index in devices {
            let Some(sample) = samples.get(index) else {
                continue;
            };
            let entries = self.groups.on(*index);
            let parts = entries.map(|(at, entry)| (at, entry.value));
            let parts = parts.filter(|(_, live)| live.blocks > 0).collect();
            let taken = LiveParts {
                sample: *sample,
                parts,
            };
            self.taken.insert((*index, self.ordinal), taken);
        }
    }
}

/// Moments that [`MomentSearch::find`] returns.
pub type FoundOnDevices = BTreeMap<DeviceIndex, FoundMoment>;

impl Analysis for MomentLedger {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.groups.apply(change, ledger, |_, entry, change| {
            let live = &mut entry.value;
            match change {
                BlockChange::Added(size) => {
                    live.bytes = live.bytes.saturating_add(size.0);
                    live.blocks += 1;
                }
                BlockChange::Removed(size) => {
                    live.bytes = live.bytes.saturating_sub(size.0);
                    live.blocks = live.blocks.saturating_sub(1);
                }
                BlockChange::NotTracked(_) => {}
            }
        });
        if let Event::Memory(memory) = event
            && counted_moment(memory, change, ledger).is_some()
        {
            self.ordinal += 1;
            self.take(ledger, event);
        }
    }
}

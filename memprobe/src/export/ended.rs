//! Sums of allocations that are not live at the moment of a profile: it needs no more of them, so that the memory of an
//! export does not grow with the recording.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::ExportMoment;
use super::profile::ProfileAmount;
use crate::attribution::allocations::{AllocationHistory, EventNumber};
use crate::attribution::category::Category;
use crate::attribution::{AttributionLedger, PeakAnalysis};
use crate::event::{DeviceIndex, Event};
use crate::ledger::{Change, Ledger, StackRef};

/// Least number of new allocations after which those that are not needed are forgotten, at 80 bytes each.
const GROWTH: usize = 1 << 18;

/// The allocations that an export needs.
#[derive(Debug)]
pub(super) struct ExportHistory {
    allocations: AllocationHistory,
    /// `None` if the format has a row for each allocation.
    ended: Option<EndedAllocations>,
    growth: usize,
}

/// Sums of ended allocations, those from before attach left out.
#[derive(Debug)]
pub(super) struct EndedAllocations {
    moment: ExportMoment,
    devices: BTreeMap<DeviceIndex, EndedOfDevice>,
}

#[derive(Debug)]
struct EndedOfDevice {
    /// The moment so far. It can move to a later event than all of these.
    moment: EventNumber,
    /// Allocations that began up to the moment.
    before: AllocatedSums,
    /// Allocations that began after it.
    after: AllocatedSums,
}

type AllocatedSums = HashMap<(StackRef, Option<Category>), ProfileAmount>;

impl ExportHistory {
    /// Keeps every allocation, or those that are live at a moment and sums of the others.
    pub(super) fn new(moment: Option<ExportMoment>) -> Self {
        Self::with_growth(moment, GROWTH)
    }

    fn with_growth(moment: Option<ExportMoment>, growth: usize) -> Self {
        Self {
            allocations: AllocationHistory::default(),
            ended: moment.map(EndedAllocations::at),
            growth,
        }
    }

    pub(super) fn into_parts(self) -> (AllocationHistory, Option<EndedAllocations>) {
        (self.allocations, self.ended)
    }
}

impl PeakAnalysis for ExportHistory {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        let Self {
            allocations, ended, ..
        } = self;
        allocations.apply(event, change, ledger, categories);
        if let Some(ended) = ended
            && allocations.has_grown(self.growth)
        {
            ended.take_from(allocations);
        }
    }
}

impl EndedAllocations {
    fn at(moment: ExportMoment) -> Self {
        Self {
            moment,
            devices: BTreeMap::new(),
        }
    }

    /// Moves the allocations that have ended, and are not live at the moment so far, from the history to the sums.
    fn take_from(&mut self, history: &mut AllocationHistory) {
        let moments = MomentsSoFar::of(history, self.moment);
        for (device, ended) in &mut self.devices {
            ended.advance(moments.on(*device));
        }
        history.forget_ended(|allocation| {
            let moment = moments.on(allocation.device);
            let is_needed = allocation.is_live_at(moment);
            if !is_needed && !allocation.is_baseline {
                let of_device = self.devices.entry(allocation.device);
                let ended = of_device.or_insert_with(|| EndedOfDevice::at(moment));
                let sums = match allocation.born <= moment {
                    true => &mut ended.before,
                    false => &mut ended.after,
                };
                let sum = sums.entry((allocation.stack, allocation.category));
                sum.or_default().add(allocation.size.0);
            }
            is_needed
        });
    }

    /// Returns the sums of those that began on a device up to its moment, by stack and category; a key can repeat.
    pub(super) fn up_to(
        &self,
        device: DeviceIndex,
        moment: EventNumber,
    ) -> impl Iterator<Item = (StackRef, Option<Category>, ProfileAmount)> {
        let of_device = self.devices.get(&device).into_iter();
        let sums = of_device.flat_map(move |ended| {
            let later = (moment > ended.moment).then_some(&ended.after);
            ended.before.iter().chain(later.into_iter().flatten())
        });
        sums.map(|((stack, category), amount)| (*stack, *category, *amount))
    }
}

impl EndedOfDevice {
    fn at(moment: EventNumber) -> Self {
        Self {
            moment,
            before: AllocatedSums::new(),
            after: AllocatedSums::new(),
        }
    }

    /// Moves the moment to a later event.
    fn advance(&mut self, moment: EventNumber) {
        if moment != self.moment {
            self.moment = moment;
            for (key, amount) in self.after.drain() {
                self.before.entry(key).or_default().extend(amount);
            }
        }
    }
}

/// The moment of each device, as far as a recording was replayed.
struct MomentsSoFar {
    peaks: BTreeMap<DeviceIndex, EventNumber>,
    otherwise: EventNumber,
}

impl MomentsSoFar {
    fn of(history: &AllocationHistory, moment: ExportMoment) -> Self {
        let peaks = match moment {
            ExportMoment::Peak => history.peaks().iter(),
            _ => Default::default(),
        };
        let failed = history.out_of_memory().map(|(event, _)| event);
        Self {
            peaks: peaks.map(|(device, peak)| (*device, peak.event)).collect(),
            otherwise: match moment {
                ExportMoment::End | ExportMoment::Peak => EventNumber::END,
                ExportMoment::OutOfMemory => failed.unwrap_or(EventNumber::START),
            },
        }
    }

    fn on(&self, device: DeviceIndex) -> EventNumber {
        self.peaks.get(&device).copied().unwrap_or(self.otherwise)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::super::profile::{Profile, ProfileRow};
    use super::super::replay::ExportReplay;
    use super::*;
    use crate::attribution::allocation_groups::samples::{learning, learning_for};
    use crate::recording::Reader;
    use crate::recording::generated::any_stream;
    use crate::recording::samples::{recording, story};

    const MOMENTS: [ExportMoment; 3] = [
        ExportMoment::End,
        ExportMoment::Peak,
        ExportMoment::OutOfMemory,
    ];

    /// The rows of each device.
    type Rows = Vec<(DeviceIndex, Vec<ProfileRow>)>;

    /// Returns the rows, and the number of allocations in the history; `None` without such a moment.
    fn profile_of(
        events: &[Event],
        moment: ExportMoment,
        history: ExportHistory,
    ) -> Option<(Rows, usize)> {
        let file = recording(events);
        let mut reader = Reader::new(&file[..]).expect("a recording");
        let replay = ExportReplay::run(&mut reader, history, &AtomicU64::new(0));
        let replay = replay.expect("replayed");
        let devices = Profile::of(&replay, moment).ok()?.devices.into_iter();
        let rows = devices.map(|device| (device.device, device.rows));
        Some((rows.collect(), replay.history.allocations().len()))
    }

    /// Compares the profiles of a history that forgets as often as it can with those of a complete one.
    fn compare(events: &[Event]) -> Result<(), TestCaseError> {
        for moment in MOMENTS {
            let whole = profile_of(events, moment, ExportHistory::new(None));
            let cut = ExportHistory::with_growth(Some(moment), 1);
            let cut = profile_of(events, moment, cut);
            let rows = |profile: Option<(Rows, usize)>| profile.map(|(rows, _)| rows);
            prop_assert_eq!(rows(cut), rows(whole), "{:?}", moment);
        }
        Ok(())
    }

    #[test]
    fn a_profile_is_the_same_when_allocations_are_forgotten() {
        let training = learning_for(40, |iteration| iteration % 2 == 0);
        for events in [&story(), &learning().events, &training.events] {
            compare(events).expect("the same");
        }
    }

    #[test]
    fn a_profile_keeps_what_is_live_at_its_moment() {
        let events = learning_for(500, |_| false).events;
        let count = |history| {
            let profile = profile_of(&events, ExportMoment::Peak, history);
            profile.expect("a peak").1
        };
        let all = count(ExportHistory::new(None));
        assert!(all >= 1500, "{all} allocations");
        let few = count(ExportHistory::with_growth(Some(ExportMoment::Peak), 16));
        assert!(few < 64, "{few} of {all} allocations are kept");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_profiles_of_any_stream_are_the_same_when_allocations_are_forgotten(
            events in any_stream(),
        ) {
            compare(&events)?;
        }
    }
}

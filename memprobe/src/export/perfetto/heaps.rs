//! Heap profiles: memory of each device by stack, at keyframes.

use std::collections::BTreeMap;

use super::messages::{HeapSample, ProcessHeapSamples};
use crate::attribution::allocations::EventNumber;
use crate::event::{DeviceIndex, TimeNs};
use crate::export::profile::{ProfileAmount, ProfileOrigin};
use crate::export::replay::ExportReplay;
use crate::ledger::{Change, Ledger};

/// Keyframes at equal distances, besides the peaks and the last failed request.
const KEYFRAMES: u64 = 32;

/// Events after which the heaps are written: peaks, the last failed request, the end, and some between them.
pub(super) struct Keyframes(BTreeMap<EventNumber, Keyframe>);

#[derive(Default)]
pub(super) struct Keyframe {
    /// Devices that have their peak then, and its allocated bytes.
    pub peaks: Vec<(DeviceIndex, u64)>,
}

impl Keyframes {
    pub(super) fn of(replay: &ExportReplay) -> Self {
        let last = u128::from(replay.history.events().0);
        let of_all = (1..=KEYFRAMES).map(|nth| last * u128::from(nth) / u128::from(KEYFRAMES));
        let events = of_all.map(|event| EventNumber(event as u64));
        let failed = replay.history.out_of_memory().map(|(event, _)| event);
        let mut keyframes: BTreeMap<_, _> = events
            .chain(failed)
            .map(|event| (event, Keyframe::default()))
            .collect();
        for (device, peak) in replay.history.peaks() {
            let keyframe = keyframes.entry(peak.event).or_default();
            let allocated = peak.sample.totals.allocated.0;
            keyframe.peaks.push((*device, allocated));
        }
        Self(keyframes)
    }

    /// The keyframe just after an event. Each is returned once.
    pub(super) fn take(&mut self, event: EventNumber) -> Option<Keyframe> {
        self.0.remove(&event)
    }
}

/// Bytes and blocks since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeapTotals {
    allocated: ProfileAmount,
    freed: ProfileAmount,
}

impl HeapTotals {
    /// Raises one of the totals, so that `live` remains.
    fn leave(&mut self, live: ProfileAmount) {
        let level = |allocated: &mut u64, freed: &mut u64, live: u64| {
            let before = allocated.saturating_sub(*freed);
            *allocated = allocated.saturating_add(live.saturating_sub(before));
            *freed = freed.saturating_add(before.saturating_sub(live));
        };
        level(&mut self.allocated.bytes, &mut self.freed.bytes, live.bytes);
        level(
            &mut self.allocated.blocks,
            &mut self.freed.blocks,
            live.blocks,
        );
    }
}

/// Heaps of all devices. What is live in them adds up to the allocators' totals.
#[derive(Debug, Default)]
pub(super) struct Heaps {
    totals: BTreeMap<DeviceIndex, BTreeMap<ProfileOrigin, HeapTotals>>,
}

impl Heaps {
    /// Counts an allocation.
    pub(super) fn apply(&mut self, change: &Change, ledger: &Ledger) {
        let Some((block, true)) = change.allocated() else {
            return;
        };
        let block = ledger.block(block);
        let of_device = self.totals.entry(block.device).or_default();
        let origin = ProfileOrigin::Stack(block.stack);
        let totals = of_device.entry(origin).or_default();
        totals.allocated.add(block.size.0);
    }

    /// Heaps at a moment; `stack` returns the number of an origin's stack.
    pub(super) fn samples(
        &mut self,
        ledger: &Ledger,
        time: TimeNs,
        pid: u32,
        mut stack: impl FnMut(DeviceIndex, ProfileOrigin) -> u64,
    ) -> Vec<ProcessHeapSamples> {
        self.update(ledger, time);
        let heaps = self.totals.iter().map(|(device, origins)| {
            // Equal frames in other modules are one stack.
            let mut by_stack: BTreeMap<u64, HeapTotals> = BTreeMap::new();
            for (origin, totals) in origins {
                let of_stack = by_stack.entry(stack(*device, *origin)).or_default();
                of_stack.allocated.extend(totals.allocated);
                of_stack.freed.extend(totals.freed);
            }
            let samples = by_stack.iter().map(|(stack, totals)| HeapSample {
                callstack_id: Some(*stack),
                self_allocated: Some(totals.allocated.bytes),
                self_freed: Some(totals.freed.bytes),
                alloc_count: Some(totals.allocated.blocks),
                free_count: Some(totals.freed.blocks),
            });
            ProcessHeapSamples {
                pid: Some(pid.into()),
                samples: samples.collect(),
                from_startup: Some(!origins.contains_key(&ProfileOrigin::BeforeAttach)),
                timestamp: Some(time.0),
                heap_name: Some(device.to_string()),
                sampling_interval_bytes: Some(1),
            }
        });
        heaps.collect()
    }

    /// Sets what each origin freed from the blocks that are live.
    fn update(&mut self, ledger: &Ledger, time: TimeNs) {
        let mut live: BTreeMap<(DeviceIndex, ProfileOrigin), ProfileAmount> = BTreeMap::new();
        for (_, block) in ledger.blocks() {
            let origin = match block.is_baseline {
                true => ProfileOrigin::BeforeAttach,
                false => ProfileOrigin::Stack(block.stack),
            };
            live.entry((block.device, origin))
                .or_default()
                .add(block.size.0);
        }
        for (device, sample) in ledger.moments(time) {
            // Blocks that are not known one by one have bytes, but no number.
            let before = live
                .entry((device, ProfileOrigin::BeforeAttach))
                .or_default();
            before.bytes = sample.before_attach.0;
            let unaccounted = u64::try_from(sample.unaccounted).unwrap_or(0);
            let of_none = live
                .entry((device, ProfileOrigin::Unaccounted))
                .or_default();
            of_none.bytes = unaccounted;
        }
        live.retain(|(device, origin), amount| {
            let known = self.totals.get(device);
            *amount != ProfileAmount::default()
                || known.is_some_and(|known| known.contains_key(origin))
        });
        for ((device, origin), amount) in &live {
            let of_device = self.totals.entry(*device).or_default();
            of_device.entry(*origin).or_default().leave(*amount);
        }
        for (device, origins) in &mut self.totals {
            for (origin, totals) in origins {
                if !live.contains_key(&(*device, *origin)) {
                    totals.leave(ProfileAmount::default());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_only_grow_and_leave_what_is_live() {
        let amount = |bytes, blocks| ProfileAmount { bytes, blocks };
        let mut totals = HeapTotals::default();
        totals.leave(amount(100, 2));
        assert_eq!(totals.allocated, amount(100, 2));
        totals.leave(amount(30, 1));
        assert_eq!(
            (totals.allocated, totals.freed),
            (amount(100, 2), amount(70, 1))
        );
        totals.leave(amount(40, 1));
        assert_eq!(
            (totals.allocated, totals.freed),
            (amount(110, 2), amount(70, 1))
        );
    }
}

//! The events of a device that a page holds, kept while a recording is replayed: memory does not grow with its length.

use std::collections::VecDeque;

use crate::attribution::allocations::{Allocation, EventNumber};
use crate::event::{Bytes, TimeNs};
use crate::ledger::StackRef;

/// Cap on failed requests of a device; the newest stay.
const MAX_FAILED: usize = 1 << 12;

/// Events of a device that a page holds, as indices among all events of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventWindow {
    pub first: usize,
    pub end: usize,
}

impl EventWindow {
    /// The newest `most` of `all` events, or others around `moment` if that is earlier.
    pub(super) fn of(all: usize, moment: usize, most: usize) -> Self {
        let newest = all.saturating_sub(most);
        let first = newest.min(moment.saturating_sub(most / 2));
        let end = all.min(first.saturating_add(most));
        Self { first, end }
    }
}

/// State of a device after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventSample {
    /// Number of the event among those of all devices.
    pub number: EventNumber,
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

/// Events of a device during the replay.
#[derive(Debug)]
pub(super) struct DeviceEvents {
    /// Most events of a page.
    most: usize,
    count: usize,
    /// Event that the page opens at: the last failed request, or the first of the highest peaks.
    moment: usize,
    highest: u64,
    /// The newest events.
    recent: VecDeque<EventSample>,
    /// The events around the moment, from the one with this index on, once the newest are later ones.
    around: Option<(usize, Vec<EventSample>)>,
    failed: VecDeque<RefusedRequest>,
}

impl DeviceEvents {
    /// Keeps what a page of at most `most` events needs; at least one.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            count: 0,
            moment: 0,
            highest: 0,
            recent: VecDeque::new(),
            around: None,
            failed: VecDeque::new(),
        }
    }

    /// Notes a request that failed; its sample follows.
    pub(super) fn refuse(&mut self, size: Bytes, stack: StackRef) {
        if self.failed.len() >= MAX_FAILED {
            self.failed.pop_front();
        }
        let event = self.count;
        self.failed.push_back(RefusedRequest { event, size, stack });
        self.open_at(event);
    }

    /// Notes the state after the next event.
    pub(super) fn push(&mut self, sample: EventSample) {
        if self.failed.is_empty() && (self.count == 0 || sample.allocated > self.highest) {
            self.open_at(self.count);
        }
        self.highest = self.highest.max(sample.allocated);
        // Threads may report out of order by microseconds; the axis of time is monotonic.
        let last = self.recent.back().map(|sample| sample.time);
        let time = sample.time.max(last.unwrap_or_default());
        if self.recent.len() == self.most {
            self.keep_around();
            self.recent.pop_front();
        }
        self.recent.push_back(EventSample { time, ..sample });
        self.count += 1;
    }

    fn open_at(&mut self, event: usize) {
        self.moment = event;
        self.around = None;
    }

    /// Copies the events around the moment before the first of them is dropped.
    fn keep_around(&mut self) {
        let first = self.count - self.most;
        let wanted = EventWindow::of(self.count + 1, self.moment, self.most);
        if self.around.is_none() && wanted.first <= first {
            self.around = Some((first, self.recent.iter().copied().collect()));
        }
    }

    /// True if the page may show an allocation.
    pub(super) fn may_show(&self, allocation: &Allocation) -> bool {
        let is_within = |first: Option<&EventSample>, last: Option<&EventSample>| {
            let ends_later = first.is_none_or(|first| allocation.ended() > first.number);
            ends_later && last.is_none_or(|last| allocation.born <= last.number)
        };
        let around = self.around.as_ref();
        is_within(self.recent.front(), None)
            || around.is_some_and(|(_, kept)| is_within(kept.first(), kept.last()))
    }

    /// The events of the page.
    pub(super) fn finish(self) -> HeldEvents {
        let (first, samples) = match self.around {
            Some(around) => around,
            None => (self.count - self.recent.len(), self.recent.into()),
        };
        let held = first..first + samples.len();
        let failed = self.failed.into_iter();
        HeldEvents {
            all: self.count,
            first,
            samples,
            failed: failed.filter(|it| held.contains(&it.event)).collect(),
        }
    }
}

/// Events of a device that a page holds.
#[derive(Debug)]
pub(super) struct HeldEvents {
    /// Events of the device in the recording.
    pub all: usize,
    /// Index of the first held event among them.
    pub first: usize,
    pub samples: Vec<EventSample>,
    /// Failed requests among the held events.
    pub failed: Vec<RefusedRequest>,
}

impl HeldEvents {
    /// Index among the held events of the first one with a number of at least `number`; their count if there is none.
    pub(super) fn place(&self, number: EventNumber) -> usize {
        self.samples
            .partition_point(|sample| sample.number < number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_holds_the_newest_events_or_those_around_the_moment() {
        let window = |all, moment| EventWindow::of(all, moment, 100);
        let of = |first, end| EventWindow { first, end };
        assert_eq!(window(0, 0), of(0, 0));
        assert_eq!(window(80, 3), of(0, 80));
        assert_eq!(window(1000, 990), of(900, 1000));
        assert_eq!(window(1000, 500), of(450, 550));
        assert_eq!(window(1000, 10), of(0, 100));
    }

    proptest! {
        #[test]
        fn the_held_events_are_the_window_of_the_moment(
            events in prop::collection::vec((0_u64..20, prop::bool::weighted(0.02)), 0..200),
            most in 1_usize..50,
        ) {
            let mut device = DeviceEvents::new(most);
            let mut samples = Vec::new();
            for (number, (allocated, is_refused)) in (0..).zip(&events) {
                let sample = EventSample {
                    number: EventNumber(number),
                    time: TimeNs(number),
                    allocated: *allocated,
                    reserved: 20,
                    before_attach: 0,
                };
                if *is_refused {
                    device.refuse(Bytes(1 << 40), StackRef::UNKNOWN);
                }
                device.push(sample);
                samples.push(sample);
            }
            let refused = events.iter().rposition(|(_, is_refused)| *is_refused);
            let highest = events.iter().map(|(allocated, _)| *allocated).max();
            let peak = events.iter().position(|(allocated, _)| Some(*allocated) == highest);
            let moment = refused.or(peak).unwrap_or(0);
            let window = EventWindow::of(samples.len(), moment, most);
            let held = device.finish();
            prop_assert_eq!((held.all, held.first), (samples.len(), window.first));
            prop_assert_eq!(&held.samples[..], &samples[window.first..window.end]);
            for failed in &held.failed {
                prop_assert!(events[failed.event].1);
            }
        }
    }
}

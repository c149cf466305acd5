//! Replay of a recording's requests through the simulated allocator, under other settings.
//!
//! It takes two replays of the same events. The first ([`WhatIfFacts`]) learns the pools and streams of segments, and the
//! limits of the device. The second ([`WhatIf`]) drives simulations: one under the settings of the recorded run, which
//! must reproduce it, and one under the wanted settings.

mod facts;
mod simulation;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::allocator::settings::AllocatorSettings;
use super::allocator::{PoolPlace, Ties};
use crate::event::{Action, Bytes, DeviceIndex, Event, MemoryEvent, Pool, PoolOwner, Totals};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{Analysis, Change, Ledger, SiteRef};
use facts::DeviceFacts;
pub use facts::WhatIfFacts;
pub use simulation::SimulatedPeak;
use simulation::Simulation;

/// Result for one device.
#[derive(Clone, Debug)]
pub struct WhatIfDevice {
    pub device: DeviceIndex,
    /// Settings of the recorded run: those of its environment, and what readings of its segments show.
    pub recorded_settings: AllocatorSettings,
    /// Peaks of the recording, up to the first out-of-memory error.
    pub recorded: SimulatedPeak,
    /// Peaks of the replay under the settings of the recorded run.
    pub reproduced: SimulatedPeak,
    /// Events after which the replay had other totals than the recording.
    pub differing_events: u64,
    /// Peaks under the wanted settings.
    pub simulated: SimulatedPeak,
    pub requests: u64,
    /// Failed request of the recording, and its outcome under the wanted settings.
    pub failed: Option<ReplayedFailure>,
    /// True if blocks of several streams were requested.
    pub has_streams: bool,
    pub caveats: WhatIfCaveats,
    /// Lines with most of the requests on an unknown stream, most first.
    pub unknown_streams: Vec<UnknownStreamLine>,
}

/// Line whose requests got memory in segments that were not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStreamLine {
    pub site: Site,
    pub requests: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedFailure {
    pub size: Bytes,
    pub outcome: FailedOutcome,
    /// Bytes that the allocator could surely get from CUDA: the most that it had reserved.
    pub least_capacity: Bytes,
    /// Most bytes that it may have got: the failed request needed more.
    pub most_capacity: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum FailedOutcome {
    /// With no more memory than the allocator had at its peak.
    Fits,
    /// Not even with all memory short of what failed.
    FailsToo,
    /// The recording does not tell how much memory was free.
    Unknown,
}

impl FailedOutcome {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// Reasons why a replay may differ from a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WhatIfCaveats {
    /// Requests whose exact size is unknown: the block's size stands for it, which is at most 1 MiB more.
    pub unknown_sizes: u64,
    /// Requests in segments whose stream and pool were not read: they count as of the default stream and pool.
    pub unknown_places: u64,
    /// Bytes that were live before the recording began.
    pub before_attach: u64,
    /// Releases of cached memory that were calls of `empty_cache()`, or retries on a full device.
    pub doubtful_releases: u64,
    /// Freed blocks that other streams still used, at any reading.
    pub deferred_frees: u64,
    pub lost_events: u64,
}

impl WhatIfDevice {
    /// True if the replay under the settings of the recorded run has the same peak of reserved memory.
    pub fn is_reproduced(&self) -> bool {
        self.recorded.reserved == self.reproduced.reserved
    }

    /// True if nothing is known that makes the result differ from a run with the wanted settings.
    pub fn is_exact(&self) -> bool {
        let unsettled = WhatIfCaveats {
            lost_events: 0,
            ..self.caveats
        };
        self.is_reproduced()
            && self.differing_events == 0
            && self.caveats.lost_events == 0
            && unsettled == WhatIfCaveats::default()
    }
}

/// Second replay.
#[derive(Debug)]
pub struct WhatIf {
    facts: WhatIfFacts,
    wanted: AllocatorSettings,
    devices: BTreeMap<DeviceIndex, DeviceReplay>,
}

#[derive(Debug)]
struct DeviceReplay {
    /// Under the settings of the recorded run, with each order of equal blocks.
    own: Vec<Simulation>,
    /// Under the wanted settings, with the same orders.
    wanted: Vec<Simulation>,
    /// Under the wanted settings, with the least and the most that CUDA can have given.
    bounded: Option<[Simulation; 2]>,
    recorded: SimulatedPeak,
    last: Totals,
    requests: u64,
    /// Streams of the first request and of the last one on another stream.
    streams: (Option<u64>, Option<u64>),
    /// True if segments were released since the last event of a block.
    has_released: bool,
    failed: Option<ReplayedFailure>,
    caveats: WhatIfCaveats,
    unknown_streams: HashMap<SiteRef, UnknownStreamLine>,
}

/// Most lines that are named.
const MAX_UNKNOWN_STREAMS: usize = 3;

const ORDERS: [Ties; 2] = [Ties::OldestSegment, Ties::LowestAddress];

impl WhatIf {
    pub fn new(facts: WhatIfFacts, wanted: AllocatorSettings) -> Self {
        Self {
            facts: facts.restarted(),
            wanted,
            devices: BTreeMap::new(),
        }
    }

    /// The results, by device. `lost` is the number of events that the recording lost.
    pub fn results(&self, lost: u64) -> Vec<WhatIfDevice> {
        let devices = self.devices.iter();
        let results = devices.map(|(index, replay)| {
            let facts = self.facts.device(*index);
            replay.result(*index, facts, lost)
        });
        results.collect()
    }

    fn memory(&mut self, event: &MemoryEvent, ledger: &Ledger) {
        let Some(index) = event.device.filter(|device| *device != DeviceIndex::CPU) else {
            return;
        };
        let place = match event.action {
            Action::Alloc | Action::Held => self.facts.place(index, event.addr),
            _ => None,
        };
        let last_place = self.facts.last_place(index);
        let facts = self.facts.device(index);
        let replay = self
            .devices
            .entry(index)
            .or_insert_with(|| DeviceReplay::new(facts, self.wanted));
        if replay.failed.is_some() {
            return;
        }
        match event.action {
            Action::Alloc | Action::Held => {
                if place.is_none() {
                    replay.count_unknown_stream(event, ledger);
                }
                let requested = ledger.purpose(event.shape);
                let requested = requested.and_then(|purpose| purpose.tensor()?.requested);
                let requested = requested.filter(|requested| *requested <= event.size);
                replay.alloc(event, requested, place.unwrap_or_default(), facts);
            }
            Action::Free => replay.free(event),
            Action::SegmentFree => replay.has_released = true,
            Action::OutOfMemory => replay.fail(event, facts, last_place),
            _ => {}
        }
    }
}

impl Analysis for WhatIf {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.facts.follow(event, change, ledger);
        match event {
            Event::Memory(memory) if *change != Change::Malformed => self.memory(memory, ledger),
            Event::Segments(reading) => {
                for device in &reading.devices {
                    if let Some(replay) = self.devices.get_mut(&device.device) {
                        let awaiting = device.awaiting.len() as u64;
                        let most = &mut replay.caveats.deferred_frees;
                        *most = (*most).max(awaiting);
                    }
                }
            }
            _ => {}
        }
    }
}

impl DeviceReplay {
    fn new(facts: &DeviceFacts, wanted: AllocatorSettings) -> Self {
        let own = facts.settings();
        let all = |settings| {
            let orders = ORDERS.iter();
            orders
                .map(move |ties| Simulation::new(settings, *ties, None))
                .collect()
        };
        let bounded = facts.failure.map(|failure| {
            [failure.least, failure.most]
                .map(|capacity| Simulation::new(wanted, Ties::OldestSegment, Some(capacity)))
        });
        Self {
            own: all(own),
            wanted: all(wanted),
            bounded,
            recorded: SimulatedPeak::default(),
            last: Totals::default(),
            requests: 0,
            streams: (None, None),
            has_released: false,
            failed: None,
            caveats: WhatIfCaveats::default(),
            unknown_streams: HashMap::new(),
        }
    }

    fn count_unknown_stream(&mut self, event: &MemoryEvent, ledger: &Ledger) {
        self.caveats.unknown_places += 1;
        let site = ledger.site_ref(ledger.stack_ref(event.stack), Grouping::User);
        let line = self.unknown_streams.entry(site);
        let line = line.or_insert_with(|| UnknownStreamLine {
            site: ledger.site_of(site, Grouping::User).clone(),
            requests: 0,
        });
        line.requests += 1;
    }

    /// Returns the lines with most requests on an unknown stream; equal ones in the order of their first request.
    fn unknown_stream_lines(&self) -> Vec<UnknownStreamLine> {
        let mut lines: Vec<_> = self.unknown_streams.iter().collect();
        lines.sort_by_key(|(site, line)| (Reverse(line.requests), **site));
        let lines = lines.into_iter().take(MAX_UNKNOWN_STREAMS);
        lines.map(|(_, line)| line.clone()).collect()
    }

    fn simulations(&mut self) -> impl Iterator<Item = &mut Simulation> {
        let unlimited = self.own.iter_mut().chain(&mut self.wanted);
        unlimited.chain(self.bounded.iter_mut().flatten())
    }

    fn alloc(
        &mut self,
        event: &MemoryEvent,
        requested: Option<Bytes>,
        place: PoolPlace,
        facts: &DeviceFacts,
    ) {
        self.requests += 1;
        let first = *self.streams.0.get_or_insert(place.stream);
        if place.stream != first {
            self.streams.1 = Some(place.stream);
        }
        let totals = event.totals.unwrap_or_default();
        self.release(totals, Some(event.size), facts);
        let size = requested.unwrap_or(event.size);
        self.simulations()
            .for_each(|simulation| simulation.alloc(event.addr, size, place));
        if event.action == Action::Held {
            self.caveats.before_attach = self.caveats.before_attach.saturating_add(event.size.0);
            return;
        }
        let is_doubtful = requested.is_none() && self.own[0].has_doubtful_size(event.size);
        self.caveats.unknown_sizes += u64::from(is_doubtful);
        self.check(totals);
    }

    fn free(&mut self, event: &MemoryEvent) {
        let totals = event.totals.unwrap_or_default();
        self.release(totals, None, &DeviceFacts::default());
        self.simulations()
            .for_each(|simulation| simulation.free(event.addr));
        self.check(totals);
    }

    /// Replays a release of cached memory before an event. `requested` is the block that followed.
    fn release(&mut self, totals: Totals, requested: Option<Bytes>, facts: &DeviceFacts) {
        let has_fallen = totals.reserved < self.last.reserved;
        if !std::mem::take(&mut self.has_released) && !has_fallen {
            return;
        }
        // A retry on a full device needs a request that cannot have fitted: above the most that was ever reserved.
        if let Some(size) = requested {
            let wanted = self.last.reserved.0.saturating_add(size.0);
            let may_be_full = wanted > facts.peak_reserved.0;
            self.caveats.doubtful_releases += u64::from(may_be_full);
        }
        self.simulations().for_each(Simulation::empty_cache);
    }

    fn fail(&mut self, event: &MemoryEvent, facts: &DeviceFacts, place: PoolPlace) {
        let Some(failure) = facts.failure else { return };
        let outcome = match &mut self.bounded {
            Some([least, most]) => {
                if least.grants(event.size, place) {
                    FailedOutcome::Fits
                } else if most.grants(event.size, place) {
                    FailedOutcome::Unknown
                } else {
                    FailedOutcome::FailsToo
                }
            }
            None => FailedOutcome::Unknown,
        };
        self.failed = Some(ReplayedFailure {
            size: event.size,
            outcome,
            least_capacity: failure.least,
            most_capacity: failure.most,
        });
    }

    /// Compares the simulations of the recorded run with the recording.
    fn check(&mut self, totals: Totals) {
        self.last = totals;
        self.recorded.raise(totals);
        for simulation in &mut self.own {
            simulation.check(totals);
        }
    }

    fn result(&self, device: DeviceIndex, facts: &DeviceFacts, lost: u64) -> WhatIfDevice {
        // The order of equal blocks follows the recorded run.
        let order = (0..self.own.len()).min_by_key(|at| self.own[*at].differing);
        let order = order.unwrap_or(0);
        let own = &self.own[order];
        WhatIfDevice {
            device,
            recorded_settings: facts.settings(),
            recorded: self.recorded,
            reproduced: own.peak,
            differing_events: own.differing,
            simulated: self.wanted[order].peak,
            requests: self.requests,
            failed: self.failed,
            has_streams: self.streams.1.is_some(),
            unknown_streams: self.unknown_stream_lines(),
            caveats: WhatIfCaveats {
                before_attach: self.caveats.before_attach.max(facts.before_attach.0),
                lost_events: lost,
                ..self.caveats
            },
        }
    }
}

fn place_of(owner: Option<(Pool, u64)>) -> Option<PoolPlace> {
    let (pool, stream) = owner?;
    Some(PoolPlace {
        stream,
        private: match pool.owner {
            PoolOwner::Default => None,
            PoolOwner::Private { id, .. } => Some(id),
        },
    })
}

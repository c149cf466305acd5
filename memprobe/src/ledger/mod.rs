//! Ledger of live memory: its call sites, and its agreement with the allocator.
//!
//! Pure: no clock, no I/O. Time comes with the events.
//!
//! For each device, at any moment: `allocated == before attach + unaccounted + live bytes of all
//! lines`. `allocated` is the allocator's own total; `unaccounted` is 0 unless events were lost.
//! Every store is bounded by [`Caps`].

mod agreement;
pub(crate) mod applied;
mod blocks;
mod call_sites;
mod caps;
mod cuda;
pub(crate) mod device;
pub mod grouping;
pub mod host;
mod live_blocks;
mod names;
mod rate;
pub mod snapshot;
mod summary;
pub(crate) mod timeline;
mod uses;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use applied::{Applied, Ended, Freed};
pub use caps::{Caps, Refused};
pub use device::DeviceTotals;
pub use live_blocks::{BlockOrigin, LiveBlock};
pub use timeline::MAX_POINTS;
pub use uses::{BlockUses, Known, Ledgers};

use crate::event::{
    Action, Address, AtAttach, Bytes, CaptureOptions, DeviceIndex, Event, Frame, Losses,
    MemoryEvent, ProbeStatus, Target, TimeNs,
};
use agreement::Agreement;
use caps::Budget;
use cuda::Cuda;
use device::{Device, Difference};
use names::{Definition, Names};
use rate::{Rate, Ticks};
use snapshot::{Grouping, Health, Snapshot, TargetState};

/// Model of one process, updated by each event.
#[derive(Debug)]
pub struct Model {
    target: Target,
    state: TargetState,
    probes: Vec<ProbeStatus>,
    capture: CaptureOptions,
    missing: Vec<String>,
    started: TimeNs,
    last_event: Option<TimeNs>,
    events: u64,
    events_rate: Rate,
    ticks: Ticks,
    losses: Losses,
    malformed: u64,
    agreement: Agreement,
    names: Names,
    budget: Budget,
    devices: BTreeMap<DeviceIndex, Device>,
    cuda: Cuda,
    unread_at_attach: Option<Arc<str>>,
}

impl Model {
    /// Returns a model of `target`, tracked since `started`.
    pub fn new(target: Target, started: TimeNs) -> Self {
        Self::with_caps(target, started, Caps::default())
    }

    /// Returns a model with the given limits.
    pub fn with_caps(target: Target, started: TimeNs, caps: Caps) -> Self {
        Self {
            target,
            state: TargetState::default(),
            probes: Vec::new(),
            capture: CaptureOptions::default(),
            missing: Vec::new(),
            started,
            last_event: None,
            events: 0,
            events_rate: Rate::default(),
            ticks: Ticks::default(),
            losses: Losses::default(),
            malformed: 0,
            agreement: Agreement::default(),
            names: Names::new(caps),
            budget: Budget::new(&caps),
            devices: BTreeMap::new(),
            cuda: Cuda::default(),
            unread_at_attach: None,
        }
    }

    pub fn set_target(&mut self, target: Target) {
        self.target = target;
    }

    pub fn set_state(&mut self, state: TargetState) {
        self.state = state;
    }

    pub fn set_probes(&mut self, probes: Vec<ProbeStatus>) {
        self.probes = probes;
    }

    /// Sets the options that the kernel records with.
    pub fn set_capture(&mut self, capture: CaptureOptions) {
        self.capture = capture;
    }

    /// Sets the list of data that cannot be recorded.
    pub fn set_missing(&mut self, missing: Vec<String>) {
        self.missing = missing;
    }

    /// Counters of entries refused because a store was full.
    pub fn refused(&self) -> Refused {
        self.budget.refused
    }

    /// Latest time of an event; `None` before the first.
    pub fn last_event(&self) -> Option<TimeNs> {
        self.last_event
    }

    /// Applies the next event of the stream.
    pub fn apply(&mut self, event: &Event) -> Applied {
        match event {
            Event::Stack(id, stack) => {
                let definition = self.names.define(*id, stack, &mut self.budget.refused);
                if definition == Definition::Changed {
                    self.devices
                        .values_mut()
                        .for_each(|device| device.forget_stack(*id));
                    self.cuda.forget_stack(*id);
                }
                Applied::Noted
            }
            // The ledger needs lines only; `shapes` handles tensors, `why` handles purposes.
            Event::BlockPurpose(..) | Event::PhaseMark(_) | Event::BlockLabels(_) => Applied::Noted,
            Event::Thread(tid, name) => {
                self.names.name(*tid, name, &mut self.budget.refused);
                Applied::Noted
            }
            Event::Loss(losses) => {
                self.count_loss(*losses);
                Applied::Noted
            }
            Event::AtAttach(found) => {
                self.find(found);
                Applied::Noted
            }
            Event::Memory(event) => self.apply_memory(event),
        }
    }

    /// Adopts the state of a device at attach. A device with earlier events keeps its own state.
    fn find(&mut self, found: &AtAttach) {
        let Some(index) = found.device else {
            self.unread_at_attach.clone_from(&found.unread);
            return;
        };
        if !device::are_plausible(found.totals) || !device::are_plausible(found.peak) {
            self.malformed = self.malformed.saturating_add(1);
            return;
        }
        if self.last_event.is_none() {
            self.started = self.started.min(found.time);
        }
        let started = self.started;
        self.devices
            .entry(index)
            .or_insert_with(|| Device::found(found, started));
    }

    fn count_loss(&mut self, losses: Losses) {
        if losses.events > self.losses.events || losses.malformed > self.losses.malformed {
            self.agreement.lost(self.last_event.unwrap_or(self.started));
        }
        self.losses = Losses {
            events: self.losses.events.max(losses.events),
            stacks: self.losses.stacks.max(losses.stacks),
            malformed: self.losses.malformed.max(losses.malformed),
            uses: self.losses.uses.max(losses.uses),
        };
    }

    fn apply_memory(&mut self, event: &MemoryEvent) -> Applied {
        if self.last_event.is_none() {
            self.started = self.started.min(event.time);
        }
        if event.action != Action::Held {
            self.last_event = self.last_event.max(Some(event.time));
            self.events = self.events.saturating_add(1);
        }
        if matches!(event.action, Action::SegmentAlloc | Action::SegmentFree) {
            return Applied::Segment;
        }
        if matches!(event.action, Action::CudaAlloc | Action::CudaFree) {
            return self.apply_cuda(event);
        }
        let Some(index) = device::plausible_device(event) else {
            self.malformed = self.malformed.saturating_add(1);
            self.agreement.lost(event.time);
            return Applied::Malformed;
        };
        let started = self.started;
        let device = self
            .devices
            .entry(index)
            .or_insert_with(|| Device::before(event, started));
        let (applied, difference) = match event.action {
            Action::Alloc => device.alloc(event, &self.names, &mut self.budget),
            Action::Free => device.free(event, &mut self.budget),
            Action::Held => device.hold(event, &mut self.budget),
            _ => device.out_of_memory(event),
        };
        self.judge(event.time, difference);
        applied
    }

    fn apply_cuda(&mut self, event: &MemoryEvent) -> Applied {
        let Some(call) = cuda::plausible(event) else {
            self.malformed = self.malformed.saturating_add(1);
            return Applied::Malformed;
        };
        let (names, budget) = (&self.names, &mut self.budget);
        if event.action == Action::CudaAlloc {
            self.cuda.alloc(event, call, self.started, names, budget)
        } else {
            self.cuda.free(event, call, budget)
        }
    }

    fn judge(&mut self, time: TimeNs, difference: Difference) {
        // A block whose free was missed may show long after the loss.
        let late = self.losses.events > 0 || self.losses.malformed > 0 || self.malformed > 0;
        match difference {
            Difference::Gap => self.agreement.differs(time),
            Difference::Stale if !late => self.agreement.differs(time),
            Difference::Stale | Difference::None => {}
        }
    }

    /// Live block of the caching allocator at an address: its bytes, and the user's line that
    /// allocated it, if known.
    pub fn block_at(&self, device: DeviceIndex, addr: Address) -> Option<(Bytes, Option<&Frame>)> {
        self.devices.get(&device)?.block_at(addr)
    }

    /// Updates the rates; about five ticks a second give steady rates. Without ticks all rates are
    /// 0.
    pub fn tick(&mut self, now: TimeNs) {
        let first = self.ticks == Ticks::default();
        if let Some(interval) = self.ticks.tick(now) {
            self.events_rate.tick(self.events, interval);
            self.devices
                .values_mut()
                .for_each(|device| device.tick(interval));
            self.cuda.tick(interval);
        } else if first {
            self.events_rate.start(self.events);
            self.devices.values_mut().for_each(Device::start_rates);
            self.cuda.start_rates();
        }
    }

    /// Snapshot for views, as of `now`.
    pub fn snapshot(&self, now: TimeNs, grouping: Grouping) -> Snapshot {
        let allocator_speaks = self.devices.keys().any(|it| *it != DeviceIndex::CPU);
        let mut devices = match allocator_speaks {
            true => Vec::new(),
            false => self.cuda.devices(now, grouping),
        };
        let own = self.devices.iter();
        devices.extend(own.map(|(index, device)| device.snapshot(*index, now, grouping)));
        Snapshot {
            target: self.target.clone(),
            started: self.started,
            now,
            devices,
            cuda: self.cuda.snapshot(allocator_speaks, grouping),
            health: Health {
                events: self.events,
                events_per_second: self.events_rate.per_second(),
                losses: self.losses(),
                state: self.state.clone(),
                probes: self.probes.clone(),
                capture: self.capture,
                missing: self.missing.clone(),
                disagreements: self.agreement.disagreements(),
                unread_at_attach: self.unread_at_attach.clone(),
            },
        }
    }

    /// Losses before decoding, and malformed events found here.
    pub fn losses(&self) -> Losses {
        let malformed = self.losses.malformed.saturating_add(self.malformed);
        Losses {
            malformed,
            ..self.losses
        }
    }
}

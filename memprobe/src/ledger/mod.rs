//! Ledger of live memory: its call sites, and its agreement with the allocator.
//!
//! Pure: no clock, no I/O. Time comes with the events.
//!
//! For each device, at any moment: `allocated == before attach + unaccounted + live bytes of all
//! lines`. `allocated` is the allocator's own total; `unaccounted` is 0 unless events were lost.
//! Every store is bounded by [`Caps`].

mod agreement;
mod analysis;
mod baseline;
mod block_addresses;
mod block_store;
mod call_sites;
mod caps;
mod change;
mod copy_size;
mod cuda;
pub(crate) mod definitions;
mod dense;
mod device;
mod driver_memory;
pub mod grouping;
mod growth;
pub mod host;
mod iteration_recorder;
pub mod keyframe;
mod packed_labels;
mod rate;
mod restate;
mod segment_memory;
pub mod snapshot;
mod summary;
pub mod suspension;
pub(crate) mod timeline;
pub mod totals_curve;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use analysis::{Analysis, AnalyzedLedger};
pub use block_store::{BlockId, LiveBlock};
pub(crate) use call_sites::Tally;
pub use caps::{Caps, Refused};
pub use change::{Change, Freed};
pub use copy_size::CopySize;
pub use definitions::{SiteRef, StackRef};
pub use dense::{CompactIndex, Dense, DenseMap, PerBlock, PerStack};
pub use device::TotalsSample;
pub use driver_memory::{DriverMemories, DriverMemoryState, saturated};
pub use restate::Restated;
pub use segment_memory::SegmentMemory;
pub use timeline::MAX_POINTS;

use crate::event::{
    Action, Address, AtAttach, BlockLabels, BlockPurpose, Bytes, CaptureChange, DeviceIndex, Event,
    Losses, MemoryEvent, PurposeId, SegmentReading, Stack, StackId, Target, Tid, TimeNs,
};
use agreement::Agreement;
use baseline::BaselineGroups;
use block_store::BlockStore;
use call_sites::CallSites;
use cuda::CudaLedger;
use definitions::slot;
use device::{DeviceLedger, Disagreement};
use iteration_recorder::IterationRecorder;
use rate::{MovingRate, Ticks};
use segment_memory::SegmentMemories;
use snapshot::{
    BudgetState, Grouping, Health, OutsideRow, PurposeInfo, Site, Snapshot, TargetState,
    TimelineMarks,
};

/// Ledger of one process, updated by each event.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub target: Target,
    /// Its state, probes, options and gaps come from the session; the ledger counts its events.
    pub health: Health,
    started: TimeNs,
    last_event: Option<TimeNs>,
    events_rate: MovingRate,
    ticks: Ticks,
    malformed: u64,
    agreement: Agreement,
    store: BlockStore,
    /// Memory from before attach by its labels.
    baseline: BaselineGroups,
    devices: BTreeMap<DeviceIndex, DeviceLedger>,
    cuda: CudaLedger,
    iterations: IterationRecorder,
    /// For analyses that begin later; the ledger's own totals come with each event.
    segments: Option<Arc<SegmentReading>>,
    segment_memory: SegmentMemories,
    driver: DriverMemories,
    /// Reserved bytes of the caching allocator. Its own totals come with blocks only, and segments may change after them.
    reserved: BTreeMap<DeviceIndex, Bytes>,
}

impl Ledger {
    pub fn new(target: Target, started: TimeNs) -> Self {
        Self::with_caps(target, started, Caps::default())
    }

    pub fn with_caps(target: Target, started: TimeNs, caps: Caps) -> Self {
        Self {
            target,
            started,
            store: BlockStore::new(caps),
            ..Self::default()
        }
    }

    /// Makes a later moment the start, with so many events between the two.
    pub fn begin_later(&mut self, started: TimeNs, events: u64) {
        self.started = started;
        self.health.events = events;
    }

    pub fn refused(&self) -> Refused {
        self.store.budget.refused
    }

    /// Latest time of an event; `None` before the first.
    pub fn last_event(&self) -> Option<TimeNs> {
        self.last_event
    }

    /// Last reading of the allocator's segments.
    pub fn last_segments(&self) -> Option<&Arc<SegmentReading>> {
        self.segments.as_ref()
    }

    /// Memory behind the allocator's segments, by address, as far as events announced it.
    pub fn segment_memory(&self) -> impl Iterator<Item = &SegmentMemory> {
        self.segment_memory.iter()
    }

    /// Tag that the program gave to memory at an address; `None` if it is not known.
    pub fn segment_tag(&self, addr: Address) -> Option<&Arc<str>> {
        let tagged = self.segment_memory.tagged(addr)?;
        Some(&tagged.tag)
    }

    /// Memory on devices that others than the caching allocator got from CUDA, by library, largest first.
    pub fn cuda_on_devices(&self, grouping: Grouping) -> Vec<OutsideRow> {
        let definitions = &self.store.definitions;
        self.cuda.on_devices(grouping, definitions)
    }

    /// CUDA's contexts by the library that made them, with the lines.
    pub fn contexts(&self, grouping: Grouping) -> Vec<OutsideRow> {
        let definitions = &self.store.definitions;
        self.cuda.contexts(grouping, definitions)
    }

    /// Last answers of the driver.
    pub fn driver(&self) -> &DriverMemories {
        &self.driver
    }

    /// Reserved bytes of the caching allocator on a device, also after the last block.
    pub fn reserved(&self, device: DeviceIndex) -> Bytes {
        self.reserved.get(&device).copied().unwrap_or_default()
    }

    /// Follows the reserved bytes.
    fn note_reserved(&mut self, event: &MemoryEvent) {
        let Some(device) = event.device.filter(|device| *device < DeviceIndex::CPU) else {
            return;
        };
        let reserved = self.reserved.entry(device).or_default();
        reserved.0 = match (event.action, event.totals) {
            (_, Some(totals)) => totals.reserved.0,
            (Action::SegmentAlloc, None) => reserved.0.saturating_add(event.size.0),
            (Action::SegmentFree, None) => reserved.0.saturating_sub(event.size.0),
            _ => reserved.0,
        };
    }

    /// The device of all memory whose device is not known: it can be no other.
    pub fn only_device(&self) -> Option<DeviceIndex> {
        let allocator = self.devices.keys().copied();
        let devices = allocator.chain(self.cuda.devices_with_memory());
        let mut devices = devices.filter(|device| *device < DeviceIndex::CPU);
        let first = devices.next()?;
        devices.all(|device| device == first).then_some(first)
    }

    /// Bytes of known allocations on a device: the allocator's reserved bytes as far as CUDA backs them, and the memory
    /// of others.
    pub fn known_on_device(&self, device: DeviceIndex) -> i64 {
        let reserved = saturated(self.reserved(device).0);
        let unbacked = self.segment_memory.iter().filter(|memory| {
            memory.device == Some(device) && (memory.is_asleep || !memory.kind.is_on_device())
        });
        let unbacked: u64 = unbacked.map(|memory| memory.size.0).sum();
        let mut others = saturated(self.cuda.live_on(Some(device)));
        if self.only_device() == Some(device) {
            others = others.saturating_add(saturated(self.cuda.live_on(None)));
        }
        reserved
            .saturating_add(others)
            .saturating_sub(saturated(unbacked))
    }

    pub fn apply(&mut self, event: &Event) -> Change {
        self.store.release_ended();
        let BlockStore {
            definitions,
            budget,
            ..
        } = &mut self.store;
        match event {
            Event::Memory(event) => return self.apply_memory(event),
            Event::Stack(id, stack) => {
                return Change::Stack(definitions.define(*id, stack, &mut budget.refused));
            }
            Event::BlockPurpose(id, purpose) => definitions.purposes.define(*id, purpose),
            Event::Thread(tid, name) => definitions.name(*tid, name, &mut budget.refused),
            Event::Loss(losses) => self.count_loss(*losses),
            Event::Capture(change) => self.change_capture(change),
            Event::AtAttach(found) => self.find(found),
            Event::PhaseMark(mark) => {
                let site = self.site_ref(self.stack_ref(mark.stack), Grouping::User);
                self.iterations.mark(mark, site);
                self.mark(mark.time, TimelineMarks::of_phase(mark.phase));
            }
            Event::Segments(reading) => {
                self.segment_memory.read(reading);
                for device in &reading.devices {
                    self.reserved.insert(device.device, device.totals.reserved);
                }
                self.segments = Some(Arc::clone(reading));
            }
            Event::Driver(reading) => {
                let mut driver = std::mem::take(&mut self.driver);
                let known = |device| self.known_on_device(device);
                driver.read(reading, known);
                self.driver = driver;
            }
            Event::BaselineLabels(labels) => self.label(labels),
            Event::BlockLabels(labels) => {
                self.label(labels);
                self.mark(labels.time, TimelineMarks::of_reading());
            }
        }
        Change::Noted
    }

    /// Adopts or corrects the state of a device at attach. A device with earlier events keeps its own state.
    fn find(&mut self, found: &AtAttach) {
        let Some(index) = found.device else {
            self.health.unread_at_attach.clone_from(&found.unread);
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
        self.reserved.entry(index).or_insert(found.totals.reserved);
        self.devices
            .entry(index)
            .and_modify(|device| device.correct(found))
            .or_insert_with(|| DeviceLedger::found(index, found, started));
    }

    /// Marks a moment in the timelines of all devices.
    fn mark(&mut self, time: TimeNs, marks: TimelineMarks) {
        let devices = self.devices.values_mut();
        devices.for_each(|device| device.mark(time, marks));
    }

    fn change_capture(&mut self, change: &CaptureChange) {
        let pauses = self.health.budget.map_or(0, |budget| budget.pauses);
        let budget = BudgetState::after(self.health.budget, change);
        if budget.pauses != pauses {
            // The blocks are brought up to date after the pause: totals may jump in between.
            self.agreement.capture_changed(change.time);
        }
        self.health.budget = Some(budget);
    }

    fn count_loss(&mut self, new: Losses) {
        let losses = &mut self.health.losses;
        let events = new.events.saturating_sub(losses.events);
        let events = events.saturating_add(new.malformed.saturating_sub(losses.malformed));
        if events > 0 {
            let last = self.last_event.unwrap_or(self.started);
            self.agreement.lost(last, events);
        }
        *losses = losses.zip(new, u64::max);
    }

    fn apply_memory(&mut self, event: &MemoryEvent) -> Change {
        if self.last_event.is_none() {
            self.started = self.started.min(event.time);
        }
        if event.action != Action::Held {
            self.last_event = self.last_event.max(Some(event.time));
            self.health.events = self.health.events.saturating_add(1);
        }
        self.note_reserved(event);
        if event.is_of_segment() {
            self.driver.changed = self.driver.changed.max(event.time);
            let stack = self.stack_ref(event.stack);
            self.segment_memory.apply(event, stack);
            return Change::Segment;
        }
        if matches!(event.action, Action::CudaAlloc | Action::CudaFree) {
            self.driver.changed = self.driver.changed.max(event.time);
            return self.apply_cuda(event);
        }
        if event.action == Action::CudaOutOfMemory {
            return Change::Noted;
        }
        let Some(index) = device::plausible_device(event) else {
            self.malformed = self.malformed.saturating_add(1);
            self.agreement.lost(event.time, 1);
            return Change::Malformed;
        };
        let started = self.started;
        let device = self
            .devices
            .entry(index)
            .or_insert_with(|| DeviceLedger::before(index, event, started));
        let (change, difference) = match event.action {
            Action::Alloc => device.alloc(event, &mut self.store),
            Action::Free => device.free(event, &mut self.store),
            Action::Held => device.hold(event, &mut self.store),
            _ => device.out_of_memory(event),
        };
        self.judge(event.time, difference);
        self.release_labels(&change);
        change
    }

    /// Bytes of live blocks on GPUs that are known from before attach.
    pub fn held_before_attach(&self) -> Bytes {
        let gpus = self.devices.iter();
        let gpus = gpus.filter(|(index, _)| **index != DeviceIndex::CPU);
        let held = gpus.map(|(_, device)| device.held_before_attach().0);
        Bytes(held.fold(0, u64::saturating_add))
    }

    fn label(&mut self, labels: &Arc<BlockLabels>) {
        self.baseline.label(labels, &self.store);
        self.segment_memory.tag(&labels.tags);
    }

    /// Ends the labels of blocks that have ended.
    fn release_labels(&mut self, change: &Change) {
        let ended = match change {
            Change::Freed(Freed::BeforeAttach(Some(id))) => std::slice::from_ref(id),
            Change::Allocated { replaced, .. } => replaced,
            _ => return,
        };
        for id in ended {
            self.baseline.release(*id, self.store.get(*id).size);
        }
    }

    fn apply_cuda(&mut self, event: &MemoryEvent) -> Change {
        let Some(call) = cuda::plausible(event) else {
            self.malformed = self.malformed.saturating_add(1);
            return Change::Malformed;
        };
        if event.action == Action::CudaAlloc {
            self.cuda.alloc(event, call, self.started, &mut self.store)
        } else {
            self.cuda.free(event, call, &mut self.store)
        }
    }

    fn judge(&mut self, time: TimeNs, difference: Disagreement) {
        // A block whose free was missed may show long after the loss.
        let losses = self.losses();
        let late = losses.events > 0 || losses.malformed > 0;
        match difference {
            Disagreement::Gap => self.agreement.differs(time),
            Disagreement::Stale if !late => self.agreement.differs(time),
            Disagreement::Stale | Disagreement::None => {}
        }
    }

    /// A live block, or one that the last event ended.
    pub fn block(&self, id: BlockId) -> &LiveBlock {
        self.store.get(id)
    }

    /// Live block that begins at an address.
    pub fn block_at(&self, device: DeviceIndex, addr: Address) -> Option<BlockId> {
        self.store.at(device, addr)
    }

    /// Live blocks of PyTorch's allocators, by device and address.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, &LiveBlock)> {
        self.store.live()
    }

    /// Stacks in the order of their definition.
    pub fn stacks(&self) -> impl Iterator<Item = (StackRef, &Arc<Stack>)> {
        self.store.definitions.stacks()
    }

    /// A stack; one without frames for [`StackRef::UNKNOWN`].
    pub fn stack(&self, stack: StackRef) -> &Arc<Stack> {
        &self.store.definitions.stack(stack).stack
    }

    /// Names of threads.
    pub fn threads(&self) -> impl Iterator<Item = (Tid, Arc<str>)> {
        self.store.definitions.threads()
    }

    /// Stack that an id means now.
    pub fn stack_ref(&self, id: StackId) -> StackRef {
        self.store.definitions.stack_ref(id)
    }

    pub fn site(&self, stack: StackRef, grouping: Grouping) -> &Site {
        self.site_of(self.site_ref(stack, grouping), grouping)
    }

    pub fn site_ref(&self, stack: StackRef, grouping: Grouping) -> SiteRef {
        self.store.definitions.stack(stack).sites[slot(grouping)]
    }

    pub fn site_of(&self, site: SiteRef, grouping: Grouping) -> &Site {
        self.store.definitions.site(site, grouping)
    }

    /// Purpose of blocks by its id; `None` if it is undefined or was dropped at the cap.
    pub fn purpose(&self, id: PurposeId) -> Option<&Arc<BlockPurpose>> {
        if id < PurposeId::FIRST {
            None
        } else {
            self.store.definitions.purposes.get(id)
        }
    }

    pub fn purpose_info(&self, id: PurposeId) -> PurposeInfo {
        match self.purpose(id) {
            Some(purpose) => PurposeInfo::Known(Arc::clone(purpose)),
            None if id == PurposeId::NO_TENSOR => PurposeInfo::NoTensor,
            None => PurposeInfo::Unknown,
        }
    }

    /// Updates the rates; about five ticks a second give steady rates. Without ticks all rates are
    /// 0.
    pub fn tick(&mut self, now: TimeNs) {
        let first = self.ticks == Ticks::default();
        if let Some(interval) = self.ticks.tick(now) {
            self.events_rate.tick(self.health.events, interval);
            self.call_sites_mut().for_each(|sites| sites.tick(interval));
            self.tick_growth(now);
        } else if first {
            self.events_rate.start(self.health.events);
            self.call_sites_mut().for_each(CallSites::start_rates);
            self.tick_growth(now);
        }
    }

    /// The growth of a process that has ended stays as it was.
    fn tick_growth(&mut self, now: TimeNs) {
        if self.health.state == TargetState::Exited {
            return;
        }
        let sites = self.call_sites_mut();
        sites.for_each(|sites| sites.tick_growth(now));
        let devices = self.devices.values_mut();
        devices.for_each(|device| device.tick_growth(now));
    }

    /// Counts peaks and growth from `now` on.
    pub fn reset_peaks(&mut self, now: TimeNs) {
        self.call_sites_mut().for_each(CallSites::reset_peaks);
        self.devices.values_mut().for_each(DeviceLedger::reset_peak);
        self.tick_growth(now);
    }

    fn call_sites_mut(&mut self) -> impl Iterator<Item = &mut CallSites> {
        let devices = self.devices.values_mut();
        let own = devices.map(|device| &mut device.call_sites);
        own.chain(self.cuda.call_sites_mut())
    }

    /// Snapshot for views, as of `now`.
    pub fn snapshot(&self, now: TimeNs, grouping: Grouping) -> Snapshot {
        let definitions = &self.store.definitions;
        let allocator_speaks = self.devices.keys().any(|it| *it != DeviceIndex::CPU);
        let mut devices = if allocator_speaks {
            Vec::new()
        } else {
            let mut devices = self.cuda.devices(now, grouping, definitions);
            for device in &mut devices {
                let unread = &self.health.unread_at_attach;
                device.before_attach.unread.clone_from(unread);
            }
            devices
        };
        let own = self.devices.values();
        devices.extend(own.map(|device| {
            let mut snapshot = device.snapshot(now, grouping, definitions);
            snapshot.iterations_per_minute = self.iterations_per_minute(device);
            snapshot.before_attach.labeled = self.baseline.labeled();
            snapshot.before_attach.groups = self.baseline.of(snapshot.index);
            snapshot
        }));
        Snapshot {
            target: self.target.clone(),
            started: self.started,
            now,
            devices,
            cuda: self.cuda.snapshot(allocator_speaks, grouping, definitions),
            health: Health {
                events_per_second: self.events_rate.per_second(),
                losses: self.losses(),
                disagreements: self.agreement.disagreements(),
                ..self.health.clone()
            },
        }
    }

    fn iterations_per_minute(&self, device: &DeviceLedger) -> Option<f64> {
        let (from, to) = device.growth_span()?;
        self.iterations.per_minute(from, to)
    }

    /// Losses before decoding, and malformed events found here.
    pub fn losses(&self) -> Losses {
        let losses = self.health.losses;
        Losses {
            malformed: losses.malformed.saturating_add(self.malformed),
            ..losses
        }
    }
}

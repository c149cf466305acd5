//! One dump: the frozen state of a process, and the evidence that arrives after it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hashbrown::HashSet;

use super::flight::FrozenFlight;
use super::folder::DumpFolder;
use crate::cuda::nvml::Sample;
use crate::event::tensors::Consistency;
use crate::event::{
    Action, Address, BlockLabels, Bytes, CallPaths, DeviceIndex, Event, MemoryEvent, Target, Tgid,
    TimeNs,
};
use crate::process::facts;
use crate::recording::write::compact::CompactWriter;
use crate::recording::{
    DumpFacts, DumpReason, DumpedGpu, DumpedProcess, EndReason, MAX_DUMPED_COMMAND,
    MAX_DUMPED_PROCESSES,
};
use crate::session::driver::gpu_of;
use crate::session::process_monitor::has_pids_of_the_driver;
use crate::view::consistency;

/// Longest wait for the evidence of a dump.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest wait for the event of a failed request whose record has come.
const EVENT_PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait for the GPUs behind the devices of a process that has just begun to use them.
const GPU_PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait for the blocks of a process whose probes were off.
pub(super) const BLOCKS_PATIENCE: Duration = Duration::from_secs(2);

/// Most blocks noted as changed between the failed request and the reading of objects.
const MAX_TOUCHED: usize = 1 << 20;

/// Memory of the GPUs, and the time of the question.
pub(super) type DriverAnswer = (TimeNs, Result<Sample, String>);

/// Labels of live blocks, and the consistency of their reading.
pub(super) type ObjectReading = Result<(BlockLabels, Consistency)>;

pub(super) enum DumpEvidence {
    Driver(DriverAnswer),
    Objects(Box<ObjectReading>),
}

/// Memory that the allocator of another watched process caches, by its devices.
pub(super) struct WatchedCache {
    pub(super) tgid: Tgid,
    pub(super) target: Target,
    pub(super) cached: Vec<(DeviceIndex, Bytes)>,
}

/// Reading of a process's objects.
enum Objects {
    Reading,
    Arrived(Box<ObjectReading>),
    /// Part of the contents; says how consistent it is.
    Placed(String),
    Unread(String),
}

pub(super) struct PendingDump {
    pub(super) reason: DumpReason,
    tgid: Tgid,
    name: String,
    begun: Instant,
    counted_ooms: u64,
    /// Other watched processes at the begin of the dump.
    pub(super) caches: Vec<WatchedCache>,
    /// Event of the failed request, once it has come.
    failure: Option<MemoryEvent>,
    frozen: Option<(FrozenFlight, TimeNs)>,
    driver: Option<DriverAnswer>,
    is_asking_driver: bool,
    /// True if the GPU behind a device may become known.
    can_identify: bool,
    objects: Objects,
    /// Blocks allocated or freed after the moment of the dump.
    touched: HashSet<(DeviceIndex, Address)>,
    /// True if not all of these are known.
    has_missed: bool,
    last_event: TimeNs,
    pub(super) calls: CallPaths,
}

impl PendingDump {
    /// Begins a dump. `driver` is an earlier answer of the driver, for a process that ends before there is a newer one.
    pub(super) fn new(
        tgid: Tgid,
        reason: DumpReason,
        counted_ooms: u64,
        driver: Option<DriverAnswer>,
    ) -> Self {
        Self {
            reason,
            tgid,
            name: DumpFolder::name(tgid, reason),
            begun: Instant::now(),
            counted_ooms,
            caches: Vec::new(),
            failure: None,
            frozen: None,
            driver,
            is_asking_driver: true,
            can_identify: true,
            objects: Objects::Reading,
            touched: HashSet::new(),
            has_missed: false,
            last_event: TimeNs(0),
            calls: CallPaths::default(),
        }
    }

    /// Goes without the objects of the process.
    pub(super) fn leave_objects(&mut self, reason: &str) {
        self.objects = Objects::Unread(reason.to_owned());
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// True if the contents can be fixed: the event of the failed request has come, or does not come.
    pub(super) fn can_freeze(&self) -> bool {
        !self.is_frozen() && (self.failure.is_some() || self.begun.elapsed() >= EVENT_PATIENCE)
    }

    /// True until the blocks after a pause of the probes are known, or the wait for them is over.
    pub(super) fn waits_for_blocks(&self, is_catching_up: bool) -> bool {
        is_catching_up && self.begun.elapsed() < BLOCKS_PATIENCE
    }

    /// Notes the event of the failed request.
    pub(super) fn fail(&mut self, failure: &MemoryEvent) {
        self.failure.get_or_insert(*failure);
    }

    /// Sets the contents of the dump, as of `time`. The failed request is the last event; blocks that were read after a
    /// pause of the probes come before it.
    pub(super) fn freeze(&mut self, mut frozen: FrozenFlight, time: TimeNs) {
        self.last_event = time;
        let Some(failure) = self.failure.take() else {
            self.frozen = Some((frozen, time));
            return;
        };
        let time = failure.time;
        let failure = Event::Memory(failure);
        frozen.events.retain(|event| *event != failure);
        frozen.events.push(failure);
        self.frozen = Some((frozen, time));
    }

    /// Notes an event after the moment of the dump.
    pub(super) fn follow(&mut self, event: &Event) {
        if !self.is_frozen() {
            return;
        }
        match event {
            Event::Memory(event) => {
                self.last_event = self.last_event.max(event.time);
                let is_change = matches!(event.action, Action::Alloc | Action::Free | Action::Held);
                if let (true, Some(device)) = (is_change, event.device) {
                    self.has_missed |= self.touched.len() >= MAX_TOUCHED;
                    if !self.has_missed {
                        self.touched.insert((device, event.addr));
                    }
                }
            }
            Event::Loss(_) => self.has_missed = true,
            _ => {}
        }
    }

    /// Takes the GPUs behind the devices of the process, which may become known after its contents are fixed.
    pub(super) fn identify(&mut self, target: &Target) {
        if let Some((frozen, _)) = &mut self.frozen {
            frozen.header.target.gpus.clone_from(&target.gpus);
        }
    }

    /// Waits no longer for the GPUs: the process has ended.
    pub(super) fn stop_identifying(&mut self) {
        self.can_identify = false;
    }

    /// True if the GPU behind each device is known, or will hardly be.
    fn has_gpus(&self) -> bool {
        let is_known = |frozen: &FrozenFlight| {
            let mut devices = frozen.devices.iter();
            devices.all(|device| frozen.header.target.identity(*device).is_some())
        };
        !self.can_identify
            || self.begun.elapsed() >= GPU_PATIENCE
            || self
                .frozen
                .as_ref()
                .is_none_or(|(frozen, _)| is_known(frozen))
    }

    pub(super) fn take(&mut self, evidence: DumpEvidence) {
        match evidence {
            DumpEvidence::Driver(reading) => {
                self.is_asking_driver = false;
                // A process that has ended holds nothing any more: the earlier answer says more.
                let tgid = self.tgid;
                let holds = |(_, sample): &DriverAnswer| {
                    let sample = sample.as_ref().ok();
                    sample.is_some_and(|sample| sample.held.contains_key(&tgid))
                };
                let had = self.driver.as_ref().is_some_and(holds);
                if holds(&reading) || !had {
                    self.driver = Some(reading);
                }
            }
            DumpEvidence::Objects(reading) => self.objects = Objects::Arrived(reading),
        }
    }

    /// True once there is nothing to wait for. `is_settled` says that no earlier event is on its way.
    pub(super) fn is_whole(&self, is_settled: bool) -> bool {
        if !self.is_frozen() {
            return false;
        }
        let has_objects = match &self.objects {
            Objects::Reading => false,
            Objects::Placed(_) | Objects::Unread(_) => true,
            Objects::Arrived(reading) => match &**reading {
                Ok((labels, _)) => is_settled || self.last_event > labels.time,
                Err(_) => true,
            },
        };
        let has_driver = !self.is_asking_driver && self.has_gpus();
        has_objects && has_driver || self.begun.elapsed() >= PATIENCE
    }

    /// Waits for no more evidence.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.is_asking_driver = false;
        self.can_identify = false;
        if matches!(self.objects, Objects::Reading) {
            self.leave_objects(reason);
        }
    }

    /// Makes the evidence that has arrived part of the contents, and waits for no more.
    pub(super) fn complete(&mut self) {
        self.give_up("not read in time");
        self.objects = match std::mem::replace(&mut self.objects, Objects::Reading) {
            Objects::Arrived(reading) => match self.placed(*reading) {
                Ok(consistency) => Objects::Placed(consistency),
                Err(error) => Objects::Unread(first_line(&error)),
            },
            read => read,
        };
    }

    /// Puts labels before the failed request, restricted to the blocks that did not change since. Returns their
    /// consistency in words.
    fn placed(&mut self, reading: ObjectReading) -> Result<String> {
        let (mut labels, how) = reading?;
        let Some((frozen, time)) = &mut self.frozen else {
            bail!("there is nothing to label");
        };
        if self.has_missed {
            bail!("events were lost while its objects were read");
        }
        labels.resolve_calls(&self.calls);
        let touched = &self.touched;
        labels
            .blocks
            .retain(|block| !touched.contains(&(block.device, block.addr)));
        labels.time = *time;
        let is_failure =
            |event: &Event| matches!(event, Event::Memory(event) if event.action.is_failure());
        let at = frozen.events.len() - usize::from(frozen.events.last().is_some_and(is_failure));
        frozen.events.insert(at, Event::BlockLabels(labels.into()));
        Ok(consistency(how))
    }

    /// Writes the dump with what is known by now, in place of an earlier one. Returns its path.
    pub(super) fn write(&mut self, folder: &mut DumpFolder) -> Result<String> {
        let facts = self.facts();
        let Some((frozen, _)) = &mut self.frozen else {
            bail!("there is nothing to write");
        };
        frozen.header.dump = Some(Box::new(facts));
        let out = folder.create(&self.name)?;
        let path = folder.path(&self.name);
        let mut writer = CompactWriter::new(out, path.clone(), &frozen.header)?;
        for event in &frozen.events {
            writer.event(event)?;
        }
        writer.finish(EndReason::Dumped)?.commit()?;
        folder.prune(&self.name).context("removing old dumps")?;
        Ok(path)
    }

    fn facts(&self) -> DumpFacts {
        let (target, time, devices, left_out) = match &self.frozen {
            Some((frozen, time)) => (
                frozen.header.target.clone(),
                *time,
                frozen.devices.as_slice(),
                frozen.blocks_left_out,
            ),
            None => (Target::default(), TimeNs(0), &[][..], 0),
        };
        let (gpus, gpus_unknown) = match &self.driver {
            Some((asked, Ok(sample))) => {
                let gpus = devices.iter();
                let gpus = gpus.filter_map(|device| {
                    let mut gpu = dumped_gpu(&target, *device, sample, *asked)?;
                    add_caches(&mut gpu, &target, &self.caches, sample);
                    Some(gpu)
                });
                let gpus: Vec<DumpedGpu> = gpus.collect();
                let is_missing = gpus.len() < devices.len();
                let unknown = "which GPU of the driver a device is, or its memory, is unknown";
                (gpus, is_missing.then(|| unknown.to_owned()))
            }
            Some((_, Err(reason))) => (Vec::new(), Some(reason.clone())),
            None => (
                Vec::new(),
                Some("the driver has not answered yet".to_owned()),
            ),
        };
        let (objects, objects_unread) = match &self.objects {
            Objects::Placed(how) => (Some(how.clone()), None),
            Objects::Unread(reason) => (None, Some(reason.clone())),
            Objects::Reading | Objects::Arrived(_) => {
                let reason = "memprobe ended while it read them";
                (None, Some(reason.to_owned()))
            }
        };
        DumpFacts {
            reason: self.reason,
            time,
            counted_ooms: self.counted_ooms,
            gpus,
            gpus_unknown,
            objects,
            objects_unread,
            blocks_left_out: left_out,
        }
    }
}

/// Reason in one line: advice for `record` follows.
fn first_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().next().unwrap_or_default().to_owned()
}

/// Adds the cached bytes of watched processes to the other processes of a GPU.
fn add_caches(gpu: &mut DumpedGpu, target: &Target, caches: &[WatchedCache], sample: &Sample) {
    let index = |target, device| gpu_of(target, device, sample).map(|found| found.index);
    let own = index(target, gpu.device);
    for other in &mut gpu.others {
        let cache = caches.iter().find(|cache| cache.tgid.0 == other.pid);
        other.cached = cache.map(|cache| {
            let here = cache.cached.iter();
            let here = here.filter(|(device, _)| index(&cache.target, *device) == own);
            here.map(|(_, bytes)| bytes.0).sum()
        });
    }
}

/// Memory of the GPU behind a device, as the driver tells it; `None` if either is unknown.
fn dumped_gpu(
    target: &Target,
    device: DeviceIndex,
    sample: &Sample,
    asked: TimeNs,
) -> Option<DumpedGpu> {
    let found = gpu_of(target, device, sample)?;
    let usage = found.memory.as_ref().ok()?;
    let same = has_pids_of_the_driver();
    let users = sample.held.iter().filter(|_| same);
    let users = users.filter_map(|(tgid, held)| {
        let (_, bytes) = held.iter().find(|(index, _)| *index == found.index)?;
        Some((*tgid, bytes.map(|bytes| bytes.0)))
    });
    let (own, mut others): (Vec<_>, Vec<_>) =
        users.partition(|(tgid, _)| Some(*tgid) == target.tgid);
    others.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let others = others.into_iter().take(MAX_DUMPED_PROCESSES);
    Some(DumpedGpu {
        device,
        asked,
        total: usage.total.0,
        used: usage.used.0,
        own: own.first().and_then(|(_, bytes)| *bytes),
        others: others
            .map(|(tgid, bytes)| DumpedProcess {
                pid: tgid.0,
                command: facts::command_line(tgid)
                    .chars()
                    .take(MAX_DUMPED_COMMAND)
                    .collect(),
                bytes,
                cached: None,
            })
            .collect(),
        others_unknown: match &found.processes {
            _ if !same => Some("the driver has other process ids".to_owned()),
            Ok(()) => None,
            Err(reason) => Some(reason.clone()),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::commands::watch::flight::FlightRecorder;
    use crate::cuda::nvml::{DeviceMemory, Hardware, Usage};
    use crate::event::{
        DeviceIdentity, Gpu, IdentitySource, LabeledBlock, PurposeId, StackId, Tid, Totals,
    };
    use crate::recording::Reader;

    const TGID: Tgid = Tgid(7);
    const CUDA: DeviceIndex = DeviceIndex(0);

    fn memory(time: u64, action: Action, addr: u64) -> MemoryEvent {
        MemoryEvent {
            time: TimeNs(time),
            tgid: TGID,
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(512),
            device: Some(CUDA),
            totals: Some(Totals::of(512, 2 << 20)),
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        }
    }

    /// A process with blocks at 512 and 1024, whose request failed at 50.
    fn failed() -> PendingDump {
        let target = Target {
            tgid: Some(TGID),
            ..Target::default()
        };
        let mut flight = FlightRecorder::new(target, TimeNs(1));
        for event in [
            memory(10, Action::Alloc, 512),
            memory(20, Action::Alloc, 1024),
            memory(50, Action::OutOfMemory, 0),
        ] {
            flight.record(Event::Memory(event));
        }
        let mut dump = PendingDump::new(TGID, DumpReason::OutOfMemory, 4, None);
        dump.fail(&memory(50, Action::OutOfMemory, 0));
        dump.freeze(flight.freeze(), flight.last());
        dump
    }

    fn labels(time: u64) -> ObjectReading {
        let block = |addr| LabeledBlock::unlabeled(Address(addr), Bytes(512), CUDA);
        let labels = BlockLabels {
            time: TimeNs(time),
            tgid: TGID,
            blocks: vec![block(512), block(1024)],
            optimizers: Vec::new(),
            tags: Vec::new(),
        };
        Ok((labels, Consistency::Running))
    }

    fn sample(held: &[(u32, u64)]) -> Sample {
        let held = held
            .iter()
            .map(|(pid, bytes)| (Tgid(*pid), vec![(0, Some(Bytes(*bytes)))]));
        Sample {
            devices: vec![DeviceMemory {
                index: 0,
                name: String::new(),
                memory: Ok(Usage {
                    used: Bytes(900),
                    total: Bytes(1000),
                }),
                mig_devices: None,
                processes: Ok(()),
                hardware: Hardware::default(),
            }],
            held: held.collect::<BTreeMap<_, _>>(),
        }
    }

    #[test]
    fn labels_come_before_the_failed_request_without_blocks_that_changed_since() {
        let mut dump = failed();
        dump.follow(&Event::Memory(memory(60, Action::Free, 1024)));
        dump.take(DumpEvidence::Objects(Box::new(labels(70))));
        dump.take(DumpEvidence::Driver((
            TimeNs(55),
            Err("no driver".to_owned()),
        )));
        dump.stop_identifying();
        // An event from before the reading may be on its way.
        assert!(!dump.is_whole(false) && dump.is_whole(true));
        dump.complete();
        let folder = tempfile::tempdir().unwrap();
        let mut folder = DumpFolder::check(folder.path(), Bytes(1 << 20)).unwrap();
        let path = dump.write(&mut folder).unwrap();
        let mut reader = Reader::open(path.as_ref()).unwrap();
        let events: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
        let [.., Event::BlockLabels(labels), Event::Memory(last)] = events.as_slice() else {
            panic!("{events:#?}");
        };
        assert_eq!((last.action, last.time), (Action::OutOfMemory, TimeNs(50)));
        let addresses: Vec<u64> = labels.blocks.iter().map(|block| block.addr.0).collect();
        assert_eq!((addresses, labels.time), (vec![512], TimeNs(50)));
        let facts = reader.header().dump.as_deref().expect("facts");
        assert_eq!((facts.counted_ooms, facts.time), (4, TimeNs(50)));
        assert_eq!(facts.gpus_unknown.as_deref(), Some("no driver"));
        assert_eq!(facts.objects_unread, None);
    }

    #[test]
    fn a_gpu_that_becomes_known_after_the_failed_request_is_that_of_the_dump() {
        let mut dump = failed();
        dump.leave_objects("--no-names");
        let mut sample = sample(&[(7, 300), (9, 600)]);
        let other = DeviceMemory {
            index: 1,
            ..sample.devices[0].clone()
        };
        sample.devices.push(other);
        dump.take(DumpEvidence::Driver((TimeNs(55), Ok(sample))));
        assert!(!dump.is_whole(true), "one of two GPUs is not told yet");
        assert!(dump.facts().gpus.is_empty());
        let gpu = Gpu {
            index: Some(0),
            uuid: None,
            pci_bus_id: None,
            mig: None,
            memory: None,
            source: IdentitySource::Environment,
        };
        let identity = DeviceIdentity {
            device: CUDA,
            gpu: Some(gpu),
            unknown: None,
        };
        dump.identify(&Target {
            gpus: vec![identity],
            ..Target::default()
        });
        assert!(dump.is_whole(true));
        let facts = dump.facts();
        let own = facts.gpus.iter().map(|gpu| (gpu.device, gpu.own));
        assert_eq!(own.collect::<Vec<_>>(), [(CUDA, Some(300))]);
        assert_eq!(facts.gpus_unknown, None);
    }

    #[test]
    fn labels_are_left_out_if_events_were_lost_meanwhile() {
        let mut dump = failed();
        dump.follow(&Event::Loss(Default::default()));
        dump.take(DumpEvidence::Objects(Box::new(labels(70))));
        dump.complete();
        let facts = dump.facts();
        assert_eq!(facts.objects, None);
        let reason = facts.objects_unread.expect("a reason");
        assert!(reason.contains("events were lost"), "{reason}");
    }

    #[test]
    fn an_answer_of_the_driver_from_after_the_end_does_not_replace_one_from_before() {
        let before = (TimeNs(40), Ok(sample(&[(7, 300), (9, 600)])));
        let mut dump = failed();
        dump.driver = Some(before);
        dump.take(DumpEvidence::Driver((TimeNs(90), Ok(sample(&[(9, 600)])))));
        let (asked, _) = dump.driver.as_ref().expect("an answer");
        assert_eq!(*asked, TimeNs(40));
        let later = (TimeNs(95), Ok(sample(&[(7, 301)])));
        dump.take(DumpEvidence::Driver(later));
        let (asked, _) = dump.driver.as_ref().expect("an answer");
        assert_eq!(*asked, TimeNs(95));
    }
}

//! One dump: the frozen state of a process, and the evidence that arrives after it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hashbrown::HashSet;

use super::flight::FrozenFlight;
use super::folder::DumpFolder;
use crate::cuda::nvml::Sample;
use crate::event::tensors::Consistency;
use crate::event::{
    Action, Address, BlockLabels, CallPaths, DeviceIndex, Event, Target, Tgid, TimeNs,
};
use crate::process::facts;
use crate::recording::write::compact::CompactWriter;
use crate::recording::{
    DumpFacts, DumpReason, DumpedGpu, DumpedProcess, EndReason, MAX_DUMPED_COMMAND,
    MAX_DUMPED_PROCESSES,
};
use crate::session::process_monitor::has_pids_of_the_driver;
use crate::view::consistency;

/// Longest wait for the evidence of a dump.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest wait for the event of a failed request whose record has come.
const EVENT_PATIENCE: Duration = Duration::from_secs(5);

/// Most blocks noted as changed between the failed request and the reading of objects.
const MAX_TOUCHED: usize = 1 << 20;

/// Memory of the GPUs, and the time of the question.
pub(super) type DriverReading = (TimeNs, Result<Sample, String>);

/// Labels of live blocks, and the consistency of their reading.
pub(super) type ObjectReading = Result<(BlockLabels, Consistency)>;

pub(super) enum Evidence {
    Driver(DriverReading),
    Objects(Box<ObjectReading>),
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
    frozen: Option<(FrozenFlight, TimeNs)>,
    driver: Option<DriverReading>,
    is_asking_driver: bool,
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
        driver: Option<DriverReading>,
    ) -> Self {
        Self {
            reason,
            tgid,
            name: DumpFolder::name(tgid, reason),
            begun: Instant::now(),
            counted_ooms,
            frozen: None,
            driver,
            is_asking_driver: true,
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

    /// True if the event of the failed request does not come.
    pub(super) fn is_overdue(&self) -> bool {
        !self.is_frozen() && self.begun.elapsed() >= EVENT_PATIENCE
    }

    /// Sets the contents of the dump, as of `time`.
    pub(super) fn freeze(&mut self, frozen: FrozenFlight, time: TimeNs) {
        self.last_event = time;
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

    pub(super) fn take(&mut self, evidence: Evidence) {
        match evidence {
            Evidence::Driver(reading) => {
                self.is_asking_driver = false;
                // A process that has ended holds nothing any more: the earlier answer says more.
                let tgid = self.tgid;
                let holds = |(_, sample): &DriverReading| {
                    let sample = sample.as_ref().ok();
                    sample.is_some_and(|sample| sample.held.contains_key(&tgid))
                };
                let had = self.driver.as_ref().is_some_and(holds);
                if holds(&reading) || !had {
                    self.driver = Some(reading);
                }
            }
            Evidence::Objects(reading) => self.objects = Objects::Arrived(reading),
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
        has_objects && !self.is_asking_driver || self.begun.elapsed() >= PATIENCE
    }

    /// Waits for no more evidence.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.is_asking_driver = false;
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
                Err(error) => Objects::Unread(format!("{error:#}")),
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
        let is_failure = |event: &Event| matches!(event, Event::Memory(event) if event.action == Action::OutOfMemory);
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
                let gpus = gpus.filter_map(|device| dumped_gpu(&target, *device, sample, *asked));
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

/// Memory of the GPU behind a device, as the driver tells it; `None` if either is unknown.
fn dumped_gpu(
    target: &Target,
    device: DeviceIndex,
    sample: &Sample,
    asked: TimeNs,
) -> Option<DumpedGpu> {
    let found = match (target.gpu(device), sample.devices.as_slice()) {
        (Some(gpu), devices) => {
            let index = gpu.index.filter(|_| gpu.mig.is_none())?;
            devices.iter().find(|found| found.index == index)?
        }
        // There is no other that it could be.
        (None, [only]) if only.hardware.mig_devices.is_empty() => only,
        (None, _) => return None,
    };
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
            })
            .collect(),
        others_unknown: match &found.processes {
            _ if !same => Some("the driver has other process ids".to_owned()),
            Ok(()) => None,
            Err(reason) => Some(reason.clone()),
        },
    })
}

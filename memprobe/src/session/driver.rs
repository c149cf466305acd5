//! Memory of a process's GPUs as the driver counts it: when to ask, and the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gpus::TimedSample;
use super::process_monitor::has_pids_of_the_driver;
use crate::cuda::nvml::{DeviceMemory, Sample};
use crate::event::{DeviceIndex, DriverCount, DriverReading, Event, Target, Tgid, TimeNs};

/// Shortest time between two questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time to the next question after one that the driver did not answer.
const LONG_INTERVAL: Duration = Duration::from_secs(60);

/// Asks the driver about one process, at most once a second and only after its memory changed.
#[derive(Default)]
pub(super) struct DriverReader {
    /// Devices seen.
    devices: Vec<DeviceIndex>,
    /// True if CUDA gave memory out or took it back since the last question.
    has_changed: bool,
    due: Option<Instant>,
    /// Time of the question that is not answered yet.
    asked: Option<TimeNs>,
    last: Option<Arc<DriverReading>>,
}

impl DriverReader {
    /// Notes an event that goes on.
    pub(super) fn note(&mut self, event: &Event) {
        let (device, is_change) = match event {
            Event::Memory(memory) => (memory.device, memory.totals.is_none()),
            Event::AtAttach(found) => (found.device, true),
            _ => return,
        };
        self.has_changed |= is_change;
        if let Some(device) = device.filter(|device| *device < DeviceIndex::CPU)
            && !self.devices.contains(&device)
        {
            self.devices.push(device);
            self.has_changed = true;
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_time = self.due.is_none_or(|due| due <= now);
        is_time && self.has_changed && !self.devices.is_empty()
    }

    /// True if there is a device to ask about. Records of its last changes may not be events yet.
    pub(super) fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Notes that the driver is asked.
    pub(super) fn ask(&mut self, now: Instant) {
        self.asked = Some(super::now());
        self.has_changed = false;
        self.due = Some(now + INTERVAL);
    }

    /// Takes an answer to a question that was asked for it. Returns a reading unless it is a failure that is known.
    pub(super) fn take(
        &mut self,
        tgid: Tgid,
        target: &Target,
        answer: &TimedSample,
    ) -> Option<Arc<DriverReading>> {
        let is_answer = |asked: &mut TimeNs| *asked <= answer.asked_ns;
        self.asked.take_if(is_answer)?;
        let (devices, unread) = match &answer.sample {
            Ok(sample) => self.memory(tgid, target, sample),
            Err(reason) => {
                self.due = self.due.map(|due| due + LONG_INTERVAL);
                (Vec::new(), Some(reason.as_str().into()))
            }
        };
        let reading = DriverReading {
            time: answer.answered_ns,
            asked: answer.asked_ns,
            tgid,
            devices,
            unread,
        };
        let is_failure = reading.devices.is_empty();
        let is_known = |last: &Arc<DriverReading>| is_failure && last.unread == reading.unread;
        if self.last.as_ref().is_some_and(is_known) {
            return None;
        }
        let reading = Arc::new(reading);
        self.last = Some(Arc::clone(&reading));
        Some(reading)
    }

    fn memory(
        &self,
        tgid: Tgid,
        target: &Target,
        sample: &Sample,
    ) -> (Vec<DriverCount>, Option<Arc<str>>) {
        let found = self.devices.iter();
        let found = found.filter_map(|device| memory_of(target, tgid, *device, sample));
        let mut found: Vec<DriverCount> = found.collect();
        found.sort_unstable_by_key(|memory| memory.device);
        let missing = "which GPU of the driver a device is, or its memory, is unknown";
        let unlisted = "the driver does not list this process";
        let unread = match found.iter().any(|memory| memory.process.is_none()) {
            _ if found.len() < self.devices.len() => Some(missing.into()),
            true => Some(unlisted.into()),
            false => None,
        };
        (found, unread)
    }
}

/// Returns the GPU behind a device; `None` if it is not known.
pub(crate) fn gpu_of<'a>(
    target: &Target,
    device: DeviceIndex,
    sample: &'a Sample,
) -> Option<&'a DeviceMemory> {
    match (target.gpu(device), sample.devices.as_slice()) {
        (Some(gpu), devices) => {
            let index = gpu.index.filter(|_| gpu.mig.is_none())?;
            devices.iter().find(|found| found.index == index)
        }
        // There is no other that it could be.
        (None, [only]) if only.hardware.mig_devices.is_empty() => Some(only),
        (None, _) => None,
    }
}

/// Returns the memory of the GPU behind a device; `None` if either is unknown.
pub(crate) fn memory_of(
    target: &Target,
    tgid: Tgid,
    device: DeviceIndex,
    sample: &Sample,
) -> Option<DriverCount> {
    let found = gpu_of(target, device, sample)?;
    let usage = found.memory.as_ref().ok()?;
    let held = sample.held.get(&tgid).filter(|_| has_pids_of_the_driver());
    let own = held.and_then(|held| held.iter().find(|(index, _)| *index == found.index));
    Some(DriverCount {
        device,
        total: usage.total,
        used: usage.used,
        process: own.and_then(|(_, bytes)| *bytes),
    })
}

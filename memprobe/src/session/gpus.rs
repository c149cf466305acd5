//! Physical GPUs of the watched processes: evidence from each process, joined with what NVML says.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::process_monitor::{HostPids, has_pids_of_the_driver};
use crate::cuda::identity::{CudaVariables, Evidence, VARIABLES, identify};
use crate::cuda::nvml::{Driver, Sample};
use crate::event::{DeviceIdentity, DeviceIndex, Event, Tgid, TimeNs};
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;
use crate::process::{environment, facts};
use crate::torch::device_properties::{self, DeviceProperties};

/// Time from one attempt to the next, which doubles: what is unknown by then hardly becomes known.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Time that the end of a process waits for the driver.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Report of the driver, and when it was asked.
pub(super) struct TimedSample {
    asked: Instant,
    /// Times of the question and of the answer.
    pub(super) asked_ns: TimeNs,
    pub(super) answered_ns: TimeNs,
    pub(super) sample: Result<Sample, String>,
}

/// Answer of the driver, and the number of questions that it is for.
type SharedSample = (TimedSample, usize);

/// Asks the driver on a thread of its own, since that takes milliseconds a device. The thread starts with the first
/// question.
#[derive(Default)]
pub(super) struct GpuSampler {
    thread: Option<(Sender<()>, Receiver<SharedSample>)>,
    /// Questions without an answer.
    questions: usize,
}

impl GpuSampler {
    pub(super) fn ask(&mut self) {
        let mut driver = None;
        let ask_driver = move || sample(&mut driver);
        let (question, _) = self.thread.get_or_insert_with(|| start(ask_driver));
        self.questions += usize::from(question.send(()).is_ok());
    }

    /// Returns the answer, if it comes in time.
    pub(super) fn answer(&mut self, patience: Duration) -> Option<TimedSample> {
        let (_, answers) = self.thread.as_ref().filter(|_| self.questions > 0)?;
        let (sample, answered) = answers.recv_timeout(patience).ok()?;
        self.questions = self.questions.saturating_sub(answered);
        Some(sample)
    }
}

/// Starts the thread. All questions that wait get one answer: many processes would otherwise ask faster than the driver
/// answers.
fn start(
    mut sample: impl FnMut() -> TimedSample + Send + 'static,
) -> (Sender<()>, Receiver<SharedSample>) {
    let (question, questions) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let run = move || {
        while questions.recv().is_ok() {
            let waiting = 1 + questions.try_iter().count();
            if answer.send((sample(), waiting)).is_err() {
                break;
            }
        }
    };
    // Without the thread nothing answers, and nothing is known.
    let _ = thread::Builder::new().name("gpus".to_owned()).spawn(run);
    (question, answers)
}

fn sample(driver: &mut Option<Driver>) -> TimedSample {
    let (asked, asked_ns) = (Instant::now(), super::now());
    let opened = driver.take().map_or_else(Driver::open, Ok);
    let sample = opened.and_then(|opened| driver.insert(opened).sample(&HostPids::default()));
    TimedSample {
        asked,
        asked_ns,
        answered_ns: super::now(),
        sample,
    }
}

/// Devices of one process, and the GPUs behind them.
#[derive(Default)]
pub(super) struct DeviceTracker {
    /// Ordinals seen, the last one first.
    seen: Vec<DeviceIndex>,
    /// Variables that the program was started with.
    start: Option<CudaVariables>,
    /// Variables at the first reading: later changes come after CUDA has read them.
    first: Option<CudaVariables>,
    /// Properties that PyTorch had asked for at the last reading, by ordinal. They do not change.
    properties: Vec<Option<DeviceProperties>>,
    /// Evidence that waits for the driver, and when it was read.
    evidence: Option<(Evidence, Instant)>,
    /// Time of the next attempt; `None` if nothing is left to find out.
    due: Option<Instant>,
    pause: Duration,
    pub(super) identities: Vec<DeviceIdentity>,
}

impl DeviceTracker {
    /// Reads what will be gone when the process ends.
    pub(super) fn begin(&mut self, tgid: Tgid) {
        self.start = self
            .start
            .take()
            .or_else(|| environment::at_start(tgid, VARIABLES));
    }

    /// Notes the device of an event.
    pub(super) fn note(&mut self, event: &Event) {
        let device = match event {
            Event::Memory(event) => event.device,
            Event::AtAttach(found) => found.device,
            _ => None,
        };
        let is_known =
            |device: &DeviceIndex| self.seen.first() == Some(device) || *device >= DeviceIndex::CPU;
        let Some(device) = device.filter(|device| !is_known(device)) else {
            return;
        };
        if let Some(at) = self.seen.iter().position(|seen| *seen == device) {
            self.seen.swap(0, at);
            return;
        }
        self.seen.insert(0, device);
        self.due = Some(Instant::now());
        self.pause = FIRST_PAUSE;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Reads the process; the driver is to be asked next.
    pub(super) fn look(&mut self, tgid: Tgid, now: Instant) {
        self.begin(tgid);
        let is_known = |device: &DeviceIndex| {
            let found = self.properties.get(usize::from(device.0));
            found.is_some_and(Option::is_some)
        };
        if !self.seen.iter().all(is_known) {
            self.properties = device_properties_of(tgid);
        }
        let mut evidence = evidence(tgid, self.start.clone(), &self.properties);
        self.first = self.first.take().or(evidence.now);
        evidence.now = self.first.clone();
        self.evidence = Some((evidence, Instant::now()));
        self.due = Some(now + self.pause);
        self.pause = LAST_PAUSE.min(2 * self.pause);
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.evidence.is_some()
    }

    /// Joins the evidence with the driver's answer. Returns true if more is known than before.
    pub(super) fn identify(&mut self, tgid: Tgid, sample: &TimedSample) -> bool {
        let is_later = |(_, read): &mut (_, Instant)| *read <= sample.asked;
        let Some((evidence, _)) = self.evidence.take_if(is_later) else {
            return false;
        };
        let new = joined(tgid, &self.seen, evidence, &sample.sample);
        if new.iter().all(DeviceIdentity::is_certain) {
            self.due = None;
        }
        let is_changed = new != self.identities;
        self.identities = new;
        is_changed
    }
}

/// Searches all variables of PyTorch's library.
fn device_properties_of(tgid: Tgid) -> Vec<Option<DeviceProperties>> {
    let maps = Maps::of(tgid).unwrap_or_default();
    device_properties::properties(&maps, &ProcessMemory::new(tgid))
}

/// Reads a process for what tells its devices. `start` are its first variables, if they are known already.
fn evidence(
    tgid: Tgid,
    start: Option<CudaVariables>,
    properties: &[Option<DeviceProperties>],
) -> Evidence {
    let memory = ProcessMemory::new(tgid);
    let maps = Maps::of(tgid).unwrap_or_default();
    Evidence {
        uuids: properties.iter().map(|it| it.map(|it| it.uuid)).collect(),
        memory: properties.iter().map(|it| it.map(|it| it.memory)).collect(),
        start: start.or_else(|| environment::at_start(tgid, VARIABLES)),
        now: environment::by_now(tgid, &maps, &memory, VARIABLES),
        nodes: facts::nvidia_nodes(tgid),
        held: Vec::new(),
    }
}

/// Identifies devices, by ordinal.
fn joined(
    tgid: Tgid,
    devices: &[DeviceIndex],
    mut evidence: Evidence,
    sample: &Result<Sample, String>,
) -> Vec<DeviceIdentity> {
    let is_listed = |sample: &&Sample| {
        let mut devices = sample.devices.iter();
        has_pids_of_the_driver() && devices.all(|device| device.processes.is_ok())
    };
    let held = sample.as_ref().ok().filter(is_listed);
    let held = held.and_then(|sample| sample.held.get(&tgid));
    evidence.held = held
        .into_iter()
        .flatten()
        .map(|(index, _)| *index)
        .collect();
    let known = sample.as_ref().map(|sample| sample.devices.as_slice());
    let known = known.map_err(String::as_str);
    let mut devices = devices.to_vec();
    devices.sort_unstable();
    let identities = devices
        .into_iter()
        .map(|device| identify(device, known, &evidence));
    identities.collect()
}

/// Identifies devices of a process at once. Blocks while the driver is asked.
pub(crate) fn identified(tgid: Tgid, devices: &[DeviceIndex]) -> Vec<DeviceIdentity> {
    let evidence = evidence(tgid, None, &device_properties_of(tgid));
    joined(tgid, devices, evidence, &sample(&mut None).sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvml::{DeviceMemory, Hardware};
    use crate::event::{AtAttach, Bytes, TimeNs, Totals};

    const DEVICE: DeviceIndex = DeviceIndex(0);

    fn seen(device: DeviceIndex) -> Event {
        Event::AtAttach(AtAttach {
            time: TimeNs(1),
            tgid: Tgid(1),
            device: Some(device),
            totals: Totals::default(),
            peak: Totals::default(),
            unread: None,
        })
    }

    fn variables(list: &str) -> Option<CudaVariables> {
        Some([Some(list.to_owned()), None])
    }

    /// Two equal GPUs, and no process lists.
    fn sample_of(asked: Instant) -> TimedSample {
        let device = |index: u32| DeviceMemory {
            index,
            name: "GPU".to_owned(),
            memory: Err("unknown".to_owned()),
            mig_devices: None,
            processes: Err("unknown".to_owned()),
            hardware: Hardware {
                pci_bus_id: Some(format!("00000000:0{index}:00.0")),
                ..Hardware::default()
            },
        };
        let devices = vec![device(0), device(1)];
        let sample = Sample {
            devices,
            ..Sample::default()
        };
        TimedSample {
            asked,
            asked_ns: TimeNs(0),
            answered_ns: TimeNs(0),
            sample: Ok(sample),
        }
    }

    /// A tracker whose process had one list when its program began, and another at the first reading.
    fn tracker(start: &str, first: &str) -> DeviceTracker {
        let mut tracker = DeviceTracker::default();
        tracker.note(&seen(DEVICE));
        tracker.start = variables(start);
        tracker.first = variables(first);
        tracker
    }

    fn index(tracker: &DeviceTracker) -> Option<u32> {
        tracker.identities.first()?.gpu.as_ref()?.index
    }

    #[test]
    fn questions_that_wait_for_a_slow_driver_share_an_answer() {
        let (begin, begun) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let slow = move || {
            let _ = (begin.send(()), gate.recv());
            sample_of(Instant::now())
        };
        let mut sampler = GpuSampler {
            thread: Some(start(slow)),
            questions: 0,
        };
        sampler.ask();
        begun.recv().expect("the first question is read");
        for _ in 0..50 {
            sampler.ask();
        }
        drop(open);
        let patience = Duration::from_secs(60);
        assert!(sampler.answer(patience).is_some());
        assert_eq!(sampler.questions, 50);
        assert!(sampler.answer(patience).is_some());
        assert_eq!(sampler.questions, 0);
        assert!(sampler.answer(patience).is_none(), "nothing was asked");
    }

    #[test]
    fn an_answer_from_before_the_reading_does_not_count() {
        let nobody = Tgid(u32::MAX);
        let before = Instant::now();
        let mut tracker = tracker("1", "1");
        assert!(tracker.is_due(Instant::now()));
        tracker.look(nobody, before);
        assert!(!tracker.identify(nobody, &sample_of(before - PATIENCE)));
        assert!(tracker.is_waiting());
        assert!(tracker.identify(nobody, &sample_of(Instant::now())));
        assert_eq!(index(&tracker), Some(1));
        // What is inferred is looked at again, and a device that is known is not new.
        assert!(!tracker.is_due(before) && tracker.is_due(before + PATIENCE));
        tracker.note(&seen(DEVICE));
        tracker.note(&seen(DeviceIndex::CPU));
        assert_eq!(tracker.seen, [DEVICE]);
    }

    #[test]
    fn uuids_are_searched_until_each_device_has_one() {
        let nobody = Tgid(u32::MAX);
        let mut tracker = tracker("0", "0");
        let known = DeviceProperties {
            uuid: [7; 16],
            memory: Bytes(1 << 30),
        };
        tracker.properties = vec![Some(known)];
        tracker.look(nobody, Instant::now());
        assert_eq!(tracker.properties, [Some(known)]);
        tracker.note(&seen(DeviceIndex(1)));
        tracker.look(nobody, Instant::now());
        assert!(
            tracker.properties.is_empty(),
            "searched again, in no process"
        );
    }

    #[test]
    fn the_first_reading_of_the_environment_counts() {
        let own = Tgid(std::process::id());
        let mut changed = tracker("1", "0");
        changed.look(own, Instant::now());
        assert!(changed.identify(own, &sample_of(Instant::now())));
        let unknown = changed.identities[0].unknown.as_deref();
        assert!(unknown.is_some_and(|reason| reason.contains("changed at run time")));
        // This process itself has no list: a second reading would find another.
        let mut unchanged = tracker("1", "1");
        unchanged.look(own, Instant::now());
        assert!(unchanged.identify(own, &sample_of(Instant::now())));
        assert_eq!(index(&unchanged), Some(1));
    }
}

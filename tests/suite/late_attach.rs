//! Attaching late: what was allocated before is there from the first moment, block by block.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memprobe_tests::events::Event;
use memprobe_tests::ground::Ground;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;
use tempfile::TempDir;

/// How often memprobe attaches to a busy process, over all Pythons.
const ATTACHED: usize = 20;

/// What PyTorch says of itself.
#[derive(Debug, Deserialize)]
struct Answer {
    monotonic_ns: u64,
    devices: Vec<Device>,
}

/// One device, and its live blocks by address.
#[derive(Debug, Deserialize)]
struct Device {
    device: u8,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    peak_reserved: u64,
    blocks: Vec<(u64, u64)>,
}

/// A process that holds memory and can be asked.
struct Holder {
    target: Background,
    folder: TempDir,
}

impl Holder {
    fn start(pytorch: &PyTorch, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.envs(settings.iter().copied()).arg("holdings.py");
        command.arg("--folder").arg(folder.path()).args(arguments);
        let mut target = Background::start(&mut command);
        target.wait_for("holding");
        Self { target, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What PyTorch says while the process stands still.
    fn ask(&self) -> Answer {
        std::fs::write(self.path("ask"), "").expect("written");
        wait_until("the answer", || (!self.path("ask").exists()).then_some(()));
        let answer = std::fs::read(self.path("answer")).expect("an answer");
        serde_json::from_slice(&answer).expect("the answer is JSON")
    }

    fn end(self) {
        std::fs::write(self.path("until"), "").expect("written");
        self.target.finish().succeeded();
    }
}

/// The live blocks by the events, held against the totals that every event carries.
#[derive(Default)]
struct Blocks {
    /// Bytes by device and address.
    live: BTreeMap<(u8, u64), u64>,
    /// How many there were at the beginning.
    held: usize,
}

impl Blocks {
    /// The blocks after the last event up to a moment.
    fn at(events: &[Event], monotonic_ns: u64) -> Result<Self, String> {
        let mut blocks = Self::default();
        let mut sums: BTreeMap<u8, u64> = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            if event.action != "held" && event.time_ns > monotonic_ns {
                break;
            }
            let (Some(device), Some(addr), Some(size)) = (event.device, event.addr, event.size)
            else {
                continue;
            };
            let sum = sums.entry(device).or_default();
            let place = (device, addr);
            let fits = match event.action.as_str() {
                "held" => {
                    blocks.held += 1;
                    *sum += size;
                    blocks.live.insert(place, size).is_none()
                }
                "alloc" => {
                    *sum += size;
                    blocks.live.insert(place, size).is_none()
                }
                "free" => {
                    *sum = sum.wrapping_sub(size);
                    blocks.live.remove(&place) == Some(size)
                }
                _ => continue,
            };
            if !fits {
                return Err(format!("event {at} contradicts those before: {event:?}"));
            }
            let whole = events.get(at + 1).is_none_or(|next| next.action != "held");
            if whole && event.allocated != Some(*sum) {
                return Err(format!(
                    "by the events {sum} are allocated at event {at}: {event:?}"
                ));
            }
        }
        Ok(blocks)
    }

    fn on(&self, device: u8) -> Vec<(u64, u64)> {
        let here = self.live.range((device, 0)..=(device, u64::MAX));
        here.map(|((_, addr), size)| (*addr, *size)).collect()
    }

    /// Compares with what PyTorch says.
    fn check(&self, answer: &Answer) {
        for device in &answer.devices {
            let ours = self.on(device.device);
            let sum: u64 = device.blocks.iter().map(|(_, size)| size).sum();
            assert_eq!(sum, device.allocated, "PyTorch agrees with itself");
            assert!(
                ours == device.blocks,
                "cuda:{}: {} blocks by memprobe, {} by PyTorch; of the others\n{:x?}\n{:x?}",
                device.device,
                ours.len(),
                device.blocks.len(),
                ours.iter()
                    .filter(|block| !device.blocks.contains(block))
                    .collect::<Vec<_>>(),
                device
                    .blocks
                    .iter()
                    .filter(|block| !ours.contains(block))
                    .collect::<Vec<_>>(),
            );
        }
    }
}

/// Records for a while, in the midst of which PyTorch is asked.
fn record(ground: &Ground, holder: &Holder, file: &Path, around: Duration) -> (Vec<Event>, Answer) {
    let recording = ground.record(holder.target.pid(), file, &[]);
    std::thread::sleep(around);
    let answer = holder.ask();
    std::thread::sleep(around);
    let printed = recording.interrupt();
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    assert!(
        !printed.stderr.contains("cannot be told"),
        "{}",
        printed.stderr
    );
    (ground.events(file), answer)
}

/// Attaches again and again to a process that moves memory in several threads.
fn attach_repeatedly(ground: &Ground, pytorch: &PyTorch, times: usize, settings: &[(&str, &str)]) {
    let holder = Holder::start(pytorch, &["--threads", "4"], settings);
    let (mut held, mut events) = (0, 0);
    for at in 0..times {
        let file = holder.path(&format!("{at}.json"));
        let around = Duration::from_millis(37 * (at as u64 % 5 + 1));
        let (recorded, answer) = record(ground, &holder, &file, around);
        let blocks = Blocks::at(&recorded, answer.monotonic_ns)
            .unwrap_or_else(|error| panic!("attached for the {at}. time: {error}"));
        blocks.check(&answer);
        let report = ground.report(&file);
        for device in report["devices"].as_array().expect("devices") {
            assert_eq!(device["unaccounted"], 0, "{device}");
            assert!(device["before_attach_blocks"].is_u64(), "{device}");
        }
        assert!(blocks.held >= 50, "only {} blocks were found", blocks.held);
        held += blocks.held;
        events += recorded.len();
    }
    println!(
        "holdings.py {settings:?}  attached {times} times  {held} blocks found  {events} events"
    );
    holder.end();
}

#[test]
fn attached_to_a_busy_process_memprobe_knows_every_block_that_was_there() {
    let Some(ground) = Ground::take() else { return };
    for pytorch in &ground.pytorches {
        let devices = if pytorch.has_devices(2) { "2" } else { "1" };
        let settings = [("CUDASIM_DEVICES", devices), ("CUDASIM_EVENT_US", "500")];
        let times = ATTACHED.div_ceil(ground.pytorches.len());
        attach_repeatedly(&ground, pytorch, times, &settings);
    }
}

#[test]
fn blocks_in_expandable_segments_are_known_too() {
    let Some(ground) = Ground::take() else { return };
    let settings = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    for pytorch in &ground.pytorches {
        let mut command = pytorch.command();
        let script = "import torch; torch.empty(1, device='cuda')";
        let accepted = command.envs(settings).args(["-c", script]).output();
        if accepted.expect("Python starts").status.success() {
            attach_repeatedly(&ground, pytorch, 3, &settings);
        } else {
            println!("skipped: this PyTorch has no expandable segments");
        }
    }
}

#[test]
fn of_a_process_that_does_nothing_all_is_known_at_once() {
    let Some(ground) = Ground::take() else { return };
    for pytorch in &ground.pytorches {
        let holder = Holder::start(pytorch, &["--threads", "0", "--blocks", "3000"], &[]);
        let file = holder.path("idle.json");
        let (events, answer) = record(&ground, &holder, &file, Duration::from_millis(50));
        let blocks = Blocks::at(&events, u64::MAX).expect("a ledger");
        assert_eq!(blocks.held, events.len(), "nothing happened");
        blocks.check(&answer);
        let report = ground.report(&file);
        let (ours, theirs) = (&report["devices"][0], &answer.devices[0]);
        for (name, truth) in [
            ("allocated", theirs.allocated),
            ("reserved", theirs.reserved),
            ("peak_allocated", theirs.peak_allocated),
            ("peak_reserved", theirs.peak_reserved),
            ("before_attach", theirs.allocated),
            ("before_attach_blocks", theirs.blocks.len() as u64),
            ("live_blocks", theirs.blocks.len() as u64),
            ("unaccounted", 0),
        ] {
            assert_eq!(ours[name], truth, "{name}");
        }
        holder.end();
    }
}

#[test]
fn another_allocator_than_the_native_one_is_named() {
    let Some(ground) = Ground::take() else { return };
    let settings = [("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")];
    let mut command = ground.pytorch().command();
    let script = "import time, torch; x = torch.empty(1000, device='cuda'); print('ready', flush=True); time.sleep(600)";
    command.envs(settings).args(["-c", script]);
    let mut target = Background::start(&mut command);
    target.wait_for("ready");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("async.json");
    let recording = ground.record(target.pid(), &file, &[]);
    let mut recording = recording;
    recording.memprobe.wait_for("cannot be told block by block");
    let printed = recording.interrupt();
    assert!(
        printed.stderr.contains("cudaMallocAsync"),
        "{}",
        printed.stderr
    );
}

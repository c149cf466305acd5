//! Target that already holds memory at attach and reports its blocks on request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::environment::TestEnvironment;
use crate::events::Event;
use crate::memprobe::lost;
use crate::process::{Background, wait_until};
use crate::pytorch::PyTorch;

/// PyTorch's own account.
#[derive(Debug, Deserialize)]
pub struct Answer {
    monotonic_ns: u64,
    pub devices: Vec<Device>,
}

/// One device, and its live blocks by address.
#[derive(Debug, Deserialize)]
pub struct Device {
    device: u8,
    /// `memory_allocated()`.
    pub allocated: u64,
    /// `memory_reserved()`.
    pub reserved: u64,
    /// `max_memory_allocated()`.
    pub peak_allocated: u64,
    /// `max_memory_reserved()`.
    pub peak_reserved: u64,
    /// Address and bytes of each live block.
    pub blocks: Vec<(u64, u64)>,
}

/// A process that holds memory and answers requests.
pub struct QueryableTarget {
    pub target: Background,
    folder: TempDir,
}

impl QueryableTarget {
    /// Starts the process; returns once it holds memory.
    pub fn start(pytorch: &PyTorch, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.envs(settings.iter().copied()).arg("holdings.py");
        command.arg("--folder").arg(folder.path()).args(arguments);
        let mut target = Background::start(&mut command);
        target.wait_for("holding");
        Self { target, folder }
    }

    /// Returns the path of a file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Requests PyTorch's account, made while the process stands still.
    ///
    /// # Panics
    ///
    /// If the process does not answer.
    pub fn ask(&self) -> Answer {
        std::fs::write(self.path("ask"), "").expect("written");
        wait_until("the answer", || (!self.path("ask").exists()).then_some(()));
        let answer = std::fs::read(self.path("answer")).expect("an answer");
        serde_json::from_slice(&answer).expect("the answer is JSON")
    }

    /// Ends the process.
    pub fn end(self) {
        std::fs::write(self.path("until"), "").expect("written");
        self.target.finish().succeeded();
    }
}

/// Live blocks according to the events, checked against the totals in every event.
#[derive(Default)]
pub struct Blocks {
    /// Bytes by device and address.
    live: BTreeMap<(u8, u64), u64>,
    /// Number of blocks at the beginning.
    pub held: usize,
}

impl Blocks {
    /// Returns the blocks after the last event up to `monotonic_ns`.
    ///
    /// # Errors
    ///
    /// The first event that contradicts earlier ones, or whose totals do.
    pub fn at(events: &[Event], monotonic_ns: u64) -> Result<Self, String> {
        let mut blocks = Self::default();
        let mut sums: BTreeMap<u8, u64> = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            if event.action != "live_at_attach" && event.time_ns > monotonic_ns {
                break;
            }
            let (Some(device), Some(addr), Some(size)) = (event.device, event.addr, event.size)
            else {
                continue;
            };
            let sum = sums.entry(device).or_default();
            let place = (device, addr);
            let fits = match event.action.as_str() {
                "live_at_attach" => {
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
            let whole = events
                .get(at + 1)
                .is_none_or(|next| next.action != "live_at_attach");
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

    /// Compares the blocks with PyTorch's.
    ///
    /// # Errors
    ///
    /// The blocks that differ.
    ///
    /// # Panics
    ///
    /// If PyTorch's account is inconsistent.
    pub fn check(&self, answer: &Answer) -> Result<(), String> {
        for device in &answer.devices {
            let ours = self.on(device.device);
            let sum: u64 = device.blocks.iter().map(|(_, size)| size).sum();
            assert_eq!(sum, device.allocated, "PyTorch agrees with itself");
            if ours != device.blocks {
                let missing_from = |blocks: &[(u64, u64)], others: &[(u64, u64)]| {
                    let strange = blocks.iter().filter(|block| !others.contains(block));
                    format!("{:x?}", strange.collect::<Vec<_>>())
                };
                return Err(format!(
                    "cuda:{}: {} blocks by memprobe, {} by PyTorch; of the others\n{}\n{}",
                    device.device,
                    ours.len(),
                    device.blocks.len(),
                    missing_from(&ours, &device.blocks),
                    missing_from(&device.blocks, &ours),
                ));
            }
        }
        Ok(())
    }
}

/// Records for twice `around`, with PyTorch's account requested in the middle.
///
/// # Errors
///
/// memprobe's error, if it refuses this PyTorch or Python, or does not know the blocks.
///
/// # Panics
///
/// If memprobe loses records.
pub fn record(
    environment: &TestEnvironment,
    target: &QueryableTarget,
    file: &Path,
    around: Duration,
) -> Result<(Vec<Event>, Answer), String> {
    let recording = environment.try_to_record(target.target.pid(), file)?;
    std::thread::sleep(around);
    let answer = target.ask();
    std::thread::sleep(around);
    let printed = recording.interrupt();
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    if printed.stderr.contains("cannot be told") {
        return Err(printed.stderr);
    }
    Ok((environment.events(file), answer))
}

/// Attaches `times` times to a process that allocates in several threads. Returns the number of
/// blocks found at attach, and of events after it.
///
/// # Errors
///
/// Like [`record`], or the first difference from PyTorch.
pub fn attach_repeatedly(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    times: usize,
    settings: &[(&str, &str)],
) -> Result<(usize, usize), String> {
    let target = QueryableTarget::start(pytorch, &["--threads", "4"], settings);
    let (mut held, mut events) = (0, 0);
    for at in 0..times {
        let file = target.path(&format!("{at}.json"));
        let around = Duration::from_millis(37 * (at as u64 % 5 + 1));
        let (recorded, answer) = record(environment, &target, &file, around)?;
        let blocks = Blocks::at(&recorded, answer.monotonic_ns)
            .and_then(|blocks| blocks.check(&answer).map(|()| blocks))
            .and_then(|blocks| check_report(&environment.report(&file)).map(|()| blocks))
            .map_err(|error| format!("attached for the {at}. time: {error}"))?;
        if blocks.held < 50 {
            return Err(format!("only {} blocks were found", blocks.held));
        }
        held += blocks.held;
        events += recorded.len();
    }
    println!(
        "holdings.py {settings:?}  attached {times} times  {held} blocks found  {events} events"
    );
    target.end();
    Ok((held, events))
}

fn check_report(report: &Value) -> Result<(), String> {
    let mut devices = report["devices"].as_array().into_iter().flatten();
    let is_unknown =
        |device: &&Value| device["unaccounted"] != 0 || !device["before_attach_blocks"].is_u64();
    match devices.find(is_unknown) {
        Some(device) => Err(format!("a report with what is not known: {device}")),
        None => Ok(()),
    }
}

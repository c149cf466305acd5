//! Recordings of parts of a running training loop, compared with PyTorch's history of the whole
//! run.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::agreement::{Agreement, history, is_same};
use crate::environment::TestEnvironment;
use crate::events::Event;
use crate::gated_workload::GatedWorkload;
use crate::ledger::Ledger;
use crate::memprobe::lost;
use crate::pytorch::PyTorch;
use crate::reference::{Reference, TraceEvent};

/// Granularity of block sizes, in bytes (`kMinBlockSize` of c10/core/AllocatorConfig.h). The
/// allocator does not split off small remainders; those of this loop's weights and optimizer state
/// are large enough to split.
const ROUNDING: u64 = 512;

/// Largest remainder of a block that the allocator does not split off: none up to `LARGE` bytes, and
/// up to `LARGE` bytes beyond (`should_split` and `kSmallSize` of
/// c10/cuda/CUDACachingAllocator.cpp@v2.15.0).
const LARGE: u64 = 1 << 20;

/// Seed of [`Moments`].
const SEED: u64 = 0x6d65_6d70_726f_6265;

/// One training loop, and memprobe's recordings of parts of it.
pub struct PartialRecordings {
    /// PyTorch's history of the whole run.
    pub reference: Reference,
    recordings: Vec<PartialRecording>,
    clocks: Clocks,
    /// Rounded bytes by address and requested bytes; see [`block_sizes`].
    sizes: HashMap<(u64, u64), u64>,
}

/// Contents of one recording.
struct PartialRecording {
    /// Events after attach.
    events: Vec<Event>,
    /// Bytes of the blocks found at attach, by address.
    held: HashMap<u64, u64>,
    report: Value,
}

/// Numbers of compared items.
#[derive(Debug, Default)]
pub struct Compared {
    pub events: usize,
    /// Python stacks, compared frame by frame.
    pub stacks: usize,
    /// Events on autograd's threads.
    pub backward: usize,
    /// Points at which the totals were compared.
    pub checkpoints: usize,
}

impl PartialRecordings {
    /// Runs one training loop and records it `times` times, at random moments.
    ///
    /// # Errors
    ///
    /// memprobe's error, if it refuses this PyTorch or Python.
    ///
    /// # Panics
    ///
    /// If memprobe loses records, or a process ends unexpectedly.
    pub fn take(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        times: usize,
    ) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let until = folder.path().join("until");
        let workload = [
            "steady.py",
            "--until",
            until.to_str().expect("UTF-8"),
            "--seconds",
            "600",
            "--layers",
            "2",
            "--pause",
            "0.05",
        ];
        let mut workload_run = GatedWorkload::prepare(pytorch, &workload, &[]);
        workload_run.go();
        workload_run.target.wait_for("PID ");
        let mut moments = Moments(SEED);
        let mut recordings = Vec::new();
        for at in 0..times {
            std::thread::sleep(moments.next(Duration::from_millis(100)));
            let file = folder.path().join(format!("{at}.json"));
            let recording = environment.try_to_record(workload_run.target.pid(), &file)?;
            std::thread::sleep(
                Duration::from_millis(300) + moments.next(Duration::from_millis(200)),
            );
            let printed = recording.interrupt();
            assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
            recordings.push(PartialRecording::new(
                environment.events(&file),
                environment.report(&file),
            ));
        }
        std::fs::write(until, "").expect("written");
        let reference = workload_run.finish();
        let clocks = Clocks::now();
        Ok(Self {
            sizes: block_sizes(&reference, &recordings, &clocks),
            reference,
            recordings,
            clocks,
        })
    }

    /// Compares each recording with its part of the history: the blocks at attach, and every later
    /// event.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn compare(&self) -> Result<Compared, String> {
        let mut compared = Compared::default();
        for (at, recording) in self.recordings.iter().enumerate() {
            self.compare_one(recording, &mut compared)
                .map_err(|difference| format!("attached for the {at}. time: {difference}"))?;
        }
        Ok(compared)
    }

    fn compare_one(
        &self,
        recording: &PartialRecording,
        compared: &mut Compared,
    ) -> Result<(), String> {
        let events = &recording.events;
        let history = history(&self.reference.devices[0]);
        let start =
            place(&history, events, &self.clocks).ok_or("events are missing or in excess")?;
        // A thread already inside backward() at attach is not known to wait. Its next event with a
        // stack identifies it.
        let known = events.iter().position(|event| !event.stack.is_empty());
        let known = known.ok_or("nothing was allocated")?;
        let mut agreement = Agreement::on(&self.reference.torch);
        let theirs = &history[start + known..start + events.len()];
        agreement.compare(theirs, &events[known..].iter().collect::<Vec<_>>());
        if let Some(difference) = agreement.differences.first() {
            return Err(difference.clone());
        }
        let ledger = Ledger::of(events)?;
        check_sizes(&self.sizes)?;
        check_before(&history[..start], events, &ledger, recording, &self.sizes)?;
        let (first, last) = (events[0].time_ns, events[events.len() - 1].time_ns);
        let within = self.reference.checkpoints.iter().filter(|checkpoint| {
            checkpoint.device == 0 && (first..=last).contains(&checkpoint.monotonic_ns)
        });
        for checkpoint in within {
            ledger.check(checkpoint)?;
            compared.checkpoints += 1;
        }
        compared.events += events.len();
        compared.stacks += agreement.stacks;
        compared.backward += agreement.backward;
        Ok(())
    }
}

impl PartialRecording {
    fn new(mut events: Vec<Event>, report: Value) -> Self {
        events.retain(Event::is_of_the_allocator);
        let (held, events): (Vec<_>, Vec<_>) = events
            .into_iter()
            .partition(|event| event.action == "live_at_attach");
        let held = held
            .iter()
            .filter_map(|held| Some((held.addr?, held.size?)));
        Self {
            held: held.collect(),
            events,
            report,
        }
    }
}

/// Checks the rounded bytes of every block against the allocator's own rule: those of the blocks
/// that did not live to the end come from memprobe.
fn check_sizes(sizes: &HashMap<(u64, u64), u64>) -> Result<(), String> {
    for ((addr, requested), size) in sizes {
        let rounded = requested.next_multiple_of(ROUNDING).max(ROUNDING);
        let most = rounded + if rounded > LARGE { LARGE } else { 0 };
        if !(rounded..=most).contains(size) {
            return Err(format!(
                "the block of {requested} bytes at {addr:#x} cannot have {size} bytes"
            ));
        }
    }
    Ok(())
}

/// Compares the blocks found at attach, and those of them left at the end, with PyTorch's history.
fn check_before(
    before: &[&TraceEvent],
    events: &[Event],
    ledger: &Ledger,
    recording: &PartialRecording,
    sizes: &HashMap<(u64, u64), u64>,
) -> Result<(), String> {
    let mut live = HashMap::new();
    for event in before {
        match event.action.as_str() {
            "alloc" => drop(live.insert(event.addr, event.size)),
            "free_requested" => drop(live.remove(&event.addr)),
            _ => {}
        }
    }
    let size = |(addr, requested): (&u64, &u64)| {
        let seen = sizes.get(&(*addr, *requested));
        seen.copied()
            .unwrap_or_else(|| requested.next_multiple_of(ROUNDING))
    };
    let found: HashMap<u64, u64> = live.iter().map(|block| (*block.0, size(block))).collect();
    if recording.held != found {
        return Err(format!(
            "blocks at attach: {} by PyTorch's history, {} by memprobe",
            found.len(),
            recording.held.len()
        ));
    }
    let at_attach: u64 = live.iter().map(size).sum();
    let said = ledger.before[&0].allocated;
    if said != at_attach {
        return Err(format!(
            "before attach: {at_attach} by PyTorch's history, {said} by memprobe"
        ));
    }
    let mut freed = HashSet::new();
    let mut allocated = HashSet::new();
    for event in events {
        match (event.action.as_str(), event.addr) {
            ("alloc", Some(addr)) => drop(allocated.insert(addr)),
            ("free", Some(addr)) if !allocated.remove(&addr) => drop(freed.insert(addr)),
            _ => {}
        }
    }
    let left: u64 = live
        .iter()
        .filter(|(addr, _)| !freed.contains(*addr))
        .map(size)
        .sum();
    let row = recording.report["devices"][0]["before_attach"].as_u64();
    if row != Some(left) {
        return Err(format!(
            "the row \"before attach\": {left} by PyTorch's history, {row:?} by memprobe"
        ));
    }
    let unaccounted = &recording.report["devices"][0]["unaccounted"];
    if unaccounted != 0 {
        return Err(format!("{unaccounted} bytes are unaccounted for"));
    }
    Ok(())
}

/// Finds the position of these events in a history: all must match, and the nearest time wins.
fn place(history: &[&TraceEvent], events: &[Event], clocks: &Clocks) -> Option<usize> {
    let first_us = clocks.wall_us(events.first()?.time_ns);
    let last = history.len().checked_sub(events.len())?;
    (0..=last)
        .filter(|&start| {
            let theirs = &history[start..start + events.len()];
            theirs
                .iter()
                .zip(events)
                .all(|(theirs, ours)| is_same(theirs, ours))
        })
        .min_by_key(|&start| i128::from(history[start].time_us).abs_diff(first_us))
}

/// Returns the rounded bytes of blocks, by address and requested bytes. PyTorch lists the blocks
/// that are live at the end. The other sizes are memprobe's, and every checkpoint of PyTorch
/// confirms their sum.
fn block_sizes(
    reference: &Reference,
    recordings: &[PartialRecording],
    clocks: &Clocks,
) -> HashMap<(u64, u64), u64> {
    let mut sizes = HashMap::new();
    let history = history(&reference.devices[0]);
    for recording in recordings {
        let Some(start) = place(&history, &recording.events, clocks) else {
            continue;
        };
        for (theirs, ours) in history[start..].iter().zip(&recording.events) {
            if let Some(size) = ours.size {
                sizes.insert((theirs.addr, theirs.size), size);
            }
        }
    }
    for block in &reference.r#final[0].live {
        sizes.insert((block.addr, block.requested), block.size);
    }
    sizes
}

/// Readings of both clocks at one moment.
struct Clocks {
    wall_us: i128,
    monotonic_us: i128,
}

impl Clocks {
    fn now() -> Self {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        Self {
            wall_us: i128::try_from(wall.as_micros()).expect("this millennium"),
            monotonic_us: i128::from(monotonic.tv_sec) * 1_000_000
                + i128::from(monotonic.tv_nsec) / 1_000,
        }
    }

    fn wall_us(&self, monotonic_ns: u64) -> i128 {
        i128::from(monotonic_ns / 1_000) - self.monotonic_us + self.wall_us
    }
}

/// Random numbers that repeat in every run (xorshift64).
struct Moments(u64);

impl Moments {
    fn next(&mut self, most: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        most.mul_f64((self.0 >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

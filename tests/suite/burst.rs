//! Eight ranks of real PyTorch that do little but allocate, all at once.

use std::path::{Path, PathBuf};

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use serde::Deserialize;
use serde_json::Value;

const RANKS: usize = 8;

/// Keys of the report: recorded and lost events.
const EVENTS: &str = "events";
const LOST: &str = "lost_events";

/// Calls of each rank that choose a device or a context. Memprobe counts them as events only where they are lost: one
/// `cudaSetDevice` and two `cuCtxSetCurrent` (PyTorch 2.15.0).
const DEVICE_CALLS: u64 = 3;

/// A rank's own account of its run (`workloads/rush.py`).
#[derive(Debug, Deserialize)]
struct Ledger {
    pid: u32,
    /// Start and end, in seconds of the monotonic clock.
    begun: f64,
    ended: f64,
    events: u64,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    peak_reserved: u64,
}

/// A recorded run of all ranks.
struct RankRun {
    ledgers: Vec<Ledger>,
    report: Value,
    /// Records that memprobe reports as lost, over all ranks.
    lost: u64,
}

impl RankRun {
    /// Records ranks started by memprobe, each with about `events` events at full speed.
    fn record(environment: &TestEnvironment, events: u32, buffer_size: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run/");
        let mut command = environment.memprobe();
        command.args(["record", "--buffer-size", buffer_size, "-o"]);
        command
            .arg(&run)
            .arg("--")
            .arg(environment.pytorch().python());
        command.args(["rush.py", "--ranks", &RANKS.to_string()]);
        command.args(["--events", &events.to_string(), "--folder"]);
        command.arg(folder.path());
        environment.pytorch().settle(&mut command);
        command.env("CUDASIM_DEVICES", RANKS.to_string());
        let printed = Background::start(&mut command).finish().succeeded();
        Self {
            ledgers: (0..RANKS).map(|rank| ledger(folder.path(), rank)).collect(),
            report: environment.report(&run),
            lost: lost(&printed.stderr),
        }
    }

    /// Returns the events per second of all ranks, from the first start to the last end.
    fn rate(&self) -> f64 {
        let ledgers = || self.ledgers.iter();
        let begun = ledgers()
            .map(|ledger| ledger.begun)
            .fold(f64::MAX, f64::min);
        let ended = ledgers()
            .map(|ledger| ledger.ended)
            .fold(f64::MIN, f64::max);
        self.events() as f64 / (ended - begun)
    }

    fn events(&self) -> u64 {
        self.ledgers.iter().map(|ledger| ledger.events).sum()
    }

    /// Returns each rank with its recording.
    fn recordings(&self) -> impl Iterator<Item = (&Ledger, &Value)> {
        let recordings = self.report["recordings"].as_array().expect("recordings");
        assert_eq!(recordings.len(), RANKS, "recordings");
        self.ledgers.iter().map(move |ledger| {
            let of_it = |recording: &&Value| recording["pid"] == ledger.pid;
            let recording = recordings.iter().find(of_it);
            (ledger, recording.expect("each rank is recorded"))
        })
    }
}

fn ledger(folder: &Path, rank: usize) -> Ledger {
    let path: PathBuf = folder.join(format!("{rank}.json"));
    let text = std::fs::read(path).expect("each rank writes down what it holds");
    serde_json::from_slice(&text).expect("a ledger")
}

/// Asserts that a recording ends with the allocator's own totals.
fn assert_totals(ledger: &Ledger, recording: &Value) {
    let [device] = recording["devices"].as_array().expect("devices").as_slice() else {
        panic!("each rank uses one device: {recording}");
    };
    assert_eq!(
        device["allocated"], ledger.allocated,
        "{ledger:?}: {recording}"
    );
    assert_eq!(
        device["reserved"], ledger.reserved,
        "{ledger:?}: {recording}"
    );
    let bytes = |row: &Value, name: &str| row[name].as_i64().expect("bytes");
    let lines = device["lines"].as_array().expect("lines");
    let live: i64 = lines.iter().map(|line| bytes(line, "live")).sum();
    let rows = live + bytes(device, "before_attach") + bytes(device, "unaccounted");
    assert_eq!(
        u64::try_from(rows),
        Ok(ledger.allocated),
        "the rows add up: {recording}"
    );
}

#[test]
fn eight_ranks_that_hardly_do_more_than_allocate_are_exact() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    // Large enough for all records, however slowly memprobe reads on this machine.
    let run = RankRun::record(&environment, 50_000, "256MiB");
    assert_eq!(run.lost, 0);
    for (ledger, recording) in run.recordings() {
        // The context that its first call makes is an event too.
        assert_eq!(
            recording[EVENTS],
            ledger.events + 1,
            "{ledger:?}: {recording}"
        );
        assert_eq!(recording["disagreements"], 0, "{ledger:?}: {recording}");
        assert_totals(ledger, recording);
        let device = &recording["devices"][0];
        for (name, truth) in [
            ("before_attach", 0),
            ("unaccounted", 0),
            ("peak_allocated", ledger.peak_allocated),
            ("peak_reserved", ledger.peak_reserved),
        ] {
            assert_eq!(device[name], truth, "{name} of {ledger:?}: {recording}");
        }
    }
    println!(
        "{} events of {RANKS} ranks at {:.0} a second, none lost",
        run.events(),
        run.rate()
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn each_rank_reports_its_own_losses_and_its_totals_are_right() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let run = RankRun::record(&environment, 10_000, "32KiB");
    let mut lost = 0;
    for (ledger, recording) in run.recordings() {
        let number = |name: &str| recording[name].as_u64().expect("a number");
        let most = ledger.events + number(LOST).min(DEVICE_CALLS);
        assert!(
            (ledger.events..=most).contains(&(number(EVENTS) + number(LOST))),
            "seen and lost together are all that happened: {ledger:?}: {recording}"
        );
        lost += number(LOST);
        assert_totals(ledger, recording);
    }
    assert!(lost > 0, "32 KiB were enough; the load is too small");
    assert!(run.lost >= lost, "{lost} events of {} records", run.lost);
    println!(
        "{lost} of {} events of {RANKS} ranks were lost",
        run.events()
    );
}

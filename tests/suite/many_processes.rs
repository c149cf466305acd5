//! Many processes that start, allocate, fork and exit while `memprobe top` runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use memprobe_tests::bpf::{self, PROCESS_BYTES};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, is_soon, wait_until};
use memprobe_tests::programs::Family;
use memprobe_tests::terminal::Terminal;

/// Warm-up rounds. After these, memprobe has about all the memory one round needs, and has probed
/// the shared libraries. Probes stay for the next process that uses the libraries.
const WARM_UP: usize = 3;

/// Most rounds after the warm-up.
const MAX_ROUNDS: usize = 24;

/// Rounds over which memory must stand still once.
const STEADY: usize = 4;

/// Processes per round, half as many at a time. Each forks another one.
const PROCESSES_PER_ROUND: &str = "100";

/// Tolerated growth of memory over [`STEADY`] rounds, in KiB: 5 for each process that ended. The heap keeps
/// what the busiest moment took, so it grows for some rounds: steps of 30 MiB were seen on a busy machine.
/// A leak never stands still.
const MAX_GROWTH_KIB: u64 = 4 << 10;

#[test]
#[ignore = "long: cargo xtask test --all"]
fn many_processes_that_come_and_go_leave_nothing_in_top() {
    let Some(environment) = TestEnvironment::alone_without_pytorch() else {
        return;
    };
    let mut top = environment.memprobe();
    let mut screen =
        Terminal::start(top.args(["top", "--keep-ended", "1s", "--max-overhead", "off"]));
    screen.wait_for("memprobe top");
    let memprobe = screen.pid();
    let family = Family::build();
    let entries = Holdings::of(memprobe).entries;
    let mut after: Vec<Holdings> = Vec::new();
    let mut is_steady = false;
    while !is_steady && after.len() < WARM_UP + MAX_ROUNDS {
        let processes = come_and_go(&family);
        assert_eq!(processes, 200, "the processes themselves went wrong");
        after.push(settled(memprobe, entries, after.get(WARM_UP - 1)));
        is_steady = grown(&after[WARM_UP.min(after.len())..])
            .is_some_and(|growth| growth <= MAX_GROWTH_KIB);
    }
    let memory: Vec<u64> = after.iter().map(|holdings| holdings.memory_kib).collect();
    println!("KiB of memory after each round: {memory:?}");
    assert!(is_steady, "its memory grows: {memory:?}");
    assert!(screen.text().contains("lost 0"), "{}", screen.text());
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

/// Waits until memprobe holds nothing more than after the warm-up.
fn settled(memprobe: u32, entries: usize, warm: Option<&Holdings>) -> Holdings {
    let mut latest = None;
    let settled = is_soon(|| {
        let now = Holdings::of(memprobe);
        let same = warm.is_none_or(|warm| now.is_like(warm));
        let is_settled = same && now.entries <= entries;
        latest = Some(now);
        is_settled
    });
    let latest = latest.expect("asked once");
    assert!(
        settled,
        "memprobe keeps what belongs to ended processes: {latest:?}, after the warm-up {warm:?}"
    );
    latest
}

/// Returns the growth of memory over the last [`STEADY`] rounds in KiB.
fn grown(rounds: &[Holdings]) -> Option<u64> {
    let [earlier, .., last] = rounds.last_chunk::<{ STEADY + 1 }>()?;
    Some(last.memory_kib.saturating_sub(earlier.memory_kib))
}

/// Runs one round from its first process to its last; returns the number of processes.
fn come_and_go(family: &Family) -> usize {
    family.forget();
    let root = Background::start(&mut family.command(&["churn", PROCESSES_PER_ROUND, "50", "300"]));
    wait_until("the end of the processes", || {
        family.path("ledgers/over").exists().then_some(())
    });
    let processes = family.ledgers().len();
    fs::write(family.path("ledgers/leave"), "").expect("written");
    root.finish().succeeded();
    processes
}

/// Resources of a memprobe process.
#[derive(Debug)]
struct Holdings {
    /// BPF programs, maps and links.
    in_kernel: BTreeSet<bpf::Held>,
    /// Open files.
    files: usize,
    /// Processes in the kernel map.
    entries: usize,
    /// Resident memory of its own, without the pages of the ring buffer that it has read.
    memory_kib: u64,
}

impl Holdings {
    fn of(memprobe: u32) -> Self {
        let process = Path::new("/proc").join(memprobe.to_string());
        let status = fs::read_to_string(process.join("status")).expect("it runs");
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = memory.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
        Self {
            in_kernel: bpf::held_by(memprobe),
            files: fs::read_dir(process.join("fd")).expect("it runs").count(),
            entries: bpf::entries(memprobe, |bytes| bytes == PROCESS_BYTES),
            memory_kib: memory.expect("a number of KiB"),
        }
    }

    /// True if nothing was added, memory aside.
    fn is_like(&self, earlier: &Self) -> bool {
        self.in_kernel == earlier.in_kernel && self.files <= earlier.files
    }
}

#[test]
fn final_memory_of_many_processes_adds_up_in_top() {
    let Some(environment) = TestEnvironment::alone_without_pytorch() else {
        return;
    };
    let family = Family::build();
    let mut top = environment.memprobe();
    let mut screen =
        Terminal::start(top.args(["top", "--keep-ended", "10m", "--max-overhead", "off"]));
    screen.wait_for("memprobe top");
    let processes = Background::start(&mut family.command(&["ranks", "50", "2001", "2000"]));
    processes.finish().succeeded();
    let ledgers = family.ledgers();
    assert_eq!(ledgers.len(), 50);
    let allocated: u64 = ledgers.iter().map(|ledger| ledger.allocated).sum();
    let reserved: u64 = ledgers.iter().map(|ledger| ledger.reserved).sum();
    let line = format!(
        ": allocated {}, reserved {} ",
        mib(allocated),
        mib(reserved)
    );
    let shown = screen.wait_for(&line);
    assert!(
        shown.contains("program without Python") && !shown.contains("unknown Python"),
        "{shown}"
    );
    assert!(screen.text().contains("lost 0"), "{}", screen.text());
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

/// Formats bytes in MiB as the screen does, with three digits.
fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    let digits = if mib < 10.0 {
        2
    } else {
        usize::from(mib < 100.0)
    };
    format!("{mib:.digits$} MiB")
}

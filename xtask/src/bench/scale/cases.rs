//! Large programs, and the memprobe that each is measured with.

use std::time::Duration;

/// A workload, and a memprobe beside it.
pub(super) struct Case {
    pub name: &'static str,
    /// Program in `tests/workloads` and its arguments. It prints `READY`, and runs on.
    pub workload: &'static [&'static str],
    /// Number of processes that run the workload; the first one is measured.
    pub processes: u32,
    /// Time in which the speed of the workload alone is measured before each run.
    pub alone: Duration,
    pub memprobe: Invocation,
}

/// Arguments of memprobe, without process and output.
pub(super) enum Invocation {
    /// Reads the process, and writes a file.
    File(&'static [&'static str]),
    /// Fails on the process with a message that contains this text.
    Refusal(&'static [&'static str], &'static str),
    /// Shows a live screen of the process for this time.
    Screen(&'static [&'static str], Duration),
    /// Watches the whole machine, and prints.
    Machine(&'static [&'static str]),
    /// Reads a recording of so many events, in a file with this ending. Only the recording has a workload.
    Recording(&'static [&'static str], u64, &'static str),
}

const IDLE: Case = Case {
    name: "",
    workload: &[],
    processes: 1,
    alone: Duration::ZERO,
    memprobe: Invocation::File(&["snapshot"]),
};

pub(super) const CASES: [Case; 14] = [
    Case {
        name: "2,000 Linears nested 100 deep: record -d 5s",
        workload: &["deep_modules.py"],
        alone: Duration::from_secs(3),
        memprobe: Invocation::File(&["record", "--duration", "5s"]),
        ..IDLE
    },
    Case {
        name: "1,000,000 tensors: record --names -d 3s",
        workload: &["many_blocks.py", "--tensors", "1000000", "--pause", "0.001"],
        memprobe: Invocation::File(&["record", "--names", "--duration", "3s"]),
        ..IDLE
    },
    Case {
        name: "a leak of thousands of blocks a second: attach --detail full for 60 s",
        workload: &[
            "many_blocks.py",
            "--tensors",
            "0",
            "--each",
            "10",
            "--pause",
            "0.001",
            "--leak",
        ],
        alone: Duration::from_secs(3),
        memprobe: Invocation::Screen(&["attach", "--detail", "full"], Duration::from_secs(60)),
        ..IDLE
    },
    Case {
        name: "2,000 modules at rest: snapshot",
        workload: &["many_objects.py", "--objects", "0", "--then", "rest"],
        ..IDLE
    },
    Case {
        name: "2,000 modules that train: snapshot",
        workload: &["many_objects.py", "--objects", "0", "--then", "train"],
        ..IDLE
    },
    Case {
        name: "1,000,000 tensors: snapshot",
        workload: &["many_blocks.py", "--tensors", "1000000", "--pause", "0.001"],
        ..IDLE
    },
    Case {
        name: "5,000,000 objects: snapshot",
        workload: &[
            "many_objects.py",
            "--modules",
            "0",
            "--objects",
            "5000000",
            "--then",
            "rest",
        ],
        ..IDLE
    },
    Case {
        name: "a damaged list of 1,000,000 objects: snapshot",
        workload: &[
            "many_objects.py",
            "--modules",
            "0",
            "--damage",
            "--then",
            "rest",
        ],
        memprobe: Invocation::Refusal(&["snapshot"], "Its memory is damaged there"),
        ..IDLE
    },
    Case {
        name: "21 processes: top --once",
        workload: &["many_blocks.py", "--tensors", "1000", "--pause", "0.01"],
        processes: 21,
        memprobe: Invocation::Machine(&["top", "--once"]),
        ..IDLE
    },
    Case {
        name: "5,000,000 events: report",
        memprobe: Invocation::Recording(&["report"], 5_000_000, "mprb"),
        ..IDLE
    },
    Case {
        name: "1,000,000 events in JSON: report",
        memprobe: Invocation::Recording(&["report"], 1_000_000, "json"),
        ..IDLE
    },
    Case {
        name: "a recursion of 5,000 frames: record -d 5s",
        workload: &["many_blocks.py", "--tensors", "0", "--depth", "5000"],
        alone: Duration::from_secs(3),
        memprobe: Invocation::File(&["record", "--duration", "5s"]),
        ..IDLE
    },
    Case {
        name: "500 threads: record -d 5s",
        workload: &[
            "many_blocks.py",
            "--tensors",
            "0",
            "--threads",
            "500",
            "--pause",
            "0.01",
        ],
        alone: Duration::from_secs(3),
        memprobe: Invocation::File(&["record", "--duration", "5s"]),
        ..IDLE
    },
    Case {
        name: "ten times the budget: record --max-overhead 1% -d 40s",
        workload: &["many_blocks.py", "--tensors", "0", "--work", "2000"],
        // As long as memprobe runs: the worst ten seconds of each are compared.
        alone: Duration::from_secs(40),
        memprobe: Invocation::File(&["record", "--max-overhead", "1%", "--duration", "40s"]),
        ..IDLE
    },
];

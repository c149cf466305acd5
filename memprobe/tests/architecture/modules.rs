//! Modules in the order of the flow, and the paths that each may use. ARCHITECTURE.md states the same rules in words.

use std::path::Path;

use crate::source::{Finding, Source};

/// A folder of `memprobe/src`, with the paths that it may use.
pub struct Module {
    /// Name of the folder below `memprobe/src`.
    pub name: &'static str,
    /// Paths below `crate` that it may use besides its own, each with everything below it.
    pub uses: &'static [&'static str],
    /// Groups of forbidden paths of other crates. `*::X` is an `X` anywhere.
    pub never: &'static [&'static [&'static str]],
}

impl Module {
    /// True if `file`, a path below `memprobe/src`, belongs to this module.
    pub fn holds(&self, file: &Path) -> bool {
        file.starts_with(self.name)
    }

    /// Returns the names that `source` uses against the rules.
    pub fn violations(&self, source: &Source) -> Vec<Finding> {
        let allowed: Vec<String> = [self.name]
            .iter()
            .chain(self.uses)
            .map(|path| format!("crate::{path}"))
            .collect();
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        let mut found = source.names_matching(&["crate"]);
        // `pub(crate)` is no use of a path.
        found.retain(|finding| finding.name != "crate" && !finding.matches_any(&allowed));
        found.extend(source.names_matching(&self.never.concat()));
        found
    }
}

/// Files that may contain `unsafe`. Reasons: calls into libcuda and NVML, `Pod` for kernel records, BPF links that aya does not
/// know, returning freed heap, and polled descriptors. Also ring buffer positions, pausing another process, and starting one as
/// another user.
pub const UNSAFE_FILES: &[&str] = &[
    "cuda/checkpoint/library.rs",
    "cuda/nvml/library.rs",
    "probe/heap.rs",
    "probe/loader.rs",
    "probe/bpf_calls.rs",
    "probe/positions.rs",
    "process/launch.rs",
    "process/pause.rs",
    "process/pause/urgency.rs",
    "process/pause/watchdog.rs",
];

/// Files that may use standard error: the one in which every message is cleaned.
pub const STDERR_FILES: &[&str] = &["commands/messages.rs"];

/// Files that may use standard output: the writer that cleans documents, the screen, named outputs, and the width of the
/// terminal.
pub const STDOUT_FILES: &[&str] = &[
    "commands/stdout.rs",
    "tui/terminal.rs",
    "output/plan.rs",
    "output/file.rs",
    "cli/options.rs",
];

/// Names of standard output, and macros that write to it.
pub const STDOUT: &[&str] = &["std::io::stdout", "std::io::Stdout", "std::io::StdoutLock"];
pub const STDOUT_MACROS: &[&str] = &["print", "println"];

/// Names of standard error, and macros that write to it.
pub const STDERR: &[&str] = &["std::io::stderr", "std::io::Stderr"];
pub const STDERR_MACROS: &[&str] = &["eprint", "eprintln", "dbg"];

/// Macros that mark missing code.
pub const UNFINISHED: &[&str] = &["todo", "unimplemented"];

/// Maximum number of lines in a file.
pub const MAX_LINES: usize = 800;

/// Kernel access and async runtime.
const ENGINE: &[&str] = &["aya", "tokio"];
/// Terminal user interface.
const SCREEN: &[&str] = &["ratatui", "crossterm"];
const ARGUMENTS: &[&str] = &["clap"];
/// Access to the operating system, and clocks.
const SYSTEM: &[&str] = &[
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "*::Instant",
    "*::SystemTime",
    "libc",
    "blazesym",
];

/// Input and output of any kind.
const STREAMS: &[&str] = &["std::io"];
/// Direct reads of another process: only `process/` makes them.
const RAW_READS: &[&str] = &["*::process_vm_readv"];

/// Crates forbidden to pure code: no clock, file, process, terminal, kernel or runtime.
const PURE: &[&[&str]] = &[SYSTEM, STREAMS, ENGINE, SCREEN, ARGUMENTS];
/// Crates forbidden to code that reads a process.
const READER: &[&[&str]] = &[ENGINE, SCREEN, ARGUMENTS, RAW_READS];

/// Pure files of modules that are not pure.
pub const PURE_FILES: &[&str] = &[
    "cuda/calls.rs",
    "cuda/checkpoint/failure.rs",
    "cuda/checkpoint/steps.rs",
    "cuda/identity.rs",
    "cuda/libraries.rs",
    "cuda/pools.rs",
    "torch/names.rs",
];

/// Returns the uses of a pure file against the rules.
pub fn impurities(source: &Source) -> Vec<Finding> {
    source.names_matching(&PURE.concat())
}

/// Every module of memprobe. Each uses modules above it alone, so that there is no circle.
pub const MODULES: &[Module] = &[
    Module {
        name: "event",
        uses: &[],
        never: PURE,
    },
    Module {
        name: "cuda",
        uses: &["event"],
        never: &[ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "process",
        uses: &["event"],
        never: &[ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "decode",
        uses: &["event"],
        never: PURE,
    },
    Module {
        name: "python",
        uses: &["event", "process"],
        never: READER,
    },
    Module {
        name: "torch",
        uses: &["event", "process", "python"],
        never: READER,
    },
    Module {
        name: "symbolize",
        uses: &[
            "event",
            "cuda::calls",
            "process",
            "decode",
            "python",
            "torch::module_calls",
            "torch::node_name",
            "torch::purpose",
        ],
        never: READER,
    },
    Module {
        name: "probe",
        uses: &["event", "cuda::calls", "process", "python"],
        never: &[SCREEN, ARGUMENTS],
    },
    Module {
        name: "ledger",
        uses: &["event", "torch::names"],
        never: PURE,
    },
    Module {
        name: "tensors",
        uses: &["event", "ledger"],
        never: PURE,
    },
    Module {
        name: "attribution",
        uses: &["event", "cuda::libraries", "torch::names", "ledger"],
        never: PURE,
    },
    Module {
        name: "compare",
        uses: &["event", "ledger::snapshot", "attribution"],
        never: PURE,
    },
    Module {
        name: "estimate",
        uses: &[
            "event",
            "torch::names",
            "torch::versions",
            "ledger",
            "attribution",
        ],
        never: PURE,
    },
    Module {
        name: "view",
        uses: &[
            "event",
            "cuda::pools",
            "ledger::snapshot",
            "tensors",
            "attribution::tables",
            "cuda::libraries",
        ],
        // Its writers take any output.
        never: &[SYSTEM, ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "output",
        uses: &["process::caller", "process::user"],
        never: &[ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "recording",
        // A trace names an allocation by the same frame as the table of lines.
        uses: &[
            "event",
            "cuda::calls",
            "ledger::Ledger",
            "ledger::keyframe",
            "ledger::totals_curve",
            "ledger::snapshot",
            "ledger::grouping",
            "tensors",
            "attribution::tables",
            "view",
            "output",
        ],
        never: &[ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "session",
        uses: &[
            "event",
            "cuda::identity",
            "cuda::libraries",
            "cuda::nvml",
            "process",
            "decode",
            "python",
            "torch",
            "symbolize",
            "probe",
            "view::clean",
        ],
        never: &[SCREEN, ARGUMENTS],
    },
    Module {
        name: "report",
        // Reports name the analyses that a recording is replayed through, and read their rows.
        uses: &[
            "event",
            "ledger::snapshot",
            "ledger::grouping",
            "ledger::Analysis",
            "ledger::AnalyzedLedger",
            "ledger::Refused",
            "tensors",
            "attribution",
            "compare",
            "estimate",
            "view",
            "recording",
        ],
        never: &[ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "export",
        // Exports follow the ledger in their replays, as no table has every event. PyTorch's own format has the
        // settings of its allocator.
        uses: &[
            "event",
            "ledger",
            "attribution",
            "estimate::AllocatorSettings",
            "view",
            "recording",
        ],
        never: &[SYSTEM, ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "html",
        // Its replay joins the analyses of reports with every event.
        uses: &[
            "event",
            "ledger",
            "attribution",
            "view",
            "recording",
            "report",
        ],
        never: &[SYSTEM, ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "replay",
        uses: &["event", "ledger", "recording"],
        never: &[SYSTEM, ENGINE, SCREEN, ARGUMENTS],
    },
    Module {
        name: "tui",
        uses: &[
            "event",
            "ledger::snapshot",
            "tensors",
            "attribution::tables",
            "view",
        ],
        never: &[&["aya", "std::fs", "std::process"], ARGUMENTS],
    },
    Module {
        name: "commands",
        uses: &[
            "event",
            "cuda",
            "process",
            "decode",
            "python",
            "torch",
            "probe",
            "ledger",
            "tensors",
            "attribution",
            "estimate",
            "view",
            "output",
            "recording",
            "session",
            "report",
            "export",
            "html",
            "replay",
            "tui",
        ],
        never: &[SCREEN, ARGUMENTS],
    },
    Module {
        name: "cli",
        uses: &[
            "event",
            "ledger::snapshot",
            "tensors",
            "attribution::iterations",
            "attribution::chosen_moments",
            "compare",
            "estimate",
            "recording",
            "report",
            "export",
            "html",
            "commands",
        ],
        // The table is as wide as the terminal.
        never: &[
            ENGINE,
            &["ratatui", "crossterm::event", "crossterm::execute"],
        ],
    },
];

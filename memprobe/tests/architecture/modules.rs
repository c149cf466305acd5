//! Paths that each module must not use. ARCHITECTURE.md states the same rules in words.

use std::path::Path;

use crate::source::{Finding, Source};

/// A top-level folder or file of `memprobe/src`, with the paths that it must not use.
pub struct Module {
    /// Name under `memprobe/src`; a folder ends in `/`.
    pub name: &'static str,
    /// Groups of forbidden paths; each covers everything below it. `*::X` is an `X` anywhere.
    pub never: &'static [&'static [&'static str]],
    /// Allowed paths below a forbidden one.
    pub except: &'static [&'static str],
}

impl Module {
    /// True if `file`, a path below `memprobe/src`, belongs to this module.
    pub fn holds(&self, file: &Path) -> bool {
        match self.name.strip_suffix('/') {
            Some(folder) => file.starts_with(folder),
            None => file == Path::new(self.name),
        }
    }

    /// Returns the forbidden names that `source` uses.
    pub fn violations(&self, source: &Source) -> Vec<Finding> {
        let mut found = source.names_matching(&self.never.concat());
        found.retain(|finding| !finding.matches_any(self.except));
        found
    }
}

/// Files that may contain `unsafe`. Reasons: calls into NVML, `Pod` for kernel records, BPF links that aya does not
/// know, returning freed heap, and polled descriptors. Also ring buffer positions, and reading and
/// pausing another process.
pub const UNSAFE_FILES: &[&str] = &[
    "driver/nvml.rs",
    "probe/descriptor.rs",
    "probe/heap.rs",
    "probe/loader.rs",
    "probe/many.rs",
    "probe/positions.rs",
    "target/memory.rs",
    "target/pause.rs",
];

/// Macros that mark missing code.
pub const UNFINISHED: &[&str] = &["todo", "unimplemented"];

/// Maximum number of lines in a file.
pub const MOST_LINES: usize = 800;

/// Kernel access and async runtime.
const ENGINE: &[&str] = &["aya", "tokio"];
/// Terminal user interface.
const SCREEN: &[&str] = &["ratatui", "crossterm"];
const ARGUMENTS: &[&str] = &["clap"];
/// Access to the operating system, and clocks.
const SYSTEM: &[&str] = &[
    "std::fs",
    "std::io",
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

/// Modules that produce events.
const SOURCES: &[&str] = &[
    "crate::probe",
    "crate::target",
    "crate::driver",
    "crate::decode",
    "crate::symbolize",
    "crate::inspect",
];
const MODEL: &[&str] = &["crate::model"];
/// Modules that write events to files and read them back.
const FILES: &[&str] = &["crate::recording", "crate::export"];
/// Modules that present results to people.
const VIEWS: &[&str] = &["crate::tui", "crate::report"];
const WORDS: &[&str] = &["crate::label"];
/// Modules that connect the others.
const JOINTS: &[&str] = &["crate::pipeline", "crate::cli"];

/// Paths forbidden to pure code: no clock, file, process, terminal, kernel or runtime. Such code
/// uses only `bytes`, `event`, itself, and whatever `$more` leaves out.
macro_rules! pure {
    ($($more:expr),* $(,)?) => {
        &[
            SYSTEM, ENGINE, SCREEN, ARGUMENTS, FILES, VIEWS, JOINTS,
            &["crate::probe", "crate::target", "crate::driver", "crate::inspect"], $($more),*
        ]
    };
}

/// Every module of memprobe.
pub const MODULES: &[Module] = &[
    Module {
        name: "bytes.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Module {
        name: "event.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Module {
        name: "event/",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Module {
        name: "tensors.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        // A tensor snapshot names its process with the same type as every other snapshot.
        except: &["crate::model::snapshot::Target"],
    },
    Module {
        name: "cuda.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Module {
        name: "driver/",
        never: &[
            ENGINE,
            SCREEN,
            ARGUMENTS,
            &[
                "crate::probe",
                "crate::target",
                "crate::decode",
                "crate::symbolize",
            ],
            MODEL,
            FILES,
            VIEWS,
            WORDS,
            JOINTS,
        ],
        except: &[],
    },
    Module {
        name: "decode/",
        never: pure![&["crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Module {
        name: "model/",
        never: pure![&["crate::decode", "crate::symbolize"], WORDS],
        except: &[],
    },
    Module {
        name: "label/",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL],
        except: &["crate::model::snapshot", "crate::model::tensors"],
    },
    Module {
        name: "view/",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL],
        // Writers take any output.
        except: &["std::io"],
    },
    Module {
        name: "probe/",
        never: &[SCREEN, ARGUMENTS, MODEL, FILES, VIEWS, WORDS, JOINTS],
        // Screens show a probe's status unchanged.
        except: &["crate::model::snapshot::ProbeStatus"],
    },
    Module {
        name: "target/",
        never: &[
            ENGINE,
            SCREEN,
            ARGUMENTS,
            &[
                "crate::probe",
                "crate::decode",
                "crate::symbolize",
                "crate::inspect",
            ],
            MODEL,
            FILES,
            VIEWS,
            WORDS,
            JOINTS,
        ],
        except: &[],
    },
    Module {
        name: "symbolize/",
        never: &[
            ENGINE,
            SCREEN,
            ARGUMENTS,
            &["*::process_vm_readv", "crate::probe", "crate::inspect"],
            MODEL,
            FILES,
            VIEWS,
            WORDS,
            JOINTS,
        ],
        except: &[],
    },
    Module {
        name: "inspect/",
        never: &[
            ENGINE,
            SCREEN,
            ARGUMENTS,
            &[
                "*::process_vm_readv",
                "std::fs",
                "crate::probe",
                "crate::decode",
                "crate::symbolize",
            ],
            MODEL,
            FILES,
            VIEWS,
            WORDS,
            JOINTS,
        ],
        // Layouts of Python objects are shared by all readers; a snapshot names its process.
        except: &["crate::symbolize::python", "crate::model::snapshot::Target"],
    },
    Module {
        name: "recording/",
        never: &[
            ENGINE, SCREEN, ARGUMENTS, SOURCES, MODEL, VIEWS, WORDS, JOINTS,
        ],
        except: &["crate::model::snapshot"],
    },
    Module {
        name: "export/",
        never: &[ENGINE, SCREEN, ARGUMENTS, SOURCES, MODEL, VIEWS, JOINTS],
        // A trace names an allocation by the same frame as the table of lines.
        // The sums in a snapshot's file are those of its table.
        except: &[
            "crate::model::snapshot",
            "crate::model::grouping",
            "crate::model::tensors",
        ],
    },
    Module {
        name: "report/",
        never: &[
            ENGINE,
            SCREEN,
            ARGUMENTS,
            SOURCES,
            MODEL,
            &["crate::tui"],
            JOINTS,
        ],
        // Replaying a recording uses the same ledger; telling user code from library code is a
        // shared rule.
        except: &[
            "crate::model::snapshot",
            "crate::model::grouping",
            "crate::model::Model",
            "crate::model::Refused",
            "crate::model::tensors",
            "crate::model::Applied",
            "crate::model::ShapeLedger",
            "crate::model::attribution",
            "crate::model::estimate",
        ],
    },
    Module {
        name: "tui/",
        never: &[
            &["aya", "std::fs", "std::process"],
            ARGUMENTS,
            SOURCES,
            MODEL,
            FILES,
            &["crate::report"],
            JOINTS,
        ],
        except: &["crate::model::snapshot", "crate::model::tensors"],
    },
    Module {
        name: "cli/",
        never: &[ENGINE, SCREEN, SOURCES],
        // The table is as wide as the terminal.
        except: &["crossterm::terminal::size"],
    },
    Module {
        name: "pipeline/",
        never: &[SCREEN, ARGUMENTS, &["crate::cli"]],
        except: &[],
    },
];

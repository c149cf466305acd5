//! The table of rooms: what each must never touch. ARCHITECTURE.md gives it in words.

use std::path::Path;

use crate::source::{Finding, Source};

/// A folder or a file of `memprobe/src` with one concern.
pub struct Room {
    /// Its name under `memprobe/src`; a folder ends in `/`.
    pub name: &'static str,
    /// Groups of paths whose use is a trespass, with all that lies below them; `*::X` is an `X`
    /// anywhere.
    pub never: &'static [&'static [&'static str]],
    /// Paths below one of `never` that may be used all the same.
    pub except: &'static [&'static str],
}

impl Room {
    /// Whether `file`, a path below `memprobe/src`, is in this room.
    pub fn holds(&self, file: &Path) -> bool {
        match self.name.strip_suffix('/') {
            Some(folder) => file.starts_with(folder),
            None => file == Path::new(self.name),
        }
    }

    /// The names in `source` that this room must not touch.
    pub fn trespasses(&self, source: &Source) -> Vec<Finding> {
        let mut found = source.names_matching(&self.never.concat());
        found.retain(|finding| !finding.matches_any(self.except));
        found
    }
}

/// Files with `unsafe` code, each for a reason: calls into NVML, `Pod` for what the kernel reads, links
/// that aya does not know, giving back freed heap, descriptors that the runtime watches, the positions of
/// a ring buffer, the memory of another process, stopping it for a moment.
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

/// Macros that stand for code that is not there.
pub const UNFINISHED: &[&str] = &["todo", "unimplemented"];

/// A file longer than this is two files.
pub const MOST_LINES: usize = 800;

/// The kernel and the runtime.
const ENGINE: &[&str] = &["aya", "tokio"];
/// The terminal as a screen.
const SCREEN: &[&str] = &["ratatui", "crossterm"];
const ARGUMENTS: &[&str] = &["clap"];
/// The machine that memprobe runs on.
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

/// Rooms that events come from.
const SOURCES: &[&str] = &[
    "crate::probe",
    "crate::target",
    "crate::driver",
    "crate::decode",
    "crate::symbolize",
    "crate::inspect",
];
const MODEL: &[&str] = &["crate::model"];
/// Rooms that bring events to files and back.
const FILES: &[&str] = &["crate::recording", "crate::export"];
/// Rooms that show things to people, and their words.
const VIEWS: &[&str] = &["crate::tui", "crate::report"];
const WORDS: &[&str] = &["crate::label"];
/// Rooms that join the others.
const JOINTS: &[&str] = &["crate::pipeline", "crate::cli"];

/// What pure code must not touch: no clock, no file, no process, no terminal, no kernel, no
/// runtime, and no other room than `bytes`, `event`, itself, and what `$more` leaves out.
macro_rules! pure {
    ($($more:expr),* $(,)?) => {
        &[
            SYSTEM, ENGINE, SCREEN, ARGUMENTS, FILES, VIEWS, JOINTS,
            &["crate::probe", "crate::target", "crate::driver", "crate::inspect"], $($more),*
        ]
    };
}

/// Every room of memprobe.
pub const ROOMS: &[Room] = &[
    Room {
        name: "bytes.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Room {
        name: "event.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Room {
        name: "event/",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Room {
        name: "tensors.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        // Whose tensors they are is said as everywhere.
        except: &["crate::model::snapshot::Target"],
    },
    Room {
        name: "cuda.rs",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Room {
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
    Room {
        name: "decode/",
        never: pure![&["crate::symbolize"], MODEL, WORDS],
        except: &[],
    },
    Room {
        name: "model/",
        never: pure![&["crate::decode", "crate::symbolize"], WORDS],
        except: &[],
    },
    Room {
        name: "label/",
        never: pure![&["crate::decode", "crate::symbolize"], MODEL],
        except: &["crate::model::snapshot", "crate::model::tensors"],
    },
    Room {
        name: "probe/",
        never: &[SCREEN, ARGUMENTS, MODEL, FILES, VIEWS, WORDS, JOINTS],
        // How a probe is doing is shown as it is.
        except: &["crate::model::snapshot::ProbeStatus"],
    },
    Room {
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
    Room {
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
    Room {
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
        // Python's objects are laid out the same whoever reads them; a snapshot says whose it is.
        except: &["crate::symbolize::python", "crate::model::snapshot::Target"],
    },
    Room {
        name: "recording/",
        never: &[
            ENGINE, SCREEN, ARGUMENTS, SOURCES, MODEL, VIEWS, WORDS, JOINTS,
        ],
        except: &["crate::model::snapshot"],
    },
    Room {
        name: "export/",
        never: &[ENGINE, SCREEN, ARGUMENTS, SOURCES, MODEL, VIEWS, JOINTS],
        // A trace names an allocation by the same frame as the table of lines.
        // A snapshot's file has sums that are those of its table.
        except: &[
            "crate::model::snapshot",
            "crate::model::grouping",
            "crate::model::tensors",
        ],
    },
    Room {
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
        // A recording is replayed through the same ledger; which code is the user's own is a rule.
        except: &[
            "crate::model::snapshot",
            "crate::model::grouping",
            "crate::model::Model",
            "crate::model::Refused",
            "crate::model::tensors",
            "crate::model::Applied",
            "crate::model::ShapeLedger",
            "crate::model::why",
            "crate::model::estimate",
        ],
    },
    Room {
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
    Room {
        name: "cli/",
        never: &[ENGINE, SCREEN, SOURCES],
        // The width of the table is that of the terminal.
        except: &["crossterm::terminal::size"],
    },
    Room {
        name: "pipeline/",
        never: &[SCREEN, ARGUMENTS, &["crate::cli"]],
        except: &[],
    },
];

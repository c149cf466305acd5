//! The table of rooms: what each must never touch. ARCHITECTURE.md gives it in words.

use std::path::Path;

use crate::source::{Finding, Source};

/// A folder or a file of `memprobe/src` with one concern.
pub struct Room {
    /// Its name under `memprobe/src`; a folder ends in `/`.
    pub name: &'static str,
    /// Paths whose use is a trespass, with all that lies below them; `*::X` is an `X` anywhere.
    pub never: &'static [&'static str],
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
        let mut found = source.names_matching(self.never);
        found.retain(|finding| !finding.matches_any(self.except));
        found
    }
}

/// Files with `unsafe` code, each for a reason: `Pod` for what the kernel reads, giving back freed
/// heap, descriptors that the runtime watches, the memory of another process.
pub const UNSAFE_FILES: &[&str] = &[
    "probe/descriptor.rs",
    "probe/heap.rs",
    "probe/loader.rs",
    "target/memory.rs",
];

/// Macros that stand for code that is not there.
pub const UNFINISHED: &[&str] = &["todo", "unimplemented"];

/// A file longer than this is two files.
pub const MOST_LINES: usize = 800;

/// What pure code must not touch: no clock, no file, no process, no terminal, no kernel, no
/// runtime, and no other room than `bytes`, `event` and itself.
macro_rules! pure {
    ($($room:literal),* $(,)?) => {
        &[
            "std::fs", "std::io", "std::net", "std::os", "std::process", "std::thread", "std::env",
            "*::Instant", "*::SystemTime", "tokio", "aya", "ratatui", "crossterm", "clap", "libc",
            "blazesym", "crate::probe", "crate::target", "crate::pipeline", "crate::cli",
            "crate::tui", "crate::report", "crate::export", "crate::recording", $($room),*
        ]
    };
}

/// Every room of memprobe.
pub const ROOMS: &[Room] = &[
    Room {
        name: "bytes.rs",
        never: pure!["crate::decode", "crate::symbolize", "crate::model"],
        except: &[],
    },
    Room {
        name: "event.rs",
        never: pure!["crate::decode", "crate::symbolize", "crate::model"],
        except: &[],
    },
    Room {
        name: "decode/",
        never: pure!["crate::symbolize", "crate::model"],
        except: &[],
    },
    Room {
        name: "model/",
        never: pure!["crate::decode", "crate::symbolize"],
        except: &[],
    },
    Room {
        name: "probe/",
        never: &[
            "ratatui",
            "crossterm",
            "clap",
            "crate::model",
            "crate::recording",
            "crate::tui",
            "crate::report",
            "crate::export",
            "crate::pipeline",
            "crate::cli",
        ],
        // How a probe is doing is shown as it is.
        except: &["crate::model::snapshot::ProbeStatus"],
    },
    Room {
        name: "target/",
        never: &[
            "aya",
            "tokio",
            "ratatui",
            "crossterm",
            "clap",
            "crate::probe",
            "crate::decode",
            "crate::symbolize",
            "crate::model",
            "crate::recording",
            "crate::tui",
            "crate::report",
            "crate::export",
            "crate::pipeline",
            "crate::cli",
        ],
        except: &[],
    },
    Room {
        name: "symbolize/",
        never: &[
            "aya",
            "tokio",
            "ratatui",
            "crossterm",
            "clap",
            "*::process_vm_readv",
            "crate::probe",
            "crate::model",
            "crate::recording",
            "crate::tui",
            "crate::report",
            "crate::export",
            "crate::pipeline",
            "crate::cli",
        ],
        except: &[],
    },
    Room {
        name: "recording/",
        never: &[
            "aya",
            "tokio",
            "ratatui",
            "crossterm",
            "clap",
            "crate::probe",
            "crate::decode",
            "crate::symbolize",
            "crate::target",
            "crate::model",
            "crate::tui",
            "crate::report",
            "crate::pipeline",
            "crate::cli",
        ],
        except: &["crate::model::snapshot"],
    },
    Room {
        name: "export/",
        never: &[
            "aya",
            "tokio",
            "ratatui",
            "crossterm",
            "clap",
            "crate::probe",
            "crate::decode",
            "crate::symbolize",
            "crate::target",
            "crate::model",
            "crate::tui",
            "crate::report",
            "crate::pipeline",
            "crate::cli",
        ],
        // A trace names an allocation by the same frame as the table of lines.
        except: &["crate::model::snapshot", "crate::model::grouping"],
    },
    Room {
        name: "report/",
        never: &[
            "aya",
            "tokio",
            "ratatui",
            "crossterm",
            "clap",
            "crate::probe",
            "crate::decode",
            "crate::symbolize",
            "crate::target",
            "crate::model",
            "crate::tui",
            "crate::pipeline",
            "crate::cli",
        ],
        // A recording is replayed through the same ledger.
        except: &[
            "crate::model::snapshot",
            "crate::model::Model",
            "crate::model::Refused",
        ],
    },
    Room {
        name: "tui/",
        never: &[
            "aya",
            "clap",
            "std::fs",
            "std::process",
            "crate::probe",
            "crate::decode",
            "crate::symbolize",
            "crate::target",
            "crate::model",
            "crate::recording",
            "crate::report",
            "crate::export",
            "crate::pipeline",
            "crate::cli",
        ],
        except: &["crate::model::snapshot"],
    },
    Room {
        name: "cli/",
        never: &[
            "aya",
            "tokio",
            "ratatui",
            "crossterm",
            "crate::probe",
            "crate::decode",
            "crate::symbolize",
            "crate::target",
        ],
        // The width of the table is that of the terminal.
        except: &["crossterm::terminal::size"],
    },
    Room {
        name: "pipeline/",
        never: &["ratatui", "crossterm", "clap", "crate::cli"],
        except: &[],
    },
];

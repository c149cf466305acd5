//! Diagnostics of the programs in the kernel, for people: aya-log's lines, on standard error.
//!
//! The programs log only if `log`'s level is debug when they are loaded; otherwise the verifier removes that code.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};

use super::programs::Programs;
use crate::process::capabilities::{RunStage, reduce_to};

/// The map with the programs' lines.
pub(super) const LINES: &str = "AYA_LOGS";

/// Bytes of [`LINES`] if the programs log, and if not: a map cannot be left out.
const BYTES: u32 = 128 << 10;
const BYTES_IF_OFF: u32 = 4096;

const INTERVAL: Duration = Duration::from_millis(50);

/// Crate of the programs and of memprobe; lines of other crates are of no use to people.
const TARGET: &str = "memprobe";

/// Destination of the lines.
static PRINT: OnceLock<fn(&str)> = OnceLock::new();

struct Printer;

impl Log for Printer {
    fn enabled(&self, metadata: &Metadata) -> bool {
        let target = metadata.target();
        target == TARGET || target.starts_with("memprobe::")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata())
            && let Some(print) = PRINT.get()
        {
            print(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Prints the lines with `print` from now on.
pub fn enable(print: fn(&str)) {
    PRINT.get_or_init(|| print);
    // Fails if it is on.
    if log::set_logger(&Printer).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

pub(super) fn enabled() -> bool {
    log::max_level() >= LevelFilter::Debug
}

pub(super) fn bytes() -> u32 {
    if enabled() { BYTES } else { BYTES_IF_OFF }
}

/// Thread that writes the programs' lines. Dropped, it writes the last ones and ends.
pub(super) struct DiagnosticReader {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DiagnosticReader {
    /// `None` if nobody reads the lines, or they cannot be read.
    pub(super) fn start(programs: &mut Programs) -> Option<Self> {
        if !enabled() {
            return None;
        }
        let mut lines = match programs.logger() {
            Ok(lines) => lines,
            // Without CAP_SYS_ADMIN nobody finds the map of a program.
            Err(error) => {
                log::debug!("the lines of the programs in the kernel are left out: {error:#}");
                return None;
            }
        };
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            // If it fails, it fails on the main thread too, which reports it.
            let _ = reduce_to(RunStage::Running);
            while !ended.load(Ordering::Relaxed) {
                lines.flush();
                thread::park_timeout(INTERVAL);
            }
            lines.flush();
        });
        Some(Self {
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for DiagnosticReader {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has panicked on a line that it could not decode: nothing else depends on it.
            let _ = thread.join();
        }
    }
}

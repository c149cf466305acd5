//! Other memprobes of this machine: `memprobe top` puts probes into the libraries of every process, also into those of a trial.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Time between two looks at the processes.
const INTERVAL: Duration = Duration::from_millis(100);

/// The longest that a trial waits for others to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Trials that may be disturbed before the last is kept all the same.
const ATTEMPTS: usize = 6;

/// Runs a trial, again where another memprobe watched all processes meanwhile. The second value says that this happened in
/// the last attempt too.
pub fn undisturbed<T>(mut trial: impl FnMut() -> Result<T>) -> Result<(T, bool)> {
    let mut attempt = 1;
    loop {
        wait_for_others();
        let watch = Watch::start();
        let result = trial()?;
        if !watch.stop() {
            return Ok((result, false));
        }
        if attempt == ATTEMPTS {
            return Ok((result, true));
        }
        attempt += 1;
        println!("  again: another memprobe was watching all processes meanwhile");
    }
}

fn wait_for_others() {
    let start = Instant::now();
    while is_any_there() && start.elapsed() < PATIENCE {
        std::thread::sleep(INTERVAL);
    }
}

/// Looks for other memprobes until it is stopped.
struct Watch {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

impl Watch {
    fn start() -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = stopped.clone();
        let thread = std::thread::spawn(move || {
            let mut found = false;
            while !found && !seen.load(Ordering::Relaxed) {
                found = is_any_there();
                std::thread::sleep(INTERVAL);
            }
            found
        });
        Self { stopped, thread }
    }

    /// Another memprobe was there.
    fn stop(self) -> bool {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(true) || is_any_there()
    }
}

fn is_any_there() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    let mut commands = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy()
                .starts_with(|digit: char| digit.is_ascii_digit())
        })
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    commands.any(|command| watches_all(&command))
}

/// The command line, its words ended by zeros, is `memprobe top`.
fn watches_all(command: &[u8]) -> bool {
    let mut words = command.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    let is_memprobe = program == b"memprobe" || program.ends_with(b"/memprobe");
    is_memprobe && words.next() == Some(b"top")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_memprobe_that_watches_all_processes_disturbs() {
        assert!(watches_all(b"/usr/bin/memprobe\0top\0--once\0"));
        assert!(watches_all(b"memprobe\0top\0"));
        assert!(!watches_all(b"memprobe\0record\0--pid\x001\0"));
        assert!(!watches_all(b"vi\0memprobe\0top\0"));
        assert!(!watches_all(b""));
    }
}

//! Unfinished output files: a signal that ends memprobe removes them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Interrupts, messages, runtime};
use crate::output::{OutputFile, PartialFile};

/// Removes an unfinished output when Ctrl-C or another ending signal comes, and ends memprobe then.
pub(super) struct PartialOutputGuard {
    partial: Arc<Mutex<Option<PartialFile>>>,
}

impl PartialOutputGuard {
    /// Waits for signals from now on, on a thread of its own.
    pub(super) fn new() -> anyhow::Result<Self> {
        let partial = Arc::new(Mutex::new(None));
        let runtime = runtime()?;
        let mut interrupts = {
            let _entered = runtime.enter();
            Interrupts::new()?
        };
        let guarded = Arc::clone(&partial);
        std::thread::Builder::new().spawn(move || {
            let signal = runtime.block_on(interrupts.next());
            let partial = lock(&guarded);
            if messages::go_to_a_terminal() {
                messages::replace_line("");
            }
            if let Some(partial) = &*partial {
                partial.remove();
            }
            std::process::exit(signal.status().into());
        })?;
        Ok(Self { partial })
    }

    /// Guards a file from now on, until it is whole.
    pub(super) fn guard(&self, file: &OutputFile) {
        *lock(&self.partial) = file.partial();
    }
}

fn lock(partial: &Mutex<Option<PartialFile>>) -> MutexGuard<'_, Option<PartialFile>> {
    partial.lock().unwrap_or_else(PoisonError::into_inner)
}

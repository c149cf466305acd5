//! Calls of the driver with time limits. They cannot be cancelled: each runs on a thread of its own, which is left
//! behind if the driver does not return.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::commands::waiting::show_while;
use crate::cuda::checkpoint::{
    CallFailure, CheckpointCalls, CheckpointLibrary, CheckpointState, CheckpointStep,
};
use crate::event::Tgid;

/// Longest wait for the state of a process. With NCCL some drivers do not answer while another of its processes is
/// locked (cuda-checkpoint issue 30).
const MAX_QUERY: Duration = Duration::from_secs(10);

/// Time that a lock may take beyond its own limit.
const LOCK_GRACE: Duration = Duration::from_secs(5);

/// Interval of looking for signals.
const LOOK: Duration = Duration::from_millis(20);

/// Time limits of the driver's calls.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointLimits {
    /// Limit that the driver keeps: then the process runs on.
    pub lock: Duration,
    /// Limit of every other call, kept by memprobe alone.
    pub call: Duration,
}

/// Signals so far. The first one undoes, the second one gives up.
#[derive(Clone, Default)]
pub(super) struct Presses(Arc<AtomicU32>);

impl Presses {
    pub(super) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The driver's calls for one process.
#[derive(Clone)]
pub(super) struct LimitedCalls {
    library: Arc<CheckpointLibrary>,
    tgid: Tgid,
    limits: CheckpointLimits,
    presses: Presses,
    /// True once a call did not return: the next one would wait for it.
    is_stuck: bool,
}

impl LimitedCalls {
    pub(super) fn new(
        library: CheckpointLibrary,
        tgid: Tgid,
        limits: CheckpointLimits,
        presses: Presses,
    ) -> Self {
        Self {
            library: Arc::new(library),
            tgid,
            limits,
            presses,
            is_stuck: false,
        }
    }

    fn call<T: Send + 'static>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&CheckpointLibrary, Tgid) -> Result<T, CallFailure> + Send + 'static,
    ) -> Result<T, CallFailure> {
        if self.is_stuck {
            return Err(CallFailure::Late);
        }
        let (library, tgid) = (Arc::clone(&self.library), self.tgid);
        let (done, answer) = mpsc::channel();
        let run = move || {
            // Nobody waits any more if the limit has passed.
            let _ = done.send(work(&library, tgid));
        };
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        if thread.spawn(run).is_err() {
            return Err(CallFailure::Late);
        }
        let until = Instant::now() + limit;
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Timeout) if self.presses.count() > 1 => {
                    self.is_stuck = true;
                    return Err(CallFailure::Abandoned);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => {
                    self.is_stuck = true;
                    return Err(CallFailure::Late);
                }
            }
        }
    }
}

impl CheckpointCalls for LimitedCalls {
    fn state(&mut self) -> Result<CheckpointState, CallFailure> {
        let limit = self.limits.call.min(MAX_QUERY);
        self.call(limit, |library, tgid| library.state(tgid))
    }

    fn make(&mut self, step: CheckpointStep) -> Result<(), CallFailure> {
        let lock = self.limits.lock;
        let limit = match step {
            CheckpointStep::Lock => lock.saturating_add(LOCK_GRACE),
            _ => self.limits.call,
        };
        let pid = self.tgid.0;
        let line = || format!("PID {pid}: {}", step.progress());
        show_while(line, || {
            self.call(limit, move |library, tgid| library.make(step, tgid, lock))
        })
    }

    fn is_interrupted(&self) -> bool {
        self.presses.count() > 0
    }
}

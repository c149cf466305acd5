//! End of a pause of the probes (`--max-overhead`): the blocks of all processes are brought up to date.

use super::HostSession;
use crate::event::{CaptureLevel, TimeNs};
use crate::session::budget::OverheadBudget;
use crate::session::process::Process;

impl HostSession {
    /// Ends a pause for good, and brings the blocks of all processes up to date, as of `time`. To be drained while
    /// [`Self::is_catching_up`].
    pub(crate) fn catch_up(&mut self, time: TimeNs) {
        if self.end_pause_as_of(Some(time)) {
            // Nothing is given up any more.
            self.max_overhead = None;
        }
    }

    /// Ends a pause before it is paid for, and brings the blocks of all processes up to date.
    pub(crate) fn end_pause(&mut self) {
        self.end_pause_as_of(None);
    }

    /// Returns true if there was a pause.
    fn end_pause_as_of(&mut self, time: Option<TimeNs>) -> bool {
        let paused = |budget: &&mut OverheadBudget| budget.level == CaptureLevel::Paused;
        let Some(budget) = self.budget.as_mut().filter(paused) else {
            return false;
        };
        let level = budget.end_pause();
        self.files.wait_until_detached();
        for process in self.processes.values_mut() {
            if let Some(time) = time {
                process.correct_as_of(time);
            }
        }
        self.apply_level(level);
        true
    }

    /// True while the blocks of a process are read after a pause.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.processes.values().any(Process::is_catching_up)
    }
}

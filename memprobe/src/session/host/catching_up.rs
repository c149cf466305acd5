//! End of a pause of the probes (`--max-overhead`): the blocks of all processes are brought up to date.

use super::HostSession;
use crate::event::{CaptureLevel, TimeNs};
use crate::session::budget::OverheadBudget;
use crate::session::process::Process;

impl HostSession {
    /// Ends a pause for good, and brings the blocks of all processes up to date, as of `time`. To be drained while
    /// [`Self::is_catching_up`].
    pub(crate) fn catch_up(&mut self, time: TimeNs) {
        // Corrections of a pause that has just ended would come after `time`.
        let processes = self.processes.values_mut();
        let catching_up = processes.filter(|process| process.is_catching_up());
        catching_up.for_each(|process| process.correct_as_of(time));
        self.end_pause_as_of(Some(time));
        // Nothing is given up any more.
        self.max_overhead = None;
    }

    /// Ends a pause before it is paid for, and brings the blocks of all processes up to date.
    pub(crate) fn end_pause(&mut self) {
        self.end_pause_as_of(None);
    }

    fn end_pause_as_of(&mut self, time: Option<TimeNs>) {
        let paused = |budget: &&mut OverheadBudget| budget.level == CaptureLevel::Paused;
        let Some(budget) = self.budget.as_mut().filter(paused) else {
            return;
        };
        let level = budget.end_pause();
        self.files.wait_until_detached();
        for process in self.processes.values_mut() {
            if let Some(time) = time {
                process.correct_as_of(time);
            }
        }
        self.apply_level(level);
    }

    /// True while the emitted events leave out what happens to blocks: during a pause, and until the blocks after it are
    /// read.
    pub(crate) fn lacks_blocks(&self) -> bool {
        let budget = self.budget.as_ref();
        budget.is_some_and(|budget| budget.level == CaptureLevel::Paused) || self.is_catching_up()
    }

    /// True while the blocks of a process are read after a pause.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.processes.values().any(Process::is_catching_up)
    }
}

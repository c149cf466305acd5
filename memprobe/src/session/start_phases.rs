//! Times of the phases of a start, from the programs to the first row, as diagnostics (`--log debug`).

use std::time::Instant;

pub(super) struct StartPhases {
    begun: Instant,
    last: Instant,
    /// The phase that goes on.
    current: StartPhase,
}

/// A phase of the start, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub(super) enum StartPhase {
    #[strum(to_string = "kernel types read")]
    KernelTypes,
    #[strum(to_string = "programs loaded and verified")]
    Programs,
    #[strum(to_string = "probes placed")]
    Probes,
    #[strum(to_string = "blocks from before attach read")]
    Blocks,
    Over,
}

impl StartPhases {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            last: now,
            current: StartPhase::KernelTypes,
        }
    }

    /// Notes the end of a phase, the first time.
    pub(super) fn end(&mut self, phase: StartPhase, next: StartPhase) {
        if self.current > phase {
            return;
        }
        let now = Instant::now();
        log::debug!(
            "start: {phase} in {} ms, {} ms since the beginning",
            now.duration_since(self.last).as_millis(),
            now.duration_since(self.begun).as_millis()
        );
        self.last = now;
        self.current = next;
    }

    pub(super) fn is_over(&self) -> bool {
        self.current == StartPhase::Over
    }
}

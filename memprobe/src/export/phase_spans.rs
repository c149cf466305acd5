//! Time spans of the program's phases.

use crate::attribution::phase::Phase;
use crate::attribution::{AttributionLedger, PeakAnalysis};
use crate::event::{Event, TimeNs};
use crate::ledger::{Change, Ledger};

/// Cap on spans, at 16 bytes each.
const MAX_SPANS: usize = 1 << 22;

/// Phases of a process in the order of time; each lasts until the next begins.
#[derive(Debug, Default)]
pub(super) struct PhaseSpans {
    begins: Vec<(TimeNs, Phase)>,
    /// Changes beyond the cap.
    left_out: u64,
}

impl PhaseSpans {
    /// Begin of each phase.
    pub(super) fn begins(&self) -> &[(TimeNs, Phase)] {
        &self.begins
    }

    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn change_to(&mut self, phase: Phase, time: TimeNs) {
        let last = self.begins.last();
        if last.map_or(Phase::Other, |(_, last)| *last) == phase {
            return;
        }
        // Records of several threads may come slightly out of order.
        let time = last.map_or(time, |(begin, _)| time.max(*begin));
        if self.begins.len() < MAX_SPANS {
            self.begins.push((time, phase));
        } else {
            self.left_out += 1;
        }
    }
}

impl PeakAnalysis for PhaseSpans {
    fn apply(
        &mut self,
        event: &Event,
        _change: &Change,
        _ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        let time = match event {
            Event::Memory(event) => event.time,
            Event::PhaseMark(mark) => mark.time,
            _ => return,
        };
        self.change_to(categories.phase(), time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lasts_until_the_next_and_time_never_runs_back() {
        let mut spans = PhaseSpans::default();
        for (time, phase) in [
            (1, Phase::Other),
            (5, Phase::Forward),
            (7, Phase::Forward),
            (4, Phase::Backward),
            (9, Phase::Other),
        ] {
            spans.change_to(phase, TimeNs(time));
        }
        let expected = [
            (TimeNs(5), Phase::Forward),
            (TimeNs(5), Phase::Backward),
            (TimeNs(9), Phase::Other),
        ];
        assert_eq!(spans.begins(), expected);
    }
}

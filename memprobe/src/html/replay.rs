//! The replay behind a page: all analyses at once. The explanation replays parts once more.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};

use super::history::{HeldHistory, PageHistory, SegmentSpans};
use crate::attribution::growth::GrowthLedger;
use crate::attribution::iterations::{IterationLine, Iterations};
use crate::attribution::peak::PeakLedger;
use crate::attribution::{AttributionLedger, WithCategories};
use crate::ledger::snapshot::Grouping;
use crate::ledger::{AnalyzedLedger, Ledger};
use crate::recording::{Reader, RecordingError};
use crate::report::RecordingReplay;
use crate::report::explain::{Explanation, RecordingEvidence, failure_evidence};

/// A replayed recording with everything that its page shows.
pub(super) struct PageReplay {
    pub recording: RecordingReplay,
    pub explanation: Explanation,
    pub ledger: Ledger,
    pub categories: AttributionLedger,
    pub history: HeldHistory,
    pub segments: SegmentSpans,
    pub iterations: Iterations,
}

impl PageReplay {
    /// Replays a whole recording, `file`; counts its events in `progress`. Keeps at most `most` events of a device.
    pub(super) fn run<R: BufRead>(
        mut reader: Reader<R>,
        file: &str,
        line: Option<IterationLine>,
        most: usize,
        progress: &AtomicU64,
    ) -> Result<Self, RecordingError> {
        let table = (PeakLedger::new(Grouping::User), PageHistory::new(most));
        let with_categories = WithCategories {
            categories: AttributionLedger::new(line.clone()),
            table,
        };
        let growth = GrowthLedger::new(Grouping::User, line);
        let again = reader.reopened();
        let segments = (SegmentSpans::default(), failure_evidence(&reader));
        let analyses = (with_categories, (growth, segments));
        let header = reader.header();
        let mut replay = AnalyzedLedger::new(header.target.clone(), header.start, analyses);
        for event in reader.by_ref() {
            replay.apply(&event?);
            progress.fetch_add(1, Ordering::Relaxed);
        }
        let recording = RecordingReplay::of(&mut replay, &reader, Grouping::User);
        let AnalyzedLedger { ledger, analyses } = replay;
        let (WithCategories { categories, table }, (growth, (segments, failure))) = analyses;
        let (peaks, history) = table;
        let history = history.finish(&ledger, &categories);
        let evidence = RecordingEvidence {
            replay: &recording,
            peaks: &peaks,
            categories: &categories,
            growth: &growth,
        };
        Ok(Self {
            explanation: evidence.explain_moment(failure, again, file)?,
            iterations: categories.iterations(),
            recording,
            ledger,
            categories,
            history,
            segments,
        })
    }
}

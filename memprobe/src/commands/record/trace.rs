//! The recording of one process: its events as they come, and at the end what its memory was for over time.

use crate::attribution::AttributionLedger;
use crate::attribution::views::categories;
use crate::event::Event;
use crate::ledger::AnalyzedLedger;
use crate::ledger::snapshot::Grouping;
use crate::recording::write::output::OutputFile;
use crate::recording::write::trace_event::{TraceWriter, WriteError};
use crate::recording::{EndReason, Header};
use crate::session::now;

pub(super) struct Trace {
    pub(super) writer: TraceWriter<OutputFile>,
    ledgers: AnalyzedLedger<AttributionLedger>,
}

impl Trace {
    /// Begins a recording; `place` names it in errors.
    pub(super) fn begin(
        out: OutputFile,
        place: String,
        header: &Header,
    ) -> Result<Self, WriteError> {
        let (target, analysis) = (header.target.clone(), AttributionLedger::new(None));
        Ok(Self {
            writer: TraceWriter::new(out, place, header, Grouping::default())?,
            ledgers: AnalyzedLedger::new(target, header.start, analysis),
        })
    }

    pub(super) fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        self.writer.event(event)?;
        self.ledgers.apply(event);
        Ok(())
    }

    /// Writes the end; gives back the file.
    pub(super) fn finish(mut self, reason: EndReason) -> Result<OutputFile, WriteError> {
        let ledger = &self.ledgers.analyses;
        let divided = categories(ledger, &ledger.latest_iterations(0), now());
        self.writer.categories(&divided)?;
        self.writer.finish(reason)
    }
}

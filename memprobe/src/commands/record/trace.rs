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

/// A recording that is being written.
pub(super) struct Trace {
    writer: TraceWriter<OutputFile>,
    ledgers: AnalyzedLedger<AttributionLedger>,
}

impl Trace {
    /// Begins a recording; `place` names it in errors.
    pub(super) fn begin(
        out: OutputFile,
        place: String,
        header: &Header,
    ) -> Result<Self, WriteError> {
        Ok(Self {
            writer: TraceWriter::new(out, place, header, Grouping::default())?,
            ledgers: AnalyzedLedger::new(
                header.target.clone(),
                header.start,
                AttributionLedger::new(None),
            ),
        })
    }

    /// Writes the next event.
    pub(super) fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        self.writer.event(event)?;
        self.ledgers.apply(event);
        Ok(())
    }

    /// Calls [`TraceWriter::describe`].
    pub(super) fn describe(&mut self, header: &Header) -> Result<(), WriteError> {
        self.writer.describe(header)
    }

    /// Calls [`TraceWriter::flush`].
    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// Memory events so far.
    pub(super) fn events(&self) -> u64 {
        self.writer.events()
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Writes the end; gives back the file.
    pub(super) fn finish(mut self, reason: EndReason) -> Result<OutputFile, WriteError> {
        let ledger = &self.ledgers.analyses;
        let divided = categories(ledger, &ledger.latest_iterations(0), now());
        self.writer.categories(&divided)?;
        self.writer.finish(reason)
    }
}

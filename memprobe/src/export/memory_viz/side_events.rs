//! The header, marks, labels and threads, under keys of memprobe's own: PyTorch's format has no place for them.

use std::io::{self, Write};

use super::SnapshotWriter;
use crate::event::{BlockLabels, LabeledBlock};
use crate::export::side_events::{SideEvent, SideEventKind};
use crate::ledger::StackRef;
use crate::recording::pickle_side_events::{
    BLOCKS_KEY, HEADER_KEY, LABELS_END_KEY, MarkRecord, SIDE_EVENTS_KEY, ScopeRecord,
    SideEventRecord, THREADS_KEY, ThreadRecord,
};
use crate::recording::{NamedRecord, NamesRecord, PickleItems};

impl<W: Write> SnapshotWriter<'_, W> {
    pub(super) fn header(&mut self) -> io::Result<()> {
        self.out.text(HEADER_KEY)?;
        self.out.record(&self.replay.header)
    }

    pub(super) fn threads(&mut self) -> io::Result<()> {
        self.out.text(THREADS_KEY)?;
        self.out.empty_list()?;
        let mut items = PickleItems::default();
        for (tid, name) in self.replay.ledger.threads() {
            items.next(&mut self.out)?;
            self.out.record(&ThreadRecord {
                tid: tid.0,
                name: name.to_string(),
            })?;
        }
        items.end(&mut self.out)
    }

    pub(super) fn side_events(&mut self) -> io::Result<()> {
        let replay = self.replay;
        self.out.text(SIDE_EVENTS_KEY)?;
        self.out.empty_list()?;
        let mut items = PickleItems::default();
        for (number, side) in replay.side_events.found.iter().enumerate() {
            // Those that no event follows stand at the end of the trace.
            let position = self.positions.get(number).copied();
            items.next(&mut self.out)?;
            self.side_event(side, position.unwrap_or(u64::MAX))?;
        }
        items.end(&mut self.out)
    }

    fn side_event(&mut self, side: &SideEvent, position: u64) -> io::Result<()> {
        let (time, mark, scope) = match &side.event {
            SideEventKind::Mark(mark, _) => (mark.time, Some(MarkRecord::from(mark)), None),
            SideEventKind::Labels(scope, labels) => {
                (labels.time, None, Some(ScopeRecord::from(*scope)))
            }
        };
        self.out.open_record(&SideEventRecord {
            device: self.first.0,
            position,
            time_us: self.replay.wall_us(time),
            mark,
            scope,
        })?;
        match &side.event {
            SideEventKind::Mark(_, stack) if *stack == StackRef::UNKNOWN => {}
            SideEventKind::Mark(_, stack) => {
                self.out.text("frames")?;
                self.frames(*stack)?;
            }
            SideEventKind::Labels(_, labels) => self.labels(labels)?,
        }
        self.out.set()
    }

    fn labels(&mut self, labels: &BlockLabels) -> io::Result<()> {
        self.out.text(BLOCKS_KEY)?;
        self.out.empty_list()?;
        let mut items = PickleItems::default();
        for block in &labels.blocks {
            items.next(&mut self.out)?;
            let block = self.named_as_in_stacks(block);
            self.out.record(&NamedRecord::from(&block))?;
        }
        items.end(&mut self.out)?;
        self.out.text(LABELS_END_KEY)?;
        self.out.record(&NamesRecord::from(labels))
    }

    /// Returns a block whose module has the name that the stacks have.
    fn named_as_in_stacks(&self, block: &LabeledBlock) -> LabeledBlock {
        let mut block = block.clone();
        if let Some(called) = &mut block.called {
            called.path = self.replay.categories.named_module(&called.path);
        }
        block
    }
}

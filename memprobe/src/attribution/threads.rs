//! Live blocks by the thread that allocated them.

use std::collections::HashMap;
use std::sync::Arc;

use super::groups::{BlockChange, ChangeKind};
use super::high_water_mark::{HeldBytes, HighWaterMark, HighWaterMarks, Holding};
use crate::event::{DeviceIndex, Event, Tid};
use crate::ledger::{Analysis, BlockId, Change, DeviceTotals, Freed, Model, PerBlock};

/// Cap on threads of all devices; the excess is one row a device.
const MAX_THREADS: usize = 1 << 16;

/// Memory by allocating thread, updated by every event.
#[derive(Debug, Default)]
pub struct ThreadLedger {
    rows: HashMap<(DeviceIndex, Tid), HeldBytes>,
    by_block: PerBlock<Tid>,
    names: HashMap<Tid, Arc<str>>,
    marks: HighWaterMarks,
}

/// Memory that a thread allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRow {
    /// [`Tid::UNKNOWN`] for the threads beyond the limit.
    pub tid: Tid,
    /// `None` if the thread has no name.
    pub name: Option<Arc<str>>,
    pub holding: Holding,
}

impl ThreadLedger {
    /// Rows of a device, largest first.
    pub fn rows(&self, device: DeviceIndex) -> Vec<ThreadRow> {
        let Some(mark) = self.marks.get(device) else {
            return Vec::new();
        };
        let rows = self.rows.iter().filter(|((of, _), _)| *of == device);
        let mut rows: Vec<_> = rows
            .map(|((_, tid), held)| ThreadRow {
                tid: *tid,
                name: self.names.get(tid).cloned(),
                holding: held.holding(mark),
            })
            .collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.holding.live), row.tid));
        rows
    }

    /// State of a device at its peak.
    pub fn peak(&self, device: DeviceIndex) -> Option<DeviceTotals> {
        Some(self.marks.get(device)?.moment())
    }

    fn add(
        &mut self,
        block: BlockId,
        tid: Tid,
        kind: ChangeKind,
        ledger: &Model,
        mark: &HighWaterMark,
    ) {
        let block_of = ledger.block(block);
        let is_known = self.rows.contains_key(&(block_of.device, tid));
        let tid = match is_known || self.rows.len() < MAX_THREADS {
            true => tid,
            false => Tid::UNKNOWN,
        };
        let size = block_of.size;
        let row = self.rows.entry((block_of.device, tid)).or_default();
        row.change(BlockChange { size, kind }, mark);
        if kind == ChangeKind::Added {
            self.by_block.insert(block, tid);
        }
    }

    fn release(&mut self, block: BlockId, ledger: &Model, mark: &HighWaterMark) {
        let Some(tid) = self.by_block.remove(block) else {
            return;
        };
        let block = ledger.block(block);
        let (size, kind) = (block.size, ChangeKind::Removed);
        if let Some(row) = self.rows.get_mut(&(block.device, tid)) {
            row.change(BlockChange { size, kind }, mark);
        }
    }

    fn apply_at(&mut self, event: &Event, change: &Change, ledger: &Model, mark: &HighWaterMark) {
        match (event, change) {
            (Event::Thread(tid, name), _)
                if self.names.len() < MAX_THREADS || self.names.contains_key(tid) =>
            {
                self.names.insert(*tid, Arc::clone(name));
            }
            (
                Event::Memory(event),
                Change::Allocated {
                    block,
                    is_tracked,
                    replaced,
                },
            ) => {
                for ended in replaced {
                    self.release(*ended, ledger, mark);
                }
                let kind = match is_tracked {
                    true => ChangeKind::Added,
                    false => ChangeKind::NotTracked,
                };
                self.add(*block, event.tid, kind, ledger, mark);
            }
            (_, Change::Freed(Freed::Known(block))) => self.release(*block, ledger, mark),
            _ => {}
        }
    }
}

impl Analysis for ThreadLedger {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Model) {
        let mut marks = std::mem::take(&mut self.marks);
        marks.pass(event, ledger, |mark| {
            self.apply_at(event, change, ledger, mark);
        });
        self.marks = marks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::allocation_groups::samples::{DEVICE, learning_for};
    use crate::event::{Bytes, TimeNs};
    use crate::ledger::snapshot::Grouping;

    #[test]
    fn the_rows_add_up_to_the_allocator_now_and_at_the_peak() {
        let program = learning_for(10, |iteration| iteration % 3 == 0);
        let played = program.analyzed(ThreadLedger::default());
        let threads = played.analyses;
        let device = &played.ledger.snapshot(TimeNs(0), Grouping::User).devices[0];
        let sum = |of: fn(&Holding) -> Bytes| -> u64 {
            let rows = threads.rows(DEVICE);
            rows.iter().map(|row| of(&row.holding).0).sum()
        };
        assert!(sum(|it| it.live) > 0);
        assert_eq!(sum(|it| it.live), device.totals.allocated.0);
        let peak = threads.peak(DEVICE).expect("a known device");
        assert_eq!(peak.totals.allocated, device.peak.allocated);
        assert_eq!(sum(|it| it.at_peak), peak.totals.allocated.0);
    }
}

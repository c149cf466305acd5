//! Live blocks by the thread that allocated them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::groups::BlockChange;
use super::high_water_mark::{HeldBytes, HighWaterMarks, Holding, PeakAnalysis};
use super::ledger::AttributionLedger;
use crate::event::{DeviceIndex, Event, Tid, TimeNs};
use crate::ledger::{BlockId, Change, CompactIndex, CopySize, Ledger, PerBlock, TotalsSample};

/// Cap on threads of all devices; the excess is one row a device.
const MAX_THREADS: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AllocatingThread {
    Thread(Tid),
    /// Not known: the block was live when this ledger began.
    BeforeOpening,
    TooMany,
}

/// Memory by allocating thread, updated by every event.
#[derive(Clone, Debug, Default)]
pub struct ThreadLedger {
    rows: Vec<(DeviceIndex, AllocatingThread, HeldBytes)>,
    by_key: HashMap<(DeviceIndex, AllocatingThread), CompactIndex>,
    by_block: PerBlock<CompactIndex>,
    names: HashMap<Tid, Arc<str>>,
    marks: HighWaterMarks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRow {
    pub allocator: AllocatingThread,
    /// `None` if the thread has no name.
    pub name: Option<Arc<str>>,
    pub holding: Holding,
}

impl ThreadLedger {
    /// Starts from the current state of a ledger; the threads of live blocks are unknown.
    pub fn late(ledger: &Ledger, now: TimeNs) -> Self {
        let mut late = Self {
            marks: HighWaterMarks::from_now(ledger, now),
            ..Self::default()
        };
        for (id, _) in ledger.blocks().filter(|(_, block)| !block.is_baseline) {
            late.add(id, AllocatingThread::BeforeOpening, true, ledger, 0);
        }
        late
    }

    /// Rows of a device, largest first.
    pub fn rows(&self, device: DeviceIndex) -> Vec<ThreadRow> {
        let Some(mark) = self.marks.get(device) else {
            return Vec::new();
        };
        let rows = self.rows.iter().filter(|(of, ..)| *of == device);
        let row = |(_, allocator, held): &(DeviceIndex, AllocatingThread, HeldBytes)| ThreadRow {
            allocator: *allocator,
            name: match allocator {
                AllocatingThread::Thread(tid) => self.names.get(tid).cloned(),
                AllocatingThread::BeforeOpening | AllocatingThread::TooMany => None,
            },
            holding: held.holding(mark.number),
        };
        let mut rows: Vec<_> = rows.map(row).collect();
        rows.sort_by_key(|row| (Reverse(row.holding.live), row.allocator));
        rows
    }

    pub fn peak(&self, device: DeviceIndex) -> Option<TotalsSample> {
        Some(self.marks.get(device)?.moment)
    }

    fn add(
        &mut self,
        id: BlockId,
        allocator: AllocatingThread,
        is_tracked: bool,
        ledger: &Ledger,
        mark: u64,
    ) {
        let block = ledger.block(id);
        let key = (block.device, allocator);
        let key = if self.rows.len() < MAX_THREADS || self.by_key.contains_key(&key) {
            key
        } else {
            (block.device, AllocatingThread::TooMany)
        };
        let rows = &mut self.rows;
        let row = *self.by_key.entry(key).or_insert_with(|| {
            rows.push((key.0, key.1, HeldBytes::default()));
            CompactIndex::of(rows.len() - 1)
        });
        let change = BlockChange::allocated(block.size, is_tracked);
        self.rows[row.index()].2.change(change, mark);
        if is_tracked {
            self.by_block.insert(id, row);
        }
    }

    fn release(&mut self, id: BlockId, ledger: &Ledger, mark: u64) {
        if let Some(row) = self.by_block.remove(id) {
            let (.., held) = &mut self.rows[row.index()];
            held.release(ledger.block(id).size.0, mark);
        }
    }

    fn apply_at(&mut self, event: &Event, change: &Change, ledger: &Ledger, mark: u64) {
        if let Event::Thread(tid, name) = event
            && (self.names.len() < MAX_THREADS || self.names.contains_key(tid))
        {
            self.names.insert(*tid, Arc::clone(name));
        }
        for ended in change.ended() {
            self.release(*ended, ledger, mark);
        }
        if let (Event::Memory(event), Some((block, is_tracked))) = (event, change.allocated()) {
            let thread = AllocatingThread::Thread(event.tid);
            self.add(block, thread, is_tracked, ledger, mark);
        }
    }
}

impl CopySize for ThreadLedger {
    fn copy_bytes(&self) -> u64 {
        let row = size_of::<(DeviceIndex, AllocatingThread, HeldBytes)>();
        (self.rows.len() * 2 * row) as u64 + self.by_block.bytes()
    }
}

impl PeakAnalysis for ThreadLedger {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        let mut marks = std::mem::take(&mut self.marks);
        marks.pass(event, ledger, categories, |mark| {
            self.apply_at(event, change, ledger, mark);
        });
        self.marks = marks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::WithCategories;
    use crate::attribution::allocation_groups::samples::{DEVICE, learning_for};
    use crate::event::Bytes;
    use crate::ledger::snapshot::Grouping;

    #[test]
    fn the_rows_add_up_to_the_allocator_now_and_at_the_peak() {
        let program = learning_for(10, |iteration| iteration % 3 == 0);
        let played = program.analyzed(WithCategories::new(ThreadLedger::default()));
        let threads = played.analyses.table;
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

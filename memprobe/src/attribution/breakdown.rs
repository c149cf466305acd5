//! Breakdowns: memory of each device by a key of the block, such as the thread that allocated it.
//!
//! A breakdown is a variant of [`Breakdown`] with its [`BlockKeys`]. Ledger, report and screen are the same for all.

mod threads;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use strum::VariantArray;

use super::groups::BlockChange;
use super::high_water_mark::{HeldBytes, HighWaterMarks, Holding, PeakAnalysis};
use super::ledger::AttributionLedger;
use crate::event::{Bytes, DeviceIndex, Event, MemoryEvent, TimeNs, Totals};
use crate::ledger::snapshot::Snapshot;
use crate::ledger::{BlockId, Change, CompactIndex, CopySize, Ledger, LiveBlock, PerBlock};

/// Cap on rows of all devices; the excess is one row a device.
const MAX_ROWS: usize = 1 << 16;

/// Every breakdown, in the order of the screens. `crate::view::BreakdownView` has the columns and words of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, VariantArray)]
pub enum Breakdown {
    Thread,
}

impl Breakdown {
    pub const ALL: &'static [Self] = Self::VARIANTS;

    fn keys(self) -> &'static BlockKeys {
        match self {
            Self::Thread => &threads::KEYS,
        }
    }
}

type NamedKey = (u64, Arc<str>);

/// Analysis of a breakdown: the key of each block, and names of keys.
#[derive(Debug)]
struct BlockKeys {
    /// Returns the key of a block from the event of its allocation.
    of_allocation: fn(&MemoryEvent) -> u64,
    /// Returns the same key from the block alone. With `None` each live block takes 4 bytes, and the keys of blocks from
    /// before the ledger are unknown.
    of_block: fn(&LiveBlock) -> Option<u64>,
    /// Returns the key that an event names, and its name.
    name: fn(&Event) -> Option<NamedKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BreakdownKey {
    Key(u64),
    /// Not known: the block was live when this ledger began.
    BeforeOpening,
    TooMany,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakdownRow {
    pub key: BreakdownKey,
    /// Name from an event; `None` without one.
    pub name: Option<Arc<str>>,
    pub holding: Holding,
}

/// Memory of a device by key. The sum of all rows, `before_attach` and `unaccounted` is the allocator's total, now and
/// at the peak.
#[derive(Clone, Debug)]
pub struct DeviceBreakdown {
    pub index: DeviceIndex,
    pub totals: Totals,
    /// Totals at the peak.
    pub peak: Totals,
    /// Bytes from before attach, now and at the peak.
    pub before_attach: [Bytes; 2],
    pub unaccounted: [i64; 2],
    pub live_blocks: u64,
    /// Rows, largest first.
    pub rows: Vec<BreakdownRow>,
}

/// Memory by device and key, updated by every event.
#[derive(Clone, Debug)]
pub struct BreakdownLedger {
    keys: &'static BlockKeys,
    rows: Vec<(DeviceIndex, BreakdownKey, HeldBytes)>,
    by_key: HashMap<(DeviceIndex, BreakdownKey), CompactIndex>,
    by_block: PerBlock<CompactIndex>,
    names: HashMap<u64, Arc<str>>,
    marks: HighWaterMarks,
}

impl BreakdownLedger {
    /// Creates a ledger that begins before the first event.
    pub fn new(breakdown: Breakdown) -> Self {
        Self::of(breakdown.keys())
    }

    /// Starts from the current state of a ledger.
    pub fn late(breakdown: Breakdown, ledger: &Ledger, now: TimeNs) -> Self {
        Self::of(breakdown.keys()).with_live(ledger, now)
    }

    fn of(keys: &'static BlockKeys) -> Self {
        Self {
            keys,
            rows: Vec::new(),
            by_key: HashMap::new(),
            by_block: PerBlock::default(),
            names: HashMap::new(),
            marks: HighWaterMarks::default(),
        }
    }

    fn with_live(mut self, ledger: &Ledger, now: TimeNs) -> Self {
        self.marks = HighWaterMarks::from_now(ledger, now);
        for (id, block) in ledger.blocks().filter(|(_, block)| !block.is_baseline) {
            let key = (self.keys.of_block)(block);
            let key = key.map_or(BreakdownKey::BeforeOpening, BreakdownKey::Key);
            self.add(id, key, true, ledger, 0);
        }
        self
    }

    /// Memory of each device, at the moment of a snapshot of the ledger. Devices without the allocator have none.
    pub fn devices(&self, snapshot: &Snapshot) -> Vec<DeviceBreakdown> {
        let devices = snapshot.devices.iter().filter_map(|device| {
            let mark = self.marks.get(device.index)?;
            let peak = mark.moment;
            Some(DeviceBreakdown {
                index: device.index,
                totals: device.totals,
                peak: peak.totals,
                before_attach: [device.before_attach.live, peak.before_attach],
                unaccounted: [device.unaccounted, peak.unaccounted],
                live_blocks: device.live_blocks,
                rows: self.rows(device.index, mark.number),
            })
        });
        devices.collect()
    }

    fn rows(&self, device: DeviceIndex, mark: u64) -> Vec<BreakdownRow> {
        let rows = self.rows.iter().filter(|(of, ..)| *of == device);
        let row = |(_, key, held): &(DeviceIndex, BreakdownKey, HeldBytes)| BreakdownRow {
            key: *key,
            name: match key {
                BreakdownKey::Key(key) => self.names.get(key).cloned(),
                BreakdownKey::BeforeOpening | BreakdownKey::TooMany => None,
            },
            holding: held.holding(mark),
        };
        let mut rows: Vec<_> = rows.map(row).collect();
        rows.sort_by_key(|row| (Reverse(row.holding.live), row.key));
        rows
    }

    fn add(
        &mut self,
        id: BlockId,
        key: BreakdownKey,
        is_tracked: bool,
        ledger: &Ledger,
        mark: u64,
    ) {
        let block = ledger.block(id);
        let row = self.row_of(block.device, key);
        let change = BlockChange::allocated(block.size, is_tracked);
        self.rows[row.index()].2.change(change, mark);
        if is_tracked && (self.keys.of_block)(block).is_none() {
            self.by_block.insert(id, row);
        }
    }

    /// Returns the row of a key, which is always the same: a key beyond the cap never gets one of its own.
    fn row_of(&mut self, device: DeviceIndex, key: BreakdownKey) -> CompactIndex {
        let key = (device, key);
        let key = if self.rows.len() < MAX_ROWS || self.by_key.contains_key(&key) {
            key
        } else {
            (device, BreakdownKey::TooMany)
        };
        let rows = &mut self.rows;
        *self.by_key.entry(key).or_insert_with(|| {
            rows.push((key.0, key.1, HeldBytes::default()));
            CompactIndex::of(rows.len() - 1)
        })
    }

    fn release(&mut self, id: BlockId, ledger: &Ledger, mark: u64) {
        let block = ledger.block(id);
        let row = match (self.keys.of_block)(block) {
            // The baseline has no row.
            Some(_) if block.is_baseline => None,
            Some(key) => Some(self.row_of(block.device, BreakdownKey::Key(key))),
            None => self.by_block.remove(id),
        };
        if let Some(row) = row {
            self.rows[row.index()].2.release(block.size.0, mark);
        }
    }

    fn apply_at(&mut self, event: &Event, change: &Change, ledger: &Ledger, mark: u64) {
        if let Some((key, name)) = (self.keys.name)(event)
            && (self.names.len() < MAX_ROWS || self.names.contains_key(&key))
        {
            self.names.insert(key, name);
        }
        for ended in change.ended() {
            self.release(*ended, ledger, mark);
        }
        if let (Event::Memory(event), Some((id, is_tracked))) = (event, change.allocated()) {
            let key = (self.keys.of_allocation)(event);
            self.add(id, BreakdownKey::Key(key), is_tracked, ledger, mark);
        }
    }
}

impl CopySize for BreakdownLedger {
    fn copy_bytes(&self) -> u64 {
        let row = size_of::<(DeviceIndex, BreakdownKey, HeldBytes)>();
        (self.rows.len() * 2 * row) as u64 + self.by_block.bytes()
    }
}

impl PeakAnalysis for BreakdownLedger {
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

/// Every breakdown of a process, for its screens.
#[derive(Clone, Debug)]
pub struct BreakdownLedgers(Vec<BreakdownLedger>);

impl Default for BreakdownLedgers {
    fn default() -> Self {
        Self::each(BreakdownLedger::new)
    }
}

impl BreakdownLedgers {
    /// Starts from the current state of a ledger.
    pub fn late(ledger: &Ledger, now: TimeNs) -> Self {
        Self::each(|breakdown| BreakdownLedger::late(breakdown, ledger, now))
    }

    /// Memory of each device, at the moment of a snapshot of the ledger.
    pub fn devices(&self, breakdown: Breakdown, snapshot: &Snapshot) -> Vec<DeviceBreakdown> {
        self.0[breakdown as usize].devices(snapshot)
    }

    fn each(ledger: impl Fn(Breakdown) -> BreakdownLedger) -> Self {
        Self(Breakdown::ALL.iter().map(|it| ledger(*it)).collect())
    }
}

impl CopySize for BreakdownLedgers {
    fn copy_bytes(&self) -> u64 {
        self.0.iter().map(CopySize::copy_bytes).sum()
    }
}

impl PeakAnalysis for BreakdownLedgers {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        for breakdown in &mut self.0 {
            breakdown.apply(event, change, ledger, categories);
        }
    }
}

#[cfg(test)]
mod tests;

//! Columns of a device: its events, its allocations, its segments.
//!
//! Event number `e` is the moment after the event with that index. An allocation is live from event `born` on, and until
//! before event `ended`. The page rebuilds every moment from these columns, without another table:
//! `allocated = live blocks + before attach, block unknown + not accounted for`.

use serde::Serialize;

use super::columns::{ColumnPlace, Columns, PageColumn};
use super::history::SegmentSpan;
use super::replay::PageReplay;
use super::tables::{BEFORE, TableBuilder};
use super::window::HeldEvents;
use crate::attribution::allocations::{Allocation, EventNumber};
use crate::attribution::category::Category;
use crate::attribution::segments::SegmentExtent;
use crate::attribution::tables::{PoolOfStream, SegmentRow};
use crate::event::{Bytes, DeviceIndex, TimeNs};
use crate::view::pool_name;

/// Most events of a device in a page, so that a browser can hold it.
pub(super) const MAX_EVENTS: usize = 3 << 20;

/// Code of a block without a category: from before attach, and without a label.
pub(super) const NO_CATEGORY: u64 = Category::ALL.len() as u64;

/// Unit of addresses and sizes of the caching allocator (`kMinBlockSize`, c10/core/AllocatorConfig.h@v2.9.0).
const BLOCK: u64 = 512;

#[derive(Debug, Serialize)]
pub(super) struct DeviceColumns {
    pub events: usize,
    pub allocations: usize,
    segments: usize,
    /// Bytes of one step of the columns `size` and `addr`.
    pub unit: u64,
    time: ColumnPlace,
    pub allocated: ColumnPlace,
    pub reserved: ColumnPlace,
    /// Bytes from before attach that are in no block.
    pub before: ColumnPlace,
    pub born: ColumnPlace,
    pub lifetime: ColumnPlace,
    pub size: ColumnPlace,
    pub addr: ColumnPlace,
    pub stack: ColumnPlace,
    purpose: ColumnPlace,
    pub category: ColumnPlace,
    /// Index of each allocation with a label, and the label.
    pub labeled: ColumnPlace,
    segment: ColumnPlace,
    pools: Vec<String>,
}

/// A device while its columns are written.
pub(super) struct DeviceWriter<'a, 'b> {
    pub replay: &'a PageReplay,
    pub device: DeviceIndex,
    pub events: &'a HeldEvents,
    pub tables: &'b mut TableBuilder<'a>,
}

/// An allocation in the numbering of the held events.
struct PlacedAllocation<'a> {
    index: usize,
    allocation: &'a Allocation,
    born: usize,
    /// `None` if it is live after the last event.
    ended: Option<usize>,
}

impl<'a> DeviceWriter<'a, '_> {
    pub(super) fn write(&mut self, columns: &mut Columns) -> DeviceColumns {
        let placed = self.placed();
        let unit = unit(&placed);
        let [time, allocated, reserved, before] = self.write_events(&placed, columns);
        let allocations = self.write_allocations(&placed, unit, columns);
        let [
            born,
            lifetime,
            size,
            addr,
            stack,
            purpose,
            category,
            labeled,
        ] = allocations;
        let (segment, segments, pools) = self.write_segments(columns);
        DeviceColumns {
            events: self.events.samples.len(),
            allocations: placed.len(),
            segments,
            unit,
            time,
            allocated,
            reserved,
            before,
            born,
            lifetime,
            size,
            addr,
            stack,
            purpose,
            category,
            labeled,
            segment,
            pools,
        }
    }

    /// Allocations that are live at some held event, in the order of their begin.
    fn placed(&self) -> Vec<PlacedAllocation<'a>> {
        let samples = &self.events.samples;
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return Vec::new();
        };
        let all = self.replay.history.allocations.allocations().iter();
        let of_device = all.enumerate().filter(|(_, it)| it.device == self.device);
        let begun = of_device.filter(|(_, it)| it.born <= last.number);
        let end = samples.len();
        let placed = begun.filter_map(|(index, allocation)| {
            let born = self.events.place(allocation.born);
            let ended = self.events.place(allocation.ended());
            let is_gone = allocation.ended() <= first.number;
            (!is_gone && (ended > born || ended == end)).then_some(PlacedAllocation {
                index,
                allocation,
                born,
                ended: (ended < end).then_some(ended),
            })
        });
        placed.collect()
    }

    fn write_events(
        &self,
        placed: &[PlacedAllocation<'_>],
        columns: &mut Columns,
    ) -> [ColumnPlace; 4] {
        let samples = &self.events.samples;
        let mut changes = vec![[0_i64; 2]; samples.len()];
        for it in placed {
            let bytes = it.allocation.size.0.cast_signed();
            let of_before = if it.allocation.is_baseline { bytes } else { 0 };
            for (event, sign) in [(Some(it.born), 1), (it.ended, -1)] {
                if let Some([live, before]) = event.and_then(|at| changes.get_mut(at)) {
                    *live = live.wrapping_add(sign * bytes);
                    *before = before.wrapping_add(sign * of_before);
                }
            }
        }
        let mut written: [PageColumn; 4] = Default::default();
        let [time, allocated, reserved, before] = &mut written;
        let start = self.replay.recording.snapshot.started;
        let (mut last_time, mut last_reserved, mut last_before) = (0, 0, 0);
        let (mut last_allocated, mut baseline) = (0_u64, 0_i64);
        for (sample, [live, of_before]) in samples.iter().zip(changes) {
            let now = microseconds(sample.time, start);
            time.number(now.saturating_sub(last_time));
            last_time = now;
            let expected = last_allocated.cast_signed().wrapping_add(live);
            allocated.signed(sample.allocated.cast_signed().wrapping_sub(expected));
            last_allocated = sample.allocated;
            reserved.difference(&mut last_reserved, sample.reserved);
            baseline = baseline.wrapping_add(of_before);
            let rest = sample.before_attach.cast_signed().wrapping_sub(baseline);
            before.difference(&mut last_before, rest.max(0).cast_unsigned());
        }
        written.map(|column| columns.push(&column))
    }

    fn write_allocations(
        &mut self,
        placed: &[PlacedAllocation<'_>],
        unit: u64,
        columns: &mut Columns,
    ) -> [ColumnPlace; 8] {
        let mut written: [PageColumn; 8] = Default::default();
        let [
            born,
            lifetime,
            size,
            addr,
            stack,
            purpose,
            category,
            labeled,
        ] = &mut written;
        let mut last_of_stack: Vec<[u64; 3]> = Vec::new();
        let (mut last_born, mut last_labeled) = (0, 0);
        for (number, it) in placed.iter().enumerate() {
            let allocation = it.allocation;
            born.number((it.born - last_born) as u64);
            last_born = it.born;
            lifetime.number(it.ended.map_or(0, |ended| (ended - it.born) as u64));
            let of_stack = match allocation.is_baseline {
                true => BEFORE,
                false => self.tables.stack(allocation.stack),
            };
            stack.number(of_stack as u64);
            if last_of_stack.len() <= of_stack {
                last_of_stack.resize(of_stack + 1, [0; 3]);
            }
            // Blocks of one stack are alike, so that the differences are often 0.
            let [last_size, last_addr, last_purpose] = &mut last_of_stack[of_stack];
            size.difference(last_size, allocation.size.0 / unit);
            addr.difference(last_addr, allocation.addr.0 / unit);
            let of_purpose = self.tables.purpose(allocation.purpose);
            purpose.difference(last_purpose, of_purpose as u64);
            category.number(allocation.category.map_or(NO_CATEGORY, |it| it as u64));
            if let Some(label) = self.replay.history.allocations.label(it.index) {
                labeled.number((number - last_labeled) as u64);
                labeled.number(self.tables.label(label) as u64);
                last_labeled = number;
            }
        }
        written.map(|column| columns.push(&column))
    }

    /// Five numbers for each segment: address, size, begin, end, pool.
    fn write_segments(&self, columns: &mut Columns) -> (ColumnPlace, usize, Vec<String>) {
        let none = Vec::new();
        let spans = self.replay.segments.spans.get(&self.device);
        let mut pools: Vec<String> = Vec::new();
        let mut column = PageColumn::default();
        let mut count = 0;
        for span in spans.unwrap_or(&none) {
            let begin = self.events.place(next(span.begin));
            let end = self.events.place(next(span.end));
            if begin >= end {
                continue;
            }
            let name = pool_name(PoolOfStream::of(&empty_row(&span.extent)));
            let pool = pools.iter().position(|known| *known == name);
            let pool = pool.unwrap_or_else(|| {
                pools.push(name);
                pools.len() - 1
            });
            let SegmentSpan { extent, .. } = span;
            column.number(extent.addr.0);
            column.number(extent.size.0);
            column.number(begin as u64);
            column.number(end as u64);
            column.number(pool as u64);
            count += 1;
        }
        (columns.push(&column), count, pools)
    }
}

/// Number of the event after `number`; the end stays the end.
const fn next(number: EventNumber) -> EventNumber {
    EventNumber(number.0.saturating_add(1))
}

fn empty_row(extent: &SegmentExtent) -> SegmentRow {
    SegmentRow {
        addr: extent.addr,
        size: extent.size,
        pool: extent.owner.map(|(pool, _)| pool),
        stream: extent.owner.map(|(_, stream)| stream),
        is_expandable: extent.is_expandable,
        pieces: Vec::new(),
        returnable: Bytes(0),
    }
}

/// Largest unit that divides every address and size.
fn unit(placed: &[PlacedAllocation<'_>]) -> u64 {
    let mut all = placed.iter().map(|it| it.allocation);
    let is_divided =
        |it: &Allocation| it.size.0.is_multiple_of(BLOCK) && it.addr.0.is_multiple_of(BLOCK);
    if all.all(is_divided) { BLOCK } else { 1 }
}

/// Microseconds since the start of the recording.
pub(super) fn microseconds(time: TimeNs, start: TimeNs) -> u64 {
    time.0.saturating_sub(start.0) / 1000
}

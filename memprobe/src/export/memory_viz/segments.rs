//! Segments at the end, with their blocks.

use std::io::{self, Write};

use super::{SnapshotWriter, allocation_at, metadata, requested_bytes};
use crate::attribution::segments::{SegmentBlock, SegmentBlockState, SegmentMap, SegmentRow};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, PoolSize};
use crate::ledger::StackRef;
use crate::recording::PickleItems;
use crate::view::clean;

impl<W: Write> SnapshotWriter<'_, W> {
    pub(super) fn segments(&mut self, maps: &[SegmentMap]) -> io::Result<()> {
        self.out.empty_list()?;
        let mut items = PickleItems::default();
        for map in maps {
            for row in &map.segments {
                items.next(&mut self.out)?;
                self.segment(map.index, row)?;
            }
        }
        items.end(&mut self.out)
    }

    fn segment(&mut self, device: DeviceIndex, row: &SegmentRow) -> io::Result<()> {
        let bytes = |state| row.bytes(state).0;
        let live = bytes(SegmentBlockState::Live);
        let active = live + bytes(SegmentBlockState::AwaitingEvent);
        let requested = row
            .pieces
            .iter()
            .map(|piece| self.requested(device, piece))
            .sum();
        self.out.empty_dict()?;
        self.out.mark()?;
        self.number_field("device", device.0.into())?;
        self.number_field("address", row.addr.0)?;
        self.number_field("total_size", row.size.0)?;
        self.number_field("allocated_size", live)?;
        self.number_field("active_size", active)?;
        self.number_field("requested_size", requested)?;
        self.stream_field(row.stream)?;
        // Without a reading of the allocator's tables, the pool of a segment is not known.
        if let Some(pool) = row.pool {
            let size = match pool.size {
                PoolSize::Small => "small",
                PoolSize::Large => "large",
            };
            self.text_field("segment_type", size)?;
            self.pool_field("segment_pool_id", pool)?;
        } else {
            self.text_field("segment_type", "unknown")?;
        }
        self.out.text("is_expandable")?;
        self.out.bool(row.is_expandable)?;
        self.out.text("frames")?;
        let stack = self.replay.segment_stacks.get(device, row.addr);
        self.frames(stack.unwrap_or(StackRef::UNKNOWN))?;
        self.out.text("blocks")?;
        self.out.empty_list()?;
        let mut items = PickleItems::default();
        for piece in &row.pieces {
            items.next(&mut self.out)?;
            self.block(device, piece)?;
        }
        items.end(&mut self.out)?;
        self.out.set()
    }

    fn block(&mut self, device: DeviceIndex, piece: &SegmentBlock) -> io::Result<()> {
        let state = match piece.state {
            SegmentBlockState::Live => "active_allocated",
            SegmentBlockState::AwaitingEvent => "active_pending_free",
            SegmentBlockState::Cached | SegmentBlockState::InactiveSplit => "inactive",
        };
        let requested = self.requested(device, piece);
        self.out.empty_dict()?;
        self.out.mark()?;
        self.number_field("address", piece.addr.0)?;
        self.number_field("size", piece.size.0)?;
        self.number_field("requested_size", requested)?;
        self.text_field("state", state)?;
        self.out.text("frames")?;
        let allocation = match piece.state {
            SegmentBlockState::Live => allocation_at(self.replay, device, piece.addr),
            _ => None,
        };
        let history = &self.replay.history;
        let allocation = allocation.map(|index| (index, &history.allocations()[index]));
        match allocation {
            Some((index, allocation)) if allocation.is_baseline => {
                let name = history.label(index).and_then(|label| label.name.as_ref());
                match name {
                    Some(name) => self.baseline_frames(&clean(&name.text))?,
                    None => self.frames(StackRef::UNKNOWN)?,
                }
            }
            Some((_, allocation)) => self.frames(allocation.stack)?,
            None => self.frames(StackRef::UNKNOWN)?,
        }
        if let Some((index, allocation)) = allocation {
            self.metadata_field(&metadata(self.replay, index, allocation))?;
        }
        self.out.set()
    }

    /// Requested bytes of a block; 0 of a free one.
    fn requested(&self, device: DeviceIndex, piece: &SegmentBlock) -> u64 {
        match piece.state {
            SegmentBlockState::Live => {
                let index = allocation_at(self.replay, device, piece.addr);
                let allocation = index.map(|index| &self.replay.history.allocations()[index]);
                allocation.map_or(piece.size.0, |it| requested_bytes(self.replay, it))
            }
            SegmentBlockState::AwaitingEvent => piece.size.0,
            SegmentBlockState::Cached | SegmentBlockState::InactiveSplit => 0,
        }
    }
}

/// Sentences on segments that are missing.
pub(super) fn notes(maps: &[SegmentMap], ordinals: &[DeviceIndex]) -> Vec<String> {
    let mut notes = Vec::new();
    for device in ordinals {
        let Some(map) = maps.iter().find(|map| map.index == *device) else {
            notes.push(format!(
                "the recording has no reading of the segments of {device}: the trace works, the page's state of memory \
                 does not; record again with this memprobe"
            ));
            continue;
        };
        if let Some(reason) = &map.unread {
            notes.push(format!(
                "the segments of {device} could not be read ({}): the page's state of memory lacks them",
                clean(reason)
            ));
        }
        if map.unplaced != 0 {
            let bytes = human(Bytes(map.unplaced.unsigned_abs()));
            let reason = match map.read {
                Some(_) => "they changed after the last reading",
                None => {
                    "the recording has no reading of the allocator's tables; record again with this memprobe"
                }
            };
            notes.push(format!(
                "the segments of {device} differ from what the allocator has reserved by {bytes}: {reason}"
            ));
        }
        if map.outside > Bytes(0) {
            let bytes = human(map.outside);
            notes.push(format!(
                "{bytes} live on {device} lie in no known segment: the page's state of memory lacks them"
            ));
        }
    }
    notes
}

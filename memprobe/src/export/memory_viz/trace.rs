//! Events of one device, in the order of the recording.

use std::io::{self, BufRead, Write};
use std::sync::atomic::AtomicU64;

use super::{SnapshotWriter, category, event_facts, innermost, metadata, requested_bytes};
use crate::attribution::allocations::EventNumber;
use crate::attribution::category::Category;
use crate::event::{Action, DeviceIndex, Pool, TimeNs};
use crate::export::ExportError;
use crate::export::second_replay::{ReplayedEvent, replay_again};
use crate::ledger::StackRef;
use crate::recording::{PickleItems, Reader};

/// An entry of a trace.
struct TraceEntry<'a> {
    action: &'static str,
    addr: u64,
    size: u64,
    owner: Option<(Pool, u64)>,
    time: TimeNs,
    stack: StackRef,
    category: Option<Category>,
    metadata: &'a [(&'static str, String)],
}

impl<W: Write> SnapshotWriter<'_, W> {
    pub(super) fn trace<R: BufRead>(
        &mut self,
        device: DeviceIndex,
        reader: &Reader<R>,
        progress: &AtomicU64,
    ) -> Result<(), ExportError> {
        self.out.empty_list()?;
        self.entries = 0;
        let mut items = PickleItems::default();
        replay_again(self.replay, reader, progress, |replayed| {
            let of = replayed.event.device;
            if device == self.first {
                self.place_side_events(replayed.number);
            }
            match replayed.event.action {
                Action::SegmentAlloc | Action::SegmentFree if of.is_none() => {
                    self.gaps.placeless += u64::from(device == self.first);
                }
                _ if of == Some(DeviceIndex::CPU) && device == self.first => {
                    self.gaps.cpu_events += 1
                }
                _ if of == Some(device) => self.replayed(&replayed, &mut items)?,
                _ => {}
            }
            Ok(())
        })?;
        // The page needs a category of this name if any event has one.
        items.next(&mut self.out)?;
        self.entry(&TraceEntry {
            action: "snapshot",
            addr: 0,
            size: 0,
            owner: None,
            time: self.replay.end(),
            stack: StackRef::UNKNOWN,
            category: None,
            metadata: &[],
        })?;
        items.end(&mut self.out)?;
        Ok(())
    }

    /// Notes where the marks and labels before an event stand in the trace.
    fn place_side_events(&mut self, number: EventNumber) {
        let others = self.replay.side_events.found.get(self.positions.len()..);
        let earlier = others.unwrap_or_default().iter();
        let earlier = earlier.take_while(|side| side.after < number).count();
        self.positions
            .extend(std::iter::repeat_n(self.entries, earlier));
    }

    fn replayed(
        &mut self,
        replayed: &ReplayedEvent<'_, '_>,
        items: &mut PickleItems,
    ) -> io::Result<()> {
        let event = replayed.event;
        let mut entry = TraceEntry {
            action: "oom",
            addr: event.addr.0,
            size: event.size.0,
            owner: replayed.owner,
            time: event.time,
            stack: replayed.stack,
            category: None,
            metadata: &[],
        };
        match event.action {
            Action::Alloc => self.alloc(replayed, entry, items),
            Action::Free => self.free(replayed, entry, items),
            Action::SegmentAlloc | Action::SegmentFree if event.is_of_expandable_segment() => {
                self.gaps.mappings += 1;
                Ok(())
            }
            Action::SegmentAlloc | Action::SegmentFree => {
                entry.action = match event.action {
                    Action::SegmentAlloc => "segment_alloc",
                    _ => "segment_free",
                };
                self.placed(&entry, items)
            }
            Action::OutOfMemory => {
                self.gaps.failures += 1;
                // Its address is 0, which lies in no segment: the stream of the request is not known.
                items.next(&mut self.out)?;
                self.entry(&entry)
            }
            Action::SegmentSleep
            | Action::SegmentWake
            | Action::CudaAlloc
            | Action::CudaFree
            | Action::CudaOutOfMemory
            | Action::Held => Ok(()),
        }
    }

    fn alloc(
        &mut self,
        replayed: &ReplayedEvent<'_, '_>,
        entry: TraceEntry<'_>,
        items: &mut PickleItems,
    ) -> io::Result<()> {
        let of = replayed.allocation.map(|(_, allocation)| allocation);
        let facts = replayed
            .allocation
            .map(|(index, of)| metadata(self.replay, index, of));
        let mut facts = facts.unwrap_or_default();
        facts.extend(event_facts(self.replay, replayed.event.tid, of));
        let entry = TraceEntry {
            action: "alloc",
            size: of.map_or(entry.size, |of| requested_bytes(self.replay, of)),
            category: of.and_then(|of| of.category),
            metadata: &facts,
            ..entry
        };
        self.placed(&entry, items)
    }

    /// Writes a free, and its completion unless the block still awaits an event at the end.
    fn free(
        &mut self,
        replayed: &ReplayedEvent<'_, '_>,
        entry: TraceEntry<'_>,
        items: &mut PickleItems,
    ) -> io::Result<()> {
        let of = replayed.allocation.map(|(_, allocation)| allocation);
        let facts = of.and_then(|of| innermost(self.replay, of.stack));
        let line = facts.map(|line| ("allocated at", line)).into_iter();
        let facts = event_facts(self.replay, replayed.event.tid, of);
        let facts: Vec<_> = line.chain(facts).collect();
        let mut entry = TraceEntry {
            action: "free_requested",
            size: of.map_or(entry.size, |of| requested_bytes(self.replay, of)),
            category: of.and_then(|of| of.category),
            metadata: &facts,
            ..entry
        };
        self.placed(&entry, items)?;
        let is_pending =
            (replayed.allocation).is_some_and(|(index, _)| self.pending.contains(&index));
        if is_pending {
            return Ok(());
        }
        entry.action = "free_completed";
        self.placed(&entry, items)
    }

    /// Writes an event at an address.
    fn placed(&mut self, entry: &TraceEntry<'_>, items: &mut PickleItems) -> io::Result<()> {
        self.gaps.unknown_streams += u64::from(entry.owner.is_none());
        items.next(&mut self.out)?;
        self.entry(entry)
    }

    fn entry(&mut self, entry: &TraceEntry<'_>) -> io::Result<()> {
        self.entries += 1;
        self.out.empty_dict()?;
        self.out.mark()?;
        self.text_field("action", entry.action)?;
        // A failed request has the GPU's free memory in place of an address, which memprobe does not know.
        let addr = match entry.action {
            "oom" => "device_free",
            _ => "addr",
        };
        self.number_field(addr, entry.addr)?;
        self.number_field("size", entry.size)?;
        let stream = match entry.action {
            // As PyTorch has it. With another number, the page would show the stream of each event.
            "snapshot" => Some(0),
            _ => entry.owner.map(|(_, stream)| stream),
        };
        self.stream_field(stream)?;
        self.number_field("time_us", self.replay.wall_us(entry.time))?;
        self.text_field("compile_context", "N/A")?;
        self.metadata_field(entry.metadata)?;
        if let Some((pool, _)) = entry.owner {
            self.pool_field("pool_id", pool)?;
        }
        self.text_field("category", category(entry.category))?;
        self.out.text("frames")?;
        self.frames(entry.stack)?;
        self.out.set()
    }
}

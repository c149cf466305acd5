//! Segments, blocks and events in a decoded snapshot.
//!
//! The keys are those of `torch/csrc/cuda/memory_snapshot.cpp` and `torch/csrc/cuda/Module.cpp` from v2.0.0 to v2.15.0.
//! PyTorch 2.0 has no addresses of blocks, and the stacks in `history`. Unknown keys are left out, missing ones empty.

use super::PickleError;
use super::machine::{DictId, Document, ListId, Value};
use super::metadata::MetadataReader;
use super::side_events::{PickledSideEvent, PickledSideEvents};
use super::stacks::PickledStacks;
use crate::event::{DeviceIndex, PurposeId, StackId, Tid};

/// Most devices of one process.
pub(super) const MAX_DEVICES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct MemoryPickle {
    pub segments: Vec<PickledSegment>,
    /// Events of each device, in order.
    pub traces: Vec<Vec<TraceEntry>>,
    pub unknown_entries: u64,
    pub host_entries: u64,
    /// Marks and labels; [`EntryKind::Side`] has their indices.
    pub side_events: Vec<PickledSideEvent>,
    pub refused_side_events: u64,
    /// True if memprobe wrote it: its trace then has every allocation that was seen.
    pub is_own: bool,
    unread: UnreadItems,
}

/// Items of lists that are still to be read. Values may refer to one list any number of times; PyTorch's are read once.
#[derive(Debug, Default)]
struct UnreadItems(usize);

impl UnreadItems {
    fn take<'a>(
        &mut self,
        document: &'a Document,
        list: ListId,
    ) -> Result<&'a [Value], PickleError> {
        let items = document.list(list);
        self.0 = (self.0.checked_sub(items.len())).ok_or(PickleError::Repeated)?;
        Ok(items)
    }
}

#[derive(Debug)]
pub(super) struct PickledSegment {
    pub device: DeviceIndex,
    pub size: u64,
    /// Allocated blocks; free ones and those that wait for an event are left out.
    pub blocks: Vec<AllocatedBlock>,
}

#[derive(Debug)]
pub(super) struct AllocatedBlock {
    pub address: u64,
    pub size: u64,
    /// `None` if PyTorch kept none.
    pub stack: Option<StackId>,
    pub purpose: PurposeId,
}

/// Stacks and purposes of a snapshot.
pub(super) struct PickledDefinitions {
    pub stacks: PickledStacks,
    pub metadata: MetadataReader,
}

impl PickledDefinitions {
    pub fn of(document: &Document) -> Self {
        Self {
            stacks: PickledStacks::default(),
            metadata: MetadataReader::of(document),
        }
    }

    /// Returns the stack of an event or block.
    fn stack(&mut self, document: &Document, entry: DictId, frames: Option<ListId>) -> StackId {
        let facts = self.metadata.stack_facts(document, entry);
        self.stacks.of(document, frames, facts)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Alloc,
    /// The program gave the block back: `free_requested`. It leaves `allocated` now, not at `free_completed`.
    Free,
    SegmentAlloc,
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    SegmentUnmap,
    OutOfMemory,
    /// A mark or labels, by index.
    Side(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TraceEntry {
    pub kind: EntryKind,
    /// 0 for [`EntryKind::OutOfMemory`] and [`EntryKind::Side`].
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Bytes of the block; `None` if they are not known.
    pub block: Option<u64>,
    /// Microseconds since 1970; `None` before PyTorch 2.2.
    pub time_us: Option<u64>,
    /// Stack of an allocation or error.
    pub stack: StackId,
    /// Tensor of an allocation.
    pub purpose: PurposeId,
    pub tid: Tid,
}

impl MemoryPickle {
    /// Returns the snapshot in a document.
    ///
    /// # Errors
    ///
    /// If the document is another, or refers to its lists several times.
    pub fn of(
        document: &Document,
        definitions: &mut PickledDefinitions,
        side_events: PickledSideEvents,
    ) -> Result<Self, PickleError> {
        let unread = UnreadItems(document.list_items());
        let Value::Dict(root) = document.root else {
            // `torch.cuda.memory_snapshot()` is the list of segments alone.
            let Value::List(segments) = document.root else {
                return Err(PickleError::Foreign);
            };
            let mut snapshot = Self {
                unread,
                ..Self::default()
            };
            snapshot.read_segments(document, segments, definitions)?;
            return match snapshot.segments.is_empty() {
                true => Err(PickleError::Foreign),
                false => Ok(snapshot),
            };
        };
        let list = |key| match document.get(root, key) {
            Some(Value::List(list)) => Some(list),
            _ => None,
        };
        let mut snapshot = Self {
            is_own: definitions.metadata.is_own,
            side_events: side_events.events,
            refused_side_events: side_events.refused,
            unread,
            ..Self::default()
        };
        let segments = list("segments").ok_or(PickleError::Foreign)?;
        snapshot.read_segments(document, segments, definitions)?;
        if let Some(traces) = list("device_traces") {
            for (ordinal, trace) in (0..).zip(document.list(traces).iter().take(MAX_DEVICES)) {
                let entries = snapshot.entries(document, (ordinal, *trace), definitions)?;
                snapshot.traces.push(entries);
            }
        }
        for key in ["host_segments", "host_traces"] {
            snapshot.host_entries += list(key).map_or(0, |list| parts(document, list));
        }
        Ok(snapshot)
    }

    /// Reads the segments.
    fn read_segments(
        &mut self,
        document: &Document,
        segments: ListId,
        definitions: &mut PickledDefinitions,
    ) -> Result<(), PickleError> {
        for segment in self.unread.take(document, segments)? {
            let found = SegmentFields::of(document, *segment).ok_or(PickleError::Foreign)?;
            let blocks = self.unread.take(document, found.blocks)?;
            self.segments.push(PickledSegment {
                device: found.device,
                size: found.size,
                blocks: allocated(document, found.address, blocks, definitions),
            });
        }
        Ok(())
    }

    fn entries(
        &mut self,
        document: &Document,
        (ordinal, trace): (u8, Value),
        definitions: &mut PickledDefinitions,
    ) -> Result<Vec<TraceEntry>, PickleError> {
        let Value::List(trace) = trace else {
            return Ok(Vec::new());
        };
        let mut sides = (0..).zip(&self.side_events);
        let sides = sides.by_ref().filter(|(_, side)| side.device.0 == ordinal);
        let sides: Vec<(u32, u64)> = sides.map(|(index, side)| (index, side.position)).collect();
        let mut sides = sides.into_iter().peekable();
        let entries = self.unread.take(document, trace)?;
        let mut found = Vec::with_capacity(entries.len() + sides.len());
        for (position, entry) in (0..).zip(entries) {
            while let Some((index, _)) = sides.next_if(|(_, at)| *at <= position) {
                found.push(TraceEntry::side(index));
            }
            if let Value::Dict(entry) = *entry {
                found.extend(self.entry(document, entry, definitions));
            }
        }
        found.extend(sides.map(|(index, _)| TraceEntry::side(index)));
        Ok(found)
    }

    /// Returns an event that changes memory; `None` for others.
    fn entry(
        &mut self,
        document: &Document,
        entry: DictId,
        definitions: &mut PickledDefinitions,
    ) -> Option<TraceEntry> {
        let action = match document.get(entry, "action") {
            Some(Value::Text(action)) => document.text(action),
            _ => "",
        };
        let kind = match action {
            "alloc" => EntryKind::Alloc,
            "free_requested" => EntryKind::Free,
            "segment_alloc" => EntryKind::SegmentAlloc,
            "segment_free" => EntryKind::SegmentFree,
            "segment_map" => EntryKind::SegmentMap,
            "segment_unmap" => EntryKind::SegmentUnmap,
            "oom" => EntryKind::OutOfMemory,
            "free_completed" | "snapshot" | "annotate" | "user_defined" => return None,
            _ => {
                self.unknown_entries += 1;
                return None;
            }
        };
        let number = |key| number(document, entry, key);
        let size = number("size").unwrap_or(0);
        let purpose = match kind {
            EntryKind::Alloc => definitions.metadata.purpose(document, entry, size),
            _ => PurposeId::NONE,
        };
        Some(TraceEntry {
            kind,
            address: number("addr")
                .filter(|_| kind != EntryKind::OutOfMemory)
                .unwrap_or(0),
            size,
            block: definitions.metadata.block_bytes(document, entry),
            purpose,
            tid: definitions.metadata.thread(document, entry),
            time_us: number("time_us"),
            stack: match kind {
                EntryKind::Free | EntryKind::SegmentFree | EntryKind::SegmentUnmap => StackId::NONE,
                _ => definitions.stack(document, entry, frames(document, entry)),
            },
        })
    }
}

impl TraceEntry {
    fn side(index: u32) -> Self {
        Self {
            kind: EntryKind::Side(index),
            address: 0,
            size: 0,
            block: None,
            time_us: None,
            stack: StackId::NONE,
            purpose: PurposeId::NONE,
            tid: Tid::UNKNOWN,
        }
    }
}

/// Fields of a segment.
struct SegmentFields {
    device: DeviceIndex,
    address: u64,
    size: u64,
    blocks: ListId,
}

impl SegmentFields {
    fn of(document: &Document, segment: Value) -> Option<Self> {
        let Value::Dict(segment) = segment else {
            return None;
        };
        let number = |key| number(document, segment, key);
        let device = u8::try_from(number("device")?).ok();
        let Some(Value::List(blocks)) = document.get(segment, "blocks") else {
            return None;
        };
        Some(Self {
            device: DeviceIndex(device.filter(|device| usize::from(*device) < MAX_DEVICES)?),
            address: number("address")?,
            size: number("total_size")?,
            blocks,
        })
    }
}

/// Returns the allocated blocks of a segment at `address`.
fn allocated(
    document: &Document,
    address: u64,
    blocks: &[Value],
    definitions: &mut PickledDefinitions,
) -> Vec<AllocatedBlock> {
    let mut at = address;
    let mut found = Vec::new();
    for block in blocks {
        let Value::Dict(block) = *block else {
            continue;
        };
        let size = number(document, block, "size").unwrap_or(0);
        let address = number(document, block, "address").unwrap_or(at);
        at = address.saturating_add(size);
        let state = document.get(block, "state");
        let is_allocated = matches!(state, Some(Value::Text(state)) if &**document.text(state) == "active_allocated");
        if is_allocated && size > 0 {
            let frames = frames(document, block).or_else(|| latest_frames(document, block));
            let requested = number(document, block, "requested_size").unwrap_or(size);
            found.push(AllocatedBlock {
                address,
                size,
                stack: frames.map(|frames| definitions.stack(document, block, Some(frames))),
                purpose: definitions.metadata.purpose(document, block, requested),
            });
        }
    }
    found
}

/// Returns the stack in PyTorch 2.0's history of a block.
fn latest_frames(document: &Document, block: DictId) -> Option<ListId> {
    match document.get(block, "history")? {
        Value::List(history) => match *document.list(history).first()? {
            Value::Dict(latest) => frames(document, latest),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a list of frames. It is empty for a thread without Python, and missing if no stack was recorded.
pub(super) fn frames(document: &Document, of: DictId) -> Option<ListId> {
    match document.get(of, "frames") {
        Some(Value::List(frames)) => Some(frames),
        _ => None,
    }
}

fn number(document: &Document, of: DictId, key: &str) -> Option<u64> {
    match document.get(of, key) {
        Some(Value::Int(number)) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Counts the items of a list, or of the lists in it.
fn parts(document: &Document, list: ListId) -> u64 {
    let parts = document.list(list).iter();
    let counts = parts.map(|part| match part {
        Value::List(inner) => document.list(*inner).len() as u64,
        _ => 1,
    });
    counts.sum()
}

//! PyTorch's own format: the pickle of `torch.cuda.memory._snapshot()`, for <https://pytorch.org/memory_viz>.
//!
//! The keys are those of `torch/csrc/cuda/memory_snapshot.cpp` at v2.15.0. The page replays the trace backwards from
//! the segments at the end (torch/utils/viz/MemoryViz.js).

mod segments;
mod settings;
mod side_events;
mod trace;

use std::io::{self, BufRead, Write};
use std::sync::atomic::AtomicU64;

use hashbrown::{HashMap, HashSet};

use super::ExportError;
use super::replay::ExportReplay;
use crate::attribution::allocation_groups::ModuleScope;
use crate::attribution::allocations::{Allocation, requested};
use crate::attribution::category::Category;
use crate::attribution::segments::{SegmentBlockState, SegmentMap};
use crate::event::{
    Address, DeviceIndex, Frame, Grad, Pool, PoolId, PoolOwner, PurposeId, StackKind, Tid,
};
use crate::ledger::StackRef;
use crate::ledger::snapshot::{Grouping, Site};
use crate::recording::{
    CALLED_BACKWARD, NO_TENSOR, PICKLE_WRITER_KEY, PickleItems, PickleMemo, PickleWriter, Reader,
    UNKNOWN_MODULE, rounded_request,
};
use crate::view::{BEFORE_ATTACH, counted, full_retainer, whole_frame, whole_tensor_name};

/// Stream of memory whose stream is not known. No stream has this number.
const UNKNOWN_STREAM: i64 = -1;

/// Category of events without one. The page needs it if any event has a category.
const NO_CATEGORY: &str = "unknown";

/// Writes a recording as a pickle; returns sentences on what it lacks.
pub(super) fn write<R: BufRead>(
    replay: &ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    out: &mut impl Write,
) -> Result<Vec<String>, ExportError> {
    let snapshot = replay.ledger.snapshot(replay.end(), Grouping::default());
    let maps = replay.segments.maps(&replay.ledger, &snapshot);
    let ordinals = snapshot.devices.iter().map(|device| device.index);
    let ordinals: Vec<DeviceIndex> = ordinals.filter(|device| is_cuda(*device)).collect();
    let Some(first) = ordinals.first().copied() else {
        return Err(ExportError::Nothing(
            "PyTorch's format is for CUDA memory, and it has none; give --format folded, speedscope or pprof"
                .to_owned(),
        ));
    };
    let mut writer = SnapshotWriter {
        replay,
        first,
        pending: pending(replay, &maps),
        stacks: HashMap::new(),
        no_frames: None,
        gaps: TraceGaps::default(),
        entries: 0,
        positions: Vec::new(),
        out: PickleWriter::new(out)?,
    };
    writer.snapshot(&maps, &ordinals, reader, progress)?;
    let SnapshotWriter { out, gaps, .. } = writer;
    out.finish()?;
    let mut notes = gaps.notes();
    if replay.header.target.allocator_conf.is_some() {
        notes.push(
            "`allocator_settings` are those of the environment: memprobe does not see if the program changed them"
                .to_owned(),
        );
    }
    notes.extend(segments::notes(&maps, &ordinals));
    Ok(notes)
}

fn is_cuda(device: DeviceIndex) -> bool {
    device != DeviceIndex::CPU && device != DeviceIndex::UNKNOWN
}

/// Allocations whose blocks still await an event at the end: indices in the history, by device and address.
fn pending(replay: &ExportReplay, maps: &[SegmentMap]) -> HashSet<usize> {
    let mut awaiting: HashMap<(DeviceIndex, u64), Option<usize>> = HashMap::new();
    for map in maps {
        let pieces = map.segments.iter().flat_map(|row| &row.pieces);
        let pieces = pieces.filter(|piece| piece.state == SegmentBlockState::AwaitingEvent);
        awaiting.extend(pieces.map(|piece| ((map.index, piece.addr.0), None)));
    }
    if awaiting.is_empty() {
        return HashSet::new();
    }
    for (index, allocation) in replay.history.allocations().iter().enumerate() {
        if let Some(last) = awaiting.get_mut(&(allocation.device, allocation.addr.0)) {
            *last = Some(index);
        }
    }
    awaiting.into_values().flatten().collect()
}

/// Counts of what the trace could not hold.
#[derive(Default)]
struct TraceGaps {
    unknown_streams: u64,
    /// Events of expandable segments.
    mappings: u64,
    failures: u64,
    cpu_events: u64,
    /// Segments of an unknown device.
    placeless: u64,
}

impl TraceGaps {
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.unknown_streams > 0 {
            notes.push(format!(
                "the stream of {} is not known, and written as {UNKNOWN_STREAM}: no reading of the allocator's segments \
                 came after them",
                counted(self.unknown_streams, "event")
            ));
        }
        if self.mappings > 0 {
            notes.push(format!(
                "{} of expandable segments left out of the trace: the recording has no addresses of them",
                counted(self.mappings, "mapping")
            ));
        }
        if self.failures > 0 {
            notes.push(format!(
                "the GPU's free memory at {} is not recorded: `device_free` is 0",
                counted(self.failures, "failed request")
            ));
        }
        if self.cpu_events > 0 {
            notes.push(format!(
                "{} of CPU tensors left out: PyTorch's format is for CUDA memory",
                counted(self.cpu_events, "event")
            ));
        }
        if self.placeless > 0 {
            notes.push(format!(
                "{} of an unknown device left out of the trace",
                counted(self.placeless, "segment event")
            ));
        }
        notes
    }
}

struct SnapshotWriter<'a, W> {
    replay: &'a ExportReplay,
    /// Device whose trace counts what is in no trace.
    first: DeviceIndex,
    pending: HashSet<usize>,
    /// Lists of frames that were written.
    stacks: HashMap<StackRef, PickleMemo>,
    no_frames: Option<PickleMemo>,
    gaps: TraceGaps,
    /// Entries of the trace that is being written.
    entries: u64,
    /// Entries of the first trace before each mark or set of labels, of those that an event follows.
    positions: Vec<u64>,
    out: PickleWriter<W>,
}

impl<W: Write> SnapshotWriter<'_, W> {
    fn snapshot<R: BufRead>(
        &mut self,
        maps: &[SegmentMap],
        ordinals: &[DeviceIndex],
        reader: &Reader<R>,
        progress: &AtomicU64,
    ) -> Result<(), ExportError> {
        self.out.empty_dict()?;
        self.out.mark()?;
        self.out.text("segments")?;
        self.segments(maps)?;
        self.out.text("device_traces")?;
        self.traces(ordinals, reader, progress)?;
        self.allocator_settings()?;
        self.out.text("external_annotations")?;
        self.out.empty_list()?;
        self.text_field(PICKLE_WRITER_KEY, env!("CARGO_PKG_VERSION"))?;
        self.header()?;
        self.threads()?;
        self.side_events()?;
        self.out.set()?;
        Ok(())
    }

    fn traces<R: BufRead>(
        &mut self,
        ordinals: &[DeviceIndex],
        reader: &Reader<R>,
        progress: &AtomicU64,
    ) -> Result<(), ExportError> {
        let last = ordinals.iter().map(|device| device.0).max().unwrap_or(0);
        self.out.empty_list()?;
        let mut traces = PickleItems::default();
        for ordinal in 0..=last {
            traces.next(&mut self.out)?;
            let device = DeviceIndex(ordinal);
            if ordinals.contains(&device) {
                self.trace(device, reader, progress)?;
            } else {
                self.out.empty_list()?;
            }
        }
        traces.end(&mut self.out)?;
        Ok(())
    }

    fn text_field(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.out.text(key)?;
        self.out.text(value)
    }

    fn number_field(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.out.text(key)?;
        self.out.unsigned(value)
    }

    fn stream_field(&mut self, stream: Option<u64>) -> io::Result<()> {
        self.out.text("stream")?;
        match stream {
            Some(stream) => self.out.unsigned(stream),
            None => self.out.int(UNKNOWN_STREAM),
        }
    }

    /// Writes facts that the page shows; an empty text, as PyTorch does, if there are none.
    fn metadata_field(&mut self, facts: &[(&'static str, String)]) -> io::Result<()> {
        self.out.text("user_metadata")?;
        if facts.is_empty() {
            return self.out.text("");
        }
        self.out.empty_dict()?;
        self.out.mark()?;
        for (key, value) in facts {
            self.text_field(key, value)?;
        }
        self.out.set()
    }

    fn pool_field(&mut self, key: &str, pool: Pool) -> io::Result<()> {
        let PoolId(first, second) = match pool.owner {
            PoolOwner::Default => PoolId::default(),
            PoolOwner::Private { id, .. } => id,
        };
        self.out.text(key)?;
        self.out.mark()?;
        self.out.unsigned(first)?;
        self.out.unsigned(second)?;
        self.out.tuple()
    }

    /// Writes the frames of a stack, innermost first; none for [`StackRef::UNKNOWN`].
    fn frames(&mut self, stack: StackRef) -> io::Result<()> {
        let key = Some(stack).filter(|stack| *stack != StackRef::UNKNOWN);
        let known = match key {
            Some(stack) => self.stacks.get(&stack).copied(),
            None => self.no_frames,
        };
        if let Some(memo) = known {
            return self.out.refer(memo);
        }
        self.out.empty_list()?;
        let memo = self.out.memo()?;
        let Some(stack) = key else {
            self.no_frames = Some(memo);
            return Ok(());
        };
        self.stacks.insert(stack, memo);
        let mut items = PickleItems::default();
        for frame in &self.replay.stack(stack).frames {
            items.next(&mut self.out)?;
            self.frame(frame)?;
        }
        items.end(&mut self.out)
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        // The page shows native code by its library, if its source is not known.
        let file = match (&frame.library, &*frame.file) {
            (Some(library), "") => library,
            _ => &frame.file,
        };
        self.out.empty_dict()?;
        self.out.mark()?;
        self.text_field("name", &frame.function)?;
        self.text_field("filename", file)?;
        self.number_field("line", frame.line.into())?;
        self.out.set()
    }

    /// Writes a frame that stands for the name of memory from before attach.
    fn baseline_frames(&mut self, name: &str) -> io::Result<()> {
        self.out.empty_list()?;
        self.out.mark()?;
        self.out.empty_dict()?;
        self.out.mark()?;
        self.text_field("name", name)?;
        self.text_field("filename", BEFORE_ATTACH)?;
        self.number_field("line", 0)?;
        self.out.set()?;
        self.out.append()
    }
}

/// Facts on an allocation that the page shows as user metadata.
fn metadata(
    replay: &ExportReplay,
    index: usize,
    allocation: &Allocation,
) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let stack = (!allocation.is_baseline).then(|| replay.stack(allocation.stack));
    if stack.is_some() {
        let module = match replay.module_scope(allocation.stack) {
            ModuleScope::Module(path) => Some(path.to_string()),
            ModuleScope::Unknown | ModuleScope::BackwardUnknown => Some(UNKNOWN_MODULE.to_owned()),
            ModuleScope::Outside | ModuleScope::TooMany => None,
        };
        facts.extend(module.map(|module| ("module", module)));
    }
    if let Some(stack) = stack {
        if let Some(node) = &stack.context.node {
            facts.push(("autograd node", node.name.to_string()));
        }
        let site = replay.ledger.site(allocation.stack, Grouping::User);
        if let Site::Node { forward, .. } = site {
            facts.push(("operation at", whole_frame(forward)));
        }
        match &stack.kind {
            StackKind::Waiting { thread } => {
                facts.push(("thread", format!("{thread}{CALLED_BACKWARD}")));
            }
            StackKind::Unknown { thread, reason } => {
                facts.push(("thread", format!("{thread}: {}", reason.as_str())));
            }
            StackKind::Python | StackKind::Native => {}
        }
    }
    if let Some(stack) = stack
        && stack.context.grad != Grad::Unknown
    {
        facts.push(("grad", stack.context.grad.as_str().to_owned()));
    }
    if allocation.purpose == PurposeId::NO_TENSOR {
        facts.push(("purpose", NO_TENSOR.to_owned()));
    } else if let Some(purpose) = replay.ledger.purpose(allocation.purpose) {
        match purpose.tensor() {
            Some(tensor) => facts.push(("tensor", format!("{tensor} {}", tensor.dtype))),
            None => facts.extend(purpose.purpose().map(|it| ("purpose", it.to_string()))),
        }
    }
    if let Some(label) = replay.history.label(index) {
        facts.extend(
            label
                .name
                .iter()
                .map(|name| ("name", whole_tensor_name(name))),
        );
        let retainer = label.retainer.as_deref();
        facts.extend(retainer.map(|it| ("retained by", full_retainer(it))));
    }
    facts
}

/// Thread of an event, and bytes of the block where the request does not tell them.
fn event_facts(
    replay: &ExportReplay,
    tid: Tid,
    allocation: Option<&Allocation>,
) -> impl Iterator<Item = (&'static str, String)> {
    let thread = (tid != Tid::UNKNOWN).then(|| ("tid", tid.0.to_string()));
    let size = allocation.map(|it| (it.size.0, requested_bytes(replay, it)));
    let size = size.filter(|(size, requested)| rounded_request(*requested) != *size);
    let size = size.map(|(size, _)| ("block bytes", size.to_string()));
    thread.into_iter().chain(size)
}

fn category(category: Option<Category>) -> &'static str {
    category.map_or(NO_CATEGORY, Category::key)
}

/// Requested bytes of an allocation, or those of the block if they are unknown.
fn requested_bytes(replay: &ExportReplay, allocation: &Allocation) -> u64 {
    let purpose = replay.ledger.purpose(allocation.purpose);
    requested(allocation.size, purpose.map(|purpose| &**purpose)).0
}

/// Innermost frame of a stack, as text.
fn innermost(replay: &ExportReplay, stack: StackRef) -> Option<String> {
    replay.stack(stack).frames.first().map(whole_frame)
}

/// Index of the allocation of a block by its address.
fn allocation_at(replay: &ExportReplay, device: DeviceIndex, addr: Address) -> Option<usize> {
    let block = replay.ledger.block_at(device, addr)?;
    replay.history.index_of(block)
}

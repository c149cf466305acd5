//! Plain data that flows from the probes, or from a recording, to the model.
//!
//! Live capture and replay differ only in the source of the [`Event`]s. Nothing here does I/O, reads a clock
//! or knows an interpreter.

mod budget;
pub mod bytes;
mod capture_options;
mod context;
mod driver;
mod gpu;
mod kv_cache;
mod names;
mod segments;
mod target;
pub mod tensors;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::{EnumString, IntoStaticStr};

pub use budget::{CaptureChange, CaptureLevel, ProbeCost, TimeShare};
pub use capture_options::{CaptureOptions, Detail, GraphTracking};
pub use context::{Context, Grad, MarkedPhase, Module, Node, PhaseMark};
pub use driver::{DriverCount, DriverReading};
pub use gpu::{DeviceIdentity, Gpu, IdentitySource, MigIdentity};
pub use kv_cache::{KvCaches, KvGap, KvPool, KvRequest, KvUnit, PrivateFree};
pub use names::{
    BlockLabels, CallPathOrigin, CallPaths, CalledModule, LabeledBlock, MAX_TAGS, ModuleAddress,
    StepSettings, TaggedAllocation,
};
pub use segments::{
    DeviceSegments, MemorySegment, Pool, PoolId, PoolOwner, PoolSize, PrivatePoolState,
    SegmentReading,
};
pub use target::{LoadedLibrary, ProbeStatus, ProcessGroup, Target, UseSign};

use crate::event::tensors::{DType, TensorKind};

/// Gives enums the name of each variant in recordings and reports, as `strum` derives it.
macro_rules! as_str {
    ($($kind:ty)*) => {$(
        impl $kind {
            pub const fn as_str(self) -> &'static str {
                self.into_str()
            }
        }
    )*};
}
as_str!(Action CudaMemoryKind Detail Grad KvUnit MarkedPhase NoStack PoolSize PrivatePoolState TensorKind);

/// A process, as the kernel's initial PID namespace numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Tgid(pub u32);

/// A thread, as the kernel's initial PID namespace numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tid(pub u32);

/// Nanoseconds of the kernel's monotonic clock (`bpf_ktime_get_ns`).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
pub struct TimeNs(pub u64);

/// An address in device memory, as the allocator returns it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Address(pub u64);

#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A CUDA device ordinal as the target sees it (after `CUDA_VISIBLE_DEVICES`), or the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceIndex(pub u8);

/// The ID of an interned [`Stack`]. An [`Event::Stack`] defines it before its first use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackId(pub u32);

/// The ID of an interned [`BlockPurpose`], the purpose of a block. An [`Event::BlockPurpose`] defines it before its first use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PurposeId(pub u32);

/// Rank of a process in a distributed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub global: u32,
    pub local: Option<u32>,
    /// Number of processes in the whole job.
    pub world: Option<u32>,
}

impl DeviceIndex {
    /// Memory whose device is unknown.
    pub const UNKNOWN: Self = Self(u8::MAX);

    /// Memory of PyTorch's CPU allocator.
    pub const CPU: Self = Self(u8::MAX - 1);

    const CPU_NAME: &str = "cpu";
}

impl Serialize for DeviceIndex {
    /// Writes the ordinal, or `"cpu"`.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::CPU => to.serialize_str(Self::CPU_NAME),
            Self(ordinal) => to.serialize_u8(ordinal),
        }
    }
}

impl<'de> Deserialize<'de> for DeviceIndex {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Device;
        impl Visitor<'_> for Device {
            type Value = DeviceIndex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the ordinal of a device or \"cpu\"")
            }

            fn visit_u64<E: Error>(self, ordinal: u64) -> Result<DeviceIndex, E> {
                match u8::try_from(ordinal).map(DeviceIndex) {
                    Ok(device) if device != DeviceIndex::CPU => Ok(device),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(ordinal), &self)),
                }
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<DeviceIndex, E> {
                match name {
                    DeviceIndex::CPU_NAME => Ok(DeviceIndex::CPU),
                    _ => Err(E::invalid_value(Unexpected::Str(name), &self)),
                }
            }
        }
        from.deserialize_any(Device)
    }
}

impl fmt::Display for DeviceIndex {
    /// Writes `cuda:0`, as PyTorch does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNKNOWN => f.pad("cuda:?"),
            Self::CPU => f.pad(Self::CPU_NAME),
            Self(index) => f.pad(&format!("cuda:{index}")),
        }
    }
}

impl Tid {
    /// The unknown thread of a block that memprobe found at attach.
    pub const UNKNOWN: Self = Self(0);
}

impl StackId {
    /// The stack of events that carry none (frees, blocks from before attach).
    pub const NONE: Self = Self(0);
}

impl PurposeId {
    /// No information: tensors are not recorded, the event is a free, or the block is from before attach.
    pub const NONE: Self = Self(0);

    /// PyTorch was creating no tensor when it requested the memory: a library's workspace, or a storage
    /// created or resized on its own. The two cases cannot be told apart.
    pub const NO_TENSOR: Self = Self(1);

    /// The first ID that names a [`BlockPurpose`].
    pub const FIRST: Self = Self(2);
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Defines a stack. Precedes the first event that refers to it.
    Stack(StackId, Arc<Stack>),
    /// Defines the purpose of blocks. Precedes the first event that refers to it.
    BlockPurpose(PurposeId, Arc<BlockPurpose>),
    /// Names a thread (its `comm`). Precedes the thread's first memory event.
    Thread(Tid, Arc<str>),
    /// The allocator's totals when memprobe attached. Precedes all memory events of its device.
    AtAttach(AtAttach),
    /// An allocation, a free or a failed request.
    Memory(MemoryEvent),
    /// A `record_function` range of PyTorch that marks a phase of the program.
    PhaseMark(PhaseMark),
    /// The state of the process's Python objects: labels for the live blocks.
    BlockLabels(Arc<BlockLabels>),
    /// Labels for blocks from before attach alone: those that were live during the whole reading.
    BaselineLabels(Arc<BlockLabels>),
    /// The caching allocator's segments and pools, from its own tables.
    Segments(Arc<SegmentReading>),
    /// Memory of the process's GPUs, as the driver counts it.
    Driver(Arc<DriverReading>),
    /// The running totals of lost records, sent after a loss was noticed.
    Loss(Losses),
    /// The part of the detail that is recorded from now on, to keep the budget of `--max-overhead`.
    Capture(CaptureChange),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Action {
    /// The caching allocator handed out a block.
    Alloc,
    /// The caching allocator took a block back.
    Free,
    /// CUDA gave the caching allocator a segment.
    SegmentAlloc,
    /// The caching allocator returned a segment to CUDA.
    SegmentFree,
    /// The memory behind a segment was given back to CUDA, and the caching allocator was not told: the segment stays
    /// reserved. vLLM's sleep mode and torch_memory_saver do this.
    SegmentSleep,
    /// A segment that the caching allocator has got memory from CUDA again.
    SegmentWake,
    /// CUDA allocated memory for a caller other than the caching allocator.
    CudaAlloc,
    /// A caller other than the caching allocator freed CUDA memory.
    CudaFree,
    /// The caching allocator gave up: an out-of-memory error follows in the target.
    #[strum(serialize = "oom")]
    OutOfMemory,
    /// CUDA had no memory for a caller other than the caching allocator, which may go on without it.
    #[strum(serialize = "cuda_oom")]
    CudaOutOfMemory,
    /// The block was live when memprobe attached, according to the allocator's own tables.
    #[strum(serialize = "live_at_attach")]
    Held,
}

impl Action {
    /// True for a request that failed for lack of memory.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::OutOfMemory | Self::CudaOutOfMemory)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum CudaMemoryKind {
    Device,
    /// Device memory of a stream-ordered pool (`cudaMallocAsync`), without what the pool keeps.
    Pool,
    /// Physical device memory, mapped to addresses in separate calls (`cuMemCreate`).
    Virtual,
    /// Device memory in a layout of its own (`cudaMallocArray`). Sizes are the requested ones; a device may pad them.
    Array,
    /// Memory that migrates between device and host on use (`cudaMallocManaged`).
    Managed,
    /// Page-locked host memory (`cudaHostAlloc`).
    Pinned,
    /// Host memory of the process that was page-locked later (`cudaHostRegister`).
    Registered,
    /// Memory of another process, opened by CUDA IPC. The exporter holds it, and the call has no size: the size is 0.
    Imported,
    /// A CUDA context, by its handle. The driver alone knows how much memory it takes, so the size is 0.
    Context,
}

impl CudaMemoryKind {
    /// True if the memory certainly lies on a device.
    pub const fn is_on_device(self) -> bool {
        matches!(
            self,
            Self::Device | Self::Pool | Self::Virtual | Self::Array
        )
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CudaCall {
    /// The function's name in CUDA's documentation; one of [`crate::cuda::calls::FUNCTIONS`].
    pub function: &'static str,
    pub space: CudaMemoryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    pub time: TimeNs,
    pub tgid: Tgid,
    /// The calling thread; [`Tid::UNKNOWN`] for [`Action::Held`].
    pub tid: Tid,
    pub action: Action,
    /// The address of the block, the segment or the CUDA memory. A handle for [`CudaMemoryKind::Virtual`] and
    /// [`CudaMemoryKind::Array`]; 0 for an out-of-memory event.
    pub addr: Address,
    /// Bytes of the block (rounded by the allocator), the segment, the CUDA memory or the failed request. 0
    /// for a CUDA free whose allocation was not seen.
    pub size: Bytes,
    /// The device; `None` if it cannot be known (a segment that contains no block).
    pub device: Option<DeviceIndex>,
    /// The allocator's own totals on that device after this event; `None` for segments, for which the
    /// allocator reports no totals.
    pub totals: Option<Totals>,
    /// The stack of the allocation or the failed request; [`StackId::NONE`] for frees.
    pub stack: StackId,
    /// The purpose of the block; [`PurposeId::NONE`] if unknown.
    pub shape: PurposeId,
    /// The call into CUDA; `None` for blocks. For a free, `space` describes the freed memory.
    pub call: Option<CudaCall>,
}

impl MemoryEvent {
    /// True for the events of segments.
    pub const fn is_of_segment(&self) -> bool {
        matches!(
            self.action,
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentSleep | Action::SegmentWake
        )
    }

    /// True if a part of an expandable segment was mapped or unmapped, by the caching allocator itself.
    pub fn is_of_expandable_segment(&self) -> bool {
        let is_part = |call: CudaCall| {
            call.space == CudaMemoryKind::Virtual
                && matches!(call.function, "cuMemMap" | "cuMemUnmap")
        };
        let is_segment = matches!(self.action, Action::SegmentAlloc | Action::SegmentFree);
        is_segment && self.call.is_some_and(is_part)
    }

    /// Returns the allocator's totals on the device just before this event. `reserved` is the value after the
    /// event, because the allocator reports no other.
    pub fn totals_before(&self) -> Totals {
        self.undo(self.totals.unwrap_or_default())
    }

    /// Computes the totals before this event from those after it. `reserved` stays as it is.
    pub fn undo(&self, after: Totals) -> Totals {
        let allocated = match self.action {
            Action::Alloc => after.allocated.0.saturating_sub(self.size.0),
            Action::Free => after.allocated.0.saturating_add(self.size.0),
            _ => after.allocated.0,
        };
        Totals {
            allocated: Bytes(allocated),
            reserved: after.reserved,
        }
    }
}

/// The state of the caching allocator on one device when memprobe attached. The known blocks follow as
/// [`Action::Held`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtAttach {
    /// The time of attach or of the first event, whichever is earlier.
    pub time: TimeNs,
    pub tgid: Tgid,
    /// The device; `None` if the event carries only the reason in `unread`.
    pub device: Option<DeviceIndex>,
    /// The allocator's own totals before the first event.
    pub totals: Totals,
    /// The highest totals so far, from the allocator's statistics (`torch.cuda.max_memory_allocated()`).
    /// Equal to `totals` if those could not be read.
    pub peak: Totals,
    /// The reason why the individual blocks are unknown; `None` if they are known.
    pub unread: Option<Arc<str>>,
}

/// The caching allocator's own totals on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// `torch.cuda.memory_allocated()`.
    pub allocated: Bytes,
    /// `torch.cuda.memory_reserved()`.
    pub reserved: Bytes,
}

impl Frame {
    /// The file of a frame whose code object could not be read.
    pub const UNREADABLE: &str = "<unreadable>";
}

impl Stack {
    /// Creates a stack without a context.
    pub fn new(kind: StackKind, frames: Vec<Frame>, truncated: bool) -> Self {
        Self {
            kind,
            frames,
            truncated,
            context: Context::default(),
        }
    }

    /// Returns the library that called into CUDA, if the stack belongs to a CUDA call.
    pub fn calling_library(&self) -> Option<&Arc<str>> {
        self.frames.first()?.library.as_ref()
    }
}

impl Totals {
    pub const fn of(allocated: u64, reserved: u64) -> Self {
        Self {
            allocated: Bytes(allocated),
            reserved: Bytes(reserved),
        }
    }

    pub fn cached(self) -> Bytes {
        Bytes(self.reserved.0.saturating_sub(self.allocated.0))
    }

    /// Returns the minimum of each total.
    pub fn lower(self, other: Self) -> Self {
        Self {
            allocated: self.allocated.min(other.allocated),
            reserved: self.reserved.min(other.reserved),
        }
    }

    /// Returns the maximum of each total.
    pub fn higher(self, other: Self) -> Self {
        Self {
            allocated: self.allocated.max(other.allocated),
            reserved: self.reserved.max(other.reserved),
        }
    }
}

/// A source line of Python on a stack, or a location in native code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// `co_filename`; for native code the source file, empty if unknown.
    pub file: Arc<str>,
    /// The executing line; 0 if the code object has none for this instruction, or the source is unknown.
    pub line: u32,
    /// `co_name`; for native code the function, or the offset in the library if it has no symbol there.
    pub function: Arc<str>,
    /// The library or program of native code; `None` for Python.
    pub library: Option<Arc<str>>,
}

/// A call stack with the context it was captured in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    pub kind: StackKind,
    /// Innermost first. [`StackKind::Unknown`] has at most one frame, the native code that called into CUDA.
    pub frames: Vec<Frame>,
    /// True if outer frames were cut off.
    pub truncated: bool,
    /// The thread's context. Equal frames in different contexts are different stacks.
    pub context: Context,
}

/// The origin of a stack's frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackKind {
    /// The Python stack of the calling thread. For a CUDA call, the innermost frame is the native caller.
    Python,
    /// The native stack of a thread that runs no Python.
    Native,
    /// The stack of the thread that waits in `backward()`; the calling thread (autograd's) runs no Python itself.
    Waiting { thread: Arc<str> },
    /// No stack is known.
    Unknown { thread: Arc<str>, reason: NoStack },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, EnumString)]
#[strum(const_into_str)]
pub enum NoStack {
    #[strum(serialize = "thread without Python")]
    NoPythonThread,
    /// The thread has a Python thread state but runs no Python now, and no thread is known to wait for it.
    #[strum(serialize = "no Python frame")]
    NoPythonFrames,
    /// Several threads wait in `backward()`; this thread may work for any of them.
    #[strum(serialize = "several threads wait in backward()")]
    SeveralWaiting,
    #[strum(serialize = "stack unreadable")]
    Unreadable,
    /// The kernel programs read the stack, but the ring buffer had no room for its frames.
    #[strum(serialize = "stack lost")]
    Lost,
    /// PyTorch's history was recorded without stacks.
    #[strum(serialize = "stack not recorded")]
    NotRecorded,
    #[strum(serialize = "unknown Python version")]
    UnknownPython,
    /// The program runs no Python, and its native stack was not recorded.
    #[strum(serialize = "program without Python")]
    NoPython,
    /// The probes were off for the budget of `--max-overhead` when the block was allocated.
    #[strum(serialize = "probes were off")]
    ProbesOff,
}

/// The tensor that PyTorch was creating when it requested memory, as the arguments of `torch.empty` describe it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorSpec {
    /// Elements in each dimension.
    pub sizes: Vec<u64>,
    /// The number of dimensions beyond those in `sizes`.
    pub more: u32,
    pub dtype: DType,
    /// Requested bytes, up to the end of the last element; the allocator rounds them up. `None` if a size or
    /// the element size is unknown.
    pub requested: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlockPurpose {
    /// A tensor, as PyTorch started to create it.
    Tensor(TensorSpec),
    /// Memory without a tensor.
    Other(Purpose),
}

impl BlockPurpose {
    pub fn tensor(&self) -> Option<&TensorSpec> {
        match self {
            Self::Tensor(shape) => Some(shape),
            Self::Other(_) => None,
        }
    }

    pub fn purpose(&self) -> Option<&Purpose> {
        match self {
            Self::Other(purpose) => Some(purpose),
            Self::Tensor(_) => None,
        }
    }
}

/// The purpose of a block that belongs to no tensor. It is inferred from the native stack of the requesting thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Purpose {
    /// The purpose, such as `cuBLAS workspace`; `None` if no function on the stack determines it.
    pub what: Option<Arc<str>>,
    /// The function that `what` is inferred from; without it, the innermost function outside the allocator. The name
    /// has no parameters or template arguments, and is an offset in the library where no symbol exists.
    pub function: Arc<str>,
    /// The file name of the library.
    pub library: Arc<str>,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (function, library) = (&self.function, &self.library);
        match &self.what {
            Some(what) => write!(f, "{what} ({function}, {library})"),
            None => write!(f, "requested by {function} ({library})"),
        }
    }
}

/// Numbers the purposes of blocks, for a source of events.
#[derive(Debug, Default)]
pub struct PurposeIds {
    ids: HashMap<Arc<BlockPurpose>, PurposeId>,
    /// The IDs given so far.
    count: u32,
    /// IDs whose purpose was forgotten: so many of the first ones.
    forgotten: u32,
}

impl PurposeIds {
    /// True if the purpose of an ID was not forgotten since.
    pub fn is_known(&self, id: PurposeId) -> bool {
        id.0 >= PurposeId::FIRST.0.saturating_add(self.forgotten)
    }

    /// Returns the ID of a purpose, and the definition that must precede its use if it is new.
    pub fn intern(&mut self, purpose: BlockPurpose) -> (PurposeId, Option<Arc<BlockPurpose>>) {
        if let Some(id) = self.ids.get(&purpose) {
            return (*id, None);
        }
        let id = PurposeId::FIRST.0.saturating_add(self.count);
        if id == u32::MAX {
            return (PurposeId::NONE, None);
        }
        let id = PurposeId(id);
        self.count += 1;
        if self.ids.len() >= BlockPurposes::MOST {
            self.ids.clear();
            self.forgotten = self.count - 1;
        }
        let purpose = Arc::new(purpose);
        self.ids.insert(Arc::clone(&purpose), id);
        (id, Some(purpose))
    }
}

/// The current meaning of a stream's [`PurposeId`]s. IDs only grow, and a source redefines a use under a new ID
/// once it has forgotten it. Therefore the oldest entries can be dropped.
#[derive(Clone, Debug, Default)]
pub struct BlockPurposes(BTreeMap<PurposeId, Arc<BlockPurpose>>);

impl BlockPurposes {
    /// The most uses that an event source keeps. A source that exceeds it forgets all of them and redefines
    /// each under a new ID.
    pub const MOST: usize = 1 << 16;

    pub fn define(&mut self, id: PurposeId, is: &Arc<BlockPurpose>) {
        self.0.insert(id, Arc::clone(is));
        // Room for the uses of one full period of the source and the one before it.
        if self.0.len() > 2 * Self::MOST {
            self.0.pop_first();
        }
    }

    pub fn get(&self, id: PurposeId) -> Option<&Arc<BlockPurpose>> {
        self.0.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (PurposeId, Arc<BlockPurpose>)> {
        let all = self.0.iter();
        all.map(|(id, purpose)| (*id, Arc::clone(purpose)))
    }
}

impl fmt::Display for TensorSpec {
    /// Writes `(32, 1024)`, as PyTorch does; `(2, 2, …)` if not all sizes are known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (at, size) in self.sizes.iter().enumerate() {
            let between = if at > 0 { ", " } else { "" };
            write!(f, "{between}{size}")?;
        }
        f.write_str(match (self.more, self.sizes.len()) {
            (0, 1) => ",)",
            (0, _) => ")",
            _ => ", …)",
        })
    }
}

/// Counts of records lost since attach. Every view and recording shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Losses {
    /// Memory events, and calls that choose a device or context, for which the ring buffer had no room.
    pub events: u64,
    /// Stacks for which the ring buffer had no room (their events were kept).
    pub stacks: u64,
    /// Records that user space could not decode.
    pub malformed: u64,
    /// Blocks without a tensor whose stack copy was dropped because the ring buffer was half full; their
    /// purpose is unknown. Counted with [`Detail::Full`] only.
    #[serde(default)]
    pub uses: u64,
}

impl Losses {
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Returns true if allocations or frees may be missing, so that sums of blocks differ from the allocator's totals.
    pub const fn miss_blocks(&self) -> bool {
        self.events > 0 || self.malformed > 0
    }

    pub fn zip(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            events: combine(self.events, other.events),
            stacks: combine(self.stacks, other.stacks),
            malformed: combine(self.malformed, other.malformed),
            uses: combine(self.uses, other.uses),
        }
    }
}

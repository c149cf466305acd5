//! The seam of memprobe: plain data that flows from the probes (or a recording) to the model.
//!
//! Live and replay differ only in where the stream of [`Event`]s comes from. Nothing here does
//! I/O, reads a clock or knows an interpreter.

mod context;
mod names;
mod told;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use context::{Beginning, Context, Grad, Mark, Module, Node};
pub use names::{NamedBlock, Names};
pub use told::{Detail, Graph, Told};

use crate::tensors::DType;

/// A process as the kernel's initial PID namespace numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tgid(pub u32);

/// A thread as the kernel's initial PID namespace numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tid(pub u32);

/// Nanoseconds of the kernel's monotonic clock (`bpf_ktime_get_ns`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct TimeNs(pub u64);

/// An address in device memory, as the allocator hands it out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Address(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

/// A CUDA device ordinal as the target sees it (after `CUDA_VISIBLE_DEVICES`), or the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceIndex(pub u8);

/// Names an interned [`Stack`]. Defined by an [`Event::Stack`] before its first use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackId(pub u32);

/// Names what a block is for, an interned [`Use`]. Defined by an [`Event::Use`] before it is first used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ShapeId(pub u32);

impl DeviceIndex {
    /// Stands for the device of memory of which it is not known on which one it lies.
    pub const UNKNOWN: Self = Self(u8::MAX);

    /// Stands for the CPU: memory of PyTorch's CPU allocator.
    pub const CPU: Self = Self(u8::MAX - 1);

    const CPU_NAME: &str = "cpu";
}

impl Serialize for DeviceIndex {
    /// The ordinal, or `"cpu"`.
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
    /// `cuda:0`, as PyTorch calls it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNKNOWN => f.pad("cuda:?"),
            Self::CPU => f.pad(Self::CPU_NAME),
            Self(index) => f.pad(&format!("cuda:{index}")),
        }
    }
}

impl Tid {
    /// The thread of what memprobe found: nobody knows who allocated it.
    pub const UNKNOWN: Self = Self(0);
}

impl StackId {
    /// The stack of events that carry none (frees, blocks from before attach).
    pub const NONE: Self = Self(0);
}

impl ShapeId {
    /// Nothing is known of a tensor: tensors are not watched, the event is a free, or the block is from
    /// before attach.
    pub const NONE: Self = Self(0);

    /// It is known that PyTorch was making no tensor when the memory was asked for: it is a
    /// workspace of a library, or a storage that was made or resized by itself. Which is not known.
    pub const NO_TENSOR: Self = Self(1);

    /// The first that names a [`Use`].
    pub const FIRST: Self = Self(2);
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// One step of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Defines a stack. Comes before the first event that names it.
    Stack(StackId, Arc<Stack>),
    /// Defines what blocks are for. Comes before the first event that names it.
    Use(ShapeId, Arc<Use>),
    /// Names a thread (its `comm`). Comes before the thread's first memory event.
    Thread(Tid, Arc<str>),
    /// What an allocator held when memprobe attached. Comes before all memory events of its device.
    AtAttach(AtAttach),
    /// Something happened to memory.
    Memory(MemoryEvent),
    /// PyTorch said what the program is about to do.
    Mark(Mark),
    /// The process's objects were read: what is live is for what they say.
    Names(Arc<Names>),
    /// The running totals of what was lost, after a loss was noticed.
    Loss(Losses),
}

/// What happened to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The caching allocator handed out a block.
    Alloc,
    /// The caching allocator took a block back.
    Free,
    /// CUDA gave the caching allocator a segment.
    SegmentAlloc,
    /// The caching allocator gave a segment back.
    SegmentFree,
    /// CUDA gave out memory to somebody else.
    CudaAlloc,
    /// Memory that CUDA had given to somebody else was given back.
    CudaFree,
    /// The caching allocator gave up: an out-of-memory error follows in the target.
    OutOfMemory,
    /// Nothing happened: the block was live when memprobe attached, by the allocator's own tables.
    Held,
}

impl Action {
    /// The word used in recordings and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::CudaAlloc => "cuda_alloc",
            Self::CudaFree => "cuda_free",
            Self::OutOfMemory => "oom",
            Self::Held => "held",
        }
    }

    /// The action that [`Self::as_str`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Alloc,
            Self::Free,
            Self::SegmentAlloc,
            Self::SegmentFree,
            Self::CudaAlloc,
            Self::CudaFree,
            Self::OutOfMemory,
            Self::Held,
        ]
        .into_iter()
        .find(|action| action.as_str() == word)
    }
}

/// Where memory lies that CUDA gives out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Space {
    /// On a device.
    Device,
    /// On a device, with addresses that are chosen and mapped apart from it (`cuMemCreate`).
    Virtual,
    /// On a device, in an order of its own (`cudaMallocArray`). The sizes are those asked for; a
    /// device may pad them.
    Array,
    /// On a device or on the host, as it is used (`cudaMallocManaged`).
    Managed,
    /// On the host (`cudaHostAlloc`).
    Pinned,
    /// On the host: memory of the process that was pinned later (`cudaHostRegister`).
    Registered,
}

impl Space {
    /// All of them, as they are told apart in tables.
    pub const ALL: [Self; 6] = [
        Self::Device,
        Self::Virtual,
        Self::Array,
        Self::Managed,
        Self::Pinned,
        Self::Registered,
    ];

    /// The word used in recordings and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Virtual => "virtual",
            Self::Array => "array",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::Registered => "registered",
        }
    }

    /// The space that [`Self::as_str`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|space| space.as_str() == word)
    }

    /// Whether it takes memory of a device for certain.
    pub const fn is_on_device(self) -> bool {
        matches!(self, Self::Device | Self::Virtual | Self::Array)
    }
}

/// A call into CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CudaCall {
    /// The function, as CUDA's documentation names it; one of [`crate::cuda::FUNCTIONS`].
    pub function: &'static str,
    /// Where the memory lies.
    pub space: Space,
}

/// One event of the allocator or of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// When it happened.
    pub time: TimeNs,
    /// The process.
    pub tgid: Tgid,
    /// The thread that called; [`Tid::UNKNOWN`] for [`Action::Held`].
    pub tid: Tid,
    /// What happened.
    pub action: Action,
    /// The block, the segment or what CUDA gave out: an address, but a handle for
    /// [`Space::Virtual`] and [`Space::Array`]; 0 for an out-of-memory event.
    pub addr: Address,
    /// Bytes of the block (rounded by the allocator), of the segment or of what CUDA gave out (0
    /// where what is freed was not seen before), or of the request that failed.
    pub size: Bytes,
    /// The device; `None` where it cannot be known (a segment that no block lies in).
    pub device: Option<DeviceIndex>,
    /// The allocator's own totals on that device after this event; `None` for segments, which the
    /// allocator does not report.
    pub totals: Option<Totals>,
    /// Where it was asked for; [`StackId::NONE`] for frees.
    pub stack: StackId,
    /// What it happened for; [`ShapeId::NONE`] where nothing is known of that.
    pub shape: ShapeId,
    /// The call into CUDA; `None` for blocks. For what is freed, `space` is that of the memory.
    pub call: Option<CudaCall>,
}

impl MemoryEvent {
    /// The allocator's own totals on the device just before this event, as far as it tells: reserved ones as after it.
    pub fn totals_before(&self) -> Totals {
        self.undo(self.totals.unwrap_or_default())
    }

    /// The totals before this event, by those after it; reserved ones as after it.
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

/// What the caching allocator held on one device when memprobe attached. The blocks that are known
/// follow as [`Action::Held`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtAttach {
    /// When memprobe attached, or the time of the first event, whichever was first.
    pub time: TimeNs,
    /// The process.
    pub tgid: Tgid,
    /// The device; `None` where nothing is known but why.
    pub device: Option<DeviceIndex>,
    /// The allocator's own totals before the first event.
    pub totals: Totals,
    /// The highest totals before, by the allocator's own statistics where they could be read
    /// (`torch.cuda.max_memory_allocated()`); else as `totals`.
    pub peak: Totals,
    /// Why the single blocks are not known; `None` where they are.
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
    /// The library that called into CUDA, where the stack is one of such a call.
    pub fn calling_library(&self) -> Option<&Arc<str>> {
        self.frames.first()?.library.as_ref()
    }
}

impl Totals {
    /// The higher of each total.
    pub fn higher(self, other: Self) -> Self {
        Self {
            allocated: self.allocated.max(other.allocated),
            reserved: self.reserved.max(other.reserved),
        }
    }
}

/// One line of Python on a stack, or a place in native code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// `co_filename`; in native code the source file, empty where that is not known.
    pub file: Arc<str>,
    /// The line being executed; 0 where the code object has none for this instruction, or the
    /// source is not known.
    pub line: u32,
    /// `co_name`; in native code the function, or the offset in the library where it has no symbol
    /// there.
    pub function: Arc<str>,
    /// The library or program, for native code; `None` for Python.
    pub library: Option<Arc<str>>,
}

/// A stack and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Whose stack it is.
    pub kind: StackKind,
    /// Innermost first. For [`StackKind::Unknown`] there is at most the native code that called
    /// into CUDA.
    pub frames: Vec<Frame>,
    /// There were more outer frames than could be kept.
    pub truncated: bool,
    /// What the thread was doing. A stack is another one in another context.
    pub context: Context,
}

/// Whose stack it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackKind {
    /// The Python stack of the thread that called. Where it called into CUDA, the innermost frame is
    /// the native code that did.
    Python,
    /// The native stack of a thread that runs no Python.
    Native,
    /// The thread that called runs no Python (autograd); the frames are those of the thread that
    /// waits for it in `backward()`.
    Waiting {
        /// The name of the thread that called.
        thread: Arc<str>,
    },
    /// There is no stack, and this is why.
    Unknown {
        /// The name of the thread that called.
        thread: Arc<str>,
        /// Why.
        reason: NoStack,
    },
}

/// Why an event has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoStack {
    /// The thread has never run Python.
    NoPythonThread,
    /// The thread belongs to Python but runs no Python now, and nobody is known to wait for it.
    NoPythonFrames,
    /// Several threads wait in `backward()` and it is not known for which one this thread works.
    SeveralWaiting,
    /// The stack could not be read in the kernel.
    Unreadable,
    /// The stack was read but its record was lost (the ring buffer was full).
    Lost,
    /// memprobe does not know this Python's layout.
    UnknownPython,
    /// The program runs no Python, and its native stack was not asked for.
    NoPython,
}

impl NoStack {
    /// A few words for people and recordings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoPythonThread => "thread without Python",
            Self::NoPythonFrames => "no Python frame",
            Self::SeveralWaiting => "several threads wait in backward()",
            Self::Unreadable => "stack unreadable",
            Self::Lost => "stack lost",
            Self::UnknownPython => "unknown Python version",
            Self::NoPython => "program without Python",
        }
    }

    /// The reason that [`Self::as_str`] wrote.
    pub fn parse(words: &str) -> Option<Self> {
        [
            Self::NoPythonThread,
            Self::NoPythonFrames,
            Self::SeveralWaiting,
            Self::Unreadable,
            Self::Lost,
            Self::UnknownPython,
            Self::NoPython,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == words)
    }
}

/// What PyTorch was making when it asked for memory: a tensor, as `torch.empty` knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Elements in each dimension.
    pub sizes: Vec<u64>,
    /// How many dimensions there are beyond those of `sizes`.
    pub more: u32,
    /// The element type.
    pub dtype: DType,
    /// Bytes that were asked for: up to the end of the last element. The allocator rounds them. `None` where not all
    /// sizes are known, or not the size of an element.
    pub requested: Option<Bytes>,
}

/// What a block is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// A tensor, as PyTorch began to make it.
    Tensor(Shape),
    /// No tensor.
    Other(Purpose),
}

impl Use {
    /// The tensor, where there is one.
    pub fn shape(&self) -> Option<&Shape> {
        match self {
            Self::Tensor(shape) => Some(shape),
            Self::Other(_) => None,
        }
    }

    /// What it is for, where that is no tensor.
    pub fn purpose(&self) -> Option<&Purpose> {
        match self {
            Self::Other(purpose) => Some(purpose),
            Self::Tensor(_) => None,
        }
    }
}

/// What a block is for that PyTorch made no tensor for, inferred from the native functions on the stack of the
/// thread that asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Purpose {
    /// Such as `cuBLAS workspace`; `None` where no function tells.
    pub what: Option<Arc<str>>,
    /// The function that `what` is inferred from, otherwise the innermost one outside of the allocator: without
    /// parameters and template arguments, or its offset in the library where it has no symbol there.
    pub function: Arc<str>,
    /// The file name of its library.
    pub library: Arc<str>,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (function, library) = (&self.function, &self.library);
        match &self.what {
            Some(what) => write!(f, "{what} ({function}, {library})"),
            None => write!(f, "asked for by {function} ({library})"),
        }
    }
}

/// What the [`ShapeId`]s of a stream stand for by now. Numbers grow, and a use that was not met
/// for long is defined anew before it is: the oldest are forgotten.
#[derive(Clone, Debug, Default)]
pub struct Uses(BTreeMap<ShapeId, Arc<Use>>);

impl Uses {
    /// The most that a source of events may have in use at once: it forgets them all then, and defines
    /// them anew under other numbers.
    pub const MOST: usize = 1 << 16;

    /// Takes a definition.
    pub fn define(&mut self, id: ShapeId, is: &Arc<Use>) {
        self.0.insert(id, Arc::clone(is));
        // Those of one time after the last forgetting and one before it.
        if self.0.len() > 2 * Self::MOST {
            self.0.pop_first();
        }
    }

    /// The use of that number.
    pub fn get(&self, id: ShapeId) -> Option<&Arc<Use>> {
        self.0.get(&id)
    }
}

impl fmt::Display for Shape {
    /// `(32, 1024)`, as PyTorch writes it; `(2, 2, …)` where not all sizes are known.
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

/// What was lost since memprobe attached. Every view and recording shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Losses {
    /// Memory events for which the ring buffer had no room.
    pub events: u64,
    /// Stacks for which the ring buffer had no room (their events were kept).
    pub stacks: u64,
    /// Records that user space could not make sense of.
    pub malformed: u64,
    /// Blocks without a tensor that came without a copy of the stack, because the ring buffer was half full: what
    /// they are for is not known. Told with [`Detail::Full`] alone.
    pub uses: u64,
}

impl Losses {
    /// Whether anything was lost at all.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

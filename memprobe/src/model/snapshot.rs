//! What views see of the model: plain, owned data, complete in itself.

pub mod host;
pub mod why;

use std::sync::Arc;

use crate::event::{
    Bytes, CudaCall, DeviceIndex, Frame, Losses, Space, Stack, Tgid, TimeNs, Told, Totals, Use,
};

/// Everything a view needs at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The process looked at.
    pub target: Target,
    /// The time of the first event or of attaching, whichever was first.
    pub started: TimeNs,
    /// The moment this snapshot stands for.
    pub now: TimeNs,
    /// One for each device that was seen, by index.
    pub devices: Vec<DeviceSnapshot>,
    /// What CUDA gave to others than the caching allocator.
    pub cuda: CudaSnapshot,
    /// How the measurement itself is doing.
    pub health: Health,
}

/// Which layer of software the table of lines comes from: the highest that speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Layer {
    /// None has spoken yet.
    #[default]
    None,
    /// The calls into libcuda are the allocations.
    Driver,
    /// The calls into libcudart are the allocations.
    Runtime,
    /// The blocks of PyTorch's caching allocator are, as its tracepoints tell of them.
    Tracepoints,
    /// The blocks of PyTorch's caching allocator are the allocations.
    Allocator,
}

impl Layer {
    /// The layer of a call.
    pub(super) fn of(call: CudaCall) -> Self {
        if call.function.starts_with("pytorch:") {
            Self::Tracepoints
        } else if call.function.starts_with("cuda") {
            Self::Runtime
        } else {
            Self::Driver
        }
    }

    /// A few words for people and other programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "nothing yet",
            Self::Driver => "CUDA driver calls",
            Self::Runtime => "CUDA runtime calls",
            Self::Tracepoints => "PyTorch's tracepoints",
            Self::Allocator => "PyTorch's caching allocator",
        }
    }
}

/// What CUDA gave to others than the caching allocator. Where none speaks, memory of devices is in
/// the table of lines, and the rest is here.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CudaSnapshot {
    /// Where the table of lines comes from.
    pub layer: Layer,
    /// By library and kind of memory, largest first.
    pub rows: Vec<OutsideRow>,
}

impl CudaSnapshot {
    /// Bytes of all rows.
    pub fn live(&self) -> Bytes {
        let live = self.rows.iter().map(|row| row.live.0);
        Bytes(live.fold(0, u64::saturating_add))
    }
}

/// What a library got from CUDA of one kind of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct OutsideRow {
    /// The library or program that called into CUDA, by its path.
    pub library: Arc<str>,
    /// The kind.
    pub space: Space,
    /// The device; `None` for memory of the host, and where it is not known.
    pub device: Option<DeviceIndex>,
    /// Bytes now live.
    pub live: Bytes,
    /// The highest that `live` has been.
    pub peak: Bytes,
    /// How many pieces are now live.
    pub live_blocks: u64,
    /// Calls that gave it memory since attach.
    pub allocs: u64,
    /// One row for each line that asked for it; in no particular order.
    pub lines: Vec<LineRow>,
}

/// Who is looked at. Texts come from the target and may hold anything: views clean them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Target {
    /// The process; `None` in a report whose recording does not name it.
    pub tgid: Option<Tgid>,
    /// Its number in its own PID namespace, where that is not memprobe's.
    pub inner_tgid: Option<Tgid>,
    /// The pod, container or batch job that it runs in, as people know it.
    pub container: Option<String>,
    /// The command line, joined by spaces.
    pub command: String,
    /// Such as `3.12.1`.
    pub python: Option<String>,
    /// Such as `2.15.0+cu132`.
    pub torch: Option<String>,
}

/// How the measurement itself is doing.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Health {
    /// Memory events so far.
    pub events: u64,
    /// Memory events per second, lately.
    pub events_per_second: f64,
    /// What was lost.
    pub losses: Losses,
    /// Whether the target is still there.
    pub state: TargetState,
    /// Each probe, in the order of the catalog.
    pub probes: Vec<ProbeStatus>,
    /// What the kernel was asked to tell.
    pub told: Told,
    /// What is not seen, for want of a probe or of a kernel that can do more.
    pub missing: Vec<String>,
    /// Where the ledger and the allocator last disagreed without a loss that explains it.
    pub disagreements: u64,
    /// Why nothing is known of what was there at attach, not even how much.
    pub unread_at_attach: Option<Arc<str>>,
}

/// Whether the target is still there.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum TargetState {
    /// Waiting for something, such as torch being imported.
    Waiting(String),
    /// Running and probed.
    #[default]
    Running,
    /// The process has ended.
    Exited,
    /// A finished recording is being shown.
    Recording,
}

/// One probe: which function, where in it, and how the kernel runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeStatus {
    /// The function, as its library names it to people: `c10::reportMemoryUsageToProfiler`.
    pub function: String,
    /// The library file.
    pub library: String,
    /// Bytes from the function's first instruction.
    pub offset: u64,
    /// Whether the kernel emulates the instruction there (cheap) or must single-step it.
    pub emulated: bool,
}

impl ProbeStatus {
    /// Whether it is hit so often that single-stepping it is felt: those on CUDA's own functions are
    /// not.
    pub fn is_busy(&self) -> bool {
        !self.function.starts_with("cu")
    }
}

/// The memory of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    /// Which device.
    pub index: DeviceIndex,
    /// The allocator's own totals after the last event.
    pub totals: Totals,
    /// The highest totals (each on its own): seen since attach, or before by the allocator's own
    /// statistics where they could be read at attach.
    pub peak: Totals,
    /// What was allocated before attach and not freed since.
    pub before_attach: BeforeAttach,
    /// The allocator's total less what the ledger knows: `totals.allocated - before_attach.live -
    /// sum of live bytes of all lines`. 0 unless events were lost.
    pub unaccounted: i64,
    /// Live blocks that are known one by one: those that were seen being allocated, and those that
    /// were found at attach.
    pub live_blocks: u64,
    /// Out-of-memory errors since attach.
    pub ooms: u64,
    /// One row for each line that has allocated; in no particular order.
    pub lines: Vec<LineRow>,
    /// The totals over time.
    pub timeline: Timeline,
}

/// What was allocated before attach and not freed since.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BeforeAttach {
    /// Bytes.
    pub live: Bytes,
    /// Bytes of `live` of which it is not known in which blocks they are.
    pub unknown: Bytes,
    /// Blocks that are known: those of the other bytes.
    pub known_blocks: u64,
    /// Blocks that were freed since attach and of which nothing else is known.
    pub unseen_frees: u64,
    /// Why the blocks could not be read at attach; `None` where they could, or nobody tried.
    pub unread: Option<Arc<str>>,
}

impl BeforeAttach {
    /// Blocks; `None` where they are not all known.
    pub fn live_blocks(&self) -> Option<u64> {
        (self.unknown == Bytes(0)).then_some(self.known_blocks)
    }
}

/// What one line of Python holds on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct LineRow {
    /// Which line, or why none.
    pub site: Site,
    /// Bytes now live.
    pub live: Bytes,
    /// The highest that `live` has been.
    pub peak: Bytes,
    /// Blocks now live.
    pub live_blocks: u64,
    /// Allocations since attach.
    pub allocs: u64,
    /// Bytes of all allocations since attach.
    pub alloc_bytes: Bytes,
    /// Allocations per second, lately.
    pub allocs_per_second: f64,
    /// The stacks that end in this line, largest `live` first.
    pub stacks: Vec<StackRow>,
}

/// What the tensors of one shape and element type hold that one line made on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeRow {
    /// The tensors, or what else it is.
    pub what: What,
    /// Which line, or why none.
    pub site: Site,
    /// Bytes now live, as the allocator rounded them.
    pub live: Bytes,
    /// The highest that `live` has been.
    pub peak: Bytes,
    /// Blocks now live.
    pub live_blocks: u64,
    /// Allocations since attach.
    pub allocs: u64,
}

/// What a block is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// This.
    Known(Arc<Use>),
    /// No tensor: a library's workspace, or a storage that was made or resized by itself. Which is not known.
    NoTensor,
    /// Nobody knows: tensors were not watched.
    Unknown,
    /// Tensors of so many kinds that they are not told apart.
    TooMany,
}

/// Which frame of a stack its memory is counted under.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Grouping {
    /// The innermost frame of the user's own code: neither Python's standard library nor an
    /// installed package.
    #[default]
    User,
    /// The innermost frame, whosever it is.
    Innermost,
}

/// What a row of the table of lines stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// A line of Python of the thread that allocated.
    Line(Frame),
    /// A thread without Python allocated for the backward pass that this line waits for.
    Backward(Frame),
    /// A node of autograd's graph asked for it, in a backward pass.
    Node {
        /// The line of the forward pass whose operation made the node.
        forward: Frame,
        /// As PyTorch names it: `AddmmBackward0`.
        name: Arc<str>,
    },
    /// No line is known; the name of the thread and why.
    NoLine {
        /// Name of the thread that allocated.
        thread: Arc<str>,
        /// Why there is no line, in a few words.
        reason: &'static str,
    },
}

impl Site {
    /// The word for it in reports for other programs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Line(_) => "line",
            Self::Backward(_) => "backward",
            Self::Node { .. } => "backward_of",
            Self::NoLine { .. } => "no_line",
        }
    }

    /// The node of autograd's graph that asked for memory.
    pub fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Node { name, .. } => Some(name),
            Self::Line(_) | Self::Backward(_) | Self::NoLine { .. } => None,
        }
    }

    /// The thread that has no line, and why.
    pub fn nobody(&self) -> Option<(&Arc<str>, &'static str)> {
        match self {
            Self::NoLine { thread, reason } => Some((thread, reason)),
            Self::Line(_) | Self::Backward(_) | Self::Node { .. } => None,
        }
    }

    /// The line of Python that the row stands for, goes back to or waits in.
    pub fn frame(&self) -> Option<&Frame> {
        match self {
            Self::Line(frame) | Self::Backward(frame) | Self::Node { forward: frame, .. } => {
                Some(frame)
            }
            Self::NoLine { .. } => None,
        }
    }
}

/// One stack of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct StackRow {
    /// The whole stack, innermost first.
    pub stack: Arc<Stack>,
    /// Bytes now live.
    pub live: Bytes,
    /// The highest that `live` has been.
    pub peak: Bytes,
    /// Blocks now live.
    pub live_blocks: u64,
    /// Allocations since attach.
    pub allocs: u64,
}

/// The totals over time, in steps of equal length; bounded.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Timeline {
    /// When the first step begins.
    pub start: TimeNs,
    /// Nanoseconds a step.
    pub step: u64,
    /// The highest totals within each step; a step without events repeats the totals before it.
    pub points: Vec<Totals>,
}

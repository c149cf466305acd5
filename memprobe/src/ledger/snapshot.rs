//! Plain, owned data that the model gives to views.

mod baseline;
pub mod host;

use std::sync::Arc;
use std::time::Duration;

pub use baseline::{BaselineGroup, BaselineKind, BaselineOwner, BaselinePart};

use crate::event::{
    BlockPurpose, Bytes, CaptureChange, CaptureLevel, CaptureOptions, CudaCall, CudaMemoryKind,
    DeviceIndex, Frame, Losses, ProbeStatus, Stack, Target, TimeNs, TimeShare, Totals,
};

/// State of one process at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub target: Target,
    /// Time of the first event or of attaching, whichever is earlier.
    pub started: TimeNs,
    pub now: TimeNs,
    /// One for each device seen, by index.
    pub devices: Vec<DeviceSnapshot>,
    /// CUDA memory outside the caching allocator.
    pub cuda: CudaSnapshot,
    pub health: Health,
}

/// Layer of software behind the table of lines: the highest one seen.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Default,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[strum(const_into_str)]
pub enum SoftwareLayer {
    #[default]
    #[strum(serialize = "nothing yet")]
    None,
    #[strum(serialize = "CUDA driver calls")]
    Driver,
    #[strum(serialize = "CUDA runtime calls")]
    Runtime,
    /// Blocks of the caching allocator.
    #[strum(serialize = "PyTorch's tracepoints")]
    Tracepoints,
    #[strum(serialize = "PyTorch's caching allocator")]
    Allocator,
}

impl SoftwareLayer {
    pub(super) fn of(call: CudaCall) -> Self {
        if call.function.starts_with("pytorch:") {
            Self::Tracepoints
        } else if call.function.starts_with("cuda") {
            Self::Runtime
        } else {
            Self::Driver
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// CUDA memory outside the caching allocator. Without a caching allocator, device memory is in the
/// table of lines, and only the rest is here.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CudaSnapshot {
    pub layer: SoftwareLayer,
    /// Rows by library and kind of memory, largest first.
    pub rows: Vec<OutsideRow>,
    /// Totals of each kind of memory that CUDA gave out, with that in the table of lines.
    pub kinds: Vec<CudaKindTotal>,
}

/// Memory of one kind that CUDA gave out beside the segments of the caching allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaKindTotal {
    pub kind: CudaMemoryKind,
    pub live: Bytes,
    pub peak: Bytes,
    pub live_blocks: u64,
    /// Calls that allocated since attach.
    pub allocs: u64,
}

impl CudaSnapshot {
    pub fn live(&self) -> Bytes {
        let live = self.rows.iter().map(|row| row.live.0);
        Bytes(live.fold(0, u64::saturating_add))
    }
}

/// Memory of one kind that a library got from CUDA.
#[derive(Clone, Debug, PartialEq)]
pub struct OutsideRow {
    /// Path of the library or program that called into CUDA.
    pub library: Arc<str>,
    pub space: CudaMemoryKind,
    /// Device; `None` for host memory, and if unknown.
    pub device: Option<DeviceIndex>,
    pub live: Bytes,
    pub peak: Bytes,
    pub live_blocks: u64,
    /// Calls that allocated since attach.
    pub allocs: u64,
    /// One row for each line that allocated, in no particular order.
    pub lines: Vec<LineRow>,
}

#[derive(Clone, Debug, PartialEq, Default)]
pub struct Health {
    pub events: u64,
    /// Memory events per second, as a moving average.
    pub events_per_second: f64,
    pub losses: Losses,
    pub state: TargetState,
    /// Reason why the process runs nothing until somebody continues it; `None` if it runs.
    pub stopped: Option<String>,
    /// In the order of the catalog.
    pub probes: Vec<ProbeStatus>,
    /// Options that the kernel records with.
    pub capture: CaptureOptions,
    /// Data that is not recorded because a probe or kernel feature is missing.
    pub missing: Vec<String>,
    /// Differences between ledger and allocator that no loss explains.
    pub disagreements: u64,
    /// Reason that no state at attach is known, not even its size.
    pub unread_at_attach: Option<Arc<str>>,
    /// State of the budget of `--max-overhead`; `None` without one.
    pub budget: Option<BudgetState>,
}

/// Budget of `--max-overhead`, and what was given up for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetState {
    pub budget: TimeShare,
    /// Estimated share of the process's time that memprobe takes.
    pub overhead: TimeShare,
    /// Highest estimate so far.
    pub peak_overhead: TimeShare,
    pub level: CaptureLevel,
    /// Time of the last change of the level.
    pub since: TimeNs,
    /// Time of the first level.
    pub started: TimeNs,
    /// The level with the least detail so far, pauses aside.
    pub deepest: CaptureLevel,
    /// Times that the probes were off, with the present one.
    pub pauses: u64,
    /// Nanoseconds without probes, in the pauses that are over.
    pub paused: u64,
}

impl BudgetState {
    /// Returns the state after a change.
    pub(super) fn after(before: Option<Self>, change: &CaptureChange) -> Self {
        let mut state = before.unwrap_or(Self {
            budget: change.budget,
            overhead: change.overhead,
            peak_overhead: change.overhead,
            level: CaptureLevel::Full,
            since: change.time,
            started: change.time,
            deepest: CaptureLevel::Full,
            pauses: 0,
            paused: 0,
        });
        state.budget = change.budget;
        state.overhead = change.overhead;
        state.peak_overhead = state.peak_overhead.max(change.overhead);
        if change.level != state.level {
            state.paused = state.paused_until(change.time);
            state.since = change.time;
            state.level = change.level;
            match change.level {
                CaptureLevel::Paused => state.pauses = state.pauses.saturating_add(1),
                level => state.deepest = state.deepest.max(level),
            }
        }
        state
    }

    /// Nanoseconds without probes up to `now`.
    pub fn paused_until(&self, now: TimeNs) -> u64 {
        let present = self.totals_age(now).map_or(0, |age| age.as_nanos());
        (self.paused).saturating_add(u64::try_from(present).unwrap_or(u64::MAX))
    }

    /// Returns the age of the totals while the probes are off; `None` while they are on and totals are up to date.
    pub fn totals_age(&self, now: TimeNs) -> Option<Duration> {
        let is_paused = self.level == CaptureLevel::Paused;
        is_paused.then(|| Duration::from_nanos(now.0.saturating_sub(self.since.0)))
    }

    /// Share of the time since the budget began in which the probes were off.
    pub fn paused_share(&self, now: TimeNs) -> TimeShare {
        let nanoseconds = Duration::from_nanos;
        let whole = nanoseconds(now.0.saturating_sub(self.started.0));
        TimeShare::of(nanoseconds(self.paused_until(now)), whole)
    }
}

/// State of the observed process.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum TargetState {
    /// Waiting for something, such as the import of torch.
    Waiting(String),
    #[default]
    Running,
    Exited,
    /// Not live: a finished recording is shown.
    Recording,
    /// Not live: a moment of a recording is shown.
    Replay(Box<ReplayMoment>),
}

/// Moment of a recording that a replay shows.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayMoment {
    /// First and last moment of the recording.
    pub start: TimeNs,
    pub end: TimeNs,
    /// The moment shown.
    pub time: TimeNs,
    /// Memory events up to this moment, and of the whole recording.
    pub events: u64,
    pub all_events: u64,
    /// Number of the iteration of this moment; `None` outside of iterations.
    pub iteration: Option<u64>,
    pub all_iterations: u64,
    /// Share of the recording that is read for iterations and attribution, in percent; `None` if it is read.
    pub percent_read: Option<u8>,
    pub unit: ReplayUnit,
    /// The other moment, for the difference.
    pub mark: Option<Arc<ReplayMark>>,
}

/// Moment that others are compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayMark {
    pub time: TimeNs,
    pub iteration: Option<u64>,
    pub snapshot: Snapshot,
}

/// Distance by which a key moves through a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReplayUnit {
    #[default]
    Iteration,
    Second,
    Event,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    pub index: DeviceIndex,
    /// Allocator totals after the last event.
    pub totals: Totals,
    /// Highest totals, each at its own time. Includes the time before attach if the allocator's
    /// statistics were readable at attach.
    pub peak: Totals,
    /// Memory allocated before attach and not freed since.
    pub before_attach: BeforeAttach,
    /// Allocator total minus the bytes that the ledger knows: `totals.allocated -
    /// before_attach.live - sum of live bytes of all lines`. 0 unless events were lost.
    pub unaccounted: i64,
    /// Live blocks known one by one: those allocated since attach, and those found at attach.
    pub live_blocks: u64,
    pub ooms: u64,
    /// Growth of the allocated total; `None` in the first seconds, and in recordings.
    pub growth: Option<GrowthRate>,
    /// Iterations a minute in the time of `growth`; `None` if they are unknown or too few.
    pub iterations_per_minute: Option<f64>,
    /// One row for each line that has allocated, in no particular order.
    pub lines: Vec<LineRow>,
    pub timeline: DeviceTimeline,
}

impl DeviceSnapshot {
    /// A device on which no allocator of PyTorch was seen.
    pub fn without_allocator(index: DeviceIndex) -> Self {
        Self {
            index,
            totals: Totals::default(),
            peak: Totals::default(),
            before_attach: BeforeAttach::default(),
            unaccounted: 0,
            live_blocks: 0,
            ooms: 0,
            growth: None,
            iterations_per_minute: None,
            lines: Vec::new(),
            timeline: DeviceTimeline::default(),
        }
    }

    /// Number of live blocks; `None` if there are unknown ones, or if frees may have been lost.
    pub fn all_live_blocks(&self, losses: &Losses) -> Option<u64> {
        let are_known = self.before_attach.unknown == Bytes(0) && self.unaccounted == 0;
        (are_known && !losses.miss_blocks()).then_some(self.live_blocks)
    }
}

/// Change of the lowest live bytes over time. It leaves out what is freed in every iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthRate {
    /// Bytes a minute.
    pub per_minute: i64,
    /// True if the lowest live bytes rose again and again, and never fell.
    pub is_steady: bool,
}

impl GrowthRate {
    /// Bytes an iteration.
    pub fn per_iteration(self, iterations_per_minute: f64) -> i64 {
        (self.per_minute as f64 / iterations_per_minute) as i64
    }
}

/// Memory allocated before attach and not freed since.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BeforeAttach {
    pub live: Bytes,
    /// Largest value of `live`: its value at attach.
    pub peak: Bytes,
    /// Bytes of `live` whose blocks are unknown.
    pub unknown: Bytes,
    /// Known blocks, which hold the other bytes.
    pub known_blocks: u64,
    /// Frees since attach of blocks that were unknown.
    pub unseen_frees: u64,
    /// Reason that the blocks could not be read at attach; `None` if they were read or not tried.
    pub unread: Option<Arc<str>>,
    /// True while the process's objects are being read. The ledger does not know it: its caller says so.
    pub is_being_read: bool,
    /// Time at which the process's objects were last read; `None` if they were not.
    pub labeled: Option<TimeNs>,
    /// Live blocks with a label, by kind and owner, largest first.
    pub groups: Vec<BaselineGroup>,
}

impl BeforeAttach {
    /// Number of blocks; `None` unless all are known.
    pub fn live_blocks(&self) -> Option<u64> {
        (self.unknown == Bytes(0)).then_some(self.known_blocks)
    }
}

/// Memory of one line of Python on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct LineRow {
    /// Line, or the reason that none is known.
    pub site: Site,
    pub live: Bytes,
    pub peak: Bytes,
    pub live_blocks: u64,
    pub allocs: u64,
    pub alloc_bytes: Bytes,
    pub allocs_per_second: f64,
    /// `None` in the first seconds, and in recordings.
    pub growth: Option<GrowthRate>,
    /// Stacks of this line, largest `live` first.
    pub stacks: Vec<StackRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PurposeInfo {
    Known(Arc<BlockPurpose>),
    /// No tensor: a library's workspace, or a storage allocated or resized on its own.
    NoTensor,
    /// Tensors were not recorded.
    Unknown,
    /// Beyond the limit of distinct tensors.
    TooMany,
}

/// Stack frame that memory is counted under.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Grouping {
    /// Innermost frame of the user's own code: neither Python's standard library nor an installed
    /// package.
    #[default]
    User,
    Innermost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Site {
    /// Line of Python of the allocating thread.
    Line(Frame),
    /// Line that waits in a backward pass, for which a thread without Python allocated.
    Backward(Frame),
    /// Node of autograd's graph that allocated in a backward pass.
    #[strum(serialize = "backward_of")]
    Node {
        /// Line of the forward pass whose operation made the node.
        forward: Frame,
        /// PyTorch's name: `AddmmBackward0`.
        name: Arc<str>,
    },
    NoLine {
        thread: Arc<str>,
        reason: &'static str,
    },
}

impl Site {
    /// Keyword in structured reports.
    pub const fn as_str(&self) -> &'static str {
        self.into_str()
    }

    pub fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Node { name, .. } => Some(name),
            Self::Line(_) | Self::Backward(_) | Self::NoLine { .. } => None,
        }
    }

    /// Name of the thread, and the reason that it has no line.
    pub fn nobody(&self) -> Option<(&Arc<str>, &'static str)> {
        match self {
            Self::NoLine { thread, reason } => Some((thread, reason)),
            Self::Line(_) | Self::Backward(_) | Self::Node { .. } => None,
        }
    }

    /// Line of the row: the allocating line, the forward line of a node, or the waiting line.
    pub fn frame(&self) -> Option<&Frame> {
        match self {
            Self::Line(frame) | Self::Backward(frame) | Self::Node { forward: frame, .. } => {
                Some(frame)
            }
            Self::NoLine { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct StackRow {
    pub stack: Arc<Stack>,
    pub live: Bytes,
    pub peak: Bytes,
    pub live_blocks: u64,
    pub allocs: u64,
}

/// Totals, or another value, over time, in steps of equal length; bounded.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Timeline<T = TotalsPoint> {
    pub start: TimeNs,
    /// Nanoseconds per step.
    pub step: u64,
    /// Value of each step; a step without events repeats the previous value.
    pub points: Vec<T>,
}

impl<T> Timeline<T> {
    /// Nanoseconds that the points cover.
    pub fn length(&self) -> u64 {
        self.step.saturating_mul(self.points.len() as u64)
    }
}

/// Totals and marks of one step of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TotalsPoint {
    /// Lowest totals, each at its own time.
    pub low: Totals,
    /// Highest totals, each at its own time.
    pub high: Totals,
    pub marks: TimelineMarks,
}

/// Numbers of the marks in one step of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TimelineMarks {
    /// Steps of optimizers.
    pub steps: u32,
    /// Calls of `zero_grad()`.
    pub zero_grads: u32,
    /// Batches of data loaders.
    pub batches: u32,
    pub ooms: u32,
    /// Readings of the process's objects.
    pub readings: u32,
}

/// Span of time that a graph shows, up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TimeWindow {
    TenSeconds,
    Minute,
    TenMinutes,
    /// All time since attach.
    #[default]
    All,
}

impl TimeWindow {
    /// Windows of a limited length, shortest first.
    pub const RECENT: [Self; 3] = [Self::TenSeconds, Self::Minute, Self::TenMinutes];

    /// Length in nanoseconds; `None` for all time.
    pub const fn length(self) -> Option<u64> {
        match self {
            Self::TenSeconds => Some(10_000_000_000),
            Self::Minute => Some(60_000_000_000),
            Self::TenMinutes => Some(600_000_000_000),
            Self::All => None,
        }
    }
}

/// Totals of a device over time, for each [`TimeWindow`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceTimeline {
    pub all: Timeline,
    /// In the order of [`TimeWindow::RECENT`]. They end now; one of a short time has fewer points.
    pub recent: [Timeline; 3],
}

impl DeviceTimeline {
    pub fn window(&self, window: TimeWindow) -> &Timeline {
        let place = TimeWindow::RECENT.iter().position(|one| *one == window);
        place.map_or(&self.all, |at| &self.recent[at])
    }
}

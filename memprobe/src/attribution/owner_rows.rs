//! Rows of the waterfall of a process's memory.

use std::sync::Arc;

use super::communicators::CommunicatorCall;
use super::tables::SegmentRow;
use crate::event::{Bytes, CudaMemoryKind, DeviceIndex, LoadedLibrary, Pool, UseSign};
use crate::ledger::saturated;
use crate::ledger::snapshot::{LineRow, Site};

/// Kind of a row. The keys stay the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum OwnerKind {
    /// All memory of the process on the device.
    Process,
    /// CUDA's context and modules: the driver's count minus all known memory. The process was seen from its first call.
    Context,
    /// The same difference, of a process that had called CUDA before attach.
    BeforeAttach,
    /// Libraries that may have a part of the memory from before attach. Nobody knows their bytes: the row has none.
    Candidate,
    /// Memory that a library or program got from CUDA.
    Library,
    Line,
    /// PyTorch's caching allocator.
    Reserved,
    /// Bytes that live tensors asked for.
    Requested,
    /// Bytes that the allocator added to requests.
    Rounding,
    /// Freed blocks that another stream may still use.
    AwaitingEvent,
    /// Free, in segments or pages that could be returned.
    Cached,
    /// Free beside blocks in use.
    InactiveSplit,
    /// Reserved bytes in segments that the last reading of the allocator's tables lacks.
    NotRead,
    /// Reserved, but given back to CUDA behind the allocator's back.
    Asleep,
    /// Reserved, but not device memory: managed or pinned.
    NotOnDevice,
    /// One kind of memory of all libraries and devices; no part of a waterfall.
    Kind,
}

/// Pool and stream of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolOfStream {
    pub pool: Option<Pool>,
    pub stream: Option<u64>,
    pub is_expandable: bool,
}

/// Tag that the program gave to memory, such as vLLM's `weights`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AllocationTag {
    Known(Arc<str>),
    Unknown,
}

/// A row of a tree, after its parent.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerRow {
    pub id: OwnerKind,
    pub depth: u8,
    /// Negative for reserved bytes that sleep.
    pub bytes: i64,
    pub peak: Option<Bytes>,
    pub blocks: Option<u64>,
    /// Calls that allocated since attach.
    pub allocs: Option<u64>,
    pub library: Option<Arc<str>>,
    /// Device of a library's memory; `None` if the calls did not say it.
    pub library_device: Option<DeviceIndex>,
    pub kind: Option<CudaMemoryKind>,
    /// Tag of memory that sleeps; `None` for other rows.
    pub tag: Option<AllocationTag>,
    /// Call that the communicators of a line serve; `None` for lines of other libraries.
    pub communicator: Option<CommunicatorCall>,
    pub pool: Option<PoolOfStream>,
    pub site: Option<Site>,
    /// Signs that a candidate was in use at attach, or for CUDA graphs that they are there.
    pub signs: Vec<UseSign>,
    /// Candidates without such a sign, as one row: their paths.
    pub idle: Vec<Arc<str>>,
}

impl OwnerRow {
    /// A row with nothing but its bytes.
    pub fn new(id: OwnerKind, depth: u8, bytes: i64) -> Self {
        Self {
            id,
            depth,
            bytes,
            peak: None,
            blocks: None,
            allocs: None,
            library: None,
            library_device: None,
            kind: None,
            tag: None,
            communicator: None,
            pool: None,
            site: None,
            signs: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Rows for the libraries that a process had loaded at attach: each in use, then all others as one.
    pub fn candidates(depth: u8, libraries: &[LoadedLibrary]) -> Vec<Self> {
        let (used, idle): (Vec<_>, Vec<_>) = libraries
            .iter()
            .partition(|library| !library.signs.is_empty());
        let mut rows: Vec<Self> = used
            .into_iter()
            .map(|library| Self {
                library: Some(library.path.as_str().into()),
                signs: library.signs.clone(),
                ..Self::new(OwnerKind::Candidate, depth, 0)
            })
            .collect();
        if !idle.is_empty() {
            rows.push(Self {
                idle: idle
                    .iter()
                    .map(|library| library.path.as_str().into())
                    .collect(),
                ..Self::new(OwnerKind::Candidate, depth, 0)
            });
        }
        rows
    }

    /// Row for the CUDA graphs whose private pools the allocator has.
    pub(super) fn graphs(depth: u8, pools: u32) -> Self {
        Self {
            signs: vec![UseSign::GraphPools(pools)],
            ..Self::new(OwnerKind::Candidate, depth, 0)
        }
    }

    pub(super) fn of_line(depth: u8, line: &LineRow) -> Self {
        Self {
            peak: Some(line.peak),
            blocks: Some(line.live_blocks),
            allocs: Some(line.allocs),
            site: Some(line.site.clone()),
            ..Self::new(OwnerKind::Line, depth, saturated(line.live.0))
        }
    }
}

impl PoolOfStream {
    pub fn of(segment: &SegmentRow) -> Self {
        Self {
            pool: segment.pool,
            stream: segment.stream,
            is_expandable: segment.is_expandable,
        }
    }
}

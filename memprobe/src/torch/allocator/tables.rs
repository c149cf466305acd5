//! Reads the tables of the native caching allocator: its live blocks and its own totals.

use std::fmt;

use super::active::{ActiveAllocator, AllocatorVariable, Backend, NoAllocator, active_allocator};
use super::block;
use super::calibrate;
use super::counters::{self, NoCounters};
use super::hash_table::{self, Element, NoTable};
use super::layout::{self, BlockLayout, Layout, TableLayout};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::process::memory::{ReadMemory, Unreadable};

pub use super::counters::DeviceCounters;

/// Most blocks that are read. Each costs memprobe about 100 bytes.
const MOST_BLOCKS: usize = 1 << 23;

/// A block that was live when the tables were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Device address.
    pub addr: Address,
    /// Size after the allocator's rounding.
    pub size: Bytes,
    /// Size that the program requested.
    pub requested: Bytes,
    pub device: DeviceIndex,
    /// The `cudaStream_t` that the block was allocated for.
    pub stream: u64,
}

/// Contents of the allocator's tables, read while the process kept running.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AllocatorTables {
    /// Totals of each device, ordered by device index.
    pub devices: Vec<DeviceCounters>,
    /// Live blocks, sorted by address, without duplicates.
    pub blocks: Vec<HeldBlock>,
    /// Blocks that the tables listed but whose `Block` object was no longer valid. Each of them has a free
    /// event.
    pub gone: Vec<Address>,
}

impl AllocatorTables {
    /// Bytes of the blocks on one device.
    pub fn bytes_on(&self, device: DeviceIndex) -> u64 {
        let here = self.blocks.iter().filter(|block| block.device == device);
        here.fold(0, |sum, block| sum.saturating_add(block.size.0))
    }

    /// Drops the allocator's own totals: nothing proves that they were read from the right place.
    fn without_counters(self) -> Self {
        Self {
            devices: Vec::new(),
            ..self
        }
    }

    /// True if the blocks add up to the totals and neither changed while the tables were read.
    pub fn is_consistent(&self) -> bool {
        let known = |device| {
            self.devices
                .iter()
                .any(|counters| counters.device == device)
        };
        self.gone.is_empty()
            && self.blocks.iter().all(|block| known(block.device))
            && self.devices.iter().all(|counters| {
                counters.steady && self.bytes_on(counters.device) == counters.totals.allocated.0
            })
    }
}

/// Reasons for failing to read the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TablesError {
    NoAllocator(NoAllocator),
    /// The active allocator keeps no such tables.
    Backend(Backend),
    Unreadable(Unreadable),
    /// No known layout fits and calibration found none. Holds the target's version of PyTorch, if known.
    UnknownLayout(Option<String>),
    /// There are more than `MOST_BLOCKS` blocks.
    TooManyBlocks,
}

impl fmt::Display for TablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAllocator(error) => error.fmt(f),
            Self::Backend(backend) => {
                write!(
                    f,
                    "the allocator in use is {backend}, which keeps no table of its blocks"
                )
            }
            Self::Unreadable(error) => write!(f, "the allocator's tables: {error}"),
            Self::UnknownLayout(version) => {
                let version = version.as_deref().unwrap_or("of unknown version");
                write!(f, "memprobe does not know the tables of PyTorch {version}")
            }
            Self::TooManyBlocks => write!(f, "there are more than {MOST_BLOCKS} blocks"),
        }
    }
}

impl std::error::Error for TablesError {}

impl From<NoAllocator> for TablesError {
    fn from(error: NoAllocator) -> Self {
        Self::NoAllocator(error)
    }
}

/// Reads the tables of the allocator that `variable` points to. `version` is the target's version of PyTorch,
/// if known. An allocator that is not set up yet has no devices and no blocks.
///
/// # Errors
/// [`TablesError`]. A second try may succeed, because the process keeps running.
pub fn read(
    memory: &impl ReadMemory,
    variable: AllocatorVariable,
    version: Option<&str>,
) -> Result<AllocatorTables, TablesError> {
    let object = match active_allocator(memory, variable)? {
        None => return Ok(AllocatorTables::default()),
        Some(ActiveAllocator {
            backend: Backend::Native,
            object,
        }) => object,
        Some(active) => return Err(TablesError::Backend(active.backend)),
    };
    let mut found = None;
    for layout in layout::candidates(version) {
        match read_as(memory, object, &layout) {
            Ok(tables) => {
                let known = version.is_some_and(|version| layout.is_of(version));
                if known || tables.is_consistent() {
                    return Ok(tables);
                }
                found.get_or_insert(tables);
            }
            Err(Misfit::TooManyBlocks) => return Err(TablesError::TooManyBlocks),
            Err(Misfit::Layout) => {}
        }
    }
    // A layout that nearly fits may belong to another version. A calibrated layout always adds up.
    let calibrated = calibrate::calibrate(memory, object);
    let calibrated = calibrated.and_then(|layout| read_as(memory, object, &layout).ok());
    if let Some(tables) = calibrated {
        return Ok(tables);
    }
    if let Some(tables) = found {
        return Ok(tables.without_counters());
    }
    memory.read_u64(object).map_err(TablesError::Unreadable)?;
    Err(TablesError::UnknownLayout(version.map(str::to_owned)))
}

/// Reasons why a layout does not yield the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The layout is wrong: its offsets lead to unrelated memory.
    Layout,
    /// There are more than `MOST_BLOCKS` blocks.
    TooManyBlocks,
}

impl From<NoTable> for Misfit {
    fn from(_: NoTable) -> Self {
        Self::Layout
    }
}

impl From<NoCounters> for Misfit {
    fn from(_: NoCounters) -> Self {
        Self::Layout
    }
}

/// Reads totals and blocks by one layout.
pub(super) fn read_as(
    memory: &impl ReadMemory,
    object: u64,
    layout: &Layout,
) -> Result<AllocatorTables, Misfit> {
    let before = counters::read(memory, object, &layout.counters)?;
    let elements = read_elements(memory, object, layout.tables)?;
    let mut tables = look_at(memory, elements, layout.block);
    // A wrong layout yields no valid block at all.
    if tables.blocks.is_empty() && !tables.gone.is_empty() {
        return Err(Misfit::Layout);
    }
    tables.devices = counters::read(memory, object, &layout.counters)?;
    for counters in &mut tables.devices {
        counters.steady = before.contains(counters);
    }
    Ok(tables)
}

/// Reads the elements of all shards.
pub(super) fn read_elements(
    memory: &impl ReadMemory,
    object: u64,
    layout: TableLayout,
) -> Result<Vec<Element>, Misfit> {
    let mut elements = Vec::new();
    for shard in 0..layout.shards {
        let at = layout.offset + shard * hash_table::HEADER as u64;
        hash_table::read(memory, object.wrapping_add(at), &mut elements)?;
        if elements.len() > MOST_BLOCKS {
            return Err(Misfit::TooManyBlocks);
        }
    }
    Ok(elements)
}

/// Reads the `Block` object behind each element.
pub(super) fn look_at(
    memory: &impl ReadMemory,
    mut elements: Vec<Element>,
    layout: BlockLayout,
) -> AllocatorTables {
    let mut tables = AllocatorTables::default();
    block::read_each(memory, &mut elements, layout.bytes(), |element, bytes| {
        let addr = Address(element.key);
        match bytes.and_then(|bytes| layout.parse(bytes, element.key)) {
            Some(block) => tables.blocks.push(HeldBlock {
                addr,
                size: Bytes(block.size),
                requested: Bytes(block.requested),
                device: DeviceIndex(block.device),
                stream: block.stream,
            }),
            None => tables.gone.push(addr),
        }
    });
    // An element that moved while its table was read may appear twice.
    tables.blocks.sort_unstable_by_key(|block| block.addr);
    tables.blocks.dedup_by_key(|block| block.addr);
    tables
}

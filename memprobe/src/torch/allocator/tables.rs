//! Reads the tables of the native caching allocator: its live blocks and its own totals.

use super::active::{AllocatorVariable, Backend, NoAllocator, active_allocator};
use super::block;
use super::calibrate;
use super::counters;
use super::hash_table::{self, Element, Extent};
use super::layout::{self, BlockLayout, Layout, TableLayout};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::process::memory::{ReadMemory, Unreadable};
use crate::torch::versions::is_of;

pub use super::counters::DeviceCounters;

/// Most blocks that are read. Each costs memprobe about 100 bytes.
pub(super) const MAX_BLOCKS: usize = 1 << 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    pub addr: Address,
    /// Size after the allocator's rounding.
    pub size: Bytes,
    pub requested: Bytes,
    pub device: DeviceIndex,
    /// The `cudaStream_t` that the block was allocated for.
    pub stream: u64,
}

/// Contents of the allocator's tables, read while the process kept running.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AllocatorTables {
    pub devices: Vec<DeviceCounters>,
    /// Live blocks, sorted by address, without duplicates.
    pub blocks: Vec<HeldBlock>,
    /// Blocks that the tables listed but whose `Block` object was no longer valid. Each has a free event.
    pub gone: Vec<Address>,
}

impl AllocatorTables {
    pub fn bytes_on(&self, device: DeviceIndex) -> u64 {
        let here = self.blocks.iter().filter(|block| block.device == device);
        here.fold(0, |sum, block| sum.saturating_add(block.size.0))
    }

    /// True if the blocks add up to the totals and neither changed while the tables were read.
    pub fn is_consistent(&self) -> bool {
        let known = |device| {
            let mut devices = self.devices.iter();
            devices.any(|counters| counters.device == device)
        };
        self.gone.is_empty()
            && self.blocks.iter().all(|block| known(block.device))
            && self.devices.iter().all(|counters| {
                counters.steady && self.bytes_on(counters.device) == counters.totals.allocated.0
            })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TablesError {
    #[error(transparent)]
    NoAllocator(#[from] NoAllocator),
    #[error("the allocator in use is {0}, which keeps no table of its blocks")]
    Backend(Backend),
    #[error("the allocator's tables: {0}")]
    Unreadable(Unreadable),
    /// No known layout fits and calibration found none. Holds the target's version of PyTorch, if known.
    #[error("memprobe does not know the tables of PyTorch {}", .0.as_deref().unwrap_or("of unknown version"))]
    UnknownLayout(Option<String>),
    /// The layout of the target's version of PyTorch does not fit, and calibration found none.
    #[error(
        "the tables of PyTorch {0} did not fit: they changed while they were read, or this is another build of it"
    )]
    Unfit(String),
    #[error("there are more than {MAX_BLOCKS} blocks")]
    TooManyBlocks,
}

/// Reads the tables of the allocator that `variable` points to. `version` is the target's version of PyTorch,
/// if known. An allocator that is not set up yet has no devices and no blocks.
/// Fails with [`TablesError`]. A second try may succeed, because the process keeps running.
pub fn read(
    memory: &impl ReadMemory,
    variable: AllocatorVariable,
    version: Option<&str>,
) -> Result<AllocatorTables, TablesError> {
    let Some(active) = active_allocator(memory, variable)? else {
        return Ok(AllocatorTables::default());
    };
    let object = active.object;
    if active.backend != Backend::Native {
        return Err(TablesError::Backend(active.backend));
    }
    let mut found = None;
    let mut is_known = false;
    for layout in layout::candidates(version) {
        is_known |= is_of(&layout.versions, version);
        match read_as(memory, object, &layout) {
            Ok(tables) => {
                if is_of(&layout.versions, version) || tables.is_consistent() {
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
    if let Some(mut tables) = found {
        // Nothing proves that the allocator's own totals were read from the right place.
        tables.devices.clear();
        return Ok(tables);
    }
    memory.read_u64(object).map_err(TablesError::Unreadable)?;
    Err(match version.filter(|_| is_known) {
        Some(version) => TablesError::Unfit(version.to_owned()),
        None => TablesError::UnknownLayout(version.map(str::to_owned)),
    })
}

/// Reads the changed parts of the tables in a copy, and the blocks that these parts list. [`read`] then finds all in the
/// copy, unless something else has changed meanwhile.
pub fn follow(memory: &impl ReadMemory, variable: AllocatorVariable, version: Option<&str>) {
    let layout = layout::candidates(version).into_iter().next();
    let known = layout.filter(|layout| is_of(&layout.versions, version));
    let Some(layout) = known else {
        // Only the tables themselves show their layout.
        let _ = read(memory, variable, version);
        return;
    };
    let Ok(Some(active)) = active_allocator(memory, variable) else {
        return;
    };
    let _ = counters::read(memory, active.object, &layout.counters);
    let elements = read_elements(memory, active.object, layout.tables, Extent::Changed);
    if let Ok(elements) = elements {
        let _ = look_at(memory, elements, layout.block);
    }
}

pub(super) type Fitting<T> = Result<T, Misfit>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The layout is wrong: its offsets lead to unreadable or unrelated memory.
    Layout,
    TooManyBlocks,
}

impl From<Unreadable> for Misfit {
    fn from(_: Unreadable) -> Self {
        Self::Layout
    }
}

pub(super) fn read_as(
    memory: &impl ReadMemory,
    object: u64,
    layout: &Layout,
) -> Fitting<AllocatorTables> {
    let before = counters::read(memory, object, &layout.counters)?;
    let elements = read_elements(memory, object, layout.tables, Extent::All)?;
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

pub(super) fn read_elements(
    memory: &impl ReadMemory,
    object: u64,
    layout: TableLayout,
    extent: Extent,
) -> Fitting<Vec<Element>> {
    let mut elements = Vec::new();
    for shard in 0..layout.shards {
        let at = layout.offset + shard * hash_table::HEADER as u64;
        hash_table::read(memory, object.wrapping_add(at), extent, &mut elements)?;
        if elements.len() > MAX_BLOCKS {
            return Err(Misfit::TooManyBlocks);
        }
    }
    Ok(elements)
}

pub(super) fn look_at(
    memory: &impl ReadMemory,
    mut elements: Vec<Element>,
    layout: BlockLayout,
) -> AllocatorTables {
    let mut tables = AllocatorTables {
        blocks: Vec::with_capacity(elements.len()),
        ..AllocatorTables::default()
    };
    block::read_each(
        memory,
        &mut elements,
        layout.bytes(),
        |element, bytes| match bytes.and_then(|bytes| layout.parse(bytes, element.key)) {
            Some(block) => tables.blocks.push(block),
            None => tables.gone.push(Address(element.key)),
        },
    );
    // An element that moved while its table was read may appear twice.
    tables.blocks.sort_unstable_by_key(|block| block.addr);
    tables.blocks.dedup_by_key(|block| block.addr);
    tables
}

//! The tables of the native caching allocator: its live blocks and its own totals.

use std::fmt;

use super::active::{ActiveAllocator, AllocatorVariable, Backend, NoAllocator, active_allocator};
use super::block;
use super::calibrate;
use super::counters::{self, NoCounters};
use super::hash_table::{self, Element, NoTable};
use super::layout::{self, BlockLayout, Layout, TableLayout};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::target::memory::{ReadMemory, Unreadable};

pub use super::counters::DeviceCounters;

/// Blocks that are read at most; each costs memprobe some 100 bytes.
const MOST_BLOCKS: usize = 1 << 23;

/// A block that was live when the tables were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its address in device memory.
    pub addr: Address,
    /// Its bytes, as the allocator rounded them.
    pub size: Bytes,
    /// The bytes that were asked for.
    pub requested: Bytes,
    /// The device that it lies on.
    pub device: DeviceIndex,
    /// The `cudaStream_t` that it was allocated for.
    pub stream: u64,
}

/// What the tables said, read while the process ran on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AllocatorTables {
    /// Each device's own totals, by index.
    pub devices: Vec<DeviceCounters>,
    /// The live blocks, by address; none twice.
    pub blocks: Vec<HeldBlock>,
    /// Blocks that were in the tables but gone when they were looked at; an event tells of each.
    pub gone: Vec<Address>,
}

impl AllocatorTables {
    /// Bytes of the blocks on a device.
    pub fn bytes_on(&self, device: DeviceIndex) -> u64 {
        let here = self.blocks.iter().filter(|block| block.device == device);
        here.fold(0, |sum, block| sum.saturating_add(block.size.0))
    }

    /// Leaves out what the allocator counts itself: nothing proves that it was found.
    fn without_counters(self) -> Self {
        Self {
            devices: Vec::new(),
            ..self
        }
    }

    /// Whether nothing moved while the tables were read and they add up to the allocator's totals.
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

/// Why the tables could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The allocator was not found.
    NoAllocator(NoAllocator),
    /// The allocator in use keeps no such tables.
    Backend(Backend),
    /// The target's memory could not be read.
    Unreadable(Unreadable),
    /// The tables do not lie where they do in versions that memprobe knows, and were not found.
    UnknownLayout(Option<String>),
    /// There are more blocks than memprobe reads.
    TooManyBlocks,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAllocator(why) => why.fmt(f),
            Self::Backend(backend) => {
                write!(
                    f,
                    "the allocator in use is {backend}, which keeps no table of its blocks"
                )
            }
            Self::Unreadable(why) => write!(f, "the allocator's tables: {why}"),
            Self::UnknownLayout(version) => {
                let version = version.as_deref().unwrap_or("of unknown version");
                write!(f, "memprobe does not know the tables of PyTorch {version}")
            }
            Self::TooManyBlocks => write!(f, "there are more than {MOST_BLOCKS} blocks"),
        }
    }
}

impl std::error::Error for Why {}

impl From<NoAllocator> for Why {
    fn from(why: NoAllocator) -> Self {
        Self::NoAllocator(why)
    }
}

/// Reads the tables of the allocator that this variable points to. `version` is the target's
/// version of PyTorch, where known. An allocator that is not set up has no devices and no blocks.
///
/// # Errors
/// [`Why`]. As the process runs on, a second try may succeed.
pub fn read(
    memory: &impl ReadMemory,
    variable: AllocatorVariable,
    version: Option<&str>,
) -> Result<AllocatorTables, Why> {
    let object = match active_allocator(memory, variable)? {
        None => return Ok(AllocatorTables::default()),
        Some(ActiveAllocator {
            backend: Backend::Native,
            object,
        }) => object,
        Some(active) => return Err(Why::Backend(active.backend)),
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
            Err(Misfit::TooManyBlocks) => return Err(Why::TooManyBlocks),
            Err(Misfit::Layout) => {}
        }
    }
    // What nearly fits may be another version's. A layout that is calibrated adds up.
    let calibrated = calibrate::calibrate(memory, object);
    let calibrated = calibrated.and_then(|layout| read_as(memory, object, &layout).ok());
    if let Some(tables) = calibrated {
        return Ok(tables);
    }
    if let Some(tables) = found {
        return Ok(tables.without_counters());
    }
    memory.read_u64(object).map_err(Why::Unreadable)?;
    Err(Why::UnknownLayout(version.map(str::to_owned)))
}

/// Why the tables cannot be read by a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// It is not theirs: a wrong one leads anywhere.
    Layout,
    /// There is more than memprobe reads.
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

/// Reads everything by one layout.
pub(super) fn read_as(
    memory: &impl ReadMemory,
    object: u64,
    layout: &Layout,
) -> Result<AllocatorTables, Misfit> {
    let before = counters::read(memory, object, &layout.counters)?;
    let elements = read_elements(memory, object, layout.tables)?;
    let mut tables = look_at(memory, elements, layout.block);
    // Of the blocks of another layout none makes sense.
    if tables.blocks.is_empty() && !tables.gone.is_empty() {
        return Err(Misfit::Layout);
    }
    tables.devices = counters::read(memory, object, &layout.counters)?;
    for counters in &mut tables.devices {
        counters.steady = before.contains(counters);
    }
    Ok(tables)
}

/// Reads the elements of all tables.
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

/// Looks at the blocks that the tables name.
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
    // An element that moved while its table was read was met twice.
    tables.blocks.sort_unstable_by_key(|block| block.addr);
    tables.blocks.dedup_by_key(|block| block.addr);
    tables
}

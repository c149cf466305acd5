//! The allocator's own statistics, by device.

use super::block::ROUNDING;
use super::layout::CounterLayout;
use super::tables::{Fitting, Misfit};
use crate::event::{DeviceIndex, Totals};
use crate::process::memory::ReadMemory;
use crate::python::heap::word_at;

/// Most devices that are accepted (`C10_COMPILE_TIME_MAX_GPUS` is 120).
pub(super) const MAX_DEVICES: u64 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCounters {
    pub device: DeviceIndex,
    /// `torch.cuda.memory_allocated()` and `memory_reserved()`.
    pub totals: Totals,
    /// `torch.cuda.max_memory_allocated()` and `max_memory_reserved()`.
    pub peak: Totals,
    /// True if the totals were equal before and after the tables were read.
    pub steady: bool,
}

/// Addresses of the device allocators, by device index: the elements of a `std::vector` of pointers.
pub fn device_allocators(memory: &impl ReadMemory, [begin, end]: [u64; 2]) -> Fitting<Vec<u64>> {
    let bytes = end.checked_sub(begin).ok_or(Misfit::Layout)?;
    if bytes > MAX_DEVICES * 8 || !bytes.is_multiple_of(8) {
        return Err(Misfit::Layout);
    }
    let words = memory.read_bytes(begin, bytes, MAX_DEVICES as usize * 8)?;
    Ok(words.chunks_exact(8).map(|word| word_at(word, 0)).collect())
}

/// Addresses of the device allocators of the allocator at `object`, by device index; 0 for devices without one.
pub fn allocators(
    memory: &impl ReadMemory,
    object: u64,
    layout: &CounterLayout,
) -> Fitting<Vec<u64>> {
    let vector = object.wrapping_add(layout.devices);
    let end = memory.read_u64(vector.wrapping_add(8))?;
    device_allocators(memory, [memory.read_u64(vector)?, end])
}

pub fn read(
    memory: &impl ReadMemory,
    object: u64,
    layout: &CounterLayout,
) -> Fitting<Vec<DeviceCounters>> {
    let allocators = allocators(memory, object, layout)?;
    let mut counters = Vec::new();
    for (index, allocator) in (0..).zip(allocators) {
        if allocator == 0 {
            continue;
        }
        let stat = |at: u64| Stat::read(memory, allocator.wrapping_add(at));
        let allocated = stat(layout.allocated)?;
        let reserved = stat(layout.reserved)?;
        counters.push(DeviceCounters {
            device: DeviceIndex(index),
            totals: Totals::of(allocated.current, reserved.current),
            peak: Totals::of(allocated.peak, reserved.peak),
            steady: true,
        });
    }
    Ok(counters)
}

/// `Stat`: current and peak value, then the bytes ever allocated and freed (c10/core/Allocator.h@v2.5.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) current: u64,
    pub(super) peak: u64,
}

impl Stat {
    /// Reads a `Stat` that counts bytes. Fails if the values cannot be byte counts.
    pub fn read(memory: &impl ReadMemory, address: u64) -> Fitting<Self> {
        let bytes: [u8; 16] = memory.read_array(address)?;
        let words = [0, 8].map(|at| word_at(&bytes, at));
        let is_size = |bytes: &u64| bytes.is_multiple_of(ROUNDING) && *bytes < 1 << 60;
        let [current, peak] = words;
        // The allocator raises the peak after the current value.
        let peak = peak.max(current);
        let plausible = words.iter().all(is_size);
        plausible
            .then_some(Self { current, peak })
            .ok_or(Misfit::Layout)
    }
}

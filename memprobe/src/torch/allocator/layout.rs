//! Offsets of the caching allocator's fields, by version of PyTorch.

use crate::torch::versions::{Versions, is_of};

/// Offsets of one range of versions, in bytes, within objects of the x86-64 wheels.
///
/// Values read by them were compared with `torch.cuda.memory_snapshot()` on 2.0.1, 2.2.2, 2.3.1, 2.6.0,
/// 2.10.0, 2.11.0 and 2.15.0, and with the totals on 2.4.1 and 2.5.1. For 2.1.2 only the offsets were looked
/// up. For versions in between, as for all others, the result counts only if its blocks add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) versions: Versions,
    /// `NativeCachingAllocator::allocated_blocks`.
    pub(super) tables: TableLayout,
    pub(super) block: BlockLayout,
    pub(super) counters: CounterLayout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableLayout {
    pub(super) offset: u64,
    /// Number of adjacent tables (`kNumMutexShard`).
    pub(super) shards: u64,
}

/// Offsets in a `Block`. The device is its first byte, the stream its second word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLayout {
    /// Offset of `size`. `requested_size` is the next word.
    pub(super) size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CounterLayout {
    /// `NativeCachingAllocator::device_allocator`, a `std::vector<std::unique_ptr<…>>`.
    pub(super) devices: u64,
    /// `stats.allocated_bytes` in a `DeviceCachingAllocator`: the `Stat` over all pools.
    pub(super) allocated: u64,
    /// `stats.reserved_bytes` in a `DeviceCachingAllocator`: the `Stat` over all pools.
    pub(super) reserved: u64,
}

/// Distance from `allocated_bytes` to `reserved_bytes`: three `Stat`s of four words
/// (c10/core/CachingDeviceAllocator.h@v2.6.0).
pub(super) const STAT_ARRAY: u64 = 3 * 32;

pub(super) const LAYOUTS: &[Layout] = &[
    row([(2, 0), (2, 1)], [48, 1], 0x30, 80),
    row([(2, 2), (2, 2)], [48, 1], 0x30, 16096),
    row([(2, 3), (2, 4)], [4352, 67], 0x30, 22512),
    row([(2, 5), (2, 10)], [4352, 67], 0x30, 22584),
    row([(2, 11), (2, 15)], [4352, 67], 0x38, 22584),
];

/// Builds a row from the fields of [`TableLayout`], [`BlockLayout::size`] and [`CounterLayout::devices`].
const fn row(versions: Versions, [offset, shards]: [u64; 2], size: usize, devices: u64) -> Layout {
    Layout {
        versions,
        tables: TableLayout { offset, shards },
        block: BlockLayout { size },
        counters: CounterLayout {
            devices,
            allocated: 0x1a8,
            reserved: 0x1a8 + STAT_ARRAY,
        },
    }
}

pub fn candidates(version: Option<&str>) -> Vec<Layout> {
    let mut layouts = LAYOUTS.to_vec();
    layouts.sort_by_key(|layout| !is_of(&layout.versions, version));
    layouts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_the_version_comes_first() {
        let newest = candidates(Some("2.15.0+cu132"))[0];
        assert!(is_of(&newest.versions, Some("2.15.0")));
        assert_eq!(candidates(None).len(), LAYOUTS.len());
    }

    #[test]
    fn no_version_has_two_layouts() {
        let mut versions: Vec<_> = LAYOUTS.iter().map(|layout| layout.versions).collect();
        versions.sort_unstable();
        assert!(versions.is_sorted_by(|[_, until], [from, _]| until < from));
    }
}

//! Where the caching allocator keeps what memprobe reads, by version of PyTorch.

/// Offsets in bytes, all within objects of the x86-64 wheels. What is read by them was compared with
/// `torch.cuda.memory_snapshot()` on 2.0.1, 2.2.2, 2.3.1, 2.6.0, 2.10.0, 2.11.0 and 2.15.0, and with the
/// totals on 2.4.1 and 2.5.1; the offsets alone were looked up in 2.1.2. A row whose version lies
/// between is believed, like all, only where its blocks add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The versions of PyTorch, from and to, as `(major, minor)`.
    pub(super) versions: [(u32, u32); 2],
    /// `NativeCachingAllocator::allocated_blocks`.
    pub(super) tables: TableLayout,
    /// `Block`.
    pub(super) block: BlockLayout,
    /// The statistics.
    pub(super) counters: CounterLayout,
}

/// Where in a `NativeCachingAllocator` the tables of its live blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableLayout {
    /// The first hash table.
    pub(super) offset: u64,
    /// How many there are, side by side (`kNumMutexShard`).
    pub(super) shards: u64,
}

/// Offsets in a `Block`. Its device is the first byte, its stream the second word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLayout {
    /// `size`; `requested_size` is the word behind it.
    pub(super) size: usize,
}

/// Where the statistics of each device are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CounterLayout {
    /// `NativeCachingAllocator::device_allocator`, a `std::vector<std::unique_ptr<…>>`.
    pub(super) devices: u64,
    /// In a `DeviceCachingAllocator`, `stats.allocated_bytes`: the `Stat` over all pools.
    pub(super) allocated: u64,
    /// `stats.reserved_bytes`, likewise.
    pub(super) reserved: u64,
}

/// `reserved_bytes` follows `allocated_bytes`, and each has three `Stat`s of four words
/// (c10/core/CachingDeviceAllocator.h@v2.6.0).
pub(super) const STAT_ARRAY: u64 = 3 * 32;

const fn counters(devices: u64) -> CounterLayout {
    CounterLayout {
        devices,
        allocated: 0x1a8,
        reserved: 0x1a8 + STAT_ARRAY,
    }
}

/// The table of versions that have one for all blocks.
const ONE: TableLayout = TableLayout {
    offset: 48,
    shards: 1,
};

/// The tables of versions that have shards.
const SHARDED: TableLayout = TableLayout {
    offset: 4352,
    shards: 67,
};

/// The layouts that are known.
pub(super) const LAYOUTS: &[Layout] = &[
    Layout {
        versions: [(2, 0), (2, 1)],
        tables: ONE,
        block: BlockLayout { size: 0x30 },
        counters: counters(80),
    },
    Layout {
        versions: [(2, 2), (2, 2)],
        tables: ONE,
        block: BlockLayout { size: 0x30 },
        counters: counters(16096),
    },
    Layout {
        versions: [(2, 3), (2, 4)],
        tables: SHARDED,
        block: BlockLayout { size: 0x30 },
        counters: counters(22512),
    },
    Layout {
        versions: [(2, 5), (2, 10)],
        tables: SHARDED,
        block: BlockLayout { size: 0x30 },
        counters: counters(22584),
    },
    Layout {
        versions: [(2, 11), (2, 15)],
        tables: SHARDED,
        block: BlockLayout { size: 0x38 },
        counters: counters(22584),
    },
];

impl Layout {
    /// Whether this version has it.
    pub(super) fn is_of(&self, version: &str) -> bool {
        let [from, to] = self.versions;
        major_minor(version).is_some_and(|version| (from..=to).contains(&version))
    }
}

/// The layouts to try, those of this version first.
pub(super) fn candidates(version: Option<&str>) -> Vec<Layout> {
    let mut layouts = LAYOUTS.to_vec();
    layouts.sort_by_key(|layout| !version.is_some_and(|version| layout.is_of(version)));
    layouts
}

/// `(2, 15)` of `2.15.0+cu132`.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_the_version_comes_first() {
        assert!(candidates(Some("2.15.0+cu132"))[0].is_of("2.15.0"));
        assert_eq!(candidates(None).len(), LAYOUTS.len());
    }

    #[test]
    fn a_version_is_read_up_to_its_minor_number() {
        assert_eq!(major_minor("2.15.0+cu132"), Some((2, 15)));
        assert_eq!(major_minor("2.9"), Some((2, 9)));
        assert_eq!(major_minor("2.3a0+git"), Some((2, 3)));
        assert_eq!(major_minor("two"), None);
        assert_eq!(major_minor("2.x"), None);
    }

    #[test]
    fn no_version_has_two_layouts() {
        let mut versions: Vec<_> = LAYOUTS.iter().map(|layout| layout.versions).collect();
        versions.sort_unstable();
        assert!(versions.is_sorted_by(|[_, until], [from, _]| until < from));
    }
}

//! Memory of a process on a device, from the driver's count down to the allocator's rounding. It adds up at each level.
//!
//! The driver's count of the process = CUDA's context and modules + memory of libraries + what PyTorch has reserved, as
//! far as CUDA backs it. Reserved = live + rounding + awaiting + cached + inactive splits. What no call accounts for is a
//! row, and so is what sleeps: reserved by the allocator, and given back to CUDA behind its back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::communicators;
use super::owner_rows::{AllocationTag, OwnerKind, OwnerRow, PoolOfStream};
use super::segments::SegmentMap;
use super::tables::SegmentBlockState;
use crate::cuda::libraries::has_communicators;
use crate::event::{
    Bytes, CudaMemoryKind, DeviceIndex, LoadedLibrary, PoolId, PoolOwner, PrivatePoolState, TimeNs,
    Totals,
};
use crate::ledger::snapshot::{
    CudaSnapshot, DeviceSnapshot, Grouping, OutsideRow, Snapshot, SoftwareLayer,
};
use crate::ledger::{DriverMemoryState, Ledger, SegmentMemory, SiteRef, saturated};

/// Memory of a process on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Waterfall {
    pub index: DeviceIndex,
    pub totals: Totals,
    /// Last answer of the driver; `None` before the first.
    pub driver: Option<DriverMemoryState>,
    /// Reason why the driver's count is unknown.
    pub driver_unknown: Option<Arc<str>>,
    /// Time of the last reading of the allocator's tables, which has the rounding.
    pub read: Option<TimeNs>,
    pub rows: Vec<OwnerRow>,
}

/// Parts of a GPU's memory around the allocator's reserved bytes. With what is backed, they add up to the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuShares {
    /// Other processes; `None` if the driver does not tell them from this one.
    pub other_processes: Option<u64>,
    /// This process beside the allocator, or all others if the driver does not tell them apart.
    pub outside: u64,
    pub free: u64,
}

/// Divides the memory of a GPU. The process goes on between the readings of the driver and the allocator.
pub fn gpu_shares(backed: u64, total: u64, used: u64, process: Option<u64>) -> GpuShares {
    let used = used.max(backed);
    let (other_processes, outside) = match process {
        Some(process) => {
            let process = process.max(backed).min(used);
            (Some(used - process), process - backed)
        }
        None => (None, used - backed),
    };
    GpuShares {
        other_processes,
        outside,
        free: total.saturating_sub(used),
    }
}

/// Reserved bytes of a device that CUDA does not back: they sleep, or are no device memory.
pub fn unbacked(ledger: &Ledger, device: DeviceIndex) -> Bytes {
    let memory = ledger.segment_memory();
    let memory = memory.filter(|memory| memory.device == Some(device) && !is_backed(memory));
    Bytes(memory.map(|memory| memory.size.0).sum())
}

fn is_backed(memory: &SegmentMemory) -> bool {
    !memory.is_asleep && memory.kind.is_on_device()
}

/// The waterfall of each device, at the moment of a snapshot of the ledger and of the maps.
pub fn waterfalls(
    ledger: &Ledger,
    snapshot: &Snapshot,
    maps: &[SegmentMap],
    grouping: Grouping,
) -> Vec<Waterfall> {
    let libraries = ledger.cuda_on_devices(grouping);
    let contexts = ledger.contexts(grouping);
    let only = ledger.only_device();
    let devices = snapshot.devices.iter();
    let devices = devices.filter(|device| device.index != DeviceIndex::CPU);
    let waterfall = |device: &DeviceSnapshot| {
        let index = device.index;
        let unknown = only.unwrap_or(DeviceIndex::UNKNOWN);
        let is_here = |row: &&OutsideRow| row.device.unwrap_or(unknown) == index;
        let parts = Parts {
            totals: match snapshot.cuda.layer {
                SoftwareLayer::Allocator => Totals {
                    reserved: ledger.reserved(index),
                    ..device.totals
                },
                _ => Totals::default(),
            },
            map: maps.iter().find(|map| map.index == index),
            libraries: libraries.iter().filter(is_here).collect(),
            contexts: contexts.iter().filter(is_here).collect(),
            segments: ledger
                .segment_memory()
                .filter(|memory| memory.device == Some(index))
                .collect(),
            driver: ledger.driver().devices.get(&index).copied(),
        };
        Waterfall {
            index,
            totals: parts.totals,
            driver: parts.driver,
            driver_unknown: ledger.driver().unread.clone(),
            read: parts.map.and_then(|map| map.read),
            rows: parts.rows(ledger, grouping),
        }
    };
    devices.map(waterfall).collect()
}

/// Totals of each kind of memory that CUDA gave out beside the caching allocator's segments.
pub fn totals_by_kind(cuda: &CudaSnapshot) -> Vec<OwnerRow> {
    let rows = cuda.kinds.iter().map(|total| OwnerRow {
        peak: Some(total.peak),
        blocks: Some(total.live_blocks),
        allocs: Some(total.allocs),
        kind: Some(total.kind),
        ..OwnerRow::new(OwnerKind::Kind, 0, saturated(total.live.0))
    });
    rows.collect()
}

/// Known facts of a device.
struct Parts<'a> {
    totals: Totals,
    map: Option<&'a SegmentMap>,
    libraries: Vec<&'a OutsideRow>,
    contexts: Vec<&'a OutsideRow>,
    segments: Vec<&'a SegmentMemory>,
    driver: Option<DriverMemoryState>,
}

impl Parts<'_> {
    fn rows(&self, ledger: &Ledger, grouping: Grouping) -> Vec<OwnerRow> {
        let mut rows = self.context(&ledger.target.libraries);
        for library in self.libraries.iter().filter(|row| row.live_blocks > 0) {
            rows.push(OwnerRow {
                peak: Some(library.peak),
                blocks: Some(library.live_blocks),
                allocs: Some(library.allocs),
                library: Some(Arc::clone(&library.library)),
                library_device: library.device,
                kind: Some(library.space),
                ..OwnerRow::new(OwnerKind::Library, 1, saturated(library.live.0))
            });
            let lines = library.lines.iter().filter(|line| line.live.0 > 0);
            if has_communicators(&library.library) {
                rows.extend(lines.flat_map(|line| communicators::by_call(2, line)));
            } else {
                rows.extend(lines.map(|line| OwnerRow::of_line(2, line)));
            }
        }
        rows.extend(self.reserved());
        rows.extend(self.unbacked(ledger, grouping));
        let parts = rows.iter().filter(|row| row.depth == 1);
        let sum: i64 = parts.map(|row| row.bytes).sum();
        rows.insert(0, OwnerRow::new(OwnerKind::Process, 0, sum));
        rows
    }

    /// The driver's count minus all known memory, with the lines that made contexts. Of memory from before attach, with
    /// the libraries that may have a part of it.
    fn context(&self, libraries: &[LoadedLibrary]) -> Vec<OwnerRow> {
        let Some(rest) = self.driver.and_then(|driver| driver.unattributed) else {
            return Vec::new();
        };
        let id = match self.contexts.is_empty() {
            true => OwnerKind::BeforeAttach,
            false => OwnerKind::Context,
        };
        let lines = self.contexts.iter().flat_map(|row| &row.lines);
        let lines = lines.filter(|line| line.live_blocks > 0);
        let lines = lines.map(|line| OwnerRow::of_line(2, line));
        let blocks: u64 = self.contexts.iter().map(|row| row.live_blocks).sum();
        let row = OwnerRow {
            blocks: (blocks > 0).then_some(blocks),
            ..OwnerRow::new(id, 1, rest)
        };
        let candidates = match id {
            OwnerKind::BeforeAttach => OwnerRow::candidates(2, libraries),
            _ => Vec::new(),
        };
        let graphs = u32::try_from(self.graph_pools()).unwrap_or(u32::MAX);
        let graphs = (graphs > 0).then(|| OwnerRow::graphs(2, graphs));
        std::iter::once(row)
            .chain(lines)
            .chain(candidates)
            .chain(graphs)
            .collect()
    }

    /// Number of the private pools that graphs have in use. What CUDA itself allocates for a graph is in no pool.
    fn graph_pools(&self) -> usize {
        let segments = self.map.iter().flat_map(|map| &map.segments);
        let pools = segments.filter_map(|segment| match segment.pool?.owner {
            PoolOwner::Private {
                id,
                state: PrivatePoolState::InUse,
            } if id.is_of_graph() => Some(id),
            _ => None,
        });
        pools.collect::<BTreeSet<PoolId>>().len()
    }

    fn reserved(&self) -> Vec<OwnerRow> {
        let Totals {
            allocated,
            reserved,
        } = self.totals;
        if reserved.0 == 0 {
            return Vec::new();
        }
        let rounding = self.map.and_then(SegmentMap::rounding).unwrap_or_default();
        let rounding = rounding.min(allocated);
        let part = |id, bytes| OwnerRow::new(id, 2, bytes);
        let mut parts = vec![part(
            OwnerKind::Requested,
            saturated(allocated.0 - rounding.0),
        )];
        parts.push(part(OwnerKind::Rounding, saturated(rounding.0)));
        parts.extend(self.free());
        let known: i64 = parts.iter().map(|part| part.bytes).sum();
        let rest = saturated(reserved.0) - known;
        parts.push(part(OwnerKind::NotRead, rest));
        parts.retain(|part| part.bytes != 0);
        parts.insert(
            0,
            OwnerRow::new(OwnerKind::Reserved, 1, saturated(reserved.0)),
        );
        parts
    }

    /// Bytes that are not live, by pool and stream.
    fn free(&self) -> Vec<OwnerRow> {
        let mut pools: BTreeMap<(OwnerKind, PoolOfStream), u64> = BTreeMap::new();
        let segments = self.map.iter().flat_map(|map| &map.segments);
        for segment in segments {
            let pool = PoolOfStream::of(segment);
            for (id, state) in [
                (OwnerKind::AwaitingEvent, SegmentBlockState::AwaitingEvent),
                (OwnerKind::Cached, SegmentBlockState::Cached),
                (OwnerKind::InactiveSplit, SegmentBlockState::InactiveSplit),
            ] {
                *pools.entry((id, pool)).or_default() += segment.bytes(state).0;
            }
        }
        let rows = pools.into_iter().map(|((id, pool), bytes)| OwnerRow {
            pool: Some(pool),
            ..OwnerRow::new(id, 2, saturated(bytes))
        });
        rows.collect()
    }

    /// Reserved bytes without device memory, which the driver does not count, by tag, pool and line.
    fn unbacked(&self, ledger: &Ledger, grouping: Grouping) -> Vec<OwnerRow> {
        type Key = (
            Option<AllocationTag>,
            Option<PoolOfStream>,
            CudaMemoryKind,
            Option<SiteRef>,
        );
        let mut sums: [BTreeMap<Key, (i64, u64)>; 2] = Default::default();
        for memory in self.segments.iter().filter(|memory| !is_backed(memory)) {
            let site = ledger.stack(memory.stack);
            let site = (!site.frames.is_empty()).then(|| ledger.site_ref(memory.stack, grouping));
            let tag = memory
                .is_asleep
                .then(|| match ledger.segment_tag(memory.addr) {
                    Some(tag) => AllocationTag::Known(Arc::clone(tag)),
                    None => AllocationTag::Unknown,
                });
            let key = (tag, self.pool_at(memory), memory.kind, site);
            let sum = sums[usize::from(!memory.is_asleep)].entry(key).or_default();
            *sum = (sum.0 - saturated(memory.size.0), sum.1 + 1);
        }
        let mut rows = Vec::new();
        for (id, sums) in [OwnerKind::Asleep, OwnerKind::NotOnDevice]
            .into_iter()
            .zip(sums)
        {
            if sums.is_empty() {
                continue;
            }
            let (bytes, blocks) = (sums.values()).fold((0, 0), |sum, (bytes, blocks)| {
                (sum.0 + bytes, sum.1 + blocks)
            });
            rows.push(OwnerRow {
                blocks: Some(blocks),
                ..OwnerRow::new(id, 1, bytes)
            });
            rows.extend(
                sums.into_iter()
                    .map(|((tag, pool, kind, site), (bytes, blocks))| OwnerRow {
                        tag,
                        blocks: Some(blocks),
                        kind: Some(kind),
                        pool,
                        site: site.map(|site| ledger.site_of(site, grouping).clone()),
                        ..OwnerRow::new(OwnerKind::Line, 2, bytes)
                    }),
            );
        }
        rows
    }

    fn pool_at(&self, memory: &SegmentMemory) -> Option<PoolOfStream> {
        let segments = &self.map?.segments;
        let before = segments.partition_point(|segment| segment.addr <= memory.addr);
        let segment = segments.get(before.checked_sub(1)?)?;
        let is_inside = memory.addr.0 - segment.addr.0 < segment.size.0;
        is_inside.then(|| PoolOfStream::of(segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_gpu_and_what_is_backed_add_up_to_it() {
        for (backed, used, process) in [
            (300, 900, Some(500)),
            (300, 900, None),
            (300, 200, Some(100)),
            (300, 900, Some(200)),
            (0, 0, Some(0)),
        ] {
            let shares = gpu_shares(backed, 1000, used, process);
            let others = shares.other_processes.unwrap_or(0);
            let sum = others + shares.outside + backed + shares.free;
            assert_eq!(sum, 1000, "{shares:?}");
            assert_eq!(shares.other_processes.is_some(), process.is_some());
        }
    }
}

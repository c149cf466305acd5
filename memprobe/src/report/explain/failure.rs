//! Failed request of a device, and the rule that names its cause.

use std::sync::Arc;

use super::{DeviceExplanation, GpuMemory, PartId};
use crate::attribution::tables::SegmentMap;
use crate::event::bytes::human;
use crate::event::{Bytes, PoolSize};
use crate::recording::DumpedProcess;
use crate::view::{clean, counted, pools, short_command};

/// Largest request that the lists of small blocks serve (`kSmallSize`, c10/core/AllocatorConfig.h@v2.9.0).
const SMALL_REQUEST: u64 = 1 << 20;

/// Cause of an out-of-memory error. The keys stay the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum OomCause {
    /// The request is larger than the GPU, or than anything that could be given back.
    TooLarge,
    /// Lines of this process grow.
    Growth,
    /// Enough is cached for the request, but no hole is as large.
    Fragmentation,
    /// Other processes have the memory.
    AnotherProcess,
    /// Enough is cached in a pool or for a stream that the request cannot use; for a call of CUDA, by the allocator.
    CachedElsewhere,
    /// The GPU had the memory, but a limit of the allocator counts memory that sleeps.
    Asleep,
    Unknown,
}

impl OomCause {
    /// Key in JSON.
    pub const fn key(self) -> &'static str {
        self.into_str()
    }
}

/// Request that the allocator or CUDA could not serve, and the memory at that moment.
#[derive(Clone, Debug)]
pub struct FailedRequest {
    pub size: Bytes,
    /// Line that asked.
    pub line: String,
    pub module: Option<Arc<str>>,
    /// Call of CUDA that failed; `None` for a request of the allocator.
    pub call: Option<FailedCall>,
    pub cause: OomCause,
    /// Free bytes of the allocator that the request's list of blocks could give; `None` if segments are unknown.
    pub free_lists: Option<Vec<FreeList>>,
    /// Reason why the segments are unknown.
    pub segments_unknown: Option<String>,
    /// Other processes on the GPU, largest first; `None` if the driver did not say.
    pub others: Option<Vec<DumpedProcess>>,
    /// Bytes of the lines that grow.
    pub growing: Bytes,
    /// Reserved memory that sleeps; `None` if there is none.
    pub asleep: Option<SleepingBytes>,
}

/// Reserved memory that was given back to CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepingBytes {
    pub bytes: Bytes,
    pub largest: Option<SleepingOwner>,
}

/// Line with most of the memory that sleeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepingOwner {
    pub line: String,
    /// Tag that the program gave its memory; `None` if it is not known.
    pub tag: Option<Arc<str>>,
    pub bytes: Bytes,
}

/// Call of CUDA that found no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCall {
    pub function: &'static str,
    /// Library or program that called it; `None` if it is unknown.
    pub library: Option<Arc<str>>,
}

/// Free blocks of a pool and stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeList {
    pub name: String,
    pub free: Bytes,
    pub largest: Bytes,
}

/// Numbers that decide on the cause.
#[derive(Clone, Debug)]
pub(super) struct OomEvidence<'a> {
    pub request: Bytes,
    /// Reserved bytes of the allocator that are not allocated, without those that sleep.
    pub cached: Bytes,
    pub free_lists: Option<&'a [FreeList]>,
    pub gpu: Option<GpuMemory>,
    /// Bytes of other processes; `None` if unknown.
    pub others: Option<Bytes>,
    pub growing: Bytes,
    /// Reserved bytes that sleep.
    pub asleep: Bytes,
    /// Holes of the allocator can serve the request.
    pub asker: Asker,
}

/// Source of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Allocator,
    /// A call of CUDA, which gets nothing that the allocator caches.
    Cuda,
}

/// Lists of free blocks that serve requests of this size, one for each pool and stream, most bytes first.
pub(super) fn free_lists(map: &SegmentMap, request: Bytes) -> Vec<FreeList> {
    let wanted = match request.0 {
        ..=SMALL_REQUEST => PoolSize::Small,
        _ => PoolSize::Large,
    };
    let pools = pools(map).into_iter();
    let lists = pools.map(|pool| {
        let rows = pool.rows.iter();
        let serving = rows.filter(|row| row.pool.is_none_or(|pool| pool.size == wanted));
        let free = serving
            .clone()
            .flat_map(|row| row.free())
            .map(|free| free.0);
        FreeList {
            name: pool.name,
            free: Bytes(free.sum()),
            largest: serving
                .map(|row| row.largest_free())
                .max()
                .unwrap_or_default(),
        }
    });
    let mut lists: Vec<FreeList> = lists.filter(|list| list.free.0 > 0).collect();
    lists.sort_by_key(|list| std::cmp::Reverse(list.free));
    lists
}

/// Names the cause: the memory that would have been enough for the request, with what the GPU had free. Growth comes
/// before a cache that is smaller, since a process that fills up fragments too.
pub(super) fn cause(evidence: &OomEvidence<'_>) -> OomCause {
    let request = evidence.request.0;
    if evidence.gpu.is_some_and(|gpu| request > gpu.total.0) {
        return OomCause::TooLarge;
    }
    let gpu_free = evidence
        .gpu
        .map(|gpu| gpu.total.0.saturating_sub(gpu.used.0));
    let has_limit = gpu_free.is_some_and(|free| free >= request);
    // Less is reserved than a limit of the allocator allows, so it would allow the request in place of what sleeps.
    if evidence.asker == Asker::Allocator && has_limit && evidence.asleep.0 >= request {
        return OomCause::Asleep;
    }
    // Were the request's bytes free, it would have been served: the process has a limit, or they were freed since.
    let free = gpu_free.filter(|free| *free < request).unwrap_or(0);
    let suffices = |bytes: u64| bytes > 0 && bytes.saturating_add(free) >= request;
    let cached = match evidence.free_lists {
        _ if evidence.asker == Asker::Cuda => evidence.cached.0,
        Some(lists) => lists.iter().map(|list| list.free.0).sum(),
        None => evidence.cached.0,
    };
    let (growing, others) = (evidence.growing.0, evidence.others.unwrap_or_default().0);
    if growing >= cached && suffices(growing) {
        OomCause::Growth
    } else if suffices(cached) {
        cached_cause(evidence, free)
    } else if suffices(growing) {
        OomCause::Growth
    } else if suffices(others) {
        OomCause::AnotherProcess
    } else if evidence.gpu.is_some() && evidence.others.is_some() {
        OomCause::TooLarge
    } else {
        OomCause::Unknown
    }
}

/// Tells holes that are too small from holes that the request could not use.
fn cached_cause(evidence: &OomEvidence<'_>, free: u64) -> OomCause {
    if evidence.asker == Asker::Cuda {
        return OomCause::CachedElsewhere;
    }
    let Some(lists) = evidence.free_lists else {
        return OomCause::Fragmentation;
    };
    let request = evidence.request.0;
    let has_hole = lists.iter().any(|list| list.largest.0 >= request);
    let one_suffices = lists
        .iter()
        .any(|list| list.free.0.saturating_add(free) >= request);
    if has_hole || !one_suffices {
        OomCause::CachedElsewhere
    } else {
        OomCause::Fragmentation
    }
}

/// Sentences on a failed request, after the totals of its device.
pub(super) fn sentences(device: &DeviceExplanation, failed: &FailedRequest) -> Vec<String> {
    let size = human(failed.size);
    let module = failed.module.as_deref();
    let module = module.map_or(String::new(), |module| format!(" (in {})", clean(module)));
    let by = failed.call.as_ref().map_or(String::new(), by_call);
    let mut sentences = vec![format!(
        "{}{module} asked for {size}{by} and failed.",
        clean(&failed.line)
    )];
    let cached = human(device.part(PartId::Cached));
    match failed.cause {
        OomCause::TooLarge => {
            let free = device.gpu.map(|gpu| {
                let free = Bytes(gpu.total.0.saturating_sub(gpu.used.0));
                format!("{} is free on the GPU, and ", human(free))
            });
            let free = free.unwrap_or_default();
            sentences.push(format!(
                "The request is too large at once: {free}{cached} is cached."
            ));
        }
        OomCause::Growth => sentences.push(format!(
            "The cause is growth: lines that grow hold {}.",
            human(failed.growing)
        )),
        OomCause::Fragmentation => sentences.push(fragmentation(failed, &cached)),
        OomCause::CachedElsewhere if failed.call.is_some() => sentences.push(format!(
            "The cause is memory cached elsewhere: PyTorch's allocator caches {cached}, which a call of CUDA cannot use."
        )),
        OomCause::CachedElsewhere => sentences.push(cached_in_another_pool(failed)),
        OomCause::AnotherProcess => sentences.extend(another_process(failed)),
        OomCause::Asleep => sentences.extend(sleeping(device, failed)),
        OomCause::Unknown => sentences.push(format!(
            "The cause is unknown: {cached} is cached, nothing is seen to grow, and the memory of other processes is not \
             known."
        )),
    }
    sentences
}

/// Names the failed call, after the bytes.
fn by_call(call: &FailedCall) -> String {
    let library = call.library.as_deref();
    let library = library.map(|path| path.rsplit('/').next().unwrap_or(path));
    let library = library.map_or(String::new(), |name| format!(" in {}", clean(name)));
    format!(" by {}{library}", call.function)
}

fn fragmentation(failed: &FailedRequest, cached: &str) -> String {
    let needed = human(failed.size);
    match &failed.free_lists {
        Some(lists) => {
            let largest = lists.iter().map(|list| list.largest).max();
            format!(
                "The cause is fragmentation: {cached} is cached, but the largest hole is {}, and {needed} was needed.",
                human(largest.unwrap_or_default())
            )
        }
        None => format!(
            "The cause is fragmentation: {cached} is cached, but there was no hole of {needed}."
        ),
    }
}

fn cached_in_another_pool(failed: &FailedRequest) -> String {
    let lists = failed.free_lists.iter().flatten();
    let Some(list) = lists.max_by_key(|list| list.largest) else {
        return String::new();
    };
    format!(
        "The cause is memory cached elsewhere: {} is free in {}, which this request could not use (largest hole {}).",
        human(list.free),
        list.name,
        human(list.largest)
    )
}

fn sleeping(device: &DeviceExplanation, failed: &FailedRequest) -> Option<String> {
    let asleep = failed.asleep.as_ref()?;
    let free = device.gpu?;
    let free = Bytes(free.total.0.saturating_sub(free.used.0));
    let line = asleep.largest.as_ref().map_or(String::new(), |largest| {
        let tag = largest.tag.as_deref();
        let tag = tag.map_or(String::new(), |tag| format!(", tag {}", clean(tag)));
        let line = clean(&largest.line);
        format!(" ({} of {line}{tag})", human(largest.bytes))
    });
    Some(format!(
        "The cause is memory that sleeps, by inference: {} was free on the GPU, but the allocator's limit also counts {} \
         that was given back to CUDA{line}.",
        human(free),
        human(asleep.bytes)
    ))
}

fn another_process(failed: &FailedRequest) -> Option<String> {
    let others = failed.others.as_ref()?;
    let sum: u64 = others.iter().filter_map(|other| other.bytes).sum();
    let first = others.first()?;
    let bytes = first
        .bytes
        .map_or("?".to_owned(), |bytes| human(Bytes(bytes)));
    let command = clean(&short_command(&first.command));
    let number = counted(others.len() as u64, "other process");
    let cached: u64 = others.iter().filter_map(|other| other.cached).sum();
    let cached = match cached {
        0 => String::new(),
        cached => format!(
            " PyTorch caches {} of it: torch.cuda.empty_cache() there returns up to as much.",
            human(Bytes(cached))
        ),
    };
    Some(format!(
        "The cause is memory of {number}: {}, the most of it PID {} ({command}) with {bytes}.{cached}",
        human(Bytes(sum)),
        first.pid
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn list(free: u64, largest: u64) -> FreeList {
        FreeList {
            name: "large, default stream".to_owned(),
            free: Bytes(free * MIB),
            largest: Bytes(largest * MIB),
        }
    }

    /// A request of 100 MiB on a GPU of 1000 MiB of which 40 MiB are free.
    fn judged(
        lists: &[FreeList],
        others: Option<u64>,
        growing: u64,
        gpu: Option<GpuMemory>,
    ) -> OomCause {
        cause(&OomEvidence {
            request: Bytes(100 * MIB),
            cached: Bytes(lists.iter().map(|list| list.free.0).sum()),
            free_lists: Some(lists),
            gpu,
            others: others.map(|others| Bytes(others * MIB)),
            growing: Bytes(growing * MIB),
            asleep: Bytes(0),
            asker: Asker::Allocator,
        })
    }

    #[test]
    fn a_call_of_cuda_cannot_use_what_the_allocator_caches() {
        let judged = |cached: u64| {
            cause(&OomEvidence {
                request: Bytes(100 * MIB),
                cached: Bytes(cached * MIB),
                free_lists: None,
                gpu: gpu(1000, 960),
                others: Some(Bytes(0)),
                growing: Bytes(0),
                asleep: Bytes(0),
                asker: Asker::Cuda,
            })
        };
        assert_eq!(judged(60), OomCause::CachedElsewhere);
        assert_eq!(judged(59), OomCause::TooLarge);
    }

    #[test]
    fn memory_that_sleeps_is_the_cause_if_the_gpu_had_enough() {
        let judged = |asleep: u64, gpu: Option<GpuMemory>, asker| {
            cause(&OomEvidence {
                request: Bytes(100 * MIB),
                cached: Bytes(0),
                free_lists: Some(&[]),
                gpu,
                others: Some(Bytes(0)),
                growing: Bytes(0),
                asleep: Bytes(asleep * MIB),
                asker,
            })
        };
        let allocator = Asker::Allocator;
        assert_eq!(judged(100, gpu(1000, 900), allocator), OomCause::Asleep);
        // Too little sleeps, or the GPU had too little.
        assert_eq!(judged(99, gpu(1000, 900), allocator), OomCause::TooLarge);
        assert_eq!(judged(100, gpu(1000, 901), allocator), OomCause::TooLarge);
        // Without the driver, nothing says that there is a limit.
        assert_eq!(judged(100, None, allocator), OomCause::Unknown);
        // A limit of the allocator refuses no call of CUDA.
        assert_eq!(judged(100, gpu(1000, 900), Asker::Cuda), OomCause::TooLarge);
    }

    fn gpu(total: u64, used: u64) -> Option<GpuMemory> {
        Some(GpuMemory {
            total: Bytes(total * MIB),
            used: Bytes(used * MIB),
            process: None,
            unbacked: Bytes(0),
        })
    }

    #[test]
    fn a_request_beyond_the_gpu_or_beyond_all_that_could_be_given_back_is_too_large() {
        assert_eq!(
            judged(&[list(500, 50)], Some(0), 0, gpu(99, 50)),
            OomCause::TooLarge
        );
        assert_eq!(judged(&[], Some(0), 0, gpu(1000, 960)), OomCause::TooLarge);
        assert_eq!(
            judged(&[list(50, 50)], Some(9), 0, gpu(1000, 960)),
            OomCause::TooLarge
        );
    }

    #[test]
    fn a_cache_without_a_hole_is_fragmentation() {
        assert_eq!(
            judged(&[list(300, 60)], Some(0), 0, gpu(1000, 960)),
            OomCause::Fragmentation
        );
        // What is free on the GPU counts too.
        assert_eq!(
            judged(&[list(60, 30)], Some(0), 0, gpu(1000, 960)),
            OomCause::Fragmentation
        );
        assert_eq!(
            judged(&[list(59, 30)], Some(0), 0, gpu(1000, 960)),
            OomCause::TooLarge
        );
    }

    #[test]
    fn a_hole_that_is_large_enough_and_was_not_used_is_in_another_pool() {
        assert_eq!(
            judged(&[list(10, 10), list(150, 100)], Some(0), 0, gpu(1000, 1000)),
            OomCause::CachedElsewhere
        );
        // No pool alone has enough.
        assert_eq!(
            judged(&[list(60, 30), list(60, 30)], Some(0), 0, gpu(1000, 1000)),
            OomCause::CachedElsewhere
        );
    }

    #[test]
    fn growth_comes_before_a_smaller_cache_and_before_other_processes() {
        let full = gpu(1000, 1000);
        assert_eq!(
            judged(&[list(150, 30)], Some(800), 700, full),
            OomCause::Growth
        );
        assert_eq!(
            judged(&[list(300, 30)], Some(0), 200, full),
            OomCause::Fragmentation
        );
        // Too little to matter.
        assert_eq!(judged(&[], Some(800), 20, full), OomCause::AnotherProcess);
    }

    #[test]
    fn without_the_driver_the_cause_is_known_only_if_the_process_has_it() {
        assert_eq!(
            judged(&[list(300, 60)], None, 0, None),
            OomCause::Fragmentation
        );
        assert_eq!(judged(&[], None, 300, None), OomCause::Growth);
        assert_eq!(judged(&[], None, 0, None), OomCause::Unknown);
        assert_eq!(judged(&[], None, 0, gpu(1000, 960)), OomCause::Unknown);
    }
}

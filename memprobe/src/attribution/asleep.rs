//! Reserved memory that sleeps: the allocator counts it, but its owner gave it back to CUDA.

use std::collections::HashMap;
use std::sync::Arc;

use super::segments::SegmentMap;
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{Ledger, SegmentMemory, SiteRef};

/// Memory of a device that sleeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepingMemory {
    pub bytes: Bytes,
    /// Line and tag with most of it; `None` if no line is known.
    pub largest: Option<SleepingLine>,
}

/// Memory of a line that sleeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepingLine {
    pub site: Site,
    /// Tag that the program gave it; `None` if it is not known.
    pub tag: Option<Arc<str>>,
    pub bytes: Bytes,
}

/// Returns the memory of a device that sleeps; `None` if there is none.
pub fn asleep(ledger: &Ledger, device: DeviceIndex, grouping: Grouping) -> Option<SleepingMemory> {
    let mut bytes = 0;
    let mut lines: HashMap<(SiteRef, Option<Arc<str>>), u64> = HashMap::new();
    for memory in sleeping(ledger, device) {
        bytes += memory.size.0;
        if !ledger.stack(memory.stack).frames.is_empty() {
            let site = ledger.site_ref(memory.stack, grouping);
            let tag = ledger.segment_tag(memory.addr).cloned();
            *lines.entry((site, tag)).or_default() += memory.size.0;
        }
    }
    let largest = lines.into_iter().max_by_key(|(_, bytes)| *bytes);
    let line = |((site, tag), bytes)| SleepingLine {
        site: ledger.site_of(site, grouping).clone(),
        tag,
        bytes: Bytes(bytes),
    };
    (bytes > 0).then(|| SleepingMemory {
        bytes: Bytes(bytes),
        largest: largest.map(line),
    })
}

/// Takes segments with sleeping memory out of a map. Returns their free bytes, which the allocator counts as cached.
pub fn without_sleeping(ledger: &Ledger, map: &mut SegmentMap) -> Bytes {
    let mut starts: Vec<u64> = sleeping(ledger, map.index)
        .map(|memory| memory.addr.0)
        .collect();
    starts.sort_unstable();
    let mut free = 0;
    map.segments.retain(|segment| {
        let next = starts.partition_point(|start| *start < segment.addr.0);
        let sleeps =
            (starts.get(next)).is_some_and(|start| start - segment.addr.0 < segment.size.0);
        if sleeps {
            free += segment.free().map(|free| free.0).sum::<u64>();
        }
        !sleeps
    });
    Bytes(free)
}

fn sleeping(ledger: &Ledger, device: DeviceIndex) -> impl Iterator<Item = &SegmentMemory> {
    let memory = ledger.segment_memory();
    memory.filter(move |memory| memory.is_asleep && memory.device == Some(device))
}

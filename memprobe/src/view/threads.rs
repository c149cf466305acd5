//! Table of threads by the memory that they allocated, in reports and on the live screen.

use super::attribution::thread;
use super::cells::Remainder;
use super::names::BLOCKS;
use super::table::{Cell, Column, SortOrder, Tone, columns};
use crate::attribution::tables::{AllocatingThread, Holding, ThreadRow};
use crate::event::{Bytes, DeviceIndex, Tid};

/// A thread, a sum of threads, or bytes without one.
#[derive(Clone, Default)]
pub struct ThreadEntry {
    pub device: Option<DeviceIndex>,
    pub tid: Option<Tid>,
    pub kind: &'static str,
    pub name: String,
    /// Bytes now, and at the device's peak.
    pub bytes: [Cell<'static>; 2],
    pub peak: Option<Bytes>,
    /// Live blocks, and allocations.
    pub counts: Option<[u64; 2]>,
}

pub const THREAD_COLUMNS: [Column<ThreadEntry>; 9] = columns![|row: ThreadEntry|
    data("device") => row.device,
    number("live", "LIVE").screen(11, 0).tone(Tone::Strong) => row.bytes[0].clone(),
    number("at_peak", "AT PEAK").screen(11, 44) => row.bytes[1].clone(),
    number("peak", "PEAK").priority(1).screen(11, 100) => row.peak,
    number("live_blocks", BLOCKS).screen(7, 56) => row.counts.map(|it| it[0]),
    number("allocs", "ALLOCS").priority(2).screen(9, 90) => row.counts.map(|it| it[1]),
    number("tid", "TID").screen(8, 50).order(Some(SortOrder::Climbing)) => row.tid.map(|tid| tid.0),
    data("kind") => row.kind,
    text("name", "THREAD").name(0) => &row.name,
];

impl ThreadEntry {
    pub fn new(row: &ThreadRow) -> Self {
        let (kind, tid) = match row.allocator {
            AllocatingThread::Thread(tid) => ("thread", Some(tid)),
            AllocatingThread::BeforeOpening => ("before_opening", None),
            AllocatingThread::TooMany => ("too_many", None),
        };
        Self {
            tid,
            kind,
            ..Self::sum(&row.holding, thread(row))
        }
    }

    pub fn sum(holding: &Holding, name: String) -> Self {
        Self {
            name,
            bytes: [holding.live, holding.at_peak].map(Cell::from),
            peak: holding.peak,
            counts: Some([holding.live_blocks, holding.allocs]),
            ..Self::default()
        }
    }
}

impl From<Remainder> for ThreadEntry {
    fn from(rest: Remainder) -> Self {
        Self {
            kind: rest.kind,
            name: rest.name.to_owned(),
            bytes: rest.bytes,
            ..Self::default()
        }
    }
}

//! Rows of allocations, for CSV and Parquet.

use std::io::BufRead;
use std::sync::atomic::AtomicU64;

use super::ExportError;
use super::replay::ExportReplay;
use super::second_replay::replay_again;
use crate::attribution::allocations::Allocation;
use crate::event::{Action, TensorSpec, Tid, TimeNs};
use crate::ledger::snapshot::{Grouping, Site};
use crate::recording::Reader;
use crate::view::cells::known_line;
use crate::view::table::{Column, columns};

pub(super) struct AllocationRow<'a> {
    replay: &'a ExportReplay,
    index: usize,
    allocation: &'a Allocation,
    stream: Option<u64>,
}

impl AllocationRow<'_> {
    /// Nanoseconds since the start of the recording.
    fn since(&self, time: TimeNs) -> u64 {
        time.0.saturating_sub(self.replay.header.start.0)
    }

    /// Site of the allocation, as in the table of lines; `None` for a block from before attach.
    fn site(&self) -> Option<&Site> {
        let stack = (!self.allocation.is_baseline).then_some(self.allocation.stack)?;
        Some(self.replay.ledger.site(stack, Grouping::User))
    }

    fn kind(&self) -> &'static str {
        self.site().map_or("before_attach", Site::as_str)
    }

    fn module(&self) -> Option<String> {
        let stack = (!self.allocation.is_baseline).then_some(self.allocation.stack)?;
        self.replay.module(stack)
    }

    fn tensor(&self) -> Option<&TensorSpec> {
        self.replay
            .ledger
            .purpose(self.allocation.purpose)?
            .tensor()
    }

    fn name(&self) -> Option<&str> {
        let name = self.replay.history.label(self.index)?.name.as_ref();
        name.map(|name| &*name.text)
    }

    fn tid(&self) -> Option<u64> {
        let tid = self.allocation.tid;
        (tid != Tid::UNKNOWN).then_some(tid.0.into())
    }
}

pub(super) const COLUMNS: usize = 19;

pub(super) fn columns<'a>() -> [Column<AllocationRow<'a>>; COLUMNS] {
    columns![|row: AllocationRow<'a>|
        data("time_ns") => row.since(row.allocation.time),
        data("freed_ns") => row.allocation.freed().map(|time| row.since(time)),
        data("device") => row.allocation.device,
        data("addr") => row.allocation.addr,
        data("size") => row.allocation.size,
        data("requested") => row.tensor().and_then(|tensor| tensor.requested),
        data("stream") => row.stream,
        data("tid") => row.tid(),
        data("kind") => row.kind(),
        data("file") => row.site().and_then(Site::frame).map(|frame| &*frame.file),
        data("line") => row.site().and_then(Site::frame).and_then(known_line),
        data("function") => row.site().and_then(Site::frame).map(|frame| &*frame.function),
        data("node") => row.site().and_then(Site::node).map(|node| &**node),
        data("category") => row.allocation.category.map(|category| category.key()),
        data("module") => row.module(),
        data("shape") => row.tensor().map(ToString::to_string),
        data("dtype") => row.tensor().map(|tensor| tensor.dtype.to_string()),
        data("name") => row.name(),
        data("reason") => row.site().and_then(Site::nobody).map(|(_, reason)| reason),
    ]
}

/// Calls `each` for every allocation, in their order; blocks from before attach come at their device's first event.
pub(super) fn each_allocation<'h, R: BufRead>(
    replay: &'h ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    mut each: impl FnMut(&AllocationRow<'h>) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    replay_again(replay, reader, progress, |replayed| {
        let is_allocation = matches!(replayed.event.action, Action::Alloc | Action::Held);
        if let Some((index, allocation)) = replayed.allocation.filter(|_| is_allocation) {
            each(&AllocationRow {
                replay,
                index,
                allocation,
                stream: replayed.owner.map(|(_, stream)| stream),
            })?;
        }
        Ok(())
    })
}

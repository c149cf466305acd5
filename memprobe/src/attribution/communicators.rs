//! Memory of NCCL by communicator, as far as the stacks of its allocations tell.
//!
//! NCCL gets memory while it makes a communicator, and when it connects one for a first collective of a kind. Its calls
//! into CUDA do not name the communicator. The Python stack names the call of `torch.distributed` that they serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::owner_rows::{OwnerKind, OwnerRow};
use crate::ledger::saturated;
use crate::ledger::snapshot::LineRow;
use crate::torch::names::communicator_call;

/// Call that communicators serve.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommunicatorCall {
    /// Function of `torch.distributed`, such as `new_group` or `all_reduce`.
    Function(Arc<str>),
    /// No Python stack, or no such function in it.
    Unknown,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    live: u64,
    blocks: u64,
    allocs: u64,
}

/// Rows of a library's line, one for each call that communicators serve, largest first.
pub(super) fn by_call(depth: u8, line: &LineRow) -> Vec<OwnerRow> {
    let mut sums: BTreeMap<CommunicatorCall, Sum> = BTreeMap::new();
    for row in &line.stacks {
        let call = communicator_call(&row.stack.frames);
        let call = call.map_or(CommunicatorCall::Unknown, |call| {
            CommunicatorCall::Function(Arc::clone(call))
        });
        let sum = sums.entry(call).or_default();
        sum.live = sum.live.saturating_add(row.live.0);
        sum.blocks = sum.blocks.saturating_add(row.live_blocks);
        sum.allocs = sum.allocs.saturating_add(row.allocs);
    }
    let is_one = sums.len() == 1;
    let row = |(call, sum): (CommunicatorCall, Sum)| OwnerRow {
        // The peak of a part is not known: peaks do not add up.
        peak: is_one.then_some(line.peak),
        blocks: Some(sum.blocks),
        allocs: Some(sum.allocs),
        site: Some(line.site.clone()),
        communicator: Some(call),
        ..OwnerRow::new(OwnerKind::Line, depth, saturated(sum.live))
    };
    let mut rows: Vec<OwnerRow> = sums.into_iter().map(row).collect();
    rows.retain(|row| row.bytes > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

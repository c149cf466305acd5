//! Sums of a device's tensors, compared with the allocator's total.

use crate::event::Bytes;
use crate::event::bytes::{human, signed};
use crate::tensors::{Account, DeviceTable};
use crate::view::{count, counted};

pub(super) fn title(table: &DeviceTable) -> String {
    let account = &table.account;
    let device = table.device;
    let tensors = counted(account.tensor_count, "tensor");
    match (account.totals, account.block_count) {
        (Some(totals), Some(blocks)) => format!(
            "{device}  allocated {} in {}, reserved {}, {tensors}",
            human(totals.allocated),
            counted(blocks, "block"),
            human(totals.reserved),
        ),
        (Some(totals), None) => format!(
            "{device}  allocated {}, reserved {}, {tensors}",
            human(totals.allocated),
            human(totals.reserved),
        ),
        (None, _) => format!("{device}  {} in {tensors}", human(account.held())),
    }
}

/// The allocator's total, then its parts: bytes and label of each.
pub(super) fn sum(account: &Account, limit: Option<u64>) -> Vec<(String, String)> {
    let Some(totals) = account.totals else {
        return Vec::new();
    };
    let mut lines = vec![
        (
            human(totals.allocated),
            "allocated by the allocator".to_owned(),
        ),
        (
            human(account.tensors),
            format!("explained by {} tensors", count(account.tensor_count)),
        ),
    ];
    let parts = [
        (account.bare, "storages without a tensor"),
        (
            account.rounding,
            "rounding: blocks are multiples of 512 bytes, and small remainders stay with them",
        ),
        (
            account.uncovered,
            "requested, but outside every storage that was found",
        ),
        (account.blocks, "blocks without a tensor"),
    ];
    for (bytes, words) in parts {
        if bytes != Bytes(0) {
            lines.push((human(bytes), words.to_owned()));
        }
    }
    if account.unread != Bytes(0) {
        let words = match limit {
            Some(limit) => format!(
                "limit reached: blocks of the tensors beyond {}, which memprobe does not read, and blocks without a \
                 tensor",
                count(limit)
            ),
            None => {
                "blocks of tensors that could not be read, and blocks without a tensor".to_owned()
            }
        };
        lines.push((human(account.unread), words));
    }
    let remainder = account.remainder.unwrap_or(0);
    let words = match account.reason {
        Some(reason) => format!("remainder: {}", reason.as_str()),
        None => "remainder".to_owned(),
    };
    lines.push((signed(remainder), words));
    lines
}

//! Text above the tables: process, time, and data that could not be read.

use std::time::{Duration, SystemTime};

use crate::event::Target;
use crate::report::preamble::target_lines;
use crate::tensors::TensorTable;
use crate::view::table::Page;
use crate::view::{clean, consistency, count, identity_line};

pub(in crate::report) fn push_target(page: &mut Page, target: &Target) {
    for line in target_lines(target, env!("CARGO_PKG_VERSION")) {
        page.fitted(&line);
    }
    for identity in &target.gpus {
        page.fitted(&identity_line(identity));
    }
}

pub(super) fn taken(table: &TensorTable) -> String {
    format!(
        "taken {}; {}; {} Python objects",
        moment(table.taken_ms),
        consistency(table.consistency),
        count(table.objects)
    )
}

/// Such as `2025-11-24 16:00:00 UTC`.
pub(super) fn moment(milliseconds: u64) -> String {
    let since = Duration::from_millis(milliseconds);
    // Invalid dates come from a damaged file or an unset clock.
    let year_9999 = Duration::from_secs(253_402_300_799);
    match SystemTime::UNIX_EPOCH.checked_add(since.min(year_9999)) {
        Some(time) => {
            let text = humantime::format_rfc3339_seconds(time).to_string();
            text.replace('T', " ").replace('Z', " UTC")
        }
        None => "at an unknown time".to_owned(),
    }
}

pub(super) fn notes(table: &TensorTable) -> impl Iterator<Item = String> {
    let unread = table.unread.iter();
    unread.map(|words| format!("note: {}", clean(words)))
}

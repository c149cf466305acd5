//! Text above the tables: process, time, and data that could not be read.

use std::time::{Duration, SystemTime};

use crate::event::Target;
use crate::tensors::TensorTable;
use crate::view::{clean, consistency, count, process};

/// Lines with the command, and with the process's id and versions.
pub(in crate::report) fn target(target: &Target) -> Vec<String> {
    let command = if target.command.is_empty() {
        "unknown command".to_owned()
    } else {
        clean(&target.command)
    };
    let version = |what: &str, version: &Option<String>| {
        let version = version.as_ref();
        version.map(|version| format!("{what} {}", clean(version)))
    };
    let mut facts = Vec::new();
    facts.extend(process(target));
    facts.extend(version("Python", &target.python));
    facts.extend(version("torch", &target.torch));
    facts.push(format!("memprobe {}", env!("CARGO_PKG_VERSION")));
    vec![command, facts.join("  ")]
}

/// Time, consistency and extent of the snapshot.
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

/// Notes on data that could not be read.
pub(super) fn notes(table: &TensorTable) -> impl Iterator<Item = String> {
    let unread = table.unread.iter();
    unread.map(|words| format!("note: {}", clean(words)))
}

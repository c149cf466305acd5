//! Summary of the selected process.

use crate::event::bytes::human;
use crate::ledger::snapshot::host::{DriverSnapshot, Holder, ProcessRow};
use crate::view::{self, clean, driver_gap, named_site, percent, process_state, whole_frame};

/// Returns two lines: state or top line, then the facts of the process.
pub fn lines(row: &ProcessRow, driver: &DriverSnapshot) -> Vec<String> {
    vec![first_line(row), facts(row, driver).join("  ")]
}

/// Returns the state, the top line with its whole path, or both.
fn first_line(row: &ProcessRow) -> String {
    let top = row.top.as_ref().map(|top| {
        let name = match &top.holder {
            Holder::Site(site) => named_site(site, whole_frame),
            Holder::BeforeAttach => "allocated before attach: its lines are unknown".to_owned(),
        };
        let whole = row.totals().unwrap_or_default().allocated;
        let share = percent(top.live.0.into(), whole.0.into());
        format!("{} ({share}) {name}", human(top.live))
    });
    match (process_state(row), top) {
        (Some(state), Some(top)) => format!("{state}; {top}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => "nothing is allocated".to_owned(),
    }
}

fn facts(row: &ProcessRow, driver: &DriverSnapshot) -> Vec<String> {
    let facts = &row.facts;
    let mut texts: Vec<String> = row.note.as_deref().map(clean).into_iter().collect();
    texts.push(clean(&row.target.command));
    if let Some(inside) = row.target.inner_tgid {
        texts.push(format!("PID {} inside", inside.0));
    }
    if let Some(rank) = facts.rank {
        let local = rank.local.map(|local| format!(" (local {local})"));
        let local = local.unwrap_or_default();
        texts.push(format!("rank {}{local}", view::rank(rank)));
    }
    texts.extend(
        row.target
            .container
            .as_deref()
            .map(|name| format!("in {}", clean(name))),
    );
    for device in row.devices.iter().filter(|_| row.devices.len() > 1) {
        let allocated = human(device.totals.allocated);
        texts.push(format!("cuda:{} {allocated}", device.index.0));
    }
    for held in &row.driver {
        let bytes = held.bytes.map_or_else(|| "-".to_owned(), human);
        texts.push(format!("driver: GPU {} {bytes}", held.device));
    }
    texts.extend(driver_gap(row, driver));
    let version = |name: &str, version: &Option<String>| {
        let version = version.as_deref().map(clean);
        version.map(|version| format!("{name} {version}"))
    };
    texts.extend(version("Python", &row.target.python));
    texts.extend(version("torch", &row.target.torch));
    texts
}

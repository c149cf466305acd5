//! Summary of a live session: the text that stays on the terminal when its screen is left.

use super::lines::device_table;
use super::preamble::{events_line, limit_warning, loss_warnings, push_totals, target_lines};
use super::{ReportOptions, RowLimit, Sort};
use crate::ledger::Refused;
use crate::ledger::snapshot::Snapshot;
use crate::view::table::Page;
use crate::view::{budget_warning, clean, identity_line};

/// Lines of Python on each device.
const LINES: usize = 10;

/// Describes a session in text: the process, the time, losses, and for each device its peak and largest lines. `saved`
/// are the files that the user saved.
///
/// `refused` is what the caps of its ledger left out.
pub fn session_summary(
    snapshot: &Snapshot,
    refused: &Refused,
    saved: &[String],
    options: &ReportOptions,
) -> String {
    let options = ReportOptions {
        sort: Sort::Peak,
        top: RowLimit::Rows(LINES),
        ..options.clone()
    };
    let mut page = Page::new(options.width, options.colour);
    for line in target_lines(&snapshot.target, env!("CARGO_PKG_VERSION")) {
        page.fitted(&line);
    }
    let devices = snapshot.devices.iter();
    for identity in devices.filter_map(|device| snapshot.target.identity(device.index)) {
        page.fitted(&identity_line(identity));
    }
    page.fitted(&events_line(snapshot, snapshot.now));
    let limit = limit_warning("the process", refused);
    let budget = budget_warning(snapshot.health.budget.as_ref(), snapshot.now);
    for warning in loss_warnings(&snapshot.health.losses)
        .into_iter()
        .chain(budget)
        .chain(limit)
    {
        page.warning(&format!("warning: {warning}"));
    }
    for device in &snapshot.devices {
        page.blank();
        push_totals(&mut page, device, snapshot.cuda.layer);
        page.table(&device_table(device, snapshot, &options));
    }
    if snapshot.devices.is_empty() {
        page.line("memprobe saw no GPU memory of this process.");
    }
    for file in saved {
        let file = clean(file);
        page.blank();
        page.note(&format!("saved: {file}  (memprobe report {file})"));
    }
    page.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Target, TimeNs};
    use crate::ledger::Ledger;
    use crate::ledger::snapshot::Grouping;
    use crate::recording::Reader;
    use crate::recording::samples::{recording, story};
    use crate::report::replay;

    #[test]
    fn the_summary_of_a_session() {
        let file = recording(&story());
        let reader = Reader::new(&*file).unwrap();
        let (replay, ()) = replay::run(reader, Grouping::User, ()).unwrap();
        let saved = ["/home/me/memprobe-1234.json".to_owned()];
        let text = session_summary(
            &replay.snapshot,
            &Refused::default(),
            &saved,
            &ReportOptions::default(),
        );
        insta::assert_snapshot!(text.replace(env!("CARGO_PKG_VERSION"), "0.0.0"));
    }

    #[test]
    fn blocks_beyond_the_limits_are_named_in_the_summary() {
        let refused = Refused {
            blocks: 7,
            ..Refused::default()
        };
        let ledger = Ledger::new(Target::default(), TimeNs(0));
        let snapshot = ledger.snapshot(TimeNs(1), Grouping::User);
        let text = session_summary(&snapshot, &refused, &[], &ReportOptions::default());
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("7 blocks and 0 stacks are in the totals but in no line"));
    }
}

use serde_json::Value;

use crate::attribution::allocation_groups::samples::{Program, called, learning};
use crate::event::Event;
use crate::recording::Reader;
use crate::recording::samples::{recording, story};
use crate::report::{Alike, By, ReportFormat, ReportOptions, RowLimit, Sort, write};

fn report(events: &[Event], options: ReportOptions) -> String {
    let file = recording(events);
    let options = ReportOptions {
        by: By::Module,
        ..options
    };
    let mut out = Vec::new();
    write(Reader::new(&file[..]).unwrap(), &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_table_of_modules() {
    insta::assert_snapshot!(report(&learning().events, ReportOptions::default()));
}

#[test]
fn each_module_by_itself_down_to_a_depth() {
    let options = ReportOptions {
        alike: Alike::Each,
        depth: Some(2),
        sort: Sort::Allocs,
        ..ReportOptions::default()
    };
    insta::assert_snapshot!(report(&learning().events, options));
}

#[test]
fn modules_that_are_not_shown_are_counted_with_those_above() {
    let options = ReportOptions {
        top: RowLimit::Rows(2),
        width: 140,
        ..ReportOptions::default()
    };
    let text = report(&learning().events, options);
    assert!(text.contains("(4 other modules, included above)"), "{text}");
}

#[test]
fn outermost_modules_that_are_not_shown_keep_their_bytes() {
    let mut program = Program::default();
    for (path, size) in [("A", 4096), ("B", 2048), ("C", 1024)] {
        let stack = program.stack(called(1, path));
        program.alloc(stack, size);
    }
    let options = ReportOptions {
        top: RowLimit::Rows(1),
        ..ReportOptions::default()
    };
    let text = report(&program.events, options);
    let others = text.lines().find(|line| line.contains("(2 other modules)"));
    assert!(
        others.is_some_and(|line| line.contains("3.00 KiB")),
        "{text}"
    );
}

#[test]
fn a_recording_without_modules_says_so() {
    let text = report(&story(), ReportOptions::default());
    assert!(
        text.contains("No call of a torch.nn.Module was seen"),
        "{text}"
    );
}

#[test]
fn the_rows_for_programs_add_up_to_what_the_allocator_says() {
    let json = ReportOptions {
        format: ReportFormat::Json,
        ..ReportOptions::default()
    };
    let report: Value = serde_json::from_str(&report(&learning().events, json)).unwrap();
    let device = &report["devices"][0];
    let rows = device["modules"].as_array().unwrap();
    let sum = |of: &str| {
        rows.iter()
            .map(|row| row[of].as_i64().unwrap())
            .sum::<i64>()
    };
    assert_eq!(sum("own_live"), device["allocated"].as_i64().unwrap());
    assert_eq!(
        sum("own_at_peak"),
        device["peak_allocated"].as_i64().unwrap()
    );
    assert_eq!(rows[0]["path"], "GPT");
}

#[test]
fn the_rows_as_comma_separated_values() {
    let options = ReportOptions {
        format: ReportFormat::Csv,
        ..ReportOptions::default()
    };
    insta::assert_snapshot!(report(&learning().events, options));
}

use std::path::Path;

use super::*;
use crate::attribution::allocation_groups::samples::{Program, called, learning_for};
use crate::event::{Action, Event, Totals};
use crate::recording::samples::compact_recording;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn options(by: CompareBy, moments: [ChosenMoment; 2], format: ReportFormat) -> DiffOptions {
    DiffOptions {
        by,
        moments,
        format,
        top: RowLimit::Rows(30),
        grouping: Grouping::User,
        alike: Alike::Folded,
        width: 100,
        colour: Colour::Plain,
        iteration: None,
    }
}

/// Writes a recording of a program, and returns its path in `folder`.
fn save(folder: &Path, name: &str, events: &[Event]) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, compact_recording(events)).expect("written");
    path
}

fn diff(
    before: &[Event],
    after: Option<&[Event]>,
    options: &DiffOptions,
) -> Result<String, ReportError> {
    let folder = tempfile::tempdir().expect("a folder");
    let before = save(folder.path(), "a.mprb", before);
    let after = after.map(|events| save(folder.path(), "b.mprb", events));
    let named = |name, path: &Path| NamedRecording {
        name,
        reader: Reader::open(path).expect("a recording"),
    };
    let after = after.as_deref().map(|path| named("b.mprb", path));
    let mut out = Vec::new();
    write_difference(named("a.mprb", &before), after, options, &mut out)?;
    Ok(String::from_utf8(out).expect("UTF-8"))
}

fn document(before: &[Event], after: Option<&[Event]>, options: &DiffOptions) -> serde_json::Value {
    let text = diff(before, after, options).expect("a difference");
    serde_json::from_str(&text).expect("JSON")
}

/// A program that allocates at lines of `train.py`: lines and MiB, all kept.
fn program(lines: &[(u32, u64)]) -> Program {
    let mut program = Program::default();
    for (line, mib) in lines {
        let stack = program.stack(called(*line, "Net"));
        program.alloc_tensor(stack, mib * MIB);
    }
    program
}

#[test]
fn two_runs_are_compared_by_line() {
    let before = program(&[(10, 4), (20, 2), (30, 1)]);
    let after = program(&[(10, 4), (20, 5), (25, 7)]);
    let options = options(CompareBy::Line, [ChosenMoment::Peak; 2], ReportFormat::Text);
    let text = diff(&before.events, Some(&after.events), &options).expect("a difference");
    insta::assert_snapshot!(text);
}

#[test]
fn a_line_that_moved_is_found_and_marked() {
    let before = program(&[(10, 4), (20, 2)]);
    let after = program(&[(12, 4), (22, 5)]);
    let options = options(CompareBy::Line, [ChosenMoment::Peak; 2], ReportFormat::Text);
    let text = diff(&before.events, Some(&after.events), &options).expect("a difference");
    insta::assert_snapshot!(text);
}

#[test]
fn rows_add_up_in_each_table_at_each_moment_of_a_training_loop() {
    let loop_of = |iterations| learning_for(iterations, |_| true).events;
    let (before, after) = (loop_of(4), loop_of(9));
    let iteration = ChosenMoment::Iteration;
    for by in [
        CompareBy::Line,
        CompareBy::Tensor,
        CompareBy::Module,
        CompareBy::Category,
    ] {
        for moments in [
            [ChosenMoment::Peak; 2],
            [ChosenMoment::End; 2],
            [iteration(2), iteration(3)],
            [iteration(1), ChosenMoment::End],
        ] {
            let options = options(by, moments, ReportFormat::Json);
            for after in [None, Some(&after[..])] {
                let document = document(&before, after, &options);
                check(&document, &format!("{by:?} {moments:?}"));
            }
        }
    }
}

/// Asserts that the rows of each device add up to the change of its total.
fn check(document: &serde_json::Value, case: &str) {
    for device in document["devices"].as_array().expect("devices") {
        let rows = device["rows"].as_array().expect("rows");
        for (column, total) in [
            ("before", &device["before"]["allocated"]),
            ("after", &device["after"]["allocated"]),
            ("change", &device["change"]),
        ] {
            let sum: i64 = rows.iter().filter_map(|row| row[column].as_i64()).sum();
            assert_eq!(sum, total.as_i64().unwrap_or(0), "{case}: {column}");
        }
    }
}

#[test]
fn an_out_of_memory_error_is_a_moment() {
    let mut failing = program(&[(10, 4), (20, 2)]);
    let last = failing.events.last().cloned().expect("an event");
    let Event::Memory(mut error) = last else {
        panic!("{last:?}")
    };
    (error.action, error.addr.0, error.size.0) = (Action::OutOfMemory, 0, 99 * MIB);
    error.totals = Some(Totals::of(6 * MIB, 6 * MIB));
    failing.events.push(Event::Memory(error));
    failing.free(0x1000);
    let moments = [ChosenMoment::OutOfMemory, ChosenMoment::End];
    let options = options(CompareBy::Line, moments, ReportFormat::Json);
    let found = document(&failing.events, None, &options);
    assert_eq!(found["devices"][0]["before"]["allocated"], 6 * MIB);
    assert_eq!(found["devices"][0]["after"]["allocated"], 2 * MIB);
    check(&found, "oom");
    let fine = program(&[(10, 4)]);
    let error = diff(&fine.events, None, &options).expect_err("no error");
    assert!(
        error.to_string().contains("a.mprb: no request failed"),
        "{error}"
    );
}

#[test]
fn a_missing_iteration_names_the_file_and_its_iterations() {
    let moments = [ChosenMoment::Iteration(2), ChosenMoment::Iteration(99)];
    let options = options(CompareBy::Line, moments, ReportFormat::Text);
    let error = diff(&learning_for(4, |_| true).events, None, &options).expect_err("none");
    let text = error.to_string();
    assert!(text.contains("a.mprb: it has 1 to "), "{text}");
}

proptest! {
    #[test]
    fn rows_add_up_whatever_a_program_does(steps in prop::collection::vec((0_u32..4, 0_u64..40), 1..60)) {
        let mut random = Program::attached_at(64 * MIB);
        for (line, size) in &steps {
            match (size % 3, random.nth_live(*size as usize)) {
                (0, Some(addr)) => random.free(addr),
                _ => {
                    let stack = random.stack(called(*line, ""));
                    random.alloc(stack, (size + 1) * 512);
                }
            }
        }
        let moments = [ChosenMoment::Peak, ChosenMoment::End];
        for by in [CompareBy::Line, CompareBy::Category] {
            let options = options(by, moments, ReportFormat::Json);
            check(&document(&random.events, None, &options), "random");
        }
    }
}

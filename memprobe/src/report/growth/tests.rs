use std::sync::Arc;

use serde_json::Value;

use crate::attribution::allocation_groups::samples::{learning_for, retained_by_losses};
use crate::event::{Context, Event, StackKind};
use crate::recording::Reader;
use crate::recording::samples::{recording, story};
use crate::report::{By, ReportFormat, ReportOptions, write};

fn report(events: &[Event], format: ReportFormat) -> String {
    let file = recording(events);
    let options = ReportOptions {
        by: By::Growth,
        format,
        ..ReportOptions::default()
    };
    let mut out = Vec::new();
    write(Reader::new(&file[..]).unwrap(), &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_list_that_keeps_the_loss_of_each_iteration() {
    insta::assert_snapshot!(report(
        &learning_for(40, |_| true).events,
        ReportFormat::Text
    ));
}

#[test]
fn unknown_modules_have_no_table() {
    let mut events = learning_for(40, |_| true).events;
    for event in &mut events {
        if let Event::Stack(_, stack) = event {
            let mut bare = (**stack).clone();
            bare.context = Context::default();
            *stack = bare.into();
        }
    }
    let text = report(&events, ReportFormat::Text);
    assert!(text.contains("LINE") && !text.contains("MODULE"), "{text}");
}

#[test]
fn a_program_that_keeps_nothing() {
    insta::assert_snapshot!(report(
        &learning_for(40, |_| false).events,
        ReportFormat::Text
    ));
}

#[test]
fn a_program_that_was_recorded_too_shortly() {
    let text = report(&learning_for(6, |_| true).events, ReportFormat::Text);
    assert!(text.contains("too few to find growth"), "{text}");
    assert!(!text.contains("BYTES/ITER"), "{text}");
}

#[test]
fn a_program_without_iterations_is_looked_at_by_time() {
    let mut events = learning_for(2000, |_| true).events;
    events.retain(|event| !matches!(event, Event::PhaseMark(_)));
    for event in &mut events {
        if let Event::Stack(_, stack) = event {
            let stack = Arc::make_mut(stack);
            (stack.kind, stack.context.node) = (StackKind::Python, None);
        }
    }
    let text = report(&events, ReportFormat::Text);
    assert!(text.contains("as no iterations were found"), "{text}");
    assert!(text.contains("BYTES/s"), "{text}");
}

#[test]
fn a_recording_with_a_little_of_everything_grows_nowhere() {
    let text = report(&story(), ReportFormat::Text);
    assert!(!text.contains("BYTES/"), "{text}");
}

#[test]
fn suspects_for_programs() {
    let report: Value = serde_json::from_str(&report(
        &learning_for(40, |_| true).events,
        ReportFormat::Json,
    ))
    .unwrap();
    let device = &report["devices"][0];
    assert_eq!(device["per"], "iteration");
    let suspects = device["suspects"].as_array().unwrap();
    let kinds: Vec<_> = suspects
        .iter()
        .map(|row| row["by"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["total", "line", "module", "tensor"]);
    let line = &suspects[1];
    assert_eq!(
        (
            line["line"].as_u64(),
            line["bytes"].as_f64(),
            line["blocks"].as_f64()
        ),
        (Some(32), Some(512.0), Some(1.0))
    );
    assert_eq!(line["shape"], "()");
}

#[test]
fn suspects_as_comma_separated_values() {
    insta::assert_snapshot!(report(
        &learning_for(40, |_| true).events,
        ReportFormat::Csv
    ));
}

/// A net that keeps its losses; its objects are read at the end.
fn read_at_the_end() -> Vec<Event> {
    let mut program = learning_for(40, |_| true);
    program.read(|addr| match addr >> 9 {
        nth if nth % 8 == 0 => None,
        nth if nth % 3 == 0 => Some(retained_by_losses(nth, None)),
        nth => Some(retained_by_losses(nth, Some("grad_fn MeanBackward0"))),
    });
    program.events
}

#[test]
fn retainers_of_losses_are_named_after_a_heap_snapshot() {
    insta::assert_snapshot!(report(&read_at_the_end(), ReportFormat::Text));
}

#[test]
fn who_keeps_the_losses_for_programs() {
    let report: Value =
        serde_json::from_str(&report(&read_at_the_end(), ReportFormat::Json)).unwrap();
    let device = &report["devices"][0];
    let retained = &device["retainers"];
    let sum = |field: &str| -> u64 {
        let retainers = retained["named"].as_array().unwrap().iter();
        retainers
            .map(|retainer| retainer[field].as_u64().unwrap())
            .sum()
    };
    let nobody = retained["unknown_bytes"].as_u64().unwrap();
    assert_eq!(
        sum("bytes") + nobody,
        retained["live_bytes"].as_u64().unwrap()
    );
    assert_eq!(
        retained["named"][0]["root"],
        "train.py:40 main() -> losses[*]"
    );
    let line = &device["suspects"][1];
    assert_eq!(line["retained_class"], "list");
    assert_eq!(line["retainers"]["live_bytes"], retained["live_bytes"]);
}

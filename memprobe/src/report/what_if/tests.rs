use super::*;
use crate::attribution::allocation_groups::samples::{Program, called};
use crate::recording::samples::compact_recording;
use crate::report::ReportFormat;

const MIB: u64 = 1 << 20;

/// A program whose totals are not those of PyTorch's allocator.
fn report(format: ReportFormat) -> String {
    let mut program = Program::default();
    let stack = program.stack(called(10, ""));
    let first = program.alloc(stack, 30 * MIB);
    program.free(first);
    program.alloc(stack, 40 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.mprb");
    std::fs::write(&path, compact_recording(&program.events)).expect("written");
    let text = "expandable_segments:True".to_owned();
    let options = ReportOptions {
        format,
        what_if: Some(WhatIfSettings {
            settings: AllocatorSettings::parse(&text).expect("settings"),
            text,
        }),
        ..ReportOptions::default()
    };
    let mut out = Vec::new();
    let reader = Reader::open(&path).expect("a recording");
    crate::report::write(reader, &options, &mut out).expect("a report");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn a_run_that_is_not_reproduced_has_its_difference_printed() {
    insta::assert_snapshot!(report(ReportFormat::Text));
}

#[test]
fn programs_get_the_same_figures() {
    let document: serde_json::Value = serde_json::from_str(&report(ReportFormat::Json)).unwrap();
    let device = &document["devices"][0];
    assert_eq!(device["exact"], false);
    assert_eq!(device["rows"][0]["peak_reserved"], 40 * MIB);
    assert_eq!(device["rows"][1]["peak_reserved"], 70 * MIB);
    assert_eq!(device["rows"][2]["peak_reserved"], 40 * MIB);
    let csv = report(ReportFormat::Csv);
    assert_eq!(csv.lines().count(), 4, "{csv}");
}

use serde_json::Value;

use crate::attribution::allocation_groups::samples::{learning, learning_for};
use crate::event::tensors::TensorKind;
use crate::event::{Address, BlockLabels, Bytes, DeviceIndex, Event, LabeledBlock, Tgid, TimeNs};
use crate::recording::Reader;
use crate::recording::samples::{late_attach, recording, story};
use crate::report::{By, ReportFormat, ReportOptions, RowLimit, write};

fn report(events: &[Event], format: ReportFormat) -> String {
    let file = recording(events);
    let options = ReportOptions {
        by: By::Peak,
        format,
        top: RowLimit::Rows(4),
        ..ReportOptions::default()
    };
    let mut out = Vec::new();
    write(Reader::new(&file[..]).unwrap(), &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn what_a_device_held_when_it_held_most() {
    insta::assert_snapshot!(report(&learning().events, ReportFormat::Text));
}

#[test]
fn the_peak_of_a_recording_with_a_little_of_everything() {
    insta::assert_snapshot!(report(&story(), ReportFormat::Text));
}

#[test]
fn the_iteration_of_the_peak_is_named() {
    let text = report(
        &learning_for(12, |iteration| iteration == 7).events,
        ReportFormat::Text,
    );
    assert!(text.contains("in iteration 9"), "{text}");
}

/// Names one of the blocks of [`late_attach`].
fn labeled() -> Event {
    let block = LabeledBlock {
        kind: Some(TensorKind::Parameter),
        ..LabeledBlock::unlabeled(Address(0x7f00_0020_0000), Bytes(1 << 20), DeviceIndex(0))
    };
    let labels = BlockLabels {
        time: TimeNs(5_000_000_100),
        tgid: Tgid(1234),
        blocks: vec![block],
        optimizers: Vec::new(),
        tags: Vec::new(),
    };
    Event::BlockLabels(labels.into())
}

#[test]
fn each_table_adds_up_to_what_the_allocator_said() {
    let mut named = late_attach();
    named.push(labeled());
    for events in [
        learning().events,
        late_attach(),
        named,
        learning_for(12, |_| true).events,
    ] {
        let report: Value = serde_json::from_str(&report(&events, ReportFormat::Json)).unwrap();
        for device in report["devices"].as_array().unwrap() {
            let rows = device["rows"].as_array().unwrap();
            for by in ["line", "module", "tensor", "category"] {
                let of_table = rows.iter().filter(|row| row["by"] == by);
                let sum: i64 = of_table.map(|row| row["bytes"].as_i64().unwrap()).sum();
                assert_eq!(sum, device["allocated"].as_i64().unwrap(), "{by}");
            }
            let sum = |key: &str, is: &str| -> i64 {
                let rows = rows.iter().filter(|row| row[key] == is);
                rows.map(|row| row["bytes"].as_i64().unwrap()).sum()
            };
            assert_eq!(sum("by", "saved"), sum("category", "activation"));
        }
    }
}

#[test]
fn the_peak_as_comma_separated_values() {
    insta::assert_snapshot!(report(
        &learning_for(2, |_| false).events,
        ReportFormat::Csv
    ));
}

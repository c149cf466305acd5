use serde_json::Value;

use super::*;
use crate::event::Bytes;
use crate::event::tensors::{Consistency, TensorDevice};
use crate::tensors::samples::{graph, later, server, training};
use crate::tensors::without;

fn table(snapshot: &TensorSnapshot, options: &TensorOptions) -> String {
    let mut out = Vec::new();
    write_tensors(&Arc::new(snapshot.clone()), options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn difference(options: &TensorOptions) -> String {
    difference_of(training(), later(), options)
}

fn difference_of(before: TensorSnapshot, after: TensorSnapshot, options: &TensorOptions) -> String {
    let mut out = Vec::new();
    write_tensor_diff(&before.into(), &after.into(), options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn wide() -> TensorOptions {
    TensorOptions::default()
}

#[test]
fn the_table_of_a_training_step() {
    insta::assert_snapshot!(table(&without(training(), TensorDevice::Cpu), &wide()));
}

#[test]
fn the_table_with_the_host_and_all_names() {
    let options = TensorOptions {
        names: TensorNames::All,
        order: Order::Name,
        top: RowLimit::Rows(8),
        ..wide()
    };
    insta::assert_snapshot!(table(&training(), &options));
}

#[test]
fn the_table_by_shape_by_kind_by_module_and_by_line() {
    let tables = [
        GroupBy::Shape,
        GroupBy::Kind,
        GroupBy::Module,
        GroupBy::Site,
    ]
    .map(|by| {
        let options = TensorOptions { by, ..wide() };
        table(&without(training(), TensorDevice::Cpu), &options)
    });
    insta::assert_snapshot!(tables.join("\n"));
}

#[test]
fn the_kv_cache_by_request_adds_up_to_its_tensors() {
    let by = GroupBy::Request;
    let text = table(&server(), &TensorOptions { by, ..wide() });
    let one = RowLimit::Rows(1);
    let shortened = table(
        &server(),
        &TensorOptions {
            by,
            top: one,
            ..wide()
        },
    );
    let format = TensorFormat::Csv;
    let csv = table(
        &server(),
        &TensorOptions {
            by,
            format,
            ..wide()
        },
    );
    let bytes = csv
        .lines()
        .skip(1)
        .filter_map(|line| line.rsplit(',').next());
    let sum: u64 = bytes.map(|bytes| bytes.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 2 * 8 * 4096);
    insta::assert_snapshot!([text, shortened, csv].join("\n"));
}

#[test]
fn a_kv_cache_that_is_not_divided_has_its_reason() {
    let by = GroupBy::Request;
    let mut snapshot = server();
    snapshot.kv.pools.clear();
    snapshot.kv.gap = Some(crate::event::KvGap::NoScheduler);
    let text = table(&snapshot, &TensorOptions { by, ..wide() });
    assert!(
        text.contains("the KV cache is not divided: the process has no objects of a scheduler")
    );
    let none = table(&training(), &TensorOptions { by, ..wide() });
    assert!(none.contains("No KV cache of a server that memprobe knows"));
}

#[test]
fn the_table_in_a_narrow_terminal_with_colour() {
    let options = TensorOptions {
        width: 76,
        colour: Colour::Ansi,
        top: RowLimit::Rows(6),
        ..wide()
    };
    insta::assert_snapshot!(table(&without(training(), TensorDevice::Cpu), &options));
}

#[test]
fn the_table_of_a_process_that_ran_on_and_whose_blocks_are_not_known() {
    let mut snapshot = without(training(), TensorDevice::Cpu);
    snapshot.blocks.clear();
    snapshot.consistency = Consistency::Running;
    insta::assert_snapshot!(table(
        &snapshot,
        &TensorOptions {
            top: RowLimit::Rows(5),
            ..wide()
        }
    ));
}

#[test]
fn what_other_rows_answer_for_comes_last_and_equal_ones_are_one_row() {
    let whole = table(&graph(), &wide());
    assert!(
        whole.contains("(saved by AddmmBackward0) (->40 others)"),
        "{whole}"
    );
    let top = RowLimit::Rows(4);
    let begin = table(&graph(), &TensorOptions { top, ..wide() });
    let by = GroupBy::Shape;
    let shapes = table(&graph(), &TensorOptions { by, ..wide() });
    insta::assert_snapshot!([begin, shapes].join("\n"));
}

#[test]
fn a_table_for_programs_has_what_other_rows_answer_for() {
    let options = TensorOptions {
        format: TensorFormat::Json,
        ..wide()
    };
    let document: Value = serde_json::from_str(&table(&graph(), &options)).unwrap();
    assert_eq!(document["tensors"].as_array().unwrap().len(), 161);
}

#[test]
fn the_table_of_a_process_without_tensors() {
    insta::assert_snapshot!(table(&TensorSnapshot::default(), &wide()));
}

#[test]
fn no_name_reaches_the_terminal_as_it_is() {
    for text in [table(&training(), &wide()), difference(&wide())] {
        assert!(
            text.chars()
                .all(|letter| letter == '\n' || !letter.is_control())
        );
        assert!(!text.contains('\u{202e}'));
    }
}

#[test]
fn what_came_and_went() {
    insta::assert_snapshot!(difference(&wide()));
}

#[test]
fn what_came_and_went_by_shape_of_two_processes() {
    let mut other = later();
    other.target.tgid = None;
    let options = TensorOptions {
        by: GroupBy::Shape,
        ..wide()
    };
    insta::assert_snapshot!(difference_of(training(), other, &options));
}

#[test]
fn nothing_came_and_nothing_went() {
    let same = without(training(), TensorDevice::Cpu);
    insta::assert_snapshot!(difference_of(same.clone(), same, &wide()));
}

#[test]
fn the_difference_in_json_comes_to_that_of_the_allocator() {
    let options = TensorOptions {
        format: TensorFormat::Json,
        ..wide()
    };
    let document: Value = serde_json::from_str(&difference(&options)).unwrap();
    let cuda = &document["devices"][0];
    let sum = |list: &Value| -> i64 {
        let list = list.as_array().unwrap().iter();
        list.map(|item| item["allocated"].as_i64().unwrap()).sum()
    };
    let change =
        cuda["allocated_after"].as_i64().unwrap() - cuda["allocated_before"].as_i64().unwrap();
    assert_eq!(sum(&cuda["added"]) - sum(&cuda["removed"]), change);
    assert_eq!(cuda["renamed"][0]["before"]["name"], "history[0]");
    assert_eq!(cuda["renamed"][0]["after"]["name"], "best");
    let kv = &cuda["added"][0];
    assert_eq!(kv["site"]["line"], 51);
    assert_eq!(kv["count"], 4);
}

#[test]
fn the_table_as_comma_separated_values() {
    let options = TensorOptions {
        format: TensorFormat::Csv,
        ..wide()
    };
    let snapshot = without(training(), TensorDevice::Cpu);
    let text = table(&snapshot, &options);
    let held: i64 = ::csv::Reader::from_reader(text.as_bytes())
        .deserialize::<std::collections::HashMap<String, String>>()
        .map(|row| row.unwrap()["allocated"].parse::<i64>().unwrap())
        .sum();
    assert_eq!(held, snapshot.devices[0].totals.allocated.0 as i64);
    insta::assert_snapshot!(text);
}

#[test]
fn a_remainder_is_a_row_of_the_file_too() {
    let mut snapshot = without(training(), TensorDevice::Cpu);
    snapshot.devices[0].totals.allocated = Bytes(snapshot.devices[0].totals.allocated.0 + 512);
    let options = TensorOptions {
        format: TensorFormat::Csv,
        ..wide()
    };
    let text = table(&snapshot, &options);
    assert!(
        text.contains("remainder,0,blocks that could not be read"),
        "{text}"
    );
}

#[test]
fn the_difference_as_comma_separated_values() {
    let options = TensorOptions {
        format: TensorFormat::Csv,
        ..wide()
    };
    insta::assert_snapshot!(difference(&options));
}

#[test]
fn blocks_of_tensors_beyond_the_limit_have_a_row_that_names_it() {
    let mut snapshot = without(training(), TensorDevice::Cpu);
    snapshot.limit = Some(524_288);
    let text = table(&snapshot, &wide());
    assert!(text.contains("(tensor not read, or none)"), "{text}");
    assert!(
        text.contains("limit reached: blocks of the tensors beyond 524,288"),
        "{text}"
    );
    assert!(!text.contains("(no tensor)"), "{text}");
    assert!(!text.contains("  blocks without a tensor"), "{text}");
    let mut json = Vec::new();
    crate::recording::write::tensors::write_tensors(&snapshot, "0", &mut json).unwrap();
    let written: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(written["tensor_limit"], 524_288);
    assert_eq!(written["totals"][0]["blocks_without_tensor"], 0);
    assert!(written["totals"][0]["blocks_not_read"].as_u64() > Some(0));
    let read = crate::recording::read_tensors(json.as_slice()).unwrap();
    assert_eq!(read.limit, snapshot.limit);
}

#[test]
fn where_objects_are_missing_no_block_is_said_to_have_no_tensor() {
    let mut snapshot = without(training(), TensorDevice::Cpu);
    snapshot.missing_objects = Some("there are more than 16,777,216 Python objects".into());
    let text = table(&snapshot, &wide());
    assert!(text.contains("(tensor not read, or none)"), "{text}");
    assert!(
        text.contains("blocks of tensors that could not be read, and blocks without a tensor"),
        "{text}"
    );
    assert!(!text.contains("(no tensor)"), "{text}");
    let mut json = Vec::new();
    crate::recording::write::tensors::write_tensors(&snapshot, "0", &mut json).unwrap();
    let read = crate::recording::read_tensors(json.as_slice()).unwrap();
    assert_eq!(read.missing_objects, snapshot.missing_objects);
}

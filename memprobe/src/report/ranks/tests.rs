use super::*;
use crate::attribution::allocation_groups::samples::{Program, called};
use crate::recording::Reader;
use crate::recording::samples::compact_recording;
use crate::report::ReportFormat;

const MIB: u64 = 1 << 20;

/// A rank that keeps these MiB at lines of `train.py`, in a module.
fn rank(lines: &[(u32, u64)]) -> Program {
    let mut program = Program::default();
    for (line, mib) in lines {
        let stack = program.stack(called(*line, "Net"));
        program.alloc(stack, mib * MIB);
    }
    program
}

fn compare(ranks: &[Program], format: ReportFormat) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<_> = ranks
        .iter()
        .enumerate()
        .map(|(number, program)| {
            let path = folder.path().join(format!("rank{number}-77-train.mprb"));
            std::fs::write(&path, compact_recording(&program.events)).expect("written");
            path
        })
        .collect();
    let recordings = paths.iter().map(|path| NamedRecording {
        name: path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name"),
        reader: Reader::open(path).expect("a recording"),
    });
    let options = ReportOptions {
        format,
        ..ReportOptions::default()
    };
    let mut out = Vec::new();
    write_ranks(recordings.collect(), None, &options, &mut out).expect("a comparison");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn ranks_are_compared_by_line_module_and_category() {
    let ranks = [
        rank(&[(10, 4), (20, 2)]),
        rank(&[(10, 4), (20, 9)]),
        rank(&[(10, 4), (30, 1)]),
    ];
    insta::assert_snapshot!(compare(&ranks, ReportFormat::Text));
}

#[test]
fn the_bytes_of_each_table_add_up_for_every_rank() {
    let ranks = [rank(&[(10, 4), (20, 2)]), rank(&[(10, 4), (20, 9)])];
    let text = compare(&ranks, ReportFormat::Json);
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for table in document["tables"].as_array().expect("tables") {
        for rank in 0..2 {
            let bytes = |row: &serde_json::Value| row["bytes"][rank].as_u64().expect("bytes");
            let rows = table["rows"].as_array().expect("rows");
            let (total, rows): (Vec<_>, Vec<_>) =
                rows.iter().partition(|row| row["kind"] == "total");
            let sum: u64 = rows.into_iter().map(bytes).sum();
            assert_eq!(sum, bytes(total[0]), "{table}");
            assert_eq!(
                sum,
                document["ranks"][rank]["allocated"]
                    .as_u64()
                    .expect("bytes")
            );
        }
    }
}

#[test]
fn the_rank_that_ran_out_of_memory_is_named() {
    let mut failing = rank(&[(10, 4)]);
    let stack = failing.stack(called(40, "Net"));
    failing.fail(stack, 99 * MIB);
    let text = compare(&[rank(&[(10, 5)]), failing], ReportFormat::Text);
    assert!(
        text.starts_with("rank 1 (cuda:0) alone ran out of memory."),
        "{text}"
    );
}

#[test]
fn a_file_is_named_by_its_rank() {
    assert_eq!(rank_name("rank12-77-train.mprb"), "rank 12");
    for name in ["77-train.mprb", "ranking.mprb"] {
        assert_eq!(rank_name(name), name);
    }
}

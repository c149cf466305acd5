use std::path::PathBuf;

use super::*;
use crate::attribution::allocation_groups::samples::{Program, called};
use crate::attribution::failures::FailureFinder;
use crate::event::{Action, CudaCall, CudaMemoryKind, Event};
use crate::ledger::snapshot::Grouping;
use crate::recording::samples::header;
use crate::recording::write::compact::CompactWriter;
use crate::recording::{EndReason, Header, Reader};
use crate::report::replay;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Start of [`header`], in nanoseconds.
const START: u64 = 5 * SECOND;

/// A recording of a rank that holds 4 MiB from its first event on, and 9 MiB from the second at 3 s.
struct Rank {
    header: Header,
    program: Program,
    exited: Option<u64>,
}

impl Rank {
    fn new() -> Self {
        let mut program = Program::default();
        let stack = program.stack(called(10, "Net"));
        program.alloc(stack, 4 * MIB);
        program.wait(3_000_000);
        program.alloc(stack, 5 * MIB);
        Self {
            header: header(),
            program,
            exited: None,
        }
    }

    fn on_another_machine(mut self) -> Self {
        self.header.boot_id = Some("another".to_owned());
        self
    }

    /// A request fails so long after its last event.
    fn failing(mut self, micros: u64, line: u32) -> Self {
        self.program.wait(micros);
        let stack = self.program.stack(called(line, "Net"));
        self.program.fail(stack, 99 * MIB);
        self
    }

    fn exiting(mut self, seconds: u64) -> Self {
        self.exited = Some(START + seconds * SECOND);
        self
    }

    /// Moves all events, and the start with them.
    fn starting_at(mut self, seconds: u64) -> Self {
        let later = seconds * SECOND;
        self.header.start.0 += later;
        for event in &mut self.program.events {
            if let Event::Memory(memory) = event {
                memory.time.0 += later;
            }
        }
        self
    }

    fn file(&self) -> Vec<u8> {
        let mut writer = CompactWriter::new(Vec::new(), "memory", &self.header).expect("begun");
        for event in &self.program.events {
            writer.event(event).expect("written");
        }
        let time = self.exited.map_or(START + 60 * SECOND, |exited| exited);
        let reason = match self.exited {
            Some(_) => EndReason::TargetExited,
            None => EndReason::Interrupted,
        };
        writer.finish_at(reason, Some(TimeNs(time))).expect("ended")
    }
}

/// Sentences and document about these ranks.
fn failures(ranks: &[Rank]) -> (String, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let ends = ranks.iter().enumerate().map(|(number, rank)| {
        let name = format!("rank{number}-77-train.mprb");
        let path: PathBuf = folder.path().join(&name);
        std::fs::write(&path, rank.file()).expect("written");
        let reader = Reader::open(&path).expect("a recording");
        let finder = FailureFinder::first();
        let (replay, finder) = replay::run(reader, Grouping::User, finder).expect("replayed");
        RankEnd::of(&name, Some(&path), &replay, finder)
    });
    let failures = JobFailures::read(ends.collect());
    let document = serde_json::to_value(failures.cell()).expect("JSON");
    (failures.sentences().join("\n"), document)
}

#[test]
fn the_first_of_several_failures_comes_with_the_memory_of_the_others() {
    let (text, document) = failures(&[
        Rank::new().failing(3_000_000, 30),
        // A second earlier, in a recording that starts later.
        Rank::new().failing(1_000_000, 40).starting_at(1),
        Rank::new().starting_at(2),
    ]);
    insta::assert_snapshot!(text);
    assert_eq!(document["order"], "known");
    let failed = document["failed"].as_array().expect("failures");
    assert_eq!(failed.len(), 2, "{document}");
    assert_eq!(
        (&failed[0]["rank"], &failed[0]["line"]),
        (&"rank 1".into(), &40.into())
    );
    assert_eq!(failed[0]["bytes"], 99 * MIB);
    let since = failed[0]["time_ns"].as_u64().expect("a time");
    assert_eq!(since / SECOND, 5, "{document}");
    assert_eq!(
        failed[0]["recording_time_ns"]
            .as_u64()
            .map(|it| it / SECOND),
        Some(4)
    );
    let then = document["allocated_then"].as_array().expect("memory");
    let allocated: Vec<_> = then.iter().map(|row| row["allocated"].as_u64()).collect();
    // The last rank's second block comes at 5 s, a few microseconds before the failure.
    assert_eq!(
        allocated,
        [Some(9 * MIB), Some(9 * MIB), Some(9 * MIB)],
        "{document}"
    );
}

#[test]
fn memory_is_that_of_the_moment_and_not_of_the_end() {
    let (text, _) = failures(&[
        Rank::new().failing(1_000_000, 30),
        Rank::new().starting_at(3),
    ]);
    assert!(
        text.contains("rank 1 (cuda:0) had 4.00 MiB allocated then."),
        "{text}"
    );
    let (text, document) = failures(&[
        Rank::new().failing(1_000_000, 30),
        Rank::new().starting_at(30),
    ]);
    let unknown = "The memory of rank 1 then is unknown: the recording begins later.";
    assert!(text.contains(unknown), "{text}");
    assert_eq!(
        document["allocated_then"][1]["allocated"],
        serde_json::Value::Null
    );
}

#[test]
fn the_order_of_failures_on_different_machines_is_unknown() {
    let (text, document) = failures(&[
        Rank::new().failing(1_000_000, 30),
        Rank::new().failing(2_000_000, 30).on_another_machine(),
    ]);
    insta::assert_snapshot!(text);
    assert_eq!(document["order"], "unknown");
    assert_eq!(document["failed"].as_array().map(Vec::len), Some(2));
    assert_eq!(document["failed"][0]["time_ns"], serde_json::Value::Null);
}

#[test]
fn a_single_failure_needs_no_common_clock_but_the_memory_of_others_does() {
    let (text, _) = failures(&[
        Rank::new().on_another_machine(),
        Rank::new().failing(1_000_000, 30),
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn recordings_without_a_boot_have_no_common_clock() {
    let mut ranks = [
        Rank::new().failing(1_000_000, 30),
        Rank::new().failing(2_000_000, 30),
    ];
    for rank in &mut ranks {
        rank.header.boot_id = None;
    }
    assert_eq!(failures(&ranks).1["order"], "unknown");
}

#[test]
fn a_rank_that_ends_before_the_failure_or_before_all_others_is_named() {
    let (text, document) = failures(&[Rank::new().failing(5_000_000, 30), Rank::new().exiting(4)]);
    assert!(
        text.contains("rank 1 had ended 4.00 s before, without a failed request."),
        "{text}"
    );
    assert_eq!(
        document["allocated_then"][1]["unknown"],
        "the process had ended"
    );
    let (text, document) = failures(&[Rank::new().exiting(20), Rank::new().exiting(7)]);
    assert_eq!(
        text,
        "rank 1 ended first: 7.00 s after the common start, 13.00 s before the next."
    );
    assert_eq!(document["ended_first"]["rank"], "rank 1");
    assert_eq!(document["failed"], serde_json::json!([]));
    let together = [Rank::new().exiting(20), Rank::new().exiting(20)];
    assert_eq!(failures(&together).0, "");
    let apart = [
        Rank::new().exiting(20),
        Rank::new().exiting(7).on_another_machine(),
    ];
    assert_eq!(failures(&apart).0, "");
}

#[test]
fn a_call_of_cuda_that_fails_is_named_with_its_function() {
    let mut failing = Rank::new().failing(1_000_000, 30);
    let Some(Event::Memory(memory)) = failing.program.events.last_mut() else {
        panic!("no failure");
    };
    memory.action = Action::CudaOutOfMemory;
    memory.totals = None;
    memory.call = Some(CudaCall {
        function: "cudaMalloc",
        space: CudaMemoryKind::Device,
    });
    let (text, document) = failures(&[failing, Rank::new()]);
    assert!(text.contains("asked for 99.00 MiB by cudaMalloc"), "{text}");
    assert!(
        text.contains("rank 1 (cuda:0) had 9.00 MiB allocated then."),
        "{text}"
    );
    assert_eq!(document["failed"][0]["action"], "cuda_oom");
    assert_eq!(document["failed"][0]["call"], "cudaMalloc");
}

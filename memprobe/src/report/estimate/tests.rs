//! Tests of an estimate's report.

use serde_json::Value;

use super::*;
use crate::attribution::view::Coverage;
use crate::estimate::{DeviceFit, Difference, EstimatePhase, LineAtPeak, Missing};
use crate::event::{Frame, Tgid, Totals};
use crate::ledger::snapshot::Site;

const MIB: u64 = 1 << 20;

fn totals(allocated: u64, reserved: u64) -> Totals {
    Totals {
        allocated: Bytes(allocated),
        reserved: Bytes(reserved),
    }
}

fn line(file: &str, line: u32, held: u64, blocks: u64, saved: u64) -> LineAtPeak {
    LineAtPeak {
        site: Site::Line(Frame {
            file: file.into(),
            line,
            function: "forward".into(),
            library: None,
        }),
        held: Bytes(held),
        blocks,
        saved: Bytes(saved),
    }
}

/// A training step of a small model.
fn estimate() -> Estimate {
    let lines = vec![
        line("/home/me/text/model.py", 88, 600 * MIB, 96, 500 * MIB),
        line("/home/me/vision/model.py", 12, 300 * MIB, 24, 300 * MIB),
        line("/home/me/train.py", 31, 100 * MIB + 512, 2, 0),
        line("/home/me/train.py", 40, 0, 0, 7 * MIB),
    ];
    Estimate {
        events: 12_345,
        peak: totals(1000 * MIB + 512, 1200 * MIB),
        with_workspace: totals(1008 * MIB, 1220 * MIB),
        between_iterations: Some(totals(300 * MIB, 1200 * MIB)),
        cpu_at_peak: Bytes(1024 * MIB),
        cpu_peak: Bytes(1100 * MIB),
        differences: vec![
            (Difference::OnHost, -48),
            (Difference::Scratch, -4_194_304),
            (Difference::Mask, -20_971_520),
            (Difference::Together, 0),
            (Difference::Rounding, 560),
        ],
        phases: vec![
            (EstimatePhase::Forward, Bytes(900 * MIB)),
            (EstimatePhase::Backward, Bytes(100 * MIB)),
            (EstimatePhase::Step, Bytes(0)),
            (EstimatePhase::Loading, Bytes(512)),
        ],
        peak_in: EstimatePhase::Backward,
        peak_at: lines[2].site.clone(),
        saved: Bytes(807 * MIB),
        lines,
        sizes: None,
        heard: Coverage::default(),
        fit: None,
        missing: Missing::default(),
    }
}

fn options(format: DocumentFormat) -> EstimateOptions {
    EstimateOptions {
        format,
        top: RowLimit::Rows(2),
        device_memory: None,
        width: 110,
        colour: Colour::Plain,
    }
}

fn subject() -> EstimateSubject {
    let mut subject = EstimateSubject::default();
    subject.target.tgid = Some(Tgid(1234));
    subject.target.command = "python train.py --device cpu".to_owned();
    subject.target.torch = Some("2.15.0+cu132".to_owned());
    subject
}

fn written(subject: &EstimateSubject, estimate: &Estimate, options: &EstimateOptions) -> String {
    let mut out = Vec::new();
    write_estimate(subject, estimate, options, &mut out).expect("memory can be written");
    String::from_utf8(out).expect("text")
}

fn text(subject: &EstimateSubject, estimate: &Estimate, device: Option<u64>) -> String {
    let options = EstimateOptions {
        device_memory: device.map(Bytes),
        ..options(DocumentFormat::Text)
    };
    written(subject, estimate, &options).replace(env!("CARGO_PKG_VERSION"), "0.0.0")
}

#[test]
fn an_estimate_of_a_training_step() {
    insta::assert_snapshot!(text(&subject(), &estimate(), None));
}

#[test]
fn whether_it_fits_stands_below_the_totals() {
    let with = |fit: DeviceFit| {
        let estimate = Estimate {
            fit: Some(fit),
            ..estimate()
        };
        let text = text(&subject(), &estimate, Some(1536 * MIB));
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ")
    };
    let whole = with(DeviceFit::Whole);
    assert!(
        whole.contains("fits into 1.50 GiB: 316.00 MiB remain"),
        "{whole}"
    );
    let slow = with(DeviceFit::WithoutCache { flushes: 2 });
    assert!(slow.contains("allocating it again (2 times)"), "{slow}");
    let not = with(DeviceFit::Not {
        requested: Bytes(40 * MIB),
        site: estimate().peak_at,
    });
    assert!(
        not.contains("does not fit into 1.50 GiB: the first request without room is one of 40.00 MiB at train.py:31"),
        "{not}"
    );
}

#[test]
fn what_is_missing_is_said_before_the_figures() {
    let missing = Missing {
        blocks: 1,
        stacks: 2,
        steps: 3,
        mixed_groups: 6,
        on_gpu: 4,
        lost: 5,
        past: true,
    };
    let estimate = Estimate {
        missing,
        ..estimate()
    };
    let subject = EstimateSubject {
        notes: vec!["the command ended with status 1".to_owned()],
        ..subject()
    };
    let text = text(&subject, &estimate, None);
    let (before, _) = text.split_once("EXPECTED ON A GPU").expect("figures");
    assert_eq!(before.matches("warning: ").count(), 7, "{before}");
    assert!(before.contains("status 1"), "{before}");
    assert!(before.contains("CUDA_VISIBLE_DEVICES="), "{before}");
}

#[test]
fn the_json_adds_up() {
    let options = options(DocumentFormat::Json);
    let document = written(&subject(), &estimate(), &options);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let sum = |rows: &Value, of: &str| -> i64 {
        let rows = rows.as_array().expect("rows").iter();
        rows.filter_map(|row| row[of].as_i64()).sum()
    };
    let allocated = document["peak"]["allocated"].as_i64().expect("bytes");
    let cpu = document["cpu_at_peak"].as_i64().expect("bytes");
    assert_eq!(cpu + sum(&document["differences"], "bytes"), allocated);
    assert_eq!(sum(&document["lines"], "at_peak"), allocated);
    assert_eq!(document["lines"][0]["line"], 88);
    assert_eq!(document["fits"], Value::Null);
    assert_eq!(document["peak_in"], "backward");
}

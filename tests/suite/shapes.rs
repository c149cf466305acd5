//! Every block is reported with its tensor: shape, element type and requested bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// A block in the output of `workloads/shapes.py`.
#[derive(Debug, Deserialize)]
struct Made {
    what: String,
    begin_ns: u64,
    end_ns: u64,
    addr: u64,
    shape: Option<Vec<u64>>,
    dtype: Option<String>,
    requested: Option<u64>,
}

/// Maximum number of dimensions that memprobe reports with their sizes.
const DIMENSIONS: usize = 8;

/// A block in the output of `workloads/without_tensor.py`.
#[derive(Debug, Deserialize)]
struct Asked {
    addr: u64,
    /// C++ and Python functions, innermost first.
    frames: Vec<String>,
}

/// A run of the workload, recorded by both sides.
struct Run {
    made: Vec<Made>,
    events: Vec<Event>,
    folder: TempDir,
}

impl Run {
    fn record(environment: &TestEnvironment, pytorch: &PyTorch, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace.json");
        let log = folder.path().join("log.json");
        let mut command = environment.memprobe();
        command.arg("record").arg("-o").arg(&file).args(options);
        command.arg("--").arg(pytorch.python()).arg("shapes.py");
        command.arg("--out").arg(&log);
        pytorch.settle(&mut command);
        let printed = Background::start(&mut command).finish().succeeded();
        assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
        let made = std::fs::read(&log).expect("the log");
        Self {
            made: serde_json::from_slice(&made).expect("the log is JSON"),
            events: environment.events(&file),
            folder,
        }
    }

    /// Returns the only allocation event of this block.
    fn allocation(&self, made: &Made) -> &Event {
        let of_it: Vec<_> = self
            .events
            .iter()
            .filter(|event| {
                event.action == "alloc"
                    && event.addr == Some(made.addr)
                    && (made.begin_ns..made.end_ns).contains(&event.time_ns)
            })
            .collect();
        let [event] = of_it.as_slice() else {
            panic!("{made:?} has {} events", of_it.len());
        };
        event
    }

    fn trace(&self) -> std::path::PathBuf {
        self.folder.path().join("trace.json")
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn every_block_has_the_shape_of_its_tensor_or_is_known_to_have_none() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let run = Run::record(&environment, pytorch, &["--detail", "tensors"]);
        let (mut tensors, mut others) = (0, 0);
        for made in &run.made {
            let event = run.allocation(made);
            let Some(shape) = &made.shape else {
                assert_eq!(event.tensor, Some(false), "{made:?} is {event:?}");
                assert_eq!(event.shape, None, "{made:?} is {event:?}");
                others += 1;
                continue;
            };
            let expected = &shape[..shape.len().min(DIMENSIONS)];
            assert_eq!(event.shape.as_deref(), Some(expected), "of {}", made.what);
            let more = shape.len().saturating_sub(DIMENSIONS);
            let more = u32::try_from(more).expect("few");
            assert_eq!(event.more_dimensions.unwrap_or(0), more, "of {}", made.what);
            assert_eq!(event.dtype, made.dtype, "of {}", made.what);
            if more == 0 {
                assert_eq!(event.requested, made.requested, "of {}", made.what);
            }
            tensors += 1;
        }
        assert!(tensors >= 100 && others >= 10, "{tensors} and {others}");
        let allocations = run.events.iter().filter(|event| event.action == "alloc");
        let unknown = allocations.filter(|it| it.shape.is_none() && it.tensor.is_none());
        assert_eq!(unknown.count(), 0, "all is known from the start");
        adds_up(&environment, &run.trace());
    }
}

/// Checks that the rows of the tensor table add up to the allocator's total.
fn adds_up(environment: &TestEnvironment, trace: &Path) {
    let trace = trace.to_str().expect("UTF-8");
    let all = [
        "report", trace, "--by", "tensor", "--limit", "all", "--format", "json",
    ];
    let report = environment.run(&all).succeeded().stdout;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let device = &report["devices"][0];
    let rows = device["tensors"].as_array().expect("rows");
    let sum: i64 = rows.iter().filter_map(|row| row["live"].as_i64()).sum();
    let rest = ["before_attach", "unaccounted"].map(|name| device[name].as_i64().unwrap_or(0));
    assert_eq!(
        Some(sum + rest[0] + rest[1]),
        device["allocated"].as_i64(),
        "{device:#}"
    );
    let kinds = ["tensor", "no_tensor"];
    assert!(
        kinds
            .iter()
            .all(|kind| rows.iter().any(|row| row["kind"] == *kind)),
        "{device:#}"
    );
}

#[test]
fn only_lines_are_recorded_unless_more_is_requested() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let run = Run::record(&environment, environment.pytorch(), &["--detail", "lines"]);
    let is_described = |event: &&Event| event.shape.is_some() || event.tensor.is_some();
    assert_eq!(run.events.iter().find(is_described), None);
    let trace = std::fs::read_to_string(run.trace()).expect("the recording");
    assert!(!trace.contains("at::detail::empty"), "a probe was attached");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn attach_records_the_shapes_of_later_tensors() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        let mut target = Background::start(command.args(["hold.py", "--mib", "3"]));
        target.wait_for("READY");
        let file = folder.path().join("trace.json");
        let options = ["--detail", "tensors", "--duration", "4s"];
        environment.record(target.pid(), &file, &options).finish();
        let events = environment.events(&file);
        let mut allocations = events.iter().filter(|event| event.action == "alloc");
        // One request may have been between the tensor's and the block's probe at attach.
        let first = allocations.next().expect("an allocation");
        assert!(first.shape.is_none() || is_breath(first), "{first:?}");
        assert!(
            allocations.clone().count() >= 10 && allocations.all(is_breath),
            "{events:?}"
        );
        let mut held = events
            .iter()
            .filter(|event| event.action == "live_at_attach");
        assert!(held.all(|it| it.shape.is_none() && it.tensor.is_none()));
    }
}

/// True for the block that `hold.py` allocates periodically.
fn is_breath(event: &Event) -> bool {
    event.shape.as_deref() == Some(&[1 << 20]) && event.dtype.as_deref() == Some("uint8")
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_block_without_a_tensor_is_named_by_who_asked_for_it() {
    if std::process::Command::new("addr2line")
        .arg("-v")
        .output()
        .is_err()
    {
        println!("skipped: PyTorch names all functions by addr2line, which is not here");
        return;
    }
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for (release, pytorch) in with_history(&environment) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace.json");
        let log = folder.path().join("log.json");
        let mut command = environment.memprobe();
        command
            .args(["record", "--detail", "full", "-o"])
            .arg(&file);
        command.arg("--").arg(pytorch.python());
        command.arg("without_tensor.py").arg("--out").arg(&log);
        pytorch.settle(&mut command);
        command.env("TORCH_SYMBOLIZE_MODE", "addr2line");
        let printed = Background::start(&mut command).finish().succeeded();
        assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
        let asked = std::fs::read(&log).expect("the log");
        let asked: Vec<Asked> = serde_json::from_slice(&asked).expect("the log is JSON");
        let events = environment.events(&file);
        let met = uses_that_were_met(&events, &asked);
        for what in [
            "cuBLAS workspace",
            "resized storage",
            "CUB scratch",
            "reduction scratch",
            "nonzero scratch",
            "storage without a tensor",
            "torch.cuda.caching_allocator_alloc",
        ] {
            assert!(met.contains(what), "no {what} among {met:?} of {release}");
        }
        println!("torch {release}  {} blocks  {met:?}", asked.len());
        adds_up(&environment, &file);
        every_use_has_a_row(&environment, &file, &met);
    }
}

/// Returns one PyTorch per release that can record C++ frames; 2.0 crashes when it tries.
fn with_history(environment: &TestEnvironment) -> BTreeMap<String, &PyTorch> {
    let all = environment.pytorches.iter().chain([environment.pytorch()]);
    let releases = all.map(|pytorch| (pytorch.release(), pytorch));
    releases
        .filter(|(release, _)| !release.starts_with("2.0."))
        .collect()
}

/// Returns the inferred purposes of blocks without a tensor, after checking each against PyTorch's
/// frames.
fn uses_that_were_met(events: &[Event], asked: &[Asked]) -> BTreeSet<String> {
    let allocations: Vec<_> = events.iter().filter(|it| it.action == "alloc").collect();
    assert!(allocations.len() >= asked.len() && asked.len() >= 40);
    let mut met = BTreeSet::new();
    for (event, asked) in allocations.iter().zip(asked) {
        assert_eq!(event.addr, Some(asked.addr), "the order of {event:?}");
        let names: Vec<_> = asked.frames.iter().map(|name| plain(name)).collect();
        let makes_a_tensor = |name: &String| {
            name == "at::detail::empty_generic" || name == "at::detail::empty_strided_generic"
        };
        assert_eq!(
            names.iter().any(makes_a_tensor),
            event.shape.is_some(),
            "{event:?} is {names:?}"
        );
        if event.shape.is_some() {
            assert_eq!(event.inferred, None, "{event:?}");
            continue;
        }
        let inferred = event.inferred.as_ref();
        let inferred = inferred.unwrap_or_else(|| panic!("{event:?} is {names:?}"));
        // Names of template functions start with their return type.
        let is_it = |name: &String| {
            *name == inferred.function || name.ends_with(&format!(" {}", inferred.function))
        };
        assert!(names.iter().any(is_it), "{inferred:?} is {names:?}");
        met.insert(inferred.what.clone().unwrap_or_default());
    }
    met
}

/// Strips parameters, template arguments and suffixes from a function name as libiberty demangles
/// it.
fn plain(name: &str) -> String {
    const ANONYMOUS: &str = "(anonymous namespace)";
    let name = name
        .replace(ANONYMOUS, "\u{1}")
        .replace("operator()", "\u{2}");
    let name = name.split(" [clone").next().unwrap_or_default();
    let mut depth = 0;
    let mut plain = String::new();
    for letter in name.chars() {
        match letter {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let plain = plain.trim_end_matches(" const");
    plain
        .replace('\u{1}', ANONYMOUS)
        .replace('\u{2}', "operator()")
}

/// Checks that the tensor table has a row for each purpose.
fn every_use_has_a_row(environment: &TestEnvironment, trace: &Path, met: &BTreeSet<String>) {
    let trace = trace.to_str().expect("UTF-8");
    let all = [
        "report", trace, "--by", "tensor", "--limit", "all", "--format", "json",
    ];
    let report = environment.run(&all).succeeded().stdout;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["devices"][0]["tensors"].as_array().expect("rows");
    for what in met.iter().filter(|what| !what.is_empty()) {
        let row = rows.iter().find(|row| row["purpose"] == what.as_str());
        let row = row.unwrap_or_else(|| panic!("no row of {what}"));
        assert!(
            row["kind"] == "no_tensor" && row["requested_by"].is_string(),
            "{row}"
        );
    }
}

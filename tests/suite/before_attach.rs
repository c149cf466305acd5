//! Tests the division of memory from before attach: what the objects of a running process say of it, beside what
//! Python itself holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memprobe::report::DocumentFormat;
use memprobe_test_results::pages::{ExplainedPage, explain, set_driver};
use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::{Background, Finished};
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

const PROGRAMS: [&str; 4] = ["training", "gan", "server", "leak"];

/// A block as Python knows it.
#[derive(Debug, Deserialize)]
struct HeldBlock {
    kind: String,
    module: Option<String>,
    /// Key of the dict that leads to it.
    retainer: Option<String>,
}

/// Conditions of an attachment.
struct Then {
    /// Time that the program works before.
    delay: Duration,
    explains: Explains,
}

/// Program that `explain` is asked about, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Explains {
    Nothing,
    /// The program once it works no more, and before, if it trains.
    Throughout,
}

/// Blocks that Python holds in `workloads/before_attach.py`, by address.
type Truth = BTreeMap<u64, HeldBlock>;

struct Attached {
    folder: TempDir,
    /// Page about the program at rest and the same as JSON, if they were asked for.
    page: Option<(ExplainedPage, String)>,
    /// Page about the program while it runs.
    running: Option<ExplainedPage>,
    truth: Truth,
    recorded: Finished,
    /// Time from the attached probes to the labels.
    waited: Duration,
    /// CPU time of memprobe within it.
    ran: Duration,
}

impl Attached {
    /// Attaches to a program that runs already, until its memory has labels.
    fn to(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        program: &str,
        options: &[&str],
    ) -> Self {
        let then = Then {
            delay: Duration::ZERO,
            explains: Explains::Nothing,
        };
        Self::after(environment, pytorch, program, options, then)
    }

    fn after(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        program: &str,
        options: &[&str],
        then: Then,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let (out, until, rest) = (path("truth.json"), path("until"), path("rest"));
        let mut command = pytorch.command();
        command.args(["before_attach.py", program, "--out"]);
        command.arg(&out).arg("--until").arg(&until);
        command.arg("--rest").arg(&rest);
        std::fs::create_dir(path("shared")).expect("a folder");
        command.env("CUDASIM_SHARED", path("shared"));
        set_driver(&mut command);
        let mut target = Background::start(&mut command);
        target.wait_for("holding");
        std::thread::sleep(then.delay);
        let file = path("trace.json");
        let mut recording = environment.record_as_asked(target.pid(), &file, options);
        let memprobe = recording.memprobe.pid();
        let (begun, before) = (Instant::now(), cpu_time(memprobe));
        recording.wait_for("explained");
        let (waited, ran) = (begun.elapsed(), cpu_time(memprobe).saturating_sub(before));
        let recorded = recording.interrupt();
        let (shared, pid) = (path("shared"), target.pid());
        let explains = then.explains == Explains::Throughout && program == "training";
        let running = explains.then(|| ExplainedPage::of(environment, &shared, pid));
        let page = (then.explains == Explains::Throughout).then(|| {
            std::fs::write(&rest, "").expect("written");
            target.wait_for("resting");
            let document = explain(environment, &shared, pid, DocumentFormat::Json);
            (ExplainedPage::of(environment, &shared, pid), document)
        });
        std::fs::write(&until, "").expect("written");
        target.finish().succeeded();
        let truth = std::fs::read(&out).expect("the truth");
        Self {
            truth: serde_json::from_slice(&truth).expect("JSON"),
            recorded,
            page,
            running,
            folder,
            waited,
            ran,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("trace.json")
    }

    /// Labels of the recording, by address. A later reading replaces an earlier one.
    fn labels(&self) -> BTreeMap<u64, Value> {
        let labels = lines(&self.file())
            .into_iter()
            .filter(|line| line["name"] == "memprobe_named");
        let labels =
            labels.map(|line| (line["args"]["addr"].as_u64().unwrap(), line["args"].clone()));
        labels.collect()
    }

    /// Share of the bytes from before attach that was explained, by the message of `record`.
    fn explained(&self) -> f64 {
        let said = &self.recorded.stderr;
        let share = said.split_once("% explained").expect("a share").0;
        let share = share.rsplit(' ').next().expect("a number");
        share.parse().unwrap_or_else(|_| panic!("{said}"))
    }
}

/// CPU time of a process, in steps of 10 ms.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_millis(10 * ticks)
}

fn lines(trace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).expect("a recording");
    let lines = text.lines().map(|line| line.trim_end_matches(','));
    let records = lines.filter(|line| line.starts_with('{'));
    records
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Checks that no label contradicts Python. Returns the number of blocks that both know.
fn check(program: &str, labels: &BTreeMap<u64, Value>, truth: &Truth) -> usize {
    let mut both = 0;
    for (addr, label) in labels {
        let kind = label["kind"].as_str().unwrap_or("none");
        let Some(held) = truth.get(addr) else {
            let of_objects = ["parameter", "buffer", "optimizer_state"];
            assert!(
                !of_objects.contains(&kind),
                "{program}: Python has no such block: {label}"
            );
            continue;
        };
        both += 1;
        assert_eq!(kind, held.kind, "{program}: {label} is {held:?}");
        let module = label["module"].as_str();
        if let (Some(ours), Some(theirs)) = (module, &held.module) {
            assert!(
                ours.ends_with(theirs.as_str()),
                "{program}: {ours} is {theirs}"
            );
        }
        let retainer = label["retained_by"]["by"].as_str();
        if let (Some(ours), Some(theirs)) = (retainer, &held.retainer) {
            let key = format!("cache['{theirs}']");
            assert!(ours.contains(&key), "{program}: {ours} is {key}");
        }
    }
    both
}

/// Checks that the parts of the report add up to the bytes from before attach.
fn check_sums(environment: &TestEnvironment, file: &Path) {
    let report = environment.report(file);
    let device = &report["devices"][0];
    let parts = device["before_attach_parts"].as_array().expect("parts");
    let sum = |rows: &[Value]| {
        rows.iter()
            .map(|row| row["live"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(
        Some(sum(parts)),
        device["before_attach"].as_u64(),
        "{device}"
    );
    for part in parts.iter().filter(|part| part["kind"] != "unread") {
        let owners = part["owners"].as_array().expect("owners");
        assert_eq!(Some(sum(owners)), part["live"].as_u64(), "{part}");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn memory_from_before_attach_is_explained_while_the_program_runs() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        for program in PROGRAMS {
            let then = Then {
                delay: Duration::ZERO,
                explains: Explains::Throughout,
            };
            let attached = Attached::after(&environment, pytorch, program, &[], then);
            let both = check(program, &attached.labels(), &attached.truth);
            assert!(both > 0, "{program}: {:?}", attached.truth);
            check_sums(&environment, &attached.file());
            let said = &attached.recorded.stderr;
            assert!(attached.explained() >= 90.0, "{program}: {said}");
            assert!(!said.contains("stopped processes"), "{program}: {said}");
            let (page, document) = attached.page.expect("it was explained");
            page.assert_same_facts(&document);
            insta::assert_snapshot!(format!("page_of_{program}"), page.golden());
            if let Some(page) = attached.running {
                println!("{}", page.text);
                let names = [
                    "parameters",
                    "optimizer state",
                    "this process beside",
                    "free",
                ];
                insta::assert_snapshot!("page_of_running_training", page.golden_of_running(&names));
            }
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn attached_at_any_moment_nine_tenths_of_the_bytes_have_labels() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for program in PROGRAMS {
        for delay in [37, 411, 1203].map(Duration::from_millis) {
            let pytorch = environment.pytorch();
            let then = Then {
                delay,
                explains: Explains::Nothing,
            };
            let attached = Attached::after(&environment, pytorch, program, &[], then);
            let labels = attached.labels();
            let both = check(program, &labels, &attached.truth);
            let (share, waited, ran) = (attached.explained(), attached.waited, attached.ran);
            println!(
                "{program} after {delay:?}: {share} % explained {waited:?} after the probes ({ran:?} of CPU time), \
                 {both} labels as Python says, 0 wrong"
            );
            assert!(both > 0, "{program}: {:?}", attached.truth);
            let said = &attached.recorded.stderr;
            assert!(share >= 90.0, "{program}: {said}");
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn with_a_pause_every_block_that_python_holds_has_its_label() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    for program in ["gan", "server"] {
        let attached = Attached::to(&environment, pytorch, program, &["--pause"]);
        let labels = attached.labels();
        check(program, &labels, &attached.truth);
        check_sums(&environment, &attached.file());
        let held = attached.truth.iter();
        let missing: Vec<_> = held
            .filter(|(addr, _)| !labels.contains_key(addr))
            .collect();
        assert!(missing.is_empty(), "{program}: {missing:?}");
        let said = &attached.recorded.stderr;
        assert!(said.contains("stopped processes"), "{program}: {said}");
    }
}

#[test]
fn without_names_nothing_is_read() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut command = environment.pytorch().command();
    command.args(["before_attach.py", "training", "--out"]);
    command
        .arg(path("truth.json"))
        .arg("--until")
        .arg(path("until"));
    let mut target = Background::start(&mut command);
    target.wait_for("holding");
    let file = path("trace.json");
    let options = ["--no-names", "--duration", "2s"];
    environment
        .record_as_asked(target.pid(), &file, &options)
        .finish();
    std::fs::write(path("until"), "").expect("written");
    target.finish().succeeded();
    let report = environment.report(&file);
    let device = &report["devices"][0];
    assert!(device["before_attach"].as_u64() > Some(0));
    assert!(device.get("before_attach_parts").is_none(), "{device}");
}

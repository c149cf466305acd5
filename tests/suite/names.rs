//! Tests `record --names`: blocks of a recording have the names and kinds of their tensors, at the
//! correct moment.

use std::collections::BTreeMap;
use std::path::Path;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::terminal::Terminal;
use serde_json::Value;

/// Output of `workloads/named_blocks.py`: block addresses by kind (`parameter`, `optimizer_state`)
/// and name.
type Truth = BTreeMap<String, BTreeMap<String, u64>>;

fn lines(trace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).expect("a recording");
    let lines = text.lines().map(|line| line.trim_end_matches(','));
    let records = lines.filter(|line| line.starts_with('{'));
    records
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn address(args: &Value) -> u64 {
    let text = args["addr"].as_str().expect("an address");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number")
}

/// Returns the blocks that are live at the last names, according to earlier events, and these
/// names.
fn at_the_names(trace: &Path) -> (BTreeMap<u64, u64>, Vec<Value>) {
    let mut live = BTreeMap::new();
    let mut named = Vec::new();
    let mut last = None;
    for line in lines(trace) {
        let args = &line["args"];
        let size = |args: &Value| args["size"].as_u64().expect("bytes");
        match (line["ph"].as_str(), line["cat"].as_str()) {
            (Some("b" | "i"), Some("alloc")) => {
                live.insert(address(args), size(args));
            }
            (Some("e"), Some("alloc")) if args["free"].is_object() => {
                live.remove(&address(&args["free"]));
            }
            (_, Some("names")) => last = Some((live.clone(), std::mem::take(&mut named))),
            (Some("M"), None) if line["name"] == "memprobe_named" => named.push(args.clone()),
            _ => {}
        }
    }
    last.unwrap_or_else(|| panic!("nothing was named in {}", trace.display()))
}

fn record(environment: &TestEnvironment, pytorch: &PyTorch, folder: &Path) -> Truth {
    let truth = folder.join("truth.json");
    let out = truth.to_str().expect("UTF-8");
    environment.record_named(pytorch, &["named_blocks.py", "--out", out], folder, 1);
    let truth = std::fs::read(truth).expect("the truth");
    serde_json::from_slice(&truth).expect("JSON")
}

#[test]
fn the_blocks_of_a_training_are_named_where_they_stand_in_the_stream() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        let folder = tempfile::tempdir().expect("a folder");
        let truth = record(&environment, pytorch, folder.path());
        let (live, named) = at_the_names(&folder.path().join("trace.json"));
        let blocks: BTreeMap<u64, u64> = named
            .iter()
            .map(|args| {
                (
                    args["addr"].as_u64().unwrap(),
                    args["size"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(blocks, live, "the blocks that were live by the events");
        for (kind, names) in &truth {
            for (name, addr) in names {
                let is_it = |args: &&Value| args["addr"].as_u64() == Some(*addr);
                let found = named.iter().find(is_it);
                let found = found.unwrap_or_else(|| panic!("{kind} {name} is not named"));
                assert_eq!(found["kind"], kind.as_str(), "{name}: {found}");
                assert_eq!(found["name"], name.as_str(), "{found}");
            }
        }
    }
}

#[test]
fn reading_the_last_names_adds_no_event_after_the_duration() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let mut command = environment.pytorch().command();
    command.args(["many_blocks.py", "--tensors", "20000", "--pause", "0.001"]);
    let mut target = Background::start(&mut command);
    target.wait_for("READY");
    let options = ["--names", "--duration", "500ms"];
    let said = environment.record(target.pid(), &file, &options).finish();
    assert!(!target.has_ended());
    let time = |line: &Value| line["ts"].as_f64();
    let lines = lines(&file);
    let is_of = |line: &&Value, category: &str| line["cat"].as_str() == Some(category);
    let names: Vec<_> = lines.iter().filter(|line| is_of(line, "names")).collect();
    let [names] = names[..] else {
        panic!("{} times names", names.len())
    };
    let later = lines
        .iter()
        .filter(|line| is_of(line, "alloc") && time(line) > time(names));
    assert_eq!(later.count(), 0);
    let named = lines.iter().filter(|line| line["name"] == "memprobe_named");
    assert!(named.count() >= 20_000);
    let said = said.stderr;
    assert!(said.contains("reads names"), "{said}");
    assert!(said.contains("00:00:00 "), "{said}");
}

#[test]
fn on_a_terminal_the_last_reading_counts_its_objects() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = environment.pytorch().command();
    command.args(["many_blocks.py", "--tensors", "200000", "--pause", "0.01"]);
    let mut target = Background::start(&mut command);
    target.wait_for("READY");
    let pid = target.pid().to_string();
    let mut memprobe = environment.memprobe();
    memprobe.args(["record", "--names", "--duration", "500ms", "--pid", &pid]);
    memprobe.args(PATIENT);
    memprobe.arg("-o").arg(folder.path().join("trace.json"));
    // Lines of the progress replace each other: all that was written counts.
    let written = Terminal::start(&mut memprobe).output_until("print it with");
    let progress = format!("reading names: PID {pid}: ");
    let lines: Vec<&str> = written.split('\r').collect();
    let is_count = |line: &&&str| line.contains(&progress) && line.contains(" objects");
    let count = lines.iter().find(is_count);
    let count = count.unwrap_or_else(|| panic!("no count of objects: {lines:#?}"));
    let numbers: Vec<usize> = count
        .split(|letter: char| !letter.is_ascii_digit() && letter != ',')
        .filter_map(|word| word.replace(',', "").parse().ok())
        .collect();
    let [.., before, all] = numbers[..] else {
        panic!("no number beside the PID: {count:?}")
    };
    let is_partial = count.contains(" of ");
    assert!(all >= 200_000 && (!is_partial || before < all), "{count:?}");
}

//! KV cache of a server by request: `snapshot --by request` and `explain`, beside what the program itself says.

use std::collections::BTreeMap;
use std::path::PathBuf;

use memprobe::report::DocumentFormat;
use memprobe_test_results::pages::{ExplainedPage, explain, set_driver};
use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// Blocks, bytes of a block in each layer, and layers of `kv_server.py`.
const BLOCKS: u64 = 600;
const PAGE: u64 = 8192;
const LAYERS: u64 = 4;

/// The program's own account.
#[derive(Debug, Deserialize)]
struct Truth {
    /// Blocks of each request: its own, and shared ones.
    requests: BTreeMap<String, (u64, u64)>,
    shared: u64,
    cached: u64,
    free: u64,
    reserved: u64,
    /// Slots of pages that are not full.
    #[serde(default)]
    slack: u64,
}

/// A server that serves some requests at each signal of the test.
struct Server {
    program: Background,
    folder: TempDir,
    /// PID of the process with the tensors.
    pid: u32,
    points: u32,
}

impl Server {
    fn start(pytorch: &PyTorch, arguments: &[&str]) -> Self {
        Self::start_program("kv_server.py", pytorch, arguments)
    }

    fn start_program(program: &str, pytorch: &PyTorch, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.args([program, "--folder"]);
        command.arg(folder.path()).args(arguments);
        std::fs::create_dir(shared(&folder)).expect("a folder");
        command.env("CUDASIM_SHARED", shared(&folder));
        set_driver(&mut command);
        let mut program = Background::start(&mut command);
        let line = program.wait_for("PID ");
        program.wait_for("READY");
        let pid = line.strip_prefix("PID ");
        let pid = pid.expect("its PID").trim().parse().expect("a number");
        Self {
            program,
            folder,
            pid,
            points: 0,
        }
    }

    /// Lets it serve some requests.
    fn serve(&mut self) -> Truth {
        self.points += 1;
        let go = self.folder.path().join(format!("go-{}", self.points));
        std::fs::write(go, "").expect("a file");
        let file = self
            .folder
            .path()
            .join(format!("truth-{}.json", self.points));
        let text = wait_until("the program's account", || {
            std::fs::read_to_string(&file).ok()
        });
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Folder of the simulated driver.
fn shared(folder: &TempDir) -> PathBuf {
    folder.path().join("shared")
}

fn document(environment: &TestEnvironment, pid: u32, options: &[&str]) -> Value {
    let pid = pid.to_string();
    let snapshot = ["snapshot", &pid, "--by", "request", "--format", "json"];
    let arguments = [&snapshot[..], &PATIENT, options].concat();
    let printed = environment.run(&arguments).succeeded();
    serde_json::from_str(&printed.stdout).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Compares the pool with the program's account, and its rows with the bytes of the tensors.
fn compare(document: &Value, truth: &Truth) {
    let pool = &document["kv_cache"]["pools"][0];
    let requests = pool["requests"].as_array().expect("requests").iter();
    let requests: BTreeMap<String, (u64, u64)> = requests
        .map(|request| {
            let id = request["id"].as_str().expect("an id").to_owned();
            (id, (number(&request["own"]), number(&request["shared"])))
        })
        .collect();
    assert_eq!(requests, truth.requests);
    let counts =
        ["shared", "cached", "free", "reserved", "unclaimed"].map(|key| number(&pool[key]));
    let expected = [truth.shared, truth.cached, truth.free, truth.reserved, 0];
    assert_eq!(counts, expected);
    let rows = document["kv_rows"].as_array().expect("rows");
    let by_request = rows.iter().filter(|row| row["usage"] == "request");
    for row in by_request {
        let (own, _) = truth.requests[row["request"].as_str().expect("an id")];
        assert_eq!(number(&row["bytes"]), own * PAGE * LAYERS, "{row}");
    }
    let sum: u64 = rows.iter().map(|row| number(&row["bytes"])).sum();
    let tensors = document["tensors"].as_array().expect("tensors").iter();
    let caches = tensors.filter(|row| row["kind"] == "kv_cache");
    let held: u64 = caches.map(|row| number(&row["allocated"])).sum();
    assert_eq!(sum, held);
    assert_eq!(number(&pool["configured_bytes"]), BLOCKS * PAGE * LAYERS);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn requests_have_the_blocks_that_the_program_counts() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let runs: [(&str, &[&str]); 3] =
            [("1", &[]), ("2", &["--groups", "3"]), ("3", &["--plain"])];
        for (seed, options) in runs {
            let mut server = Server::start(pytorch, &[&["--seed", seed], options].concat());
            for _ in 0..3 {
                let truth = server.serve();
                assert!(truth.shared > 0 && truth.requests.len() > 5, "{truth:?}");
                let document = document(&environment, server.pid, &[]);
                assert_eq!(document["kv_cache"].get("gap"), None);
                compare(&document, &truth);
            }
            let truth = server.serve();
            compare(
                &document(&environment, server.pid, &["--nonblocking"]),
                &truth,
            );
        }
    }
}

/// Slots, layers with keys and values, and bytes of a slot in each of them, of `token_server.py`.
const SLOTS: u64 = 8192;
const SLOT_BYTES: u64 = 3 * 2 * (2 * 32 * 2);

/// Compares the slots of a pool with the program's account, and its rows with the bytes of the tensors.
fn compare_slots(document: &Value, truth: &Truth, has_counts: bool) {
    assert_eq!(document["kv_cache"].get("gap"), None, "{document:#}");
    let pool = &document["kv_cache"]["pools"][0];
    let requests = pool["requests"].as_array().expect("requests").iter();
    let requests: BTreeMap<String, (u64, u64)> = requests
        .map(|request| {
            let id = request["id"].as_str().expect("an id").to_owned();
            (id, (number(&request["own"]), number(&request["shared"])))
        })
        .collect();
    assert_eq!(requests, truth.requests);
    let keys = [
        "shared",
        "cached",
        "free",
        "reserved",
        "unclaimed",
        "undivided",
    ];
    let counts = keys.map(|key| number(&pool[key]));
    let (free, reserved) = (truth.free, truth.reserved);
    let expected = match has_counts {
        true => [truth.shared, truth.cached, free, reserved, truth.slack, 0],
        false => {
            let undivided = truth.shared + truth.cached + truth.slack;
            [0, 0, free, reserved, 0, undivided]
        }
    };
    assert_eq!(counts, expected);
    let rows = document["kv_rows"].as_array().expect("rows");
    for row in rows.iter().filter(|row| row["usage"] == "request") {
        let (own, _) = truth.requests[row["request"].as_str().expect("an id")];
        assert_eq!(number(&row["bytes"]), own * SLOT_BYTES, "{row}");
    }
    let sum: u64 = rows.iter().map(|row| number(&row["bytes"])).sum();
    let tensors = document["tensors"].as_array().expect("tensors").iter();
    let caches = tensors.filter(|row| row["kind"] == "kv_cache");
    let held: u64 = caches.map(|row| number(&row["allocated"])).sum();
    assert_eq!(sum, held);
    assert!(held >= (SLOTS + truth.reserved) * SLOT_BYTES);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn requests_have_the_token_slots_that_the_program_counts() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let shapes = [
        ("1", "unified", "16"),
        ("2", "unified", "1"),
        ("3", "single", "1"),
        ("4", "rust", "16"),
        ("5", "none", "16"),
    ];
    for (at, pytorch) in environment.pytorches_on(On::Each).iter().enumerate() {
        // One Python has all shapes, the others the first.
        let count = if at == 0 { shapes.len() } else { 1 };
        for (seed, tree, page) in &shapes[..count] {
            let options = ["--seed", seed, "--tree", tree, "--page", page];
            let mut server = Server::start_program("token_server.py", pytorch, &options);
            for _ in 0..2 {
                let truth = server.serve();
                assert!(truth.requests.len() > 5, "{truth:?}");
                assert_eq!(truth.shared > 0, *tree != "none", "{truth:?}");
                let document = document(&environment, server.pid, &[]);
                compare_slots(&document, &truth, *tree != "rust");
            }
        }
    }
}

#[test]
fn the_scheduler_of_a_worker_is_the_process_that_started_it() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut server = Server::start(environment.pytorch(), &["--worker", "--groups", "2"]);
    let truth = server.serve();
    let scheduler = server.program.pid();
    assert_ne!(server.pid, scheduler);
    let worker = document(&environment, server.pid, &[]);
    compare(&worker, &truth);
    assert_eq!(
        number(&worker["kv_cache"]["pools"][0]["scheduler_pid"]),
        u64::from(scheduler)
    );
    // The scheduler itself has no tensors: its bytes are those of the configuration.
    let own = document(&environment, scheduler, &[]);
    let pool = &own["kv_cache"]["pools"][0];
    assert_eq!(
        pool["requests"].as_array().map(Vec::len),
        Some(truth.requests.len())
    );
    let rows = own["kv_rows"].as_array().expect("rows").iter();
    let sum: u64 = rows.map(|row| number(&row["bytes"])).sum();
    assert_eq!(sum, BLOCKS * PAGE * LAYERS);
}

#[test]
fn a_server_that_never_rests_is_counted_as_a_whole() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let server = Server::start(environment.pytorch(), &["--busy"]);
    for _ in 0..4 {
        let document = document(&environment, server.pid, &[]);
        let pool = &document["kv_cache"]["pools"][0];
        let requests = pool["requests"].as_array().expect("requests").iter();
        let own: u64 = requests.map(|request| number(&request["own"])).sum();
        let keys = ["shared", "cached", "free", "reserved", "unclaimed"];
        let rest: u64 = keys.iter().map(|key| number(&pool[key])).sum();
        assert_eq!(own + rest, BLOCKS);
    }
}

#[test]
fn an_unknown_pool_is_no_guess() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let server = Server::start(environment.pytorch(), &["--foreign"]);
    let document = document(&environment, server.pid, &[]);
    let cache = &document["kv_cache"];
    assert_eq!(cache["pools"].as_array().map(Vec::len), Some(0));
    assert_eq!(cache["gap"], "the layout of ForeignPool is not known");
}

#[test]
fn the_page_and_the_table_show_the_kv_cache() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut server = Server::start(environment.pytorch(), &[]);
    let truth = server.serve();
    let pid = server.pid.to_string();
    let shared = shared(&server.folder);
    let page = ExplainedPage::of(&environment, &shared, server.pid);
    let document = explain(&environment, &shared, server.pid, DocumentFormat::Json);
    page.assert_same_facts(&document);
    let requests = format!("{} requests", truth.requests.len());
    assert!(page.text.contains(&requests), "{}", page.text);
    insta::assert_snapshot!("page_of_a_server", page.golden());
    let table = ["snapshot", &pid, "--by", "request", "--limit", "2"];
    let table = [&table[..], &PATIENT].concat();
    let table = environment.run(&table).succeeded().stdout;
    let hidden = format!("({} other requests: --limit all)", truth.requests.len() - 2);
    assert!(table.contains(&hidden), "{table}");
    assert!(table.contains("weights and buffers of modules"), "{table}");
}

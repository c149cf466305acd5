//! `memprobe explain`: one page about a process, a file, or all processes.

use std::process::Command;
use std::time::Duration;

use memprobe_test_results::pages::{ExplainedPage, running_verdict};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::Background;
use serde_json::Value;
use tempfile::TempDir;

/// Programs on a simulated driver that counts the memory of each.
struct Stage {
    environment: TestEnvironment,
    folder: TempDir,
}

impl Stage {
    fn set() -> Option<Self> {
        Some(Self {
            environment: TestEnvironment::take()?,
            folder: tempfile::tempdir().expect("a folder"),
        })
    }

    fn on_driver(&self, command: &mut Command) {
        command
            .env("CUDASIM_SHARED", self.folder.path())
            .env("CUDASIM_DEVICES", "1");
    }

    fn start(&self, arguments: &[&str], ready: &str) -> Background {
        let mut command = self.environment.pytorch().command();
        self.on_driver(&mut command);
        let mut program = Background::start(command.args(arguments));
        if !ready.is_empty() {
            program.wait_for(ready);
        }
        program
    }

    fn explain(&self, arguments: &[&str]) -> String {
        let mut command = self.environment.memprobe();
        self.on_driver(&mut command);
        if let Some(folder) = self.environment.pytorch().simulated_libraries() {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command.arg("explain").args(PATIENT).args(arguments);
        Background::start(&mut command).finish().succeeded().stdout
    }

    fn document(&self, arguments: &[&str]) -> Value {
        let text = self.explain(&[arguments, &["--format", "json"]].concat());
        serde_json::from_str(&text).expect("it is JSON")
    }
}

fn bytes(rows: &Value, id: &str) -> u64 {
    let mut rows = rows.as_array().expect("rows").iter();
    let row = rows.find(|row| row["id"] == id);
    row.map_or(0, |row| row["bytes"].as_u64().expect("bytes"))
}

fn sum(rows: &Value) -> u64 {
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum()
}

fn lines(text: &str) -> usize {
    text.lines().count()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_leak_is_the_verdict_with_its_line_and_its_retainer() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let leak = stage.start(
        &["leak.py", "--until", "/nonexistent/file"],
        "iteration 20 ",
    );
    let pid = leak.pid().to_string();
    let document = stage.document(&[&pid]);
    assert_eq!(document["verdict"]["id"], "growth", "{document}");
    let device = &document["devices"][0];
    let growing = &device["growth"]["lines"][0];
    let line = growing["line"].as_str().expect("a line");
    assert!(line.starts_with("leak.py:"), "{growing}");
    let retainer = growing["retained_by"].as_str().expect("a retainer");
    assert!(retainer.ends_with("losses[*]"), "{growing}");
    let owner = &device["owners"][0];
    let name = owner["name"].as_str().expect("a name");
    assert!(name.ends_with("losses[*]"), "{owner}");
    // The GPU's parts add up, and dropping the list gives back what it alone keeps.
    let total = device["gpu_total"].as_u64().expect("its memory");
    assert_eq!(sum(&device["parts"]), total);
    // The context of the simulated driver takes nothing. What the process reserved while the driver was asked is not
    // taken for one, but for a segment.
    assert!(
        bytes(&device["parts"], "outside_allocator") <= 20 << 20,
        "{device}"
    );
    let exclusive = owner["exclusive_bytes"].as_u64().expect("bytes");
    assert_eq!(bytes(&device["measures"], "drop_retainer"), exclusive);
    let text = stage.explain(&[&pid]);
    println!("{text}");
    let page = ExplainedPage {
        pid: leak.pid(),
        text: text.clone(),
    };
    let names = [
        "parameters",
        "optimizer state",
        "activations",
        "losses[*]  list",
        "without leak.py",
        "leak.py:21 ",
    ];
    insta::assert_snapshot!("page_of_running_leak", page.golden_of_running(&names));
    assert!(lines(&text) <= 40, "{text}");
    assert!(text.contains("an iteration"), "{text}");
    assert!(text.contains("WOULD GIVE BACK"), "{text}");
}

#[test]
fn a_fragmented_process_has_its_cache_as_verdict_and_others_are_separate() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let fragments = stage.start(&["fragments.py"], "READY");
    let other = stage.start(&["hold.py", "--mib", "96"], "READY");
    let document = stage.document(&[&fragments.pid().to_string(), "--duration", "1s"]);
    assert_eq!(document["verdict"]["id"], "cached", "{document}");
    let device = &document["devices"][0];
    let totals = device["reserved"]
        .as_u64()
        .zip(device["allocated"].as_u64());
    let cached = totals.map(|(reserved, allocated)| reserved - allocated);
    assert!(cached >= Some(190 << 20), "{device}");
    assert_eq!(Some(bytes(&device["parts"], "cached")), cached);
    // Every second block of each segment is live: no segment can be returned.
    let returned = bytes(&device["measures"], "empty_cache");
    assert!(returned < 20 << 20, "{device}");
    assert!(
        device["measures"]
            .as_array()
            .is_some_and(|all| all.iter().all(|it| it["at_most"] == false)),
        "{device}"
    );
    let others = bytes(&device["parts"], "other_processes");
    assert!(others >= 96 << 20, "{device}");
    let page = stage.explain(&["--all"]);
    assert!(lines(&page) <= 40, "{page}");
    for process in [&fragments, &other] {
        assert!(page.contains(&process.pid().to_string()), "{page}");
    }
    assert!(page.contains("GPU 0 is the fullest"), "{page}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_server_that_keeps_its_answers_grows_without_iterations() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let server = stage.start(&["serve.py", "--keep", "--requests", "1000000"], "");
    // It has nothing on the GPU before its first request.
    std::thread::sleep(Duration::from_secs(10));
    let document = stage.document(&[&server.pid().to_string(), "--duration", "4s"]);
    println!("{document}");
    insta::assert_snapshot!("verdict_of_running_server", running_verdict(&document));
    let growth = &document["devices"][0]["growth"];
    assert_eq!(growth["per"], "second", "{document}");
    assert_eq!(document["verdict"]["id"], "growth", "{document}");
    let retainer = growth["lines"][0]["retained_by"].as_str();
    assert!(
        retainer.expect("a retainer").ends_with("cache[*]"),
        "{growth}"
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn files_are_explained_and_other_files_are_refused() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let leak = stage.start(
        &["leak.py", "--until", "/nonexistent/file"],
        "iteration 20 ",
    );
    let path = |name: &str| stage.folder.path().join(name).display().to_string();
    let (snapshot, recording) = (path("a.json"), path("trace.json"));
    let pid = leak.pid().to_string();
    let run = |arguments: &[&str]| stage.environment.run(arguments).succeeded();
    let environment = &stage.environment;
    environment.keep_snapshot(leak.pid(), snapshot.as_ref());
    run(&[
        "record",
        "-o",
        &recording,
        "--pid",
        &pid,
        "--duration",
        "4s",
    ]);
    let document = stage.document(&[&snapshot]);
    assert_eq!(document["source"], "snapshot");
    let device = &document["devices"][0];
    assert!(device["growth"].is_null(), "{device}");
    let reserved = |device: &Value| device["reserved"].as_u64().expect("bytes");
    assert_eq!(sum(&device["parts"]), reserved(device));
    let document = stage.document(&[&recording]);
    assert_eq!(document["source"], "recording");
    assert_eq!(document["verdict"]["id"], "growth", "{document}");
    let device = &document["devices"][0];
    assert_eq!(sum(&device["parts"]), reserved(device));
    let refused = stage.environment.run(&["explain", "/etc/hostname"]);
    let error = refused.one_clear_error();
    assert!(error.contains("give a recording or a snapshot"), "{error}");
}

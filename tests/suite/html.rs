//! Pages of recordings, opened in a browser: what they show against the reports of the same recording.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memprobe_tests::browser::{Browser, ENTER, RIGHT};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde_json::Value;
use tempfile::TempDir;

/// A recording of a workload, and its page.
struct Recorded {
    folder: TempDir,
}

impl Recorded {
    fn of(environment: &TestEnvironment, options: &[&str], program: &[&str]) -> Self {
        let pytorch = environment.pytorch();
        let folder = tempfile::tempdir().expect("a folder");
        let recorded = Self { folder };
        let mut command = environment.memprobe();
        command.args(["record", "-q", "-o"]).arg(recorded.file());
        command.args(options).arg("--").arg(pytorch.python());
        command.args(program);
        pytorch.settle(&mut command);
        Background::start(&mut command).finish().succeeded();
        let (file, page) = (recorded.file(), recorded.page());
        let arguments = ["report", text(&file), "--html", text(&page)];
        let written = environment.run(&arguments).succeeded();
        assert!(
            written.stderr.contains("open it in a browser"),
            "{}",
            written.stderr
        );
        recorded
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("trace.mprb")
    }

    fn page(&self) -> PathBuf {
        self.folder.path().join("page.html")
    }

    fn report(&self, environment: &TestEnvironment, by: &str) -> Value {
        let file = self.file();
        let arguments = ["report", text(&file), "--by", by, "--format", "json"];
        let report = environment.run(&arguments).succeeded();
        serde_json::from_str(&report.stdout).expect("JSON")
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Bytes of a column of every row of live memory, by name: those at A (`a`) or at B (`b`).
fn live_rows(browser: &Browser, column: &str) -> BTreeMap<String, i64> {
    let script = format!(
        "const body = document.querySelector('#rows .grid-body');
         const found = {{}};
         for (let top = 0; ; top += 220) {{
           body.scrollTop = top;
           body.dispatchEvent(new Event('scroll'));
           for (const row of body.querySelectorAll('.grid-row')) {{
             const cell = (key) => row.querySelector(`[data-column=\"${{key}}\"]`);
             found[cell('name').title] = Number(cell('{column}').title);
           }}
           if (top >= body.scrollHeight) return found;
         }}"
    );
    let rows = browser.script(&script);
    let rows = rows.as_object().expect("rows").iter();
    rows.map(|(name, bytes)| (name.clone(), bytes.as_i64().expect("bytes")))
        .collect()
}

/// Bytes of the rows below the others: what is not accounted for, and the allocator's total.
fn foot(browser: &Browser, column: &str) -> Vec<i64> {
    let script = format!(
        "return [...document.querySelectorAll('#rows .grid-foot [data-column=\"{column}\"]')].map((it) => \
         Number(it.title))"
    );
    let bytes = browser.script(&script);
    let bytes = bytes.as_array().expect("a list").iter();
    bytes.map(|it| it.as_i64().expect("bytes")).collect()
}

/// A value of the table of moments: row 0 is A, 1 is B, 2 the difference.
fn moment(browser: &Browser, row: usize, key: &str) -> i64 {
    let script = format!(
        "return Number(document.querySelectorAll('#moments tbody tr')[{row}].querySelector('[data-bytes={key}]').title)"
    );
    browser.script(&script).as_i64().expect("bytes")
}

/// Asserts that the top of the page says what `explain` says: the verdict, the parts, the measures.
fn assert_explained(environment: &TestEnvironment, recorded: &Recorded, browser: &Browser) {
    let file = recorded.file();
    let explained = environment.run(&["explain", text(&file), "--format", "json"]);
    let explained: Value = serde_json::from_str(&explained.succeeded().stdout).expect("JSON");
    let verdict = browser.text("#verdict .verdict");
    assert_eq!(explained["verdict"]["text"], Value::from(verdict));
    let texts = |selector: &str| {
        let script = format!(
            "return [...document.querySelectorAll('{selector}')].map((it) => it.textContent)"
        );
        browser.script(&script).as_array().expect("a list").clone()
    };
    let device = &explained["devices"][0];
    let actions = device["measures"].as_array().expect("measures").iter();
    let actions: Vec<Value> = actions.map(|measure| measure["action"].clone()).collect();
    assert_eq!(texts("#verdict .measures code"), actions);
    let parts = device["parts"].as_array().expect("parts");
    let whole: u64 = parts.iter().filter_map(|part| part["bytes"].as_u64()).sum();
    let bars = texts("#verdict .bar rect title");
    assert!(bars.len() >= parts.len() && whole > 0, "{bars:?} {parts:?}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_page_of_a_training_loop_has_the_figures_of_its_reports() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(browser) = Browser::open() else {
        return;
    };
    let recorded = Recorded::of(&environment, &[], &["mlp_adam.py", "--hidden", "256"]);
    browser.visit(&recorded.page(), "#rows .grid-row");

    assert_explained(&environment, &recorded, &browser);
    let peak = recorded.report(&environment, "peak");
    let device = &peak["devices"][0];
    let allocated = device["allocated"].as_i64().expect("bytes");
    assert_eq!(moment(&browser, 0, "allocated"), allocated);
    let lines = live_rows(&browser, "a");
    let known = device["rows"].as_array().expect("rows").iter();
    let known = known.filter(|row| row["by"] == "line" && row["kind"] == "line");
    let mut compared = 0;
    for row in known {
        let (line, function) = (&row["line"], row["function"].as_str().expect("a name"));
        let name = format!("mlp_adam.py:{line} {function}");
        if let Some(bytes) = lines.get(&name) {
            assert_eq!(*bytes, row["bytes"].as_i64().expect("bytes"), "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 2, "{lines:?} {device}");

    // The annotated source has the same bytes beside the lines.
    let file = recorded.file();
    let arguments = [
        "report",
        text(&file),
        "--annotate",
        "mlp_adam.py",
        "--at",
        "peak",
        "--format",
        "json",
    ];
    let annotated = environment.run(&arguments).succeeded();
    let annotated: Value = serde_json::from_str(&annotated.stdout).expect("JSON");
    let rows = annotated["devices"][0]["rows"]
        .as_array()
        .expect("rows")
        .iter();
    let sum_of_lines: i64 = rows.filter_map(|row| row["live"].as_i64()).sum();
    let of_file = lines
        .iter()
        .filter(|(name, _)| name.contains("mlp_adam.py:"));
    assert_eq!(
        sum_of_lines,
        of_file.map(|(_, bytes)| bytes).sum::<i64>(),
        "{annotated}"
    );

    // Each table adds up to the allocator's total, at both moments.
    for (key, table) in [
        ("1", "line"),
        ("2", "tensor"),
        ("3", "module"),
        ("4", "retainer"),
    ] {
        browser.press("body", key);
        let selected = browser
            .script("return document.querySelector('[data-by][aria-selected=true]').dataset.by");
        assert_eq!(selected, table);
        for (column, row) in [("a", 0), ("b", 1)] {
            let below = foot(&browser, column);
            let (total, rest) = below.split_last().expect("a total");
            let sum: i64 = live_rows(&browser, column).values().sum();
            assert_eq!(
                sum + rest.iter().sum::<i64>(),
                *total,
                "{table} at {column}"
            );
            assert_eq!(*total, moment(&browser, row, "allocated"));
        }
    }
    // Iterations are those of the report, and choose the moment.
    let iterations = recorded.report(&environment, "iteration");
    let iterations = iterations["devices"][0]["rows"]
        .as_array()
        .expect("rows")
        .clone();
    let whole: Vec<&Value> = iterations
        .iter()
        .filter(|row| row["kind"] == "iteration")
        .collect();
    browser.script("document.querySelector('#iterations').scrollIntoView()");
    browser.click("#iteration-rows .grid-row:nth-of-type(5)");
    let chosen = browser.text("#iteration-rows .grid-row.selected [data-column=name]");
    let of_report = whole
        .iter()
        .find(|row| row["iteration"].as_u64() == chosen.parse().ok());
    let of_report = of_report.unwrap_or_else(|| panic!("{chosen} {whole:?}"));
    assert_eq!(
        moment(&browser, 0, "allocated"),
        of_report["peak_allocated"].as_i64().expect("bytes")
    );

    assert_keys_move_the_cursors(&browser);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Rows of live memory at A of each table of a page, and what is allocated there.
fn tables_at_a(browser: &Browser, page: &Path) -> (i64, Vec<BTreeMap<String, i64>>) {
    browser.visit(page, "#rows .grid-row");
    let tables = ["1", "2", "3", "4"].map(|key| {
        browser.press("body", key);
        live_rows(browser, "a")
    });
    (moment(browser, 0, "allocated"), tables.into())
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_page_of_an_exported_pickle_has_the_rows_of_its_recording() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(browser) = Browser::open() else {
        return;
    };
    let recorded = Recorded::of(&environment, &[], &["mlp_adam.py", "--hidden", "256"]);
    let [pickle, page] =
        ["trace.pickle", "again.html"].map(|name| recorded.folder.path().join(name));
    let file = recorded.file();
    environment
        .run(&["export", text(&file), "-o", text(&pickle)])
        .succeeded();
    environment
        .run(&["report", text(&pickle), "--html", text(&page)])
        .succeeded();
    let of_recording = tables_at_a(&browser, &recorded.page());
    assert!(of_recording.1.iter().all(|rows| !rows.is_empty()));
    assert_eq!(tables_at_a(&browser, &page), of_recording);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Presses keys, and compares the state that the fragment keeps.
fn assert_keys_move_the_cursors(browser: &Browser) {
    let fragment = |name: &str| {
        let script =
            format!("return Number(new URLSearchParams(location.hash.slice(1)).get('{name}'))");
        browser.script(&script).as_i64().expect("a number")
    };
    let before = fragment("a");
    browser.press("#chart", &format!("\u{e008}{RIGHT}\u{e000}"));
    assert_eq!(fragment("a"), before + 1);
    browser.press("body", "b]");
    let after = fragment("b");
    browser.press("body", "[");
    assert!(fragment("b") < after, "{after}");
    assert_eq!(fragment("a"), before + 1);
    browser.press("body", "d");
    browser.press("body", "d");
    let difference = moment(browser, 0, "allocated") - moment(browser, 1, "allocated");
    let sum: i64 = live_rows(browser, "difference").values().sum();
    let below: i64 = foot(browser, "difference").iter().rev().skip(1).sum();
    assert_eq!(sum + below, difference);

    // A row opens with its stacks and its source text; the search leaves what it finds.
    browser.press("body", "1");
    browser.press("#rows .grid-body", &format!("\u{e015}{ENTER}"));
    let detail = browser.text("#detail");
    assert!(
        detail.contains("mlp_adam.py") && detail.contains("Source:"),
        "{detail}"
    );
    browser.press("#find", "mlp_adam");
    let found = live_rows(browser, "a");
    assert!(
        !found.is_empty() && found.keys().all(|name| name.contains("mlp_adam")),
        "{found:?}"
    );
    assert!(browser.text("#flame-text").contains("\"mlp_adam\" matches"));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_page_of_a_full_gpu_opens_at_the_failed_request() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(browser) = Browser::open() else {
        return;
    };
    let recorded = Recorded::of(&environment, &[], &["oom.py"]);
    browser.visit(&recorded.page(), "#rows .grid-row");
    let events = recorded.folder.path().join("trace.mprb");
    let arguments = [
        "report",
        text(&events),
        "--by",
        "event",
        "--format",
        "jsonl",
    ];
    let events = environment.run(&arguments).succeeded().stdout;
    let mut events = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let failed = events.rfind(|event| event["action"] == "oom");
    let failed = failed.expect("memory ran out");
    assert_eq!(
        moment(&browser, 0, "allocated"),
        failed["allocated"].as_i64().expect("bytes")
    );
    assert_eq!(
        moment(&browser, 0, "reserved"),
        failed["reserved"].as_i64().expect("bytes")
    );
    assert_explained(&environment, &recorded, &browser);
    let verdict = browser.text("#verdict");
    assert!(verdict.starts_with("Out of memory: "), "{verdict}");
    assert!(verdict.contains("train_step <- oom.py"), "{verdict}");
    assert!(
        browser
            .text("#map-summary")
            .contains("the failed request needed")
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn names_of_a_hostile_program_are_texts() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(browser) = Browser::open() else {
        return;
    };
    let name = "</script><img src=x onerror=document.title=1>.py";
    let program = format!(
        "import torch\ncode = compile('x = torch.zeros(1 << 20, device=\"cuda\")', '{name}', 'exec')\nexec(code)\n\
         torch.cuda.synchronize()\n"
    );
    let recorded = Recorded::of(&environment, &[], &["-c", &program]);
    browser.visit(&recorded.page(), "#rows .grid-row");
    let lines = live_rows(&browser, "a");
    assert!(
        lines
            .keys()
            .any(|line| line.contains("onerror=document.title=1>.py:1")),
        "{lines:?}"
    );
    assert_eq!(
        browser.script("return document.querySelectorAll('img').length"),
        0
    );
    assert_eq!(
        browser.script("return document.title"),
        "trace.mprb - memprobe"
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Two ranks that average their gradients over gloo. The last one has a larger batch, and keeps 4 MiB in each step.
const RANKS: &str = "\
import os, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group('gloo')
rank, world = dist.get_rank(), dist.get_world_size()
device = f'cuda:{os.environ[\"LOCAL_RANK\"]}'
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
kept = []
for _ in range(8):
    batch = torch.randn(64 * (1 + rank), 256, device=device)
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        mean = parameter.grad.cpu()
        dist.all_reduce(mean)
        parameter.grad.copy_(mean / world)
    optimizer.step()
    optimizer.zero_grad()
    if rank == world - 1:
        kept.append(torch.empty(1 << 20, device=device))
dist.barrier()
dist.destroy_process_group()
";

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_page_of_a_torchrun_has_its_ranks_by_iteration_and_their_imbalance() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    if !pytorch.has_devices(2) {
        return;
    }
    let Some(browser) = Browser::open() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (program, run) = (folder.path().join("train.py"), folder.path().join("run"));
    std::fs::write(&program, RANKS).expect("written");
    let mut command = environment.memprobe();
    command
        .args(["record", "-q", "-o"])
        .arg(format!("{}/", text(&run)));
    command.arg("--").arg(pytorch.python());
    command.args(["-m", "torch.distributed.run", "--nproc-per-node", "2"]);
    command
        .args(["--master-port", "0", "--standalone"])
        .arg(&program);
    pytorch.settle(&mut command);
    command.env("CUDASIM_DEVICES", "2");
    Background::start(&mut command).finish().succeeded();

    let page = folder.path().join("ranks.html");
    environment
        .run(&["report", text(&run), "--html", text(&page)])
        .succeeded();
    let compared = environment
        .run(&["report", text(&run), "--by", "rank", "--format", "json"])
        .succeeded();
    let compared: Value = serde_json::from_str(&compared.stdout).expect("JSON");
    let ranks = compared["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2, "{compared}");
    browser.visit(&page, "#imbalance table");
    assert_eq!(compared["verdict"], Value::from(browser.text(".verdict")));
    let titles = |selector: &str| -> Vec<Value> {
        let script = format!(
            "return [...document.querySelectorAll('{selector}')].map((it) => it.title || it.textContent)"
        );
        browser.script(&script).as_array().expect("a list").clone()
    };
    for rank in ranks {
        let peak = Value::from(rank["peak_allocated"].to_string());
        assert!(titles("#verdict td").contains(&peak), "{peak}");
    }
    assert_eq!(titles(".lines polyline").len(), 2);
    // The largest difference is what the last rank keeps.
    let first = browser.text("#imbalance table tbody tr");
    assert!(
        first.contains("train.py:21") && first.contains("rank 1"),
        "{first}"
    );
    assert_eq!(
        titles("#imbalance table:first-of-type tbody tr:first-child .bars rect").len(),
        2
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());

    // The same directory in every other form.
    let exports = folder.path().join("exports");
    for (format, ending) in [("pprof", "pb.gz"), ("parquet", "parquet")] {
        environment
            .run(&[
                "export",
                text(&run),
                "--format",
                format,
                "-o",
                text(&exports),
            ])
            .succeeded();
        let entries = std::fs::read_dir(&exports).expect("exports");
        let names = entries.map(|entry| entry.expect("a file").file_name());
        let names = names.filter(|name| name.to_string_lossy().ends_with(ending));
        assert_eq!(names.count(), 2, "{format}");
    }
}

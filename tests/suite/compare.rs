//! Recordings compared: two runs, two iterations, and the ranks of a job, against the allocator's own totals.

use std::path::{Path, PathBuf};

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A training loop that keeps a tensor in each iteration, and a tensor for the whole run. The allocator does not round
/// even numbers of MiB.
const PROGRAM: &str = "\
import torch

def train(kept, mib):
    model = torch.nn.Linear(256, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = torch.empty(mib << 20, dtype=torch.uint8, device='cuda')
    for _ in range(6):
        model(torch.randn(64, 256, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.ones(1 << 20, device='cuda'))

";

struct Runs {
    folder: TempDir,
}

impl Runs {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("run")).expect("made");
        Self { folder }
    }

    /// Records the program with so many lines before it and so many MiB; returns the file.
    fn record(&self, environment: &TestEnvironment, name: &str, lines: usize, mib: u64) -> PathBuf {
        let source = self.folder.path().join("train.py");
        let program = format!("{}{PROGRAM}train([], {mib})\n", "\n".repeat(lines));
        std::fs::write(&source, program).expect("written");
        let file = self.folder.path().join("run").join(name);
        let pytorch = environment.pytorch();
        let mut command = environment.memprobe();
        command.args(["record", "-q", "-o", text(&file), "--"]);
        command.arg(pytorch.python()).arg(&source);
        pytorch.settle(&mut command);
        Background::start(&mut command).finish().succeeded();
        file
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn json(environment: &TestEnvironment, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--format", "json"]].concat();
    let finished = environment.run(&arguments).succeeded();
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// Asserts that the rows of the only device add up to the change of its total; returns the rows.
fn rows(document: &Value) -> Vec<Value> {
    let device = &document["devices"][0];
    let rows = device["rows"].as_array().expect("rows").clone();
    for (column, total) in [
        ("before", &device["before"]["allocated"]),
        ("after", &device["after"]["allocated"]),
        ("change", &device["change"]),
    ] {
        let sum: i64 = rows.iter().filter_map(|row| row[column].as_i64()).sum();
        assert_eq!(Some(sum), total.as_i64(), "{column}");
    }
    rows
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_difference_of_two_runs_is_what_the_program_changed() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let runs = Runs::new();
    let before = runs.record(&environment, "a.mprb", 0, 10);
    let after = runs.record(&environment, "b.mprb", 3, 16);
    for by in ["line", "tensor", "module", "category"] {
        let document = json(
            &environment,
            &["diff", text(&before), text(&after), "--by", by],
        );
        rows(&document);
        assert_eq!(document["devices"][0]["change"], 6 * MIB, "{by}");
    }
    let document = json(&environment, &["diff", text(&before), text(&after)]);
    let rows = rows(&document);
    let changed: Vec<_> = rows.iter().filter(|row| row["change"] != 0).collect();
    let [row] = &changed[..] else {
        panic!("{changed:?}")
    };
    assert_eq!(row["change"], 6 * MIB);
    assert_eq!(
        row["match"], "inferred",
        "the code has moved by three lines"
    );
    assert_eq!((&row["line_before"], &row["line"]), (&6.into(), &9.into()));
}

#[test]
fn two_iterations_of_one_recording_are_compared() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let runs = Runs::new();
    let file = runs.record(&environment, "a.mprb", 0, 10);
    let document = json(
        &environment,
        &["diff", text(&file), "--from", "2", "--to", "5"],
    );
    let rows = rows(&document);
    // Each iteration keeps 4 MiB.
    assert_eq!(rows[0]["change"], 12 * MIB, "{rows:?}");
    assert_eq!(rows[0]["line"], 11);
    let named = format!("{}@2", text(&file));
    let later = format!("{}@5", text(&file));
    let again = json(&environment, &["diff", &named, &later]);
    assert_eq!(again["devices"], document["devices"]);
    let missing = environment.run(&["diff", text(&file), "--from", "2", "--to", "99"]);
    let error = missing.one_clear_error();
    assert!(error.contains("it has 1 to "), "{error}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn ranks_are_compared_in_the_same_iteration() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let runs = Runs::new();
    for (rank, mib) in [10, 24, 14].into_iter().enumerate() {
        runs.record(&environment, &format!("rank{rank}-1-train.mprb"), 0, mib);
    }
    let folder = runs.folder.path().join("run");
    let document = json(&environment, &["report", text(&folder), "--by", "rank"]);
    let lines = document["tables"][0]["rows"].as_array().expect("rows");
    assert_eq!(lines[0]["line"], 6);
    assert_eq!(lines[0]["spread"], 14 * MIB);
    assert_eq!(lines[0]["least_rank"], "rank 0");
    assert_eq!(lines[0]["most_rank"], "rank 1");
    let number = document["iteration"].as_u64().expect("an iteration");
    let third = json(
        &environment,
        &["report", text(&folder), "--by", "rank", "--iteration", "3"],
    );
    assert_eq!(third["iteration"], 3);
    assert!(number > 3, "the fullest is later than 3: {number}");
    let one = folder.join("rank0-1-train.mprb");
    let refused = environment.run(&["report", text(&one), "--by", "rank"]);
    let error = refused.one_clear_error();
    assert!(error.contains("directory"), "{error}");
}

/// A job of three ranks. All hold what they print; then the second one asks for more than its GPU has, and the others
/// allocate again.
const FAILING_RANKS: &str = "\
import os, subprocess, sys, time
import torch

rank = os.environ.get('RANK')
folder = sys.argv[1]

def reach(step, ranks=range(3)):
    open(f'{folder}/{step}-{rank}', 'w').close()
    while not all(os.path.exists(f'{folder}/{step}-{other}') for other in ranks):
        time.sleep(0.01)

if rank is None:
    environments = [dict(os.environ, RANK=str(rank), LOCAL_RANK='0', WORLD_SIZE='3') for rank in range(3)]
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=it) for it in environments]
    sys.exit(sum(it.wait() for it in ranks))
kept = torch.empty((int(rank) + 1) << 20, dtype=torch.uint8, device='cuda')
reach('ready')
open(f'{folder}/allocated-{rank}', 'w').write(str(torch.cuda.memory_allocated()))
reach('known')
if rank == '1':
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device='cuda')
    except torch.cuda.OutOfMemoryError:
        pass
reach('failed', [1])
later = torch.empty(32 << 20, dtype=torch.uint8, device='cuda')
if rank == '2':
    try:
        torch.empty(1 << 51, dtype=torch.uint8, device='cuda')
    except torch.cuda.OutOfMemoryError:
        pass
";

#[test]
fn the_rank_that_fails_first_is_named_with_what_the_others_had_then() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (program, run) = (folder.path().join("train.py"), folder.path().join("run"));
    std::fs::write(&program, FAILING_RANKS).expect("written");
    let pytorch = environment.pytorch();
    let mut command = environment.memprobe();
    command.args(["record", "-q", "-o"]);
    command.arg(format!("{}/", text(&run))).arg("--");
    command.arg(pytorch.python()).arg(&program);
    command.arg(folder.path());
    pytorch.settle(&mut command);
    Background::start(&mut command).finish().succeeded();
    let allocated = |rank: usize| -> u64 {
        let file = folder.path().join(format!("allocated-{rank}"));
        let text = std::fs::read_to_string(file).expect("a rank's own total");
        text.parse().expect("a number")
    };

    let line = FAILING_RANKS.lines().position(|it| it.contains("1 << 50"));
    let line = line.expect("the request") as u64 + 1;
    for by in ["line", "rank"] {
        let document = json(&environment, &["report", text(&run), "--by", by]);
        let found = &document["first_failure"];
        assert_eq!(found["order"], "known", "{found}");
        let failed = found["failed"].as_array().expect("failures");
        let ranks: Vec<_> = failed.iter().map(|it| &it["rank"]).collect();
        assert_eq!(ranks, ["rank 1", "rank 2"], "{found}");
        assert_eq!(failed[0]["line"], line);
        assert_eq!(failed[0]["bytes"], 1_u64 << 50);
        assert!(failed[0]["time_ns"].as_u64() < failed[1]["time_ns"].as_u64());
        let then = found["allocated_then"].as_array().expect("memory");
        assert_eq!(then.len(), 3, "{found}");
        for row in then {
            let rank = row["rank"]
                .as_str()
                .and_then(|name| name.strip_prefix("rank "));
            let rank = rank.and_then(|rank| rank.parse().ok()).expect("a rank");
            assert_eq!(row["allocated"], allocated(rank), "{row}");
        }
    }
    let printed = environment
        .run(&["report", text(&run), "--by", "rank"])
        .succeeded();
    let begin = "rank 1 (cuda:0) was the first of 2 ranks to run out of memory.";
    assert!(printed.stdout.starts_with(begin), "{}", printed.stdout);
    let place = format!("train.py:{line} <module> asked for 1.00 PiB");
    assert!(printed.stdout.contains(&place), "{}", printed.stdout);
    let page = folder.path().join("ranks.html");
    environment
        .run(&["report", text(&run), "--html", text(&page)])
        .succeeded();
    let page = std::fs::read_to_string(&page).expect("a page");
    assert!(page.contains(begin) && page.contains("1.00 PiB"));
}

#[test]
fn a_snapshot_and_a_recording_are_not_compared() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let runs = Runs::new();
    let file = runs.record(&environment, "a.mprb", 0, 10);
    let snapshot = runs.folder.path().join("snapshot.json");
    let mut target = environment.pytorch().command();
    target.args(["hold.py"]);
    let mut target = Background::start(&mut target);
    target.wait_for("READY");
    environment.keep_snapshot(target.pid(), &snapshot);
    drop(target);
    let refused = environment.run(&["diff", text(&file), text(&snapshot)]);
    let error = refused.one_clear_error();
    assert!(
        error.contains("give two recordings, or two snapshots"),
        "{error}"
    );
}

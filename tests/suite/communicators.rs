//! Memory of NCCL by the calls that its communicators serve.

use std::collections::BTreeMap;

use memprobe_tests::cuda_programs::library_of_process;
use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use rustix::process::Signal;
use serde_json::Value;

const MIB: i64 = 1 << 20;

/// Rows of a library: call of the communicators, function of the program, and bytes.
type Communicators = BTreeMap<(Option<String>, String), i64>;

/// Setting of PyTorch's first backend over NCCL, `ProcessGroupNCCL.cpp`.
const FIRST_BACKEND: (&str, &str) = ("TORCH_DIST_USE_NCCL2", "0");

/// Records the program with its groups; returns the rows of NCCL's memory.
fn communicators(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    settings: &[(&str, &str)],
) -> Communicators {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let library = library_of_process(folder.path(), "communicators.c", "libnccl-counted.so");
    let mut command = pytorch.command();
    command.args(["-W", "ignore", "communicators.py", "--folder"]);
    command.arg(folder.path()).env("LD_PRELOAD", &library);
    command.envs(settings.iter().copied());
    let mut target = Background::start(&mut command);
    target.wait_for("READY");
    let mut command = environment.memprobe();
    command.args(["record", "-o"]).arg(file("trace.mprb"));
    command.args(["--pid", &target.pid().to_string()]);
    let mut recording = Background::start(&mut command);
    recording.wait_for("recording");
    std::fs::write(file("go"), "").expect("written");
    target.wait_for("MADE");
    recording.signal(Signal::INT);
    recording.finish().succeeded();
    let signs = signs_from_outside(environment, target.pid());
    // PyTorch's second backend over NCCL names no threads.
    let threads = match settings.contains(&FIRST_BACKEND) {
        true => ", 2 threads of ProcessGroupNCCL",
        false => "",
    };
    let groups = "2 process groups (0: rank 0; 1: rank 0)";
    assert_eq!(signs, format!("{groups}{threads}"));
    let trace = file("trace.mprb");
    let trace = trace.to_str().expect("a path");
    let report = ["report", trace, "--by", "owner"];
    let text = environment.run(&report).succeeded().stdout;
    println!("{text}");
    let report = [&report[..], &["--format", "json"]].concat();
    let printed = environment.run(&report).succeeded();
    let report: Value = serde_json::from_str(&printed.stdout).expect("JSON");
    rows_of_nccl(&report, &text)
}

/// Signs of NCCL's use that a late attach sees.
fn signs_from_outside(environment: &TestEnvironment, pid: u32) -> String {
    let pid = pid.to_string();
    let explain = ["explain", &pid, "--nonblocking", "--format", "json"];
    let printed = environment.run(&[&explain[..], &["--duration", "1s"]].concat());
    let document: Value = serde_json::from_str(&printed.succeeded().stdout).expect("JSON");
    let libraries = document["libraries"].as_array().expect("libraries");
    let nccl = libraries.iter().find(|library| library["name"] == "NCCL");
    let signs = nccl.and_then(|library| library["signs"].as_str());
    signs.unwrap_or_else(|| panic!("{document}")).to_owned()
}

fn rows_of_nccl(report: &Value, text: &str) -> Communicators {
    let rows = report["devices"][0]["rows"].as_array().expect("rows");
    let is_nccl = |row: &Value| {
        let library = row["library"].as_str();
        library.is_some_and(|path| path.ends_with("libnccl-counted.so"))
    };
    let at = rows.iter().position(is_nccl).expect("NCCL's memory");
    let bytes = |row: &Value| row["bytes"].as_i64().expect("bytes");
    let lines = rows[at + 1..].iter();
    let lines = lines.take_while(|row| row["owner"] == "line");
    let mut found = Communicators::new();
    for line in lines {
        let call = line["communicator_call"].as_str().map(str::to_owned);
        let function = line["function"].as_str().expect("a function").to_owned();
        if let Some(call) = &call {
            assert!(text.contains(&format!(" {function}, for {call}")), "{text}");
        }
        *found.entry((call, function)).or_default() += bytes(line);
    }
    assert_eq!(found.values().sum::<i64>(), bytes(&rows[at]));
    found
}

fn expected(rows: &[(&str, &str, i64)]) -> Communicators {
    let rows = rows.iter();
    rows.map(|(call, function, size)| {
        let key = (Some((*call).to_owned()), (*function).to_owned());
        (key, size * MIB)
    })
    .collect()
}

#[test]
fn communicators_belong_to_the_calls_that_they_serve() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    if environment.pytorch().simulated_libraries().is_none() {
        println!("skipped: the bytes of communicators are known on the simulated CUDA alone");
        return;
    }
    for pytorch in environment.pytorches_on(On::Newest) {
        let lazy = communicators(&environment, pytorch, &[FIRST_BACKEND]);
        let rows = [
            ("all_reduce", "reduce_all", 8),
            ("all_gather", "gather", 10),
        ];
        assert_eq!(lazy, expected(&rows));
        let eager = communicators(&environment, pytorch, &[]);
        let rows = [("init_process_group", "meet", 8), ("new_group", "main", 10)];
        assert_eq!(eager, expected(&rows));
    }
}

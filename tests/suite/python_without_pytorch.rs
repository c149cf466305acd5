//! Python programs that use CUDA without PyTorch's allocator: their calls into CUDA are the allocations, each with its
//! line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::RECORDING;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::{PyTorch, succeed, workloads};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

const MB: u64 = 1 << 20;

#[test]
fn memory_of_a_running_python_without_pytorch_has_lines_from_attach_on() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let program = Program::start(environment.pytorch(), &[]);
    let file = program.file("trace.mprb");
    // All that memprobe does by default, with the names.
    let recording = environment.record_as_asked(program.target.pid(), &file, &[]);
    let _folder = program.go_on_to_its_end();
    let printed = recording.finish();
    assert!(
        printed.stderr.contains("CUDA lists no memory of a process"),
        "what came before is unknown, and that is not said: {}",
        printed.stderr
    );
    let report = environment.report(&file);
    assert_eq!(lines(&report), live([("cache", 16)]));
    assert_eq!(report["layer"], "CUDA driver calls");
    assert_eq!(report["devices"][0]["allocated"], 16 * MB);
    let shown = environment.run(&["report", text(&file)]).succeeded().stdout;
    assert!(shown.contains("before attach unknown"), "{shown}");
    let freed = environment.events(&file);
    let freed = freed.iter().filter(|event| event.action == "cuda_free");
    assert_eq!(freed.count(), 10);
}

#[test]
fn a_command_without_pytorch_is_recorded_from_its_first_call() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("trace.mprb");
    let workload = workloads().join("driver_calls.py");
    let python = environment.pytorch().python();
    let arguments = [
        "record",
        "-o",
        text(&file),
        "--",
        text(python),
        text(&workload),
    ];
    let printed = environment.run(&arguments).succeeded();
    let report = environment.report(&file);
    let expected = live([("cache", 16), ("weights", 12)]);
    assert_eq!(lines(&report), expected, "{}", printed.stderr);
    let shown = environment.run(&["report", text(&file)]).succeeded().stdout;
    assert!(shown.contains("before attach 0 B"), "{shown}");
}

#[test]
fn a_python_that_loads_the_driver_after_attach_has_no_unknown_memory() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let program = Program::start(environment.pytorch(), &["--late"]);
    let file = program.file("trace.mprb");
    let mut recording = environment.record_unready(program.target.pid(), &file, &[]);
    let said = recording.memprobe.wait_for("waiting");
    assert!(said.contains("CUDA's driver"), "{said}");
    fs::write(program.file("go-driver"), "").expect("written");
    recording.memprobe.wait_for(RECORDING);
    let _folder = program.go_on_to_its_end();
    recording.finish();
    let lines = lines(&environment.report(&file));
    assert_eq!(lines, live([("cache", 16), ("weights", 12)]));
    let shown = environment.run(&["report", text(&file)]).succeeded().stdout;
    assert!(shown.contains("before attach 0 B"), "{shown}");
}

#[test]
fn pytorch_that_is_imported_later_is_recorded_too() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let program = Program::start(pytorch, &["--pytorch"]);
        let file = program.file("trace.mprb");
        let recording = environment.record(program.target.pid(), &file, &["--detail", "tensors"]);
        let _folder = program.go_on_to_its_end();
        let printed = recording.finish();
        assert!(
            !printed.stderr.contains("waiting for"),
            "it is recorded already: {}",
            printed.stderr
        );
        let report = environment.report(&file);
        assert_eq!(report["layer"], "PyTorch's caching allocator");
        // It ends before the program does.
        assert_eq!(report["devices"][0]["peak_allocated"], 3 * MB);
        let events = environment.events(&file);
        let tensor = events.iter().find(|event| event.action == "alloc");
        let tensor = tensor.expect("the tensor's block");
        assert_eq!(innermost(tensor), "main");
        assert_eq!(tensor.shape.as_deref(), Some(&[3 * MB][..]));
        let call = events.iter().find(|event| event.size == Some(8 * MB));
        assert_eq!(innermost(call.expect("a call before that")), "cache");
    }
}

#[test]
fn a_pytorch_built_without_cuda_does_not_hide_the_driver() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    // The bindings lie where no libc10_cuda.so is.
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("empty.c");
    fs::write(&source, "int empty;\n").expect("written");
    for name in ["libc10.so", "libtorch_python.so"] {
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-shared", "-fPIC", "-o"]);
        succeed(compile.arg(folder.path().join(name)).arg(&source));
    }
    let options = ["--libraries", text(folder.path())];
    let program = Program::start(environment.pytorch(), &options);
    let file = program.file("trace.mprb");
    let recording = environment.record(program.target.pid(), &file, &[]);
    let _folder = program.go_on_to_its_end();
    recording.finish();
    let report = environment.report(&file);
    assert_eq!(lines(&report), live([("cache", 16)]));
}

#[test]
fn a_driver_that_is_left_alone_is_said_to_be_what_is_missing() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let program = Program::start(environment.pytorch(), &[]);
    let file = program.file("trace.mprb");
    let mut recording = environment.record_unready(program.target.pid(), &file, &["--no-driver"]);
    let said = recording.memprobe.wait_for("waiting");
    assert!(said.contains("--no-driver"), "{said}");
}

/// The program that calls the driver, once it holds memory.
struct Program {
    folder: TempDir,
    target: Background,
}

impl Program {
    fn start(pytorch: &PyTorch, options: &[&str]) -> Self {
        let folder = tempdir().expect("a folder");
        let mut command = pytorch.command();
        // A server of workloads would have imported PyTorch; none gives this option.
        command.args(["-B", "driver_calls.py", "--go"]);
        command.arg(folder.path().join("go")).args(options);
        let mut target = Background::start(&mut command);
        target.wait_for("ready");
        Self { folder, target }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has it allocate more, and waits for its end. The folder stays.
    fn go_on_to_its_end(self) -> TempDir {
        fs::write(self.file("go"), "").expect("written");
        self.target.finish().succeeded();
        self.folder
    }
}

/// Functions with live memory and its bytes, most first.
fn lines(report: &Value) -> Vec<(String, u64)> {
    let rows = report["devices"][0]["lines"].as_array().expect("lines");
    let live = rows.iter().filter_map(|row| {
        let live = row["live"].as_u64().filter(|live| *live > 0)?;
        Some((row["function"].as_str()?.to_owned(), live))
    });
    live.collect()
}

/// The same of functions with their MiB.
fn live<const N: usize>(functions: [(&str, u64); N]) -> [(String, u64); N] {
    functions.map(|(name, mebibytes)| (name.to_owned(), mebibytes * MB))
}

fn innermost(event: &Event) -> &str {
    &event.stack[0].function
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

//! `memprobe suspend` and `resume` on the simulated driver: each refusal, failure and time-out of each step, memprobe
//! killed between any two, and the memory of the GPU before, during and after.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memprobe_tests::cuda_programs::{Cuda, Cudart, Entries};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, Finished, is_soon, wait_until};
use memprobe_tests::pytorch::{PyTorch, succeed};
use memprobe_tests::terminal::Terminal;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// The simulated CUDA, and a folder through which its processes know of each other.
struct Stage {
    environment: TestEnvironment,
    cuda: Cuda,
    shared: TempDir,
    program: PathBuf,
}

impl Stage {
    fn set() -> Option<Self> {
        let environment = TestEnvironment::without_pytorch()?;
        Some(Self::on(environment))
    }

    fn on(environment: TestEnvironment) -> Self {
        let cuda = Cuda::build(Entries::Trampolines);
        cuda.nvml(&cuda.file("nvml"), &[]);
        Self {
            environment,
            program: cuda.program("steps", Cudart::Dynamic, &[]),
            cuda,
            shared: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Returns a program that holds so many MiB and makes calls of CUDA all the time.
    fn command(&self, mib: u64) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(mib.to_string())
            .env("CUDASIM_SHARED", self.shared.path());
        command
    }

    fn start(&self, mib: u64) -> Background {
        let mut process = Background::start(&mut self.command(mib));
        process.wait_for("step 1");
        process
    }

    fn memprobe(&self, words: &[&str]) -> Command {
        let mut command = self.environment.memprobe();
        let folders = [self.cuda.file("nvml"), self.cuda.file("")];
        let folders = std::env::join_paths(folders).expect("a list of folders");
        command
            .env("CUDASIM_SHARED", self.shared.path())
            .env("LD_LIBRARY_PATH", folders)
            .args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        Background::start(&mut self.memprobe(words)).finish()
    }

    /// Makes steps of the driver fail; none without lines.
    fn trouble(&self, lines: &str) {
        let file = self.shared.path().join("checkpoint");
        let written = self.shared.path().join("written");
        std::fs::write(&written, lines).expect("written");
        std::fs::rename(written, file).expect("renamed");
    }

    fn suspend(&self, process: &Background) -> Finished {
        self.run(&["suspend", "--yes", &process.pid().to_string()])
    }

    fn resume(&self, process: &Background) -> Finished {
        self.run(&["resume", &process.pid().to_string()])
    }

    /// Bytes in use of GPU 0, as NVML counts them.
    fn used(&self) -> u64 {
        let top = ["top", "--once", "--duration", "0s", "--format", "json"];
        let printed = self.run(&top).succeeded().stdout;
        let document: Value = serde_json::from_str(&printed).expect("it is JSON");
        document["gpus"][0]["used"].as_u64().expect("bytes")
    }
}

/// Number of rounds that a program has made.
fn steps(process: &Background) -> usize {
    process.stdout().lines().count()
}

/// The calls of CUDA return.
fn assert_runs(process: &Background) {
    let before = steps(process);
    wait_until("another step", || (steps(process) > before).then_some(()));
}

/// The calls of CUDA wait.
fn assert_waits(process: &Background) {
    let before = steps(process);
    std::thread::sleep(Duration::from_millis(200));
    // A line may have been on its way.
    assert!(steps(process) <= before + 1, "it makes steps");
}

/// Returns the errors of a run that ended with status 2; its plan is not among them.
fn error(run: &Finished) -> String {
    assert_eq!(run.status.code(), Some(2), "{}", run.stderr);
    let errors = run
        .stderr
        .lines()
        .filter(|line| line.starts_with("memprobe: "));
    errors.collect::<Vec<_>>().join("\n")
}

#[test]
fn memory_adds_up_before_during_and_after() {
    let Some(stage) = Stage::set() else { return };
    let (first, second) = (stage.start(96), stage.start(64));
    // The third part of a round has 2 MiB more.
    let holds = |used: u64, mib: u64| used >= mib * MIB && used <= (mib + 4) * MIB;
    assert!(holds(stage.used(), 160));
    let run = stage.suspend(&first).succeeded();
    let pid = first.pid();
    for words in [
        "GPU 0 gets back 9",
        "the host must hold 9",
        "the process is lost",
        "the GPU got back 9",
        &format!("`memprobe resume {pid}` brings it back"),
    ] {
        assert!(run.stderr.contains(words), "{words}: {}", run.stderr);
    }
    assert_waits(&first);
    assert_runs(&second);
    assert!(holds(stage.used(), 64));
    let again = stage.suspend(&first).succeeded();
    assert!(
        again.stderr.contains("suspended already"),
        "{}",
        again.stderr
    );
    let run = stage.resume(&first).succeeded();
    assert!(run.stderr.contains("runs again"), "{}", run.stderr);
    assert_runs(&first);
    assert!(holds(stage.used(), 160));
    let again = stage.resume(&first).succeeded();
    assert!(
        again.stderr.contains("is not suspended"),
        "{}",
        again.stderr
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn each_refusal_leaves_the_process_running() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    for step in ["state", "lock", "checkpoint"] {
        for (code, words) in [
            (1, "knows no CUDA"),
            (304, "persistence mode"),
            (800, "as root"),
            (801, "managed memory"),
            (999, "dmesg"),
        ] {
            stage.trouble(&format!("{step}={code}"));
            let error = error(&stage.suspend(&process));
            assert!(error.contains(words), "{step} {code}: {error}");
            let runs_on = step == "state" || error.contains("runs on, with its memory");
            assert!(runs_on, "{step} {code}: {error}");
            assert_runs(&process);
        }
    }
    // Somebody has to open the lock that the way back could not.
    stage.trouble("checkpoint=801\nunlock=999");
    let error = error(&stage.suspend(&process));
    assert!(error.contains("Undoing that failed at unlock"), "{error}");
    assert_waits(&process);
    stage.trouble("");
    let run = stage.resume(&process).succeeded();
    assert!(run.stderr.contains("it was locked"), "{}", run.stderr);
    assert_runs(&process);
}

#[test]
fn running_work_that_does_not_end_is_waited_for_as_long_as_the_limit() {
    let Some(stage) = Stage::set() else { return };
    let mut command = stage.command(32);
    let process = Background::start(command.env("CUDASIM_CALL_US", "600000000"));
    let account = stage.shared.path().join(process.pid().to_string());
    assert!(is_soon(|| account.exists()));
    let pid = process.pid().to_string();
    let run = stage.run(&["suspend", "--yes", "--lock-timeout", "200ms", &pid]);
    let error = error(&run);
    assert!(error.contains("--lock-timeout"), "{error}");
    assert!(error.contains("runs on"), "{error}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_driver_that_does_not_return_is_left_and_the_process_can_be_resumed() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    let pid = process.pid().to_string();
    let limit = ["--timeout", "300ms"];
    for step in ["state", "lock", "checkpoint", "restore", "unlock"] {
        let is_back = ["restore", "unlock"].contains(&step);
        if is_back {
            stage.suspend(&process).succeeded();
        }
        stage.trouble(&format!("{step}=hang"));
        let words = if is_back {
            vec!["resume", limit[0], limit[1], &pid]
        } else {
            vec![
                "suspend",
                "--yes",
                "--lock-timeout",
                "100ms",
                limit[0],
                limit[1],
                &pid,
            ]
        };
        let error = error(&stage.run(&words));
        assert!(error.contains("--timeout"), "{step}: {error}");
        if step != "state" {
            assert!(error.contains("is unknown"), "{step}: {error}");
        }
        stage.trouble("");
        stage.resume(&process).succeeded();
        assert_runs(&process);
    }
}

/// Starts memprobe, waits until the driver is within a step, and kills memprobe there.
fn killed_within(stage: &Stage, process: &Background, step: &str, words: &[&str]) {
    let trace = stage.shared.path().join("trace");
    let _ = std::fs::remove_file(&trace);
    let pid = process.pid().to_string();
    let mut command = stage.memprobe(words);
    let memprobe = Background::start(command.arg(&pid).env("CUDASIM_TRACE", &trace));
    wait_until("the step of the driver", || {
        let text = std::fs::read_to_string(&trace).unwrap_or_default();
        text.contains(&format!("cuCheckpointProcess {step} "))
            .then_some(())
    });
    // The step itself takes microseconds.
    std::thread::sleep(Duration::from_millis(50));
    memprobe.signal(Signal::KILL);
    memprobe.finish();
    stage.trouble("");
}

#[test]
fn a_memprobe_that_is_killed_between_two_steps_is_finished_or_undone_by_the_next_one() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    let suspend = ["suspend", "--yes"];
    for (step, how, said) in [
        ("lock", "hang", "is not suspended"),
        ("lock", "done-hang", "it was locked"),
        ("checkpoint", "hang", "it was locked"),
        ("checkpoint", "done-hang", "its memory was back"),
    ] {
        stage.trouble(&format!("{step}={how}"));
        killed_within(&stage, &process, step, &suspend);
        let run = stage.resume(&process).succeeded();
        assert!(run.stderr.contains(said), "{step} {how}: {}", run.stderr);
        assert_runs(&process);
    }
    for (step, how, said) in [
        ("restore", "hang", "its memory was back"),
        ("restore", "done-hang", "it was locked"),
        ("unlock", "hang", "it was locked"),
        ("unlock", "done-hang", "is not suspended"),
    ] {
        stage.suspend(&process).succeeded();
        stage.trouble(&format!("{step}={how}"));
        killed_within(&stage, &process, step, &["resume"]);
        let run = stage.resume(&process).succeeded();
        assert!(run.stderr.contains(said), "{step} {how}: {}", run.stderr);
        assert_runs(&process);
    }
    // A lock that was left is also where a suspension goes on.
    stage.trouble("lock=done-hang");
    killed_within(&stage, &process, "lock", &suspend);
    let run = stage.suspend(&process).succeeded();
    assert!(run.stderr.contains("goes on from there"), "{}", run.stderr);
    stage.resume(&process).succeeded();
    assert_runs(&process);
}

#[test]
fn ctrl_c_undoes_what_was_begun_and_a_second_one_gives_up() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    let pid = process.pid().to_string();
    for step in ["lock", "checkpoint"] {
        stage.trouble(&format!("{step}=done-hang"));
        let mut memprobe = Background::start(&mut stage.memprobe(&["suspend", "--yes", &pid]));
        memprobe.wait_for("the process is lost");
        // By then it listens: the plan comes before, and the driver hangs.
        std::thread::sleep(Duration::from_millis(300));
        memprobe.signal(Signal::INT);
        memprobe.wait_for("what was begun is undone");
        stage.trouble("");
        let ended = memprobe.finish();
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("runs on as before"),
            "{}",
            ended.stderr
        );
        assert_runs(&process);
    }
    stage.trouble("checkpoint=hang");
    let mut memprobe = Background::start(&mut stage.memprobe(&["suspend", "--yes", &pid]));
    memprobe.wait_for("the process is lost");
    std::thread::sleep(Duration::from_millis(300));
    memprobe.signal(Signal::INT);
    memprobe.wait_for("what was begun is undone");
    memprobe.signal(Signal::INT);
    let error = error(&memprobe.finish());
    assert!(error.contains("is unknown"), "{error}");
    stage.trouble("");
    stage.resume(&process).succeeded();
    assert_runs(&process);
}

#[test]
fn for_the_length_of_a_command_in_every_case() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    let pid = process.pid().to_string();
    let suspended = |command: &[&str]| {
        let words = [&["suspend", "--yes", &pid, "--"], command].concat();
        stage.memprobe(&words)
    };
    let steps_within = format!(
        "a=$(wc -l < {0}); sleep 0.2; b=$(wc -l < {0}); echo \"more $((b - a))\"; exit 7",
        process_output(&process).display()
    );
    let run = Background::start(&mut suspended(&["sh", "-c", &steps_within])).finish();
    assert_eq!(run.status.code(), Some(7), "{}", run.stderr);
    assert!(run.stdout.contains("more 0"), "{}", run.stdout);
    assert_runs(&process);

    let run = Background::start(&mut suspended(&["sh", "-c", "kill -9 $$"])).finish();
    assert_eq!(run.status.code(), Some(137), "{}", run.stderr);
    assert_runs(&process);

    let error = error(&Background::start(&mut suspended(&["/nonexistent"])).finish());
    assert!(error.contains("starting /nonexistent"), "{error}");
    assert_runs(&process);

    // Ctrl-C is the command's, which may go on; a polite kill is passed on.
    for (signal, code) in [(Signal::INT, 0), (Signal::TERM, 143)] {
        let wait = "echo begun; sleep 1";
        let mut memprobe = Background::start(&mut suspended(&["sh", "-c", wait]));
        memprobe.wait_for("begun");
        memprobe.signal(signal);
        memprobe.wait_for("waiting for the command to end");
        if code == 0 {
            assert_waits(&process);
        }
        let ended = memprobe.finish();
        assert_eq!(ended.status.code(), Some(code), "{}", ended.stderr);
        assert_runs(&process);
    }

    // Nobody can act after SIGKILL: the next memprobe does.
    let mut memprobe = Background::start(&mut suspended(&["sh", "-c", "echo begun; sleep 5"]));
    memprobe.wait_for("begun");
    memprobe.signal(Signal::KILL);
    memprobe.finish();
    assert_waits(&process);
    stage.resume(&process).succeeded();
    assert_runs(&process);
}

/// File of a program's output.
fn process_output(process: &Background) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/fd/1", process.pid())).expect("it has one")
}

#[test]
fn a_failed_restore_is_said_with_the_state_of_the_process() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    stage.suspend(&process).succeeded();
    stage.trouble("restore=304");
    let failed = error(&stage.resume(&process));
    assert!(failed.contains("only ending the process helps"), "{failed}");
    assert!(failed.contains("is suspended"), "{failed}");
    stage.trouble("restore=breaks");
    let failed = error(&stage.resume(&process));
    assert!(failed.contains("end it (`kill"), "{failed}");
    stage.trouble("");
    let failed = error(&stage.resume(&process));
    assert!(failed.contains("cannot be resumed"), "{failed}");
    let mut process = stage.start(32);
    stage.suspend(&process).succeeded();
    stage.trouble("restore=kills");
    let failed = error(&stage.resume(&process));
    assert!(failed.contains("has ended"), "{failed}");
    assert!(is_soon(|| process.has_ended()));
}

#[test]
fn the_memory_must_be_free_again_before_a_restore() {
    let Some(stage) = Stage::set() else { return };
    let memory = |command: &mut Command| {
        command.env("CUDASIM_MEMORY", "256m");
    };
    let mut command = stage.command(128);
    memory(&mut command);
    let mut process = Background::start(&mut command);
    process.wait_for("step 1");
    let pid = process.pid().to_string();
    let mut command =
        stage.memprobe(&["suspend", "--yes", &pid, "--", "sh", "-c", "read x < $GATE"]);
    memory(&mut command);
    let gate = stage.shared.path().join("gate");
    succeed(Command::new("mkfifo").arg(&gate));
    let mut memprobe = Background::start(command.env("GATE", &gate));
    memprobe.wait_for("is suspended after");
    let mut command = stage.command(160);
    memory(&mut command);
    let mut other = Background::start(&mut command);
    other.wait_for("step 1");
    std::fs::write(&gate, "go\n").expect("the command reads");
    memprobe.wait_for("waiting for free memory on the GPU");
    assert_waits(&process);
    // Without memprobe's patience the driver refuses.
    let mut command = stage.memprobe(&["resume", &pid]);
    memory(&mut command);
    let refused = error(&Background::start(&mut command).finish());
    assert!(refused.contains("not enough free memory"), "{refused}");
    drop(other);
    memprobe.finish().succeeded();
    assert_runs(&process);
}

#[test]
fn what_the_host_cannot_hold_is_refused_before_anything_is_changed() {
    let Some(stage) = Stage::set() else { return };
    // Address space, of which nothing is used.
    let mut command = stage.command(4 << 20);
    let mut process = Background::start(command.env("CUDASIM_MEMORY", "8388608m"));
    process.wait_for("step 1");
    let run = stage.suspend(&process);
    let error = run.one_clear_error();
    assert!(error.contains("would move to host memory"), "{error}");
    assert!(error.contains("4.00 TiB"), "{error}");
    assert_runs(&process);
}

#[test]
fn consent_is_asked_for_on_a_terminal_alone() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    let pid = process.pid().to_string();
    let run = stage.run(&["suspend", &pid]);
    let refused = error(&run);
    assert!(refused.contains("Give --yes to agree"), "{refused}");
    for (answer, words) in [("n\r", "nothing was changed"), ("y\r", "brings it back")] {
        let mut command = stage.memprobe(&["suspend", &pid]);
        let mut terminal = Terminal::start(&mut command);
        terminal.wait_for(&format!("Suspend PID {pid}? [y/N]"));
        assert_runs(&process);
        terminal.press(answer);
        terminal.wait_for(words);
    }
    assert_waits(&process);
    stage.resume(&process).succeeded();
    assert_runs(&process);
}

/// Builds a libcuda of a few lines into a folder.
fn other_driver(folder: &Path, code: &str) {
    std::fs::create_dir(folder).expect("a new folder");
    let source = folder.join("libcuda.c");
    std::fs::write(&source, code).expect("written");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(source);
    succeed(&mut compiler);
}

#[test]
fn a_driver_that_cannot_do_it_is_named() {
    let Some(stage) = Stage::set() else { return };
    let process = stage.start(32);
    let pid = process.pid().to_string();
    let with = |name: &str, code: &str| {
        let folder = stage.shared.path().join(name);
        other_driver(&folder, code);
        let mut command = stage.memprobe(&["suspend", "--yes", &pid]);
        command.env("LD_LIBRARY_PATH", &folder);
        Background::start(&mut command).finish().one_clear_error()
    };
    let version = "int cuDriverGetVersion(int *v) { *v = 12050; return 0; }\n";
    let init = |code| format!("int cuInit(unsigned f) {{ return f + {code}; }}\n");
    let old = with("old", &format!("{version}{}", init(0)));
    assert!(old.contains("CUDA 12.5") && old.contains("570"), "{old}");
    let functions = ["GetState", "Lock", "Checkpoint", "Restore", "Unlock"];
    let functions =
        functions.map(|name| format!("int cuCheckpointProcess{name}(void) {{ return 999; }}\n"));
    let functions = functions.concat();
    let absent = with("absent", &format!("{version}{functions}{}", init(100)));
    assert!(absent.contains("finds no GPU"), "{absent}");
    assert_runs(&process);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_ledger_of_a_suspended_process_stays_and_says_so() {
    if PyTorch::simulated().is_none() {
        return;
    }
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let stage = Stage::on(environment);
    let mut command = stage.environment.pytorch().command();
    command
        .args(["hold.py", "--mib", "64"])
        .env("CUDASIM_SHARED", stage.shared.path())
        .env("LD_PRELOAD", stage.cuda.file("libcuda.so.1"));
    let mut process = Background::start(&mut command);
    process.wait_for("READY");
    let pid = process.pid().to_string();
    let top = Terminal::start_sized(&mut stage.memprobe(&["top"]), (160, 40));
    let attach = Terminal::start_sized(&mut stage.memprobe(&["attach", &pid]), (160, 40));
    top.wait_for("hold.py");
    top.wait_until("the row of the process with its memory", |shown| {
        shown
            .lines()
            .any(|line| line.contains(&pid) && line.contains("64.0 MiB"))
    });
    attach.wait_for("LIVE");
    // Both have seen the process in the driver's lists by then.
    std::thread::sleep(Duration::from_secs(5));
    stage.suspend(&process).succeeded();
    let words = format!("PID {pid} is suspended (inferred");
    let shown = attach.wait_for(&words);
    assert!(shown.contains("allocated   64.0"), "{shown}");
    let shown = top.wait_for("stopped");
    let row = shown
        .lines()
        .find(|line| line.contains(&pid))
        .expect("its row");
    assert!(row.contains("64.0 MiB"), "{shown}");
    stage.resume(&process).succeeded();
    attach.wait_until("the end of the suspension", |shown| !shown.contains(&words));
}

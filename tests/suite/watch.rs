//! `memprobe watch`: an out-of-memory error leaves a dump that names its cause.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::cuda_programs::{
    Cuda, Cudart, Entries, library_of_process, pluggable_allocator, start_command,
};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::parse_events;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// GPUs of the simulated driver, and the memory of each.
#[derive(Clone, Copy)]
struct Gpus {
    number: u32,
    mib: u64,
}

const ONE_GPU: Gpus = Gpus {
    number: 1,
    mib: 1500,
};

/// Programs on a simulated driver, and a directory for dumps.
struct Stage {
    environment: TestEnvironment,
    folder: TempDir,
}

impl Stage {
    fn set(environment: Option<TestEnvironment>) -> Option<Self> {
        Some(Self {
            environment: environment?,
            folder: tempfile::tempdir().expect("a folder"),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Settings of the simulated driver for memprobe and for processes that it counts.
    fn on_driver(&self, command: &mut Command, gpus: Gpus) {
        let shared = self.path("shared");
        std::fs::create_dir_all(&shared).expect("a folder");
        command
            .env("CUDASIM_SHARED", shared)
            .env("CUDASIM_DEVICES", gpus.number.to_string())
            .env("CUDASIM_MEMORY", format!("{}m", gpus.mib));
    }

    fn watch(&self, arguments: &[&str]) -> Background {
        self.watch_on(ONE_GPU, arguments)
    }

    fn watch_on(&self, gpus: Gpus, arguments: &[&str]) -> Background {
        let mut command = self.environment.memprobe();
        self.environment.pytorch().settle(&mut command);
        self.on_driver(&mut command, gpus);
        if let Some(folder) = self.environment.pytorch().simulated_libraries() {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command
            .arg("watch")
            .args(PATIENT)
            .arg("--dir")
            .arg(self.path("dumps"))
            .args(arguments);
        let mut watch = Background::start(&mut command);
        watch.wait_for("memprobe: watching ");
        watch
    }

    /// Words that start a program with 512 MiB, which the driver of memprobe does not count.
    fn program(&self, arguments: &[&str]) -> String {
        let python = self.environment.pytorch().python().display().to_string();
        let words = arguments.join(" ");
        format!("env CUDASIM_SHARED= CUDASIM_MEMORY=512m {python} {words}")
    }

    /// Holds memory of each GPU.
    fn hold(&self, gpus: Gpus, mib: u64) -> Background {
        let mut command = self.environment.pytorch().command();
        self.on_driver(&mut command, gpus);
        command.args(["hold.py", "--mib", &mib.to_string()]);
        command.args(["--devices", &gpus.number.to_string()]);
        let mut holder = Background::start(&mut command);
        holder.wait_for("READY");
        holder
    }

    /// Writes a program for `--on-oom` that appends what it gets to a file.
    fn hook(&self) -> (PathBuf, PathBuf) {
        let (program, log) = (self.path("hook.sh"), self.path("hook.log"));
        let line = "echo \"$MEMPROBE_CAUSE $MEMPROBE_PID $1 $MEMPROBE_DUMP\"";
        let text = format!("#!/bin/sh\n{line} >> {}\n", log.display());
        std::fs::write(&program, text).expect("the program is written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("it can be run");
        (program, log)
    }

    fn dumps(&self, prefix: &str) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.path("dumps")) else {
            return Vec::new();
        };
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_dump = |path: &PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with(prefix) && name.ends_with(".mprb")
        };
        paths.filter(is_dump).collect()
    }

    fn explained(&self, dump: &Path) -> Value {
        let dump = dump.display().to_string();
        let output = self
            .environment
            .run(&["explain", &dump, "--format", "json"])
            .succeeded();
        serde_json::from_str(&output.stdout).expect("it is JSON")
    }
}

/// The failed request of the device that the page begins with.
fn failed(document: &Value) -> &Value {
    &document["devices"][0]["failed_request"]
}

/// Causes of `out_of_memory.py`, with the MiB of the request that fails.
const CAUSES: [(&str, u64); 6] = [
    ("too_large", 4096),
    ("growth", 12),
    ("fragmentation", 60),
    ("cached_elsewhere", 300),
    ("another_process", 500),
    ("asleep", 120),
];

/// Callers of `oom_callers.py`.
const CALLERS: [&str; 5] = ["uncaught", "caught", "thread", "worker", "rank"];

/// A GPU for each caller, and for each rank.
const GPUS_OF_CALLERS: Gpus = Gpus {
    number: 10,
    mib: 720,
};

/// Memory of another process on each of them, which takes 2 MiB more now and then. The simulated driver leaves 512 to a
/// program.
const HELD_BY_ANOTHER: u64 = 200;

/// Process and device of a failed request, as the program prints them.
type FailedOn = (u64, Option<u64>);

/// Words of the lines that begin with one.
fn lines_of<'a>(printed: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let lines = printed.lines().map(|line| line.split(' ').collect());
    lines
        .filter(|words: &Vec<&str>| words[0] == first)
        .collect()
}

/// Errors of a run: what failed where, in order of the dumps of a process.
fn cases(printed: &str) -> BTreeMap<FailedOn, Vec<(String, String)>> {
    let mut cases: BTreeMap<FailedOn, Vec<_>> = BTreeMap::new();
    for words in lines_of(printed, "CASE") {
        let [_, caller, cause, pid, device] = words[..] else {
            panic!("{words:?}");
        };
        let key = (pid.parse().expect("a PID"), device.parse().ok());
        let case = (caller.to_owned(), cause.to_owned());
        cases.entry(key).or_default().push(case);
    }
    cases
}

/// Checks what the page about a dump says of its cause.
fn check_evidence(cause: &str, document: &Value, holder: u32) {
    let failed = failed(document);
    let mib = |key: &str| failed[key].as_u64().map(|bytes| bytes / MIB);
    let hole = mib("largest_hole");
    match cause {
        "growth" => assert!(mib("growing_bytes") > Some(200), "{failed}"),
        "fragmentation" => assert!(hole < Some(60), "{failed}"),
        "cached_elsewhere" => assert!(hole >= Some(300), "{failed}"),
        "another_process" => {
            let other = &failed["other_processes"][0];
            assert_eq!(other["pid"].as_u64(), Some(holder.into()), "{failed}");
            let bytes = other["bytes"].as_u64().expect("bytes");
            assert!(bytes >= HELD_BY_ANOTHER * MIB, "{failed}");
        }
        "asleep" => {
            // Each of the two blocks has a segment of its own. The hole in the pool sleeps too.
            assert_eq!(mib("asleep_bytes"), Some(190), "{failed}");
            assert_eq!(failed["largest_hole"], 0, "{failed}");
            let line = failed["asleep_line"].as_str().expect("a line");
            assert!(line.starts_with("out_of_memory.py:"), "{failed}");
            let verdict = document["verdict"]["text"].as_str().expect("a verdict");
            assert!(
                verdict.contains("190.00 MiB that was given back"),
                "{verdict}"
            );
        }
        _ => {}
    }
}

/// Checks the page about a dump: the line that asked, and every live byte with its line.
fn check_page(cause: &str, document: &Value, holder: u32) {
    assert_eq!(document["verdict"]["id"], "out_of_memory", "{document}");
    let failed = failed(document);
    let size = CAUSES.iter().find(|(of, _)| *of == cause).expect("one").1;
    assert_eq!(failed["bytes"], size * MIB, "{cause}: {failed}");
    let line = failed["line"].as_str().expect("a line");
    assert!(
        line.starts_with("out_of_memory.py:") && line.ends_with(" hold"),
        "{cause}: {failed}"
    );
    let device = &document["devices"][0];
    let owners = device["owners"].as_array().expect("owners").iter();
    let sum: u64 = owners.filter_map(|owner| owner["bytes"].as_u64()).sum();
    assert_eq!(device["allocated"], sum, "{cause}: {document}");
    check_evidence(cause, document, holder);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn each_cause_is_named_for_each_caller_before_its_process_ends() {
    let Some(stage) = Stage::set(TestEnvironment::take()) else {
        return;
    };
    library_of_process(stage.folder.path(), "sleeping.c", "libsleeping.so");
    let holder = stage.hold(GPUS_OF_CALLERS, HELD_BY_ANOTHER);
    let (hook, log) = stage.hook();
    let python = stage.environment.pytorch().python().display().to_string();
    let program = format!(
        "oom_callers.py --dumped {} --pools {}",
        log.display(),
        stage.path("libsleeping.so").display()
    );
    let ranks = CAUSES.len();
    let torchrun = format!("-m torch.distributed.run --standalone --nproc-per-node {ranks}");
    let script = format!(
        "export CUDASIM_MEMORY=512m; {python} {program} & {python} {torchrun} {program}; wait"
    );
    let hook = hook.display().to_string();
    // The cause needs no names, whose reading takes long in many processes at once.
    let options = ["--cooldown", "0s", "--max-overhead", "off", "--no-names"];
    let command = ["--on-oom", &hook, "--", "sh", "-c", &script];
    let watched = stage.watch_on(GPUS_OF_CALLERS, &[&options[..], &command].concat());
    let watched = watched.finish();
    let printed = format!("{}\n{}", watched.stdout, watched.stderr);
    let mut cases = cases(&printed);
    let log = std::fs::read_to_string(log).expect("the program of --on-oom ran");
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    // The program of --on-oom got each dump once, with its cause.
    for line in log.lines() {
        let [named, pid, argument, dump] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        assert_eq!(argument, dump);
        let document = stage.explained(Path::new(dump));
        let key = (
            pid.parse().expect("a PID"),
            document["devices"][0]["device"].as_u64(),
        );
        let of_process = cases
            .get_mut(&key)
            .unwrap_or_else(|| panic!("{key:?}: {printed}"));
        let (caller, cause) = of_process.remove(0);
        if named != cause || failed(&document)["cause"] != cause {
            wrong.push(format!(
                "{caller}: {named} instead of {cause}: {}",
                document["verdict"]
            ));
            continue;
        }
        check_page(&cause, &document, holder.pid());
        seen.insert((caller, cause));
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{printed}");
    let pairs = CALLERS.iter().flat_map(|caller| {
        let causes = CAUSES.iter().map(|(cause, _)| (*cause).to_owned());
        causes.map(|cause| ((*caller).to_owned(), cause))
    });
    assert_eq!(seen, pairs.collect(), "{printed}");
    assert_eq!(stage.dumps("memprobe-oom-").len(), seen.len(), "{printed}");
    assert_eq!(lines_of(&printed, "SAVED").len(), seen.len(), "{printed}");
    let ended = lines_of(&printed, "ENDED");
    assert_eq!(ended.len(), CAUSES.len(), "{printed}");
    assert!(ended.iter().all(|words| words[2] != "0"), "{ended:?}");
}

#[test]
fn a_caught_error_has_its_dump_while_the_process_runs_on_and_others_are_counted() {
    let Some(stage) = Stage::set(TestEnvironment::take()) else {
        return;
    };
    let end = stage.path("end");
    let words = [
        "out_of_memory.py",
        "--cause",
        "too_large",
        "--catch",
        "1000",
        "--until",
    ];
    let end_words = end.display().to_string();
    let program = stage.program(&[&words[..], &[&*end_words]].concat());
    let mut watch = stage.watch(&["--max-overhead", "off", "--", "sh", "-c", &program]);
    watch.wait_for("CAUGHT 1000");
    let dump = wait_until("a dump", || stage.dumps("memprobe-oom-").pop());
    watch.wait_for("memprobe: saved ");
    std::fs::write(&end, "").expect("the file is written");
    let watched = watch.finish().succeeded();
    assert!(
        watched.stderr.contains("999 more out-of-memory errors"),
        "{}",
        watched.stderr
    );
    assert_eq!(stage.dumps("memprobe-oom-").len(), 1);
    let document = stage.explained(&dump);
    assert_eq!(failed(&document)["cause"], "too_large", "{document}");
    // It could be read while the process went on.
    let notes = document["notes"].to_string();
    assert!(!notes.contains("keeps memory alive"), "{notes}");
    for words in [
        &["report"][..],
        &["report", "--by", "segment", "--at", "oom"],
    ] {
        let dump = dump.display().to_string();
        let report = stage
            .environment
            .run(&[words, &[&*dump]].concat())
            .succeeded();
        assert!(report.stdout.contains("cuda:0"), "{}", report.stdout);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn dumps_without_a_cooldown_stay_within_the_limit_of_the_directory() {
    let Some(stage) = Stage::set(TestEnvironment::take()) else {
        return;
    };
    let words = [
        "out_of_memory.py",
        "--cause",
        "too_large",
        "--catch",
        "40",
        "--pause",
        "0.1",
    ];
    let program = stage.program(&words);
    let limit = 8 << 10;
    let options = [
        "--cooldown",
        "0s",
        "--max-size",
        "8KiB",
        "--no-names",
        "--",
        "sh",
        "-c",
    ];
    let watched = stage.watch(&[&options[..], &[&*program]].concat()).finish();
    let printed = watched.succeeded().stderr;
    let saved = printed.matches("memprobe: saved ").count();
    let dumps = stage.dumps("memprobe-");
    let sizes = dumps
        .iter()
        .map(|dump| std::fs::metadata(dump).expect("a file").len());
    let sum: u64 = sizes.sum();
    assert!(sum <= limit, "{sum} bytes in {dumps:?}");
    assert!(
        saved > dumps.len() && !dumps.is_empty(),
        "{saved} saved, {dumps:?} left"
    );
}

#[test]
fn a_dump_on_request_has_what_is_live() {
    let Some(stage) = Stage::set(TestEnvironment::take_alone()) else {
        return;
    };
    let refused = stage.environment.run(&["watch", "--dump"]);
    let error = refused.one_clear_error();
    assert!(error.contains("no `memprobe watch` runs"), "{error}");
    let holder = stage.hold(ONE_GPU, 96);
    let mut watch = stage.watch(&["--pid", &holder.pid().to_string(), "--no-names"]);
    let dump = wait_until("a dump", || {
        stage.environment.run(&["watch", "--dump"]).succeeded();
        std::thread::sleep(std::time::Duration::from_millis(500));
        stage.dumps("memprobe-dump-").pop()
    });
    watch.wait_for("memprobe: saved ");
    let document = stage.explained(&dump);
    let device = &document["devices"][0];
    assert!(device["allocated"].as_u64() >= Some(96 * MIB), "{document}");
    assert!(device["failed_request"].is_null(), "{document}");
    assert_eq!(device["gpu_total"].as_u64(), Some(1500 * MIB), "{document}");
}

/// Events of a dump with an action.
fn events_of(stage: &Stage, dump: &Path, action: &str) -> usize {
    let dump = dump.display().to_string();
    let words = ["report", &dump, "--by", "event", "--format", "jsonl"];
    let events = parse_events(&stage.environment.run(&words).succeeded().stdout);
    events.iter().filter(|event| event.action == action).count()
}

#[test]
fn a_library_that_gets_no_memory_of_cuda_has_a_dump_with_its_line() {
    let Some(stage) = Stage::set(TestEnvironment::take()) else {
        return;
    };
    let library = pluggable_allocator(stage.folder.path());
    let library = library.display().to_string();
    let words = ["cuda_failures.py", "--library", &library];
    let own = |more: &[&str]| stage.program(&[&words[..], more].concat());
    let programs = [
        own(&["--by", "main"]),
        own(&["--by", "thread"]),
        own(&["--by", "main", "--allocator"]),
    ];
    let script = format!("{} & wait", programs.join(" & "));
    let options = ["--max-overhead", "off", "--", "sh", "-c", &script];
    let watched = stage.watch(&options).finish();
    let printed = format!("{}{}", watched.stdout, watched.stderr);
    let dumps = stage.dumps("memprobe-oom-");
    assert_eq!(dumps.len(), programs.len(), "{printed}");
    for dump in &dumps {
        let document = stage.explained(dump);
        let failed = failed(&document);
        assert_eq!(document["verdict"]["id"], "out_of_memory", "{document}");
        if document["command"].to_string().contains("--allocator") {
            // Its record may be there before the library's failure is an event: the dump may be about either.
            assert!(events_of(&stage, dump, "cuda_oom") == 1, "{printed}");
            assert!(events_of(&stage, dump, "oom") <= 1, "{printed}");
            continue;
        }
        assert_eq!(failed["function"], "cudaMalloc", "{document}");
        let called_by = failed["library"].as_str().expect("a library");
        assert!(called_by.ends_with("libpluggable.so"), "{failed}");
        let line = failed["line"].as_str().expect("a line");
        assert!(
            line.starts_with("cuda_failures.py:") && line.ends_with(" ask"),
            "{failed}"
        );
        assert_eq!(failed["bytes"].as_u64(), Some(4096 * MIB), "{failed}");
        // The failure that the caching allocator handled on its own is none.
        assert_eq!(events_of(&stage, dump, "cuda_oom"), 1, "{printed}");
        assert_eq!(events_of(&stage, dump, "oom"), 0, "{printed}");
    }
    assert!(
        printed.contains("1 more out-of-memory error since its last dump"),
        "the allocator's own error is counted once: {printed}"
    );
}

#[test]
fn a_program_without_pytorch_has_a_dump_too() {
    let Some(stage) = Stage::set(TestEnvironment::take()) else {
        return;
    };
    let cuda = Cuda::build(Entries::Push);
    let program = cuda.program("no_memory", Cudart::Dynamic, &[]);
    let go = stage.path("go");
    let mut command = Command::new(&program);
    // It goes on until memprobe's probes are there.
    command.arg(&go).arg("1000000");
    let running = start_command(command);
    let pid = running.pid().to_string();
    let watch = stage.watch(&["--max-overhead", "off", "--pid", &pid]);
    std::fs::write(&go, "").expect("the file is written");
    running.finish().succeeded();
    let watched = watch.finish();
    let printed = format!("{}{}", watched.stdout, watched.stderr);
    let dumps = stage.dumps("memprobe-oom-");
    let [dump] = dumps.as_slice() else {
        panic!("{dumps:?}\n{printed}");
    };
    let document = stage.explained(dump);
    let failed = failed(&document);
    let called_by = Path::new(failed["library"].as_str().expect("a library"));
    // The probes may come between any two of its calls, and those of libcuda a moment before those of libcudart.
    match failed["function"].as_str() {
        Some("cudaMalloc" | "cudaMallocPitch" | "cuMemCreate") => {
            assert_eq!(called_by, program, "{document}");
        }
        Some("cuMemAlloc_v2" | "cuMemAllocPitch_v2") => {
            assert!(called_by.ends_with("libcudart.so.13"), "{document}");
        }
        other => panic!("{other:?}: {document}"),
    }
    assert_eq!(failed["bytes"].as_u64(), Some(1 << 50), "{document}");
    // Its device is unknown if the process had it before memprobe came.
    let cause = match document["devices"][0]["gpu_total"].is_null() {
        true => "unknown",
        false => "too_large",
    };
    assert_eq!(failed["cause"], cause, "{document}");
    assert!(
        printed.contains("more out-of-memory errors since its last dump"),
        "{printed}"
    );
    assert!(
        printed.contains("failed calls of CUDA are not recorded"),
        "{printed}"
    );
}

#[test]
fn a_dump_asked_for_while_the_probes_are_off_has_the_blocks_of_its_moment() {
    let Some(stage) = Stage::set(TestEnvironment::take()) else {
        return;
    };
    let mut command = stage.environment.pytorch().command();
    command.args([
        "rush_checkpoints.py",
        "--checkpoints",
        "1",
        "--seconds",
        "3",
    ]);
    command.arg("--folder").arg(stage.folder.path());
    let mut rush = Background::start(&mut command);
    rush.wait_for("ready");
    let pid = rush.pid().to_string();
    let options = ["--no-names", "--max-overhead", "0.1%", "--pid", &pid];
    let mut watch = stage.watch(&options);
    std::fs::write(stage.path("go-0"), "").expect("written");
    let truth: Value = wait_until("the checkpoint", || {
        let text = std::fs::read(stage.path("checkpoint-1.json")).ok()?;
        Some(serde_json::from_slice(&text).expect("a checkpoint"))
    });
    // Nearly all of the rush was without probes, which stay off for as long as half a minute.
    watch.signal(Signal::USR1);
    watch.wait_for("memprobe: saved ");
    let dumps = stage.dumps("memprobe-dump-");
    let report = stage.environment.report(&dumps[0]);
    let device = &report["devices"][0];
    for total in ["allocated", "reserved", "peak_allocated"] {
        assert_eq!(device[total], truth[total], "{total}: {report}");
    }
    assert_eq!(device["live_blocks"], truth["blocks"], "{report}");
    assert_eq!(device["unaccounted"], 0, "{report}");
    assert!(report["budget"]["pauses"].as_u64() > Some(0), "{report}");
    let unseen = device["lines"].to_string();
    assert!(unseen.contains("probes were off"), "{report}");
    watch.signal(Signal::INT);
    watch.finish().succeeded();
    std::fs::write(stage.path("go-1"), "").expect("written");
    rush.finish().succeeded();
}

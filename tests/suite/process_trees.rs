//! Recordings of a process and all its descendants, from first allocation to end.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memprobe_tests::bpf::{self, PROCESS_BYTES};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::{Background, children, wait_until};
use memprobe_tests::programs::{Family, Ledger};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn fifty_processes_that_start_allocate_fork_and_die_are_exact_and_leave_nothing() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let family = Family::build();
    let root = Background::start(&mut family.command(&["churn", "400", "50", "300"]));
    let run = family.path("run/");
    // Large enough for all records, however slowly memprobe reads on this machine.
    let options = ["--children", "--buffer-size", "256MiB"];
    let mut recording = environment.record_unready(root.pid(), &run, &options);
    recording.memprobe.wait_for("recording PID");
    let memprobe = recording.memprobe.pid();
    let held = bpf::held_by(memprobe);
    wait_until("the end of the churn", || {
        family.path("ledgers/over").exists().then_some(())
    });

    // Only the root is left, so only its entries and files remain.
    wait_until("the kernel's side forgets those that ended", || {
        (bpf::entries(memprobe, |bytes| bytes == PROCESS_BYTES) == 1).then_some(())
    });
    let threads = bpf::entries(memprobe, |bytes| bytes > 4096);
    assert!(threads <= 1, "{threads} threads are remembered");
    wait_until("memprobe lets go of those that ended", || {
        let recordings = open_recordings(memprobe, &run);
        let processes = open_files(memprobe, "anon_inode:[pidfd]");
        (recordings == 0 && processes <= 1).then_some(())
    });
    assert_eq!(bpf::held_by(memprobe), held, "programs, maps or links leak");

    fs::write(family.path("ledgers/leave"), "").expect("written");
    let printed = recording.finish();
    root.finish().succeeded();
    assert_eq!(lost(&printed.stderr), 0, "{}", printed.stderr);
    let ledgers = family.ledgers();
    assert_eq!(ledgers.len(), 800, "the churn itself went wrong");
    assert_recorded(&environment.report(&run), &ledgers);
    println!("{} processes were exact to the byte", ledgers.len());
}

/// Counts the files of a directory that a process has open.
fn open_recordings(pid: u32, run: &Path) -> usize {
    open_files(pid, &run.to_string_lossy())
}

fn open_files(pid: u32, beginning: &str) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is there");
    files
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter(|file| file.to_string_lossy().starts_with(beginning))
        .count()
}

/// Asserts that each process has one recording, equal to its own account, and that no other
/// recording exists.
fn assert_recorded(report: &Value, ledgers: &[Ledger]) {
    let recordings = report["recordings"].as_array().expect("recordings");
    assert_eq!(recordings.len(), ledgers.len(), "recordings");
    for ledger in ledgers {
        let of_it: Vec<_> = recordings
            .iter()
            .filter(|recording| recording["pid"] == ledger.pid)
            .collect();
        let [recording] = of_it.as_slice() else {
            panic!("{} recordings of {ledger:?}", of_it.len());
        };
        // Plus one segment.
        assert_eq!(
            recording["events"],
            ledger.events + 1,
            "{ledger:?}: {recording}"
        );
        let device = &recording["devices"][0];
        assert_eq!(
            device["allocated"], ledger.allocated,
            "{ledger:?}: {recording}"
        );
        assert_eq!(
            device["reserved"], ledger.reserved,
            "{ledger:?}: {recording}"
        );
        assert_eq!(device["before_attach"], 0, "{ledger:?}: {recording}");
        assert_eq!(recording["disagreements"], 0, "{ledger:?}: {recording}");
        assert_eq!(recording["end"], "target exited", "{ledger:?}: {recording}");
    }
}

#[test]
fn eight_ranks_at_once_are_exact() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let family = Family::build();
    let run = family.path("run/");
    let mut command = environment.memprobe();
    // Large enough for all records, however slowly memprobe reads on this machine.
    command.args(["record", "--buffer-size", "256MiB", "-o"]);
    command.arg(&run).arg("--").arg(family.path("family"));
    command.arg(family.path("ledgers"));
    command.args(["ranks", "8", "40000", "25000"]);
    let printed = Background::start(&mut command).finish().succeeded();
    assert_eq!(lost(&printed.stderr), 0, "{}", printed.stderr);
    let ledgers = family.ledgers();
    assert_eq!(ledgers.len(), 8);
    assert_recorded(&environment.report(&run), &ledgers);
}

#[test]
fn a_second_copy_of_the_libraries_in_the_same_process_is_probed_too() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let family = Family::build();
    let (allocator, runtime) = (family.copy("libc10.so"), family.copy("libcudart.so.13"));
    let file = family.path("trace.json");
    let mut command = environment.memprobe();
    command.arg("record").arg("-o").arg(&file).arg("--");
    command
        .arg(family.path("family"))
        .arg(family.path("ledgers"));
    command.arg("copy").arg(allocator).arg(runtime).arg("1000");
    Background::start(&mut command).finish().succeeded();
    let ledgers = family.ledgers();
    let report = environment.report(&file);
    assert_eq!(report["events"], ledgers[0].events + 1, "{report}");
    assert_eq!(report["devices"][0]["allocated"], ledgers[0].allocated);
    assert_eq!(report["disagreements"], 0);
}

#[test]
fn a_library_that_two_containers_share_is_probed_once() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let family = Family::build();
    let layers = family.path("layers");
    let Some(_mounted) = Mounted::layers(&layers) else {
        println!("skipped: overlayfs cannot be mounted here");
        return;
    };
    for name in ["family", "libc10.so", "libcudart.so.13"] {
        fs::copy(family.path(name), layers.join("image").join(name)).expect("copied");
    }
    let Some(_containers) = Mounted::containers(&layers) else {
        println!("skipped: overlayfs cannot be mounted here");
        return;
    };
    let ledgers = family.path("ledgers");
    let one = |number: u32| {
        let program = layers.join(format!("{number}/root/family"));
        format!(
            "{} {} ranks 1 500 50000",
            program.display(),
            ledgers.display()
        )
    };
    let run = family.path("run/");
    let script = format!("{} & {} & wait", one(1), one(2));
    let printed = record(
        &environment,
        &run,
        Command::new("bash").args(["-c", &script]),
    );
    assert!(printed.status.success(), "{}", printed.stderr);
    let ledgers = family.ledgers();
    assert_eq!(ledgers.len(), 2, "{}", printed.stderr);
    assert_recorded(&environment.report(&run), &ledgers);
}

/// Mounts, removed on drop.
struct Mounted(Vec<std::path::PathBuf>);

impl Mounted {
    /// Mounts a file system that supports overlays, with a folder for an image.
    fn layers(at: &Path) -> Option<Self> {
        fs::create_dir(at).expect("made");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs"])
            .arg(at)
            .status();
        mount.ok()?.success().then_some(())?;
        let mounted = Self(vec![at.to_owned()]);
        fs::create_dir(at.join("image")).expect("made");
        Some(mounted)
    }

    /// Mounts two containers made from the image.
    fn containers(layers: &Path) -> Option<Self> {
        let mut mounted = Self(Vec::new());
        for number in ["1", "2"] {
            let own = |name: &str| layers.join(number).join(name);
            for name in ["upper", "work", "root"] {
                fs::create_dir_all(own(name)).expect("made");
            }
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                layers.join("image").display(),
                own("upper").display(),
                own("work").display()
            );
            let mut mount = Command::new("mount");
            mount
                .args(["-t", "overlay", "overlay", "-o", &options])
                .arg(own("root"));
            mount.status().ok()?.success().then_some(())?;
            mounted.0.push(own("root"));
        }
        Some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            // A failed unmount does not fail the test.
            let _ = Command::new("umount").arg(at).status();
        }
    }
}

#[test]
fn events_before_the_probes_were_placed_are_reported_as_missing() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    // The process allocates while the probes of its second copy of the libraries are placed. That
    // memprobe comes first is possible, but not five times.
    let came_late = (0..5).any(|_| missed_bytes_are_reported(&environment));
    assert!(came_late, "memprobe never came late: nothing was tried");
}

/// Records a process whose libraries memprobe has not seen before. Returns true if events came
/// before the probes, which the recording and the messages must then say.
fn missed_bytes_are_reported(environment: &TestEnvironment) -> bool {
    let family = Family::build();
    let (allocator, runtime) = (family.copy("libc10.so"), family.copy("libcudart.so.13"));
    let run = family.path("run/");
    let mut command = environment.memprobe();
    command
        .arg("record")
        .arg("-o")
        .arg(&run)
        .args(["--duration", "2s"]);
    command
        .arg("--")
        .arg(family.path("family"))
        .arg(family.path("ledgers"));
    command
        .arg("hasty")
        .arg(allocator)
        .arg(runtime)
        .arg("1000000000");
    let mut hasty = Background::start(&mut command);
    let said = hasty.wait_for("PID");
    let pid = index(&run, &mut hasty);
    let printed = hasty.finish();
    kill(pid);
    let recordings = environment.report(&run);
    let before = recordings["recordings"][0]["devices"][0]["before_attach"].as_u64();
    let came_late = before.expect("a number of bytes") > 0;
    assert_eq!(
        printed.stderr.contains("before the probes were in place"),
        came_late,
        "{before:?} bytes came before: {said}\n{}",
        printed.stderr
    );
    came_late
}

/// Returns the PID of the first process in a run's index, once there is one.
fn index(run: &Path, memprobe: &mut Background) -> u32 {
    wait_until("an index", || {
        let _ = memprobe.has_ended();
        let text = fs::read(run.join("index.json")).ok()?;
        let index: Value = serde_json::from_slice(&text).ok()?;
        let pid = index["processes"][0]["pid"].as_u64()?;
        u32::try_from(pid).ok()
    })
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // The process may have ended.
    let _ = rustix::process::kill_process(pid.expect("a PID"), Signal::KILL);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_command_is_paused_while_its_probes_are_placed_and_loses_no_allocation() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace.json");
        let program = "import torch; kept = torch.empty(300, device='cuda')";
        let mut memprobe = environment.memprobe();
        memprobe.arg("record").arg("-o").arg(&file).arg("--");
        memprobe.arg(pytorch.python()).args(["-c", program]);
        pytorch.settle(&mut memprobe);
        let mut memprobe = Background::start(&mut memprobe);
        let mut was_paused = false;
        while !memprobe.has_ended() {
            was_paused |= children(memprobe.pid()).into_iter().any(is_traced);
            std::thread::sleep(Duration::from_millis(1));
        }
        memprobe.finish().succeeded();
        assert!(was_paused, "it ran on while its probes were placed");
        let device = &environment.report(&file)["devices"][0];
        assert_eq!(device["before_attach"], 0, "{device}");
        assert_eq!(device["peak_allocated"], 1536, "{device}");
    }
}

/// True if a process is paused, by memprobe or a debugger (proc_pid_status(5)).
fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn each_rank_of_torchrun_is_recorded_from_its_first_allocation() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run/");
        let words = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "ranks.py",
        ];
        let printed = record(&environment, &run, pytorch.command().args(words));
        assert!(printed.status.success(), "{}", printed.stderr);
        let report = environment.report(&run);
        let recordings = report["recordings"].as_array().expect("recordings");
        assert_eq!(recordings.len(), 2, "{}", printed.stderr);
        for (rank, recording) in recordings.iter().enumerate() {
            let name = recording["recording"].as_str().expect("a name");
            assert!(name.starts_with(&format!("rank{rank}-")), "{name}");
            assert!(name.ends_with("-ranks.mprb"), "{name}");
            assert_holds(recording, &printed.stdout);
            let line = &recording["devices"][0]["lines"][0];
            assert_eq!(line["line"], 9, "{recording}");
        }
        assert_tables(&environment, &run, recordings);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn processes_made_in_every_way_are_each_recorded_from_their_first_allocation() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run/");
        let printed = record(&environment, &run, pytorch.command().arg("generations.py"));
        assert_eq!(printed.status.code(), Some(4), "{}", printed.stderr);
        let report = environment.report(&run);
        let recordings = report["recordings"].as_array().expect("recordings");
        let announced = printed
            .stdout
            .lines()
            .filter(|line| line.starts_with("pid "));
        let (out, announced) = (&printed.stdout, announced.count());
        assert_eq!(recordings.len(), announced, "{out}{}", printed.stderr);
        for recording in recordings {
            assert_eq!(recording["devices"][0]["before_attach"], 0, "{recording}");
            let peak = &recording["devices"][0]["peak_allocated"];
            let pid = &recording["pid"];
            let line = format!("pid {pid} allocated {peak}\n");
            assert!(printed.stdout.contains(&line), "{line}{}", printed.stdout);
            let lines = recording["devices"][0]["lines"].as_array().expect("lines");
            let [line] = lines.as_slice() else {
                panic!("one line allocates: {recording}");
            };
            let file = line["file"].as_str().expect("a file");
            assert!(
                file == "<string>" || file.ends_with("generations.py"),
                "{file}"
            );
        }
        // A process forked after CUDA was used is known, but holds nothing.
        assert!(
            printed.stderr.contains("CUDA does not survive a fork"),
            "{}",
            printed.stderr
        );
    }
}

/// Records a command to a directory, to its end.
fn record(
    environment: &TestEnvironment,
    run: &Path,
    command: &mut Command,
) -> memprobe_tests::process::Finished {
    let mut memprobe = environment.memprobe();
    memprobe.arg("record").arg("-o").arg(run).arg("--");
    memprobe.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => memprobe.env(name, value),
            None => memprobe.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        memprobe.current_dir(folder);
    }
    let printed = Background::start(&mut memprobe).finish();
    assert_eq!(lost(&printed.stderr), 0, "{}", printed.stderr);
    printed
}

/// Asserts that every table of a directory has the part of each of these recordings.
fn assert_tables(environment: &TestEnvironment, run: &Path, recordings: &[Value]) {
    let run = run.to_str().expect("UTF-8");
    let names = recordings.iter().map(|recording| &recording["recording"]);
    let names = Vec::from_iter(names);
    for by in [
        "peak",
        "module",
        "category",
        "iteration",
        "thread",
        "tensor",
    ] {
        let arguments = ["report", run, "--by", by];
        let text = environment.run(&arguments).succeeded().stdout;
        let json = environment.run(&[&arguments[..], &["--format", "json"]].concat());
        let json: Value = serde_json::from_str(&json.succeeded().stdout).expect("it is JSON");
        let tables = json["recordings"].as_array().expect("recordings");
        for (table, name) in tables.iter().zip(&names) {
            assert_eq!(&table["recording"], *name, "{by}: {table}");
            assert!(
                table.as_object().is_some_and(|table| table.len() > 2),
                "{by}"
            );
            assert!(
                text.contains(name.as_str().expect("a name")),
                "{by}: {text}"
            );
        }
        assert_eq!(tables.len(), names.len(), "{by}");
    }
    for by in ["line", "event", "category"] {
        let rows = |format| {
            let arguments = ["report", run, "--by", by, "--format", format];
            environment.run(&arguments).succeeded().stdout
        };
        let (lines, table) = (rows("jsonl"), rows("csv"));
        let objects = lines.lines().map(|line| {
            let object: Value = serde_json::from_str(line).expect("it is JSON");
            object["recording"].clone()
        });
        let mut found = Vec::from_iter(objects);
        assert_eq!(found.len() + 1, table.lines().count(), "{by}: {table}");
        found.dedup();
        assert_eq!(found.iter().collect::<Vec<_>>(), names, "{by}");
        let mut rows = table.lines();
        assert!(
            rows.next()
                .is_some_and(|keys| keys.starts_with("recording,"))
        );
        let names = lines.lines().zip(rows);
        for (object, row) in names {
            let object: Value = serde_json::from_str(object).expect("it is JSON");
            assert!(
                row.starts_with(&format!("{},", object["recording"])),
                "{row}"
            );
        }
    }
}

/// Asserts that a recording ends with the totals that its process printed.
fn assert_holds(recording: &Value, said: &str) {
    let device = &recording["devices"][0];
    let (pid, allocated) = (&recording["pid"], &device["allocated"]);
    let line = format!("pid {pid} allocated {allocated}\n");
    assert!(said.contains(&line), "{line}{said}");
    assert_eq!(device["before_attach"], 0, "{recording}");
}

#[test]
fn a_file_holds_one_process_and_says_whom_it_leaves_out() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let family = Family::build();
    let file = family.path("trace.json");
    let mut command = environment.memprobe();
    command.arg("record").arg("-o").arg(&file).arg("--");
    command
        .arg(family.path("family"))
        .arg(family.path("ledgers"));
    command.args(["ranks", "2", "1000", "10000"]);
    let printed = Background::start(&mut command).finish().succeeded();
    assert!(
        printed.stderr.contains("not recorded: PID"),
        "{}",
        printed.stderr
    );
    assert!(printed.stderr.contains("-o run/"), "{}", printed.stderr);
    let report = environment.report(&file);
    let ledgers = family.ledgers();
    let ledger = ledgers.iter().find(|ledger| report["pid"] == ledger.pid);
    let ledger = ledger.expect("one of the two");
    assert_eq!(report["events"], ledger.events + 1);
}

#[test]
fn doctor_names_the_limits_of_a_program_without_python() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let family = Family::build();
    // The process waits for probes that are never attached.
    let waiting = Background::start(&mut family.command(&["ranks", "1", "1", "1"]));
    let pid = waiting.pid().to_string();
    let finding = wait_until("its libraries are there", || {
        let printed = environment.run(&["doctor", "--pid", &pid, "--format", "json"]);
        let document: Value = serde_json::from_str(&printed.stdout).expect("it is JSON");
        let findings = document["process"]["findings"].as_array()?.clone();
        let of_python = |finding: &Value| finding["check"] == "python";
        let finding = findings.into_iter().find(of_python)?;
        (finding["level"] != "fail").then_some(finding)
    });
    let found = finding["found"].as_str().expect("words");
    assert!(found.starts_with("it runs no Python"), "{finding}");
}

#[test]
fn a_directory_with_an_earlier_recording_is_not_written_to() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let family = Family::build();
    let run = family.path("run/");
    fs::create_dir(&run).expect("made");
    fs::write(run.join("index.json"), "{}").expect("written");
    let path = run.to_str().expect("UTF-8");
    let error = environment
        .run(&["record", "-o", path, "--", "true"])
        .one_clear_error();
    assert!(error.contains("rm -r"), "{error}");
}

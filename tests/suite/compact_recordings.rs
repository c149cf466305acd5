//! Compact recordings (`.mprb`): their size, a memprobe that is killed, damaged files, and the choice of the format.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::{Background, Finished, wait_until};
use memprobe_tests::workloads::Workload;
use rustix::process::Signal;

/// Most bytes of an event in a recording of a training loop, on average.
const MOST_BYTES: u64 = 16;

/// First bytes of a compact recording.
const MAGIC: &[u8] = b"\x89MPRB\r\n\x1a";

/// First bytes of each frame.
const FRAME: &[u8] = b"\xf7MPF";

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Starts a training loop that runs until the test ends it.
fn training(environment: &TestEnvironment) -> Background {
    let mut command = environment.pytorch().command();
    command.args([
        "steady.py",
        "--seconds",
        "600",
        "--layers",
        "4",
        "--pause",
        "0",
    ]);
    let mut target = Background::start(&mut command);
    target.wait_for("PID ");
    target
}

fn end(target: Background) {
    target.signal(Signal::KILL);
    drop(target.finish());
}

fn report(environment: &TestEnvironment, file: &Path) -> Finished {
    environment.run(&["report", text(file)]).succeeded()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_training_loop_takes_at_most_sixteen_bytes_an_event() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.mprb");
    for (name, more) in [
        ("perceptron", &["--steps", "400"][..]),
        ("transformer", &["--steps", "100"]),
    ] {
        let workload = Workload::named(name).expect("a workload");
        let mut command = environment.memprobe();
        command.args(["record", "-o", text(&file), "--"]);
        command.arg(environment.pytorch().python());
        command.args(workload.command).args(more);
        environment.pytorch().settle(&mut command);
        let printed = Background::start(&mut command).finish().succeeded();
        assert_eq!(lost(&printed.stderr), 0, "{}", printed.stderr);
        let events = environment.report(&file)["events"]
            .as_u64()
            .expect("a count");
        let bytes = fs::metadata(&file).expect("a recording").len();
        println!("{name}: {events} events, {bytes} bytes");
        assert!(events > 10_000, "{name}: only {events} events");
        assert!(
            bytes <= MOST_BYTES * events,
            "{name}: {bytes} bytes of {events} events"
        );
    }
}

#[test]
fn a_killed_memprobe_leaves_a_recording_that_can_be_read() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.mprb");
    let target = training(&environment);
    let recording = environment.record(target.pid(), &file, &[]);
    // It flushes once a second. The first frames are the header and definitions.
    let mut size = 8_000;
    for _ in 0..4 {
        let before = size;
        size = wait_until("memprobe writes", || {
            let size = fs::metadata(&file).map_or(0, |file| file.len());
            (size > before).then_some(size)
        });
    }
    recording.memprobe.signal(Signal::KILL);
    drop(recording.memprobe.finish());
    let printed = report(&environment, &file).stdout;
    assert!(
        printed.contains("the end of the recording is missing"),
        "{printed}"
    );
    assert!(
        printed.contains("steady.py:") && !printed.contains("disagreed"),
        "{printed}"
    );
    assert!(!printed.contains("damaged"), "{printed}");
    let whole = environment.report(&file);
    assert_eq!(
        (&whole["truncated"], &whole["disagreements"]),
        (&true.into(), &0.into())
    );
    assert!(whole["events"].as_u64() > Some(1000), "{whole}");

    // The same without a part of the frame before the last one.
    let mut bytes = fs::read(&file).expect("a recording");
    let last = memchr::memmem::rfind(&bytes, FRAME).expect("frames");
    bytes.drain(last - 150..last - 50);
    let damaged = folder.path().join("damaged.mprb");
    fs::write(&damaged, bytes).expect("written");
    let printed = report(&environment, &damaged).stdout;
    assert!(
        printed.contains("the recording is damaged in 1 place"),
        "{printed}"
    );
    assert!(printed.contains("steady.py:"), "{printed}");
    end(target);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_name_chooses_the_format_unless_an_option_does() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let target = training(&environment);
    let pid = target.pid().to_string();
    let record = |output: &str, options: &[&str]| {
        let piped = folder.path().join("piped");
        let mut command = environment.memprobe();
        command.args(["record", "-d", "300ms", "-o", output, "--pid", &pid]);
        command
            .args(options)
            .stdout(File::create(&piped).expect("a file"));
        command.stderr(Stdio::null());
        assert!(command.status().expect("it runs").success(), "{output}");
        fs::read(piped).expect("read")
    };
    let path = |name: &str| folder.path().join(name);
    let begins = |name: &str| fs::read(path(name)).expect("a recording")[..8].to_vec();
    record(text(&path("trace")), &[]);
    assert_eq!(begins("trace"), MAGIC);
    record(text(&path("trace.json")), &[]);
    assert!(begins("trace.json").starts_with(b"[\n"));
    record(text(&path("other.json")), &["--format", "mprb"]);
    assert_eq!(begins("other.json"), MAGIC);
    assert!(record("-", &[]).starts_with(MAGIC));
    assert!(record("-", &["--format", "json"]).starts_with(b"[\n"));

    // Both formats in one directory are reported together.
    record(text(&path("run/")), &[]);
    let of_directory = |ending: &str| {
        let files = fs::read_dir(path("run")).expect("a directory");
        let files = files.map(|file| file.expect("an entry").path());
        let files = files.filter(|file| file.extension().is_some_and(|known| known == ending));
        files.filter(|file| !file.ends_with("index.json")).count()
    };
    assert_eq!((of_directory("mprb"), of_directory("json")), (1, 0));
    fs::copy(path("trace.json"), path("run/1-other.json")).expect("copied");
    let printed = report(&environment, &path("run")).stdout;
    assert!(
        printed.matches("steady.py --seconds").count() >= 2,
        "{printed}"
    );
    end(target);
}

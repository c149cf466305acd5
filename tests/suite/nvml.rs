//! NVML answers differently from driver to driver: `memprobe top` shows right numbers, or why there
//! are none.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use memprobe_tests::cuda_programs::{Cuda, Cudart, Entries};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::terminal::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Bytes of a simulated device, and what its driver reserves.
const TOTAL: u64 = 16 << 30;
const RESERVED: u64 = TOTAL / 64;

/// Memory of each process of a test, in MiB.
const HELD: [u64; 3] = [96, 64, 32];

/// The library that memprobe finds.
#[derive(Clone, Copy)]
enum Library {
    /// One with every function.
    Current,
    /// One from before R470.
    Old,
}

/// Processes that hold memory, and NVML to ask about them.
struct Stage {
    environment: TestEnvironment,
    cuda: Cuda,
    shared: TempDir,
    held: Vec<Background>,
}

impl Stage {
    fn set() -> Option<Self> {
        let environment = TestEnvironment::alone_without_pytorch()?;
        let cuda = Cuda::build(Entries::Trampolines);
        for (library, options) in [
            (Library::Current, &[][..]),
            (Library::Old, &["-DNVML_OLD"][..]),
        ] {
            cuda.nvml(&folder(&cuda, library), options);
        }
        let program = cuda.program("hold", Cudart::Dynamic, &[]);
        let shared = tempfile::tempdir().expect("a folder");
        let hold = |mib: &u64| {
            let mut command = Command::new(&program);
            command
                .arg(mib.to_string())
                .env("CUDASIM_SHARED", shared.path());
            let mut process = Background::start(&mut command);
            process.wait_for("ready");
            process
        };
        let held = HELD.iter().map(hold).collect();
        Some(Self {
            environment,
            cuda,
            shared,
            held,
        })
    }

    /// Returns a process of a machine with four GPUs that shows these, and allocates now and then.
    fn rank(&self, visible: &str, arguments: &[&str]) -> Background {
        let mut command = Command::new(self.cuda.file("hold-Dynamic"));
        command
            .args(arguments)
            .env("CUDASIM_SHARED", self.shared.path())
            .env("CUDASIM_DEVICES", "4")
            .env("CUDA_VISIBLE_DEVICES", visible);
        let mut process = Background::start(&mut command);
        process.wait_for("ready");
        process
    }

    /// Records a process for a moment; returns the devices of the report.
    fn recorded_devices(&self, process: &Background) -> Value {
        let recording = self.cuda.file(&format!("{}.json", process.pid()));
        let mut record = self.environment.memprobe();
        record
            .env("CUDASIM_SHARED", self.shared.path())
            .env("LD_LIBRARY_PATH", folder(&self.cuda, Library::Current))
            .env("CUDASIM_DEVICES", "4")
            .args(["record", "--duration", "1s", "-o"])
            .arg(&recording)
            .args(["--pid", &process.pid().to_string()]);
        Background::start(&mut record).finish().succeeded();
        let mut report = self.environment.memprobe();
        report.args(["report", "--format", "json"]).arg(&recording);
        let report = Background::start(&mut report).finish().succeeded();
        let mut document: Value = serde_json::from_str(&report.stdout).expect("it is JSON");
        document["devices"].take()
    }

    /// Returns the output of `top --once` with these settings of the simulated NVML.
    fn printed(&self, library: Library, settings: &[(&str, &str)], options: &[&str]) -> String {
        let mut command = self.environment.memprobe();
        command
            .env("CUDASIM_SHARED", self.shared.path())
            .env("LD_LIBRARY_PATH", folder(&self.cuda, library))
            .envs(settings.iter().copied())
            .args(["top", "--once", "--duration", "0s"])
            .args(options);
        Background::start(&mut command).finish().succeeded().stdout
    }

    fn document(&self, library: Library, settings: &[(&str, &str)]) -> Value {
        let printed = self.printed(library, settings, &["--format", "json"]);
        let document: Value = serde_json::from_str(&printed).expect("it is JSON");
        assert!(document["driver"].is_null(), "{document}");
        document
    }

    fn rows<'a>(&self, document: &'a Value) -> Vec<&'a Value> {
        let held = self.held.iter();
        held.map(|process| row(document, process.pid())).collect()
    }

    /// Every process has what it holds, to the byte.
    fn assert_processes(&self, document: &Value) {
        for (row, mib) in self.rows(document).into_iter().zip(HELD) {
            assert_eq!(row["driver"], mib * MIB, "{row}");
            assert!(row["driver_unknown"].is_null(), "{row}");
        }
        assert!(document["gpus"][0]["processes_unknown"].is_null());
    }

    /// The first device has the memory of all, without what the driver reserves.
    fn assert_memory(&self, document: &Value, total: u64) {
        let gpu = &document["gpus"][0];
        assert_eq!(gpu["used"], HELD.iter().sum::<u64>() * MIB, "{gpu}");
        assert_eq!(gpu["total"], total, "{gpu}");
        assert!(gpu["memory_unknown"].is_null(), "{gpu}");
    }
}

fn row(document: &Value, pid: u32) -> &Value {
    let rows = document["processes"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["pid"] == pid);
    row.unwrap_or_else(|| panic!("{pid} has no row: {document}"))
}

fn folder(cuda: &Cuda, library: Library) -> PathBuf {
    match library {
        Library::Current => cuda.file("nvml-current"),
        Library::Old => cuda.file("nvml-old"),
    }
}

#[test]
fn processes_and_memory_are_right_in_each_form() {
    let Some(stage) = Stage::set() else { return };
    for form in ["16", "24", "32"] {
        let document = stage.document(Library::Current, &[("CUDASIM_NVML_FORM", form)]);
        stage.assert_processes(&document);
        stage.assert_memory(&document, TOTAL);
    }
    let document = stage.document(Library::Old, &[]);
    stage.assert_processes(&document);
    stage.assert_memory(&document, TOTAL - RESERVED);
}

#[test]
fn a_form_that_nobody_knows_gives_a_reason_and_no_number() {
    let Some(stage) = Stage::set() else { return };
    let unknown = [("CUDASIM_NVML_FORM", "unknown")];
    let document = stage.document(Library::Current, &unknown);
    let reason = document["gpus"][0]["processes_unknown"].as_str();
    let reason = reason.expect("a reason");
    assert!(
        reason.contains("nvmlDeviceGetComputeRunningProcesses_v3"),
        "{reason}"
    );
    stage.assert_memory(&document, TOTAL);
    for row in stage.rows(&document) {
        assert!(row["driver"].is_null(), "{row}");
        let unknown = row["driver_unknown"].as_str();
        assert!(unknown.is_some_and(|text| text.contains(reason)), "{row}");
    }
    let text = stage.printed(Library::Current, &unknown, &[]);
    let device = text.lines().find(|line| line.starts_with("GPU 0"));
    let says_so = device.is_some_and(|line| line.contains("processes unknown: nvmlDevice"));
    assert!(says_so, "{text}");
}

#[test]
fn unavailable_values_have_a_reason() {
    let Some(stage) = Stage::set() else { return };
    let document = stage.document(Library::Current, &[("CUDASIM_NVML_NA", "memory")]);
    stage.assert_processes(&document);
    let gpu = &document["gpus"][0];
    assert!(gpu["used"].is_null() && gpu["total"].is_null(), "{gpu}");
    let reason = gpu["memory_unknown"].as_str();
    assert!(
        reason.is_some_and(|text| text.contains("share the system's memory")),
        "{gpu}"
    );
    let bytes = [("CUDASIM_NVML_NA", "processes")];
    let document = stage.document(Library::Current, &bytes);
    stage.assert_memory(&document, TOTAL);
    for row in stage.rows(&document) {
        assert!(row["driver"].is_null(), "{row}");
        assert!(row["driver_devices"][0]["bytes"].is_null(), "{row}");
        let unknown = row["driver_unknown"].as_str();
        assert!(unknown.is_some_and(|text| text.contains("[N/A]")), "{row}");
    }
    let text = stage.printed(Library::Current, &bytes, &[]);
    assert!(text.contains("DRIVER is - for 3 processes: "), "{text}");
}

#[test]
fn a_device_in_mig_mode_is_asked_as_a_whole_or_by_its_instances() {
    let Some(stage) = Stage::set() else { return };
    let form = ("CUDASIM_NVML_FORM", "32");
    let mig = ("CUDASIM_MIG", "2");
    let document = stage.document(Library::Current, &[form, mig]);
    stage.assert_processes(&document);
    stage.assert_memory(&document, TOTAL);
    assert!(document["gpus"][0]["mig_devices"].is_null());
    let refuses = ("CUDASIM_MIG_DEVICE", "refuses");
    let document = stage.document(Library::Current, &[form, mig, refuses]);
    stage.assert_processes(&document);
    stage.assert_memory(&document, TOTAL);
    assert_eq!(document["gpus"][0]["mig_devices"], 2);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn clients_of_mps_count_once_and_the_server_has_a_row() {
    let Some(stage) = Stage::set() else { return };
    // Any process that runs: the simulated driver takes it for the server.
    let server = Background::start(Command::new("sleep").arg("600"));
    let pid = server.pid().to_string();
    let settings = [("CUDASIM_NVML_FORM", "16"), ("CUDASIM_MPS", pid.as_str())];
    let document = stage.document(Library::Current, &settings);
    stage.assert_processes(&document);
    let row = row(&document, server.pid());
    assert_eq!(row["driver"], 30 * MIB, "{row}");
    let reason = row["reason"].as_str().expect("a reason");
    assert!(reason.contains("neither Python nor CUDA"), "{row}");
}

#[test]
fn a_listed_process_without_cuda_gets_another_row_when_it_runs_a_program_with_it() {
    let Some(stage) = Stage::set() else { return };
    let gate = stage.cuda.file("gate");
    let mut late = Command::new("sh");
    let script = "until [ -e $0 ]; do sleep 0.1; done; exec $1 16 1";
    late.args(["-c", script])
        .args([&gate, &stage.cuda.file("hold-Dynamic")])
        .env("CUDASIM_SHARED", stage.shared.path());
    let late = Background::start(&mut late);
    // The simulated driver lists it as the server of MPS.
    let pid = late.pid().to_string();
    let mut top = stage.environment.memprobe();
    top.arg("top")
        .env("CUDASIM_SHARED", stage.shared.path())
        .env("CUDASIM_NVML_FORM", "16")
        .env("CUDASIM_MPS", &pid)
        .env("LD_LIBRARY_PATH", folder(&stage.cuda, Library::Current));
    let top = Terminal::start(&mut top);
    let row = |text: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains(&format!(" {pid} root")));
        line.unwrap_or_default().to_owned()
    };
    const REASON: &str = "not probed: it runs neither";
    top.wait_until("the reason of a process without CUDA", |text| {
        row(text).contains(REASON)
    });
    std::fs::write(&gate, "").expect("written");
    top.wait_until("the program with CUDA", |text| {
        let row = row(text);
        row.contains("hold-Dynamic 16") && !row.contains("not probed")
    });
    assert!(top.text().contains("4 probed"), "{}", top.text());
}

#[test]
fn the_memory_of_a_zombie_and_of_nobody_is_shown() {
    let Some(stage) = Stage::set() else { return };
    let program = stage.cuda.file("hold-Dynamic");
    let mut parent = Command::new("sh");
    parent
        .args(["-c", "$0 48 & echo zombie $!; exec sleep 600"])
        .arg(&program)
        .env("CUDASIM_SHARED", stage.shared.path());
    let mut parent = Background::start(&mut parent);
    parent.wait_for("ready");
    let line = parent.wait_for("zombie ");
    let pid: u32 = line[7..].parse().expect("a PID");
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(number.expect("a PID"), Signal::KILL).expect("it runs");
    let document = stage.document(Library::Current, &[]);
    let row = row(&document, pid);
    assert_eq!(row["driver"], 48 * MIB, "{row}");
    assert_eq!(row["command"], "[hold-Dynamic] <defunct>", "{row}");
    let reason = row["reason"].as_str().expect("a reason");
    assert!(reason.contains(&format!("PID {}", parent.pid())), "{row}");
    assert_eq!(document["gpus"][0]["others"], 0, "{document}");
    // The driver counts 256 MiB that it lists no process for.
    let hidden = [("CUDASIM_UNLISTED", "256")];
    let document = stage.document(Library::Current, &hidden);
    assert_eq!(document["gpus"][0]["others"], 256 * MIB, "{document}");
    let text = stage.printed(Library::Current, &hidden, &[]);
    assert!(text.contains("256 MiB of no listed process"), "{text}");
}

#[test]
fn the_actor_or_task_of_a_ray_worker_is_its_command() {
    let Some(stage) = Stage::set() else { return };
    let program = stage.cuda.program("steps", Cudart::Dynamic, &[]);
    let gate = stage.cuda.file("gate");
    let mut worker = Command::new(program);
    worker
        .arg0("ray::IDLE")
        .args(["16", "ray::Trainer.step"])
        .arg(&gate)
        .env("CUDASIM_SHARED", stage.shared.path());
    let mut worker = Background::start(&mut worker);
    worker.wait_for("step 1");
    let mut top = stage.environment.memprobe();
    top.arg("top")
        .env("CUDASIM_SHARED", stage.shared.path())
        .env("LD_LIBRARY_PATH", folder(&stage.cuda, Library::Current));
    let top = Terminal::start(&mut top);
    top.wait_for("ray::IDLE");
    std::fs::write(&gate, "").expect("written");
    top.wait_for("ray::Trainer.step");
}

/// UUID of a simulated GPU.
fn uuid(gpu: u32) -> String {
    format!("GPU-{gpu:02x}5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a")
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn ordinals_are_joined_with_the_gpus_of_the_machine() {
    let Some(stage) = Stage::set() else { return };
    let both = stage.rank("3,1", &["96", "2"]);
    let named = stage.rank("GPU-02,0", &["64", "1"]);
    // Both lists have two devices. CUDA reads the second, and the environment ends as a third.
    let changed = stage.rank("3,1", &["32", "2", "2,0"]);
    for (process, expected, source) in [
        (&both, &[3, 1][..], "environment"),
        // The driver lists it on one GPU alone.
        (&named, &[2], "driver"),
    ] {
        let devices = stage.recorded_devices(process);
        let devices = devices.as_array().expect("devices");
        assert_eq!(devices.len(), expected.len(), "{devices:?}");
        for (device, gpu) in devices.iter().zip(expected) {
            assert_eq!(device["gpu"], *gpu, "{device}");
            assert_eq!(device["gpu_source"], source, "{device}");
            assert_eq!(device["uuid"], uuid(*gpu), "{device}");
            let bus = format!("00000000:{:02X}:00.0", gpu + 1);
            assert_eq!(device["pci_bus_id"], bus, "{device}");
        }
    }
    // It holds memory on two GPUs, in an order that no readable list gives.
    let devices = stage.recorded_devices(&changed);
    for device in devices.as_array().expect("devices") {
        assert!(device["gpu"].is_null(), "{device}");
        let reason = device["gpu_unknown"].as_str().expect("a reason");
        assert!(reason.contains("on other GPUs"), "{device}");
    }
}

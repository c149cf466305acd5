//! Owners of a process's memory: the driver's count, down to the allocator's rounding, adds up to the byte. The report and
//! the live screen have the same rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::cuda_programs::{Cuda, Entries, library_of_process};
use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::{PyTorch, workloads};
use memprobe_tests::terminal::Terminal;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

const MIB: i64 = 1 << 20;

/// Bytes of the simulated driver for its context and modules.
const CONTEXT: i64 = 417 * MIB + 4096;

/// Libraries, the call that gets their memory, and their bytes, of which none repeats.
const OWNERS: [(&str, &str, i64); 4] = [
    ("libnccl.so.2", "take", 34 * MIB),
    ("libcublas.so.13", "take", 8 * MIB),
    ("libnvshmem_host.so.3", "map", 66 * MIB),
    (
        "_extension.cpython-313-x86_64-linux-gnu.so",
        "take",
        14 * MIB,
    ),
];

/// Names of files that libraries load when they are used.
const SIGNS: [&str; 5] = [
    "libcudnn_graph.so.9",
    "libcudnn_ops.so.9",
    "nvshmem_bootstrap_uid.so.3",
    "__triton_launcher.cpython-313-x86_64-linux-gnu.so",
    "cuda_utils.cpython-313-x86_64-linux-gnu.so",
];

/// Account of the program itself.
#[derive(Deserialize, Debug)]
struct Truth {
    used: i64,
    allocated: i64,
    reserved: i64,
    requested: i64,
    active: i64,
    inactive_split: i64,
    backed_by_pools: i64,
    /// Bytes of the pools by tag; empty without tags.
    by_tag: BTreeMap<String, i64>,
    /// Address, size and pool.
    segments: Vec<(u64, i64, (u64, u64))>,
}

impl Truth {
    /// Bytes that the pools of the program have reserved. The second number of PyTorch's and of graphs is 0.
    fn reserved_by_pools(&self) -> i64 {
        let own = self.segments.iter().filter(|(.., id)| id.1 != 0);
        own.map(|(_, size, _)| size).sum()
    }

    fn asleep(&self) -> i64 {
        self.reserved_by_pools() - self.backed_by_pools
    }
}

/// A program that holds memory, and a driver that counts it.
struct Stage {
    environment: TestEnvironment,
    cuda: Cuda,
    shared: TempDir,
    libraries: TempDir,
}

struct Program<'a> {
    stage: &'a Stage,
    target: Background,
    folder: TempDir,
}

impl Stage {
    fn set() -> Option<Self> {
        let environment = TestEnvironment::take()?;
        if environment.pytorch().simulated_libraries().is_none() {
            println!("skipped: the bytes of the owners are known on the simulated CUDA alone");
            return None;
        }
        let cuda = Cuda::build(Entries::Trampolines);
        cuda.nvml(&cuda.file("nvml"), &[]);
        let libraries = tempfile::tempdir().expect("a folder");
        for (name, ..) in OWNERS {
            library_of_process(libraries.path(), "owner.c", name);
        }
        library_of_process(libraries.path(), "sleeping.c", "libsleeping.so");
        Some(Self {
            environment,
            cuda,
            shared: tempfile::tempdir().expect("a folder"),
            libraries,
        })
    }

    /// Arguments of the program, and variables of its driver.
    fn settle(
        &self,
        command: &mut Command,
        folder: &Path,
        options: &[&str],
        settings: &[(&str, &str)],
    ) {
        command.args(["--folder"]).arg(folder).args(options);
        for (name, how, size) in OWNERS {
            let library = self.libraries.path().join(name);
            command.arg("--owner");
            command.arg(format!("{}:{how}:{size}", library.display()));
        }
        command
            .env("CUDASIM_SHARED", self.shared.path())
            .env("CUDASIM_CTX_BYTES", CONTEXT.to_string())
            .envs(settings.iter().copied());
    }

    /// Starts a program that waits before its first call into CUDA.
    fn start(&self, pytorch: &PyTorch, options: &[&str], settings: &[(&str, &str)]) -> Program<'_> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.args(["-W", "ignore", "waterfall.py"]);
        self.settle(&mut command, folder.path(), options, settings);
        let mut target = Background::start(&mut command);
        target.wait_for("READY");
        Program {
            stage: self,
            target,
            folder,
        }
    }

    /// Records a program from its first instruction until a phase, in which it ends.
    fn recorded_from_its_start(
        &self,
        pytorch: &PyTorch,
        until: &str,
        options: &[&str],
        settings: &[(&str, &str)],
    ) -> (Truth, Owners) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace.mprb");
        let mut command = self.memprobe();
        command.args(["record", "-o"]).arg(&file).arg("--");
        command.arg(pytorch.python()).args(["-W", "ignore"]);
        command.arg(workloads().join("waterfall.py"));
        command.args(["--until", until]);
        self.settle(&mut command, folder.path(), options, settings);
        Background::start(&mut command).finish().succeeded();
        let text = std::fs::read_to_string(folder.path().join(format!("{until}.json")));
        let truth = serde_json::from_str(&text.expect("an account")).expect("JSON");
        (truth, self.owners(&file))
    }

    /// Rows of the report.
    fn owners(&self, file: &Path) -> Owners {
        let report = self.report(file);
        let devices = report["devices"].as_array().expect("devices");
        let [device] = devices.as_slice() else {
            panic!("one device: {report}");
        };
        Owners {
            device: device.clone(),
        }
    }

    fn memprobe(&self) -> Command {
        let mut command = self.environment.memprobe();
        command
            .env("CUDASIM_SHARED", self.shared.path())
            .env("LD_LIBRARY_PATH", self.cuda.file("nvml"));
        command
    }

    fn pools(&self) -> String {
        let library = self.libraries.path().join("libsleeping.so");
        library.display().to_string()
    }

    /// Files that libraries load when they are used, by their names alone.
    fn libraries_with_signs(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let (owner, ..) = OWNERS[0];
        for name in SIGNS {
            let copied = std::fs::copy(self.libraries.path().join(owner), folder.path().join(name));
            copied.expect("a copy");
        }
        folder
    }

    /// The report as text.
    fn text(&self, file: &Path) -> String {
        let file = file.to_str().expect("a path");
        let printed = self.environment.run(&["report", file, "--by", "owner"]);
        printed.succeeded().stdout
    }

    fn report(&self, file: &Path) -> Value {
        let file = file.to_str().expect("a path");
        let arguments = ["report", file, "--by", "owner", "--format", "json"];
        let printed = self.environment.run(&arguments).succeeded();
        serde_json::from_str(&printed.stdout).expect("JSON")
    }
}

impl Program<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn record(&self, name: &str) -> Background {
        let mut command = self.stage.memprobe();
        command.args(["record", "-o"]).arg(self.path(name));
        command.args(["--pid", &self.target.pid().to_string()]);
        let mut recording = Background::start(&mut command);
        recording.wait_for("recording");
        recording
    }

    /// Lets the program go on to a phase; returns its account there.
    fn enter(&mut self, phase: &str) -> Truth {
        std::fs::write(self.path(phase), "").expect("written");
        self.target.wait_for(&format!("AT {phase}"));
        let text = std::fs::read_to_string(self.path(&format!("{phase}.json")));
        serde_json::from_str(&text.expect("an account")).expect("JSON")
    }

    /// Shows the screen of owners, of the running program or of a recording.
    fn screen(&self, arguments: &[&str]) -> Terminal {
        let mut command = self.stage.memprobe();
        command.args(arguments);
        let mut screen = Terminal::start_sized(&mut command, (160, 50));
        screen.wait_for("[lines]");
        screen.press("W");
        screen.wait_for("[owners]");
        screen
    }

    /// Ends a recording; returns the rows of its report.
    fn owners(&self, recording: Background, name: &str) -> Owners {
        recording.signal(Signal::INT);
        recording.finish().succeeded();
        self.stage.owners(&self.path(name))
    }
}

/// Rows of the report on one device.
struct Owners {
    device: Value,
}

impl Owners {
    fn rows(&self) -> &[Value] {
        self.device["rows"].as_array().expect("rows")
    }

    fn sum(&self, owner: &str) -> i64 {
        let rows = self.rows().iter().filter(|row| row["owner"] == owner);
        rows.map(|row| row["bytes"].as_i64().expect("bytes")).sum()
    }

    /// Bytes that sleep by tag; the empty one stands for memory whose tag is not known.
    fn asleep_by_tag(&self) -> BTreeMap<String, i64> {
        let mut rows = self.rows().iter();
        rows.find(|row| row["owner"] == "asleep");
        let mut sums = BTreeMap::new();
        for line in rows.take_while(|row| row["owner"] == "line") {
            let tag = line["tag"].as_str().unwrap_or_default().to_owned();
            *sums.entry(tag).or_default() -= line["bytes"].as_i64().expect("bytes");
        }
        sums
    }

    /// Bytes by the file name of the library.
    fn libraries(&self) -> BTreeMap<String, i64> {
        let rows = self.rows().iter().filter(|row| row["owner"] == "library");
        let bytes = rows.map(|row| {
            let path = row["library"].as_str().expect("a path");
            let name = path.rsplit('/').next().unwrap_or(path);
            (name.to_owned(), row["bytes"].as_i64().expect("bytes"))
        });
        bytes.collect()
    }

    /// Libraries that may have a part of the memory from before attach: purpose and signs of use.
    fn candidates(&self) -> BTreeMap<String, String> {
        let rows = self.rows().iter();
        let candidates =
            rows.filter(|row| row["owner"] == "candidate" && row["library"] != Value::Null);
        let text = |cell: &Value| cell.as_str().expect("a text").to_owned();
        let candidates = candidates.map(|row| {
            assert_eq!(row["bytes"], Value::Null, "{row}");
            let purpose = text(&row["purpose"]);
            let name = purpose.split(':').next().unwrap_or_default();
            (name.to_owned(), text(&row["signs"]))
        });
        candidates.collect()
    }

    /// Libraries that were loaded at attach without a sign of use.
    fn idle_libraries(&self) -> Vec<&str> {
        let texts = self.rows().iter();
        let mut texts = texts.filter_map(|row| row["idle_libraries"].as_str());
        let text = texts.next().unwrap_or_default();
        assert_eq!(texts.next(), None);
        text.split(", ").collect()
    }

    /// Bytes of all rows below the whole, as the screen shows them, in order of their text.
    fn as_shown(&self) -> Vec<String> {
        let rows = self.rows().iter().filter(|row| row["depth"] != 0);
        let mut shown: Vec<String> = rows
            .filter_map(|row| row["bytes"].as_i64().map(human))
            .collect();
        shown.sort();
        shown
    }

    /// The rows below each row add up to it.
    fn assert_adds_up(&self) {
        let rows = self.rows();
        let depth = |row: &Value| row["depth"].as_u64().expect("a depth");
        let bytes = |row: &Value| row["bytes"].as_i64().expect("bytes");
        for (at, row) in rows.iter().enumerate() {
            let below = rows[at + 1..].iter();
            let below: Vec<&Value> = below.take_while(|it| depth(it) > depth(row)).collect();
            let parts = below.iter().filter(|it| depth(it) == depth(row) + 1);
            // The lines of a context have no bytes, nor have libraries from before attach: the driver alone knows them.
            let is_difference = row["owner"] == "context" || row["owner"] == "before_attach";
            if !below.is_empty() && !is_difference {
                let sum: i64 = parts.map(|it| bytes(it)).sum();
                assert_eq!(sum, bytes(row), "below {row}: {below:#?}");
            }
        }
    }

    /// The allocator's part is the allocator's own account, and the whole is the driver's.
    fn assert_allocator(&self, truth: &Truth, name: &str) {
        self.assert_adds_up();
        println!("{name}: {:#?}", self.device);
        assert_eq!(self.sum("process"), truth.used, "{name}");
        assert_eq!(self.device["process"], truth.used, "{name}");
        assert_eq!(self.device["exact"], true, "{name}");
        assert_eq!(self.sum("reserved"), truth.reserved, "{name}");
        assert_eq!(
            self.sum("rounding"),
            truth.active - truth.requested,
            "{name}"
        );
        let live = self.sum("requested") + self.sum("rounding");
        assert_eq!(live, truth.allocated, "{name}");
        assert_eq!(self.sum("inactive_split"), truth.inactive_split, "{name}");
        let free = self.sum("cached") + self.sum("inactive_split");
        assert_eq!(free, truth.reserved - truth.active, "{name}");
        assert_eq!(self.sum("not_read"), 0, "{name}");
        assert_eq!(self.sum("asleep"), -truth.asleep(), "{name}");
    }

    /// Every owner was seen from its first call.
    fn assert_libraries(&self, name: &str) {
        let owners = OWNERS.map(|(library, _, bytes)| (library.to_owned(), bytes));
        assert_eq!(self.libraries(), owners.into(), "{name}");
        assert_eq!(self.sum("context"), CONTEXT, "{name}");
    }
}

/// Bytes as the screen writes them.
fn human(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    let mut value = bytes.unsigned_abs() as f64;
    let mut units = ["B", "KiB", "MiB", "GiB"].into_iter();
    let mut unit = units.next();
    while value >= 1023.995 {
        value /= 1024.0;
        unit = units.next();
    }
    let unit = unit.expect("less than a TiB");
    match unit {
        "B" => format!("{sign}{value:.0} B"),
        _ => format!("{sign}{value:.2} {unit}"),
    }
}

/// Bytes in the rows of a screen, between the heads and the sum, in order of their text.
fn bytes_on(screen: &str) -> Vec<String> {
    let rows = screen.lines().skip_while(|line| !line.contains("BYTES"));
    let rows = rows.skip(1).take_while(|line| !line.starts_with("  sum "));
    let bytes = rows.filter_map(|row| row.get(1..13)).map(str::trim);
    let mut bytes: Vec<String> = bytes
        .filter(|it| !it.is_empty() && *it != "-")
        .map(str::to_owned)
        .collect();
    bytes.sort();
    bytes
}

/// Text of the sum, if it is the driver's count.
fn sum_of(used: i64) -> String {
    format!(
        "sum {} = this process, as the driver counts it",
        human(used)
    )
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_screen_follows_the_process_and_has_the_rows_of_the_report() {
    let Some(stage) = Stage::set() else { return };
    let pools = stage.pools();
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let mut program = stage.start(pytorch, &["--pools", &pools], &[]);
        let pid = program.target.pid().to_string();
        let recording = program.record("screen.mprb");
        let screen = program.screen(&["attach", &pid]);
        screen.wait_for(" probes ok");
        let awake = program.enter("awake");
        let shown = screen.wait_for(&sum_of(awake.used));
        for (library, _, bytes) in OWNERS {
            let mut rows = shown.lines();
            let row = rows.find(|row| row.contains(&format!("{library}, ")));
            let row = row.unwrap_or_else(|| panic!("{library}: {shown}"));
            assert!(row.contains(&human(bytes)), "{row}");
        }
        assert!(!shown.contains("asleep"), "{shown}");
        let asleep = program.enter("asleep");
        assert_ne!(asleep.used, awake.used);
        screen.wait_for(&sum_of(asleep.used));
        let shown = screen.wait_for(&human(-asleep.asleep()));
        assert!(shown.contains("asleep: reserved"), "{shown}");
        let owners = program.owners(recording, "screen.mprb");
        owners.assert_allocator(&asleep, "beside the screen");
        let is_same = |shown: &str| bytes_on(shown) == owners.as_shown();
        screen.wait_until(&format!("{:?}", owners.as_shown()), is_same);
        let file = program.path("screen.mprb");
        let replay = program.screen(&["replay", file.to_str().expect("a path")]);
        replay.wait_for(&sum_of(asleep.used));
        replay.wait_until("the rows of the report in a replay", is_same);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn owners_are_the_known_ones_and_add_up_to_the_byte() {
    let Some(stage) = Stage::set() else { return };
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        for settings in [
            &[][..],
            &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
        ] {
            let (truth, owners) = stage.recorded_from_its_start(pytorch, "awake", &[], settings);
            owners.assert_allocator(&truth, "from the start");
            owners.assert_libraries("from the start");
            let rows = owners.rows().iter();
            let purposes: Vec<&str> = rows.filter_map(|row| row["purpose"].as_str()).collect();
            for known in ["NCCL", "cuBLAS", "NVSHMEM"] {
                let is_known = purposes.iter().any(|purpose| purpose.starts_with(known));
                assert!(is_known, "{known}: {purposes:?}");
            }
            let at = owners
                .rows()
                .iter()
                .position(|row| row["owner"] == "context");
            let line = &owners.rows()[at.expect("a context") + 1];
            let file = line["file"].as_str().expect("the line of the context");
            assert!(file.ends_with("waterfall.py"), "{line}");
        }
    }
}

#[test]
fn what_was_there_before_attach_is_the_difference_to_the_driver() {
    let Some(stage) = Stage::set() else { return };
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let signs = stage.libraries_with_signs();
        let signs = signs.path().to_str().expect("a path");
        let mut program = stage.start(pytorch, &["--signs", signs, "--graphs", "2"], &[]);
        program.enter("awake");
        let recording = program.record("late.mprb");
        let truth = program.enter("asleep");
        let owners = program.owners(recording, "late.mprb");
        owners.assert_allocator(&truth, "attached late");
        let unseen: i64 = OWNERS.iter().map(|(.., bytes)| bytes).sum();
        assert_eq!(owners.sum("before_attach"), CONTEXT + unseen);
        let candidates = [
            ("NCCL", "1 thread of ProcessGroupNCCL, 1 file in /dev/shm"),
            ("NVSHMEM", "1 part loaded at first use"),
            ("Triton", "2 compiled modules"),
            ("cuDNN", "2 parts loaded at first use"),
        ];
        let candidates = candidates.map(|(name, signs)| (name.to_owned(), signs.to_owned()));
        assert_eq!(owners.candidates(), candidates.into());
        let idle = owners.idle_libraries();
        assert!(
            idle.contains(&"cuBLAS") && !idle.contains(&"NCCL"),
            "{idle:?}"
        );
        let file = program.path("late.mprb");
        let text = stage.text(&file);
        assert!(
            text.contains("perhaps CUDA graphs: 2 private pools of theirs"),
            "{text}"
        );
        let row = text.lines().find(|row| row.contains("perhaps Triton"));
        let row = row.unwrap_or_else(|| panic!("{text}"));
        assert!(
            row.ends_with("    perhaps Triton: 2 compiled modules"),
            "{row}"
        );
        assert!(text.contains("their bytes are not known"), "{text}");
        let replay = program.screen(&["replay", file.to_str().expect("a path")]);
        replay.wait_for("perhaps cuDNN: 2 parts loaded at first use");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn pools_that_sleep_and_wake_agree_with_pytorch_and_the_driver() {
    let Some(stage) = Stage::set() else { return };
    let pools = stage.pools();
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        for pieces in ["1", "2"] {
            for until in ["awake", "asleep", "awake_again", "freed"] {
                let settings = [("SLEEPING_PIECES", pieces)];
                let options = ["--pools", &pools];
                let (truth, owners) =
                    stage.recorded_from_its_start(pytorch, until, &options, &settings);
                let name = format!("{until}, in {pieces} pieces");
                let is_asleep = until == "asleep" || until == "freed";
                assert_eq!(truth.asleep() > 0, is_asleep, "{truth:?}");
                owners.assert_allocator(&truth, &name);
                owners.assert_libraries(&name);
            }
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn pools_that_sleep_or_wake_after_a_late_attach_agree_with_the_driver() {
    let Some(stage) = Stage::set() else { return };
    let pools = stage.pools();
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let mut program = stage.start(pytorch, &["--pools", &pools], &[]);
        program.enter("awake");
        let unseen: i64 = OWNERS.iter().map(|(.., bytes)| bytes).sum();
        for (before, phase) in [("awake", "asleep"), ("asleep", "awake_again")] {
            let name = format!("{phase}.mprb");
            let recording = program.record(&name);
            // The segments are known then.
            std::thread::sleep(std::time::Duration::from_secs(2));
            let truth = program.enter(phase);
            let owners = program.owners(recording, &name);
            let name = format!("{phase}, attached while {before}");
            owners.assert_allocator(&truth, &name);
            assert_eq!(owners.sum("before_attach"), CONTEXT + unseen, "{name}");
        }
        // Asleep before attach: the allocator counts more than the driver, and nothing says what.
        let truth = program.enter("asleep_again");
        let recording = program.record("before.mprb");
        std::thread::sleep(std::time::Duration::from_secs(2));
        let owners = program.owners(recording, "before.mprb");
        owners.assert_adds_up();
        assert_eq!(owners.sum("process"), truth.used);
        let difference = CONTEXT + unseen - truth.asleep();
        assert_eq!(owners.sum("before_attach"), difference);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn memory_that_sleeps_has_the_tag_that_the_program_gave_it() {
    let Some(stage) = Stage::set() else { return };
    let pools = stage.pools();
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let mut program = stage.start(pytorch, &["--pools", &pools, "--tags"], &[]);
        let mut recording = program.record("tags.mprb");
        program.enter("awake");
        let pid = program.target.pid().to_string();
        let truth = program.enter("asleep");
        let screen = program.screen(&["attach", &pid]);
        // The objects are read after memory went to sleep.
        recording.wait_for("have a tag of the program");
        let owners = program.owners(recording, "tags.mprb");
        owners.assert_allocator(&truth, "with tags");
        assert_eq!(truth.by_tag.len(), 2, "{truth:?}");
        assert_eq!(owners.asleep_by_tag(), truth.by_tag);
        let file = program.path("tags.mprb");
        let replay = program.screen(&["replay", file.to_str().expect("a path")]);
        replay.wait_for("tag kv_cache, ");
        // Memory that sleeps at attach is not seen; after it woke up and slept again it is.
        screen.wait_for(" probes ok");
        program.enter("awake_again");
        program.enter("asleep_again");
        screen.wait_for("tag weights, ");
    }
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        assert_tags_of_pools(&stage, pytorch, &["--pools", &pools, "--saver"]);
    }
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let mut program = stage.start(pytorch, &["--pools", &pools], &[]);
        let mut recording = program.record("untagged.mprb");
        program.enter("awake");
        let truth = program.enter("asleep");
        recording.wait_for("the tags of memory that sleeps are not known");
        let owners = program.owners(recording, "untagged.mprb");
        let unknown = BTreeMap::from([(String::new(), truth.asleep())]);
        assert_eq!(owners.asleep_by_tag(), unknown);
    }
}

/// Asserts that memory which sleeps has the tags of its pools.
fn assert_tags_of_pools(stage: &Stage, pytorch: &PyTorch, options: &[&str]) {
    let mut program = stage.start(pytorch, options, &[]);
    let mut recording = program.record("saver.mprb");
    program.enter("awake");
    let truth = program.enter("asleep");
    recording.wait_for("have a tag of the program");
    let owners = program.owners(recording, "saver.mprb");
    owners.assert_allocator(&truth, "with tagged pools");
    assert_eq!(truth.by_tag.len(), 2, "{truth:?}");
    assert_eq!(owners.asleep_by_tag(), truth.by_tag);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn memory_of_the_package_torch_memory_saver_has_its_tags() {
    let Some(stage) = Stage::set() else { return };
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let mut python = pytorch.command();
        python.args(["-c", "import torch_memory_saver"]);
        if !python.output().expect("Python runs").status.success() {
            println!("skipped: torch_memory_saver is not installed beside PyTorch");
            return;
        }
        assert_tags_of_pools(&stage, pytorch, &["--package"]);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_pool_of_managed_memory_is_reserved_and_nothing_twice() {
    let Some(stage) = Stage::set() else { return };
    let pools = stage.pools();
    let options = [
        "--pools",
        &pools,
        "--functions",
        "managed_malloc,managed_free",
    ];
    for pytorch in stage.environment.pytorches_on(On::Newest) {
        let (truth, owners) = stage.recorded_from_its_start(pytorch, "awake", &options, &[]);
        owners.assert_adds_up();
        owners.assert_libraries("managed");
        assert_eq!(owners.sum("process"), truth.used);
        assert_eq!(owners.sum("reserved"), truth.reserved);
        assert!(truth.reserved_by_pools() > 0);
        assert_eq!(owners.sum("not_on_device"), -truth.reserved_by_pools());
    }
}

//! The calls into CUDA below the caching allocator: programs without PyTorch, each of which says
//! what it holds. The ledger is right to the byte.

use std::collections::BTreeMap;
use std::rc::Rc;

use memprobe_tests::cuda_programs::{
    Cuda, Cudart, Entries, account, live, start, start_command, truth,
};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use serde_json::Value;
use tempfile::tempdir;

/// Recording of a program, and the program's own account.
struct Seen {
    truth: BTreeMap<String, u64>,
    /// Most bytes at once, and allocations, of a program that counts them.
    most: BTreeMap<String, u64>,
    made: BTreeMap<String, u64>,
    events: Vec<Event>,
    report: Value,
    owners: Value,
}

impl Seen {
    /// Records a program from before its first call to its end.
    fn of(environment: &TestEnvironment, cuda: &Cuda, program: &std::path::Path) -> Self {
        Self::with(environment, cuda, program, &[])
    }

    /// Like [`Self::of`], with variables for the simulation.
    fn with(
        environment: &TestEnvironment,
        cuda: &Cuda,
        program: &std::path::Path,
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = tempdir().expect("a folder for the recording");
        let file = folder.path().join("trace.json");
        let go = cuda.file(&format!(
            "go-{}",
            program.file_name().expect("a name").to_string_lossy()
        ));
        let running = start(program, &go, variables);
        // On a busy machine the reader comes late; losses are tested elsewhere.
        let buffer = ["--buffer-size", "64MiB"];
        let recording = environment.record(running.pid(), &file, &buffer);
        std::fs::write(&go, "").expect("the program can be told to go");
        let program = running.finish().succeeded();
        recording.finish();
        Self {
            truth: truth(&program),
            most: account(&program, "most"),
            made: account(&program, "made"),
            owners: owners(environment, &file),
            events: environment.events(&file),
            report: environment.report(&file),
        }
    }

    /// The events, the report's totals and the sums of its rows all say what the program says.
    fn assert_right(&self) {
        assert_eq!(
            live(&self.events, self.truth.keys()),
            self.truth,
            "by the events"
        );
        let number = |value: &Value| value.as_u64().expect("a number");
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let sum = |rows: &[Value]| rows.iter().map(|row| number(&row["live"])).sum::<u64>();
        let on_devices: u64 = ["device", "pool", "virtual", "array"]
            .iter()
            .map(|kind| self.truth[*kind])
            .sum();
        let mut allocated = 0;
        for device in list(&self.report["devices"]) {
            let total = number(&device["allocated"]);
            assert_eq!(
                sum(&list(&device["lines"])),
                total,
                "lines of {}",
                device["device"]
            );
            allocated += total;
        }
        assert_eq!(allocated, on_devices, "by the totals of the devices");
        for kind in ["managed", "pinned", "registered"] {
            let mut rows = list(&self.report["cuda"]);
            rows.retain(|row| row["space"] == kind);
            assert_eq!(sum(&rows), self.truth[kind], "{kind} by library");
            let lines: Vec<_> = rows.iter().flat_map(|row| list(&row["lines"])).collect();
            assert_eq!(sum(&lines), self.truth[kind], "{kind} by line");
        }
        assert_eq!(number(&self.report["lost_events"]), 0);
        assert_eq!(self.by_kind("bytes"), known(&self.truth), "by kind");
    }

    /// Figures of the totals by kind; kinds without any are left out.
    fn by_kind(&self, figure: &str) -> BTreeMap<String, u64> {
        let kinds = self.owners["kinds"].as_array().expect("totals by kind");
        let figures = kinds.iter().map(|row| {
            let kind = row["space"].as_str().expect("a kind").to_owned();
            (kind, row[figure].as_u64().expect("a number"))
        });
        known(&figures.collect())
    }
}

/// Rows of the report on owners.
fn owners(environment: &TestEnvironment, file: &std::path::Path) -> Value {
    let file = file.to_str().expect("a path");
    let arguments = ["report", file, "--by", "owner", "--format", "json"];
    let printed = environment.run(&arguments).succeeded();
    serde_json::from_str(&printed.stdout).expect("JSON")
}

fn known(figures: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let known = figures.iter().filter(|(_, figure)| **figure > 0);
    known
        .map(|(kind, figure)| (kind.clone(), *figure))
        .collect()
}

/// The simulation with each form of the driver's entries, and both ways for a program to have the runtime.
fn every_build() -> Vec<(Rc<Cuda>, Cudart)> {
    let with_each_runtime = |cuda| {
        let cuda = Rc::new(cuda);
        [Cudart::Dynamic, Cudart::Static].map(|cudart| (Rc::clone(&cuda), cudart))
    };
    Cuda::build_each().flat_map(with_each_runtime).collect()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn every_function_that_gives_out_memory_is_right_to_the_byte() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (cuda, cudart) in &every_build() {
        let program = cuda.program("every_call", *cudart, &[]);
        let seen = Seen::of(&environment, cuda, &program);
        seen.assert_right();
        assert_eq!(seen.by_kind("peak"), seen.most);
        assert_eq!(seen.by_kind("allocs"), seen.made);
        assert!(
            !seen.most.values().any(|most| *most == 0),
            "{:?}",
            seen.most
        );
        let names = |name: &str| {
            seen.events
                .iter()
                .any(|event| event.function.as_deref() == Some(name))
        };
        assert!(names("cuMemAllocPitch_v2") && names("cuMemCreate"));
        // The runtime within a program has no name; what it asks of the driver has.
        assert_eq!(names("cudaMalloc3D"), *cudart == Cudart::Dynamic);
    }
}

#[test]
fn arrays_with_levels_are_right_by_kind() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (cuda, cudart) in &every_build() {
        let program = cuda.program("more_calls", *cudart, &[]);
        let seen = Seen::of(&environment, cuda, &program);
        seen.assert_right();
        assert!(seen.by_kind("bytes").contains_key("array"));
    }
}

#[test]
fn calls_that_fail_free_twice_or_are_left_by_a_jump_do_no_harm() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (cuda, cudart) in &every_build() {
        let program = cuda.program("what_goes_wrong", *cudart, &[]);
        let seen = Seen::of(&environment, cuda, &program);
        seen.assert_right();
    }
}

#[test]
fn requests_without_memory_are_events_with_bytes_and_device() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (cuda, cudart) in &every_build() {
        let program = cuda.program("no_memory", *cudart, &[]);
        let seen = Seen::of(&environment, cuda, &program);
        seen.assert_right();
        let failed: Vec<_> = seen
            .events
            .iter()
            .filter(|event| event.action == "cuda_oom")
            .collect();
        let functions: Vec<_> = failed
            .iter()
            .filter_map(|event| event.function.as_deref())
            .collect();
        // The runtime within a program has no name; what it asks of the driver has.
        let expected = match cudart {
            Cudart::Dynamic => ["cudaMalloc", "cuMemCreate", "cudaMallocPitch"],
            Cudart::Static => ["cuMemAlloc_v2", "cuMemCreate", "cuMemAllocPitch_v2"],
        };
        assert_eq!(functions, expected);
        for event in &failed {
            assert_eq!(event.size, Some(1 << 50), "{event:?}");
            assert_eq!(event.addr, None, "{event:?}");
            assert_eq!(event.device, Some(0), "{event:?}");
        }
        assert_ne!(failed[2].tid, failed[0].tid, "another thread asked");
    }
}

#[test]
fn a_program_that_fails_again_and_again_does_not_flood_the_recording() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    const COUNT: u64 = 20_000;
    let cuda = Cuda::build(Entries::Push);
    let program = cuda.program("no_memory", Cudart::Dynamic, &[]);
    let folder = tempdir().expect("a folder for the recording");
    let file = folder.path().join("trace.mprb");
    let go = cuda.file("go");
    let mut command = std::process::Command::new(program);
    let running = start_command({
        command.arg(&go).arg(COUNT.to_string());
        command
    });
    let recording = environment.record(running.pid(), &file, &[]);
    std::fs::write(&go, "").expect("the program can be told to go");
    running.finish().succeeded();
    let recorded = recording.finish();
    let events = environment.events(&file);
    let failed: Vec<_> = events
        .iter()
        .filter(|event| event.action == "cuda_oom")
        .collect();
    let ends = [failed.first(), failed.last()].map(|event| event.expect("an event").time_ns);
    let seconds = (ends[1] - ends[0]) / 1_000_000_000 + 2;
    let count = u64::try_from(failed.len()).expect("a number");
    assert!(
        count <= 32 * seconds && count < COUNT,
        "{count} in {seconds} s"
    );
    assert!(
        recorded
            .stderr
            .contains("failed calls of CUDA are not recorded"),
        "{}",
        recorded.stderr
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_address_that_one_thread_frees_and_another_gets_at_once_is_right() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for entries in Entries::ALL {
        let cuda = Cuda::build(entries);
        let program = cuda.program("hand_over", Cudart::Dynamic, &[]);
        let seen = Seen::of(&environment, &cuda, &program);
        seen.assert_right();
        let mut held = BTreeMap::new();
        let (mut handed_over, mut last) = (0, BTreeMap::new());
        for event in &seen.events {
            if event.action == "cuda_alloc" {
                let before = held.insert(&event.addr, event.size);
                assert_eq!(before, None, "it is live: {event:?}");
                let thread = last.insert(&event.addr, event.tid);
                handed_over += u64::from(thread.is_some_and(|thread| thread != event.tid));
            } else {
                let size = held.remove(&event.addr).expect("it is live");
                assert_eq!(event.size, size, "{event:?}");
            }
        }
        assert!(
            handed_over > 10,
            "the threads shared {handed_over} addresses"
        );
        println!("{handed_over} times the other thread's address");
    }
}

#[test]
fn calls_are_right_on_the_other_branch_of_the_entries() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let cuda = Cuda::build(Entries::Trampolines);
    let program = cuda.program("every_call", Cudart::Dynamic, &[]);
    let other = [("CUDASIM_OTHER_BRANCH", "1")];
    Seen::with(&environment, &cuda, &program, &other).assert_right();
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn contexts_from_a_private_table_change_no_figure() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (cuda, cudart) in &every_build() {
        for name in ["every_call", "what_goes_wrong"] {
            let program = cuda.program(name, *cudart, &[]);
            let private = [("CUDASIM_PRIVATE_TABLES", "1")];
            let seen = Seen::with(&environment, cuda, &program, &private);
            seen.assert_right();
            if *cudart == Cudart::Dynamic {
                let devices = seen.report["devices"].as_array().expect("a list");
                let known = devices.iter().all(|device| device["device"].is_u64());
                assert!(known, "memory on an unknown device");
            }
        }
    }
}

#[test]
fn several_libraries_at_once_are_distinguished() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let one = cuda.library("one", Cudart::Dynamic);
        let two = cuda.library("two", Cudart::Static);
        let program = cuda.program("several_libraries", Cudart::Dynamic, &[one, two]);
        let seen = Seen::of(&environment, &cuda, &program);
        seen.assert_right();
        let held = |library: &str| {
            let mine = seen.events.iter().filter(|event| {
                event.action == "cuda_alloc"
                    && event.space.as_deref() == Some("device")
                    && event
                        .native
                        .first()
                        .is_some_and(|frame| frame.library.ends_with(library))
            });
            mine.filter_map(|event| event.size).sum::<u64>()
        };
        assert_eq!(held("/libone.so"), 200 * 20_002);
        assert_eq!(held("/libtwo.so"), 200 * 300_004);
        assert_eq!(held("/several_libraries-Dynamic"), 2 * 200 * 1001);
    }
}

#[test]
fn pools_over_cuda_have_their_names() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let cuda = Cuda::build(Entries::ALL[0]);
    let program = cuda.program("pools", Cudart::Dynamic, &[]);
    let seen = Seen::of(&environment, &cuda, &program);
    seen.assert_right();
    let lines = seen.report["devices"][0]["lines"]
        .as_array()
        .expect("lines");
    let pools = lines
        .iter()
        .filter_map(|line| line["pools"].as_array())
        .flatten();
    let pools: BTreeMap<&str, u64> = pools
        .map(|pool| {
            let name = pool["name"].as_str().expect("a name");
            (name, pool["live"].as_u64().expect("bytes"))
        })
        .collect();
    // The rest is RMM's without a pool.
    let expected = BTreeMap::from([("RMM pool", 3 << 20), ("XLA BFC pool", 5 << 20)]);
    assert_eq!(pools, expected, "{lines:#?}");
}

#[test]
fn code_without_frame_pointers_has_native_stacks_with_lines() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (cuda, cudart) in &every_build() {
        let program = cuda.program("every_call", *cudart, &[]);
        let seen = Seen::of(&environment, cuda, &program);
        for event in seen
            .events
            .iter()
            .filter(|event| event.action == "cuda_alloc" && event.size != Some(0))
        {
            let functions: Vec<_> = event
                .native
                .iter()
                .map(|frame| frame.function.as_str())
                .collect();
            let own = functions
                .iter()
                .position(|function| {
                    ["runtime_calls", "driver_calls", "virtual_memory"].contains(function)
                })
                .unwrap_or_else(|| panic!("no function of the program: {functions:?}"));
            assert!(functions[own + 1..].contains(&"main"), "{functions:?}");
            let frame = &event.native[own];
            assert!(
                frame.file.ends_with("every_call.c") && frame.line.is_some(),
                "{frame:?}"
            );
        }
    }
}

/// Report on `cuda_layers.py`, and the workload's own account.
struct Layered {
    facts: Value,
    report: Value,
    events: Vec<Event>,
}

impl Layered {
    /// One run for each form of the driver's entries; on a real GPU one.
    fn each(
        environment: &TestEnvironment,
        variable: Option<(&str, &str)>,
        options: &[&str],
    ) -> Vec<Self> {
        let drivers = environment.pytorch().each_driver();
        let run = |driver: &Vec<String>| Self::of(environment, driver, variable, options);
        drivers.iter().map(run).collect()
    }

    fn of(
        environment: &TestEnvironment,
        driver: &[String],
        variable: Option<(&str, &str)>,
        options: &[&str],
    ) -> Self {
        let folder = tempdir().expect("a folder");
        let (trace, out) = (
            folder.path().join("trace.json"),
            folder.path().join("facts.json"),
        );
        let mut command = environment.memprobe();
        command.arg("record").arg("-o").arg(&trace).arg("--");
        command.args(driver);
        command.arg(environment.pytorch().python());
        command.arg(memprobe_tests::pytorch::workloads().join("cuda_layers.py"));
        command.arg("--out").arg(&out).args(options).envs(variable);
        memprobe_tests::process::Background::start(&mut command)
            .finish()
            .succeeded();
        let facts = std::fs::read(&out).expect("the workload wrote what it holds");
        let facts: Value = serde_json::from_slice(&facts).expect("JSON");
        let loaded = facts["driver"].as_str().expect("a path");
        assert!(
            driver.last().is_none_or(|word| word.ends_with(loaded)),
            "{facts}"
        );
        Self {
            facts,
            report: environment.report(&trace),
            events: environment.events(&trace),
        }
    }

    /// Bytes that the events of a kind leave live.
    fn live(&self, alloc: &str, free: &str, space: Option<&str>) -> u64 {
        let of_space = |event: &&Event| space.is_none() || event.space.as_deref() == space;
        self.events
            .iter()
            .filter(of_space)
            .fold(0, |live, event| match event.size {
                Some(size) if event.action == alloc => live + size,
                Some(size) if event.action == free => live - size,
                _ => live,
            })
    }

    /// The calls into CUDA are the allocations, each with the line that asked for it.
    fn assert_calls_are_the_allocations(&self, space: &str) {
        assert_eq!(self.report["layer"], "CUDA runtime calls");
        let device = &self.report["devices"][0];
        assert_eq!(device["device"], 0);
        assert_eq!(device["allocated"], self.facts["requested"]);
        assert_eq!(
            self.live("cuda_alloc", "cuda_free", Some(space)),
            self.facts["requested"]
        );
        let lines = device["lines"].as_array().expect("a list");
        assert!(
            lines.iter().all(|line| line["function"] == "keep_some"),
            "{lines:?}"
        );
        self.assert_pinned_is_apart();
    }

    /// Blocks are the allocations, and segments what is reserved: nothing is there twice.
    fn assert_blocks_are_the_allocations(&self) {
        assert_eq!(self.report["layer"], "PyTorch's caching allocator");
        let device = &self.report["devices"][0];
        assert_eq!(device["allocated"], self.facts["allocated"]);
        assert_eq!(device["reserved"], self.facts["reserved"]);
        assert_eq!(self.live("alloc", "free", None), self.facts["allocated"]);
        assert_eq!(
            self.live("segment_alloc", "segment_free", None),
            self.facts["reserved"]
        );
        for space in ["device", "virtual"] {
            assert_eq!(
                self.live("cuda_alloc", "cuda_free", Some(space)),
                0,
                "{space}"
            );
        }
        self.assert_pinned_is_apart();
    }

    fn assert_pinned_is_apart(&self) {
        let rows = self.report["cuda"].as_array().expect("a list");
        let [row] = rows.as_slice() else {
            panic!("pinned memory alone: {rows:?}")
        };
        assert_eq!(
            (&row["space"], &row["lines"][0]["function"]),
            (&"pinned".into(), &"main".into())
        );
        // PyTorch rounds it up to a power of two.
        let pinned = self.facts["pinned"].as_u64().expect("a number");
        assert_eq!(row["live"], pinned.next_power_of_two());
    }
}

#[test]
fn segments_are_reserved_memory_and_no_allocations_of_their_own() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for layered in Layered::each(&environment, None, &[]) {
        layered.assert_blocks_are_the_allocations();
    }
}

#[test]
fn expandable_segments_are_what_is_mapped() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let expandable = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    for layered in Layered::each(&environment, Some(expandable), &[]) {
        layered.assert_blocks_are_the_allocations();
        let mut functions = layered.events.iter().map(|event| event.function.as_deref());
        assert!(functions.any(|function| function == Some("cuMemMap")));
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn without_caching_the_calls_are_the_allocations() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for (name, value, space) in [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "device"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "pool"),
    ] {
        for layered in Layered::each(&environment, Some((name, value)), &[]) {
            layered.assert_calls_are_the_allocations(space);
        }
    }
}

#[test]
fn the_calls_of_a_pluggable_allocator_are_the_allocations() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let library = memprobe_tests::cuda_programs::pluggable_allocator(folder.path());
    let library = library.to_str().expect("UTF-8");
    for layered in Layered::each(&environment, None, &["--pluggable", library]) {
        layered.assert_calls_are_the_allocations("device");
        // The context that the first call makes is an event of its own.
        let allocations = layered.events.iter();
        let allocations = allocations.filter(|event| event.space.as_deref() == Some("device"));
        let by_it = allocations.filter(|event| {
            event
                .native
                .first()
                .is_some_and(|frame| frame.function.starts_with("plug_malloc"))
        });
        assert_eq!(by_it.count(), 52);
    }
}

#[test]
fn memory_of_another_process_is_counted_without_a_size() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for cuda in Cuda::build_each() {
        for cudart in [Cudart::Dynamic, Cudart::Static] {
            let program = cuda.program("imported", cudart, &[]);
            let seen = Seen::of(&environment, &cuda, &program);
            assert_eq!(live(&seen.events, seen.truth.keys()), seen.truth);
            let kinds = seen.owners["kinds"].as_array().expect("totals by kind");
            let figures = |kind: &str| {
                let row = kinds.iter().find(|row| row["space"] == kind);
                let row = row.unwrap_or_else(|| panic!("{kind}: {kinds:#?}"));
                let keys = ["bytes", "peak", "blocks", "allocs"];
                keys.map(|key| row[key].as_u64())
            };
            let own = seen.truth["device"];
            let device = [Some(own), Some(own), Some(1), Some(1)];
            assert_eq!(figures("device"), device, "{cudart:?}");
            // Opened by three calls that were the first of their kind; the size is the exporter's to know.
            let imported = [None, None, Some(2), Some(3)];
            assert_eq!(figures("imported"), imported, "{cudart:?}");
            assert_eq!(seen.report["devices"][0]["allocated"], own);
        }
    }
}

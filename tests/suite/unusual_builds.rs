//! PyTorch builds without the symbol through which the caching allocator reports. memprobe falls
//! back to the allocator's tracepoints, or else to its CUDA calls, and names the source in use.

use std::fs;
use std::path::Path;
use std::process::Command;

use memchr::memmem::find_iter;
use memprobe_tests::agreement::history;
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::{PyTorch, succeed};
use memprobe_tests::reference::{Reference, TraceEvent};
use tempfile::TempDir;

const WORKLOAD: &str = "mlp_adam.py";

/// The reporting function, and a name of the same length and `.gnu.hash`. The equal hash
/// (33 * 'U' + 's' = 33 * 'V' + 'R') lets libraries still find it in one another.
const HOOK: [&[u8]; 2] = [
    b"reportMemoryUsageToProfiler",
    b"reportMemoryVRageToProfiler",
];

/// Owner of the tracepoint notes, and a replacement.
const NOTES: [&[u8]; 2] = [b"stapsdt\0", b"stopped\0"];

#[test]
fn an_allocator_without_its_function_is_heard_through_its_tracepoints() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut compared = 0;
    let mut tried = Vec::new();
    for pytorch in &environment.pytorches {
        // One test per build is enough, whatever Python imports it.
        let allocator = site_packages(pytorch).join("torch/lib/libc10_cuda.so");
        let size = fs::metadata(allocator).expect("PyTorch's allocator").len();
        if tried.contains(&size) {
            continue;
        }
        tried.push(size);
        let strange = Strange::made_of(pytorch, &[HOOK]);
        if !strange.has_tracepoints {
            println!("{} has no tracepoints", pytorch.python().display());
            continue;
        }
        let (reference, events, said) = strange.record(&environment, pytorch, &[]);
        assert!(said.contains("heard through its tracepoints"), "{said}");
        compared += compare(&reference, &events);
    }
    assert!(compared > 0, "no PyTorch here has tracepoints");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_allocator_that_cannot_be_heard_is_seen_by_what_it_gets_from_cuda() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let strange = Strange::made_of(pytorch, &[HOOK, NOTES]);
    for driver in pytorch.each_driver() {
        let (reference, events, said) = strange.record(&environment, pytorch, &driver);
        assert!(said.contains("cannot be heard"), "{said}");
        assert_is_what_cuda_gave(&reference, &events);
    }
}

/// Asserts that CUDA's allocations equal the allocator's reserved memory, and have lines.
fn assert_is_what_cuda_gave(reference: &Reference, events: &[Event]) {
    let gave = |action: &str| {
        let given = events.iter().filter(|event| event.action == action);
        let of_device = given.filter(|event| event.space.as_deref() == Some("device"));
        of_device.filter_map(|event| event.size).sum::<u64>()
    };
    let end: u64 = reference.r#final.iter().map(|device| device.reserved).sum();
    assert_eq!(
        gave("cuda_alloc") - gave("cuda_free"),
        end,
        "what is reserved"
    );
    let functions: Vec<_> = events
        .iter()
        .filter_map(|event| event.function.as_deref())
        .collect();
    assert!(functions.contains(&"cudaMalloc"));
    let with_lines = events
        .iter()
        .filter(|event| event.function.as_deref() == Some("cudaMalloc") && !event.stack.is_empty());
    assert!(with_lines.count() > 0);
}

/// A copy of a PyTorch with some bytes replaced.
struct Strange {
    folder: TempDir,
    has_tracepoints: bool,
}

impl Strange {
    fn made_of(pytorch: &PyTorch, words: &[[&[u8]; 2]]) -> Self {
        let packages = site_packages(pytorch);
        let folder = tempfile::tempdir().expect("a folder");
        let link = |from: &Path, to: &Path| std::os::unix::fs::symlink(from, to).expect("a link");
        let torch = folder.path().join("torch");
        fs::create_dir(&torch).expect("a folder");
        for name in ["nvidia", "torchgen", "functorch", "triton"] {
            let package = packages.join(name);
            if package.exists() {
                link(&package, &folder.path().join(name));
            }
        }
        for entry in fs::read_dir(packages.join("torch")).expect("PyTorch") {
            let entry = entry.expect("an entry");
            if entry.file_name() != "lib" {
                link(&entry.path(), &torch.join(entry.file_name()));
            }
        }
        fs::create_dir(torch.join("lib")).expect("a folder");
        let mut has_tracepoints = false;
        for entry in fs::read_dir(packages.join("torch/lib")).expect("its libraries") {
            let entry = entry.expect("an entry");
            let to = torch.join("lib").join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_changed =
                ["libc10.so", "libc10_cuda.so", "libtorch_cpu.so"].contains(&name.as_str());
            if !is_changed {
                link(&entry.path(), &to);
                continue;
            }
            let mut bytes = fs::read(entry.path()).expect("a library");
            has_tracepoints |= name == "libc10_cuda.so" && count(&bytes, NOTES[0]) > 1;
            for [word, other] in words {
                replace(&mut bytes, word, other);
            }
            fs::write(&to, bytes).expect("written");
        }
        Self {
            folder,
            has_tracepoints,
        }
    }

    /// Returns PyTorch's record, memprobe's events, and memprobe's messages. `driver` comes before the
    /// command.
    fn record(
        &self,
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        driver: &[String],
    ) -> (Reference, Vec<Event>, String) {
        let out = self.folder.path().join("reference.json");
        let trace = self.folder.path().join("trace.json");
        let inner = pytorch.reference(WORKLOAD, &out);
        let mut command = environment.memprobe();
        command.arg("record").arg("-o").arg(&trace).arg("--");
        command.args(driver);
        command.arg(inner.get_program()).args(inner.get_args());
        pytorch.settle(&mut command);
        command.env("PYTHONPATH", self.folder.path());
        let printed = Background::start(&mut command).finish().succeeded();
        assert_eq!(lost(&printed.stderr), 0, "{}", printed.stderr);
        let reference = Reference::read(&out).expect("a reference");
        (reference, environment.events(&trace), printed.stderr)
    }
}

/// Compares the blocks event by event; returns their number.
fn compare(reference: &Reference, events: &[Event]) -> usize {
    let mut compared = 0;
    for device in &reference.devices {
        let theirs: Vec<&TraceEvent> = history(device)
            .into_iter()
            .filter(|event| matches!(event.action.as_str(), "alloc" | "free_requested"))
            .collect();
        let ours = events.iter().filter(|event| {
            let function = event.function.as_deref();
            function.is_some_and(|name| name.starts_with("pytorch:"))
                && event.device == Some(device.device)
        });
        let ours: Vec<&Event> = ours.collect();
        for (theirs, ours) in theirs.iter().zip(&ours) {
            let action = match theirs.action.as_str() {
                "alloc" => "cuda_alloc",
                _ => "cuda_free",
            };
            assert_eq!(
                (ours.action.as_str(), ours.addr),
                (action, Some(theirs.addr))
            );
            assert_eq!(
                ours.size,
                Some(theirs.size),
                "the bytes that were asked for"
            );
            if action == "cuda_alloc" && !theirs.frames.is_empty() {
                assert_eq!(ours.stack, theirs.frames);
            }
        }
        assert_eq!(theirs.len(), ours.len(), "on device {}", device.device);
        compared += theirs.len();
    }
    let segments = |action: &str| events.iter().filter(|event| event.action == action).count();
    assert_eq!(segments("segment_alloc"), reference.count("segment_alloc"));
    println!(
        "{WORKLOAD}  {}  {compared} blocks by tracepoints",
        reference.torch
    );
    compared
}

fn site_packages(pytorch: &PyTorch) -> std::path::PathBuf {
    let question = "import sysconfig; print(sysconfig.get_paths()['platlib'])";
    let answer = succeed(Command::new(pytorch.python()).args(["-c", question]));
    answer.stdout.trim().into()
}

fn count(bytes: &[u8], word: &[u8]) -> usize {
    find_iter(bytes, word).count()
}

fn replace(bytes: &mut [u8], word: &[u8], other: &[u8]) {
    assert_eq!(word.len(), other.len());
    let found: Vec<usize> = find_iter(bytes, word).collect();
    for at in found {
        bytes[at..at + word.len()].copy_from_slice(other);
    }
}

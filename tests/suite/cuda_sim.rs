//! Tests that the simulated CUDA behaves like CUDA in the calls PyTorch and memprobe use, and runs
//! every workload on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::environment::{Company, Slots};
use memprobe_tests::pytorch::{PyTorch, succeed};
use memprobe_tests::reference::Reference;

/// Bindings to the CUDA runtime and driver for the small programs below.
const PRELUDE: &str = r#"
import ctypes, glob, sysconfig
folder = glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/cu*/lib")[0]
cudart = ctypes.CDLL(glob.glob(folder + "/libcudart.so.*")[0])
cuda = ctypes.CDLL(folder + "/libcuda.so.1")
MB = 1 << 20

def malloc(size):
    pointer = ctypes.c_void_p()
    error = cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
    return error, pointer.value

def free(pointer):
    return cudart.cudaFree(ctypes.c_void_p(pointer))

def memory():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cudart.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value, total.value

def device_count():
    count = ctypes.c_int()
    return cudart.cudaGetDeviceCount(ctypes.byref(count)), count.value

def expect(found, wanted):
    assert found == wanted, f"found {found!r}, wanted {wanted!r}"
"#;

/// Returns the simulated libraries and a slot among the tests that run at once.
fn simulated() -> Option<(PyTorch, Slots)> {
    let pytorch = PyTorch::simulated()?;
    Some((pytorch, Slots::take(Company::Welcome)))
}

/// Runs a Python program on the simulated libraries, without PyTorch.
fn program(settings: &[(&str, &str)], body: &str) {
    let Some((pytorch, _slot)) = simulated() else {
        return;
    };
    succeed(
        pytorch
            .command()
            .envs(settings.iter().copied())
            .arg("-c")
            .arg(format!("{PRELUDE}\n{body}")),
    );
}

#[test]
fn there_are_as_many_devices_as_asked_for() {
    program(&[], "expect(device_count(), (0, 1))");
    program(
        &[("CUDASIM_DEVICES", "3")],
        "expect(device_count(), (0, 3))",
    );
    program(
        &[("CUDASIM_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")],
        "expect(device_count(), (0, 2))",
    );
    program(
        &[("CUDASIM_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", "")],
        "expect(device_count(), (100, 0))",
    );
}

#[test]
fn memory_is_counted_in_whole_pages_and_given_back() {
    program(
        &[("CUDASIM_MEMORY", "64m")],
        r"
expect(memory(), (0, 64 * MB))
error, first = malloc(5 * MB)
expect((error, memory()[0]), (0, 6 * MB))
error, second = malloc(1)
expect((error, memory()[0]), (0, 8 * MB))
expect((free(first), memory()[0]), (0, 2 * MB))
expect((free(second), memory()[0]), (0, 0))
",
    );
}

#[test]
fn more_than_the_capacity_is_out_of_memory_and_takes_nothing() {
    program(
        &[("CUDASIM_MEMORY", "64m")],
        r"
expect(malloc(65 * MB), (2, None))
expect(malloc(2**64 - 1), (2, None))
expect(memory()[0], 0)
expect(malloc(64 * MB)[0], 0)
expect(malloc(1), (2, None))
expect(cudart.cudaGetLastError(), 2)
expect(cudart.cudaGetLastError(), 0)
",
    );
}

#[test]
fn a_context_takes_what_it_is_said_to() {
    program(
        &[("CUDASIM_MEMORY", "64m"), ("CUDASIM_CTX_BYTES", "10m")],
        "expect((memory()[0], malloc(55 * MB), malloc(54 * MB)[0]), (10 * MB, (2, None), 0))",
    );
}

#[test]
fn pointers_are_aligned_and_ranges_do_not_overlap() {
    program(
        &[],
        r"
sizes = [1, 512, 2 * MB - 1, 2 * MB, 2 * MB + 1, 33 * MB]
ranges = sorted((malloc(size)[1], size) for size in sizes)
assert all(pointer % 512 == 0 for pointer, _ in ranges), ranges
for (one, size), (other, _) in zip(ranges, ranges[1:]):
    assert one + size <= other, ranges
",
    );
}

#[test]
fn nothing_is_freed_twice_or_from_its_middle() {
    program(
        &[],
        r"
_, pointer = malloc(4 * MB)
expect(free(pointer + 512), 1)
expect(free(pointer), 0)
expect(free(pointer), 1)
expect(free(12345), 1)
expect(free(None), 0)
",
    );
}

#[test]
fn the_nth_allocation_fails_where_asked() {
    program(
        &[("CUDASIM_FAIL_MALLOC", "3")],
        "expect([malloc(MB)[0] for _ in range(6)], [0, 0, 2, 0, 0, 0])",
    );
    program(
        &[("CUDASIM_FAIL_EVERY", "2")],
        "expect([malloc(MB)[0] for _ in range(6)], [0, 2, 0, 2, 0, 2])",
    );
}

#[test]
fn each_device_has_its_own_memory() {
    program(
        &[("CUDASIM_DEVICES", "2"), ("CUDASIM_MEMORY", "64m")],
        r"
expect(malloc(60 * MB)[0], 0)
expect(cudart.cudaSetDevice(1), 0)
expect(memory()[0], 0)
expect(malloc(60 * MB)[0], 0)
expect(malloc(60 * MB)[0], 2)
expect(cudart.cudaSetDevice(2), 101)
",
    );
}

#[test]
fn threads_share_devices_and_choose_their_own() {
    program(
        &[("CUDASIM_DEVICES", "2"), ("CUDASIM_MEMORY", "1g")],
        r"
import threading
def churn(device):
    cudart.cudaSetDevice(device)
    for _ in range(300):
        kept = [malloc(3 * MB) for _ in range(4)]
        assert all(error == 0 for error, _ in kept)
        assert all(free(pointer) == 0 for _, pointer in kept)
threads = [threading.Thread(target=churn, args=(n % 2,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
for device in range(2):
    cudart.cudaSetDevice(device)
    expect(memory()[0], 0)
",
    );
}

#[test]
fn writes_to_a_device_are_dropped_unless_asked_for() {
    let round_trip = r#"
_, pointer = malloc(16)
there, back = ctypes.create_string_buffer(b"0123456789abcde"), ctypes.create_string_buffer(16)
size = ctypes.c_size_t(16)
expect(cudart.cudaMemcpy(ctypes.c_void_p(pointer), there, size, 1), 0)
expect(cudart.cudaMemcpy(back, ctypes.c_void_p(pointer), size, 2), 0)
"#;
    program(&[], &format!("{round_trip}\nexpect(back.raw, bytes(16))"));
    program(
        &[("CUDASIM_COPY", "1")],
        &format!("{round_trip}\nexpect(back.raw, there.raw)"),
    );
}

#[test]
fn an_event_is_not_ready_before_its_time() {
    let recorded = r"
event = ctypes.c_void_p()
expect(cudart.cudaEventCreate(ctypes.byref(event)), 0)
expect(cudart.cudaEventQuery(event), 0)
expect(cudart.cudaEventRecord(event, None), 0)
";
    program(
        &[],
        &format!("{recorded}\nexpect(cudart.cudaEventQuery(event), 0)"),
    );
    program(
        &[("CUDASIM_EVENT_US", "3600000000")],
        &format!("{recorded}\nexpect(cudart.cudaEventQuery(event), 600)"),
    );
}

#[test]
fn physical_memory_counts_from_its_creation_to_its_last_use() {
    program(
        &[("CUDASIM_MEMORY", "64m")],
        r"
properties = (ctypes.c_int * 8)(1, 0, 1, 0)
handle, base = ctypes.c_void_p(), ctypes.c_ulonglong()
size = ctypes.c_size_t(20 * MB)
none = ctypes.c_ulonglong(0)
expect(cuda.cuMemAddressReserve(ctypes.byref(base), ctypes.c_size_t(256 * MB), none, none, none), 0)
expect(memory()[0], 0)
expect(cuda.cuMemCreate(ctypes.byref(handle), size, properties, none), 0)
expect(memory()[0], 20 * MB)
expect(cuda.cuMemMap(base, size, none, handle, none), 0)
expect(cuda.cuMemSetAccess(base, size, None, none), 0)
expect(ctypes.string_at(base.value, 16), bytes(16))
expect(cuda.cuMemRelease(handle), 0)
expect(memory()[0], 20 * MB)
expect(cuda.cuMemUnmap(base, size), 0)
expect(memory()[0], 0)
expect(cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(66 * MB), properties, none), 2)
",
    );
}

#[test]
fn the_runtime_calls_the_driver_as_the_trace_shows() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    program(
        &[("CUDASIM_TRACE", trace.to_str().unwrap())],
        "free(malloc(MB)[1])",
    );
    if PyTorch::simulated().is_some() {
        let trace = std::fs::read_to_string(trace).unwrap();
        assert!(
            trace.contains("cuMemAlloc_v2 device 0, 1048576 bytes"),
            "{trace}"
        );
        assert!(trace.contains("cuMemFree_v2"), "{trace}");
    }
}

#[test]
fn pytorch_tries_again_after_one_failed_allocation_and_gives_up_after_all() {
    let Some((pytorch, _slot)) = simulated() else {
        return;
    };
    let allocate = "import torch; torch.empty(1 << 20, device='cuda'); \
                    print(torch.cuda.memory_stats()['num_alloc_retries'])";
    let once = succeed(
        pytorch
            .command()
            .env("CUDASIM_FAIL_MALLOC", "1")
            .args(["-c", allocate]),
    );
    assert_eq!(once.stdout.trim(), "1");

    let always = pytorch
        .command()
        .env("CUDASIM_FAIL_EVERY", "1")
        .args(["-c", allocate])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&always.stderr);
    assert!(
        errors.contains("torch.OutOfMemoryError: CUDA out of memory"),
        "{errors}"
    );
    assert!(
        errors.contains("this process has"),
        "NVML is to be asked: {errors}"
    );
}

/// Runs a workload under PyTorch's recorder and checks that the record is consistent.
fn reference_of(workload: &str, arguments: &[&str]) -> Option<Reference> {
    reference_with(workload, arguments, |_| {})
}

fn reference_with(
    workload: &str,
    arguments: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> Option<Reference> {
    let reference = recorded(workload, arguments, prepare)?;
    reference.check_ledger().unwrap();
    assert_eq!(reference.exit_status, 0);
    assert!(reference.count("alloc") > 0 && reference.count("segment_alloc") > 0);
    assert!(!reference.checkpoints.is_empty());
    Some(reference)
}

/// Runs a workload under PyTorch's recorder.
fn recorded(
    workload: &str,
    arguments: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> Option<Reference> {
    let pytorch = PyTorch::of_this_run()?;
    let _slot = Slots::take(Company::Welcome);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("reference.json");
    let mut command = pytorch.reference(workload, &out);
    command.args(arguments);
    prepare(&mut command);
    succeed(&mut command);
    Some(Reference::read(&out).unwrap())
}

#[test]
fn a_perceptron_trains_with_adam() {
    let Some(reference) = reference_of("mlp_adam.py", &["--steps", "3"]) else {
        return;
    };
    let step = |label: &str| {
        let mut marks = reference.checkpoints.iter();
        marks.find(|mark| mark.label == label).unwrap().allocated
    };
    assert!(
        step("step 0") > 2 * step("model"),
        "Adam keeps two copies of the parameters"
    );
    assert_eq!(
        step("step 1"),
        step("step 2"),
        "no step leaves anything behind"
    );
}

#[test]
fn a_convolutional_network_trains() {
    reference_of("convnet.py", &["--steps", "2"]);
}

#[test]
fn a_transformer_trains() {
    reference_of("transformer.py", &["--steps", "2"]);
}

#[test]
fn batches_come_from_worker_processes_through_pinned_memory() {
    reference_of("dataloader_pinned.py", &["--steps", "3"]);
}

#[test]
fn threads_train_at_the_same_time() {
    reference_of("threads.py", &["--steps", "5"]);
}

#[test]
fn generators_and_coroutines_allocate() {
    let Some(reference) = reference_of("generators.py", &["--steps", "3"]) else {
        return;
    };
    let functions: Vec<&str> = reference.devices[0]
        .events
        .iter()
        .filter_map(|event| Some(event.frames.first()?.function.as_str()))
        .collect();
    for function in [
        "batches",
        "scaled",
        "<genexpr>",
        "load",
        "stream",
        "consume",
    ] {
        assert!(
            functions.contains(&function),
            "nothing was allocated in {function}"
        );
    }
}

#[test]
fn a_recursion_allocates_below_hundreds_of_frames() {
    if let Some(reference) = reference_of("recursion.py", &["--steps", "1"]) {
        assert!(
            reference.deepest_stack() > 500,
            "{}",
            reference.deepest_stack()
        );
    }
}

#[test]
fn training_goes_on_after_memory_ran_out() {
    let Some(reference) = reference_of("oom.py", &["--steps", "2"]) else {
        return;
    };
    assert!(reference.count("oom") > 0);
    assert!(reference.r#final[0].stats["num_ooms"] > 0);
}

#[test]
fn a_model_is_split_over_two_devices() {
    let slot = Slots::take(Company::Welcome);
    let has_devices = PyTorch::of_this_run().is_some_and(|pytorch| pytorch.has_devices(2));
    drop(slot);
    if !has_devices {
        return;
    }
    let reference = reference_with("two_devices.py", &["--steps", "2"], |command| {
        command.env("CUDASIM_DEVICES", "2");
    });
    let Some(reference) = reference else { return };
    for device in &reference.devices[..2] {
        let allocations = device.events.iter().filter(|event| event.action == "alloc");
        assert!(
            allocations.count() > 0,
            "nothing was allocated on device {}",
            device.device
        );
    }
}

#[test]
fn a_steady_loop_repeats_itself() {
    let Some(reference) = reference_of("steady.py", &["--steps", "5", "--pause", "0"]) else {
        return;
    };
    let allocated: Vec<u64> = reference
        .checkpoints
        .iter()
        .map(|mark| mark.allocated)
        .collect();
    assert_eq!(allocated[0], allocated[1]);
}

#[test]
fn the_demo_leaks() {
    let arguments = ["--steps", "5", "--evaluate-every", "2", "--pause", "0"];
    let Some(reference) = reference_of("demo_train.py", &arguments) else {
        return;
    };
    let evaluations = reference
        .checkpoints
        .iter()
        .filter(|mark| mark.label.starts_with("evaluated"));
    let allocated: Vec<u64> = evaluations.map(|mark| mark.allocated).collect();
    assert_eq!(allocated.len(), 3);
    assert!(
        allocated.is_sorted_by(|before, after| before < after),
        "{allocated:?}"
    );
}

#[test]
fn expandable_segments_grow_in_place() {
    let reference = recorded("mlp_adam.py", &["--steps", "2"], |command| {
        command.env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    });
    let Some(reference) = reference else {
        return;
    };
    assert!(reference.count("segment_map") > 0);
    assert_eq!(reference.count("segment_alloc"), 0);
}

#[test]
fn the_sources_need_no_nvidia_header_and_compile_without_a_warning() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-sim");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: there is no C compiler; install gcc or name one in CC");
        return;
    }
    let sources: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap()
        .filter_map(|entry| std::fs::read_dir(entry.unwrap().path()).ok())
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .collect();
    assert!(sources.len() > 20, "{sources:?}");
    for source in sources {
        let is_driver = source
            .parent()
            .is_some_and(|folder| folder.ends_with("cuda"));
        let forms: &[&str] = match is_driver {
            true => &["-DENTRY_TRAMPOLINE", "-DENTRY_PUSH", "-UENTRY_PUSH"],
            false => &["-UENTRY_PUSH"],
        };
        for form in forms {
            succeed(
                Command::new(&compiler)
                    .args(["-std=gnu2x", "-O2", "-Wall", "-Wextra", "-Werror"])
                    .args(["-fsyntax-only", "-DCUDA_MAJOR=13", form])
                    .arg("-I")
                    .arg(root.join("include"))
                    .arg(&source),
            );
        }
        let text = std::fs::read_to_string(&source).unwrap();
        for header in [
            "<cuda", "<cublas", "<cudnn", "<nvml", "<nccl", "<nvrtc", "<cupti",
        ] {
            let included = text.contains(&format!("#include {header}"));
            assert!(!included, "{} includes {header}...", source.display());
        }
    }
}

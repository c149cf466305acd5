//! On which device memory is, however its thread got there: programs without PyTorch, on two devices, which
//! say themselves where their memory is.

use std::collections::BTreeMap;
use std::path::Path;

use memprobe_tests::cuda_programs::{Cuda, Cudart, start, truth};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::process::Finished;
use tempfile::tempdir;

/// Primary context by a private table, like the runtimes of CUDA 11.8 to 13.0.
const PRIVATE: (&str, &str) = ("CUDASIM_PRIVATE_TABLES", "1");
/// Primary context by `cuDevicePrimaryCtxRetain`, like later runtimes.
const PUBLIC: (&str, &str) = ("CUDASIM_PRIVATE_TABLES", "0");

/// A program that was recorded from before its first call to its end.
struct Recorded {
    program: Finished,
    events: Vec<Event>,
}

/// True for a context itself, which has no bytes of its own.
fn is_context(event: &Event) -> bool {
    event.space.as_deref() == Some("context")
}

impl Recorded {
    fn of(
        environment: &TestEnvironment,
        cuda: &Cuda,
        program: &Path,
        variable: (&str, &str),
    ) -> Self {
        let folder = tempdir().expect("a folder for the recording");
        let file = folder.path().join("trace.json");
        let go = folder.path().join("go");
        let running = start(program, &go, &[variable]);
        let recording = environment.record(running.pid(), &file, &[]);
        std::fs::write(&go, "").expect("the program can be told to go");
        let program = running.finish().succeeded();
        recording.finish();
        println!("{:?}, {variable:?}", cuda.entries());
        Self {
            program,
            events: environment.events(&file),
        }
    }

    /// Bytes that are live at the end, by kind, as the events have it.
    fn live(&self) -> BTreeMap<String, u64> {
        let kinds = truth(&self.program).into_keys();
        let mut live: BTreeMap<String, u64> = kinds.map(|kind| (kind, 0)).collect();
        for event in self.events.iter().filter(|event| !is_context(event)) {
            let kind = event.space.as_deref().expect("a call into CUDA has one");
            let size = event.size.unwrap_or(0);
            let bytes = live.get_mut(kind).expect("a kind that the program knows");
            match event.action.as_str() {
                "cuda_alloc" => *bytes += size,
                "cuda_free" => *bytes -= size,
                other => panic!("a program without a caching allocator has no {other}"),
            }
        }
        live
    }

    /// By size: the device that the program says, and how it allocated.
    fn places(&self) -> BTreeMap<u64, (u8, String)> {
        let lines = self.program.stdout.lines();
        let places = lines.filter_map(|line| line.strip_prefix("on "));
        let place = |line: &str| {
            let [device, size, how] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("a device, a size and a way: {line}");
            };
            let device = device.parse().expect("a device");
            (size.parse().expect("a size"), (device, how.to_owned()))
        };
        places.map(place).collect()
    }

    /// By size: the devices that the events have.
    fn devices(&self) -> BTreeMap<u64, Option<u8>> {
        let given = self
            .events
            .iter()
            .filter(|event| event.action == "cuda_alloc" && !is_context(event));
        given
            .map(|event| (event.size.expect("a size"), event.device))
            .collect()
    }

    /// Every allocation is there, on the device that the program says. Gives those whose device is unknown.
    fn assert_devices_are_right(&self) -> Vec<String> {
        let (places, devices) = (self.places(), self.devices());
        assert!(places.len() > 10, "the program said where its memory is");
        assert_eq!(
            places.keys().collect::<Vec<_>>(),
            devices.keys().collect::<Vec<_>>()
        );
        let mut unknown = Vec::new();
        for (size, (device, how)) in places {
            match devices[&size] {
                Some(seen) => assert_eq!(seen, device, "{size} bytes by the {how}"),
                None => unknown.push(format!("{size} bytes by the {how}")),
            }
        }
        unknown
    }
}

#[test]
fn memory_is_on_the_device_of_its_threads_context() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let copy = cuda.library("copy", Cudart::Static);
        let program = cuda.program("contexts", Cudart::Dynamic, &[copy]);
        for variable in [PRIVATE, PUBLIC] {
            let recorded = Recorded::of(&environment, &cuda, &program, variable);
            let unknown = recorded.assert_devices_are_right();
            assert_eq!(unknown, [""; 0], "of unknown device");
            assert_eq!(recorded.live(), truth(&recorded.program));
        }
    }
}

#[test]
fn a_runtime_without_names_leaves_the_device_unknown_where_nothing_says_it() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let copy = cuda.library("copy", Cudart::Static);
        let program = cuda.program("contexts", Cudart::Static, &[copy]);
        for variable in [PRIVATE, PUBLIC] {
            let recorded = Recorded::of(&environment, &cuda, &program, variable);
            let unknown = recorded.assert_devices_are_right();
            if variable == PUBLIC {
                assert_eq!(unknown, [""; 0], "of unknown device");
            } else {
                let all = recorded.places().len();
                assert!(!unknown.is_empty() && unknown.len() < all, "{unknown:?}");
            }
            assert_eq!(recorded.live(), truth(&recorded.program));
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn arrays_with_levels_are_right_to_the_byte_and_memory_of_others_is_not_counted() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        for cudart in [Cudart::Dynamic, Cudart::Static] {
            let program = cuda.program("more_calls", cudart, &[]);
            let recorded = Recorded::of(&environment, &cuda, &program, PUBLIC);
            let truth = truth(&recorded.program);
            assert!(truth["array"] > 0 && truth["virtual"] == 0);
            assert_eq!(recorded.live(), truth, "{cudart:?}");
            let by = |name: &str| {
                let mut events = recorded.events.iter();
                events.any(|event| event.function.as_deref() == Some(name))
            };
            let is_dynamic = cudart == Cudart::Dynamic;
            assert_eq!(by("cudaMallocMipmappedArray"), is_dynamic);
            assert_eq!(by("cudaFreeMipmappedArray"), is_dynamic);
            assert!(by("cuMipmappedArrayCreate") && by("cuMipmappedArrayDestroy"));
        }
    }
}

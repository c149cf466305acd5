//! Calls as the kernel tells them, and the events that follow.

use super::*;
use crate::cuda::{FUNCTIONS, function_named};
use crate::event::Event;

/// A process, and what was seen of it.
#[derive(Default)]
struct Process {
    cuda: Cuda,
    segments: Segments,
}

/// What an event says: action, address, bytes, device.
type Seen = (Action, u64, u64, Option<u8>);

impl Process {
    fn from_the_start() -> Self {
        Self {
            cuda: Cuda::from_the_start(),
            ..Self::default()
        }
    }

    fn call(&mut self, name: &str, record: CudaRecord) -> &mut Self {
        self.call_by(Owner::Other, name, record)
    }

    fn call_by(&mut self, owner: Owner, name: &str, record: CudaRecord) -> &mut Self {
        let call = Call {
            function: function_named(name).expect("a function of CUDA"),
            record: &CudaRecord { tid: 1, ..record },
            owner,
            stack: StackId::NONE,
        };
        self.cuda.apply(&call, &mut self.segments);
        self
    }

    fn seen(&mut self) -> Vec<Seen> {
        self.segments.give_up();
        std::iter::from_fn(|| self.segments.pop())
            .filter_map(|event| match event {
                Event::Memory(event) => Some((
                    event.action,
                    event.addr.0,
                    event.size.0,
                    event.device.map(|device| device.0),
                )),
                _ => None,
            })
            .collect()
    }
}

fn args(args: [u64; 4]) -> CudaRecord {
    let [a, b, c, d] = args;
    CudaRecord {
        args: [a, b, c, d, 0, 0],
        ..CudaRecord::default()
    }
}

fn gave(out: u64, size: u64) -> CudaRecord {
    CudaRecord {
        out: [out, 0, 0, 0],
        ..args([1, size, 0, 0])
    }
}

/// `cuMemCreate` of `size` bytes on `device`.
fn created(handle: u64, size: u64, device: u64) -> CudaRecord {
    CudaRecord {
        description: [1, device << 32 | 1, 0, 0],
        ..gave(handle, size)
    }
}

#[test]
fn what_is_given_out_and_taken_back_is_told_with_its_size_and_device() {
    let mut process = Process::from_the_start();
    process
        .call("cudaMalloc", gave(0x1000, 700))
        .call("cudaHostAlloc", gave(0x2000, 80))
        .call("cudaFree", args([0x1000, 0, 0, 0]))
        .call("cudaFreeHost", args([0x2000, 0, 0, 0]));
    assert_eq!(
        process.seen(),
        [
            (Action::CudaAlloc, 0x1000, 700, Some(0)),
            (Action::CudaAlloc, 0x2000, 80, Some(0)),
            (Action::CudaFree, 0x1000, 700, Some(0)),
            (Action::CudaFree, 0x2000, 80, Some(0)),
        ]
    );
}

#[test]
fn nothing_asked_for_and_nothing_freed_is_no_event() {
    let mut process = Process::default();
    process
        .call("cudaMalloc", gave(0, 0))
        .call("cudaMalloc", gave(0x1000, 0))
        .call("cudaFree", args([0, 0, 0, 0]));
    assert_eq!(process.seen(), []);
}

#[test]
fn memory_that_was_pinned_later_lies_where_the_process_says() {
    let mut process = Process::default();
    process
        .call("cudaHostRegister", args([0x9000, 4096, 0, 0]))
        .call("cudaHostUnregister", args([0x9000, 0, 0, 0]));
    assert_eq!(
        process.seen(),
        [
            (Action::CudaAlloc, 0x9000, 4096, None),
            (Action::CudaFree, 0x9000, 4096, None)
        ]
    );
}

#[test]
fn the_driver_s_physical_memory_is_told_once_however_it_is_mapped() {
    let mut process = Process::default();
    process
        .call("cuMemCreate", created(7, 4096, 2))
        .call("cuMemMap", args([0x10000, 4096, 0, 7]))
        .call("cuMemRelease", args([7, 0, 0, 0]));
    assert_eq!(process.seen(), [(Action::CudaAlloc, 7, 4096, Some(2))]);
    process.call("cuMemUnmap", args([0x10000, 4096, 0, 0]));
    assert_eq!(process.seen(), [(Action::CudaFree, 7, 4096, Some(2))]);
}

#[test]
fn what_the_caching_allocator_maps_is_a_segment() {
    let mut process = Process::default();
    let by = Owner::Allocator;
    process
        .call_by(by, "cuMemCreate", created(7, 4096, 1))
        .call_by(by, "cuMemMap", args([0x10000, 4096, 0, 7]))
        .call_by(by, "cuMemUnmap", args([0x10000, 4096, 0, 0]))
        .call_by(by, "cuMemRelease", args([7, 0, 0, 0]));
    assert_eq!(
        process.seen(),
        [
            (Action::SegmentAlloc, 0x10000, 4096, Some(1)),
            (Action::SegmentFree, 0x10000, 4096, Some(1)),
        ]
    );
}

#[test]
fn a_destroyed_context_takes_its_memory_along_and_no_other() {
    let mut process = Process::from_the_start();
    let context = CudaRecord {
        out: [0xc0, 0, 0, 0],
        ..args([1, 0, 1, 0])
    };
    process
        .call("cuMemAlloc_v2", gave(0x1000, 10))
        .call("cuCtxCreate_v2", context)
        .call("cuMemAlloc_v2", gave(0x2000, 20))
        .call("cuMemCreate", created(7, 40, 1))
        .call("cuCtxDestroy_v2", args([0xc0, 0, 0, 0]));
    let seen = process.seen();
    assert_eq!(seen[1], (Action::CudaAlloc, 0x2000, 20, Some(1)));
    assert_eq!(seen[3..], [(Action::CudaFree, 0x2000, 20, Some(1))]);
}

#[test]
fn a_reset_device_takes_its_memory_along_and_no_other_device_s() {
    let mut process = Process::from_the_start();
    process
        .call("cudaMalloc", gave(0x1000, 10))
        .call("cudaSetDevice", args([1, 0, 0, 0]))
        .call("cudaMalloc", gave(0x2000, 20))
        .call("cudaDeviceReset", args([0, 0, 0, 0]));
    assert_eq!(
        process.seen()[2..],
        [(Action::CudaFree, 0x2000, 20, Some(1))]
    );
}

#[test]
fn the_last_reference_to_a_primary_context_takes_its_memory_along() {
    let mut process = Process::from_the_start();
    let primary = CudaRecord {
        out: [0xaa, 0, 0, 0],
        ..args([1, 0, 0, 0])
    };
    process
        .call("cuDevicePrimaryCtxRetain", primary)
        .call("cuCtxSetCurrent", args([0xaa, 0, 0, 0]))
        .call("cuMemAlloc_v2", gave(0x1000, 10))
        .call("cuDevicePrimaryCtxRelease_v2", args([0, 0, 0, 0]));
    assert_eq!(
        process.seen()[1..],
        [(Action::CudaFree, 0x1000, 10, Some(0))]
    );
}

#[test]
fn any_function_may_be_called_with_any_numbers() {
    let mut process = Process::default();
    for word in [0, 1, 2, 7, 0x1000, u64::MAX - 1, u64::MAX] {
        for function in FUNCTIONS {
            let record = CudaRecord {
                args: [word; 6],
                out: [word; 4],
                description: [word; 4],
                on_stack: [word; 3],
                second_out: word,
                ..CudaRecord::default()
            };
            process.call(function.name, record);
        }
    }
    process.seen();
}

//! Calls as the kernel tells them, and the events that follow.

use super::*;
use crate::cuda::calls::{FUNCTIONS, function_named};
use crate::event::Event;

/// A process, and what was seen of it.
struct Process {
    cuda: CudaResolver,
    segments: Segments,
    /// The thread and the library that call from now on.
    tid: u32,
    caller: CallerKind,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            cuda: CudaResolver::default(),
            segments: Segments::default(),
            tid: 1,
            caller: CallerKind::Other,
        }
    }
}

/// Essence of an event: action, address, bytes, device.
type Seen = (Action, u64, u64, Option<u8>);

impl Process {
    fn from_the_start() -> Self {
        Self {
            cuda: CudaResolver::from_the_start(),
            ..Self::default()
        }
    }

    fn call(&mut self, name: &str, record: CudaRecord) -> &mut Self {
        self.call_by(Owner::Other, name, record)
    }

    fn call_by(&mut self, owner: Owner, name: &str, record: CudaRecord) -> &mut Self {
        let call = Call {
            function: function_named(name).expect("a function of CUDA"),
            record: &CudaRecord {
                tid: self.tid,
                ..record
            },
            owner,
            caller: self.caller,
            stack: StackId::NONE,
        };
        self.cuda.apply(&call, &mut self.segments);
        self
    }

    /// The calls that follow are of that thread.
    fn on(&mut self, tid: u32) -> &mut Self {
        self.tid = tid;
        self
    }

    /// The calls that follow come from there.
    fn from(&mut self, caller: CallerKind) -> &mut Self {
        self.caller = caller;
        self
    }

    /// The device of an allocation by `name` on that thread.
    fn device_of(&mut self, tid: u32, name: &str) -> Option<u8> {
        self.seen();
        let before = std::mem::replace(&mut self.tid, tid);
        self.call(name, gave(0x7000, 64));
        self.tid = before;
        let seen = self.seen();
        let (_, _, _, device) = seen.last().expect("an event");
        *device
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

    /// Events of memory: contexts are events of 0 bytes.
    fn memory_seen(&mut self) -> Vec<Seen> {
        let mut seen = self.seen();
        seen.retain(|(_, _, size, _)| *size > 0);
        seen
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
        description: [1, device << 32 | 1, 0, 0, 0],
        ..gave(handle, size)
    }
}

#[test]
fn allocations_and_frees_have_size_and_device() {
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
fn physical_memory_of_the_driver_counts_once_for_all_mappings() {
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
        .call("cudaMalloc", gave(0x1000, 10))
        .call("cuCtxCreate_v2", context)
        .call("cuMemAlloc_v2", gave(0x2000, 20))
        .call("cuMemCreate", created(7, 40, 1))
        .call("cuCtxDestroy_v2", args([0xc0, 0, 0, 0]));
    let seen = process.memory_seen();
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
        process.memory_seen()[1..],
        [(Action::CudaFree, 0x1000, 10, Some(0))]
    );
}

/// `name` was called with these arguments and made `context` current on the way.
fn bound(words: [u64; 4], context: u64) -> CudaRecord {
    CudaRecord {
        context,
        ..args(words)
    }
}

#[test]
fn a_copy_of_the_runtime_works_on_the_device_that_the_runtime_was_seen_to_bind() {
    let mut process = Process::default();
    process
        .call("cudaSetDevice", bound([1, 0, 0, 0], 0xc1))
        .on(2)
        .call("cuCtxSetCurrent", args([0xc1, 0, 0, 0]));
    assert_eq!(process.device_of(2, "cuMemAlloc_v2"), Some(1));
    assert_eq!(process.device_of(1, "cudaMalloc"), Some(1));
    assert_eq!(process.device_of(3, "cuMemAlloc_v2"), None);
}

#[test]
fn the_runtime_binds_its_device_in_the_first_call_that_needs_one() {
    let mut process = Process::from_the_start();
    process
        .call("cudaFree", bound([0; 4], 0xc0))
        .call("cudaSetDevice", args([1, 0, 0, 0]))
        .call("cudaHostAlloc", bound([0; 4], 0xc1));
    for (context, device) in [(0xc0, 0), (0xc1, 1)] {
        process
            .on(2)
            .call("cuCtxSetCurrent", args([context, 0, 0, 0]));
        assert_eq!(process.device_of(2, "cuMemAlloc_v2"), Some(device));
    }
}

#[test]
fn a_call_of_the_runtime_that_is_not_probed_binds_the_threads_device() {
    let mut process = Process::from_the_start();
    process
        .from(CallerKind::Runtime)
        .call("cuCtxSetCurrent", args([0xc0, 0, 0, 0]))
        .from(CallerKind::Other);
    assert_eq!(process.device_of(1, "cudaMalloc"), Some(0));
    process.on(2).call("cuCtxSetCurrent", args([0xc0, 0, 0, 0]));
    assert_eq!(process.device_of(2, "cuMemAlloc_v2"), Some(0));
}

#[test]
fn a_reset_device_takes_along_what_was_allocated_before_its_context_was_known() {
    for (reset, argument) in [
        ("cudaDeviceReset", 0),
        ("cuDevicePrimaryCtxReset", 1),
        ("cuDevicePrimaryCtxReset_v2", 1),
    ] {
        let mut process = Process::default();
        process
            .on(2)
            .call("cuCtxSetCurrent", args([0xc1, 0, 0, 0]))
            .call("cuMemAlloc_v2", gave(0x1000, 10))
            .call("cuMemAllocAsync", gave(0x3000, 30))
            .on(1)
            .call("cudaSetDevice", bound([1, 0, 0, 0], 0xc1))
            .call("cudaMalloc", gave(0x2000, 20))
            .call(reset, args([argument, 0, 0, 0]));
        let seen = process.seen();
        assert_eq!(
            seen[3..],
            [
                (Action::CudaFree, 0x1000, 10, None),
                (Action::CudaFree, 0x2000, 20, Some(1))
            ],
            "memory of a pool outlives contexts"
        );
        process.on(2).call("cuCtxSetCurrent", args([0xc1, 0, 0, 0]));
        assert_eq!(process.device_of(2, "cuMemAlloc_v2"), None, "{reset}");
        assert_eq!(process.device_of(1, "cudaMalloc"), Some(1), "{reset}");
    }
}

#[test]
fn a_copy_of_the_runtime_resets_the_device_of_its_thread() {
    let reset = |process: &mut Process| {
        process
            .call("cuCtxSetCurrent", args([0xc1, 0, 0, 0]))
            .call("cuMemAlloc_v2", gave(0x1000, 10))
            .on(2)
            .call("cuCtxSetCurrent", args([0xc2, 0, 0, 0]))
            .call("cuMemAlloc_v2", gave(0x2000, 20))
            .on(1)
            .call("cuDevicePrimaryCtxReset", args([1, 0, 0, 0]));
        process.seen()[2..].to_vec()
    };
    let gone = [(Action::CudaFree, 0x1000, 10, None)];
    assert_eq!(reset(&mut Process::from_the_start()), gone);
    assert_eq!(reset(&mut Process::default()), gone);
    let mut device_1_has_another = Process::default();
    device_1_has_another.call("cudaSetDevice", bound([1, 0, 0, 0], 0xc5));
    assert_eq!(reset(&mut device_1_has_another), []);
    let mut context_is_known = Process::default();
    context_is_known.call("cudaSetDevice", bound([0, 0, 0, 0], 0xc1));
    assert_eq!(reset(&mut context_is_known), []);
}

#[test]
fn memory_of_a_green_context_goes_with_the_primary_one() {
    let mut process = Process::from_the_start();
    let green = CudaRecord {
        out: [0x60, 0, 0, 0],
        ..args([1, 2, 1, 0])
    };
    let context = CudaRecord {
        out: [0xc6, 0, 0, 0],
        ..args([1, 0x60, 0, 0])
    };
    process
        .call("cuGreenCtxCreate", green)
        .call("cuCtxFromGreenCtx", context)
        .call("cuCtxSetCurrent", args([0xc6, 0, 0, 0]))
        .call("cuMemAlloc_v2", gave(0x1000, 10))
        .call("cuGreenCtxDestroy", args([0x60, 0, 0, 0]));
    assert_eq!(
        process.seen(),
        [
            (Action::CudaAlloc, 0x1000, 10, Some(1)),
            (Action::CudaFree, 0x1000, 10, Some(1))
        ],
        "it held the only reference"
    );
    assert_eq!(process.device_of(1, "cuMemAlloc_v2"), None);
}

#[test]
fn a_context_lasts_until_its_last_use_is_detached() {
    let mut process = Process::from_the_start();
    let context = |arguments| CudaRecord {
        out: [0xc0, 0, 0, 0],
        ..args(arguments)
    };
    process
        .call("cuCtxCreate", context([1, 0, 1, 0]))
        .call("cuCtxAttach", context([1, 0, 0, 0]))
        .call("cuMemAlloc_v2", gave(0x1000, 10))
        .call("cuCtxDetach", args([0xc0, 0, 0, 0]));
    assert_eq!(
        process.memory_seen(),
        [(Action::CudaAlloc, 0x1000, 10, Some(1))]
    );
    process.call("cuCtxDetach", args([0xc0, 0, 0, 0]));
    assert_eq!(
        process.memory_seen(),
        [(Action::CudaFree, 0x1000, 10, Some(1))]
    );
}

#[test]
fn a_mipmapped_array_counts_all_its_levels() {
    let mut process = Process::from_the_start();
    let made = CudaRecord {
        out: [0xa0, 0, 0, 0],
        description: [32, 0, 2, 0, 0],
        on_stack: [8, 8, 0],
        ..args([1, 2, 3, 0])
    };
    process
        .call("cudaMallocMipmappedArray", made)
        .call("cudaFreeMipmappedArray", args([0xa0, 0, 0, 0]));
    let bytes = 4 * (64 + 16 + 4);
    assert_eq!(
        process.seen(),
        [
            (Action::CudaAlloc, 0xa0, bytes, Some(0)),
            (Action::CudaFree, 0xa0, bytes, Some(0))
        ]
    );
}

#[test]
fn memory_of_others_that_is_mapped_or_imported_is_not_counted_nor_taken_for_the_process_s_own() {
    let mut process = Process::default();
    let imported = |handle| CudaRecord {
        out: [handle, 0, 0, 0],
        ..args([1, 3, 1, 0])
    };
    process
        .call("cuMemCreate", created(7, 4096, 1))
        .call("cuMemImportFromShareableHandle", imported(9))
        // 11 is a multicast object.
        .call("cuMemMap", args([0x10000, 4096, 0, 9]))
        .call("cuMemMap", args([0x20000, 4096, 0, 11]))
        .call("cuMemUnmap", args([0x10000, 4096, 0, 0]))
        .call("cuMemUnmap", args([0x20000, 4096, 0, 0]))
        .call("cuMemRelease", args([9, 0, 0, 0]))
        .call("cuMemRelease", args([11, 0, 0, 0]));
    assert_eq!(process.seen(), [(Action::CudaAlloc, 7, 4096, Some(1))]);
    process
        .call("cuMemImportFromShareableHandle", imported(7))
        .call("cuMemRelease", args([7, 0, 0, 0]));
    assert_eq!(
        process.seen(),
        [],
        "the process's own, by another reference"
    );
    process.call("cuMemRelease", args([7, 0, 0, 0]));
    assert_eq!(process.seen(), [(Action::CudaFree, 7, 4096, Some(1))]);
}

#[test]
fn a_free_of_unknown_memory_ends_nothing_else() {
    let mut process = Process::from_the_start();
    process
        .call("cudaMalloc", gave(0x1000, 100))
        // By cuMemPoolImportPointer, cuExternalMemoryGetMappedBuffer or a node of a graph.
        .call("cuMemFree_v2", args([0x1040, 0, 0, 0]))
        .call("cuMemFreeAsync", args([0x9000, 0, 0, 0]))
        .call("cudaFreeMipmappedArray", args([0x1000, 0, 0, 0]))
        .call("cudaFree", args([0x1000, 0, 0, 0]));
    let seen = process.seen();
    let freed: Vec<_> = seen
        .iter()
        .map(|(_, addr, size, _)| (*addr, *size))
        .collect();
    assert_eq!(
        freed,
        [
            (0x1000, 100),
            (0x1040, 0),
            (0x9000, 0),
            (0x1000, 0),
            (0x1000, 100)
        ]
    );
}

#[test]
fn a_block_on_an_unexpected_device_makes_the_device_of_its_thread_unknown() {
    let mut process = Process::default();
    process
        .call("cudaSetDevice", bound([0, 0, 0, 0], 0xc0))
        .call_by(Owner::Allocator, "cudaMalloc", gave(0x1000, 4096))
        .segments
        .push(Event::Memory(MemoryEvent {
            action: Action::Alloc,
            addr: Address(0x1000),
            size: Bytes(512),
            device: Some(DeviceIndex(1)),
            ..event_of(TimeNs(1), Tgid(0), Tid(1))
        }));
    assert_eq!(process.device_of(1, "cudaMalloc"), None);
    process.call("cudaSetDevice", bound([0, 0, 0, 0], 0xc0));
    assert_eq!(process.device_of(1, "cudaMalloc"), Some(0));
}

#[test]
fn calls_that_were_missed_make_devices_unknown() {
    let mut process = Process::from_the_start();
    process.call("cudaSetDevice", bound([1, 0, 0, 0], 0xc1));
    process.cuda.forget_contexts();
    assert_eq!(process.device_of(1, "cudaMalloc"), None);
    assert_eq!(process.device_of(2, "cudaMalloc"), None);
    process.on(2).call("cuCtxSetCurrent", args([0xc1, 0, 0, 0]));
    assert_eq!(process.device_of(2, "cuMemAlloc_v2"), None);
}

#[test]
fn memory_of_another_process_is_there_until_its_last_closing() {
    let mut process = Process::default();
    let open = gave(0x7000, 0);
    let close = args([0x7000, 0, 0, 0]);
    process.call("cudaIpcOpenMemHandle", open);
    assert_eq!(process.seen(), [(Action::CudaAlloc, 0x7000, 0, None)]);
    process.call("cuIpcOpenMemHandle_v2", open);
    process.call("cuIpcCloseMemHandle", close);
    assert_eq!(process.seen(), []);
    process.call("cudaIpcCloseMemHandle", close);
    assert_eq!(process.seen(), [(Action::CudaFree, 0x7000, 0, None)]);
    process.call("cudaIpcOpenMemHandle", open);
    assert_eq!(process.seen(), [(Action::CudaAlloc, 0x7000, 0, None)]);
}

#[test]
fn any_function_may_be_called_with_any_numbers() {
    let mut process = Process::default();
    for word in [0, 1, 2, 7, 0x1000, u64::MAX - 1, u64::MAX] {
        for function in FUNCTIONS {
            let record = CudaRecord {
                args: [word; 6],
                out: [word; 4],
                description: [word; 5],
                on_stack: [word; 3],
                second_out: word,
                context: word,
                ..CudaRecord::default()
            };
            for caller in [CallerKind::Runtime, CallerKind::Other] {
                process.from(caller).call(function.name, record);
            }
        }
    }
    process.seen();
}

#[test]
fn a_failed_request_is_an_event_unless_the_caching_allocator_handles_it() {
    let failed = |size: u64| CudaRecord {
        error: CudaRecord::OUT_OF_MEMORY,
        args: [1, size, 3, 5, 0, 0],
        ..CudaRecord::default()
    };
    let mut process = Process::from_the_start();
    process.call("cudaMalloc", failed(64));
    process.call("cudaMallocPitch", failed(64));
    process.call("cudaHostRegister", failed(64));
    let device = process.seen();
    assert_eq!(
        device,
        [
            (Action::CudaOutOfMemory, 0, 64, Some(0)),
            (Action::CudaOutOfMemory, 0, 15, Some(0)),
            (Action::CudaOutOfMemory, 0, 64, Some(0)),
        ]
    );
    process.call_by(Owner::Allocator, "cudaMalloc", failed(64));
    process.call_by(Owner::Allocator, "cuMemCreate", failed(64));
    assert_eq!(process.seen(), []);
    // Its allocator over CUDA's own pools asks once, and reports nothing.
    process.call_by(Owner::Allocator, "cudaMallocAsync", failed(64));
    assert_eq!(process.seen().len(), 1);
    // A failed free is none.
    process.call("cudaFree", failed(64));
    assert_eq!(process.seen(), []);
}

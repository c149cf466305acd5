//! Catalog of probes: the functions, their symbols, and the kernel programs attached to them.

use std::sync::LazyLock;

use iced_x86::Register::{self, R8, R9, RBP, RCX, RDI, RDX, RSI, RSP};
use memprobe_common::{CudaCookie, Description, ProcessConfig, ThreadLocal, record};

use super::loader::{ALLOCATOR_ENTRY, CUDA_ENTRY, EVENT_WITH_STACK, Wanted};
use crate::cuda::calls::{Api, Effect, FUNCTIONS, Function};
use crate::event::CaptureLevel;
pub use crate::event::{Detail, GraphTracking};
use crate::process::elf::ThreadLocalName;

#[derive(Debug)]
pub struct Probe {
    pub function: &'static str,
    /// The file name of its library begins with this.
    pub library: &'static str,
    /// Its names in the library's symbol table, of which a version has one.
    pub symbols: &'static [&'static str],
    pub entry: &'static str,
    /// The mangled name of a function that it calls once: the probe is on the call. `None` for a probe on its entry.
    pub callee: Option<&'static str>,
    pub reads: &'static [Register],
    /// Cookie by which programs that serve several functions tell them apart.
    pub cookie: Option<u64>,
    pub need: Need,
    /// From which detail on it is attached.
    pub detail: Detail,
    pub allocators: Allocators,
    /// [`GraphTracking::On`] if it serves autograd's graph alone.
    pub graph: GraphTracking,
    /// The programs read this variable instead, in a library where it is found. Elsewhere the probe is attached.
    pub unless: Option<&'static ThreadVariable>,
}

impl Probe {
    /// Returns whether it is on a function of CUDA. These are attached all at once.
    pub fn is_cuda(&self) -> bool {
        self.entry == CUDA_ENTRY
    }

    /// The level of detail from which on it is off; `None` for a probe that always stays: it is hit rarely, and nothing
    /// that could be read later tells what it would have.
    fn given_up_at(&self) -> Option<CaptureLevel> {
        let is_out_of_memory = self.cookie == Some(record::OUT_OF_MEMORY.into());
        if self.detail > Detail::Lines {
            Some(CaptureLevel::WithoutShapes)
        } else if self.graph > GraphTracking::Off {
            Some(CaptureLevel::WithoutGraph)
        } else if [ALLOCATOR_ENTRY, EVENT_WITH_STACK].contains(&self.entry) && !is_out_of_memory {
            Some(CaptureLevel::Paused)
        } else {
            None
        }
    }

    /// True if it is in place at a level of detail.
    pub fn is_on(&self, level: CaptureLevel) -> bool {
        self.given_up_at().is_none_or(|off| level < off)
    }

    pub fn is_wanted(&self, wanted: Wanted) -> bool {
        let is_left = wanted.driver == DriverCalls::LeftAlone;
        self.detail <= wanted.detail
            && self.allocators <= wanted.allocators
            && self.graph <= wanted.graph
            && !(is_left && self.library == Api::Driver.library())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The caching allocator speaks through it. Without it, memprobe hears only what is below: see [`WITHOUT_BLOCKS`].
    Allocator,
    /// Without it something is missing, which is said.
    Optional(&'static str),
    /// Not every version of the library has it, and not every process has the library.
    WhereItIs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allocators {
    Cuda,
    /// CUDA devices, and PyTorch's CPU allocator.
    CudaAndCpu,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverCalls {
    #[default]
    Probed,
    /// Nothing in libcuda is probed, for processes in which others rewrite its functions.
    LeftAlone,
}

/// Consequences of missing or other probes, for people.
pub const WITHOUT_DRIVER: &str = "libcuda is left alone (--no-driver): memory that NCCL, cuBLAS and other libraries with \
                                  their own copy of the runtime ask for is not seen, nor are expandable segments";
pub const WITHOUT_BLOCKS: &str = "PyTorch's caching allocator cannot be heard; what is shown is \
                                  what it gets from CUDA";
pub const BY_TRACEPOINTS: &str = "PyTorch's caching allocator is heard through its tracepoints (USDT), \
                                  which tell what was asked for; totals are memprobe's own sums";
const WITHOUT_GRAPH: &str = "memory of backward passes is not led back to the forward pass";
const WITHOUT_SHAPES: &str = "tensors that it makes have no shape";
const WITHOUT_CPU: &str = "memory of the CPU is not seen, or not seen being freed";

/// The libraries with functions of CUDA, as [`Probe::library`] names them.
pub const CUDA_LIBRARIES: [&str; 2] = [Api::Runtime.library(), Api::Driver.library()];

pub const TRACEPOINT_LIBRARIES: &[&str] = &["libc10_cuda.so", "libtorch_cuda.so", "libtorch.so"];

/// The probes on the allocator's tracepoints, for builds without [`Need::Allocator`]'s function. Their
/// operands come from the library's notes.
pub static TRACEPOINTS: LazyLock<Vec<Probe>> = LazyLock::new(|| {
    let tracepoints = crate::cuda::calls::tracepoints().map(|(_, function)| Probe {
        function: function.name,
        library: function.api.library(),
        entry: "allocator_tracepoint",
        need: Need::Optional(WITHOUT_BLOCKS),
        ..ON_TORCH
    });
    tracepoints.collect()
});

/// The library of autograd's engine.
pub const TORCH_CPU: &str = "libtorch_cpu.so";

#[derive(Debug)]
pub struct ThreadVariable {
    pub library: &'static str,
    /// Its name in PyTorch's source.
    pub name: &'static str,
    /// Its names in the library's symbol table, of which a version has one.
    pub symbols: &'static [ThreadLocalName],
    pub config_field: fn(&mut ProcessConfig) -> &mut ThreadLocal,
    /// Consequence of its absence, for people; `None` if a probe serves instead ([`Probe::unless`]).
    pub without: Option<&'static str>,
    /// [`GraphTracking::On`] if it serves autograd's graph alone.
    pub graph: GraphTracking,
}

pub static THREAD_VARIABLES: [&ThreadVariable; 3] =
    [&GRAPH_TASK, &EVALUATING_NODE, &AUTOGRAD_STATE];

/// The engine's `current_graph_task` (torch/csrc/autograd/engine.cpp@v2.15.0 and @v2.0.1). It is a
/// variable of a lambda, which compilers before GCC 11 name by its number in its source alone.
static GRAPH_TASK: ThreadVariable = ThreadVariable {
    library: TORCH_CPU,
    name: "current_graph_task",
    symbols: &[
        ThreadLocalName::of("_ZZNK5torch8autogradL22tls_current_graph_taskMUlvE_clEvE3var"),
        // The wheels of 2.0 to 2.6.
        ThreadLocalName {
            source: Some("engine.cpp"),
            ..ThreadLocalName::of(OLD_LAMBDA_VARIABLE)
        },
    ],
    config_field: |config| &mut config.graph_task,
    without: Some(
        "autograd's current_graph_task was not found: when several threads run backward() \
         at once, their memory has no line",
    ),
    graph: GraphTracking::Off,
};

/// The node that a thread evaluates (torch/csrc/autograd/function.cpp@v2.15.0 and @v2.0.1), a variable of a lambda too.
static EVALUATING_NODE: ThreadVariable = ThreadVariable {
    library: TORCH_CPU,
    name: "current_evaluating_node",
    symbols: &[
        ThreadLocalName::of("_ZZNK5torch8autogradL27tls_current_evaluating_nodeMUlvE_clEvE3var"),
        ThreadLocalName {
            source: Some("function.cpp"),
            ..ThreadLocalName::of(OLD_LAMBDA_VARIABLE)
        },
    ],
    config_field: |config| &mut config.evaluating_node,
    without: None,
    graph: GraphTracking::On,
};

/// `c10::AutogradState` (c10/core/AutogradState.cpp@v2.15.0): its modes are bits of one byte.
static AUTOGRAD_STATE: ThreadVariable = ThreadVariable {
    library: "libc10.so",
    name: "autograd_state_tls",
    symbols: &[
        // From 2.12 on an `optional<SafePyObject>` comes before them.
        ThreadLocalName {
            size: Some(32),
            within: 24,
            ..ThreadLocalName::of(AUTOGRAD_STATE_SYMBOL)
        },
        // Up to 2.11 there is nothing else.
        ThreadLocalName {
            size: Some(1),
            ..ThreadLocalName::of(AUTOGRAD_STATE_SYMBOL)
        },
    ],
    config_field: |config| &mut config.autograd_state,
    without: Some("autograd's modes were not found: whether grad was enabled is not known"),
    graph: GraphTracking::Off,
};

/// `c10::(anonymous namespace)::autograd_state_tls`.
const AUTOGRAD_STATE_SYMBOL: &str = "_ZN3c1012_GLOBAL__N_118autograd_state_tlsE";

/// The variable of each lambda in `torch::autograd` by which a source file has a thread-local variable, in the wheels of
/// 2.0 to 2.6.
const OLD_LAMBDA_VARIABLE: &str = "_ZZNK5torch8autogradUlvE_clEvE3var";

/// One of the two functions that make every tensor which has memory of its own (aten/src/ATen/EmptyTensor.cpp@v2.15.0).
pub const EMPTY: &str = "at::detail::empty_generic";
/// [`EMPTY`] with strides.
pub const EMPTY_STRIDED: &str = "at::detail::empty_strided_generic";

/// Every probe, in the order of attaching: the one with the most events last.
pub static PROBES: LazyLock<Vec<Probe>> = LazyLock::new(|| {
    let functions = (0..).zip(FUNCTIONS);
    let cuda = functions.filter(|(_, function)| function.api != Api::Tracepoint);
    cuda.map(of_cuda).chain(PYTORCH).collect()
});

/// Registers that the programs for CUDA's functions read: the arguments, and the stack pointer, at
/// which the kernel takes the return address.
const CUDA_READS: [Register; 7] = [RDI, RSI, RDX, RCX, R8, R9, RSP];

fn of_cuda((number, function): (u8, &'static Function)) -> Probe {
    let cookie = CudaCookie {
        function: number,
        wants_stack: function.effect.wants_stack(),
        sets_context: function.effect == Effect::SetsContext,
        description: function
            .effect
            .description()
            .map(|(argument, bytes)| Description { argument, bytes }),
    };
    Probe {
        function: function.symbol,
        library: function.api.library(),
        symbols: std::slice::from_ref(&function.symbol),
        entry: CUDA_ENTRY,
        reads: &CUDA_READS,
        cookie: Some(cookie.to_word()),
        ..ON_TORCH
    }
}

/// `torch::autograd::Engine::evaluate_function`.
const EVALUATE_FUNCTION: &str = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE";

/// The fields that most probes on PyTorch have in common.
const ON_TORCH: Probe = Probe {
    function: "",
    library: TORCH_CPU,
    symbols: &[],
    entry: "",
    callee: None,
    reads: &[],
    cookie: None,
    need: Need::WhereItIs,
    detail: Detail::Lines,
    allocators: Allocators::Cuda,
    graph: GraphTracking::Off,
    unless: None,
};

/// The fields of a probe whose program sends records of a kind, with a stack.
const fn with_stack(record: u8) -> Probe {
    Probe {
        entry: EVENT_WITH_STACK,
        cookie: Some(record as u64),
        ..ON_TORCH
    }
}

/// The probes on PyTorch, with symbols and registers of its x86-64 wheels 2.0 to 2.15.
const PYTORCH: [Probe; 11] = [
    Probe {
        function: "c10::reportOutOfMemoryToProfiler",
        library: "libc10.so",
        symbols: &["_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"],
        reads: &[RDI, RSI, RDX, RCX],
        need: Need::Optional("out-of-memory errors are not seen"),
        ..with_stack(record::OUT_OF_MEMORY)
    },
    Probe {
        function: "torch::autograd::Engine::execute_with_graph_task",
        symbols: &[
            // From 2.13 on.
            "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE",
            "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11InputBufferE",
        ],
        reads: &[RDX],
        need: Need::Optional("memory of backward passes has no line"),
        ..with_stack(record::BACKWARD)
    },
    Probe {
        function: "torch::autograd::profiler::record_function_enter_new",
        symbols: &[
            // From 2.7 on.
            "_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E",
            // From 2.2 on.
            "_ZN5torch8autograd8profiler25record_function_enter_newERKSsRKSt8optionalISsE",
            "_ZN5torch8autograd8profiler25record_function_enter_newERKSsRKN3c108optionalISsEE",
        ],
        reads: &[RSI, RSP],
        need: Need::Optional("steps of optimizers and batches of data loaders are not seen"),
        ..with_stack(record::MARK)
    },
    Probe {
        function: "torch::autograd::Engine::evaluate_function",
        symbols: &[EVALUATE_FUNCTION],
        entry: "evaluate_function",
        reads: &[RSI, RDX, RSP],
        need: Need::Optional(WITHOUT_GRAPH),
        graph: GraphTracking::On,
        unless: Some(&EVALUATING_NODE),
        ..ON_TORCH
    },
    // The loop of the distributed engine, for nodes on the CPU, which does without `NodeGuard`
    // (torch/csrc/distributed/autograd/engine/dist_engine.cpp@v2.15.0 and @v2.0.1).
    Probe {
        function: "torch::distributed::autograd::DistEngine::execute_graph_task_until_ready_queue_empty",
        symbols: &[
            "_ZN5torch11distributed8autograd10DistEngine42execute_graph_task_until_ready_queue_emptyEONS_8autograd8NodeTaskEb",
        ],
        entry: "evaluate_function",
        callee: Some(EVALUATE_FUNCTION),
        reads: &[RSI, RDX, RSP],
        graph: GraphTracking::On,
        ..ON_TORCH
    },
    Probe {
        function: "torch::autograd::impl::set_gradient_edge",
        symbols: &["_ZN5torch8autograd4impl17set_gradient_edgeERKN2at6TensorENS0_4EdgeE"],
        reads: &[RSI, RSP],
        need: Need::Optional(WITHOUT_GRAPH),
        graph: GraphTracking::On,
        ..with_stack(record::NODE_MADE)
    },
    Probe {
        function: EMPTY,
        symbols: &[
            // From 2.2 on.
            "_ZN2at6detail13empty_genericEN3c108ArrayRefIlEEPNS1_9AllocatorENS1_14DispatchKeySetENS1_10ScalarTypeESt8optionalINS1_12MemoryFormatEE",
            "_ZN2at6detail13empty_genericEN3c108ArrayRefIlEEPNS1_9AllocatorENS1_14DispatchKeySetENS1_10ScalarTypeENS1_8optionalINS1_12MemoryFormatEEE",
        ],
        entry: "empty_generic",
        reads: &[RSI, RDX, R8, R9],
        need: Need::Optional(WITHOUT_SHAPES),
        detail: Detail::Tensors,
        ..ON_TORCH
    },
    Probe {
        function: EMPTY_STRIDED,
        symbols: &[
            "_ZN2at6detail21empty_strided_genericEN3c108ArrayRefIlEES3_PNS1_9AllocatorENS1_14DispatchKeySetENS1_10ScalarTypeE",
        ],
        entry: "empty_strided_generic",
        // Two arguments come on the stack.
        reads: &[RSI, RDX, RCX, RSP],
        need: Need::Optional(WITHOUT_SHAPES),
        detail: Detail::Tensors,
        ..ON_TORCH
    },
    Probe {
        function: "c10::ProfiledCPUMemoryReporter::Delete",
        library: "libc10.so",
        symbols: &["_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv"],
        entry: "cpu_delete",
        reads: &[RSI],
        need: Need::Optional(WITHOUT_CPU),
        allocators: Allocators::CudaAndCpu,
        ..ON_TORCH
    },
    Probe {
        function: "c10::ProfiledCPUMemoryReporter::New",
        library: "libc10.so",
        symbols: &["_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm"],
        reads: &[RSI, RDX],
        need: Need::Optional(WITHOUT_CPU),
        allocators: Allocators::CudaAndCpu,
        ..with_stack(record::CPU_BLOCK)
    },
    Probe {
        function: "c10::reportMemoryUsageToProfiler",
        library: "libc10.so",
        symbols: &["_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"],
        // The stack is copied from its return address on.
        reads: &[RDI, RSI, RDX, RCX, R8, RSP, RBP],
        need: Need::Allocator,
        entry: ALLOCATOR_ENTRY,
        ..with_stack(record::BLOCK)
    },
];

/// The probe on CPython's own way of freeing code objects. Its function is no symbol of a release
/// build; it is found through `PyCode_Type`.
pub const CODE_FREED: Probe = Probe {
    function: "code_dealloc",
    library: "libpython",
    entry: "code_freed",
    reads: &[RDI],
    need: Need::Optional("lines of code that is made and dropped at run time may be unknown"),
    ..ON_TORCH
};

/// The probe on the dynamic loader's way of telling a debugger that it maps libraries (elf/dl-debug.c in glibc,
/// ldso/dynlink.c in musl). It tells before and after; the code of what it has mapped has not run by then.
pub const LIBRARY_MAPPED: Probe = Probe {
    function: "_dl_debug_state",
    library: "ld-linux",
    symbols: &["_dl_debug_state"],
    entry: "library_mapped",
    need: Need::Optional("libraries that are loaded later are found by looking now and then"),
    ..ON_TORCH
};

/// The files of dynamic loaders begin with one of these (glibc, before and since 2.34 under its versioned name; musl).
pub const DYNAMIC_LOADERS: &[&str] = &["ld-linux-x86-64.so", "ld-linux", "ld-musl", "ld-2"];

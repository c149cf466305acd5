//! Which functions are probed: the table that leads from a symbol to a program.

use iced_x86::Register;

/// One probed function.
#[derive(Debug)]
pub struct Probe {
    /// How people call the function.
    pub function: &'static str,
    /// The file name of its library begins with this.
    pub library: &'static str,
    /// Its name in the library's symbol table.
    pub symbol: &'static str,
    /// The program that runs at its entry.
    pub entry: &'static str,
    /// The program that runs when it returns.
    pub returns: Option<&'static str>,
    /// The registers that the entry program reads.
    pub reads: &'static [Register],
    /// Whether memprobe can do its work without it.
    pub need: Need,
}

/// Whether memprobe can do its work without a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it there is nothing to show.
    Required,
    /// Without it something is missing, which is said.
    Optional(&'static str),
}

/// Every probe, in the order of attaching: the one with the most events last. Symbols and registers are those of the x86-64 wheels of PyTorch 2.0 to 2.15 and of
/// libcudart 11.0 to 13.2.
pub const PROBES: &[Probe] = &[
    Probe {
        function: "c10::reportOutOfMemoryToProfiler",
        library: "libc10.so",
        symbol: "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
        entry: "report_out_of_memory",
        returns: None,
        reads: &[Register::RDI, Register::RSI, Register::RDX, Register::RCX],
        need: Need::Optional("out-of-memory errors are not seen"),
    },
    Probe {
        function: "cudaMalloc",
        library: "libcudart",
        symbol: "cudaMalloc",
        entry: "cuda_malloc",
        returns: Some("cuda_malloc_return"),
        reads: &[Register::RDI, Register::RSI],
        need: Need::Optional("segments are not seen"),
    },
    Probe {
        function: "cudaFree",
        library: "libcudart",
        symbol: "cudaFree",
        entry: "cuda_free",
        returns: Some("cuda_free_return"),
        reads: &[Register::RDI],
        need: Need::Optional("freed segments are not seen"),
    },
    Probe {
        function: "torch::autograd::Engine::execute",
        library: "libtorch_cpu.so",
        symbol: "_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_",
        entry: "engine_execute",
        returns: None,
        reads: &[],
        need: Need::Optional("memory of backward passes has no line"),
    },
    Probe {
        function: "c10::reportMemoryUsageToProfiler",
        library: "libc10.so",
        symbol: "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
        entry: "report_memory_usage",
        returns: None,
        reads: &[
            Register::RDI,
            Register::RSI,
            Register::RDX,
            Register::RCX,
            Register::R8,
        ],
        need: Need::Required,
    },
];

/// The probe on CPython's own way of freeing code objects. Its function is no symbol of a release
/// build; it is found through `PyCode_Type`.
pub const CODE_FREED: Probe = Probe {
    function: "code_dealloc",
    library: "libpython",
    symbol: "",
    entry: "code_freed",
    returns: None,
    reads: &[Register::RDI],
    need: Need::Optional("lines of code that is made and dropped at run time may be unknown"),
};

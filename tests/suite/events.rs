//! What memprobe saw, as `memprobe report --by event --format jsonl` prints it.

use serde::Deserialize;

use crate::reference::TraceFrame;

/// An event. Keys beyond these are an error: the suite is to know them all.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The thread; none for `held`.
    pub tid: Option<u32>,
    /// `alloc`, `free`, `segment_alloc`, `segment_free`, `cuda_alloc`, `cuda_free`, `oom` or `held`.
    pub action: String,
    /// The block or segment; none for `oom`.
    pub addr: Option<u64>,
    /// Bytes; none where unknown.
    pub size: Option<u64>,
    /// Device ordinal; none where unknown.
    pub device: Option<u8>,
    /// The allocator's total on the device after it; none for segments.
    pub allocated: Option<u64>,
    /// As `allocated`.
    pub reserved: Option<u64>,
    /// The function of CUDA; none for blocks.
    #[serde(default)]
    pub function: Option<String>,
    /// The kind of memory that CUDA gave out; none for blocks.
    #[serde(default)]
    pub space: Option<String>,
    /// Elements in each dimension of the tensor that it was allocated for.
    #[serde(default)]
    pub shape: Option<Vec<u64>>,
    /// Dimensions beyond those of `shape`.
    #[serde(default)]
    pub more_dimensions: Option<u32>,
    /// The element type, without `torch.`.
    #[serde(default)]
    pub dtype: Option<String>,
    /// Bytes that the tensor asked for.
    #[serde(default)]
    pub requested: Option<u64>,
    /// False where it is known to be for no tensor.
    #[serde(default)]
    pub tensor: Option<bool>,
    /// What it was allocated for then.
    #[serde(default)]
    pub inferred: Option<Inferred>,
    /// Innermost first.
    pub stack: Vec<TraceFrame>,
    /// The innermost module that was being called.
    #[serde(default)]
    pub module: Option<String>,
    /// A module was being called, but not known which.
    #[serde(default)]
    pub module_unknown: Option<bool>,
    /// `enabled`, `disabled` or `inference`.
    #[serde(default)]
    pub grad: Option<String>,
    /// The native code that called into CUDA, innermost first.
    #[serde(default)]
    pub native: Vec<NativeFrame>,
    /// The thread's name, where it runs no Python.
    #[serde(default)]
    pub thread: Option<String>,
    /// The stack of the Python thread that waits for it.
    #[serde(default)]
    pub waiting: Option<Vec<TraceFrame>>,
    /// What was being computed in a backward pass.
    #[serde(default)]
    pub node: Option<Node>,
    /// Why there is no stack.
    #[serde(default)]
    pub no_stack: Option<String>,
    /// Outer frames are missing.
    #[serde(default)]
    pub stack_truncated: Option<bool>,
}

impl Event {
    /// Whether it is of the caching allocator, and so of PyTorch's own recorder too. That does not
    /// know what others ask of CUDA, such as the pinned page of `Tensor.item()`.
    pub fn is_of_the_allocator(&self) -> bool {
        !self.action.starts_with("cuda_")
    }
}

/// What a block without a tensor is for, told from who asked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inferred {
    /// None where no function tells.
    #[serde(rename = "use")]
    pub what: Option<String>,
    /// The function.
    pub function: String,
    /// Its library.
    pub library: String,
}

/// A node of autograd's graph.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// As PyTorch names it.
    pub name: String,
    /// The stack of the operation that made it, innermost first; none where that is not known.
    pub forward: Option<Vec<TraceFrame>>,
}

/// A place in native code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NativeFrame {
    /// The source; empty where it is not known.
    pub file: String,
    /// The line; none where it is not known.
    pub line: Option<u32>,
    /// The function.
    pub function: String,
    /// The library or program.
    pub library: String,
}

/// Reads one event a line.
///
/// # Panics
///
/// Where a line is none.
pub fn parse_events(jsonl: &str) -> Vec<Event> {
    jsonl
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
        .collect()
}

//! Events as printed by `memprobe report --by event --format jsonl`.

use serde::Deserialize;

use crate::reference::TraceFrame;

/// An event. Unknown keys are an error, so that the suite covers every key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Thread; `None` for `held`.
    pub tid: Option<u32>,
    /// `alloc`, `free`, `segment_alloc`, `segment_free`, `cuda_alloc`, `cuda_free`, `oom`, `cuda_oom` or `held`.
    pub action: String,
    /// Address of the block or segment; `None` for `oom` and `cuda_oom`.
    pub addr: Option<u64>,
    /// Bytes; `None` if unknown.
    pub size: Option<u64>,
    /// Device ordinal; `None` if unknown.
    pub device: Option<u8>,
    /// Allocator's total on the device after the event, in bytes; `None` for segments.
    pub allocated: Option<u64>,
    /// Like `allocated`, for reserved bytes.
    pub reserved: Option<u64>,
    /// CUDA function; `None` for blocks.
    #[serde(default)]
    pub function: Option<String>,
    /// Kind of memory that CUDA allocated; `None` for blocks.
    #[serde(default)]
    pub space: Option<String>,
    /// Elements in each dimension of the block's tensor.
    #[serde(default)]
    pub shape: Option<Vec<u64>>,
    /// Number of dimensions beyond those in `shape`.
    #[serde(default)]
    pub more_dimensions: Option<u32>,
    /// Element type, without `torch.`.
    #[serde(default)]
    pub dtype: Option<String>,
    /// Bytes requested for the tensor.
    #[serde(default)]
    pub requested: Option<u64>,
    /// False if the block is known to have no tensor.
    #[serde(default)]
    pub tensor: Option<bool>,
    /// Inferred purpose of a block without a tensor.
    #[serde(default)]
    pub inferred: Option<Inferred>,
    /// Innermost first.
    pub stack: Vec<TraceFrame>,
    /// Innermost active module.
    #[serde(default)]
    pub module: Option<String>,
    /// True if a module was active but could not be identified.
    #[serde(default)]
    pub module_unknown: Option<bool>,
    /// `enabled`, `disabled` or `inference`.
    #[serde(default)]
    pub grad: Option<String>,
    /// Native frames that called into CUDA, innermost first.
    #[serde(default)]
    pub native: Vec<NativeFrame>,
    /// Thread name, if the thread runs no Python.
    #[serde(default)]
    pub thread: Option<String>,
    /// Stack of the Python thread that waits for this thread.
    #[serde(default)]
    pub waiting: Option<Vec<TraceFrame>>,
    /// Autograd node under evaluation in a backward pass.
    #[serde(default)]
    pub node: Option<Node>,
    /// Reason for a missing stack.
    #[serde(default)]
    pub no_stack: Option<String>,
    /// True if outer frames are missing.
    #[serde(default)]
    pub stack_truncated: Option<bool>,
}

impl Event {
    /// True if the event is the caching allocator's, and so also in PyTorch's own recorder. The
    /// recorder omits other requests to CUDA, such as the pinned page of `Tensor.item()`.
    pub fn is_of_the_allocator(&self) -> bool {
        !self.action.starts_with("cuda_")
    }
}

/// Purpose of a block without a tensor, inferred from the requesting function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inferred {
    /// `None` if no known function is on the stack.
    #[serde(rename = "purpose")]
    pub what: Option<String>,
    pub function: String,
    /// Library that contains the function.
    pub library: String,
}

/// A node of autograd's graph.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Name as PyTorch prints it.
    pub name: String,
    /// Stack of the operation that created the node, innermost first; `None` if unknown.
    pub forward: Option<Vec<TraceFrame>>,
}

/// A native frame.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NativeFrame {
    /// Source file; empty if unknown.
    pub file: String,
    /// Line; `None` if unknown.
    pub line: Option<u32>,
    pub function: String,
    /// Library or program.
    pub library: String,
}

/// Parses one event per line.
///
/// # Panics
///
/// If a line is not an event.
pub fn parse_events(jsonl: &str) -> Vec<Event> {
    jsonl
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
        .collect()
}

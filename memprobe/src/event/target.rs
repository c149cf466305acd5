//! Identity of the observed process, and its probes.

use serde::{Deserialize, Serialize};

use super::{DeviceIdentity, DeviceIndex, Gpu, Tgid};

/// Observed process. Its texts come from the target and may hold anything: views clean them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Target {
    /// Process id; `None` in a report whose recording lacks it.
    #[serde(rename = "pid")]
    pub tgid: Option<Tgid>,
    /// Process id in its own PID namespace, if that differs from memprobe's.
    #[serde(rename = "inner_pid", skip_serializing_if = "Option::is_none")]
    pub inner_tgid: Option<Tgid>,
    /// Name of its pod, container or batch job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub command: String,
    pub python: Option<String>,
    /// Version, such as `2.15.0+cu132`.
    pub torch: Option<String>,
    /// Settings of PyTorch's CUDA allocator in the environment: `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF`. Calls
    /// that change them at run time are not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator_conf: Option<String>,
    /// GPUs behind the ordinals of its devices, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<DeviceIdentity>,
    /// Libraries at attach that may have got device memory before it; empty for a process seen from its start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<LoadedLibrary>,
}

/// Library that gets device memory from CUDA by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedLibrary {
    /// Path, as the kernel shows it to memprobe.
    pub path: String,
    /// Signs of use; a library without one may be loaded and idle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signs: Vec<UseSign>,
}

/// Sign that a process has used a library, with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UseSign {
    /// Process groups of `torch.distributed` over NCCL, in the order of their making.
    ProcessGroups(Vec<ProcessGroup>),
    /// Watchdog threads of PyTorch's `ProcessGroupNCCL`, one for each process group.
    WatchdogThreads(u32),
    /// Mapped files of `/dev/shm` that NCCL shares among ranks.
    SharedFiles(u32),
    /// Parts that a library loads at its first use.
    LoadedParts(u32),
    /// Modules that a library compiled for the program.
    CompiledModules(u32),
    /// Private pools of PyTorch's allocator that CUDA graphs made.
    GraphPools(u32),
}

/// Ranks of `torch.distributed` that communicate with each other. The process is one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessGroup {
    pub name: String,
    /// Number of its ranks.
    pub size: u32,
    /// Global ranks, ascending; empty if they are too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
}

impl Target {
    /// Returns the GPU behind an ordinal; `None` if it is unknown.
    pub fn gpu(&self, device: DeviceIndex) -> Option<&Gpu> {
        self.identity(device)?.gpu.as_ref()
    }

    pub fn identity(&self, device: DeviceIndex) -> Option<&DeviceIdentity> {
        self.gpus.iter().find(|identity| identity.device == device)
    }
}

/// Attached probe: its function, its offset, and the way the kernel runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Demangled name of the function: `c10::reportMemoryUsageToProfiler`.
    pub function: String,
    pub library: String,
    /// Bytes from the function's first instruction.
    pub offset: u64,
    /// True if the kernel emulates the instruction there (cheap); otherwise it single-steps it.
    pub emulated: bool,
}

impl ProbeStatus {
    /// Returns true if the probe is hit so often that single-stepping slows the target noticeably.
    /// Probes on CUDA's own functions are not.
    pub fn is_busy(&self) -> bool {
        !self.function.starts_with("cu")
    }
}

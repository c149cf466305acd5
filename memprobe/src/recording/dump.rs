//! Facts in the header of a dump, which `watch` writes: its reason, and the memory of the GPUs at that moment.

use serde::{Deserialize, Serialize};

use crate::event::{DeviceIndex, TimeNs};

/// Most processes of a GPU that a dump names.
pub const MAX_DUMPED_PROCESSES: usize = 64;

/// Longest command line of a process in a dump, in characters.
pub const MAX_DUMPED_COMMAND: usize = 200;

/// Reason of a dump, and what its events do not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DumpFacts {
    pub reason: DumpReason,
    /// Moment that the dump is about. The events end there.
    #[serde(rename = "time_ns")]
    pub time: TimeNs,
    /// Out-of-memory errors of this process since its last dump that were only counted.
    pub counted_ooms: u64,
    /// Memory of the GPUs of this process, as the driver counts it.
    pub gpus: Vec<DumpedGpu>,
    /// Reason why GPUs are missing; `None` if the driver answered.
    pub gpus_unknown: Option<String>,
    /// Consistency of the reading of the process's objects, in words; `None` if they were not read.
    pub objects: Option<String>,
    /// Reason why the process's objects were not read.
    pub objects_unread: Option<String>,
    /// Live blocks beyond the limit, whose bytes count as from before.
    pub blocks_left_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DumpReason {
    OutOfMemory,
    /// A signal, or `watch --dump`.
    Requested,
}

/// Memory of a GPU at a dump, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpedGpu {
    /// Ordinal in the process of the dump.
    pub device: DeviceIndex,
    #[serde(rename = "asked_ns")]
    pub asked: TimeNs,
    pub total: u64,
    pub used: u64,
    /// Bytes of the process of the dump; `None` if the driver does not say.
    pub own: Option<u64>,
    /// Other processes, largest first, at most [`MAX_DUMPED_PROCESSES`].
    pub others: Vec<DumpedProcess>,
    /// Reason why processes may be missing.
    pub others_unknown: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpedProcess {
    pub pid: u32,
    pub command: String,
    /// `None` if the driver does not say.
    pub bytes: Option<u64>,
    /// Bytes that PyTorch's allocator caches there; `None` if the process is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
}

impl DumpFacts {
    pub fn gpu(&self, device: DeviceIndex) -> Option<&DumpedGpu> {
        self.gpus.iter().find(|gpu| gpu.device == device)
    }
}

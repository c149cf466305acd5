//! Questions to one device, and why the driver does not answer.

use nvml_wrapper::error::NvmlError;

use super::form::RawList;

/// Process lists of NVML. Graphics processes are not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    /// Processes with a compute context, the server of MPS among them.
    Compute,
    Mps,
}

/// Functions that give a process list, by the end of their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryPoint {
    /// `_v3`: since R510; documented with 24 bytes an entry.
    V3,
    /// `_v2`: since R470; 24 bytes.
    V2,
    /// No suffix: every driver; 16 bytes.
    V1,
    /// `nvmlDeviceGetRunningProcessDetailList`: since R535; 32 bytes, and a version of its own.
    /// nvml.h 13.5 names it for Hopper and newer only, so it comes last.
    DetailList,
}

impl EntryPoint {
    pub(super) const ALL: [Self; 4] = [Self::V3, Self::V2, Self::V1, Self::DetailList];

    pub fn name(self, kind: ListKind) -> String {
        let suffix = match self {
            Self::V3 => "_v3",
            Self::V2 => "_v2",
            Self::V1 => "",
            Self::DetailList => return "nvmlDeviceGetRunningProcessDetailList".to_owned(),
        };
        match kind {
            ListKind::Compute => format!("nvmlDeviceGetComputeRunningProcesses{suffix}"),
            ListKind::Mps => format!("nvmlDeviceGetMPSComputeRunningProcesses{suffix}"),
        }
    }
}

/// `nvmlMemory_t` or `nvmlMemory_v2_t`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RawMemory {
    pub(super) total: u64,
    /// Only the second form has it.
    pub(super) reserved: Option<u64>,
    pub(super) free: u64,
    pub(super) used: u64,
}

/// A MIG device, and the id of the GPU instance that it is part of.
pub(super) struct MigDevice<Q> {
    pub(super) device: Q,
    /// Devices of one GPU instance share its memory.
    pub(super) gpu_instance: Option<u32>,
    /// Number among the MIG devices of its GPU.
    pub(super) index: u32,
}

pub(super) type Asked<T> = Result<T, QueryRefusal>;

/// A device, or a MIG device of one, that answers questions.
pub(super) trait DeviceQuery: Sized {
    /// Asks for a process list with room for so many entries.
    fn processes(&self, kind: ListKind, point: EntryPoint, capacity: u32) -> Asked<RawList>;

    fn memory_v2(&self) -> Asked<RawMemory>;

    fn memory_v1(&self) -> Asked<RawMemory>;

    fn mig_devices(&self) -> Vec<MigDevice<Self>>;

    /// Asks for the identifiers; all are unknown where the driver does not answer.
    fn identity(&self) -> RawIdentity;
}

/// Identifiers of a device, or of a MIG device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RawIdentity {
    pub(super) uuid: Option<String>,
    pub(super) pci_bus_id: Option<String>,
    pub(super) minor: Option<u32>,
    pub(super) is_in_mig_mode: bool,
    /// Compute instance of a MIG device.
    pub(super) compute_instance: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryRefusal {
    #[error("the driver is too old to be asked")]
    Missing,
    /// There are this many entries, more than there was room for.
    #[error("the driver lists {0} processes, too many to read")]
    Room(u32),
    #[error("the driver does not support it on this GPU")]
    NotSupported,
    #[error("the driver does not permit it: run memprobe as root")]
    NoPermission,
    #[error("the driver does not answer: {0}")]
    Other(String),
}

impl From<NvmlError> for QueryRefusal {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::FailedToLoadSymbol(_) => Self::Missing,
            // The kernel's half of the driver does not know what the library asks.
            NvmlError::NotSupported | NvmlError::FunctionNotFound => Self::NotSupported,
            NvmlError::NoPermission => Self::NoPermission,
            other => Self::Other(other.to_string()),
        }
    }
}

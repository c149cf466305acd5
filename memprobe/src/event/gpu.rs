//! Identity of the physical GPUs behind the device ordinals of a process.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{Bytes, DeviceIndex};

/// Physical GPU behind one ordinal of a process. Its texts may hold anything: views clean them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceIdentity {
    pub device: DeviceIndex,
    /// `None` if it cannot be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Reason why `gpu` is `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Number in `nvidia-smi`; `None` if NVML does not list the GPU.
    pub index: Option<u32>,
    /// Such as `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: Option<String>,
    pub pci_bus_id: Option<String>,
    /// MIG device of the GPU that the process has in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigIdentity>,
    /// Its memory as the driver counts it, or else as CUDA told the process; `None` if neither is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    pub source: IdentitySource,
}

/// MIG device of a GPU in MIG mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigIdentity {
    /// Number among the MIG devices of its GPU, in `nvidia-smi`; `None` if it is not known which it is.
    pub index: Option<u32>,
    pub uuid: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum IdentitySource {
    /// UUID that CUDA gave the process, from the process's memory.
    Properties,
    /// The driver lists the process on this GPU alone.
    Driver,
    /// Inferred from `CUDA_VISIBLE_DEVICES` and the order of the GPUs.
    Environment,
}

impl IdentitySource {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub const fn is_inferred(self) -> bool {
        matches!(self, Self::Environment)
    }
}

impl DeviceIdentity {
    pub fn unknown(device: DeviceIndex, reason: &str) -> Self {
        Self {
            device,
            gpu: None,
            unknown: Some(reason.to_owned()),
        }
    }

    pub fn is_certain(&self) -> bool {
        let gpu = self.gpu.as_ref();
        gpu.is_some_and(|gpu| !gpu.source.is_inferred())
    }
}

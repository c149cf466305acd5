//! Memory of devices and of their processes, as the NVIDIA driver reports it through NVML.
//!
//! The library is opened when it is asked for and may be missing: memprobe works without it. Asking takes a few
//! milliseconds a device and holds no context on any. Answers are checked before they are shown (`form`, `memory`):
//! drivers differ in the form of what they write, and an unknown number with a reason is better than a wrong one.

mod form;
mod library;
mod memory;
mod processes;
mod query;

#[cfg(test)]
mod fake;

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

pub use form::Pids;
pub use memory::Usage;
use query::{DeviceQuery, MigDevice};

use crate::event::{Bytes, Tgid};

/// More devices than any machine has are not asked.
const MAX_DEVICES: u32 = 64;

#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
}

/// Report of the driver at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub devices: Vec<DeviceMemory>,
    /// Memory of each process by device index; `None` bytes if the driver does not say (`[N/A]`), as under WSL.
    pub held: BTreeMap<Tgid, Vec<(u32, Option<Bytes>)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Number of the device in `nvidia-smi`.
    pub index: u32,
    /// Such as `NVIDIA H100 80GB HBM3`; empty where the driver does not say.
    pub name: String,
    /// Its memory, or why it is unknown.
    pub memory: Result<Usage, String>,
    /// MIG devices whose memory `memory` is the sum of, where the device as a whole does not answer.
    pub mig_devices: Option<u32>,
    /// Reason why [`Sample::held`] may lack processes of this device.
    pub processes: Result<(), String>,
    pub hardware: Hardware,
}

/// Identifiers of a GPU; unknown where the driver does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Such as `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: Option<String>,
    /// Such as `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// Number of its device node, `/dev/nvidiaN`.
    pub minor: Option<u32>,
    pub is_in_mig_mode: bool,
    pub mig_devices: Vec<MigHardware>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigHardware {
    /// Number among the MIG devices of its GPU.
    pub index: u32,
    /// Such as `MIG-fc6bc2ab-6bbb-5dc8-a8bb-4d8c6ba6e5ed`.
    pub uuid: Option<String>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

impl Driver {
    pub fn open() -> Result<Self, String> {
        let nvml = Nvml::init().map_err(|error| reason(&error))?;
        Ok(Self { nvml })
    }

    /// Asks every device. `pids` knows the processes of the driver's PID namespace.
    pub fn sample(&self, pids: &impl Pids) -> Result<Sample, String> {
        let count = self.nvml.device_count().map_err(|error| reason(&error))?;
        let mut sample = Sample::default();
        for index in 0..count.min(MAX_DEVICES) {
            match self.nvml.device_by_index(index) {
                Ok(device) => {
                    let name = device.name().unwrap_or_default();
                    sample.add(index, name, &device, pids);
                }
                Err(error) => sample.add_silent(index, &reason(&error)),
            }
        }
        Ok(sample)
    }
}

impl Sample {
    fn add<Q: DeviceQuery>(&mut self, index: u32, name: String, device: &Q, pids: &impl Pids) {
        let instances = device.mig_devices();
        let (memory, is_sum) = memory::of_device(device, &instances);
        let total = memory.as_ref().ok().filter(|_| !is_sum);
        let total = total.map(|usage| usage.total.0);
        let found = processes::of_device(device, &instances, total, pids);
        self.devices.push(DeviceMemory {
            index,
            name,
            memory,
            mig_devices: is_sum.then_some(instances.len() as u32),
            processes: found.unknown.map_or(Ok(()), Err),
            hardware: hardware(device, &instances),
        });
        for (tgid, bytes) in found.held {
            self.held.entry(tgid).or_default().push((index, bytes));
        }
    }

    fn add_silent(&mut self, index: u32, error: &str) {
        self.devices.push(DeviceMemory {
            index,
            name: String::new(),
            memory: Err(error.to_owned()),
            mig_devices: None,
            processes: Err(error.to_owned()),
            hardware: Hardware::default(),
        });
    }
}

fn hardware<Q: DeviceQuery>(device: &Q, instances: &[MigDevice<Q>]) -> Hardware {
    let own = device.identity();
    let mig_devices = instances.iter().map(|mig| {
        let identity = mig.device.identity();
        MigHardware {
            index: mig.index,
            uuid: identity.uuid,
            gpu_instance: mig.gpu_instance,
            compute_instance: identity.compute_instance,
        }
    });
    Hardware {
        uuid: own.uuid,
        pci_bus_id: own.pci_bus_id,
        minor: own.minor,
        is_in_mig_mode: own.is_in_mig_mode || !instances.is_empty(),
        mig_devices: mig_devices.collect(),
    }
}

/// Reason why the driver cannot be asked.
fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "libnvidia-ml.so.1 was not found: is the NVIDIA driver installed?".to_owned()
        }
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "the NVIDIA driver was updated: its library is newer or older than the loaded module, until the next boot"
                .to_owned()
        }
        other => format!("the NVIDIA driver does not answer: {other}"),
    }
}

#[cfg(test)]
mod tests;

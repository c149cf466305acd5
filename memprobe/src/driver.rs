//! What the NVIDIA driver says of its devices and of who holds memory on them, by NVML.
//!
//! The library is opened when it is asked for and may be missing: memprobe works without it. Asking
//! takes a few milliseconds a device and holds no context on any.

use std::collections::BTreeMap;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::event::{Bytes, Tgid};

/// More devices than any machine has are not asked.
const MOST_DEVICES: u32 = 64;

/// The driver of this machine.
#[derive(Debug)]
pub struct Driver {
    nvml: Nvml,
}

/// What the driver says at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Its devices, by index.
    pub devices: Vec<DeviceMemory>,
    /// Who holds memory, on which device (by index), and how much: `None` where the driver does not
    /// say, as under Windows' WSL.
    pub held: BTreeMap<Tgid, Vec<(u32, Option<Bytes>)>>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// As `nvidia-smi` numbers them.
    pub index: u32,
    /// Such as `NVIDIA H100 80GB HBM3`; empty where the driver does not say.
    pub name: String,
    /// Bytes in use and bytes there are; `None` where the driver does not say.
    pub used_of: Option<(Bytes, Bytes)>,
}

impl Driver {
    /// Opens the driver's library.
    ///
    /// # Errors
    /// Why it cannot be asked, in a few words.
    pub fn open() -> Result<Self, String> {
        match Nvml::init() {
            Ok(nvml) => Ok(Self { nvml }),
            Err(error) => Err(reason(&error)),
        }
    }

    /// Asks every device. A device that does not answer says nothing.
    ///
    /// # Errors
    /// Why the driver cannot be asked any more, in a few words.
    pub fn sample(&self) -> Result<Sample, String> {
        let count = self.nvml.device_count().map_err(|error| reason(&error))?;
        let mut sample = Sample::default();
        for index in 0..count.min(MOST_DEVICES) {
            let Ok(device) = self.nvml.device_by_index(index) else {
                continue;
            };
            let memory = device.memory_info().ok();
            sample.devices.push(DeviceMemory {
                index,
                name: device.name().unwrap_or_default(),
                used_of: memory.map(|memory| (Bytes(memory.used), Bytes(memory.total))),
            });
            for (tgid, bytes) in merged(&processes(&device)) {
                sample.held.entry(tgid).or_default().push((index, bytes));
            }
        }
        Ok(sample)
    }
}

/// Processes with a context on a device, and the clients of its MPS server, which may be told of
/// twice.
fn processes(device: &Device) -> Vec<Vec<ProcessInfo>> {
    // Drivers before 510 know only the form before.
    let own = device
        .running_compute_processes()
        .or_else(|_| device.running_compute_processes_v2());
    let clients = device.mps_running_compute_processes();
    [own, clients].into_iter().filter_map(Result::ok).collect()
}

/// One number a process: the sum over the instances of a partitioned device, once for each list
/// that tells of it.
fn merged(lists: &[Vec<ProcessInfo>]) -> BTreeMap<Tgid, Option<Bytes>> {
    let mut all: BTreeMap<Tgid, Option<Bytes>> = BTreeMap::new();
    for list in lists {
        let mut sums: BTreeMap<Tgid, Option<Bytes>> = BTreeMap::new();
        for process in list {
            let sum = sums.entry(Tgid(process.pid)).or_default();
            if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
                let before = sum.unwrap_or_default();
                *sum = Some(Bytes(before.0.saturating_add(bytes)));
            }
        }
        for (tgid, sum) in sums {
            let told = all.entry(tgid).or_default();
            *told = (*told).max(sum);
        }
    }
    all
}

/// Why the driver cannot be asked.
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
mod tests {
    use super::*;

    fn process(pid: u32, used: Option<u64>) -> ProcessInfo {
        ProcessInfo {
            pid,
            used_gpu_memory: used.map_or(UsedGpuMemory::Unavailable, UsedGpuMemory::Used),
            gpu_instance_id: None,
            compute_instance_id: None,
        }
    }

    #[test]
    fn instances_of_a_device_add_up_and_lists_do_not() {
        let own = vec![process(7, Some(5)), process(7, Some(6)), process(8, None)];
        let clients = vec![process(7, Some(9)), process(8, Some(2))];
        let all = merged(&[own, clients]);
        let expected = [(Tgid(7), Some(Bytes(11))), (Tgid(8), Some(Bytes(2)))];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_the_driver_does_not_say_is_not_zero() {
        let all = merged(&[vec![process(8, None)]]);
        assert_eq!(all.get(&Tgid(8)), Some(&None));
    }

    #[test]
    fn numbers_beyond_any_memory_do_not_overflow() {
        let all = merged(&[vec![process(1, Some(u64::MAX)), process(1, Some(9))]]);
        assert_eq!(all.get(&Tgid(1)), Some(&Some(Bytes(u64::MAX))));
    }

    #[test]
    fn every_reason_says_what_is_wrong() {
        assert!(reason(&NvmlError::LibraryNotFound).contains("libnvidia-ml.so.1"));
        assert!(reason(&NvmlError::GpuLost).contains("does not answer"));
    }
}

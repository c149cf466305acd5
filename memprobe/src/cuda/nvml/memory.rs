//! Memory of a device in one meaning, whichever form the driver answers in.
//!
//! `used` is everything allocated on the device, without what the driver reserves for itself: the
//! number that `nvidia-smi` shows since R510. `nvmlMemory_v2_t` (R510 on) tells reserved memory
//! apart. `nvmlMemory_t` has it within `used` since R510 (nvml-wrapper issue 57: 912 MB against 7.8
//! MB on an idle A100); drivers before that do not count it at all (gpustat issues 116 and 141).

use super::query::{DeviceQuery, MigDevice, QueryRefusal, RawMemory};
use crate::event::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated, without those that the driver reserves for itself.
    pub used: Bytes,
    pub total: Bytes,
}

/// Asks a device; where it does not answer in MIG mode, adds up its GPU instances. The flag says that it did.
pub fn of_device<Q: DeviceQuery>(
    device: &Q,
    instances: &[MigDevice<Q>],
) -> (Result<Usage, String>, bool) {
    let whole = usage(device);
    if whole.is_ok() || instances.is_empty() {
        return (whole, false);
    }
    match of_instances(instances) {
        Some(sum) => (Ok(sum), true),
        None => (whole, false),
    }
}

/// The sum over GPU instances; `None` where one does not answer.
fn of_instances<Q: DeviceQuery>(instances: &[MigDevice<Q>]) -> Option<Usage> {
    let mut seen = Vec::new();
    let mut sum = Usage::default();
    for instance in instances {
        // MIG devices of one GPU instance all give its memory.
        let id = instance.gpu_instance?;
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        let one = usage(&instance.device).ok()?;
        sum.used.0 = sum.used.0.saturating_add(one.used.0);
        sum.total.0 = sum.total.0.saturating_add(one.total.0);
    }
    Some(sum)
}

pub fn usage<Q: DeviceQuery>(device: &Q) -> Result<Usage, String> {
    match device.memory_v2() {
        Ok(memory) => checked(memory, allocated(memory)),
        Err(QueryRefusal::Missing) => {
            let memory = device.memory_v1().map_err(|error| in_words(&error))?;
            checked(memory, memory.used)
        }
        // The first form cannot be taken then: its `used` means something else on this driver.
        Err(error) => Err(in_words(&error)),
    }
}

/// Used bytes of the second form without the reserved ones. Whether `used` has them is documented in
/// both ways (R525's reference says it does, R590's does not), so the sum decides.
fn allocated(memory: RawMemory) -> u64 {
    let reserved = memory.reserved.unwrap_or(0);
    match memory.used.checked_add(memory.free) {
        Some(sum) if sum == memory.total => memory.used.saturating_sub(reserved),
        _ => memory.used,
    }
}

fn checked(memory: RawMemory, used: u64) -> Result<Usage, String> {
    if memory.total == 0 {
        return Err("the driver says this GPU has no memory of its own".to_owned());
    }
    if used > memory.total {
        return Err(format!(
            "the driver's numbers cannot be right: {used} bytes used of {}",
            memory.total
        ));
    }
    Ok(Usage {
        used: Bytes(used),
        total: Bytes(memory.total),
    })
}

fn in_words(refusal: &QueryRefusal) -> String {
    match refusal {
        QueryRefusal::NotSupported => {
            "the driver does not say, as for GPUs that share the system's memory".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvml::fake::FakeDevice;

    const GIB: u64 = 1 << 30;

    fn usage_of(device: &FakeDevice) -> Result<(u64, u64), String> {
        usage(device).map(|usage| (usage.used.0, usage.total.0))
    }

    fn second(used: u64, reserved: u64) -> RawMemory {
        RawMemory {
            total: 80 * GIB,
            reserved: Some(reserved),
            free: 80 * GIB - used - reserved,
            used,
        }
    }

    #[test]
    fn reserved_memory_is_left_out_whichever_way_the_second_form_counts() {
        let apart = FakeDevice::default().with_memory_v2(second(3 * GIB, GIB));
        assert_eq!(usage_of(&apart), Ok((3 * GIB, 80 * GIB)));
        let within = RawMemory {
            used: 4 * GIB,
            ..second(3 * GIB, GIB)
        };
        let within = FakeDevice::default().with_memory_v2(within);
        assert_eq!(usage_of(&within), Ok((3 * GIB, 80 * GIB)));
    }

    #[test]
    fn a_driver_before_r510_is_asked_in_the_first_form() {
        let memory = RawMemory {
            reserved: None,
            ..second(3 * GIB, 0)
        };
        let device = FakeDevice::default().with_memory_v1(memory);
        assert_eq!(usage_of(&device), Ok((3 * GIB, 80 * GIB)));
    }

    #[test]
    fn a_newer_driver_that_refuses_is_not_asked_in_the_form_with_another_meaning() {
        let mut device = FakeDevice::default().with_memory_v1(second(3 * GIB, 0));
        device.memory_v2 = Err(QueryRefusal::Other(
            "an argument has another version".to_owned(),
        ));
        assert!(usage_of(&device).unwrap_err().contains("another version"));
    }

    #[test]
    fn a_gpu_without_memory_of_its_own_is_unknown_with_a_reason() {
        let mut device = FakeDevice::default();
        device.memory_v2 = Err(QueryRefusal::NotSupported);
        device.memory_v1 = Err(QueryRefusal::NotSupported);
        assert!(
            usage_of(&device)
                .unwrap_err()
                .contains("share the system's memory")
        );
        let empty = FakeDevice::default().with_memory_v2(RawMemory::default());
        assert!(
            usage_of(&empty)
                .unwrap_err()
                .contains("no memory of its own")
        );
    }

    #[test]
    fn more_used_than_there_is_cannot_be() {
        let memory = RawMemory {
            used: 81 * GIB,
            ..second(0, 0)
        };
        let device = FakeDevice::default().with_memory_v2(memory);
        assert!(usage_of(&device).unwrap_err().contains("cannot be right"));
    }

    #[test]
    fn mig_devices_of_one_gpu_instance_count_once() {
        let instance = |gpu_instance, used| MigDevice {
            index: 0,
            device: FakeDevice::default().with_memory_v2(RawMemory {
                total: 20 * GIB,
                reserved: Some(0),
                free: 20 * GIB - used,
                used,
            }),
            gpu_instance: Some(gpu_instance),
        };
        let mut device = FakeDevice::default();
        device.memory_v2 = Err(QueryRefusal::NoPermission);
        let instances = [instance(1, GIB), instance(1, GIB), instance(2, 3 * GIB)];
        let (usage, is_sum) = of_device(&device, &instances);
        assert_eq!(usage.unwrap().used, Bytes(4 * GIB));
        assert!(is_sum);
        let (usage, is_sum) = of_device(&device, &[]);
        assert!(usage.unwrap_err().contains("run memprobe as root") && !is_sum);
    }
}

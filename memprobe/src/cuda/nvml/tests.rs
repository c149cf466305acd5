//! Report on a whole device.

use super::fake::{FakeDevice, existing, plain};
use super::form::Form;
use super::query::{EntryPoint, ListKind, QueryRefusal, RawMemory};
use super::*;

const GIB: u64 = 1 << 30;

fn memory(used: u64) -> RawMemory {
    RawMemory {
        total: 80 * GIB,
        reserved: Some(GIB),
        free: 79 * GIB - used,
        used,
    }
}

fn sample(devices: &[FakeDevice]) -> Sample {
    let mut sample = Sample::default();
    for (index, device) in devices.iter().enumerate() {
        let pids = existing(&[7, 8]);
        sample.add(index as u32, "GPU".to_owned(), device, &pids);
    }
    sample
}

#[test]
fn a_process_has_its_bytes_on_each_device() {
    let list = |used| {
        FakeDevice::default()
            .with_memory_v2(memory(used))
            .with_list(
                ListKind::Compute,
                EntryPoint::V3,
                Form::Instances,
                &[plain(7, used)],
            )
    };
    let sample = sample(&[list(5), list(6)]);
    let expected = vec![(0, Some(Bytes(5))), (1, Some(Bytes(6)))];
    assert_eq!(sample.held.get(&Tgid(7)), Some(&expected));
    assert_eq!(sample.devices[1].memory.as_ref().unwrap().used, Bytes(6));
    assert_eq!(sample.devices[1].processes, Ok(()));
}

#[test]
fn processes_are_checked_against_the_memory_of_their_device() {
    let device = FakeDevice::default().with_memory_v2(memory(5)).with_list(
        ListKind::Compute,
        EntryPoint::V3,
        Form::Instances,
        &[plain(7, 81 * GIB)],
    );
    let sample = sample(&[device]);
    assert!(sample.held.is_empty());
    let error = sample.devices[0].processes.clone().unwrap_err();
    assert!(error.contains("more than the GPU has"), "{error}");
}

#[test]
fn a_device_in_mig_mode_is_the_sum_of_what_may_be_seen() {
    let mut parent = FakeDevice::default();
    parent.memory_v2 = Err(QueryRefusal::NoPermission);
    let instance = |pid, used| {
        FakeDevice::default()
            .with_memory_v2(RawMemory {
                total: 20 * GIB,
                reserved: Some(0),
                free: 20 * GIB - used,
                used,
            })
            .with_list(
                ListKind::Compute,
                EntryPoint::V3,
                Form::Instances,
                &[(pid, used, 1, 0)],
            )
    };
    let parent = parent
        .with_refusal(
            ListKind::Compute,
            EntryPoint::V3,
            QueryRefusal::NoPermission,
        )
        .with_mig(Some(1), instance(7, 5 * GIB))
        .with_mig(Some(2), instance(8, 6 * GIB));
    let sample = sample(&[parent]);
    let device = &sample.devices[0];
    let usage = device.memory.as_ref().unwrap();
    assert_eq!(
        (usage.used, usage.total),
        (Bytes(11 * GIB), Bytes(40 * GIB))
    );
    assert_eq!(device.mig_devices, Some(2));
    assert_eq!(sample.held.len(), 2);
}

#[test]
fn every_reason_says_what_is_wrong() {
    assert!(reason(&NvmlError::LibraryNotFound).contains("libnvidia-ml.so.1"));
    assert!(reason(&NvmlError::GpuLost).contains("does not answer"));
}

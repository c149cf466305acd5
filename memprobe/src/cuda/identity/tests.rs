//! Permuted, named, changed and hidden devices.

use super::*;
use crate::cuda::nvml::{Hardware, Usage};
use crate::event::Bytes;

const H100: &str = "NVIDIA H100 80GB HBM3";

fn uuid_of(index: u32) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[0] = index as u8;
    bytes
}

/// A host with equal GPUs; NVML lists them in the order of their buses, their nodes are numbered backwards.
fn host(number: u32) -> Vec<DeviceMemory> {
    let device = |index| DeviceMemory {
        index,
        name: H100.to_owned(),
        memory: Ok(Usage {
            used: Bytes(0),
            total: Bytes(80 << 30),
        }),
        mig_devices: None,
        processes: Ok(()),
        hardware: Hardware {
            uuid: Some(uuid_text(uuid_of(index))),
            pci_bus_id: Some(format!("00000000:{:02X}:00.0", index + 7)),
            minor: Some(number - 1 - index),
            ..Hardware::default()
        },
    };
    (0..number).map(device).collect()
}

fn variables(list: &str) -> Option<CudaVariables> {
    Some([Some(list.to_owned()), None])
}

/// Evidence of a process whose environment never changed.
fn environment(list: &str) -> Evidence {
    Evidence {
        start: variables(list),
        now: variables(list),
        ..Evidence::default()
    }
}

fn join(ordinal: u8, devices: &[DeviceMemory], evidence: &Evidence) -> DeviceIdentity {
    identify(DeviceIndex(ordinal), Ok(devices), evidence)
}

/// Indices in `nvidia-smi` of the first ordinals, up to the first that is unknown.
fn indices(devices: &[DeviceMemory], evidence: &Evidence) -> Vec<u32> {
    let index = |ordinal| join(ordinal, devices, evidence).gpu?.index;
    (0..8).map_while(index).collect()
}

fn reason(ordinal: u8, devices: &[DeviceMemory], evidence: &Evidence) -> String {
    let identity = join(ordinal, devices, evidence);
    assert_eq!(identity.gpu, None);
    identity.unknown.expect("a reason")
}

#[test]
fn a_list_names_and_orders_devices() {
    let host = host(4);
    let full = uuid_text(uuid_of(2));
    let uuids = format!("{full},GPU-00,GPU-0,{}", uuid_text(uuid_of(1)));
    let named = format!("{full},1");
    for (list, expected) in [
        ("3,1", &[3, 1][..]),
        (" 2 , 0 ", &[2, 0]),
        ("0,2,-1,1", &[0, 2]),
        ("1,9,2", &[1]),
        ("1gpu2,2ampere", &[1, 2]),
        ("2,none,3", &[2]),
        ("1,1", &[]),
        ("-1", &[]),
        ("", &[]),
        ("none", &[]),
        // The third is the beginning of all.
        (&uuids, &[2, 0]),
        // Entries are of one kind.
        (&named, &[2]),
        ("1,GPU-02", &[1]),
        ("MIG-00", &[]),
    ] {
        assert_eq!(indices(&host, &environment(list)), expected, "{list:?}");
    }
    let none = Evidence {
        start: Some([None, None]),
        now: Some([None, None]),
        ..Evidence::default()
    };
    assert_eq!(indices(&host, &none), [0, 1, 2, 3]);
    let identity = join(0, &host, &environment("3,1"));
    let gpu = identity.gpu.expect("it is known");
    assert_eq!(gpu.uuid, Some(uuid_text(uuid_of(3))));
    assert_eq!(gpu.pci_bus_id.as_deref(), Some("00000000:0A:00.0"));
    assert!(gpu.source.is_inferred());
    assert!(
        reason(2, &host, &environment("3,1")).contains("CUDA_VISIBLE_DEVICES=3,1 has no cuda:2")
    );
}

#[test]
fn the_order_is_that_of_the_buses_and_unknown_for_unequal_devices() {
    let mut host = host(3);
    host[0].hardware.pci_bus_id = Some("00000000:ff:00.0".to_owned());
    assert_eq!(indices(&host, &environment("0,1,2")), [1, 2, 0]);
    host[1].name = "NVIDIA T4".to_owned();
    assert!(reason(0, &host, &environment("0")).contains("the GPUs differ"));
    let by_bus = Some([Some("0".to_owned()), Some("PCI_BUS_ID".to_owned())]);
    let ordered = Evidence {
        start: by_bus.clone(),
        now: by_bus,
        ..Evidence::default()
    };
    assert_eq!(indices(&host, &ordered), [1]);
    assert_eq!(indices(&host, &environment("GPU-00")), [0]);
}

#[test]
fn a_container_numbers_the_devices_that_it_has() {
    let host = host(4);
    let mut evidence = environment("1,0");
    evidence.nodes = vec![0, 2];
    assert_eq!(indices(&host, &evidence), [3, 1]);
    // Numbers of another machine's nodes hide nothing that has no number.
    let mut unnumbered = host;
    unnumbered
        .iter_mut()
        .for_each(|device| device.hardware.minor = None);
    assert_eq!(indices(&unnumbered, &evidence), [1, 0]);
}

#[test]
fn a_uuid_from_cuda_counts_more_than_the_environment() {
    let host = host(4);
    let mut evidence = environment("0,1");
    evidence.uuids = vec![Some(uuid_of(3)), None];
    let gpu = join(0, &host, &evidence).gpu.expect("it is known");
    assert_eq!(
        (gpu.index, gpu.source),
        (Some(3), IdentitySource::Properties)
    );
    assert_eq!(
        join(1, &host, &evidence).gpu.expect("inferred").index,
        Some(1)
    );
    // NVML need not list it, or be there.
    evidence.uuids = vec![Some(uuid_of(9))];
    evidence.memory = vec![Some(crate::event::Bytes(16 << 30))];
    let unlisted = join(0, &host, &evidence).gpu.expect("it has a UUID");
    assert_eq!(
        (unlisted.index, unlisted.uuid),
        (None, Some(uuid_text(uuid_of(9))))
    );
    let alone = identify(DeviceIndex(0), Err("no driver"), &evidence);
    let alone = alone.gpu.expect("it has a UUID");
    // Its memory is known from CUDA.
    assert_eq!((alone.index, alone.memory), (None, evidence.memory[0]));
    let nothing = identify(DeviceIndex(1), Err("no driver"), &evidence);
    assert_eq!(nothing.unknown.as_deref(), Some("no driver"));
}

#[test]
fn a_change_at_run_time_makes_the_environment_ambiguous() {
    let host = host(4);
    let mut evidence = environment("3,1");
    evidence.now = variables("0,1");
    assert!(reason(0, &host, &evidence).contains("changed at run time"));
    // Both lists agree on this one.
    assert_eq!(
        join(1, &host, &evidence).gpu.expect("inferred").index,
        Some(1)
    );
    // The driver knows which of the two was read.
    evidence.held = vec![1, 3];
    assert_eq!(indices(&host, &evidence), [3, 1]);
    evidence.held = vec![0, 1];
    assert_eq!(indices(&host, &evidence), [0, 1]);
    evidence.now = None;
    evidence.held = Vec::new();
    assert!(reason(0, &host, &evidence).contains("cannot be read"));
}

#[test]
fn what_the_driver_contradicts_is_unknown() {
    let host = host(4);
    let mut evidence = environment("0,1");
    evidence.held = vec![2, 3];
    assert!(reason(0, &host, &evidence).contains("on other GPUs"));
    // Listed on one GPU alone, a process has no other.
    evidence.held = vec![2];
    let gpu = join(0, &host, &evidence).gpu.expect("it is known");
    assert_eq!((gpu.index, gpu.source), (Some(2), IdentitySource::Driver));
}

/// The first of two GPUs is in MIG mode, with two MIG devices.
fn host_with_mig() -> Vec<DeviceMemory> {
    let mut host = host(2);
    host[0].hardware.is_in_mig_mode = true;
    let mig = |index: u32| MigHardware {
        index,
        uuid: Some(uuid_text(uuid_of(0xa0 + index)).replace("GPU-", "MIG-")),
        gpu_instance: Some(index + 7),
        compute_instance: Some(0),
    };
    host[0].hardware.mig_devices = vec![mig(0), mig(1)];
    host
}

fn mig_of(devices: &[DeviceMemory], evidence: &Evidence) -> (Option<u32>, Option<u32>) {
    let gpu = join(0, devices, evidence).gpu.expect("it is known");
    (gpu.index, gpu.mig.expect("it is in MIG mode").index)
}

#[test]
fn a_mig_device_is_named_by_its_uuid_or_its_instances() {
    let host = host_with_mig();
    let legacy = format!("MIG-{}/8/0", uuid_text(uuid_of(0)));
    for list in ["MIG-a1", &legacy] {
        assert_eq!(
            mig_of(&host, &environment(list)),
            (Some(0), Some(1)),
            "{list}"
        );
    }
    assert!(indices(&host, &environment("MIG-")).is_empty());
    assert!(reason(0, &host, &environment("0")).contains("MIG mode"));
    // A GPU without MIG has no MIG device.
    let whole = join(0, &host, &environment("GPU-01"))
        .gpu
        .expect("it is known");
    assert_eq!((whole.index, whole.mig), (Some(1), None));
    let mut evidence = environment("MIG-a1");
    evidence.uuids = vec![Some(uuid_of(0xa0))];
    assert_eq!(mig_of(&host, &evidence), (Some(0), Some(0)));
    // CUDA 11 gives the UUID of the GPU.
    evidence.uuids = vec![Some(uuid_of(0))];
    assert_eq!(mig_of(&host, &evidence), (Some(0), Some(1)));
    evidence.start = None;
    evidence.now = None;
    assert_eq!(mig_of(&host, &evidence), (Some(0), None));
}

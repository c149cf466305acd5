//! Choice of the entry point, MIG and MPS.

use super::super::fake::{FakeDevice, KnownLibrary, NOT_AVAILABLE, existing, plain};
use super::super::form::Form;
use super::*;

const GIB: u64 = 1 << 30;

fn asked(device: &FakeDevice) -> DeviceProcesses {
    let pids = existing(&[7, 8, 9]);
    of_device(device, &device.mig_devices(), Some(80 * GIB), &pids)
}

fn held(found: &DeviceProcesses) -> Vec<(u32, Option<u64>)> {
    let held = found.held.iter();
    held.map(|(tgid, bytes)| (tgid.0, bytes.map(|bytes| bytes.0)))
        .collect()
}

fn compute(point: EntryPoint, form: Form, processes: &[KnownLibrary]) -> FakeDevice {
    FakeDevice::default().with_list(ListKind::Compute, point, form, processes)
}

#[test]
fn every_entry_point_may_answer_in_every_form() {
    for point in EntryPoint::ALL {
        for form in [Form::First, Form::Instances, Form::Protected] {
            let found = asked(&compute(point, form, &[plain(7, 5), plain(8, 6)]));
            assert_eq!(held(&found), [(7, Some(5)), (8, Some(6))]);
            assert_eq!(found.unknown, None);
        }
    }
}

#[test]
fn an_answer_that_cannot_be_leads_to_the_next_entry_point() {
    let device = compute(
        EntryPoint::V3,
        Form::Instances,
        &[plain(u32::MAX, 5), plain(8, 6)],
    );
    let device = device.with_list(
        ListKind::Compute,
        EntryPoint::V1,
        Form::First,
        &[plain(7, 5), plain(8, 6)],
    );
    assert_eq!(held(&asked(&device)), [(7, Some(5)), (8, Some(6))]);
}

#[test]
fn where_no_answer_can_be_the_reason_names_the_function() {
    let device = compute(EntryPoint::V3, Form::First, &[plain(6, 5), plain(5, 6)]);
    let found = asked(&device);
    let error = found.unknown.unwrap();
    assert!(found.held.is_empty());
    assert!(
        error.contains("RunningProcesses_v3") && error.contains("no process 6"),
        "{error}"
    );
}

#[test]
fn where_nobody_answers_the_reason_is_the_drivers() {
    let refused =
        |error| FakeDevice::default().with_refusal(ListKind::Compute, EntryPoint::V3, error);
    let error = asked(&refused(QueryRefusal::NoPermission)).unknown.unwrap();
    assert!(error.contains("run memprobe as root"), "{error}");
    let error = asked(&FakeDevice::default()).unknown.unwrap();
    assert!(error.contains("too old"), "{error}");
}

#[test]
fn a_long_list_is_requested_again_with_more_capacity() {
    let processes: Vec<KnownLibrary> = (1..=300).map(|pid| plain(pid, 1)).collect();
    let pids = existing(&(1..=300).collect::<Vec<u32>>());
    let device = compute(EntryPoint::V3, Form::Instances, &processes);
    let found = of_device(&device, &[], Some(80 * GIB), &pids);
    assert_eq!((found.held.len(), found.unknown), (300, None));
    let processes: Vec<KnownLibrary> = (1..=5000).map(|pid| plain(pid, 1)).collect();
    let device = compute(EntryPoint::V3, Form::Instances, &processes);
    let found = of_device(&device, &[], Some(80 * GIB), &pids);
    assert!(found.unknown.unwrap().contains("5000 processes"));
}

#[test]
fn a_process_that_stays_gone_is_left_out_after_a_few_questions() {
    let device = compute(EntryPoint::V3, Form::Instances, &[plain(6, 5), plain(8, 6)]);
    let found = asked(&device);
    assert_eq!(held(&found), [(8, Some(6))]);
    // Three for the list, one for each function of MPS.
    assert_eq!(device.asked.get(), TRIES + EntryPoint::ALL.len());
}

#[test]
fn clients_of_mps_are_in_two_lists_and_count_once() {
    let server = plain(9, 30);
    let device = compute(EntryPoint::V3, Form::Instances, &[server, plain(7, 5)]);
    let device = device.with_list(
        ListKind::Mps,
        EntryPoint::V3,
        Form::Instances,
        &[plain(7, 5), plain(8, 6)],
    );
    let found = asked(&device);
    assert_eq!(held(&found), [(7, Some(5)), (8, Some(6)), (9, Some(30))]);
    assert_eq!(found.unknown, None);
}

#[test]
fn a_client_of_mps_has_the_number_of_the_list_that_has_one() {
    let device = compute(EntryPoint::V3, Form::Instances, &[plain(7, NOT_AVAILABLE)]);
    let device = device.with_list(
        ListKind::Mps,
        EntryPoint::V3,
        Form::Instances,
        &[plain(7, 5)],
    );
    assert_eq!(held(&asked(&device)), [(7, Some(5))]);
}

#[test]
fn an_unreadable_mps_list_leaves_a_reported_gap() {
    let device = compute(EntryPoint::V3, Form::Instances, &[plain(7, 5)]);
    let refusal = QueryRefusal::Other("an unknown error".to_owned());
    let device = device.with_refusal(ListKind::Mps, EntryPoint::V3, refusal);
    let found = asked(&device);
    assert_eq!(held(&found), [(7, Some(5))]);
    assert!(found.unknown.unwrap().contains("an unknown error"));
}

#[test]
fn not_available_stays_unknown() {
    let device = compute(
        EntryPoint::V3,
        Form::Instances,
        &[plain(7, NOT_AVAILABLE), plain(8, 6)],
    );
    assert_eq!(held(&asked(&device)), [(7, None), (8, Some(6))]);
}

#[test]
fn instances_of_a_process_add_up_and_one_that_is_unknown_makes_the_sum_so() {
    let entries = [
        (7, 5, 1, 0),
        (7, 6, 2, 0),
        (8, 1, 1, 0),
        (8, NOT_AVAILABLE, 2, 0),
    ];
    let device = compute(EntryPoint::V3, Form::Instances, &entries);
    assert_eq!(held(&asked(&device)), [(7, Some(11)), (8, None)]);
    let entries = [(7, 70 * GIB, 1, 0), (7, 70 * GIB, 2, 0)];
    let device = compute(EntryPoint::V3, Form::Instances, &entries);
    assert!(
        asked(&device)
            .unknown
            .unwrap()
            .contains("more than the GPU has")
    );
}

fn mig(parent: FakeDevice, instances: &[(u32, &[KnownLibrary])]) -> FakeDevice {
    instances.iter().fold(parent, |parent, (id, processes)| {
        let device = compute(EntryPoint::V3, Form::Instances, processes);
        parent.with_mig(Some(*id), device)
    })
}

#[test]
fn where_the_device_refuses_its_mig_devices_are_asked() {
    for error in [QueryRefusal::NoPermission, QueryRefusal::NotSupported] {
        let parent = FakeDevice::default()
            .with_refusal(ListKind::Compute, EntryPoint::V3, error.clone())
            .with_refusal(ListKind::Mps, EntryPoint::V3, error);
        let device = mig(
            parent,
            &[
                (1, &[(7, 5, 1, 0), (8, 6, 1, 1)]),
                // The second compute instance of the same GPU instance names them again.
                (1, &[(7, 5, 1, 0)]),
                (2, &[(8, 4, 2, 0)]),
            ],
        );
        let found = asked(&device);
        assert_eq!(held(&found), [(7, Some(5)), (8, Some(10))]);
        assert_eq!(found.unknown, None);
    }
}

#[test]
fn where_the_device_gives_no_bytes_its_mig_devices_do() {
    let parent = compute(
        EntryPoint::V3,
        Form::Instances,
        &[(7, NOT_AVAILABLE, 1, 0), (8, NOT_AVAILABLE, 2, 0)],
    );
    let device = mig(parent, &[(1, &[(7, 5, 1, 0)]), (2, &[])]);
    assert_eq!(held(&asked(&device)), [(7, Some(5)), (8, None)]);
}

#[test]
fn a_mig_device_that_refuses_makes_the_sums_unknown() {
    let parent = mig(FakeDevice::default(), &[(1, &[(7, 5, 1, 0)])]);
    let silent = FakeDevice::default().with_refusal(
        ListKind::Compute,
        EntryPoint::V3,
        QueryRefusal::NoPermission,
    );
    let found = asked(&parent.with_mig(Some(2), silent));
    assert_eq!(held(&found), [(7, None)]);
    assert!(found.unknown.unwrap().starts_with("MIG device 1: "));
}

#[test]
fn a_first_form_without_instances_counts_each_gpu_instance_once() {
    let parent = FakeDevice::default()
        .with_mig(
            Some(1),
            compute(EntryPoint::V1, Form::First, &[plain(7, 5)]),
        )
        .with_mig(
            Some(1),
            compute(EntryPoint::V1, Form::First, &[plain(7, 5)]),
        )
        .with_mig(
            Some(2),
            compute(EntryPoint::V1, Form::First, &[plain(7, 4)]),
        );
    assert_eq!(held(&asked(&parent)), [(7, Some(9))]);
}

//! Recognition of each form, and rejection of impossible lists.

use proptest::prelude::*;

use super::super::fake::{Existing, KnownLibrary, NOT_AVAILABLE, existing, plain, written};
use super::*;

const GIB: u64 = 1 << 30;
const TOTAL: Option<u64> = Some(80 * GIB);

fn numbers(decoded: &Decoded) -> Vec<(u32, Option<u64>)> {
    let entries = decoded.entries.iter();
    entries.map(|entry| (entry.pid, entry.used)).collect()
}

#[test]
fn each_form_is_recognized() {
    let processes = [plain(100, GIB), plain(200, 2 * GIB), plain(300, 3 * GIB)];
    let pids = existing(&[100, 200, 300]);
    for form in Form::ALL {
        let decoded = decode(&written(form, &processes, 64), TOTAL, &pids).unwrap();
        let expected = [(100, Some(GIB)), (200, Some(2 * GIB)), (300, Some(3 * GIB))];
        assert_eq!(numbers(&decoded), expected, "{form:?}");
    }
}

#[test]
fn the_instances_of_mig_are_no_processes() {
    // Read in the first form, the instance of the first process looks like process 1, which exists.
    let processes = [(100, GIB, 1, 0), (200, 2 * GIB, 2, 0)];
    let pids = existing(&[1, 2, 100, 200]);
    let decoded = decode(&written(Form::Instances, &processes, 64), TOTAL, &pids).unwrap();
    assert_eq!(numbers(&decoded), [(100, Some(GIB)), (200, Some(2 * GIB))]);
    assert_eq!(decoded.entries[1].instance, Some((2, 0)));
}

#[test]
fn a_driver_that_clears_the_buffer_is_understood() {
    let processes = [plain(100, GIB), plain(200, 2 * GIB)];
    let pids = existing(&[100, 200]);
    for form in Form::ALL {
        let mut list = written(form, &processes, 64);
        list.bytes[2 * form.size()..64 * form.size()].fill(0);
        let decoded = decode(&list, TOTAL, &pids).unwrap();
        assert_eq!(numbers(&decoded).len(), 2, "{form:?}");
    }
}

#[test]
fn without_a_measure_the_processes_decide() {
    let processes = [plain(100, GIB), plain(200, 2 * GIB)];
    for form in Form::ALL {
        let mut list = written(form, &processes, 64);
        list.bytes.fill(0);
        let entries = written(form, &processes, 64).bytes;
        let length = 2 * form.size();
        list.bytes[..length].copy_from_slice(&entries[..length]);
        let decoded = decode(&list, TOTAL, &existing(&[100, 200])).unwrap();
        assert_eq!(numbers(&decoded), [(100, Some(GIB)), (200, Some(2 * GIB))]);
        // With one of them gone nothing tells the forms apart any more.
        assert!(decode(&list, TOTAL, &existing(&[100])).is_err(), "{form:?}");
    }
}

#[test]
fn forms_that_give_different_numbers_are_not_chosen_between() {
    // In the first form: processes 100 and 1. With instances: processes 100 and 200.
    let processes = [(100, GIB, 1, 0), (200, 2 * GIB, 1, 0)];
    let mut list = written(Form::Instances, &processes, 64);
    list.bytes[4..8].fill(0);
    list.bytes[28..32].fill(0);
    list.bytes[48..].fill(0);
    let error = decode(&list, TOTAL, &existing(&[1, 100, 200])).unwrap_err();
    assert_eq!(error, Implausible::Ambiguous);
}

#[test]
fn a_process_that_has_ended_is_left_out_where_the_form_is_sure() {
    let processes = [plain(100, GIB), plain(200, 2 * GIB)];
    let list = written(Form::Instances, &processes, 64);
    let decoded = decode(&list, TOTAL, &existing(&[200])).unwrap();
    assert_eq!(numbers(&decoded), [(200, Some(2 * GIB))]);
    assert_eq!(decoded.missing, 1);
    let error = decode(&list, TOTAL, &existing(&[])).unwrap_err();
    assert_eq!(error, Implausible::NoProcess(100));
}

#[test]
fn where_processes_cannot_be_looked_up_the_rest_decides() {
    let list = written(Form::First, &[plain(100, GIB), plain(200, 2 * GIB)], 64);
    let decoded = decode(&list, TOTAL, &Existing(None)).unwrap();
    assert_eq!(numbers(&decoded).len(), 2);
}

#[test]
fn not_available_is_unknown_and_not_a_number() {
    let list = written(Form::Instances, &[plain(100, NOT_AVAILABLE)], 64);
    let decoded = decode(&list, TOTAL, &existing(&[100])).unwrap();
    assert_eq!(numbers(&decoded), [(100, None)]);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let refused = |processes: &[KnownLibrary]| {
        let pids = existing(&[100, 200]);
        decode(&written(Form::Instances, processes, 64), TOTAL, &pids).unwrap_err()
    };
    assert_eq!(refused(&[plain(0, 1)]), Implausible::Pid(0));
    assert_eq!(refused(&[plain(u32::MAX, 1)]), Implausible::Pid(u32::MAX));
    let twice = [plain(100, 1), plain(100, 1)];
    assert_eq!(refused(&twice), Implausible::Twice(100));
    assert_eq!(refused(&[(100, 1, 64, 0)]), Implausible::Instance(64));
    let full = [plain(100, 50 * GIB), plain(200, 50 * GIB)];
    assert_eq!(refused(&full), Implausible::Sum);
    let mut list = written(Form::Instances, &[plain(100, 1)], 2);
    list.count = 3;
    let pids = existing(&[100]);
    assert_eq!(decode(&list, TOTAL, &pids), Err(Implausible::Count));
    (list.count, list.bytes) = (2, vec![0; 8]);
    assert_eq!(decode(&list, TOTAL, &pids), Err(Implausible::Length));
}

#[test]
fn a_device_that_nobody_uses_has_an_empty_list() {
    let decoded = decode(&written(Form::First, &[], 64), TOTAL, &existing(&[]));
    assert_eq!(decoded.unwrap().entries, []);
}

/// Processes with different numbers, each outside of MIG or in an instance.
fn processes() -> impl Strategy<Value = Vec<KnownLibrary>> {
    let used = prop_oneof![Just(NOT_AVAILABLE), 0..GIB];
    let instance = prop_oneof![Just((u32::MAX, u32::MAX)), (0..15_u32, 0..8_u32)];
    let process = (used, instance);
    prop::collection::btree_map(300..PID_LIMIT, process, 0..40).prop_map(|known| {
        let known = known.into_iter();
        known
            .map(|(pid, (used, (gpu, compute)))| (pid, used, gpu, compute))
            .collect()
    })
}

proptest! {
    #[test]
    fn every_list_is_read_as_it_was_written(
        processes in processes(),
        form in prop::sample::select(Form::ALL.to_vec()),
        padding in any::<u32>(),
        capacity in 40..200_u32,
    ) {
        let pids: Vec<u32> = processes.iter().map(|process| process.0).collect();
        let mut list = written(form, &processes, capacity);
        for place in list.bytes.chunks_exact_mut(form.size()).take(processes.len()) {
            place[4..8].copy_from_slice(&padding.to_ne_bytes());
        }
        let decoded = decode(&list, TOTAL, &existing(&pids)).unwrap();
        let expected: Vec<_> = processes
            .iter()
            .map(|process| (process.0, Some(process.1).filter(|used| *used != NOT_AVAILABLE)))
            .collect();
        prop_assert_eq!(numbers(&decoded), expected);
    }

    #[test]
    fn whatever_is_written_gives_numbers_that_can_be_or_a_reason(
        count in 0..70_u32,
        capacity in 0..70_u32,
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0_u8), Just(PATTERN)], 0..5000),
        knows in any::<bool>(),
    ) {
        let pids = Existing(knows.then(|| vec![100, 200]));
        let list = RawList { count, capacity, bytes };
        if let Ok(decoded) = decode(&list, TOTAL, &pids) {
            let sum: u64 = decoded.entries.iter().filter_map(|entry| entry.used).sum();
            prop_assert!(sum <= 80 * GIB);
            prop_assert!(decoded.entries.len() <= count as usize);
            for entry in &decoded.entries {
                prop_assert!(!knows || [100, 200].contains(&entry.pid));
            }
        }
    }

    #[test]
    fn spoilt_lists_give_no_process_that_does_not_exist(
        processes in processes(),
        form in prop::sample::select(Form::ALL.to_vec()),
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let pids: Vec<u32> = processes.iter().map(|process| process.0).collect();
        let mut list = written(form, &processes, 64);
        for (at, byte) in spoilt {
            let at = at.index(list.bytes.len());
            list.bytes[at] = byte;
        }
        if let Ok(decoded) = decode(&list, TOTAL, &existing(&pids)) {
            for entry in &decoded.entries {
                prop_assert!(pids.contains(&entry.pid));
            }
        }
    }
}

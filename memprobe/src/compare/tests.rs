use super::*;

const MIB: u64 = 1 << 20;

fn category(at: usize) -> ComparedKey {
    ComparedKey::Category(Category::ALL[at])
}

fn memory(rows: &[(ComparedKey, u64)]) -> MemoryByKey {
    let rows = rows.iter().map(|(key, bytes)| {
        let memory = KeyMemory {
            bytes: *bytes,
            blocks: Some(1),
        };
        (key.clone(), memory)
    });
    MemoryByKey {
        rows: rows.collect(),
        ..MemoryByKey::default()
    }
}

fn changes(rows: &[ComparedRow]) -> Vec<i64> {
    rows.iter().map(ComparedRow::change).collect()
}

#[test]
fn the_largest_changes_come_first_whatever_their_sign() {
    let before = memory(&[(category(0), 5 * MIB), (category(1), MIB)]);
    let after = memory(&[
        (category(0), MIB),
        (category(1), MIB),
        (category(2), 6 * MIB),
    ]);
    let rows = compared(&before, &after, |key| Some(key.clone()));
    let mib = MIB.cast_signed();
    assert_eq!(changes(&rows), [6 * mib, -4 * mib, 0]);
}

#[test]
fn a_key_that_is_gone_keeps_a_row_of_its_own() {
    let before = memory(&[(category(0), 5), (category(1), 7)]);
    let after = memory(&[(category(1), 9)]);
    // The first key is found again as the second; the second is gone.
    let later = |key: &ComparedKey| (*key == category(0)).then(|| category(1));
    let rows = compared(&before, &after, later);
    assert_eq!(changes(&rows), [-7, 4]);
    assert_eq!(rows[1].inferred_from, Some(category(0)));
    assert_eq!(rows[0].after, None);
}

#[test]
fn ranks_on_different_devices_are_compared_and_other_devices_by_number() {
    let (cpu, zero, one) = (DeviceIndex::CPU, DeviceIndex(0), DeviceIndex(1));
    assert_eq!(paired_devices(&[zero], &[one]), [(Some(zero), Some(one))]);
    assert_eq!(
        paired_devices(&[zero, cpu], &[cpu, one]),
        [(Some(zero), Some(one)), (Some(cpu), Some(cpu))]
    );
    assert_eq!(
        paired_devices(&[zero, one], &[one]),
        [(Some(zero), None), (Some(one), Some(one))]
    );
    assert_eq!(paired_devices(&[], &[one]), [(None, Some(one))]);
}

//! Property tests of tensor tables, for consistent and inconsistent snapshots.

use proptest::prelude::*;

use super::{
    DeviceTable, GroupBy, Order, SnapshotRows, TensorTable, diff, explain, groups, without,
};
use crate::event::tensors::{
    Block, Consistency, DeviceTotals, Name, Storage, Tensor, TensorDevice, TensorKind,
    TensorSnapshot,
};
use crate::event::{Address, Bytes, DeviceIndex, Totals};

fn device() -> impl Strategy<Value = TensorDevice> {
    prop_oneof![
        6 => (0..2_u8).prop_map(|index| TensorDevice::Cuda(DeviceIndex(index))),
        1 => Just(TensorDevice::Cpu),
        1 => Just(TensorDevice::Meta),
        1 => Just(TensorDevice::Other(7)),
    ]
}

/// Mostly from a small set, so that many addresses coincide.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0..64_u64).prop_map(|at| at * 256), 1 => any::<u64>()]
}

/// Mostly small sizes; the others are below `most`.
fn size(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0..8_u64).prop_map(|at| at * 256), 1 => 0..most]
}

/// Bound of sizes, so that their sums fit 64 bits.
const SUMMABLE: u64 = 1 << 50;

fn block(most: u64) -> impl Strategy<Value = Block> {
    (
        address(),
        size(most),
        proptest::option::of(size(most)),
        0..2_u8,
    )
        .prop_map(|(addr, size, requested, device)| Block {
            addr: Address(addr),
            size: Bytes(size),
            requested: requested.map(Bytes),
            device: DeviceIndex(device),
            site: None,
            purpose: None,
        })
}

fn storage(most: u64) -> impl Strategy<Value = Storage> {
    (address(), size(most), device()).prop_map(|(data, bytes, device)| Storage {
        object: data,
        data: Address(data),
        bytes: Bytes(bytes),
        device,
        retainer: None,
    })
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let kind = prop_oneof![
        Just(TensorKind::Parameter),
        Just(TensorKind::KvCache),
        Just(TensorKind::Saved),
        Just(TensorKind::Tensor)
    ];
    let name = proptest::option::of(prop_oneof![Just("x"), Just("y")]);
    (
        (0..32_u64, kind, name, device()),
        (
            proptest::collection::vec(size(u64::MAX), 0..3),
            proptest::option::of(0..12_usize),
            proptest::collection::vec(0..12_usize, 0..2),
        ),
    )
        .prop_map(
            |((object, kind, name, device), (shape, storage, gradient_of))| {
                let name = name.map(|text| Name {
                    text: text.into(),
                    inferred: None,
                });
                Tensor {
                    object,
                    kind,
                    names: name.into_iter().collect(),
                    shape: Some(shape.into()),
                    device,
                    storage,
                    gradient_of,
                    ..Tensor::default()
                }
            },
        )
}

prop_compose! {
    fn snapshot(most: u64)(
        blocks in proptest::collection::vec(block(most), 0..12),
        storages in proptest::collection::vec(storage(most), 0..12),
        tensors in proptest::collection::vec(tensor(), 0..16),
        totals in proptest::collection::vec((0..3_u8, size(most)), 0..3),
        paused in any::<bool>(),
        limit in proptest::option::of(1_u64..),
    ) -> TensorSnapshot {
        let totals = totals.into_iter().map(|(device, allocated)| DeviceTotals {
            device: DeviceIndex(device),
            totals: Totals { allocated: Bytes(allocated), reserved: Bytes(allocated) },
        });
        let consistency = if paused {
            Consistency::Paused { pause: std::time::Duration::ZERO, retries: 0 }
        } else {
            Consistency::Running
        };
        TensorSnapshot {
            blocks,
            storages,
            tensors,
            devices: totals.collect(),
            consistency,
            limit,
            ..TensorSnapshot::default()
        }
    }
}

fn held(table: &TensorTable, device: TensorDevice) -> i128 {
    let rows = table
        .device(device)
        .map(DeviceTable::rows)
        .unwrap_or_default();
    rows.iter().map(|row| i128::from(row.holds.0)).sum()
}

proptest! {
    #[test]
    fn rows_and_remainder_come_to_what_the_allocator_says(snapshot in snapshot(SUMMABLE)) {
        for table in &explain(snapshot).devices {
            let held: i128 = table.rows().iter().map(|row| i128::from(row.holds.0)).sum();
            let account = &table.account;
            let parts = [
                account.tensors, account.bare, account.rounding, account.uncovered, account.blocks,
                account.unread,
            ];
            prop_assert_eq!(held, parts.iter().map(|part| i128::from(part.0)).sum::<i128>());
            if let Some(totals) = account.totals {
                let remainder = account.remainder.unwrap();
                prop_assert_eq!(held + i128::from(remainder), totals.allocated.0.into());
                prop_assert_eq!(remainder == 0, account.reason.is_none());
            }
        }
    }

    #[test]
    fn every_tensor_is_on_one_row_and_every_row_on_one_group(snapshot in snapshot(u64::MAX)) {
        let count = snapshot.tensors.len() as u64;
        let table = explain(snapshot);
        let tensors: u64 = table.devices.iter().map(|table| table.account.tensor_count).sum();
        prop_assert_eq!(tensors, count);
        for device in &table.devices {
            for by in [
                GroupBy::Unnamed, GroupBy::Nothing, GroupBy::Shape, GroupBy::Kind, GroupBy::Module,
                GroupBy::Site, GroupBy::Retainer,
            ] {
                for order in [Order::Holds, Order::Size, Order::Name, Order::Kind, Order::Count] {
                    let mut seen: Vec<usize> = Vec::new();
                    for group in groups(device.rows(), by, order) {
                        seen.extend(group.rows);
                    }
                    seen.sort_unstable();
                    prop_assert_eq!(seen, (0..device.rows().len()).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn a_difference_comes_to_the_difference(before in snapshot(SUMMABLE), after in snapshot(SUMMABLE)) {
        let diff = diff(explain(before), explain(after));
        for change in &diff.devices {
            let rows = |table| Option::map(table, DeviceTable::rows).unwrap_or_default();
            let (old, new) = (rows(diff.before_on(change.device)), rows(diff.after_on(change.device)));
            let holds = |rows: SnapshotRows<'_>, at: usize| i128::from(rows.at(at).holds.0);
            let came: i128 = change.came.iter().map(|&at| holds(new, at)).sum();
            let went: i128 = change.went.iter().map(|&at| holds(old, at)).sum();
            let resized = change.resized.iter();
            let resized: i128 = resized.map(|&(was, is)| holds(new, is) - holds(old, was)).sum();
            let difference = held(&diff.after, change.device) - held(&diff.before, change.device);
            prop_assert_eq!(came - went + resized, difference);
        }
    }

    #[test]
    fn nothing_changes_between_a_snapshot_and_itself(snapshot in snapshot(u64::MAX)) {
        let diff = diff(explain(snapshot.clone()), explain(snapshot));
        for change in &diff.devices {
            prop_assert!(change.came.is_empty() && change.went.is_empty(), "{:?}", change);
            prop_assert!(change.resized.is_empty(), "{:?}", change);
        }
    }

    #[test]
    fn what_is_left_without_a_device_holds_together(snapshot in snapshot(u64::MAX)) {
        let left = without(snapshot, TensorDevice::Cpu);
        prop_assert!(left.tensors.iter().all(|tensor| tensor.device != TensorDevice::Cpu));
        for tensor in &left.tensors {
            prop_assert!(tensor.storage.is_none_or(|at| at < left.storages.len()));
            prop_assert!(tensor.gradient_of.iter().all(|&at| at < left.tensors.len()));
        }
    }
}

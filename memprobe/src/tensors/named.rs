//! Names of live blocks, from the tensors of a snapshot.

use std::collections::BTreeMap;

use super::{Row, RowKind, explain};
use crate::event::tensors::{TensorDevice, TensorSnapshot};
use crate::event::{Address, BlockLabels, Bytes, DeviceIndex, LabeledBlock, Tgid};

/// Names every live block and every host storage after its tensor with most bytes.
///
/// PyTorch's CPU allocator keeps no list of blocks, but allocates one block for each storage, of
/// the same size (`StorageImpl` in c10/core/StorageImpl.h@v2.15.0). Storages of other allocators,
/// such as numpy's, have addresses that occur in no event.
pub fn named(snapshot: &TensorSnapshot, tgid: Tgid) -> BlockLabels {
    let mut best: BTreeMap<(DeviceIndex, Address), Row> = BTreeMap::new();
    for table in explain(snapshot).devices {
        let Some(device) = index_of(table.device) else {
            continue;
        };
        for row in table.rows {
            let Some((addr, _)) = place(&row) else {
                continue;
            };
            let known = best.get(&(device, addr));
            if row.outside.is_none() && known.is_none_or(|known| row.holds > known.holds) {
                best.insert((device, addr), row);
            }
        }
    }
    let blocks = snapshot.blocks.iter().map(|block| {
        let row = best.remove(&(block.device, block.addr));
        (block.device, block.addr, block.size, row)
    });
    let mut blocks: Vec<_> = blocks.collect();
    for ((device, addr), row) in best {
        if device == DeviceIndex::CPU
            && let Some((_, size)) = place(&row)
        {
            blocks.push((device, addr, size, Some(row)));
        }
    }
    let blocks = blocks.into_iter();
    let blocks = blocks.map(|(device, addr, size, row)| {
        let row = row.unwrap_or_default();
        let tensor = row.tensor.and_then(|at| snapshot.tensors.get(at));
        LabeledBlock {
            addr,
            size,
            device,
            kind: match row.kind {
                RowKind::Tensor(kind) => Some(kind),
                RowKind::Storage | RowKind::Block => None,
            },
            name: row.names.into_iter().next(),
            module: row.module,
            called: tensor.and_then(|tensor| tensor.called.clone()),
            saved_by: row.saved_by,
            retainer: row.retainer,
        }
    });
    BlockLabels {
        time: snapshot.moment,
        tgid,
        blocks: blocks.collect(),
        optimizers: snapshot.optimizers.clone(),
    }
}

fn index_of(device: TensorDevice) -> Option<DeviceIndex> {
    match device {
        TensorDevice::Cuda(device) => Some(device),
        TensorDevice::Cpu => Some(DeviceIndex::CPU),
        TensorDevice::Meta | TensorDevice::Other(_) => None,
    }
}

fn place(row: &Row) -> Option<(Address, Bytes)> {
    match row.device {
        TensorDevice::Cpu => row
            .storage
            .zip(row.storage_bytes)
            .filter(|(addr, bytes)| addr.0 != 0 && bytes.0 > 0),
        _ => row.block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tensors::{Tensor, TensorKind};
    use crate::tensors::samples::{Building, parameter, training};

    #[test]
    fn every_live_block_is_there_once_with_the_tensor_that_answers_for_it() {
        let snapshot = training();
        let names = named(&snapshot, Tgid(7));
        let of_gpu = names.blocks.iter();
        let of_gpu = of_gpu.filter(|block| block.device != DeviceIndex::CPU);
        let sizes =
            |blocks: &mut dyn Iterator<Item = Bytes>| blocks.map(|bytes| bytes.0).sum::<u64>();
        assert_eq!(
            sizes(&mut of_gpu.map(|block| block.size)),
            sizes(&mut snapshot.blocks.iter().map(|block| block.size)),
        );
        let parameter = names
            .blocks
            .iter()
            .find(|block| block.kind == Some(TensorKind::Parameter))
            .expect("the sample has parameters");
        assert!(parameter.name.is_some());
    }

    #[test]
    fn storages_of_the_host_are_blocks_of_as_many_bytes_each_once() {
        let mut building = Building::new();
        let storage = building.storage(Address(0x5000), 4 * 60, TensorDevice::Cpu);
        building.tensor(storage, &[2, 30], parameter("layer.weight"));
        // A partial view, and a tensor without memory.
        building.tensor(storage, &[30], Tensor::default());
        let empty = building.storage(Address(0), 0, TensorDevice::Cpu);
        building.tensor(empty, &[0], Tensor::default());
        let names = named(&building.finish(), Tgid(7));
        let [block] = names.blocks.as_slice() else {
            panic!("one block: {:?}", names.blocks);
        };
        assert_eq!((block.addr, block.size), (Address(0x5000), Bytes(240)));
        assert_eq!(block.device, DeviceIndex::CPU);
        assert_eq!(block.kind, Some(TensorKind::Parameter));
    }
}

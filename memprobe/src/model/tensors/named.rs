//! From the tensors of a process to its blocks: which tensor answers for each.

use std::collections::BTreeMap;

use super::{Row, RowKind, explain};
use crate::event::{Address, DeviceIndex, NamedBlock, Names, Tgid};
use crate::tensors::{Device, TensorSnapshot};

/// Every live block of the snapshot, with the tensor that holds most of it.
pub fn named(snapshot: &TensorSnapshot, tgid: Tgid) -> Names {
    let mut best: BTreeMap<(DeviceIndex, Address), Row> = BTreeMap::new();
    for table in explain(snapshot).devices {
        let Device::Cuda(device) = table.device else {
            continue;
        };
        for row in table.rows {
            let Some((addr, _)) = row.block else { continue };
            let known = best.get(&(device, addr));
            if row.outside.is_none() && known.is_none_or(|known| row.holds > known.holds) {
                best.insert((device, addr), row);
            }
        }
    }
    let blocks = snapshot.blocks.iter().map(|block| {
        let row = best.remove(&(block.device, block.addr));
        let kind = row.as_ref().and_then(|row| match row.kind {
            RowKind::Tensor(kind) => Some(kind),
            RowKind::Storage | RowKind::Block => None,
        });
        NamedBlock {
            addr: block.addr,
            size: block.size,
            device: block.device,
            kind,
            name: row.as_ref().and_then(|row| row.names.first().cloned()),
            module: row.as_ref().and_then(|row| row.module.clone()),
            saved_by: row.as_ref().and_then(|row| row.saved_by.clone()),
            kept: row.and_then(|row| row.kept),
        }
    });
    Names {
        time: snapshot.moment,
        tgid,
        blocks: blocks.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Bytes;
    use crate::model::tensors::samples::training;
    use crate::tensors::TensorKind;

    #[test]
    fn every_live_block_is_there_once_with_the_tensor_that_answers_for_it() {
        let snapshot = training();
        let names = named(&snapshot, Tgid(7));
        let sizes =
            |blocks: &mut dyn Iterator<Item = Bytes>| blocks.map(|bytes| bytes.0).sum::<u64>();
        assert_eq!(
            sizes(&mut names.blocks.iter().map(|block| block.size)),
            sizes(&mut snapshot.blocks.iter().map(|block| block.size)),
        );
        let parameter = names
            .blocks
            .iter()
            .find(|block| block.kind == Some(TensorKind::Parameter))
            .expect("the sample has parameters");
        assert!(parameter.name.is_some());
    }
}

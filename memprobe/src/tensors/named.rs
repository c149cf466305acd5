//! Names of live blocks, from the tensors of a snapshot.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{AccountEntry, DeviceEntries, RowKind, account_entries};
use crate::event::tensors::{Retainer, Tensor, TensorDevice, TensorKind, TensorSnapshot};
use crate::event::{Address, BlockLabels, Bytes, DeviceIndex, LabeledBlock, Tgid};

/// Names every live block and every host storage after its tensor with most bytes. Where not every tensor was read, the
/// blocks without one are left out: they may have one.
///
/// PyTorch's CPU allocator keeps no list of blocks, but allocates one block for each storage, of
/// the same size (`StorageImpl` in c10/core/StorageImpl.h@v2.15.0). Storages of other allocators,
/// such as numpy's, have addresses that occur in no event.
pub fn named(snapshot: &TensorSnapshot, tgid: Tgid) -> BlockLabels {
    BlockLabels {
        time: snapshot.moment,
        tgid,
        blocks: labeled_blocks(snapshot).collect(),
        optimizers: snapshot.optimizers.clone(),
        tags: snapshot.tags.clone(),
    }
}

/// Live blocks and host storages with their labels.
pub(super) fn labeled_blocks(snapshot: &TensorSnapshot) -> impl Iterator<Item = LabeledBlock> {
    let devices = account_entries(snapshot);
    let best = BestEntries::of(&devices, snapshot);
    let blocks = snapshot.blocks.iter().map(|block| {
        let entry = best.at(block.device, block.addr);
        (block.device, block.addr, block.size, entry)
    });
    let of_host = best.of_host().filter_map(|(addr, at)| {
        let (_, size) = place(at.entry(&devices), TensorDevice::Cpu, snapshot)?;
        Some((DeviceIndex::CPU, addr, size, Some(at)))
    });
    let kind = |at: EntryIndex| at.entry(&devices).kind(snapshot);
    let is_known = |at: Option<EntryIndex>| match at.map(kind) {
        Some(RowKind::BlockUnread) => false,
        Some(_) => true,
        None => snapshot.has_all_tensors(),
    };
    let blocks = blocks.filter(|(.., at)| is_known(*at)).chain(of_host);
    let blocks: Vec<_> = blocks.collect();
    drop(best);
    let retainer = |entry: &AccountEntry| entry.storage(snapshot)?.retainer.as_ref();
    let entries = blocks.iter().filter_map(|(.., at)| *at);
    let retainers = entries.filter_map(|at| retainer(at.entry(&devices)));
    let variables = SavedVariables::of(snapshot, retainers);
    blocks.into_iter().map(move |(device, addr, size, at)| {
        let entry = at.map(|at| at.entry(&devices));
        let tensor = entry.and_then(AccountEntry::tensor);
        let tensor = tensor.map(|at| &snapshot.tensors[at]);
        let retainer = entry.and_then(retainer);
        LabeledBlock {
            addr,
            size,
            device,
            is_saved_variable: variables.has(tensor, retainer),
            kind: tensor.map(|tensor| tensor.kind),
            name: tensor.and_then(|tensor| tensor.names.first().cloned()),
            module: tensor.and_then(|tensor| tensor.module.clone()),
            called: tensor.and_then(|tensor| tensor.called.clone()),
            saved_by: tensor.and_then(|tensor| tensor.saved_by.clone()),
            retainer: retainer.cloned(),
        }
    })
}

/// The entry with most bytes of each block and of each host storage.
struct BestEntries(Vec<(DeviceIndex, Address, EntryIndex)>);

/// Place of an entry among those of all devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EntryIndex {
    device: u32,
    entry: u32,
}

impl EntryIndex {
    fn entry(self, devices: &[DeviceEntries]) -> &AccountEntry {
        &devices[self.device as usize].entries[self.entry as usize]
    }
}

impl BestEntries {
    fn of(devices: &[DeviceEntries], snapshot: &TensorSnapshot) -> Self {
        let mut best = Vec::new();
        for (device, entries) in (0..).zip(devices) {
            let Some(index) = index_of(entries.device) else {
                continue;
            };
            let inside = (0..).zip(&entries.entries);
            let inside = inside.filter(|(_, entry)| entry.outside().is_none());
            best.extend(inside.filter_map(|(at, entry)| {
                let (addr, _) = place(entry, entries.device, snapshot)?;
                Some((index, addr, EntryIndex { device, entry: at }))
            }));
        }
        best.sort_unstable_by_key(|(index, addr, at)| {
            (*index, *addr, Reverse(at.entry(devices).holds()), *at)
        });
        best.dedup_by_key(|(index, addr, _)| (*index, *addr));
        Self(best)
    }

    fn at(&self, device: DeviceIndex, addr: Address) -> Option<EntryIndex> {
        let place = (device, addr);
        let found = self
            .0
            .binary_search_by_key(&place, |(device, addr, _)| (*device, *addr));
        found.ok().map(|at| self.0[at].2)
    }

    fn of_host(&self) -> impl Iterator<Item = (Address, EntryIndex)> {
        let of_host = self
            .0
            .iter()
            .filter(|(device, ..)| *device == DeviceIndex::CPU);
        of_host.map(|(_, addr, at)| (*addr, *at))
    }
}

/// Tensors that variables hand to forward passes.
struct SavedVariables {
    /// Storages with a tensor that requires grad.
    trained: HashSet<usize>,
    /// Number of blocks that each variable retains.
    blocks: HashMap<Arc<str>, u64>,
}

impl SavedVariables {
    /// `retainers` are those of each block.
    fn of<'r>(
        snapshot: &TensorSnapshot,
        retainers: impl Iterator<Item = &'r Arc<Retainer>>,
    ) -> Self {
        let requires_grad = |tensor: &&Tensor| tensor.requires_grad || tensor.grad_fn.is_some();
        let trained = snapshot.tensors.iter().filter(requires_grad);
        let mut blocks = HashMap::new();
        for retainer in retainers {
            let blocks = blocks.entry(Arc::clone(&retainer.by)).or_insert(0_u64);
            *blocks = blocks.saturating_add(1);
        }
        Self {
            trained: trained.filter_map(|tensor| tensor.storage).collect(),
            blocks,
        }
    }

    /// Returns true for a tensor that one variable refers to and a node saves. A leak is in a container, or under the
    /// names of several frames.
    fn has(&self, tensor: Option<&Tensor>, retainer: Option<&Arc<Retainer>>) -> bool {
        let Some((tensor, retainer)) = tensor.zip(retainer) else {
            return false;
        };
        tensor.kind == TensorKind::Tensor
            && tensor.saved_by.is_some()
            && tensor
                .storage
                .is_some_and(|storage| !self.trained.contains(&storage))
            && is_variable(retainer)
            && self.blocks.get(&retainer.by) == Some(&1)
    }
}

/// Returns true if the retainer is a variable that refers to the tensor itself.
fn is_variable(retainer: &Retainer) -> bool {
    let by = &*retainer.by;
    let variable = by.rsplit_once("-> ").map_or(by, |(_, variable)| variable);
    let is_name = |name: &str| {
        name.chars()
            .all(|letter| letter == '_' || letter.is_alphanumeric())
    };
    retainer.class.is_none() && retainer.through.is_none() && is_name(variable)
}

fn index_of(device: TensorDevice) -> Option<DeviceIndex> {
    match device {
        TensorDevice::Cuda(device) => Some(device),
        TensorDevice::Cpu => Some(DeviceIndex::CPU),
        TensorDevice::Meta | TensorDevice::Other(_) => None,
    }
}

/// Address and size of the block, or of the storage on the host.
fn place(
    entry: &AccountEntry,
    device: TensorDevice,
    snapshot: &TensorSnapshot,
) -> Option<(Address, Bytes)> {
    if device == TensorDevice::Cpu {
        let storage = entry.storage(snapshot)?;
        let has_memory = storage.data.0 != 0 && storage.bytes.0 > 0;
        return has_memory.then_some((storage.data, storage.bytes));
    }
    let block = entry.block(snapshot)?;
    Some((block.addr, block.size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::samples::{Building, parameter, plain, training};

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
    fn a_block_without_a_tensor_has_no_label_where_tensors_may_be_missing() {
        let mut snapshot = training();
        let all = named(&snapshot, Tgid(7)).blocks;
        snapshot.missing_objects = Some("Python's garbage collector is at work".into());
        let some = named(&snapshot, Tgid(7)).blocks;
        let is_labeled = |block: &LabeledBlock| some.iter().any(|other| other == block);
        let (labeled, left_out): (Vec<_>, Vec<_>) = all.into_iter().partition(is_labeled);
        assert_eq!(labeled.len(), some.len());
        assert!(!left_out.is_empty() && left_out.iter().all(|block| block.kind.is_none()));
        assert!(some.iter().any(|block| block.kind.is_some()));
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

    #[test]
    fn separates_data_of_one_variable_from_leaks_and_weights() {
        /// True if the first block is such data, for storages with these retainers and a tensor each.
        fn is_data(blocks: &[(&str, Option<&str>, bool)]) -> bool {
            let mut building = Building::new();
            for (at, (by, class, requires_grad)) in (1..).zip(blocks) {
                let storage = building.storage(Address(0x5000 * at), 240, TensorDevice::Cpu);
                let tensor = Tensor {
                    saved_by: Some("AddmmBackward0".into()),
                    requires_grad: *requires_grad,
                    ..plain("train.py:31 main() -> x")
                };
                building.tensor(storage, &[60], tensor);
                building.retain(storage, by, *class);
            }
            let names = named(&building.finish(), Tgid(7));
            names.blocks[0].is_saved_variable
        }
        let variable = ("train.py:31 main() -> x", None, false);
        assert!(is_data(&[variable]));
        assert!(is_data(&[("x", None, false)]));
        assert!(is_data(&[
            variable,
            ("train.py:31 main() -> y", None, false)
        ]));
        for other in [
            ("train.py:31 main() -> kept[*]", Some("list"), false),
            ("train.py:31 main() -> batch.x", None, false),
            ("train.py:31 main() -> x", None, true),
        ] {
            assert!(!is_data(&[other]), "{other:?}");
        }
        // Each of several calls in progress has a variable of this name.
        assert!(!is_data(&[variable, variable]));
    }
}

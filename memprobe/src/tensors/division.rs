//! Division of the allocator's bytes among blocks, their storages, and the tensors of these.

use std::collections::BTreeMap;

use super::account_entries::{AccountEntry, DeviceEntries, EntrySubject};
use super::sweep::{AddressRange, sweep};
use super::{Account, Reason};
use crate::event::tensors::{Consistency, Tensor, TensorDevice, TensorKind, TensorSnapshot};
use crate::event::{Bytes, DeviceIndex, Totals};

/// Divides the bytes of each device; CUDA devices come first.
pub fn account_entries(snapshot: &TensorSnapshot) -> Vec<DeviceEntries> {
    let found = Found::of(snapshot);
    let devices = found.devices.iter();
    devices
        .map(|(order, there)| device_entries(snapshot, &found, order.1, there))
        .collect()
}

/// Storages, tensors and blocks on one device, by index.
#[derive(Default)]
struct There {
    storages: Vec<usize>,
    without: Vec<usize>,
    blocks: Vec<usize>,
}

/// Sort key of devices; CUDA devices come first.
type DeviceOrder = (u8, TensorDevice);

struct Found {
    devices: BTreeMap<DeviceOrder, There>,
    tensors: StorageTensors,
}

/// Tensors of each storage; the first one gets its bytes.
struct StorageTensors {
    /// Index in `all` of the first tensor of each storage, and the end.
    starts: Vec<usize>,
    all: Vec<usize>,
}

impl StorageTensors {
    fn of(snapshot: &TensorSnapshot) -> Self {
        let storages = snapshot.storages.len();
        let with_storage = || {
            let tensors = snapshot.tensors.iter().enumerate();
            let tensors = tensors.filter_map(|(at, tensor)| Some((tensor.storage?, at)));
            tensors.filter(|(storage, _)| *storage < storages)
        };
        // First the count of each storage, then the end, then the start, as its tensors are filled in from the back.
        let mut starts = vec![0; storages + 1];
        for (storage, _) in with_storage() {
            starts[storage] += 1;
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut all = vec![0; end];
        for (storage, at) in with_storage().rev() {
            starts[storage] -= 1;
            all[starts[storage]] = at;
        }
        for ends in starts.windows(2) {
            let sharing = &mut all[ends[0]..ends[1]];
            sharing.sort_by_key(|&at| rank(&snapshot.tensors[at], snapshot));
        }
        Self { starts, all }
    }

    fn of_storage(&self, at: usize) -> &[usize] {
        &self.all[self.starts[at]..self.starts[at + 1]]
    }
}

fn order(device: TensorDevice) -> DeviceOrder {
    let rank = match device {
        TensorDevice::Cuda(_) => 0,
        TensorDevice::Other(_) => 1,
        TensorDevice::Cpu => 2,
        TensorDevice::Meta => 3,
    };
    (rank, device)
}

impl Found {
    fn of(snapshot: &TensorSnapshot) -> Self {
        let mut devices: BTreeMap<DeviceOrder, There> = BTreeMap::new();
        for totals in &snapshot.devices {
            devices
                .entry(order(TensorDevice::Cuda(totals.device)))
                .or_default();
        }
        for (at, block) in snapshot.blocks.iter().enumerate() {
            let there = devices.entry(order(TensorDevice::Cuda(block.device)));
            there.or_default().blocks.push(at);
        }
        for (at, storage) in snapshot.storages.iter().enumerate() {
            let there = devices.entry(order(storage.device));
            there.or_default().storages.push(at);
        }
        for (at, tensor) in snapshot.tensors.iter().enumerate() {
            let storage = tensor.storage;
            if storage.is_none_or(|storage| storage >= snapshot.storages.len()) {
                let there = devices.entry(order(tensor.device));
                there.or_default().without.push(at);
            }
        }
        let tensors = StorageTensors::of(snapshot);
        for there in devices.values_mut() {
            let blocks = &snapshot.blocks;
            there.blocks.sort_by_key(|&at| blocks[at].addr);
            // Of storages with the same start, the one with the better-ranked tensor comes first.
            let best = |at: usize| {
                let best = tensors.of_storage(at).first();
                best.map_or((1, None), |&at| {
                    (0, Some(rank(&snapshot.tensors[at], snapshot)))
                })
            };
            let start = |at: usize| snapshot.storages[at].data;
            there.storages.sort_by(|&one, &other| {
                let by_start = start(one).cmp(&start(other));
                by_start.then_with(|| best(one).cmp(&best(other)))
            });
        }
        Self { devices, tensors }
    }
}

/// Rank of a tensor among those that share its storage; the lowest gets the storage's bytes. Kind
/// and name count first, then full views before partial ones, then the smallest offset.
fn rank<'a>(tensor: &'a Tensor, snapshot: &TensorSnapshot) -> impl Ord + use<'a> {
    let name = tensor.names.first();
    let naming = match name {
        Some(name) if name.inferred.is_none() => 0,
        Some(_) => 1,
        None => 2,
    };
    let kind = match tensor.kind {
        TensorKind::Parameter => 0,
        TensorKind::Buffer => 1,
        TensorKind::OptimizerState => 2,
        TensorKind::Gradient => 3,
        TensorKind::KvCache => 4,
        TensorKind::Tensor if name.is_some() => 5,
        TensorKind::Saved => 6,
        TensorKind::Tensor => 7,
    };
    let storage = tensor.storage.and_then(|at| snapshot.storages.get(at));
    let is_part = storage.zip(tensor.bytes());
    let is_part = is_part.is_some_and(|(storage, bytes)| bytes < storage.bytes);
    let text = name.map(|name| &*name.text);
    // As a last resort, their operations give an order that is the same in every snapshot.
    let purpose = (&tensor.saved_by, &tensor.grad_fn);
    (
        kind,
        naming,
        is_part,
        tensor.offset,
        text,
        purpose,
        tensor.object,
    )
}

fn device_entries(
    snapshot: &TensorSnapshot,
    found: &Found,
    device: TensorDevice,
    there: &There,
) -> DeviceEntries {
    let totals = match device {
        TensorDevice::Cuda(index) => totals_of(snapshot, index),
        _ => None,
    };
    let mut divided = Builder {
        snapshot,
        tensors: &found.tensors,
        first_of_storage: vec![None; snapshot.storages.len()],
        device,
        entries: Vec::with_capacity(
            there.storages.len().max(there.blocks.len()) + there.without.len(),
        ),
        account: Account {
            totals,
            ..Account::default()
        },
    };
    // Live blocks are unknown if bytes are allocated and no block was read. Then the storages alone
    // are divided.
    let handed_out = totals.is_none_or(|totals| totals.allocated.0 > 0);
    let blocks_known =
        !there.blocks.is_empty() || matches!(device, TensorDevice::Cuda(_)) && !handed_out;
    if blocks_known {
        divided.account.block_count = Some(there.blocks.len() as u64);
        divided.add_blocks(there);
    } else {
        divided.add_storages(&there.storages, None);
    }
    let without = there.without.iter();
    let without = without.map(|&at| AccountEntry::of(EntrySubject::Tensor(at)));
    divided.entries.extend(without);
    divided.finish()
}

fn totals_of(snapshot: &TensorSnapshot, index: DeviceIndex) -> Option<Totals> {
    let totals = snapshot
        .devices
        .iter()
        .find(|totals| totals.device == index);
    totals.map(|totals| totals.totals)
}

struct Builder<'a> {
    snapshot: &'a TensorSnapshot,
    tensors: &'a StorageTensors,
    /// First entry of each storage.
    first_of_storage: Vec<Option<usize>>,
    device: TensorDevice,
    entries: Vec<AccountEntry>,
    account: Account,
}

impl Builder<'_> {
    /// Adds blocks with their storages, and storages outside all blocks.
    fn add_blocks(&mut self, there: &There) {
        let (inside, outside) = self.storages_by_block(there);
        let mut rest = &inside[..];
        for (place, &block) in there.blocks.iter().enumerate() {
            let (own, others) = rest.split_at(rest.partition_point(|(at, _)| *at <= place));
            rest = others;
            if own.is_empty() {
                let size = self.snapshot.blocks[block].size;
                let sum = match self.snapshot.has_all_tensors() {
                    true => &mut self.account.blocks,
                    false => &mut self.account.unread,
                };
                *sum = add(*sum, size);
                self.entries.push(AccountEntry {
                    bytes: size,
                    ..AccountEntry::of(EntrySubject::Block(block))
                });
            } else {
                let storages: Vec<usize> = own.iter().map(|(_, storage)| *storage).collect();
                self.add_storages(&storages, Some(block));
            }
        }
        let first = self.entries.len();
        let counted = self.account.clone();
        self.add_storages(&outside, None);
        // An emptied storage (`resize_(0)`) has no address.
        let snapshot = self.snapshot;
        for entry in &mut self.entries[first..] {
            let storage = entry.storage(snapshot);
            entry.is_outside = storage.is_some_and(|storage| storage.data.0 != 0);
        }
        let got = |after: Bytes, before: Bytes| after.0.saturating_sub(before.0);
        let outside = got(self.account.tensors, counted.tensors)
            .saturating_add(got(self.account.bare, counted.bare));
        self.account = counted;
        self.account.outside = Bytes(outside);
    }

    /// Returns the storages within blocks, each after the place of its block and in this order, and all others.
    fn storages_by_block(&self, there: &There) -> (Vec<(usize, usize)>, Vec<usize>) {
        let blocks = &self.snapshot.blocks;
        let mut inside = Vec::with_capacity(there.storages.len());
        let mut outside = Vec::new();
        // Both are in the order of addresses.
        let mut next = 0;
        for &at in &there.storages {
            let data = self.snapshot.storages[at].data;
            let rest = there.blocks[next..].iter();
            next += rest
                .take_while(|&&block| blocks[block].addr <= data)
                .count();
            let place = next.checked_sub(1).filter(|&place| {
                let block = &blocks[there.blocks[place]];
                data.0 - block.addr.0 < block.size.0
            });
            match place {
                Some(place) => inside.push((place, at)),
                None => outside.push(at),
            }
        }
        (inside, outside)
    }

    /// Adds storages of one block, or of no known one.
    fn add_storages(&mut self, storages: &[usize], block: Option<usize>) {
        let piece = |&of: &usize| {
            let storage = &self.snapshot.storages[of];
            AddressRange {
                start: storage.data.0,
                bytes: if storage.data.0 == 0 {
                    0
                } else {
                    storage.bytes.0
                },
                of,
            }
        };
        let pieces: Vec<AddressRange> = storages.iter().map(piece).collect();
        let around = block.map(|at| &self.snapshot.blocks[at]);
        let end = around.map_or(u64::MAX, |block| block.addr.0.saturating_add(block.size.0));
        let mut covered = Bytes(0);
        let mut largest: Option<(Bytes, usize)> = None;
        for own in sweep(pieces, end) {
            covered = add(covered, own.bytes);
            let within = own.within.and_then(|of| self.first_of_storage[of]);
            let first = self.add_storage(own.of, own.bytes, within, block);
            if largest.is_none_or(|(most, _)| own.bytes > most) && within.is_none() {
                largest = Some((own.bytes, first));
            }
        }
        if let (Some(block), Some((_, first))) = (around, largest) {
            let rest = block.size.0.saturating_sub(covered.0);
            let asked = block.requested.unwrap_or(covered);
            let uncovered = asked.0.saturating_sub(covered.0).min(rest);
            let account = &mut self.account;
            account.uncovered = add(account.uncovered, Bytes(uncovered));
            account.rounding = add(account.rounding, Bytes(rest - uncovered));
            let first = &mut self.entries[first];
            first.bytes = add(first.bytes, Bytes(rest));
        }
    }

    /// Adds a storage's entries; returns the one that gets its bytes.
    fn add_storage(
        &mut self,
        at: usize,
        own: Bytes,
        within: Option<usize>,
        block: Option<usize>,
    ) -> usize {
        let first = self.entries.len();
        self.first_of_storage[at] = Some(first);
        let tensors = self.tensors.of_storage(at);
        if tensors.is_empty() {
            self.account.bare = add(self.account.bare, own);
            self.entries.push(AccountEntry {
                block,
                ..AccountEntry::of(EntrySubject::Storage(at))
            });
        } else {
            self.account.tensors = add(self.account.tensors, own);
        }
        let sharing = tensors.iter().map(|&tensor| AccountEntry {
            block,
            owner: Some(first),
            ..AccountEntry::of(EntrySubject::Tensor(tensor))
        });
        self.entries.extend(sharing);
        let entry = &mut self.entries[first];
        entry.bytes = own;
        entry.owner = within;
        first
    }

    fn finish(mut self) -> DeviceEntries {
        let account = &mut self.account;
        account.tensor_count = self.entries.iter().filter_map(AccountEntry::tensor).count() as u64;
        if let Some(totals) = account.totals {
            let rest = i128::from(totals.allocated.0) - i128::from(account.held().0);
            let rest = rest.clamp(i64::MIN.into(), i64::MAX.into());
            account.remainder = i64::try_from(rest).ok();
            account.reason = if rest == 0 {
                None
            } else if account.block_count.is_none() {
                Some(Reason::BlocksUnknown)
            } else if self.snapshot.consistency == Consistency::Running {
                Some(Reason::Running)
            } else {
                Some(Reason::BlocksMissing)
            };
        }
        DeviceEntries {
            device: self.device,
            account: self.account,
            entries: self.entries,
        }
    }
}

fn add(one: Bytes, other: Bytes) -> Bytes {
    Bytes(one.0.saturating_add(other.0))
}

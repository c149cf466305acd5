//! Agreement of two readings of a running process.
//!
//! A reading of a running process sees each object at another moment. An object that is freed meanwhile can lend its
//! name to the tensor that is made at its address. Two readings make the same mistake only if the program repeats it
//! at both, so what they agree on counts.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

use super::named::labeled_blocks;
use crate::event::tensors::{Retainer, TensorKind, TensorSnapshot};
use crate::event::{Address, BlockLabels, Bytes, DeviceIndex, LabeledBlock, TaggedAllocation};

/// Fingerprints of the labels of a reading, to compare a later one with it. They take 40 bytes a block, labels several
/// times as much.
#[derive(Debug)]
pub struct LabelDigest {
    /// Key of the fingerprints, another one for each reading.
    hasher: RandomState,
    /// By device and address.
    blocks: Vec<BlockDigest>,
    tags: HashSet<TaggedAllocation>,
}

#[derive(Debug)]
struct BlockDigest {
    addr: Address,
    size: Bytes,
    device: DeviceIndex,
    kind: Option<TensorKind>,
    is_saved_variable: bool,
    name: Fingerprint,
    module: Fingerprint,
    called: Fingerprint,
    saved_by: Fingerprint,
    retainer: Fingerprint,
}

// A million of them are kept while the process is read again.
const _: () = assert!(size_of::<BlockDigest>() == 40);

/// Hash of a part of a label. Different parts have the same one only in one of 2^32 cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint(u32);

impl LabelDigest {
    /// Fingerprints of the labels that [`named`](super::named) gives to the blocks of a snapshot.
    pub fn of(snapshot: &TensorSnapshot) -> Self {
        Self::of_labels(labeled_blocks(snapshot), &snapshot.tags)
    }

    fn of_labels(labels: impl Iterator<Item = LabeledBlock>, tags: &[TaggedAllocation]) -> Self {
        let hasher = RandomState::new();
        let blocks = labels.map(|block| BlockDigest {
            addr: block.addr,
            size: block.size,
            device: block.device,
            kind: block.kind,
            is_saved_variable: block.is_saved_variable,
            name: fingerprint(&hasher, block.name.as_ref()),
            module: fingerprint(&hasher, block.module.as_ref()),
            called: fingerprint(&hasher, block.called.as_ref()),
            saved_by: fingerprint(&hasher, block.saved_by.as_ref()),
            retainer: fingerprint(&hasher, block.retainer.as_deref().map(path_of).as_ref()),
        });
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_unstable_by_key(|block| (block.device, block.addr));
        let tags = tags.iter().cloned().collect();
        Self {
            hasher,
            blocks,
            tags,
        }
    }

    /// Labels of the later reading, as far as this one agrees. Blocks of another kind or size, or of one reading
    /// alone, are left out. A name, module or retainer of one reading alone is unknown.
    pub fn agreed(&self, later: BlockLabels) -> BlockLabels {
        let blocks = later.blocks.into_iter();
        let blocks = blocks.filter_map(|block| {
            let place = (block.device, block.addr);
            let found = self
                .blocks
                .binary_search_by_key(&place, |block| (block.device, block.addr));
            let before = &self.blocks[found.ok()?];
            let is_same = before.size == block.size && before.kind == block.kind;
            is_same.then(|| self.in_both(before, block))
        });
        let blocks = blocks.collect();
        let mut tags = later.tags;
        tags.retain(|tagged| self.tags.contains(tagged));
        BlockLabels {
            blocks,
            tags,
            ..later
        }
    }

    fn in_both(&self, before: &BlockDigest, block: LabeledBlock) -> LabeledBlock {
        let retainer = block.retainer.filter(|retainer| {
            before.retainer == fingerprint(&self.hasher, Some(&path_of(retainer)))
        });
        LabeledBlock {
            name: self.same(before.name, block.name),
            module: self.same(before.module, block.module),
            called: self.same(before.called, block.called),
            saved_by: self.same(before.saved_by, block.saved_by),
            retainer,
            is_saved_variable: before.is_saved_variable && block.is_saved_variable,
            ..block
        }
    }

    fn same<T: Hash>(&self, before: Fingerprint, after: Option<T>) -> Option<T> {
        let is_same = before == fingerprint(&self.hasher, after.as_ref());
        after.filter(|_| is_same)
    }
}

/// Name and class of a retainer, and the reference from which the memory is reached.
type RetainerPath<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

/// Parts of a retainer in which two readings must agree. The tensor of a list that leads to the memory may change.
fn path_of(retainer: &Retainer) -> RetainerPath<'_> {
    let (class, through) = (retainer.class.as_deref(), retainer.through.as_deref());
    (&retainer.by, class, through)
}

fn fingerprint<T: Hash>(hasher: &RandomState, part: Option<&T>) -> Fingerprint {
    let hash = hasher.hash_one(part);
    Fingerprint((hash >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tensors::Name;
    use crate::event::{Tgid, TimeNs};

    fn block(addr: u64, kind: TensorKind, name: &str) -> LabeledBlock {
        LabeledBlock {
            kind: Some(kind),
            name: Some(Name {
                text: name.into(),
                inferred: None,
            }),
            ..LabeledBlock::unlabeled(Address(addr), Bytes(512), DeviceIndex(0))
        }
    }

    fn labels(blocks: Vec<LabeledBlock>) -> BlockLabels {
        BlockLabels {
            time: TimeNs(1),
            tgid: Tgid(7),
            blocks,
            optimizers: Vec::new(),
            tags: Vec::new(),
        }
    }

    #[test]
    fn only_what_both_readings_say_counts() {
        let weight = block(512, TensorKind::Parameter, "weight");
        let moved = block(1024, TensorKind::Tensor, "x");
        let torn = block(2048, TensorKind::Tensor, "y");
        let late = block(4096, TensorKind::Tensor, "z");
        let earlier = labels(vec![weight.clone(), moved.clone(), torn]);
        let renamed = block(1024, TensorKind::Tensor, "other");
        let retyped = block(2048, TensorKind::Gradient, "y");
        let later = labels(vec![weight.clone(), renamed, retyped, late]);
        let earlier = LabelDigest::of_labels(earlier.blocks.into_iter(), &earlier.tags);
        let unnamed = LabeledBlock {
            name: None,
            ..moved
        };
        assert_eq!(earlier.agreed(later).blocks, [weight, unnamed]);
    }
}

//! Agreement of two readings of a running process.
//!
//! A reading of a running process sees each object at another moment. An object that is freed meanwhile can lend its
//! name to the tensor that is made at its address. Two readings make the same mistake only if the program repeats it
//! at both, so what they agree on counts.

use std::collections::{HashMap, HashSet};

use crate::event::{Address, BlockLabels, DeviceIndex, LabeledBlock, TaggedAllocation};

/// Labels of the later reading, as far as the earlier one agrees. Blocks of another kind or size, or of one reading
/// alone, are left out. A name, module or retainer of one reading alone is unknown.
pub fn agreed(earlier: &BlockLabels, later: BlockLabels) -> BlockLabels {
    let known = earlier.blocks.iter();
    let known: HashMap<(DeviceIndex, Address), &LabeledBlock> = known
        .map(|block| ((block.device, block.addr), block))
        .collect();
    let blocks = later.blocks.into_iter();
    let blocks = blocks.filter_map(|block| {
        let before = known.get(&(block.device, block.addr))?;
        let is_same = before.size == block.size && before.kind == block.kind;
        is_same.then(|| in_both(before, block))
    });
    let blocks = blocks.collect();
    let known: HashSet<&TaggedAllocation> = earlier.tags.iter().collect();
    let mut tags = later.tags;
    tags.retain(|tagged| known.contains(tagged));
    BlockLabels {
        blocks,
        tags,
        ..later
    }
}

fn in_both(before: &LabeledBlock, block: LabeledBlock) -> LabeledBlock {
    fn same<T: PartialEq>(before: Option<&T>, after: Option<T>) -> Option<T> {
        after.filter(|after| before == Some(after))
    }
    let retainer = before.retainer.as_ref().zip(block.retainer);
    let retainer = retainer.filter(|(before, after)| {
        (&before.by, &before.class, &before.through) == (&after.by, &after.class, &after.through)
    });
    LabeledBlock {
        name: same(before.name.as_ref(), block.name),
        module: same(before.module.as_ref(), block.module),
        called: same(before.called.as_ref(), block.called),
        saved_by: same(before.saved_by.as_ref(), block.saved_by),
        retainer: retainer.map(|(_, after)| after),
        is_saved_variable: before.is_saved_variable && block.is_saved_variable,
        ..block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tensors::{Name, TensorKind};
    use crate::event::{Bytes, Tgid, TimeNs};

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
        let unnamed = LabeledBlock {
            name: None,
            ..moved
        };
        assert_eq!(agreed(&earlier, later).blocks, [weight, unnamed]);
    }
}

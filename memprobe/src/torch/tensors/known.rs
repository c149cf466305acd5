//! Tensors that an earlier scan found, by the addresses of their parts: a look at the paused process reads only those
//! again whose pages have changed.

use std::ops::Range;

use crate::process::memory::ReadMemory;
use crate::torch::objects::Layouts;

#[derive(Debug)]
pub(super) struct KnownTensors {
    pub(super) layouts: Layouts,
    /// Python objects.
    objects: Parts,
    /// `TensorImpl`s.
    tensors: Parts,
    /// Metadata of autograd.
    metas: Parts,
    /// `TensorImpl`s that others lead to and Python has no object of, such as gradients, and their metadata.
    reached: [Parts; 2],
}

/// Parts of tensors, each of the same size. A tensor is known by its Python object; one that has none, by its
/// `TensorImpl`.
#[derive(Debug)]
struct Parts {
    size: u64,
    /// Address of the part and of the tensor that it belongs to, by the former.
    by_address: Vec<(u64, u64)>,
}

impl Parts {
    fn of(size: u64, mut by_address: Vec<(u64, u64)>) -> Self {
        by_address.sort_unstable();
        Self { size, by_address }
    }

    fn has(&self, address: u64) -> bool {
        let parts = &self.by_address;
        let place = parts.binary_search_by_key(&address, |part| part.0);
        place.is_ok()
    }

    /// Appends the tensors of the parts that lie in these ranges, as a whole or in part.
    fn add_changed(&self, ranges: &[Range<u64>], objects: &mut Vec<u64>) {
        for range in ranges {
            let first = range.start.saturating_sub(self.size - 1);
            let start = self.by_address.partition_point(|part| part.0 < first);
            let parts = self.by_address[start..].iter();
            let parts = parts.take_while(|part| part.0 < range.end);
            objects.extend(parts.map(|part| part.1));
        }
    }
}

impl KnownTensors {
    /// `tensors` are pairs of a Python object and its `TensorImpl`, and `reached` the `TensorImpl`s without one.
    pub(super) fn of(
        memory: &impl ReadMemory,
        layouts: Layouts,
        tensors: &[(u64, u64)],
        reached: &[u64],
    ) -> Self {
        let sizes = layouts.sizes();
        let reader = layouts.reader(memory);
        let meta_of = |(known, tensor)| Some((reader.meta_of(tensor)?, known));
        let metas = tensors.iter().copied().filter_map(meta_of).collect();
        let reached: Vec<_> = reached.iter().map(|&tensor| (tensor, tensor)).collect();
        let metas_of_reached = reached.iter().copied().filter_map(meta_of).collect();
        let objects = tensors.iter().map(|&(object, _)| (object, object));
        let of_tensors = tensors.iter().map(|&(object, tensor)| (tensor, object));
        Self {
            objects: Parts::of(sizes.object, objects.collect()),
            tensors: Parts::of(sizes.tensor, of_tensors.collect()),
            metas: Parts::of(sizes.meta, metas),
            reached: [
                Parts::of(sizes.tensor, reached),
                Parts::of(sizes.meta, metas_of_reached),
            ],
            layouts,
        }
    }

    /// True for the Python object of a tensor that was known.
    pub(super) fn has(&self, object: u64) -> bool {
        self.objects.has(object)
    }

    /// Python objects of the tensors with a part in one of these ranges, which are in the order of addresses.
    pub(super) fn changed(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        changed_of([&self.objects, &self.tensors, &self.metas], ranges)
    }

    /// `TensorImpl`s without a Python object that have a part in one of these ranges.
    pub(super) fn changed_reached(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        changed_of(self.reached.each_ref(), ranges)
    }
}

fn changed_of<const N: usize>(parts: [&Parts; N], ranges: &[Range<u64>]) -> Vec<u64> {
    let mut tensors = Vec::new();
    for parts in parts {
        parts.add_changed(ranges, &mut tensors);
    }
    tensors.sort_unstable();
    tensors.dedup();
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_reaches_into_a_range_belongs_to_it() {
        let parts = Parts::of(16, vec![(0x2000, 3), (0xff1, 1), (0xff0, 0), (0x1ff8, 2)]);
        let changed = |ranges: &[Range<u64>]| {
            let mut objects = Vec::new();
            parts.add_changed(ranges, &mut objects);
            objects
        };
        let one = |range| vec![range];
        assert_eq!(changed(&one(0x1000..0x2000)), [1, 2]);
        assert_eq!(changed(&one(0x2000..0x3000)), [2, 3]);
        assert_eq!(changed(&[0..0xff0, 0x2008..0x3000]), [3]);
        assert!(changed(&[]).is_empty());
        assert!(parts.has(0xff1) && !parts.has(0xff2));
    }
}

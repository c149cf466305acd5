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
}

/// Parts of tensors, each of the same size.
#[derive(Debug)]
struct Parts {
    size: u64,
    /// Address of the part and of the Python object that it belongs to, by the former.
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

    /// Appends the Python objects of the parts that lie in these ranges, as a whole or in part.
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
    /// `tensors` are pairs of a Python object and its `TensorImpl`.
    pub(super) fn of(memory: &impl ReadMemory, layouts: Layouts, tensors: &[(u64, u64)]) -> Self {
        let sizes = layouts.sizes();
        let reader = layouts.reader(memory);
        let metas = tensors
            .iter()
            .filter_map(|&(object, tensor)| Some((reader.meta_of(tensor)?, object)));
        let metas = metas.collect();
        let objects = tensors.iter().map(|&(object, _)| (object, object));
        let of_tensors = tensors.iter().map(|&(object, tensor)| (tensor, object));
        Self {
            objects: Parts::of(sizes.object, objects.collect()),
            tensors: Parts::of(sizes.tensor, of_tensors.collect()),
            metas: Parts::of(sizes.meta, metas),
            layouts,
        }
    }

    /// True for the Python object of a tensor that was known.
    pub(super) fn has(&self, object: u64) -> bool {
        self.objects.has(object)
    }

    /// Python objects of the tensors with a part in one of these ranges, which are in the order of addresses.
    pub(super) fn changed(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        let mut objects = Vec::new();
        for parts in [&self.objects, &self.tensors, &self.metas] {
            parts.add_changed(ranges, &mut objects);
        }
        objects.sort_unstable();
        objects.dedup();
        objects
    }
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

//! Python objects of tensors, and the tensor of the snapshot that each stands for.

use crate::python::heap::address_index::AddressIndex;

/// Pairs of a Python object and the index of its tensor, in the order of the objects' addresses.
///
/// A sorted list with an index and no hash table, because objects that lie side by side are asked for one after the other:
/// look-ups of a million of them in a hash table took several times as long.
#[derive(Debug, Default)]
pub(super) struct TensorObjects {
    pairs: Vec<(u64, u32)>,
    index: AddressIndex,
}

impl TensorObjects {
    /// `objects` are pairs of a Python object and its `TensorImpl`, and `tensors` the `TensorImpl`s of the snapshot, in the
    /// order of their addresses.
    pub(super) fn of(objects: &[(u64, u64)], tensors: impl Iterator<Item = u64>) -> Self {
        let mut objects = objects.to_vec();
        // They come nearly sorted.
        objects.sort_by_key(|&(_, tensor)| tensor);
        let mut tensors = (0..).zip(tensors).peekable();
        let pairs = objects.iter().filter_map(|&(object, tensor)| {
            while tensors.next_if(|&(_, known)| known < tensor).is_some() {}
            let (at, _) = tensors.peek().filter(|&&(_, known)| known == tensor)?;
            Some((object, *at))
        });
        let mut pairs: Vec<(u64, u32)> = pairs.collect();
        pairs.sort_by_key(|&(object, _)| object);
        pairs.dedup_by_key(|&mut (object, _)| object);
        let index = AddressIndex::of(pairs.iter().map(|&(object, _)| object));
        Self { pairs, index }
    }

    /// Index of the tensor of a Python object; `None` if it is no tensor, or one that the snapshot lacks.
    pub(super) fn tensor(&self, object: u64) -> Option<usize> {
        let place = self.index.get(object)?;
        let (_, tensor) = self.pairs.get(place as usize)?;
        Some(*tensor as usize)
    }

    /// All objects with the indices of their tensors, in the order of addresses.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, usize)> {
        let pairs = self.pairs.iter();
        pairs.map(|&(object, tensor)| (object, tensor as usize))
    }
}

/// Returns the `TensorImpl`s without a Python object, of `tensors` in the order of addresses. `objects` are pairs of one
/// and its `TensorImpl`.
pub(super) fn without_object(
    tensors: impl Iterator<Item = u64>,
    objects: &[(u64, u64)],
) -> Vec<u64> {
    let mut impls: Vec<u64> = objects.iter().map(|&(_, tensor)| tensor).collect();
    // They come nearly sorted.
    impls.sort();
    let mut impls = impls.into_iter().peekable();
    let has_none = |tensor: &u64| {
        while impls.next_if(|known| known < tensor).is_some() {}
        impls.peek() != Some(tensor)
    };
    tensors.filter(has_none).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_no_object_of_python_stands_for_are_found() {
        let objects = [(0x9030, 0x300), (0x9010, 0x100), (0x9048, 0x300)];
        let without = |tensors: &[u64]| without_object(tensors.iter().copied(), &objects);
        assert_eq!(
            without(&[0x80, 0x100, 0x200, 0x300, 0x400]),
            [0x80, 0x200, 0x400]
        );
        assert!(without(&[0x100, 0x300]).is_empty());
        assert!(without(&[]).is_empty());
    }

    #[test]
    fn an_object_leads_to_its_tensor_in_any_order_of_both() {
        let tensors = [0x100, 0x200, 0x300, 0x400];
        let found = [
            (0x9030, 0x100),
            (0x9010, 0x300),
            (0x9048, 0x250),
            (0x9000, 0x400),
            (0x9051, 0x300),
        ];
        let objects = TensorObjects::of(&found, tensors.into_iter());
        let pairs: Vec<_> = objects.iter().collect();
        assert_eq!(pairs, [(0x9000, 3), (0x9010, 2), (0x9030, 0), (0x9051, 2)]);
        for (object, tensor) in pairs {
            assert_eq!(objects.tensor(object), Some(tensor));
        }
        assert_eq!(objects.tensor(0x9048), None);
        assert_eq!(objects.tensor(0), None);
    }
}

//! Origins of paths: the object or root before each of millions of objects, in few bytes.

use hashbrown::HashMap;

use super::address_index::AddressIndex;
use super::contents::Step;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOrigin {
    Nowhere,
    /// The object is itself a root.
    Root(u32),
    /// Reached from another object by a step.
    From(u32, Step),
}

/// An origin for each of a sequence of objects, in columns: 13 bytes each.
#[derive(Debug, Default)]
pub(super) struct OriginTable {
    kinds: Vec<OriginKind>,
    /// Index of the root, or of the object before.
    from: Vec<u32>,
    /// Value of the step: an address, an index, or two of them.
    values: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
enum OriginKind {
    Nowhere,
    Root,
    Attribute,
    Registered,
    Member,
    Key,
    Index,
    Indices,
    Flat,
    Element,
    Cell,
    Value,
}

impl OriginTable {
    /// Objects that nothing leads to.
    pub(super) fn nowhere(objects: usize) -> Self {
        Self {
            kinds: vec![OriginKind::Nowhere; objects],
            from: vec![0; objects],
            values: vec![0; objects],
        }
    }

    /// Origin of an object; `None` beyond the last one.
    pub(super) fn get(&self, place: usize) -> Option<PathOrigin> {
        let kind = *self.kinds.get(place)?;
        let (from, value) = (self.from[place], self.values[place]);
        let (high, low) = ((value >> 32) as u32, value as u32);
        let step = match kind {
            OriginKind::Nowhere => return Some(PathOrigin::Nowhere),
            OriginKind::Root => return Some(PathOrigin::Root(from)),
            OriginKind::Attribute => Step::Attribute(value),
            OriginKind::Registered => Step::Registered(value),
            OriginKind::Member => Step::Member(high, low),
            OriginKind::Key => Step::Key(value),
            OriginKind::Index => Step::Index(value),
            OriginKind::Indices => Step::Indices(high, low),
            OriginKind::Flat => Step::Flat(value),
            OriginKind::Element => Step::Element,
            OriginKind::Cell => Step::Cell,
            OriginKind::Value => Step::Value,
        };
        Some(PathOrigin::From(from, step))
    }

    /// Replaces the origin of an object.
    ///
    /// # Panics
    /// If there is no such object.
    pub(super) fn set(&mut self, place: usize, origin: PathOrigin) {
        let (kind, from, value) = columns(origin);
        self.kinds[place] = kind;
        self.from[place] = from;
        self.values[place] = value;
    }

    /// Appends an object.
    pub(super) fn push(&mut self, origin: PathOrigin) {
        let (kind, from, value) = columns(origin);
        self.kinds.push(kind);
        self.from.push(from);
        self.values.push(value);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PathOrigin> {
        (0..self.kinds.len()).filter_map(|place| self.get(place))
    }
}

fn columns(origin: PathOrigin) -> (OriginKind, u32, u64) {
    let (from, step) = match origin {
        PathOrigin::Nowhere => return (OriginKind::Nowhere, 0, 0),
        PathOrigin::Root(root) => return (OriginKind::Root, root, 0),
        PathOrigin::From(place, step) => (place, step),
    };
    let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let (kind, value) = match step {
        Step::Attribute(name) => (OriginKind::Attribute, name),
        Step::Registered(name) => (OriginKind::Registered, name),
        Step::Member(class, member) => (OriginKind::Member, both(class, member)),
        Step::Key(key) => (OriginKind::Key, key),
        Step::Index(index) => (OriginKind::Index, index),
        Step::Indices(row, column) => (OriginKind::Indices, both(row, column)),
        Step::Flat(index) => (OriginKind::Flat, index),
        Step::Element => (OriginKind::Element, 0),
        Step::Cell => (OriginKind::Cell, 0),
        Step::Value => (OriginKind::Value, 0),
    };
    (kind, from, value)
}

/// Origins of the paths to each tensor, longest-lived first. Most tensors of a large heap have one path alone.
#[derive(Debug)]
pub(super) struct TensorOrigins {
    /// Index of each tensor in `first`, by its address.
    index: AddressIndex,
    first: OriginTable,
    others: HashMap<u32, Vec<PathOrigin>>,
}

impl TensorOrigins {
    /// No paths yet to these tensors. Paths to others are not kept.
    pub(super) fn of(tensors: &[u64]) -> Self {
        Self {
            index: AddressIndex::of(tensors.iter().copied()),
            first: OriginTable::nowhere(tensors.len()),
            others: HashMap::new(),
        }
    }

    /// Origins of the paths to a tensor.
    pub(super) fn get(&self, tensor: u64) -> impl DoubleEndedIterator<Item = PathOrigin> + Clone {
        let place = self.index.get(tensor);
        let first = place.and_then(|place| self.first.get(place as usize));
        let first = first.filter(|origin| *origin != PathOrigin::Nowhere);
        let others = place.and_then(|place| self.others.get(&place));
        first
            .into_iter()
            .chain(others.into_iter().flatten().copied())
    }

    /// Origins of the paths to all tensors.
    pub(super) fn all(&self) -> impl Iterator<Item = PathOrigin> {
        let first = self.first.iter();
        let first = first.filter(|origin| *origin != PathOrigin::Nowhere);
        first.chain(self.others.values().flatten().copied())
    }

    /// Adds a path to a tensor that has fewer than `most`, unless it has this one. Returns true if it was added.
    pub(super) fn add(&mut self, tensor: u64, origin: PathOrigin, most: usize) -> bool {
        let Some(place) = self.index.get(tensor) else {
            return false;
        };
        let is_new = {
            let mut known = self.get(tensor);
            known.clone().count() < most && known.all(|known| known != origin)
        };
        if !is_new {
            return false;
        }
        match self.first.get(place as usize) {
            Some(PathOrigin::Nowhere) => self.first.set(place as usize, origin),
            _ => self.others.entry(place).or_default().push(origin),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_origin_is_as_it_was_put_in() {
        let steps = [
            Step::Attribute(u64::MAX),
            Step::Registered(0x7f12_3456_7890),
            Step::Member(u32::MAX, 3),
            Step::Key(0),
            Step::Index(1 << 40),
            Step::Indices(7, u32::MAX),
            Step::Flat(9),
            Step::Element,
            Step::Cell,
            Step::Value,
        ];
        let origins = steps.map(|step| PathOrigin::From(u32::MAX, step));
        let origins = [PathOrigin::Nowhere, PathOrigin::Root(5)]
            .into_iter()
            .chain(origins);
        let mut table = OriginTable::nowhere(1);
        for (place, origin) in (1..).zip(origins) {
            table.push(origin);
            table.set(0, origin);
            assert_eq!(table.get(0), Some(origin));
            assert_eq!(table.get(place), Some(origin));
            assert_eq!(table.get(place + 1), None);
        }
    }

    #[test]
    fn a_tensor_has_its_paths_in_the_order_in_which_they_were_added() {
        let mut origins = TensorOrigins::of(&[0x7f00_0000_0010, 0x7f00_0000_0040]);
        let way = PathOrigin::Root;
        for (origin, is_new) in [
            (8, true),
            (3, true),
            (8, false),
            (3, false),
            (5, true),
            (1, false),
        ] {
            assert_eq!(origins.add(0x7f00_0000_0040, way(origin), 3), is_new);
        }
        assert!(!origins.add(0x7f00_0000_0080, way(1), 3), "no tensor");
        let all: Vec<_> = origins.get(0x7f00_0000_0040).collect();
        assert_eq!(all, [way(8), way(3), way(5)]);
        assert_eq!(origins.get(0x7f00_0000_0010).count(), 0);
        assert_eq!(origins.all().count(), 3);
    }
}

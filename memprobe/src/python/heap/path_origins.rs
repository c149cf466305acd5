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

/// An origin for each of a sequence of objects, in columns: 9 bytes each.
#[derive(Debug, Default)]
pub(super) struct OriginTable {
    kinds: Vec<OriginKind>,
    /// Index of the root, or of the object before.
    from: Vec<u32>,
    values: StepValues,
}

/// Values of steps: an address, an index, or two indices.
#[derive(Debug, Default)]
struct StepValues {
    /// Values that are small, or lie near; with [`LARGE`], the index of one that does not.
    stored: Vec<u32>,
    /// The address from which others are counted in words.
    base: Option<u64>,
    /// All other values, each once: the same few names lead to most objects.
    large: Vec<u64>,
    places_of_large: HashMap<u64, u32>,
}

/// Bit of an index in the large values.
const LARGE: u32 = 1 << 31;

/// Bytes of a word, as a power of two.
const WORD: u32 = size_of::<u64>().ilog2();

impl StepValues {
    /// Zero for each of a number of objects.
    fn zeroes(objects: usize) -> Self {
        Self {
            stored: vec![0; objects],
            ..Self::default()
        }
    }

    fn get(&self, place: usize, kind: OriginKind) -> u64 {
        let stored = self.stored[place];
        if stored & LARGE != 0 {
            return self.large[(stored & !LARGE) as usize];
        }
        let [high, low] = [stored >> 16, stored & 0xffff];
        match kind.value() {
            ValueKind::Address => {
                let base = self.base.unwrap_or_default();
                base.wrapping_add(u64::from(stored) << WORD)
            }
            ValueKind::Index => stored.into(),
            ValueKind::Indices => joined(high, low),
        }
    }

    /// Form of a value in which it is stored.
    fn store(&mut self, kind: OriginKind, value: u64) -> u32 {
        let small = match kind.value() {
            ValueKind::Address => {
                // Half of the range lies below the first address.
                let below = u64::from(LARGE / 2) << WORD;
                let base = value.wrapping_sub(below) >> WORD << WORD;
                let base = *self.base.get_or_insert(base);
                let words = value.wrapping_sub(base) >> WORD;
                let is_aligned = value.wrapping_sub(base).is_multiple_of(1 << WORD);
                u32::try_from(words).ok().filter(|_| is_aligned)
            }
            ValueKind::Index => u32::try_from(value).ok(),
            ValueKind::Indices => {
                let (high, low) = halves(value);
                (high.max(low) < 1 << 16).then_some(high << 16 | low)
            }
        };
        small.filter(|small| small & LARGE == 0).unwrap_or_else(|| {
            let large = &mut self.large;
            let place = self.places_of_large.entry(value).or_insert_with(|| {
                large.push(value);
                large.len() as u32 - 1
            });
            *place | LARGE
        })
    }

    fn set(&mut self, place: usize, kind: OriginKind, value: u64) {
        self.stored[place] = self.store(kind, value);
    }

    fn push(&mut self, kind: OriginKind, value: u64) {
        let stored = self.store(kind, value);
        self.stored.push(stored);
    }
}

/// Two indices in one value.
fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << u32::BITS | u64::from(low)
}

const fn halves(value: u64) -> (u32, u32) {
    ((value >> u32::BITS) as u32, value as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Address,
    Index,
    Indices,
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

impl OriginKind {
    const fn value(self) -> ValueKind {
        match self {
            Self::Attribute | Self::Registered | Self::Key => ValueKind::Address,
            Self::Member | Self::Indices => ValueKind::Indices,
            Self::Nowhere
            | Self::Root
            | Self::Index
            | Self::Flat
            | Self::Element
            | Self::Cell
            | Self::Value => ValueKind::Index,
        }
    }
}

impl OriginTable {
    /// Objects that nothing leads to.
    pub(super) fn nowhere(objects: usize) -> Self {
        Self {
            kinds: vec![OriginKind::Nowhere; objects],
            from: vec![0; objects],
            values: StepValues::zeroes(objects),
        }
    }

    /// Origin of an object; `None` beyond the last one.
    pub(super) fn get(&self, place: usize) -> Option<PathOrigin> {
        let kind = *self.kinds.get(place)?;
        let (from, value) = (self.from[place], self.values.get(place, kind));
        let (high, low) = halves(value);
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
        self.values.set(place, kind, value);
    }

    /// Appends an object.
    pub(super) fn push(&mut self, origin: PathOrigin) {
        let (kind, from, value) = columns(origin);
        self.kinds.push(kind);
        self.from.push(from);
        self.values.push(kind, value);
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
    let (kind, value) = match step {
        Step::Attribute(name) => (OriginKind::Attribute, name),
        Step::Registered(name) => (OriginKind::Registered, name),
        Step::Member(class, member) => (OriginKind::Member, joined(class, member)),
        Step::Key(key) => (OriginKind::Key, key),
        Step::Index(index) => (OriginKind::Index, index),
        Step::Indices(row, column) => (OriginKind::Indices, joined(row, column)),
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
    use proptest::prelude::*;

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

    fn step() -> impl Strategy<Value = Step> {
        let address = prop_oneof![
            (0..1_u64 << 33).prop_map(|distance| 0x7f12_0000_0000 + distance),
            (0..20_u64).prop_map(|number| 0x5555_0000_0000 + 16 * number),
            any::<u64>(),
        ];
        let number = || prop_oneof![0..100_u32, any::<u32>()];
        prop_oneof![
            address.prop_map(Step::Key),
            (number(), number()).prop_map(|(class, member)| Step::Member(class, member)),
            any::<u64>().prop_map(Step::Index),
        ]
    }

    proptest! {
        #[test]
        fn origins_do_not_change_each_other(
            steps in prop::collection::vec(step(), 1..40),
            again in prop::collection::vec((any::<prop::sample::Index>(), step()), 0..40),
        ) {
            let mut expected: Vec<_> = steps.iter().map(|step| PathOrigin::From(1, *step)).collect();
            let mut table = OriginTable::nowhere(0);
            for &origin in &expected {
                table.push(origin);
            }
            for (place, step) in again {
                let (place, origin) = (place.index(expected.len()), PathOrigin::From(2, step));
                table.set(place, origin);
                expected[place] = origin;
            }
            prop_assert_eq!(table.iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn far_names_are_stored_once() {
        let mut table = OriginTable::nowhere(0);
        let near = (0..1000).map(|number| 0x7f12_0000_0000 + 32 * number);
        let far = (0..1000).map(|number| 0x5555_0000_0000 + 32 * (number % 3));
        for name in near.chain(far) {
            table.push(PathOrigin::From(0, Step::Attribute(name)));
        }
        assert_eq!(table.values.large.len(), 3);
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

//! Last objects of the collector's lists, by which a later walk recognizes the part that is known.

use hashbrown::HashMap;

use super::Generation;

/// Most last objects of each list.
const ENDING: usize = 1 << 14;

/// Known objects at the end of a list after which a walk from its end stops. One alone proves nothing: a collection moves
/// a few objects behind those that it adds, and a new object may lie where a known one was.
pub(super) const KNOWN_ENOUGH: usize = 256;

/// Most old objects that are all walked again. A collection of everything puts those that only others of them refer to
/// behind the new ones (`move_unreachable` in Python/gc.c@v3.13.9).
const FEW_OLD: usize = 1 << 13;

/// The last objects of each list, with the list.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    lists: HashMap<u64, Generation>,
    has_few_old: bool,
}

impl Endings {
    /// Takes the objects in the order of [`ListWalk`](super::ListWalk).
    pub fn of(objects: impl DoubleEndedIterator<Item = (u64, Generation)>) -> Self {
        let mut lists = HashMap::new();
        let (mut list, mut taken, mut old) = (None, 0, 0);
        for (address, generation) in objects.rev() {
            old += usize::from(generation == Generation::Old);
            if list != Some(generation) {
                (list, taken) = (Some(generation), 0);
            }
            if taken < ENDING {
                taken += 1;
                lists.insert(address, generation);
            }
        }
        let has_few_old = old <= FEW_OLD;
        Self { lists, has_few_old }
    }

    /// Objects at the end of a list that are walked even if they are known.
    pub(super) const fn walked_again(&self, list: Generation) -> usize {
        match list {
            Generation::Old if self.has_few_old => FEW_OLD,
            _ => list.restless(),
        }
    }

    /// True if an object of a list was known. A young object that is now in a settled list is new there: it says
    /// nothing of the objects before it.
    pub(super) fn has(&self, address: u64, list: Generation) -> bool {
        let earlier = self.lists.get(&address);
        earlier.is_some_and(|earlier| earlier.is_settled() || !list.is_settled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_objects_of_each_list_are_its_ending() {
        let list = |first: u64, count, age| (first..first + count).map(move |at| (at, age));
        let objects: Vec<_> = list(0, 20_000, Generation::New)
            .chain(list(30_000, 5, Generation::Young))
            .chain(list(100_000, 50_000, Generation::Old))
            .chain(list(200_000, 3, Generation::Frozen))
            .chain(list(40_000, 5, Generation::New))
            .collect();
        let endings = Endings::of(objects.into_iter());
        assert_eq!(endings.lists.len(), ENDING + 5 + ENDING + 3 + 5);
        for (at, is_last) in [
            (19_999, true),
            (0, false),
            (30_000, true),
            (149_999, true),
            (100_000, false),
        ] {
            assert_eq!(endings.has(at, Generation::Young), is_last, "{at}");
        }
    }

    #[test]
    fn a_young_object_that_grew_old_says_nothing_of_the_old_ones() {
        let lists = [
            (1, Generation::New),
            (2, Generation::Young),
            (3, Generation::Old),
            (4, Generation::Frozen),
        ];
        let endings = Endings::of(lists.into_iter());
        for (list, known) in [
            (Generation::New, [true, true, true, true]),
            (Generation::Young, [true, true, true, true]),
            (Generation::Old, [false, false, true, true]),
            (Generation::Frozen, [false, false, true, true]),
        ] {
            assert_eq!([1, 2, 3, 4].map(|at| endings.has(at, list)), known);
        }
    }
}

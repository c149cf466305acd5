//! Sets of the IDs of definitions, which count up from 1.

use std::collections::BTreeSet;

/// IDs that are bits of a table: those of all recordings but very long or damaged ones. The table takes 256 KiB at most.
const IN_TABLE: u32 = 1 << 21;

#[derive(Default)]
pub(super) struct IdSet {
    table: Vec<u64>,
    beyond: BTreeSet<u32>,
    len: usize,
}

impl IdSet {
    #[inline]
    pub(super) fn contains(&self, id: u32) -> bool {
        if id >= IN_TABLE {
            return self.beyond.contains(&id);
        }
        let (word, bit) = place(id);
        self.table.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Returns true if the ID is new.
    pub(super) fn insert(&mut self, id: u32) -> bool {
        let is_new = !self.contains(id);
        self.len += usize::from(is_new);
        if id >= IN_TABLE {
            self.beyond.insert(id);
            return is_new;
        }
        let (word, bit) = place(id);
        if self.table.len() <= word {
            self.table.resize(word + 1, 0);
        }
        self.table[word] |= bit;
        is_new
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets the lowest ones of the IDs beyond the table, if they are more than so many.
    pub(super) fn limit_beyond(&mut self, most: usize) {
        while self.beyond.len() > most {
            self.beyond.pop_first();
            self.len -= 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.beyond.clear();
        self.len = 0;
    }
}

/// Index of an ID's word in the table, and its bit there.
const fn place(id: u32) -> (usize, u64) {
    ((id / u64::BITS) as usize, 1 << (id % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_new_once_wherever_it_lies() {
        let mut set = IdSet::default();
        let ids = [0, 1, 63, 64, IN_TABLE - 1, IN_TABLE, u32::MAX];
        for id in ids {
            assert!(!set.contains(id));
            assert!(set.insert(id));
            assert!(!set.insert(id));
            assert!(set.contains(id));
        }
        assert_eq!(set.len(), ids.len());
        assert!(!set.contains(2));
        set.clear();
        assert_eq!(set.len(), 0);
        assert!(ids.into_iter().all(|id| !set.contains(id)));
    }

    #[test]
    fn the_lowest_ids_beyond_the_table_are_forgotten_first() {
        let mut set = IdSet::default();
        for id in [5, IN_TABLE + 1, IN_TABLE + 2, IN_TABLE + 3] {
            set.insert(id);
        }
        set.limit_beyond(2);
        assert_eq!(set.len(), 3);
        assert!(set.contains(5) && !set.contains(IN_TABLE + 1));
        assert!(set.contains(IN_TABLE + 2) && set.contains(IN_TABLE + 3));
    }
}

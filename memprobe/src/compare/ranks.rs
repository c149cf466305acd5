//! Imbalance of many ranks: the least and the most that one has of each key.

use std::collections::{BTreeMap, HashMap};

use super::{ComparedKey, MemoryByKey, name};

/// Bytes of one key in each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankBytes {
    /// By rank, in the order of the ranks; 0 for a rank without the key.
    pub bytes: Vec<u64>,
}

/// A rank by its place in the list, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankExtreme {
    pub rank: usize,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImbalanceRow {
    pub key: ComparedKey,
    pub ranks: RankBytes,
}

impl RankBytes {
    /// The first rank with the least.
    pub fn least(&self) -> RankExtreme {
        let ranks = self.bytes.iter().enumerate();
        let least = ranks.min_by_key(|(rank, bytes)| (**bytes, *rank));
        let (rank, bytes) = least.map_or((0, 0), |(rank, bytes)| (rank, *bytes));
        RankExtreme { rank, bytes }
    }

    /// The first rank with the most.
    pub fn most(&self) -> RankExtreme {
        let ranks = self.bytes.iter().enumerate();
        let most = ranks.max_by_key(|(rank, bytes)| (**bytes, std::cmp::Reverse(*rank)));
        let (rank, bytes) = most.map_or((0, 0), |(rank, bytes)| (rank, *bytes));
        RankExtreme { rank, bytes }
    }

    pub fn spread(&self) -> u64 {
        self.most().bytes - self.least().bytes
    }
}

/// All keys of any rank, the largest spread first.
pub fn imbalance(ranks: &[MemoryByKey]) -> Vec<ImbalanceRow> {
    let mut keys: HashMap<&ComparedKey, Vec<u64>> = HashMap::new();
    for (at, memory) in ranks.iter().enumerate() {
        for (key, row) in &memory.rows {
            let bytes = keys.entry(key).or_insert_with(|| vec![0; ranks.len()]);
            bytes[at] = row.bytes;
        }
    }
    let rows = keys.into_iter().map(|(key, bytes)| ImbalanceRow {
        key: key.clone(),
        ranks: RankBytes { bytes },
    });
    let mut rows: Vec<ImbalanceRow> = rows.collect();
    rows.sort_by_cached_key(|row| {
        let size = (row.ranks.spread(), row.ranks.most().bytes);
        (std::cmp::Reverse(size), name(&row.key))
    });
    rows
}

/// The iteration to compare ranks in: of those that all have, the one in which one of them had most. `peaks` are the
/// allocated bytes at the peak of each iteration, by rank.
pub fn common_iteration(peaks: &[BTreeMap<u64, u64>]) -> Option<u64> {
    let (first, others) = peaks.split_first()?;
    let common = first.keys().filter(|number| {
        let has = |rank: &BTreeMap<u64, u64>| rank.contains_key(number);
        others.iter().all(has)
    });
    common.copied().max_by_key(|number| {
        let most = peaks.iter().filter_map(|rank| rank.get(number)).max();
        (most.copied(), std::cmp::Reverse(*number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::category::Category;
    use crate::compare::KeyMemory;

    fn rank(rows: &[(usize, u64)]) -> MemoryByKey {
        let rows = rows.iter().map(|(at, bytes)| {
            let memory = KeyMemory {
                bytes: *bytes,
                blocks: None,
            };
            (ComparedKey::Category(Category::ALL[*at]), memory)
        });
        MemoryByKey {
            rows: rows.collect(),
            ..MemoryByKey::default()
        }
    }

    #[test]
    fn the_least_and_the_most_of_each_key_are_known_with_their_rank() {
        let ranks = [
            rank(&[(0, 5), (1, 4)]),
            rank(&[(0, 9)]),
            rank(&[(0, 6), (1, 4)]),
        ];
        let rows = imbalance(&ranks);
        let extremes = |row: &ImbalanceRow| {
            let (least, most) = (row.ranks.least(), row.ranks.most());
            [(least.rank, least.bytes), (most.rank, most.bytes)]
        };
        assert_eq!(extremes(&rows[0]), [(0, 5), (1, 9)]);
        assert_eq!(extremes(&rows[1]), [(1, 0), (0, 4)]);
        assert!(imbalance(&[]).is_empty());
    }

    #[test]
    fn ranks_are_compared_in_the_fullest_iteration_that_all_have() {
        let peaks = |rows: &[(u64, u64)]| rows.iter().copied().collect::<BTreeMap<_, _>>();
        let ranks = [peaks(&[(1, 5), (2, 7), (3, 99)]), peaks(&[(1, 8), (2, 6)])];
        assert_eq!(common_iteration(&ranks), Some(1));
        let equal = [peaks(&[(1, 7), (2, 7)])];
        assert_eq!(common_iteration(&equal), Some(1), "the first");
        assert_eq!(common_iteration(&[peaks(&[(1, 5)]), peaks(&[])]), None);
        assert_eq!(common_iteration(&[]), None);
    }
}

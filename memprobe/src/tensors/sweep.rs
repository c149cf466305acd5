//! Division of overlapping ranges of memory among their owners.

use crate::event::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) of: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) of: usize,
    pub(super) bytes: Bytes,
    /// Owner of the covering range, if nothing is exclusive.
    pub(super) within: Option<usize>,
}

/// Assigns every byte below `end` to the first range that reaches it. Of ranges with the same
/// start, the longest comes first, then the given order counts.
pub(super) fn sweep(mut pieces: Vec<AddressRange>, end: u64) -> Vec<Own> {
    pieces.sort_by_key(|piece| (piece.start, std::cmp::Reverse(piece.bytes)));
    let mut reached = 0;
    let mut last = None;
    let mut owns = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let stop = piece.start.saturating_add(piece.bytes).min(end);
        let bytes = stop.saturating_sub(piece.start.max(reached));
        let within = if bytes == 0 && piece.start < reached {
            last
        } else {
            None
        };
        if bytes > 0 {
            last = Some(piece.of);
        }
        reached = reached.max(stop);
        owns.push(Own {
            of: piece.of,
            bytes: Bytes(bytes),
            within,
        });
    }
    owns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(pieces: &[(u64, u64)], end: u64) -> Vec<(usize, u64, Option<usize>)> {
        let pieces = pieces.iter().enumerate();
        let pieces = pieces.map(|(of, &(start, bytes))| AddressRange { start, bytes, of });
        let owns = sweep(pieces.collect(), end);
        owns.iter()
            .map(|own| (own.of, own.bytes.0, own.within))
            .collect()
    }

    #[test]
    fn pieces_side_by_side_have_all_their_bytes() {
        assert_eq!(
            owned(&[(512, 256), (0, 512)], 4096),
            [(1, 512, None), (0, 256, None)]
        );
    }

    #[test]
    fn a_piece_within_another_has_nothing_to_itself_and_says_whose_it_is() {
        assert_eq!(
            owned(&[(0, 512), (0, 512), (100, 10)], 4096),
            [(0, 512, None), (1, 0, Some(0)), (2, 0, Some(0))]
        );
    }

    #[test]
    fn what_reaches_over_the_end_is_cut() {
        assert_eq!(
            owned(&[(0, u64::MAX), (4000, 500)], 4096),
            [(0, 4096, None), (1, 0, Some(0))]
        );
        assert_eq!(owned(&[(4000, u64::MAX)], 4096), [(0, 96, None)]);
    }

    #[test]
    fn a_piece_of_no_bytes_is_within_none_where_it_begins() {
        assert_eq!(owned(&[(0, 0)], 512), [(0, 0, None)]);
    }
}

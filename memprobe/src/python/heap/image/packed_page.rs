//! Pages in less memory. Most words of a heap are zero, or small, or a pointer whose upper half most words of the page
//! share: such a word takes 4 bytes or none. Each word can be read without those before it.
//!
//! A packed page is a list of `u32`:
//!
//! | index | |
//! |---|---|
//! | 0 | the shared upper half |
//! | 1 to 8 | index of each of the 16 groups, two in one, that of the first in the lower half |
//! | from 9 | the groups |
//!
//! A group is 32 words: 2 bits for each ([`code`]), the first in the lowest ones, in two `u32`, then what they stand for.

use crate::process::memory::PAGE;

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();
/// Words of a page.
const WORDS: usize = PAGE / WORD;
/// Words of a group.
const GROUP: usize = 32;
const GROUPS: usize = WORDS / GROUP;
/// Index of the first group.
const FIRST: usize = 1 + GROUPS / 2;
/// Most `u32` of a packed page, and one for a half that is not needed.
const MOST: usize = FIRST + 2 * GROUPS + 2 * WORDS + 1;
/// Words from one that votes for the shared half to the next. Odd, because objects repeat at powers of two.
const SAMPLED: usize = 5;

/// Representation of a word. The number of bits that are set is the number of its `u32`.
mod code {
    /// Zero, without a `u32`.
    pub(super) const ZERO: u64 = 0;
    /// The lower half; the upper half is zero.
    pub(super) const LOWER: u64 = 1;
    /// The lower half; the upper half is the shared one.
    pub(super) const SHARED: u64 = 2;
    /// The lower half, then the upper half.
    pub(super) const WHOLE: u64 = 3;
}

/// Memory in which a page is packed.
pub(super) struct PackBuffer([u32; MOST]);

impl PackBuffer {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self([0; MOST]))
    }

    /// Packs a page of [`PAGE`] bytes. `None` if it takes as much memory as it is.
    pub(super) fn pack(&mut self, page: &[u8]) -> Option<&[u32]> {
        let (words, _) = page.as_chunks::<WORD>();
        let (groups, _) = words.as_chunks::<GROUP>();
        let sampled = words.iter().step_by(SAMPLED);
        let shared = shared_upper(sampled.map(|word| u64::from_ne_bytes(*word)));
        let packed = &mut self.0;
        packed[0] = shared;
        let mut end = FIRST;
        for (number, group) in groups.iter().take(GROUPS).enumerate() {
            let starts = &mut packed[1 + number / 2];
            *starts = match number % 2 {
                0 => end as u32,
                _ => *starts | (end as u32) << 16,
            };
            let start = end;
            end += 2;
            let mut codes = 0;
            for (place, word) in group.iter().enumerate() {
                let (lower, upper) = halves(u64::from_ne_bytes(*word));
                let code = code_of(lower, upper, shared);
                codes |= code << (2 * place);
                // Both are written in any case, because no branch on them could be predicted: what follows overwrites
                // what is not needed.
                packed[end] = lower;
                end += usize::from(code != code::ZERO);
                packed[end] = upper;
                end += usize::from(code == code::WHOLE);
            }
            (packed[start], packed[start + 1]) = halves(codes);
        }
        (end < PAGE / size_of::<u32>()).then(|| &packed[..end])
    }
}

/// Lower and upper half of a word.
const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

pub(super) const fn word_of(lower: u32, upper: u32) -> u64 {
    lower as u64 | (upper as u64) << 32
}

const fn code_of(lower: u32, upper: u32, shared: u32) -> u64 {
    let is_large = (upper != 0) as u64;
    let is_whole = (upper != shared) as u64;
    let is_small = (lower != 0) as u64 * code::LOWER;
    is_large * (code::SHARED + is_whole) + (1 - is_large) * is_small
}

/// The upper half that most of these words have, besides zero. The majority vote of Boyer and Moore finds it if more
/// than half of them have it. Any other half costs memory alone.
fn shared_upper(words: impl Iterator<Item = u64>) -> u32 {
    let (mut candidate, mut votes) = (0, 0_u32);
    for word in words {
        let (_, upper) = halves(word);
        if upper == 0 {
            continue;
        }
        if upper == candidate {
            votes += 1;
        } else if votes == 0 {
            (candidate, votes) = (upper, 1);
        } else {
            votes -= 1;
        }
    }
    candidate
}

/// Number of `u32` of the packed page at the beginning of a list.
pub(super) fn length(packed: &[u32]) -> usize {
    let first_of_last = Words::from(packed, WORDS - GROUP);
    first_of_last.at + first_of_last.codes.count_ones() as usize
}

/// Word of a packed page by its number.
#[inline]
pub(super) fn word(packed: &[u32], number: usize) -> u64 {
    Words::from(packed, number).next(packed)
}

/// Copies bytes from the `start`th on out of a packed page.
///
/// # Panics
/// If they are not within a page.
pub(super) fn read(packed: &[u32], start: usize, into: &mut [u8]) {
    let (mut number, within) = (start / WORD, start % WORD);
    let mut rest = into;
    if within != 0 {
        let word = word(packed, number).to_ne_bytes();
        let (first, others) = rest.split_at_mut((WORD - within).min(rest.len()));
        first.copy_from_slice(&word[within..][..first.len()]);
        number += 1;
        rest = others;
    }
    let (mut whole, end) = rest.as_chunks_mut::<WORD>();
    while !whole.is_empty() {
        let (group, others) = whole.split_at_mut((GROUP - number % GROUP).min(whole.len()));
        let mut words = Words::from(packed, number);
        number += group.len();
        for word in group {
            *word = words.next(packed).to_ne_bytes();
        }
        whole = others;
    }
    if !end.is_empty() {
        let word = word(packed, number).to_ne_bytes();
        end.copy_from_slice(&word[..end.len()]);
    }
}

/// The words of a group from one on.
struct Words {
    codes: u64,
    /// Index of what the first of them stands for.
    at: usize,
}

impl Words {
    #[inline]
    fn from(packed: &[u32], number: usize) -> Self {
        let group = number / GROUP;
        let starts = packed[1 + group / 2];
        let start = (starts >> (16 * (group % 2)) & 0xffff) as usize;
        let codes = word_of(packed[start], packed[start + 1]);
        let shift = 2 * (number % GROUP);
        let before = codes & !(u64::MAX << shift);
        Self {
            codes: codes >> shift,
            at: start + 2 + before.count_ones() as usize,
        }
    }

    /// All that a word may consist of is read, because which it is cannot be predicted.
    #[inline]
    fn next(&mut self, packed: &[u32]) -> u64 {
        let code = (self.codes & 3) as usize;
        self.codes >>= 2;
        let stored = |at: usize| packed.get(at).copied().unwrap_or_default();
        let (first, second) = (stored(self.at), stored(self.at + 1));
        self.at += (code & 1) + (code >> 1);
        let lower = [0, first, first, first][code];
        let upper = [0, 0, packed[0], second][code];
        word_of(lower, upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page_of(words: impl Fn(usize) -> u64) -> Vec<u8> {
        (0..WORDS).flat_map(|at| words(at).to_ne_bytes()).collect()
    }

    /// The bytes of a page after packing, and its packed length in bytes.
    fn packed_and_back(page: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut buffer = PackBuffer::new();
        let packed = buffer.pack(page)?;
        // Others follow in memory.
        let longer = [packed, &[u32::MAX; 9]].concat();
        assert_eq!(length(&longer), packed.len());
        let mut bytes = vec![0xee; PAGE];
        read(&longer, 0, &mut bytes);
        Some((bytes, size_of_val(packed)))
    }

    #[test]
    fn of_a_page_of_zeroes_only_the_codes_take_memory() {
        let page = page_of(|_| 0);
        let size = 4 + 2 * GROUPS + 8 * GROUPS;
        assert_eq!(packed_and_back(&page), Some((page, size)));
    }

    #[test]
    fn pointers_with_one_upper_half_take_four_bytes_each() {
        let page = page_of(|at| 0x7f12_0000_1000 + 16 * at as u64);
        let size = 4 + 2 * GROUPS + 8 * GROUPS + 4 * WORDS;
        assert_eq!(packed_and_back(&page), Some((page, size)));
    }

    #[test]
    fn a_page_of_whole_words_is_not_packed() {
        let page = page_of(|at| 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(at as u64 + 1));
        assert_eq!(packed_and_back(&page), None);
    }

    /// Words as heaps have them.
    fn word_of_a_heap() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => Just(0_u64),
            3 => 0..1_u64 << 32,
            3 => (0..1_u64 << 32).prop_map(|lower| 0x7f12_0000_0000 | lower),
            1 => (0..1_u64 << 32).prop_map(|lower| 0x55aa_0000_0000 | lower),
            1 => any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn every_range_of_a_packed_page_has_the_bytes_of_the_page(
            words in prop::collection::vec(word_of_a_heap(), WORDS),
            start in 0..PAGE,
            len in 0..200_usize,
        ) {
            let page = page_of(|at| words[at]);
            let mut buffer = PackBuffer::new();
            let packed = buffer.pack(&page);
            prop_assume!(packed.is_some());
            let packed = packed.unwrap_or_default();
            for (at, &expected) in words.iter().enumerate() {
                prop_assert_eq!(word(packed, at), expected);
            }
            let end = (start + len).min(PAGE);
            let mut bytes = vec![0; end - start];
            read(packed, start, &mut bytes);
            prop_assert_eq!(&bytes[..], &page[start..end]);
            prop_assert_eq!(length(packed), packed.len());
        }
    }
}

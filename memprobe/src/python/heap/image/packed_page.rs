//! Pages in less memory. Most words of a heap are zero, or small, or point to what lies near, or occur several times in
//! the page. Each word can be read without those before it.
//!
//! A packed page is a list of bytes:
//!
//! | from byte | |
//! |---|---|
//! | 0 | address of the page |
//! | 8 | the upper half that most other pointers share |
//! | 12 | number of `u32` of the packed page |
//! | 16 | first byte of each of the 16 groups, two bytes each |
//! | 48 | words that occur several times |
//! | behind those | the groups |
//!
//! A group is 32 words. It begins with three planes: in each, a bit of every word's [`Code`], that of the first word
//! lowest. Behind them lies what the codes stand for.

use zerocopy::IntoBytes as _;

use crate::process::memory::PAGE;

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();
/// Bytes of the unit in which packed pages are counted.
const UNIT: usize = size_of::<u32>();
/// Words of a page.
const WORDS: usize = PAGE / WORD;
/// Words of a group.
const GROUP: usize = 32;
const GROUPS: usize = WORDS / GROUP;
/// Bytes of the planes of a group.
const PLANES: usize = 3 * size_of::<u32>();

const SHARED: usize = 8;
const LENGTH: usize = 12;
const STARTS: usize = 16;
const REPEATED: usize = STARTS + 2 * GROUPS;

/// Most words that occur several times: an index has one byte.
const MOST_REPEATED: usize = 1 << u8::BITS;
/// Most bytes of a packed page, and of a word that is written behind them.
const MOST: usize = REPEATED + WORD * MOST_REPEATED + GROUPS * PLANES + PAGE + 2 * WORD;

/// Words from one that votes for the shared half to the next. Odd, because objects repeat at powers of two.
const SAMPLED: usize = 5;

/// Representation of a word.
type Code = u32;
/// Without a byte.
const ZERO: Code = 0;
/// Below 256.
const SMALL: Code = 1;
/// Distance from the page's address, of an aligned one: its words in two bytes.
const NEAR: Code = 2;
/// Like [`NEAR`], in three bytes.
const FAR: Code = 3;
/// The lower half; the upper half is the shared one.
const POINTER: Code = 4;
/// Index in the words that occur several times.
const SEVERAL: Code = 5;
/// The lower half; the upper half is zero.
const LOWER: Code = 6;
const WHOLE: Code = 7;

/// Bytes that a word of each code takes. [`bytes_before`] relies on them.
const BYTES: [usize; 8] = [0, 1, 2, 3, 4, 1, 4, 8];

/// Bits of a word that its bytes have.
const BITS: [u64; 8] = [
    0,
    0xff,
    0xffff,
    0xff_ffff,
    0xffff_ffff,
    0xff,
    0xffff_ffff,
    u64::MAX,
];

/// The sign of a distance.
const SIGNS: [u64; 8] = [0, 0, 1 << 15, 1 << 23, 0, 0, 0, 0];

/// Bits by which a distance is shifted.
const SHIFTS: [u32; 8] = [0, 0, ALIGNMENT, ALIGNMENT, 0, 0, 0, 0];
const ALIGNMENT: u32 = WORD.ilog2();

/// A word by its code. Those of equal words of a page are equal.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Encoded {
    value: u64,
    code: u8,
}

impl Encoded {
    /// Slot of a candidate.
    const fn slot(self) -> usize {
        let mixed = self.value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - MOST_REPEATED.ilog2())) as usize
    }
}

/// A word that may occur several times.
#[derive(Clone, Copy, Default)]
struct Candidate {
    encoded: Encoded,
    count: u16,
    /// Its index, once it is known to be worth one.
    index: Option<u8>,
}

/// Memory in which a page is packed.
pub(super) struct PackBuffer {
    packed: [u32; MOST.div_ceil(UNIT)],
    /// Code of each word.
    codes: [u8; WORDS],
    /// Value of each word in its code: lower halves, then upper halves.
    values: [[u32; WORDS]; 2],
    /// Numbers of the words that take four bytes or more.
    large: [u16; WORDS],
    /// Candidates, each at the slot that its word gives.
    candidates: [Candidate; MOST_REPEATED],
}

impl PackBuffer {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            packed: [0; MOST.div_ceil(UNIT)],
            codes: [0; WORDS],
            values: [[0; WORDS]; 2],
            large: [0; WORDS],
            candidates: [Candidate::default(); MOST_REPEATED],
        })
    }

    /// Packs a page of [`PAGE`] bytes. `None` if it takes as much memory as it is.
    pub(super) fn pack(&mut self, page: &[u8], address: u64) -> Option<&[u32]> {
        let (words, _) = page.as_chunks::<WORD>();
        let [lower, upper] = &mut self.values;
        for (word, (lower, upper)) in words.iter().zip(lower.iter_mut().zip(upper)) {
            let word = u64::from_ne_bytes(*word);
            (*lower, *upper) = (word as u32, (word >> u32::BITS) as u32);
        }
        let [_, upper] = &self.values;
        let shared = shared_upper(upper.iter().step_by(SAMPLED).copied());
        let plain = PlainCodes { address, shared };
        self.encode(plain);
        let large = self.find_large();
        self.count(large);
        let start = REPEATED + WORD * self.choose();
        self.replace(large);
        let length = self.write(plain, start);
        (length < PAGE / UNIT).then(|| &self.packed[..length])
    }

    /// Finds the code of each word by itself, four or more words at a time: the compiler makes vectors of halves.
    fn encode(&mut self, plain: PlainCodes) {
        let [lower, upper] = &mut self.values;
        let words = lower.iter_mut().zip(upper).zip(&mut self.codes);
        for ((lower, upper), code) in words {
            let (of_word, value) = plain.code(*lower, *upper);
            *lower = value;
            *code = of_word as u8;
        }
    }

    /// Lists the words that take four bytes or more, and returns their number.
    fn find_large(&mut self) -> usize {
        let mut large = 0;
        for (number, &code) in (0..).zip(&self.codes) {
            // The next one takes its place unless it counts.
            self.large[large] = number;
            large += usize::from(BYTES[usize::from(code)] >= BYTES[LOWER as usize]);
        }
        large
    }

    /// Counts the large words.
    fn count(&mut self, large: usize) {
        self.candidates.fill(Candidate::default());
        for &number in &self.large[..large] {
            let encoded = self.encoded(number);
            let candidate = &mut self.candidates[encoded.slot()];
            if candidate.encoded == encoded {
                candidate.count += 1;
            } else if candidate.count <= 1 {
                let (count, index) = (1, None);
                *candidate = Candidate {
                    encoded,
                    count,
                    index,
                };
            }
        }
    }

    const fn encoded(&self, number: u16) -> Encoded {
        let [lower, upper] = &self.values;
        let number = number as usize;
        Encoded {
            value: word_of(lower[number], upper[number]),
            code: self.codes[number],
        }
    }

    /// Stores the words for which an index takes less memory than they, and returns their number.
    fn choose(&mut self) -> usize {
        let packed = self.packed.as_mut_bytes();
        let mut number = 0;
        for candidate in &mut self.candidates {
            let saved =
                BYTES[usize::from(candidate.encoded.code)].saturating_sub(BYTES[SEVERAL as usize]);
            if usize::from(candidate.count) * saved > WORD {
                candidate.index = Some(number as u8);
                let word = candidate.encoded.value;
                put(packed, REPEATED + WORD * number, word.to_ne_bytes());
                number += 1;
            }
        }
        number
    }

    /// Replaces large words by their indices.
    fn replace(&mut self, large: usize) {
        for &number in &self.large[..large] {
            let encoded = self.encoded(number);
            let candidate = &self.candidates[encoded.slot()];
            if let Some(index) = candidate.index.filter(|_| candidate.encoded == encoded) {
                self.codes[usize::from(number)] = SEVERAL as u8;
                self.values[0][usize::from(number)] = index.into();
            }
        }
    }

    /// Writes all but the words that occur several times, with the groups from a byte on. Returns the number of `u32`.
    fn write(&mut self, plain: PlainCodes, start: usize) -> usize {
        let packed = self.packed.as_mut_bytes();
        put(packed, 0, plain.address.to_ne_bytes());
        put(packed, SHARED, plain.shared.to_ne_bytes());
        let mut end = start;
        let [lower, upper] = &self.values;
        let mut halves = lower.iter().zip(upper);
        let (groups, _) = self.codes.as_chunks::<GROUP>();
        for (group, codes) in groups.iter().enumerate() {
            put(packed, STARTS + 2 * group, (end as u16).to_ne_bytes());
            for (plane, bits) in planes(codes).into_iter().enumerate() {
                put(packed, end + UNIT * plane, bits.to_ne_bytes());
            }
            end += PLANES;
            for (&code, (&lower, &upper)) in codes.iter().zip(&mut halves) {
                let value = word_of(lower, upper);
                // What follows takes the place of the bytes that are too many.
                put(packed, end, value.to_ne_bytes());
                end += BYTES[usize::from(code)];
            }
        }
        // Every word is read as a whole.
        let length = (end + WORD).div_ceil(UNIT);
        put(packed, LENGTH, (length as u32).to_ne_bytes());
        length
    }
}

pub(super) const fn word_of(lower: u32, upper: u32) -> u64 {
    lower as u64 | (upper as u64) << u32::BITS
}

fn put<const N: usize>(packed: &mut [u8], at: usize, bytes: [u8; N]) {
    packed[at..at + N].copy_from_slice(&bytes);
}

fn get<const N: usize>(packed: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&packed[at..at + N]);
    bytes
}

/// Planes of the codes of a group.
fn planes(codes: &[u8; GROUP]) -> [u32; 3] {
    // The product has the lowest bits of eight bytes side by side in its highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    const LOWEST: u64 = 0x0101_0101_0101_0101;
    let (eights, _) = codes.as_chunks::<8>();
    [0, 1, 2].map(|plane| {
        let bits = |codes: &[u8; 8]| {
            let bits = u64::from_le_bytes(*codes) >> plane & LOWEST;
            (bits.wrapping_mul(GATHER) >> 56) as u32
        };
        let eights = (0..).step_by(8).zip(eights);
        eights.fold(0, |all, (place, codes)| all | bits(codes) << place)
    })
}

/// Codes of words that occur once.
#[derive(Clone, Copy)]
struct PlainCodes {
    address: u64,
    shared: u32,
}

impl PlainCodes {
    /// Code of a word by its halves, and what stands for its lower half.
    #[inline(always)]
    fn code(self, lower: u32, upper: u32) -> (u32, u32) {
        let [own_lower, own_upper] = [self.address as u32, (self.address >> u32::BITS) as u32];
        let bytes = lower.wrapping_sub(own_lower).cast_signed();
        let distance = (bytes >> ALIGNMENT).cast_unsigned();
        // Half of 4 GiB away, the difference has the wrong sign.
        let is_right = (lower >= own_lower) == (bytes >= 0);
        let is_aligned = lower.is_multiple_of(1 << ALIGNMENT);
        let has_distance = (upper == own_upper) & is_aligned & is_right;
        let is_within =
            |sign: u64| has_distance & (distance.wrapping_add(sign as u32) < 2 * sign as u32);
        let choose = |is_it, code, otherwise| if is_it { code } else { otherwise };
        // The code of the fewest bytes comes last. No branch on them could be predicted.
        let code = choose(upper == self.shared, POINTER, WHOLE);
        let code = choose(upper == 0, LOWER, code);
        let code = choose(is_within(SIGNS[FAR as usize]), FAR, code);
        let code = choose(is_within(SIGNS[NEAR as usize]), NEAR, code);
        let code = choose(
            (upper == 0) & (lower <= BITS[SMALL as usize] as u32),
            SMALL,
            code,
        );
        let code = choose(upper | lower == 0, ZERO, code);
        let is_distance = (code == NEAR) | (code == FAR);
        (code, choose(is_distance, distance, lower))
    }
}

/// The upper half that most of these words have, besides zero. The majority vote of Boyer and Moore finds it if more
/// than half of them have it. Any other half costs memory alone.
fn shared_upper(uppers: impl Iterator<Item = u32>) -> u32 {
    let (mut candidate, mut votes) = (0, 0_u32);
    for upper in uppers {
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
    u32::from_ne_bytes(get(packed.as_bytes(), LENGTH)) as usize
}

/// Word of a packed page by its number.
#[inline]
pub(super) fn word(packed: &[u32], number: usize) -> u64 {
    Words::from(packed.as_bytes(), number).next()
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
        let mut words = Words::from(packed.as_bytes(), number);
        number += group.len();
        for word in group {
            *word = words.next().to_ne_bytes();
        }
        whole = others;
    }
    if !end.is_empty() {
        let word = word(packed, number).to_ne_bytes();
        end.copy_from_slice(&word[..end.len()]);
    }
}

/// The words of a group from one on.
struct Words<'a> {
    packed: &'a [u8],
    planes: [u32; 3],
    /// First byte of what the first of them stands for.
    at: usize,
    address: u64,
    /// The shared upper half, in its place.
    shared: u64,
}

impl<'a> Words<'a> {
    #[inline]
    fn from(packed: &'a [u8], number: usize) -> Self {
        let start = u16::from_ne_bytes(get(packed, STARTS + 2 * (number / GROUP)));
        let start = usize::from(start);
        let planes: [u8; PLANES] = get(packed, start);
        let planes = [0, 1, 2].map(|plane| u32::from_ne_bytes(get(&planes, UNIT * plane)));
        let place = number % GROUP;
        let before = (1_u32 << place) - 1;
        let shared: u32 = u32::from_ne_bytes(get(packed, SHARED));
        Self {
            packed,
            planes: planes.map(|plane| plane >> place),
            at: start + PLANES + bytes_before(planes.map(|plane| plane & before)),
            address: u64::from_ne_bytes(get(packed, 0)),
            shared: u64::from(shared) << u32::BITS,
        }
    }

    /// All that a word may consist of is computed, because which it is cannot be predicted.
    #[inline]
    fn next(&mut self) -> u64 {
        let bit = |plane: usize| (self.planes[plane] & 1) as usize;
        let code: usize = bit(0) | bit(1) << 1 | bit(2) << 2;
        self.planes = self.planes.map(|plane| plane >> 1);
        let stored = u64::from_ne_bytes(get(self.packed, self.at)) & BITS[code];
        self.at += BYTES[code];
        let base = [0, 0, self.address, self.address, self.shared, 0, 0, 0][code];
        let sign = SIGNS[code];
        let signed = (stored ^ sign).wrapping_sub(sign);
        let word = (signed << SHIFTS[code]).wrapping_add(base);
        if code == SEVERAL as usize {
            return u64::from_ne_bytes(get(self.packed, REPEATED + WORD * stored as usize));
        }
        word
    }
}

/// Bytes of the words with these planes of codes. Each mask has the codes to whose bytes it adds: see [`BYTES`].
#[inline]
fn bytes_before([low, middle, high]: [u32; 3]) -> usize {
    let one = low & !(middle & high);
    let two = middle & !high;
    let four = high & !low;
    let eight = low & middle & high;
    let bytes = one.count_ones() + 2 * two.count_ones() + 4 * four.count_ones();
    (bytes + 8 * eight.count_ones()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: u64 = 0x7f12_3456_7000;

    fn page_of(words: impl Fn(usize) -> u64) -> Vec<u8> {
        (0..WORDS).flat_map(|at| words(at).to_ne_bytes()).collect()
    }

    /// The bytes of a page after packing, and its packed length in bytes.
    fn packed_and_back(page: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut buffer = PackBuffer::new();
        let packed = buffer.pack(page, AT)?;
        // Others follow in memory.
        let longer = [packed, &[u32::MAX; 9]].concat();
        assert_eq!(length(&longer), packed.len());
        let mut bytes = vec![0xee; PAGE];
        read(&longer, 0, &mut bytes);
        Some((bytes, size_of_val(packed)))
    }

    /// Bytes that a packed page has besides its words.
    const LEAST: usize = REPEATED + GROUPS * PLANES + WORD;

    #[test]
    fn of_a_page_of_zeroes_only_the_codes_take_memory() {
        let page = page_of(|_| 0);
        assert_eq!(packed_and_back(&page), Some((page, LEAST)));
    }

    #[test]
    fn a_word_takes_the_bytes_that_its_distance_needs() {
        let alone = |word: u64| packed_and_back(&page_of(|at| word * u64::from(at == 77)));
        let size = |word: u64| alone(word).unwrap().1 - LEAST;
        assert_eq!(size(0xff), UNIT);
        assert_eq!(size(AT - (1 << 18)), UNIT);
        let far = 1 << 26;
        let ends = [AT - far, AT + far - 8, AT + far, AT - far - 8, AT + 4];
        for word in [AT + (1 << 18), 0xffff_ffff, u64::MAX]
            .into_iter()
            .chain(ends)
        {
            let page = page_of(|at| word * u64::from(at == 77));
            assert_eq!(alone(word).unwrap().0, page, "{word:#x}");
        }
    }

    #[test]
    fn a_pointer_to_the_other_end_of_four_gibibytes_is_not_near() {
        let first = 0x7f12_0000_1000;
        let last = 0x7f12_ffff_f000;
        for (address, word) in [(first, last), (last, first)] {
            let page = page_of(|at| word - 8 * u64::from(at == 3));
            let mut buffer = PackBuffer::new();
            let packed = buffer.pack(&page, address).unwrap();
            assert_eq!(super::word(packed, 2), word);
            assert_eq!(super::word(packed, 3), word - 8);
        }
    }

    #[test]
    fn pointers_with_one_upper_half_take_four_bytes_each() {
        let page = page_of(|at| 0x7f12_8000_1001 + 16 * at as u64);
        assert_eq!(packed_and_back(&page), Some((page, LEAST + 4 * WORDS)));
    }

    #[test]
    fn pointers_to_what_lies_near_take_two_or_three_bytes_each() {
        let page = page_of(|at| AT + 16 * at as u64);
        assert_eq!(packed_and_back(&page), Some((page, LEAST + 2 * WORDS)));
        let page = page_of(|at| AT - 0x40_0000 + 16 * at as u64);
        assert_eq!(packed_and_back(&page), Some((page, LEAST + 3 * WORDS)));
    }

    #[test]
    fn a_word_that_occurs_several_times_takes_a_byte_each_time() {
        let kinds = [0x55aa_1234_5678, 0x9e37_79b9_7f4a_7c15];
        let page = page_of(|at| kinds[at % 2]);
        let size = LEAST + 2 * WORD + WORDS;
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
            2 => (0..1_u64 << 17).prop_map(|words| AT - (1 << 19) + 8 * words),
            2 => (0..1_u64 << 25).prop_map(|words| AT - (1 << 27) + 8 * words),
            2 => (0..20_u64).prop_map(|class| class.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            2 => 0..256_u64,
            1 => any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn every_range_of_a_packed_page_has_the_bytes_of_the_page(
            words in prop::collection::vec(word_of_a_heap(), WORDS),
            start in 0..PAGE,
            len in 0..200_usize,
            address in prop_oneof![Just(AT), Just(0), Just(0x7f12_ffff_f000), any::<u64>()],
        ) {
            let page = page_of(|at| words[at]);
            let mut buffer = PackBuffer::new();
            let packed = buffer.pack(&page, address);
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

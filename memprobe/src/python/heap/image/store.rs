//! Bytes of the chunks of an image. The latest ones lie as they were read, in windows; of a large image the older ones
//! are packed, and others take their place: memory that is used again needs no new pages. Packed chunks are read more
//! slowly, so that of the heaps of most programs none is packed.

use std::collections::VecDeque;
use std::io;

use memmap2::MmapMut;
use zerocopy::IntoBytes as _;

use super::packed_page::{self, WORD};
use super::packing::{PackedWindows, Packing, PageForm, UNITS, plain};
use super::slabs::{ListStart, PageSize, Slabs, map};
use super::{CHUNK, PAGES};
use crate::process::memory::{Digest, PAGE};

/// Chunks of a window: 2 MiB, as a huge page has.
const WINDOW: usize = 128;

/// Chunks from which on older ones are packed: 256 MiB. A program that has loaded PyTorch has half of them.
const MANY: usize = if cfg!(test) { 2 } else { 128 } * WINDOW;

/// Windows that are packed for each new one, so that in the end none is as it was read.
const AT_ONCE: usize = 2;

/// Bytes of chunks, by index.
#[derive(Debug, Default)]
pub(super) struct ChunkStore {
    /// Chunks that are packed: those with the lowest indices.
    packed: Vec<[StoredPage; PAGES]>,
    slabs: Slabs,
    /// The chunks behind those.
    packing: Option<Packing>,
    /// All other chunks.
    windows: VecDeque<MmapMut>,
    /// Digests of the pages of the first chunks in the windows.
    digests: VecDeque<[Digest; PAGES]>,
    /// Index of the first chunk in the windows.
    first: usize,
    /// Number of chunks.
    len: usize,
}

/// A chunk that may have changed in the process.
#[derive(Debug, Default)]
pub(super) struct StaleChunk<'a> {
    /// Digests of its pages, if [`ChunkStore::digest`] found them.
    pub(super) digests: Option<[Digest; PAGES]>,
    /// Its bytes, if it is not packed.
    pub(super) bytes: Option<&'a mut [u8]>,
}

/// A page outside of the windows.
#[derive(Clone, Copy, Debug, Default)]
struct StoredPage {
    position: ListStart,
    form: PageForm,
    digest: Digest,
}

impl ChunkStore {
    /// Appends chunks, with any content. `address_of` is the address of a chunk that there is.
    pub(super) fn append<'a>(
        &'a mut self,
        count: usize,
        address_of: &dyn Fn(usize) -> u64,
    ) -> io::Result<impl Iterator<Item = &'a mut [u8]> + use<'a>> {
        while self.windows.len() * WINDOW < self.len - self.first + count {
            self.add_window(address_of)?;
        }
        let start = self.len - self.first;
        self.len += count;
        let windows = self.windows.iter_mut().skip(start / WINDOW);
        let chunks = windows.flat_map(|window| window.chunks_exact_mut(CHUNK));
        Ok(chunks.skip(start % WINDOW).take(count))
    }

    /// Adds a window, and begins to pack the oldest ones if there are many.
    fn add_window(&mut self, address_of: &dyn Fn(usize) -> u64) -> io::Result<()> {
        let mut window = None;
        if self.len >= MANY && self.len - self.first >= AT_ONCE * WINDOW {
            window = self.end_packing()?;
            let oldest = self.windows.drain(..AT_ONCE).collect();
            let indices = self.first..self.first + AT_ONCE * WINDOW;
            let addresses = indices.map(address_of).collect();
            self.packing = Some(Packing::begin(oldest, self.first, addresses));
            self.first += AT_ONCE * WINDOW;
            let digests = self.digests.len().min(AT_ONCE * WINDOW);
            self.digests.drain(..digests);
        }
        let pages = match self.len {
            // An image of a few objects is made and dropped every second.
            0 => PageSize::Small,
            _ => PageSize::Huge,
        };
        self.windows.push_back(match window {
            Some(window) => window,
            None => map(WINDOW * CHUNK, pages)?,
        });
        Ok(())
    }

    /// Finds the digests of all pages.
    pub(super) fn digest(&mut self) -> io::Result<()> {
        self.end_packing()?;
        let chunks = self
            .windows
            .iter()
            .flat_map(|window| window.chunks_exact(CHUNK));
        let chunks = chunks.take(self.len - self.first);
        let new = chunks.skip(self.digests.len()).map(|chunk| {
            let mut pages = chunk.chunks_exact(PAGE);
            std::array::from_fn(|_| pages.next().map(Digest::of).unwrap_or_default())
        });
        self.digests.extend(new);
        Ok(())
    }

    /// Stores what is being packed, and returns the memory of a window of it.
    fn end_packing(&mut self) -> io::Result<Option<MmapMut>> {
        let Some(packing) = self.packing.take().map(Packing::wait) else {
            return Ok(None);
        };
        if let Some(packed) = packing.packed()
            && let Err(error) = self.store(packed, packing.first)
        {
            self.packing = Some(packing);
            return Err(error);
        }
        Ok(packing.into_windows().and_then(|mut windows| windows.pop()))
    }

    /// Stores those chunks of packed windows that are not stored yet; `first` is the index of their first one.
    fn store(&mut self, windows: &PackedWindows, first: usize) -> io::Result<()> {
        let mut pages = windows.pages_from((self.packed.len() - first) * PAGES);
        while self.packed.len() < self.first {
            let mut chunk = [StoredPage::default(); PAGES];
            for (stored, (page, units)) in chunk.iter_mut().zip(&mut pages) {
                *stored = StoredPage {
                    position: self.slabs.append(units)?,
                    form: page.form,
                    digest: page.digest,
                };
            }
            self.packed.push(chunk);
        }
        Ok(())
    }

    /// All chunks, in the order of their indices.
    pub(super) fn stale(&mut self) -> Vec<StaleChunk<'_>> {
        let mut stale = Vec::with_capacity(self.len);
        stale.extend(self.packed.iter().map(|pages| StaleChunk {
            digests: Some(pages.map(|page| page.digest)),
            bytes: None,
        }));
        stale.resize_with(self.first, StaleChunk::default);
        let windows = self.windows.iter_mut();
        let chunks = windows.flat_map(|window| window.chunks_exact_mut(CHUNK));
        let digests = self.digests.iter().copied().map(Some);
        let chunks = chunks.zip(digests.chain(std::iter::repeat(None)));
        let chunks = chunks.take(self.len - self.first);
        stale.extend(chunks.map(|(bytes, digests)| StaleChunk {
            digests,
            bytes: Some(bytes),
        }));
        stale
    }

    /// Notes the digest of a page that was renewed where it lies.
    pub(super) fn note(&mut self, index: usize, page: usize, digest: Digest) {
        let place = index.checked_sub(self.first);
        if let Some(digests) = place.and_then(|place| self.digests.get_mut(place)) {
            digests[page] = digest;
        }
    }

    /// Puts bytes in the place of a page.
    pub(super) fn put(&mut self, index: usize, page: usize, bytes: &[u8]) -> io::Result<()> {
        if (self.packed.len()..self.first).contains(&index) {
            self.end_packing()?;
        }
        if let Some(place) = index.checked_sub(self.first) {
            self.chunk_mut(place)[page * PAGE..][..PAGE].copy_from_slice(bytes);
            if let Some(digests) = self.digests.get_mut(place) {
                digests[page] = Digest::of(bytes);
            }
            return Ok(());
        }
        let stored = &mut self.packed[index][page];
        if stored.form == PageForm::Packed {
            *stored = StoredPage {
                position: self.slabs.append(&plain(bytes))?,
                form: PageForm::Plain,
                digest: Digest::of(bytes),
            };
        } else {
            let units = &mut self.slabs.list_mut(stored.position)[..UNITS];
            units.as_mut_bytes().copy_from_slice(bytes);
            stored.digest = Digest::of(bytes);
        }
        Ok(())
    }

    /// A chunk in the windows, by its place among those.
    fn chunk_mut(&mut self, place: usize) -> &mut [u8] {
        &mut self.windows[place / WINDOW][place % WINDOW * CHUNK..][..CHUNK]
    }

    /// Copies bytes out of a chunk.
    ///
    /// # Panics
    /// If they are not within a chunk that there is.
    pub(super) fn read(&self, index: usize, start: usize, into: &mut [u8]) {
        let Some(pages) = self.packed.get(index) else {
            into.copy_from_slice(&self.in_window(index)[start..][..into.len()]);
            return;
        };
        let (mut at, mut rest) = (start, into);
        while !rest.is_empty() {
            let within = at % PAGE;
            let (now, later) = rest.split_at_mut((PAGE - within).min(rest.len()));
            let page = pages[at / PAGE];
            let stored = self.slabs.list(page.position);
            match page.form {
                PageForm::Packed => packed_page::read(stored, within, now),
                PageForm::Plain => now.copy_from_slice(&stored.as_bytes()[within..][..now.len()]),
            }
            at += now.len();
            rest = later;
        }
    }

    /// Like [`Self::read`], for a few bytes.
    #[inline]
    pub(super) fn array<const N: usize>(&self, index: usize, start: usize) -> [u8; N] {
        let mut array = [0; N];
        match self.packed.get(index) {
            Some(pages) if start % WORD + N <= WORD => {
                let page = pages[start / PAGE];
                let stored = self.slabs.list(page.position);
                let number = start % PAGE / WORD;
                let word = match page.form {
                    PageForm::Packed => packed_page::word(stored, number),
                    PageForm::Plain => {
                        packed_page::word_of(stored[2 * number], stored[2 * number + 1])
                    }
                };
                array.copy_from_slice(&word.to_ne_bytes()[start % WORD..][..N]);
            }
            Some(_) => self.read(index, start, &mut array),
            None => array.copy_from_slice(&self.in_window(index)[start..][..N]),
        }
        array
    }

    /// Bytes of a chunk that is not stored yet.
    fn in_window(&self, index: usize) -> &[u8] {
        let window = match (index.checked_sub(self.first), &self.packing) {
            (Some(place), _) => &self.windows[place / WINDOW][place % WINDOW * CHUNK..],
            (None, Some(packing)) => packing.bytes_at((index - packing.first) * CHUNK),
            (None, None) => &[],
        };
        &window[..CHUNK]
    }

    /// Keeps the chunks at these indices, which ascend, under the indices from 0 on. The memory of the others goes back
    /// to the system.
    pub(super) fn keep(&mut self, indices: impl IntoIterator<Item = usize>) -> io::Result<()> {
        self.end_packing()?;
        let indices: Vec<usize> = indices.into_iter().collect();
        let (packed, windowed) = indices.split_at(indices.partition_point(|&at| at < self.first));
        self.digests.clear();
        for (to, index) in windowed.iter().enumerate() {
            self.copy(index - self.first, to);
        }
        self.windows.truncate(windowed.len().div_ceil(WINDOW));
        self.packed = packed.iter().map(|&index| self.packed[index]).collect();
        self.compact();
        (self.first, self.len) = (packed.len(), indices.len());
        Ok(())
    }

    /// Copies a chunk in the windows to a lower or equal place.
    fn copy(&mut self, from: usize, to: usize) {
        let (from_window, to_window) = (from / WINDOW, to / WINDOW);
        let (from, to) = (from % WINDOW * CHUNK, to % WINDOW * CHUNK);
        if from_window == to_window {
            self.windows[to_window].copy_within(from..from + CHUNK, to);
            return;
        }
        let mut windows = self.windows.range_mut(to_window..=from_window);
        if let (Some(lower), Some(higher)) = (windows.next(), windows.next_back()) {
            lower[to..to + CHUNK].copy_from_slice(&higher[from..from + CHUNK]);
        }
    }

    /// Gives back the memory that no packed chunk uses.
    fn compact(&mut self) {
        let mut pages: Vec<_> = self.packed.iter_mut().flatten().collect();
        pages.sort_unstable_by_key(|page| page.position);
        let slabs = &self.slabs;
        let lengths = pages.iter().map(|page| match page.form {
            PageForm::Packed => packed_page::length(slabs.list(page.position)),
            PageForm::Plain => UNITS,
        });
        let lengths: Vec<_> = lengths.collect();
        let positions = pages.into_iter().map(|page| &mut page.position);
        self.slabs.compact(positions.zip(lengths));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More chunks than [`MANY`]: some are packed, and some are not.
    const COUNT: usize = 7 * WINDOW + 5;

    /// Content of a page that was written so many times: of every fourth one too various to be packed.
    fn page_of(chunk: usize, page: usize, version: usize) -> Vec<u8> {
        let seed = (chunk * PAGES + page) as u64 * 7 + version as u64;
        let word = |at: usize| match (seed % 4, at % 5) {
            (0, _) => (seed + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            (_, 0) => 0,
            (_, 1) => seed,
            (_, 2) => 0x55aa_0000_0000 + seed,
            _ => 0x7f12_0000_0000 + seed * 16,
        };
        let words = (0..PAGE / WORD).flat_map(|at| word(at).to_ne_bytes());
        words.collect()
    }

    fn chunk_of(chunk: usize, versions: [usize; PAGES]) -> Vec<u8> {
        let pages = versions.into_iter().enumerate();
        let pages = pages.flat_map(|(page, version)| page_of(chunk, page, version));
        pages.collect()
    }

    /// A store that was filled in steps of `step` chunks.
    fn filled(step: usize) -> ChunkStore {
        let mut store = ChunkStore::default();
        for first in (0..COUNT).step_by(step) {
            let numbers = first..COUNT.min(first + step);
            let address_of = |number| 0x7f12_0000_0000 + (number * CHUNK) as u64;
            let chunks = store.append(numbers.len(), &address_of).unwrap();
            for (number, bytes) in numbers.zip(chunks) {
                bytes.copy_from_slice(&chunk_of(number, [0; PAGES]));
            }
        }
        store
    }

    /// Asserts that a chunk has these bytes, however they are read.
    fn assert_holds(store: &ChunkStore, index: usize, expected: &[u8]) {
        let mut bytes = vec![0; CHUNK];
        store.read(index, 0, &mut bytes);
        assert!(bytes == expected, "chunk {index}");
        // Within a page, over its end, and single words.
        for (start, len) in [
            (3, 17),
            (PAGE - 5, 11),
            (2 * PAGE - 300, 999),
            (CHUNK - 1, 1),
        ] {
            let mut bytes = vec![0; len];
            store.read(index, start, &mut bytes);
            assert_eq!(bytes, expected[start..start + len], "chunk {index}");
        }
        for start in [0, 4, 8 * 77, PAGE + 6, PAGE - 4, CHUNK - 8] {
            let word: [u8; 8] = store.array(index, start);
            assert_eq!(word, expected[start..start + 8]);
            let half: [u8; 2] = store.array(index, start);
            assert_eq!(half, expected[start..start + 2]);
        }
    }

    #[test]
    fn chunks_have_their_bytes_in_the_window_and_packed() {
        for step in [1, 7, 600] {
            let mut store = filled(step);
            assert!(!store.packed.is_empty() && store.packed.len() < store.first);
            assert!(store.first < COUNT);
            for _ in 0..2 {
                for index in 0..COUNT {
                    assert_holds(&store, index, &chunk_of(index, [0; PAGES]));
                }
                store.digest().unwrap();
            }
        }
    }

    #[test]
    fn a_page_can_be_put_in_the_place_of_another_of_any_form() {
        let mut store = filled(WINDOW);
        let mut versions = vec![[0; PAGES]; COUNT];
        for round in 0..3 {
            for (index, versions) in versions.iter_mut().enumerate().skip(round).step_by(3) {
                let page = (index + round) % PAGES;
                versions[page] += 1;
                store
                    .put(index, page, &page_of(index, page, versions[page]))
                    .unwrap();
            }
            for (index, &versions) in versions.iter().enumerate() {
                assert_holds(&store, index, &chunk_of(index, versions));
            }
            store.digest().unwrap();
            for (index, stale) in store.stale().into_iter().enumerate() {
                let expected = chunk_of(index, versions[index]);
                let digests = expected.chunks(PAGE).map(Digest::of);
                assert!(digests.eq(stale.digests.unwrap()));
                assert!(stale.bytes.is_none_or(|bytes| *bytes == *expected));
            }
        }
    }

    #[test]
    fn chunks_that_stay_have_their_bytes_and_the_first_indices() {
        for (every, of) in [(1, 3), (2, 3), (1, COUNT), (3, 3)] {
            let mut store = filled(WINDOW);
            store.put(6, 1, &page_of(6, 1, 1)).unwrap();
            store.put(COUNT - 2, 1, &page_of(COUNT - 2, 1, 1)).unwrap();
            let staying = || (0..COUNT).filter(|number| number % of < every);
            store.keep(staying()).unwrap();
            for (index, number) in staying().enumerate() {
                let is_put = number == 6 || number == COUNT - 2;
                assert_holds(&store, index, &chunk_of(number, [0, is_put.into(), 0, 0]));
            }
            // Others come behind them.
            let count = staying().count();
            for bytes in store.append(2, &|_| 0).unwrap() {
                bytes.copy_from_slice(&chunk_of(9, [0; PAGES]));
            }

            assert_holds(&store, count + 1, &chunk_of(9, [0; PAGES]));
        }
    }

    #[test]
    fn an_emptied_store_can_be_filled_again() {
        let mut store = filled(WINDOW);
        store.keep([]).unwrap();
        for bytes in store.append(1, &|_| 0).unwrap() {
            bytes.copy_from_slice(&chunk_of(4, [0; PAGES]));
        }
        assert_holds(&store, 0, &chunk_of(4, [0; PAGES]));
    }
}

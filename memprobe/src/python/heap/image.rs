//! A cache of a process's memory, so that everything that is read belongs to one moment.

mod packed_page;
mod packing;
mod slabs;
mod store;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use hashbrown::HashMap;

use self::store::{ChunkStore, StaleChunk};
use crate::process::memory::{Cause, PAGE, Piece, ReadMemory, ReadResult, STALE_PAGES, StalePages};

/// Bytes per read: the fastest of several sizes for walking a heap of a million objects.
const CHUNK: usize = 16 << 10;

const PAGES: usize = CHUNK / PAGE;
const _: () = assert!(PAGES <= STALE_PAGES);
/// Chunks that are read at once: no more than two windows, so that others are packed meanwhile.
const BATCH: usize = 256;

/// Slots of the direct-mapped lookup cache: 256 MiB of chunks.
const RECENT: usize = 1 << 14;

/// Caches everything read from another memory. After [`Self::close`] only cached memory can be read, so that
/// nothing of a later moment comes in.
#[derive(Debug)]
pub struct Image<M> {
    memory: M,
    cache: RefCell<ChunkCache>,
}

#[derive(Debug)]
struct ChunkCache {
    chunks: Vec<Chunk>,
    /// Bytes of the chunks, by index in `chunks`.
    bytes: ChunkStore,
    /// Index in `chunks` by chunk number: the address divided by [`CHUNK`].
    places: HashMap<u64, usize>,
    /// Recently used chunks as (number, index), at the slot given by the lowest bits of the number. A newer
    /// chunk replaces an older one in its slot.
    recent: Box<[(u64, usize)]>,
    /// Pages that the latest [`Image::renew`] found changed, in the order of addresses.
    changed: Vec<Range<u64>>,
    most: usize,
    /// Chunks of `most` that are left for others: see [`Image::reserving`].
    reserved: usize,
    /// True if a chunk was not read because of the limit.
    refused: bool,
    open: bool,
    /// True if chunks that are read now get a mark.
    marks: bool,
    /// All bits within [`Image::following`], else none.
    follows: u8,
    missed: u64,
}

#[derive(Debug)]
struct Chunk {
    number: u64,
    /// Pages with valid contents, one bit each.
    known: u8,
    /// Pages that were read, successfully or not, one bit each.
    tried: u8,
    /// Pages that were looked at, one bit each.
    used: u8,
    /// Pages that are not as they were before the latest [`Image::renew`], one bit each.
    changed: u8,
    /// Pages that were looked at within [`Image::following`], one bit each.
    followed: u8,
    is_marked: bool,
}

/// Reason to look at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The copy needs the page.
    Read,
    /// See [`ReadMemory::peek`].
    Peek,
}

const ALL: u8 = ((1_u16 << PAGES) - 1) as u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageExtent {
    pub bytes: usize,
    /// Reads that failed because the image was closed or full.
    pub missed: u64,
    /// True if memory was left out because of the limit.
    pub full: bool,
}

impl<M: ReadMemory> Image<M> {
    /// Creates an empty image of `memory` that keeps at most `most` bytes.
    pub fn of(memory: M, most: usize) -> Self {
        Self {
            memory,
            cache: RefCell::new(ChunkCache {
                chunks: Vec::new(),
                bytes: ChunkStore::default(),
                changed: Vec::new(),
                places: HashMap::new(),
                recent: vec![(u64::MAX, 0); RECENT].into(),
                most: most / CHUNK,
                reserved: 0,
                refused: false,
                open: true,
                marks: false,
                follows: 0,
                missed: 0,
            }),
        }
    }

    pub fn close(&self) {
        self.cache.borrow_mut().open = false;
    }

    /// Does now what [`Self::renew`] would do first.
    pub fn prepare_to_renew(&self) {
        self.cache.borrow_mut().digest();
    }

    /// Resumes reading missing memory. Cached memory stays as it is until [`Self::renew`].
    pub fn open(&self) {
        self.cache.borrow_mut().open = true;
    }

    pub fn extent(&self) -> ImageExtent {
        let cache = self.cache.borrow();
        ImageExtent {
            bytes: cache.chunks.len() * CHUNK,
            missed: cache.missed,
            full: cache.refused,
        }
    }

    /// Reads all pages again that were looked at so far, with as few calls as possible, and forgets the rest. The image
    /// then belongs to this moment, and knows which of these pages have changed.
    pub fn renew(&self) {
        self.cache.borrow_mut().renew(&self.memory);
    }

    /// Leaves so many bytes of the limit to what is read after `read`.
    pub fn reserving<T>(&self, bytes: usize, read: impl FnOnce() -> T) -> T {
        self.cache.borrow_mut().reserved = bytes / CHUNK;
        let result = read();
        self.cache.borrow_mut().reserved = 0;
        result
    }

    /// Forgets which pages were looked at: the next [`Self::renew`] reads only what is looked at until then.
    pub fn forget_use(&self) {
        let cache = &mut *self.cache.borrow_mut();
        cache.refused = false;
        for chunk in &mut cache.chunks {
            chunk.used = 0;
            chunk.followed = 0;
            chunk.is_marked = false;
        }
    }

    /// Marks all chunks that `read` reads, for [`Self::keep_marked`].
    pub fn marking<T>(&self, read: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.cache.borrow_mut().marks, true);
        let result = read();
        self.cache.borrow_mut().marks = before;
        result
    }

    /// Remembers all pages that `read` reads, for [`Self::has_followed_changed`].
    pub fn following<T>(&self, read: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.cache.borrow_mut().follows, ALL);
        let result = read();
        self.cache.borrow_mut().follows = before;
        result
    }

    /// True if the latest [`Self::renew`] found a page changed that was read within [`Self::following`]. Otherwise the
    /// same reading again would read the same pages.
    pub fn has_followed_changed(&self) -> bool {
        let cache = self.cache.borrow();
        let mut chunks = cache.chunks.iter();
        chunks.any(|chunk| chunk.followed & chunk.changed != 0)
    }

    /// Drops the chunks without a mark, whose memory goes back to the system.
    pub fn keep_marked(&self) {
        let cache = &mut *self.cache.borrow_mut();
        let chunks = cache.chunks.iter().enumerate();
        let marked = chunks.filter(|(_, chunk)| chunk.is_marked);
        let result = cache.bytes.keep(marked.map(|(place, _)| place));
        if let Err(error) = result {
            log::debug!("all memory stays: {error}");
            return;
        }
        cache.chunks.retain(|chunk| chunk.is_marked);
        let numbers = cache.chunks.iter().map(|chunk| chunk.number);
        cache.places = numbers.zip(0..).collect();
        cache.recent.fill((u64::MAX, 0));
    }

    /// Ranges of pages that the latest [`Self::renew`] found changed, in the order of addresses.
    pub fn changed(&self) -> Vec<Range<u64>> {
        self.cache.borrow().changed.clone()
    }

    pub fn keep(&self, range: Range<u64>) {
        let cache = &mut *self.cache.borrow_mut();
        let mut at = range.start;
        while at < range.end {
            let within = (at % CHUNK as u64) as usize;
            let len = ((CHUNK - within) as u64).min(range.end - at);
            // A later read of the range reports the error.
            let bytes = within..within + len as usize;
            let number = at / CHUNK as u64;
            let found = cache.find(&self.memory, number, bytes, Access::Read);
            if found == Err(Cause::NotKept) {
                return;
            }
            let Some(next) = at.checked_add(len) else {
                return;
            };
            at = next;
        }
    }

    /// Reads the missing chunks of these ranges, with as few calls as possible.
    pub fn fetch(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let cache = &mut *self.cache.borrow_mut();
        if !cache.open {
            return;
        }
        let mut numbers = Vec::new();
        for range in ranges {
            let Some(last) = range.end.checked_sub(1).filter(|&last| last >= range.start) else {
                continue;
            };
            let (first, last) = (range.start / CHUNK as u64, last / CHUNK as u64);
            if last - first > cache.most as u64 {
                continue;
            }
            for number in first..=last {
                if !cache.places.contains_key(&number) && numbers.last() != Some(&number) {
                    numbers.push(number);
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        let left = cache.chunks_left();
        cache.refused |= numbers.len() > left;
        numbers.truncate(left);
        for numbers in numbers.chunks(BATCH) {
            cache.add(&self.memory, numbers);
        }
    }
}

/// Reads whole chunks; falls back to single pages for a chunk that cannot be read completely.
fn read_whole<'a>(
    memory: &impl ReadMemory,
    chunks: impl Iterator<Item = (&'a mut Chunk, &'a mut [u8])>,
) {
    let (mut chunks, bytes): (Vec<_>, Vec<_>) = chunks.unzip();
    let pieces = chunks.iter().zip(bytes);
    let pieces = pieces.map(|(chunk, bytes)| Piece::of(chunk.start(), bytes));
    let mut pieces: Vec<_> = pieces.collect();
    memory.read_each(&mut pieces);
    for (chunk, piece) in chunks.iter_mut().zip(pieces) {
        if piece.outcome.is_ok() {
            (chunk.known, chunk.tried) = (ALL, ALL);
        } else {
            chunk.read_pages(memory, piece.into, ALL);
        }
    }
}

impl Chunk {
    fn empty(number: u64) -> Self {
        Self {
            number,
            known: 0,
            tried: 0,
            used: 0,
            changed: ALL,
            followed: 0,
            is_marked: false,
        }
    }

    fn start(&self) -> u64 {
        self.number.wrapping_mul(CHUNK as u64)
    }

    /// Pages from the first that was looked at to the last.
    fn span(&self) -> Range<usize> {
        let first = self.used.trailing_zeros() as usize;
        let behind = (u8::BITS - self.used.leading_zeros()) as usize;
        first.min(behind)..behind
    }

    /// Reads single pages into `bytes`, those of the chunk.
    fn read_pages(&mut self, memory: &impl ReadMemory, bytes: &mut [u8], wanted: u8) {
        let start = self.start();
        self.tried |= wanted;
        let pages = (0_u64..).zip(bytes.chunks_exact_mut(PAGE));
        for (page, bytes) in pages.filter(|(page, _)| wanted >> page & 1 != 0) {
            let address = start.wrapping_add(page * PAGE as u64);
            if memory.read(address, bytes).is_ok() {
                self.known |= 1 << page;
            }
        }
    }
}

/// Pages of a range within a chunk, one bit each.
fn pages(range: &Range<usize>) -> u8 {
    let first = range.start / PAGE;
    let behind = range.end.div_ceil(PAGE);
    ALL & (u8::MAX << first) & !(((u16::MAX << behind) & 0xff) as u8)
}

impl ChunkCache {
    /// Reads chunks that are missing. Without memory for them they stay missing.
    fn add(&mut self, memory: &impl ReadMemory, numbers: &[u64]) {
        let first = self.chunks.len();
        let chunks = &self.chunks;
        let address_of = |place: usize| chunks[place].start();
        let Ok(bytes) = self.bytes.append(numbers.len(), &address_of) else {
            return;
        };
        for (place, &number) in (first..).zip(numbers) {
            self.places.insert(number, place);
            self.chunks.push(Chunk::empty(number));
        }
        read_whole(memory, self.chunks[first..].iter_mut().zip(bytes));
    }

    fn digest(&mut self) {
        if let Err(error) = self.bytes.digest() {
            log::debug!("some pages have no digest: {error}");
        }
    }

    fn renew(&mut self, memory: &impl ReadMemory) {
        self.missed = 0;
        self.digest();
        let mut wanted: Vec<_> = (0..self.chunks.len()).collect();
        wanted.sort_unstable_by_key(|&place| self.chunks[place].number);
        let mut chunks = self.bytes.stale();
        let (mut stale, mut places, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for &place in &wanted {
            let chunk = &mut self.chunks[place];
            let span = chunk.span();
            let read = pages(&(span.start * PAGE..span.end * PAGE));
            // A page that was not known before is new.
            chunk.changed = read & !chunk.known;
            (chunk.known, chunk.tried) = (read, read);
            if span.is_empty() {
                continue;
            }
            let StaleChunk { digests, bytes } = std::mem::take(&mut chunks[place]);
            let Some(digests) = digests else {
                lost.push(place);
                continue;
            };
            let address = chunk.start().wrapping_add((span.start * PAGE) as u64);
            let copy = bytes.map(|bytes| &mut bytes[span.start * PAGE..span.end * PAGE]);
            let (first, digests) = (span.start, &digests[span]);
            places.push((place, first));
            stale.push(StalePages::of(address, digests, copy));
        }
        memory.refresh_each(&mut stale);
        let renewed = stale.into_iter().zip(places);
        let renewed = renewed.filter(|(pages, _)| pages.outcome.is_err() || pages.changed != 0);
        let renewed = renewed.map(|(pages, place)| (pages.into_result(), place));
        // From here on nothing refers to the bytes of the chunks.
        let renewed: Vec<_> = renewed.collect();
        for (pages, (place, first)) in renewed {
            if pages.outcome.is_err() {
                lost.push(place);
            }
            self.chunks[place].changed |= pages.changed << first;
            let mut bytes = pages.changed_bytes();
            for page in pages.changed_pages() {
                match bytes.next() {
                    Some(bytes) => self.put(place, first + page, bytes),
                    None => self.bytes.note(place, first + page, pages.digests[page]),
                }
            }
        }
        for place in lost {
            self.read_again(memory, place);
        }
        self.changed.clear();
        for place in wanted {
            add_pages(&mut self.changed, &self.chunks[place]);
        }
    }

    /// Reads the known pages of a chunk again, one by one.
    fn read_again(&mut self, memory: &impl ReadMemory, place: usize) {
        let wanted = self.chunks[place].known;
        self.chunks[place].known = 0;
        self.read_pages(memory, place, wanted);
        self.chunks[place].changed = ALL;
    }

    /// Reads single pages of a chunk.
    fn read_pages(&mut self, memory: &impl ReadMemory, place: usize, wanted: u8) {
        let chunk = &mut self.chunks[place];
        let before = chunk.known;
        let mut bytes = [0; CHUNK];
        chunk.read_pages(memory, &mut bytes, wanted);
        let read = chunk.known & !before;
        let pages = bytes.chunks_exact(PAGE).enumerate();
        for (page, bytes) in pages.filter(|(page, _)| read >> page & 1 != 0) {
            self.put(place, page, bytes);
        }
    }

    /// Stores a page that was read; it is not known if there is no memory for it.
    fn put(&mut self, place: usize, page: usize, bytes: &[u8]) {
        if self.bytes.put(place, page, bytes).is_err() {
            self.chunks[place].known &= !(1 << page);
        }
    }

    /// Number of chunks until the limit.
    fn chunks_left(&self) -> usize {
        let most = self.most.saturating_sub(self.reserved);
        most.saturating_sub(self.chunks.len())
    }

    /// Index of a chunk. Reads a missing chunk if the image is open and has not reached its limit.
    #[inline]
    fn place(&mut self, memory: &impl ReadMemory, number: u64, access: Access) -> Option<usize> {
        let (known, place) = self.recent[number as usize % RECENT];
        if known == number {
            return Some(place);
        }
        self.place_of_older(memory, number, access)
    }

    /// Like [`Self::place`], for a chunk that is not among the recently used ones.
    fn place_of_older(
        &mut self,
        memory: &impl ReadMemory,
        number: u64,
        access: Access,
    ) -> Option<usize> {
        let place = match self.places.get(&number) {
            Some(&place) => place,
            None if !self.open => return None,
            None if access == Access::Peek && self.chunks.len() >= self.most / 2 => return None,
            None if self.chunks_left() == 0 => {
                self.refused |= access == Access::Read;
                return None;
            }
            None => {
                self.add(memory, &[number]);
                *self.places.get(&number)?
            }
        };
        self.recent[number as usize % RECENT] = (number, place);
        Some(place)
    }

    /// Index of the chunk that has a range. Marks its pages as looked at if they are read.
    #[inline]
    fn find(
        &mut self,
        memory: &impl ReadMemory,
        number: u64,
        range: Range<usize>,
        access: Access,
    ) -> Result<usize, Cause> {
        let pages = pages(&range);
        let is_read = access == Access::Read;
        let place = self.place(memory, number, access);
        let chunk = place.and_then(|place| Some((place, self.chunks.get_mut(place)?)));
        let Some((place, chunk)) = chunk else {
            self.missed += u64::from(is_read);
            return Err(Cause::NotKept);
        };
        if is_read {
            chunk.used |= pages;
            chunk.followed |= pages & self.follows;
            chunk.is_marked |= self.marks;
        }
        if chunk.known & pages == pages {
            return Ok(place);
        }
        self.find_unknown(memory, place, pages, is_read)
    }

    /// Like [`Self::find`], for pages not all of which were read successfully.
    #[cold]
    fn find_unknown(
        &mut self,
        memory: &impl ReadMemory,
        place: usize,
        pages: u8,
        is_read: bool,
    ) -> Result<usize, Cause> {
        let untried = pages & !self.chunks[place].tried;
        if untried != 0 && self.open {
            self.read_pages(memory, place, untried);
        }
        let chunk = &self.chunks[place];
        if chunk.known & pages == pages {
            return Ok(place);
        }
        if chunk.tried & pages == pages {
            return Err(Cause::NotMapped);
        }
        self.missed += u64::from(is_read);
        Err(Cause::NotKept)
    }
}

/// Appends the changed pages of a chunk.
fn add_pages(ranges: &mut Vec<Range<u64>>, chunk: &Chunk) {
    for page in (0..PAGES).filter(|page| chunk.changed >> page & 1 != 0) {
        let start = chunk.start().wrapping_add((page * PAGE) as u64);
        let end = start.saturating_add(PAGE as u64);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
}

impl<M: ReadMemory> Image<M> {
    fn copy(&self, address: u64, into: &mut [u8], access: Access) -> ReadResult<()> {
        let cache = &mut *self.cache.borrow_mut();
        let mut done = 0;
        while done < into.len() {
            let at = address.checked_add(done as u64);
            let at = at.ok_or_else(|| Cause::NotMapped.at(address))?;
            let within = (at % CHUNK as u64) as usize;
            let len = (CHUNK - within).min(into.len() - done);
            let bytes = within..within + len;
            let place = cache.find(&self.memory, at / CHUNK as u64, bytes, access);
            let place = place.map_err(|cause| cause.at(address))?;
            cache.bytes.read(place, within, &mut into[done..done + len]);
            done += len;
        }
        Ok(())
    }
}

impl<M: ReadMemory> ReadMemory for Image<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.copy(address, into, Access::Read)
    }

    /// Without a buffer in between: most of what is read of millions of objects are single words.
    #[inline]
    fn read_array<const N: usize>(&self, address: u64) -> ReadResult<[u8; N]> {
        let within = (address % CHUNK as u64) as usize;
        if within + N > CHUNK {
            let mut bytes = [0; N];
            return self.read(address, &mut bytes).map(|()| bytes);
        }
        let cache = &mut *self.cache.borrow_mut();
        let number = address / CHUNK as u64;
        let place = cache.find(&self.memory, number, within..within + N, Access::Read);
        let place = place.map_err(|cause| cause.at(address))?;
        Ok(cache.bytes.array(place, within))
    }

    fn peek(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.copy(address, into, Access::Peek)
    }

    fn read_each(&self, pieces: &mut [Piece<'_>]) {
        self.fetch(
            pieces
                .iter()
                .map(|piece| piece.address..piece.address.saturating_add(piece.into.len() as u64)),
        );
        for piece in pieces {
            piece.outcome = self.read(piece.address, piece.into);
        }
    }

    fn read_ahead(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        self.fetch(ranges);
    }

    /// True unless the pages are as they were before the latest [`Image::renew`].
    fn may_have_changed(&self, address: u64, len: u64) -> bool {
        let cache = &*self.cache.borrow();
        let end = address.saturating_add(len);
        let mut at = address;
        while at < end {
            let within = (at % CHUNK as u64) as usize;
            let len = ((CHUNK - within) as u64).min(end - at);
            let place = cache.places.get(&(at / CHUNK as u64));
            let chunk = place.map(|&place| &cache.chunks[place]);
            // A page that was not read may hold anything.
            let changed = chunk.map_or(ALL, |chunk| chunk.changed | !chunk.known);
            if changed & pages(&(within..within + len as usize)) != 0 {
                return true;
            }
            at += len;
        }
        false
    }
}

//! A cache of a process's memory, so that everything that is read belongs to one moment.

use std::cell::RefCell;
use std::ops::Range;

use hashbrown::HashMap;

use crate::process::memory::{Cause, Piece, ReadMemory, ReadResult};

/// Bytes per read: the fastest of several sizes for walking a heap of a million objects.
const CHUNK: usize = 16 << 10;

const PAGE: usize = 4 << 10;
const PAGES: usize = CHUNK / PAGE;
const BATCH: usize = 1024;

/// Slots of the direct-mapped lookup cache: 64 MiB of chunks.
const RECENT: usize = 4096;

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
    /// Index in `chunks` by chunk number: the address divided by [`CHUNK`].
    places: HashMap<u64, usize>,
    /// Recently used chunks as (number, index), at the slot given by the lowest bits of the number. A newer
    /// chunk replaces an older one in its slot.
    recent: Box<[(u64, usize)]>,
    most: usize,
    open: bool,
    missed: u64,
}

#[derive(Debug)]
struct Chunk {
    number: u64,
    bytes: Box<[u8]>,
    /// Pages with valid contents, one bit each.
    known: u8,
    /// Pages that were read, successfully or not, one bit each.
    tried: u8,
    /// Pages that were looked at, one bit each.
    used: u8,
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
    pub full: bool,
}

impl<M: ReadMemory> Image<M> {
    /// Creates an empty image of `memory` that keeps at most `most` bytes.
    pub fn of(memory: M, most: usize) -> Self {
        Self {
            memory,
            cache: RefCell::new(ChunkCache {
                chunks: Vec::new(),
                places: HashMap::new(),
                recent: vec![(u64::MAX, 0); RECENT].into(),
                most: most / CHUNK,
                open: true,
                missed: 0,
            }),
        }
    }

    pub fn close(&self) {
        self.cache.borrow_mut().open = false;
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
            full: cache.chunks.len() >= cache.most,
        }
    }

    /// Reads all pages again that were looked at so far, in one call, and forgets the rest. The image then belongs
    /// to this moment.
    pub fn renew(&self) {
        let cache = &mut *self.cache.borrow_mut();
        cache.missed = 0;
        let mut wanted: Vec<&mut Chunk> = cache.chunks.iter_mut().collect();
        wanted.sort_unstable_by_key(|chunk| chunk.number);
        let spans: Vec<_> = wanted.iter().map(|chunk| chunk.span()).collect();
        let pieces = wanted.iter_mut().zip(&spans).map(|(chunk, span)| {
            let address = chunk.start().wrapping_add(span.start as u64);
            Piece::of(address, &mut chunk.bytes[span.clone()])
        });
        let mut pieces: Vec<_> = pieces.collect();
        pieces.retain(|piece| !piece.into.is_empty());
        self.memory.read_each(&mut pieces);
        let failed = pieces.iter().filter(|piece| piece.outcome.is_err());
        let failed: Vec<_> = failed.map(|piece| piece.address / CHUNK as u64).collect();
        for (chunk, span) in wanted.into_iter().zip(spans) {
            let span = if span.is_empty() { 0 } else { pages(&span) };
            (chunk.known, chunk.tried) = (span, span);
            if failed.binary_search(&chunk.number).is_ok() {
                (chunk.known, chunk.tried) = (0, 0);
                chunk.read_pages(&self.memory, span);
            }
            chunk.used = 0;
        }
    }

    pub fn keep(&self, range: Range<u64>) {
        let cache = &mut *self.cache.borrow_mut();
        let mut at = range.start;
        while at < range.end {
            let within = (at % CHUNK as u64) as usize;
            let len = ((CHUNK - within) as u64).min(range.end - at);
            // A later read of the range reports the error.
            let bytes = within..within + len as usize;
            if cache.get(&self.memory, at / CHUNK as u64, bytes, Access::Read)
                == Err(Cause::NotKept)
            {
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
        numbers.truncate(cache.most.saturating_sub(cache.chunks.len()));
        for numbers in numbers.chunks(BATCH) {
            let mut chunks: Vec<_> = numbers.iter().copied().map(Chunk::empty).collect();
            read_whole(&self.memory, &mut chunks);
            for chunk in chunks {
                cache.keep(chunk);
            }
        }
    }
}

/// Reads whole chunks; falls back to single pages for a chunk that cannot be read completely.
fn read_whole(memory: &impl ReadMemory, chunks: &mut [Chunk]) {
    let pieces = chunks.iter_mut();
    let pieces = pieces.map(|chunk| Piece::of(chunk.start(), &mut chunk.bytes));
    let mut pieces: Vec<_> = pieces.collect();
    memory.read_each(&mut pieces);
    let whole: Vec<_> = pieces.iter().map(|piece| piece.outcome.is_ok()).collect();
    for (chunk, whole) in chunks.iter_mut().zip(whole) {
        if whole {
            (chunk.known, chunk.tried) = (ALL, ALL);
        } else {
            chunk.read_pages(memory, ALL);
        }
    }
}

impl Chunk {
    fn empty(number: u64) -> Self {
        Self {
            number,
            bytes: vec![0; CHUNK].into(),
            known: 0,
            tried: 0,
            used: 0,
        }
    }

    fn start(&self) -> u64 {
        self.number.wrapping_mul(CHUNK as u64)
    }

    /// Byte range from the first page that was looked at to the last.
    fn span(&self) -> Range<usize> {
        let first = self.used.trailing_zeros() as usize;
        let behind = (u8::BITS - self.used.leading_zeros()) as usize;
        first.min(behind) * PAGE..behind * PAGE
    }

    fn read_pages(&mut self, memory: &impl ReadMemory, wanted: u8) {
        let start = self.start();
        self.tried |= wanted;
        let pages = (0_u64..).zip(self.bytes.chunks_exact_mut(PAGE));
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
    fn keep(&mut self, chunk: Chunk) -> usize {
        let place = self.chunks.len();
        self.places.insert(chunk.number, place);
        self.chunks.push(chunk);
        place
    }

    /// Index of a chunk. Reads a missing chunk if the image is open and has not reached its limit.
    fn place(&mut self, memory: &impl ReadMemory, number: u64, access: Access) -> Option<usize> {
        let recent = number as usize % RECENT;
        let (known, place) = self.recent[recent];
        if known == number {
            return Some(place);
        }
        let most = match access {
            Access::Read => self.most,
            Access::Peek => self.most / 2,
        };
        let place = match self.places.get(&number) {
            Some(&place) => place,
            None if self.open && self.chunks.len() < most => {
                let mut chunk = [Chunk::empty(number)];
                read_whole(memory, &mut chunk);
                let [chunk] = chunk;
                self.keep(chunk)
            }
            None => return None,
        };
        self.recent[recent] = (number, place);
        Some(place)
    }

    /// The bytes of a range within a chunk. Marks its pages as looked at if they are read.
    fn get(
        &mut self,
        memory: &impl ReadMemory,
        number: u64,
        range: Range<usize>,
        access: Access,
    ) -> Result<&[u8], Cause> {
        let pages = pages(&range);
        let is_read = access == Access::Read;
        let place = self.place(memory, number, access);
        let Some(chunk) = place.and_then(|place| self.chunks.get_mut(place)) else {
            self.missed += u64::from(is_read);
            return Err(Cause::NotKept);
        };
        if is_read {
            chunk.used |= pages;
        }
        let untried = pages & !chunk.tried;
        if untried != 0 && self.open {
            chunk.read_pages(memory, untried);
        }
        if chunk.known & pages == pages {
            return Ok(&chunk.bytes[range]);
        }
        if chunk.tried & pages == pages {
            return Err(Cause::NotMapped);
        }
        self.missed += u64::from(is_read);
        Err(Cause::NotKept)
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
            let bytes = cache.get(&self.memory, at / CHUNK as u64, bytes, access);
            into[done..done + len].copy_from_slice(bytes.map_err(|cause| cause.at(address))?);
            done += len;
        }
        Ok(())
    }
}

impl<M: ReadMemory> ReadMemory for Image<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.copy(address, into, Access::Read)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    const AT: u64 = 0x10_0000;

    fn memory() -> FakeMemory {
        let mut memory = FakeMemory::default();
        // One chunk and a half.
        memory.map(AT, (0..24 << 10).map(|byte| (byte / 7) as u8).collect());
        memory
    }

    #[test]
    fn a_closed_image_serves_cached_memory_only() {
        let memory = memory();
        let image = Image::of(&memory, 1 << 20);
        assert_eq!(image.read_u64(AT + 8), memory.read_u64(AT + 8));
        image.close();
        assert_eq!(image.read_u64(AT + 0x3000), memory.read_u64(AT + 0x3000));
        assert_eq!(image.extent().missed, 0);
        assert_eq!(
            image.read_u64(AT + 0x4000).unwrap_err().cause,
            Cause::NotKept
        );
        assert_eq!(image.extent().missed, 1);
    }

    #[test]
    fn a_range_over_chunks_is_one_range() {
        let memory = memory();
        let image = Image::of(&memory, 1 << 20);
        assert_eq!(
            image.read_bytes(AT + 100, 20_000, 1 << 20),
            memory.read_bytes(AT + 100, 20_000, 1 << 20)
        );
    }

    #[test]
    fn of_a_chunk_that_is_mapped_in_part_that_part_is_read() {
        let memory = memory();
        let image = Image::of(&memory, 1 << 20);
        let last = AT + (24 << 10) - 8;
        assert_eq!(image.read_u64(last), memory.read_u64(last));
        let error = image.read_u64(last + 8).unwrap_err();
        assert_eq!(error.cause, Cause::NotMapped);
        assert_eq!(
            image.read_u64(u64::MAX).unwrap_err().cause,
            Cause::NotMapped
        );
    }

    #[test]
    fn it_keeps_no_more_than_it_may() {
        let memory = memory();
        let image = Image::of(&memory, CHUNK);
        image.fetch([AT..AT + (24 << 10), 0..u64::MAX]);
        assert_eq!(
            image.extent(),
            ImageExtent {
                bytes: CHUNK,
                missed: 0,
                full: true
            }
        );
        assert_eq!(
            image.read_u64(AT + 0x4000).unwrap_err().cause,
            Cause::NotKept
        );
    }

    #[test]
    fn what_was_only_peeked_at_is_not_copied_again_nor_missed() {
        let memory = memory();
        let image = Image::of(&memory, 1 << 20);
        let (read, peeked) = (AT + 8, AT + 0x1000);
        let mut word = [0; 8];
        assert_eq!(image.peek(peeked, &mut word), Ok(()));
        assert_eq!(Ok(u64::from_le_bytes(word)), memory.read_u64(peeked));
        image.read_u64(read).unwrap();
        image.renew();
        image.close();
        let lost = image.peek(peeked, &mut word);
        assert_eq!(lost.map_err(|error| error.cause), Err(Cause::NotKept));
        assert_eq!(image.peek(read, &mut word), Ok(()));
        assert_eq!(image.extent().missed, 0);
        // Half of the room is for memory that is needed.
        let small = Image::of(&memory, CHUNK);
        assert!(small.peek(read, &mut word).is_err());
        assert_eq!(small.read_u64(read), memory.read_u64(read));
    }

    #[test]
    fn renewed_it_shows_what_the_memory_has_become() {
        let memory = std::cell::RefCell::new(memory());
        struct Shared<'a>(&'a RefCell<FakeMemory>);
        impl ReadMemory for Shared<'_> {
            fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
                self.0.borrow().read(address, into)
            }
        }
        let image = Image::of(Shared(&memory), 1 << 20);
        image.read_u64(AT).unwrap();
        memory.borrow_mut().write(AT, &[0xff; 8]);
        memory.borrow_mut().write(AT + 0x1000, &[0xff; 8]);
        assert_ne!(image.read_u64(AT), Ok(u64::MAX));
        image.renew();
        assert_eq!(image.read_u64(AT), Ok(u64::MAX));
        // A page that nobody looked at is read on demand.
        assert_eq!(image.read_u64(AT + 0x1000), Ok(u64::MAX));
        image.close();
        assert_eq!(
            image.read_u64(AT + 0x2000).unwrap_err().cause,
            Cause::NotKept
        );
    }
}

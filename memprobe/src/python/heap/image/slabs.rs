//! Memory of the chunks of an image.
//!
//! Large mappings instead of single allocations, for three reasons. A process that memprobe forks during a pause (its
//! watchdog) does not share them, so that writing to them copies no page. The kernel may use huge pages, which are
//! mapped much faster. And all of it goes back to the system at the end of the image.

use std::io;
use std::thread::{Builder, JoinHandle};

use memmap2::{Advice, MmapMut};

use super::CHUNK;

/// Chunks of the first slab: enough for an image of a few objects, which is made and dropped every second.
const FIRST: usize = 64;

/// Chunks of every other slab: 4 MiB, so that the one that is prepared in vain is small.
const OTHERS: usize = 256;

/// Number of slabs from which on the next one is prepared while they are filled. For the kernel to find and to clear the
/// pages took 10 to 60 % of the first reading of 5,000,000 objects (2026-11-28).
const MANY: usize = 2;

/// Equal chunks of bytes by index.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    maps: Vec<MmapMut>,
    next: NextSlab,
}

/// The slab after those that are there.
#[derive(Debug, Default)]
enum NextSlab {
    /// Mapped when it is needed.
    #[default]
    Missing,
    /// Another thread maps it and fills it with pages.
    Prepared(JoinHandle<io::Result<MmapMut>>),
    /// Mapped when it is needed, and no other is prepared.
    Unlikely,
}

impl Slabs {
    /// Makes room for so many chunks in all. New ones are zero.
    pub(super) fn reserve(&mut self, chunks: usize) -> io::Result<()> {
        while self.capacity() < chunks {
            let map = match std::mem::take(&mut self.next) {
                NextSlab::Prepared(slab) => slab.join().unwrap_or_else(|_| slab_of(OTHERS))?,
                next @ (NextSlab::Missing | NextSlab::Unlikely) => {
                    self.next = next;
                    slab_of(if self.maps.is_empty() { FIRST } else { OTHERS })?
                }
            };
            self.maps.push(map);
            if self.maps.len() >= MANY && matches!(self.next, NextSlab::Missing) {
                let thread = Builder::new().name("slab".to_owned()).spawn(prepare);
                self.next = thread.map_or(NextSlab::Unlikely, NextSlab::Prepared);
            }
        }
        Ok(())
    }

    /// Prepares no slab from now on, because few more chunks are needed. The one that was prepared goes.
    pub(super) fn end_preparation(&mut self) {
        if let NextSlab::Prepared(slab) = std::mem::replace(&mut self.next, NextSlab::Unlikely) {
            drop(slab.join());
        }
    }

    fn capacity(&self) -> usize {
        match self.maps.len() {
            0 => 0,
            maps => FIRST + (maps - 1) * OTHERS,
        }
    }

    /// # Panics
    /// If there is no room for this chunk.
    pub(super) fn chunk(&self, index: usize) -> &[u8] {
        let (map, start) = place(index);
        &self.maps[map][start..start + CHUNK]
    }

    /// # Panics
    /// If there is no room for this chunk.
    pub(super) fn chunk_mut(&mut self, index: usize) -> &mut [u8] {
        let (map, start) = place(index);
        &mut self.maps[map][start..start + CHUNK]
    }

    /// Keeps the chunks at these indices, which ascend, and moves them together. The memory behind them goes back to the
    /// system.
    pub(super) fn keep(&mut self, indices: impl IntoIterator<Item = usize>) {
        self.end_preparation();
        let mut count = 0;
        for index in indices {
            self.copy(index, count);
            count += 1;
        }
        let maps = count.checked_sub(1).map_or(0, |last| place(last).0 + 1);
        self.maps.truncate(maps);
    }

    /// Copies a chunk to a lower or equal index.
    fn copy(&mut self, from: usize, to: usize) {
        let ((from_map, from), (to_map, to)) = (place(from), place(to));
        if from_map == to_map {
            self.maps[from_map].copy_within(from..from + CHUNK, to);
        } else {
            let (before, rest) = self.maps.split_at_mut(from_map);
            before[to_map][to..to + CHUNK].copy_from_slice(&rest[0][from..from + CHUNK]);
        }
    }

    /// All chunks from an index on.
    pub(super) fn all_from(&mut self, index: usize) -> impl Iterator<Item = &mut [u8]> {
        let (first, start) = place(index);
        let maps = self.maps.iter_mut().skip(first);
        let chunks = maps.flat_map(|map| map.chunks_exact_mut(CHUNK));
        chunks.skip(start / CHUNK)
    }
}

/// Maps a slab of so many chunks.
fn slab_of(chunks: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(chunks * CHUNK)?;
    // Both make it faster; without them it works as well.
    let _ = map.advise(Advice::DontFork);
    if chunks == OTHERS {
        let _ = map.advise(Advice::HugePage);
    }
    Ok(map)
}

/// Maps a slab whose pages are there before they are written to (Linux 5.14; an older kernel finds them then).
fn prepare() -> io::Result<MmapMut> {
    let map = slab_of(OTHERS)?;
    let _ = map.advise(Advice::PopulateWrite);
    Ok(map)
}

/// Index of the mapping, and of the first byte in it.
const fn place(index: usize) -> (usize, usize) {
    match index.checked_sub(FIRST) {
        None => (0, index * CHUNK),
        Some(beyond) => (1 + beyond / OTHERS, beyond % OTHERS * CHUNK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = FIRST + 4 * OTHERS;

    fn assert_every_chunk_has_bytes_of_its_own(slabs: &mut Slabs) {
        slabs.reserve(COUNT).unwrap();
        for at in 0..COUNT {
            slabs.chunk_mut(at)[..8].copy_from_slice(&at.to_le_bytes());
        }
        for (at, chunk) in (FIRST - 1..).zip(slabs.all_from(FIRST - 1)) {
            assert_eq!(chunk[..8], at.to_le_bytes());
        }
        let is_own = |at: usize| slabs.chunk(at)[..8] == at.to_le_bytes();
        assert!((0..COUNT).all(is_own));
    }

    #[test]
    fn every_chunk_has_bytes_of_its_own() {
        let mut slabs = Slabs::default();
        assert_every_chunk_has_bytes_of_its_own(&mut slabs);
        assert!(matches!(slabs.next, NextSlab::Prepared(_)));
    }

    #[test]
    fn without_a_prepared_slab_every_chunk_has_bytes_too() {
        let mut slabs = Slabs::default();
        slabs.reserve(FIRST + 2 * OTHERS).unwrap();
        slabs.end_preparation();
        assert_every_chunk_has_bytes_of_its_own(&mut slabs);
        assert!(matches!(slabs.next, NextSlab::Unlikely));
    }

    #[test]
    fn emptied_slabs_begin_again_with_a_small_one() {
        let mut slabs = Slabs::default();
        assert_every_chunk_has_bytes_of_its_own(&mut slabs);
        slabs.keep([]);
        assert_every_chunk_has_bytes_of_its_own(&mut slabs);
    }

    #[test]
    fn retained_chunks_lie_side_by_side() {
        let mut slabs = Slabs::default();
        let count = FIRST + 2 * OTHERS;
        slabs.reserve(count).unwrap();
        for at in 0..count {
            slabs.chunk_mut(at)[..8].copy_from_slice(&at.to_le_bytes());
        }
        let retained = || (0..count).step_by(3);
        slabs.keep(retained());
        for (at, from) in retained().enumerate() {
            assert_eq!(slabs.chunk(at)[..8], from.to_le_bytes());
        }
        assert_eq!(slabs.capacity(), FIRST + OTHERS);
        slabs.keep([]);
        assert_eq!(slabs.capacity(), 0);
    }
}

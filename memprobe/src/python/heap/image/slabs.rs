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

/// Number of slabs from which on the next one is prepared while they are filled. Two thirds of the time to read a large
/// heap for the first time is the kernel's, to find and to clear pages for the copy.
const MANY: usize = 2;

/// Equal chunks of bytes by index.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    maps: Vec<MmapMut>,
    /// The slab after these, which another thread maps and fills with pages.
    next: Option<JoinHandle<io::Result<MmapMut>>>,
}

impl Slabs {
    /// Makes room for so many chunks in all. New ones are zero.
    pub(super) fn reserve(&mut self, chunks: usize) -> io::Result<()> {
        while self.capacity() < chunks {
            let size = if self.maps.is_empty() { FIRST } else { OTHERS };
            let prepared = self.next.take().and_then(|next| next.join().ok());
            let map = prepared.unwrap_or_else(|| slab(size))?;
            self.maps.push(map);
            if self.maps.len() >= MANY {
                let next = Builder::new().name("slab".to_owned());
                self.next = next.spawn(prepare).ok();
            }
        }
        Ok(())
    }

    /// Gives the slab back that was prepared and is not needed. It is prepared again when more is reserved.
    pub(super) fn release_next(&mut self) {
        if let Some(next) = self.next.take() {
            drop(next.join());
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

/// Maps so many chunks.
fn slab(chunks: usize) -> io::Result<MmapMut> {
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
    let map = slab(OTHERS)?;
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

    #[test]
    fn every_chunk_has_bytes_of_its_own() {
        let mut slabs = Slabs::default();
        let count = FIRST + 2 * OTHERS;
        slabs.reserve(count).unwrap();
        for at in 0..count {
            slabs.chunk_mut(at)[..8].copy_from_slice(&at.to_le_bytes());
        }
        for (at, chunk) in (FIRST - 1..).zip(slabs.all_from(FIRST - 1)) {
            assert_eq!(chunk[..8], at.to_le_bytes());
        }
        let is_own = |at: usize| slabs.chunk(at)[..8] == at.to_le_bytes();
        assert!((0..count).all(is_own));
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

//! Memory of an image: large mappings instead of single allocations, for three reasons. A process that memprobe forks
//! during a pause (its watchdog) does not share them, so that writing to them copies no page. The kernel may use huge
//! pages, which are mapped much faster. And all of it goes back to the system at the end of the image.

use std::io;

use memmap2::{Advice, MmapMut};
use zerocopy::FromBytes as _;

/// `u32` of a slab, which has 4 MiB.
pub(super) const SLAB: usize = (4 << 20) / UNIT;

const UNIT: usize = size_of::<u32>();

/// Pages that a mapping may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageSize {
    Small,
    Huge,
}

/// Maps memory.
pub(super) fn map(bytes: usize, pages: PageSize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // Both make it faster; without them it works as well.
    let _ = map.advise(Advice::DontFork);
    if pages == PageSize::Huge {
        let _ = map.advise(Advice::HugePage);
    }
    Ok(map)
}

/// Start of a list: the number of `u32` before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListStart(u32);

/// Lists of `u32`, each within a slab.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    maps: Vec<MmapMut>,
    /// Number of `u32` in use, those at the ends of slabs included that no list fitted in.
    end: usize,
}

impl Slabs {
    /// Appends a list of at most [`SLAB`].
    pub(super) fn append(&mut self, list: &[u32]) -> io::Result<ListStart> {
        let at = self.start_of(list.len());
        if at / SLAB >= self.maps.len() {
            self.maps.push(map(SLAB * UNIT, PageSize::Huge)?);
        }
        self.slab_mut(at)[at % SLAB..][..list.len()].copy_from_slice(list);
        self.end = at + list.len();
        u32::try_from(at).map(ListStart).map_err(io::Error::other)
    }

    /// Start of the next list of a length.
    const fn start_of(&self, length: usize) -> usize {
        match self.end % SLAB + length <= SLAB {
            true => self.end,
            false => self.end.next_multiple_of(SLAB),
        }
    }

    /// The memory from a position on: the list and those behind it.
    ///
    /// # Panics
    /// If nothing was appended there.
    #[inline]
    pub(super) fn list(&self, position: ListStart) -> &[u32] {
        let at = position.0 as usize;
        let slab = &self.maps[at / SLAB];
        &units(slab)[at % SLAB..]
    }

    /// Like [`Self::list`].
    pub(super) fn list_mut(&mut self, position: ListStart) -> &mut [u32] {
        let at = position.0 as usize;
        &mut self.slab_mut(at)[at % SLAB..]
    }

    fn slab_mut(&mut self, at: usize) -> &mut [u32] {
        let slab = &mut self.maps[at / SLAB];
        <[u32]>::mut_from_bytes(slab).unwrap_or_default()
    }

    /// Moves the lists that stay together, and gives each its new position. They are given with their lengths, in the
    /// order of their positions. The memory behind them goes back to the system.
    pub(super) fn compact<'a>(
        &mut self,
        staying: impl IntoIterator<Item = (&'a mut ListStart, usize)>,
    ) {
        self.end = 0;
        for (position, length) in staying {
            let from = position.0 as usize;
            // Never behind where it is: what lies before it takes no more room than until now.
            let to = self.start_of(length);
            self.move_list(from, to, length);
            self.end = to + length;
            *position = ListStart(to as u32);
        }
        self.maps.truncate(self.end.div_ceil(SLAB));
    }

    fn move_list(&mut self, from: usize, to: usize, length: usize) {
        let (from_slab, to_slab) = (from / SLAB, to / SLAB);
        let (from, to) = (from % SLAB * UNIT, to % SLAB * UNIT);
        let bytes = length * UNIT;
        if from_slab == to_slab {
            self.maps[from_slab].copy_within(from..from + bytes, to);
        } else {
            let (before, rest) = self.maps.split_at_mut(from_slab);
            before[to_slab][to..to + bytes].copy_from_slice(&rest[0][from..from + bytes]);
        }
    }
}

/// A mapping is as aligned as a page.
fn units(map: &MmapMut) -> &[u32] {
    <[u32]>::ref_from_bytes(map).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends lists of these lengths, each of its number.
    fn filled(lengths: &[usize]) -> (Slabs, Vec<ListStart>) {
        let mut slabs = Slabs::default();
        let lists = (0..).zip(lengths);
        let positions = lists.map(|(number, &length)| slabs.append(&vec![number; length]).unwrap());
        let positions = positions.collect();
        (slabs, positions)
    }

    fn assert_holds(slabs: &Slabs, position: ListStart, number: usize, length: usize) {
        assert_eq!(
            slabs.list(position)[..length],
            vec![number as u32; length][..]
        );
    }

    #[test]
    fn every_list_lies_within_a_slab() {
        let lengths = [SLAB / 2, SLAB / 3, SLAB / 2, 7, SLAB, 1];
        let (slabs, positions) = filled(&lengths);
        for (number, (&position, length)) in positions.iter().zip(lengths).enumerate() {
            assert_holds(&slabs, position, number, length);
        }
        assert_eq!(slabs.maps.len(), 4);
    }

    #[test]
    fn lists_that_stay_lie_side_by_side() {
        let lengths: Vec<usize> = (0..3000).map(|number| 500 + number % 700).collect();
        let (mut slabs, positions) = filled(&lengths);
        let stays = |&(number, _): &(usize, ListStart)| number % 3 == 1;
        let staying = positions.into_iter().enumerate().filter(stays);
        let mut staying: Vec<(usize, ListStart)> = staying.collect();
        let size: usize = staying.iter().map(|&(number, _)| lengths[number]).sum();
        let moved = staying.iter_mut();
        slabs.compact(moved.map(|(number, position)| (position, lengths[*number])));
        for &(number, position) in &staying {
            assert_holds(&slabs, position, number, lengths[number]);
        }
        assert_eq!(slabs.maps.len(), size.div_ceil(SLAB));
        slabs.compact([]);
        assert!(slabs.maps.is_empty());
        let again = slabs.append(&[9; 3]).unwrap();
        assert_holds(&slabs, again, 9, 3);
    }
}

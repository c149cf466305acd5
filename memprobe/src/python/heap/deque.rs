//! `collections.deque`: a linked list of blocks of items (`Modules/_collectionsmodule.c`@v3.9.18 to @v3.15.2).

use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, ReadResult};

/// `FIRST_BLOCK`: offset of the pointers to the first and last block, after the size. `FIRST_INDEX`: offset
/// from there of the index of the first item in its block.
const FIRST_BLOCK: u64 = 24;
const FIRST_INDEX: usize = 16;

/// `BLOCKLEN`: items of a block.
const ITEMS: u64 = 64;

/// `sizeof(block)`: the link to the previous block, the items, the link to the next block.
const BLOCK: usize = 8 * (ITEMS as usize + 2);

const MAX_ITEMS: u64 = 1 << 20;

impl<M: ReadMemory> Heap<'_, M> {
    /// Calls `each` with the items of a deque, in order.
    /// Fails with [`Unreadable`]. `each` has been called with the items before it.
    pub fn deque_items(&self, deque: u64, count: u64, mut each: impl FnMut(u64)) -> ReadResult<()> {
        let head: [u8; FIRST_INDEX + 8] =
            self.memory.read_array(deque.wrapping_add(FIRST_BLOCK))?;
        let (mut block, mut index) = (word_at(&head, 0), word_at(&head, FIRST_INDEX as u16));
        // The first index of an empty deque may lie one past the end of its block.
        if count > MAX_ITEMS || index > ITEMS {
            return Err(Cause::NotAsExpected.at(deque));
        }
        self.spend(deque, count)?;
        let mut left = count;
        while left > 0 {
            let bytes: [u8; BLOCK] = self.memory.read_array(block)?;
            let here = left.min(ITEMS - index);
            for item in index..index + here {
                each(word_at(&bytes, 8 * (1 + item as u16)));
            }
            left -= here;
            (block, index) = (word_at(&bytes, 8 * (1 + ITEMS as u16)), 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::heap::fake::FakeHeap;
    use crate::python::versions::LAYOUTS;

    /// A deque of `count` items whose first item is the last of its block.
    fn deque(heap: &mut FakeHeap, count: u64) -> u64 {
        let class = heap.class("collections.deque", 0, 0);
        let object = heap.object(class, 64);
        let blocks = [heap.reserve(BLOCK as u64), heap.reserve(BLOCK as u64)];
        heap.put_word(object, 16_u64, count);
        heap.put_word(object, FIRST_BLOCK, blocks[0]);
        heap.put_word(object, FIRST_BLOCK + FIRST_INDEX as u64, ITEMS - 1);
        heap.put_word(blocks[0], 8 * ITEMS, 7);
        heap.put_word(blocks[0], 8 * (ITEMS + 1), blocks[1]);
        heap.put_word(blocks[1], 8_u64, 8);
        heap.put_word(blocks[1], 16_u64, 9);
        object
    }

    fn items(count: u64) -> (Vec<u64>, bool) {
        let layout = &LAYOUTS[0];
        let mut heap = FakeHeap::new(layout);
        let object = deque(&mut heap, count);
        let (memory, _) = heap.finish();
        let mut found = Vec::new();
        let read = Heap::of(&memory, layout).deque_items(object, count, |item| found.push(item));
        (found, read.is_ok())
    }

    #[test]
    fn items_are_followed_from_block_to_block() {
        assert_eq!(items(3), (vec![7, 8, 9], true));
        assert_eq!(items(0), (vec![], true));
    }

    #[test]
    fn a_deque_that_ends_before_its_size_is_not_followed_further() {
        let (found, whole) = items(200);
        assert!(!whole);
        assert_eq!(found.len(), 65);
        assert_eq!(items(u64::MAX), (vec![], false));
    }
}

//! `Block` objects: the caching allocator's record of one piece of device memory
//! (c10/cuda/CUDACachingAllocator.cpp@v2.0.0 to @v2.15.0).

use super::hash_table::Element;
use super::layout::BlockLayout;
use super::tables::HeldBlock;
use crate::event::{Address, Bytes, DeviceIndex};
use crate::process::memory::ReadMemory;

/// The allocator's granularity (`kMinBlockSize`, c10/core/AllocatorConfig.h@v2.9.0).
pub(super) const ROUNDING: u64 = 512;

/// Upper bound on device addresses: 1 EiB.
const MOST: u64 = 1 << 60;

/// Distances in bytes from `size` to the fields after it, the same in every version.
pub(super) const TO_REQUESTED: usize = 8;
pub(super) const TO_PTR: usize = 24;
pub(super) const TO_ALLOCATED: usize = 32;

impl BlockLayout {
    pub fn bytes(self) -> usize {
        self.size + TO_ALLOCATED + 1
    }

    /// Parses a `Block` listed under `key`; `None` if fields contradict the key or one another, as in a freed block.
    pub fn parse(self, bytes: &[u8], key: u64) -> Option<HeldBlock> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let size = word(self.size)?;
        let block = HeldBlock {
            addr: Address(key),
            size: Bytes(size),
            requested: Bytes(word(self.size + TO_REQUESTED)?),
            device: DeviceIndex(*bytes.first()?),
            stream: word(8)?,
        };
        let allocated = *bytes.get(self.size + TO_ALLOCATED)? == 1;
        let fits = allocated
            && word(self.size + TO_PTR)? == key
            && block.device.0 < 128
            && size > 0
            && size.is_multiple_of(ROUNDING)
            && block.requested <= block.size
            && key.checked_add(size).is_some_and(|end| end <= MOST);
        fits.then_some(block)
    }
}

/// `SPAN`: most bytes between the first and last object of one read. `GAP`: largest gap that a read bridges.
const SPAN: u64 = 64 << 10;
const GAP: u64 = 4 << 10;

/// Reads `len` bytes at the value of each element and calls `each` with them, or with `None` if they cannot
/// be read. Objects that lie close together share one read. Sorts the elements by value.
pub fn read_each(
    memory: &impl ReadMemory,
    elements: &mut [Element],
    len: usize,
    mut each: impl FnMut(Element, Option<&[u8]>),
) {
    elements.sort_unstable_by_key(|element| element.value);
    let ranges = elements.iter().map(|element| element.value);
    memory.read_ahead(&mut ranges.map(|start| start..start.saturating_add(len as u64)));
    let mut buffer = vec![0; SPAN as usize + len];
    let mut rest = &*elements;
    while let Some(first) = rest.first() {
        let start = first.value;
        let mut last = start;
        let together = rest
            .iter()
            .take_while(|element| {
                let near = element.value - last <= GAP && element.value - start <= SPAN;
                last = if near { element.value } else { last };
                near
            })
            .count();
        let (span, others) = rest.split_at(together);
        rest = others;
        let bytes = &mut buffer[..(last - start) as usize + len];
        if memory.read(start, bytes).is_ok() {
            for element in span {
                let at = (element.value - start) as usize;
                each(*element, bytes.get(at..at + len));
            }
            continue;
        }
        for element in span {
            let bytes = &mut bytes[..len];
            let read = memory.read(element.value, bytes).is_ok();
            each(*element, read.then_some(&*bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;
    use crate::process::memory::fake::FakeMemory;
    use crate::python::heap::image::Image;

    const LAYOUT: BlockLayout = BlockLayout { size: 0x38 };
    const KEY: u64 = 0x7f00_0000_0000;

    #[test]
    fn a_block_says_its_size_stream_and_device() {
        let bytes = fake::block(LAYOUT, 3, 0x77, KEY, 1000);
        let block = HeldBlock {
            addr: Address(KEY),
            size: Bytes(1024),
            requested: Bytes(1000),
            device: DeviceIndex(3),
            stream: 0x77,
        };
        assert_eq!(LAYOUT.parse(&bytes, KEY), Some(block));
    }

    #[test]
    fn a_block_that_contradicts_itself_is_none() {
        let good = fake::block(LAYOUT, 0, 0, KEY, 1000);
        assert_eq!(LAYOUT.parse(&good, KEY + 512), None);
        assert_eq!(LAYOUT.parse(&good[..LAYOUT.bytes() - 1], KEY), None);
        for (at, byte) in [
            (0, 0x80),
            (0x38, 1),
            (0x3f, 0xff),
            (0x41, 0xff),
            (0x58, 0),
            (0x58, 7),
        ] {
            let mut wrong = good.clone();
            wrong[at] = byte;
            assert_eq!(LAYOUT.parse(&wrong, KEY), None, "byte {at:#x} is {byte}");
        }
    }

    #[test]
    fn a_copy_reads_all_objects_ahead_of_the_first() {
        let mut memory = FakeMemory::default();
        memory.map(0x1_0000, vec![7; 1 << 20]);
        let image = Image::of(&memory, 1 << 20);
        let values = (0x1_0000..0x11_0000).step_by(0x8000);
        let mut elements: Vec<_> = values.map(|value| Element { key: value, value }).collect();
        let mut read = 0;
        read_each(&image, &mut elements, 8, |_, bytes| {
            // From the first one on, nothing more can be read of the process.
            image.close();
            read += usize::from(bytes == Some(&[7; 8][..]));
        });
        assert_eq!(read, elements.len());
    }

    #[test]
    fn each_object_is_read_wherever_it_lies() {
        let mut memory = FakeMemory::default();
        memory.map(0x1000, (0..=255).collect());
        memory.map(0x1400, (0..=255).rev().collect());
        memory.map(0x900_0000, vec![9; 64]);
        let mut elements = [0x900_0000, 0x10f8, 0x1400, 0x1000, 0x1001, 0x5000, u64::MAX]
            .map(|value| Element { key: value, value });
        let mut read = Vec::new();
        read_each(&memory, &mut elements, 8, |element, bytes| {
            read.push((element.value, bytes.map(|bytes| bytes[0])));
        });
        assert_eq!(
            read,
            [
                (0x1000, Some(0)),
                (0x1001, Some(1)),
                (0x10f8, Some(0xf8)),
                (0x1400, Some(255)),
                (0x5000, None),
                (0x900_0000, Some(9)),
                (u64::MAX, None),
            ]
        );
    }
}

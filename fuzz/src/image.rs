//! Memory of a process that an input describes: pages, of which the input has pieces.

use std::collections::BTreeMap;

use memprobe::process::memory::{Cause, ReadMemory, ReadResult};

const PAGE: u64 = 4096;

/// Most pages of one image.
const MAX_PAGES: usize = 1 << 12;

/// Memory whose pages outside the pieces are zero, as far as they have a piece.
pub struct Image {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Image {
    /// Reads pieces: an address in eight bytes, a length in two, and the bytes.
    pub fn of(mut pieces: &[u8]) -> Self {
        let mut image = Self {
            pages: BTreeMap::new(),
        };
        while let Some((head, rest)) = pieces.split_first_chunk::<10>() {
            let (address, length) = head.split_at(8);
            let address = address
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
            let length = usize::from(length[0]) | usize::from(length[1]) << 8;
            let (bytes, rest) = rest.split_at(length.min(rest.len()));
            image.write(address, bytes);
            pieces = rest;
        }
        image
    }

    /// Writes a piece in the form that [`Self::of`] reads.
    pub fn describe(address: u64, bytes: &[u8], into: &mut Vec<u8>) {
        for (at, bytes) in (address..)
            .step_by(PAGE as usize)
            .zip(bytes.chunks(PAGE as usize))
        {
            into.extend(at.to_le_bytes());
            into.extend((bytes.len() as u16).to_le_bytes());
            into.extend(bytes);
        }
    }

    fn write(&mut self, mut address: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let number = address / PAGE;
            if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&number) {
                return;
            }
            let page = self
                .pages
                .entry(number)
                .or_insert_with(|| Box::new([0; PAGE as usize]));
            let into = &mut page[(address % PAGE) as usize..];
            let (now, later) = bytes.split_at(into.len().min(bytes.len()));
            into[..now.len()].copy_from_slice(now);
            address = address.wrapping_add(now.len() as u64);
            bytes = later;
        }
    }
}

impl ReadMemory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        let unreadable = || Cause::NotMapped.at(address);
        let mut at = address;
        let mut rest = into;
        while !rest.is_empty() {
            let page = self.pages.get(&(at / PAGE)).ok_or_else(unreadable)?;
            let from = &page[(at % PAGE) as usize..];
            let (now, later) = rest.split_at_mut(from.len().min(rest.len()));
            now.copy_from_slice(&from[..now.len()]);
            at = at.checked_add(now.len() as u64).ok_or_else(unreadable)?;
            rest = later;
        }
        Ok(())
    }
}

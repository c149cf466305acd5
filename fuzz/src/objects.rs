//! Inputs of the readers of objects: the version by index, the number of objects, their addresses, and the memory.

use crate::image::Image;

pub struct Objects {
    version: u8,
    pub addresses: Vec<u64>,
    pub memory: Image,
}

impl Objects {
    pub fn of(data: &[u8]) -> Option<Self> {
        let ([version, count], rest) = data.split_first_chunk()?;
        let count = 8 * usize::from(*count).min(rest.len() / 8);
        let (addresses, memory) = rest.split_at(count);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        Some(Self {
            version: *version,
            addresses: addresses.chunks_exact(8).map(word).collect(),
            memory: Image::of(memory),
        })
    }

    /// Writes an input in the form that [`Self::of`] reads, but for the memory.
    pub fn describe(version: u8, addresses: &[u64]) -> Vec<u8> {
        let mut input = vec![version, addresses.len() as u8];
        input.extend(addresses.iter().flat_map(|address| address.to_le_bytes()));
        input
    }

    /// Returns the row of the version.
    pub fn chosen<'a, T>(&self, rows: &'a [T]) -> &'a T {
        &rows[usize::from(self.version) % rows.len()]
    }
}

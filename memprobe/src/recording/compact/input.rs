//! Window on the bytes of a file that is read from its beginning to its end.

use std::io::{self, BufRead};

pub(super) struct InputWindow<R> {
    input: R,
    bytes: Vec<u8>,
    start: usize,
    /// Place of the window in the file, in bytes.
    offset: u64,
}

impl<R: BufRead> InputWindow<R> {
    pub(super) fn new(input: R) -> Self {
        Self::at(input, 0)
    }

    /// Begins at a place of the file.
    pub(super) fn at(input: R, offset: u64) -> Self {
        Self {
            input,
            bytes: Vec::new(),
            start: 0,
            offset,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next bytes, at least `wanted` of them if the file has so many.
    pub(super) fn fill(&mut self, wanted: usize) -> io::Result<&[u8]> {
        while self.bytes.len() - self.start < wanted {
            if self.start > 0 {
                self.bytes.drain(..self.start);
                self.start = 0;
            }
            let more = match self.input.fill_buf() {
                Ok(more) => more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if more.is_empty() {
                break;
            }
            let length = more.len();
            self.bytes.extend_from_slice(more);
            self.input.consume(length);
        }
        Ok(&self.bytes[self.start..])
    }

    /// Leaves out the next bytes, of those that [`Self::fill`] has returned.
    pub(super) fn skip(&mut self, length: usize) {
        let length = length.min(self.bytes.len() - self.start);
        self.start += length;
        self.offset += length as u64;
    }
}

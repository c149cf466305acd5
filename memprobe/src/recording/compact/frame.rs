//! Frames: header, checksums, compression.

use std::io::{self, Write};

use zstd::bulk::{Compressor, Decompressor};

use super::{COMPACT_FORMAT, MAX_PAYLOAD};

/// First bytes of a compact recording. The first one is no ASCII, and the line ends show a transfer as text.
pub(in crate::recording) const MAGIC: [u8; 8] = *b"\x89MPRB\r\n\x1a";

/// First bytes of each frame.
pub(super) const SYNC: [u8; 4] = *b"\xf7MPF";

/// Bytes before a frame's payload.
pub(super) const HEADER: usize = 52;

/// Bytes before the first frame: [`MAGIC`], the format's version, and two bytes for later use.
pub(super) const PREAMBLE: usize = 12;

/// Level of zstd: the fastest one that finds the repetition of a training loop.
const LEVEL: i32 = 3;

/// A payload below this length is not compressed, in bytes.
const LEAST_COMPRESSED: usize = 64;

/// Kind of a frame. Readers skip other ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameKind {
    /// JSON of the recording's header.
    Header,
    Records,
    /// JSON of the end of the recording.
    End,
    /// Part of the state of the ledger at the begin of a group.
    Keyframe,
    /// Places of groups and keyframes in the file.
    Index,
    /// Source text.
    Source,
    /// Lowest and highest totals of short spans.
    Curve,
    Other(u8),
}

impl FrameKind {
    const fn number(self) -> u8 {
        match self {
            Self::Header => 1,
            Self::Records => 2,
            Self::End => 3,
            Self::Keyframe => 4,
            Self::Index => 5,
            Self::Source => 6,
            Self::Curve => 7,
            Self::Other(number) => number,
        }
    }

    const fn of(number: u8) -> Self {
        match number {
            1 => Self::Header,
            2 => Self::Records,
            3 => Self::End,
            4 => Self::Keyframe,
            5 => Self::Index,
            6 => Self::Source,
            7 => Self::Curve,
            other => Self::Other(other),
        }
    }
}

/// A frame before compression.
#[derive(Debug)]
pub(in crate::recording) struct PlainFrame {
    pub(super) kind: FrameKind,
    /// Number of the frame's group, modulo 2^16.
    pub(super) group: u16,
    /// Memory events of the recording before this frame.
    pub(super) first_event: u64,
    /// Memory events of this frame.
    pub(super) events: u32,
    /// Earliest and latest time of its records; 0 without any. Of the end, the offset of the index and 0.
    pub(super) times: [u64; 2],
    pub(super) payload: Vec<u8>,
}

/// Header of a frame, as it is in the file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) is_compressed: bool,
    pub(super) group: u16,
    /// Bytes of the payload in the file.
    pub(super) stored: usize,
    /// Bytes of the payload after decompression.
    pub(super) length: usize,
    pub(super) first_event: u64,
    pub(super) events: u32,
    pub(super) payload_checksum: u32,
    pub(super) times: [u64; 2],
}

impl FrameHeader {
    /// Parses a header; `None` if its bytes are not those of a whole one.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        if bytes[..4] != SYNC || crc32fast::hash(&bytes[..48]) != u32_at(48) {
            return None;
        }
        let header = Self {
            kind: FrameKind::of(bytes[4]),
            is_compressed: match bytes[5] {
                0 => false,
                1 => true,
                _ => return None,
            },
            group: u16::from_le_bytes([bytes[6], bytes[7]]),
            stored: u32_at(8) as usize,
            length: u32_at(12) as usize,
            first_event: u64_at(16),
            events: u32_at(24),
            payload_checksum: u32_at(28),
            times: [u64_at(32), u64_at(40)],
        };
        (header.stored <= MAX_PAYLOAD && header.length <= MAX_PAYLOAD).then_some(header)
    }

    fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&SYNC);
        bytes[4] = self.kind.number();
        bytes[5] = u8::from(self.is_compressed);
        bytes[6..8].copy_from_slice(&self.group.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.stored as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_event.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.events.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.payload_checksum.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.times[0].to_le_bytes());
        bytes[40..48].copy_from_slice(&self.times[1].to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..48]);
        bytes[48..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Checks and decompresses a payload. An error describes the fault in a few words.
    pub(super) fn payload(
        &self,
        stored: &[u8],
        decompressor: &mut Decompressor<'static>,
    ) -> Result<Vec<u8>, &'static str> {
        if crc32fast::hash(stored) != self.payload_checksum {
            return Err("its checksum is wrong");
        }
        if !self.is_compressed {
            return match self.length == stored.len() {
                true => Ok(stored.to_vec()),
                false => Err("it has another length"),
            };
        }
        let mut payload = Vec::with_capacity(self.length);
        let read = decompressor.decompress_to_buffer(stored, &mut payload);
        match read {
            Ok(length) if length == self.length => Ok(payload),
            _ => Err("zstd cannot decompress it"),
        }
    }
}

/// Returns the first bytes of a file.
pub(in crate::recording) fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&COMPACT_FORMAT.to_le_bytes());
    bytes
}

/// Compresses frames and writes them.
pub(in crate::recording) struct FrameWriter<W> {
    pub(crate) out: W,
    compressor: Compressor<'static>,
}

impl<W: Write> FrameWriter<W> {
    pub(crate) fn new(out: W) -> io::Result<Self> {
        Ok(Self {
            out,
            compressor: Compressor::new(LEVEL)?,
        })
    }

    /// Writes a frame at once; returns its length in bytes.
    #[cfg(test)]
    pub(crate) fn write(&mut self, frame: &PlainFrame) -> io::Result<usize> {
        let mut buffer = Vec::new();
        self.encode(frame, &mut buffer)?;
        self.out.write_all(&buffer)?;
        Ok(buffer.len())
    }

    /// Appends a frame to a buffer.
    pub(super) fn encode(&mut self, frame: &PlainFrame, buffer: &mut Vec<u8>) -> io::Result<()> {
        let is_compressed = frame.payload.len() >= LEAST_COMPRESSED;
        let begin = buffer.len();
        buffer.resize(begin + HEADER, 0);
        if is_compressed {
            let compressed = self.compressor.compress(&frame.payload)?;
            buffer.extend_from_slice(&compressed);
        } else {
            buffer.extend_from_slice(&frame.payload);
        }
        let stored = &buffer[begin + HEADER..];
        let header = FrameHeader {
            kind: frame.kind,
            is_compressed,
            group: frame.group,
            stored: stored.len(),
            length: frame.payload.len(),
            first_event: frame.first_event,
            events: frame.events,
            payload_checksum: crc32fast::hash(stored),
            times: frame.times,
        };
        buffer[begin..begin + HEADER].copy_from_slice(&header.bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(payload: &[u8]) -> Vec<u8> {
        let frame = PlainFrame {
            kind: FrameKind::Records,
            group: 5,
            first_event: 7,
            events: 3,
            times: [10, 20],
            payload: payload.to_vec(),
        };
        let mut writer = FrameWriter::new(Vec::new()).unwrap();
        writer.write(&frame).unwrap();
        writer.out
    }

    fn read(file: &[u8]) -> Option<(FrameHeader, Result<Vec<u8>, &'static str>)> {
        let (head, stored) = file.split_first_chunk::<HEADER>()?;
        let header = FrameHeader::parse(head)?;
        Some((
            header,
            header.payload(stored, &mut Decompressor::new().unwrap()),
        ))
    }

    #[test]
    fn a_frame_comes_back_compressed_or_not() {
        for payload in [&b"short"[..], &[7; 10_000], b""] {
            let (header, read) = read(&file(payload)).unwrap();
            assert_eq!(read.unwrap(), payload);
            assert_eq!((header.first_event, header.events), (7, 3));
            assert_eq!((header.group, header.times), (5, [10, 20]));
        }
        assert!(file(&[7; 10_000]).len() < 200);
    }

    #[test]
    fn any_changed_bit_is_noticed() {
        for payload in [&b"short"[..], &[7; 1000]] {
            let whole = file(payload);
            for place in 0..whole.len() {
                for bit in 0..8 {
                    let mut file = whole.clone();
                    file[place] ^= 1 << bit;
                    assert!(
                        read(&file).is_none_or(|(_, payload)| payload.is_err()),
                        "bit {bit} of byte {place}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_payload_cannot_be_longer_than_it_says() {
        let whole = file(&[0; 100_000]);
        let (head, stored) = whole.split_first_chunk::<HEADER>().unwrap();
        for length in [0, 1, 99_999, 100_001] {
            let header = FrameHeader {
                length,
                ..FrameHeader::parse(head).unwrap()
            };
            let mut decompressor = Decompressor::new().unwrap();
            assert!(
                header.payload(stored, &mut decompressor).is_err(),
                "{length}"
            );
        }
    }
}

//! Places in a compact recording from which it can be read without what came before.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use zstd::bulk::Decompressor;

use super::decode::KeyframeDecoder;
use super::frame::{FrameHeader, FrameKind, HEADER, MAGIC, PREAMBLE, SYNC};
use super::index::{FrameIndex, FramePlace};
use super::reader::CompactReader;
use crate::event::TimeNs;
use crate::ledger::keyframe::LedgerKeyframe;
use crate::recording::Header;

/// Bytes at the end of a file in which the last frame is searched: it is a few hundred bytes long.
const TAIL: u64 = 4096;

/// Read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Keyframes of a file, from its index or from the headers of its frames.
pub(in crate::recording) struct CompactIndex {
    file: File,
    /// Places of the keyframes.
    keyframes: Vec<FramePlace>,
}

impl CompactIndex {
    /// Reads the index; `None` if the file is no compact recording, or no file with places. Without a whole index, as
    /// in a file that was cut off, it reads the headers of all frames.
    pub(in crate::recording) fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut preamble = [0; PREAMBLE];
        match file.read_exact(&mut preamble) {
            Ok(()) if preamble[..MAGIC.len()] == MAGIC => {}
            Ok(()) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let index = match index_at_end(&mut file)? {
            Some(index) => index,
            None => scanned(&mut file)?,
        };
        let places = index.places.into_iter();
        Ok(Some(Self {
            file,
            keyframes: places.filter(|place| place.is_keyframe).collect(),
        }))
    }

    /// Returns the number of events before each keyframe, and the time of the last of them.
    pub(in crate::recording) fn keyframes(&self) -> impl Iterator<Item = (u64, TimeNs)> {
        let keyframes = self.keyframes.iter();
        keyframes.map(|place| (place.first_event, TimeNs(place.time)))
    }

    /// Reads the keyframe at a place, and the recording from there on; `None` if it is damaged.
    pub(in crate::recording) fn read_from(
        &self,
        keyframe: usize,
        header: &Header,
    ) -> io::Result<Option<(LedgerKeyframe, CompactReader<BufReader<File>>)>> {
        let Some(place) = self.keyframes.get(keyframe) else {
            return Ok(None);
        };
        let mut file = self.file.try_clone()?;
        let mut offset = place.offset;
        let mut decoder = KeyframeDecoder::default();
        let mut group = None;
        loop {
            let Some((frame, payload)) = frame_at(&mut file, offset)? else {
                return Ok(None);
            };
            let is_part =
                frame.kind == FrameKind::Keyframe && group.is_none_or(|of| of == frame.group);
            if !is_part || frame.first_event != place.first_event {
                break;
            }
            group = Some(frame.group);
            if decoder.frame(&payload).is_err() {
                return Ok(None);
            }
            offset += (HEADER + frame.stored) as u64;
        }
        let Some(state) = decoder
            .finish()
            .filter(|state| state.events == place.first_event)
        else {
            return Ok(None);
        };
        file.seek(SeekFrom::Start(offset))?;
        let input = BufReader::with_capacity(BUFFER, file);
        let reader = CompactReader::of_rest(input, header, offset, &state)?;
        Ok(Some((state, reader)))
    }
}

/// Returns the whole frame at an offset.
fn frame_at(file: &mut File, offset: u64) -> io::Result<Option<(FrameHeader, Vec<u8>)>> {
    let Some(header) = header_at(file, offset)? else {
        return Ok(None);
    };
    let mut stored = vec![0; header.stored];
    match file.read_exact(&mut stored) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let payload = header.payload(&stored, &mut Decompressor::new()?);
    Ok(payload.ok().map(|payload| (header, payload)))
}

fn header_at(file: &mut File, offset: u64) -> io::Result<Option<FrameHeader>> {
    let mut head = [0; HEADER];
    file.seek(SeekFrom::Start(offset))?;
    match file.read_exact(&mut head) {
        Ok(()) => Ok(FrameHeader::parse(&head)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the index that the end of a file points to.
fn index_at_end(file: &mut File) -> io::Result<Option<FrameIndex>> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let end = memchr::memmem::rfind_iter(&tail, &SYNC)
        .filter_map(|at| FrameHeader::parse(tail.get(at..)?.first_chunk()?))
        .find(|header| header.kind == FrameKind::End);
    let Some(offset) = end.map(|end| end.times[0]).filter(|offset| *offset > 0) else {
        return Ok(None);
    };
    let frame = frame_at(file, offset)?.filter(|(header, _)| header.kind == FrameKind::Index);
    Ok(frame.and_then(|(_, payload)| FrameIndex::decode(&payload).ok()))
}

/// Returns the keyframes up to the end of a file, or to the first damage.
fn scanned(file: &mut File) -> io::Result<FrameIndex> {
    let mut index = FrameIndex::default();
    let mut offset = PREAMBLE as u64;
    let mut keyframe_group = None;
    while let Some(header) = header_at(file, offset)? {
        let is_keyframe = header.kind == FrameKind::Keyframe;
        if is_keyframe && keyframe_group != Some(header.group) {
            index.push(FramePlace {
                offset,
                first_event: header.first_event,
                time: header.times[1],
                is_keyframe,
            });
        }
        keyframe_group = is_keyframe.then_some(header.group);
        offset += (HEADER + header.stored) as u64;
    }
    Ok(index)
}

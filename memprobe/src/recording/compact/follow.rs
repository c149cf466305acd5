//! Keyframes and index of a recording that is being written.
//!
//! The thread that writes decodes its own frames, and follows the live blocks with a ledger of its own. The thread that
//! drains the ring buffer therefore never waits for a keyframe, and a keyframe holds what a reader would have.

use std::collections::VecDeque;
use std::io::{self, Write};

use super::GroupPolicy;
use super::decode::CompactDecoder;
use super::encode::encode_keyframe;
use super::frame::{FrameKind, FrameWriter, PREAMBLE, PlainFrame};
use super::index::{FrameIndex, FramePlace};
use crate::event::{Event, Target, TimeNs};
use crate::ledger::Ledger;

/// Writes the frames of a recording, with a keyframe at the begin of some groups, and the index before the end.
pub(in crate::recording) struct KeyframeWriter<W> {
    pub(in crate::recording) frames: FrameWriter<W>,
    policy: GroupPolicy,
    /// Bytes of the file.
    offset: u64,
    index: FrameIndex,
    group: Option<u16>,
    decoder: CompactDecoder,
    events: VecDeque<Event>,
    /// `None` after a frame that could not be followed: no keyframe is written then.
    ledger: Option<Ledger>,
    /// Bytes of frames since the last keyframe, and the bytes of that one.
    since_keyframe: u64,
    last_keyframe: u64,
}

impl<W: Write> KeyframeWriter<W> {
    /// Begins behind the preamble of a file.
    pub(in crate::recording) fn new(
        out: W,
        started: TimeNs,
        policy: GroupPolicy,
    ) -> io::Result<Self> {
        Ok(Self {
            frames: FrameWriter::new(out)?,
            policy,
            offset: PREAMBLE as u64,
            index: FrameIndex::default(),
            group: None,
            decoder: CompactDecoder::default(),
            events: VecDeque::new(),
            ledger: Some(Ledger::new(Target::default(), started)),
            since_keyframe: 0,
            last_keyframe: 0,
        })
    }

    /// Writes a frame, and what belongs before it; returns their length in bytes.
    pub(in crate::recording) fn write(&mut self, frame: &PlainFrame) -> io::Result<usize> {
        let before = self.offset;
        if frame.kind == FrameKind::End {
            self.write_end(frame)?;
        } else {
            if self.group != Some(frame.group) {
                self.begin_group(frame)?;
            }
            self.since_keyframe += self.write_frame(frame)?;
            if frame.kind == FrameKind::Records {
                self.follow(&frame.payload);
            }
        }
        Ok((self.offset - before) as usize)
    }

    fn write_frame(&mut self, frame: &PlainFrame) -> io::Result<u64> {
        let written = self.frames.write(frame)? as u64;
        self.offset += written;
        Ok(written)
    }

    /// Writes a keyframe if it is due, and notes the place of the group.
    fn begin_group(&mut self, frame: &PlainFrame) -> io::Result<()> {
        let is_first = self.group.replace(frame.group).is_none();
        let due = self
            .last_keyframe
            .saturating_mul(self.policy.bytes_per_keyframe_byte);
        if !is_first && self.since_keyframe >= due {
            self.write_keyframe(frame)?;
        }
        self.decoder.begin_group();
        self.index.push(FramePlace {
            offset: self.offset,
            first_event: frame.first_event,
            time: self.time(),
            is_keyframe: false,
        });
        Ok(())
    }

    fn time(&self) -> u64 {
        let last = self.ledger.as_ref().and_then(Ledger::last_event);
        last.unwrap_or_default().0
    }

    fn write_keyframe(&mut self, next: &PlainFrame) -> io::Result<()> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let mut parts = Vec::new();
        let state = ledger.keyframe();
        encode_keyframe(&state, next.group, next.first_event, &mut |part| {
            parts.push(part);
        });
        self.index.push(FramePlace {
            offset: self.offset,
            first_event: next.first_event,
            time: self.time(),
            is_keyframe: true,
        });
        self.last_keyframe = 0;
        for part in &parts {
            self.last_keyframe += self.write_frame(part)?;
        }
        self.since_keyframe = 0;
        Ok(())
    }

    fn write_end(&mut self, end: &PlainFrame) -> io::Result<()> {
        let offset = self.offset;
        let index = self.index.frame(end.group, end.first_event);
        self.write_frame(&index)?;
        let end = PlainFrame {
            kind: end.kind,
            group: end.group,
            first_event: end.first_event,
            events: end.events,
            times: [offset, 0],
            payload: end.payload.clone(),
        };
        self.write_frame(&end).map(drop)
    }

    fn follow(&mut self, payload: &[u8]) {
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        if self.decoder.frame(payload, &mut self.events).is_err() {
            self.ledger = None;
            return;
        }
        for event in self.events.drain(..) {
            ledger.apply(&event);
        }
    }
}

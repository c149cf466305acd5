//! Packets of a trace, all on one sequence, and the data that they refer to by number.

use std::io::{self, Write};

use hashbrown::HashMap;
use prost::Message as _;

use super::messages::{
    Callstack, CodeMapping, EventName, InternedData, InternedFrame, InternedString, NEEDS_STATE,
    TracePacket, TracePacketDefaults,
};
use crate::event::DeviceIndex;
use crate::export::profile::{ProfileFrame, ProfileOrigin};

/// The only sequence of the trace.
const SEQUENCE: u32 = 1;

/// Field and wire type of a packet in the trace (`Trace.packet` of `trace.proto`).
const PACKET: u8 = 1 << 3 | 2;

/// The only mapping. Perfetto before 2026 drops frames without one.
const CODE: u64 = 1;

/// Writes packets. Data are interned with the first packet that needs them.
pub(super) struct PacketWriter<W> {
    out: W,
    buffer: Vec<u8>,
    /// Data that the next packet has to define.
    pending: InternedData,
    names: HashMap<String, u64>,
    functions: HashMap<String, u64>,
    files: HashMap<String, u64>,
    frames: HashMap<(u64, u64, u32), u64>,
    origins: HashMap<(DeviceIndex, ProfileOrigin), u64>,
    stacks: HashMap<Vec<u64>, u64>,
}

impl<W: Write> PacketWriter<W> {
    pub(super) fn new(out: W) -> Self {
        let path = InternedString {
            iid: Some(CODE),
            str: Some("python".to_owned()),
        };
        let mapping = CodeMapping {
            iid: Some(CODE),
            path_string_ids: vec![CODE],
        };
        Self {
            out,
            buffer: Vec::new(),
            pending: InternedData {
                mapping_paths: vec![path],
                mappings: vec![mapping],
                ..InternedData::default()
            },
            names: HashMap::new(),
            functions: HashMap::new(),
            files: HashMap::new(),
            frames: HashMap::new(),
            origins: HashMap::new(),
            stacks: HashMap::new(),
        }
    }

    /// Begins the sequence, whose timestamps are of `clock`.
    pub(super) fn begin(&mut self, clock: u32) -> io::Result<()> {
        self.write(TracePacket {
            sequence_flags: Some(super::messages::STATE_CLEARED),
            first_packet_on_sequence: Some(true),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(clock),
            }),
            ..TracePacket::default()
        })
    }

    /// Writes a packet, and with it the definitions that it needs.
    pub(super) fn push(&mut self, packet: TracePacket) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let has_definitions = pending != InternedData::default();
        self.write(TracePacket {
            sequence_flags: Some(NEEDS_STATE),
            interned_data: has_definitions.then_some(pending),
            ..packet
        })
    }

    fn write(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            ..packet
        };
        self.buffer.clear();
        self.buffer.push(PACKET);
        packet
            .encode_length_delimited(&mut self.buffer)
            .map_err(io::Error::other)?;
        self.out.write_all(&self.buffer)
    }

    /// Number of the name of an event.
    pub(super) fn name(&mut self, name: &str) -> u64 {
        let names = &mut self.pending.event_names;
        number(&mut self.names, name, |iid| {
            names.push(EventName {
                iid: Some(iid),
                name: Some(name.to_owned()),
            });
        })
    }

    /// Number of a stack, whose frames `frames` returns innermost first. Stacks of equal frames have one number. The
    /// outermost frame is the device: Perfetto compares the totals of a stack with the last ones of any heap.
    pub(super) fn stack<'a>(
        &mut self,
        device: DeviceIndex,
        origin: ProfileOrigin,
        frames: impl FnOnce() -> Vec<ProfileFrame<'a>>,
    ) -> u64 {
        if let Some(known) = self.origins.get(&(device, origin)) {
            return *known;
        }
        let mut frame_ids = vec![self.frame(&ProfileFrame {
            name: device.to_string(),
            frame: None,
        })];
        let frames = frames();
        frame_ids.extend(frames.iter().rev().map(|frame| self.frame(frame)));
        let next = self.stacks.len() as u64 + 1;
        let stacks = &mut self.pending.callstacks;
        let iid = *self
            .stacks
            .entry(frame_ids)
            .or_insert_with_key(|frame_ids| {
                stacks.push(Callstack {
                    iid: Some(next),
                    frame_ids: frame_ids.clone(),
                });
                next
            });
        self.origins.insert((device, origin), iid);
        iid
    }

    fn frame(&mut self, frame: &ProfileFrame<'_>) -> u64 {
        let function = text(
            &mut self.functions,
            &mut self.pending.function_names,
            &frame.name,
        );
        let source = frame.frame.filter(|frame| !frame.file.is_empty());
        let file =
            source.map(|frame| text(&mut self.files, &mut self.pending.source_paths, &frame.file));
        let line = source.map(|frame| frame.line).filter(|line| *line > 0);
        let key = (function, file.unwrap_or(0), line.unwrap_or(0));
        let next = self.frames.len() as u64 + 1;
        let frames = &mut self.pending.frames;
        *self.frames.entry(key).or_insert_with(|| {
            frames.push(InternedFrame {
                iid: Some(next),
                function_name_id: Some(function),
                mapping_id: Some(CODE),
                rel_pc: Some(next),
                source_path_iid: file,
                line_number: line,
            });
            next
        })
    }
}

fn text(known: &mut HashMap<String, u64>, pending: &mut Vec<InternedString>, text: &str) -> u64 {
    number(known, text, |iid| {
        pending.push(InternedString {
            iid: Some(iid),
            str: Some(text.to_owned()),
        });
    })
}

/// Number of a text, from 1; `define` is called with a new one.
fn number(known: &mut HashMap<String, u64>, text: &str, define: impl FnOnce(u64)) -> u64 {
    if let Some(number) = known.get(text) {
        return *number;
    }
    let next = known.len() as u64 + 1;
    known.insert(text.to_owned(), next);
    define(next);
    next
}

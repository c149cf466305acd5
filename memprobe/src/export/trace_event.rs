//! A recording as Chrome trace events: what ui.perfetto.dev and chrome://tracing open and what
//! [`crate::recording`] reads back.
//!
//! The JSON *array* form is used because both viewers accept it when its end is missing
//! (Perfetto: `json_trace_tokenizer.cc`; Chrome: "Trace Event Format", JSON Array Format), so
//! that what was written before a crash or a full disk still opens. A block is an async slice
//! from its allocation to its free, paired by category, id and name: Perfetto's
//! `json_trace_parser_impl.cc` gives every name its own track, so the end repeats the name and
//! all blocks of one line of Python lie together.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use hashbrown::HashMap;

use super::json;
use super::stack_text::{Definition, StackTexts};
use crate::event::{
    Action, Event, Losses, MemoryEvent, Stack, StackId, StackKind, Tid, TimeNs, Totals,
};
use crate::model::snapshot::Grouping;
use crate::recording::{End, EndReason, EndRecord, Header, HeaderRecord, MAX_LINE};

/// Bytes that are gathered before they are written out.
const BUFFER: usize = 64 << 10;

/// Live blocks that are drawn as slices (16 bytes each); what comes on top is drawn as an instant.
const MAX_OPEN: usize = 1 << 22;

/// Characters of a command line or thread name that are written.
const MAX_TEXT: usize = 32 << 10;

/// Writes a recording as a stream: memory is bounded, and at every moment the file holds whole
/// records up to the last [`TraceWriter::flush`].
pub struct TraceWriter<W: Write> {
    out: W,
    place: String,
    failed: Option<WriteError>,
    lines: Vec<u8>,
    bytes: u64,
    pid: u32,
    start: TimeNs,
    last: TimeNs,
    events: u64,
    losses: Losses,
    stacks: StackTexts,
    blocks: OpenSlices,
    segments: OpenSlices,
    counters: HashMap<u8, Totals>,
}

/// A recording could not be written.
#[derive(Clone, Debug)]
pub struct WriteError {
    place: String,
    source: Arc<io::Error>,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}", self.place, self.source)?;
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => f.write_str(
                "; what was recorded so far can be read: free some space or record to another disk",
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

impl WriteError {
    /// What the operating system said.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl<W: Write> TraceWriter<W> {
    /// Begins a recording on `out`; `place` names it in errors, `grouping` says which frame names an
    /// allocation on the timeline.
    pub fn new(
        out: W,
        place: impl Into<String>,
        header: &Header,
        grouping: Grouping,
    ) -> Result<Self, WriteError> {
        let mut writer = Self {
            out,
            place: place.into(),
            failed: None,
            lines: b"[\n".to_vec(),
            bytes: 0,
            pid: header.target.tgid.map_or(0, |tgid| tgid.0),
            start: header.start,
            last: header.start,
            events: 0,
            losses: Losses::default(),
            stacks: StackTexts::new(grouping),
            blocks: OpenSlices::new(MAX_OPEN),
            segments: OpenSlices::new(MAX_OPEN),
            counters: HashMap::new(),
        };
        writer.describe(header)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Says again what is known of the target, where more is known than at the start (such as its
    /// version of torch). The start of the recording stays.
    pub fn describe(&mut self, header: &Header) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        let mut record = HeaderRecord::from(header);
        record.start_ns = self.start.0;
        record.command = clip(&record.command).to_owned();
        self.metadata("memprobe", self.pid, |line| push_record(line, &record));
        let name = if record.command.is_empty() {
            "unknown command"
        } else {
            &record.command
        };
        self.metadata("process_name", self.pid, |line| push_name(line, name));
        self.drain_when_full()
    }

    /// Writes one step of the stream. After an error nothing is written any more.
    pub fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        match event {
            Event::Stack(id, stack) => self.stack(*id, stack),
            Event::Thread(Tid(tid), name) => {
                self.metadata("thread_name", *tid, |line| push_name(line, clip(name)));
            }
            Event::Memory(event) => self.memory(event),
            Event::Loss(losses) => self.loss(*losses),
        }
        self.drain_when_full()
    }

    /// Hands everything to the operating system. Call it about once a second.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.drain()?;
        self.io(|out, _| out.flush())
    }

    /// Writes the end and gives back what was written to. An error that was returned before is
    /// returned again.
    pub fn finish(mut self, reason: EndReason) -> Result<W, WriteError> {
        let end = EndRecord::from(&End {
            reason,
            events: self.events,
            losses: self.losses,
        });
        self.metadata("memprobe_end", self.pid, |line| push_record(line, &end));
        // JSON allows no comma after the last record.
        self.lines.truncate(self.lines.len() - b",\n".len());
        self.lines.extend_from_slice(b"\n]\n");
        self.flush()?;
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.out),
        }
    }

    /// What is written to.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// Memory events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Bytes so far, those not yet flushed included.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.lines.len() as u64
    }

    /// The error that ended the recording, if one did.
    pub fn failure(&self) -> Option<&WriteError> {
        self.failed.as_ref()
    }

    fn drain_when_full(&mut self) -> Result<(), WriteError> {
        if self.lines.len() < BUFFER {
            Ok(())
        } else {
            self.drain()
        }
    }

    fn drain(&mut self) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        self.io(|out, lines| out.write_all(lines))?;
        self.bytes += self.lines.len() as u64;
        self.lines.clear();
        Ok(())
    }

    fn io(&mut self, act: impl FnOnce(&mut W, &[u8]) -> io::Result<()>) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        act(&mut self.out, &self.lines).map_err(|source| {
            let error = WriteError {
                place: self.place.clone(),
                source: Arc::new(source),
            };
            self.failed = Some(error.clone());
            error
        })
    }

    fn metadata(&mut self, name: &str, tid: u32, args: impl FnOnce(&mut Vec<u8>)) {
        let line = &mut self.lines;
        line.extend_from_slice(b"{\"ph\":\"M\",\"name\":");
        json::push_string(line, name);
        push_process(line, self.pid, tid);
        line.extend_from_slice(b",\"args\":");
        args(line);
        line.extend_from_slice(b"},\n");
    }

    fn stack(&mut self, id: StackId, stack: &Arc<Stack>) {
        self.metadata("memprobe_stack", self.pid, |line| {
            push_stack(line, id, stack)
        });
        self.stacks.define(id, stack);
    }

    fn loss(&mut self, losses: Losses) {
        self.losses = losses;
        let line = &mut self.lines;
        line.extend_from_slice(
            b"{\"ph\":\"i\",\"s\":\"g\",\"cat\":\"loss\",\"name\":\"memprobe lost events\"",
        );
        push_process(line, self.pid, self.pid);
        push_ts(line, self.start, self.last);
        line.extend_from_slice(b",\"args\":{\"events\":");
        json::push_number(line, losses.events);
        line.extend_from_slice(b",\"stacks\":");
        json::push_number(line, losses.stacks);
        line.extend_from_slice(b",\"malformed\":");
        json::push_number(line, losses.malformed);
        line.extend_from_slice(b"}},\n");
    }

    fn memory(&mut self, event: &MemoryEvent) {
        self.events += 1;
        self.last = event.time;
        match event.action {
            Action::Alloc => self.begin(event, &BLOCK),
            Action::Free => self.end(event, &BLOCK),
            Action::SegmentAlloc => self.begin(event, &SEGMENT),
            Action::SegmentFree => self.end(event, &SEGMENT),
            Action::OutOfMemory => {
                self.open_line(event, b"i\",\"s\":\"g\",\"cat\":\"oom", |line, _| {
                    line.extend_from_slice(b"out of memory");
                });
                self.close_line(event);
            }
        }
        if let (Some(totals), Some(device)) = (event.totals, event.device) {
            self.counters(event, device.0, totals);
        }
    }

    fn begin(&mut self, event: &MemoryEvent, kind: &SliceKind) {
        let addr = event.addr.0;
        if let Some(before) = self.open(kind).close(addr) {
            // The free of the block that was here before got lost.
            self.end_line(event, kind, before);
            self.lines
                .extend_from_slice(b",\"args\":{\"unseen_free\":true}},\n");
        }
        let stack = self.stacks.current(event.stack);
        let phase = match self.open(kind).open(addr, stack) {
            Opened::Slice => kind.begin,
            Opened::TooMany => kind.unpaired_begin,
        };
        self.open_line(event, phase, |line, stacks| {
            kind.push_name(line, stacks, stack)
        });
        if phase == kind.begin {
            push_id(&mut self.lines, addr);
        }
        self.close_line(event);
    }

    fn end(&mut self, event: &MemoryEvent, kind: &SliceKind) {
        match self.open(kind).close(event.addr.0) {
            Some(stack) => {
                self.end_line(event, kind, stack);
                self.lines.extend_from_slice(b",\"args\":{\"free\":");
                push_args(&mut self.lines, event);
                self.lines.extend_from_slice(b"}}},\n");
            }
            None => {
                self.open_line(event, kind.unpaired_end, |line, _| {
                    line.extend_from_slice(kind.unpaired_name.as_bytes());
                });
                self.close_line(event);
            }
        }
    }

    fn open(&mut self, kind: &SliceKind) -> &mut OpenSlices {
        match kind.of {
            Slices::Blocks => &mut self.blocks,
            Slices::Segments => &mut self.segments,
        }
    }

    /// The end of the slice that began with `stack`, up to its `args`.
    fn end_line(&mut self, event: &MemoryEvent, kind: &SliceKind, stack: Definition) {
        self.open_line(event, kind.end, |line, stacks| {
            kind.push_name(line, stacks, stack)
        });
        push_id(&mut self.lines, event.addr.0);
    }

    /// A line up to its `ts`. `phase` goes on into the fields that are the same for all of a kind.
    fn open_line(
        &mut self,
        event: &MemoryEvent,
        phase: &[u8],
        name: impl FnOnce(&mut Vec<u8>, &mut StackTexts),
    ) {
        let line = &mut self.lines;
        line.extend_from_slice(b"{\"ph\":\"");
        line.extend_from_slice(phase);
        line.extend_from_slice(b"\",\"name\":\"");
        name(line, &mut self.stacks);
        line.push(b'"');
        push_process(line, event.tgid.0, event.tid.0);
        push_ts(line, self.start, event.time);
    }

    /// The `args` of an event and the end of its line.
    fn close_line(&mut self, event: &MemoryEvent) {
        let line = &mut self.lines;
        line.extend_from_slice(b",\"args\":");
        push_args(line, event);
        if event.stack != StackId::NONE {
            line.extend_from_slice(b",\"stack_id\":");
            json::push_number(line, event.stack.0);
            if let Some(text) = self.stacks.text(self.stacks.current(event.stack)) {
                line.extend_from_slice(b",\"stack\":\"");
                line.extend_from_slice(&text.frames);
                line.push(b'"');
            }
        }
        line.extend_from_slice(b"}},\n");
    }

    /// A counter for each total: in chrome://tracing two series of one counter would be stacked
    /// and show a sum that means nothing.
    fn counters(&mut self, event: &MemoryEvent, device: u8, totals: Totals) {
        let before = self.counters.insert(device, totals);
        let series = |totals: Totals| {
            [
                (" allocated", totals.allocated.0),
                (" reserved", totals.reserved.0),
            ]
        };
        let before = before.map(series);
        for (index, (name, bytes)) in series(totals).into_iter().enumerate() {
            if before.is_some_and(|before| before[index].1 == bytes) {
                continue;
            }
            let line = &mut self.lines;
            line.extend_from_slice(b"{\"ph\":\"C\",\"name\":\"cuda:");
            json::push_number(line, device);
            line.extend_from_slice(name.as_bytes());
            line.push(b'"');
            push_process(line, event.tgid.0, event.tgid.0);
            push_ts(line, self.start, event.time);
            line.extend_from_slice(b",\"args\":{\"bytes\":");
            json::push_number(line, bytes);
            line.extend_from_slice(b"}},\n");
        }
    }
}

/// What differs between the slices of blocks and those of segments.
struct SliceKind {
    of: Slices,
    begin: &'static [u8],
    end: &'static [u8],
    unpaired_begin: &'static [u8],
    unpaired_end: &'static [u8],
    unpaired_name: &'static str,
}

#[derive(Clone, Copy)]
enum Slices {
    Blocks,
    Segments,
}

const BLOCK: SliceKind = SliceKind {
    of: Slices::Blocks,
    begin: b"b\",\"cat\":\"alloc",
    end: b"e\",\"cat\":\"alloc",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"alloc",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"free",
    unpaired_name: "free of a block allocated unseen",
};

const SEGMENT: SliceKind = SliceKind {
    of: Slices::Segments,
    begin: b"b\",\"cat\":\"segment",
    end: b"e\",\"cat\":\"segment",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"segment",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"segment_free",
    unpaired_name: "free of a segment allocated unseen",
};

impl SliceKind {
    fn push_name(&self, line: &mut Vec<u8>, stacks: &mut StackTexts, stack: Definition) {
        match self.of {
            Slices::Segments => line.extend_from_slice(b"segment (cudaMalloc)"),
            Slices::Blocks => match stacks.text(stack) {
                Some(text) => line.extend_from_slice(&text.name),
                None => line.extend_from_slice(b"(unknown stack)"),
            },
        }
    }
}

/// Blocks or segments that are live, with the stack that names their slice. Addresses of all
/// devices of a process lie in one space (CUDA's unified virtual addressing).
struct OpenSlices {
    live: HashMap<u64, Definition>,
    most: usize,
}

enum Opened {
    Slice,
    TooMany,
}

impl OpenSlices {
    fn new(most: usize) -> Self {
        Self {
            live: HashMap::new(),
            most,
        }
    }

    fn open(&mut self, addr: u64, stack: Definition) -> Opened {
        if self.live.len() >= self.most {
            return Opened::TooMany;
        }
        self.live.insert(addr, stack);
        Opened::Slice
    }

    fn close(&mut self, addr: u64) -> Option<Definition> {
        self.live.remove(&addr)
    }
}

fn push_process(line: &mut Vec<u8>, pid: u32, tid: u32) {
    line.extend_from_slice(b",\"pid\":");
    json::push_number(line, pid);
    line.extend_from_slice(b",\"tid\":");
    json::push_number(line, tid);
}

fn push_ts(line: &mut Vec<u8>, start: TimeNs, time: TimeNs) {
    line.extend_from_slice(b",\"ts\":");
    json::push_micros(line, start.0, time.0);
}

fn push_id(line: &mut Vec<u8>, addr: u64) {
    line.extend_from_slice(b",\"id2\":{\"local\":\"");
    json::push_hex(line, addr);
    line.extend_from_slice(b"\"}");
}

/// The numbers of an event, as an object that is left open for more.
fn push_args(line: &mut Vec<u8>, event: &MemoryEvent) {
    line.extend_from_slice(b"{\"addr\":\"");
    json::push_hex(line, event.addr.0);
    line.extend_from_slice(b"\",\"size\":");
    json::push_number(line, event.size.0);
    line.extend_from_slice(b",\"device\":");
    match event.device {
        Some(device) => json::push_number(line, device.0),
        None => line.extend_from_slice(b"null"),
    }
    if let Some(totals) = event.totals {
        line.extend_from_slice(b",\"allocated\":");
        json::push_number(line, totals.allocated.0);
        line.extend_from_slice(b",\"reserved\":");
        json::push_number(line, totals.reserved.0);
    }
}

fn push_name(line: &mut Vec<u8>, name: &str) {
    line.extend_from_slice(b"{\"name\":");
    json::push_string(line, name);
    line.push(b'}');
}

/// Records of our own are plain data, which serde_json never refuses.
fn push_record(line: &mut Vec<u8>, record: &impl serde::Serialize) {
    let begin = line.len();
    if serde_json::to_writer(&mut *line, record).is_err() {
        line.truncate(begin);
        line.extend_from_slice(b"null");
    }
}

/// A stack's own record. Outer frames for which a line has no room are left out, and that is said.
fn push_stack(line: &mut Vec<u8>, id: StackId, stack: &Stack) {
    let begin = line.len();
    line.extend_from_slice(b"{\"id\":");
    json::push_number(line, id.0);
    let (kind, thread, reason) = match &stack.kind {
        StackKind::Python => ("python", None, None),
        StackKind::Waiting { thread } => ("waiting", Some(thread), None),
        StackKind::Unknown { thread, reason } => ("unknown", Some(thread), Some(reason)),
    };
    line.extend_from_slice(b",\"kind\":");
    json::push_string(line, kind);
    if let Some(thread) = thread {
        line.extend_from_slice(b",\"thread\":");
        json::push_string(line, clip(thread));
    }
    if let Some(reason) = reason {
        line.extend_from_slice(b",\"reason\":");
        json::push_string(line, reason.as_str());
    }
    line.extend_from_slice(b",\"frames\":[");
    let mut truncated = stack.truncated;
    for (depth, frame) in stack.frames.iter().enumerate() {
        let end = line.len();
        if depth > 0 {
            line.push(b',');
        }
        line.extend_from_slice(b"{\"file\":");
        json::push_string(line, &frame.file);
        line.extend_from_slice(b",\"line\":");
        json::push_number(line, frame.line);
        line.extend_from_slice(b",\"function\":");
        json::push_string(line, &frame.function);
        line.push(b'}');
        if line.len() - begin > MAX_LINE - 1024 {
            line.truncate(end);
            truncated = true;
            break;
        }
    }
    line.extend_from_slice(b"],\"truncated\":");
    line.extend_from_slice(if truncated { b"true" } else { b"false" });
    line.push(b'}');
}

fn clip(text: &str) -> &str {
    text.char_indices()
        .nth(MAX_TEXT)
        .map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests;

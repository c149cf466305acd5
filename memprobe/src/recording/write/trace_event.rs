//! Recording as Chrome trace events, for ui.perfetto.dev, chrome://tracing and [`crate::recording`].
//!
//! The format is the JSON *array* form: both viewers accept it without its end ("Trace Event Format", JSON
//! Array Format; Perfetto later than v47, google/perfetto#926). A file cut off by a crash or a full disk
//! therefore still opens: chrome://tracing needs whole lines, Perfetto does not.
//!
//! A block is an async slice from its allocation to its free. Perfetto pairs begin and end by process,
//! category, id and name (`json_trace_parser_impl.cc`, `track_compressor.cc`). The end therefore repeats the
//! name, and all blocks of one Python line share a track.

use std::io::{self, Write};
use std::sync::Arc;

use hashbrown::HashMap;

use super::error::WriteError;
use super::fields::{
    clip, push_args, push_id, push_mark, push_name, push_process, push_purpose, push_record,
    push_shape, push_stack, push_ts,
};
use super::json;
use super::slices::{BLOCK, CPU, CUDA, END, INSTANT, NameSource, OpenSlices, SEGMENT, SliceKind};
use super::stack_text::StackTexts;
use crate::attribution::tables::{DeviceCategories, Portion, Portions};
use crate::event::{
    Action, AtAttach, BlockLabels, BlockPurpose, BlockPurposes, CaptureChange, DeviceIndex,
    DriverReading, Event, Losses, MemoryEvent, PhaseMark, PurposeId, SegmentReading, Stack,
    StackId, Tid, TimeNs, Totals,
};
use crate::ledger::snapshot::Grouping;
use crate::recording::{
    AtAttachRecord, CaptureRecord, DriverRecord, End, EndReason, EndRecord, FORMAT, Header,
    HeaderRecord, LabelScope, NamedRecord, NamesRecord, SegmentRecord, SegmentsRecord,
};
use crate::view;

/// Bytes gathered before a write.
const BUFFER: usize = 64 << 10;

/// Writes a recording in bounded memory. The file holds whole records up to the last [`TraceWriter::flush`].
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
    uses: BlockPurposes,
    /// By [`SliceKind::of`].
    open: [OpenSlices; 4],
    counters: HashMap<DeviceIndex, Totals>,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a recording on `out`. `place` names it in errors; `grouping` selects the frame that names a slice.
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
            uses: BlockPurposes::default(),
            open: Default::default(),
            counters: HashMap::new(),
        };
        writer.describe(header)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Writes the header again when more is known of the target, such as its version of torch. The start time stays.
    pub fn describe(&mut self, header: &Header) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        let mut header = header.clone();
        header.start = self.start;
        let command = &mut header.target.command;
        command.truncate(clip(command).len());
        let record = HeaderRecord {
            format: FORMAT,
            header: &header,
        };
        self.metadata("memprobe", self.pid, |line| push_record(line, &record));
        let name = match header.target.command.as_str() {
            "" => "unknown command",
            command => command,
        };
        self.metadata("process_name", self.pid, |line| push_name(line, name));
        self.drain_when_full()
    }

    pub fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        match event {
            Event::Stack(id, stack) => self.stack(*id, stack),
            // Each event repeats its purpose: viewers do not resolve numbers.
            Event::BlockPurpose(id, is) => self.uses.define(*id, is),
            Event::Thread(Tid(tid), name) => {
                self.metadata("thread_name", *tid, |line| push_name(line, clip(name)));
            }
            Event::AtAttach(found) => self.at_attach(found),
            Event::Memory(event) => self.memory(event),
            Event::PhaseMark(mark) => self.mark(mark),
            Event::BlockLabels(names) => self.names(names, LabelScope::AllBlocks),
            Event::BaselineLabels(names) => self.names(names, LabelScope::Baseline),
            Event::Segments(reading) => self.segments(reading),
            Event::Driver(reading) => self.driver(reading),
            Event::Loss(losses) => self.loss(*losses),
            Event::Capture(change) => self.capture(change),
        }
        self.drain_when_full()
    }

    /// Flushes everything to the operating system. To be called about once a second.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.drain()?;
        self.io(|out, _| out.flush())
    }

    /// Writes memory by category over time as a counter with one series a category, which chrome://tracing
    /// stacks. Called at the end: later events decide the category of earlier blocks.
    pub fn categories(&mut self, devices: &[DeviceCategories]) -> Result<(), WriteError> {
        if self.failed.is_some() {
            return Ok(());
        }
        for device in devices {
            let mut drawn = None;
            for (number, point) in (0u64..).zip(&device.points) {
                let is_last = number + 1 == device.points.len() as u64;
                if drawn == Some(point) && !is_last {
                    continue;
                }
                drawn = Some(point);
                let passed = number.saturating_mul(device.step);
                let time = TimeNs(device.start.0.saturating_add(passed)).min(self.last);
                self.divided(device, point, time);
                self.drain_when_full()?;
            }
        }
        Ok(())
    }

    /// Writes one counter value, without series that are always empty.
    fn divided(&mut self, device: &DeviceCategories, point: &Portions, time: TimeNs) {
        self.begin_counter(device.index, " by category (inferred)", time, self.pid);
        for (portion, bytes) in Portion::ALL.iter().zip(point) {
            if device.rows.iter().any(|row| row.portion == *portion) {
                json::push_string(&mut self.lines, view::portion(*portion));
                self.lines.push(b':');
                json::push_number(&mut self.lines, *bytes);
                self.lines.push(b',');
            }
        }
        if self.lines.ends_with(b",") {
            self.lines.pop();
        }
        self.lines.extend_from_slice(b"}},\n");
    }

    /// Writes the end and returns the output. Returns an earlier write error again.
    pub fn finish(self, reason: EndReason) -> Result<W, WriteError> {
        self.finish_at(reason, None)
    }

    /// Writes the end with its time and returns the output. Returns an earlier write error again.
    pub fn finish_at(mut self, reason: EndReason, time: Option<TimeNs>) -> Result<W, WriteError> {
        for kind in [BLOCK, SEGMENT, CUDA, CPU] {
            self.end_open_slices(&kind)?;
        }
        self.repeat_counters();
        let end = EndRecord::from(&End {
            reason,
            time,
            events: self.events,
            losses: self.losses,
        });
        self.metadata("memprobe_end", self.pid, |line| push_record(line, &end));
        // JSON allows no comma after the last record.
        self.lines.truncate(self.lines.len() - b",\n".len());
        self.lines.extend_from_slice(b"\n]\n");
        self.flush()?;
        self.failed.map_or(Ok(self.out), Err)
    }

    pub fn get_ref(&self) -> &W {
        &self.out
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn bytes(&self) -> u64 {
        self.bytes + self.lines.len() as u64
    }

    fn drain_when_full(&mut self) -> Result<(), WriteError> {
        match self.lines.len() {
            ..BUFFER => Ok(()),
            _ => self.drain(),
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
            let error = WriteError::new(&self.place, source);
            self.failed = Some(error.clone());
            error
        })
    }

    fn metadata(&mut self, name: &str, tid: u32, args: impl FnOnce(&mut Vec<u8>)) {
        let line = &mut self.lines;
        json::push_string_field(line, b"{\"ph\":\"M\",\"name\":", name);
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

    fn mark(&mut self, mark: &PhaseMark) {
        self.last = mark.time;
        let name = format!("{} {}", clip(&mark.class), mark.phase);
        let mut head = Vec::new();
        json::push_string_field(&mut head, b"\"t\",\"cat\":\"mark\",\"name\":", &name);
        self.instant(&head, mark.tgid.0, mark.tid.0, mark.time, |line| {
            push_mark(line, mark)
        });
    }

    /// Writes the name of each live block as a record, followed by an instant.
    fn names(&mut self, names: &BlockLabels, scope: LabelScope) {
        for block in &names.blocks {
            let record = NamedRecord::from(block);
            self.metadata("memprobe_named", names.tgid.0, |line| {
                push_record(line, &record)
            });
        }
        self.last = self.last.max(names.time);
        let head: &[u8] = match scope {
            LabelScope::AllBlocks => {
                b"\"p\",\"cat\":\"names\",\"name\":\"memprobe read the tensors\""
            }
            LabelScope::Baseline => {
                b"\"p\",\"cat\":\"baseline_names\",\"name\":\"memprobe read the tensors from before attach\""
            }
        };
        let record = NamesRecord::from(names);
        self.instant(head, names.tgid.0, names.tgid.0, names.time, |line| {
            push_record(line, &record)
        });
    }

    /// Writes each segment as a record, followed by an instant.
    fn segments(&mut self, reading: &SegmentReading) {
        for record in SegmentRecord::all(reading) {
            self.metadata("memprobe_segment", reading.tgid.0, |line| {
                push_record(line, &record)
            });
        }
        self.last = self.last.max(reading.time);
        let head = b"\"p\",\"cat\":\"segments\",\"name\":\"memprobe read the segments\"";
        let (pid, record) = (reading.tgid.0, SegmentsRecord::from(reading));
        self.instant(head, pid, pid, reading.time, |line| {
            push_record(line, &record)
        });
    }

    fn driver(&mut self, reading: &DriverReading) {
        self.last = self.last.max(reading.time);
        let head = b"\"p\",\"cat\":\"driver\",\"name\":\"the driver counted the memory\"";
        let (pid, record) = (reading.tgid.0, DriverRecord::from(reading));
        self.instant(head, pid, pid, reading.time, |line| {
            push_record(line, &record)
        });
    }

    /// Writes an event of a segment that begins or ends no slice.
    fn note(&mut self, event: &MemoryEvent, category: &str, name: &str) {
        self.open_line(event, INSTANT, category, |line, _| {
            line.extend_from_slice(name.as_bytes());
        });
        self.close_line(event);
    }

    fn loss(&mut self, losses: Losses) {
        self.losses = losses;
        let head = b"\"g\",\"cat\":\"loss\",\"name\":\"memprobe lost events\"";
        let (pid, time) = (self.pid, self.last);
        self.instant(head, pid, pid, time, |line| push_record(line, &losses));
    }

    fn capture(&mut self, change: &CaptureChange) {
        self.last = self.last.max(change.time);
        let name = format!("memprobe records: {}", view::capture_level(change.level));
        let mut head = Vec::new();
        json::push_string_field(&mut head, b"\"p\",\"cat\":\"capture\",\"name\":", &name);
        let (pid, record) = (change.tgid.0, CaptureRecord::from(change));
        self.instant(&head, pid, pid, change.time, |line| {
            push_record(line, &record)
        });
    }

    fn at_attach(&mut self, found: &AtAttach) {
        let head = b"\"g\",\"cat\":\"attach\",\"name\":\"memprobe attached\"";
        let (pid, record) = (found.tgid.0, AtAttachRecord::from(found));
        self.instant(head, pid, pid, found.time, |line| {
            push_record(line, &record)
        });
        if let Some(device) = found.device {
            self.counters(pid, found.time, device, found.totals);
        }
    }

    fn instant(
        &mut self,
        head: &[u8],
        pid: u32,
        tid: u32,
        time: TimeNs,
        args: impl FnOnce(&mut Vec<u8>),
    ) {
        let line = &mut self.lines;
        line.extend_from_slice(b"{\"ph\":\"i\",\"s\":");
        line.extend_from_slice(head);
        push_process(line, pid, tid);
        push_ts(line, self.start, time);
        line.extend_from_slice(b",\"args\":");
        args(line);
        line.extend_from_slice(b"},\n");
    }

    fn memory(&mut self, event: &MemoryEvent) {
        if event.action != Action::Held {
            self.events += 1;
            self.last = event.time;
        }
        match event.action {
            Action::Held => self.hold(event),
            Action::Alloc => self.begin(event, SliceKind::of_blocks(event.device)),
            Action::Free => self.end(event, SliceKind::of_blocks(event.device)),
            Action::SegmentAlloc => self.begin(event, &SEGMENT),
            Action::SegmentFree => self.end(event, &SEGMENT),
            Action::SegmentSleep => self.note(event, "segment_sleep", "segment sleeps"),
            Action::SegmentWake => self.note(event, "segment_wake", "segment wakes"),
            Action::CudaAlloc => self.begin(event, &CUDA),
            Action::CudaFree => self.end(event, &CUDA),
            Action::OutOfMemory => self.fail(event, "oom", b"out of memory"),
            Action::CudaOutOfMemory => self.fail(event, "cuda_oom", b"out of memory in CUDA"),
        }
        if let (Some(totals), Some(device)) = (event.totals, event.device) {
            self.counters(event.tgid.0, event.time, device, totals);
        }
    }

    fn fail(&mut self, event: &MemoryEvent, category: &'static str, name: &[u8]) {
        self.open_line(event, b"i\",\"s\":\"g", category, |line, _| {
            line.extend_from_slice(name);
        });
        self.close_line(event);
    }

    /// Begins the slice of a block that was live when memprobe attached.
    fn hold(&mut self, event: &MemoryEvent) {
        self.begin_line(event, &BLOCK, NameSource::BeforeAttach);
        self.lines.extend_from_slice(b",\"args\":");
        push_args(&mut self.lines, event);
        self.lines
            .extend_from_slice(b",\"live_at_attach\":true}},\n");
    }

    fn begin(&mut self, event: &MemoryEvent, kind: &SliceKind) {
        let addr = event.addr.0;
        if let Some(before) = self.open(kind).live.remove(&addr) {
            // The free of the earlier block at this address was lost.
            self.end_line(event, kind, before);
            self.lines
                .extend_from_slice(b",\"args\":{\"unseen_free\":true}},\n");
        }
        let namer = NameSource::Stack(self.stacks.current(event.stack));
        self.begin_line(event, kind, namer);
        self.close_line(event);
    }

    fn begin_line(&mut self, event: &MemoryEvent, kind: &SliceKind, namer: NameSource) {
        let phase = self.open(kind).open(event.addr.0, namer);
        self.open_line(event, phase, kind.category, |line, stacks| {
            kind.push_name(line, stacks, namer)
        });
        if phase != INSTANT {
            push_id(&mut self.lines, event.addr.0);
        }
    }

    fn end(&mut self, event: &MemoryEvent, kind: &SliceKind) {
        match self.open(kind).live.remove(&event.addr.0) {
            Some(namer) => {
                self.end_line(event, kind, namer);
                self.lines.extend_from_slice(b",\"args\":{\"free\":");
                push_args(&mut self.lines, event);
                self.lines.extend_from_slice(b"}}},\n");
            }
            None => {
                self.open_line(event, INSTANT, kind.unpaired_end, |line, _| {
                    line.extend_from_slice(kind.unpaired_name.as_bytes());
                });
                self.close_line(event);
            }
        }
    }

    fn open(&mut self, kind: &SliceKind) -> &mut OpenSlices {
        &mut self.open[kind.of as usize]
    }

    /// Writes the end of the slice with this name, up to its `args`.
    fn end_line(&mut self, event: &MemoryEvent, kind: &SliceKind, namer: NameSource) {
        self.open_line(event, END, kind.category, |line, stacks| {
            kind.push_name(line, stacks, namer)
        });
        push_id(&mut self.lines, event.addr.0);
    }

    /// Ends the slices of live memory at the last event. chrome://tracing gives a slice without an end no
    /// length (catapult `trace_event_importer.html`, `createNestableAsyncSlices_`), although memory that is
    /// never freed matters most.
    fn end_open_slices(&mut self, kind: &SliceKind) -> Result<(), WriteError> {
        let live = std::mem::take(&mut self.open(kind).live);
        let mut live: Vec<_> = live.into_iter().collect();
        live.sort_unstable_by_key(|(addr, _)| *addr);
        for (addr, namer) in live {
            if self.failed.is_some() {
                break;
            }
            let place = (self.last, self.pid, self.pid);
            self.open_line_at(END, kind.category, place, |line, stacks| {
                kind.push_name(line, stacks, namer)
            });
            push_id(&mut self.lines, addr);
            self.lines
                .extend_from_slice(b",\"args\":{\"live_at_end\":true}},\n");
            self.drain_when_full()?;
        }
        Ok(())
    }

    /// Writes a line up to its name. `phase` is its `ph`, with its scope if it has one.
    fn open_line(
        &mut self,
        event: &MemoryEvent,
        phase: &[u8],
        category: &str,
        name: impl FnOnce(&mut Vec<u8>, &mut StackTexts),
    ) {
        let place = (event.time, event.tgid.0, event.tid.0);
        self.open_line_at(phase, category, place, name);
    }

    fn open_line_at(
        &mut self,
        phase: &[u8],
        category: &str,
        (time, pid, tid): (TimeNs, u32, u32),
        name: impl FnOnce(&mut Vec<u8>, &mut StackTexts),
    ) {
        let line = &mut self.lines;
        line.extend_from_slice(b"{\"ph\":\"");
        line.extend_from_slice(phase);
        line.extend_from_slice(b"\",\"cat\":\"");
        line.extend_from_slice(category.as_bytes());
        line.push(b'"');
        // Before the name: some versions of Perfetto search for the time with a parser that does not support
        // all JSON strings.
        push_ts(line, self.start, time);
        push_process(line, pid, tid);
        line.extend_from_slice(b",\"name\":\"");
        name(line, &mut self.stacks);
        line.push(b'"');
    }

    /// Writes the `args` of an event and the end of its line.
    fn close_line(&mut self, event: &MemoryEvent) {
        let line = &mut self.lines;
        line.extend_from_slice(b",\"args\":");
        push_args(line, event);
        match self.uses.get(event.shape).map(|is| &**is) {
            Some(BlockPurpose::Tensor(shape)) => push_shape(line, shape),
            Some(BlockPurpose::Other(purpose)) => push_purpose(line, purpose),
            None if event.shape == PurposeId::NO_TENSOR => {
                line.extend_from_slice(b",\"tensor\":false");
            }
            None => {}
        }
        if event.stack != StackId::NONE {
            json::push_number_field(line, b",\"stack_id\":", event.stack.0);
            if let Some(text) = self.stacks.text(self.stacks.current(event.stack)) {
                line.extend_from_slice(b",\"stack\":\"");
                line.extend_from_slice(&text.frames);
                line.push(b'"');
            }
        }
        line.extend_from_slice(b"}},\n");
    }

    fn counters(&mut self, pid: u32, time: TimeNs, device: DeviceIndex, totals: Totals) {
        let before = self.counters.insert(device, totals).map(series);
        for (index, (name, bytes)) in series(totals).into_iter().enumerate() {
            if is_counted(device, name) && before.is_none_or(|before| before[index].1 != bytes) {
                self.counter(device, name, bytes, time, pid);
            }
        }
    }

    /// Repeats all counters at the last event. chrome://tracing draws a counter only up to its last value,
    /// and reserved memory seldom changes.
    fn repeat_counters(&mut self) {
        let mut devices: Vec<_> = std::mem::take(&mut self.counters).into_iter().collect();
        devices.sort_unstable_by_key(|(device, _)| *device);
        for (device, totals) in devices {
            for (name, bytes) in series(totals) {
                if is_counted(device, name) {
                    self.counter(device, name, bytes, self.last, self.pid);
                }
            }
        }
    }

    fn counter(&mut self, device: DeviceIndex, name: &str, bytes: u64, time: TimeNs, pid: u32) {
        self.begin_counter(device, name, time, pid);
        json::push_number_field(&mut self.lines, b"\"bytes\":", bytes);
        self.lines.extend_from_slice(b"}},\n");
    }

    fn begin_counter(&mut self, device: DeviceIndex, name: &str, time: TimeNs, pid: u32) {
        let line = &mut self.lines;
        line.extend_from_slice(b"{\"ph\":\"C\",\"name\":\"");
        match device {
            DeviceIndex::CPU => line.extend_from_slice(b"cpu"),
            DeviceIndex(ordinal) => json::push_number_field(line, b"cuda:", ordinal),
        }
        line.extend_from_slice(name.as_bytes());
        line.push(b'"');
        push_process(line, pid, pid);
        push_ts(line, self.start, time);
        line.extend_from_slice(b",\"args\":{");
    }
}

/// Returns true if a device has this total: the CPU allocator reserves nothing.
fn is_counted(device: DeviceIndex, name: &str) -> bool {
    device != DeviceIndex::CPU || name == ALLOCATED
}

const ALLOCATED: &str = " allocated";

/// Returns a counter for each total. chrome://tracing would stack two series of one counter into a meaningless sum.
fn series(totals: Totals) -> [(&'static str, u64); 2] {
    [
        (ALLOCATED, totals.allocated.0),
        (" reserved", totals.reserved.0),
    ]
}

#[cfg(test)]
mod tests;

//! Reader of recordings as Chrome trace events, and of PyTorch's pickles.

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::sync::Arc;

use hashbrown::HashSet;

use super::line::{self, FrameRecord, LineRecord, StackRecord};
use super::names::PendingNames;
use super::pickle;
use super::reader::lost_stack;
use super::segments::PendingSegments;
use super::{End, EndReason, FORMAT, Header, MAX_ALL_FRAMES, MAX_LINE, MAX_STACKS, RecordingError};
use crate::event::{
    Action, BlockPurpose, Context, Event, Frame, Grad, Losses, MemoryEvent, Module, Node,
    PhaseMark, PurposeIds, Stack, StackId, StackKind, TimeNs,
};

/// Start of every recording's second line.
const FIRST_RECORD: &[u8] = b"{\"ph\":\"M\",\"name\":\"memprobe\"";

/// Iterator over the events of a recording. Damage in the middle is an error.
pub(super) struct JsonReader<R> {
    input: R,
    line: Vec<u8>,
    line_number: u64,
    offset: u64,
    state: State,
    header: Header,
    end: Option<End>,
    events: u64,
    strings: HashSet<Arc<str>>,
    stacks: HashSet<u32>,
    frames: usize,
    purposes: PurposeIds,
    naming: PendingNames,
    segments: PendingSegments,
    /// Events already read but not yet returned: definitions, and then the event that needs them.
    waiting: VecDeque<Event>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Records,
    /// The end record was read; the closing bracket follows.
    Ended,
    Closed(Close),
}

#[derive(Clone, Copy, PartialEq)]
enum Close {
    Whole,
    Truncated,
}

impl<R: BufRead> JsonReader<R> {
    /// Reads the header of a recording from any source, such as a pipe.
    pub(super) fn new(input: R) -> Result<Self, RecordingError> {
        let mut reader = Self {
            input,
            line: Vec::new(),
            line_number: 0,
            offset: 0,
            state: State::Records,
            header: Header::default(),
            end: None,
            events: 0,
            strings: HashSet::new(),
            stacks: HashSet::new(),
            frames: 0,
            purposes: PurposeIds::default(),
            naming: PendingNames::default(),
            segments: PendingSegments::default(),
            waiting: VecDeque::new(),
        };
        if reader.begins_with(pickle::FIRST_BYTE)? {
            return reader.read_pickle();
        }
        reader.read_header()?;
        Ok(reader)
    }

    fn begins_with(&mut self, byte: u8) -> io::Result<bool> {
        loop {
            match self.input.fill_buf() {
                Ok(first) => return Ok(first.first() == Some(&byte)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads PyTorch's own memory snapshot. All its events wait.
    fn read_pickle(mut self) -> Result<Self, RecordingError> {
        let history = pickle::read(&mut self.input)?;
        self.header = Header {
            history: Some(history.facts),
            ..history.header
        };
        self.events = history.memory_events;
        self.end = Some(End {
            reason: EndReason::SnapshotTaken,
            time: None,
            events: self.events,
            losses: Losses::default(),
        });
        self.waiting = history.events;
        self.state = State::Closed(Close::Whole);
        Ok(self)
    }

    /// Returns the latest header; a later record of the file may add facts about the target.
    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the end record; `None` before the last event, and for a truncated recording.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Returns true if the end of the recording is missing: memprobe was killed, the disk was full, or it is
    /// still recording. Known after the last event.
    pub(super) fn truncated(&self) -> bool {
        self.state == State::Closed(Close::Truncated)
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    fn read_header(&mut self) -> Result<(), RecordingError> {
        if !self.next_line()? {
            return Err(RecordingError::Empty);
        }
        if content(&self.line) != b"[" {
            return Err(RecordingError::Foreign);
        }
        if !self.next_line()? {
            return Err(RecordingError::Empty);
        }
        self.header = match line::parse(content(&self.line), TimeNs(0)) {
            Ok(LineRecord::Header(header)) => header,
            Ok(LineRecord::Newer(format)) => {
                return Err(RecordingError::Newer {
                    format,
                    known: FORMAT,
                });
            }
            Err(_) if self.line.starts_with(FIRST_RECORD) && !self.line.ends_with(b"\n") => {
                return Err(RecordingError::Empty);
            }
            _ => return Err(RecordingError::Foreign),
        };
        Ok(())
    }

    /// Reads the next line into `self.line`, newline included. Returns false at the end of the file.
    fn next_line(&mut self) -> Result<bool, RecordingError> {
        const LONGEST: usize = MAX_LINE + 2;
        self.offset += self.line.len() as u64;
        self.line.clear();
        while self.line.len() < LONGEST && self.line.last() != Some(&b'\n') {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if buffer.is_empty() {
                break;
            }
            let end = memchr::memchr(b'\n', buffer).map(|end| end + 1);
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let is_between = self.state == State::Records && self.line_number >= 2;
            let is_whole = self.line.is_empty() && end.is_some();
            if is_whole && is_between && line::is_counter(content(part)) {
                // Not copied: half of the lines are counters.
                let length = part.len();
                self.input.consume(length);
                self.offset += length as u64;
                self.line_number += 1;
                continue;
            }
            let part = &part[..part.len().min(LONGEST - self.line.len())];
            self.line.extend_from_slice(part);
            let length = part.len();
            self.input.consume(length);
        }
        if self.line.is_empty() {
            return Ok(false);
        }
        self.line_number += 1;
        if self.line.len() == LONGEST && self.line.last() != Some(&b'\n') {
            if self.line_number <= 2 {
                return Err(RecordingError::Foreign);
            }
            return Err(self.damaged(format!("longer than {MAX_LINE} bytes")));
        }
        Ok(true)
    }

    fn at_end(&mut self) -> io::Result<bool> {
        loop {
            match self.input.fill_buf() {
                Ok(rest) => return Ok(rest.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn damaged(&self, reason: impl Into<String>) -> RecordingError {
        RecordingError::Damaged {
            line: self.line_number,
            offset: self.offset,
            reason: reason.into(),
            events: self.events,
        }
    }

    /// Reads the next event; `None` at the end. Not to be called again after an error.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, RecordingError> {
        if let Some(event) = self.waiting.pop_front() {
            return Ok(Some(event));
        }
        while let State::Records | State::Ended = self.state {
            if !self.next_line()? {
                self.state = State::Closed(match self.end {
                    Some(_) => Close::Whole,
                    None => Close::Truncated,
                });
                break;
            }
            let line = std::mem::take(&mut self.line);
            let step = self.step(content(&line));
            self.line = line;
            match step {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                // An invalid last line was cut off while being written.
                Err(_) if self.end.is_none() && self.at_end()? => {
                    self.state = State::Closed(Close::Truncated);
                }
                Err(reason) => return Err(self.damaged(reason)),
            }
        }
        Ok(None)
    }

    fn step(&mut self, line: &[u8]) -> Result<Option<Event>, String> {
        if line.is_empty() || self.state == State::Ended && line == b"]" {
            return Ok(None);
        }
        if self.state == State::Ended {
            return Err("something follows the end of the recording".to_owned());
        }
        Ok(Some(match line::parse(line, self.header.start)? {
            LineRecord::AtAttach(found) => Event::AtAttach(found),
            LineRecord::Memory(event, is) => self.memory(event, is),
            LineRecord::Stack(stack) => self.define_stack(&stack)?,
            LineRecord::Named(block) => {
                let strings = &mut self.strings;
                self.naming.push(&block, |text| intern(strings, text))?;
                return Ok(None);
            }
            LineRecord::Names {
                scope,
                time,
                tgid,
                record,
            } => {
                let strings = &mut self.strings;
                let intern = |text: &str| intern(strings, text);
                scope.event(self.naming.end_record(record, (time, tgid), intern)?)
            }
            LineRecord::Segment(segment) => {
                self.segments.push(&segment)?;
                return Ok(None);
            }
            LineRecord::Segments { time, tgid, record } => {
                Event::Segments(Arc::new(self.segments.end_record(record, time, tgid)?))
            }
            LineRecord::Mark(mark) => self.mark(mark),
            LineRecord::Thread { tid, name } => {
                Event::Thread(tid, intern(&mut self.strings, &name))
            }
            LineRecord::Driver(reading) => Event::Driver(Arc::new(reading)),
            LineRecord::Loss(losses) => Event::Loss(losses),
            LineRecord::Capture(change) => Event::Capture(change),
            LineRecord::Header(header) => {
                if header.start != self.header.start {
                    return Err("a second recording begins here".to_owned());
                }
                self.header = header;
                return Ok(None);
            }
            LineRecord::End(end) => {
                let end = end.into_end().ok_or("an end of unknown kind")?;
                if end.events != self.events {
                    let (written, here) = (end.events, self.events);
                    return Err(format!(
                        "{written} events were written, but {here} are there"
                    ));
                }
                self.end = Some(end);
                self.state = State::Ended;
                return Ok(None);
            }
            LineRecord::Newer(format) => {
                return Err(format!("format {format} instead of {FORMAT}"));
            }
            LineRecord::Other => return Ok(None),
        }))
    }

    /// Returns the event, or first the definitions it needs: its purpose if new, its stack if the recording lacks it.
    fn memory(&mut self, mut event: MemoryEvent, is: Option<BlockPurpose>) -> Event {
        self.events += u64::from(event.action != Action::Held);
        if let Some(is) = is {
            let (id, new) = self.purposes.intern(is);
            event.shape = id;
            self.waiting
                .extend(new.map(|new| Event::BlockPurpose(id, new)));
        }
        let stack = self.missing_stack(event.stack);
        self.after_definitions(stack, Event::Memory(event))
    }

    /// Returns a definition for an event's stack if the recording has none.
    fn missing_stack(&mut self, id: StackId) -> Option<Event> {
        if id == StackId::NONE || self.stacks.contains(&id.0) || self.stacks.len() >= MAX_STACKS {
            return None;
        }
        self.stacks.insert(id.0);
        let thread = intern(&mut self.strings, "");
        Some(Event::Stack(id, Arc::new(lost_stack(thread))))
    }

    fn define_stack(&mut self, record: &StackRecord<'_>) -> Result<Event, String> {
        if self.stacks.len() >= MAX_STACKS && !self.stacks.contains(&record.id) {
            return Err(format!("more than {MAX_STACKS} stacks"));
        }
        let mut stack = self.stack(record)?;
        if let Some(node) = &record.node {
            let forward = record.forward().map(|forward| self.stack(forward));
            stack.context.node = Some(Arc::new(Node {
                name: intern(&mut self.strings, &node.name),
                forward: forward.transpose()?.map(Arc::new),
            }));
        }
        self.stacks.insert(record.id);
        Ok(Event::Stack(StackId(record.id), Arc::new(stack)))
    }

    fn stack(&mut self, record: &StackRecord<'_>) -> Result<Stack, String> {
        self.frames += record.frames.len();
        if self.frames > MAX_ALL_FRAMES {
            return Err(format!("more than {MAX_ALL_FRAMES} frames"));
        }
        let kind = self.stack_kind(record)?;
        let strings = &mut self.strings;
        let module = match &record.module {
            Some(path) => Module::Called(intern(strings, path)),
            None if record.module_unknown => Module::Unknown,
            None => Module::Outside,
        };
        let grad = match record.grad.as_deref() {
            Some(word) => word.parse().map_err(|_| "a stack with an unknown `grad`")?,
            None => Grad::Unknown,
        };
        let mut frame = |frame: &FrameRecord<'_>| Frame {
            file: intern(strings, &frame.file),
            line: frame.line,
            function: intern(strings, &frame.function),
            library: (frame.library.as_deref()).map(|library| intern(strings, library)),
        };
        Ok(Stack {
            kind,
            frames: record.frames.iter().map(&mut frame).collect(),
            truncated: record.truncated,
            context: Context {
                module,
                grad,
                node: None,
            },
        })
    }

    fn stack_kind(&mut self, record: &StackRecord<'_>) -> Result<StackKind, String> {
        let thread = || record.thread.as_deref().ok_or("a stack without `thread`");
        Ok(match &*record.kind {
            "python" => StackKind::Python,
            "native" => StackKind::Native,
            "waiting" => StackKind::Waiting {
                thread: intern(&mut self.strings, thread()?),
            },
            "unknown" => StackKind::Unknown {
                thread: intern(&mut self.strings, thread()?),
                reason: record
                    .no_stack()
                    .ok_or("a stack without a `reason` that is known")?,
            },
            _ => return Err("a stack of unknown kind".to_owned()),
        })
    }

    /// Returns the mark, or first a definition of its stack if the recording has none.
    fn mark(&mut self, mut mark: PhaseMark) -> Event {
        mark.class = intern(&mut self.strings, &mark.class);
        let stack = self.missing_stack(mark.stack);
        self.after_definitions(stack, Event::PhaseMark(mark))
    }

    /// Returns the first queued definition and queues `event`, or `event` itself if none is queued.
    fn after_definitions(&mut self, stack: Option<Event>, event: Event) -> Event {
        self.waiting.extend(stack);
        let Some(first) = self.waiting.pop_front() else {
            return event;
        };
        self.waiting.push_back(event);
        first
    }
}

fn content(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    line.strip_suffix(b",").unwrap_or(line)
}

fn intern(strings: &mut HashSet<Arc<str>>, text: &str) -> Arc<str> {
    Arc::clone(strings.get_or_insert_with(text, |text| text.into()))
}

#[cfg(test)]
mod tests;

//! Parser of one line of a recording. The input is untrusted; the record returned is checked.

mod memory;
mod written;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::names::{LabelScope, NamedRecord, NamesRecord};
use super::segments::{SegmentRecord, SegmentsRecord};
use super::{
    AtAttachRecord, CaptureRecord, DriverRecord, EndRecord, FORMAT, Header, MAX_FRAMES, check_names,
};
use crate::event::{
    AtAttach, BlockPurpose, CaptureChange, DriverReading, Losses, MemoryEvent, NoStack, PhaseMark,
    StackId, Tgid, Tid, TimeNs,
};
pub(super) use memory::dtype_named;
use memory::{EndOfSlice, LineHead, MemoryArgs, MemoryLine};

pub(super) enum LineRecord<'a> {
    Header(Header),
    Stack(StackRecord<'a>),
    Thread {
        tid: Tid,
        name: Cow<'a, str>,
    },
    AtAttach(AtAttach),
    /// A memory event and its purpose; the reader assigns the purpose's number.
    Memory(MemoryEvent, Option<BlockPurpose>),
    Mark(PhaseMark),
    Named(NamedRecord<'a>),
    /// Ends the preceding `Named` records: their time, and their count.
    Names {
        scope: LabelScope,
        time: TimeNs,
        tgid: Tgid,
        record: NamesRecord<'a>,
    },
    Segment(SegmentRecord),
    /// Ends the preceding `Segment` records.
    Segments {
        time: TimeNs,
        tgid: Tgid,
        record: SegmentsRecord,
    },
    Loss(Losses),
    Capture(CaptureChange),
    Driver(DriverReading),
    End(EndRecord),
    Newer(u32),
    Other,
}

/// Stack before its strings are interned.
#[derive(Deserialize)]
pub(super) struct StackRecord<'a> {
    #[serde(default)]
    pub id: u32,
    #[serde(borrow)]
    pub kind: Cow<'a, str>,
    pub thread: Option<Cow<'a, str>>,
    pub reason: Option<Cow<'a, str>>,
    pub truncated: bool,
    #[serde(borrow)]
    pub frames: Vec<FrameRecord<'a>>,
    pub module: Option<Cow<'a, str>>,
    #[serde(default)]
    pub module_unknown: bool,
    pub grad: Option<Cow<'a, str>>,
    pub node: Option<NodeRecord<'a>>,
}

#[derive(Deserialize)]
pub(super) struct NodeRecord<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    pub forward: Option<Box<StackRecord<'a>>>,
}

#[derive(Deserialize)]
pub(super) struct FrameRecord<'a> {
    #[serde(borrow)]
    pub file: Cow<'a, str>,
    pub line: u32,
    #[serde(borrow)]
    pub function: Cow<'a, str>,
    pub library: Option<Cow<'a, str>>,
}

impl StackRecord<'_> {
    /// Checks the stack against the limits of a recording.
    fn check(&self) -> Result<(), String> {
        let forward = self.forward();
        if forward.is_some_and(|forward| forward.node.is_some()) {
            return Err("a node that leads to another one".to_owned());
        }
        let frames = self.frames.len() + forward.map_or(0, |forward| forward.frames.len());
        if frames > 2 * MAX_FRAMES {
            return Err(format!("a stack of {frames} frames"));
        }
        let texts = [
            self.module.as_deref(),
            forward.and_then(|forward| forward.module.as_deref()),
            self.node.as_ref().map(|node| &*node.name),
        ];
        check_names(texts.into_iter().flatten())
    }

    /// Returns the stack of the forward operation that created the node.
    pub(super) fn forward(&self) -> Option<&StackRecord<'_>> {
        self.node.as_ref()?.forward.as_deref()
    }

    pub(super) fn no_stack(&self) -> Option<NoStack> {
        self.reason.as_deref()?.parse().ok()
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    ph: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    tid: u32,
    ts: Option<&'a RawValue>,
    #[serde(borrow)]
    args: &'a RawValue,
}

impl Line<'_> {
    fn head(&self) -> LineHead<'_> {
        LineHead {
            pid: self.pid,
            tid: self.tid,
            ts: self.ts.map(RawValue::get),
        }
    }
}

#[derive(Deserialize)]
struct MarkArgs<'a> {
    #[serde(borrow)]
    begins: Cow<'a, str>,
    #[serde(borrow)]
    class: Cow<'a, str>,
    stack_id: u32,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

#[derive(Deserialize)]
struct NameArgs<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// True for a counter, which only viewers need: half of all lines are counters.
pub(super) fn is_counter(line: &[u8]) -> bool {
    line.starts_with(b"{\"ph\":\"C\",") && line.ends_with(b"}}")
}

/// Parses one line, without its comma and newline. `start` is the time of `ts` 0. An error describes the
/// fault in a few words.
pub(super) fn parse(line: &[u8], start: TimeNs) -> Result<LineRecord<'_>, String> {
    if is_counter(line) {
        return Ok(LineRecord::Other);
    }
    written::parse(line, start).unwrap_or_else(|| parse_any(line, start))
}

/// Parses a line of any form.
fn parse_any(line: &[u8], start: TimeNs) -> Result<LineRecord<'_>, String> {
    let text = std::str::from_utf8(line).map_err(|error| error.to_string())?;
    let line: Line = serde_json::from_str(text).map_err(|error| cause(&error))?;
    if let Some(kind) = MemoryLine::of(&line.ph, &line.cat) {
        let head = line.head();
        return match kind {
            MemoryLine::Event(action) => args::<MemoryArgs>(&line)?.record(&head, action, start),
            MemoryLine::EndOfSlice(action) => {
                args::<EndOfSlice>(&line)?.record(&head, action, start)
            }
        };
    }
    match (&*line.ph, &*line.cat) {
        ("M", _) => metadata(&line),
        ("C", _) => Ok(LineRecord::Other),
        ("i", "attach") => {
            let time = line.head().time(start)?;
            let found: AtAttachRecord = args(&line)?;
            Ok(LineRecord::AtAttach(found.at(time, Tgid(line.pid))))
        }
        ("i", "mark") => mark(&line, start).map(LineRecord::Mark),
        ("i", category @ ("names" | "baseline_names")) => Ok(LineRecord::Names {
            scope: match category {
                "names" => LabelScope::AllBlocks,
                _ => LabelScope::Baseline,
            },
            time: line.head().time(start)?,
            tgid: Tgid(line.pid),
            record: args(&line)?,
        }),
        ("i", "segments") => Ok(LineRecord::Segments {
            time: line.head().time(start)?,
            tgid: Tgid(line.pid),
            record: args(&line)?,
        }),
        ("i", "driver") => {
            let time = line.head().time(start)?;
            let record: DriverRecord = args(&line)?;
            Ok(LineRecord::Driver(record.at(time, Tgid(line.pid))?))
        }
        ("i", "loss") => Ok(LineRecord::Loss(args(&line)?)),
        ("i", "capture") => {
            let time = line.head().time(start)?;
            let record: CaptureRecord = args(&line)?;
            let change = record.at(time, Tgid(line.pid));
            let change = change.ok_or("a level of detail that is not known")?;
            Ok(LineRecord::Capture(change))
        }
        _ => Err("a record of unknown kind".to_owned()),
    }
}

fn metadata<'a>(line: &Line<'a>) -> Result<LineRecord<'a>, String> {
    match &*line.name {
        "memprobe" => match args::<Format>(line)?.format {
            0..=FORMAT => Ok(LineRecord::Header(args(line)?)),
            later => Ok(LineRecord::Newer(later)),
        },
        "memprobe_stack" => {
            let stack: StackRecord = args(line)?;
            if stack.id == StackId::NONE.0 {
                return Err("a stack without a number".to_owned());
            }
            stack.check()?;
            Ok(LineRecord::Stack(stack))
        }
        "memprobe_segment" => Ok(LineRecord::Segment(args(line)?)),
        "memprobe_named" => Ok(LineRecord::Named(args(line)?)),
        "memprobe_end" => Ok(LineRecord::End(args(line)?)),
        "thread_name" => {
            let name: NameArgs = args(line)?;
            Ok(LineRecord::Thread {
                tid: Tid(line.tid),
                name: name.name,
            })
        }
        _ => Ok(LineRecord::Other),
    }
}

fn mark(line: &Line<'_>, start: TimeNs) -> Result<PhaseMark, String> {
    let mark: MarkArgs<'_> = args(line)?;
    check_names([&*mark.class].into_iter())?;
    let unknown = |_| format!("unknown `begins`: {:?}", first(&mark.begins));
    Ok(PhaseMark {
        time: line.head().time(start)?,
        tgid: Tgid(line.pid),
        tid: Tid(line.tid),
        phase: mark.begins.parse().map_err(unknown)?,
        class: mark.class.into(),
        stack: StackId(mark.stack_id),
    })
}

fn args<'a, T: Deserialize<'a>>(line: &Line<'a>) -> Result<T, String> {
    serde_json::from_str(line.args.get()).map_err(|error| cause(&error))
}

/// Cuts a text to 40 characters, for error messages.
fn first(text: &str) -> &str {
    text.char_indices()
        .nth(40)
        .map_or(text, |(end, _)| &text[..end])
}

/// Returns serde_json's message without its line number, which is not that of the file.
fn cause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Parses `text` as microseconds relative to `start`, with up to three decimals.
fn time(text: &str, start: TimeNs) -> Option<TimeNs> {
    let rest = text.strip_prefix('-');
    let (before, distance) = (rest.is_some(), rest.unwrap_or(text));
    let (micros, decimals) = distance.split_once('.').unwrap_or((distance, "0"));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos = decimals
        .bytes()
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
        * [100, 10, 1][decimals.len().checked_sub(1)?];
    let is_number = micros.bytes().all(|byte| byte.is_ascii_digit());
    let micros: u64 = is_number.then(|| micros.parse().ok())??;
    let distance = micros.checked_mul(1000)?.checked_add(nanos)?;
    let time = if before {
        start.0.checked_sub(distance)
    } else {
        start.0.checked_add(distance)
    };
    time.map(TimeNs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond_or_not_at_all() {
        let start = TimeNs(1_000_000);
        let read = |text| time(text, start).map(|time| time.0);
        assert_eq!(read("0.000"), Some(1_000_000));
        assert_eq!(read("12.034"), Some(1_012_034));
        assert_eq!(read("7"), Some(1_007_000));
        assert_eq!(read("7.5"), Some(1_007_500));
        assert_eq!(read("-1.001"), Some(998_999));
        for wrong in [
            "",
            "-",
            ".",
            "1.",
            "1.2345",
            "1e3",
            "--1",
            "+1",
            "-1001.0",
            "18446744073709551615",
            "1.é",
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn addresses_are_hexadecimal_and_nothing_else() {
        use crate::recording::hex;
        assert_eq!(hex("0x7f0000000000"), Some(0x7f00_0000_0000));
        for wrong in [
            "",
            "0x",
            "7f00",
            "0x+7",
            "0x-7",
            "0xfg",
            "0x10000000000000000",
        ] {
            assert_eq!(hex(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_line_that_says_nothing_known_is_an_error_with_a_cause() {
        let error_of = |line: &str| parse(line.as_bytes(), TimeNs(0)).err().unwrap();
        assert_eq!(error_of("{}"), "missing field `ph`");
        assert_eq!(
            error_of(r#"{"ph":"X","name":"a","args":{}}"#),
            "a record of unknown kind"
        );
        assert_eq!(
            error_of(r#"{"ph":"i","cat":"oom","name":"a","args":{}}"#),
            "missing field `addr`"
        );
        assert_eq!(
            error_of(
                r#"{"ph":"i","cat":"oom","name":"a","args":{"addr":"0x0","size":1,"allocated":1},"ts":0}"#
            ),
            "`allocated` without `reserved`"
        );
    }
}

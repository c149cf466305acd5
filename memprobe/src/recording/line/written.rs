//! Memory lines in the very form in which memprobe writes them.
//!
//! Nine of ten lines that are not skipped have it. A parser for any JSON reads each of them twice, once to find
//! `args`, and takes five times as long. A line in any other form is left to that parser, and so is any text with
//! an escape whose value matters.

use std::borrow::Cow;

use super::LineRecord;
use super::memory::{EndOfSlice, Inferred, LineHead, MemoryArgs, MemoryLine};
use crate::event::{DeviceIndex, TimeNs};
use crate::recording::MAX_DIMENSIONS;

/// Parses a line as `recording::write` writes it; `None` if it has another form.
pub(super) fn parse(line: &[u8], start: TimeNs) -> Option<Result<LineRecord<'_>, String>> {
    // JSON allows no control character within a string, and memprobe writes none between them.
    // Without an early end, the loop looks at many bytes at a time.
    let has_control = |found, byte: &u8| found | (*byte < b' ');
    if line.iter().fold(false, has_control) {
        return None;
    }
    let mut rest = Rest(std::str::from_utf8(line).ok()?);
    rest.take("{\"ph\":\"")?;
    let phase = rest.plain_text()?;
    // The scope of an instant.
    if rest.take(",\"s\":\"").is_some() {
        rest.plain_text()?;
    }
    rest.take(",\"cat\":\"")?;
    let kind = MemoryLine::of(phase, rest.plain_text()?)?;
    rest.take(",\"ts\":")?;
    let ts = rest.micros()?;
    rest.take(",\"pid\":")?;
    let pid = rest.number_u32()?;
    let tid = match rest.take(",\"tid\":") {
        Some(()) => rest.number_u32()?,
        None => 0,
    };
    let ts = Some(ts);
    let head = LineHead { pid, tid, ts };
    rest.take(",\"name\":\"")?;
    rest.skip_text()?;
    if rest.take(",\"id2\":{\"local\":\"").is_some() {
        rest.skip_text()?;
        rest.take("}")?;
    }
    rest.take(",\"args\":{")?;
    let record = match kind {
        MemoryLine::Event(action) => {
            let mut args = rest.numbers()?;
            rest.purpose(&mut args)?;
            rest.take("}}")?;
            args.record(&head, action, start)
        }
        MemoryLine::EndOfSlice(action) => {
            rest.take("\"free\":{")?;
            let free = Some(rest.numbers()?);
            rest.take("}}}")?;
            let end = EndOfSlice {
                free,
                unseen_free: false,
                live_at_end: false,
            };
            end.record(&head, action, start)
        }
    };
    rest.0.is_empty().then_some(record)
}

/// The part of a line that was not parsed yet.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn take(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// Takes the first `length` bytes, and the quote after them.
    fn quoted(&mut self, length: usize) -> Option<&'a str> {
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest.strip_prefix('"')?;
        Some(text)
    }

    /// Takes a text up to its quote; `None` if it has an escape.
    fn plain_text(&mut self) -> Option<&'a str> {
        self.quoted(memchr::memchr2(b'"', b'\\', self.0.as_bytes())?)
    }

    /// Skips a text up to its quote; `None` if it has an escape by number, whose digits would have to be checked.
    fn skip_text(&mut self) -> Option<()> {
        let bytes = self.0.as_bytes();
        let mut at = 0;
        loop {
            at += memchr::memchr2(b'"', b'\\', &bytes[at..])?;
            if bytes[at] == b'"' {
                return self.quoted(at).map(drop);
            }
            match bytes.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                _ => return None,
            }
        }
    }

    /// Takes digits; `None` if there are none, or more than a JSON number has.
    fn digits(&mut self) -> Option<&'a str> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        (digits == "0" || !digits.is_empty() && !digits.starts_with('0')).then_some(digits)
    }

    fn number(&mut self) -> Option<u64> {
        let digits = self.digits()?;
        let mut digits = digits.bytes().map(|digit| u64::from(digit - b'0'));
        digits.try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(digit)
        })
    }

    fn number_u32(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    /// Takes the text of a time: microseconds with three decimals.
    fn micros(&mut self) -> Option<&'a str> {
        let all = self.0;
        // A time before the start.
        let _ = self.take("-");
        self.digits()?;
        self.take(".")?;
        let (decimals, rest) = self.0.split_at_checked(3)?;
        let is_number = decimals.bytes().all(|byte| byte.is_ascii_digit());
        self.0 = rest;
        let text = &all[..all.len() - rest.len()];
        is_number.then_some(text)
    }

    fn device(&mut self) -> Option<Option<DeviceIndex>> {
        if self.take("\"cpu\"").is_some() {
            return Some(Some(DeviceIndex::CPU));
        }
        if self.take("null").is_some() {
            return Some(None);
        }
        let ordinal = DeviceIndex(self.number()?.try_into().ok()?);
        (ordinal != DeviceIndex::CPU).then_some(Some(ordinal))
    }

    /// Takes what every event has, as `push_args` writes it.
    fn numbers(&mut self) -> Option<MemoryArgs<'a>> {
        self.take("\"addr\":\"")?;
        let addr = Cow::Borrowed(self.plain_text()?);
        self.take(",\"size\":")?;
        let mut args = MemoryArgs {
            addr,
            size: self.number()?,
            ..MemoryArgs::default()
        };
        self.take(",\"device\":")?;
        args.device = self.device()?;
        if self.take(",\"allocated\":").is_some() {
            args.allocated = Some(self.number()?);
            self.take(",\"reserved\":")?;
            args.reserved = Some(self.number()?);
        }
        if self.take(",\"function\":\"").is_some() {
            args.function = Some(Cow::Borrowed(self.plain_text()?));
            self.take(",\"space\":\"")?;
            args.space = Some(Cow::Borrowed(self.plain_text()?));
        }
        Some(args)
    }

    /// Takes the purpose of the memory and the stack of an allocation, or that it was live at attach.
    fn purpose(&mut self, args: &mut MemoryArgs<'a>) -> Option<()> {
        if self.take(",\"live_at_attach\":true").is_some() {
            args.live_at_attach = true;
            return Some(());
        }
        if self.take(",\"shape\":[").is_some() {
            self.shape(args)?;
        } else if self.take(",\"tensor\":false").is_some() {
            args.tensor = Some(false);
            if self.take(",\"inferred\":{").is_some() {
                args.inferred = Some(self.inferred()?);
            }
        }
        if self.take(",\"stack_id\":").is_some() {
            args.stack_id = Some(self.number_u32()?);
            if self.take(",\"stack\":\"").is_some() {
                self.skip_text()?;
            }
        }
        Some(())
    }

    fn shape(&mut self, args: &mut MemoryArgs<'a>) -> Option<()> {
        let mut sizes = Vec::new();
        while self.take("]").is_none() {
            if !sizes.is_empty() {
                self.take(",")?;
            }
            sizes.push(self.number()?);
            if sizes.len() > MAX_DIMENSIONS {
                return None;
            }
        }
        args.shape = Some(sizes);
        if self.take(",\"more_dimensions\":").is_some() {
            args.more_dimensions = self.number_u32()?;
        }
        self.take(",\"dtype\":\"")?;
        args.dtype = Some(Cow::Borrowed(self.plain_text()?));
        if self.take(",\"requested\":").is_some() {
            args.requested = Some(self.number()?);
        }
        Some(())
    }

    fn inferred(&mut self) -> Option<Inferred<'a>> {
        let what = match self.take("\"purpose\":\"") {
            Some(()) => {
                let what = self.plain_text()?;
                self.take(",")?;
                Some(Cow::Borrowed(what))
            }
            None => None,
        };
        self.take("\"function\":\"")?;
        let function = Cow::Borrowed(self.plain_text()?);
        self.take(",\"library\":\"")?;
        let library = Cow::Borrowed(self.plain_text()?);
        self.take("}")?;
        Some(Inferred {
            what,
            function,
            library,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{BlockPurpose, MemoryEvent};
    use crate::recording::line::parse_any;
    use crate::recording::samples::{on_the_cpu, purposes, recording, story, tensors};

    const START: TimeNs = TimeNs(1_000_000);

    /// Lines of recordings with all kinds of memory events, without commas.
    fn lines() -> Vec<Vec<u8>> {
        let files = [story(), tensors(), purposes(), on_the_cpu()].map(|story| recording(&story));
        let lines = files
            .iter()
            .flat_map(|file| file.split(|byte| *byte == b'\n'));
        lines
            .map(|line| line.strip_suffix(b",").unwrap_or(line).to_vec())
            .collect()
    }

    fn is_of_memory(line: &[u8]) -> bool {
        [
            &b"\"ph\":\"M\""[..],
            b"\"ph\":\"C\"",
            b"\"cat\":\"attach\"",
            b"\"cat\":\"loss\"",
            b"\"cat\":\"mark\"",
        ]
        .iter()
        .all(|other| !line.windows(other.len()).any(|part| part == *other))
            && line.len() > 1
    }

    type Read = Result<Option<(MemoryEvent, Option<BlockPurpose>)>, String>;

    fn plain(record: Result<LineRecord<'_>, String>) -> Read {
        match record? {
            LineRecord::Memory(event, is) => Ok(Some((event, is))),
            LineRecord::Other => Ok(None),
            _ => Err("no memory".to_owned()),
        }
    }

    #[test]
    fn nearly_every_memory_line_has_the_written_form() {
        let lines = lines();
        let memory: Vec<_> = lines.iter().filter(|line| is_of_memory(line)).collect();
        let (written, others): (Vec<&&Vec<u8>>, Vec<_>) =
            memory.iter().partition(|line| parse(line, START).is_some());
        for line in others {
            let text = String::from_utf8_lossy(line);
            let is_rare = ["unseen_free", "live_at_end"]
                .iter()
                .any(|rare| text.contains(rare));
            assert!(is_rare, "{text}");
        }
        assert!(written.len() > 15, "{}", written.len());
    }

    #[test]
    fn both_parsers_read_the_same() {
        for line in lines() {
            if let Some(record) = parse(&line, START) {
                assert_eq!(plain(record), plain(parse_any(&line, START)));
            }
        }
    }

    proptest! {
        /// A damaged line is refused for the same reason, or read as the same event.
        #[test]
        fn both_parsers_read_the_same_of_a_damaged_line(
            line in any::<prop::sample::Index>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any_byte(), any::<bool>()), 0..4),
        ) {
            let mut lines = lines();
            lines.retain(|line| is_of_memory(line));
            let mut line = lines.swap_remove(line.index(lines.len()));
            for (at, byte, replaces) in damage {
                let at = at.index(line.len());
                match replaces {
                    true => line[at] = byte,
                    false => line.insert(at, byte),
                }
            }
            if let Some(record) = parse(&line, START) {
                prop_assert_eq!(plain(record), plain(parse_any(&line, START)));
            }
        }
    }

    /// Bytes that are likely to matter, and any.
    fn any_byte() -> impl Strategy<Value = u8> {
        prop_oneof![
            4 => prop::sample::select(b"0123456789-.,:\"\\{}[]eunr \t\x01\x7f\xff".to_vec()),
            1 => any::<u8>(),
        ]
    }
}

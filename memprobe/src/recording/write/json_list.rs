//! Lists of a JSON document with one item a line, formatted on several threads.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::{self, Builder};

use serde::Serialize;

/// Items that are formatted at a time, some megabytes of text. Fewer are not worth a thread.
const SHARE: usize = 4096;

/// More threads format faster than one writes.
const MAX_THREADS: usize = 4;

/// A list that is being written. [`Self::end`] closes it.
pub(super) struct JsonList<'a, W> {
    out: &'a mut W,
    is_empty: bool,
}

impl<'a, W: Write> JsonList<'a, W> {
    /// Begins a list that is not the first field of its document.
    pub(super) fn begin(out: &'a mut W, name: &str) -> io::Result<Self> {
        write!(out, ",\n\"{name}\":[")?;
        let is_empty = true;
        Ok(Self { out, is_empty })
    }

    /// Appends the record of each of `count` items that has one, in the order of the items.
    pub(super) fn add<R: Serialize>(
        mut self,
        count: usize,
        record: impl Fn(usize) -> Option<R> + Sync,
    ) -> io::Result<Self> {
        let text_of = &|items: Range<usize>| text(items.filter_map(&record));
        if count <= SHARE {
            self.write(&text_of(0..count)?)?;
            return Ok(self);
        }
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let start = |share| Builder::new().spawn_scoped(scope, move || text_of(share));
            let mut shares = chunks(0..count, SHARE).map(start);
            let running = shares.by_ref().take(threads.min(MAX_THREADS));
            let mut running: VecDeque<_> = running.collect::<io::Result<_>>()?;
            while let Some(thread) = running.pop_front() {
                let text = thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
                // Others are formatted while this one is written.
                running.extend(shares.next().transpose()?);
                self.write(&text)?;
            }
            io::Result::Ok(())
        })?;
        Ok(self)
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        // Each item comes after a comma, the first one after none.
        let from = usize::from(self.is_empty && !text.is_empty());
        self.is_empty &= text.is_empty();
        self.out.write_all(&text[from..])
    }

    pub(super) fn end(self) -> io::Result<()> {
        self.out.write_all(b"\n]")
    }
}

/// Parts of a range, each of `size` items but the last.
fn chunks(items: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = items.end;
    let starts = items.step_by(size);
    starts.map(move |start| start..end.min(start + size))
}

/// The records as lines, each after a comma.
fn text<R: Serialize>(records: impl Iterator<Item = R>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for record in records {
        text.extend_from_slice(b",\n");
        serde_json::to_writer(&mut text, &record)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(lists: &[&[u32]]) -> String {
        let mut text = b"{\"first\":1".to_vec();
        let mut list = JsonList::begin(&mut text, "odd").unwrap();
        for items in lists {
            let odd = |at: usize| (items[at] % 2 == 1).then_some(items[at]);
            list = list.add(items.len(), odd).unwrap();
        }
        list.end().unwrap();
        String::from_utf8(text).unwrap() + "}"
    }

    #[test]
    fn items_have_lines_of_their_own() {
        assert_eq!(written(&[]), "{\"first\":1,\n\"odd\":[\n]}");
        assert_eq!(written(&[&[2]]), written(&[]));
        let text = written(&[&[2], &[1, 3], &[4], &[5]]);
        assert_eq!(text, "{\"first\":1,\n\"odd\":[\n1,\n3,\n5\n]}");
    }

    #[test]
    fn many_items_are_in_their_order() {
        let many: Vec<u32> = (0..10 * SHARE as u32 + 7).collect();
        let text = written(&[&many, &[1]]);
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let odd: Vec<_> = many.iter().skip(1).step_by(2).chain(&[1]).collect();
        assert_eq!(document["odd"], serde_json::json!(odd));
    }
}

//! Tables of several recordings, one after the other: each record begins with the name of its recording.

use std::io::{self, Write};

/// Unit of a table that has the name of the recording in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// The table as a whole.
    Table,
    JsonLine,
    CsvRecord,
}

/// Writes a table and puts the name of its recording in front of each record.
pub struct NamedRecords<'a, W> {
    out: &'a mut W,
    unit: Unit,
    name: Vec<u8>,
    at_start: bool,
    /// In front of the heading of CSV; `None` behind it.
    heading: Option<Heading>,
    is_quoted: bool,
}

/// Position of a CSV table among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    First,
    /// An earlier table has the same heading.
    Repeated,
}

impl<'a, W: Write> NamedRecords<'a, W> {
    /// A text under this title.
    pub fn text(title: &str, out: &'a mut W) -> Self {
        Self::new(Unit::Table, format!("{title}\n"), None, out)
    }

    /// A JSON document, which gets the member `recording`.
    pub fn document(name: &str, out: &'a mut W) -> Self {
        Self::new(Unit::Table, member(name), None, out)
    }

    /// JSON lines, each of which gets the member `recording`.
    pub fn json_lines(name: &str, out: &'a mut W) -> Self {
        Self::new(Unit::JsonLine, member(name), None, out)
    }

    /// CSV, which gets the column `recording`.
    pub fn csv(name: &str, heading: Heading, out: &'a mut W) -> Self {
        let field = format!("\"{}\",", name.replace('"', "\"\""));
        Self::new(Unit::CsvRecord, field, Some(heading), out)
    }

    fn new(unit: Unit, name: String, heading: Option<Heading>, out: &'a mut W) -> Self {
        Self {
            out,
            unit,
            name: name.into(),
            at_start: true,
            heading,
            is_quoted: false,
        }
    }

    /// Bytes of `rest` up to the end of the record.
    fn record_length(&mut self, rest: &[u8]) -> usize {
        let ends = |byte: &u8| {
            self.is_quoted ^= self.unit == Unit::CsvRecord && *byte == b'"';
            *byte == b'\n' && !self.is_quoted && self.unit != Unit::Table
        };
        let end = rest.iter().position(ends);
        self.at_start = end.is_some();
        end.map_or(rest.len(), |end| end + 1)
    }
}

/// The start of an object with the member `recording`, in place of its brace.
fn member(name: &str) -> String {
    format!("{{\"recording\": {},", serde_json::Value::from(name))
}

impl<W: Write> Write for NamedRecords<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let was_at_start = self.at_start;
            let (mut record, behind) = rest.split_at(self.record_length(rest));
            rest = behind;
            if was_at_start {
                match self.heading {
                    None => self.out.write_all(&self.name)?,
                    Some(Heading::First) => self.out.write_all(b"recording,")?,
                    Some(Heading::Repeated) => {}
                }
                if self.name.starts_with(b"{") {
                    record = record.strip_prefix(b"{").unwrap_or(record);
                }
            }
            if self.heading != Some(Heading::Repeated) {
                self.out.write_all(record)?;
            }
            if self.at_start {
                self.heading = None;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a table in pieces of each size, which give the same text.
    fn written(
        table: &str,
        named: impl Fn(&mut Vec<u8>, &mut dyn FnMut(&mut dyn Write)),
    ) -> String {
        let with_pieces = |size: usize| {
            let mut out = Vec::new();
            named(&mut out, &mut |named| {
                for piece in table.as_bytes().chunks(size) {
                    named.write_all(piece).unwrap();
                }
            });
            String::from_utf8(out).unwrap()
        };
        let whole = with_pieces(1 << 10);
        for size in 1..5 {
            assert_eq!(with_pieces(size), whole);
        }
        whole
    }

    #[test]
    fn each_json_line_names_its_recording() {
        let lines = "{\"a\":1}\n{\"b\":\"{\\n\"}\n";
        let text = written(lines, |out, write| {
            write(&mut NamedRecords::json_lines("r\"0", out));
        });
        assert_eq!(
            text,
            "{\"recording\": \"r\\\"0\",\"a\":1}\n{\"recording\": \"r\\\"0\",\"b\":\"{\\n\"}\n"
        );
    }

    #[test]
    fn a_document_names_its_recording_once() {
        let text = written("{\n\"a\": {}\n}\n", |out, write| {
            write(&mut NamedRecords::document("r", out));
        });
        assert_eq!(text, "{\"recording\": \"r\",\n\"a\": {}\n}\n");
    }

    #[test]
    fn csv_has_one_heading_and_records_that_span_lines() {
        let table = "file,line\n\"a\n\"\"b\",1\nc,2\n";
        let text = written(table, |out, write| {
            write(&mut NamedRecords::csv("r0", Heading::First, out));
            write(&mut NamedRecords::csv("r,1", Heading::Repeated, out));
        });
        assert_eq!(
            text,
            "recording,file,line\n\"r0\",\"a\n\"\"b\",1\n\"r0\",c,2\n\"r,1\",\"a\n\"\"b\",1\n\"r,1\",c,2\n"
        );
    }
}

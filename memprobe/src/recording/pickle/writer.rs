//! Writes plain data as a pickle of protocol 2.
//!
//! PyTorch's page opens protocols 2 to 4, and no opcode beyond those here (torch/utils/viz/MemoryViz.js). Every Python
//! reads protocol 2.

use std::io::{self, Write};

use hashbrown::HashMap;
use serde::Serialize;
use serde_json::{Map, Value as Json};

/// Items that one opcode adds to a list or dict, as many as CPython's pickler (`BATCHSIZE`, Modules/_pickle.c).
const BATCH: usize = 1000;

/// A value that was written, to refer to again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickleMemo(u32);

/// Writer of one pickle. The caller nests values; every key is followed by its value.
#[derive(Debug)]
pub struct PickleWriter<W> {
    out: W,
    /// Number of the next value to refer to.
    next: u32,
    texts: HashMap<Box<str>, u32>,
}

impl<W: Write> PickleWriter<W> {
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"\x80\x02")?;
        Ok(Self {
            out,
            next: 0,
            texts: HashMap::new(),
        })
    }

    /// Ends the pickle after its only value.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    pub fn none(&mut self) -> io::Result<()> {
        self.out.write_all(b"N")
    }

    pub fn bool(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(if value { b"\x88" } else { b"\x89" })
    }

    pub fn int(&mut self, value: i64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(value) {
            return self.out.write_all(&[b'K', small]);
        }
        if let Ok(short) = u16::try_from(value) {
            return self.with_argument(b'M', &short.to_le_bytes());
        }
        if let Ok(word) = i32::try_from(value) {
            return self.with_argument(b'J', &word.to_le_bytes());
        }
        let bytes = value.to_le_bytes();
        // Bytes that repeat the sign are left out.
        let sign = if value < 0 { 0xff } else { 0 };
        let mut length = bytes.len();
        while length > 1 && bytes[length - 1] == sign && bytes[length - 2] >> 7 == sign >> 7 {
            length -= 1;
        }
        self.out.write_all(&[b'\x8a', length as u8])?;
        self.out.write_all(&bytes[..length])
    }

    /// Writes an address or size; beyond 2^63 as the largest number, which no real one reaches.
    pub fn unsigned(&mut self, value: u64) -> io::Result<()> {
        self.int(i64::try_from(value).unwrap_or(i64::MAX))
    }

    pub fn float(&mut self, value: f64) -> io::Result<()> {
        self.with_argument(b'G', &value.to_be_bytes())
    }

    /// Writes a text, or refers to an equal one.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(known) = self.texts.get(text) {
            return self.refer(PickleMemo(*known));
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.with_argument(b'X', &length.to_le_bytes())?;
        self.out.write_all(text.as_bytes())?;
        let PickleMemo(number) = self.memo()?;
        self.texts.insert(text.into(), number);
        Ok(())
    }

    /// Makes the value that was just written one to refer to.
    pub fn memo(&mut self) -> io::Result<PickleMemo> {
        let number = self.next;
        self.next = (number.checked_add(1))
            .ok_or_else(|| io::Error::other("more values than a pickle can refer to"))?;
        match u8::try_from(number) {
            Ok(small) => self.out.write_all(&[b'q', small])?,
            Err(_) => self.with_argument(b'r', &number.to_le_bytes())?,
        }
        Ok(PickleMemo(number))
    }

    /// Writes the value of a memo again, as the same object.
    pub fn refer(&mut self, memo: PickleMemo) -> io::Result<()> {
        match u8::try_from(memo.0) {
            Ok(small) => self.out.write_all(&[b'h', small]),
            Err(_) => self.with_argument(b'j', &memo.0.to_le_bytes()),
        }
    }

    pub fn empty_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }

    pub fn empty_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}")
    }

    /// Begins items for a list, a tuple or a dict.
    pub fn mark(&mut self) -> io::Result<()> {
        self.out.write_all(b"(")
    }

    /// Adds the items since the mark to the list before it.
    pub fn append(&mut self) -> io::Result<()> {
        self.out.write_all(b"e")
    }

    /// Adds the keys and values since the mark to the dict before it.
    pub fn set(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    /// Makes the items since the mark a tuple.
    pub fn tuple(&mut self) -> io::Result<()> {
        self.out.write_all(b"t")
    }

    /// Writes a record of plain data as a dict.
    pub fn record(&mut self, record: &impl Serialize) -> io::Result<()> {
        self.json(&serde_json::to_value(record)?)
    }

    /// Writes a record as a dict that takes more keys and values, until [`Self::set`].
    pub fn open_record(&mut self, record: &impl Serialize) -> io::Result<()> {
        let Json::Object(fields) = serde_json::to_value(record)? else {
            return Err(io::Error::other("a record without fields"));
        };
        self.open_fields(&fields)
    }

    fn open_fields(&mut self, fields: &Map<String, Json>) -> io::Result<()> {
        self.empty_dict()?;
        self.mark()?;
        for (key, value) in fields {
            self.text(key)?;
            self.json(value)?;
        }
        Ok(())
    }

    fn json(&mut self, value: &Json) -> io::Result<()> {
        match value {
            Json::Null => self.none(),
            Json::Bool(value) => self.bool(*value),
            Json::Number(value) => match (value.as_u64(), value.as_i64(), value.as_f64()) {
                (Some(value), ..) => self.unsigned(value),
                (None, Some(value), _) => self.int(value),
                (None, None, value) => self.float(value.unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.text(text),
            Json::Array(items) => {
                self.empty_list()?;
                self.mark()?;
                for item in items {
                    self.json(item)?;
                }
                self.append()
            }
            Json::Object(fields) => {
                self.open_fields(fields)?;
                self.set()
            }
        }
    }

    fn with_argument(&mut self, opcode: u8, argument: &[u8]) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.out.write_all(argument)
    }
}

/// Items of a list of any length, which is written as they come.
#[derive(Debug, Default)]
pub struct PickleItems {
    /// Items since the last mark.
    open: usize,
}

impl PickleItems {
    /// To be called before each item.
    pub fn next<W: Write>(&mut self, out: &mut PickleWriter<W>) -> io::Result<()> {
        if self.open == BATCH {
            out.append()?;
            self.open = 0;
        }
        if self.open == 0 {
            out.mark()?;
        }
        self.open += 1;
        Ok(())
    }

    /// To be called after the last item.
    pub fn end<W: Write>(self, out: &mut PickleWriter<W>) -> io::Result<()> {
        if self.open > 0 {
            out.append()?;
        }
        Ok(())
    }
}

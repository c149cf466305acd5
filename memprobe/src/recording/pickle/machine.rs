//! Decodes a pickle into plain data: numbers, texts, lists and dicts.
//!
//! The opcodes are those of CPython's `Lib/pickletools.py` (3.14), protocols 2 to 5. Opcodes that import a name, call it
//! or make an object of a class end the decoding, so nothing in the file is ever executed. Memory is linear in the size
//! of the file: a value of 16 bytes takes at least one byte there.

use std::io::{BufRead, ErrorKind};
use std::sync::Arc;

use hashbrown::HashMap;

use super::PickleError;
use super::dict_keys::{Dict, PickledKeys};

/// Most opcodes of one pickle. An event takes about 20.
const MAX_OPCODES: u64 = 1 << 28;

/// Most lists and dicts of one pickle. An event takes one.
const MAX_CONTAINERS: usize = 1 << 25;

/// Most keys of a dict that are searched, from the last one back. A dict of a snapshot has about 15.
const MAX_SEARCHED_KEYS: usize = 64;

/// Longest text, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// Newest protocol.
const NEWEST: u8 = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(TextId),
    /// A list, tuple or set.
    List(ListId),
    Dict(DictId),
    /// Bytes, or a number of more than 64 bits.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ListId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DictId(u32);

/// Python's type of a [`Value::List`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceKind {
    List,
    Tuple,
    /// A set or frozenset.
    Set,
}

/// A decoded pickle. Values may refer to each other in circles.
#[derive(Debug)]
pub(super) struct Document {
    pub root: Value,
    values: Values,
}

impl Document {
    pub fn text(&self, id: TextId) -> &Arc<str> {
        &self.values.texts[id.0 as usize]
    }

    pub fn list(&self, id: ListId) -> &[Value] {
        &self.values.lists[id.0 as usize]
    }

    /// Counts the items of all lists.
    pub fn list_items(&self) -> usize {
        self.values.lists.iter().map(Vec::len).sum()
    }

    pub fn sequence_kind(&self, id: ListId) -> SequenceKind {
        self.values.sequence_kinds[id.0 as usize]
    }

    /// Counts the keys that were set in a dict.
    pub fn dict_len(&self, id: DictId) -> usize {
        self.values.dicts[id.0 as usize].values.len()
    }

    /// Returns keys and values of a dict, as they were set.
    pub fn dict(&self, id: DictId) -> impl Iterator<Item = (Value, Value)> {
        self.values.keys.pairs(&self.values.dicts[id.0 as usize])
    }

    /// Counts the references to each list and dict, with that of the root.
    pub fn references(&self) -> References {
        let mut references = References {
            lists: vec![0; self.values.lists.len()],
            dicts: vec![0; self.values.dicts.len()],
        };
        let items = self.values.lists.iter().flatten();
        for value in items.chain([&self.root]) {
            references.count(*value);
        }
        for dict in &self.values.dicts {
            for (key, value) in self.values.keys.pairs(dict) {
                references.count(key);
                references.count(value);
            }
        }
        references
    }

    /// Returns the latest value of a key of a dict, among its last [`MAX_SEARCHED_KEYS`].
    pub fn get(&self, dict: DictId, key: &str) -> Option<Value> {
        let is_key = |of: Value| matches!(of, Value::Text(id) if &**self.text(id) == key);
        let dict = &self.values.dicts[dict.0 as usize];
        let pairs = self.values.keys.pairs_from_last(dict);
        let mut pairs = pairs.take(MAX_SEARCHED_KEYS);
        pairs.find_map(|(of, value)| is_key(of).then_some(value))
    }
}

/// Numbers of references to lists and dicts; no more than 2 are counted.
#[derive(Debug)]
pub(super) struct References {
    lists: Vec<u8>,
    dicts: Vec<u8>,
}

impl References {
    fn count(&mut self, value: Value) {
        let count = match value {
            Value::List(id) => &mut self.lists[id.0 as usize],
            Value::Dict(id) => &mut self.dicts[id.0 as usize],
            _ => return,
        };
        *count = count.saturating_add(1).min(2);
    }

    /// True if several values refer to this list or dict.
    pub fn are_several(&self, value: Value) -> bool {
        match value {
            Value::List(id) => self.lists[id.0 as usize] > 1,
            Value::Dict(id) => self.dicts[id.0 as usize] > 1,
            _ => false,
        }
    }
}

/// Decodes one pickle; what follows its end is not read.
///
/// # Errors
///
/// If the source cannot be read, ends too early, is no pickle of plain data, or exceeds a limit.
pub(super) fn decode(input: impl BufRead) -> Result<Document, PickleError> {
    let mut machine = Machine {
        input: Input { input, offset: 0 },
        values: Values::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Memo::default(),
    };
    let root = machine.run()?;
    Ok(Document {
        root,
        values: machine.values,
    })
}

#[derive(Debug, Default)]
struct Values {
    texts: Vec<Arc<str>>,
    by_text: HashMap<Arc<str>, TextId>,
    lists: Vec<Vec<Value>>,
    sequence_kinds: Vec<SequenceKind>,
    dicts: Vec<Dict>,
    keys: PickledKeys,
}

impl Values {
    fn containers(&self) -> usize {
        self.lists.len() + self.dicts.len()
    }

    fn text(&mut self, text: &str) -> Value {
        if let Some(id) = self.by_text.get(text) {
            return Value::Text(*id);
        }
        let id = TextId(self.texts.len() as u32);
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.by_text.insert(text, id);
        Value::Text(id)
    }

    fn list(&mut self, kind: SequenceKind, items: Vec<Value>) -> Value {
        self.lists.push(items);
        self.sequence_kinds.push(kind);
        Value::List(ListId(self.lists.len() as u32 - 1))
    }

    fn dict(&mut self, items: &[Value]) -> Option<Value> {
        self.dicts.push(Dict::default());
        let id = DictId(self.dicts.len() as u32 - 1);
        self.set(id, items)?;
        Some(Value::Dict(id))
    }

    /// Adds keys and values, in turn; `None` if the last key has no value.
    fn set(&mut self, id: DictId, items: &[Value]) -> Option<()> {
        let pairs = items.chunks_exact(2);
        let whole = pairs.remainder().is_empty();
        let dict = &mut self.dicts[id.0 as usize];
        if dict.values.is_empty() {
            // Nearly all dicts get all their values at once.
            dict.values.reserve_exact(pairs.len());
        }
        for pair in pairs {
            self.keys.set(dict, pair[0], pair[1]);
        }
        whole.then_some(())
    }
}

/// Numbered values to refer to later.
#[derive(Debug, Default)]
struct Memo {
    /// Picklers number them in order.
    dense: Vec<Value>,
    sparse: HashMap<u32, Value>,
}

impl Memo {
    fn put(&mut self, at: u32, value: Value) {
        let length = self.dense.len();
        match self.dense.get_mut(at as usize) {
            Some(old) => *old = value,
            None if length == at as usize => self.dense.push(value),
            None => _ = self.sparse.insert(at, value),
        }
    }

    fn get(&self, at: u32) -> Option<Value> {
        let dense = self.dense.get(at as usize);
        dense.or_else(|| self.sparse.get(&at)).copied()
    }

    fn next(&self) -> u32 {
        (self.dense.len() + self.sparse.len()) as u32
    }
}

struct Input<R> {
    input: R,
    /// Bytes read.
    offset: u64,
}

impl<R: BufRead> Input<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => {
                self.offset += N as u64;
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(PickleError::Truncated {
                offset: self.offset,
            }),
            Err(error) => Err(PickleError::Io(error)),
        }
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, PickleError> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, PickleError> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads a text of `length` bytes into `to`.
    fn text(&mut self, length: u64, to: &mut Vec<u8>) -> Result<(), PickleError> {
        if length > MAX_TEXT {
            return Err(self.damaged(format!("a text of {length} bytes")));
        }
        to.resize(length as usize, 0);
        match self.input.read_exact(to) {
            Ok(()) => {
                self.offset += length;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(PickleError::Truncated {
                offset: self.offset,
            }),
            Err(error) => Err(PickleError::Io(error)),
        }
    }

    fn skip(&mut self, mut length: u64) -> Result<(), PickleError> {
        while length > 0 {
            let there = self.input.fill_buf().map_err(PickleError::Io)?.len() as u64;
            if there == 0 {
                return Err(PickleError::Truncated {
                    offset: self.offset,
                });
            }
            let part = there.min(length);
            self.input.consume(part as usize);
            self.offset += part;
            length -= part;
        }
        Ok(())
    }

    fn damaged(&self, reason: impl Into<String>) -> PickleError {
        PickleError::Damaged {
            offset: self.offset,
            reason: reason.into(),
        }
    }
}

struct Machine<R> {
    input: Input<R>,
    values: Values,
    stack: Vec<Value>,
    /// Lengths of the stack at the open marks.
    marks: Vec<usize>,
    memo: Memo,
}

impl<R: BufRead> Machine<R> {
    fn run(&mut self) -> Result<Value, PickleError> {
        if self.input.byte()? != b'\x80' {
            return Err(self.input.damaged("no protocol of 2 or above"));
        }
        self.protocol()?;
        let mut text = Vec::new();
        for _ in 0..MAX_OPCODES {
            let opcode = self.input.byte()?;
            if opcode == b'.' {
                return self.pop();
            }
            match self.scalar(opcode, &mut text)? {
                Some(value) => self.stack.push(value),
                None => self.compose(opcode)?,
            }
            if self.values.containers() > MAX_CONTAINERS {
                let most = format!("more than {MAX_CONTAINERS} lists and dicts");
                return Err(self.input.damaged(most));
            }
        }
        Err(self
            .input
            .damaged(format!("more than {MAX_OPCODES} opcodes")))
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        match self.input.byte()? {
            2..=NEWEST => Ok(()),
            other => Err(self.input.damaged(format!("protocol {other}"))),
        }
    }

    /// Reads a number, text or other value without parts; `None` for another opcode.
    fn scalar(&mut self, opcode: u8, text: &mut Vec<u8>) -> Result<Option<Value>, PickleError> {
        let input = &mut self.input;
        Ok(Some(match opcode {
            b'N' => Value::None,
            b'\x88' => Value::Bool(true),
            b'\x89' => Value::Bool(false),
            b'K' => Value::Int(input.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(input.bytes()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(input.bytes()?).into()),
            b'\x8a' => {
                let length = input.byte()?;
                long(input, length.into())?
            }
            b'\x8b' => {
                let length = input.u32()?;
                long(input, length.into())?
            }
            b'G' => Value::Float(f64::from_be_bytes(input.bytes()?)),
            b'\x8c' | b'X' | b'\x8d' => {
                let length = match opcode {
                    b'\x8c' => input.byte()?.into(),
                    b'X' => input.u32()?.into(),
                    _ => input.u64()?,
                };
                input.text(length, text)?;
                // Names of files may be no UTF-8: Python writes lone surrogates.
                self.values.text(&String::from_utf8_lossy(text))
            }
            b'C' | b'U' | b'B' | b'T' | b'\x8e' | b'\x96' => {
                let length = match opcode {
                    b'C' | b'U' => input.byte()?.into(),
                    b'B' | b'T' => input.u32()?.into(),
                    _ => input.u64()?,
                };
                input.skip(length)?;
                Value::Other
            }
            b']' => self.values.list(SequenceKind::List, Vec::new()),
            b')' => self.values.list(SequenceKind::Tuple, Vec::new()),
            b'\x8f' => self.values.list(SequenceKind::Set, Vec::new()),
            b'}' => self.values.dict(&[]).expect("no key lacks a value"),
            _ => return Ok(None),
        }))
    }

    /// Executes an opcode that works on the values so far.
    fn compose(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            b'\x80' => self.protocol()?,
            // A frame is only a hint for buffers.
            b'\x95' => _ = self.input.u64()?,
            b'(' => self.marks.push(self.stack.len()),
            b'0' => _ = self.pop()?,
            b'1' => _ = self.since_mark()?,
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b't' | b'l' | b'\x91' => {
                let items = self.since_mark()?;
                let kind = match opcode {
                    b't' => SequenceKind::Tuple,
                    b'l' => SequenceKind::List,
                    _ => SequenceKind::Set,
                };
                let list = self.values.list(kind, items);
                self.stack.push(list);
            }
            b'd' => {
                let items = self.since_mark()?;
                let dict = self.values.dict(&items);
                let dict = dict.ok_or_else(|| self.input.damaged(ODD))?;
                self.stack.push(dict);
            }
            b'\x85' | b'\x86' | b'\x87' => {
                let from = self.lowest(usize::from(opcode - b'\x84'))?;
                let items = self.stack.split_off(from);
                let list = self.values.list(SequenceKind::Tuple, items);
                self.stack.push(list);
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' | b'\x90' => {
                let items = self.since_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let from = self.lowest(2)?;
                let items = self.stack.split_off(from);
                self.set(&items)?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(&items)?;
            }
            b'q' | b'r' | b'\x94' => {
                let at = match opcode {
                    b'q' => self.input.byte()?.into(),
                    b'r' => self.input.u32()?,
                    _ => self.memo.next(),
                };
                let top = self.top()?;
                self.memo.put(at, top);
            }
            b'h' | b'j' => {
                let at = match opcode {
                    b'h' => self.input.byte()?.into(),
                    _ => self.input.u32()?,
                };
                let value = self.memo.get(at);
                let value = value.ok_or_else(|| self.input.damaged("an unknown memo"))?;
                self.stack.push(value);
            }
            b'c' | b'\x93' | b'i' | b'R' | b'o' | b'\x81' | b'\x92' | b'b' | b'P' | b'Q'
            | b'\x82' | b'\x83' | b'\x84' | b'\x97' | b'\x98' => {
                return Err(PickleError::Object {
                    offset: self.input.offset - 1,
                });
            }
            other => return Err(self.input.damaged(format!("the opcode {other:#04x}"))),
        }
        Ok(())
    }

    fn lowest(&self, count: usize) -> Result<usize, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(count);
        let from = from.filter(|from| *from >= floor);
        from.ok_or_else(|| self.input.damaged("too few values"))
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        let from = self.lowest(1)?;
        Ok(self.stack.remove(from))
    }

    fn top(&self) -> Result<Value, PickleError> {
        Ok(self.stack[self.lowest(1)?])
    }

    fn since_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark = self.marks.pop();
        let mark = mark.ok_or_else(|| self.input.damaged("no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn append(&mut self, items: &[Value]) -> Result<(), PickleError> {
        match self.top()? {
            Value::List(id) => self.values.lists[id.0 as usize].extend(items),
            _ => return Err(self.input.damaged("values for no list")),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Value]) -> Result<(), PickleError> {
        match self.top()? {
            Value::Dict(id) => self.values.set(id, items),
            _ => return Err(self.input.damaged("values for no dict")),
        }
        .ok_or_else(|| self.input.damaged(ODD))
    }
}

const ODD: &str = "a key without a value";

/// Reads a number of `length` bytes.
fn long<R: BufRead>(input: &mut Input<R>, length: u64) -> Result<Value, PickleError> {
    if length > 8 {
        input.skip(length)?;
        return Ok(Value::Other);
    }
    let mut number: i64 = 0;
    for at in 0..length {
        number |= i64::from(input.byte()?) << (8 * at);
    }
    // The highest bit read is the sign.
    let unused = 64 - 8 * length as u32;
    Ok(Value::Int(match length {
        0 => 0,
        _ => number << unused >> unused,
    }))
}

#[cfg(test)]
mod tests;

//! Copies of PyTorch's pickles, in a protocol that its page opens. Python 3.14 writes protocol 5, which the page refuses.

use std::io::{self, BufRead, Write};

use hashbrown::HashMap;

use super::history::PickledDefinitions;
use super::machine::{DictId, Document, ListId, References, SequenceKind, Value};
use super::side_events::PickledSideEvents;
use super::writer::{PickleItems, PickleMemo, PickleWriter};
use super::{history, machine};
use crate::recording::RecordingError;

/// Deepest nesting that is copied. A snapshot has 7 levels.
const MAX_DEPTH: usize = 64;

/// Reason why a pickle cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum PickleCopyError {
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The value has no place in a copy.
    #[error("the snapshot has {0}, which memprobe cannot copy: open the file itself")]
    Value(&'static str),
    #[error("cannot write the export: {0}; send it to another file or disk")]
    Output(#[from] io::Error),
}

/// Copies a memory snapshot that PyTorch pickled; every value stays as it is.
///
/// # Errors
///
/// If it cannot be read or is no such snapshot, has a value that is no plain data, or cannot be written.
pub fn copy_pickle(input: impl BufRead, out: &mut impl Write) -> Result<(), PickleCopyError> {
    let read = || {
        let document = machine::decode(input)?;
        history::MemoryPickle::of(
            &document,
            &mut PickledDefinitions::of(&document),
            PickledSideEvents::default(),
        )?;
        Ok::<_, super::PickleError>(document)
    };
    let document = read().map_err(RecordingError::from)?;
    let mut copy = PickleCopy {
        references: document.references(),
        document: &document,
        memos: HashMap::new(),
        out: PickleWriter::new(out)?,
    };
    copy.value(document.root, 0)?;
    Ok(copy.out.finish()?)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Container {
    List(ListId),
    Dict(DictId),
}

struct PickleCopy<'a, W> {
    document: &'a Document,
    references: References,
    /// Lists and dicts that were written and are referred to again.
    memos: HashMap<Container, PickleMemo>,
    out: PickleWriter<W>,
}

impl<W: Write> PickleCopy<'_, W> {
    fn value(&mut self, value: Value, depth: usize) -> Result<(), PickleCopyError> {
        if depth > MAX_DEPTH {
            return Err(PickleCopyError::Value("more than 64 levels"));
        }
        let out = &mut self.out;
        match value {
            Value::None => out.none()?,
            Value::Bool(value) => out.bool(value)?,
            Value::Int(value) => out.int(value)?,
            Value::Float(value) => out.float(value)?,
            Value::Text(id) => out.text(self.document.text(id))?,
            Value::Other => return Err(PickleCopyError::Value("bytes or a number beyond 64 bits")),
            Value::List(id) => self.container(Container::List(id), depth)?,
            Value::Dict(id) => self.container(Container::Dict(id), depth)?,
        }
        Ok(())
    }

    fn container(&mut self, of: Container, depth: usize) -> Result<(), PickleCopyError> {
        let document = self.document;
        if let Some(memo) = self.memos.get(&of) {
            return Ok(self.out.refer(*memo)?);
        }
        match of {
            Container::List(id) if document.sequence_kind(id) == SequenceKind::Set => {
                return Err(PickleCopyError::Value("a set"));
            }
            Container::List(id) if document.sequence_kind(id) == SequenceKind::Tuple => {
                self.out.mark()?;
                for item in document.list(id) {
                    self.value(*item, depth + 1)?;
                }
                self.out.tuple()?;
                self.remember(of)?;
            }
            Container::List(id) => {
                self.out.empty_list()?;
                self.remember(of)?;
                let mut items = PickleItems::default();
                for item in document.list(id) {
                    items.next(&mut self.out)?;
                    self.value(*item, depth + 1)?;
                }
                items.end(&mut self.out)?;
            }
            Container::Dict(id) => {
                self.out.empty_dict()?;
                self.remember(of)?;
                self.out.mark()?;
                for (key, value) in document.dict(id) {
                    self.value(key, depth + 1)?;
                    self.value(value, depth + 1)?;
                }
                self.out.set()?;
            }
        }
        Ok(())
    }

    fn remember(&mut self, of: Container) -> io::Result<()> {
        let value = match of {
            Container::List(id) => Value::List(id),
            Container::Dict(id) => Value::Dict(id),
        };
        if self.references.are_several(value) {
            let memo = self.out.memo()?;
            self.memos.insert(of, memo);
        }
        Ok(())
    }
}

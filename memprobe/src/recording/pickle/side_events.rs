//! Header, marks, labels of blocks and threads, under keys of memprobe's own: PyTorch's format has no place for them.
//!
//! Each mark or set of labels has its position in the trace of a device, so that it stands between the same events
//! again. Blocks have the fields of the other recordings.

use std::sync::Arc;

use hashbrown::HashSet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::history::{PickledDefinitions, frames};
use super::machine::{DictId, Document, Value};
use super::metadata::WRITER_KEY;
use crate::event::{DeviceIndex, Event, PhaseMark, StackId, Tgid, Tid, TimeNs};
use crate::recording::names::{LabelScope, NamedRecord, NamesRecord, PendingNames};
use crate::recording::{Header, MAX_CONTEXT, MAX_MARKS};

/// Key of the [`Header`] of the recording.
pub const HEADER_KEY: &str = "memprobe_header";

/// Key of the list of threads.
pub const THREADS_KEY: &str = "memprobe_threads";

/// Key of the list of marks and labels.
pub const SIDE_EVENTS_KEY: &str = "memprobe_events";

/// Keys of the blocks of labels, of the [`NamesRecord`] that ends them, and of the frames of a mark.
pub const BLOCKS_KEY: &str = "labeled_blocks";
pub const LABELS_END_KEY: &str = "labels_end";
const FRAMES_KEY: &str = "frames";

/// Most marks and sets of labels.
const MAX_SIDE_EVENTS: usize = 2 * MAX_MARKS;

/// Most names of threads.
const MAX_THREADS: usize = 1 << 16;

/// Most labels of blocks in all.
const MAX_LABELS: usize = 1 << 22;

/// Deepest nesting of a record.
const MAX_DEPTH: usize = 8;

/// Most bytes of a record that is no list of blocks: those of its texts, and [`VALUE_BYTES`] for each value.
const MAX_RECORD: usize = 32 << 20;

/// Most bytes of all records. Records may refer to one text or list any number of times.
const MAX_ALL_RECORDS: usize = 1 << 32;

const VALUE_BYTES: usize = 16;

/// Place of a mark or of labels, and the mark.
#[derive(Debug, Serialize, Deserialize)]
pub struct SideEventRecord {
    /// Device whose trace `position` is of.
    pub device: u8,
    /// Entries of the trace before it.
    pub position: u64,
    /// Microseconds since 1970, or since the start if the wall clock was not set.
    pub time_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<MarkRecord>,
    /// Scope of labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopeRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct MarkRecord {
    tid: u32,
    phase: String,
    class: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeRecord {
    AllBlocks,
    BeforeAttach,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ThreadRecord {
    pub tid: u32,
    pub name: String,
}

impl From<&PhaseMark> for MarkRecord {
    fn from(mark: &PhaseMark) -> Self {
        Self {
            tid: mark.tid.0,
            phase: mark.phase.as_str().to_owned(),
            class: mark.class.to_string(),
        }
    }
}

impl From<LabelScope> for ScopeRecord {
    fn from(scope: LabelScope) -> Self {
        match scope {
            LabelScope::AllBlocks => Self::AllBlocks,
            LabelScope::Baseline => Self::BeforeAttach,
        }
    }
}

impl ScopeRecord {
    fn scope(self) -> LabelScope {
        match self {
            Self::AllBlocks => LabelScope::AllBlocks,
            Self::BeforeAttach => LabelScope::Baseline,
        }
    }
}

/// A mark or labels, and their place.
#[derive(Debug)]
pub(super) struct PickledSideEvent {
    pub device: DeviceIndex,
    pub position: u64,
    pub time_us: u64,
    /// Its time is set when it has its place.
    pub event: Event,
}

/// Marks and labels of a snapshot that memprobe wrote, by device and position; of others there are none.
#[derive(Debug, Default)]
pub(super) struct PickledSideEvents {
    pub events: Vec<PickledSideEvent>,
    /// Records that are not as memprobe writes them.
    pub refused: u64,
    labels: usize,
    records: RecordReader,
}

impl PickledSideEvents {
    /// Reads the marks and labels of a process.
    pub fn of(document: &Document, tgid: Tgid, definitions: &mut PickledDefinitions) -> Self {
        let mut found = Self::default();
        for entry in own_list(document, SIDE_EVENTS_KEY) {
            let event = match *entry {
                Value::Dict(entry) if found.events.len() < MAX_SIDE_EVENTS => {
                    found.read(document, (tgid, entry), definitions)
                }
                _ => None,
            };
            found.refused += u64::from(event.is_none());
            found.events.extend(event);
        }
        // Stable: those of one place keep their order.
        (found.events).sort_by_key(|event| (event.device, event.position));
        found
    }

    fn read(
        &mut self,
        document: &Document,
        (tgid, dict): (Tgid, DictId),
        definitions: &mut PickledDefinitions,
    ) -> Option<PickledSideEvent> {
        let place: SideEventRecord = self.records.decode(document, Value::Dict(dict))?;
        let event = match (place.mark, place.scope) {
            (Some(mark), None) => {
                let stack = frames(document, dict);
                let stack = stack.map(|frames| {
                    let facts = Default::default();
                    definitions.stacks.of(document, Some(frames), facts)
                });
                let class = self.records.intern(&mark.class);
                Event::PhaseMark(mark.mark(tgid, class, stack.unwrap_or(StackId::NONE))?)
            }
            (None, Some(scope)) => self.labels(document, (tgid, dict), scope.scope())?,
            _ => return None,
        };
        Some(PickledSideEvent {
            device: DeviceIndex(place.device),
            position: place.position,
            time_us: place.time_us,
            event,
        })
    }

    fn labels(
        &mut self,
        document: &Document,
        (tgid, dict): (Tgid, DictId),
        scope: LabelScope,
    ) -> Option<Event> {
        let blocks = match document.get(dict, BLOCKS_KEY) {
            Some(Value::List(blocks)) => document.list(blocks),
            _ => return None,
        };
        self.labels += blocks.len();
        if self.labels > MAX_LABELS {
            return None;
        }
        let mut names = PendingNames::default();
        let records = &mut self.records;
        for block in blocks {
            let block = records.read(document, *block)?;
            let block = NamedRecord::deserialize(&block).ok()?;
            names.push(&block, |text| records.intern(text)).ok()?;
        }
        let end = records.read(document, document.get(dict, LABELS_END_KEY)?)?;
        let end = NamesRecord::deserialize(&end).ok()?;
        let moment = (TimeNs(0), tgid);
        let labels = names.end_record(end, moment, |text| records.intern(text));
        Some(scope.event(labels.ok()?))
    }
}

impl MarkRecord {
    fn mark(self, tgid: Tgid, class: Arc<str>, stack: StackId) -> Option<PhaseMark> {
        Some(PhaseMark {
            time: TimeNs(0),
            tgid,
            tid: Tid(self.tid),
            phase: self.phase.parse().ok()?,
            class,
            stack,
        })
    }
}

/// Header of the recording that memprobe exported; `None` for other snapshots.
pub(super) fn header(document: &Document) -> Option<Header> {
    RecordReader::default().decode(document, own(document, HEADER_KEY)?)
}

/// Names of the threads in a snapshot that memprobe wrote.
pub(super) fn threads(document: &Document) -> Vec<Event> {
    let mut records = RecordReader::default();
    let mut found = Vec::new();
    for record in own_list(document, THREADS_KEY).iter().take(MAX_THREADS) {
        if let Some(thread) = records.decode::<ThreadRecord>(document, *record) {
            found.push(Event::Thread(Tid(thread.tid), records.intern(&thread.name)));
        }
    }
    found
}

/// Returns the list under a key of memprobe's own; empty if memprobe did not write the snapshot.
fn own_list<'a>(document: &'a Document, key: &str) -> &'a [Value] {
    match own(document, key) {
        Some(Value::List(list)) => document.list(list),
        _ => &[],
    }
}

/// Returns the value under a key of memprobe's own; `None` if memprobe did not write the snapshot.
fn own(document: &Document, key: &str) -> Option<Value> {
    let Value::Dict(root) = document.root else {
        return None;
    };
    document.get(root, WRITER_KEY)?;
    document.get(root, key)
}

/// Reads records of plain data, within limits. Equal texts of records are one.
#[derive(Debug)]
struct RecordReader {
    /// Bytes that may still be read.
    left: usize,
    texts: HashSet<Arc<str>>,
}

impl Default for RecordReader {
    fn default() -> Self {
        Self {
            left: MAX_ALL_RECORDS,
            texts: HashSet::new(),
        }
    }
}

impl RecordReader {
    fn intern(&mut self, text: &str) -> Arc<str> {
        Arc::clone(self.texts.get_or_insert_with(text, |text| text.into()))
    }

    /// Decodes a record; `None` if it is another.
    fn decode<T: DeserializeOwned>(&mut self, document: &Document, value: Value) -> Option<T> {
        serde_json::from_value(self.read(document, value)?).ok()
    }

    /// Returns a record; `None` if it is too large, or if too much was read before.
    fn read(&mut self, document: &Document, value: Value) -> Option<Json> {
        let most = MAX_RECORD.min(self.left);
        let mut left = most;
        let record = json(document, value, MAX_DEPTH, &mut left);
        self.left -= most - left;
        record
    }
}

/// Converts plain data without lists of frames and blocks; `None` if it is too large or deep.
fn json(document: &Document, value: Value, depth: usize, left: &mut usize) -> Option<Json> {
    let depth = depth.checked_sub(1)?;
    let mut charge = |bytes: usize| {
        *left = left.checked_sub(bytes)?;
        Some(())
    };
    charge(VALUE_BYTES)?;
    Some(match value {
        Value::None => Json::Null,
        Value::Bool(value) => value.into(),
        Value::Int(value) => value.into(),
        Value::Text(text) => {
            let text = document.text(text);
            charge(text.len())?;
            (text.len() <= MAX_CONTEXT).then(|| (**text).into())?
        }
        Value::List(list) => {
            let items = document.list(list).iter();
            let items = items.map(|item| json(document, *item, depth, left));
            Json::Array(items.collect::<Option<_>>()?)
        }
        Value::Dict(dict) => {
            charge(document.dict_len(dict).saturating_mul(VALUE_BYTES))?;
            let mut map = Map::new();
            for (key, value) in document.dict(dict) {
                let Value::Text(key) = key else { return None };
                let key = document.text(key);
                *left = left.checked_sub(key.len())?;
                if !matches!(&**key, FRAMES_KEY | BLOCKS_KEY | LABELS_END_KEY) {
                    map.insert((**key).to_owned(), json(document, value, depth, left)?);
                }
            }
            Json::Object(map)
        }
        Value::Float(_) | Value::Other => return None,
    })
}

#[cfg(test)]
mod tests;

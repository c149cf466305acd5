//! Report of every event of a recording, in its order, one row each.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Serialize;
use serde_json::value::RawValue;

use super::document_old::csv_error;
use super::structured::FrameRow;
use super::{Format, Outcome, ReportError, ReportOptions};
use crate::event::bytes::human;
use crate::event::{
    Action, BlockPurpose, BlockPurposes, Bytes, DeviceIndex, Event, Frame, Grad, Losses,
    MemoryEvent, Module, Node, Purpose, PurposeId, Stack, StackId, StackKind, Tid, TimeNs,
};
use crate::recording::Reader;
use crate::view::{FileNames, clean, named_stack};

/// Maximum number of stacks with cached text; the cache is cleared beyond it.
const MAX_TEXTS: usize = 1 << 14;

/// One event as JSON. Unknown values are null. The keys after `grad` are present only if they
/// apply.
#[derive(Serialize)]
struct Row<'a> {
    time_ns: u64,
    /// Unknown for blocks found at attach.
    tid: Option<u32>,
    action: &'static str,
    addr: Option<u64>,
    size: Option<u64>,
    device: Option<DeviceIndex>,
    allocated: Option<u64>,
    reserved: Option<u64>,
    /// The CUDA function that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'static str>,
    /// Kind of memory that CUDA allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<&'static str>,
    /// Tensor of the block.
    #[serde(flatten)]
    tensor: Tensor<'a>,
    stack: &'a RawValue,
    /// Innermost module being called; absent outside all modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    /// True if a module was being called that could not be identified.
    #[serde(skip_serializing_if = "Option::is_none")]
    module_unknown: Option<bool>,
    /// Grad mode of the thread, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    grad: Option<&'static str>,
    /// Native frames: the caller into CUDA if there are Python frames, the whole stack otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    native: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    /// Stack of the thread that waits for this one in `backward()`.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<&'a RawValue>,
    /// Autograd node that was being evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a RawValue>,
    /// Reason for the lack of a stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_stack: Option<&'static str>,
    /// True if outer frames of the stack (or of `waiting`) are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    stack_truncated: Option<bool>,
}

/// Tensor of an event, as JSON.
#[derive(Default, Serialize)]
struct Tensor<'a> {
    /// Elements in each dimension.
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<&'a [u64]>,
    /// Number of dimensions beyond those of `shape`.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_dimensions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<String>,
    /// Requested bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<u64>,
    /// False if the block is no tensor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<bool>,
    /// Purpose of such a block, inferred from the calling function.
    #[serde(skip_serializing_if = "Option::is_none")]
    inferred: Option<Inferred<'a>>,
}

impl<'a> Tensor<'a> {
    fn of(id: PurposeId, is: Option<&'a BlockPurpose>) -> Self {
        match is {
            None => Self {
                tensor: (id == PurposeId::NO_TENSOR).then_some(false),
                ..Self::default()
            },
            Some(BlockPurpose::Other(purpose)) => Self {
                tensor: Some(false),
                inferred: Some(purpose.into()),
                ..Self::default()
            },
            Some(BlockPurpose::Tensor(shape)) => Self {
                shape: Some(&shape.sizes),
                more_dimensions: (shape.more > 0).then_some(shape.more),
                dtype: Some(shape.dtype.to_string()),
                requested: shape.requested.map(|bytes| bytes.0),
                ..Self::default()
            },
        }
    }
}

/// Purpose of a block without a tensor, as JSON.
#[derive(Serialize)]
struct Inferred<'a> {
    /// Null if no known function is on the stack.
    purpose: Option<&'a str>,
    /// The recognized function, otherwise the innermost one outside the allocator.
    function: &'a str,
    library: &'a str,
}

impl<'a> From<&'a Purpose> for Inferred<'a> {
    fn from(purpose: &'a Purpose) -> Self {
        Self {
            purpose: purpose.what.as_deref(),
            function: &purpose.function,
            library: &purpose.library,
        }
    }
}

/// Writes each event as it is read.
pub(super) fn write<R: BufRead>(
    mut reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let mut losses = Losses::default();
    let mut stacks = Stacks::new()?;
    let mut rows = Rows::begin(options.format, out, reader.header().start)?;
    for event in reader.by_ref() {
        match event {
            Ok(Event::Memory(event)) => rows.push(&event, &mut stacks)?,
            Ok(Event::Stack(id, stack)) => stacks.define(id, stack),
            Ok(Event::BlockPurpose(id, is)) => stacks.uses.define(id, &is),
            Ok(Event::Loss(now)) => losses = now,
            Ok(
                Event::Thread(..)
                | Event::AtAttach(_)
                | Event::PhaseMark(_)
                | Event::BlockLabels(_),
            ) => {}
            Err(error) => {
                rows.flush()?;
                return Err(error.into());
            }
        }
    }
    rows.end()?;
    Ok(Outcome {
        events: reader.events(),
        losses,
        truncated: reader.truncated(),
    })
}

/// Frames and autograd node of a stack, as JSON.
struct Json {
    python: Box<RawValue>,
    native: Option<Box<RawValue>>,
    node: Option<Box<RawValue>>,
}

/// A node of autograd's graph, as JSON.
#[derive(Serialize)]
struct NodeRow<'a> {
    name: &'a str,
    /// Stack of the operation that made it; null if unknown.
    forward: Option<Vec<FrameRow<'a>>>,
}

impl<'a> From<&'a Node> for NodeRow<'a> {
    fn from(node: &'a Node) -> Self {
        let frames = |stack: &'a Arc<Stack>| stack.frames.iter().map(FrameRow::from).collect();
        Self {
            name: &node.name,
            forward: node.forward.as_ref().map(frames),
        }
    }
}

impl Json {
    fn of(stack: &Stack) -> io::Result<Self> {
        let is_native = |frame: &&Frame| frame.library.is_some();
        let (native, python): (Vec<_>, Vec<_>) = stack.frames.iter().partition(is_native);
        let json = |frames: Vec<&Frame>| {
            let rows: Vec<FrameRow> = frames.into_iter().map(FrameRow::from).collect();
            serde_json::value::to_raw_value(&rows)
        };
        Ok(Self {
            python: json(python)?,
            native: (!native.is_empty()).then(|| json(native)).transpose()?,
            node: (stack.context.node.as_ref())
                .map(|node| serde_json::value::to_raw_value(&NodeRow::from(&**node)))
                .transpose()?,
        })
    }
}

/// Stacks by id with their cached JSON, and purposes by id.
struct Stacks {
    uses: BlockPurposes,
    stacks: HashMap<StackId, Arc<Stack>>,
    json: HashMap<StackId, Json>,
    empty: Box<RawValue>,
}

impl Stacks {
    fn new() -> io::Result<Self> {
        let empty = serde_json::value::to_raw_value::<[FrameRow; 0]>(&[])?;
        Ok(Self {
            uses: BlockPurposes::default(),
            stacks: HashMap::new(),
            json: HashMap::new(),
            empty,
        })
    }

    fn define(&mut self, id: StackId, stack: Arc<Stack>) {
        self.json.remove(&id);
        self.stacks.insert(id, stack);
    }

    fn get(&self, id: StackId) -> Option<&Stack> {
        self.stacks.get(&id).map(|stack| &**stack)
    }

    /// Caches the JSON of a stack's frames.
    fn prepare(&mut self, id: StackId) -> io::Result<()> {
        let Some(stack) = self.stacks.get(&id) else {
            return Ok(());
        };
        if self.json.contains_key(&id) {
            return Ok(());
        }
        if self.json.len() >= MAX_TEXTS {
            self.json.clear();
        }
        self.json.insert(id, Json::of(stack)?);
        Ok(())
    }

    /// A stack and its JSON, if [`Self::prepare`] was called for it.
    fn with_json(&self, id: StackId) -> Option<(&Stack, &Json)> {
        Some((self.stacks.get(&id)?, self.json.get(&id)?))
    }
}

/// Writer of rows.
enum Rows<'a, W: Write> {
    Text {
        out: &'a mut W,
        start: TimeNs,
    },
    Json {
        out: &'a mut W,
        between: &'static str,
    },
    Jsonl {
        out: &'a mut W,
    },
    Csv {
        table: Box<csv::Writer<&'a mut W>>,
    },
}

impl<'a, W: Write> Rows<'a, W> {
    fn begin(format: Format, out: &'a mut W, start: TimeNs) -> io::Result<Self> {
        Ok(match format {
            Format::Text => Self::Text { out, start },
            Format::Jsonl => Self::Jsonl { out },
            Format::Json => Self::Json {
                out,
                between: "[\n",
            },
            Format::Csv => {
                let mut table = Box::new(csv::Writer::from_writer(out));
                table
                    .write_record([
                        "time_ns",
                        "tid",
                        "action",
                        "addr",
                        "size",
                        "device",
                        "allocated",
                        "reserved",
                        "shape",
                        "dtype",
                        "requested",
                        "stack",
                        "purpose",
                    ])
                    .map_err(csv_error)?;
                Self::Csv { table }
            }
        })
    }

    fn push(&mut self, event: &MemoryEvent, stacks: &mut Stacks) -> io::Result<()> {
        match self {
            Self::Text { out, start } => {
                let tensor = words(event.shape, &stacks.uses);
                let stack = stacks.get(event.stack);
                writeln!(out, "{}", text(event, *start, &tensor, stack))
            }
            Self::Jsonl { out } => {
                json(out, event, stacks)?;
                out.write_all(b"\n")
            }
            Self::Json { out, between } => {
                out.write_all(between.as_bytes())?;
                *between = ",\n";
                json(out, event, stacks)
            }
            Self::Csv { table } => {
                let number =
                    |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
                let is = stacks.uses.get(event.shape);
                let shape = is.and_then(|is| is.tensor());
                let purpose = is.and_then(|is| is.purpose());
                table
                    .write_record([
                        event.time.0.to_string(),
                        number(tid(event).map(u64::from)),
                        event.action.as_str().to_owned(),
                        addr(event).map_or_else(String::new, |addr| format!("{addr:#x}")),
                        number(size(event)),
                        event
                            .device
                            .map_or_else(String::new, |device| match device {
                                DeviceIndex::CPU => device.to_string(),
                                DeviceIndex(ordinal) => ordinal.to_string(),
                            }),
                        number(event.totals.map(|totals| totals.allocated.0)),
                        number(event.totals.map(|totals| totals.reserved.0)),
                        shape.map(ToString::to_string).unwrap_or_default(),
                        shape.map(|it| it.dtype.to_string()).unwrap_or_default(),
                        number(shape.and_then(|it| Some(it.requested?.0))),
                        stacks.get(event.stack).map(in_words).unwrap_or_default(),
                        purpose.map(ToString::to_string).unwrap_or_default(),
                    ])
                    .map_err(csv_error)
            }
        }
    }

    fn end(&mut self) -> io::Result<()> {
        if let Self::Json { out, between } = self {
            out.write_all(if *between == ",\n" { b"\n]\n" } else { b"[]\n" })?;
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Text { out, .. } | Self::Json { out, .. } | Self::Jsonl { out } => out.flush(),
            Self::Csv { table } => table.flush(),
        }
    }
}

fn json(out: &mut impl Write, event: &MemoryEvent, stacks: &mut Stacks) -> io::Result<()> {
    stacks.prepare(event.stack)?;
    let known = stacks.with_json(event.stack);
    let (mut stack, mut thread, mut waiting, mut no_stack) = (&*stacks.empty, None, None, None);
    match known.map(|(stack, json)| (&stack.kind, &*json.python)) {
        None => {}
        Some((StackKind::Python | StackKind::Native, frames)) => stack = frames,
        Some((StackKind::Waiting { thread: name }, frames)) => {
            (thread, waiting) = (Some(&**name), Some(frames));
        }
        Some((
            StackKind::Unknown {
                thread: name,
                reason,
            },
            _,
        )) => {
            (thread, no_stack) = (Some(&**name), Some(reason.as_str()));
        }
    }
    let context = known.map(|(stack, _)| &stack.context);
    let row = Row {
        time_ns: event.time.0,
        tid: tid(event),
        action: event.action.as_str(),
        addr: addr(event),
        size: size(event),
        device: event.device,
        allocated: event.totals.map(|totals| totals.allocated.0),
        reserved: event.totals.map(|totals| totals.reserved.0),
        function: event.call.map(|call| call.function),
        space: event.call.map(|call| call.space.as_str()),
        tensor: Tensor::of(event.shape, stacks.uses.get(event.shape).map(|it| &**it)),
        stack,
        module: context.and_then(|context| Some(&**context.module.path()?)),
        module_unknown: context.and_then(|context| is_unknown(&context.module).then_some(true)),
        grad: context.and_then(|context| grad(context.grad)),
        native: known.and_then(|(_, json)| json.native.as_deref()),
        thread,
        waiting,
        node: known.and_then(|(_, json)| json.node.as_deref()),
        no_stack,
        stack_truncated: known.and_then(|(stack, _)| stack.truncated.then_some(true)),
    };
    Ok(serde_json::to_writer(out, &row)?)
}

fn is_unknown(module: &Module) -> bool {
    *module == Module::Unknown
}

fn grad(grad: Grad) -> Option<&'static str> {
    (grad != Grad::Unknown).then_some(grad.as_str())
}

fn tid(event: &MemoryEvent) -> Option<u32> {
    (event.tid != Tid::UNKNOWN).then_some(event.tid.0)
}

/// Address of an event; out-of-memory errors have none.
fn addr(event: &MemoryEvent) -> Option<u64> {
    (event.action != Action::OutOfMemory).then_some(event.addr.0)
}

/// Size of an event; unknown for a free of memory whose allocation was not seen.
fn size(event: &MemoryEvent) -> Option<u64> {
    let is_free = matches!(event.action, Action::SegmentFree | Action::CudaFree)
        || event.action == Action::Free && event.device == Some(DeviceIndex::CPU);
    let unknown = is_free && event.size == Bytes(0);
    (!unknown).then_some(event.size.0)
}

/// One event as text.
fn text(event: &MemoryEvent, start: TimeNs, tensor: &str, stack: Option<&Stack>) -> String {
    let since = i128::from(event.time.0) - i128::from(start.0);
    let device = event.device.unwrap_or(DeviceIndex::UNKNOWN);
    let size = size(event).map_or_else(|| "?".to_owned(), |size| human(Bytes(size)));
    let addr = addr(event).map_or_else(|| "-".to_owned(), |addr| format!("{addr:#x}"));
    let mut line = format!(
        "{:>12.6} s  {:>7}  {:<13}  {size:>11}  {device:<6}  {addr:<14}",
        since as f64 / 1e9,
        tid(event).map_or_else(|| "-".to_owned(), |tid| tid.to_string()),
        event.action.as_str(),
    );
    if let Some(totals) = event.totals {
        line.push_str(&format!(
            "  allocated {}  reserved {}",
            human(totals.allocated),
            human(totals.reserved)
        ));
    }
    if !tensor.is_empty() {
        line.push_str("  ");
        line.push_str(tensor);
    }
    if let Some(call) = event.call {
        line.push_str(&format!("  {} ({})", call.function, call.space.as_str()));
    }
    if let Some(stack) = stack {
        line.push_str("  ");
        line.push_str(&in_words(stack));
    }
    line.trim_end().to_owned()
}

/// Tensor or purpose of an event, as text.
fn words(id: PurposeId, uses: &BlockPurposes) -> String {
    match uses.get(id).map(|is| &**is) {
        Some(BlockPurpose::Tensor(shape)) => format!("{shape} {}", shape.dtype),
        Some(BlockPurpose::Other(purpose)) => clean(&purpose.to_string()),
        None if id == PurposeId::NO_TENSOR => "no tensor".to_owned(),
        None => String::new(),
    }
}

/// A whole stack on one line, innermost frame first.
fn in_words(stack: &Stack) -> String {
    let names = FileNames::default();
    named_stack(stack, usize::MAX, |frame| names.frame(frame))
}

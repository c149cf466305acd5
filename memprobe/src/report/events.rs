//! Report of every event of a recording, in its order, one row each.

use std::io::{self, BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::value::{RawValue, to_raw_value};

use super::{Outcome, ReportError, ReportFormat, ReportOptions, cells};
use crate::attribution::RootVariables;
use crate::event::bytes::human;
use crate::event::{
    Action, Address, BlockPurpose, BlockPurposes, Bytes, DeviceIndex, Event, Frame, Grad, Losses,
    MemoryEvent, Module, Node, Purpose, PurposeId, Stack, StackId, StackKind, TensorSpec, Tid,
    TimeNs,
};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, CsvWriter, Data, columns, json_object};
use crate::view::{FileNames, clean, named_stack};

/// Maximum number of stacks with cached text; the cache is cleared beyond it.
const MAX_TEXTS: usize = 1 << 14;

struct EventEntry {
    event: MemoryEvent,
    purpose: Option<Arc<BlockPurpose>>,
    stack: Option<Arc<Stack>>,
    /// Frames of the stack as JSON, and its module; only for JSON.
    json: Option<Rc<StackJson>>,
}

impl EventEntry {
    fn spec(&self) -> Option<&TensorSpec> {
        self.purpose.as_ref()?.tensor()
    }

    fn other_purpose(&self) -> Option<&Purpose> {
        self.purpose.as_ref()?.purpose()
    }

    /// False if the block is no tensor's.
    fn is_tensor(&self) -> Option<bool> {
        let is_none = self.event.shape == PurposeId::NO_TENSOR || self.other_purpose().is_some();
        is_none.then_some(false)
    }

    fn context<'r, T>(&'r self, value: impl Fn(&'r Stack) -> Option<T>) -> Option<T> {
        self.stack.as_deref().and_then(value)
    }

    /// Thread without a Python stack of its own.
    fn thread(&self) -> Option<&str> {
        match &self.stack.as_ref()?.kind {
            StackKind::Waiting { thread } | StackKind::Unknown { thread, .. } => Some(thread),
            StackKind::Python | StackKind::Native => None,
        }
    }

    /// Python frames as JSON, if the stack is of this kind.
    fn frames(&self, is_wanted: fn(&StackKind) -> bool) -> Option<Cell<'_>> {
        let stack = self.stack.as_ref()?;
        is_wanted(&stack.kind).then_some(())?;
        Some(Cell::Json(&self.json.as_ref()?.python))
    }
}

type EventColumn = Column<EventEntry>;

fn columns() -> Vec<EventColumn> {
    let mut columns = Vec::from(columns![|row: EventEntry|
        data("time_ns") => row.event.time.0,
        data("tid") => tid(&row.event),
        data("action") => row.event.action.as_str(),
        data("addr") => addr(&row.event).map(Cell::Address),
        data("size") => size(&row.event),
        data("device") => row.event.device,
        data("allocated") => row.event.totals.map(|totals| totals.allocated),
        data("reserved") => row.event.totals.map(|totals| totals.reserved),
        // The CUDA function that was called, and the kind of memory that it allocated.
        json("function") => row.event.call.map(|call| call.function),
        json("space") => row.event.call.map(|call| call.space.as_str()),
        json("shape") => row.spec().map(|spec| Cell::Shape((&*spec.sizes).into())),
        data("shape").only(Data::Csv) => row.spec().map(ToString::to_string),
        // Number of dimensions beyond those of `shape`.
        json("more_dimensions") => row.spec().map(|spec| spec.more).filter(|more| *more > 0),
        data("dtype").only(Data::Sparse) => row.spec().map(|spec| spec.dtype.to_string()),
        data("requested").only(Data::Sparse) => row.spec().and_then(|spec| spec.requested),
        json("tensor") => row.is_tensor(),
        json("inferred") => row.other_purpose().map(inferred),
    ]);
    columns.extend(stack_columns());
    columns
}

/// Columns of the stack; the purpose of the block comes last in CSV.
fn stack_columns() -> Vec<EventColumn> {
    columns![|row: EventEntry|
        data("stack").only(Data::Csv) => row.stack.as_deref().map(in_words),
        json("stack") => row.frames(|kind| matches!(kind, StackKind::Python | StackKind::Native))
            .unwrap_or(Cell::List(Vec::new())),
        // Innermost module being called; absent outside all modules.
        json("module") => row.json.as_ref().and_then(|json| json.module.as_deref()),
        json("module_unknown") => row.context(|stack| (stack.context.module == Module::Unknown).then_some(true)),
        json("grad") => row.context(|stack| grad(stack.context.grad)),
        // Native frames: the caller into CUDA if there are Python frames, the whole stack otherwise.
        json("native") => row.json.as_ref().and_then(|json| Some(Cell::Json(json.native.as_deref()?))),
        json("thread") => row.thread(),
        // Stack of the thread that waits for this one in `backward()`.
        json("waiting") => row.frames(|kind| matches!(kind, StackKind::Waiting { .. })),
        // Autograd node that was being evaluated.
        json("node") => row.json.as_ref().and_then(|json| Some(Cell::Json(json.node.as_deref()?))),
        // Reason for the lack of a stack.
        json("no_stack") => row.context(|stack| match &stack.kind {
            StackKind::Unknown { reason, .. } => Some(reason.as_str()),
            _ => None,
        }),
        json("stack_truncated") => row.context(|stack| stack.truncated.then_some(true)),
        data("purpose").only(Data::Csv) => row.other_purpose().map(ToString::to_string),
    ]
    .into()
}

/// Purpose of a block without a tensor, inferred from a function on its stack.
fn inferred(purpose: &Purpose) -> Cell<'_> {
    Cell::Object(vec![
        // Null if no known function is on the stack.
        ("purpose", purpose.what.as_deref().into()),
        // The recognized function, otherwise the innermost one outside the allocator.
        ("function", (&*purpose.function).into()),
        ("library", (&*purpose.library).into()),
    ])
}

pub(super) fn write<R: BufRead>(
    mut reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let mut losses = Losses::default();
    let is_json = matches!(options.format, ReportFormat::Json | ReportFormat::Jsonl);
    let ahead = reader.reopened().filter(|_| is_json);
    let mut stacks = Stacks {
        variables: ahead.map(variables).unwrap_or_default(),
        ..Stacks::default()
    };
    let columns = columns();
    let mut rows = Rows::begin(options.format, &columns, out, reader.header().start)?;
    for event in reader.by_ref() {
        match event {
            Ok(Event::Memory(event)) => rows.push(&columns, &stacks.row(event, options.format)?)?,
            Ok(Event::Stack(id, stack)) => stacks.define(id, stack),
            Ok(Event::BlockPurpose(id, is)) => stacks.purposes.define(id, &is),
            Ok(Event::Loss(now)) => losses = now,
            Ok(
                Event::Thread(..)
                | Event::AtAttach(_)
                | Event::PhaseMark(_)
                | Event::BlockLabels(_)
                | Event::BaselineLabels(_)
                | Event::Segments(_)
                | Event::Driver(_)
                | Event::Capture(_),
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
        damage: reader.damage(),
    })
}

/// Reads the variables of models, which a recording learns after their first blocks, up to any damage.
fn variables<R: BufRead>(reader: Reader<R>) -> RootVariables {
    let mut variables = RootVariables::default();
    for event in reader.map_while(Result::ok) {
        if let Event::BlockLabels(names) | Event::BaselineLabels(names) = event {
            variables.learn(&names);
        }
    }
    variables
}

struct StackJson {
    /// Innermost module being called, as in the other reports.
    module: Option<Arc<str>>,
    python: Box<RawValue>,
    native: Option<Box<RawValue>>,
    node: Option<Box<RawValue>>,
}

impl StackJson {
    fn new(stack: &Stack, variables: &RootVariables) -> io::Result<Self> {
        let is_native = |frame: &&Frame| frame.library.is_some();
        let (native, python): (Vec<_>, Vec<_>) = stack.frames.iter().partition(is_native);
        let json =
            |frames: Vec<&Frame>| to_raw_value(&Cell::list(frames.into_iter().map(cells::frame)));
        let node = stack.context.node.as_ref();
        let module = stack.context.module.path();
        Ok(Self {
            module: module.map(|path| variables.named(path)),
            python: json(python)?,
            native: (!native.is_empty()).then(|| json(native)).transpose()?,
            node: node
                .map(|node| to_raw_value(&node_cell(node)))
                .transpose()?,
        })
    }
}

/// A node of autograd's graph, with the stack of the operation that made it.
fn node_cell(node: &Node) -> Cell<'_> {
    let forward = node.forward.as_ref();
    let forward = forward.map(|stack| cells::frames(&stack.frames));
    Cell::Object(vec![
        ("name", (&*node.name).into()),
        ("forward", forward.unwrap_or_default()),
    ])
}

/// Stacks by id with their cached JSON, and purposes by id.
#[derive(Default)]
struct Stacks {
    variables: RootVariables,
    purposes: BlockPurposes,
    stacks: HashMap<StackId, Arc<Stack>>,
    json: HashMap<StackId, Rc<StackJson>>,
}

impl Stacks {
    fn define(&mut self, id: StackId, stack: Arc<Stack>) {
        self.json.remove(&id);
        self.stacks.insert(id, stack);
    }

    fn row(&mut self, event: MemoryEvent, format: ReportFormat) -> io::Result<EventEntry> {
        let is_json = matches!(format, ReportFormat::Json | ReportFormat::Jsonl);
        let stack = self.stacks.get(&event.stack).cloned();
        let json = match &stack {
            Some(stack) if is_json => Some(self.json(event.stack, stack)?),
            _ => None,
        };
        Ok(EventEntry {
            purpose: self.purposes.get(event.shape).cloned(),
            event,
            stack,
            json,
        })
    }

    fn json(&mut self, id: StackId, stack: &Stack) -> io::Result<Rc<StackJson>> {
        if let Some(json) = self.json.get(&id) {
            return Ok(json.clone());
        }
        if self.json.len() >= MAX_TEXTS {
            self.json.clear();
        }
        let json = Rc::new(StackJson::new(stack, &self.variables)?);
        self.json.insert(id, json.clone());
        Ok(json)
    }
}

enum Rows<'a, W: Write> {
    Text(&'a mut W, TimeNs),
    /// With the text before the next row.
    Json(&'a mut W, &'static str),
    Jsonl(&'a mut W),
    Csv(Box<CsvWriter<'a, EventEntry, &'a mut W>>),
}

impl<'a, W: Write> Rows<'a, W> {
    fn begin(
        format: ReportFormat,
        columns: &'a [EventColumn],
        out: &'a mut W,
        start: TimeNs,
    ) -> io::Result<Self> {
        Ok(match format {
            ReportFormat::Text => Self::Text(out, start),
            ReportFormat::Jsonl => Self::Jsonl(out),
            ReportFormat::Json => Self::Json(out, "[\n"),
            ReportFormat::Csv => Self::Csv(Box::new(CsvWriter::new(columns, out)?)),
        })
    }

    fn push(&mut self, columns: &[EventColumn], row: &EventEntry) -> io::Result<()> {
        match self {
            Self::Text(out, start) => writeln!(out, "{}", text(row, *start)),
            Self::Jsonl(out) => {
                json_object(columns, row, out)?;
                out.write_all(b"\n")
            }
            Self::Json(out, before) => {
                out.write_all(before.as_bytes())?;
                *before = ",\n";
                json_object(columns, row, out)
            }
            Self::Csv(table) => table.row(row),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        if let Self::Json(out, before) = self {
            out.write_all(if *before == ",\n" { b"\n]\n" } else { b"[]\n" })?;
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Text(out, _) | Self::Json(out, _) | Self::Jsonl(out) => out.flush(),
            Self::Csv(table) => table.flush(),
        }
    }
}

fn grad(grad: Grad) -> Option<&'static str> {
    (grad != Grad::Unknown).then_some(grad.as_str())
}

fn tid(event: &MemoryEvent) -> Option<u32> {
    (event.tid != Tid::UNKNOWN).then_some(event.tid.0)
}

/// Address of an event; out-of-memory errors have none.
fn addr(event: &MemoryEvent) -> Option<Address> {
    (!event.action.is_failure()).then_some(event.addr)
}

/// Size of an event; unknown for a free of memory whose allocation was not seen.
fn size(event: &MemoryEvent) -> Option<u64> {
    let is_free = matches!(
        event.action,
        Action::SegmentFree | Action::SegmentSleep | Action::CudaFree
    ) || event.action == Action::Free && event.device == Some(DeviceIndex::CPU);
    let unknown = is_free && event.size == Bytes(0);
    (!unknown).then_some(event.size.0)
}

fn text(row: &EventEntry, start: TimeNs) -> String {
    let event = &row.event;
    let since = i128::from(event.time.0) - i128::from(start.0);
    let device = event.device.unwrap_or(DeviceIndex::UNKNOWN);
    let size = size(event).map_or_else(|| "?".to_owned(), |size| human(Bytes(size)));
    let addr = addr(event).map_or_else(|| "-".to_owned(), |addr| format!("{:#x}", addr.0));
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
    let tensor = match row.purpose.as_deref() {
        Some(BlockPurpose::Tensor(shape)) => format!("  {shape} {}", shape.dtype),
        Some(BlockPurpose::Other(purpose)) => format!("  {}", clean(&purpose.to_string())),
        None if event.shape == PurposeId::NO_TENSOR => "  no tensor".to_owned(),
        None => String::new(),
    };
    line.push_str(&tensor);
    if let Some(call) = event.call {
        line.push_str(&format!("  {} ({})", call.function, call.space.as_str()));
    }
    if let Some(stack) = &row.stack {
        line.push_str("  ");
        line.push_str(&in_words(stack));
    }
    line.trim_end().to_owned()
}

/// A whole stack on one line, innermost frame first.
fn in_words(stack: &Stack) -> String {
    let names = FileNames::default();
    named_stack(stack, usize::MAX, |frame| names.frame(frame))
}

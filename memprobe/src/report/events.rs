//! Report of every event of a recording, in its order, one row each.

use std::io::{self, BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::value::{RawValue, to_raw_value};

use super::{Format, Outcome, ReportError, ReportOptions, cells};
use crate::event::bytes::human;
use crate::event::{
    Action, Address, BlockPurpose, BlockPurposes, Bytes, DeviceIndex, Event, Frame, Grad, Losses,
    MemoryEvent, Module, Node, Purpose, PurposeId, Stack, StackId, StackKind, TensorSpec, Tid,
    TimeNs,
};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, CsvWriter, Data, json_object};
use crate::view::{FileNames, clean, named_stack};

/// Maximum number of stacks with cached text; the cache is cleared beyond it.
const MAX_TEXTS: usize = 1 << 14;

/// One event, its block's purpose and its stack.
struct Row {
    event: MemoryEvent,
    purpose: Option<Arc<BlockPurpose>>,
    stack: Option<Arc<Stack>>,
    /// Frames of the stack as JSON; only for JSON.
    json: Option<Rc<StackJson>>,
}

impl Row {
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

    fn context<T>(&self, value: impl Fn(&Stack) -> Option<T>) -> Option<T> {
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

type EventColumn = Column<Row>;

fn columns() -> Vec<EventColumn> {
    let mut columns: Vec<EventColumn> = vec![
        Column::data("time_ns", |row| row.event.time.0.into()),
        Column::data("tid", |row| tid(&row.event).into()),
        Column::data("action", |row| row.event.action.as_str().into()),
        Column::data("addr", |row| {
            addr(&row.event).map_or(Cell::Unknown, Cell::Address)
        }),
        Column::data("size", |row| size(&row.event).into()),
        Column::data("device", |row| row.event.device.into()),
        Column::data("allocated", |row| {
            row.event.totals.map(|totals| totals.allocated).into()
        }),
        Column::data("reserved", |row| {
            row.event.totals.map(|totals| totals.reserved).into()
        }),
        // The CUDA function that was called, and the kind of memory that it allocated.
        Column::json("function", |row| {
            row.event.call.map(|call| call.function).into()
        }),
        Column::json("space", |row| {
            row.event.call.map(|call| call.space.as_str()).into()
        }),
        Column::json("shape", |row| match row.spec() {
            Some(spec) => Cell::Shape((&*spec.sizes).into()),
            None => Cell::Unknown,
        }),
        EventColumn::data("shape", |row| row.spec().map(ToString::to_string).into())
            .only(Data::Csv),
        // Number of dimensions beyond those of `shape`.
        Column::json("more_dimensions", |row| {
            row.spec()
                .map(|spec| spec.more)
                .filter(|more| *more > 0)
                .into()
        }),
        EventColumn::data("dtype", |row| {
            row.spec().map(|spec| spec.dtype.to_string()).into()
        })
        .only(Data::Sparse),
        EventColumn::data("requested", |row| {
            row.spec().and_then(|spec| spec.requested).into()
        })
        .only(Data::Sparse),
        Column::json("tensor", |row| row.is_tensor().into()),
        Column::json("inferred", |row| {
            row.other_purpose().map_or(Cell::Unknown, inferred)
        }),
    ];
    columns.extend(stack_columns());
    columns
}

/// Columns of the stack; the purpose of the block comes last in CSV.
fn stack_columns() -> Vec<EventColumn> {
    vec![
        EventColumn::data("stack", |row| row.stack.as_deref().map(in_words).into()).only(Data::Csv),
        Column::json("stack", |row| {
            let is_own = |kind: &StackKind| matches!(kind, StackKind::Python | StackKind::Native);
            row.frames(is_own).unwrap_or(Cell::List(Vec::new()))
        }),
        // Innermost module being called; absent outside all modules.
        Column::json("module", |row| {
            let module = row
                .stack
                .as_ref()
                .and_then(|stack| stack.context.module.path());
            module.map(|path| &**path).into()
        }),
        Column::json("module_unknown", |row| {
            let is_unknown = row.context(|stack| Some(stack.context.module == Module::Unknown));
            is_unknown.filter(|is_unknown| *is_unknown).into()
        }),
        Column::json("grad", |row| {
            row.context(|stack| grad(stack.context.grad)).into()
        }),
        // Native frames: the caller into CUDA if there are Python frames, the whole stack otherwise.
        Column::json("native", |row| {
            raw(row.json.as_ref().and_then(|json| json.native.as_deref()))
        }),
        Column::json("thread", |row| row.thread().into()),
        // Stack of the thread that waits for this one in `backward()`.
        Column::json("waiting", |row| {
            let is_waiting = |kind: &StackKind| matches!(kind, StackKind::Waiting { .. });
            row.frames(is_waiting).unwrap_or_default()
        }),
        // Autograd node that was being evaluated.
        Column::json("node", |row| {
            raw(row.json.as_ref().and_then(|json| json.node.as_deref()))
        }),
        // Reason for the lack of a stack.
        Column::json("no_stack", |row| {
            row.context(|stack| match &stack.kind {
                StackKind::Unknown { reason, .. } => Some(reason.as_str()),
                _ => None,
            })
            .into()
        }),
        Column::json("stack_truncated", |row| {
            row.context(|stack| stack.truncated.then_some(true)).into()
        }),
        EventColumn::data("purpose", |row| {
            row.other_purpose().map(ToString::to_string).into()
        })
        .only(Data::Csv),
    ]
}

fn raw(json: Option<&RawValue>) -> Cell<'_> {
    json.map_or(Cell::Unknown, Cell::Json)
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

/// Writes each event as it is read.
pub(super) fn write<R: BufRead>(
    mut reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let mut losses = Losses::default();
    let mut stacks = Stacks::default();
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
struct StackJson {
    python: Box<RawValue>,
    native: Option<Box<RawValue>>,
    node: Option<Box<RawValue>>,
}

impl StackJson {
    fn new(stack: &Stack) -> io::Result<Self> {
        let is_native = |frame: &&Frame| frame.library.is_some();
        let (native, python): (Vec<_>, Vec<_>) = stack.frames.iter().partition(is_native);
        let json = |frames: Vec<&Frame>| {
            let frames = frames.into_iter().map(cells::frame);
            to_raw_value(&Cell::List(frames.collect()))
        };
        let node = stack.context.node.as_ref();
        Ok(Self {
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
    purposes: BlockPurposes,
    stacks: HashMap<StackId, Arc<Stack>>,
    json: HashMap<StackId, Rc<StackJson>>,
}

impl Stacks {
    fn define(&mut self, id: StackId, stack: Arc<Stack>) {
        self.json.remove(&id);
        self.stacks.insert(id, stack);
    }

    fn row(&mut self, event: MemoryEvent, format: Format) -> io::Result<Row> {
        let is_json = matches!(format, Format::Json | Format::Jsonl);
        let stack = self.stacks.get(&event.stack).cloned();
        let json = match &stack {
            Some(stack) if is_json => Some(self.json(event.stack, stack)?),
            _ => None,
        };
        Ok(Row {
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
        let json = Rc::new(StackJson::new(stack)?);
        self.json.insert(id, json.clone());
        Ok(json)
    }
}

/// Writer of rows.
enum Rows<'a, W: Write> {
    Text(&'a mut W, TimeNs),
    /// With the text before the next row.
    Json(&'a mut W, &'static str),
    Jsonl(&'a mut W),
    Csv(Box<CsvWriter<'a, Row, &'a mut W>>),
}

impl<'a, W: Write> Rows<'a, W> {
    fn begin(
        format: Format,
        columns: &'a [EventColumn],
        out: &'a mut W,
        start: TimeNs,
    ) -> io::Result<Self> {
        Ok(match format {
            Format::Text => Self::Text(out, start),
            Format::Jsonl => Self::Jsonl(out),
            Format::Json => Self::Json(out, "[\n"),
            Format::Csv => Self::Csv(Box::new(CsvWriter::new(columns, out)?)),
        })
    }

    fn push(&mut self, columns: &[EventColumn], row: &Row) -> io::Result<()> {
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
    (event.action != Action::OutOfMemory).then_some(event.addr)
}

/// Size of an event; unknown for a free of memory whose allocation was not seen.
fn size(event: &MemoryEvent) -> Option<u64> {
    let is_free = matches!(event.action, Action::SegmentFree | Action::CudaFree)
        || event.action == Action::Free && event.device == Some(DeviceIndex::CPU);
    let unknown = is_free && event.size == Bytes(0);
    (!unknown).then_some(event.size.0)
}

/// One event as text.
fn text(row: &Row, start: TimeNs) -> String {
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

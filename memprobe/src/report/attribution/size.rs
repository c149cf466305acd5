//! Table of model size: parameters and buffers of modules, and tensors made in one iteration.

use super::missing;
use crate::attribution::iterations::IterationKind;
use crate::attribution::modules::Additive;
use crate::attribution::size::{Amount, ModelSize, Size, Sizes};
use crate::attribution::view::Coverage;
use crate::event::DeviceIndex;
use crate::report::cells::place_kind;
use crate::report::outline::{self, Shown};
use crate::report::peak::place_name;
use crate::report::preamble::NO_MODULES;
use crate::report::{Alike, Format, ReportOptions};
use crate::view::counted;
use crate::view::table::{Cell, Column, Output, Table};

/// A module, memory outside modules, or the total.
pub(super) struct Row {
    device: DeviceIndex,
    kind: &'static str,
    /// `None` outside modules.
    path: Option<String>,
    depth: Option<u64>,
    name: String,
    own: Size,
    total: Size,
    /// True if the parameters and buffers of the row are known.
    is_named: bool,
}

impl Row {
    fn new(device: DeviceIndex, shown: Shown<Size>) -> Self {
        Self {
            device,
            kind: "module",
            path: None,
            depth: None,
            name: shown.name,
            own: shown.own,
            total: shown.total,
            is_named: true,
        }
    }

    fn module(device: DeviceIndex, mut shown: Shown<Size>, is_named: bool) -> Self {
        Self {
            path: Some(std::mem::take(&mut shown.path)),
            depth: Some(shown.depth as u64),
            is_named,
            ..Self::new(device, shown)
        }
    }

    fn if_named(&self, cell: Cell<'static>) -> Cell<'static> {
        if self.is_named { cell } else { Cell::Unknown }
    }
}

fn bytes(amount: Amount) -> Cell<'static> {
    Cell::Bytes(amount.bytes)
}

fn blocks(amount: Amount) -> Cell<'static> {
    match (amount.blocks, amount.bytes) {
        (0, 1..) => Cell::Unknown,
        (blocks, _) => Cell::Count(blocks),
    }
}

type SizeColumn = Column<Row>;

/// Bytes of tensors, except in the columns `rounded`. Columns that begin with `own` exclude a
/// module's parts.
pub(super) fn columns() -> Vec<SizeColumn> {
    vec![
        Column::data("device", |row| row.device.into()),
        Column::data("kind", |row| row.kind.into()),
        Column::data("path", |row| row.path.as_deref().into()),
        Column::data("depth", |row| row.depth.into()),
        Column::number("parameters", "PARAMETERS", |row| {
            row.if_named(bytes(row.total.parameters))
        }),
        Column::data("parameter_blocks", |row| {
            row.if_named(blocks(row.total.parameters))
        }),
        Column::wide(6, "buffers", "BUFFERS", |row| {
            row.if_named(bytes(row.total.buffers))
        }),
        Column::data("buffer_blocks", |row| {
            row.if_named(blocks(row.total.buffers))
        }),
        Column::number("forward", "FORWARD", |row| bytes(row.total.forward())),
        Column::data("forward_blocks", |row| blocks(row.total.forward())),
        Column::wide(3, "saved", "SAVED", |row| bytes(row.total.saved)),
        Column::wide(8, "recomputed", "RECOMPUTED", |row| {
            bytes(row.total.recomputed)
        }),
        Column::wide(2, "backward", "BACKWARD", |row| bytes(row.total.backward)),
        Column::data("backward_blocks", |row| blocks(row.total.backward)),
        Column::number("forward_and_backward", "BOTH", |row| {
            bytes(row.total.both())
        }),
        Column::wide(4, "gradients", "GRADIENTS", |row| {
            bytes(row.total.gradients)
        }),
        Column::wide(5, "other", "OTHER", |row| bytes(row.total.other)),
        Column::wide(7, "blocks", "BLOCKS", |row| blocks(row.total.made())),
        Column::wide(9, "rounded", "ROUNDED", |row| {
            Cell::Bytes(row.total.made().rounded)
        }),
        Column::data("own_parameters", |row| {
            row.if_named(bytes(row.own.parameters))
        }),
        Column::data("own_buffers", |row| row.if_named(bytes(row.own.buffers))),
        Column::data("own_forward", |row| bytes(row.own.forward())),
        Column::data("own_forward_blocks", |row| blocks(row.own.forward())),
        Column::data("own_backward", |row| bytes(row.own.backward)),
        Column::data("own_gradients", |row| bytes(row.own.gradients)),
        Column::data("own_rounded", |row| Cell::Bytes(row.own.made().rounded)),
        Column::label("MODULE", |row| (&*row.name).into()),
    ]
}

/// Legend of the columns.
const LEGEND: &str = "Bytes of tensors, with submodules. FORWARD: intermediate variables of forward passes. SAVED: \
                      freed by a backward pass. BOTH: with backward passes. OTHER: inputs, optimizer state, \
                      workspaces, temporaries. ROUNDED: all in blocks of the allocator.";

/// Notes on the table in an estimate, whose options differ from a report's.
pub(super) fn notes_of_estimate(sizes: &Sizes, heard: Coverage) -> Vec<String> {
    let names = if sizes.named {
        "Parameters and buffers are read from the process's objects, each block once, in the first module that has it."
    } else {
        "Parameters and buffers are inferred, in total only. For each module use `memprobe estimate -- python \
         train.py`, or a recording of `memprobe record --cpu --names`."
    };
    let fold = "Modules that differ only in a number share one row; --format json has each, and all columns.";
    all_notes(sizes, heard, names, Some(fold))
}

pub(super) fn notes(
    sizes: Option<&Sizes>,
    heard: Coverage,
    options: &ReportOptions,
) -> Vec<String> {
    let Some(sizes) = sizes else {
        return vec!["Nothing was allocated in this recording.".to_owned()];
    };
    let names = if sizes.named {
        "Parameters and buffers are read from the process's objects (--names), each block once, in the first module \
         that has it. Other categories are inferred (--by category names the rules)."
    } else {
        "Parameters and buffers are inferred, in total only: for each module, record with --names. GRADIENTS are \
         usually as large as the trained parameters."
    };
    let is_folded = options.format == Format::Text && options.alike == Alike::Folded;
    let fold = "Modules that differ only in a number share one row; --no-fold shows each.";
    all_notes(sizes, heard, names, is_folded.then_some(fold))
}

fn all_notes(sizes: &Sizes, heard: Coverage, names: &str, fold: Option<&str>) -> Vec<String> {
    let mut devices = sizes.devices.values();
    let no_modules = devices.all(|device| device.modules.is_empty());
    let words = [
        Some(LEGEND),
        Some(names),
        fold,
        no_modules.then_some(NO_MODULES),
    ];
    let words = words.into_iter().flatten().map(str::to_owned);
    let notes = [which(sizes)].into_iter().chain(words);
    notes.chain(missing(heard)).collect()
}

/// Describes the time of the table.
fn which(sizes: &Sizes) -> String {
    let most = format!(
        "largest by forward passes, of {} available",
        counted(sizes.of, "iteration")
    );
    let number = sizes.iteration.number;
    let mut which = match sizes.iteration.kind {
        IterationKind::Whole => format!("Iteration {number}: {most}."),
        IterationKind::Unfinished => {
            format!("Iteration {number}, whose end was not seen: none is complete.")
        }
        _ => "Whole recording: no iterations found (see --by iteration).".to_owned(),
    };
    if sizes.forgotten > 0 {
        which.push_str(" Earlier allocations are no longer available.");
    }
    which
}

pub(super) fn table(
    index: DeviceIndex,
    size: &ModelSize,
    named: bool,
    options: &ReportOptions,
) -> Table<Row> {
    let mut table = Table::new(columns());
    let modules = size.modules.clone();
    let (output, modules) = match options.format {
        Format::Text => (Output::Text, outline::for_people(modules, options, rank)),
        _ => (Output::Data, outline::each(modules, options)),
    };
    let modules = modules.into_iter();
    table.extend(
        output,
        modules.map(|module| Row::module(index, module, named)),
    );
    let others = size.others.iter().map(|(place, size)| Row {
        kind: place_kind(place),
        ..Row::new(index, Shown::other(place_name(place), *size))
    });
    table.extend(Output::All, others);
    let roots = size.modules.iter().map(|module| &module.total);
    let others = size.others.iter().map(|(_, size)| size);
    let all = roots.chain(others).fold(Size::default(), Size::and);
    let total = Row::new(index, Shown::other("(total)".to_owned(), all));
    table.push(Output::Text, total);
    table
}

fn rank(size: &Size) -> (u64, u64, u64) {
    let held = size.parameters.and(size.buffers);
    (
        size.both().bytes.saturating_add(held.bytes),
        size.gradients.bytes,
        size.other.bytes,
    )
}

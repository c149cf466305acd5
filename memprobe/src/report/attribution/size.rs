//! Table of model size: parameters and buffers of modules, and tensors made in one iteration.

use super::grid::{Cell, Column, Grid, Row, RowAudience};
use super::missing;
use crate::attribution::iterations::IterationKind;
use crate::attribution::modules::Additive;
use crate::attribution::size::{Amount, ModelSize, Size, Sizes};
use crate::attribution::view::Coverage;
use crate::event::DeviceIndex;
use crate::report::outline::{self, Shown};
use crate::report::peak::place_name;
use crate::report::structured::place_kind;
use crate::report::{Alike, Format, ReportOptions, table};
use crate::view::counted;

/// Bytes of tensors, except in the columns `rounded`. Columns that begin with `own` exclude a
/// module's parts.
pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::programs("kind"),
    Column::programs("path"),
    Column::programs("depth"),
    Column::all("parameters", "PARAMETERS"),
    Column::programs("parameter_blocks"),
    Column::wide("buffers", "BUFFERS", 6),
    Column::programs("buffer_blocks"),
    Column::all("forward", "FORWARD"),
    Column::programs("forward_blocks"),
    Column::wide("saved", "SAVED", 3),
    Column::wide("recomputed", "RECOMPUTED", 8),
    Column::wide("backward", "BACKWARD", 2),
    Column::programs("backward_blocks"),
    Column::all("forward_and_backward", "BOTH"),
    Column::wide("gradients", "GRADIENTS", 4),
    Column::wide("other", "OTHER", 5),
    Column::wide("blocks", "BLOCKS", 7),
    Column::wide("rounded", "ROUNDED", 9),
    Column::programs("own_parameters"),
    Column::programs("own_buffers"),
    Column::programs("own_forward"),
    Column::programs("own_forward_blocks"),
    Column::programs("own_backward"),
    Column::programs("own_gradients"),
    Column::programs("own_rounded"),
    Column::people("MODULE"),
];

/// Legend of the columns.
const COLUMNS_MEAN: &str = "Bytes of tensors, submodules included. FORWARD: intermediate variables of forward passes. \
                            SAVED: the part that a backward pass freed. BOTH: with backward passes, without \
                            GRADIENTS of parameters. OTHER: inputs, optimizer state, workspaces, temporaries of \
                            steps. ROUNDED: all of it in blocks of the allocator.";

/// Notes on the table in an estimate, whose options differ from a report's.
pub(super) fn notes_of_estimate(sizes: &Sizes, heard: Coverage) -> Vec<String> {
    let mut notes = vec![which(sizes), COLUMNS_MEAN.to_owned()];
    notes.push(match sizes.named {
        true => "Parameters and buffers are read from the process's objects, each block once, in the first module \
                 that has it.",
        false => "Parameters and buffers are inferred, in total only. For each module use `memprobe estimate -- \
                  python train.py`, or a recording of `memprobe record --cpu --names`.",
    }.to_owned());
    notes.push(
        "Modules that differ only in a number share one row; --format json has each, and all columns."
            .to_owned(),
    );
    if sizes
        .devices
        .values()
        .all(|device| device.modules.is_empty())
    {
        notes.push(table::NO_MODULES.to_owned());
    }
    notes.extend(missing(heard));
    notes
}

pub(super) fn notes(
    sizes: Option<&Sizes>,
    heard: Coverage,
    options: &ReportOptions,
) -> Vec<String> {
    let Some(sizes) = sizes else {
        return vec!["Nothing was allocated in this recording.".to_owned()];
    };
    let mut notes = vec![which(sizes)];
    notes.push(COLUMNS_MEAN.to_owned());
    notes.push(match sizes.named {
        true => "Parameters and buffers are read from the process's objects (--names), each block once, in the first \
                 module that has it. Other categories are inferred (--by category names the rules)."
            .to_owned(),
        false => "Parameters and buffers are inferred, in total only: for each module, record with --names. GRADIENTS \
                  are usually as large as the trained parameters."
            .to_owned(),
    });
    if options.format == Format::Text && options.alike == Alike::Folded {
        notes.push(
            "Modules that differ only in a number share one row; --no-fold shows each.".to_owned(),
        );
    }
    let mut devices = sizes.devices.values();
    if devices.all(|device| device.modules.is_empty()) {
        notes.push(table::NO_MODULES.to_owned());
    }
    notes.extend(missing(heard));
    notes
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

pub(super) fn grid(
    index: DeviceIndex,
    size: &ModelSize,
    named: bool,
    options: &ReportOptions,
) -> Grid {
    let people = outline::for_people(size.modules.clone(), options, rank);
    let people = people.iter().map(|module| row(index, module, named));
    let mut rows: Vec<Row> = people.map(|row| row.seen(RowAudience::People)).collect();
    let programs = outline::each(size.modules.clone(), options);
    let programs = programs.iter().map(|module| row(index, module, named));
    rows.extend(programs.map(|row| row.seen(RowAudience::Programs)));
    for (place, size) in &size.others {
        let mut row = row(index, &Shown::other(place_name(place), *size), true);
        row.cells[1] = Cell::words(place_kind(place));
        (row.cells[2], row.cells[3]) = (Cell::None, Cell::None);
        rows.push(row);
    }
    let roots = size.modules.iter().map(|module| &module.total);
    let others = size.others.iter().map(|(_, size)| size);
    let all = roots.chain(others).fold(Size::default(), Size::and);
    let total = row(index, &Shown::other("(total)".to_owned(), all), true);
    rows.push(total.seen(RowAudience::People));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

fn rank(size: &Size) -> (u64, u64, u64) {
    let held = size.parameters.and(size.buffers);
    (
        size.both().bytes.saturating_add(held.bytes),
        size.gradients.bytes,
        size.other.bytes,
    )
}

fn row(index: DeviceIndex, module: &Shown<Size>, named: bool) -> Row {
    let Shown { own, total, .. } = module;
    let bytes = |amount: Amount| Cell::Bytes(amount.bytes);
    let blocks = |amount: Amount| match (amount.blocks, amount.bytes) {
        (0, 1..) => Cell::None,
        (blocks, _) => Cell::Count(blocks),
    };
    let if_named = |cell: Cell| if named { cell } else { Cell::None };
    Row::new(vec![
        Cell::Device(index),
        Cell::words("module"),
        Cell::words(&module.path),
        Cell::Count(module.depth as u64),
        if_named(bytes(total.parameters)),
        if_named(blocks(total.parameters)),
        if_named(bytes(total.buffers)),
        if_named(blocks(total.buffers)),
        bytes(total.forward()),
        blocks(total.forward()),
        bytes(total.saved),
        bytes(total.recomputed),
        bytes(total.backward),
        blocks(total.backward),
        bytes(total.both()),
        bytes(total.gradients),
        bytes(total.other),
        blocks(total.made()),
        Cell::Bytes(total.made().rounded),
        if_named(bytes(own.parameters)),
        if_named(bytes(own.buffers)),
        bytes(own.forward()),
        blocks(own.forward()),
        bytes(own.backward),
        bytes(own.gradients),
        Cell::Bytes(own.made().rounded),
        Cell::words(&module.name),
    ])
}

//! Table of model size: parameters and buffers of modules, and tensors made in one iteration.

use super::{Notes, missing};
use crate::attribution::iterations::IterationKind;
use crate::attribution::modules::Additive;
use crate::attribution::size::{Amount, ModelSize, ModuleSize, Sizes};
use crate::attribution::view::Coverage;
use crate::event::DeviceIndex;
use crate::report::outline::{self, OutlineRow};
use crate::report::peak::place_name;
use crate::report::preamble::NO_MODULES;
use crate::report::{ReportFormat, ReportOptions};
use crate::view::counted;
use crate::view::table::{Cell, Column, Output, Table, columns};

/// A module, memory outside modules, or the total.
pub(super) struct SizeEntry {
    device: DeviceIndex,
    kind: &'static str,
    path: Option<String>,
    depth: Option<u64>,
    name: String,
    own: ModuleSize,
    total: ModuleSize,
    /// True if parameters and buffers come from the process's objects. Otherwise their sum is inferred, for all modules
    /// together.
    is_named: bool,
}

impl SizeEntry {
    fn new(device: DeviceIndex, shown: OutlineRow<ModuleSize>, is_named: bool) -> Self {
        Self {
            device,
            kind: "module",
            path: None,
            depth: None,
            name: shown.name,
            own: shown.own,
            total: shown.total,
            is_named,
        }
    }

    fn module(device: DeviceIndex, mut shown: OutlineRow<ModuleSize>, is_named: bool) -> Self {
        Self {
            path: Some(std::mem::take(&mut shown.path)),
            depth: Some(shown.depth as u64),
            ..Self::new(device, shown, is_named)
        }
    }

    /// Buffers; unknown if no block is known as one.
    fn buffers(&self, cell: Cell<'static>) -> Cell<'static> {
        let is_known = self.is_named || self.total.buffers.bytes > 0;
        if is_known { cell } else { Cell::Unknown }
    }

    /// Parameters, with blocks that may be buffers.
    fn parameters(&self, cell: Cell<'static>) -> Cell<'static> {
        let is_known = self.is_named || self.path.is_none();
        if is_known { cell } else { Cell::Unknown }
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

type SizeColumn = Column<SizeEntry>;

/// Bytes of tensors, except in the columns `rounded`. Columns that begin with `own` exclude a
/// module's parts.
pub(super) fn columns() -> Vec<SizeColumn> {
    columns![|row: SizeEntry|
        data("device") => row.device,
        data("kind") => row.kind,
        data("path") => row.path.as_deref(),
        data("depth") => row.depth,
        number("parameters", "PARAMETERS") => row.parameters(bytes(row.total.parameters)),
        data("parameter_blocks") => row.parameters(blocks(row.total.parameters)),
        number("buffers", "BUFFERS").priority(6) => row.buffers(bytes(row.total.buffers)),
        data("buffer_blocks") => row.buffers(blocks(row.total.buffers)),
        number("forward", "FORWARD") => bytes(row.total.forward()),
        data("forward_blocks") => blocks(row.total.forward()),
        number("saved", "SAVED").priority(3) => bytes(row.total.saved),
        number("recomputed", "RECOMPUTED").priority(8) => bytes(row.total.recomputed),
        number("backward", "BACKWARD").priority(2) => bytes(row.total.backward),
        data("backward_blocks") => blocks(row.total.backward),
        number("forward_and_backward", "BOTH") => bytes(row.total.both()),
        number("gradients", "GRADIENTS").priority(4) => bytes(row.total.gradients),
        number("other", "OTHER").priority(5) => bytes(row.total.other),
        number("blocks", "BLOCKS").priority(7) => blocks(row.total.made()),
        number("rounded", "ROUNDED").priority(9) => Cell::Bytes(row.total.made().rounded),
        data("own_parameters") => row.parameters(bytes(row.own.parameters)),
        data("own_buffers") => row.buffers(bytes(row.own.buffers)),
        data("own_forward") => bytes(row.own.forward()),
        data("own_forward_blocks") => blocks(row.own.forward()),
        data("own_backward") => bytes(row.own.backward),
        data("own_gradients") => bytes(row.own.gradients),
        data("own_rounded") => Cell::Bytes(row.own.made().rounded),
        label("MODULE") => &*row.name,
    ]
    .into()
}

const UNCONFIRMED: &str =
    "Modules were called, but their paths were not confirmed in time: record more iterations.";

const LEGEND: &str = "Bytes of tensors, with submodules. SAVED: freed by a backward pass. BOTH: FORWARD and BACKWARD. \
                      ROUNDED: as blocks of the allocator.";

const ALL_BUFFERS: &str = "PARAMETERS includes buffers.";
const SOME_BUFFERS: &str =
    "BUFFERS: those that Module.to() moved, by the mode of grad; PARAMETERS includes any others.";

/// Notes on the table in an estimate, whose options differ from a report's.
pub(super) fn notes_of_estimate(sizes: &Sizes, heard: Coverage) -> Notes {
    let advice = "Those of each module: `memprobe estimate -- python train.py`.";
    all_notes(sizes, heard, advice)
}

pub(super) fn notes(sizes: Option<&Sizes>, heard: Coverage) -> Notes {
    let advice = "Those of each module: record with --names.";
    match sizes {
        Some(sizes) => all_notes(sizes, heard, advice),
        None => Notes {
            facts: vec!["Nothing was allocated in this recording.".to_owned()],
            ..Notes::default()
        },
    }
}

fn all_notes(sizes: &Sizes, heard: Coverage, advice: &str) -> Notes {
    let devices = || sizes.devices.values();
    let names = if sizes.named {
        "Each block of parameters and buffers is counted in the first module that has it."
            .to_owned()
    } else if devices().any(ModelSize::has_buffers) {
        format!("{SOME_BUFFERS} {advice}")
    } else {
        format!("{ALL_BUFFERS} {advice}")
    };
    let no_modules = if devices().any(|device| !device.modules.is_empty()) {
        None
    } else if devices().any(ModelSize::has_calls) {
        Some(UNCONFIRMED)
    } else {
        Some(NO_MODULES)
    };
    let facts = std::iter::once(names).chain(no_modules.map(str::to_owned));
    Notes {
        legend: vec![which(sizes), LEGEND.to_owned()],
        facts: facts.chain(missing(heard)).collect(),
    }
}

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
) -> Table<SizeEntry> {
    let mut table = Table::new(columns());
    let modules = size.modules.clone();
    let (output, modules) = match options.format {
        ReportFormat::Text => (Output::Text, outline::for_people(modules, options, rank)),
        _ => (Output::Data, outline::each(modules, options)),
    };
    let modules = modules.into_iter();
    table.extend(
        output,
        modules.map(|module| SizeEntry::module(index, module, named)),
    );
    let others = size.others.iter().map(|(place, size)| SizeEntry {
        kind: place.as_str(),
        ..SizeEntry::new(index, OutlineRow::other(place_name(place), *size), named)
    });
    table.extend(Output::All, others);
    let roots = size.modules.iter().map(|module| &module.total);
    let others = size.others.iter().map(|(_, size)| size);
    let all = roots
        .chain(others)
        .fold(ModuleSize::default(), ModuleSize::and);
    let total = SizeEntry::new(index, OutlineRow::other("(total)".to_owned(), all), named);
    table.push(Output::Text, total);
    table
}

fn rank(size: &ModuleSize) -> (u64, u64, u64) {
    let held = size.parameters.and(size.buffers);
    (
        size.both().bytes.saturating_add(held.bytes),
        size.gradients.bytes,
        size.other.bytes,
    )
}

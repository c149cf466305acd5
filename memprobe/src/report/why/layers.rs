//! The table of what each module held when its device held most, by what it was for.

use super::grid::{Cell, Column, Grid, Row, Seen};
use super::outline::{self, Shown};
use super::{missing, remainders};
use crate::event::DeviceIndex;
use crate::model::why::WhyLedger;
use crate::model::why::category::Category;
use crate::model::why::layers::{DeviceLayers, Layer};
use crate::report::peak::place_name;
use crate::report::structured::place_kind;
use crate::report::{Alike, Format, ReportOptions};

/// "Feature maps" and "intermediate gradients" are called so by profilers that people know.
pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::programs("kind"),
    Column::programs("path"),
    Column::programs("depth"),
    Column::all("total", "AT PEAK"),
    Column::all("activation", "FEAT. MAPS"),
    Column::all("parameter", "WEIGHTS"),
    Column::all("gradient", "GRADIENTS"),
    Column::part("intermediate_gradient", "INTERMED.", 1),
    Column::part("optimizer_state", "OPTIMIZER", 2),
    Column::part("input", "INPUTS", 3),
    Column::programs("temporary"),
    Column::programs("workspace"),
    Column::programs("unknown"),
    Column::rest("OTHER"),
    Column::programs("own_total"),
    Column::programs("own_activation"),
    Column::programs("own_parameter"),
    Column::programs("own_gradient"),
    Column::programs("own_intermediate_gradient"),
    Column::programs("own_optimizer_state"),
    Column::programs("own_input"),
    Column::programs("own_temporary"),
    Column::programs("own_workspace"),
    Column::programs("own_unknown"),
    Column::people("MODULE"),
];

/// Categories in the order of their columns.
const CATEGORIES: [Category; 9] = [
    Category::Activation,
    Category::Parameter,
    Category::Gradient,
    Category::IntermediateGradient,
    Category::OptimizerState,
    Category::Input,
    Category::Temporary,
    Category::Workspace,
    Category::Unknown,
];

pub(super) fn notes(ledger: &WhyLedger, options: &ReportOptions) -> Vec<String> {
    let mut notes = vec![
        "What each module held when its device held most, a module's with that of its parts; what it was for is inferred (--by category names the \
         rules). Feature maps are activations that are saved for backward, INTERMED. are intermediate gradients."
            .to_owned(),
    ];
    notes.push(match ledger.names_modules() {
        true => "Weights and optimizer state are in the modules that the process's own objects put them into, since these were read \
                 (recorded with --names)."
            .to_owned(),
        false => "Weights and optimizer state are made outside of modules' calls. Record with --names for those of each module."
            .to_owned(),
    });
    if options.format == Format::Text && options.alike == Alike::Folded {
        notes
            .push("Modules that differ in number alone are one row; --each shows them.".to_owned());
    }
    notes.extend(missing(ledger.heard()));
    notes
}

pub(super) fn grid(index: DeviceIndex, layers: &DeviceLayers, options: &ReportOptions) -> Grid {
    let people = outline::for_people(layers.modules.clone(), options, |layer| {
        (layer.all(), layer.of(Category::Activation))
    });
    let people = people.iter().map(|module| row(index, module));
    let mut rows: Vec<Row> = people.map(|row| row.seen(Seen::People)).collect();
    let programs = outline::each(layers.modules.clone(), options);
    let programs = programs.iter().map(|module| row(index, module));
    rows.extend(programs.map(|row| row.seen(Seen::Programs)));
    for (place, layer) in &layers.others {
        let mut row = row(index, &Shown::beside(place_name(place), *layer));
        row.cells[1] = Cell::words(place_kind(place));
        (row.cells[2], row.cells[3]) = (Cell::None, Cell::None);
        rows.push(row);
    }
    for (what, _, at_peak) in remainders(&layers.peak, &layers.peak) {
        rows.push(rest(index, what, at_peak));
    }
    let total = Cell::Bytes(layers.peak.totals.allocated.0);
    rows.push(rest(index, "(total)", total).seen(Seen::People));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

fn row(index: DeviceIndex, module: &Shown<Layer>) -> Row {
    let of = |layer: &Layer| CATEGORIES.map(|category| Cell::Bytes(layer.of(category)));
    let Shown { own, total, .. } = module;
    let other = [Category::Temporary, Category::Workspace, Category::Unknown];
    let other = other.map(|category| total.of(category));
    let mut cells = vec![
        Cell::Device(index),
        Cell::words("module"),
        Cell::words(&module.path),
        Cell::Count(module.depth as u64),
        Cell::Bytes(total.all()),
    ];
    cells.extend(of(total));
    cells.push(Cell::Bytes(other.into_iter().fold(0, u64::saturating_add)));
    cells.push(Cell::Bytes(own.all()));
    cells.extend(of(own));
    cells.push(Cell::words(&module.name));
    Row::new(cells)
}

/// A row of which all bytes are known and not what they are for.
fn rest(index: DeviceIndex, what: &str, bytes: Cell) -> Row {
    let mut cells = vec![Cell::Blank; COLUMNS.len()];
    cells[0] = Cell::Device(index);
    cells[1] = Cell::words(what.trim_matches(['(', ')']));
    cells[4] = bytes.clone();
    cells[15] = bytes;
    cells[COLUMNS.len() - 1] = Cell::words(what);
    Row::new(cells)
}

//! Table of each module's memory at its device's peak, by category: of the whole recording, or in
//! each iteration.

use super::grid::{Cell, Column, Grid, Row, RowAudience, Section};
use super::{iterations, missing, purposes, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::category::Category;
use crate::attribution::iterations::{Iteration, Iterations};
use crate::attribution::layers::{DeviceLayers, Layer, Layering};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, Totals};
use crate::report::outline::{self, Shown};
use crate::report::peak::place_name;
use crate::report::structured::place_kind;
use crate::report::{Alike, Format, LayersOf, ReportError, ReportOptions};
use crate::view::counted;

pub(super) const COLUMNS: &[Column] = &purposes::joined::<29>(&[
    &[
        Column::programs("device"),
        Column::programs("iteration"),
        Column::programs("iteration_kind"),
        Column::programs("epoch"),
        Column::programs("kind"),
        Column::programs("path"),
        Column::programs("depth"),
        Column::all("total", "AT PEAK"),
    ],
    &purposes::COLUMNS,
    &[
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
    ],
]);

/// Memory of a device's modules: a section for each selected moment.
pub(super) struct Moments<'a> {
    index: DeviceIndex,
    layering: &'a Layering<'a>,
    iterations: &'a Iterations,
    options: &'a ReportOptions,
}

/// An iteration, and the memory of modules in it.
type IterationTable<'a> = (Option<&'a Iteration>, DeviceLayers);

impl<'a> Moments<'a> {
    /// Selects the moments of the options.
    pub(super) fn of(
        index: DeviceIndex,
        layering: &'a Layering<'a>,
        iterations: &'a Iterations,
        options: &'a ReportOptions,
    ) -> Self {
        Self {
            index,
            layering,
            iterations,
            options,
        }
    }

    /// Tables for structured formats, made one at a time: there may be many.
    pub(super) fn for_programs(&self) -> impl Iterator<Item = Grid> {
        self.tables()
            .map(|(iteration, layers)| grid(self.index, iteration, &layers, self.options))
    }

    /// Tables for text; consecutive iterations with equal memory are one.
    pub(super) fn for_people(&self) -> Vec<Section> {
        let mut sections: Vec<(Vec<&Iteration>, DeviceLayers)> = Vec::new();
        for (iteration, layers) in self.tables() {
            let is_one = |iteration: &&Iteration| iteration.is_numbered();
            let last = sections.last_mut().filter(|(run, before)| {
                run.last().is_some_and(is_one)
                    && iteration.as_ref().is_some_and(is_one)
                    && before.is_as(&layers)
            });
            match last {
                Some((run, _)) => run.extend(iteration),
                None => sections.push((iteration.into_iter().collect(), layers)),
            }
        }
        let sections = sections.into_iter();
        sections
            .map(|(run, layers)| Section {
                title: match self.options.layers {
                    LayersOf::Peak => None,
                    LayersOf::Iterations(_) | LayersOf::Each => Some(title(&run, &layers)),
                },
                grid: grid(self.index, run.first().copied(), &layers, self.options),
            })
            .collect()
    }

    fn tables(&self) -> Box<dyn Iterator<Item = IterationTable<'a>> + '_> {
        let Self {
            index, layering, ..
        } = *self;
        if self.options.layers == LayersOf::Peak {
            let layers = layering.at_peak(index);
            let selected = layers.map(|layers| (self.iterations.at(layers.peak.time), layers));
            return Box::new(selected.into_iter());
        }
        let selected = meant(self.iterations, &self.options.layers);
        Box::new(selected.filter_map(move |iteration| {
            let layers = layering.in_iteration(index, iteration)?;
            Some((Some(iteration), layers))
        }))
    }
}

/// Iterations selected by the options.
fn meant<'a>(iterations: &'a Iterations, of: &'a LayersOf) -> impl Iterator<Item = &'a Iteration> {
    iterations.rows.iter().filter(move |row| match of {
        LayersOf::Peak => false,
        LayersOf::Each => true,
        LayersOf::Iterations(numbers) => row.is_numbered() && numbers.contains(&row.number),
    })
}

/// Returns an error if none of the selected iterations has data.
pub(super) fn check(
    layering: &Layering<'_>,
    iterations: &Iterations,
    of: &LayersOf,
) -> Result<(), ReportError> {
    let LayersOf::Iterations(numbers) = of else {
        return Ok(());
    };
    let mut meant = meant(iterations, of).peekable();
    if meant.peek().is_none() {
        let numbered = iterations.rows.iter().filter(|row| row.is_numbered());
        let known: Vec<u64> = numbered.map(|row| row.number).collect();
        return Err(ReportError::NoIteration(match &known[..] {
            [] => iterations::source(iterations).to_owned(),
            [first, .., last] => format!("it has {first} to {last}; give one of these, or all"),
            [only] => format!("it has only {only}; give that, or all"),
        }));
    }
    if meant.all(|iteration| layering.is_forgotten(iteration)) {
        return Err(ReportError::NoIteration(format!(
            "the memory of modules in {} is no longer available, because later iterations differ too much; give later \
             ones",
            counted(numbers.clone().count() as u64, "iteration")
        )));
    }
    Ok(())
}

fn title(run: &[&Iteration], layers: &DeviceLayers) -> String {
    let mut words = match run {
        [] => String::new(),
        [only] if only.is_numbered() => format!("iteration {}", iterations::name(only)),
        [only] => iterations::name(only),
        [first, .., last] => format!(
            "iterations {} to {}, all equal",
            iterations::name(first),
            iterations::name(last)
        ),
    };
    let epochs: Vec<u64> = run.iter().filter_map(|it| it.epoch).collect();
    match (epochs.first(), epochs.last()) {
        (Some(first), Some(last)) if first == last => words.push_str(&format!(", epoch {first}")),
        (Some(first), Some(last)) => words.push_str(&format!(", epochs {first} to {last}")),
        _ => {}
    }
    let Totals {
        allocated,
        reserved,
    } = layers.peak.totals;
    let cached = Bytes(reserved.0.saturating_sub(allocated.0));
    format!(
        "{words}: peak {}, reserved {}, cached {}",
        human(allocated),
        human(reserved),
        human(cached)
    )
}

pub(super) fn notes(
    ledger: &AttributionLedger,
    layering: &Layering<'_>,
    iterations: &Iterations,
    options: &ReportOptions,
) -> Vec<String> {
    let when = match options.layers {
        LayersOf::Peak => "at its device's peak",
        LayersOf::Iterations(_) | LayersOf::Each => "at its device's peak in the iteration",
    };
    let mut notes = vec![format!(
        "Memory of each module {when}, submodules included. Categories are inferred (--by category names the rules). \
         INTERMED.: intermediate gradients."
    )];
    notes.push(match ledger.read() {
        Some(_) => "Weights and optimizer state are assigned to modules by the process's objects, from the first \
                    reading on (--names)."
            .to_owned(),
        None => "Weights and optimizer state are made outside of module calls: to assign them to modules, record with \
                 --names."
            .to_owned(),
    });
    if options.format == Format::Text && options.alike == Alike::Folded {
        notes.push(
            "Modules that differ only in a number share one row; --no-fold shows each.".to_owned(),
        );
    }
    if options.layers != LayersOf::Peak {
        notes.push(iterations::source(iterations).to_owned());
        notes.extend(iterations::epochs(iterations.epochs));
        let meant = meant(iterations, &options.layers);
        let forgotten = meant
            .filter(|iteration| layering.is_forgotten(iteration))
            .count();
        if forgotten > 0 {
            notes.push(format!(
                "{} left out: their memory of modules is no longer available, because later ones differ too much.",
                counted(forgotten as u64, "iteration")
            ));
        }
    }
    notes.extend(missing(ledger.coverage()));
    notes
}

fn grid(
    index: DeviceIndex,
    iteration: Option<&Iteration>,
    layers: &DeviceLayers,
    options: &ReportOptions,
) -> Grid {
    let mut rows = Vec::new();
    if options.format == Format::Text {
        let people = outline::for_people(layers.modules.clone(), options, |layer| {
            (layer.all(), layer.of(Category::Activation))
        });
        rows.extend(people.iter().map(|module| row(&Line::of(module), module)));
    } else {
        let programs = outline::each(layers.modules.clone(), options);
        rows.extend(programs.iter().map(|module| row(&Line::of(module), module)));
    }
    for (place, layer) in &layers.others {
        let module = Shown::other(place_name(place), *layer);
        let line = Line {
            kind: place_kind(place),
            path: Cell::None,
            depth: Cell::None,
        };
        rows.push(row(&line, &module));
    }
    for row in remainders(&layers.peak, &layers.peak) {
        rows.push(rest(row.kind, row.name, row.at_peak));
    }
    let total = Cell::Bytes(layers.peak.totals.allocated.0);
    rows.push(rest("total", "(total)", total).seen(RowAudience::People));
    for row in &mut rows {
        row.cells[0] = Cell::Device(index);
        if let Some(iteration) = iteration {
            row.cells[1..4].clone_from_slice(&iterations::keys(iteration));
        }
    }
    Grid {
        columns: COLUMNS,
        rows,
    }
}

/// Subject of a row, in structured formats.
struct Line {
    kind: &'static str,
    path: Cell,
    depth: Cell,
}

impl Line {
    fn of(module: &Shown<Layer>) -> Self {
        Self {
            kind: "module",
            path: Cell::words(&module.path),
            depth: Cell::Count(module.depth as u64),
        }
    }

    /// The first cells of a row; those that all rows of a moment share stay blank.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = vec![Cell::Blank; 4];
        cells.push(Cell::words(self.kind));
        cells.extend([self.path.clone(), self.depth.clone()]);
        cells
    }
}

fn row(line: &Line, module: &Shown<Layer>) -> Row {
    let Shown { own, total, .. } = module;
    let named = purposes::named(|category| total.of(category));
    let mut cells = line.cells();
    cells.push(Cell::Bytes(total.all()));
    cells.extend(purposes::cells(|category| total.of(category)));
    cells.push(Cell::Bytes(total.all().saturating_sub(named)));
    cells.push(Cell::Bytes(own.all()));
    cells.extend(purposes::cells(|category| own.of(category)));
    cells.push(Cell::words(&module.name));
    Row::new(cells)
}

/// A row whose bytes are known, but not their categories.
fn rest(kind: &'static str, name: &str, bytes: Cell) -> Row {
    let line = Line {
        kind,
        path: Cell::Blank,
        depth: Cell::Blank,
    };
    let blank = purposes::COLUMNS.map(|_| Cell::Blank);
    let mut cells = line.cells();
    cells.push(bytes.clone());
    cells.extend(blank.clone());
    cells.extend([Cell::Blank, bytes]);
    cells.extend(blank);
    cells.push(Cell::words(name));
    Row::new(cells)
}

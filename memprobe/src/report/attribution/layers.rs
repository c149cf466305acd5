//! Table of each module's memory at its device's peak, by category: of the whole recording, or in
//! each iteration.

use super::{FOLDED, Notes, Section, iterations, missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::category::Category;
use crate::attribution::iterations::{Iteration, Iterations};
use crate::attribution::layers::{DeviceLayers, Layer, Layering};
use crate::event::DeviceIndex;
use crate::event::bytes::human;
use crate::report::outline::{self, OutlineRow};
use crate::report::peak::place_name;
use crate::report::{Alike, LayersOf, ReportError, ReportFormat, ReportOptions};
use crate::view::table::{Cell, Column, Output, Table};
use crate::view::{ByCategory, LayerCells, ModuleTreeCells, OfModule, counted, layer_columns};

/// A module, or memory outside modules.
pub(super) struct LayerEntry<'a> {
    index: DeviceIndex,
    iteration: Option<&'a Iteration>,
    kind: &'static str,
    module: Option<(String, u64)>,
    name: String,
    layers: Option<OfModule<Layer>>,
    /// Bytes of a row without categories.
    bytes: Cell<'static>,
}

impl ByCategory for LayerEntry<'_> {
    fn bytes(&self, category: Category) -> Cell<'static> {
        let layers = self.layers.as_ref();
        layers.map_or(Cell::Blank, |layers| Cell::Bytes(layers.total.of(category)))
    }
}

impl ModuleTreeCells for LayerEntry<'_> {
    fn device(&self) -> Option<DeviceIndex> {
        Some(self.index)
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn path(&self) -> Option<&str> {
        self.module.as_ref().map(|(path, _)| &**path)
    }

    fn depth(&self) -> Option<u64> {
        self.module.as_ref().map(|(_, depth)| *depth)
    }

    fn name(&self) -> Cell<'_> {
        (&*self.name).into()
    }
}

impl LayerCells for LayerEntry<'_> {
    fn layers(&self) -> Option<OfModule<&Layer>> {
        let layers = self.layers.as_ref()?;
        Some(OfModule {
            total: &layers.total,
            own: &layers.own,
        })
    }

    fn total(&self) -> Cell<'_> {
        let layers = self.layers.as_ref();
        layers.map_or_else(
            || self.bytes.clone(),
            |layers| Cell::Bytes(layers.total.all()),
        )
    }

    fn own_total(&self) -> Cell<'_> {
        let layers = self.layers.as_ref();
        layers.map_or_else(
            || self.bytes.clone(),
            |layers| Cell::Bytes(layers.own.all()),
        )
    }

    fn iteration(&self) -> Option<u64> {
        self.iteration.map(|it| it.number)
    }

    fn iteration_kind(&self) -> Option<&'static str> {
        self.iteration.map(|it| it.kind.as_str())
    }

    fn epoch(&self) -> Option<u64> {
        self.iteration.and_then(|it| it.epoch)
    }
}

type LayerColumn<'a> = Column<LayerEntry<'a>>;

pub(super) fn columns<'a>() -> Vec<LayerColumn<'a>> {
    layer_columns().into()
}

/// Source of the memory of a device's modules at each selected moment.
#[derive(Clone, Copy)]
pub(super) struct Moments<'a> {
    pub(super) layering: &'a Layering<'a>,
    pub(super) iterations: &'a Iterations,
    pub(super) options: &'a ReportOptions,
}

type IterationTable<'a> = (Option<&'a Iteration>, DeviceLayers);

impl<'a> Moments<'a> {
    /// A table of each moment; `None` for an unknown device.
    pub(super) fn sections(
        self,
        index: DeviceIndex,
    ) -> Option<Box<dyn Iterator<Item = Section<LayerEntry<'a>>> + 'a>> {
        if !self.layering.knows(index) {
            return None;
        }
        Some(match self.options.format {
            ReportFormat::Text => Box::new(self.merged(index).into_iter()),
            // One at a time: there may be many.
            _ => Box::new(self.moments(index).map(move |(iteration, layers)| Section {
                title: None,
                table: table(index, iteration, &layers, self.options),
            })),
        })
    }

    /// Tables for text; consecutive iterations with equal memory are one.
    fn merged(self, index: DeviceIndex) -> Vec<Section<LayerEntry<'a>>> {
        let mut sections: Vec<(Vec<&Iteration>, DeviceLayers)> = Vec::new();
        for (iteration, layers) in self.moments(index) {
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
                table: table(index, run.first().copied(), &layers, self.options),
            })
            .collect()
    }

    fn moments(self, index: DeviceIndex) -> Box<dyn Iterator<Item = IterationTable<'a>> + 'a> {
        let Self {
            layering,
            iterations,
            options,
        } = self;
        if options.layers == LayersOf::Peak {
            let layers = layering.at_peak(index);
            let selected = layers.map(|layers| (iterations.at(layers.peak.time), layers));
            return Box::new(selected.into_iter());
        }
        let selected = meant(iterations, &options.layers);
        Box::new(selected.filter_map(move |iteration| {
            let layers = layering.in_iteration(index, iteration)?;
            Some((Some(iteration), layers))
        }))
    }
}

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
            [] => iterations::source(iterations),
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
    let totals = layers.peak.totals;
    format!(
        "{words}: peak {}, reserved {}, cached {}",
        human(totals.allocated),
        human(totals.reserved),
        human(totals.cached())
    )
}

pub(super) fn notes(
    ledger: &AttributionLedger,
    layering: &Layering<'_>,
    iterations: &Iterations,
    options: &ReportOptions,
) -> Notes {
    let when = match options.layers {
        LayersOf::Peak => "at its device's peak",
        LayersOf::Iterations(_) | LayersOf::Each => "at its device's peak in the iteration",
    };
    let mut legend = vec![format!(
        "Memory {when}, with submodules, by inferred category. INTERMED.: intermediate gradients."
    )];
    let weights = match ledger.read {
        Some(_) => {
            "Weights and optimizer state are assigned to modules by the process's objects (--names)."
        }
        None => "To assign weights and optimizer state to modules, record with --names.",
    };
    legend.push(weights.to_owned());
    if options.format == ReportFormat::Text
        && options.alike == Alike::Folded
        && options.layers == LayersOf::Peak
    {
        legend.push(FOLDED.to_owned());
    }
    let mut facts = Vec::new();
    if options.layers != LayersOf::Peak {
        legend.push(iterations::delimiters(iterations).to_owned());
        facts.extend(iterations::epochs(iterations.epochs));
        facts.extend(iterations::doubts(iterations));
        let meant = meant(iterations, &options.layers);
        let forgotten = meant
            .filter(|iteration| layering.is_forgotten(iteration))
            .count();
        if forgotten > 0 {
            facts.push(format!(
                "{} left out: their memory of modules is no longer available, because later ones differ too much.",
                counted(forgotten as u64, "iteration")
            ));
        }
    }
    facts.extend(missing(ledger.coverage()));
    Notes { legend, facts }
}

fn table<'a>(
    index: DeviceIndex,
    iteration: Option<&'a Iteration>,
    layers: &DeviceLayers,
    options: &ReportOptions,
) -> Table<LayerEntry<'a>> {
    let row = |kind, name, layers| LayerEntry {
        index,
        iteration,
        kind,
        module: None,
        name,
        layers,
        bytes: Cell::Blank,
    };
    let modules = layers.modules.clone();
    let modules = match options.format {
        ReportFormat::Text => outline::for_people(modules, options, |layer: &Layer| {
            (layer.all(), layer.of(Category::Activation))
        }),
        _ => outline::each(modules, options),
    };
    let mut table = Table::new(columns());
    table.extend(
        Output::All,
        modules
            .into_iter()
            .map(|module: OutlineRow<Layer>| LayerEntry {
                module: Some((module.path.clone(), module.depth as u64)),
                ..row("module", module.name.clone(), Some(module.figures()))
            }),
    );
    for (place, layer) in &layers.others {
        let layers = Some(OfModule::whole(*layer));
        table.push(Output::All, row(place.as_str(), place_name(place), layers));
    }
    for rest in remainders(&layers.peak, &layers.peak) {
        let [_, bytes] = rest.bytes;
        let row = row(rest.kind, rest.name.to_owned(), None);
        table.push(Output::All, LayerEntry { bytes, ..row });
    }
    let bytes = layers.peak.totals.allocated.into();
    let total = row("total", "(total)".to_owned(), None);
    table.push(Output::Text, LayerEntry { bytes, ..total });
    table
}

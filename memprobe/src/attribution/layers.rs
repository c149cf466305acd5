//! Memory of each module by category, at the peak of a device: since attach, or within an iteration.

use super::allocation_groups::{ModuleScope, place_of};
use super::category::Category;
use super::device::{DeviceAttribution, StackHistory};
use super::iterations::Iteration;
use super::layer_history::LayerSample;
use super::ledger::AttributionLedger;
use super::module_aliases::HoldingModule;
use super::modules::{Additive, ModuleRow, tree};
use super::moments::Moment;
use super::step_interval::IntervalDevice;
use crate::event::tensors::TensorKind;
use crate::event::{DeviceIndex, LabeledBlock};
use crate::ledger::definitions::lost_stack;

/// Cap on modules that hold blocks by a heap snapshot; blocks of further ones count where they were allocated.
const MAX_MODULES: usize = 1 << 16;

/// Memory by module at one peak of a device. All rows, `before_attach` and `unaccounted` add up to the
/// allocated bytes.
#[derive(Clone, Debug)]
pub struct DeviceLayers {
    pub peak: Moment,
    /// Outermost modules, in order of their first allocation.
    pub modules: Vec<ModuleRow<Layer>>,
    pub others: Vec<(ModuleScope, Layer)>,
}

impl DeviceLayers {
    /// True if both peaks have equal rows and equal allocator totals.
    pub fn is_as(&self, other: &Self) -> bool {
        let rest = |layers: &Self| {
            let composition = &layers.peak.composition;
            (composition.before_attach, composition.unaccounted)
        };
        self.peak.totals == other.peak.totals
            && rest(self) == rest(other)
            && (&self.modules, &self.others) == (&other.modules, &other.others)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    by_category: [u64; Category::ALL.len()],
}

impl Layer {
    fn with(category: Category, bytes: u64) -> Self {
        let mut layer = Self::default();
        layer.by_category[category as usize] = bytes;
        layer
    }

    pub fn of(&self, category: Category) -> u64 {
        self.by_category[category as usize]
    }

    pub fn all(&self) -> u64 {
        let all = self.by_category.iter().copied();
        all.fold(0, u64::saturating_add)
    }
}

impl Additive for Layer {
    fn and(self, other: &Self) -> Self {
        Self {
            by_category: std::array::from_fn(|at| {
                self.by_category[at].saturating_add(other.by_category[at])
            }),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Layering<'a> {
    ledger: &'a AttributionLedger,
    /// Indexed by stack.
    places: Vec<ModuleScope>,
}

impl Layering<'_> {
    pub fn knows(&self, index: DeviceIndex) -> bool {
        self.ledger.devices.contains_key(&index)
    }

    pub fn at_peak(&self, index: DeviceIndex) -> Option<DeviceLayers> {
        let device = self.ledger.devices.get(&index)?;
        let bytes = |sample: &LayerSample| sample.holding.holding(device.peaks).at_peak.0;
        Some(self.divide(device, &device.peak, bytes))
    }

    /// Memory by module at the peak of an iteration; `None` if its history was dropped.
    pub fn in_iteration(&self, index: DeviceIndex, iteration: &Iteration) -> Option<DeviceLayers> {
        let device = self.ledger.devices.get(&index)?;
        let mut seen = iteration.devices.iter();
        let (_, IntervalDevice { peak, interval, .. }) = seen.find(|(of, _)| *of == index)?;
        let bytes = |sample: &LayerSample| device.held.bytes_at_interval(sample, *interval);
        let has_history = device.held.knows(*interval);
        has_history.then(|| self.divide(device, peak, bytes))
    }

    /// True if the history of an iteration was dropped on any device.
    pub fn is_forgotten(&self, iteration: &Iteration) -> bool {
        iteration
            .devices
            .iter()
            .any(|(index, IntervalDevice { interval, .. })| {
                let device = self.ledger.devices.get(index);
                device.is_some_and(|device| !device.held.knows(*interval))
            })
    }

    fn divide(
        &self,
        device: &DeviceAttribution,
        peak: &Moment,
        bytes: impl Fn(&LayerSample) -> u64,
    ) -> DeviceLayers {
        let held = device.held.iter();
        let held = held.map(|(place, sample)| (*place, bytes(sample)));
        let mut held: Vec<_> = held.filter(|(_, bytes)| *bytes > 0).collect();
        // Stacks are numbered in order of first use, so modules keep the order of the model.
        held.sort_unstable_by_key(|(place, _)| *place);
        let parts = held.into_iter().map(|((origin, category), bytes)| {
            let place = self.places.get(origin as usize);
            let place = place.cloned().unwrap_or(ModuleScope::Unknown);
            (place, Layer::with(category, bytes))
        });
        let (mut modules, others) = tree(parts);
        self.ledger.root_variables.name_roots(&mut modules);
        DeviceLayers {
            peak: peak.clone(),
            modules,
            others,
        }
    }
}

impl AttributionLedger {
    /// Query for memory by module; `None` without [`Self::with_layers`].
    pub fn layering(&self) -> Option<Layering<'_>> {
        if self.follows == StackHistory::Saved {
            return None;
        }
        let places = self.origins.iter().map(|stack| place_of(stack).0);
        let mut places: Vec<_> = places.collect();
        for (module, origin) in &self.in_modules {
            places[*origin as usize] = ModuleScope::Module(self.module_aliases.called(module));
        }
        Some(Layering {
            ledger: self,
            places,
        })
    }

    /// Index of a stack that represents the module holding a block, by the heap snapshot. `None` if no module
    /// holds it or layers are not counted.
    pub(super) fn origin_in_module(&mut self, named: &LabeledBlock) -> Option<u32> {
        let stays = matches!(
            named.kind,
            Some(TensorKind::Parameter | TensorKind::Buffer | TensorKind::OptimizerState)
        );
        let counts = stays && self.follows != StackHistory::Saved;
        let module = HoldingModule::of(named).filter(|_| counts)?;
        if let Some(origin) = self.in_modules.get(&module) {
            return Some(*origin);
        }
        if self.in_modules.len() >= MAX_MODULES {
            return None;
        }
        let origin = self.add_origin(lost_stack("".into()));
        self.in_modules.insert(module, origin);
        Some(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation_groups::samples::{DEVICE, Program, learning, learning_for};
    use super::*;

    fn ledger_of(program: &Program) -> AttributionLedger {
        program
            .analyzed(AttributionLedger::new(None).with_layers())
            .analyses
    }

    fn check(layers: &DeviceLayers) {
        let modules = layers.modules.iter().map(|row| &row.total);
        let others = layers.others.iter().map(|(_, layer)| layer);
        let all = modules.chain(others).fold(Layer::default(), Layer::and);
        let composition = &layers.peak.composition;
        for &category in Category::ALL {
            assert_eq!(all.of(category), composition.of(category), "{category:?}");
        }
        let known = all.all() + composition.before_attach;
        assert_eq!(known, layers.peak.totals.allocated.0);
    }

    #[test]
    fn what_layers_held_adds_up_to_what_was_allocated_at_the_peak_and_in_each_iteration() {
        for program in [
            learning(),
            learning_for(40, |_| true),
            learning_for(40, |at| at == 3),
        ] {
            let ledger = ledger_of(&program);
            let layering = ledger.layering().expect("layers are counted");
            check(&layering.at_peak(DEVICE).expect("a device"));
            let table = ledger.iterations();
            let heard = table.rows.iter().filter(|row| !row.devices.is_empty());
            assert!(heard.clone().count() > 0);
            for iteration in heard {
                let layers = layering.in_iteration(DEVICE, iteration);
                check(&layers.unwrap_or_else(|| panic!("{iteration:?}")));
            }
        }
    }

    #[test]
    fn an_iteration_in_the_midst_of_which_the_device_held_most_has_the_same_layers() {
        let ledger = ledger_of(&learning_for(12, |_| true));
        let layering = ledger.layering().expect("layers are counted");
        let all = layering.at_peak(DEVICE).expect("a device");
        let table = ledger.iterations();
        let then = table
            .rows
            .iter()
            .filter_map(|row| layering.in_iteration(DEVICE, row));
        assert!(then.into_iter().any(|layers| layers.modules == all.modules));
    }

    #[test]
    fn layers_add_up_in_iterations_long_before_a_block_was_named() {
        let mut program = learning_for(40, |at| at == 3);
        program.read_as(TensorKind::Buffer);
        let ledger = ledger_of(&program);
        let layering = ledger.layering().expect("layers are counted");
        let table = ledger.iterations();
        let mut named = 0;
        let heard = table.rows.iter().filter(|row| !row.devices.is_empty());
        for iteration in heard {
            let layers = layering.in_iteration(DEVICE, iteration);
            let layers = layers.unwrap_or_else(|| panic!("{iteration:?}"));
            check(&layers);
            named += u64::from(layers.peak.composition.of(Category::Parameter) > 0);
        }
        assert!(named > 30, "{named}");
    }

    #[test]
    fn a_ledger_that_was_not_asked_for_layers_has_none() {
        let ledger = AttributionLedger::new(None).with_sizes();
        assert!(ledger.layering().is_none());
    }
}

//! Data of a screen of modules: live memory, or memory in an iteration.

use crate::attribution::tables::{
    Category, CoverageStart, DeviceModules, IterationLayers, IterationRow, Layer, ModuleRow,
    ModuleScope, Pass, Source, Sums,
};
use crate::event::Bytes;
use crate::view::{Alike, folded};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ModuleFigures {
    /// Live memory.
    Now(Sums),
    /// Memory at the peak of an iteration.
    Then(Layer),
}

impl ModuleFigures {
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Now(sums) => sums.all.live,
            Self::Then(layer) => Bytes(layer.all()),
        }
    }

    /// Returns the bytes at the device's peak: since attribution started, or in the iteration.
    pub fn at_peak(&self) -> Bytes {
        match self {
            Self::Now(sums) => sums.all.at_peak,
            Self::Then(layer) => Bytes(layer.all()),
        }
    }

    /// Returns the bytes of a category; `None` if figures are not split by category.
    pub fn of(&self, category: Category) -> Option<u64> {
        match self {
            Self::Now(_) => None,
            Self::Then(layer) => Some(layer.of(category)),
        }
    }

    pub fn recomputed(&self) -> bool {
        match self {
            Self::Now(sums) => sums.pass(Pass::Recompute).allocs > 0,
            Self::Then(_) => false,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ModuleTables {
    /// Root modules; with [`Alike::Folded`], equal ones are merged.
    pub(super) modules: Vec<ModuleRow<ModuleFigures>>,
    /// Memory outside known modules.
    pub(super) others: Vec<(ModuleScope, ModuleFigures)>,
    /// The allocator's total, which the rows add up to.
    pub(super) allocated: Bytes,
    /// Bytes from before attach: at the moment shown, and at the peak.
    pub(super) before_attach: [i128; 2],
    /// Unaccounted bytes: at the moment shown, and at the peak.
    pub(super) unaccounted: [i128; 2],
    pub(super) since: CoverageStart,
    pub(super) peak: Bytes,
    /// True if a module call was seen; `None` for an iteration.
    pub(super) knows_modules: Option<bool>,
    /// The iteration, on the screen of layers.
    pub(super) moment: Option<IterationShown>,
}

#[derive(Clone, Debug)]
pub struct IterationShown {
    pub(super) iteration: Option<IterationRow>,
    pub(super) source: Source,
    /// First and last iteration that can be shown.
    pub(super) whole: Option<(u64, u64)>,
    /// True if the memory by module of this iteration is still kept.
    pub(super) is_stored: bool,
}

impl ModuleTables {
    pub fn now(device: &DeviceModules, alike: Alike) -> Self {
        let tree = &device.tree;
        let bytes = |bytes: Bytes| i128::from(bytes.0);
        let others = tree.others.iter();
        Self {
            modules: with_figures(folded(tree.modules.clone(), alike), ModuleFigures::Now),
            others: others
                .map(|(place, sums)| (place.clone(), ModuleFigures::Now(*sums)))
                .collect(),
            allocated: device.totals.allocated,
            before_attach: [device.before_attach, tree.peak.before_attach].map(bytes),
            unaccounted: [device.unaccounted, tree.peak.unaccounted].map(i128::from),
            since: device.since,
            peak: tree.peak.totals.allocated,
            knows_modules: Some(tree.knows_modules),
            moment: None,
        }
    }

    pub fn then(device: &IterationLayers, alike: Alike) -> Self {
        let moment = IterationShown {
            iteration: device.iteration.clone(),
            source: device.source,
            whole: device.whole,
            is_stored: device.layers.is_some(),
        };
        let Some(layers) = &device.layers else {
            return Self {
                since: device.since,
                moment: Some(moment),
                ..Self::default()
            };
        };
        let others = layers.others.iter();
        let composition = &layers.peak.composition;
        let allocated = layers.peak.totals.allocated;
        Self {
            modules: with_figures(folded(layers.modules.clone(), alike), ModuleFigures::Then),
            others: others
                .map(|(place, layer)| (place.clone(), ModuleFigures::Then(*layer)))
                .collect(),
            allocated,
            before_attach: [composition.before_attach.into(); 2],
            unaccounted: [composition.unaccounted.into(); 2],
            since: device.since,
            peak: allocated,
            knows_modules: None,
            moment: Some(moment),
        }
    }
}

/// Converts a tree's figures with `of`. Recursion is bounded: the ledger limits the number of levels.
fn with_figures<S>(
    modules: Vec<ModuleRow<S>>,
    of: fn(S) -> ModuleFigures,
) -> Vec<ModuleRow<ModuleFigures>> {
    let modules = modules.into_iter().map(|row| ModuleRow {
        name: row.name,
        count: row.count,
        own: of(row.own),
        total: of(row.total),
        parts: with_figures(row.parts, of),
    });
    modules.collect()
}

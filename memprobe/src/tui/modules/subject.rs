//! What a screen of modules tells of: what they hold now, or what they held in an iteration.

use super::state::Alike;
use crate::event::Bytes;
use crate::model::snapshot::why::{
    Category, DeviceModules, IterationLayers, IterationRow, Layer, ModuleRow, Pass, Place, Since,
    Source, Sums, Together, fold,
};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tells {
    /// What modules hold now, by the pass in which they asked for it.
    #[default]
    Now,
    /// What they held at the peak of an iteration, by what it was for.
    Then,
}

/// What is told of a module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Figures {
    /// What it holds.
    Now(Sums),
    /// What it held.
    Then(Layer),
}

impl Figures {
    /// Bytes at the moment that is told of.
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Now(sums) => sums.all.live,
            Self::Then(layer) => Bytes(layer.all()),
        }
    }

    /// Bytes when the device held most: of all time, or in the iteration.
    pub fn at_peak(&self) -> Bytes {
        match self {
            Self::Now(sums) => sums.all.at_peak,
            Self::Then(layer) => Bytes(layer.all()),
        }
    }

    /// Bytes of a category; `None` where that is not told apart.
    pub fn of(&self, category: Category) -> Option<u64> {
        match self {
            Self::Now(_) => None,
            Self::Then(layer) => Some(layer.of(category)),
        }
    }

    /// Whether anything was computed again.
    pub fn recomputed(&self) -> bool {
        match self {
            Self::Now(sums) => sums.pass(Pass::Recompute).allocs > 0,
            Self::Then(_) => false,
        }
    }
}

/// What is told of a device.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The outermost modules, those alike made one if that is wanted.
    pub(super) modules: Vec<ModuleRow<Figures>>,
    /// What is no module's.
    pub(super) others: Vec<(Place, Figures)>,
    /// What the rows add up to: the allocator's total.
    pub(super) allocated: Bytes,
    /// Bytes from before attach, at the moment and at the peak.
    pub(super) before_attach: [i128; 2],
    /// What nothing explains, likewise.
    pub(super) unaccounted: [i128; 2],
    /// Since when this is counted.
    pub(super) since: Since,
    /// The most that was allocated.
    pub(super) peak: Bytes,
    /// Whether the stacks say anything of modules; `None` where that is not told.
    pub(super) knows_modules: Option<bool>,
    /// The iteration, where one is told of.
    pub(super) moment: Option<Then>,
}

/// The iteration that is told of.
#[derive(Clone, Debug)]
pub struct Then {
    pub(super) iteration: Option<IterationRow>,
    pub(super) source: Source,
    /// The first and the last that can be looked at.
    pub(super) whole: Option<(u64, u64)>,
    /// Whether what modules held then is kept.
    pub(super) is_kept: bool,
}

impl Subject {
    /// What modules hold now.
    pub fn now(device: &DeviceModules, alike: Alike) -> Self {
        let tree = &device.tree;
        let bytes = |bytes: Bytes| i128::from(bytes.0);
        let others = tree.others.iter();
        Self {
            modules: told(folded(tree.modules.clone(), alike), Figures::Now),
            others: others
                .map(|(place, sums)| (place.clone(), Figures::Now(*sums)))
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

    /// What they held in an iteration.
    pub fn then(device: &IterationLayers, alike: Alike) -> Self {
        let moment = Then {
            iteration: device.iteration.clone(),
            source: device.source,
            whole: device.whole,
            is_kept: device.layers.is_some(),
        };
        let Some(layers) = &device.layers else {
            return Self {
                modules: Vec::new(),
                others: Vec::new(),
                allocated: Bytes(0),
                before_attach: [0; 2],
                unaccounted: [0; 2],
                since: device.since,
                peak: Bytes(0),
                knows_modules: None,
                moment: Some(moment),
            };
        };
        let others = layers.others.iter();
        let composition = &layers.peak.composition;
        let allocated = layers.peak.totals.allocated;
        Self {
            modules: told(folded(layers.modules.clone(), alike), Figures::Then),
            others: others
                .map(|(place, layer)| (place.clone(), Figures::Then(*layer)))
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

fn folded<S: Together + Copy>(modules: Vec<ModuleRow<S>>, alike: Alike) -> Vec<ModuleRow<S>> {
    match alike {
        Alike::Together => fold(modules),
        Alike::Apart => modules,
    }
}

/// The same tree of figures. The ledger tells few levels apart, so this goes no deeper.
fn told<S>(modules: Vec<ModuleRow<S>>, of: fn(S) -> Figures) -> Vec<ModuleRow<Figures>> {
    let modules = modules.into_iter().map(|row| ModuleRow {
        name: row.name,
        count: row.count,
        own: of(row.own),
        total: of(row.total),
        parts: told(row.parts, of),
    });
    modules.collect()
}

//! Data of a screen of modules, live or in an iteration, and the texts about them.

use super::super::table_screen::RowOf;
use super::ModuleList;
use super::rows::ModuleKey;
use crate::attribution::tables::{
    Category, CoverageStart, DeviceModules, IterationLayers, IterationRow, Layer, ModuleRow,
    ModuleScope, Pass, Source, Sums,
};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::view::{
    Alike, LayerCells as _, ModuleCells as _, OfModule, count, counted, folded, iteration,
    iterations_by, peak, percent,
};

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

pub fn account(subject: &ModuleTables) -> String {
    match &subject.moment {
        None => now(subject),
        Some(then) => iteration_of(then, subject),
    }
}

fn now(subject: &ModuleTables) -> String {
    let allocated = subject.allocated;
    if subject.knows_modules == Some(false) {
        return format!(
            "  allocated {}   no call of a module was seen",
            human(allocated)
        );
    }
    let rows = subject.modules.iter();
    let modules: u64 = rows.map(|row| row.total.bytes().0).sum();
    format!(
        "  allocated {}   by modules {} ({})   {} {}",
        human(allocated),
        human(Bytes(modules)),
        percent(modules.into(), allocated.0.into()),
        peak(subject.since),
        human(subject.peak),
    )
}

fn iteration_of(then: &IterationShown, subject: &ModuleTables) -> String {
    let Some(row) = &then.iteration else {
        return format!("  {}", iterations_by(then.source));
    };
    let mut text = format!("  iteration {}", iteration(row.number, row.kind));
    if let Some((first, last)) = then.whole {
        text.push_str(&format!(" of {first} to {last}"));
    }
    if let Some(epoch) = row.epoch {
        text.push_str(&format!(", epoch {epoch}"));
    }
    text.push_str(&format!(
        "   peak {}   at its end {}, cached {}",
        human(subject.peak),
        human(row.end.allocated),
        human(row.end.cached()),
    ));
    text
}

pub fn summary(row: &RowOf<ModuleList>) -> String {
    let what = match &row.key {
        ModuleKey::Module(path) => path.clone(),
        ModuleKey::Before(CoverageStart::Opening) => {
            return "live when the process was opened: t reads its category".into();
        }
        ModuleKey::Before(CoverageStart::Attach) => {
            return "live when memprobe attached: its modules are unknown".into();
        }
        ModuleKey::Unaccounted => {
            return "the allocator's total less all known blocks: events were lost".into();
        }
        ModuleKey::Other(ModuleScope::Outside) => {
            "outside module calls: parameters, optimizers, losses".to_owned()
        }
        ModuleKey::Other(ModuleScope::BackwardUnknown) => {
            "backward, through operations of unknown modules".to_owned()
        }
        ModuleKey::Other(_) => row.data.name.clone(),
    };
    if let Some(sums) = row.data.sums() {
        return summary_now(what, row, sums);
    }
    match row.data.layers() {
        Some(layers) => summary_then(what, layers),
        None => what,
    }
}

fn summary_now(
    what: String,
    row: &RowOf<ModuleList>,
    OfModule { total, own }: OfModule<&Sums>,
) -> String {
    let mut facts = vec![what, format!("own {}", human(own.all.live))];
    facts.push(match total.all.peak {
        Some(peak) => format!("peak {}", human(peak)),
        None => format!("{} in one row: no common peak", count(row.data.count)),
    });
    let then = total.all.at_peak;
    facts.push(format!("{} at the device's peak", human(then)));
    let again = total.pass(Pass::Recompute).live;
    if again > Bytes(0) {
        facts.push(format!("{} computed again", human(again)));
    }
    facts.push(counted(total.all.live_blocks, "block"));
    facts.join("   ")
}

/// Lists all categories with bytes, whether or not they have a column.
fn summary_then(what: String, OfModule { total, own }: OfModule<&Layer>) -> String {
    let mut facts = vec![what, format!("own {}", human(Bytes(own.all())))];
    let held = Category::ALL.iter();
    let held = held.map(|category| (category.as_str(), total.of(*category)));
    let held = held.filter(|(_, bytes)| *bytes > 0);
    facts.extend(held.map(|(name, bytes)| format!("{name} {}", human(Bytes(bytes)))));
    facts.join("   ")
}

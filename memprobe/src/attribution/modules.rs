//! Memory by module: a tree by the components of module paths.
//!
//! A module with its submodules has a peak of its own, not the sum of theirs. Each change is therefore
//! counted for the module and all its ancestors.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::allocation_groups::{AllocationGroups, AllocationSite, ModuleScope, Pass};
use super::groups::{BlockChange, GroupEntry};
use super::high_water_mark::{HeldBytes, HighWaterMark, HighWaterMarks, Holding, PeakAnalysis};
use super::ledger::AttributionLedger;
use super::module_aliases::RootVariables;
use super::view::CoverageStart;
use crate::event::{BlockLabels, Bytes, DeviceIndex, Event, LabeledBlock, TimeNs};
use crate::ledger::{
    BlockId, Change, CompactIndex, CopySize, Freed, Ledger, PerBlock, TotalsSample,
};

/// Cap on modules of a device; the excess is one row.
const MAX_MODULES: usize = 1 << 16;

/// Cap on path components; the last one contains the rest.
const DEEPEST: usize = 32;

/// Memory held by each module, updated by every event.
#[derive(Clone, Debug, Default)]
pub struct ModuleLedger {
    /// Allocation groups, each with its tree node once looked up. The tree has no lines, so any grouping does.
    groups: AllocationGroups<Option<u32>>,
    trees: BTreeMap<DeviceIndex, Tree>,
    marks: HighWaterMarks,
    root_variables: RootVariables,
    /// Node of each labelled block from before attach.
    baseline: PerBlock<CompactIndex>,
    pub since: CoverageStart,
}

#[derive(Clone, Debug, Default)]
struct Tree {
    /// Blocks from before attach that are counted under a module.
    labeled: HeldBytes,
    nodes: Vec<Node>,
    by_name: HashMap<(Option<u32>, ModuleScope), u32>,
}

#[derive(Clone, Debug)]
struct Node {
    parent: Option<u32>,
    /// For a module, its name within its parent.
    place: ModuleScope,
    own: Tally,
    total: Tally,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    all: HeldBytes,
    passes: [HeldBytes; 3],
}

/// Memory by module on a device. `modules`, `others`, before attach less `labeled`, and unaccounted add up to the
/// allocator's total, now and at the peak.
#[derive(Clone, Debug)]
pub struct ModuleTree {
    /// The peak. Its bytes from before attach leave out those of `modules`.
    pub peak: TotalsSample,
    /// Bytes from before attach in `modules`.
    pub labeled: Holding,
    /// Outermost modules, in order of their first allocation.
    pub modules: Vec<ModuleRow>,
    pub others: Vec<(ModuleScope, Sums)>,
    pub knows_modules: bool,
}

pub trait Additive {
    fn and(self, other: &Self) -> Self;
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModuleRow<S = Sums> {
    /// Name within the parent, or the class of an outermost module; `0..23` for a folded range.
    pub name: Arc<str>,
    pub count: u64,
    pub own: S,
    pub total: S,
    /// Submodules, in order of their first allocation.
    pub parts: Vec<Self>,
}

/// Memory held, in total and by the pass that allocated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sums {
    pub all: Holding,
    passes: [Holding; 3],
}

impl Sums {
    pub fn pass(&self, pass: Pass) -> Holding {
        self.passes[pass as usize]
    }
}

impl Additive for Sums {
    fn and(self, other: &Self) -> Self {
        let passes = std::array::from_fn(|pass| self.passes[pass].and(other.passes[pass]));
        Self {
            all: self.all.and(other.all),
            passes,
        }
    }
}

impl Tally {
    fn change(&mut self, change: BlockChange, pass: Pass, mark: u64) {
        self.all.change(change, mark);
        self.passes[pass as usize].change(change, mark);
    }

    fn sums(&self, mark: u64) -> Sums {
        Sums {
            all: self.all.holding(mark),
            passes: self.passes.map(|held| held.holding(mark)),
        }
    }
}

impl ModuleLedger {
    /// Starts from the current state of a ledger. Live blocks are counted where they were allocated. Earlier
    /// peaks are unknown.
    pub fn late(ledger: &Ledger, now: TimeNs) -> Self {
        let mut late = Self::default();
        let Self { groups, trees, .. } = &mut late;
        groups.start(ledger, |_, entry, change| {
            count(trees, entry, change, 0);
        });
        late.marks = HighWaterMarks::from_now(ledger, now);
        if ledger.moments(now).next().is_some() {
            late.since = CoverageStart::Opening;
        }
        late
    }

    pub fn tree(&self, device: DeviceIndex) -> Option<ModuleTree> {
        let HighWaterMark { number, moment } = *self.marks.get(device)?;
        let tree = self.trees.get(&device);
        let labeled = tree.map(|tree| tree.labeled.holding(number));
        let labeled = labeled.unwrap_or_default();
        let mut peak = moment;
        peak.before_attach = Bytes(peak.before_attach.0.saturating_sub(labeled.at_peak.0));
        let (mut modules, others) = tree
            .map(|tree| tree.rows(|_, node| (node.own.sums(number), node.total.sums(number))))
            .unwrap_or_default();
        self.root_variables.name_roots(&mut modules);
        Some(ModuleTree {
            peak,
            labeled,
            modules,
            others,
            knows_modules: self.groups.knows_modules(),
        })
    }
}

impl CopySize for ModuleLedger {
    fn copy_bytes(&self) -> u64 {
        let trees = self.trees.values();
        let node = size_of::<Node>() + size_of::<(Option<u32>, ModuleScope, u32)>();
        let nodes: usize = trees.map(|tree| tree.nodes.len() * node).sum();
        nodes as u64 + self.groups.copy_bytes() + self.baseline.bytes()
    }
}

impl PeakAnalysis for ModuleLedger {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        if let Event::BlockLabels(names) | Event::BaselineLabels(names) = event {
            self.root_variables.learn(names);
            self.label(names, ledger);
        }
        let Self {
            groups,
            trees,
            marks,
            baseline,
            ..
        } = self;
        marks.pass(event, ledger, categories, |mark| {
            release(trees, baseline, change, ledger, mark);
            groups.apply(change, ledger, |_, entry, change| {
                count(trees, entry, change, mark);
            });
        });
    }
}

impl ModuleLedger {
    /// Counts blocks from before attach under the modules that hold them.
    fn label(&mut self, labels: &BlockLabels, ledger: &Ledger) {
        for named in &labels.blocks {
            let id = ledger.block_at(named.device, named.addr);
            let is_meant = |id: &BlockId| {
                let block = ledger.block(*id);
                block.is_baseline && block.size == named.size && self.baseline.get(*id).is_none()
            };
            let (Some(id), Some(path)) = (id.filter(is_meant), module_of(named)) else {
                continue;
            };
            let mark = self.marks.get(named.device).map_or(0, |mark| mark.number);
            let tree = self.trees.entry(named.device).or_default();
            let node = tree.node_of(&ModuleScope::Module(path));
            tree.hold(node, named.size, mark);
            let node = usize::try_from(node).unwrap_or(usize::MAX);
            self.baseline.insert(id, CompactIndex::of(node));
        }
    }
}

/// Module that holds a block, by its path in calls if that is known.
fn module_of(named: &LabeledBlock) -> Option<Arc<str>> {
    let called = named.called.as_ref().map(|called| &called.path);
    called.or(named.module.as_ref()).cloned()
}

/// Removes blocks from before attach that have ended.
fn release(
    trees: &mut BTreeMap<DeviceIndex, Tree>,
    baseline: &mut PerBlock<CompactIndex>,
    change: &Change,
    ledger: &Ledger,
    mark: u64,
) {
    let ended = match change {
        Change::Freed(Freed::BeforeAttach(Some(id))) => std::slice::from_ref(id),
        change => change.ended(),
    };
    for id in ended {
        let block = ledger.block(*id);
        if let (Some(node), Some(tree)) = (baseline.remove(*id), trees.get_mut(&block.device)) {
            tree.release(node.index(), block.size, mark);
        }
    }
}

fn count(
    trees: &mut BTreeMap<DeviceIndex, Tree>,
    entry: &mut GroupEntry<AllocationSite, Option<u32>>,
    change: BlockChange,
    mark: u64,
) {
    let tree = trees.entry(entry.device).or_default();
    let origin = &entry.group.origin;
    let node = *entry
        .value
        .get_or_insert_with(|| tree.node_of(&origin.place));
    tree.change(node, origin.pass, change, mark);
}

impl Tree {
    /// Adds a block from before attach to a node. It belongs to no pass.
    fn hold(&mut self, node: u32, size: Bytes, mark: u64) {
        self.labeled.hold(size.0, mark);
        self.change_held(node as usize, |held| held.hold(size.0, mark));
    }

    fn release(&mut self, node: usize, size: Bytes, mark: u64) {
        self.labeled.release(size.0, mark);
        self.change_held(node, |held| held.release(size.0, mark));
    }

    /// Changes the memory of a node and of its ancestors.
    fn change_held(&mut self, node: usize, change: impl Fn(&mut HeldBytes)) {
        let mut at = Some(node);
        while let Some(index) = at {
            let Some(node_at) = self.nodes.get_mut(index) else {
                return;
            };
            if index == node {
                change(&mut node_at.own.all);
            }
            change(&mut node_at.total.all);
            at = node_at.parent.map(|parent| parent as usize);
        }
    }

    fn change(&mut self, node: u32, pass: Pass, change: BlockChange, mark: u64) {
        let mut at = Some(node);
        while let Some(index) = at {
            let Some(node_at) = self.nodes.get_mut(index as usize) else {
                return;
            };
            if index == node {
                node_at.own.change(change, pass, mark);
            }
            node_at.total.change(change, pass, mark);
            at = node_at.parent;
        }
    }

    /// Node of a module scope; modules lie below their parents.
    fn node_of(&mut self, place: &ModuleScope) -> u32 {
        let ModuleScope::Module(path) = place else {
            return self.child(None, place.clone());
        };
        let mut at = None;
        for name in path.splitn(DEEPEST, '.') {
            if self.nodes.len() >= MAX_MODULES {
                return self.child(None, ModuleScope::TooMany);
            }
            at = Some(self.child(at, ModuleScope::Module(name.into())));
        }
        at.unwrap_or_else(|| self.child(None, ModuleScope::Unknown))
    }

    fn child(&mut self, parent: Option<u32>, place: ModuleScope) -> u32 {
        let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let key = (parent, place);
        if let Some(known) = self.by_name.get(&key) {
            return *known;
        }
        self.nodes.push(Node {
            parent,
            place: key.1.clone(),
            own: Tally::default(),
            total: Tally::default(),
        });
        self.by_name.insert(key, next);
        next
    }

    /// Module rows and other scopes; `said` gives a node's value without and with submodules.
    fn rows<S>(
        &self,
        said: impl Fn(usize, &Node) -> (S, S),
    ) -> (Vec<ModuleRow<S>>, Vec<(ModuleScope, S)>) {
        let mut parts_of: Vec<Vec<ModuleRow<S>>> = Vec::new();
        parts_of.resize_with(self.nodes.len(), Vec::new);
        let (mut modules, mut others) = (Vec::new(), Vec::new());
        // Submodules follow their parent, so in reverse order they are complete before it.
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let mut parts = std::mem::take(&mut parts_of[index]);
            parts.reverse();
            let (own, total) = said(index, node);
            let name = match &node.place {
                ModuleScope::Module(name) => Arc::clone(name),
                other => {
                    others.push((other.clone(), total));
                    continue;
                }
            };
            let row = ModuleRow {
                name,
                count: 1,
                own,
                total,
                parts,
            };
            match node.parent {
                Some(parent) => parts_of[parent as usize].push(row),
                None => modules.push(row),
            }
        }
        modules.reverse();
        others.sort_by(|(one, _), (other, _)| one.cmp(other));
        (modules, others)
    }
}

/// Folds modules that differ only in their number into one row. They have the same parent, numeric names and
/// submodules of equal names. Modules without submodules stay separate, because they may be of different
/// kinds.
pub fn fold<S: Additive + Copy>(rows: Vec<ModuleRow<S>>) -> Vec<ModuleRow<S>> {
    let mut folded: Vec<(Vec<u64>, ModuleRow<S>)> = Vec::new();
    let mut by_shape: HashMap<String, usize> = HashMap::new();
    for mut row in rows {
        row.parts = fold(row.parts);
        let number = row.name.parse::<u64>().ok();
        let shape = number.and_then(|_| shape_of(&row.parts));
        let alike = shape.map(|shape| *by_shape.entry(shape).or_insert(folded.len()));
        match alike.and_then(|alike| folded.get_mut(alike)) {
            Some((numbers, into)) => {
                numbers.extend(number);
                merge(into, row);
            }
            None => folded.push((number.into_iter().collect(), row)),
        }
    }
    let named = folded.into_iter().map(|(mut numbers, mut row)| {
        numbers.sort_unstable();
        if let ([first, .., last], 2..) = (&numbers[..], row.count) {
            row.name = format!("{first}..{last}").into();
        }
        row
    });
    named.collect()
}

/// Names of all submodules below; `None` without any.
fn shape_of<S>(parts: &[ModuleRow<S>]) -> Option<String> {
    if parts.is_empty() {
        return None;
    }
    let mut names: Vec<String> = parts
        .iter()
        .map(|part| {
            format!(
                "{}({})",
                part.name,
                shape_of(&part.parts).unwrap_or_default()
            )
        })
        .collect();
    names.sort_unstable();
    Some(names.join(","))
}

fn merge<S: Additive + Copy>(into: &mut ModuleRow<S>, row: ModuleRow<S>) {
    into.count = into.count.saturating_add(row.count);
    into.own = into.own.and(&row.own);
    into.total = into.total.and(&row.total);
    let known = into.parts.iter().enumerate();
    let known: HashMap<Arc<str>, usize> = known
        .map(|(at, part)| (Arc::clone(&part.name), at))
        .collect();
    for part in row.parts {
        match known.get(&part.name).and_then(|at| into.parts.get_mut(*at)) {
            Some(known) => merge(known, part),
            None => into.parts.push(part),
        }
    }
}

/// Builds the tree from values by module scope. Modules come in the order of their first value.
pub(super) fn tree<S: Additive + Copy + Default>(
    parts: impl IntoIterator<Item = (ModuleScope, S)>,
) -> (Vec<ModuleRow<S>>, Vec<(ModuleScope, S)>) {
    let mut tree = Tree::default();
    let mut own: Vec<S> = Vec::new();
    for (place, part) in parts {
        let node = tree.node_of(&place) as usize;
        own.resize(own.len().max(node + 1), S::default());
        own[node] = own[node].and(&part);
    }
    own.resize(tree.nodes.len(), S::default());
    let mut total = own.clone();
    for (index, node) in tree.nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            total[parent as usize] = total[parent as usize].and(&total[index]);
        }
    }
    tree.rows(|index, _| (own[index], total[index]))
}

#[cfg(test)]
mod tests;

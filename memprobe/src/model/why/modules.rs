//! Which modules hold memory: a tree by the components of their paths.
//!
//! What a module holds together with its parts has a peak of its own, which is not the sum of theirs. So it is counted at every change,
//! for the module and all that it is part of.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::parts::{Change, Parts, Pass, Place};
use super::peak::{Held, Holding, Moment, Summit, summit_of};
use super::view::Since;
use crate::event::{DeviceIndex, Event, TimeNs};
use crate::model::Model;
use crate::model::applied::Applied;
use crate::model::snapshot::Grouping;

/// Modules that are told apart on a device; what comes on top is one row.
const MOST_MODULES: usize = 1 << 16;

/// Components of a path that are told apart; the last one holds the rest.
const DEEPEST: usize = 32;

/// Modules and what they hold, brought up to date by each event.
#[derive(Debug)]
pub struct ModuleLedger {
    parts: Parts,
    /// Where a part is counted, once that was looked for.
    counted: Vec<Option<(u32, Pass)>>,
    trees: BTreeMap<DeviceIndex, Tree>,
    summits: BTreeMap<DeviceIndex, Summit>,
    since: Since,
    /// Empty between events.
    changes: Vec<Change>,
}

/// The modules of a device, and the places beside them.
#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
    by_name: HashMap<(Option<u32>, Place), u32>,
}

#[derive(Debug)]
struct Node {
    parent: Option<u32>,
    /// A module's is its name within its parent.
    place: Place,
    own: Tally,
    total: Tally,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    all: Held,
    passes: [Held; 3],
}

/// What the modules of a device hold. The sum of `modules` and `others`, with what is from before attach and what is
/// unaccounted, is the allocator's total, now and at the peak.
#[derive(Clone, Debug)]
pub struct ModuleTree {
    /// The moment at which the device held most.
    pub peak: Moment,
    /// The outermost modules, in the order in which they first asked for memory.
    pub modules: Vec<ModuleRow>,
    /// What is no module's.
    pub others: Vec<(Place, Sums)>,
    /// Whether the stacks say anything of modules.
    pub knows_modules: bool,
}

/// What can be said of several together.
pub trait Together {
    /// What is said of both.
    fn and(self, other: &Self) -> Self;
}

/// What a module holds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleRow<S = Sums> {
    /// Its name within its parent, or the class of an outermost one; of several alike `0..23`.
    pub name: Arc<str>,
    /// How many modules this row stands for.
    pub count: u64,
    /// What it asked for itself.
    pub own: S,
    /// What it and its parts asked for.
    pub total: S,
    /// Its parts, in the order in which they first asked for memory.
    pub parts: Vec<Self>,
}

/// What somebody holds, and what of it was asked for in which pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sums {
    /// In all passes.
    pub all: Holding,
    passes: [Holding; 3],
}

impl Sums {
    /// What was asked for in one pass.
    pub fn pass(&self, pass: Pass) -> Holding {
        self.passes[pass as usize]
    }
}

impl Together for Sums {
    fn and(self, other: &Self) -> Self {
        let passes = std::array::from_fn(|pass| self.passes[pass].and(other.passes[pass]));
        Self {
            all: self.all.and(other.all),
            passes,
        }
    }
}

impl Tally {
    fn change(&mut self, change: Change, pass: Pass, summit: &Summit) {
        self.all.change(change, summit);
        self.passes[pass as usize].change(change, summit);
    }

    fn sums(&self, summit: &Summit) -> Sums {
        Sums {
            all: self.all.holding(summit),
            passes: self.passes.map(|held| held.holding(summit)),
        }
    }
}

impl Default for ModuleLedger {
    fn default() -> Self {
        Self {
            // Lines are not told here.
            parts: Parts::new(Grouping::User),
            counted: Vec::new(),
            trees: BTreeMap::new(),
            summits: BTreeMap::new(),
            since: Since::default(),
            changes: Vec::new(),
        }
    }
}

impl ModuleLedger {
    /// Begins with what a ledger of lines knows by now. Every live block is counted where it was asked for; what was
    /// held at higher moments before is not known.
    pub fn late(model: &Model, now: TimeNs) -> Self {
        let mut ledger = Self::default();
        let mut changes = Vec::new();
        ledger
            .parts
            .take_in(model, |device, change| changes.push((device, change)));
        for (device, change) in changes {
            ledger.count(device, change, &Summit::default());
        }
        for (device, moment) in model.moments(now) {
            ledger.since = Since::Opening;
            let summit = ledger.summits.entry(device).or_default();
            summit.begin_here(moment);
        }
        ledger
    }

    /// From when on it was told what happened.
    pub fn since(&self) -> Since {
        self.since
    }

    /// Takes the next event of the stream, what the ledger of lines made of it, and that ledger.
    pub fn apply(&mut self, event: &Event, applied: &Applied, model: &Model) {
        let Some((device, now)) = model.moment(event) else {
            return self.parts.apply(event, applied, |_| {});
        };
        let summit = *summit_of(&mut self.summits, device, event, now);
        let mut changes = std::mem::take(&mut self.changes);
        self.parts
            .apply(event, applied, |change| changes.push(change));
        for change in changes.drain(..) {
            self.count(device, change, &summit);
        }
        self.changes = changes;
        self.summits.entry(device).or_default().reach(now);
    }

    fn count(&mut self, device: DeviceIndex, change: Change, summit: &Summit) {
        if self.counted.len() <= change.part {
            self.counted.resize(change.part + 1, None);
        }
        let tree = self.trees.entry(device).or_default();
        let counted = &mut self.counted[change.part];
        let (node, pass) = match (*counted, self.parts.part(change.part)) {
            (Some(counted), _) => counted,
            (None, Some(part)) => {
                let node = tree.node_of(&part.origin.place);
                *counted.insert((node, part.origin.pass))
            }
            (None, None) => return,
        };
        tree.change(node, pass, change, summit);
    }

    /// What the modules of a device hold; `None` of one that was not heard of.
    pub fn tree(&self, device: DeviceIndex) -> Option<ModuleTree> {
        let summit = self.summits.get(&device)?;
        let (modules, others) = self
            .trees
            .get(&device)
            .map(|tree| tree.rows(|_, node| (node.own.sums(summit), node.total.sums(summit))))
            .unwrap_or_default();
        Some(ModuleTree {
            peak: summit.moment(),
            modules,
            others,
            knows_modules: self.parts.knows_modules(),
        })
    }
}

impl Tree {
    fn change(&mut self, node: u32, pass: Pass, change: Change, summit: &Summit) {
        let mut at = Some(node);
        while let Some(index) = at {
            let Some(node_at) = self.nodes.get_mut(index as usize) else {
                return;
            };
            if index == node {
                node_at.own.change(change, pass, summit);
            }
            node_at.total.change(change, pass, summit);
            at = node_at.parent;
        }
    }

    /// The node that a place is counted under; that of a module lies below those of the modules that it is part of.
    fn node_of(&mut self, place: &Place) -> u32 {
        let Place::Module(path) = place else {
            return self.child(None, place.clone());
        };
        let mut at = None;
        for name in path.splitn(DEEPEST, '.') {
            if self.nodes.len() >= MOST_MODULES {
                return self.child(None, Place::TooMany);
            }
            at = Some(self.child(at, Place::Module(name.into())));
        }
        at.unwrap_or_else(|| self.child(None, Place::Unknown))
    }

    fn child(&mut self, parent: Option<u32>, place: Place) -> u32 {
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

    /// The modules, and the places beside them, where `said` is what is said of a node alone and with its parts.
    fn rows<S>(
        &self,
        said: impl Fn(usize, &Node) -> (S, S),
    ) -> (Vec<ModuleRow<S>>, Vec<(Place, S)>) {
        let mut parts_of: Vec<Vec<ModuleRow<S>>> = Vec::new();
        parts_of.resize_with(self.nodes.len(), Vec::new);
        let (mut modules, mut others) = (Vec::new(), Vec::new());
        // Parts come after what they are part of, so that theirs are complete before it is met.
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let mut parts = std::mem::take(&mut parts_of[index]);
            parts.reverse();
            let (own, total) = said(index, node);
            let name = match &node.place {
                Place::Module(name) => Arc::clone(name),
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

/// Makes one row of modules that differ in their number alone: parts of one module that are called by numbers and whose own parts have
/// the same names. (Parts without parts of their own may be anything, so they stay as they are.)
pub fn fold<S: Together + Copy>(rows: Vec<ModuleRow<S>>) -> Vec<ModuleRow<S>> {
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

/// The names of all parts below; `None` where there are none.
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

/// Adds a row to one with the same parts.
fn merge<S: Together + Copy>(into: &mut ModuleRow<S>, row: ModuleRow<S>) {
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

/// The tree of what is said of places, and of what is no module's. Modules come in the order in which they are first met.
pub(super) fn tree<S: Together + Copy + Default>(
    parts: impl IntoIterator<Item = (Place, S)>,
) -> (Vec<ModuleRow<S>>, Vec<(Place, S)>) {
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

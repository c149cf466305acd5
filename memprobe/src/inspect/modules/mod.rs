//! The paths of the `torch.nn.Module`s that are called, by their addresses.
//!
//! Everything is read while the process runs on. What cannot be read as a whole has no name. A tree of modules is
//! read when the one at its top is first called with no other around it, and again when a module is called
//! within it that was not there.

mod belief;
mod sign;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::event::Module;
use crate::inspect::heap::modules::joined;
use crate::symbolize::python::layout::PythonLayout;
use crate::symbolize::python::module_calls::{Called, Calls, NameModules};
use crate::target::memory::ReadMemory;

use belief::Belief;
use sign::{Fate, Sign};
use tree::Tree;

/// The most modules of all trees, and the most trees.
const MOST_MODULES: usize = 1 << 18;
const MOST_TREES: usize = 1 << 12;

/// How often modules are asked whether they are still there.
const LOOK: Duration = Duration::from_secs(1);

/// As [`LOOK`], after the first stack without a name.
const LOOK_SOON: Duration = Duration::from_millis(100);

/// After how many looks at most what had no name is tried again.
const MOST_PATIENCE: u32 = 64;

/// How long trees may be read at a stretch, and then what share of the time.
const READING: Duration = Duration::from_millis(200);
const READING_SHARE: u32 = 20;

/// What share of the time may be spent with looking.
const LOOKING_SHARE: u32 = 50;

/// The modules of one process that have names.
pub struct ModuleNames<M> {
    memory: M,
    layout: PythonLayout,
    /// By the address of the module at the top.
    trees: HashMap<u64, Named>,
    belief: Belief,
    /// How many modules all trees have.
    modules: usize,
    /// Trees were read since the last look in which something has another path now.
    is_other: bool,
    /// How long trees may still be read, as of that moment.
    reading: (Duration, Instant),
    /// When modules are asked next.
    next_look: Instant,
    /// How many stacks were named, or not.
    stacks: u64,
    /// Stacks that got no name since the last look.
    nameless: u64,
    /// Looks that are let pass before what had no name is tried again, and those that have.
    patience: u32,
    passed: u32,
}

/// A tree and its name.
struct Named {
    /// The class of the module at the top.
    class: Arc<str>,
    /// Of trees of one class in the order of being met, from 1 on.
    number: u32,
    /// Of all trees, in the order of being met.
    order: u64,
    /// The stack that it was met on, by its number.
    stack: u64,
    /// Since when nothing of it is known to have changed.
    since: Instant,
    /// Full paths, by the address of the module, and by what each is known again.
    paths: HashMap<u64, (Arc<str>, Sign)>,
    /// The module at its top was freed: its number is free.
    is_over: bool,
}

impl Named {
    fn of(tree: Tree, number: u32, order: u64, stack: u64) -> Self {
        let top: Arc<str> = match number {
            1 => tree.class.clone(),
            _ => format!("{}#{number}", tree.class).into(),
        };
        let mut paths = HashMap::with_capacity(tree.members.len());
        for (object, member) in tree.members {
            let path = match &*member.path {
                "" => top.clone(),
                below => joined(&top, below),
            };
            paths.insert(object, (path, member.sign));
        }
        Self {
            class: tree.class,
            number,
            order,
            stack,
            since: Instant::now(),
            paths,
            is_over: false,
        }
    }

    /// What the module at the top is known by.
    fn sign(&self, top: u64) -> Option<Sign> {
        self.paths.get(&top).map(|(_, sign)| *sign)
    }

    /// Whether both have the same modules under the same names.
    fn has_names_of(&self, other: &Self) -> bool {
        let same = |(object, (path, _)): (&u64, &(Arc<str>, Sign))| {
            let its = other.paths.get(object);
            its.is_some_and(|(its, _)| its == path)
        };
        self.paths.len() == other.paths.len() && self.paths.iter().all(same)
    }
}

impl<M: ReadMemory> ModuleNames<M> {
    /// Those of a process whose Python has this layout; none has a name yet.
    pub fn of(memory: M, layout: PythonLayout) -> Self {
        Self {
            memory,
            layout,
            trees: HashMap::new(),
            belief: Belief::default(),
            modules: 0,
            is_other: false,
            stacks: 0,
            reading: (READING, Instant::now()),
            next_look: Instant::now() + LOOK,
            nameless: 0,
            patience: 1,
            passed: 0,
        }
    }

    /// The path of the last module of a stack, or `None` where it cannot be known now.
    fn innermost(&mut self, calls: &Calls<'_>) -> Option<Arc<str>> {
        if self.doubt_others(calls) {
            // They may have been called before that or after it.
            return None;
        }
        // The tops of the trees that were entered, the outermost first.
        let mut entered: Vec<u64> = Vec::new();
        let mut path = None;
        for (depth, called) in calls.modules.iter().enumerate() {
            let module = called.object;
            let is_outermost = depth == 0 && !calls.cut;
            let top = match self.entered_with(&entered, module) {
                Some(top) => top,
                None if calls.cut && depth == 0 => return None,
                None => self.enter(&entered, *called)?,
            };
            if !self.is_believed(top, module, is_outermost || entered.contains(&top)) {
                return None;
            }
            if !entered.contains(&top) {
                entered.push(top);
            }
            let (its, sign) = self.trees.get(&top)?.paths.get(&module)?;
            if sign.class != called.class {
                return None;
            }
            path = Some(its.clone());
        }
        path
    }

    /// Reads the trees again of which these modules were, if other objects are at their places now; `true` where
    /// something has another name then.
    fn doubt_others(&mut self, calls: &Calls<'_>) -> bool {
        let mut known = Vec::new();
        for called in calls.modules {
            for (top, tree) in &self.trees {
                let sign = tree.paths.get(&called.object).map(|(_, sign)| *sign);
                known.extend(sign.map(|sign| (*top, (called.object, sign))));
            }
        }
        let doubted = self.doubted(&known);
        let mut is_other = false;
        for (top, fate) in doubted {
            is_other |= self.doubt(top, fate);
        }
        self.is_other |= is_other;
        is_other
    }

    /// The top of the tree that a module is in: of one that was entered before it, or of any.
    fn entered_with(&self, entered: &[u64], module: u64) -> Option<u64> {
        let holds = |top: &u64| {
            let tree = self.trees.get(top);
            tree.is_some_and(|tree| tree.paths.contains_key(&module))
        };
        let inner = entered.iter().rev().copied().find(holds);
        inner.or_else(|| {
            let all = self
                .trees
                .iter()
                .filter(|(_, tree)| tree.paths.contains_key(&module));
            // One that it is within rather than its own, and then the first that was met.
            let best = all.min_by_key(|(top, tree)| (**top == module, tree.order));
            best.map(|(top, _)| *top)
        })
    }

    /// Whether a tree is known to have been there when a module of it was called, and not another since. The
    /// class alone is the name of a module at the top that was called `in_place`: outside of all others, or where
    /// its tree was entered.
    fn is_believed(&self, top: u64, module: u64, in_place: bool) -> bool {
        let Some(tree) = self.trees.get(&top) else {
            return false;
        };
        let is_named_by_class = in_place && module == top;
        let class = tree.sign(top).map_or(0, |sign| sign.class);
        is_named_by_class || !tree.is_over && self.belief.lasts(class, tree.since)
    }

    /// Finds a module that no tree has: it came to one that was entered, or is the top of another. That is
    /// believed only where the trees around it are as they were before, and it stays for a while: who is built and
    /// dropped at once may be another one by now, of which it never was.
    fn enter(&mut self, entered: &[u64], called: Called) -> Option<u64> {
        let module = called.object;
        for top in entered.iter().rev() {
            let is_same = self.read_again(*top)?;
            if self.trees.get(top)?.paths.contains_key(&module) {
                return Some(*top);
            }
            if !is_same || !self.is_believed(*top, module, true) {
                return None;
            }
        }
        if !entered.is_empty() {
            let sign = Sign::read(&self.memory, &self.layout, module).ok()?;
            if !self.belief.has_stayed(module, sign) {
                return None;
            }
        }
        self.add(called)
    }

    /// Reads a tree again; says whether it is as it was when a stack before this one was named by it.
    fn read_again(&mut self, top: u64) -> Option<bool> {
        let known = self.trees.get(&top)?;
        let (number, order, stack) = (known.number, known.order, known.stack);
        let (since, class) = (known.since, known.sign(top)?.class);
        let tree = self.read(top)?;
        if tree.class_of(top) != Some(class) {
            self.remove(top);
            return None;
        }
        let mut named = Named::of(tree, number, order, stack);
        let has_names = self.trees.get(&top)?.has_names_of(&named);
        if has_names {
            named.since = since;
        }
        let is_same = has_names && stack != self.stacks;
        self.put(top, named)?;
        Some(is_same)
    }

    /// Reads a tree that is new. What is of another class than was called came to its place since, and may be a part of
    /// another tree.
    fn add(&mut self, called: Called) -> Option<u64> {
        let top = called.object;
        let tree = self.read(top)?;
        if tree.class_of(top) != Some(called.class) {
            return None;
        }
        let number = self.free_number(&tree.class);
        let order = self.trees.values().map(|tree| tree.order).max();
        let order = order.map_or(0, |order| order + 1);
        self.put(top, Named::of(tree, number, order, self.stacks))?;
        Some(top)
    }

    /// Reads a tree, unless too much time was spent with that.
    fn read(&mut self, top: u64) -> Option<Tree> {
        let start = Instant::now();
        let (left, since) = self.reading;
        let left = (left + start.duration_since(since) / READING_SHARE).min(READING);
        self.reading = (left, start);
        if left.is_zero() {
            return None;
        }
        let tree = Tree::read(&self.memory, &self.layout, top);
        self.reading.0 = left.saturating_sub(start.elapsed());
        tree.ok()
    }

    /// Keeps a tree, if there is room for it.
    fn put(&mut self, top: u64, named: Named) -> Option<()> {
        self.remove(top);
        let modules = self.modules + named.paths.len();
        if modules > MOST_MODULES || self.trees.len() >= MOST_TREES {
            return None;
        }
        self.modules = modules;
        self.trees.insert(top, named);
        Some(())
    }

    fn remove(&mut self, top: u64) {
        if let Some(tree) = self.trees.remove(&top) {
            self.modules -= tree.paths.len();
        }
    }

    /// The lowest number that no tree of this class has, of which the top is still there.
    fn free_number(&mut self, class: &str) -> u32 {
        let of_class = self.trees.iter().filter(|(_, tree)| *tree.class == *class);
        let tops: Vec<_> = of_class
            .filter(|(_, tree)| !tree.is_over)
            .filter_map(|(top, tree)| Some((*top, tree.sign(*top)?)))
            .collect();
        let fates = Sign::fates(&self.memory, &self.layout, &tops);
        let mut taken = Vec::new();
        for ((top, sign), fate) in tops.iter().zip(fates) {
            if let Some(tree) = self.trees.get_mut(top) {
                match fate {
                    Fate::Same => taken.push(tree.number),
                    Fate::Freed | Fate::Changed => {
                        tree.is_over = true;
                        self.belief.is_fleeting(sign.class);
                    }
                }
            }
        }
        (1..).find(|number| !taken.contains(number)).unwrap_or(1)
    }

    /// Asks all modules whether they are still there; `true` where what was named may be another by now.
    fn look(&mut self) -> bool {
        let mut known = Vec::with_capacity(self.modules);
        for (top, tree) in &self.trees {
            let paths = tree.paths.iter();
            known.extend(paths.map(|(object, (_, sign))| (*top, (*object, *sign))));
        }
        let doubted = self.doubted(&known);
        let mut is_other = std::mem::take(&mut self.is_other);
        for (top, fate) in doubted {
            is_other |= self.doubt(top, fate);
        }
        is_other
    }

    /// The trees of which not all of these modules are still there: each with its top.
    fn doubted(&mut self, known: &[(u64, (u64, Sign))]) -> HashMap<u64, Fate> {
        let objects: Vec<_> = known.iter().map(|(_, object)| *object).collect();
        let fates = Sign::fates(&self.memory, &self.layout, &objects);
        let mut doubted = HashMap::new();
        for ((top, (object, sign)), fate) in known.iter().zip(fates) {
            let is_over = self.trees.get(top).is_some_and(|tree| tree.is_over);
            match fate {
                // At the place of one that was freed there is another.
                Fate::Same if is_over && object == top => {
                    doubted.insert(*top, Fate::Changed);
                }
                Fate::Same => {}
                // What becomes of the top counts for all.
                _ if object == top => {
                    self.belief.is_fleeting(sign.class);
                    doubted.insert(*top, fate);
                }
                _ => {
                    doubted.entry(*top).or_insert(Fate::Changed);
                }
            }
        }
        doubted
    }

    /// Reads a tree again of which something has changed; `true` where names did.
    fn doubt(&mut self, top: u64, fate: Fate) -> bool {
        let Some(known) = self.trees.get_mut(&top) else {
            return false;
        };
        if fate == Fate::Freed && known.paths.len() == 1 {
            // Whatever of its class comes to its place will have its name. Many are made and dropped in
            // each step, as the `CrossEntropyLoss()` of a loss.
            known.is_over = true;
            return false;
        }
        let (mut number, order, is_over) = (known.number, known.order, known.is_over);
        let class = known.sign(top).map(|sign| sign.class);
        // What is there now may be a part of another tree: it is a top only if it is called as one.
        let tree = self.read(top);
        let Some(tree) = tree.filter(|tree| tree.class_of(top) == class) else {
            self.remove(top);
            return true;
        };
        if is_over {
            // Another one may have its number by now.
            number = self.free_number(&tree.class);
        }
        let named = Named::of(tree, number, order, self.stacks);
        let is_other = self
            .trees
            .get(&top)
            .is_none_or(|known| !known.has_names_of(&named));
        self.put(top, named).is_none() || is_other
    }

    /// Lets go of trees that are over where there are many.
    fn make_room(&mut self) -> bool {
        if self.trees.len() < MOST_TREES / 2 && self.modules < MOST_MODULES / 2 {
            return false;
        }
        let over = self.trees.iter().filter(|(_, tree)| tree.is_over);
        let over: Vec<_> = over.map(|(top, _)| *top).collect();
        for top in &over {
            self.remove(*top);
        }
        !over.is_empty()
    }
}

impl<M: ReadMemory> NameModules for ModuleNames<M> {
    fn path(&mut self, calls: &Calls<'_>) -> Module {
        self.stacks += 1;
        if let Some(path) = self.innermost(calls) {
            return Module::Called(path);
        }
        if self.nameless == 0 && self.patience == 1 {
            // Most have one as soon as they stay what they are.
            self.next_look = self.next_look.min(Instant::now() + LOOK_SOON);
        }
        self.nameless += 1;
        Module::Unknown
    }

    fn look_again(&mut self) -> bool {
        self.belief.look(&self.memory, &self.layout);
        let start = Instant::now();
        if start < self.next_look {
            return false;
        }
        let mut is_other = self.look();
        is_other |= self.make_room();
        self.next_look = Instant::now() + LOOK.max(start.elapsed() * LOOKING_SHARE);
        if self.nameless == 0 {
            (self.patience, self.passed) = (1, 0);
            return is_other;
        }
        // What had no name may have one now: the process changed it while it was read.
        self.passed += 1;
        if self.passed >= self.patience {
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
            (self.nameless, self.passed) = (0, 0);
            is_other = true;
        }
        is_other
    }
}

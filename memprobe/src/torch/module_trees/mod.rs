//! Names the `torch.nn.Module`s that are being called, by their addresses.
//!
//! Everything is read while the process keeps running, and a tree that cannot be read completely yields no
//! names. A tree is read when its root is first called outside any other module, and again when an unknown module
//! is called inside it. Its names answer only questions asked since it was first found in its present state, and
//! only after it was found unchanged often enough ([`confidence`]); until then callers must ask again.

mod confidence;
mod fingerprint;
mod named;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use crate::event::{CallPaths, Module, ModuleAddress};
use crate::process::memory::ReadMemory;
use crate::python::layout::PythonLayout;
use crate::torch::module_calls::{Answer, CHECKS, Calls, ModuleCall, NameModules, Question};

use confidence::{Confidence, ConfidenceTracker, LASTS, ReadTiming, STAYS, worked};
use fingerprint::{ObjectFingerprint, ObjectState};
use named::{NamedTree, TreeNumber};
use tree::NamedModules;

const _: () = assert!(CHECKS == 2 * STAYS as u64);

const MAX_MODULES: usize = 1 << 18;
const MAX_TREES: usize = 1 << 12;

/// Interval between checks that all modules are still there.
const LOOK: Duration = Duration::from_secs(1);

/// Same as [`LOOK`], after the first stack without a name.
const LOOK_SOON: Duration = Duration::from_millis(100);

/// Most checks to wait before stacks without a name are tried again.
const MAX_PATIENCE: u32 = 64;

/// CPU time for reading trees, refilled at one part in `READING_SHARE` of the elapsed time.
const READING: Duration = Duration::from_millis(500);
const READING_SHARE: u32 = 20;

/// Checks take at most one part in `LOOKING_SHARE` of the time.
const LOOKING_SHARE: u32 = 50;

pub struct ModuleNames<M> {
    memory: M,
    layout: PythonLayout,
    trees: HashMap<u64, NamedTree>,
    confidence: ConfidenceTracker,
    watch: ReadTiming,
    checks: u64,
    modules: usize,
    /// Number of trees put so far.
    version: u64,
    /// True if a tree read since the last check gave a module another path.
    is_other: bool,
    /// CPU time left for reading trees, and the moment of that value.
    reading: (Duration, Instant),
    next_look: Instant,
    asked: Question,
    /// Stacks that got no name since the last retry.
    nameless: u64,
    /// Checks to wait before stacks without a name are tried again, and checks already waited.
    patience: u32,
    passed: u32,
}

impl<M: ReadMemory> ModuleNames<M> {
    /// Creates the names of a process whose Python has this layout, empty at first.
    pub fn of(memory: M, layout: PythonLayout) -> Self {
        Self {
            memory,
            layout,
            trees: HashMap::new(),
            confidence: ConfidenceTracker::default(),
            watch: ReadTiming::default(),
            checks: 0,
            modules: 0,
            version: 0,
            is_other: false,
            asked: Question(0),
            reading: (READING, Instant::now()),
            next_look: Instant::now() + LOOK,
            nameless: 0,
            patience: 1,
            passed: 0,
        }
    }

    /// Returns the path of a stack's last module; the error says if it may be known later.
    fn innermost(&mut self, calls: &Calls, question: Question) -> Result<Arc<str>, Confidence> {
        if self.doubt_others(calls) {
            // It is unknown if the stack's modules were called before or after the change.
            return Err(Confidence::None);
        }
        // Roots of the trees entered so far, outermost first.
        let mut entered: Vec<u64> = Vec::new();
        let mut path = None;
        let mut is_growing = false;
        for (depth, called) in calls.modules.iter().enumerate() {
            let module = called.object;
            let is_outermost = depth == 0 && !calls.cut;
            let top = match self.entered_with(&entered, module) {
                Some(top) => top,
                None if calls.cut && depth == 0 => return Err(Confidence::None),
                None => self.enter(&entered, *called, question)?,
            };
            let in_place = is_outermost || entered.contains(&top);
            match self.confidence_in(top, module, in_place, question) {
                Confidence::Full => {}
                Confidence::Growing => is_growing = true,
                Confidence::None => return Err(Confidence::None),
            }
            if !entered.contains(&top) {
                entered.push(top);
            }
            let tree = self.trees.get(&top);
            let member = tree.and_then(|tree| tree.members.get(&module));
            let member = member.filter(|member| member.sign.class == called.class);
            path = Some(Arc::clone(&member.ok_or(Confidence::None)?.path));
        }
        let path = path.ok_or(Confidence::None);
        if is_growing {
            Err(Confidence::Growing)
        } else {
            path
        }
    }

    /// Reads trees again if one of these modules or an ancestor was replaced; `true` if a name changed.
    fn doubt_others(&mut self, calls: &Calls) -> bool {
        let mut known = Vec::new();
        for (top, tree) in &self.trees {
            // Calls are nested, so most ancestors are those of an outer call too: each is read once.
            let mut met = HashSet::new();
            for called in &calls.modules {
                let signs = tree.signs_up_from(called.object);
                let signs = signs.take_while(|(object, _)| met.insert(*object));
                known.extend(signs.map(|sign| (*top, sign)));
            }
        }
        let is_other = self.doubt_each(&known);
        self.is_other |= is_other;
        is_other
    }

    /// Reads the trees again in which some of these modules changed. Returns `true` if names changed.
    fn doubt_each(&mut self, known: &[(u64, (u64, ObjectFingerprint))]) -> bool {
        let doubted = self.doubted(known).into_iter();
        doubted.fold(false, |is_other, (top, state)| {
            self.doubt(top, state) | is_other
        })
    }

    /// Finds the root of the tree of a module: first among the entered trees, then among all.
    fn entered_with(&self, entered: &[u64], module: u64) -> Option<u64> {
        let mut tops = entered.iter().rev().copied();
        let inner = tops.find(|top| self.holds(*top, module));
        inner.or_else(|| {
            let all = self.trees.iter();
            let all = all.filter(|(_, tree)| tree.members.contains_key(&module));
            // Prefer a tree that has the module below its root, then the tree met first.
            let best = all.min_by_key(|(top, tree)| (**top == module, tree.rank.order));
            best.map(|(top, _)| *top)
        })
    }

    fn holds(&self, top: u64, module: u64) -> bool {
        let tree = self.trees.get(&top);
        tree.is_some_and(|tree| tree.members.contains_key(&module))
    }

    /// Confidence that a tree held this module when it was called and is still the same tree. The class alone
    /// names a root that was called `in_place`: outside all other modules, or inside its own tree.
    fn confidence_in(&self, top: u64, module: u64, in_place: bool, asked: Question) -> Confidence {
        let Some(tree) = self.trees.get(&top) else {
            return Confidence::None;
        };
        if in_place && module == top {
            return Confidence::Full;
        }
        if tree.is_over || tree.since > asked {
            Confidence::None
        } else {
            self.confidence_in_tree(top, tree)
        }
    }

    fn confidence_in_tree(&self, top: u64, tree: &NamedTree) -> Confidence {
        let class = tree.sign(top).map_or(0, |sign| sign.class);
        self.confidence.of_tree(class, tree.moments)
    }

    /// Handles a module that no tree holds: a new member of an entered tree, or the root of another tree. A new root
    /// counts only if the trees around it are confirmed and it stays: another may have its address by now.
    fn enter(
        &mut self,
        entered: &[u64],
        called: ModuleCall,
        question: Question,
    ) -> Result<u64, Confidence> {
        let module = called.object;
        let mut confidence = Confidence::Growing;
        if !entered.is_empty() {
            let sign = ObjectFingerprint::read(&self.memory, &self.layout, module);
            let sign = sign.map_err(|_| Confidence::None)?;
            match self.confidence.of_unplaced(module, sign) {
                None => {}
                Some(Confidence::Full) => confidence = Confidence::Full,
                Some(confidence) => return Err(confidence),
            }
        }
        for top in entered.iter().rev() {
            let is_same = self.read_again(*top, question)?;
            if self.holds(*top, module) {
                return Ok(*top);
            }
            match self.confidence_in(*top, module, true, question) {
                Confidence::Full if is_same => {}
                Confidence::Growing if is_same => return Err(Confidence::Growing),
                _ => return Err(Confidence::None),
            }
        }
        match confidence {
            Confidence::Growing if !entered.is_empty() => Err(Confidence::Growing),
            confidence => self
                .add(called, confidence, question)
                .ok_or(Confidence::None),
        }
    }

    /// First question that a tree read for `question` can answer.
    fn since(&self, question: Question) -> Question {
        if question == self.asked {
            question
        } else {
            self.next_question()
        }
    }

    fn next_question(&self) -> Question {
        Question(self.asked.0 + 1)
    }

    /// Reads a tree again. Returns `true` if its names are unchanged.
    fn read_again(&mut self, top: u64, question: Question) -> Result<bool, Confidence> {
        let known = self.trees.get(&top).ok_or(Confidence::None)?;
        let (rank, since, moments) = (known.rank, known.since, known.moments);
        let class = known.sign(top).map(|sign| sign.class);
        let tree = self.read(top).ok_or(Confidence::None)?;
        if tree.class_of(top) != class {
            self.remove(top);
            return Err(Confidence::None);
        }
        let mut named = NamedTree::of(tree, rank, self.since(question));
        let known = self.trees.get(&top);
        let is_same = known.is_some_and(|known| known.has_names_of(&named));
        if is_same {
            (named.since, named.moments) = (since, moments);
        }
        self.put(top, named).ok_or(Confidence::None)?;
        Ok(is_same)
    }

    /// Reads a new tree. If its root has another class than the called module, another object has taken the
    /// address since. That object may be part of another tree, so the tree is rejected.
    fn add(&mut self, called: ModuleCall, confidence: Confidence, asked: Question) -> Option<u64> {
        let top = called.object;
        let tree = self.read(top)?;
        if tree.class_of(top) != Some(called.class) {
            return None;
        }
        let number = self.free_number(&tree.class);
        let order = self.trees.values().map(|tree| tree.rank.order).max();
        let order = order.map_or(0, |order| order + 1);
        let rank = TreeNumber { number, order };
        let mut named = NamedTree::of(tree, rank, self.since(asked));
        if confidence == Confidence::Full && named.members.len() == 1 {
            // A tree of one module: it was there when first asked for, and its class is its whole name.
            (named.since, named.moments) = (asked, STAYS);
        }
        self.put(top, named)?;
        Some(top)
    }

    fn read(&mut self, top: u64) -> Option<NamedModules> {
        let start = Instant::now();
        let (left, since) = self.reading;
        let left = (left + start.duration_since(since) / READING_SHARE).min(READING);
        self.reading = (left, start);
        if left.is_zero() {
            return None;
        }
        let before = worked();
        let tree = NamedModules::read(&self.memory, &self.layout, top);
        self.reading.0 = left.saturating_sub(worked().saturating_sub(before));
        tree.ok()
    }

    fn put(&mut self, top: u64, named: NamedTree) -> Option<()> {
        self.remove(top);
        let modules = self.modules + named.members.len();
        if modules > MAX_MODULES || self.trees.len() >= MAX_TREES {
            return None;
        }
        self.modules = modules;
        self.version += 1;
        let version = self.version;
        self.trees.insert(top, NamedTree { version, ..named });
        Some(())
    }

    fn remove(&mut self, top: u64) {
        if let Some(tree) = self.trees.remove(&top) {
            self.modules -= tree.members.len();
        }
    }

    /// Lowest number that no tree of this class with a live root has.
    fn free_number(&mut self, class: &str) -> u32 {
        let of_class = self.trees.iter().filter(|(_, tree)| *tree.class == *class);
        let tops: Vec<_> = of_class
            .filter(|(_, tree)| !tree.is_over)
            .filter_map(|(top, tree)| Some((*top, tree.sign(*top)?)))
            .collect();
        let states = ObjectFingerprint::states(&self.memory, &self.layout, &tops);
        let mut taken = Vec::new();
        for ((top, sign), state) in tops.iter().zip(states) {
            if let Some(tree) = self.trees.get_mut(top) {
                match state {
                    ObjectState::Same => taken.push(tree.rank.number),
                    ObjectState::Freed | ObjectState::Changed => {
                        tree.is_over = true;
                        self.confidence.is_fleeting(sign.class);
                    }
                }
            }
        }
        (1..).find(|number| !taken.contains(number)).unwrap_or(1)
    }

    /// Checks that all modules are still there. Returns `true` if a name may have changed.
    fn look(&mut self) -> bool {
        let mut known = Vec::with_capacity(self.modules);
        for (top, tree) in &self.trees {
            known.extend(tree.signs().map(|sign| (*top, sign)));
        }
        self.doubt_each(&known) | std::mem::take(&mut self.is_other)
    }

    /// Returns the trees in which some of these modules changed, by root, with the fate of the root.
    fn doubted(&mut self, known: &[(u64, (u64, ObjectFingerprint))]) -> HashMap<u64, ObjectState> {
        let objects: Vec<_> = known.iter().map(|(_, object)| *object).collect();
        let states = ObjectFingerprint::states(&self.memory, &self.layout, &objects);
        let mut doubted = HashMap::new();
        for ((top, (object, sign)), state) in known.iter().zip(states) {
            let is_over = self.trees.get(top).is_some_and(|tree| tree.is_over);
            match state {
                // A live object at the root of a tree that is over is another object.
                ObjectState::Same if is_over && object == top => {
                    doubted.insert(*top, ObjectState::Changed);
                }
                ObjectState::Same => {}
                // The fate of the root counts for the whole tree.
                _ if object == top => {
                    self.confidence.is_fleeting(sign.class);
                    doubted.insert(*top, state);
                }
                _ => {
                    doubted.entry(*top).or_insert(ObjectState::Changed);
                }
            }
        }
        doubted
    }

    /// Reads a tree again in which something changed. Returns `true` if names changed.
    fn doubt(&mut self, top: u64, state: ObjectState) -> bool {
        let Some(known) = self.trees.get_mut(&top) else {
            return false;
        };
        if state == ObjectState::Freed && known.members.len() == 1 {
            // A later object of the same class at this address gets the same name. Many are created and
            // dropped in each step, such as the `CrossEntropyLoss()` of a loss.
            known.is_over = true;
            return false;
        }
        let (mut rank, since, is_over) = (known.rank, known.since, known.is_over);
        let class = known.sign(top).map(|sign| sign.class);
        // The object there may be part of another tree now: it is a root only once it is called as one.
        let tree = self.read(top);
        let Some(tree) = tree.filter(|tree| tree.class_of(top) == class) else {
            self.remove(top);
            return true;
        };
        if is_over {
            // Another tree may have taken its number meanwhile.
            rank.number = self.free_number(&tree.class);
        }
        let mut named = NamedTree::of(tree, rank, self.next_question());
        let known = self.trees.get(&top);
        let is_other = known.is_none_or(|known| !known.has_names_of(&named));
        if !is_other {
            named.since = since;
        }
        self.put(top, named).is_none() || is_other
    }

    /// Checks all unconfirmed trees and modules, at a moment independent of the process's calls.
    fn watch(&mut self, ran: &dyn Fn() -> Option<u64>) {
        let is_watched = |(top, tree): &(&u64, &NamedTree)| {
            !tree.is_over && self.confidence_in_tree(**top, tree) != Confidence::Full
        };
        let watched = self.trees.iter().filter(is_watched);
        let watched: Vec<u64> = watched.map(|(top, _)| *top).collect();
        let is_idle = watched.is_empty() && !self.confidence.has_doubts();
        if is_idle || !self.watch.is_due(Instant::now(), ran) {
            return;
        }
        let before = worked();
        self.confidence.look(&self.memory, &self.layout);
        let mut known = Vec::new();
        for top in &watched {
            let signs = self.trees.get(top).into_iter().flat_map(NamedTree::signs);
            known.extend(signs.map(|sign| (*top, sign)));
        }
        let doubted = self.doubted(&known);
        for top in watched.iter().filter(|top| !doubted.contains_key(*top)) {
            self.was_there(*top);
        }
        for (top, state) in doubted {
            self.is_other |= self.doubt(top, state);
        }
        self.checks += 1;
        self.watch.looked(worked().saturating_sub(before));
    }

    fn was_there(&mut self, top: u64) {
        let Some(tree) = self.trees.get_mut(&top) else {
            return;
        };
        tree.moments += 1;
        // Reads the tree again now and then: a key table that a dict has replaced keeps its contents for long.
        let is_due = [STAYS / 2, STAYS, LASTS].contains(&tree.moments);
        if is_due && tree.members.len() > 1 {
            match self.read_again(top, self.next_question()) {
                Ok(true) => {}
                Ok(false) => self.is_other = true,
                // Try again at the next moment.
                Err(_) => match self.trees.get_mut(&top) {
                    Some(tree) => tree.moments -= 1,
                    None => self.is_other = true,
                },
            }
        }
        let tree = self.trees.get(&top);
        let is_full =
            tree.is_some_and(|tree| self.confidence_in_tree(top, tree) == Confidence::Full);
        if is_full && self.nameless > 0 {
            (self.patience, self.passed) = (1, 0);
            self.next_look = self.next_look.min(Instant::now() + LOOK_SOON);
        }
    }

    /// Removes trees whose root was freed, once half of a limit is reached; `true` if any was.
    fn remove_freed_trees(&mut self) -> bool {
        if self.trees.len() < MAX_TREES / 2 && self.modules < MAX_MODULES / 2 {
            return false;
        }
        let over = self.trees.iter().filter(|(_, tree)| tree.is_over);
        let over: Vec<_> = over.map(|(top, _)| *top).collect();
        for top in &over {
            self.remove(*top);
        }
        !over.is_empty()
    }

    fn answer(&mut self, calls: &Calls, question: Question) -> Answer {
        match self.innermost(calls, question) {
            Ok(path) => Answer::Is(Module::Called(path)),
            Err(Confidence::Growing) => Answer::Later(question),
            Err(Confidence::None | Confidence::Full) => {
                self.give_up();
                Answer::Is(Module::Unknown)
            }
        }
    }
}

impl<M: ReadMemory> NameModules for ModuleNames<M> {
    fn path(&mut self, calls: &Calls) -> Answer {
        self.asked = self.next_question();
        let answer = self.answer(calls, self.asked);
        // A tree read for a postponed question is read after the question was asked.
        self.asked = self.next_question();
        answer
    }

    fn path_later(&mut self, calls: &Calls, question: Question) -> Answer {
        self.answer(calls, question)
    }

    fn add_paths(&self, known: &mut CallPaths) {
        if known.version == self.version {
            return;
        }
        let before = std::mem::replace(&mut known.version, self.version);
        // The paths of earlier trees are known.
        let is_new = |tree: &NamedTree| tree.version > before && !tree.is_over;
        let trees = self.trees.iter();
        let mut trees: Vec<_> = trees.filter(|(_, tree)| is_new(tree)).collect();
        // As in [`Self::entered_with`]: a module that is the root of another tree counts last there.
        trees.sort_by_key(|(_, tree)| tree.rank.order);
        for is_root in [false, true] {
            for (top, tree) in &trees {
                let members = tree.members.iter();
                for (object, member) in members.filter(|(object, _)| (object == top) == is_root) {
                    let class = member.sign.class;
                    let address = ModuleAddress {
                        object: *object,
                        class,
                    };
                    let path = known.paths.entry(address);
                    path.or_insert_with(|| Arc::clone(&member.path));
                }
            }
        }
    }

    fn give_up(&mut self) {
        if self.nameless == 0 && self.patience == 1 {
            // Most modules get a name as soon as their tree stays unchanged.
            self.next_look = self.next_look.min(Instant::now() + LOOK_SOON);
        }
        self.nameless += 1;
    }

    fn look_again(&mut self, ran: &dyn Fn() -> Option<u64>) -> bool {
        self.watch(ran);
        let start = Instant::now();
        if start < self.next_look {
            return false;
        }
        let mut is_other = self.look();
        is_other |= self.remove_freed_trees();
        self.next_look = Instant::now() + LOOK.max(start.elapsed() * LOOKING_SHARE);
        if self.nameless == 0 {
            (self.patience, self.passed) = (1, 0);
            return is_other;
        }
        // Stacks without a name may have one now: the process may have changed its modules during the read.
        self.passed += 1;
        if self.passed >= self.patience {
            self.patience = (self.patience * 2).min(MAX_PATIENCE);
            (self.nameless, self.passed) = (0, 0);
            is_other = true;
        }
        is_other
    }

    fn checks(&self) -> u64 {
        self.checks
    }
}

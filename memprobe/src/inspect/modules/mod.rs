//! The paths of the `torch.nn.Module`s that are called, by their addresses.
//!
//! Everything is read while the process runs on. What cannot be read as a whole has no name. A tree of modules is
//! read when the one at its top is first called with no other around it, and again when a module is called
//! within it that was not there. Its names are answers to those who asked since it was first found so, once it was
//! found unchanged often enough ([`belief`]); until then they are to ask again.

mod belief;
mod named;
mod sign;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::event::Module;
use crate::symbolize::python::layout::PythonLayout;
use crate::symbolize::python::module_calls::{Answer, Called, Calls, NameModules, Question};
use crate::target::memory::ReadMemory;

use belief::{Belief, Faith, LASTS, STAYS, Watch, worked};
use named::{Named, Rank};
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
const READING: Duration = Duration::from_millis(500);
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
    watch: Watch,
    /// How many modules all trees have.
    modules: usize,
    /// Trees were read since the last look in which something has another path now.
    is_other: bool,
    /// How long trees may still be read, as of that moment.
    reading: (Duration, Instant),
    /// When modules are asked next.
    next_look: Instant,
    /// The last question that was asked.
    asked: Question,
    /// Stacks that got no name since the last look.
    nameless: u64,
    /// Looks that are let pass before what had no name is tried again, and those that have.
    patience: u32,
    passed: u32,
}

impl<M: ReadMemory> ModuleNames<M> {
    /// Those of a process whose Python has this layout; none has a name yet.
    pub fn of(memory: M, layout: PythonLayout) -> Self {
        Self {
            memory,
            layout,
            trees: HashMap::new(),
            belief: Belief::default(),
            watch: Watch::default(),
            modules: 0,
            is_other: false,
            asked: Question(0),
            reading: (READING, Instant::now()),
            next_look: Instant::now() + LOOK,
            nameless: 0,
            patience: 1,
            passed: 0,
        }
    }

    /// The path of the last module of a stack; otherwise whether it may be known later.
    fn innermost(&mut self, calls: &Calls<'_>, question: Question) -> Result<Arc<str>, Faith> {
        if self.doubt_others(calls) {
            // They may have been called before that or after it.
            return Err(Faith::None);
        }
        // The tops of the trees that were entered, the outermost first.
        let mut entered: Vec<u64> = Vec::new();
        let mut path = None;
        let mut is_growing = false;
        for (depth, called) in calls.modules.iter().enumerate() {
            let module = called.object;
            let is_outermost = depth == 0 && !calls.cut;
            let top = match self.entered_with(&entered, module) {
                Some(top) => top,
                None if calls.cut && depth == 0 => return Err(Faith::None),
                None => self.enter(&entered, *called, question)?,
            };
            let in_place = is_outermost || entered.contains(&top);
            match self.faith_in(top, module, in_place, question) {
                Faith::Full => {}
                Faith::Growing => is_growing = true,
                Faith::None => return Err(Faith::None),
            }
            if !entered.contains(&top) {
                entered.push(top);
            }
            let member = self.trees.get(&top).and_then(|tree| tree.get(module));
            let member = member.filter(|member| member.sign.class == called.class);
            path = Some(Arc::clone(&member.ok_or(Faith::None)?.path));
        }
        match is_growing {
            true => Err(Faith::Growing),
            false => path.ok_or(Faith::None),
        }
    }

    /// Reads the trees again of which these modules were, if other objects are at their places now or above them;
    /// `true` where something has another name then.
    fn doubt_others(&mut self, calls: &Calls<'_>) -> bool {
        let mut known = Vec::new();
        for called in calls.modules {
            for (top, tree) in &self.trees {
                let signs = tree.signs_up_from(called.object);
                known.extend(signs.map(|sign| (*top, sign)));
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
        let holds = |top: &u64| self.trees.get(top).is_some_and(|tree| tree.holds(module));
        let inner = entered.iter().rev().copied().find(holds);
        inner.or_else(|| {
            let all = self.trees.iter().filter(|(_, tree)| tree.holds(module));
            // One that it is within rather than its own, and then the first that was met.
            let best = all.min_by_key(|(top, tree)| (**top == module, tree.rank.order));
            best.map(|(top, _)| *top)
        })
    }

    /// How far a tree is believed to have been there when a module of it was called, and not another since. The
    /// class alone is the name of a module at the top that was called `in_place`: outside of all others, or where
    /// its tree was entered.
    fn faith_in(&self, top: u64, module: u64, in_place: bool, question: Question) -> Faith {
        let Some(tree) = self.trees.get(&top) else {
            return Faith::None;
        };
        match () {
            () if in_place && module == top => Faith::Full,
            () if tree.is_over || tree.since > question => Faith::None,
            () => self.faith_in_tree(top, tree),
        }
    }

    fn faith_in_tree(&self, top: u64, tree: &Named) -> Faith {
        let class = tree.sign(top).map_or(0, |sign| sign.class);
        self.belief.of_tree(class, tree.moments)
    }

    /// Finds a module that no tree has: it came to one that was entered, or is the top of another. That is
    /// believed only where the trees around it are believed too, and it stays for a while: who is built and
    /// dropped at once may be another one by now, of which it never was.
    fn enter(&mut self, entered: &[u64], called: Called, question: Question) -> Result<u64, Faith> {
        let module = called.object;
        let mut faith = Faith::Growing;
        if !entered.is_empty() {
            let sign = Sign::read(&self.memory, &self.layout, module);
            let sign = sign.map_err(|_| Faith::None)?;
            match self.belief.of_stranger(module, sign) {
                None => {}
                Some(Faith::Full) => faith = Faith::Full,
                Some(faith) => return Err(faith),
            }
        }
        for top in entered.iter().rev() {
            let is_same = self.read_again(*top, question)?;
            let holds = self.trees.get(top).is_some_and(|tree| tree.holds(module));
            if holds {
                return Ok(*top);
            }
            match self.faith_in(*top, module, true, question) {
                Faith::Full if is_same => {}
                Faith::Growing if is_same => return Err(Faith::Growing),
                _ => return Err(Faith::None),
            }
        }
        match faith {
            Faith::Growing if !entered.is_empty() => Err(Faith::Growing),
            faith => self.add(called, faith, question).ok_or(Faith::None),
        }
    }

    /// The first question that a tree is an answer to which is read for this one.
    fn since(&self, question: Question) -> Question {
        match question == self.asked {
            true => question,
            false => self.next_question(),
        }
    }

    fn next_question(&self) -> Question {
        Question(self.asked.0 + 1)
    }

    /// Reads a tree again; says whether it has the names that it had.
    fn read_again(&mut self, top: u64, question: Question) -> Result<bool, Faith> {
        let known = self.trees.get(&top).ok_or(Faith::None)?;
        let (rank, since, moments) = (known.rank, known.since, known.moments);
        let class = known.sign(top).map(|sign| sign.class);
        let tree = self.read(top).ok_or(Faith::None)?;
        if tree.class_of(top) != class {
            self.remove(top);
            return Err(Faith::None);
        }
        let mut named = Named::of(tree, rank, self.since(question));
        let known = self.trees.get(&top);
        let is_same = known.is_some_and(|known| known.has_names_of(&named));
        if is_same {
            (named.since, named.moments) = (since, moments);
        }
        self.put(top, named).ok_or(Faith::None)?;
        Ok(is_same)
    }

    /// Reads a tree that is new. What is of another class than was called came to its place since, and may be a part of
    /// another tree.
    fn add(&mut self, called: Called, faith: Faith, question: Question) -> Option<u64> {
        let top = called.object;
        let tree = self.read(top)?;
        if tree.class_of(top) != Some(called.class) {
            return None;
        }
        let number = self.free_number(&tree.class);
        let order = self.trees.values().map(|tree| tree.rank.order).max();
        let order = order.map_or(0, |order| order + 1);
        let rank = Rank { number, order };
        let mut named = Named::of(tree, rank, self.since(question));
        if faith == Faith::Full && named.len() == 1 {
            // It was there since it was first asked for, and there is nothing else to know of it.
            (named.since, named.moments) = (question, STAYS);
        }
        self.put(top, named)?;
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
        let before = worked();
        let tree = Tree::read(&self.memory, &self.layout, top);
        self.reading.0 = left.saturating_sub(worked().saturating_sub(before));
        tree.ok()
    }

    /// Keeps a tree, if there is room for it.
    fn put(&mut self, top: u64, named: Named) -> Option<()> {
        self.remove(top);
        let modules = self.modules + named.len();
        if modules > MOST_MODULES || self.trees.len() >= MOST_TREES {
            return None;
        }
        self.modules = modules;
        self.trees.insert(top, named);
        Some(())
    }

    fn remove(&mut self, top: u64) {
        if let Some(tree) = self.trees.remove(&top) {
            self.modules -= tree.len();
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
                    Fate::Same => taken.push(tree.rank.number),
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
            known.extend(tree.signs().map(|sign| (*top, sign)));
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
        if fate == Fate::Freed && known.len() == 1 {
            // Whatever of its class comes to its place will have its name. Many are made and dropped in
            // each step, as the `CrossEntropyLoss()` of a loss.
            known.is_over = true;
            return false;
        }
        let (mut rank, since, is_over) = (known.rank, known.since, known.is_over);
        let class = known.sign(top).map(|sign| sign.class);
        // What is there now may be a part of another tree: it is a top only if it is called as one.
        let tree = self.read(top);
        let Some(tree) = tree.filter(|tree| tree.class_of(top) == class) else {
            self.remove(top);
            return true;
        };
        if is_over {
            // Another one may have its number by now.
            rank.number = self.free_number(&tree.class);
        }
        let mut named = Named::of(tree, rank, self.next_question());
        let known = self.trees.get(&top);
        let is_other = known.is_none_or(|known| !known.has_names_of(&named));
        if !is_other {
            named.since = since;
        }
        self.put(top, named).is_none() || is_other
    }

    /// Looks at what is not believed yet, at a moment that nobody's calls have chosen.
    fn watch(&mut self, ran: &dyn Fn() -> Option<u64>) {
        let is_watched = |(top, tree): &(&u64, &Named)| {
            !tree.is_over && self.faith_in_tree(**top, tree) != Faith::Full
        };
        let watched: Vec<u64> = self
            .trees
            .iter()
            .filter(is_watched)
            .map(|it| *it.0)
            .collect();
        let is_idle = watched.is_empty() && !self.belief.has_doubts();
        if is_idle || !self.watch.is_due(Instant::now(), ran) {
            return;
        }
        let before = worked();
        self.belief.look(&self.memory, &self.layout);
        let mut known = Vec::new();
        for top in &watched {
            let signs = self.trees.get(top).into_iter().flat_map(Named::signs);
            known.extend(signs.map(|sign| (*top, sign)));
        }
        let doubted = self.doubted(&known);
        for top in watched.iter().filter(|top| !doubted.contains_key(*top)) {
            self.was_there(*top);
        }
        for (top, fate) in doubted {
            self.is_other |= self.doubt(top, fate);
        }
        self.watch.looked(worked().saturating_sub(before));
    }

    /// Counts a moment at which all modules of a tree were there.
    fn was_there(&mut self, top: u64) {
        let Some(tree) = self.trees.get_mut(&top) else {
            return;
        };
        tree.moments += 1;
        // Now and then it is followed from its top on: a table that a dict has given up says for long what it said.
        let is_due = [STAYS / 2, STAYS, LASTS].contains(&tree.moments);
        if is_due && tree.len() > 1 {
            match self.read_again(top, self.next_question()) {
                Ok(true) => {}
                Ok(false) => self.is_other = true,
                // Another time.
                Err(_) => match self.trees.get_mut(&top) {
                    Some(tree) => tree.moments -= 1,
                    None => self.is_other = true,
                },
            }
        }
        let tree = self.trees.get(&top);
        let is_full = tree.is_some_and(|tree| self.faith_in_tree(top, tree) == Faith::Full);
        if is_full && self.nameless > 0 {
            self.try_again_soon();
        }
    }

    /// Has stacks without a name told anew in a moment.
    fn try_again_soon(&mut self) {
        (self.patience, self.passed) = (1, 0);
        self.next_look = self.next_look.min(Instant::now() + LOOK_SOON);
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

    fn answer(&mut self, calls: &Calls<'_>, question: Question) -> Answer {
        match self.innermost(calls, question) {
            Ok(path) => Answer::Is(Module::Called(path)),
            Err(Faith::Growing) => Answer::Later(question),
            Err(Faith::None | Faith::Full) => {
                self.give_up();
                Answer::Is(Module::Unknown)
            }
        }
    }
}

impl<M: ReadMemory> NameModules for ModuleNames<M> {
    fn path(&mut self, calls: &Calls<'_>) -> Answer {
        self.asked = self.next_question();
        let answer = self.answer(calls, self.asked);
        // What is read for a question that is asked again is read after it was asked.
        self.asked = self.next_question();
        answer
    }

    fn path_later(&mut self, calls: &Calls<'_>, question: Question) -> Answer {
        self.answer(calls, question)
    }

    fn give_up(&mut self) {
        if self.nameless == 0 && self.patience == 1 {
            // Most have one as soon as they stay what they are.
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

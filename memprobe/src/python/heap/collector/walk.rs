//! A walk along the lists.

use std::collections::VecDeque;

use super::endings::KNOWN_ENOUGH;
use super::{Broken, Endings, Generation, Listed, MAX_OBJECTS, TornLink, is_collecting};
use crate::process::memory::{ReadMemory, ReadResult};
use crate::python::heap::word_at;
use crate::python::layout::CollectorLayout;

/// Latest objects of a walk, from which a list that has changed is taken up again. The last ones of the old objects are
/// those that a collection has just added; many of them die at once.
const TRAIL: usize = 1024;

/// Most times that a walk takes up lists again.
const MAX_REPAIRS: u32 = 1 << 14;

#[derive(Clone, Copy)]
pub enum WalkExtent<'a> {
    All,
    /// All objects of a running process, to know their pages. The parts of the copy that is walked are of different
    /// moments. Where they contradict each other, the walk goes on with the list of the moment. It may visit objects
    /// twice and, if the collector reorders a list meanwhile, miss some.
    Running(&'a dyn LiveLists),
    /// Each list from its end back to objects that are known; young lists, and a short one of old objects, further. That
    /// finds the objects added since.
    Added(&'a Endings),
}

/// Reads the lists of a running process, at the moment of the call.
pub trait LiveLists {
    /// Reads the header of an object and the two words behind it.
    fn words(&self, node: u64) -> ReadResult<[u64; 4]>;

    /// Waits for the end of a collection, for a limited time in all. Meanwhile references to the object before hold counts
    /// (`update_refs` in Python/gc.c@v3.13.9).
    fn wait_for_collection(&self);
}

/// A walk through the lists of all interpreters of a process.
pub struct ListWalk<'a, M, F> {
    memory: &'a M,
    layout: &'a CollectorLayout,
    extent: WalkExtent<'a>,
    /// Called with each object.
    each: F,
    /// Objects so far.
    count: usize,
    repairs: u32,
    /// First place at which a list was inconsistent.
    pub torn: Option<TornLink>,
}

/// The next node of a walk, before it is checked.
#[derive(Clone, Copy, Debug)]
struct Step {
    before: u64,
    node: u64,
    /// Its words; `None` if they have not been read.
    words: Option<[u64; 4]>,
}

impl Step {
    const fn link(self) -> TornLink {
        TornLink {
            before: self.before,
            node: self.node,
        }
    }
}

impl<'a, M: ReadMemory, F: FnMut(Listed)> ListWalk<'a, M, F> {
    pub fn new(
        memory: &'a M,
        layout: &'a CollectorLayout,
        extent: WalkExtent<'a>,
        each: F,
    ) -> Self {
        Self {
            memory,
            layout,
            extent,
            each,
            count: 0,
            repairs: 0,
            torn: None,
        }
    }

    /// Walks through the objects of an interpreter: its generations, youngest first, then the frozen objects. Objects
    /// found before an error are valid, because consistent links led to each of them.
    pub fn interpreter(&mut self, interpreter: u64) -> Result<(), Broken> {
        if let WalkExtent::Running(live) = self.extent {
            live.wait_for_collection();
        } else if is_collecting(self.memory, self.layout, interpreter)? {
            return Err(Broken::Collecting);
        }
        let collector = interpreter.wrapping_add(self.layout.start.into());
        let first = collector.wrapping_add(self.layout.generations.into());
        let generation = |number| first.wrapping_add(number * CollectorLayout::GENERATION_SIZE);
        let permanent = collector.wrapping_add(self.layout.permanent.into());
        let heads = [generation(0), generation(1), generation(2), permanent];
        let generations = [
            Generation::New,
            Generation::Young,
            Generation::Old,
            Generation::Frozen,
        ];
        // If one list is broken, the others may still be intact.
        let walked = generations.map(|generation| self.list(&heads, generation));
        walked.into_iter().collect()
    }

    /// Walks through a list. `heads` has those of all lists of the interpreter, by generation.
    fn list(&mut self, heads: &[u64; 4], generation: Generation) -> Result<(), Broken> {
        let head = heads[generation as usize];
        let restless = self.count
            + match self.extent {
                WalkExtent::Added(endings) => endings.walked_again(generation),
                WalkExtent::All | WalkExtent::Running(_) => generation.restless(),
            };
        let first = match self.extent {
            WalkExtent::Running(live) => live.words(head)?,
            WalkExtent::All | WalkExtent::Added(_) => words(self.memory, head)?,
        };
        let mut step = Step {
            before: head,
            node: self.links(first)[0],
            words: None,
        };
        let mut trail = VecDeque::from([head]);
        let mut known = 0;
        while step.node != head {
            let has_known = self.has_enough_known(step.node, generation, &mut known);
            if has_known && self.count >= restless {
                break;
            }
            let words = match self.checked(step, heads) {
                Ok(words) => words,
                Err(broken) => {
                    if let Some(again) = self.take_up(&mut trail, heads, head) {
                        step = again;
                        continue;
                    }
                    // The last of the young objects are looked at again anyway.
                    if self.is_running() && self.count < restless {
                        return Ok(());
                    }
                    self.torn.get_or_insert(step.link());
                    return Err(broken);
                }
            };
            self.add(step.node, words, generation)?;
            if self.is_running() {
                trail.truncate(TRAIL - 1);
                trail.push_front(step.node);
            }
            step = Step {
                before: step.node,
                node: self.links(words)[0],
                words: None,
            };
        }
        Ok(())
    }

    /// Adds a node to the count of known ones at the end of a list. True if those before it are known.
    fn has_enough_known(&self, node: u64, list: Generation, known: &mut usize) -> bool {
        let WalkExtent::Added(endings) = self.extent else {
            return false;
        };
        *known += usize::from(endings.has(object_of(node), list));
        *known >= KNOWN_ENOUGH
    }

    fn add(&mut self, node: u64, words: [u64; 4], generation: Generation) -> Result<(), Broken> {
        if self.count == MAX_OBJECTS {
            return Err(Broken::TooMany);
        }
        self.count += 1;
        (self.each)(Listed {
            address: object_of(node),
            class: words[3],
            generation,
        });
        Ok(())
    }

    fn is_running(&self) -> bool {
        matches!(self.extent, WalkExtent::Running(_))
    }

    /// Returns the words of a node that refers back to the one before it. The head of another list is no object.
    fn checked(&self, step: Step, heads: &[u64; 4]) -> Result<[u64; 4], Broken> {
        let words = match step.words {
            Some(words) => words,
            None => words(self.memory, step.node)?,
        };
        let leads_back = self.links(words)[1] == step.before;
        (leads_back && !heads.contains(&step.node))
            .then_some(words)
            .ok_or(Broken::Link(step.node))
    }

    /// The node after this one in the direction of the walk, and the node before it.
    fn links(&self, [next, previous, _, _]: [u64; 4]) -> [u64; 2] {
        let [next, previous] = [next, previous].map(|word| word & !CollectorLayout::MARKS);
        match self.extent {
            WalkExtent::All | WalkExtent::Running(_) => [next, previous],
            WalkExtent::Added(_) => [previous, next],
        }
    }

    /// Finds how a list goes on now, from the latest object of the walk that is still in it. `None` if the process does
    /// not run, or its list changes too much.
    fn take_up(&mut self, trail: &mut VecDeque<u64>, heads: &[u64; 4], head: u64) -> Option<Step> {
        let WalkExtent::Running(live) = self.extent else {
            return None;
        };
        if self.repairs == MAX_REPAIRS {
            return None;
        }
        self.repairs += 1;
        let goes_on = |before| {
            let [node, _] = self.links(live.words(before).ok()?);
            // An object that leads to the head of another list, or back, has changed lists.
            if node != head && (heads.contains(&node) || trail.contains(&node)) {
                return None;
            }
            let words = live.words(node).ok()?;
            let step = Step {
                before,
                node,
                words: Some(words),
            };
            (self.links(words)[1] == before).then_some(step)
        };
        let find = || {
            let mut candidates = trail.iter().enumerate();
            candidates.find_map(|(newer, &before)| Some((newer, goes_on(before)?)))
        };
        let (newer, step) = find().or_else(|| {
            live.wait_for_collection();
            find()
        })?;
        trail.drain(..newer);
        Some(step)
    }
}

const fn object_of(node: u64) -> u64 {
    node.wrapping_add(CollectorLayout::HEAD_SIZE)
}

/// Reads the header of an object and the two words behind it: the next object, the one before, and the begin of the
/// object with its class.
pub fn words(memory: &impl ReadMemory, node: u64) -> ReadResult<[u64; 4]> {
    let bytes: [u8; 32] = memory.read_array(node)?;
    Ok([0, 8, 16, 24].map(|at| word_at(&bytes, at)))
}

/// Returns the objects of one interpreter, and the error at which the walk ended.
#[cfg(test)]
pub fn listed(
    memory: &impl ReadMemory,
    layout: &CollectorLayout,
    interpreter: u64,
    extent: WalkExtent<'_>,
) -> (Vec<Listed>, Result<(), Broken>) {
    let mut listed = Vec::new();
    let mut walk = ListWalk::new(memory, layout, extent, |object| listed.push(object));
    let walked = walk.interpreter(interpreter);
    (listed, walked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::fake::FakeMemory;
    use crate::python::heap::fake::FakeHeap;
    use crate::python::versions::LAYOUTS;

    impl LiveLists for FakeMemory {
        fn words(&self, node: u64) -> ReadResult<[u64; 4]> {
            words(self, node)
        }

        fn wait_for_collection(&self) {}
    }

    /// Forty objects; each fourth one is in the same list, so the list of the old ones has those at 2, 6, 10 and so on.
    struct Lists {
        objects: Vec<u64>,
        /// Memory that the walk reads.
        copy: FakeMemory,
        /// The same memory later.
        live: FakeMemory,
        interpreter: u64,
    }

    const OLD: [usize; 10] = [2, 6, 10, 14, 18, 22, 26, 30, 34, 38];

    impl Lists {
        fn new() -> Self {
            let lists = || {
                let mut heap = FakeHeap::new(&LAYOUTS[0]);
                let objects: Vec<_> = (0..40).map(|_| heap.list(&[])).collect();
                (objects, heap.finish())
            };
            let (objects, (copy, interpreter)) = lists();
            let (_, (live, _)) = lists();
            Self {
                objects,
                copy,
                live,
                interpreter,
            }
        }

        /// Changes the words of a node in the copy alone.
        fn tear(&mut self, place: usize, words: [u64; 2]) {
            let node = self.node(place);
            put(&mut self.copy, node, words);
        }

        fn node(&self, place: usize) -> u64 {
            self.objects[place] - CollectorLayout::HEAD_SIZE
        }

        /// Links two nodes in the live memory.
        fn link(&mut self, before: usize, node: usize) {
            let (before, node) = (self.node(before), self.node(node));
            self.live.write(before, &node.to_le_bytes());
            self.live.write(node + 8, &before.to_le_bytes());
        }

        /// Walks; returns the places of the objects of a list that are found, and how the walk ended.
        fn walk(&self, list: Generation) -> (Vec<usize>, Result<(), Broken>) {
            let extent = WalkExtent::Running(&self.live);
            let layout = &LAYOUTS[0].heap.collector;
            let (listed, walked) = listed(&self.copy, layout, self.interpreter, extent);
            let of_list = listed.iter().filter(|it| it.generation == list);
            let place = |address| self.objects.iter().position(|it| *it == address);
            let places = of_list.map(|it| place(it.address).expect("an object"));
            (places.collect(), walked)
        }
    }

    fn put(memory: &mut FakeMemory, node: u64, words: [u64; 2]) {
        for (at, word) in (node..).step_by(8).zip(words) {
            memory.write(at, &word.to_le_bytes());
        }
    }

    #[test]
    fn a_list_that_changed_under_the_walk_is_followed_on() {
        let mut lists = Lists::new();
        assert_eq!(lists.walk(Generation::Old), (OLD.to_vec(), Ok(())));
        // Of another moment.
        lists.tear(14, [0, 0]);
        assert_eq!(lists.walk(Generation::Old), (OLD.to_vec(), Ok(())));
        lists.tear(38, [0, 0]);
        assert_eq!(lists.walk(Generation::Old), (OLD.to_vec(), Ok(())));
        // It has been freed, so the object before it leads to the one behind it.
        lists.link(10, 18);
        let left = OLD.into_iter().filter(|place| *place != 14);
        assert_eq!(lists.walk(Generation::Old), (left.collect(), Ok(())));
    }

    #[test]
    fn a_list_is_taken_up_before_an_object_that_has_left_it() {
        let mut lists = Lists::new();
        // The walk is at 14 when it finds that 18 is torn; 14 and 10 have gone to another list.
        lists.tear(18, [0, 0]);
        lists.link(6, 18);
        lists.link(10, 14);
        lists.link(39, 10);
        let end = lists.copy.read_u64(lists.node(39)).unwrap() & !CollectorLayout::MARKS;
        let last = lists.node(14);
        lists.live.write(last, &end.to_le_bytes());
        lists.live.write(end + 8, &last.to_le_bytes());
        assert_eq!(lists.walk(Generation::Old), (OLD.to_vec(), Ok(())));
    }

    #[test]
    fn a_list_that_stays_torn_ends_the_walk_unless_it_is_of_young_objects() {
        let mut lists = Lists::new();
        for place in [14, 16] {
            lists.tear(place, [0, 0]);
            let node = lists.node(place);
            put(&mut lists.live, node, [0, 0]);
        }
        let torn = Broken::Link(lists.node(14));
        assert_eq!(lists.walk(Generation::Old), (vec![2, 6, 10], Err(torn)));
        assert_eq!(lists.walk(Generation::New).0, [0, 4, 8, 12]);
    }
}

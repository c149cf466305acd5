//! The lists of Python's garbage collector: every object that can hold others.

use std::fmt;

use hashbrown::HashSet;

use crate::symbolize::python::layout::{CollectorLayout, PythonLayout};
use crate::target::memory::{ReadMemory, Unreadable};

/// The most objects that are followed; each costs memprobe 16 bytes and what is read of it.
const MOST_OBJECTS: usize = 1 << 24;

/// So many of the last objects of a list are known again when it has grown.
const ENDING: usize = 4096;

/// The most interpreters of one process.
const MOST_INTERPRETERS: usize = 64;

/// An object as the lists name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its address.
    pub address: u64,
    /// `ob_type`: the address of its type.
    pub class: u64,
    /// Which generation it is of.
    pub age: Age,
}

/// How long an object has been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It was made since the last collection.
    New,
    /// It was made since the collection before.
    Young,
    /// It has lived through collections.
    Old,
    /// It was frozen (`gc.freeze()`): no collection looks at it.
    Frozen,
}

impl Age {
    /// So many objects of a list are looked at whether they are known or not: what they hold is still being changed.
    /// A list of them is shorter, as long as garbage is collected at all.
    const fn restless(self) -> usize {
        match self {
            Self::New | Self::Young => 1 << 15,
            Self::Old | Self::Frozen => 0,
        }
    }
}

/// How far lists are followed.
#[derive(Clone, Copy, Debug)]
pub enum Reach<'a> {
    /// From their beginnings to their ends.
    All,
    /// From their ends back to the first of these objects ([`endings`]): what was added since, as long as the
    /// collector did not put them into another order. Of young objects more, if not all.
    Added(&'a HashSet<u64>),
}

/// Why the lists could not be followed to their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The collector is at work on them.
    Collecting,
    /// The head of an object does not point back to the one that led to it: they were changed while
    /// they were read.
    Link(u64),
    /// An object's head could not be read.
    Unreadable(Unreadable),
    /// There are more objects than memprobe follows.
    TooMany,
    /// The lists are whole, but PyTorch's allocator is in the middle of handing out or taking back a
    /// block.
    Allocating,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collecting => f.write_str("Python's garbage collector is at work"),
            Self::Link(address) => write!(
                f,
                "the list of Python's objects changed while it was read (at {address:#x})"
            ),
            Self::Unreadable(why) => write!(f, "the list of Python's objects: {why}"),
            Self::Allocating => f.write_str("PyTorch's allocator is at work"),
            Self::TooMany => write!(f, "there are more than {MOST_OBJECTS} Python objects"),
        }
    }
}

impl std::error::Error for Broken {}

impl From<Unreadable> for Broken {
    fn from(why: Unreadable) -> Self {
        Self::Unreadable(why)
    }
}

/// The interpreters of a process, of which one is known.
///
/// # Errors
/// [`Broken`], also where there is no end of them.
pub fn interpreters(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    runtime: u64,
) -> Result<Vec<u64>, Broken> {
    // `interpreters.head` stands before `interpreters.main`.
    let head = runtime.wrapping_add(u64::from(layout.runtime.main_interpreter) - 8);
    let mut found = Vec::new();
    let mut next = memory.read_u64(head)?;
    while next != 0 {
        if found.len() == MOST_INTERPRETERS || found.contains(&next) {
            return Err(Broken::Link(next));
        }
        found.push(next);
        let at = layout.heap.collector.next_interpreter;
        next = memory.read_u64(next.wrapping_add(at.into()))?;
    }
    Ok(found)
}

/// Whether the collector of an interpreter is at work.
///
/// # Errors
/// [`Unreadable`].
pub fn is_collecting(
    memory: &impl ReadMemory,
    layout: &CollectorLayout,
    interpreter: u64,
) -> Result<bool, Unreadable> {
    let collector = interpreter.wrapping_add(layout.start.into());
    Ok(memory.read_u32(collector.wrapping_add(layout.collecting.into()))? != 0)
}

/// Adds the objects of an interpreter to `objects`: its generations, the youngest first, and what was
/// frozen. What was found before an error is good: each object was reached by links that fit.
///
/// # Errors
/// [`Broken`].
pub fn walk(
    memory: &impl ReadMemory,
    layout: &CollectorLayout,
    interpreter: u64,
    reach: Reach<'_>,
    objects: &mut Vec<Listed>,
) -> Result<(), Broken> {
    if is_collecting(memory, layout, interpreter)? {
        return Err(Broken::Collecting);
    }
    let collector = interpreter.wrapping_add(layout.start.into());
    let first = collector.wrapping_add(layout.generations.into());
    let generations = (0..CollectorLayout::GENERATIONS)
        .map(|number| first.wrapping_add(number * CollectorLayout::GENERATION_SIZE))
        .zip([Age::New, Age::Young, Age::Old]);
    let permanent = collector.wrapping_add(layout.permanent.into());
    // Of one list that is torn the others may be whole.
    let walked: Vec<_> = generations
        .chain([(permanent, Age::Frozen)])
        .map(|(head, age)| walk_list(memory, head, reach, age, objects))
        .collect();
    walked.into_iter().collect()
}

/// The last objects of each list, among objects as [`walk`] gave them.
pub fn endings(objects: impl DoubleEndedIterator<Item = (u64, Age)>) -> HashSet<u64> {
    let mut endings = HashSet::new();
    let (mut list, mut taken) = (None, 0);
    for (address, age) in objects.rev() {
        if list != Some(age) {
            (list, taken) = (Some(age), 0);
        }
        if taken < ENDING {
            taken += 1;
            endings.insert(address);
        }
    }
    endings
}

/// Adds the objects of one list.
fn walk_list(
    memory: &impl ReadMemory,
    head: u64,
    reach: Reach<'_>,
    age: Age,
    objects: &mut Vec<Listed>,
) -> Result<(), Broken> {
    // The head beyond a node, and that of the node from which it was reached.
    let links = |[next, previous, _, _]: [u64; 4]| {
        let (next, previous) = (
            next & !CollectorLayout::MARKS,
            previous & !CollectorLayout::MARKS,
        );
        match reach {
            Reach::All => (next, previous),
            Reach::Added(_) => (previous, next),
        }
    };
    let restless = objects.len() + age.restless();
    let (mut node, _) = links(words(memory, head)?);
    let mut before = head;
    while node != head {
        let address = node.wrapping_add(CollectorLayout::HEAD_SIZE);
        let is_known = matches!(reach, Reach::Added(known) if known.contains(&address));
        if is_known && objects.len() >= restless {
            break;
        }
        let words = words(memory, node)?;
        let (beyond, towards) = links(words);
        if towards != before {
            return Err(Broken::Link(node));
        }
        if objects.len() == MOST_OBJECTS {
            return Err(Broken::TooMany);
        }
        let [_, _, _, class] = words;
        objects.push(Listed {
            address,
            class,
            age,
        });
        (before, node) = (node, beyond);
    }
    Ok(())
}

/// A head, and the beginning of the object behind it.
fn words(memory: &impl ReadMemory, node: u64) -> Result<[u64; 4], Unreadable> {
    let bytes: [u8; 32] = memory.read_array(node)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word])))
}

//! The lists of Python's garbage collector: every object that can hold others.

use std::fmt;

use crate::symbolize::python::layout::{CollectorLayout, PythonLayout};
use crate::target::memory::{ReadMemory, Unreadable};

/// The most objects that are followed; each costs memprobe 16 bytes and what is read of it.
const MOST_OBJECTS: usize = 1 << 24;

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
    /// It was made since the last collection or the one before.
    Young,
    /// It has lived through collections, or was frozen.
    Old,
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
    objects: &mut Vec<Listed>,
) -> Result<(), Broken> {
    if is_collecting(memory, layout, interpreter)? {
        return Err(Broken::Collecting);
    }
    let collector = interpreter.wrapping_add(layout.start.into());
    let first = collector.wrapping_add(layout.generations.into());
    let generations = (0..CollectorLayout::GENERATIONS)
        .map(|number| first.wrapping_add(number * CollectorLayout::GENERATION_SIZE))
        .zip([Age::Young, Age::Young, Age::Old]);
    let permanent = collector.wrapping_add(layout.permanent.into());
    // Of one list that is torn the others may be whole.
    let walked: Vec<_> = generations
        .chain([(permanent, Age::Old)])
        .map(|(head, age)| walk_list(memory, head, age, objects))
        .collect();
    walked.into_iter().collect()
}

/// Adds the objects of one list.
fn walk_list(
    memory: &impl ReadMemory,
    head: u64,
    age: Age,
    objects: &mut Vec<Listed>,
) -> Result<(), Broken> {
    let [first, _, _, _] = words(memory, head)?;
    let (mut before, mut node) = (head, first & !CollectorLayout::MARKS);
    while node != head {
        let [next, previous, _, class] = words(memory, node)?;
        if previous & !CollectorLayout::MARKS != before {
            return Err(Broken::Link(node));
        }
        if objects.len() == MOST_OBJECTS {
            return Err(Broken::TooMany);
        }
        objects.push(Listed {
            address: node.wrapping_add(CollectorLayout::HEAD_SIZE),
            class,
            age,
        });
        (before, node) = (node, next & !CollectorLayout::MARKS);
    }
    Ok(())
}

/// A head, and the beginning of the object behind it.
fn words(memory: &impl ReadMemory, node: u64) -> Result<[u64; 4], Unreadable> {
    let bytes: [u8; 32] = memory.read_array(node)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word])))
}

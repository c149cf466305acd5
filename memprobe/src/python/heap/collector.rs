//! Walks the lists of Python's garbage collector, which have every object that can refer to others.

mod endings;
#[cfg(test)]
mod tests;
mod walk;

pub use self::endings::Endings;
#[cfg(test)]
pub use self::walk::listed;
pub use self::walk::{ListWalk, LiveLists, WalkExtent, words};
use super::word_at;
use crate::process::memory::{Cause, ReadMemory, ReadResult, Unreadable};
use crate::python::layout::{CollectorLayout, PythonLayout};

/// Most objects that are followed. Each costs memprobe 8 bytes plus the memory read for it.
const MAX_OBJECTS: usize = 1 << 24;
// As the message says.
const _: () = assert!(MAX_OBJECTS == 16_777_216);

const MAX_INTERPRETERS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub address: u64,
    pub class: u64,
    pub generation: Generation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Generation 0: created since the last collection.
    New,
    /// Generation 1: survived a collection.
    Young,
    /// Generation 2, the oldest.
    Old,
    /// Frozen by `gc.freeze()`, so that no collection looks at it.
    Frozen,
}

impl Generation {
    /// Number of last objects of a list that are always read again: their contents may still change.
    const fn restless(self) -> usize {
        match self {
            Self::New | Self::Young => 1 << 15,
            Self::Old | Self::Frozen => 0,
        }
    }

    /// True for the lists whose objects leave them when they die, or with a collection of everything.
    const fn is_settled(self) -> bool {
        matches!(self, Self::Old | Self::Frozen)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("Python's garbage collector is at work")]
    Collecting,
    /// The header of an object does not point back to its predecessor: the list changed during the walk.
    #[error("the list of Python's objects changed while it was read (at {0:#x})")]
    Link(u64),
    #[error("the list of Python's objects: {0}")]
    Unreadable(Unreadable),
    #[error("there are more than 16,777,216 Python objects")]
    TooMany,
    /// Objects or tensors lie in memory beyond the most that is copied.
    #[error("it has more memory to copy than the 4 GiB that memprobe keeps")]
    TooLarge,
    /// The lists are consistent, but PyTorch's allocator was interrupted while it allocated or freed a block.
    #[error("PyTorch's allocator is at work")]
    Allocating,
    #[error("Python is shutting down")]
    Finalizing,
    /// A thread that was left asleep has run while the process was read ([`crate::process::pause`]).
    #[error("a thread in a system call that a stop would end woke up meanwhile")]
    Woken,
}

impl Broken {
    /// Returns the address at which a list is inconsistent.
    pub(super) const fn place(self) -> Option<u64> {
        match self {
            Self::Link(address) => Some(address),
            Self::Unreadable(error) => Some(error.address),
            Self::Collecting
            | Self::TooMany
            | Self::TooLarge
            | Self::Allocating
            | Self::Finalizing
            | Self::Woken => None,
        }
    }

    /// True for a limit of memprobe: another reading would miss as much.
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::TooMany | Self::TooLarge)
    }

    /// Names the limit of a full copy as the reason for what such a copy lacks.
    pub(super) fn of_full_copy(broken: Option<Self>) -> Self {
        match broken {
            None | Some(Self::Allocating) => Self::TooLarge,
            Some(Self::Unreadable(error)) if error.cause == Cause::NotKept => Self::TooLarge,
            Some(other) => other,
        }
    }
}

/// Two neighbours of a list that did not refer to each other when a walk came to the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornLink {
    /// The last node that consistent links led to, or the head of the list.
    before: u64,
    node: u64,
}

impl TornLink {
    /// Looks at these nodes alone. Returns the fault if they still do not refer to each other; `None` if they do, and if
    /// the first one does not lead to the second any more: it may have left the list.
    pub(super) fn fault(self, memory: &impl ReadMemory) -> Option<Broken> {
        let Self { before, node } = self;
        let links = |at| {
            let links: [u8; 16] = memory.read_array(at)?;
            Ok::<_, Unreadable>([0, 8].map(|word| word_at(&links, word) & !CollectorLayout::MARKS))
        };
        let [next, previous] = links(before).ok()?;
        if next != node && previous != node {
            return None;
        }
        match links(node) {
            Ok([_, back]) if next == node && back == before => None,
            Ok([back, _]) if previous == node && back == before => None,
            Ok(_) => Some(Broken::Link(node)),
            Err(error) => Some(error.into()),
        }
    }
}

impl From<Unreadable> for Broken {
    fn from(error: Unreadable) -> Self {
        Self::Unreadable(error)
    }
}

/// Returns the interpreters of a process.
/// Fails with [`Broken`] also if there are too many or their list is circular.
pub fn interpreters(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    runtime: u64,
) -> Result<Vec<u64>, Broken> {
    // `interpreters.head` precedes `interpreters.main`.
    let head = runtime.wrapping_add(u64::from(layout.runtime.main_interpreter) - 8);
    let mut found = Vec::new();
    let mut next = memory.read_u64(head)?;
    while next != 0 {
        if found.len() == MAX_INTERPRETERS || found.contains(&next) {
            return Err(Broken::Link(next));
        }
        found.push(next);
        let at = layout.heap.collector.next_interpreter;
        next = memory.read_u64(next.wrapping_add(at.into()))?;
    }
    Ok(found)
}

pub fn is_collecting(
    memory: &impl ReadMemory,
    layout: &CollectorLayout,
    interpreter: u64,
) -> ReadResult<bool> {
    let collector = interpreter.wrapping_add(layout.start.into());
    Ok(memory.read_u32(collector.wrapping_add(layout.collecting.into()))? != 0)
}

/// Returns the offset of the youngest generation in the collector of an interpreter: that of the layout, or four bytes
/// less, where `PyGC_Head` is aligned to 4 bytes (`Include/internal/pycore_gc.h` of Debian's 3.13.5-2). The lists prove
/// it: from each head, the first node leads back. `None` if neither is proved, as can be during a collection.
pub fn generations_offset(
    memory: &impl ReadMemory,
    layout: &CollectorLayout,
    interpreter: u64,
) -> Option<u16> {
    let collector = interpreter.wrapping_add(layout.start.into());
    let leads_back = |head: u64| {
        let link = |at| Ok::<_, Unreadable>(memory.read_u64(at)? & !CollectorLayout::MARKS);
        let back = link(head).and_then(|first| link(first.wrapping_add(8)));
        back == Ok(head)
    };
    let is_proved = |offset: &u16| {
        let first = collector.wrapping_add((*offset).into());
        (0..CollectorLayout::GENERATIONS)
            .all(|number| leads_back(first.wrapping_add(number * CollectorLayout::GENERATION_SIZE)))
    };
    let packed = layout.generations.saturating_sub(4);
    [layout.generations, packed].into_iter().find(is_proved)
}

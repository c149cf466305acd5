//! The variables of the frames that run: what each thread's functions refer to right now.

use std::sync::Arc;

use hashbrown::HashSet;

use super::class::{Classes, Holds};
use super::{Heap, shortened};
use crate::symbolize::python::layout::{HeapLayout, LocalNames, LocalsLayout};
use crate::symbolize::python::threads::{self, RawFrame};
use crate::symbolize::python::{CodeCache, PythonProcess, Resolved};
use crate::target::memory::{ReadMemory, Unreadable};

/// The most frames of one thread whose variables are looked at.
const MOST_FRAMES: usize = 512;

/// The most variables of one frame.
const MOST_VARIABLES: u64 = 4096;

/// The most variables of all, and the most frames that are passed on the way to them.
const MOST_OF_ALL: usize = 1 << 16;
const MOST_PASSED: usize = 1 << 20;

/// The longest name of a file, a function or a variable, in bytes.
const LONGEST_NAME: usize = 128;

/// The marks in a reference from 3.14 on (`Include/internal/pycore_stackref.h`@v3.14.10): with both
/// bits it is a small number. Addresses have neither, in any version.
const MARKS: u64 = 3;

/// A variable of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// `train.py:31 train() -> x`.
    pub text: Arc<str>,
    /// `x`.
    pub name: Arc<str>,
    /// The object that it refers to.
    pub value: u64,
    /// How many frames are within its own; those of libraries come after all others.
    pub rank: u32,
}

/// Added to the rank of a variable in a library's function.
const LIBRARY: u32 = 1 << 16;

impl Variable {
    /// Whether its function is of an installed package or of Python itself.
    pub(super) fn is_of_library(&self) -> bool {
        self.rank >= LIBRARY
    }
}

/// The variables of all threads of the main interpreter, the nearest first.
///
/// # Errors
/// [`Unreadable`] where the threads cannot be followed. What cannot be read of one is left out.
pub fn variables(
    heap: &Heap<'_, impl ReadMemory>,
    classes: &mut Classes,
    python: &PythonProcess,
    modules: &[u64],
) -> Result<Vec<Variable>, Unreadable> {
    let memory = heap.memory;
    let states = threads::thread_states(memory, &python.layout, python.interpreter)?;
    let mut reader = Reader {
        heap,
        classes,
        codes: CodeCache::new(python),
        globals: globals_of(heap, modules),
        found: Vec::new(),
    };
    let mut passed = 0;
    for state in states {
        if passed > MOST_PASSED {
            break;
        }
        let Ok(chain) = threads::frames(memory, &python.layout, state.address) else {
            continue;
        };
        passed += chain.frames.len();
        for (depth, frame) in (0..).zip(chain.frames.iter().take(MOST_FRAMES)) {
            reader.add_frame(frame, depth);
        }
    }
    let mut found = reader.found;
    found.sort_by_key(|variable| variable.rank);
    Ok(found)
}

/// The dicts of modules: their variables are named as the module's.
fn globals_of(heap: &Heap<'_, impl ReadMemory>, modules: &[u64]) -> HashSet<u64> {
    let dict = |&module: &u64| heap.word(module, HeapLayout::MODULE_DICT).ok();
    modules.iter().filter_map(dict).collect()
}

struct Reader<'a, 'b, M> {
    heap: &'a Heap<'b, M>,
    classes: &'a mut Classes,
    codes: CodeCache,
    globals: HashSet<u64>,
    found: Vec<Variable>,
}

/// A frame, as it is shown, and where it ranks.
struct Shown {
    text: String,
    rank: u32,
}

impl<M: ReadMemory> Reader<'_, '_, M> {
    fn add_frame(&mut self, frame: &RawFrame, depth: u32) {
        let resolved = self
            .codes
            .resolve(self.heap.memory, frame.code, frame.instr, frame.owner);
        let Resolved::Frame(source) = resolved else {
            return;
        };
        let file = source.file.rsplit('/').next().unwrap_or(&source.file);
        let [file, function] = [file, &source.function].map(|name| shortened(name, LONGEST_NAME));
        let shown = Shown {
            text: format!("{file}:{} {function}()", source.line),
            rank: depth + if is_library(&source.file) { LIBRARY } else { 0 },
        };
        // What cannot be read of a frame is not known; the others are.
        let _ = self.add_variables(frame, &shown);
    }

    fn add_variables(&mut self, frame: &RawFrame, shown: &Shown) -> Result<(), Unreadable> {
        let locals = &self.heap.layout.heap.locals;
        let flags = frame.code.wrapping_add(locals.code_flags.into());
        if self.heap.memory.read_u32(flags)? & LocalsLayout::OPTIMIZED == 0 {
            let mapping = self.heap.word(frame.address, locals.mapping)? & !MARKS;
            if mapping != 0 && !self.globals.contains(&mapping) {
                let mut entries = Vec::new();
                let read = self.heap.entries(mapping, |entry| entries.push(entry));
                for entry in entries {
                    let name = self.heap.text(entry.key);
                    self.add(name, entry.value, shown);
                }
                return read;
            }
            return Ok(());
        }
        let names: &[u16] = match &locals.names {
            LocalNames::Three(names) => names,
            LocalNames::One(names) => std::slice::from_ref(names),
        };
        let mut slot = frame.address.wrapping_add(locals.first.into());
        for &names in names {
            let names = self.heap.word(frame.code, names)?;
            let count = self.heap.word(names, HeapLayout::SIZE)?.min(MOST_VARIABLES);
            for number in 0..count {
                let name = names.wrapping_add(8 * number);
                let name = self.heap.word(name, self.heap.layout.heap.tuple_items)?;
                let value = self.heap.memory.read_u64(slot)?;
                slot = slot.wrapping_add(8);
                if value & MARKS != MARKS && value & !MARKS != 0 {
                    self.add(self.heap.text(name), value & !MARKS, shown);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, name: Option<Arc<str>>, value: u64, shown: &Shown) {
        let Some(name) = name.filter(|_| self.found.len() < MOST_OF_ALL) else {
            return;
        };
        let is_cell = |holds| holds == Holds::Cell;
        let class = self.classes.of(self.heap, value);
        let value = if class.is_some_and(|class| is_cell(class.holds)) {
            self.heap.word(value, HeapLayout::CELL).unwrap_or(0)
        } else {
            value
        };
        if value != 0 {
            let name: Arc<str> = shortened(&name, LONGEST_NAME).into();
            self.found.push(Variable {
                text: format!("{} -> {name}", shown.text).into(),
                name,
                value,
                rank: shown.rank,
            });
        }
    }
}

/// Whether a file is of an installed package or of Python itself.
pub(super) fn is_library(file: &str) -> bool {
    let marks = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python3",
        "/lib64/python3",
    ];
    file.starts_with('<') || marks.iter().any(|mark| file.contains(mark))
}

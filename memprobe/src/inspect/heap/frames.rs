//! The variables of frames: what each thread's functions refer to right now, what generators and coroutines
//! will go on with, and what the frames of calls that are over still hold (as those of a traceback do).

use std::sync::Arc;

use hashbrown::HashSet;

use super::census::Census;
use super::class::{Classes, Holds};
use super::{Heap, shortened};
use crate::symbolize::python::layout::{GeneratorLayout, HeapLayout, LocalNames, LocalsLayout};
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

/// The most generators and frame objects that are looked at.
const MOST_KEPT: usize = 1 << 16;

/// `FRAME_OWNED_BY_FRAME_OBJECT`: the call is over (`Include/internal/pycore_frame.h`@v3.11.7 to @v3.15.2).
const OWNED_BY_OBJECT: u8 = 2;

/// A variable of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// `train.py:31 train() -> x`.
    pub text: Arc<str>,
    /// `x`.
    pub name: Arc<str>,
    /// What is to be known of its frame: `suspended generator`; empty for one that runs.
    pub note: &'static str,
    /// The object that it refers to.
    pub value: u64,
    /// How many frames are within its own; those that do not run come after these, and those of libraries
    /// after all others.
    pub rank: u32,
}

/// Added to the rank of a variable in a frame that does not run.
const RESTING: u32 = 1 << 15;

/// Added to the rank of a variable in a library's function.
const LIBRARY: u32 = 1 << 16;

/// The variables that were found.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// The nearest first.
    pub all: Vec<Variable>,
    /// How many frames were left out: they are too many, or cannot be read.
    pub frames_left_out: u64,
    /// How many variables were left out of the others: they are too many.
    pub left_out: u64,
}

impl Variable {
    /// Whether its function is of an installed package or of Python itself.
    pub(super) fn is_of_library(&self) -> bool {
        self.rank >= LIBRARY
    }
}

/// The variables of all threads of the main interpreter, and of all frames that are kept.
///
/// # Errors
/// [`Unreadable`] where the threads cannot be followed. What cannot be read of one is left out.
pub fn variables(
    heap: &Heap<'_, impl ReadMemory>,
    classes: &mut Classes,
    python: &PythonProcess,
    census: &Census,
) -> Result<Variables, Unreadable> {
    let memory = heap.memory;
    let states = threads::thread_states(memory, &python.layout, python.interpreter)?;
    let mut reader = Reader {
        heap,
        classes,
        codes: CodeCache::new(python),
        globals: globals_of(heap, &census.globals),
        seen: HashSet::new(),
        found: Variables::default(),
    };
    let mut passed = 0;
    for state in states {
        let chain = threads::frames(memory, &python.layout, state.address);
        let Some(chain) = chain.ok().filter(|_| passed <= MOST_PASSED) else {
            reader.found.frames_left_out += 1;
            continue;
        };
        passed += chain.frames.len();
        reader.found.frames_left_out += chain.frames.len().saturating_sub(MOST_FRAMES) as u64;
        reader
            .seen
            .extend(chain.frames.iter().map(|frame| frame.address));
        for (depth, frame) in (0..).zip(chain.frames.iter().take(MOST_FRAMES)) {
            reader.add_frame(frame, depth, "");
        }
    }
    reader.add_suspended(&census.suspended);
    reader.add_kept(&census.frames);
    let mut found = reader.found;
    found.all.sort_by_key(|variable| variable.rank);
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
    /// The frames that were looked at.
    seen: HashSet<u64>,
    found: Variables,
}

/// A frame, as it is shown, and where it ranks.
struct Shown {
    text: String,
    note: &'static str,
    rank: u32,
}

/// A frame that can be gone on with.
struct Suspended {
    frame: u64,
    begun: bool,
}

impl<M: ReadMemory> Reader<'_, '_, M> {
    /// Generators, coroutines and asynchronous generators that do not run.
    fn add_suspended(&mut self, objects: &[u64]) {
        self.found.frames_left_out += objects.len().saturating_sub(MOST_KEPT) as u64;
        for &object in objects.iter().take(MOST_KEPT) {
            let class = self.classes.of(self.heap, object);
            let class = class.map_or_else(|| "".into(), |class| Arc::clone(&class.name));
            let suspended = match self.suspended(object) {
                Ok(suspended) => suspended,
                Err(_) => {
                    self.found.frames_left_out += 1;
                    continue;
                }
            };
            let Some(Suspended { frame, begun }) = suspended else {
                continue;
            };
            let note = match (&*class, begun) {
                ("coroutine", true) => "suspended coroutine",
                ("coroutine", false) => "coroutine that has not begun",
                ("async_generator", true) => "suspended async generator",
                ("async_generator", false) => "async generator that has not begun",
                (_, true) => "suspended generator",
                (_, false) => "generator that has not begun",
            };
            self.add_resting(frame, note);
        }
    }

    /// The frame of a generator; `None` where it runs or is over.
    fn suspended(&self, object: u64) -> Result<Option<Suspended>, Unreadable> {
        let memory = self.heap.memory;
        match self.heap.layout.heap.generator {
            GeneratorLayout::Apart(at) => {
                let frame = self.heap.word(object, at)?;
                if frame == 0 {
                    return Ok(None);
                }
                let (raw, previous) = threads::frame(memory, self.heap.layout, frame)?;
                // `f_lasti` is -1 before the first instruction.
                let begun = raw.instr as u32 != u32::MAX;
                Ok((previous == 0).then_some(Suspended { frame, begun }))
            }
            GeneratorLayout::Inside {
                frame,
                state,
                created,
                executing,
            } => {
                let [now] = memory.read_array(object.wrapping_add(state.into()))?;
                let now = now.cast_signed();
                Ok((created..executing).contains(&now).then(|| Suspended {
                    frame: object.wrapping_add(frame.into()),
                    begun: now > created,
                }))
            }
        }
    }

    /// Frame objects of calls that are over.
    fn add_kept(&mut self, objects: &[u64]) {
        self.found.frames_left_out += objects.len().saturating_sub(MOST_KEPT) as u64;
        for &object in objects.iter().take(MOST_KEPT) {
            let frame = match self.heap.layout.heap.frame_of_object {
                Some(at) => self.heap.word(object, at),
                None => Ok(object),
            };
            let read = frame.and_then(|at| threads::frame(self.heap.memory, self.heap.layout, at));
            let Ok((raw, _)) = read else {
                self.found.frames_left_out += 1;
                continue;
            };
            let has_owner = self.heap.layout.frame.owner.is_some();
            if !has_owner || raw.owner == OWNED_BY_OBJECT {
                self.add_resting(raw.address, "frame of an ended call");
            }
        }
    }

    /// A frame that does not run, unless it was seen before.
    fn add_resting(&mut self, address: u64, note: &'static str) {
        if !self.seen.insert(address) {
            return;
        }
        match threads::frame(self.heap.memory, self.heap.layout, address) {
            Ok((frame, _)) => self.add_frame(&frame, RESTING, note),
            Err(_) => self.found.frames_left_out += 1,
        }
    }

    fn add_frame(&mut self, frame: &RawFrame, depth: u32, note: &'static str) {
        let resolved = self
            .codes
            .resolve(self.heap.memory, frame.code, frame.instr, frame.owner);
        let source = match resolved {
            Resolved::Frame(source) => source,
            Resolved::Skip => return,
            Resolved::Unreadable => {
                self.found.frames_left_out += 1;
                return;
            }
        };
        let file = source.file.rsplit('/').next().unwrap_or(&source.file);
        let [file, function] = [file, &source.function].map(|name| shortened(name, LONGEST_NAME));
        let shown = Shown {
            text: format!("{file}:{} {function}()", source.line),
            note,
            rank: depth + if is_library(&source.file) { LIBRARY } else { 0 },
        };
        // What cannot be read of a frame is not known; the others are.
        if self.add_variables(frame, &shown).is_err() {
            self.found.frames_left_out += 1;
        }
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
            let all = self.heap.word(names, HeapLayout::SIZE)?;
            let count = all.min(MOST_VARIABLES);
            self.found.left_out = self.found.left_out.saturating_add(all - count);
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
        let Some(name) = name else {
            return;
        };
        let holds = self.classes.of(self.heap, value).map(|class| class.holds);
        let value = match holds {
            Some(Holds::Cell) => self.heap.word(value, HeapLayout::CELL).unwrap_or(0),
            // These lead nowhere.
            Some(Holds::Text | Holds::Number) => 0,
            _ => value,
        };
        if value == 0 {
            return;
        }
        if self.found.all.len() == MOST_OF_ALL {
            self.found.left_out = self.found.left_out.saturating_add(1);
            return;
        }
        let name: Arc<str> = shortened(&name, LONGEST_NAME).into();
        self.found.all.push(Variable {
            text: format!("{} -> {name}", shown.text).into(),
            name,
            note: shown.note,
            value,
            rank: shown.rank,
        });
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

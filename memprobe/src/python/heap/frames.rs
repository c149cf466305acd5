//! Reads the variables of frames: running functions in each thread, suspended generators and coroutines, and
//! ended calls. An ended call keeps its frame if something refers to it, such as a traceback.

use std::sync::Arc;

use hashbrown::HashSet;

use super::class::ContainerKind;
use super::process_scan::ProcessScan;
use super::{Heap, shortened};
use crate::process::memory::{ReadMemory, ReadResult};
use crate::python::layout::{GeneratorLayout, HeapLayout, LocalsLayout};
use crate::python::threads::{self, RawFrame};
use crate::python::{CodeCache, PythonProcess, Resolved};

/// Most frames of a thread: as many of the outermost as of the innermost.
const MAX_FRAMES: usize = 512;
const MAX_VARIABLES: u64 = 4096;

/// Most variables overall, and most frames walked to find them.
const MAX_OF_ALL: usize = 1 << 16;
const MAX_PASSED: usize = 1 << 20;
const LONGEST_NAME: usize = 128;

/// Tag bits of a reference from 3.14 on (`Include/internal/pycore_stackref.h`@v3.14.10). With both bits set
/// it is a small integer. Addresses have neither bit, in any version.
const MARKS: u64 = 3;

const MAX_SUSPENDED: usize = 1 << 16;

/// `FRAME_OWNED_BY_FRAME_OBJECT`: the call has ended (`Include/internal/pycore_frame.h`@v3.11.7 to @v3.15.2).
const OWNED_BY_OBJECT: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// `train.py:31 train() -> x`.
    pub text: Arc<str>,
    /// `x`.
    pub name: Arc<str>,
    /// Note about the frame, such as `suspended generator`; empty for a running frame.
    pub note: &'static str,
    pub value: u64,
    /// Order by length of life: calls above the frame, 0 for the outermost. Frames that do not run rank after
    /// all running ones, and frames of libraries after all others.
    pub rank: u32,
}

/// Added to the rank of a variable in a frame that does not run.
const RESTING: u32 = 1 << 15;

/// Added to the rank of a variable in a library's function.
pub(super) const LIBRARY: u32 = 1 << 16;

#[derive(Clone, Debug, Default)]
pub struct Variables {
    pub all: Vec<Variable>,
    /// Frames that were skipped because of a limit or because they cannot be read.
    pub frames_left_out: u64,
    /// Variables skipped because of a limit, in frames that were read.
    pub left_out: u64,
}

impl Variable {
    pub(super) fn is_of_library(&self) -> bool {
        self.rank >= LIBRARY
    }
}

/// Reads the variables of all threads of the main interpreter, and of all suspended and kept frames.
/// Fails with [`Unreadable`] only if the list of threads cannot be followed; skips other unreadable parts.
pub fn variables(
    heap: &Heap<'_, impl ReadMemory>,
    python: &PythonProcess,
    scan: &ProcessScan,
) -> ReadResult<Variables> {
    let memory = heap.memory;
    let states = threads::thread_states(memory, &python.layout, python.interpreter)?;
    let dict = |module: &u64| heap.word(*module, HeapLayout::MODULE_DICT).ok();
    let mut reader = Reader {
        heap,
        codes: CodeCache::new(python),
        globals: scan.globals.iter().filter_map(dict).collect(),
        seen: HashSet::new(),
        found: Variables::default(),
    };
    let mut passed = 0;
    for state in states {
        let chain = python.layout.frames(memory, state.address);
        let Some(chain) = chain.ok().filter(|_| passed <= MAX_PASSED) else {
            reader.found.frames_left_out += 1;
            continue;
        };
        passed += chain.frames.len();
        reader.found.frames_left_out += chain.frames.len().saturating_sub(MAX_FRAMES) as u64;
        let addresses = chain.frames.iter().map(|frame| frame.address);
        reader.seen.extend(addresses);
        let outermost_first = chain.frames.iter().rev();
        let skipped = MAX_FRAMES / 2..chain.frames.len().saturating_sub(MAX_FRAMES / 2);
        for (above, frame) in outermost_first.enumerate() {
            if !skipped.contains(&above) {
                reader.add_frame(frame, (above as u32).min(RESTING - 1), "");
            }
        }
    }
    reader.add_suspended(&scan.suspended);
    reader.add_ended(&scan.frames);
    let mut found = reader.found;
    found.all.sort_by_key(|variable| variable.rank);
    Ok(found)
}

struct Reader<'a, 'b, M> {
    heap: &'a Heap<'b, M>,
    codes: CodeCache,
    /// Dicts of modules: their variables are named as globals of the module.
    globals: HashSet<u64>,
    seen: HashSet<u64>,
    found: Variables,
}

struct Shown {
    text: String,
    note: &'static str,
    rank: u32,
}

impl<M: ReadMemory> Reader<'_, '_, M> {
    fn add_suspended(&mut self, objects: &[u64]) {
        for &object in self.first(objects) {
            let Ok(suspended) = self.suspended(object) else {
                self.found.frames_left_out += 1;
                continue;
            };
            let Some((frame, begun)) = suspended else {
                continue;
            };
            let class = self.heap.class_of(object);
            let note = match (class.as_ref().map_or("", |class| &class.name), begun) {
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

    /// The frame of a generator, and true if its code has begun; `None` if it is running or has finished.
    fn suspended(&self, object: u64) -> ReadResult<Option<(u64, bool)>> {
        let memory = self.heap.memory;
        match self.heap.layout.heap.generator {
            GeneratorLayout::Apart(at) => {
                let frame = self.heap.word(object, at)?;
                if frame == 0 {
                    return Ok(None);
                }
                let (raw, previous) = self.heap.layout.frame_at(memory, frame)?;
                // `f_lasti` is -1 before the first instruction.
                let begun = raw.instr as u32 != u32::MAX;
                Ok((previous == 0).then_some((frame, begun)))
            }
            GeneratorLayout::Inside {
                frame,
                state,
                created,
                executing,
            } => {
                let [now] = memory.read_array(object.wrapping_add(state.into()))?;
                let now = now.cast_signed();
                let frame = object.wrapping_add(frame.into());
                Ok((created..executing)
                    .contains(&now)
                    .then_some((frame, now > created)))
            }
        }
    }

    fn first<'c>(&mut self, objects: &'c [u64]) -> &'c [u64] {
        let most = objects.len().min(MAX_SUSPENDED);
        self.found.frames_left_out += (objects.len() - most) as u64;
        &objects[..most]
    }

    fn add_ended(&mut self, objects: &[u64]) {
        for &object in self.first(objects) {
            let frame = match self.heap.layout.heap.frame_of_object {
                Some(at) => self.heap.word(object, at),
                None => Ok(object),
            };
            let read = frame.and_then(|at| self.heap.layout.frame_at(self.heap.memory, at));
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

    fn add_resting(&mut self, address: u64, note: &'static str) {
        if !self.seen.insert(address) {
            return;
        }
        match self.heap.layout.frame_at(self.heap.memory, address) {
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
        let cell = self.codes.cell(self.heap.memory, &source.file);
        let file = source.file.rsplit('/').next().unwrap_or(&source.file);
        let file = cell.as_deref().unwrap_or(file);
        let [file, function] = [file, &source.function].map(|name| shortened(name, LONGEST_NAME));
        let shown = Shown {
            text: format!("{file}:{} {function}()", source.line),
            note,
            rank: match cell.is_none() && is_library(&source.file) {
                true => depth + LIBRARY,
                false => depth,
            },
        };
        // An unreadable variable does not affect other frames.
        if self.add_variables(frame, &shown).is_err() {
            self.found.frames_left_out += 1;
        }
    }

    fn add_variables(&mut self, frame: &RawFrame, shown: &Shown) -> ReadResult<()> {
        let locals = &self.heap.layout.heap.locals;
        let flags = frame.code.wrapping_add(locals.code_flags.into());
        if self.heap.memory.read_u32(flags)? & LocalsLayout::OPTIMIZED == 0 {
            let mapping = self.heap.word(frame.address, locals.mapping)? & !MARKS;
            if mapping == 0 || self.globals.contains(&mapping) {
                return Ok(());
            }
            let mut entries = Vec::new();
            let read = self.heap.entries(mapping, |entry| entries.push(entry));
            for entry in entries {
                self.add(self.heap.text(entry.key), entry.value, shown);
            }
            return read;
        }
        let mut slot = frame.address.wrapping_add(locals.first.into());
        for &names in locals.names.tuples() {
            let names = self.heap.word(frame.code, names)?;
            let all = self.heap.word(names, HeapLayout::SIZE)?;
            let count = all.min(MAX_VARIABLES);
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
        let holds = self.heap.class_of(value).map(|class| class.holds);
        let value = match holds {
            Some(ContainerKind::Cell) => self.heap.word(value, HeapLayout::CELL).unwrap_or(0),
            // These refer to no other objects.
            Some(ContainerKind::Text | ContainerKind::Number) => 0,
            _ => value,
        };
        if value == 0 {
            return;
        }
        if self.found.all.len() == MAX_OF_ALL {
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

/// True if a file belongs to an installed package or to Python itself.
pub(super) fn is_library(file: &str) -> bool {
    let marks = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python3",
        "/lib64/python3",
    ];
    file.starts_with('<') || marks.iter().any(|mark| file.contains(mark))
}

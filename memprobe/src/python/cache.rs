//! A cache of code objects that lasts between stacks.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use memprobe_common::FrameRecord;

use super::code::{Code, CodePosition, CodeReader};
use super::detect::PythonProcess;
use super::heap::notebook;
use super::layout::{FrameLayout, Instructions, PythonLayout};
use crate::event::Frame;
use crate::process::memory::{Cause, PartialMemory, ReadMemory, ReadResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub codes: usize,
    pub line_table_bytes: usize,
}

impl Default for Limits {
    /// Enough for every function of a large training program (some 60,000 code objects).
    fn default() -> Self {
        Self {
            codes: 65_536,
            line_table_bytes: 64 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    pub read: u64,
    /// Checks in the target that a cached code object is still there.
    pub checked: u64,
    pub evicted: u64,
    /// Addresses found to hold another code object than before.
    pub replaced: u64,
    pub unreadable: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    Frame(Frame),
    /// A frame that no traceback shows: the interpreter's own trampoline, or one that is still being set up.
    Skip,
    /// The code object cannot be read, or is another one by now.
    Unreadable,
}

/// Code objects that were found in the target while one stack is resolved. A recursive stack has the same few in a
/// hundred frames, and each check is a system call.
#[derive(Debug, Default)]
pub struct FoundCode(HashSet<u64>);

#[derive(Debug)]
pub struct CodeCache {
    layout: PythonLayout,
    code_type: u64,
    /// Address of the main interpreter's state; 0 if unknown.
    interpreter: u64,
    limits: Limits,
    codes: HashMap<u64, Cached>,
    names: HashSet<Arc<str>>,
    line_table_bytes: usize,
    clock: u64,
    pub counters: CacheCounters,
}

#[derive(Debug)]
struct Cached {
    code: Code,
    used: u64,
}

impl CodeCache {
    pub fn new(python: &PythonProcess) -> Self {
        Self {
            interpreter: python.interpreter,
            ..Self::with_limits(python.layout, python.code_type, Limits::default())
        }
    }

    /// Creates an empty cache for a process with this layout, whose `PyCode_Type` lies at `code_type`.
    pub fn with_limits(layout: PythonLayout, code_type: u64, limits: Limits) -> Self {
        Self {
            layout,
            code_type,
            interpreter: 0,
            limits,
            codes: HashMap::new(),
            names: HashSet::new(),
            line_table_bytes: 0,
            clock: 0,
            counters: CacheCounters::default(),
        }
    }

    /// Resolves the frame that ran `code` at `instr` and was owned by `owner`. Each call checks in the target that
    /// the cached code object is still there. After the process has ended, the cache stays valid, and the caller
    /// must [`Self::forget`] code objects that it learns were freed before.
    pub fn resolve(
        &mut self,
        memory: &impl ReadMemory,
        code: u64,
        instr: u64,
        owner: u8,
    ) -> Resolved {
        self.resolve_in_stack(memory, code, (instr, owner), &mut FoundCode::default())
    }

    /// Like [`Self::resolve`], for frames of one stack: code objects in `found` are not checked again.
    pub fn resolve_in_stack(
        &mut self,
        memory: &impl ReadMemory,
        code: u64,
        (instr, owner): (u64, u8),
        found: &mut FoundCode,
    ) -> Resolved {
        if is_shim(&self.layout.frame, owner) {
            return Resolved::Skip;
        }
        let code = self.load(memory, code, found);
        let resolved = code.map_or(Resolved::Unreadable, |code| frame_of(code, instr, owner));
        self.counters.unreadable += u64::from(resolved == Resolved::Unreadable);
        resolved
    }

    /// Returns the instruction that a frame executes in `code`. A module call's record has only the low bits;
    /// they suffice because its code is short.
    pub fn instr_of(&self, frame: &FrameRecord, code: u64) -> u64 {
        match (frame.module(), self.layout.code.instructions) {
            (None, _) => frame.instr,
            (Some(_), Instructions::Apart { .. }) => frame.low_instr(),
            (Some(_), Instructions::Inline { .. }) => {
                let behind = frame.low_instr().wrapping_sub(code) & u64::from(u16::MAX);
                code.wrapping_add(behind)
            }
        }
    }

    /// Like [`Self::resolve`], for a code object that was freed since; reads the copy in `copy`.
    pub fn resolve_copy(&self, copy: &PartialMemory, code: u64, instr: u64, owner: u8) -> Resolved {
        if is_shim(&self.layout.frame, owner) {
            return Resolved::Skip;
        }
        match self.reader(copy).read_freed(code) {
            Ok(code) => frame_of(&code, instr, owner),
            Err(_) => Resolved::Unreadable,
        }
    }

    /// Returns the name of the cell of a notebook whose code objects have this file, such as `In[7]`.
    pub fn cell(&self, memory: &impl ReadMemory, file: &str) -> Option<Arc<str>> {
        notebook::cell(memory, &self.layout, self.interpreter, file)
    }

    fn reader<'a, M>(&'a self, memory: &'a M) -> CodeReader<'a, M> {
        CodeReader {
            memory,
            layout: &self.layout,
            code_type: self.code_type,
        }
    }

    pub fn forget(&mut self, code: u64) {
        if let Some(cached) = self.codes.remove(&code) {
            self.line_table_bytes -= cached.code.line_table.len();
        }
    }

    fn load(
        &mut self,
        memory: &impl ReadMemory,
        address: u64,
        found: &mut FoundCode,
    ) -> ReadResult<&Code> {
        let is_found = found.0.contains(&address) && self.codes.contains_key(&address);
        if !is_found && !self.is_current(memory, address)? {
            let read = self.reader(memory).read(address)?;
            self.counters.read += 1;
            self.keep(address, read);
        }
        found.0.insert(address);
        self.clock += 1;
        let cached = self.codes.get_mut(&address);
        let cached = cached.ok_or(Cause::NotAsExpected.at(address))?;
        cached.used = self.clock;
        Ok(&cached.code)
    }

    /// True if the code object at `address` is cached and still there; drops it from the cache otherwise.
    fn is_current(&mut self, memory: &impl ReadMemory, address: u64) -> ReadResult<bool> {
        let Some(cached) = self.codes.get(&address) else {
            return Ok(false);
        };
        self.counters.checked += 1;
        match self.reader(memory).fingerprint(address) {
            Ok(now) if now == cached.code.fingerprint => Ok(true),
            Ok(_) => {
                self.counters.replaced += 1;
                self.forget(address);
                Ok(false)
            }
            Err(error) if error.cause == Cause::NoProcess => Ok(true),
            Err(error) => {
                self.forget(address);
                Err(error)
            }
        }
    }

    fn keep(&mut self, address: u64, mut code: Code) {
        for name in [&mut code.file, &mut code.name] {
            self.intern(name);
        }
        self.evict_for(code.line_table.len());
        self.line_table_bytes += code.line_table.len();
        let used = self.clock;
        self.codes.insert(address, Cached { code, used });
    }

    /// Drops the least recently used code objects, by eighths, until a new one with `bytes` of line table fits.
    fn evict_for(&mut self, bytes: usize) {
        while !self.codes.is_empty()
            && (self.codes.len() >= self.limits.codes
                || self.line_table_bytes + bytes > self.limits.line_table_bytes)
        {
            let codes = self.codes.iter();
            let mut ages: Vec<_> = codes.map(|(at, cached)| (cached.used, *at)).collect();
            let part = ages.len().div_ceil(8);
            ages.select_nth_unstable(part - 1);
            for &(_, address) in &ages[..part] {
                self.forget(address);
                self.counters.evicted += 1;
            }
        }
    }

    fn intern(&mut self, name: &mut Arc<str>) {
        // Each code object holds two names, so this many can be in use.
        let most = self.limits.codes * 2;
        if self.names.len() >= most {
            self.names.retain(|name| Arc::strong_count(name) > 1);
        }
        if let Some(known) = self.names.get(name) {
            *name = known.clone();
        } else if self.names.len() < most {
            self.names.insert(name.clone());
        }
    }
}

pub(super) fn is_shim(layout: &FrameLayout, owner: u8) -> bool {
    layout.first_shim_owner.is_some_and(|first| owner >= first)
}

fn frame_of(code: &Code, instr: u64, owner: u8) -> Resolved {
    let place = code.place_of(instr);
    if place == CodePosition::Elsewhere {
        return Resolved::Unreadable;
    }
    if owner != FrameLayout::OWNED_BY_GENERATOR && !code.is_set_up_at(instr) {
        return Resolved::Skip;
    }
    Resolved::Frame(Frame {
        file: code.file.clone(),
        line: code.line_of(place),
        function: code.name.clone(),
        library: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::{CODE_TYPE, FakeCode};
    use super::super::layout::{BytesLayout, ObjectLayout};
    use super::super::versions::LAYOUTS;
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    const TRAIN: FakeCode = FakeCode {
        address: 0x100_0000,
        file: "train.py",
        name: "step",
        first_line: 40,
        version: 7,
        units_of_lines: &[1, 3, 8],
    };

    fn cache_for(layout: &'static PythonLayout) -> CodeCache {
        CodeCache::with_limits(*layout, CODE_TYPE, Limits::default())
    }

    /// The versions whose frames identify an instruction by its address.
    fn addressed() -> impl Iterator<Item = &'static PythonLayout> {
        LAYOUTS.iter().filter(|layout| layout.minor >= 11)
    }

    fn memory_with(code: &FakeCode, layout: &PythonLayout) -> FakeMemory {
        let mut memory = FakeMemory::default();
        code.map(&mut memory, layout);
        memory
    }

    fn line(resolved: &Resolved) -> Option<u32> {
        match resolved {
            Resolved::Frame(frame) => Some(frame.line),
            Resolved::Skip | Resolved::Unreadable => None,
        }
    }

    #[test]
    fn an_instruction_becomes_its_line_in_every_version() {
        for layout in &LAYOUTS {
            let memory = memory_with(&TRAIN, layout);
            let mut cache = cache_for(layout);
            let mut resolve =
                |unit| cache.resolve(&memory, TRAIN.address, TRAIN.instr(layout, unit), 0);
            assert_eq!(line(&resolve(1)), Some(42));
            assert_eq!(line(&resolve(11)), Some(43));
            assert_eq!(line(&resolve(1)), Some(42));
            assert_eq!(resolve(12), Resolved::Unreadable);
            assert_eq!(cache.counters.read, 1);
            assert_eq!(cache.counters.unreadable, 1);
        }
    }

    #[test]
    fn a_code_object_is_checked_once_for_all_frames_of_a_stack() {
        let layout = &LAYOUTS[6];
        let mut memory = memory_with(&TRAIN, layout);
        let mut cache = cache_for(layout);
        let frame = (TRAIN.instr(layout, 1), 0);
        let mut resolve = |memory: &FakeMemory, found: &mut FoundCode| {
            let resolved = cache.resolve_in_stack(memory, TRAIN.address, frame, found);
            (line(&resolved), cache.counters.checked)
        };
        let mut stacks = [(); 2].map(|()| FoundCode::default());
        for _ in 0..100 {
            assert_eq!(resolve(&memory, &mut stacks[0]), (Some(42), 0));
        }
        for _ in 0..100 {
            assert_eq!(resolve(&memory, &mut stacks[1]), (Some(42), 1));
        }
        // Another stack is resolved later: the object may be another one by then.
        FakeCode {
            version: 8,
            first_line: 70,
            ..TRAIN
        }
        .map(&mut memory, layout);
        assert_eq!(resolve(&memory, &mut FoundCode::default()), (Some(72), 2));
    }

    #[test]
    fn the_instruction_of_a_call_of_a_module_is_found_by_its_low_bits() {
        for layout in &LAYOUTS {
            let memory = memory_with(&TRAIN, layout);
            let mut cache = cache_for(layout);
            for unit in [1, 11] {
                let plain = FrameRecord {
                    code_and_owner: TRAIN.address,
                    instr: TRAIN.instr(layout, unit),
                };
                let mut call = FrameRecord {
                    code_and_owner: 0x7fff_0000_1000 | FrameRecord::CALLS_MODULE,
                    ..plain
                };
                call.set_class(Some(0x7fff_1234_5678));
                assert_eq!(call.class(), 0x7fff_1234_5678);
                let lines = [plain, call].map(|frame| {
                    let instr = cache.instr_of(&frame, TRAIN.address);
                    line(&cache.resolve(&memory, TRAIN.address, instr, 0))
                });
                assert!(lines[0].is_some() && lines[0] == lines[1], "{lines:?}");
            }
        }
    }

    #[test]
    fn a_frame_that_is_being_set_up_is_skipped_unless_a_generator_owns_it() {
        for layout in addressed() {
            let memory = memory_with(&TRAIN, layout);
            let mut cache = cache_for(layout);
            let first = TRAIN.instr(layout, 0);
            let resolve = |cache: &mut CodeCache, instr, owner| {
                cache.resolve(&memory, TRAIN.address, instr, owner)
            };
            assert_eq!(resolve(&mut cache, first, 0), Resolved::Skip);
            assert_eq!(resolve(&mut cache, first - 2, 0), Resolved::Skip);
            assert_eq!(line(&resolve(&mut cache, first, 1)), Some(41));
            assert_eq!(line(&resolve(&mut cache, first - 2, 1)), Some(40));
            assert_eq!(resolve(&mut cache, first - 4, 1), Resolved::Unreadable);
            assert_eq!(resolve(&mut cache, first + 3, 1), Resolved::Unreadable);
        }
    }

    #[test]
    fn before_3_11_a_frame_that_has_not_started_stands_on_the_first_line() {
        for layout in LAYOUTS.iter().filter(|layout| layout.minor < 11) {
            let memory = memory_with(&TRAIN, layout);
            let mut cache = cache_for(layout);
            let mut at = |lasti: u32| {
                let instr = 0x55 << 32 | u64::from(lasti);
                cache.resolve(&memory, TRAIN.address, instr, 0)
            };
            assert_eq!(line(&at(u32::MAX)), Some(40));
            assert_eq!(line(&at(0)), Some(41));
            assert_eq!(at(u32::MAX - 1), Resolved::Unreadable);
            assert_eq!(at(24), Resolved::Unreadable);
        }
    }

    #[test]
    fn the_trampoline_of_the_interpreter_is_skipped_unread() {
        let layout = PythonLayout::of(12).unwrap();
        let mut cache = cache_for(layout);
        assert_eq!(
            cache.resolve(&FakeMemory::default(), 8, 8, 3),
            Resolved::Skip
        );
        assert_eq!(cache.counters, CacheCounters::default());
    }

    #[test]
    fn another_code_object_at_the_same_address_is_noticed_at_once() {
        for layout in &LAYOUTS {
            let mut memory = memory_with(&TRAIN, layout);
            let mut cache = cache_for(layout);
            let instr = TRAIN.instr(layout, 1);
            assert_eq!(
                line(&cache.resolve(&memory, TRAIN.address, instr, 0)),
                Some(42)
            );
            FakeCode {
                first_line: 90,
                version: 8,
                ..TRAIN
            }
            .map(&mut memory, layout);
            assert_eq!(
                line(&cache.resolve(&memory, TRAIN.address, instr, 0)),
                Some(92)
            );
            assert_eq!(cache.counters.replaced, 1);
        }
    }

    #[test]
    fn what_is_no_code_object_any_more_is_not_resolved_from_memory_of_it() {
        let layout = PythonLayout::of(11).unwrap();
        let mut memory = memory_with(&TRAIN, layout);
        let mut cache = cache_for(layout);
        let instr = TRAIN.instr(layout, 1);
        assert_eq!(
            line(&cache.resolve(&memory, TRAIN.address, instr, 0)),
            Some(42)
        );
        memory.write(TRAIN.address, &0x7fff_1234_5678_u64.to_le_bytes());
        let freed = cache.resolve(&memory, TRAIN.address, instr, 0);
        assert_eq!(freed, Resolved::Unreadable);
        assert!(cache.codes.is_empty());
    }

    /// The thread may be preempted between dropping the last reference and freeing the object.
    #[test]
    fn a_code_object_that_nobody_holds_any_more_is_read_until_it_is_freed() {
        for layout in &LAYOUTS {
            let mut memory = memory_with(&TRAIN, layout);
            let references = TRAIN.address + u64::from(ObjectLayout::REFERENCES);
            memory.write(references, &0_u64.to_le_bytes());
            let mut cache = cache_for(layout);
            let resolved = cache.resolve(&memory, TRAIN.address, TRAIN.instr(layout, 1), 0);
            assert_eq!(line(&resolved), Some(42));
        }
    }

    #[test]
    fn what_was_known_of_a_process_outlives_it_unless_it_was_freed_before() {
        for layout in &LAYOUTS {
            let mut memory = memory_with(&TRAIN, layout);
            let mut cache = cache_for(layout);
            let instr = TRAIN.instr(layout, 1);
            let before = cache.resolve(&memory, TRAIN.address, instr, 0);
            memory.end();
            assert_eq!(cache.resolve(&memory, TRAIN.address, instr, 0), before);
            cache.forget(TRAIN.address);
            assert_eq!(
                cache.resolve(&memory, TRAIN.address, instr, 0),
                Resolved::Unreadable
            );
            assert_eq!(cache.line_table_bytes, 0);
        }
    }

    /// Returns the copy that the kernel programs take of a code object about to be freed: the first bytes of
    /// its parts, with no reference to the object left.
    fn freed(code: &FakeCode, layout: &'static PythonLayout, table_bytes: usize) -> PartialMemory {
        let mut memory = memory_with(code, layout);
        let references = code.address + u64::from(ObjectLayout::REFERENCES);
        memory.write(references, &0_u64.to_le_bytes());
        memory.copies_of(&[
            (code.address, 208),
            (code.address + 0x1_0000, 320),
            (code.address + 0x2_0000, 160),
            (code.address + 0x8_0000, table_bytes),
        ])
    }

    #[test]
    fn a_freed_code_object_is_resolved_from_its_copy() {
        for layout in &LAYOUTS {
            let copy = freed(&TRAIN, layout, 2048);
            let cache = cache_for(layout);
            let at = |unit, owner| {
                cache.resolve_copy(&copy, TRAIN.address, TRAIN.instr(layout, unit), owner)
            };
            assert_eq!(
                at(1, 0),
                Resolved::Frame(Frame {
                    file: "train.py".into(),
                    line: 42,
                    function: "step".into(),
                    library: None,
                })
            );
            assert_eq!(line(&at(11, 0)), Some(43));
            if layout.minor >= 11 {
                assert_eq!(at(0, 0), Resolved::Skip);
                assert_eq!(at(12, 0), Resolved::Unreadable);
            }
            assert_eq!(
                cache.resolve_copy(&PartialMemory::default(), TRAIN.address, 0, 0),
                Resolved::Unreadable
            );
        }
    }

    #[test]
    fn instructions_beyond_a_partial_line_table_have_no_line() {
        for layout in &LAYOUTS {
            // The entries of three lines have two bytes each; the last is cut in the middle.
            let copy = freed(&TRAIN, layout, usize::from(BytesLayout::DATA) + 5);
            let cache = cache_for(layout);
            let at = |unit| cache.resolve_copy(&copy, TRAIN.address, TRAIN.instr(layout, unit), 0);
            assert_eq!(line(&at(3)), Some(42));
            // Up to 3.9, a complete table and a truncated one look the same.
            let rest = if layout.minor < 10 { 42 } else { 0 };
            assert_eq!(line(&at(4)), Some(rest));
        }
    }

    #[test]
    fn the_cache_stays_within_its_limits_and_counts_what_it_drops() {
        let layout = PythonLayout::of(12).unwrap();
        let mut memory = FakeMemory::default();
        let limits = Limits {
            codes: 16,
            line_table_bytes: 60,
        };
        let mut cache = CodeCache::with_limits(*layout, CODE_TYPE, limits);
        for number in 0..100 {
            let code = FakeCode {
                address: 0x100_0000 * (number + 1),
                ..TRAIN
            };
            code.map(&mut memory, layout);
            for unit in 1..12 {
                let instr = code.instr(layout, unit);
                assert!(line(&cache.resolve(&memory, code.address, instr, 0)).is_some());
                assert!(cache.codes.len() <= limits.codes);
                assert!(cache.line_table_bytes <= limits.line_table_bytes);
            }
        }
        assert_eq!(cache.counters.evicted, 100 - cache.codes.len() as u64);
        assert!(cache.names.len() <= 2);
    }

    #[test]
    fn equal_names_share_their_memory() {
        let layout = PythonLayout::of(12).unwrap();
        let mut memory = FakeMemory::default();
        let mut cache = cache_for(layout);
        let other = FakeCode {
            address: 0x200_0000,
            name: "other",
            ..TRAIN
        };
        let files = [TRAIN, other].map(|code| {
            code.map(&mut memory, layout);
            match cache.resolve(&memory, code.address, code.instr(layout, 1), 0) {
                Resolved::Frame(frame) => frame.file,
                other => panic!("{other:?}"),
            }
        });
        assert!(Arc::ptr_eq(&files[0], &files[1]));
    }

    #[test]
    fn damaged_objects_are_no_reason_to_panic() {
        for layout in &LAYOUTS {
            let mut state = 88_172_645_463_325_252_u64;
            let mut random = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            for _ in 0..2_000 {
                // Valid code with some words replaced, often by addresses that exist.
                let mut memory = memory_with(&TRAIN, layout);
                for _ in 0..4 {
                    let value = match random() % 3 {
                        0 => random(),
                        1 => TRAIN.address + 8 * (random() % 0x20),
                        _ => random() % 0x1000,
                    };
                    let part = [0, 0x1_0000, 0x2_0000, 0x8_0000][random() as usize % 4];
                    let word = TRAIN.address + part + 8 * (random() % 4);
                    memory.write(word, &value.to_le_bytes());
                }
                let mut cache = cache_for(layout);
                let instr = TRAIN.instr(layout, random() % 14);
                cache.resolve(&memory, TRAIN.address, instr, 0);
                cache.resolve(&memory, random(), random(), random() as u8);
            }
        }
    }
}

//! Native code: libraries and functions of addresses, and unwinding.
//!
//! Stacks are unwound by the tables for exceptions (`.eh_frame`), since native code seldom keeps frame
//! pointers. The kernel programs copy the registers and a part of the stack; the tables come from the files
//! that the process has mapped.

mod callers;
mod lines;
pub mod unwind;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::symbolize::Symbolizer;
use gimli::UnwindContext;
use hashbrown::HashMap;
use memprobe_common::MAX_FRAMES;
use rustix::fs::{major, minor};

use self::lines::LineSource;
use self::unwind::{FrameCaller, FrameRule, Registers, UnwindTable};
use crate::decode::StackCopy;
use crate::event::{Frame, Tgid};
use crate::process::elf::{ElfImage, FunctionNames};
use crate::process::maps::{MappedFile, Maps};
use crate::torch::purpose::Caller;

/// The most addresses in the caches of names and of unwind rules.
const REMEMBERED: usize = 65_536;

/// The shortest time between two reads of the mappings because of unknown addresses.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The most bytes read of one file's unwind tables, and of all files together.
const LARGEST_TABLES: u64 = 128 << 20;
const ALL_TABLES: u64 = 512 << 20;

/// The library name for code outside any file, such as JIT-compiled code.
const NO_FILE: &str = "[generated code]";

pub struct NativeCode {
    tgid: Tgid,
    libraries: Vec<Library>,
    /// The code ranges of `libraries`, by ascending address.
    code: Vec<(Range<u64>, CodeOrigin)>,
    looked: Option<Instant>,
    symbolizer: Option<Symbolizer>,
    frames: HashMap<u64, Arc<[Frame]>>,
    callers: HashMap<u64, Caller>,
    /// The rules of return addresses, for those that lie in a library.
    rules: HashMap<u64, Option<LibraryRule>>,
    context: UnwindContext<usize>,
}

#[derive(Clone)]
struct LibraryRule {
    library: usize,
    rule: FrameRule,
}

#[derive(Clone, Copy)]
struct CodeOrigin {
    library: usize,
    offset: u64,
}

struct Library {
    mapped: MappedFile,
    path: Arc<str>,
    /// Kept open, so that it can be read after the process is gone.
    file: Option<File>,
    /// The outer `None`: not read yet; the inner one: it has none, or one that is too large.
    unwind_table: Option<Option<UnwindTable>>,
    /// A copy of a file with source lines. The outer `None`: not looked for yet; the inner one: it has none.
    lines: Option<Option<LineSource>>,
    /// The functions by address. The outer `None`: not read yet; the inner one: they cannot be read.
    functions: Option<Option<FunctionNames>>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct NativeStack {
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// True if callers may be missing.
    pub truncated: bool,
}

impl NativeCode {
    pub fn of(tgid: Tgid) -> Self {
        Self {
            tgid,
            libraries: Vec::new(),
            code: Vec::new(),
            looked: None,
            symbolizer: None,
            frames: HashMap::new(),
            callers: HashMap::new(),
            rules: HashMap::new(),
            context: UnwindContext::new(),
        }
    }

    /// Returns the location of the call that returns to `return_address`: the innermost inlined function there.
    pub fn caller(&mut self, return_address: u64) -> Frame {
        let frames = self.frames_at(return_address);
        let first = frames.first().cloned();
        first.unwrap_or_else(|| nowhere(return_address))
    }

    pub fn unwind(&mut self, return_address: u64, copy: &StackCopy) -> NativeStack {
        let mut frames = Vec::new();
        let mut truncated = self.walk(return_address, copy, |code, address| {
            frames.extend(code.frames_at(address).iter().cloned());
            frames.len() < MAX_FRAMES
        });
        truncated |= frames.len() > MAX_FRAMES;
        frames.truncate(MAX_FRAMES);
        NativeStack { frames, truncated }
    }

    /// Unwinds from a call outwards and passes each return address to `visit`, until `visit` returns false.
    /// Returns true if callers may be missing.
    fn walk(
        &mut self,
        return_address: u64,
        copy: &StackCopy,
        mut visit: impl FnMut(&mut Self, u64) -> bool,
    ) -> bool {
        let mut registers = Registers::of(copy);
        let mut address = return_address;
        while visit(self, address) {
            let Some(LibraryRule { library, rule }) = self.rule_of(address) else {
                return true;
            };
            let Some(table) = self.libraries[library].unwind_table() else {
                return true;
            };
            match rule.unwind(table, &mut registers, copy) {
                FrameCaller::At(caller) => address = caller,
                FrameCaller::Outermost => return false,
                FrameCaller::Unknown => return true,
            }
        }
        true
    }

    /// Returns the frames before a return address, the innermost inlined function first.
    fn frames_at(&mut self, return_address: u64) -> Arc<[Frame]> {
        if let Some(frames) = self.frames.get(&return_address) {
            return Arc::clone(frames);
        }
        let frames = self.look_up(return_address);
        if self.frames.len() >= REMEMBERED {
            self.frames.clear();
        }
        self.frames.insert(return_address, Arc::clone(&frames));
        frames
    }

    fn look_up(&mut self, return_address: u64) -> Arc<[Frame]> {
        // The address of the call itself: the instruction after it may belong to another line or function.
        let address = return_address.wrapping_sub(1);
        let Some((place, offset)) = self.place_of(address) else {
            return [nowhere(return_address)].into();
        };
        let frames = self.symbolized(place.library, offset);
        let path = &self.libraries[place.library].path;
        let frames = frames.unwrap_or_else(|| vec![unnamed(format!("+{offset:#x}"), path)]);
        frames.into()
    }

    fn symbolized(&mut self, library: usize, offset: u64) -> Option<Vec<Frame>> {
        let copied = self.libraries.iter().map(Library::bytes_with_lines).sum();
        let loaded = self.loaded();
        let library = &mut self.libraries[library];
        let path = Arc::clone(&library.path);
        if let Some(lines) = library.with_lines(self.tgid, copied) {
            // blazesym must not demangle, so that all names go through the `demangle` module.
            let symbolizer = self
                .symbolizer
                .get_or_insert_with(|| Symbolizer::builder().enable_demangling(false).build());
            return lines.frames_at(symbolizer, offset, &path);
        }
        let function = library.function_at(self.tgid, offset, loaded)?;
        Some(vec![unnamed(function, &path)])
    }

    fn place_of(&mut self, address: u64) -> Option<(CodeOrigin, u64)> {
        let is_old = |looked: Instant| looked.elapsed() >= LOOK_AGAIN;
        if self.find(address).is_none() && self.looked.is_none_or(is_old) {
            self.look();
        }
        let (range, place) = self.find(address)?;
        Some((*place, place.offset + (address - range.start)))
    }

    fn find(&self, address: u64) -> Option<&(Range<u64>, CodeOrigin)> {
        let after = (self.code).partition_point(|(range, _)| range.start <= address);
        let last = self.code[..after].last();
        last.filter(|(range, _)| range.contains(&address))
    }

    /// Marks that a library was mapped: the next unknown address may lie in it.
    pub fn library_mapped(&mut self) {
        self.looked = None;
    }

    /// Reads the mappings. If the process is gone, the previous ones stay.
    pub fn look(&mut self) {
        self.looked = Some(Instant::now());
        let maps = Maps::of(self.tgid).unwrap_or_default();
        if maps.mappings().is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut self.libraries);
        self.code.clear();
        self.frames.clear();
        self.callers.clear();
        self.rules.clear();
        for mapped in maps.files() {
            if !mapped.is_executable() {
                continue;
            }
            let library = self.libraries.len();
            let mappings = mapped.mappings.iter();
            let executable = mappings.filter(|mapping| mapping.perms.execute);
            self.code.extend(executable.map(|mapping| {
                let offset = mapping.offset;
                (mapping.start..mapping.end, CodeOrigin { library, offset })
            }));
            let known = before.iter_mut().find(|library| {
                (library.mapped.dev, library.mapped.inode) == (mapped.dev, mapped.inode)
            });
            let (file, lines, functions, unwind_table) = match known {
                Some(library) => {
                    let same_place = library.mapped.mappings == mapped.mappings;
                    let unwind_table = library.unwind_table.take().filter(|_| same_place);
                    let (lines, functions) = (library.lines.take(), library.functions.take());
                    (library.file.take(), lines, functions, unwind_table)
                }
                None => (None, None, None, None),
            };
            self.libraries.push(Library {
                path: mapped.path.to_string_lossy().into(),
                file,
                mapped,
                unwind_table,
                lines,
                functions,
            });
        }
        self.code.sort_by_key(|(range, _)| range.start);
    }

    /// Returns the unwind rule of a call that returns to `return_address`; `None` if there is none, or it cannot be
    /// read.
    fn rule_of(&mut self, return_address: u64) -> Option<LibraryRule> {
        if let Some(rule) = self.rules.get(&return_address) {
            return rule.clone();
        }
        let address = return_address.wrapping_sub(1);
        let (CodeOrigin { library, .. }, _) = self.place_of(address)?;
        self.read_unwind_table(library);
        let table = self.libraries[library].unwind_table();
        let rule = table.and_then(|table| table.rule_at(address, &mut self.context));
        let rule = rule.map(|rule| LibraryRule { library, rule });
        if self.rules.len() >= REMEMBERED {
            self.rules.clear();
        }
        self.rules.insert(return_address, rule.clone());
        rule
    }

    fn read_unwind_table(&mut self, library: usize) {
        if self.libraries[library].unwind_table.is_some() {
            return;
        }
        let tables = self.libraries.iter().filter_map(Library::unwind_table);
        let read: u64 = tables.map(UnwindTable::bytes).sum();
        let limit = ALL_TABLES.saturating_sub(read).min(LARGEST_TABLES);
        let library = &mut self.libraries[library];
        let image = library.image(self.tgid);
        let table =
            image.and_then(|image| UnwindTable::of(&image, &library.mapped.mappings, limit));
        library.unwind_table = Some(table);
    }
}

impl Library {
    fn opened(&mut self, tgid: Tgid) -> Option<&File> {
        if self.file.is_none() {
            let open = self.mapped.open(tgid).map(|(file, _)| file);
            self.file = open.ok().or_else(|| self.open_without_process());
        }
        self.file.as_ref()
    }

    fn image(&mut self, tgid: Tgid) -> Option<ElfImage> {
        ElfImage::from_file(self.opened(tgid)?.try_clone().ok()?).ok()
    }

    /// Returns the source of the library's lines, if it has some. `copied` are the bytes of all copies.
    fn with_lines(&mut self, tgid: Tgid, copied: u64) -> Option<&LineSource> {
        if self.lines.is_none() {
            let image = self.image(tgid);
            let lines = image.and_then(|image| LineSource::of(&image, self.opened(tgid)?, copied));
            self.lines = Some(lines);
        }
        self.lines.as_ref()?.as_ref()
    }

    fn bytes_with_lines(&self) -> u64 {
        let lines = self.lines.as_ref().and_then(Option::as_ref);
        lines.map_or(0, LineSource::bytes)
    }

    /// Opens the file by its path in memprobe's file system, if device and inode are those of the mapped file.
    fn open_without_process(&self) -> Option<File> {
        let facts = std::fs::metadata(&self.mapped.path).ok()?;
        let same = facts.is_file()
            && facts.ino() == self.mapped.inode
            && major(facts.dev()) == self.mapped.dev.major
            && minor(facts.dev()) == self.mapped.dev.minor;
        same.then(|| File::open(&self.mapped.path).ok()).flatten()
    }

    fn unwind_table(&self) -> Option<&UnwindTable> {
        self.unwind_table.as_ref()?.as_ref()
    }
}

fn unnamed(function: String, library: &Arc<str>) -> Frame {
    Frame {
        file: "".into(),
        line: 0,
        function: function.into(),
        library: Some(Arc::clone(library)),
    }
}

fn nowhere(address: u64) -> Frame {
    unnamed(format!("{address:#x}"), &NO_FILE.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> NativeCode {
        NativeCode::of(Tgid(std::process::id()))
    }

    #[test]
    fn an_address_within_a_function_gives_its_name_and_library() {
        let address = an_address_within_a_function_gives_its_name_and_library as *const () as u64;
        let frame = here().caller(address + 2);
        assert!(
            frame.function.contains("an_address_within_a_function"),
            "{frame:?}"
        );
        let this = std::env::current_exe().expect("a test has a path");
        assert_eq!(frame.library.as_deref(), this.to_str());
    }

    /// Two functions, in a library with source lines.
    const LIBRARY: &str =
        "int first(int x) { return x + 1; }\nint second(int x) {\n  return x * 7;\n}\n";

    /// The library, compiled and mapped into this process, which never touches it.
    struct Mapped {
        folder: tempfile::TempDir,
        start: u64,
    }

    impl Mapped {
        fn of(source: &str) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let at = |name: &str| folder.path().join(name);
            std::fs::write(at("library.c"), source).expect("written");
            let mut cc = std::process::Command::new("cc");
            cc.args(["-g", "-O0", "-shared", "-fPIC", "-o"]);
            let compiled = cc.arg(at("library.so")).arg(at("library.c")).status();
            assert!(compiled.expect("cc starts").success());
            let file = File::open(at("library.so")).expect("compiled");
            let (nowhere, length) = (std::ptr::null_mut(), 1 << 20);
            let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::EXEC;
            let flags = rustix::mm::MapFlags::PRIVATE;
            // SAFETY: a new mapping at a place of the kernel's choice; nothing reads it, and it stays.
            let start = unsafe { rustix::mm::mmap(nowhere, length, protection, flags, &file, 0) };
            Self {
                folder,
                start: start.expect("mapped") as u64,
            }
        }

        fn path(&self) -> std::path::PathBuf {
            self.folder.path().join("library.so")
        }

        /// Returns an address within a function, with its symbol's first byte left out.
        fn address_in(&self, function: &str) -> u64 {
            let image = ElfImage::open(&self.path()).expect("an ELF file");
            let symbol = image.symbol(function).expect("readable").expect("defined");
            self.start + image.file_offset_of(symbol.vaddr).expect("in the file") + 2
        }
    }

    /// A function whose unwind table puts the end of its frame at address 4.
    const WILD: &str = r#"__asm__(
        ".globl wild\n.type wild, @function\nwild:\n.cfi_startproc\n.cfi_escape 0x0f, 0x01, 0x34\n"
        "nop\nnop\nnop\nret\n.cfi_endproc\n.size wild, . - wild\n");"#;

    #[test]
    fn a_frame_that_ends_at_the_first_addresses_has_no_caller() {
        let library = Mapped::of(WILD);
        // SAFETY: the library was compiled here, and has no initializers.
        let loaded = unsafe { libloading::Library::new(library.path()) }.expect("loaded");
        // SAFETY: only its address is taken.
        let wild = unsafe { loaded.get::<extern "C" fn()>(b"wild") }.expect("exported");
        let copy = StackCopy {
            address: 0x7000_0000,
            frame_pointer: 16,
            bytes: vec![0; 64],
        };
        let mut code = here();
        let address = *wild as *const () as u64 + 2;
        let NativeStack { frames, truncated } = code.unwind(address, &copy);
        assert!(truncated, "{frames:?}");
        let names = frames.iter().map(|frame| &*frame.function);
        assert_eq!(names.collect::<Vec<_>>(), ["wild"]);
        assert!(code.rule_of(address).is_some(), "its table was not read");
    }

    #[test]
    fn a_library_that_is_truncated_while_it_is_read_keeps_its_names() {
        let library = Mapped::of(LIBRARY);
        let (first, second) = (library.address_in("first"), library.address_in("second"));
        let mut code = here();
        let frame = code.caller(first);
        assert_eq!((&*frame.function, frame.line), ("first", 1), "{frame:?}");
        assert!(frame.file.ends_with("library.c"), "{frame:?}");
        let file = File::options().write(true).open(library.path());
        file.expect("opened").set_len(0).expect("truncated");
        let frame = code.caller(second);
        assert_eq!((&*frame.function, frame.line), ("second", 2), "{frame:?}");
    }

    #[test]
    fn a_library_of_any_size_may_be_truncated() {
        // The program of this test has more than is copied.
        let this = std::env::current_exe().expect("a path");
        let library = Mapped::of(LIBRARY);
        let mut file = File::options()
            .append(true)
            .open(library.path())
            .expect("opened");
        let mut zeros = std::io::Read::take(std::io::repeat(0), 100 << 20);
        std::io::copy(&mut zeros, &mut file).expect("written");
        let (first, second) = (library.address_in("first"), library.address_in("second"));
        let mut code = here();
        assert_eq!(&*code.caller(first).function, "first", "{this:?}");
        file.set_len(0).expect("truncated");
        // Names stay in the file until they are asked for.
        assert!(code.caller(second).function.starts_with('+'));
    }

    #[test]
    fn a_library_cannot_name_another_file_to_be_read() {
        let linked =
            ".section .gnu_debugaltlink\\n.asciz \\\"../../../tmp/other.debug\\\"\\n.previous";
        let library = Mapped::of(&format!("{LIBRARY}__asm__(\"{linked}\");\n"));
        let frame = here().caller(library.address_in("first"));
        assert_eq!((&*frame.function, frame.line), ("first", 0), "{frame:?}");
    }

    #[test]
    fn an_address_in_no_file_is_generated_code() {
        let frame = here().caller(0x1234);
        assert_eq!(frame.library.as_deref(), Some(NO_FILE));
        assert_eq!(&*frame.function, "0x1234");
    }

    #[test]
    fn a_stack_of_no_bytes_gives_the_caller_alone_and_says_so() {
        let copy = StackCopy {
            address: 0x7000,
            frame_pointer: 0,
            bytes: Vec::new(),
        };
        let address = here as *const () as u64;
        let unwound = here().unwind(address + 2, &copy);
        assert!(!unwound.frames.is_empty());
        assert!(unwound.truncated);
    }

    #[test]
    fn a_stack_of_nonsense_ends() {
        let copy = StackCopy {
            address: 0x7000,
            frame_pointer: 0x7100,
            bytes: vec![0x70; 16 << 10],
        };
        let address = here as *const () as u64;
        let unwound = here().unwind(address + 2, &copy);
        assert!(unwound.frames.len() <= MAX_FRAMES);
    }
}

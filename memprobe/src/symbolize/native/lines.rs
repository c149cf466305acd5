//! Source lines of native code, from copies of the files.
//!
//! blazesym maps the files that it reads: if the target truncated one meanwhile, memprobe would die of SIGBUS. So it gets
//! a copy in memory, and only of files with lines. Functions of all others are named by reading (`FunctionNames`).

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::event::Frame;
use crate::process::elf::ElfImage;
use crate::symbolize::demangle;

/// The largest file in which source lines are looked up, and the most bytes of all copies.
const LARGEST: u64 = 64 << 20;
const ALL_COPIES: u64 = 192 << 20;

/// The largest symbol table (24 bytes a symbol). blazesym would take seconds for that of libtorch_cuda, in which
/// memprobe would miss what the process does.
const LARGEST_SYMBOLS: u64 = 12 << 20;

/// Sections that name another file with lines. blazesym would map it, and the target chooses the name.
const LINKS: [&str; 3] = [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"];

const CHUNK: usize = 1 << 20;

/// Copy of a file with source lines.
pub(super) struct LineSource {
    copy: File,
    bytes: u64,
}

impl LineSource {
    /// Copies a file, if it has lines and there is room beside `copied` bytes of other copies.
    pub(super) fn of(image: &ElfImage, file: &File, copied: u64) -> Option<Self> {
        let has = |name: &str| image.section(name).is_some();
        let is_searched = image
            .section(".symtab")
            .is_none_or(|symbols| symbols.size <= LARGEST_SYMBOLS);
        let bytes = file.metadata().ok()?.len();
        let fits = bytes <= LARGEST && copied.saturating_add(bytes) <= ALL_COPIES;
        let is_alone = has(".debug_info") && !LINKS.into_iter().any(has);
        if !(is_searched && fits && is_alone) {
            return None;
        }
        let copy = copy(file, bytes).ok()?;
        Some(Self { copy, bytes })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the frames at a file offset, the innermost inlined function first.
    pub(super) fn frames_at(
        &self,
        symbolizer: &Symbolizer,
        offset: u64,
        library: &Arc<str>,
    ) -> Option<Vec<Frame>> {
        let elf = Elf::new(format!("/proc/self/fd/{}", self.copy.as_raw_fd()));
        let symbolized = symbolizer.symbolize_single(&Source::Elf(elf), Input::FileOffset(offset));
        Some(named(library, &symbolized.ok()?.into_sym()?))
    }
}

/// Copies a file into memory that nobody can change or truncate. A file that ends early is an error.
fn copy(file: &File, bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut copy = File::from(memfd_create("memprobe-library", flags)?);
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < bytes {
        let wanted = usize::try_from(bytes - at).map_or(CHUNK, |left| left.min(CHUNK));
        file.read_exact_at(&mut chunk[..wanted], at)?;
        copy.write_all(&chunk[..wanted])?;
        at += wanted as u64;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&copy, seals)?;
    Ok(copy)
}

/// Returns the frames of a symbol and of the functions inlined there, innermost first.
fn named(path: &Arc<str>, symbol: &Sym<'_>) -> Vec<Frame> {
    let frame = |name: &str, code: Option<&blazesym::symbolize::CodeInfo<'_>>| Frame {
        file: code.map_or_else(|| "".into(), |code| code.to_path().to_string_lossy().into()),
        line: code.and_then(|code| code.line).unwrap_or(0),
        function: demangle::function(name.as_bytes()).into(),
        library: Some(Arc::clone(path)),
    };
    let inlined = symbol.inlined.iter().rev();
    let mut frames: Vec<_> = inlined
        .map(|inlined| frame(&inlined.name, inlined.code_info.as_ref()))
        .collect();
    frames.push(frame(&symbol.name, symbol.code_info.as_deref()));
    frames
}

//! Finds CPython in the mapped files of a process: the file, the version and the symbols.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::error::DetectError;
use crate::event::Tgid;
use crate::process::elf::{ElfImage, LoadedImage};
use crate::process::maps::{MappedFile, Maps};
use crate::process::memory::ReadMemory;

/// The shared library of CPython 3 (`libpython3.12.so.1.0`).
const LIBRARY: &str = "libpython3";

const PROGRAM: &[u8] = b"python3";
const RUNTIME: &str = "_PyRuntime";
const CODE_TYPE: &str = "PyCode_Type";
/// Since 3.11 (`Include/pylifecycle.h`: an unsigned long).
const VERSION: &str = "Py_Version";
const GET_STATE: &str = "PyGILState_GetThisThreadState";
/// Present only in debug builds (`Include/object.h`@v3.9.18, `Include/refcount.h`@v3.14.10: `Py_REF_DEBUG`).
const DEBUG_ONLY: &str = "_Py_NegativeRefcount";
/// The section that holds `_PyRuntime` (since 3.10), for a file without symbols.
const RUNTIME_SECTION: &str = ".PyRuntime";

const FUNCTION_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion {
    pub major: u8,
    /// 12 in 3.12.1.
    pub minor: u8,
    /// 1 in 3.12.1.
    pub micro: u8,
    /// `PY_VERSION_HEX`, as in `Py_Version`; 0 if only major and minor are known.
    pub hex: u32,
}

impl PythonVersion {
    /// Decodes a `PY_VERSION_HEX` (`Include/patchlevel.h`).
    pub const fn from_hex(hex: u32) -> Self {
        let [_, micro, minor, major] = hex.to_le_bytes();
        Self {
            major,
            minor,
            micro,
            hex,
        }
    }

    const fn of_minor(minor: u8) -> Self {
        Self {
            major: 3,
            minor,
            micro: 0,
            hex: 0,
        }
    }

    /// True for an alpha or a beta, whose layout may still change; that of a release candidate does not.
    pub const fn is_pre_release(self) -> bool {
        matches!(self.level(), 0xa | 0xb)
    }

    const fn level(self) -> u32 {
        self.hex >> 4 & 0xf
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.hex == 0 {
            return Ok(());
        }
        write!(f, ".{}", self.micro)?;
        let serial = self.hex & 0xf;
        match self.level() {
            0xa => write!(f, "a{serial}"),
            0xb => write!(f, "b{serial}"),
            0xc => write!(f, "rc{serial}"),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
pub struct Interpreter {
    pub library: MappedFile,
    pub bias: u64,
    pub runtime: u64,
    pub code_type: Option<u64>,
    /// The version, from `Py_Version` (3.11 on) or from a file name.
    pub version: PythonVersion,
    pub is_debug_build: bool,
    /// The address and the first instructions of `PyGILState_GetThisThreadState`.
    pub get_state: Option<(u64, Vec<u8>)>,
}

/// Returns the files that contain CPython, best first. A process may have several, of which one runs.
/// Fails with the error of the best candidate, if no file contains CPython.
pub fn find_interpreters(
    tgid: Tgid,
    maps: &Maps,
    memory: &impl ReadMemory,
) -> Result<Vec<Interpreter>, DetectError> {
    let mut failed = None;
    let mut found = Vec::new();
    for file in candidates(tgid, maps) {
        match look_into(tgid, maps, file, memory) {
            Ok(interpreter) => found.extend(interpreter),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (found.is_empty(), failed) {
        (true, failed) => Err(failed.unwrap_or(DetectError::NotPython)),
        (false, _) => Ok(found),
    }
}

/// Returns the files that may contain the interpreter: the shared library, then the program itself, also if the
/// loader was started as the program. If none has the section, other files that have it follow.
fn candidates(tgid: Tgid, maps: &Maps) -> Vec<MappedFile> {
    let mut files = maps.libraries(LIBRARY);
    let program = fs::read_link(format!("/proc/{}/exe", tgid.0)).unwrap_or_default();
    let program = program.as_os_str().as_bytes();
    let program = program.strip_suffix(b" (deleted)").unwrap_or(program);
    let is_program = |file: &MappedFile| {
        file.path.as_os_str().as_bytes() == program
            || file.basename().as_bytes().starts_with(PROGRAM)
    };
    let mut others = maps.files();
    others
        .retain(|file| file.is_executable() && !files.iter().any(|known| known.path == file.path));
    let (programs, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_program);
    files.extend(programs);
    if files.iter().all(|file| !has_runtime_section(file, tgid)) {
        let renamed = others.into_iter();
        files.extend(renamed.filter(|file| has_runtime_section(file, tgid)));
    }
    files
}

fn has_runtime_section(file: &MappedFile, tgid: Tgid) -> bool {
    let open = file.open(tgid).ok();
    let image = open.and_then(|(open, _)| ElfImage::from_file(open).ok());
    image.is_some_and(|image| image.section(RUNTIME_SECTION).is_some())
}

fn look_into(
    tgid: Tgid,
    maps: &Maps,
    file: MappedFile,
    memory: &impl ReadMemory,
) -> Result<Option<Interpreter>, DetectError> {
    let unusable = |error| DetectError::Binary(file.path.clone(), error);
    let loaded = LoadedImage::open(&file, tgid).map_err(unusable)?;
    let names = [RUNTIME, CODE_TYPE, VERSION, GET_STATE, DEBUG_ONLY];
    let found = loaded.image.symbols(&names).map_err(unusable)?;
    let address = |name: &str| {
        let at = names.iter().position(|known| *known == name)?;
        Some(loaded.address_of(found.get(at).copied().flatten()?))
    };
    let section = || {
        let section = loaded.image.section(RUNTIME_SECTION)?;
        Some(section.vaddr.wrapping_add(loaded.bias))
    };
    let code_type = address(CODE_TYPE);
    let Some(runtime) = address(RUNTIME).or_else(section) else {
        return without_runtime(maps, &file, &loaded, code_type.is_some());
    };
    let version = match address(VERSION) {
        Some(address) => PythonVersion::from_hex(memory.read_u32(address)?),
        None => {
            version_by_name(&file, maps).ok_or_else(|| DetectError::NoVersion(file.path.clone()))?
        }
    };
    let get_state = address(GET_STATE).and_then(|address| {
        let vaddr = address.wrapping_sub(loaded.bias);
        Some((address, loaded.image.bytes_at(vaddr, FUNCTION_BYTES).ok()?))
    });
    Ok(Some(Interpreter {
        bias: loaded.bias,
        runtime,
        code_type,
        version,
        is_debug_build: address(DEBUG_ONLY).is_some(),
        get_state,
        library: file,
    }))
}

/// Classifies a file in which no `_PyRuntime` can be found.
fn without_runtime(
    maps: &Maps,
    file: &MappedFile,
    loaded: &LoadedImage,
    has_code_type: bool,
) -> Result<Option<Interpreter>, DetectError> {
    let unusable = |error| DetectError::Binary(file.path.clone(), error);
    if has_code_type {
        return Err(match version_by_name(file, maps) {
            // Versions before 3.7 have no `_PyRuntime`.
            Some(version) if version.minor < 7 => DetectError::UnsupportedVersion(version),
            _ => DetectError::NoSymbol(file.path.clone(), RUNTIME),
        });
    }
    // The loader has yet to map the program's Python library.
    if maps.library(LIBRARY).is_none() && loaded.image.needs(LIBRARY).map_err(unusable)? {
        return Err(DetectError::NotInitializedYet);
    }
    // The library itself, or a program named like CPython, without the symbols that memprobe needs.
    let is_library = maps.libraries(LIBRARY).contains(file);
    let is_static =
        file.basename().as_bytes().starts_with(PROGRAM) && maps.library(LIBRARY).is_none();
    if is_library || is_static {
        return Err(DetectError::NoSymbol(file.path.clone(), RUNTIME));
    }
    Ok(None)
}

/// Returns the version in a file name, for Pythons without `Py_Version` (before 3.11): the interpreter's own
/// name, or that of an extension module (`_x.cpython-310-...so`).
fn version_by_name(file: &MappedFile, maps: &Maps) -> Option<PythonVersion> {
    let of_name = |path: &Path, mark: &str| {
        let (_, tail) = path.file_name()?.to_str()?.split_once(mark)?;
        let digits = tail.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok().map(PythonVersion::of_minor)
    };
    of_name(&file.path, "python3.").or_else(|| {
        let mut mappings = maps.mappings().iter();
        mappings.find_map(|mapping| of_name(&mapping.path, ".cpython-3"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_its_hex_form() {
        let version = PythonVersion::from_hex(0x030c_01f0);
        assert_eq!(version.to_string(), "3.12.1");
        assert_eq!((version.major, version.minor, version.micro), (3, 12, 1));
        assert!(!version.is_pre_release());
        assert_eq!(PythonVersion::of_minor(12).to_string(), "3.12");
        assert!(!PythonVersion::of_minor(12).is_pre_release());
    }

    #[test]
    fn alphas_and_betas_are_pre_releases_and_candidates_are_not() {
        for (hex, text, is_pre_release) in [
            (0x030f_00a3, "3.15.0a3", true),
            (0x030f_00b1, "3.15.0b1", true),
            (0x030f_00c2, "3.15.0rc2", false),
        ] {
            let version = PythonVersion::from_hex(hex);
            assert_eq!(version.to_string(), text);
            assert_eq!(version.is_pre_release(), is_pre_release);
        }
    }
}

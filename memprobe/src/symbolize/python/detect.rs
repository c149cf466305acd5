//! Whether a process runs CPython, which one, and where it keeps what memprobe reads.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use memprobe_common::PythonConfig;

use super::calibrate::{self, Claim, Mismatch, TssKey, TssPath};
use super::layout::{PythonLayout, RuntimeLayout};
use super::threads::{self, FrameChain, ThreadState};
use crate::event::Tgid;
use crate::target::elf::{ElfError, LoadedImage};
use crate::target::maps::{MappedFile, Maps};
use crate::target::memory::{Cause, ProcessMemory, ReadMemory, Unreadable};

/// How often a process is looked at before what does not fit is believed, and how long memprobe
/// waits in between: threads start and end while it looks.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// What `_Py_DebugOffsets` begins with (`Include/internal/pycore_debug_offsets.h`@v3.13.0), and
/// where it says that the build has no GIL.
const DEBUG_COOKIE: [u8; 8] = *b"xdebugpy";
const DEBUG_FREE_THREADED: u64 = 16;

/// A version of Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion {
    /// 3.
    pub major: u8,
    /// 12 of 3.12.1.
    pub minor: u8,
    /// 1 of 3.12.1.
    pub micro: u8,
    /// As `Py_Version` has it (`PY_VERSION_HEX`); 0 where only major and minor are known.
    pub hex: u32,
}

impl PythonVersion {
    /// The version that a `PY_VERSION_HEX` stands for (`Include/patchlevel.h`).
    pub const fn from_hex(hex: u32) -> Self {
        let [_, micro, minor, major] = hex.to_le_bytes();
        Self {
            major,
            minor,
            micro,
            hex,
        }
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.hex == 0 {
            return Ok(());
        }
        write!(f, ".{}", self.micro)
    }
}

/// A process in which CPython runs, proved on its threads.
#[derive(Clone, Debug)]
pub struct PythonProcess {
    /// The process.
    pub tgid: Tgid,
    /// Its version.
    pub version: PythonVersion,
    /// The program or library that holds the interpreter.
    pub library: MappedFile,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of the main interpreter.
    pub interpreter: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// `PyCode_Type.tp_dealloc`, by which code objects are freed: its address as the library's file
    /// numbers it.
    pub code_dealloc: u64,
    /// The key under which each thread finds its state.
    pub key: TssKey,
    /// The offsets.
    pub layout: &'static PythonLayout,
}

/// Why a process cannot be read as CPython. Each ends with what to do.
#[derive(Debug)]
pub enum DetectError {
    /// The process has ended.
    Gone,
    /// The process may not be looked at.
    Denied,
    /// No CPython is loaded.
    NotPython,
    /// CPython is loaded and not ready yet: try again in a moment.
    NotInitializedYet,
    /// memprobe does not know the layout of this version.
    UnsupportedVersion(PythonVersion),
    /// A build without the GIL.
    FreeThreaded(PythonVersion),
    /// The process does not look as its version should.
    Calibration(PythonVersion, Mismatch),
    /// The interpreter's file cannot be read.
    Binary(PathBuf, ElfError),
    /// The interpreter's file lacks a symbol that memprobe needs.
    NoSymbol(PathBuf, &'static str),
    /// The process cannot be read, for another reason.
    Access(io::Error),
}

impl fmt::Display for DetectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => {
                f.write_str("it has ended.\nFind the right process with `pgrep -af python`")
            }
            Self::Denied => f.write_str("it may not be looked at.\nRun memprobe with sudo"),
            Self::NotPython => f.write_str(
                "it is not a Python process.\nFind the right one with `pgrep -af python`; of a \
                 launcher, give the PID of the process that trains",
            ),
            Self::NotInitializedYet => {
                f.write_str("its Python has not started yet.\nTry again in a moment")
            }
            Self::UnsupportedVersion(version) => write!(
                f,
                "it runs Python {version}; memprobe knows {}.\nRun the program with one of these",
                known_versions()
            ),
            Self::FreeThreaded(version) => write!(
                f,
                "it runs the free-threaded build of Python {version}; memprobe knows {} with the \
                 GIL.\nRun the program with one of these",
                known_versions()
            ),
            Self::Calibration(version, mismatch) => write!(
                f,
                "it runs Python {version}, but its memory is not laid out like the official one's \
                 ({mismatch}).\nDebug builds and C libraries other than glibc are not supported; \
                 please report any other build"
            ),
            Self::Binary(path, error) => write!(
                f,
                "its interpreter {} cannot be read: {error}.\nRun memprobe with sudo, on the host \
                 or in the container that the program runs in",
                path.display()
            ),
            Self::NoSymbol(path, symbol) => write!(
                f,
                "its interpreter {} does not export {symbol}.\nRun the program with a Python whose \
                 dynamic symbols were not stripped",
                path.display()
            ),
            Self::Access(error) => write!(
                f,
                "it cannot be read: {error}.\nTry again; please report it if that does not help"
            ),
        }
    }
}

impl std::error::Error for DetectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Binary(_, error) => Some(error),
            Self::Access(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for DetectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ if error.raw_os_error() == Some(libc::ESRCH) => Self::Gone,
            _ => Self::Access(error),
        }
    }
}

impl From<Unreadable> for DetectError {
    fn from(error: Unreadable) -> Self {
        match error.cause {
            Cause::NoProcess => Self::Gone,
            Cause::Denied => Self::Denied,
            _ => Self::Access(io::Error::other(error)),
        }
    }
}

/// Such as `3.11 and 3.12`.
fn known_versions() -> String {
    let known: Vec<_> = super::layout::LAYOUTS
        .iter()
        .map(|layout| format!("3.{}", layout.minor))
        .collect();
    known.join(" and ")
}

impl PythonProcess {
    /// Finds CPython in a process and proves on every thread that memprobe reads it right. The
    /// process runs on meanwhile.
    ///
    /// # Errors
    /// [`DetectError`].
    pub fn detect(tgid: Tgid) -> Result<Self, DetectError> {
        let maps = Maps::of(tgid)?;
        Self::detect_in(tgid, &maps)
    }

    /// As [`Self::detect`], with mappings that were just read.
    ///
    /// # Errors
    /// [`DetectError`].
    pub fn detect_in(tgid: Tgid, maps: &Maps) -> Result<Self, DetectError> {
        let memory = ProcessMemory::new(tgid);
        let Interpreter {
            library,
            bias,
            runtime,
            code_type,
            version,
        } = find_interpreter(tgid, maps, &memory)?;
        let layout = match PythonLayout::of(version.minor).filter(|_| version.major == 3) {
            Some(layout) => layout,
            None if is_free_threaded(&memory, runtime) => {
                return Err(DetectError::FreeThreaded(version));
            }
            None => return Err(DetectError::UnsupportedVersion(version)),
        };
        let code_type =
            code_type.ok_or_else(|| DetectError::NoSymbol(library.path.clone(), CODE_TYPE))?;
        let (interpreter, number) = read_runtime(&memory, &layout.runtime, runtime)?;
        let key = TssKey::new(number).ok_or(DetectError::Calibration(
            version,
            Mismatch::NoSuchKey(number),
        ))?;
        // After the loader has put in the addresses: Python is up.
        let code_dealloc = memory
            .read_u64(code_type.wrapping_add(layout.object.type_dealloc.into()))?
            .wrapping_sub(bias);
        let claim = Claim {
            layout,
            interpreter,
            code_type,
            key,
        };
        prove(&memory, &claim, tgid, version)?;
        Ok(Self {
            tgid,
            version,
            library,
            runtime,
            interpreter,
            code_type,
            code_dealloc,
            key,
            layout,
        })
    }

    /// What the stack walk in the kernel needs to know of this process.
    pub fn kernel_config(&self) -> PythonConfig {
        let (tss_slot, tss_second, tss_second_slot) = match self.key.path() {
            TssPath::Direct(offset) => (offset, 0, 0),
            TssPath::Table { pointer, slot } => (0, pointer, slot),
        };
        let PythonLayout {
            thread,
            frame,
            code,
            ..
        } = self.layout;
        PythonConfig {
            tss_slot,
            tss_second,
            tss_second_slot,
            ts_thread_id: thread.thread_id,
            ts_native_thread_id: thread.native_thread_id,
            ts_frame: thread.frame,
            cframe_current: thread.cframe_current.unwrap_or(PythonConfig::NO_CFRAME),
            f_code: frame.code,
            f_previous: frame.previous,
            f_instr: frame.instr,
            f_owner: frame.owner,
            version: u32::from(self.version.major) << 8 | u32::from(self.version.minor),
            co_filename: code.file.into(),
            pad: 0,
        }
    }

    /// The memory of the process.
    pub fn memory(&self) -> ProcessMemory {
        ProcessMemory::new(self.tgid)
    }

    /// The threads of the main interpreter, newest first.
    ///
    /// # Errors
    /// As [`threads::thread_states`].
    pub fn thread_states(&self) -> Result<Vec<ThreadState>, Unreadable> {
        threads::thread_states(&self.memory(), self.layout, self.interpreter)
    }

    /// The frames on the stack of a thread.
    ///
    /// # Errors
    /// As [`threads::frames`].
    pub fn frames(&self, state: &ThreadState) -> Result<FrameChain, Unreadable> {
        threads::frames(&self.memory(), self.layout, state.address)
    }
}

/// The shared library of CPython 3 (`libpython3.12.so.1.0`).
const LIBRARY: &str = "libpython3";
const RUNTIME: &str = "_PyRuntime";
const CODE_TYPE: &str = "PyCode_Type";
/// Since 3.11 (`Include/pylifecycle.h`: an unsigned long).
const VERSION: &str = "Py_Version";
/// The section that holds `_PyRuntime` (since 3.11), for a file without symbols.
const RUNTIME_SECTION: &str = ".PyRuntime";

/// CPython as found in the files of a process.
struct Interpreter {
    library: MappedFile,
    /// What to add to the file's addresses.
    bias: u64,
    runtime: u64,
    code_type: Option<u64>,
    version: PythonVersion,
}

fn find_interpreter(
    tgid: Tgid,
    maps: &Maps,
    memory: &impl ReadMemory,
) -> Result<Interpreter, DetectError> {
    let mut failed = None;
    for file in candidates(tgid, maps) {
        match look_into(tgid, maps, file, memory) {
            Ok(Some(interpreter)) => return Ok(interpreter),
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or(DetectError::NotPython))
}

/// The files that may hold the interpreter: the shared library, or the program itself (Debian,
/// conda, python-build-standalone, programs that embed Python).
fn candidates(tgid: Tgid, maps: &Maps) -> Vec<MappedFile> {
    let mut files = maps.libraries(LIBRARY);
    let program = fs::read_link(format!("/proc/{}/exe", tgid.0)).unwrap_or_default();
    let program = program.as_os_str().as_bytes();
    let program = program.strip_suffix(b" (deleted)").unwrap_or(program);
    files.extend(
        maps.files()
            .into_iter()
            .filter(|file| file.is_executable() && file.path.as_os_str().as_bytes() == program),
    );
    files
}

fn look_into(
    tgid: Tgid,
    maps: &Maps,
    file: MappedFile,
    memory: &impl ReadMemory,
) -> Result<Option<Interpreter>, DetectError> {
    let unusable = |error| DetectError::Binary(file.path.clone(), error);
    let loaded = LoadedImage::open(&file, tgid).map_err(unusable)?;
    let found = loaded
        .image
        .symbols(&[RUNTIME, CODE_TYPE, VERSION])
        .map_err(unusable)?;
    let [runtime, code_type, version_symbol] = [0, 1, 2].map(|at| {
        found
            .get(at)
            .copied()
            .flatten()
            .map(|symbol| loaded.address_of(symbol))
    });
    let section = || {
        let section = loaded.image.section(RUNTIME_SECTION)?;
        Some(section.vaddr.wrapping_add(loaded.bias))
    };
    let Some(runtime) = runtime.or_else(section) else {
        // Before 3.7 there was none.
        if let (Some(_), Some(version)) = (code_type, version_by_name(&file, maps)) {
            return Err(DetectError::UnsupportedVersion(version));
        }
        // A program whose Python is a library that the loader has yet to map.
        let is_loading =
            maps.library(LIBRARY).is_none() && loaded.image.needs(LIBRARY).map_err(unusable)?;
        return if is_loading {
            Err(DetectError::NotInitializedYet)
        } else {
            Ok(None)
        };
    };
    let version = match version_symbol {
        Some(address) => PythonVersion::from_hex(memory.read_u32(address)?),
        None => version_by_name(&file, maps)
            .ok_or_else(|| DetectError::NoSymbol(file.path.clone(), VERSION))?,
    };
    Ok(Some(Interpreter {
        bias: loaded.bias,
        runtime,
        code_type,
        version,
        library: file,
    }))
}

/// The version that names of files speak of, for Pythons that do not tell it themselves (before
/// 3.11): the interpreter's own name, or that of an extension module (`_x.cpython-310-...so`).
fn version_by_name(file: &MappedFile, maps: &Maps) -> Option<PythonVersion> {
    let of_name = |path: &Path, marks: &[&str]| {
        let name = path.file_name()?.to_str()?;
        let tail = marks
            .iter()
            .find_map(|mark| name.split_once(mark))
            .map(|(_, tail)| tail)?;
        let digits = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        let minor = tail[..digits].parse().ok()?;
        Some(PythonVersion {
            major: 3,
            minor,
            micro: 0,
            hex: 0,
        })
    };
    of_name(&file.path, &["python3."]).or_else(|| {
        maps.mappings()
            .iter()
            .find_map(|mapping| of_name(&mapping.path, &[".cpython-3"]))
    })
}

/// Whether a Python from 3.13 on says that it was built without the GIL.
fn is_free_threaded(memory: &impl ReadMemory, runtime: u64) -> bool {
    memory
        .read_array(runtime)
        .is_ok_and(|cookie| cookie == DEBUG_COOKIE)
        && memory
            .read_u64(runtime.wrapping_add(DEBUG_FREE_THREADED))
            .is_ok_and(|free_threaded| free_threaded != 0)
}

/// The main interpreter and the number of the thread states' key.
fn read_runtime(
    memory: &impl ReadMemory,
    layout: &RuntimeLayout,
    runtime: u64,
) -> Result<(u64, u32), DetectError> {
    let at = |offset: u16| runtime.wrapping_add(offset.into());
    let interpreter = memory.read_u64(at(layout.main_interpreter))?;
    let ready = memory.read_u32(at(layout.initialized))? != 0
        && memory.read_u32(at(layout.tss_initialized))? != 0
        && interpreter != 0;
    if !ready {
        return Err(DetectError::NotInitializedYet);
    }
    Ok((interpreter, memory.read_u32(at(layout.tss_key))?))
}

/// Proves the claim, with patience for a process that changes meanwhile.
fn prove(
    memory: &ProcessMemory,
    claim: &Claim,
    tgid: Tgid,
    version: PythonVersion,
) -> Result<(), DetectError> {
    let mut last = Mismatch::NothingProved;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        let living = native_threads(tgid)?;
        match calibrate::prove(memory, claim, |native| living.contains(&native)) {
            Ok(_) => return Ok(()),
            Err(mismatch) => last = mismatch,
        }
    }
    Err(match last {
        Mismatch::Threads(error) if matches!(error.cause, Cause::NoProcess | Cause::Denied) => {
            error.into()
        }
        mismatch => DetectError::Calibration(version, mismatch),
    })
}

/// The threads of a process as its own PID namespace numbers them (`NSpid` in `proc(5)`).
fn native_threads(tgid: Tgid) -> io::Result<Vec<u64>> {
    let mut natives = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/task", tgid.0))? {
        // A thread that has just ended has no status any more.
        let Ok(status) = fs::read_to_string(entry?.path().join("status")) else {
            continue;
        };
        natives.extend(
            status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))
                .and_then(|numbers| numbers.split_whitespace().last()?.parse::<u64>().ok()),
        );
    }
    Ok(natives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_its_hex_form() {
        let version = PythonVersion::from_hex(0x030c_01f0);
        assert_eq!(version.to_string(), "3.12.1");
        assert_eq!((version.major, version.minor, version.micro), (3, 12, 1));
        let without_micro = PythonVersion { hex: 0, ..version };
        assert_eq!(without_micro.to_string(), "3.12");
    }

    #[test]
    fn an_unknown_version_is_named_with_what_is_known() {
        let error = DetectError::UnsupportedVersion(PythonVersion::from_hex(0x0363_00f0));
        let text = error.to_string();
        assert!(
            text.contains("3.99.0") && text.contains("3.11 and 3.12"),
            "{text}"
        );
    }

    #[test]
    fn a_process_that_ended_is_told_from_one_that_may_not_be_looked_at() {
        let of = |errno| DetectError::from(io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::ENOENT), DetectError::Gone));
        assert!(matches!(of(libc::ESRCH), DetectError::Gone));
        assert!(matches!(of(libc::EACCES), DetectError::Denied));
        assert!(matches!(of(libc::EPERM), DetectError::Denied));
        assert!(matches!(of(libc::EIO), DetectError::Access(_)));
    }

    #[test]
    fn every_error_ends_with_what_to_do() {
        let version = PythonVersion::from_hex(0x030d_00f0);
        let errors = [
            DetectError::Gone,
            DetectError::Denied,
            DetectError::NotPython,
            DetectError::NotInitializedYet,
            DetectError::UnsupportedVersion(version),
            DetectError::FreeThreaded(version),
            DetectError::Calibration(version, Mismatch::NoThreads),
            DetectError::Binary("/x".into(), ElfError::Malformed("no header")),
            DetectError::NoSymbol("/x".into(), CODE_TYPE),
            DetectError::Access(io::Error::from_raw_os_error(libc::EIO)),
        ];
        for error in errors {
            let text = error.to_string();
            let (_, advice) = text.split_once(".\n").expect("a second line");
            assert!(advice.starts_with(char::is_uppercase), "{text}");
        }
    }
}

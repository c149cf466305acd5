//! Which CPython a process runs, and whether its layout is the one that the table says.

use std::fmt;

use memprobe_common::PythonConfig;

use super::layout::{LAYOUTS, PythonLayout};
use super::threads;
use crate::event::Tgid;
use crate::target::elf::ElfImage;
use crate::target::maps::{Mapping, Maps};
use crate::target::memory::{ProcessMemory, ReadMemory};

/// How often a check is repeated that a running process may have disturbed.
const TRIES: u32 = 20;

/// A version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// 3.
    pub major: u8,
    /// Such as 12.
    pub minor: u8,
    /// Such as 1.
    pub micro: u8,
}

impl Version {
    /// From `PY_VERSION_HEX` (Include/patchlevel.h).
    pub fn from_hex(hex: u32) -> Self {
        let [_, micro, minor, major] = hex.to_le_bytes();
        Self {
            major,
            minor,
            micro,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// A running CPython whose layout was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonProcess {
    /// Its version.
    pub version: Version,
    /// The layout of that version.
    pub layout: &'static PythonLayout,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// The thread-specific key that holds a thread's `PyThreadState`.
    pub tss_key: u32,
    /// The executable or library that Python is.
    pub library: Mapping,
    /// Address of `PyCode_Type.tp_dealloc` as the library's file numbers it.
    pub code_dealloc: u64,
}

/// `PyTypeObject.tp_dealloc` (Include/cpython/object.h@v3.11.7).
const TP_DEALLOC: u64 = 48;

/// Why a process's Python stacks cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectError {
    /// The process has ended.
    Gone,
    /// The process may not be looked at.
    Denied,
    /// No Python is mapped.
    NotPython,
    /// Python is mapped but has no thread yet.
    NotInitializedYet,
    /// A version that memprobe does not know; `None` where it does not even tell its version.
    UnknownVersion(Option<Version>),
    /// The version is known, but memory does not look as that version's does.
    Mismatch(Version, String),
}

impl fmt::Display for DetectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("it has ended"),
            Self::Denied => f.write_str("it may not be looked at.\nRun memprobe with sudo"),
            Self::NotPython => f.write_str(
                "it is not a Python process.\nFind the right one with `pgrep -af python`; of a launcher, give the \
                 PID of the process that trains",
            ),
            Self::NotInitializedYet => f.write_str("its Python has not started yet.\nTry again in a moment"),
            Self::UnknownVersion(version) => {
                match version {
                    Some(version) => write!(f, "it runs Python {version}; ")?,
                    None => f.write_str("it runs a Python older than 3.11; ")?,
                }
                let known: Vec<_> = LAYOUTS.iter().map(|layout| format!("3.{}", layout.minor)).collect();
                write!(f, "memprobe knows {}.\nRun the program with one of these", known.join(" and "))
            }
            Self::Mismatch(version, why) => write!(
                f,
                "it runs Python {version}, but its memory is not laid out like the official one's ({why}).\n\
                 Debug and free-threaded builds are not supported; please report any other build"
            ),
        }
    }
}

impl std::error::Error for DetectError {}

impl PythonProcess {
    /// Finds the Python of a process and checks its layout on every thread.
    ///
    /// # Errors
    /// Why its stacks cannot be read.
    pub fn detect(tgid: Tgid) -> Result<Self, DetectError> {
        let maps = Maps::of(tgid).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => DetectError::Denied,
            _ => DetectError::Gone,
        })?;
        let (mapping, image, runtime) = find_runtime(tgid, &maps)?;
        let bias = image
            .load_bias(&maps, mapping)
            .ok_or(DetectError::NotInitializedYet)?;
        let memory = ProcessMemory::new(tgid);
        let version = image
            .symbol("Py_Version")
            .ok_or(DetectError::UnknownVersion(None))
            .and_then(|symbol| {
                memory
                    .read_u32(bias + symbol.address)
                    .map_err(|_| DetectError::NotInitializedYet)
            })
            .map(Version::from_hex)?;
        let layout = PythonLayout::of(version).ok_or(DetectError::UnknownVersion(Some(version)))?;
        let code_type = image
            .symbol("PyCode_Type")
            .map(|symbol| bias + symbol.address)
            .ok_or_else(|| {
                DetectError::Mismatch(version, "PyCode_Type is not exported".to_owned())
            })?;
        let runtime = bias + runtime;
        let mut python = Self {
            version,
            layout,
            runtime,
            code_type,
            tss_key: 0,
            library: mapping.clone(),
            code_dealloc: 0,
        };
        python.code_dealloc = memory
            .read_u64(code_type + TP_DEALLOC)
            .map_err(|_| DetectError::NotInitializedYet)?
            .wrapping_sub(bias);
        python.tss_key = memory
            .read_u32(runtime + u64::from(layout.runtime_tss_key))
            .map_err(|_| DetectError::NotInitializedYet)?;
        python.check(&memory)?;
        Ok(python)
    }

    /// Checks the layout on every thread, again where the process moved meanwhile.
    fn check(&self, memory: &impl ReadMemory) -> Result<(), DetectError> {
        let mut last = DetectError::NotInitializedYet;
        for _ in 0..TRIES {
            match threads::check(self, memory) {
                Ok(0) => return Err(DetectError::NotInitializedYet),
                Ok(_) => return Ok(()),
                Err(why) => last = DetectError::Mismatch(self.version, why.to_string()),
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err(last)
    }

    /// What the stack walk in the kernel must know.
    pub fn kernel_config(&self) -> PythonConfig {
        let layout = self.layout;
        let slot = threads::tss_place(self.tss_key);
        PythonConfig {
            tss_slot: slot.first,
            tss_second: slot.second,
            tss_second_slot: slot.in_second,
            ts_thread_id: layout.ts_thread_id,
            ts_native_thread_id: layout.ts_native_thread_id,
            ts_frame: layout.ts_cframe,
            cframe_current: layout.cframe_current,
            f_code: layout.f_code,
            f_previous: layout.f_previous,
            f_instr: layout.f_instr,
            f_owner: layout.f_owner,
            version: u32::from(self.version.major) << 8 | u32::from(self.version.minor),
            co_filename: layout.co_filename.into(),
            pad: 0,
        }
    }
}

/// The executable or library that holds `_PyRuntime`, and the symbol's address in it.
fn find_runtime(tgid: Tgid, maps: &Maps) -> Result<(&Mapping, ElfImage, u64), DetectError> {
    let mut seen: Vec<&str> = Vec::new();
    let candidates = maps.files().iter().filter(|mapping| {
        let name = mapping
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let new = !seen.contains(&mapping.file_id.as_str());
        seen.push(&mapping.file_id);
        new && (name.starts_with("libpython3.") || name.starts_with("python"))
    });
    let mut named_python = false;
    for mapping in candidates {
        named_python = true;
        let Ok((image, _)) = ElfImage::of_mapping(tgid, mapping) else {
            continue;
        };
        if let Some(symbol) = image.symbol("_PyRuntime") {
            return Ok((mapping, image, symbol.address));
        }
    }
    Err(if named_python {
        DetectError::NotInitializedYet
    } else {
        DetectError::NotPython
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_its_hex_form() {
        assert_eq!(Version::from_hex(0x030c_01f0).to_string(), "3.12.1");
        assert_eq!(
            Version::from_hex(0x030b_07f0),
            Version {
                major: 3,
                minor: 11,
                micro: 7
            }
        );
    }

    #[test]
    fn a_process_without_python_says_so() {
        assert_eq!(
            PythonProcess::detect(Tgid(std::process::id())),
            Err(DetectError::NotPython)
        );
        assert_eq!(
            PythonProcess::detect(Tgid(u32::MAX)),
            Err(DetectError::Gone)
        );
    }

    #[test]
    fn an_unknown_version_is_named_with_what_is_known() {
        let error = DetectError::UnknownVersion(Some(Version {
            major: 3,
            minor: 99,
            micro: 0,
        }));
        assert!(
            error.to_string().contains("3.99.0") && error.to_string().contains("3.11"),
            "{error}"
        );
    }
}

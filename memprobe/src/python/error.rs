//! Errors of detecting CPython; each message ends with what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::calibrate::Mismatch;
use super::debug_offsets::Damage;
use super::interpreter::PythonVersion;
use super::versions::known_versions;
use crate::process::elf::ElfError;
use crate::process::memory::{Cause, Unreadable};

/// The reason why a process cannot be read as CPython. Each message ends with what to do.
#[derive(Debug)]
pub enum DetectError {
    /// The process has ended.
    Gone,
    /// memprobe may not inspect the process.
    Denied,
    /// No CPython is loaded.
    NotPython,
    /// CPython is loaded but not initialized yet: try again in a moment.
    NotInitializedYet,
    /// memprobe does not know the layout of this version.
    UnsupportedVersion(PythonVersion),
    /// An alpha or a beta, neither a release nor a release candidate.
    PreRelease(PythonVersion),
    /// A build without the GIL.
    FreeThreaded(PythonVersion),
    /// A build with assertions (`Py_DEBUG`).
    DebugBuild(PythonVersion),
    /// The interpreter's description of its own layout is invalid.
    DebugOffsets(PythonVersion, Damage),
    /// The process contradicts the layout of its version.
    Calibration(PythonVersion, Mismatch),
    /// The interpreter's file cannot be read.
    Binary(PathBuf, ElfError),
    /// The interpreter's file lacks a symbol that memprobe needs.
    NoSymbol(PathBuf, &'static str),
    /// The interpreter's version is unknown.
    NoVersion(PathBuf),
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
            Self::PreRelease(version) => write!(
                f,
                "it runs Python {version}, whose memory is laid out otherwise than that of the \
                 release.\nRun the program with a release of Python {}",
                known_versions()
            ),
            Self::FreeThreaded(version) => write!(
                f,
                "it runs the free-threaded build of Python {version}; memprobe knows {} with the \
                 GIL.\nRun the program with python3.{} rather than python3.{1}t",
                known_versions(),
                version.minor
            ),
            Self::DebugBuild(version) => write!(
                f,
                "it runs a debug build of Python {version}, whose memory is laid out otherwise.\n\
                 Run the program with a Python that was built without --with-pydebug",
            ),
            Self::DebugOffsets(version, damage) => write!(
                f,
                "it runs Python {version}, but not the official one: {damage}.\nRun the program \
                 with another build; please report it where this is one that others use",
            ),
            Self::Calibration(version, mismatch) => write!(
                f,
                "it runs Python {version}, but its memory is not laid out like the official one's \
                 ({mismatch}).\nC libraries other than glibc are not supported; please report any \
                 other build"
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
            Self::NoVersion(path) => write!(
                f,
                "nothing tells which version of Python {} is.\nRun the program with a Python {} \
                 that was not renamed",
                path.display(),
                known_versions()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_is_named_with_what_is_known() {
        let error = DetectError::UnsupportedVersion(PythonVersion::from_hex(0x0363_00f0));
        let text = error.to_string();
        assert!(
            text.contains("3.99.0") && text.contains("3.9 to 3.15"),
            "{text}"
        );
    }

    #[test]
    fn a_free_threaded_build_is_refused_with_the_name_of_the_other() {
        let error = DetectError::FreeThreaded(PythonVersion::from_hex(0x030e_0af0));
        let text = error.to_string();
        assert!(
            text.ends_with("python3.14 rather than python3.14t"),
            "{text}"
        );
    }

    #[test]
    fn distinguishes_an_ended_process_from_a_forbidden_one() {
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
            DetectError::PreRelease(version),
            DetectError::FreeThreaded(version),
            DetectError::DebugBuild(version),
            DetectError::DebugOffsets(version, Damage::NoCookie),
            DetectError::Calibration(version, Mismatch::NoThreads),
            DetectError::Binary("/x".into(), ElfError::Malformed("no header")),
            DetectError::NoSymbol("/x".into(), "PyCode_Type"),
            DetectError::NoVersion("/x".into()),
            DetectError::Access(io::Error::from_raw_os_error(libc::EIO)),
        ];
        for error in errors {
            let text = error.to_string();
            let (_, advice) = text.split_once(".\n").expect("a second line");
            assert!(advice.starts_with(char::is_uppercase), "{text}");
        }
    }
}

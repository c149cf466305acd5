//! Errors of detecting CPython; each message ends with what to do.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::calibrate::Mismatch;
use super::debug_offsets::Damage;
use super::interpreter::PythonVersion;
use super::versions::known_versions;
use crate::event::Tgid;
use crate::process::elf::ElfError;
use crate::process::memory::{Cause, Unreadable};
use crate::process::run_state::RunState;

#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    #[error("it has ended.\nFind the right process with `pgrep -af python`")]
    Gone,
    #[error(
        "it has ended and has no memory left: it waits for its parent (PID {}) to collect its exit status.\nFind the \
         right process with `pgrep -af python`", .0.0
    )]
    Zombie(Tgid),
    /// Python has shut down, or is about to, or the kernel is freeing the process's memory.
    #[error(
        "it is ending: its Python objects are being freed or are gone.\nRun more steps, or end the script with \
         time.sleep(2) while its tensors are live"
    )]
    Ending,
    #[error("it may not be looked at.\nRun memprobe with sudo")]
    Denied,
    #[error(
        "it is not a Python process.\nFind the right one with `pgrep -af python`; of a launcher, give the PID of the \
         process that trains"
    )]
    NotPython,
    #[error("its Python has not started yet.\nTry again in a moment")]
    NotInitializedYet,
    #[error("it runs Python {0}; memprobe knows {known}.\nRun the program with one of these", known = known_versions())]
    UnsupportedVersion(PythonVersion),
    /// An alpha or a beta, neither a release nor a release candidate.
    #[error(
        "it runs Python {0}, whose memory is laid out otherwise than that of the release.\nRun the program with a \
         release of Python {known}",
        known = known_versions()
    )]
    PreRelease(PythonVersion),
    #[error(
        "it runs the free-threaded build of Python {0}; memprobe knows {known} with the GIL.\nRun the program with \
         python3.{minor} rather than python3.{minor}t",
        known = known_versions(),
        minor = .0.minor
    )]
    FreeThreaded(PythonVersion),
    /// A build with assertions (`Py_DEBUG`).
    #[error(
        "it runs a debug build of Python {0}, whose memory is laid out otherwise.\nRun the program with a Python that \
         was built without --with-pydebug"
    )]
    DebugBuild(PythonVersion),
    /// The interpreter's description of its own layout is invalid.
    #[error(
        "it runs Python {0}, but not the official one: {1}.\nRun the program with another build; please report it \
         where this is one that others use"
    )]
    DebugOffsets(PythonVersion, Damage),
    #[error(
        "it runs Python {0}, but its memory is not laid out like the official one's ({1}).\nC libraries other than \
         glibc are not supported; please report any other build"
    )]
    Calibration(PythonVersion, Mismatch),
    #[error(
        "its interpreter {0} cannot be read: {1}.\nRun memprobe with sudo, on the host or in the container that the \
         program runs in"
    )]
    Binary(PathBuf, #[source] ElfError),
    #[error(
        "its interpreter {0} does not export {1}.\nRun the program with a Python whose dynamic symbols were not stripped"
    )]
    NoSymbol(PathBuf, &'static str),
    #[error(
        "nothing tells which version of Python {0} is.\nRun the program with a Python {known} that was not renamed",
        known = known_versions()
    )]
    NoVersion(PathBuf),
    #[error("it cannot be read: {0}.\nTry again; please report it if that does not help")]
    Access(#[source] io::Error),
}

impl DetectError {
    /// The state of a process that has lost its Python or its memory.
    pub fn of_end(tgid: Tgid) -> Self {
        match RunState::of(tgid) {
            RunState::Gone => Self::Gone,
            RunState::Zombie(parent) => Self::Zombie(parent),
            RunState::Exiting | RunState::Running | RunState::Stopped | RunState::Traced(_) => {
                Self::Ending
            }
        }
    }

    /// Error of reading the process's files.
    pub fn of_access(tgid: Tgid, error: io::Error) -> Self {
        Self::from(error).unless_ending(tgid)
    }

    /// The error, or the end of the process if that explains it.
    pub(super) fn unless_ending(self, tgid: Tgid) -> Self {
        let ends = || {
            !matches!(
                RunState::of(tgid),
                RunState::Running | RunState::Stopped | RunState::Traced(_)
            )
        };
        match self {
            Self::Gone | Self::Denied | Self::NotPython | Self::NotInitializedYet if ends() => {
                Self::of_end(tgid)
            }
            error => error,
        }
    }

    pub fn is_of_the_end(&self) -> bool {
        matches!(self, Self::Gone | Self::Zombie(_) | Self::Ending)
    }
}

impl From<io::Error> for DetectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ if Errno::from_io_error(&error) == Some(Errno::SRCH) => Self::Gone,
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
        let of = |errno: Errno| DetectError::from(io::Error::from(errno));
        assert!(matches!(of(Errno::NOENT), DetectError::Gone));
        assert!(matches!(of(Errno::SRCH), DetectError::Gone));
        assert!(matches!(of(Errno::ACCESS), DetectError::Denied));
        assert!(matches!(of(Errno::PERM), DetectError::Denied));
        assert!(matches!(of(Errno::IO), DetectError::Access(_)));
    }

    #[test]
    fn every_error_ends_with_what_to_do() {
        let version = PythonVersion::from_hex(0x030d_00f0);
        let errors = [
            DetectError::Gone,
            DetectError::Zombie(Tgid(7)),
            DetectError::Ending,
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
            DetectError::Access(Errno::IO.into()),
        ];
        for error in errors {
            let text = error.to_string();
            let (_, advice) = text.split_once(".\n").expect("a second line");
            assert!(advice.starts_with(char::is_uppercase), "{text}");
        }
    }
}

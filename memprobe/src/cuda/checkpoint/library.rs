//! libcuda's five checkpoint functions, looked up at run time.
//!
//! Names, argument structures and numbers are those of cuda.h in the wheels nvidia-cuda-runtime-cu12 12.9.79 and
//! nvidia-cuda-runtime 13.3.29 and 13.5.37. Each argument structure has 64 bytes in all three. 13.4 put
//! `customStorageInfo_out` where 12.9 has reserved zeros: memprobe passes zeros, which mean host memory in both.
//! Everything unsafe of this module is here.

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use libloading::Library;

use super::failure::CallFailure;
use super::{CheckpointState, steps::CheckpointStep};
use crate::event::Tgid;

/// The driver's library, in the folders of the dynamic loader.
const LIBRARY: &str = "libcuda.so.1";

/// First driver branch whose libcuda has the functions.
const FIRST_DRIVER: &str = "570 (CUDA 12.8)";

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArguments {
    /// 0 would wait for ever.
    timeout_ms: c_uint,
    reserved0: c_uint,
    reserved1: [u64; 7],
}

/// `CUcheckpointCheckpointArgs`, `CUcheckpointRestoreArgs` and `CUcheckpointUnlockArgs`: all zero for the defaults.
type NoArguments = [u64; 8];

const _: () = assert!(size_of::<LockArguments>() == 64 && size_of::<NoArguments>() == 64);

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DriverVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetState = unsafe extern "C" fn(c_int, *mut c_uint) -> c_int;
type Lock = unsafe extern "C" fn(c_int, *mut LockArguments) -> c_int;
type WithoutArguments = unsafe extern "C" fn(c_int, *mut NoArguments) -> c_int;

/// Opened libcuda with its functions. It is never closed: the driver's threads run in it.
pub struct CheckpointLibrary {
    state: GetState,
    lock: Lock,
    checkpoint: WithoutArguments,
    restore: WithoutArguments,
    unlock: WithoutArguments,
}

/// Reason why the driver has no checkpoint calls for memprobe.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error(
        "libcuda.so.1 was not found: the NVIDIA driver must be installed where memprobe runs; in a container, start it \
         with the driver's libraries (`--gpus all`)"
    )]
    Missing,
    #[error("libcuda.so.1 cannot be loaded: {0}")]
    Unloadable(String),
    #[error(
        "this NVIDIA driver has no checkpoint calls (its libcuda has CUDA {version}): update it to {FIRST_DRIVER} or \
         newer"
    )]
    TooOld { version: String },
    #[error("libcuda.so.1 has no function {0}, which every driver has: is it NVIDIA's?")]
    Foreign(&'static str),
    #[error("{}", init_refusal(*.0))]
    Init(i32),
}

/// Words for an error of `cuInit`.
fn init_refusal(code: i32) -> String {
    let reason = match code {
        100 => "finds no GPU: `nvidia-smi` shows what it sees".to_owned(),
        3 | 802 => "is not ready: try again, or see `dmesg | grep NVRM`".to_owned(),
        803 => {
            "was updated, and its library and kernel module differ until the next boot".to_owned()
        }
        34 => "is a stub without a driver: its folder must not be on LD_LIBRARY_PATH".to_owned(),
        304 | 999 => format!(
            "could not begin (cuInit: error {code}): are the device nodes there (`ls /dev/nvidia*`), and may this user \
             open them?"
        ),
        other => format!("could not begin (cuInit: error {other})"),
    };
    format!("the NVIDIA driver {reason}")
}

impl CheckpointLibrary {
    /// Loads libcuda and begins it. A restore requires `cuInit` in the calling process (cuda.h 12.9.79).
    pub fn open() -> Result<Self, LibraryError> {
        // SAFETY: the driver's library runs its initializers, as it does in every CUDA program.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| not_loaded(&error))?;
        // Its functions and threads must stay until the end.
        let library = Box::leak(Box::new(library));
        let functions = Self::of(library)?;
        // SAFETY: `cuInit` takes flags, which must be 0 (cuda.h).
        let code = unsafe { function::<Init>(library, "cuInit")?(0) };
        match code {
            0 => Ok(functions),
            code => Err(LibraryError::Init(code)),
        }
    }

    fn of(library: &'static Library) -> Result<Self, LibraryError> {
        // SAFETY: cuda.h declares each function with this type.
        unsafe {
            let functions = || {
                Ok::<_, LibraryError>(Self {
                    state: function(library, "cuCheckpointProcessGetState")?,
                    lock: function(library, "cuCheckpointProcessLock")?,
                    checkpoint: function(library, "cuCheckpointProcessCheckpoint")?,
                    restore: function(library, "cuCheckpointProcessRestore")?,
                    unlock: function(library, "cuCheckpointProcessUnlock")?,
                })
            };
            functions().or_else(|_| {
                let version = function::<DriverVersion>(library, "cuDriverGetVersion")?;
                let version = version_text(version);
                Err(LibraryError::TooOld { version })
            })
        }
    }

    pub fn state(&self, tgid: Tgid) -> Result<CheckpointState, CallFailure> {
        let mut number = c_uint::MAX;
        // SAFETY: the function writes one number of an enumeration, which has 4 bytes.
        let code = unsafe { (self.state)(pid(tgid), &mut number) };
        outcome(code).map(|()| CheckpointState::of_number(number))
    }

    /// Makes one step, which blocks until the driver is done. `lock` is the time limit of a lock.
    pub fn make(
        &self,
        step: CheckpointStep,
        tgid: Tgid,
        lock: Duration,
    ) -> Result<(), CallFailure> {
        let pid = pid(tgid);
        let mut none: NoArguments = [0; 8];
        let mut limit = LockArguments {
            timeout_ms: u32::try_from(lock.as_millis()).unwrap_or(u32::MAX).max(1),
            reserved0: 0,
            reserved1: [0; 7],
        };
        // SAFETY: each function gets the structure that cuda.h names for it, with zeros in reserved fields.
        let code = unsafe {
            match step {
                CheckpointStep::Lock => (self.lock)(pid, &mut limit),
                CheckpointStep::Checkpoint => (self.checkpoint)(pid, &mut none),
                CheckpointStep::Restore => (self.restore)(pid, &mut none),
                CheckpointStep::Unlock => (self.unlock)(pid, &mut none),
            }
        };
        outcome(code)
    }
}

/// Looks a function up.
///
/// # Safety
/// `F` must be the type of the function.
unsafe fn function<F: Copy>(library: &Library, name: &'static str) -> Result<F, LibraryError> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found
        .map(|symbol| *symbol)
        .map_err(|_| LibraryError::Foreign(name))
}

/// Returns the CUDA version of a libcuda, such as `12.5`; `?` if it does not say.
fn version_text(function: DriverVersion) -> String {
    let mut version = 0;
    // SAFETY: the function writes one integer, and needs no `cuInit` (cuda.h).
    let code = unsafe { function(&mut version) };
    match code {
        0 => format!("{}.{}", version / 1000, version % 1000 / 10),
        _ => "?".to_owned(),
    }
}

fn not_loaded(error: &libloading::Error) -> LibraryError {
    let text = error.to_string();
    // The text of dlopen(3) for a file that is in none of the folders.
    if text.contains("No such file") {
        return LibraryError::Missing;
    }
    LibraryError::Unloadable(text)
}

fn pid(tgid: Tgid) -> c_int {
    // The kernel's numbers are below 2^22.
    c_int::try_from(tgid.0).unwrap_or(c_int::MAX)
}

fn outcome(code: c_int) -> Result<(), CallFailure> {
    match code {
        0 => Ok(()),
        code => Err(CallFailure::Refused(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_and_a_damaged_one_are_different_errors() {
        let error = |text: &str| {
            // SAFETY: no library of this name exists, so nothing is run.
            let error = unsafe { Library::new(text) }.expect_err("there is no such library");
            not_loaded(&error)
        };
        assert_eq!(error("libmemprobe-nowhere.so.1"), LibraryError::Missing);
        let folder = tempfile::tempdir().expect("a folder");
        let damaged = folder.path().join("libcuda.so.1");
        std::fs::write(&damaged, "not a library").expect("written");
        let damaged = damaged.to_str().expect("a path");
        assert!(matches!(error(damaged), LibraryError::Unloadable(_)));
    }

    #[test]
    fn every_refusal_of_the_driver_to_begin_has_words() {
        for (code, words) in [
            (100, "no GPU"),
            (803, "next boot"),
            (999, "/dev/nvidia"),
            (7, "error 7"),
        ] {
            let text = LibraryError::Init(code).to_string();
            assert!(text.contains(words), "{code}: {text}");
        }
    }
}

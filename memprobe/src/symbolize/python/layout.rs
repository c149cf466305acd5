//! Where each CPython keeps what memprobe reads. Data: a version is a row.
//!
//! Byte offsets on x86-64 Linux, release builds with the GIL, by `offsetof` against the headers of
//! 3.11.7 and 3.12.1; they are stable within a minor version.

use super::detect::Version;

/// One minor version's layout. `_PyRuntimeState` is in Include/internal/pycore_runtime.h,
/// `PyInterpreterState` in pycore_interp.h, `PyThreadState` in Include/cpython/pystate.h,
/// `_PyInterpreterFrame` in pycore_frame.h, `PyCodeObject` in Include/cpython/code.h, strings in
/// Include/cpython/unicodeobject.h.
#[derive(Debug, PartialEq, Eq)]
pub struct PythonLayout {
    /// The minor version of Python 3.
    pub minor: u8,
    /// `_PyRuntimeState.interpreters.head`.
    pub runtime_interpreters: u16,
    /// `_PyRuntimeState`'s `autoTSSkey._key`.
    pub runtime_tss_key: u16,
    /// `PyInterpreterState.threads.head`.
    pub interpreter_threads: u16,
    /// `PyThreadState.next`.
    pub ts_next: u16,
    /// `PyThreadState.thread_id`: `pthread_self()`, on glibc the thread pointer itself.
    pub ts_thread_id: u16,
    /// `PyThreadState.native_thread_id`.
    pub ts_native_thread_id: u16,
    /// `PyThreadState.cframe`.
    pub ts_cframe: u16,
    /// `_PyCFrame.current_frame`.
    pub cframe_current: u16,
    /// `_PyInterpreterFrame.f_code`.
    pub f_code: u16,
    /// `_PyInterpreterFrame.previous`.
    pub f_previous: u16,
    /// `_PyInterpreterFrame.prev_instr`.
    pub f_instr: u16,
    /// `_PyInterpreterFrame.owner`.
    pub f_owner: u16,
    /// `PyCodeObject.co_firstlineno`.
    pub co_firstlineno: u16,
    /// `PyCodeObject.co_filename`; `co_name`, `co_qualname` and `co_linetable` follow it.
    pub co_filename: u16,
    /// `PyCodeObject._co_firsttraceable`.
    pub co_firsttraceable: u16,
    /// `PyCodeObject.co_code_adaptive`.
    pub co_code: u16,
    /// `PyCodeObject.co_version`, where there is one: it is never used twice.
    pub co_version: Option<u16>,
    /// Bytes of a string's header where it is compact and ASCII.
    pub ascii_header: u16,
    /// Bytes of a string's header where it is compact and not ASCII.
    pub compact_header: u16,
}

/// The versions that memprobe knows.
pub static LAYOUTS: &[PythonLayout] = &[
    PythonLayout {
        minor: 11,
        runtime_interpreters: 40,
        runtime_tss_key: 596,
        interpreter_threads: 16,
        ts_next: 8,
        ts_thread_id: 152,
        ts_native_thread_id: 160,
        ts_cframe: 56,
        cframe_current: 8,
        f_code: 32,
        f_previous: 48,
        f_instr: 56,
        f_owner: 69,
        co_firstlineno: 72,
        co_filename: 112,
        co_firsttraceable: 168,
        co_code: 184,
        co_version: None,
        ascii_header: 48,
        compact_header: 72,
    },
    PythonLayout {
        minor: 12,
        runtime_interpreters: 40,
        runtime_tss_key: 1548,
        interpreter_threads: 72,
        ts_next: 8,
        ts_thread_id: 136,
        ts_native_thread_id: 144,
        ts_cframe: 56,
        cframe_current: 0,
        f_code: 0,
        f_previous: 8,
        f_instr: 56,
        f_owner: 70,
        co_firstlineno: 68,
        co_filename: 112,
        co_firsttraceable: 176,
        co_code: 192,
        co_version: Some(92),
        ascii_header: 40,
        compact_header: 56,
    },
];

impl PythonLayout {
    /// The layout of a version; `None` where memprobe does not know it.
    pub fn of(version: Version) -> Option<&'static Self> {
        LAYOUTS
            .iter()
            .find(|layout| version.major == 3 && layout.minor == version.minor)
    }
}

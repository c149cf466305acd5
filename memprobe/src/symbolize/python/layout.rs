//! Where CPython keeps things (x86-64, release builds with the GIL): what a row of [`versions`] says.
//! All are bytes from the start of the struct.
//!
//! [`versions`]: super::versions

/// The offsets of one minor version of CPython 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonLayout {
    /// Minor version: 12 for 3.12.
    pub minor: u8,
    /// `_PyRuntimeState`.
    pub runtime: RuntimeLayout,
    /// `PyInterpreterState`.
    pub interpreter: InterpreterLayout,
    /// `PyThreadState`.
    pub thread: ThreadLayout,
    /// `_PyInterpreterFrame`.
    pub frame: FrameLayout,
    /// `PyCodeObject`.
    pub code: CodeLayout,
    /// `PyASCIIObject` and what extends it.
    pub string: StringLayout,
    /// `PyBytesObject`.
    pub bytes: BytesLayout,
    /// `PyObject`.
    pub object: ObjectLayout,
}

/// `struct pyruntimestate` (`Include/internal/pycore_runtime.h`@v3.9.18 to @v3.13.0,
/// `pycore_runtime_structs.h`@v3.14.10, v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// `int initialized`: not 0 once `Py_Initialize` is through. `None` where it is not known.
    pub initialized: Option<u16>,
    /// `interpreters.main`: the interpreter that runs `__main__`.
    pub main_interpreter: u16,
    /// Where each thread finds its state, whether it holds the GIL or not
    /// (`PyGILState_GetThisThreadState` in `Python/pystate.c`).
    pub slot: StateSlot,
}

/// Where a thread finds its own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSlot {
    /// Under a pthread key: `autoTSSkey` (`gilstate.autoTSSkey` before 3.12), a `Py_tss_t` of
    /// `Include/cpython/pythread.h`.
    Key {
        /// `_is_initialized`, an int.
        initialized: u16,
        /// `_key`, an int.
        number: u16,
    },
    /// In a thread-local variable of the interpreter's own: `_Py_tss_gilstate`.
    Variable,
}

/// `struct _is` (`Include/internal/pycore_interp.h`@v3.9.18 to @v3.13.0,
/// `pycore_interp_structs.h`@v3.14.10, v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterLayout {
    /// `threads.head` (`tstate_head` before 3.11): the newest thread state.
    pub threads: u16,
}

/// `struct _ts` (`Include/cpython/pystate.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLayout {
    /// `next`: the thread state that is older by one.
    pub next: u16,
    /// `interp`: the interpreter that it belongs to.
    pub interpreter: u16,
    /// `thread_id`: `pthread_self()`, which is fsbase with glibc on x86-64; 0 before 3.12 binds it.
    pub thread_id: u16,
    /// `native_thread_id`: `gettid()` in the PID namespace of the target. `None` before 3.11: the C
    /// library knows it.
    pub native_thread_id: Option<u16>,
    /// `id`, 64 bits, never used twice in an interpreter.
    pub id: u16,
    /// `cframe`, which holds the current frame, or the frame itself.
    pub frame: u16,
    /// `_PyCFrame.current_frame`; `None` where the thread state holds the frame itself.
    pub cframe_current: Option<u16>,
    /// `base_frame`: a frame that runs nothing and lies below all others (3.15 on).
    pub base_frame: Option<u16>,
}

/// `struct _PyInterpreterFrame` (`Include/internal/pycore_frame.h`@v3.11.7 to @v3.13.0,
/// `pycore_interpframe_structs.h`@v3.14.10, v3.15.2), before 3.11 `PyFrameObject`
/// (`Include/cpython/frameobject.h`@v3.9.18, v3.10.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// `f_code` or `f_executable`, whose lowest bits may be marks of the interpreter's own.
    pub code: u16,
    /// `previous` or `f_back`: the frame of the caller; NULL for the outermost.
    pub previous: u16,
    /// `prev_instr`: the instruction executed last (within its inline caches, possibly);
    /// `instr_ptr`: the one that is executed; `f_lasti`: an int that counts
    /// ([`Instructions::Apart`]).
    pub instr: u16,
    /// `owner`: one byte, `enum _frameowner`; `None` where frames have none.
    pub owner: Option<u16>,
    /// Owners from this value on run no Python: `FRAME_OWNED_BY_CSTACK`, from 3.14 on
    /// `FRAME_OWNED_BY_INTERPRETER`, the trampoline that the interpreter puts below each entry
    /// from C.
    pub first_shim_owner: Option<u8>,
}

impl FrameLayout {
    /// The value of `FRAME_OWNED_BY_GENERATOR` in every version.
    pub const OWNED_BY_GENERATOR: u8 = 1;

    /// Bytes up to the end of the last field.
    pub fn size(&self) -> u16 {
        let words = self.code.max(self.previous).max(self.instr) + 8;
        self.owner.map_or(words, |owner| words.max(owner + 1))
    }
}

/// `struct PyCodeObject` (`Include/cpython/code.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// Bytes that hold every field.
    pub size: u16,
    /// `co_firstlineno`, an int.
    pub first_line: u16,
    /// `co_filename`, a str; `co_name`, another one, is the next word.
    pub file: u16,
    /// `co_qualname`, a str (3.11 on).
    pub qualname: Option<u16>,
    /// `co_linetable` or `co_lnotab`, a bytes object.
    pub line_table: u16,
    /// What that means.
    pub line_format: LineFormat,
    /// Where the instructions are.
    pub instructions: Instructions,
    /// `co_version`, 32 bits, never used twice (3.12 on).
    pub version: Option<u16>,
}

impl CodeLayout {
    /// `co_name`, a str.
    pub fn name(&self) -> u16 {
        self.file + 8
    }
}

/// Which format a line table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// `co_lnotab` up to 3.9 (`Objects/lnotab_notes.txt`@v3.9.18).
    Increments,
    /// `co_linetable` of 3.10 (`Objects/lnotab_notes.txt`@v3.10.13).
    Ranges,
    /// `co_linetable` from 3.11 on (`Objects/locations.md`@v3.11.7).
    Locations,
}

/// Where a code object has its instructions, and how a frame names one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// In a bytes object; a frame says how many come before the one it executes.
    Apart {
        /// `co_code`, the bytes object.
        object: u16,
        /// Bytes that a frame counts by: 1, or the 2 of a code unit in 3.10.
        step: u8,
    },
    /// At the end of the object; a frame says their address.
    Inline {
        /// `ob_base.ob_size`: code units of 2 bytes.
        units: u16,
        /// `co_code_adaptive`: the first of them.
        start: u16,
        /// `_co_firsttraceable`, an int: code units before this one only set the frame up.
        first_traceable: u16,
    },
}

/// `PyASCIIObject`, `PyCompactUnicodeObject`, `PyUnicodeObject`
/// (`Include/cpython/unicodeobject.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringLayout {
    /// `length` in code points.
    pub length: u16,
    /// `state`, a word of bit fields.
    pub state: u16,
    /// Within `state`: `kind` after the two bits of `interned`, bytes a code point.
    pub kind_shift: u8,
    /// Within `state`: the data follow the header.
    pub compact: u32,
    /// Within `state`: all code points are below 128.
    pub ascii: u32,
    /// Where the data of a compact ASCII string begin: `sizeof(PyASCIIObject)`.
    pub ascii_data: u16,
    /// Where the data of other compact strings begin: `sizeof(PyCompactUnicodeObject)`.
    pub compact_data: u16,
    /// `data.any`: the pointer to the data of a string that is not compact.
    pub data_pointer: u16,
}

/// `PyBytesObject` (`Include/cpython/bytesobject.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesLayout {
    /// `ob_base.ob_size` in bytes.
    pub size: u16,
    /// `ob_sval`.
    pub data: u16,
}

/// `PyObject` (`Include/object.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLayout {
    /// `ob_refcnt`.
    pub references: u16,
    /// `ob_type`.
    pub kind: u16,
    /// Of a type: `tp_dealloc`, by which its objects are freed (`PyTypeObject` in
    /// `Include/cpython/object.h`@v3.9.18 to @v3.15.2).
    pub type_dealloc: u16,
}

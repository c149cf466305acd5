//! Where CPython keeps things: one row of offsets a minor version (x86-64, release builds with the
//! GIL). Python's own layout does not change within a minor version after its first release.
//!
//! Every offset was taken from `offsetof` compiled against the headers of the named tag, and the
//! integration tests walk real interpreters with them. All are bytes from the start of the struct.

/// The offsets of one minor version of CPython 3.
#[derive(Debug, PartialEq, Eq)]
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

/// `struct pyruntimestate` (`Include/internal/pycore_runtime.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// `int initialized`: not 0 once `Py_Initialize` is through.
    pub initialized: u16,
    /// `interpreters.main`: the interpreter that runs `__main__`.
    pub main_interpreter: u16,
    /// `autoTSSkey._is_initialized` (an int; 3.11: `gilstate.autoTSSkey`), of `Py_tss_t` in
    /// `Include/cpython/pythread.h`.
    pub tss_initialized: u16,
    /// `autoTSSkey._key` (an int): the pthread key under which each thread finds its state,
    /// whether it holds the GIL or not (`PyGILState_GetThisThreadState` in `Python/pystate.c`).
    pub tss_key: u16,
}

/// `struct _is` (`Include/internal/pycore_interp.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct InterpreterLayout {
    /// `threads.head`: the newest thread state.
    pub threads: u16,
}

/// `struct _ts` (`Include/cpython/pystate.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct ThreadLayout {
    /// `next`: the thread state that is older by one.
    pub next: u16,
    /// `interp`: the interpreter that it belongs to.
    pub interpreter: u16,
    /// `thread_id`: `pthread_self()`, which is fsbase with glibc on x86-64; 0 before 3.12 binds it.
    pub thread_id: u16,
    /// `native_thread_id`: `gettid()` in the PID namespace of the target.
    pub native_thread_id: u16,
    /// `cframe`, which holds the current frame, or the frame itself.
    pub frame: u16,
    /// `_PyCFrame.current_frame`; `None` where the thread state holds the frame itself.
    pub cframe_current: Option<u16>,
}

/// `struct _PyInterpreterFrame` (`Include/internal/pycore_frame.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// `f_code`.
    pub code: u16,
    /// `previous`: the frame of the caller; NULL for the outermost.
    pub previous: u16,
    /// `prev_instr`: the instruction executed last (within its inline caches, possibly).
    pub instr: u16,
    /// `owner`: one byte, `enum _frameowner`.
    pub owner: u16,
    /// The value of `FRAME_OWNED_BY_GENERATOR`.
    pub owned_by_generator: u8,
    /// Owners from this value on run no Python: `FRAME_OWNED_BY_CSTACK`, the trampoline that the
    /// interpreter puts below each entry from C.
    pub first_shim_owner: Option<u8>,
}

/// `struct PyCodeObject` (`_PyCode_DEF` in `Include/cpython/code.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// `ob_base.ob_size`: code units of 2 bytes in `co_code_adaptive`.
    pub units: u16,
    /// `co_firstlineno`, an int.
    pub first_line: u16,
    /// `co_filename`, a str.
    pub file: u16,
    /// `co_name`, a str.
    pub name: u16,
    /// `co_qualname`, a str.
    pub qualname: u16,
    /// `co_linetable`, a bytes object in the location format of 3.11.
    pub line_table: u16,
    /// `_co_firsttraceable`, an int: code units before this one only set the frame up.
    pub first_traceable: u16,
    /// `co_code_adaptive`: the instructions themselves, at the end of the object.
    pub instructions: u16,
    /// `co_version`, 32 bits, never used twice (3.12 on).
    pub version: Option<u16>,
}

/// `PyASCIIObject`, `PyCompactUnicodeObject`, `PyUnicodeObject`
/// (`Include/cpython/unicodeobject.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
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

/// `PyBytesObject` (`Include/cpython/bytesobject.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct BytesLayout {
    /// `ob_base.ob_size` in bytes.
    pub size: u16,
    /// `ob_sval`.
    pub data: u16,
}

/// `PyObject` (`Include/object.h`@v3.11.7, v3.12.1).
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectLayout {
    /// `ob_refcnt`.
    pub references: u16,
    /// `ob_type`.
    pub kind: u16,
    /// Of a type: `tp_dealloc`, by which its objects are freed (`PyTypeObject` in
    /// `Include/cpython/object.h`@v3.11.7, v3.12.1).
    pub type_dealloc: u16,
}

const OBJECT: ObjectLayout = ObjectLayout {
    references: 0,
    kind: 8,
    type_dealloc: 48,
};
const BYTES: BytesLayout = BytesLayout { size: 16, data: 32 };

/// CPython 3.11.
const PYTHON_3_11: PythonLayout = PythonLayout {
    minor: 11,
    runtime: RuntimeLayout {
        initialized: 16,
        main_interpreter: 48,
        tss_initialized: 592,
        tss_key: 596,
    },
    interpreter: InterpreterLayout { threads: 16 },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        thread_id: 152,
        native_thread_id: 160,
        frame: 56,
        cframe_current: Some(8),
    },
    frame: FrameLayout {
        code: 32,
        previous: 48,
        instr: 56,
        owner: 69,
        owned_by_generator: 1,
        first_shim_owner: None,
    },
    code: CodeLayout {
        units: 16,
        first_line: 72,
        file: 112,
        name: 120,
        qualname: 128,
        line_table: 136,
        first_traceable: 168,
        instructions: 184,
        version: None,
    },
    string: StringLayout {
        length: 16,
        state: 32,
        kind_shift: 2,
        compact: 0x20,
        ascii: 0x40,
        ascii_data: 48,
        compact_data: 72,
        data_pointer: 72,
    },
    bytes: BYTES,
    object: OBJECT,
};

/// CPython 3.12.
const PYTHON_3_12: PythonLayout = PythonLayout {
    minor: 12,
    runtime: RuntimeLayout {
        initialized: 16,
        main_interpreter: 48,
        tss_initialized: 1544,
        tss_key: 1548,
    },
    interpreter: InterpreterLayout { threads: 72 },
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        thread_id: 136,
        native_thread_id: 144,
        frame: 56,
        cframe_current: Some(0),
    },
    frame: FrameLayout {
        code: 0,
        previous: 8,
        instr: 56,
        owner: 70,
        owned_by_generator: 1,
        first_shim_owner: Some(3),
    },
    code: CodeLayout {
        units: 16,
        first_line: 68,
        file: 112,
        name: 120,
        qualname: 128,
        line_table: 136,
        first_traceable: 176,
        instructions: 192,
        version: Some(92),
    },
    string: StringLayout {
        length: 16,
        state: 32,
        kind_shift: 2,
        compact: 0x20,
        ascii: 0x40,
        ascii_data: 40,
        compact_data: 56,
        data_pointer: 56,
    },
    bytes: BYTES,
    object: OBJECT,
};

/// Every version that memprobe knows.
pub static LAYOUTS: [PythonLayout; 2] = [PYTHON_3_11, PYTHON_3_12];

impl PythonLayout {
    /// The layout of CPython `3.minor`.
    pub fn of(minor: u8) -> Option<&'static Self> {
        LAYOUTS.iter().find(|layout| layout.minor == minor)
    }
}

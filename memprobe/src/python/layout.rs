//! Field offsets of CPython's structures (x86-64, release builds with the GIL), in bytes from the start of
//! the structure. [`super::versions`] has one row per version.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonLayout {
    /// Minor version: 12 for 3.12.
    pub minor: u8,
    pub runtime: RuntimeLayout,
    /// `threads.head` (`tstate_head` before 3.11) in `struct _is`: the newest thread state
    /// (`Include/internal/pycore_interp.h`@v3.9.18 to @v3.13.0, `pycore_interp_structs.h`@v3.14.10, v3.15.2).
    pub interpreter_threads: u16,
    /// `modules` (`imports.modules` from 3.12 on) in `struct _is`: `sys.modules` (the same sources).
    pub interpreter_modules: u16,
    pub thread: ThreadLayout,
    pub frame: FrameLayout,
    pub code: CodeLayout,
    pub string: StringLayout,
    pub heap: HeapLayout,
}

/// `struct pyruntimestate` (`Include/internal/pycore_runtime.h`@v3.9.18 to @v3.13.0,
/// `pycore_runtime_structs.h`@v3.14.10, v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// `int initialized`: not 0 after `Py_Initialize`. `None` if unknown.
    pub initialized: Option<u16>,
    /// `_finalizing`: the thread that runs `Py_FinalizeEx`. 0 before; it stays set unless Python starts again.
    pub finalizing: u16,
    /// `interpreters.main`: the interpreter that runs `__main__`.
    pub main_interpreter: u16,
    /// The storage in which each thread finds its state, whether it holds the GIL or not
    /// (`PyGILState_GetThisThreadState` in `Python/pystate.c`).
    pub slot: StateSlot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSlot {
    /// A pthread key: `autoTSSkey` (`gilstate.autoTSSkey` before 3.12), a `Py_tss_t` of
    /// `Include/cpython/pythread.h`: the ints `_is_initialized` and `_key`.
    Key(u16),
    /// A thread-local variable of the interpreter: `_Py_tss_gilstate`.
    Variable,
}

/// `struct _ts` (`Include/cpython/pystate.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLayout {
    /// `next`: the thread state that was created before this one.
    pub next: u16,
    /// `interp`: the interpreter that owns the state.
    pub interpreter: u16,
    /// `thread_id`: `pthread_self()` (fsbase with glibc). From 3.12 on it is 0 until a thread takes the state.
    pub thread_id: u16,
    /// `native_thread_id`: `gettid()` in the target's PID namespace. Before 3.11 glibc's own copy is read.
    pub native_thread_id: Option<u16>,
    /// `id`, 64 bits, never reused in an interpreter.
    pub id: u16,
    /// `cframe`, which holds the current frame, or the current frame itself.
    pub frame: u16,
    /// `_PyCFrame.current_frame`; `None` if the thread state holds the frame itself.
    pub cframe_current: Option<u16>,
    /// `base_frame`: the outermost frame, which runs nothing (3.15 on).
    pub base_frame: Option<u16>,
}

/// `struct _PyInterpreterFrame` (`Include/internal/pycore_frame.h`@v3.11.7 to @v3.13.0,
/// `pycore_interpframe_structs.h`@v3.14.10, v3.15.2), before 3.11 `PyFrameObject`
/// (`Include/cpython/frameobject.h`@v3.9.18, v3.10.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// `f_code` or `f_executable`, whose lowest bits may be tags.
    pub code: u16,
    /// `previous` or `f_back`: the frame of the caller; NULL for the outermost.
    pub previous: u16,
    /// `prev_instr`: the last executed instruction, possibly within its inline caches. `instr_ptr`: the
    /// executing instruction. `f_lasti`: the index of the instruction, an int ([`Instructions::Apart`]).
    pub instr: u16,
    /// `owner`: one byte, `enum _frameowner`; `None` if frames have none.
    pub owner: Option<u16>,
    /// Owners from this value on run no Python: `FRAME_OWNED_BY_CSTACK`, from 3.14 on `FRAME_OWNED_BY_INTERPRETER`. It
    /// marks the trampoline frame that the interpreter puts below each entry from C.
    pub first_shim_owner: Option<u8>,
}

impl FrameLayout {
    /// The value of `FRAME_OWNED_BY_GENERATOR` in every version.
    pub const OWNED_BY_GENERATOR: u8 = 1;

    pub fn size(&self) -> u16 {
        let words = self.code.max(self.previous).max(self.instr) + 8;
        self.owner.map_or(words, |owner| words.max(owner + 1))
    }
}

/// `struct PyCodeObject` (`Include/cpython/code.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    pub size: u16,
    pub first_line: u16,
    /// `co_filename`, a str; the next word is `co_name`, another str.
    pub file: u16,
    /// `co_qualname`, a str (3.11 on).
    pub qualname: Option<u16>,
    /// `co_linetable` or `co_lnotab`, a bytes object.
    pub line_table: u16,
    pub line_format: LineFormat,
    pub instructions: Instructions,
    /// `co_version`, 32 bits, never reused (3.12 on).
    pub version: Option<u16>,
}

impl CodeLayout {
    pub fn name(&self) -> u16 {
        self.file + 8
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// `co_lnotab` up to 3.9 (`Objects/lnotab_notes.txt`@v3.9.18).
    Increments,
    /// `co_linetable` of 3.10 (`Objects/lnotab_notes.txt`@v3.10.13).
    Ranges,
    /// `co_linetable` from 3.11 on (`Objects/locations.md`@v3.11.7).
    Locations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// In a bytes object; a frame has the index of the instruction.
    Apart {
        /// `co_code`, the bytes object.
        object: u16,
        /// Bytes per index: 1, or the 2 of a code unit in 3.10.
        step: u8,
    },
    /// At the end of the object; a frame has the address of the instruction.
    Inline {
        /// `ob_base.ob_size`: code units of 2 bytes.
        units: u16,
        /// `co_code_adaptive`: the first instruction.
        start: u16,
        /// `_co_firsttraceable`, an int: code units before this index only set up the frame.
        first_traceable: u16,
    },
}

/// `PyASCIIObject`, `PyCompactUnicodeObject`, `PyUnicodeObject`
/// (`Include/cpython/unicodeobject.h`@v3.9.18 to @v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringLayout {
    /// Offset of the data of a compact ASCII string: `sizeof(PyASCIIObject)`.
    pub ascii_data: u16,
    /// Offset of the data of other compact strings, and of the pointer to the data (`data.any`) of a string that
    /// is not compact: `sizeof(PyCompactUnicodeObject)`.
    pub compact_data: u16,
}

impl StringLayout {
    /// `length` in code points.
    pub const LENGTH: u16 = 16;
    /// `state`, a word of bit fields.
    pub const STATE: u16 = 32;
    /// Position of `kind` in `state`, after the two bits of `interned`: bytes per code point.
    pub const KIND_SHIFT: u8 = 2;
    /// Flag in `state`: the data follow the header.
    pub const COMPACT: u32 = 0x20;
    /// Flag in `state`: all code points are below 128.
    pub const ASCII: u32 = 0x40;
}

/// `PyBytesObject` (`Include/cpython/bytesobject.h`@v3.9.18 to @v3.15.2), the same in every version.
pub struct BytesLayout;

impl BytesLayout {
    pub const SIZE: u16 = 16;
    /// `ob_sval`.
    pub const DATA: u16 = 32;
}

/// `PyObject` (`Include/object.h`@v3.9.18 to @v3.15.2), the same in every version.
pub struct ObjectLayout;

impl ObjectLayout {
    /// `ob_refcnt`.
    pub const REFERENCES: u16 = 0;
    /// `ob_type`.
    pub const KIND: u16 = 8;
    /// `tp_dealloc` in a type, the function that frees its objects (`PyTypeObject` in
    /// `Include/cpython/object.h`@v3.9.18 to @v3.15.2).
    pub const TYPE_DEALLOC: u16 = 48;
}

/// The garbage collector's lists, and the objects that hold other objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapLayout {
    pub collector: CollectorLayout,
    /// `ht_cached_keys` of a class made by a `class` statement (`PyHeapTypeObject`): the names of its objects'
    /// attributes.
    pub cached_keys: u16,
    pub dict_keys: DictKeys,
    /// Offset in `ma_values` of a dict of the first value.
    pub dict_values: u16,
    pub attributes: Attributes,
    pub numbers: Numbers,
    /// `PyTupleObject.ob_item`; `ob_size` is the word after the type in every version.
    pub tuple_items: u16,
    pub locals: LocalsLayout,
    /// Suspended frames; generators, coroutines and asynchronous generators have the same layout.
    pub generator: GeneratorLayout,
    /// `f_frame` in a frame object, the pointer to the frame (`Include/internal/pycore_frame.h`@v3.11.7 to
    /// @v3.15.2). `None` up to 3.10, where the object is the frame.
    pub frame_of_object: Option<u16>,
    /// `func_defaults` in a function, a tuple or NULL; the next word is `func_kwdefaults`, a dict or NULL
    /// (`Include/funcobject.h`@v3.9.18, `Include/cpython/funcobject.h`@v3.10.13 to @v3.15.2).
    pub function_defaults: u16,
    /// The dict of a `threading.local` whose values are the dicts of the threads: `dummies` up to 3.12, then
    /// `localdicts` (`Modules/_threadmodule.c`@v3.9.18 to @v3.15.2).
    pub thread_dicts: u16,
    /// True if a `SimpleQueue` keeps its items in a list.
    pub queue_has_list: bool,
}

impl HeapLayout {
    /// `ob_size` of an object of variable size, a signed word (`PyVarObject` in `Include/object.h`@v3.9.18 to
    /// @v3.15.2).
    pub const SIZE: u16 = 16;
    /// `ob_digit` of an int: 32 bits each, lowest first (`Include/cpython/longintrepr.h`@v3.9.18 to @v3.15.2).
    pub const DIGITS: u16 = 24;
    /// `PyListObject.ob_item` (`Include/cpython/listobject.h`@v3.9.18 to @v3.15.2).
    pub const LIST_ITEMS: u16 = 24;
    /// `PyCellObject.ob_ref` (`Include/cpython/cellobject.h`@v3.9.18 to @v3.15.2).
    pub const CELL: u16 = 16;
    /// `PyModuleObject.md_dict` (`Include/internal/pycore_moduleobject.h`@v3.9.18 to @v3.15.2).
    pub const MODULE_DICT: u16 = 16;
    /// `PySetObject.mask`; the next word is `table`, whose entries have 16 bytes, the key first
    /// (`Include/setobject.h`@v3.9.18, `Include/cpython/setobject.h`@v3.11.7 to @v3.15.2).
    pub const SET_MASK: u16 = 32;
}

/// `struct _gc_runtime_state` in an interpreter (`Include/internal/pycore_gc.h`@v3.9.18 to @v3.13.0,
/// `pycore_interp_structs.h`@v3.14.10, v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectorLayout {
    /// `interp->next`: another interpreter of the process.
    pub next_interpreter: u16,
    /// `interp->gc`, from the start of the interpreter.
    pub start: u16,
    /// `generations[0].head` in `gc`, a `PyGC_Head`; the next two generations follow.
    pub generations: u16,
    /// `permanent_generation.head` in `gc`: the objects that `gc.freeze()` set aside.
    pub permanent: u16,
    /// `collecting` in `gc`, an int: not 0 while a collection relinks the lists.
    pub collecting: u16,
}

impl CollectorLayout {
    pub const GENERATIONS: u64 = 3;
    /// `sizeof(struct gc_generation)`.
    pub const GENERATION_SIZE: u64 = 24;
    /// `sizeof(PyGC_Head)`: the distance from a head to its object.
    pub const HEAD_SIZE: u64 = 16;
    /// The bits of its two pointers that are the collector's flags.
    pub const MARKS: u64 = 3;
}

/// `PyTypeObject` (`Include/cpython/object.h`@v3.9.18 to @v3.15.2), the same in every version.
pub struct ClassLayout;

impl ClassLayout {
    /// `tp_name`, a C string; a class made by a `class` statement has it without its module.
    pub const NAME: u16 = 24;
    /// `tp_basicsize`, bytes of an object.
    pub const BASIC_SIZE: u16 = 32;
    /// `tp_itemsize`, bytes per unit of `ob_size`.
    pub const ITEM_SIZE: u16 = 40;
    pub const FLAGS: u16 = 168;
    /// `tp_members`, an array of `PyMemberDef`.
    pub const MEMBERS: u16 = 240;
    pub const BASE: u16 = 256;
    /// `tp_dict`; NULL in a static type of 3.12 and later, whose dict the interpreter keeps.
    pub const DICT: u16 = 264;
    /// `tp_dictoffset`, signed.
    pub const DICT_OFFSET: u16 = 288;
    /// `tp_mro`, a tuple of the class and all that it derives from; NULL until the class is ready.
    pub const MRO: u16 = 344;

    /// `Py_TPFLAGS_INLINE_VALUES` (3.13 on).
    pub const INLINE_VALUES: u64 = 1 << 2;
    /// `Py_TPFLAGS_MANAGED_DICT` (3.11 on).
    pub const MANAGED_DICT: u64 = 1 << 4;
    pub const HEAP_TYPE: u64 = 1 << 9;
    /// `Py_TPFLAGS_READY`, set in every type that has objects.
    pub const READY: u64 = 1 << 12;
    pub const LONG: u64 = 1 << 24;
    pub const LIST: u64 = 1 << 25;
    pub const TUPLE: u64 = 1 << 26;
    pub const STR: u64 = 1 << 28;
    pub const DICT_CLASS: u64 = 1 << 29;
    pub const TYPE: u64 = 1 << 31;
}

/// `PyDictObject`, the same in every version (`Objects/dict-common.h`@v3.9.18, v3.10.13,
/// `Include/internal/pycore_dict.h`@v3.11.7 to @v3.15.2).
pub struct DictLayout;

impl DictLayout {
    /// `ma_used`: the number of entries.
    pub const USED: u16 = 16;
    pub const KEYS: u16 = 32;
    /// `ma_values`: the values, if the class shares the keys among its objects; else NULL.
    pub const VALUES: u16 = 40;
}

/// The encoding of an int's digit count and sign, in the word at [`HeapLayout::SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// `ob_size`, negative for a negative int (up to 3.11).
    Signed,
    /// `lv_tag`: the digit count above three bits, of which the lower two are 2 for a negative int (3.12 on,
    /// `Include/internal/pycore_long.h`@v3.12.1).
    Tagged,
}

impl Numbers {
    /// Returns the digit count, and true for a negative int.
    pub fn sign(self, word: u64) -> (u64, bool) {
        match self {
            Self::Signed => (word.cast_signed().unsigned_abs(), word.cast_signed() < 0),
            Self::Tagged => (word >> 3, word & 3 == 2),
        }
    }
}

/// `PyDictKeysObject` (the same sources).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DictKeys {
    /// Up to 3.10: `dk_size` at 8, `dk_nentries` at 32, indices from 40 on, entries of hash, key, value.
    Sized,
    /// From 3.11 on: `dk_log2_size`, `dk_log2_index_bytes` and `dk_kind` from 8 on, `dk_nentries` at 24,
    /// indices from 32 on, then entries. An entry has a hash if the kind is 0.
    Logarithmic,
}

/// The attribute storage of objects whose class is written in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// A dict at `tp_dictoffset` (up to 3.10).
    Dict,
    /// Before the object: values at -32, or else a dict at -24 (3.11, `Include/internal/pycore_object.h`@v3.11.7).
    ValuesOrDict,
    /// The word at -24: one less than the address of the values if the lowest bit is set, else a dict (3.12,
    /// `Include/internal/pycore_object.h`@v3.12.1).
    Tagged,
    /// A dict at -24, or, without one, values after the object itself (3.13 on,
    /// `Include/internal/pycore_object.h`@v3.13.0).
    Inline,
}

/// The variables of a frame (sources as for [`FrameLayout`] and [`CodeLayout`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalsLayout {
    /// `f_globals` in a frame, a dict.
    pub globals: u16,
    /// `f_locals` in a frame: the dict of a module's or a class's code, or NULL.
    pub mapping: u16,
    /// `localsplus[0]` in a frame.
    pub first: u16,
    /// `co_flags` in a code object, 32 bits.
    pub code_flags: u16,
    pub names: LocalNames,
}

impl LocalsLayout {
    /// `CO_OPTIMIZED` in `co_flags`: the variables are in the frame, not in a dict.
    pub const OPTIMIZED: u32 = 1;
}

/// The frame of a generator (`_PyGenObject_HEAD` in `Include/genobject.h`@v3.9.18,
/// `Include/cpython/genobject.h`@v3.11.7 to @v3.13.0,
/// `Include/internal/pycore_interpframe_structs.h`@v3.14.10, v3.15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratorLayout {
    /// In a frame object, to which this word points; NULL once the generator has finished. While it is
    /// suspended, the frame has no caller (`gen_send_ex` in `Objects/genobject.c`@v3.9.18, v3.10.13).
    Apart(u16),
    /// In the generator itself.
    Inside {
        /// `gi_iframe`.
        frame: u16,
        /// `gi_frame_state`, a signed byte: `enum _framestate` in `Include/internal/pycore_frame.h`.
        state: u16,
        /// `FRAME_CREATED`, the lowest state: no code of it has run.
        created: i8,
        /// `FRAME_EXECUTING`: in all lower states, the generator can be resumed.
        executing: i8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalNames {
    /// Up to 3.10: `co_nlocals` variables in the tuple `co_varnames`, then cells in `co_cellvars`, then `co_freevars`.
    Three([u16; 3]),
    /// From 3.11 on: all in the tuple `co_localsplusnames`.
    One(u16),
}

impl LocalNames {
    /// Returns the offsets of the tuples, in the order of the variables.
    pub fn tuples(&self) -> &[u16] {
        match self {
            Self::Three(names) => names,
            Self::One(names) => std::slice::from_ref(names),
        }
    }
}

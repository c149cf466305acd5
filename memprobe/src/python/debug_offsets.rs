//! `_Py_DebugOffsets`: the offsets that CPython from 3.13 on publishes at the start of `_PyRuntime`. The
//! fields of that structure differ from version to version.

use memprobe_common::{FRAME_HEADER, THREAD_STATE};

use super::layout::{ClassLayout, DictLayout, HeapLayout, Instructions, LocalNames, PythonLayout};
use super::text::field;
use crate::process::memory::{ReadMemory, Unreadable};

/// The first bytes of the structure.
const COOKIE: [u8; 8] = *b"xdebugpy";

/// The first minor version that has it.
pub const FIRST_MINOR: u8 = 13;

/// Bytes of the cookie, the version and the flag for builds without GIL; the same in every version.
const HEAD: usize = 24;

/// The fields before the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub version: u32,
    pub free_threaded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("its _Py_DebugOffsets lack their mark")]
    NoCookie,
    /// The structure has this version, which is not that of `Py_Version`.
    #[error("its _Py_DebugOffsets are of version {0:#010x}")]
    OtherVersion(u32),
    #[error("its _Py_DebugOffsets say {1} of {0}")]
    Field(&'static str, u64),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// Positions in the structure of the offsets that memprobe reads (`struct _Py_DebugOffsets` in
/// `Include/internal/pycore_runtime.h`@v3.13.0, `pycore_debug_offsets.h`@v3.14.10, v3.15.2).
struct Fields {
    minor: u8,
    interpreters_head: u16,
    threads_head: u16,
    /// `thread_state.next`, `.interp` and `.current_frame`.
    thread_next: u16,
    base_frame: Option<u16>,
    /// `thread_state.thread_id` and `.native_thread_id`.
    thread_id: u16,
    /// `interpreter_frame.previous`, `.executable` and `.instr_ptr`.
    frame_previous: u16,
    frame_owner: u16,
    /// `code_object.filename`, `.name`, `.qualname`, `.linetable` and `.firstlineno`.
    code_filename: u16,
    code_adaptive: u16,
    object_type: u16,
    /// `bytes_object.ob_size` and `.ob_sval`.
    bytes_size: u16,
    /// `unicode_object.state`, `.length` and `.asciiobject_size`.
    string_state: u16,
    /// `interpreter_state.next`.
    next_interpreter: u16,
    /// `interpreter_state.gc`.
    collector: u16,
    /// `gc.collecting`.
    collecting: u16,
    /// `interpreter_frame.localsplus`.
    frame_locals: u16,
    /// `code_object.localsplusnames`.
    code_locals: u16,
    /// `tuple_object.ob_item`.
    tuple_items: u16,
    /// `list_object.ob_item`.
    list_items: u16,
    /// `dict_object.ma_keys` and `.ma_values`.
    dict_keys: u16,
    /// `type_object.tp_flags`.
    class_flags: u16,
}

const FIELDS: [Fields; 3] = [
    Fields {
        minor: 13,
        interpreters_head: 40,
        threads_head: 72,
        thread_next: 168,
        base_frame: None,
        thread_id: 192,
        frame_previous: 232,
        frame_owner: 264,
        code_filename: 280,
        code_adaptive: 344,
        object_type: 360,
        bytes_size: 520,
        string_state: 544,
        next_interpreter: 64,
        collector: 80,
        collecting: 576,
        frame_locals: 256,
        code_locals: 328,
        tuple_items: 408,
        list_items: 432,
        dict_keys: 456,
        class_flags: 392,
    },
    Fields {
        minor: 14,
        interpreters_head: 40,
        threads_head: 72,
        thread_next: 192,
        base_frame: None,
        thread_id: 216,
        frame_previous: 256,
        frame_owner: 288,
        code_filename: 320,
        code_adaptive: 384,
        object_type: 408,
        bytes_size: 600,
        string_state: 624,
        next_interpreter: 64,
        collector: 88,
        collecting: 656,
        frame_locals: 280,
        code_locals: 368,
        tuple_items: 456,
        list_items: 480,
        dict_keys: 536,
        class_flags: 440,
    },
    Fields {
        minor: 15,
        interpreters_head: 40,
        threads_head: 72,
        thread_next: 192,
        base_frame: Some(216),
        thread_id: 240,
        frame_previous: 320,
        frame_owner: 352,
        code_filename: 384,
        code_adaptive: 448,
        object_type: 472,
        bytes_size: 696,
        string_state: 720,
        next_interpreter: 64,
        collector: 88,
        collecting: 760,
        frame_locals: 344,
        code_locals: 432,
        tuple_items: 552,
        list_items: 576,
        dict_keys: 632,
        class_flags: 504,
    },
];

/// Bytes that hold every field of [`FIELDS`].
const SIZE: usize = 768;

/// Reads the head of the structure at `runtime`.
pub fn read_head(memory: &impl ReadMemory, runtime: u64) -> Result<Head, Damage> {
    let head: [u8; HEAD] = memory.read_array(runtime)?;
    let version = u64::from_le_bytes(field(&head, 8));
    if head[..8] != COOKIE {
        return Err(Damage::NoCookie);
    }
    Ok(Head {
        version: u32::try_from(version).map_err(|_| Damage::Field("version", version))?,
        free_threaded: u64::from_le_bytes(field(&head, 16)) != 0,
    })
}

/// Returns the layout of an interpreter according to its structure at `runtime`. `row` is the table's layout
/// of that version: it supplies the offsets that the structure lacks, and must agree with it otherwise.
/// Fails with [`Damage`] if a value is impossible, or beyond the range that memprobe supports.
pub fn read_layout(
    memory: &impl ReadMemory,
    row: &PythonLayout,
    runtime: u64,
) -> Result<PythonLayout, Damage> {
    let Some(at) = FIELDS.iter().find(|fields| fields.minor == row.minor) else {
        return Ok(*row);
    };
    let table = Table {
        bytes: memory.read_array(runtime)?,
    };
    table.must_be("pyobject.ob_type", at.object_type, row.object.kind)?;
    table.must_be("bytes_object.ob_size", at.bytes_size, row.bytes.size)?;
    table.must_be("bytes_object.ob_sval", at.bytes_size + 8, row.bytes.data)?;
    let string = &row.string;
    table.must_be("unicode_object.state", at.string_state, string.state)?;
    table.must_be("unicode_object.length", at.string_state + 8, string.length)?;
    let ascii = at.string_state + 16;
    table.must_be("unicode_object.asciiobject_size", ascii, string.ascii_data)?;
    table.check_code(at, row)?;
    table.check_heap(at, row)?;

    let mut layout = *row;
    let main = table.word(
        "runtime_state.interpreters_head",
        at.interpreters_head,
        u16::MAX - 8,
    )? + 8;
    if main != row.runtime.main_interpreter {
        // The rest of the structure may have moved as well.
        layout.runtime.initialized = None;
    }
    layout.runtime.main_interpreter = main;
    layout.interpreter.threads =
        table.word("interpreter_state.threads_head", at.threads_head, u16::MAX)?;
    let in_thread = |name, at| table.word(name, at, THREAD_STATE as u16 - 8);
    let thread = &mut layout.thread;
    thread.next = in_thread("thread_state.next", at.thread_next)?;
    thread.interpreter = in_thread("thread_state.interp", at.thread_next + 8)?;
    thread.frame = in_thread("thread_state.current_frame", at.thread_next + 16)?;
    thread.thread_id = in_thread("thread_state.thread_id", at.thread_id)?;
    let native = in_thread("thread_state.native_thread_id", at.thread_id + 8)?;
    thread.native_thread_id = Some(native);
    if let Some(base) = at.base_frame {
        thread.base_frame = Some(in_thread("thread_state.base_frame", base)?);
    }
    let in_frame = |name, at| table.word(name, at, FRAME_HEADER as u16 - 8);
    let frame = &mut layout.frame;
    frame.previous = in_frame("interpreter_frame.previous", at.frame_previous)?;
    frame.code = in_frame("interpreter_frame.executable", at.frame_previous + 8)?;
    frame.instr = in_frame("interpreter_frame.instr_ptr", at.frame_previous + 16)?;
    let owner = "interpreter_frame.owner";
    frame.owner = Some(table.at_most(owner, at.frame_owner, FRAME_HEADER as u16 - 1)?);
    let collector = &mut layout.heap.collector;
    collector.next_interpreter =
        table.word("interpreter_state.next", at.next_interpreter, u16::MAX - 8)?;
    collector.start = table.word("interpreter_state.gc", at.collector, u16::MAX - 1024)?;
    Ok(layout)
}

/// The structure as read from the target; every field is untrusted.
struct Table {
    bytes: [u8; SIZE],
}

impl Table {
    /// Returns an offset that must be at most `most`.
    fn at_most(&self, name: &'static str, at: u16, most: u16) -> Result<u16, Damage> {
        let value = u64::from_le_bytes(field(&self.bytes, at));
        u16::try_from(value)
            .ok()
            .filter(|&offset| offset <= most)
            .ok_or(Damage::Field(name, value))
    }

    /// Returns the offset of an aligned word.
    fn word(&self, name: &'static str, at: u16, most: u16) -> Result<u16, Damage> {
        let offset = self.at_most(name, at, most)?;
        if offset % 8 == 0 {
            Ok(offset)
        } else {
            Err(Damage::Field(name, offset.into()))
        }
    }

    /// Checks a value that no build of the version changes.
    fn must_be(&self, name: &'static str, at: u16, value: u16) -> Result<(), Damage> {
        let said = self.at_most(name, at, u16::MAX)?;
        if said == value {
            Ok(())
        } else {
            Err(Damage::Field(name, said.into()))
        }
    }

    /// Checks the fields of container objects, and the only published field of the collector.
    fn check_heap(&self, at: &Fields, row: &PythonLayout) -> Result<(), Damage> {
        let LocalNames::One(names) = row.heap.locals.names else {
            return Ok(());
        };
        let collecting = row.heap.collector.collecting;
        let values = at.dict_keys + 8;
        let named = [
            ("gc.collecting", at.collecting, collecting),
            (
                "interpreter_frame.localsplus",
                at.frame_locals,
                row.heap.locals.first,
            ),
            ("code_object.localsplusnames", at.code_locals, names),
            ("tuple_object.ob_item", at.tuple_items, row.heap.tuple_items),
            ("list_object.ob_item", at.list_items, HeapLayout::LIST_ITEMS),
            ("dict_object.ma_keys", at.dict_keys, DictLayout::KEYS),
            ("dict_object.ma_values", values, DictLayout::VALUES),
            ("type_object.tp_flags", at.class_flags, ClassLayout::FLAGS),
        ];
        let mut named = named.into_iter();
        named.try_for_each(|(name, position, offset)| self.must_be(name, position, offset))
    }

    /// Checks the fields of code objects; their neighbours are not in the structure.
    fn check_code(&self, at: &Fields, row: &PythonLayout) -> Result<(), Damage> {
        let code = &row.code;
        let named = [
            ("code_object.filename", code.file),
            ("code_object.name", code.name()),
            ("code_object.qualname", code.qualname.unwrap_or_default()),
            ("code_object.linetable", code.line_table),
            ("code_object.firstlineno", code.first_line),
        ];
        for (position, (name, offset)) in (at.code_filename..).step_by(8).zip(named) {
            self.must_be(name, position, offset)?;
        }
        match code.instructions {
            Instructions::Inline { start, .. } => {
                self.must_be("code_object.co_code_adaptive", at.code_adaptive, start)
            }
            Instructions::Apart { .. } => Ok(()),
        }
    }
}

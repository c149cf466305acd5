//! `_Py_DebugOffsets`: the offsets that CPython from 3.13 on publishes at the start of `_PyRuntime`. The
//! fields of that structure differ from version to version.

use memprobe_common::{FRAME_HEADER, THREAD_STATE};

use super::layout::{
    BytesLayout, ClassLayout, DictLayout, HeapLayout, ObjectLayout, PythonLayout, StringLayout,
};
use super::text::field;
use crate::process::memory::{ReadMemory, Unreadable};

const COOKIE: [u8; 8] = *b"xdebugpy";
pub const FIRST_MINOR: u8 = 13;

/// Bytes of the cookie, the version and the flag for builds without GIL; the same in every version.
const HEAD: usize = 24;

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

/// Position in the structure of each offset that memprobe reads, in 3.13, 3.14 and 3.15 (`struct _Py_DebugOffsets`
/// in `Include/internal/pycore_runtime.h`@v3.13.0, `pycore_debug_offsets.h`@v3.14.10, v3.15.2); 0 for none.
const FIELDS: [(&str, [u16; 3]); 36] = [
    ("runtime_state.finalizing", [32, 32, 32]),
    ("runtime_state.interpreters_head", [40, 40, 40]),
    ("interpreter_state.next", [64, 64, 64]),
    ("interpreter_state.threads_head", [72, 72, 72]),
    ("interpreter_state.gc", [80, 88, 88]),
    ("interpreter_state.imports_modules", [88, 96, 96]),
    ("thread_state.next", [168, 192, 192]),
    ("thread_state.interp", [176, 200, 200]),
    ("thread_state.current_frame", [184, 208, 208]),
    ("thread_state.base_frame", [0, 0, 216]),
    ("thread_state.thread_id", [192, 216, 240]),
    ("thread_state.native_thread_id", [200, 224, 248]),
    ("interpreter_frame.previous", [232, 256, 320]),
    ("interpreter_frame.executable", [240, 264, 328]),
    ("interpreter_frame.instr_ptr", [248, 272, 336]),
    ("interpreter_frame.localsplus", [256, 280, 344]),
    ("interpreter_frame.owner", [264, 288, 352]),
    ("code_object.filename", [280, 320, 384]),
    ("code_object.name", [288, 328, 392]),
    ("code_object.qualname", [296, 336, 400]),
    ("code_object.linetable", [304, 344, 408]),
    ("code_object.firstlineno", [312, 352, 416]),
    ("code_object.localsplusnames", [328, 368, 432]),
    ("code_object.co_code_adaptive", [344, 384, 448]),
    ("pyobject.ob_type", [360, 408, 472]),
    ("type_object.tp_flags", [392, 440, 504]),
    ("tuple_object.ob_item", [408, 456, 552]),
    ("list_object.ob_item", [432, 480, 576]),
    ("dict_object.ma_keys", [456, 536, 632]),
    ("dict_object.ma_values", [464, 544, 640]),
    ("bytes_object.ob_size", [520, 600, 696]),
    ("bytes_object.ob_sval", [528, 608, 704]),
    ("unicode_object.state", [544, 624, 720]),
    ("unicode_object.length", [552, 632, 728]),
    ("unicode_object.asciiobject_size", [560, 640, 736]),
    ("gc.collecting", [576, 656, 760]),
];

/// Bytes that hold every field of [`FIELDS`].
const SIZE: usize = 768;

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
    let version = row.minor.checked_sub(FIRST_MINOR).map(usize::from);
    let Some(version) = version.filter(|version| *version < FIELDS[0].1.len()) else {
        return Ok(*row);
    };
    let bytes = memory.read_array(runtime)?;
    let table = Table { bytes, version };
    table.check(row)?;

    let mut layout = *row;
    let main = table.word("runtime_state.interpreters_head", u16::MAX - 8)? + 8;
    if main != row.runtime.main_interpreter {
        // The rest of the structure may have moved as well.
        layout.runtime.initialized = None;
    }
    layout.runtime.main_interpreter = main;
    layout.runtime.finalizing = table.word("runtime_state.finalizing", u16::MAX - 8)?;
    layout.interpreter_threads = table.word("interpreter_state.threads_head", u16::MAX)?;
    layout.interpreter_modules = table.word("interpreter_state.imports_modules", u16::MAX)?;
    let in_thread = |name| table.word(name, THREAD_STATE as u16 - 8);
    let thread = &mut layout.thread;
    thread.next = in_thread("thread_state.next")?;
    thread.interpreter = in_thread("thread_state.interp")?;
    thread.frame = in_thread("thread_state.current_frame")?;
    thread.thread_id = in_thread("thread_state.thread_id")?;
    thread.native_thread_id = Some(in_thread("thread_state.native_thread_id")?);
    if thread.base_frame.is_some() {
        thread.base_frame = Some(in_thread("thread_state.base_frame")?);
    }
    let in_frame = |name| table.word(name, FRAME_HEADER as u16 - 8);
    let frame = &mut layout.frame;
    frame.previous = in_frame("interpreter_frame.previous")?;
    frame.code = in_frame("interpreter_frame.executable")?;
    frame.instr = in_frame("interpreter_frame.instr_ptr")?;
    frame.owner = Some(table.at_most("interpreter_frame.owner", FRAME_HEADER as u16 - 1)?);
    let collector = &mut layout.heap.collector;
    collector.next_interpreter = table.word("interpreter_state.next", u16::MAX - 8)?;
    collector.start = table.word("interpreter_state.gc", u16::MAX - 1024)?;
    Ok(layout)
}

/// The structure as read from the target; every field is untrusted.
struct Table {
    bytes: [u8; SIZE],
    version: usize,
}

impl Table {
    /// Returns an offset that must be at most `most`.
    fn at_most(&self, name: &'static str, most: u16) -> Result<u16, Damage> {
        let row = FIELDS.iter().find(|(known, _)| *known == name);
        let at = row.map_or(0, |(_, positions)| positions[self.version]);
        let value = u64::from_le_bytes(field(&self.bytes, at));
        let offset = u16::try_from(value).ok().filter(|&offset| offset <= most);
        offset.ok_or(Damage::Field(name, value))
    }

    fn word(&self, name: &'static str, most: u16) -> Result<u16, Damage> {
        let offset = self.at_most(name, most)?;
        let aligned = Some(offset).filter(|offset| offset % 8 == 0);
        aligned.ok_or(Damage::Field(name, offset.into()))
    }

    fn check(&self, row: &PythonLayout) -> Result<(), Damage> {
        let (code, heap, string) = (&row.code, &row.heap, &row.string);
        let fixed = [
            ("pyobject.ob_type", ObjectLayout::KIND),
            ("bytes_object.ob_size", BytesLayout::SIZE),
            ("bytes_object.ob_sval", BytesLayout::DATA),
            ("unicode_object.state", StringLayout::STATE),
            ("unicode_object.length", StringLayout::LENGTH),
            ("unicode_object.asciiobject_size", string.ascii_data),
            ("code_object.filename", code.file),
            ("code_object.name", code.name()),
            ("code_object.qualname", code.qualname.unwrap_or_default()),
            ("code_object.linetable", code.line_table),
            ("code_object.firstlineno", code.first_line),
            // The instructions follow the fields.
            ("code_object.co_code_adaptive", code.size),
            // The only published field of the collector.
            ("gc.collecting", heap.collector.collecting),
            ("interpreter_frame.localsplus", heap.locals.first),
            ("code_object.localsplusnames", heap.locals.names.tuples()[0]),
            ("tuple_object.ob_item", heap.tuple_items),
            ("list_object.ob_item", HeapLayout::LIST_ITEMS),
            ("dict_object.ma_keys", DictLayout::KEYS),
            ("dict_object.ma_values", DictLayout::VALUES),
            ("type_object.tp_flags", ClassLayout::FLAGS),
        ];
        for (name, offset) in fixed {
            let published = self.at_most(name, u16::MAX)?;
            if published != offset {
                return Err(Damage::Field(name, published.into()));
            }
        }
        Ok(())
    }
}

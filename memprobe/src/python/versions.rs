//! The supported versions of CPython: one row of offsets each. The layout does not change within a minor
//! version after its first release candidate.
//!
//! Every offset comes from `offsetof`, compiled against the headers of the named tag, and the integration
//! tests walk real interpreters with them. From 3.13 on, the interpreter publishes most offsets itself
//! ([`super::debug_offsets`]); the row then serves as a check and supplies the rest.

use super::layout::{
    Attributes, CodeLayout, CollectorLayout, DictKeys, FrameLayout, GeneratorLayout, HeapLayout,
    Instructions, LineFormat, LocalNames, LocalsLayout, Numbers, PythonLayout, RuntimeLayout,
    StateSlot, StringLayout, ThreadLayout,
};

pub static LAYOUTS: [PythonLayout; 7] = [
    PYTHON_3_9,
    PYTHON_3_10,
    PYTHON_3_11,
    PYTHON_3_12,
    PYTHON_3_13,
    PYTHON_3_14,
    PYTHON_3_15,
];

impl PythonLayout {
    pub fn of(minor: u8) -> Option<&'static Self> {
        LAYOUTS.iter().find(|layout| layout.minor == minor)
    }
}

/// Returns the range of versions, such as `3.9 to 3.15`.
pub fn known_versions() -> String {
    match LAYOUTS {
        [first, .., last] => format!("3.{} to 3.{}", first.minor, last.minor),
    }
}

const fn runtime(initialized: u16, main_interpreter: u16, slot: StateSlot) -> RuntimeLayout {
    RuntimeLayout {
        initialized: Some(initialized),
        // The next field: a pointer behind an int.
        finalizing: (initialized + 4).next_multiple_of(8),
        main_interpreter,
        slot,
    }
}

const fn string(ascii_data: u16, compact_data: u16) -> StringLayout {
    StringLayout {
        ascii_data,
        compact_data,
    }
}

/// Up to 3.10; the form of the line table and the bytes per index of an instruction differ.
const fn code_with_index(line_format: LineFormat, step: u8) -> CodeLayout {
    CodeLayout {
        size: 176,
        first_line: 40,
        file: 104,
        qualname: None,
        line_table: 120,
        line_format,
        instructions: Instructions::Apart { object: 48, step },
        version: None,
    }
}

/// From 3.12 on; the offset of the instructions differs.
const fn code(start: u16, first_traceable: u16) -> CodeLayout {
    CodeLayout {
        size: start,
        first_line: 68,
        file: 112,
        qualname: Some(128),
        line_table: 136,
        line_format: LineFormat::Locations,
        instructions: Instructions::Inline {
            units: 16,
            start,
            first_traceable,
        },
        version: Some(92),
    }
}

/// Builds a thread state from `thread_id`, `native_thread_id`, `id`, `frame` and `cframe_current`.
const fn thread(
    thread_id: u16,
    native_thread_id: Option<u16>,
    id: u16,
    frame: u16,
    cframe_current: Option<u16>,
) -> ThreadLayout {
    ThreadLayout {
        next: 8,
        interpreter: 16,
        thread_id,
        native_thread_id,
        id,
        frame,
        cframe_current,
        base_frame: None,
    }
}

/// Builds a frame from the offsets of its code, its caller and its instruction, its owner, and the first owner that
/// runs no Python.
const fn frame(
    [code, previous, instr]: [u16; 3],
    owner: Option<u16>,
    first_shim_owner: Option<u8>,
) -> FrameLayout {
    FrameLayout {
        code,
        previous,
        instr,
        owner,
        first_shim_owner,
    }
}

/// The collector of an interpreter: the next interpreter and the collector in the interpreter, then the youngest
/// generation, the permanent one and `collecting` in the collector.
const fn collector(
    [next_interpreter, start]: [u16; 2],
    [generations, permanent, collecting]: [u16; 3],
) -> CollectorLayout {
    CollectorLayout {
        next_interpreter,
        start,
        generations,
        permanent,
        collecting,
    }
}

/// The offsets of `f_globals`, `f_locals` and the first variable in a frame, of `co_flags` and the names in its code.
const fn locals(
    [globals, mapping, first]: [u16; 3],
    code_flags: u16,
    names: LocalNames,
) -> LocalsLayout {
    LocalsLayout {
        globals,
        mapping,
        first,
        code_flags,
        names,
    }
}

/// From 3.11 on.
const fn locals_of_frame(offsets: [u16; 3]) -> LocalsLayout {
    locals(offsets, 48, LocalNames::One(96))
}

/// A generator that starts with its code (3.11) or not (3.12 on): the offset of its frame, and the numbers of
/// the frame's states.
const fn generator(frame: u16, created: i8, executing: i8) -> GeneratorLayout {
    GeneratorLayout::Inside {
        frame,
        state: frame - 5,
        created,
        executing,
    }
}

/// CPython 3.9 (v3.9.18).
const PYTHON_3_9: PythonLayout = PythonLayout {
    minor: 9,
    runtime: runtime(12, 40, StateSlot::Key(584)),
    interpreter_threads: 8,
    interpreter_modules: 856,
    thread: thread(176, None, 256, 24, None),
    frame: frame([32, 24, 104], None, None),
    code: code_with_index(LineFormat::Increments, 1),
    string: string(48, 72),
    heap: HeapLayout {
        collector: collector([0, 616], [24, 104, 200]),
        cached_keys: 864,
        dict_keys: DictKeys::Sized,
        dict_values: 0,
        attributes: Attributes::Dict,
        numbers: Numbers::Signed,
        tuple_items: 24,
        locals: locals([48, 56, 360], 36, LocalNames::Three([72, 88, 80])),
        generator: GeneratorLayout::Apart(16),
        frame_of_object: None,
        function_defaults: 32,
        thread_dicts: 48,
        queue_has_list: true,
    },
};

/// CPython 3.10 (v3.10.13).
const PYTHON_3_10: PythonLayout = PythonLayout {
    minor: 10,
    frame: frame([32, 24, 96], None, None),
    code: code_with_index(LineFormat::Ranges, 2),
    heap: HeapLayout {
        cached_keys: 872,
        locals: locals([48, 56, 352], 36, LocalNames::Three([72, 88, 80])),
        function_defaults: 56,
        ..PYTHON_3_9.heap
    },
    ..PYTHON_3_9
};

/// CPython 3.11 (v3.11.7).
const PYTHON_3_11: PythonLayout = PythonLayout {
    minor: 11,
    runtime: runtime(16, 48, StateSlot::Key(592)),
    interpreter_threads: 16,
    interpreter_modules: 888,
    thread: thread(152, Some(160), 240, 56, Some(8)),
    frame: frame([32, 48, 56], Some(69), None),
    code: CodeLayout {
        first_line: 72,
        version: None,
        ..code(184, 168)
    },
    heap: HeapLayout {
        collector: collector([0, 648], [24, 104, 200]),
        cached_keys: 872,
        dict_keys: DictKeys::Logarithmic,
        attributes: Attributes::ValuesOrDict,
        locals: locals_of_frame([8, 24, 72]),
        generator: generator(80, -2, 0),
        frame_of_object: Some(24),
        ..PYTHON_3_10.heap
    },
    ..PYTHON_3_10
};

/// CPython 3.12 (v3.12.1).
const PYTHON_3_12: PythonLayout = PythonLayout {
    minor: 12,
    runtime: runtime(16, 48, StateSlot::Key(1544)),
    interpreter_threads: 72,
    interpreter_modules: 944,
    thread: thread(136, Some(144), 224, 56, Some(0)),
    frame: frame([0, 8, 56], Some(70), Some(3)),
    code: code(192, 176),
    string: string(40, 56),
    heap: HeapLayout {
        collector: collector([0, 112], [24, 104, 200]),
        cached_keys: 880,
        attributes: Attributes::Tagged,
        numbers: Numbers::Tagged,
        locals: locals_of_frame([24, 40, 72]),
        generator: generator(72, -2, 0),
        ..PYTHON_3_11.heap
    },
};

/// CPython 3.13 (v3.13.0).
const PYTHON_3_13: PythonLayout = PythonLayout {
    minor: 13,
    runtime: runtime(600, 640, StateSlot::Key(2160)),
    interpreter_threads: 7344,
    interpreter_modules: 7656,
    thread: thread(152, Some(160), 224, 72, None),
    code: code(200, 184),
    heap: HeapLayout {
        collector: collector([7264, 7400], [24, 104, 200]),
        dict_values: 8,
        thread_dicts: 40,
        queue_has_list: false,
        attributes: Attributes::Inline,
        generator: generator(72, -3, 0),
        ..PYTHON_3_12.heap
    },
    ..PYTHON_3_12
};

/// CPython 3.14 (v3.14.10).
const PYTHON_3_14: PythonLayout = PythonLayout {
    minor: 14,
    runtime: runtime(776, 816, StateSlot::Key(2336)),
    interpreter_modules: 7688,
    frame: frame([0, 8, 56], Some(74), Some(3)),
    code: code(208, 192),
    heap: HeapLayout {
        collector: collector([7272, 7408], [24, 96, 192]),
        tuple_items: 32,
        locals: locals_of_frame([24, 40, 80]),
        ..PYTHON_3_13.heap
    },
    ..PYTHON_3_13
};

/// CPython 3.15 (v3.15.2).
const PYTHON_3_15: PythonLayout = PythonLayout {
    minor: 15,
    runtime: runtime(904, 944, StateSlot::Variable),
    interpreter_threads: 7336,
    interpreter_modules: 7592,
    thread: ThreadLayout {
        base_frame: Some(80),
        ..thread(176, Some(184), 248, 72, None)
    },
    heap: HeapLayout {
        collector: collector([7264, 7400], [8, 80, 112]),
        cached_keys: 888,
        generator: generator(72, 0, 4),
        ..PYTHON_3_14.heap
    },
    ..PYTHON_3_14
};

#[cfg(test)]
mod tests {
    use memprobe_common::PythonConfig;

    use super::LAYOUTS;

    #[test]
    fn the_first_variable_is_in_the_header_of_a_frame_only_where_it_is_none_of_its_fields() {
        for layout in &LAYOUTS {
            let config = PythonConfig {
                f_first_local: layout.heap.locals.first,
                ..PythonConfig::UNKNOWN
            };
            let frame = &layout.frame;
            let first = config.first_local_in_header();
            assert_eq!(first.is_some(), layout.minor >= 11);
            for field in [frame.code, frame.previous, frame.instr] {
                // The kernel programs address a word of the header by these bits of its offset.
                assert!(first.is_none_or(|first| first & 0x78 == first && first != field));
            }
        }
    }
}

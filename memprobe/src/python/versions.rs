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
        main_interpreter,
        slot,
    }
}

/// Up to 3.11.
const STRING_WITH_WCHAR: StringLayout = StringLayout {
    ascii_data: 48,
    compact_data: 72,
};

/// From 3.12 on.
const STRING: StringLayout = StringLayout {
    ascii_data: 40,
    compact_data: 56,
};

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

/// From 3.12 on; the meaning of a frame's instruction and the offset of its owner differ.
const fn frame(owner: u16) -> FrameLayout {
    FrameLayout {
        code: 0,
        previous: 8,
        instr: 56,
        owner: Some(owner),
        first_shim_owner: Some(3),
    }
}

/// The collector of an interpreter: its offset, and within it those of the permanent generation and of
/// `collecting`. Up to 3.14.
const fn collector(
    next_interpreter: u16,
    start: u16,
    permanent: u16,
    collecting: u16,
) -> CollectorLayout {
    CollectorLayout {
        next_interpreter,
        start,
        generations: 24,
        permanent,
        collecting,
    }
}

/// From 3.12 on.
const LOCALS: LocalsLayout = LocalsLayout {
    globals: 24,
    mapping: 40,
    first: 72,
    code_flags: 48,
    names: LocalNames::One(96),
};

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
    thread: ThreadLayout {
        next: 8,
        interpreter: 16,
        thread_id: 176,
        native_thread_id: None,
        id: 256,
        frame: 24,
        cframe_current: None,
        base_frame: None,
    },
    frame: FrameLayout {
        code: 32,
        previous: 24,
        instr: 104,
        owner: None,
        first_shim_owner: None,
    },
    code: CodeLayout {
        size: 176,
        first_line: 40,
        file: 104,
        qualname: None,
        line_table: 120,
        line_format: LineFormat::Increments,
        instructions: Instructions::Apart {
            object: 48,
            step: 1,
        },
        version: None,
    },
    string: STRING_WITH_WCHAR,
    heap: HeapLayout {
        collector: collector(0, 616, 104, 200),
        cached_keys: 864,
        dict_keys: DictKeys::Sized,
        dict_values: 0,
        attributes: Attributes::Dict,
        numbers: Numbers::Signed,
        tuple_items: 24,
        locals: LocalsLayout {
            globals: 48,
            mapping: 56,
            first: 360,
            code_flags: 36,
            names: LocalNames::Three([72, 88, 80]),
        },
        generator: GeneratorLayout::Apart(16),
        frame_of_object: None,
        function_defaults: 32,
    },
};

/// CPython 3.10 (v3.10.13).
const PYTHON_3_10: PythonLayout = PythonLayout {
    minor: 10,
    frame: FrameLayout {
        instr: 96,
        ..PYTHON_3_9.frame
    },
    code: CodeLayout {
        line_format: LineFormat::Ranges,
        instructions: Instructions::Apart {
            object: 48,
            step: 2,
        },
        ..PYTHON_3_9.code
    },
    heap: HeapLayout {
        cached_keys: 872,
        locals: LocalsLayout {
            first: 352,
            ..PYTHON_3_9.heap.locals
        },
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
    thread: ThreadLayout {
        thread_id: 152,
        native_thread_id: Some(160),
        id: 240,
        frame: 56,
        cframe_current: Some(8),
        ..PYTHON_3_9.thread
    },
    frame: FrameLayout {
        code: 32,
        previous: 48,
        instr: 56,
        owner: Some(69),
        first_shim_owner: None,
    },
    code: CodeLayout {
        size: 184,
        first_line: 72,
        version: None,
        ..code(184, 168)
    },
    heap: HeapLayout {
        collector: collector(0, 648, 104, 200),
        cached_keys: 872,
        dict_keys: DictKeys::Logarithmic,
        attributes: Attributes::ValuesOrDict,
        locals: LocalsLayout {
            globals: 8,
            mapping: 24,
            ..LOCALS
        },
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
    thread: ThreadLayout {
        thread_id: 136,
        native_thread_id: Some(144),
        id: 224,
        cframe_current: Some(0),
        ..PYTHON_3_11.thread
    },
    frame: frame(70),
    code: code(192, 176),
    string: STRING,
    heap: HeapLayout {
        collector: collector(0, 112, 104, 200),
        cached_keys: 880,
        attributes: Attributes::Tagged,
        numbers: Numbers::Tagged,
        locals: LOCALS,
        generator: generator(72, -2, 0),
        ..PYTHON_3_11.heap
    },
};

/// CPython 3.13 (v3.13.0).
const PYTHON_3_13: PythonLayout = PythonLayout {
    minor: 13,
    runtime: runtime(600, 640, StateSlot::Key(2160)),
    interpreter_threads: 7344,
    thread: ThreadLayout {
        thread_id: 152,
        native_thread_id: Some(160),
        frame: 72,
        cframe_current: None,
        ..PYTHON_3_12.thread
    },
    code: code(200, 184),
    heap: HeapLayout {
        collector: collector(7264, 7400, 104, 200),
        dict_values: 8,
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
    frame: frame(74),
    code: code(208, 192),
    heap: HeapLayout {
        collector: collector(7272, 7408, 96, 192),
        tuple_items: 32,
        locals: LocalsLayout {
            first: 80,
            ..LOCALS
        },
        ..PYTHON_3_13.heap
    },
    ..PYTHON_3_13
};

/// CPython 3.15 (v3.15.2).
const PYTHON_3_15: PythonLayout = PythonLayout {
    minor: 15,
    runtime: runtime(904, 944, StateSlot::Variable),
    interpreter_threads: 7336,
    thread: ThreadLayout {
        thread_id: 176,
        native_thread_id: Some(184),
        id: 248,
        base_frame: Some(80),
        ..PYTHON_3_13.thread
    },
    heap: HeapLayout {
        collector: CollectorLayout {
            next_interpreter: 7264,
            start: 7400,
            generations: 8,
            permanent: 80,
            collecting: 112,
        },
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

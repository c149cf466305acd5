//! memprobe's readers of hostile input, as functions of bytes. Each must return soon, without a panic, whatever the
//! bytes are.
//!
//! `cargo xtask fuzz` runs them under libFuzzer. The tests of this package run them on `corpus/`.

mod elf;
mod heap;
pub mod image;
pub mod objects;
pub mod pytorch;
mod recording;
mod records;
mod stack;
pub mod unwind;

/// Environment variable with the name of the reader to fuzz.
pub const READER_VARIABLE: &str = "MEMPROBE_FUZZ_READER";

/// One reader of hostile input.
#[derive(Clone, Copy)]
pub struct Reader {
    pub name: &'static str,
    /// Folder of its inputs in `corpus/`.
    pub inputs: &'static str,
    pub read: fn(&[u8]),
}

/// All readers.
pub const READERS: [Reader; 13] = [
    Reader {
        name: "records",
        inputs: "records",
        read: records::read,
    },
    Reader {
        name: "recording",
        inputs: "recording",
        read: recording::read,
    },
    Reader {
        name: "columns",
        inputs: "columns",
        read: recording::read_columns,
    },
    Reader {
        name: "curve",
        inputs: "curve",
        read: recording::read_curve,
    },
    Reader {
        name: "replay",
        inputs: "recording",
        read: recording::replay,
    },
    Reader {
        name: "pickle",
        inputs: "pickle",
        read: recording::read_pickle,
    },
    Reader {
        name: "elf",
        inputs: "elf",
        read: elf::read,
    },
    Reader {
        name: "stack",
        inputs: "stack",
        read: stack::read,
    },
    Reader {
        name: "unwind",
        inputs: "unwind",
        read: unwind::read,
    },
    Reader {
        name: "heap",
        inputs: "heap",
        read: heap::read,
    },
    Reader {
        name: "classes",
        inputs: "heap",
        read: heap::read_classes,
    },
    Reader {
        name: "tensors",
        inputs: "tensors",
        read: pytorch::read_tensors,
    },
    Reader {
        name: "allocator",
        inputs: "allocator",
        read: pytorch::read_allocator,
    },
];

impl Reader {
    pub fn named(name: &str) -> Option<Self> {
        READERS.into_iter().find(|reader| reader.name == name)
    }
}

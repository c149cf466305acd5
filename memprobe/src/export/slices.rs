//! Blocks, segments and other memory of CUDA as async slices: how their records begin, and which are open.

use hashbrown::HashMap;

use super::stack_text::{Definition, StackTexts};
use crate::event::DeviceIndex;
use crate::label::BEFORE_ATTACH;

/// What differs between the slices of blocks and those of segments.
pub(super) struct SliceKind {
    pub of: Slices,
    pub begin: &'static [u8],
    pub end: &'static [u8],
    pub unpaired_begin: &'static [u8],
    pub unpaired_end: &'static [u8],
    pub unpaired_name: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum Slices {
    Blocks,
    Segments,
    Cuda,
    Cpu,
}

pub(super) const BLOCK: SliceKind = SliceKind {
    of: Slices::Blocks,
    begin: b"b\",\"cat\":\"alloc",
    end: b"e\",\"cat\":\"alloc",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"alloc",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"free",
    unpaired_name: "free of a block allocated unseen",
};

pub(super) const SEGMENT: SliceKind = SliceKind {
    of: Slices::Segments,
    begin: b"b\",\"cat\":\"segment",
    end: b"e\",\"cat\":\"segment",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"segment",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"segment_free",
    unpaired_name: "free of a segment allocated unseen",
};

pub(super) const CUDA: SliceKind = SliceKind {
    of: Slices::Cuda,
    begin: b"b\",\"cat\":\"cuda",
    end: b"e\",\"cat\":\"cuda",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"cuda",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"cuda_free",
    unpaired_name: "free of CUDA memory allocated unseen",
};

/// Blocks of the CPU allocator, whose addresses lie in a space of their own.
pub(super) const CPU: SliceKind = SliceKind {
    of: Slices::Cpu,
    begin: b"b\",\"cat\":\"cpu",
    end: b"e\",\"cat\":\"cpu",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"cpu",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"cpu_free",
    unpaired_name: "free of a block of the CPU allocated unseen",
};

impl SliceKind {
    /// The kind of the blocks of a device.
    pub(super) fn of_blocks(device: Option<DeviceIndex>) -> &'static Self {
        match device {
            Some(DeviceIndex::CPU) => &CPU,
            _ => &BLOCK,
        }
    }

    pub(super) fn push_name(&self, line: &mut Vec<u8>, stacks: &mut StackTexts, namer: Namer) {
        match (self.of, namer) {
            (Slices::Segments, _) => line.extend_from_slice(b"segment (cudaMalloc)"),
            (_, Namer::BeforeAttach) => line.extend_from_slice(BEFORE_ATTACH.as_bytes()),
            (_, Namer::Stack(stack)) => match stacks.text(stack) {
                Some(text) => line.extend_from_slice(&text.name),
                None => line.extend_from_slice(b"(unknown stack)"),
            },
        }
    }
}

/// What names a slice.
#[derive(Clone, Copy)]
pub(super) enum Namer {
    /// The stack that allocated it.
    Stack(Definition),
    /// Nobody knows the stack: it was live when memprobe attached.
    BeforeAttach,
}

/// Memory of one kind that is live, with what names their slice. Addresses of all
/// devices of a process lie in one space (CUDA's unified virtual addressing).
pub(super) struct OpenSlices {
    pub live: HashMap<u64, Namer>,
    pub most: usize,
}

pub(super) enum Opened {
    Slice,
    TooMany,
}

impl OpenSlices {
    pub(super) fn new(most: usize) -> Self {
        Self {
            live: HashMap::new(),
            most,
        }
    }

    pub(super) fn open(&mut self, addr: u64, namer: Namer) -> Opened {
        if self.live.len() >= self.most {
            return Opened::TooMany;
        }
        self.live.insert(addr, namer);
        Opened::Slice
    }

    pub(super) fn close(&mut self, addr: u64) -> Option<Namer> {
        self.live.remove(&addr)
    }
}

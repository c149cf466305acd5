//! Async slices for blocks, segments and other CUDA memory: their record prefixes, and the open ones.

use hashbrown::HashMap;

use super::stack_text::{Definition, StackTexts};
use crate::event::DeviceIndex;
use crate::view::BEFORE_ATTACH;

/// Properties that differ between kinds of slices.
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

/// Blocks of the CPU allocator, whose addresses are in a separate address space.
pub(super) const CPU: SliceKind = SliceKind {
    of: Slices::Cpu,
    begin: b"b\",\"cat\":\"cpu",
    end: b"e\",\"cat\":\"cpu",
    unpaired_begin: b"i\",\"s\":\"t\",\"cat\":\"cpu",
    unpaired_end: b"i\",\"s\":\"t\",\"cat\":\"cpu_free",
    unpaired_name: "free of a block of the CPU allocated unseen",
};

impl SliceKind {
    pub(super) fn of_blocks(device: Option<DeviceIndex>) -> &'static Self {
        match device {
            Some(DeviceIndex::CPU) => &CPU,
            _ => &BLOCK,
        }
    }

    pub(super) fn push_name(&self, line: &mut Vec<u8>, stacks: &mut StackTexts, namer: NameSource) {
        match (self.of, namer) {
            (Slices::Segments, _) => line.extend_from_slice(b"segment (cudaMalloc)"),
            (_, NameSource::BeforeAttach) => line.extend_from_slice(BEFORE_ATTACH.as_bytes()),
            (_, NameSource::Stack(stack)) => match stacks.text(stack) {
                Some(text) => line.extend_from_slice(&text.name),
                None => line.extend_from_slice(b"(unknown stack)"),
            },
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum NameSource {
    /// Stack that allocated the memory.
    Stack(Definition),
    /// The stack is unknown: the memory was live when memprobe attached.
    BeforeAttach,
}

/// Live memory of one kind, by address, with the names of the slices. All devices of a process share one
/// address space (CUDA's unified virtual addressing).
pub(super) struct OpenSlices {
    pub live: HashMap<u64, NameSource>,
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

    pub(super) fn open(&mut self, addr: u64, namer: NameSource) -> Opened {
        if self.live.len() >= self.most {
            return Opened::TooMany;
        }
        self.live.insert(addr, namer);
        Opened::Slice
    }

    pub(super) fn close(&mut self, addr: u64) -> Option<NameSource> {
        self.live.remove(&addr)
    }
}

//! Async slices for blocks, segments and other CUDA memory: their record prefixes, and the open ones.

use hashbrown::HashMap;

use super::stack_text::{Definition, StackTexts};
use crate::event::DeviceIndex;
use crate::view::BEFORE_ATTACH;

/// `ph` of a record that begins a slice, of one that ends it, and of one without a slice, with its scope.
const BEGIN: &[u8] = b"b";
pub(super) const END: &[u8] = b"e";
pub(super) const INSTANT: &[u8] = b"i\",\"s\":\"t";

pub(super) struct SliceKind {
    pub of: Slices,
    pub category: &'static str,
    /// `cat` and name of an end without a beginning.
    pub unpaired_end: &'static str,
    pub unpaired_name: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Slices {
    Blocks,
    Segments,
    Cuda,
    Cpu,
}

pub(super) const BLOCK: SliceKind = SliceKind {
    of: Slices::Blocks,
    category: "alloc",
    unpaired_end: "free",
    unpaired_name: "free of a block allocated unseen",
};

pub(super) const SEGMENT: SliceKind = SliceKind {
    of: Slices::Segments,
    category: "segment",
    unpaired_end: "segment_free",
    unpaired_name: "free of a segment allocated unseen",
};

pub(super) const CUDA: SliceKind = SliceKind {
    of: Slices::Cuda,
    category: "cuda",
    unpaired_end: "cuda_free",
    unpaired_name: "free of CUDA memory allocated unseen",
};

/// Blocks of the CPU allocator, whose addresses are in a separate address space.
pub(super) const CPU: SliceKind = SliceKind {
    of: Slices::Cpu,
    category: "cpu",
    unpaired_end: "cpu_free",
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
    Stack(Definition),
    /// The stack is unknown: the memory was live when memprobe attached.
    BeforeAttach,
}

/// Most live blocks drawn as slices (16 bytes each); further ones are drawn as instants.
const MAX_OPEN: usize = 1 << 22;

/// Live memory of one kind, by address, with the names of the slices. All devices of a process share one
/// address space (CUDA's unified virtual addressing).
pub(super) struct OpenSlices {
    pub live: HashMap<u64, NameSource>,
    pub most: usize,
}

impl Default for OpenSlices {
    fn default() -> Self {
        Self {
            live: HashMap::new(),
            most: MAX_OPEN,
        }
    }
}

impl OpenSlices {
    /// Returns the `ph` of the record: [`BEGIN`], or [`INSTANT`] if too many are open.
    pub(super) fn open(&mut self, addr: u64, namer: NameSource) -> &'static [u8] {
        if self.live.len() >= self.most {
            return INSTANT;
        }
        self.live.insert(addr, namer);
        BEGIN
    }
}

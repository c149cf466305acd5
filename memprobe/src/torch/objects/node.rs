//! `torch::autograd::Node`: an operation of the forward pass, kept for the backward pass.

use std::sync::Arc;

use super::class::{CppClass, Family, Fields};
use super::layout_versions::NodeLayout;
use super::layouts::ObjectReader;
use super::saved::SavedVariables;
use crate::process::memory::ReadMemory;
use crate::torch::node_name::{self, PYTHON};

/// Bytes of the largest node. In PyTorch 2.15 nodes have up to about 2,000 bytes.
const LARGEST: u64 = 16 << 10;

/// Most bytes read of a Function's Python object: 288 in PyTorch 2.15, plus those that its class adds.
const LARGEST_PYTHON: u64 = 4 << 10;

/// Offset of `ob_type` in a Python object, and of `tp_basicsize` in a type, in every version
/// (Include/object.h, Include/cpython/object.h).
const TYPE: u64 = 8;
const BASIC_SIZE: u64 = 32;
const PYTHON_HEAD: u64 = 16;

/// The node of an in-place operation on a view, which contains the node of the operation
/// (torch/csrc/autograd/functions/tensor.h).
const COPY_SLICES: &str = "N5torch8autograd10CopySlicesE";

/// Nodes that keep nothing, or only the leaf that they accumulate into.
const KEEPS_NOTHING: &[&str] = &[
    "N5torch8autograd14AccumulateGradE",
    "N5torch8autograd9GraphRootE",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawNode {
    pub address: u64,
    /// Its operation, as `grad_fn.name()` gives it; `None` if the name of its class cannot be parsed.
    pub name: Option<Arc<str>>,
    /// Sequence number within the thread that made it; `None` for nodes without one.
    pub sequence: Option<u64>,
    pub next: Vec<u64>,
    /// The contained node: an in-place operation on a view keeps the node of the operation.
    pub within: Option<u64>,
    /// The Python object of a `torch.autograd.Function`: its `ctx`.
    pub python: Option<u64>,
}

pub(super) struct Read {
    pub(super) node: RawNode,
    pub(super) saved: SavedVariables,
    /// True if its size is unknown, so that it was not searched for saved tensors.
    pub(super) unsearched: bool,
}

impl<M: ReadMemory> ObjectReader<'_, M> {
    /// Reads the node at an address. Returns `None` if none lies there or if the layout does not fit.
    pub(super) fn node(&self, layout: &NodeLayout, address: u64) -> Option<Read> {
        let class = self.objects.class(address)?;
        if class.family != Family::Node {
            return None;
        }
        let mut head = vec![0; layout.size];
        self.objects.memory.read(address, &mut head).ok()?;
        let fields = Fields(&head);
        let sequence = fields.word(layout.sequence);
        let python = self.python_object(layout, &class, address);
        let name = match python {
            Some(object) => (self.python_type(object))
                .and_then(|kind| node_name::of_python_type(self.objects.memory, kind)),
            None if &*class.name == PYTHON => None,
            None => node_name::of_class(&class.name),
        };
        let mut read = Read {
            node: RawNode {
                address,
                name: name.map(Into::into),
                sequence: (sequence != u64::MAX).then_some(sequence),
                next: self.objects.next(layout, fields)?,
                within: None,
                python,
            },
            saved: SavedVariables::default(),
            unsearched: false,
        };
        self.search_node(layout, &class, &mut read);
        Some(read)
    }

    fn search_node(&self, layout: &NodeLayout, class: &CppClass, read: &mut Read) {
        if KEEPS_NOTHING.contains(&&*class.name) {
            return;
        }
        let body = match &*class.name {
            PYTHON => read.node.python.and_then(|object| self.python_body(object)),
            _ => self.body(layout, class, read.node.address),
        };
        let Some(body) = body else {
            read.unsearched = true;
            return;
        };
        if &*class.name == COPY_SLICES {
            let mut words = body.chunks_exact(8).map(|word| Fields(word).word(0));
            read.node.within = words.find(|word| self.objects.is(*word, Family::Node));
            return;
        }
        self.search(layout.saved, &body, &mut read.saved);
    }

    fn body(&self, layout: &NodeLayout, class: &CppClass, address: u64) -> Option<Vec<u8>> {
        let memory = self.objects.memory;
        let least = layout.size as u64;
        let from_deleter = class.size.filter(|size| (least..=LARGEST).contains(size));
        let size = from_deleter.or_else(|| chunk_size(memory, address, least))?;
        let start = address.checked_add(least)?;
        memory
            .read_bytes(start, size - least, LARGEST as usize)
            .ok()
    }

    fn python_object(&self, layout: &NodeLayout, class: &CppClass, address: u64) -> Option<u64> {
        let is_python = &*class.name == PYTHON;
        is_python.then(|| self.objects.pointer(address, layout.python as u64))?
    }

    fn python_type(&self, object: u64) -> Option<u64> {
        let at = object.checked_add(TYPE)?;
        self.objects.memory.read_u64(at).ok()
    }

    fn python_body(&self, object: u64) -> Option<Vec<u8>> {
        let (memory, kind) = (self.objects.memory, self.python_type(object)?);
        let size = memory.read_u64(kind.checked_add(BASIC_SIZE)?).ok()?;
        let (start, rest) = (
            object.checked_add(PYTHON_HEAD)?,
            size.checked_sub(PYTHON_HEAD)?,
        );
        memory.read_bytes(start, rest, LARGEST_PYTHON as usize).ok()
    }
}

/// Size of the object at an address, for classes whose deleter does not give it: the chunk size that glibc's malloc
/// stores before the object (malloc/malloc.c@glibc-2.36), if the next chunk records that this one is in use. An
/// object of `std::make_shared` is preceded by its counts. `None` if another allocator handed it out.
fn chunk_size(memory: &impl ReadMemory, address: u64, least: u64) -> Option<u64> {
    const FLAGS: u64 = 7;
    const IN_USE: u64 = 1;
    const MAPPED: u64 = 2;
    [0, 16].into_iter().find_map(|before| {
        let user = address.checked_sub(before)?;
        let word = memory.read_u64(user.checked_sub(8)?).ok()?;
        let chunk = word & !FLAGS;
        let is_one = word & MAPPED == 0
            && chunk.is_multiple_of(16)
            && (least + before..=LARGEST).contains(&chunk);
        if !is_one || !user.is_multiple_of(16) {
            return None;
        }
        // A chunk ends with the first word of its neighbour, whose size follows.
        let neighbour = memory
            .read_u64(user.checked_add(chunk)?.checked_sub(8)?)
            .ok()?;
        let is_used = neighbour & IN_USE != 0 && (neighbour & !FLAGS).is_multiple_of(16);
        is_used.then_some(chunk - 8 - before)
    })
}

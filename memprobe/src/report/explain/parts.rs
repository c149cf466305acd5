//! Parts of a GPU's memory: what each is for, and who has it.

use super::GpuMemory;
use crate::attribution::waterfall::gpu_shares;
use crate::event::{Bytes, Totals};

/// Purpose of a part of the memory. The keys stay the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum PartId {
    OtherProcesses,
    /// Other processes, and what this one has beside PyTorch's allocator: the driver does not tell them apart.
    Others,
    /// CUDA's context and kernels, libraries, and other allocators of this process.
    OutsideAllocator,
    Parameters,
    Buffers,
    OptimizerState,
    Gradients,
    Activations,
    KvCache,
    Inputs,
    IntermediateGradients,
    Temporaries,
    Workspaces,
    OtherTensors,
    /// Live blocks without a tensor.
    NoTensor,
    /// Blocks without a known tensor, where not every tensor was read.
    TensorsNotRead,
    /// Live blocks whose purpose nothing tells.
    Unknown,
    /// Live at attach, so without a line.
    BeforeAttach,
    /// Difference between the allocator's total and all known blocks.
    Unexplained,
    /// Reserved by PyTorch's allocator, but not allocated.
    Cached,
    Free,
}

impl PartId {
    /// Key in JSON.
    pub const fn key(self) -> &'static str {
        self.into_str()
    }

    /// Words for people, and the letter of the part in the bar.
    pub const fn words(self) -> (&'static str, char) {
        match self {
            Self::OtherProcesses => ("other processes", 'x'),
            Self::Others => (
                "other processes, CUDA's context and libraries: not told apart",
                'x',
            ),
            Self::OutsideAllocator => (
                "this process beside PyTorch's allocator: CUDA's context, libraries",
                'd',
            ),
            Self::Parameters => ("parameters", 'P'),
            Self::Buffers => ("buffers of modules", 'B'),
            Self::OptimizerState => ("optimizer state", 'O'),
            Self::Gradients => ("gradients", 'G'),
            Self::Activations => ("activations saved for backward", 'A'),
            Self::KvCache => ("KV cache", 'K'),
            Self::Inputs => ("inputs", 'I'),
            Self::IntermediateGradients => ("intermediate gradients", 'g'),
            Self::Temporaries => ("temporaries", 't'),
            Self::Workspaces => ("workspaces", 'W'),
            Self::OtherTensors => ("other tensors", 'T'),
            Self::NoTensor => ("blocks without a tensor", 'n'),
            Self::TensorsNotRead => ("tensors not read, or none", 'n'),
            Self::Unknown => ("purpose unknown", '?'),
            Self::BeforeAttach => ("allocated before attach", 'b'),
            Self::Unexplained => ("unexplained", '?'),
            Self::Cached => ("cached: reserved by PyTorch, not allocated", 'c'),
            Self::Free => ("free", '.'),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    pub id: PartId,
    pub bytes: Bytes,
}

/// Completes the parts of what is allocated: with the rest of the allocator, the process and the GPU. The sum of all is
/// the GPU's memory, or what the allocator reserved if that is unknown.
pub(super) fn completed(
    allocated: impl IntoIterator<Item = (PartId, u64)>,
    totals: Totals,
    gpu: Option<GpuMemory>,
) -> Vec<MemoryPart> {
    let mut parts: Vec<MemoryPart> = Vec::new();
    let mut push = |id: PartId, bytes: u64| match parts.iter_mut().find(|part| part.id == id) {
        Some(part) => part.bytes.0 = part.bytes.0.saturating_add(bytes),
        None if bytes > 0 => parts.push(MemoryPart {
            id,
            bytes: Bytes(bytes),
        }),
        None => {}
    };
    let backed = |gpu: GpuMemory| totals.reserved.0.saturating_sub(gpu.unbacked.0);
    let process = |gpu: GpuMemory| gpu.process.map(|process| process.0);
    let shares = gpu.map(|gpu| gpu_shares(backed(gpu), gpu.total.0, gpu.used.0, process(gpu)));
    if let Some(shares) = shares {
        match shares.other_processes {
            Some(others) => {
                push(PartId::OtherProcesses, others);
                push(PartId::OutsideAllocator, shares.outside);
            }
            None => push(PartId::Others, shares.outside),
        }
    }
    let known: u64 = {
        let mut sum = 0_u64;
        for (id, bytes) in allocated {
            sum = sum.saturating_add(bytes);
            push(id, bytes);
        }
        sum
    };
    push(
        PartId::Unexplained,
        totals.allocated.0.saturating_sub(known),
    );
    push(PartId::Cached, totals.cached().0);
    if let Some(shares) = shares {
        push(PartId::Free, shares.free);
    }
    parts.sort_by_key(|part| part.id);
    parts
}

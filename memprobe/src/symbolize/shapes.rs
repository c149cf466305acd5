//! Interns the purposes of blocks, and checks reported tensors against their blocks.

use std::collections::HashSet;
use std::sync::Arc;

use memprobe_common::{
    DEVICE_TYPE_CPU, MAX_DIMENSIONS, MemoryRecord, ShapeRecord, shape_layout, stack_state,
};

use crate::event::tensors::DType;
use crate::event::{BlockPurpose, Bytes, Purpose, PurposeId, PurposeIds, TensorSpec, TimeNs};

/// The most bytes that a block can have beyond twice the requested size. The allocator rounds up to a power of two at
/// most (`roundup_power2_divisions`). It also hands out the rest of a segment if splitting is not worthwhile, up to its
/// `kLargeBuffer` of 20 MiB (c10/cuda/CUDACachingAllocator.cpp@v2.15.0, `should_split`).
const MAX_REST: u64 = 20 << 20;

/// Nanoseconds that it takes to make a tensor at most: CUDA may have to find memory for it first.
const MAX_MAKING: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub struct PurposeInterner {
    ids: PurposeIds,
    recent: RecentTensors,
    tensors: WatchedTensors,
}

/// The purposes of recent tensors, so that the same tensor again is neither checked nor looked up by its sizes. Each has
/// the slot that its sizes give; a newer one replaces an older one there.
#[derive(Debug, Default)]
struct RecentTensors(Vec<RecentTensor>);

#[derive(Clone, Debug)]
struct RecentTensor {
    shape: ShapeRecord,
    /// Bytes of the block.
    size: u64,
    id: PurposeId,
}

impl RecentTensors {
    const SLOTS: usize = 256;

    fn slot(shape: &ShapeRecord, size: u64) -> usize {
        let words = shape.sizes.iter().chain([&shape.extent, &size]);
        let mixed = words.fold(0, |mixed: u64, word| {
            (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        // The highest bits of a product depend on all bits of its factors.
        (mixed >> 56) as usize % Self::SLOTS
    }

    fn get(&self, shape: &ShapeRecord, size: u64, ids: &PurposeIds) -> Option<PurposeId> {
        let recent = self.0.get(Self::slot(shape, size))?;
        let is_it = recent.size == size && recent.shape == *shape;
        (is_it && ids.is_known(recent.id)).then_some(recent.id)
    }

    fn keep(&mut self, shape: &ShapeRecord, size: u64, id: PurposeId) {
        if self.0.is_empty() {
            let none = RecentTensor {
                shape: ShapeRecord::default(),
                size: 0,
                id: PurposeId::NONE,
            };
            self.0.resize(Self::SLOTS, none);
        }
        self.0[Self::slot(shape, size)] = RecentTensor {
            shape: *shape,
            size,
            id,
        };
    }
}

/// Times and threads for which probes report every tensor.
#[derive(Debug)]
enum WatchedTensors {
    /// Since the allocator's probe, and so those on tensors before it, were placed. A tensor may have been begun before,
    /// and get its block within [`MAX_MAKING`]. As it gets one block, only the first of each thread is in doubt.
    Since {
        /// Time from which every tensor is reported; `None` while that is unknown.
        since: Option<TimeNs>,
        /// Threads that have had their first block.
        threads: HashSet<u32>,
    },
    Always,
    /// The probes were given up at a time. A thread may still have the request from before, whose block nobody saw.
    GivenUp(TimeNs),
}

impl Default for WatchedTensors {
    fn default() -> Self {
        Self::Since {
            since: None,
            threads: HashSet::new(),
        }
    }
}

/// Knowledge of the tensor of a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    /// Not every tensor is reported.
    Partial,
    /// The tensor may have been begun before the probes were in place. One that was reported may be another, whose block
    /// came before the allocator's probe was in place.
    InDoubt,
    /// Probes would have reported it.
    Full,
}

impl WatchedTensors {
    /// Coverage of the tensor of a new block, which was reported or not.
    fn coverage(&mut self, memory: &MemoryRecord, reported: Option<&ShapeRecord>) -> Coverage {
        let time = TimeNs(memory.time_ns);
        let (since, threads) = match self {
            Self::Always => return Coverage::Full,
            Self::GivenUp(since) if time < *since => return Coverage::Partial,
            Self::GivenUp(_) => return Coverage::InDoubt,
            // Without the probes that holds for all blocks.
            Self::Since { since: None, .. } if reported.is_none() => return Coverage::Partial,
            Self::Since { since, threads } => (*since, threads),
        };
        let elapsed = since.and_then(|since| time.0.checked_sub(since.0));
        if elapsed.is_some_and(|elapsed| elapsed >= MAX_MAKING) {
            *self = Self::Always;
            return Coverage::Full;
        }
        match (threads.insert(memory.tid), elapsed) {
            (true, _) => Coverage::InDoubt,
            (false, Some(_)) => Coverage::Full,
            (false, None) => Coverage::Partial,
        }
    }

    /// Records that every tensor is reported from a time on. Threads that have had a block since the attach began are not
    /// in doubt again.
    fn begin(&mut self, time: TimeNs) {
        if !matches!(self, Self::Since { since: None, .. }) {
            *self = Self::default();
        }
        if let Self::Since { since, .. } = self {
            *since = Some(time);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Shape(TensorSpec),
    /// The most recent tensor does not fit this memory, so the memory is not for it.
    Another,
    /// The tensor could not be read, or the block is larger than any allocator rule explains.
    Unknown,
}

impl PurposeInterner {
    /// Records that the probes on tensors are in place, before the process began to run.
    pub fn watch_all(&mut self) {
        self.tensors = WatchedTensors::Always;
    }

    /// Records that the probes on tensors are given up from a time on.
    pub fn watch_none(&mut self, since: TimeNs) {
        self.tensors = WatchedTensors::GivenUp(since);
    }

    /// Records that the probes on tensors have been in place since a time.
    pub fn watch_since(&mut self, since: TimeNs) {
        self.tensors.begin(since);
    }

    /// Returns the purpose of a record's memory, and its definition if new. `purpose` is for memory without a tensor.
    pub fn of(
        &mut self,
        memory: &MemoryRecord,
        shape: Option<&ShapeRecord>,
        purpose: Option<Purpose>,
    ) -> (PurposeId, Option<Arc<BlockPurpose>>) {
        // Also counts the blocks that have a tensor.
        let coverage = self.tensors.coverage(memory, shape);
        if coverage == Coverage::InDoubt {
            return (PurposeId::NONE, None);
        }
        // Without scratch memory for the thread the kernel's programs recorded no tensor.
        let is_watched =
            coverage == Coverage::Full && memory.stack_state != stack_state::UNREADABLE;
        let size = memory.size.unsigned_abs();
        if let Some(id) = shape.and_then(|shape| self.recent.get(shape, size, &self.ids)) {
            return (id, None);
        }
        match shape.map_or(Found::Another, |shape| check(shape, size)) {
            Found::Shape(spec) => {
                let (id, new) = self.ids.intern(BlockPurpose::Tensor(spec));
                if let Some(shape) = shape {
                    self.recent.keep(shape, size, id);
                }
                (id, new)
            }
            Found::Unknown => (PurposeId::NONE, None),
            Found::Another if is_watched => match purpose {
                Some(purpose) => self.ids.intern(BlockPurpose::Other(purpose)),
                None => (PurposeId::NO_TENSOR, None),
            },
            Found::Another => (PurposeId::NONE, None),
        }
    }
}

fn check(record: &ShapeRecord, size: u64) -> Found {
    if record.layout == shape_layout::UNREADABLE {
        return Found::Unknown;
    }
    let dimensions = record.dimensions as usize;
    let sizes = record.sizes[..dimensions.min(MAX_DIMENSIONS)].to_vec();
    let mut known = sizes.iter();
    let elements_known = known.try_fold(1u64, |all, size| all.checked_mul(*size));
    let is_whole = dimensions <= MAX_DIMENSIONS;
    let elements = match (record.layout, elements_known) {
        // A tensor of no elements gets no memory, and PyTorch rejects an overflowing size.
        (_, None | Some(0)) => return Found::Another,
        (shape_layout::STRIDED, Some(_)) if is_whole => record.extent,
        (shape_layout::DENSE, Some(defined)) => defined,
        // Strides can be 0, so the known sizes give no lower bound.
        _ => 1,
    };
    let dtype = DType(record.dtype.into());
    let Some(least) = elements.checked_mul(dtype.size().unwrap_or(1)) else {
        return Found::Another;
    };
    let requested = (is_whole && dtype.size().is_some()).then_some(Bytes(least));
    if least > size {
        return Found::Another;
    }
    // The CPU allocator does not round, so a different size belongs to a different request.
    if record.device_type == DEVICE_TYPE_CPU && requested.is_some_and(|asked| size != asked.0) {
        return Found::Another;
    }
    if requested.is_some_and(|asked| size > asked.0.saturating_mul(2).saturating_add(MAX_REST)) {
        return Found::Unknown;
    }
    Found::Shape(TensorSpec {
        sizes,
        more: u32::try_from(dimensions.saturating_sub(MAX_DIMENSIONS)).unwrap_or(u32::MAX),
        dtype,
        requested,
    })
}

#[cfg(test)]
mod tests {
    use memprobe_common::DEVICE_TYPE_CUDA;

    use super::*;
    use crate::event::BlockPurposes;

    const FLOAT32: u8 = 6;

    fn asked(layout: u8, sizes: &[u64], extent: u64) -> ShapeRecord {
        let mut record = ShapeRecord {
            layout,
            device_type: DEVICE_TYPE_CUDA,
            dtype: FLOAT32,
            dimensions: sizes.len() as u32,
            extent,
            ..ShapeRecord::default()
        };
        for (to, from) in record.sizes.iter_mut().zip(sizes) {
            *to = *from;
        }
        record
    }

    fn dense(sizes: &[u64]) -> ShapeRecord {
        asked(shape_layout::DENSE, sizes, 0)
    }

    fn requested(record: &ShapeRecord, size: u64) -> Option<u64> {
        match check(record, size) {
            Found::Shape(shape) => shape.requested.map(|bytes| bytes.0),
            _ => None,
        }
    }

    /// Interner of a process that is watched from its start.
    fn watching() -> PurposeInterner {
        let mut shapes = PurposeInterner::default();
        shapes.watch_all();
        shapes
    }

    fn block(time_ns: u64, size: i64) -> MemoryRecord {
        MemoryRecord {
            time_ns,
            size,
            ..MemoryRecord::default()
        }
    }

    #[test]
    fn a_block_fits_its_tensor_up_to_rounding() {
        let record = dense(&[3, 33]);
        assert_eq!(requested(&record, 512), Some(396));
        assert_eq!(check(&record, 395), Found::Another);
        assert_eq!(requested(&record, 20 << 20), Some(396));
        assert_eq!(check(&record, 21 << 20), Found::Unknown);
    }

    #[test]
    fn the_cpu_allocator_rounds_nothing() {
        let record = ShapeRecord {
            device_type: DEVICE_TYPE_CPU,
            ..dense(&[3, 33])
        };
        assert_eq!(requested(&record, 396), Some(396));
        assert_eq!(check(&record, 512), Found::Another);
    }

    #[test]
    fn strides_say_how_far_a_tensor_reaches() {
        let expanded = asked(shape_layout::STRIDED, &[1000, 4], 4);
        assert_eq!(requested(&expanded, 512), Some(16));
        let padded = asked(shape_layout::STRIDED, &[2, 2], 130);
        assert_eq!(requested(&padded, 1024), Some(520));
    }

    #[test]
    fn a_tensor_that_got_no_memory_leaves_no_name_behind() {
        assert_eq!(check(&dense(&[5, 0]), 512), Found::Another);
        assert_eq!(check(&dense(&[u64::MAX, 3]), 512), Found::Another);
        assert_eq!(check(&dense(&[u64::MAX]), 512), Found::Another);
        assert_eq!(
            requested(&dense(&[]), 512),
            Some(4),
            "a scalar has one element"
        );
    }

    #[test]
    fn only_the_first_of_many_dimensions_are_recorded() {
        let mut record = dense(&[2; 8]);
        record.dimensions = 12;
        let Found::Shape(shape) = check(&record, 16384) else {
            panic!("no shape");
        };
        assert_eq!(
            (shape.sizes.len(), shape.more, shape.requested),
            (8, 4, None)
        );
        assert_eq!(shape.to_string(), "(2, 2, 2, 2, 2, 2, 2, 2, …)");
    }

    #[test]
    fn each_shape_is_defined_once() {
        let mut shapes = watching();
        let (first, defined) = shapes.of(&block(1, 512), Some(&dense(&[3])), None);
        let defined = defined.expect("a new shape");
        assert!(
            defined
                .tensor()
                .is_some_and(|shape| shape.to_string() == "(3,)")
        );
        assert_eq!(
            shapes.of(&block(2, 512), Some(&dense(&[3])), None),
            (first, None)
        );
        let (other, defined) = shapes.of(&block(3, 512), Some(&dense(&[4])), None);
        assert!(other != first && defined.is_some());
    }

    #[test]
    fn a_recent_shape_in_a_block_of_another_size_is_checked_anew() {
        let mut shapes = watching();
        let of = |shapes: &mut PurposeInterner, size| {
            let block = block(1, size);
            shapes.of(&block, Some(&dense(&[3, 33])), None).0
        };
        let first = of(&mut shapes, 512);
        assert_eq!(of(&mut shapes, 512), first);
        assert_eq!(of(&mut shapes, 21 << 20), PurposeId::NONE);
        assert_eq!(of(&mut shapes, 512), first);
    }

    #[test]
    fn a_recent_shape_that_was_forgotten_is_defined_anew() {
        let mut shapes = watching();
        let mut of = |width| shapes.of(&block(1, 1 << 20), Some(&dense(&[width])), None);
        let (first, _) = of(1);
        for width in 2..=BlockPurposes::MOST as u64 {
            assert!(of(width).1.is_some());
        }
        assert_eq!(of(1), (first, None));
        assert!(of(BlockPurposes::MOST as u64 + 1).1.is_some());
        let (again, defined) = of(1);
        assert!(again > first && defined.is_some());
        assert_eq!(of(1), (again, None));
    }

    #[test]
    fn only_the_first_block_of_a_thread_after_the_probes_may_be_of_a_tensor_begun_before() {
        let mut shapes = PurposeInterner::default();
        let of = |shapes: &mut PurposeInterner, tid, time, shape: Option<&ShapeRecord>| {
            let block = MemoryRecord {
                tid,
                ..block(time, 512)
            };
            shapes.of(&block, shape, None).0
        };
        let tensor = dense(&[3]);
        assert_eq!(of(&mut shapes, 1, 5, None), PurposeId::NONE);
        let of_earlier = of(&mut shapes, 2, 5, Some(&tensor));
        assert_eq!(
            of_earlier,
            PurposeId::NONE,
            "its block may have come before"
        );
        let known = of(&mut shapes, 2, 6, Some(&tensor));
        assert!(known != PurposeId::NONE && known != PurposeId::NO_TENSOR);
        shapes.watch_since(TimeNs(10));
        assert_eq!(of(&mut shapes, 1, 9, None), PurposeId::NONE);
        assert_eq!(of(&mut shapes, 1, 10, None), PurposeId::NO_TENSOR);
        assert_eq!(of(&mut shapes, 2, 10, Some(&tensor)), known);
        assert_eq!(of(&mut shapes, 3, 12, Some(&tensor)), PurposeId::NONE);
        assert_eq!(of(&mut shapes, 3, 13, Some(&tensor)), known);
        assert_eq!(of(&mut shapes, 3, 13, None), PurposeId::NO_TENSOR);
        assert_eq!(of(&mut shapes, 4, 14, None), PurposeId::NONE);
        let late = 10 + MAX_MAKING;
        assert_eq!(of(&mut shapes, 5, late, None), PurposeId::NO_TENSOR);
    }

    #[test]
    fn a_request_from_before_the_probes_were_given_up_is_no_later_blocks_tensor() {
        let mut shapes = watching();
        let tensor = dense(&[3]);
        let known = shapes.of(&block(5, 512), Some(&tensor), None).0;
        assert_ne!(known, PurposeId::NONE);
        shapes.watch_none(TimeNs(6));
        let of = |shapes: &mut PurposeInterner, time| {
            shapes.of(&block(time, 512), Some(&tensor), None).0
        };
        assert_eq!(of(&mut shapes, 5), known);
        assert_eq!(of(&mut shapes, 6), PurposeId::NONE);
        shapes.watch_since(TimeNs(7));
        assert_eq!(of(&mut shapes, 7), PurposeId::NONE);
        assert_eq!(of(&mut shapes, 8), known);
    }

    #[test]
    fn a_process_watched_from_its_start_has_no_block_in_doubt() {
        let mut shapes = watching();
        let id = shapes.of(&block(5, 512), None, None).0;
        assert_eq!(id, PurposeId::NO_TENSOR);
    }

    #[test]
    fn each_purpose_is_defined_once_for_blocks_without_a_tensor() {
        let mut shapes = PurposeInterner::default();
        let purpose = || {
            Some(Purpose {
                what: Some("cuBLAS workspace".into()),
                function: "f".into(),
                library: "libtorch_cuda.so".into(),
            })
        };
        let of = |shapes: &mut PurposeInterner, time, shape: Option<&ShapeRecord>| {
            shapes.of(&block(time, 512), shape, purpose())
        };
        shapes.watch_since(TimeNs(9));
        let before = of(&mut shapes, 9, None);
        assert_eq!(before, (PurposeId::NONE, None), "it may be a tensor's");
        let (first, defined) = of(&mut shapes, 10, None);
        assert_eq!(
            defined.as_deref().and_then(BlockPurpose::purpose),
            purpose().as_ref()
        );
        assert_eq!(of(&mut shapes, 11, None), (first, None));
        let (other, defined) = of(&mut shapes, 12, Some(&dense(&[3])));
        assert!(other != first && defined.is_some_and(|defined| defined.tensor().is_some()));
    }
}

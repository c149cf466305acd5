//! Determines the layout of a process's tensors: the row of its version, verified on its own tensors, or the
//! result of calibration.

use super::autograd::{Meta, View};
use super::bytes::Fields;
use super::calibrate;
use super::class::{Classes, Family};
use super::layout_versions::{
    self, AUTOGRAD, AutogradLayout, NODES, NodeLayout, StorageLayout, TENSORS,
};
use super::layout_versions::{TensorLayout, Versions};
use super::node;
use super::saved::Saved;
use super::storage::{self, RawStorage};
use super::tensor::{self, Class, Geometry, RawTensor, some};
use super::{NotOne, autograd};
use crate::event::Bytes;
use crate::event::tensors::DType;
use crate::process::memory::ReadMemory;
use crate::python::heap::capture::CaptureMode;

/// Most tensors that a layout is verified on.
const MAX_SAMPLES: usize = 64;

#[derive(Clone, Debug)]
pub struct Layouts {
    pub(super) tensor: TensorLayout,
    pub(super) storage: StorageLayout,
    /// `None` if no sample shows it.
    pub(super) autograd: Option<AutogradLayout>,
    /// Graph layouts, those of the target's version first, with a flag for these.
    pub(super) nodes: Vec<(NodeLayout, bool)>,
    pub(super) classes: Classes,
    origin: Origin,
}

/// Source of a layout. All are verified on tensors of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Version,
    OtherVersion,
    Calibrated,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The process has no tensor on which a layout could be verified.
    #[error(
        "no tensor of Python was found to tell the layout of PyTorch's objects by: take the snapshot when the process \
         has made some"
    )]
    NoTensors,
    /// No known layout fits, and calibration found none. Holds the target's version, if known.
    #[error(
        "memprobe does not know the tensors of PyTorch {}: they lie as in none of 2.0 to 2.15, and their own fields do \
         not show another layout; what the allocator says of its blocks is not touched by this",
        .0.as_deref().unwrap_or("of unknown version")
    )]
    UnknownLayout(Option<String>),
}

impl Layouts {
    /// Determines the layouts of a process. `tensors` are addresses of Python `torch.Tensor` objects,
    /// youngest first. `version` is PyTorch's version, if known. `manner` is the mode of the capture.
    pub fn find(
        memory: &impl ReadMemory,
        version: Option<&str>,
        tensors: &[u64],
        manner: CaptureMode,
    ) -> Result<Self, LayoutError> {
        if tensors.is_empty() {
            return Err(LayoutError::NoTensors);
        }
        let samples = &samples(tensors)[..];
        let classes = Classes::default();
        let row = first_of(TENSORS, |row| layout_versions::is_of(&row.0, version)).find(|row| {
            let proof = proof(memory, &classes, &row.1, row.2, samples);
            let runs_on = manner == CaptureMode::Running && layout_versions::is_of(&row.0, version);
            proof.is_enough() || runs_on && proof.is_no_accident()
        });
        let (tensor, storage, origin) = match row {
            Some(row) if layout_versions::is_of(&row.0, version) => (row.1, row.2, Origin::Version),
            Some(row) => (row.1, row.2, Origin::OtherVersion),
            None => {
                let found = calibrate::calibrate(memory, &classes, samples);
                let found = found.filter(|(tensor, storage)| {
                    proof(memory, &classes, tensor, *storage, samples).is_enough()
                });
                let (tensor, storage) =
                    found.ok_or_else(|| LayoutError::UnknownLayout(version.map(str::to_owned)))?;
                (tensor, storage, Origin::Calibrated)
            }
        };
        let metas = metas(memory, &tensor, samples);
        let nodes = first_of(NODES, |row| layout_versions::is_of(&row.0, version));
        Ok(Self {
            autograd: autograd_layout(memory, &classes, version, &metas),
            nodes: nodes
                .map(|row| (row.1, layout_versions::is_of(&row.0, version)))
                .collect(),
            tensor,
            storage,
            classes,
            origin,
        })
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the `TensorImpl` of a Python object. Returns `None` unless it is a tensor that points back to
    /// the object.
    pub fn tensor_of(&self, memory: &impl ReadMemory, python_object: u64) -> Option<u64> {
        let object = pointer(memory, &self.tensor, python_object)?;
        let at = object.checked_add(self.tensor.python as u64)?;
        let back = memory.read_u64(at).ok()? & !1;
        (back == python_object && self.classes.is(memory, object, Family::Tensor)).then_some(object)
    }

    pub fn tensor(&self, memory: &impl ReadMemory, address: u64) -> Result<RawTensor, NotOne> {
        tensor::read(memory, self, address)
    }

    pub fn storage(&self, memory: &impl ReadMemory, address: u64) -> Result<RawStorage, NotOne> {
        storage::read(memory, &self.classes, self.storage, address)
    }

    /// Chooses the graph layout by some of the nodes. The row of the target's version wins unless a node
    /// contradicts it. Another row must be verified by the nodes' edges; among several, the one that yields
    /// most saved tensors wins.
    pub(super) fn of_nodes(&self, memory: &impl ReadMemory, nodes: &[u64]) -> Option<NodeLayout> {
        let nodes = &nodes[..nodes.len().min(MAX_SAMPLES)];
        let mut best: Option<(usize, NodeLayout)> = None;
        for (layout, is_own) in &self.nodes {
            let proof = self.proof_of_edges(memory, layout, nodes);
            if *is_own && proof.bad == 0 {
                return Some(*layout);
            }
            if !proof.is_enough() {
                continue;
            }
            let originals = self.originals(memory, layout, nodes);
            if best.is_none_or(|(most, _)| originals > most) {
                best = Some((originals, *layout));
            }
        }
        best.map(|(_, layout)| layout)
    }

    fn proof_of_edges(
        &self,
        memory: &impl ReadMemory,
        layout: &NodeLayout,
        nodes: &[u64],
    ) -> Proof {
        let mut proof = Proof::default();
        let mut bytes = vec![0; layout.edges + 24];
        for node in nodes {
            let read = memory.read(*node, &mut bytes).ok();
            let next =
                read.and_then(|()| autograd::next(memory, &self.classes, layout, Fields(&bytes)));
            match next {
                Some(next) if next.is_empty() => {}
                Some(_) => proof.good += 1,
                None => proof.bad += 1,
            }
        }
        proof
    }

    /// Number of tensors that some nodes and their successors save as originals, read by a layout. A wrong
    /// layout yields none.
    fn originals(&self, memory: &impl ReadMemory, layout: &NodeLayout, nodes: &[u64]) -> usize {
        let mut originals = 0;
        let mut waiting = nodes.to_vec();
        let mut looked_at = 0;
        while let Some(node) = waiting.get(looked_at).copied() {
            looked_at += 1;
            let Some(read) = node::read(memory, self, layout, node) else {
                continue;
            };
            let tensors = read.saved.tensors.iter();
            originals += tensors
                .filter(|(_, saved)| *saved == Saved::Original)
                .count();
            for next in read.node.next.into_iter().chain(read.node.within) {
                if waiting.len() < 4 * MAX_SAMPLES && !waiting.contains(&next) {
                    waiting.push(next);
                }
            }
        }
        originals
    }
}

/// Selects up to [`MAX_SAMPLES`] tensors, from the older half if there are many. In a running process these
/// are least likely to be under construction or destruction.
fn samples(tensors: &[u64]) -> Vec<u64> {
    let older = match tensors.len() > 2 * MAX_SAMPLES {
        true => &tensors[tensors.len() / 2..],
        false => tensors,
    };
    let step = older.len().div_ceil(MAX_SAMPLES);
    older.iter().step_by(step.max(1)).copied().collect()
}

/// The rows of a table, those that satisfy `is_first` before the others.
fn first_of<T>(rows: &[T], is_first: impl Fn(&T) -> bool + Copy) -> impl Iterator<Item = &T> {
    let others = rows.iter().filter(move |row| !is_first(row));
    rows.iter().filter(move |row| is_first(row)).chain(others)
}

/// Number of samples for and against a layout. A sample may be under construction or destruction, so some may
/// fail.
#[derive(Clone, Copy, Debug, Default)]
struct Proof {
    good: usize,
    bad: usize,
}

impl Proof {
    fn is_enough(self) -> bool {
        self.good > 0 && self.bad * 4 <= self.good
    }

    /// A weaker test for the row of the target's own version in a running process, where most samples may die
    /// before they are read. Measured: 34 of 42 had died, and no other row had a sample in its favour.
    fn is_no_accident(self) -> bool {
        self.good >= 4
    }
}

fn proof(
    memory: &impl ReadMemory,
    classes: &Classes,
    layout: &TensorLayout,
    storage: StorageLayout,
    samples: &[u64],
) -> Proof {
    let mut proof = Proof::default();
    for sample in samples {
        match look(memory, classes, layout, storage, *sample) {
            Some(LayoutSearch::Good) => proof.good += 1,
            Some(LayoutSearch::Neutral) => {}
            None => proof.bad += 1,
        }
    }
    proof
}

/// Verdict of one sample on a layout.
enum LayoutSearch {
    /// Everything fits, in a way that cannot be accidental.
    Good,
    /// Nothing contradicts the layout.
    Neutral,
}

fn look(
    memory: &impl ReadMemory,
    classes: &Classes,
    layout: &TensorLayout,
    storage: StorageLayout,
    sample: u64,
) -> Option<LayoutSearch> {
    let object = pointer(memory, layout, sample)?;
    let class = classes.of(memory, object)?;
    let mut bytes = vec![0; layout.size()];
    memory.read(object, &mut bytes).ok()?;
    let fields = Fields(&bytes);
    if class.family != Family::Tensor || tensor::python_object(layout, fields) != Some(sample) {
        return None;
    }
    if tensor::kind(&class) != Class::Dense || tensor::is_symbolic(layout, fields) {
        return Some(LayoutSearch::Neutral);
    }
    let geometry = tensor::geometry(memory, layout, fields).ok()?;
    let dtype = tensor::dtype(layout, fields).ok()?;
    let device = tensor::place(layout, fields).ok()?;
    let Some(storage_at) = some(fields.word(layout.storage)) else {
        return Some(LayoutSearch::Neutral);
    };
    let storage = storage::read(memory, classes, storage, storage_at).ok()?;
    if storage.device != device {
        return None;
    }
    let needed = needed(&geometry, dtype)?;
    // A wrapper of other tensors has a shape, but a storage without data.
    let is_proof = needed > 0 && storage.bytes.0 >= needed;
    Some(match is_proof {
        true => LayoutSearch::Good,
        false => LayoutSearch::Neutral,
    })
}

/// Bytes of the storage that a tensor spans, counted from the storage's beginning. Returns `None` if the
/// number overflows.
pub(super) fn needed(geometry: &Geometry, dtype: DType) -> Option<u64> {
    if geometry.shape.contains(&0) {
        return Some(0);
    }
    let mut last = geometry.offset;
    for (size, stride) in geometry.shape.iter().zip(&geometry.strides) {
        let stride = u64::try_from(*stride).ok()?;
        last = last.checked_add(stride.checked_mul(size - 1)?)?;
    }
    last.checked_add(1)?.checked_mul(dtype.size().unwrap_or(1))
}

/// The pointer to the `TensorImpl` in a Python object.
fn pointer(memory: &impl ReadMemory, layout: &TensorLayout, python_object: u64) -> Option<u64> {
    let at = python_object.checked_add(layout.handle.offset())?;
    some(memory.read_u64(at).ok()?)
}

fn metas(memory: &impl ReadMemory, layout: &TensorLayout, samples: &[u64]) -> Vec<u64> {
    let metas = samples.iter().filter_map(|sample| {
        let object = pointer(memory, layout, *sample)?;
        let at = object.checked_add(layout.autograd as u64)?;
        some(memory.read_u64(at).ok()?)
    });
    metas.collect()
}

/// Chooses the layout of autograd metadata. The row of the target's version wins unless a sample contradicts
/// it. Another row must be verified by views or by leaves that require a gradient; the one with most proofs
/// wins.
fn autograd_layout(
    memory: &impl ReadMemory,
    classes: &Classes,
    version: Option<&str>,
    metas: &[u64],
) -> Option<AutogradLayout> {
    let is_own = |row: &(Versions, AutogradLayout)| layout_versions::is_of(&row.0, version);
    let mut best: Option<(usize, AutogradLayout)> = None;
    for row in first_of(AUTOGRAD, is_own) {
        let mut proof = Proof::default();
        for meta in metas {
            match proves(memory, classes, &row.1, *meta) {
                Some(LayoutSearch::Good) => proof.good += 1,
                Some(LayoutSearch::Neutral) => {}
                None => proof.bad += 1,
            }
        }
        if is_own(row) && proof.bad == 0 {
            return Some(row.1);
        }
        let is_better = best.is_none_or(|(good, _)| proof.good > good);
        if proof.is_enough() && is_better {
            best = Some((proof.good, row.1));
        }
    }
    best.map(|(_, layout)| layout)
}

/// Verdict of one tensor's autograd metadata on a layout.
fn proves(
    memory: &impl ReadMemory,
    classes: &Classes,
    layout: &AutogradLayout,
    meta: u64,
) -> Option<LayoutSearch> {
    let read = Meta::read(memory, classes, layout, meta)?;
    let is_proof = match read.is_view {
        true => View::read(memory, classes, layout, meta)?.base.is_some(),
        false => read.says_so,
    };
    Some(match is_proof {
        true => LayoutSearch::Good,
        false => LayoutSearch::Neutral,
    })
}

/// True if a tensor's elements lie within a storage of `bytes`.
pub(super) fn lies_within(geometry: &Geometry, dtype: DType, bytes: Bytes) -> bool {
    needed(geometry, dtype).is_some_and(|needed| needed <= bytes.0)
}

//! Determines the layout of a process's tensors: a row verified on its own tensors, or the result of calibration.

use super::class::{CppClasses, Family, Fields, Objects};
use super::layout_versions::{
    AUTOGRAD, AutogradLayout, NODES, NodeLayout, StorageLayout, TENSORS, TensorLayout, Versions,
    is_of,
};
use super::saved::Saved;
use super::tensor::{self, Geometry, TensorImplClass, some};
use crate::event::Bytes;
use crate::event::tensors::DType;
use crate::process::memory::ReadMemory;
use crate::python::heap::capture::CaptureMode;

const MAX_SAMPLES: usize = 64;
/// The most tensors of a running process that are read to find [`MIN_LIVING`] among them.
const MAX_SEARCHED: usize = 4096;
/// Number of tensors for the row of the target's own version that is no accident. Measured: of 42 samples 34 had died
/// before they were read, and no other row had a sample in its favour.
const MIN_LIVING: usize = 4;

#[derive(Clone, Debug)]
pub struct Layouts {
    pub(super) tensor: TensorLayout,
    pub(super) storage: StorageLayout,
    /// `None` if no sample shows it.
    pub(super) autograd: Option<AutogradLayout>,
    /// Graph layouts, those of the target's version first, with a flag for these.
    pub(super) nodes: Vec<(NodeLayout, bool)>,
    pub(super) classes: CppClasses,
    pub origin: LayoutOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutOrigin {
    Version,
    OtherVersion,
    Calibrated,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
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
        let classes = CppClasses::default();
        let objects = Objects {
            memory,
            classes: &classes,
        };
        let is_own = |versions: &Versions| is_of(versions, version);
        let row = first_of(TENSORS, |row| is_own(&row.0)).find(|row| {
            let proof = objects.proof(&row.1, row.2, samples);
            let runs_on = manner == CaptureMode::Running && is_own(&row.0);
            proof.is_enough() || runs_on && objects.has_living(&row.1, row.2, tensors)
        });
        let (tensor, storage, origin) = match row {
            Some(row) if is_own(&row.0) => (row.1, row.2, LayoutOrigin::Version),
            Some(row) => (row.1, row.2, LayoutOrigin::OtherVersion),
            None => {
                let found = objects.calibrate(samples).filter(|(tensor, storage)| {
                    objects.proof(tensor, *storage, samples).is_enough()
                });
                let (tensor, storage) =
                    found.ok_or_else(|| LayoutError::UnknownLayout(version.map(str::to_owned)))?;
                (tensor, storage, LayoutOrigin::Calibrated)
            }
        };
        let metas = samples.iter().filter_map(|sample| {
            let object = objects.pointer(*sample, tensor.handle)?;
            objects.pointer(object, tensor.autograd as u64)
        });
        let metas: Vec<u64> = metas.collect();
        let nodes = first_of(NODES, |row| is_own(&row.0));
        Ok(Self {
            autograd: objects.autograd_layout(version, &metas),
            nodes: nodes.map(|row| (row.1, is_own(&row.0))).collect(),
            tensor,
            storage,
            classes,
            origin,
        })
    }

    /// Bytes that are read of the parts of a tensor.
    pub fn sizes(&self) -> PartSizes {
        let meta = self
            .autograd
            .as_ref()
            .map_or(0, |autograd| autograd.size().max(autograd.version + 4));
        PartSizes {
            object: self.tensor.handle + 8,
            tensor: self.tensor.size() as u64,
            meta: meta.max(8) as u64,
        }
    }

    pub fn reader<'a, M>(&'a self, memory: &'a M) -> ObjectReader<'a, M> {
        let classes = &self.classes;
        ObjectReader {
            objects: Objects { memory, classes },
            layouts: self,
        }
    }
}

/// Bytes of the parts of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSizes {
    pub object: u64,
    pub tensor: u64,
    pub meta: u64,
}

#[derive(Debug)]
pub struct ObjectReader<'a, M> {
    pub(super) objects: Objects<'a, M>,
    pub(super) layouts: &'a Layouts,
}

impl<M: ReadMemory> ObjectReader<'_, M> {
    /// Returns the `TensorImpl` of a Python object; `None` unless it is a tensor that points back to it.
    pub fn tensor_of(&self, python_object: u64) -> Option<u64> {
        let layout = &self.layouts.tensor;
        let object = self.objects.pointer(python_object, layout.handle)?;
        let back = self.objects.pointer(object, layout.python as u64)? & !1;
        let is_one = back == python_object && self.objects.is(object, Family::Tensor);
        is_one.then_some(object)
    }

    /// Address of a tensor's metadata of autograd; `None` if it has none.
    pub fn meta_of(&self, tensor: u64) -> Option<u64> {
        let autograd = self.layouts.tensor.autograd as u64;
        self.objects.pointer(tensor, autograd)
    }

    /// Chooses the graph layout by some of the nodes: the row of the target's version unless a node contradicts it,
    /// else the row whose edges fit and that yields most saved tensors.
    pub(super) fn layout_of_nodes(&self, nodes: &[u64]) -> Option<NodeLayout> {
        let nodes = &nodes[..nodes.len().min(MAX_SAMPLES)];
        let mut best: Option<(usize, NodeLayout)> = None;
        for (layout, is_own) in &self.layouts.nodes {
            let proof = Proof::of(nodes, |node| self.proves_edges(layout, node));
            if *is_own && proof.bad == 0 {
                return Some(*layout);
            }
            if !proof.is_enough() {
                continue;
            }
            let originals = self.originals(layout, nodes);
            if best.is_none_or(|(most, _)| originals > most) {
                best = Some((originals, *layout));
            }
        }
        best.map(|(_, layout)| layout)
    }

    fn proves_edges(&self, layout: &NodeLayout, node: u64) -> Option<bool> {
        let mut bytes = vec![0; layout.edges + 24];
        self.objects.memory.read(node, &mut bytes).ok()?;
        let next = self.objects.next(layout, Fields(&bytes))?;
        Some(!next.is_empty())
    }

    /// Number of tensors that nodes and their successors save as originals. A wrong layout yields none.
    fn originals(&self, layout: &NodeLayout, nodes: &[u64]) -> usize {
        let mut originals = 0;
        let mut waiting = nodes.to_vec();
        let mut looked_at = 0;
        while let Some(node) = waiting.get(looked_at).copied() {
            looked_at += 1;
            let Some(read) = self.node(layout, node) else {
                continue;
            };
            let saved = read.saved.tensors.iter().map(|(_, saved)| *saved);
            originals += saved.filter(|saved| *saved == Saved::Original).count();
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
    let is_many = tensors.len() > 2 * MAX_SAMPLES;
    let older = &tensors[if is_many { tensors.len() / 2 } else { 0 }..];
    let step = older.len().div_ceil(MAX_SAMPLES);
    older.iter().step_by(step.max(1)).copied().collect()
}

/// The rows of a table, those that satisfy `is_first` before the others.
fn first_of<T>(rows: &[T], is_first: impl Fn(&T) -> bool + Copy) -> impl Iterator<Item = &T> {
    let others = rows.iter().filter(move |row| !is_first(row));
    rows.iter().filter(move |row| is_first(row)).chain(others)
}

/// Number of samples for and against a layout. Some may fail: tensors under construction or destruction.
#[derive(Clone, Copy, Debug, Default)]
struct Proof {
    good: usize,
    bad: usize,
}

impl Proof {
    /// Counts the verdicts of samples: `Some(true)` if everything fits, in a way that cannot be accidental,
    /// `Some(false)` if nothing contradicts the layout.
    fn of(samples: &[u64], verdict: impl Fn(u64) -> Option<bool>) -> Self {
        let mut proof = Self::default();
        for sample in samples {
            match verdict(*sample) {
                Some(fits) => proof.good += usize::from(fits),
                None => proof.bad += 1,
            }
        }
        proof
    }

    fn is_enough(self) -> bool {
        self.good > 0 && self.bad * 4 <= self.good
    }
}

impl<M: ReadMemory> Objects<'_, M> {
    fn proof(&self, layout: &TensorLayout, storage: StorageLayout, samples: &[u64]) -> Proof {
        Proof::of(samples, |sample| {
            self.proves_tensor(layout, storage, sample)
        })
    }

    /// A weaker test for a running process, where most tensors may die before they are read: [`MIN_LIVING`] fit.
    /// Reads the oldest first, which are likeliest to live.
    fn has_living(&self, layout: &TensorLayout, storage: StorageLayout, tensors: &[u64]) -> bool {
        let oldest = tensors.iter().rev().take(MAX_SEARCHED);
        let living = oldest.filter(|&&it| self.proves_tensor(layout, storage, it) == Some(true));
        living.take(MIN_LIVING).count() == MIN_LIVING
    }

    fn proves_tensor(
        &self,
        layout: &TensorLayout,
        storage: StorageLayout,
        sample: u64,
    ) -> Option<bool> {
        let object = self.pointer(sample, layout.handle)?;
        let class = self.class(object)?;
        let mut bytes = vec![0; layout.size()];
        self.memory.read(object, &mut bytes).ok()?;
        let fields = Fields(&bytes);
        if class.family != Family::Tensor || tensor::python_object(layout, fields) != Some(sample) {
            return None;
        }
        if tensor::kind(&class) != TensorImplClass::Dense || tensor::is_symbolic(layout, fields) {
            return Some(false);
        }
        let geometry = tensor::geometry(self.memory, layout, fields).ok()?;
        let dtype = tensor::dtype(layout, fields).ok()?;
        let device = tensor::place(layout, fields).ok()?;
        let Some(storage_at) = some(fields.word(layout.storage)) else {
            return Some(false);
        };
        let storage = self.storage(storage, storage_at).ok()?;
        if storage.device != device {
            return None;
        }
        let needed = needed(&geometry, dtype)?;
        // A wrapper of other tensors has a shape, but a storage without data.
        Some(needed > 0 && storage.bytes.0 >= needed)
    }

    /// Chooses the layout of autograd metadata: the row of the target's version unless a sample contradicts it, else
    /// the row that most views and leaves with a gradient prove.
    fn autograd_layout(&self, version: Option<&str>, metas: &[u64]) -> Option<AutogradLayout> {
        let is_own = |row: &(Versions, AutogradLayout)| is_of(&row.0, version);
        let mut best: Option<(usize, AutogradLayout)> = None;
        for row in first_of(AUTOGRAD, is_own) {
            let proof = Proof::of(metas, |meta| self.proves_autograd(&row.1, meta));
            // Other rows would read at addresses that lead nowhere, which a copy counts as missing.
            if is_own(row) && (proof.bad == 0 || proof.is_enough()) {
                return Some(row.1);
            }
            let is_better = best.is_none_or(|(good, _)| proof.good > good);
            if proof.is_enough() && is_better {
                best = Some((proof.good, row.1));
            }
        }
        best.map(|(_, layout)| layout)
    }

    fn proves_autograd(&self, layout: &AutogradLayout, meta: u64) -> Option<bool> {
        let read = self.meta(layout, meta)?;
        if read.is_view {
            Some(self.view(layout, meta)?.base.is_some())
        } else {
            Some(read.says_so)
        }
    }
}

/// Bytes that a tensor spans, counted from the beginning of its storage; `None` if the number overflows.
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

pub(super) fn lies_within(geometry: &Geometry, dtype: DType, bytes: Bytes) -> bool {
    needed(geometry, dtype).is_some_and(|needed| needed <= bytes.0)
}

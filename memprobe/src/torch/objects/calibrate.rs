//! Determines the layout of tensors in an unknown version, by the classes of pointed-to objects and by numbers
//! that must agree. Each offset must be the only one that fits every sample.

use super::class::{Family, Fields, Objects};
use super::layout_versions::{DeviceOrder, HANDLES, StorageLayout, TensorLayout};
use super::layouts::{lies_within, needed};
use super::tensor::{self, Geometry, TensorImplClass};
use crate::event::Bytes;
use crate::event::tensors::{DType, TensorDevice};
use crate::process::memory::ReadMemory;
use crate::torch::only;

/// Bytes searched of a `TensorImpl` and of a `StorageImpl`.
const TENSOR_BYTES: usize = 240;
const STORAGE_BYTES: usize = 112;

struct Sample {
    python: u64,
    tensor: Vec<u8>,
}

impl<M: ReadMemory> Objects<'_, M> {
    /// Determines the layout that the samples show. Returns `None` unless exactly one fits.
    pub(super) fn calibrate(&self, samples: &[u64]) -> Option<(TensorLayout, StorageLayout)> {
        let handles = HANDLES.into_iter();
        only(handles.filter_map(|handle| self.calibrate_by(handle, samples)))
    }

    fn calibrate_by(&self, handle: u64, samples: &[u64]) -> Option<(TensorLayout, StorageLayout)> {
        let samples = samples.iter();
        let samples = samples.filter_map(|python| self.sample(handle, *python));
        let samples: Vec<Sample> = samples.collect();
        if samples.is_empty() {
            return None;
        }
        let words = |to: usize| (8..to).step_by(8);
        let all = |at: usize, fits: &dyn Fn(&Sample, u64) -> bool| {
            let mut samples = samples.iter();
            samples.all(|sample| fits(sample, Fields(&sample.tensor).word(at)))
        };
        let is_storage = |_: &Sample, word: u64| self.is(word, Family::Storage);
        let is_autograd = |_: &Sample, word: u64| word == 0 || self.is(word, Family::Autograd);
        let points_back = |sample: &Sample, word: u64| word & !1 == sample.python;
        let python = only(words(TENSOR_BYTES).filter(|at| all(*at, &points_back)))?;
        let storage = only(words(python).filter(|at| all(*at, &is_storage)))?;
        // Every known version has these fields in this order: storage, autograd, one more word, version.
        let autograd = storage + 8;
        if !all(autograd, &is_autograd) {
            return None;
        }
        let candidates = words(TENSOR_BYTES - 120).flat_map(|dimensions| {
            DeviceOrder::ALL.map(|device| TensorLayout {
                handle,
                storage,
                autograd,
                version: storage + 24,
                python,
                dimensions,
                device,
            })
        });
        only(candidates.filter_map(|layout| {
            let tensors = samples.iter();
            let tensors = tensors.map(|sample| read(self.memory, &layout, sample));
            let tensors: Option<Vec<Read>> = tensors.collect();
            Some((layout, calibrate_storage(self.memory, &tensors?)?))
        }))
    }

    fn sample(&self, handle: u64, python: u64) -> Option<Sample> {
        let object = self.pointer(python, handle)?;
        if tensor::kind(&self.class(object)?) != TensorImplClass::Dense {
            return None;
        }
        let mut tensor = vec![0; TENSOR_BYTES];
        self.memory.read(object, &mut tensor).ok()?;
        Some(Sample { python, tensor })
    }
}

struct Read {
    geometry: Geometry,
    dtype: DType,
    device: TensorDevice,
    storage: u64,
}

fn read(memory: &impl ReadMemory, layout: &TensorLayout, sample: &Sample) -> Option<Read> {
    let fields = Fields(&sample.tensor);
    Some(Read {
        geometry: tensor::geometry(memory, layout, fields).ok()?,
        dtype: tensor::dtype(layout, fields).ok()?,
        device: tensor::place(layout, fields).ok()?,
        storage: fields.word(layout.storage),
    })
}

/// Determines the offset of the data pointer in storages. It must be the only one where every storage has its
/// tensor's device and enough bytes for it. At least one storage must have exactly the size of its tensor.
fn calibrate_storage(memory: &impl ReadMemory, tensors: &[Read]) -> Option<StorageLayout> {
    let storages = tensors.iter().map(|tensor| {
        let mut bytes = vec![0; STORAGE_BYTES];
        memory.read(tensor.storage, &mut bytes).ok()?;
        Some((tensor, bytes))
    });
    let storages: Option<Vec<_>> = storages.collect();
    let storages = storages?;
    let candidates = (8..STORAGE_BYTES - 40).step_by(8);
    let candidates = candidates.map(|data| StorageLayout { data });
    only(candidates.filter(|layout| {
        let size = |bytes: &[u8]| Bytes(Fields(bytes).word(layout.data + StorageLayout::BYTES));
        let fits = storages.iter().all(|(tensor, bytes)| {
            let fields = Fields(bytes);
            let place = layout.data + StorageLayout::DEVICE;
            size(bytes).0 < 1 << 60
                && lies_within(&tensor.geometry, tensor.dtype, size(bytes))
                && tensor::device(fields.byte(place), fields.byte(place + 1)) == Some(tensor.device)
        });
        let exact = storages.iter().any(|(tensor, bytes)| {
            let needed = needed(&tensor.geometry, tensor.dtype);
            needed.is_some_and(|needed| needed > 0 && needed == size(bytes).0)
        });
        fits && exact
    }))
}

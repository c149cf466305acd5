//! Determines the layout of tensors in an unknown version, by the classes of pointed-to objects and by
//! numbers that must agree with one another.
//!
//! Plausibility alone is not enough: each offset must be the only one that fits every sample.

use super::bytes::Fields;
use super::class::{Classes, Family};
use super::layout_versions::{DeviceOrder, Handle, StorageLayout, TensorLayout};
use super::layouts::{lies_within, needed};
use super::tensor::{self, Class, Geometry, some};
use crate::event::Bytes;
use crate::event::tensors::{DType, Device};
use crate::process::memory::ReadMemory;

/// Bytes searched of a `TensorImpl` and of a `StorageImpl`.
const TENSOR_BYTES: usize = 240;
const STORAGE_BYTES: usize = 112;

/// A tensor whose fields are searched.
struct Sample {
    python: u64,
    tensor: Vec<u8>,
}

/// Determines the layout that the samples show. Returns `None` unless exactly one fits.
pub(super) fn calibrate(
    memory: &impl ReadMemory,
    classes: &Classes,
    samples: &[u64],
) -> Option<(TensorLayout, StorageLayout)> {
    let found = Handle::ALL
        .into_iter()
        .filter_map(|handle| by_handle(memory, classes, handle, samples));
    only(found)
}

/// The first item of an iterator, or `None` if there is not exactly one.
fn only<T>(mut things: impl Iterator<Item = T>) -> Option<T> {
    let first = things.next()?;
    things.next().is_none().then_some(first)
}

fn by_handle(
    memory: &impl ReadMemory,
    classes: &Classes,
    handle: Handle,
    samples: &[u64],
) -> Option<(TensorLayout, StorageLayout)> {
    let samples: Vec<Sample> = samples
        .iter()
        .filter_map(|python| sample(memory, classes, handle, *python))
        .collect();
    if samples.is_empty() {
        return None;
    }
    let words = |to: usize| (8..to).step_by(8);
    let all = |at: usize, fits: &dyn Fn(&Sample, u64) -> bool| {
        let mut samples = samples.iter();
        samples.all(|sample| fits(sample, Fields(&sample.tensor).word(at)))
    };
    let is_storage = |_: &Sample, word: u64| classes.is(memory, word, Family::Storage);
    let is_autograd =
        |_: &Sample, word: u64| word == 0 || classes.is(memory, word, Family::Autograd);
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
        let tensors = samples.iter().map(|sample| read(memory, &layout, sample));
        let tensors: Option<Vec<Read>> = tensors.collect();
        let storage = calibrate_storage(memory, &tensors?)?;
        Some((layout, storage))
    }))
}

/// Reads a sample: a plain `TensorImpl`.
fn sample(
    memory: &impl ReadMemory,
    classes: &Classes,
    handle: Handle,
    python: u64,
) -> Option<Sample> {
    let object = some(memory.read_u64(python.checked_add(handle.offset())?).ok()?)?;
    let class = classes.of(memory, object)?;
    if tensor::kind(&class) != Class::Dense {
        return None;
    }
    let mut tensor = vec![0; TENSOR_BYTES];
    memory.read(object, &mut tensor).ok()?;
    Some(Sample { python, tensor })
}

/// Fields of a sample, read by a layout.
struct Read {
    geometry: Geometry,
    dtype: DType,
    device: Device,
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
    let candidates = (8..STORAGE_BYTES - 40)
        .step_by(8)
        .map(|data| StorageLayout { data });
    only(candidates.filter(|layout| {
        let size = |bytes: &[u8]| Bytes(Fields(bytes).word(layout.bytes()));
        let fits = storages.iter().all(|(tensor, bytes)| {
            let fields = Fields(bytes);
            let place = layout.device();
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

//! `c10::TensorImpl` and `c10::StorageImpl`: shape, element type, device, memory and autograd state of a tensor.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::NotOne;
use super::class::{CppClass, Family, Fields, Objects};
use super::layout_versions::{DeviceOrder, StorageLayout, TensorLayout};
use super::layouts::ObjectReader;
use crate::event::tensors::{DType, Storage, TensorDevice};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::process::memory::ReadMemory;

/// Upper bound on the size of a storage: 1 EiB. A symbolic size is above (c10/core/SymInt.h).
const MAX_BYTES: u64 = 1 << 60;

/// Most dimensions of a tensor (`dim_bitset_size`, ATen/WrapDimUtilsMulti.h@v2.15.0).
const MAX_DIMENSIONS: u64 = 64;

/// Dimensions stored inside the object (`C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE`).
const INLINE: usize = 5;

/// Upper bound on element types: `c10::NumScalarTypes` is lower in every version.
const MAX_DTYPES: u16 = 64;

/// Number of device types (`COMPILE_TIME_MAX_DEVICE_TYPES`, c10/core/DeviceType.h@v2.15.0).
const MAX_DEVICE_TYPES: u8 = 22;

/// `DeviceType::CPU`, `DeviceType::CUDA` and `DeviceType::Meta`.
const CPU: u8 = 0;
const CUDA: u8 = 1;
const META: u8 = 14;

/// `has_symbolic_sizes_strides_` in the second byte of the flags.
const SYMBOLIC: u8 = 1 << 4;

/// Mangled names of classes that keep their sizes in `TensorImpl` (ATen/SparseTensorImpl.h,
/// ATen/SparseCsrTensorImpl.h, ATen/quantized/QTensorImpl.h).
const DENSE: &str = "N3c1010TensorImplE";
const QUANTIZED: &str = "N2at11QTensorImplE";
const SPARSE: &str = "N2at16SparseTensorImplE";
const SPARSE_ROWS: &str = "N2at19SparseCsrTensorImplE";

/// Placeholder for an undefined tensor (c10/core/UndefinedTensorImpl.h).
pub(super) const UNDEFINED: &str = "N3c1019UndefinedTensorImplE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorImplClass {
    /// A plain `c10::TensorImpl`: strided elements in one storage.
    Dense,
    /// Another class by its mangled name, such as `N2at16SparseTensorImplE`.
    Other(Arc<str>),
}

/// Position of a tensor's elements in its storage, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Geometry {
    /// `shape`; the product fits 64 bits.
    pub shape: Arc<[u64]>,
    /// `stride()`; empty for sparse tensors, which have none.
    pub strides: Vec<i64>,
    /// `storage_offset()`.
    pub offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    pub object: u64,
    pub class: TensorImplClass,
    /// Shape and strides; `None` if they are no plain numbers (symbolic sizes, nested tensors, wrappers).
    /// Tensors of a graph share equal ones.
    pub geometry: Option<Arc<Geometry>>,
    pub dtype: DType,
    pub device: TensorDevice,
    pub storage: Option<u64>,
    pub requires_grad: Option<bool>,
    pub python: Option<NonZeroU64>,
    /// `None` if it refers to nothing but its storage, as most tensors of a large heap.
    pub references: Option<Box<TensorReferences>>,
}

/// Addresses that a tensor refers to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TensorReferences {
    pub grad: Option<u64>,
    pub grad_fn: Option<u64>,
    /// True for a view whose base was changed in place since; the next access makes a new `grad_fn`.
    pub outdated: bool,
    /// The `c10::TensorImpl` that it is a differentiable view of.
    pub base: Option<u64>,
    /// `c10::TensorImpl`s that hold the elements of a sparse tensor.
    pub parts: Vec<u64>,
}

impl RawTensor {
    pub fn references(&self) -> &TensorReferences {
        const NONE: &TensorReferences = &TensorReferences {
            grad: None,
            grad_fn: None,
            outdated: false,
            base: None,
            parts: Vec::new(),
        };
        self.references.as_deref().unwrap_or(NONE)
    }
}

impl<M: ReadMemory> ObjectReader<'_, M> {
    pub(super) fn tensor(&self, object: u64) -> Result<RawTensor, NotOne> {
        let (memory, layout) = (self.objects.memory, &self.layouts.tensor);
        let mut bytes = [0; 256];
        let bytes = &mut bytes[..layout.size().min(256)];
        memory.read(object, bytes)?;
        let fields = Fields(bytes);
        let class = self.objects.class_of_table(fields.word(0));
        let class = class.ok_or(NotOne::Class)?;
        if class.family != Family::Tensor {
            return Err(NotOne::Class);
        }
        if &*class.name == UNDEFINED {
            return Err(NotOne::Undefined);
        }
        let read = self.autograd(fields);
        let autograd = read.unwrap_or_default();
        let references = TensorReferences {
            grad: autograd.grad,
            grad_fn: autograd.grad_fn,
            outdated: autograd.outdated,
            base: autograd.base,
            parts: self.parts(object, &class.name),
        };
        let has_any = references != TensorReferences::default();
        Ok(RawTensor {
            object,
            geometry: shaped(memory, layout, fields, &class.name)?.map(Arc::new),
            dtype: dtype(layout, fields)?,
            device: place(layout, fields)?,
            storage: some(fields.word(layout.storage)),
            requires_grad: read.map(|autograd| autograd.requires_grad),
            python: python_object(layout, fields).and_then(NonZeroU64::new),
            references: has_any.then(|| Box::new(references)),
            class: kind(&class),
        })
    }

    /// The tensors within a sparse one, stored after the `TensorImpl`: indices and values after two counts
    /// (ATen/SparseTensorImpl.h), or row pointers, columns and values (ATen/SparseCsrTensorImpl.h).
    fn parts(&self, object: u64, class: &str) -> Vec<u64> {
        let (start, count) = match class {
            SPARSE => (16, 2),
            SPARSE_ROWS => (0, 3),
            _ => return Vec::new(),
        };
        let at = object.wrapping_add((self.layouts.tensor.size() + start) as u64);
        let word = |word: u64| self.objects.memory.read_u64(at.wrapping_add(word * 8)).ok();
        let words = (0..count).map_while(word);
        words.filter(|part| self.objects.is_tensor(*part)).collect()
    }
}

impl<M: ReadMemory> Objects<'_, M> {
    /// Fails with [`NotOne`] also if its size is symbolic.
    pub(super) fn storage(&self, layout: StorageLayout, object: u64) -> Result<Storage, NotOne> {
        let mut bytes = [0; 128];
        let bytes = &mut bytes[..layout.size().min(128)];
        self.memory.read(object, bytes)?;
        let fields = Fields(bytes);
        if self.family_of_table(fields.word(0)) != Some(Family::Storage) {
            return Err(NotOne::Class);
        }
        let size = fields.word(layout.data + StorageLayout::BYTES);
        if size > MAX_BYTES {
            return Err(NotOne::Fields);
        }
        let place = layout.data + StorageLayout::DEVICE;
        Ok(Storage {
            object,
            data: Address(fields.word(layout.data)),
            bytes: Bytes(size),
            device: device(fields.byte(place), fields.byte(place + 1)).ok_or(NotOne::Fields)?,
            retainer: None,
        })
    }

    /// True if a defined tensor lies at an address.
    pub(super) fn is_tensor(&self, object: u64) -> bool {
        self.class(object)
            .is_some_and(|class| class.family == Family::Tensor && &*class.name != UNDEFINED)
    }
}

pub(super) fn kind(class: &CppClass) -> TensorImplClass {
    match &*class.name {
        DENSE => TensorImplClass::Dense,
        _ => TensorImplClass::Other(Arc::clone(&class.name)),
    }
}

pub(super) fn is_symbolic(layout: &TensorLayout, fields: Fields<'_>) -> bool {
    fields.byte(layout.dimensions + TensorLayout::FLAGS) & SYMBOLIC != 0
}

/// The Python object of a tensor. The lowest bit is set if the tensor owns it (c10/core/impl/PyObjectSlot.h@v2.6.0).
pub(super) fn python_object(layout: &TensorLayout, fields: Fields<'_>) -> Option<u64> {
    some(fields.word(layout.python) & !1)
}

pub(super) fn some(address: u64) -> Option<u64> {
    (address != 0).then_some(address)
}

fn shaped(
    memory: &impl ReadMemory,
    layout: &TensorLayout,
    fields: Fields<'_>,
    class: &str,
) -> Result<Option<Geometry>, NotOne> {
    if is_symbolic(layout, fields) {
        return Ok(None);
    }
    match class {
        DENSE | QUANTIZED => geometry(memory, layout, fields).map(Some),
        SPARSE | SPARSE_ROWS => Ok(Some(Geometry {
            strides: Vec::new(),
            offset: 0,
            ..geometry(memory, layout, fields)?
        })),
        _ => Ok(None),
    }
}

pub(super) fn geometry(
    memory: &impl ReadMemory,
    layout: &TensorLayout,
    fields: Fields<'_>,
) -> Result<Geometry, NotOne> {
    let dimensions = fields.word(layout.dimensions);
    if dimensions > MAX_DIMENSIONS {
        return Err(NotOne::Fields);
    }
    let count = dimensions as usize;
    let (sizes, strides) = if count <= INLINE {
        let words = |at: usize| (0..count).map(move |word| fields.word(at + word * 8));
        (
            words(layout.dimensions + TensorLayout::SIZES).collect(),
            words(layout.dimensions + TensorLayout::STRIDES).collect::<Vec<_>>(),
        )
    } else {
        let bytes = memory.read_bytes(
            fields.word(layout.dimensions + TensorLayout::SIZES),
            dimensions * 16,
            1024,
        )?;
        let outside = Fields(&bytes);
        let words = |at: usize| (at..at + count).map(move |word| outside.word(word * 8));
        (words(0).collect::<Vec<_>>(), words(count).collect())
    };
    let offset = fields.word(layout.dimensions + TensorLayout::OFFSET);
    let elements = product(&sizes).ok_or(NotOne::Fields)?;
    if elements != fields.word(layout.dimensions + TensorLayout::ELEMENTS)
        || i64::try_from(offset).is_err()
    {
        return Err(NotOne::Fields);
    }
    Ok(Geometry {
        shape: sizes.into(),
        strides: strides.into_iter().map(u64::cast_signed).collect(),
        offset,
    })
}

/// Number of elements. Returns `None` if a size is negative or the product overflows.
fn product(sizes: &[u64]) -> Option<u64> {
    if sizes.iter().any(|&size| i64::try_from(size).is_err()) {
        return None;
    }
    if sizes.contains(&0) {
        return Some(0);
    }
    let mut sizes = sizes.iter();
    sizes.try_fold(1_u64, |product, &size| product.checked_mul(size))
}

pub(super) fn dtype(layout: &TensorLayout, fields: Fields<'_>) -> Result<DType, NotOne> {
    let number = fields.half(layout.dimensions + TensorLayout::DTYPE);
    (number < MAX_DTYPES)
        .then_some(DType(number))
        .ok_or(NotOne::Fields)
}

pub(super) fn place(layout: &TensorLayout, fields: Fields<'_>) -> Result<TensorDevice, NotOne> {
    let byte = |at: usize| fields.byte(layout.dimensions + TensorLayout::DEVICE + at);
    let [present, kind, index] = match layout.device {
        DeviceOrder::PresenceFirst => [byte(0), byte(1), byte(2)],
        DeviceOrder::PresenceLast => [byte(2), byte(0), byte(1)],
    };
    let device = device(kind, index).filter(|_| present == 1);
    device.ok_or(NotOne::Fields)
}

/// Decodes a `c10::Device`. Index -1 stands for the only device of a type.
pub(super) fn device(kind: u8, index: u8) -> Option<TensorDevice> {
    let index = index.cast_signed();
    match kind {
        CPU | META if !(-1..=0).contains(&index) => None,
        CPU => Some(TensorDevice::Cpu),
        META => Some(TensorDevice::Meta),
        CUDA => Some(TensorDevice::Cuda(DeviceIndex(index.try_into().ok()?))),
        _ => (kind < MAX_DEVICE_TYPES && index >= -1).then_some(TensorDevice::Other(kind)),
    }
}

//! The tensors of a process at one moment, as plain data: the result of `inspect` and the content of a
//! `memprobe snapshot` file.
//!
//! Three layers, as in PyTorch: the caching allocator's blocks, the storages in them, and the tensors that
//! view storages. Sums are computed in `tensors`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use strum::{EnumString, IntoStaticStr};

use crate::event::{
    Address, Bytes, CalledModule, DeviceIndex, Frame, KvCaches, StepSettings, TaggedAllocation,
    Target, TimeNs, Totals,
};

#[derive(Clone, Debug, PartialEq, Default)]
pub struct TensorSnapshot {
    /// The process. Its strings come from the target and may contain anything; views sanitize them.
    pub target: Target,
    /// The wall-clock time, in milliseconds since 1970 (UTC).
    pub taken_ms: u64,
    /// The same moment on the clock of the events; 0 if not known to the nanosecond.
    pub moment: TimeNs,
    pub consistency: Consistency,
    /// The caching allocator's own totals, by device; empty without an allocator.
    pub devices: Vec<DeviceTotals>,
    /// The allocator's live blocks, by device and address.
    pub blocks: Vec<Block>,
    /// Storages, in no particular order, without duplicates.
    pub storages: Vec<Storage>,
    /// Tensors, in no particular order, without duplicates.
    pub tensors: Vec<Tensor>,
    /// The number of Python objects that were examined.
    pub objects: u64,
    /// The settings of the optimizers' parameter groups; empty if read from a file.
    pub optimizers: Vec<StepSettings>,
    /// Data that could not be read, with the reason, as text for people.
    pub unread: Vec<Arc<str>>,
    /// The most tensors that memprobe reads, if the process has more. The others are missing here, and their blocks
    /// seem to have no tensor.
    pub limit: Option<u64>,
    /// Reason for which some of Python's objects are missing, as text for people: then tensors may be missing too.
    pub missing_objects: Option<Arc<str>>,
    /// True if the process has more Python objects, or more memory with them, than memprobe reads; false if read from a
    /// file.
    pub has_more_objects: bool,
    /// The KV caches that a server's scheduler divides among requests.
    pub kv: KvCaches,
    /// Allocations that the program itself has tagged; empty if read from a file.
    pub tags: Vec<TaggedAllocation>,
}

impl TensorSnapshot {
    /// True if every tensor was read: then a block without one has none.
    pub fn has_all_tensors(&self) -> bool {
        self.limit.is_none() && self.missing_objects.is_none()
    }

    /// True if the process has more tensors or Python objects than memprobe reads: another reading would miss as many.
    pub const fn has_reached_limit(&self) -> bool {
        self.limit.is_some() || self.has_more_objects
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    /// The process was paused while memprobe read it.
    Paused {
        pause: Duration,
        /// The number of earlier stops that hit a garbage collection; the process was resumed after each.
        retries: u32,
    },
    /// The process kept running.
    #[default]
    Running,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTotals {
    pub device: DeviceIndex,
    pub totals: Totals,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub addr: Address,
    /// Bytes, as the allocator rounded them.
    pub size: Bytes,
    /// The requested bytes; `None` if unknown.
    pub requested: Option<Bytes>,
    pub device: DeviceIndex,
    /// The line that allocated it; `None` if the allocation was not recorded.
    pub site: Option<Arc<Frame>>,
    /// The purpose according to the events, as text: a library's workspace, scratch, a tensor. `None` if it
    /// was not recorded.
    pub purpose: Option<Arc<str>>,
}

/// The device of a storage or a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorDevice {
    #[default]
    Cpu,
    Cuda(DeviceIndex),
    /// `meta`, which has no memory.
    Meta,
    /// Any other device, by its number in `c10::DeviceType` (c10/core/DeviceType.h@v2.15.0).
    Other(u8),
}

/// An element type, by its number in `c10::ScalarType` (c10/core/ScalarType.h@v2.15.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DType(pub u16);

/// A `c10::StorageImpl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// The object's address in the target's host memory.
    pub object: u64,
    /// `untyped_storage().data_ptr()`; 0 without data.
    pub data: Address,
    /// `untyped_storage().nbytes()`.
    pub bytes: Bytes,
    pub device: TensorDevice,
    /// The retainer; `None` if no named object leads to the storage.
    pub retainer: Option<Arc<Retainer>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retainer {
    /// The variable, or all slots of a container: `train.py:12 main() -> losses[*]`.
    pub by: Arc<str>,
    /// The class of the container, the module or the optimizer: `list`. `None` if `by` is a variable that
    /// refers to the tensor itself.
    pub class: Option<Arc<str>>,
    /// The tensor in it that leads there: `train.py:12 main() -> losses[17]`; `None` if that tensor has no
    /// name of its own.
    pub slot: Option<Arc<str>>,
    /// The first reference beyond that tensor: `grad_fn AddmmBackward0`, `.grad`; `None` if the memory is the
    /// tensor's own.
    pub through: Option<Arc<str>>,
    /// True if no other retainer was found.
    pub exclusive: bool,
}

/// A `c10::TensorImpl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The object's address in the target's host memory.
    pub object: u64,
    pub kind: TensorKind,
    /// The names, best first; empty if it has none.
    pub names: Vec<Name>,
    /// `shape`, in elements; `None` if it cannot be determined (nested tensors, symbolic sizes).
    pub shape: Option<Arc<[u64]>>,
    /// `stride()`, in elements; empty if it cannot be determined (sparse tensors).
    pub strides: Arc<[u64]>,
    /// `storage_offset()`, in elements.
    pub offset: u64,
    pub dtype: DType,
    pub device: TensorDevice,
    /// The index in [`TensorSnapshot::storages`]; `None` without a storage (meta, sparse).
    pub storage: Option<usize>,
    /// The bytes of the tensors within a sparse one, its indices and values; `None` for others.
    pub content: Option<Bytes>,
    pub requires_grad: bool,
    /// `grad_fn.name()`, such as `AddmmBackward0`; `None` for a leaf.
    pub grad_fn: Option<Arc<str>>,
    /// Indices in [`TensorSnapshot::tensors`] of the tensors whose `.grad` this is.
    pub gradient_of: Vec<usize>,
    /// The operation that saves it for the backward pass, such as `MulBackward0`.
    pub saved_by: Option<Arc<str>>,
    /// The path of the module that it belongs to, such as `model.layers.0.mlp`.
    pub module: Option<Arc<str>>,
    /// The same module as its calls name it; of a live process only, not of one read from a file.
    pub called: Option<CalledModule>,
    /// The name of its Python type (`Tensor`, `Parameter`); `None` if no Python object wraps it.
    pub class: Option<Arc<str>>,
}

/// The role of a tensor, from exact rules only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum TensorKind {
    /// An entry in a module's `_parameters`.
    Parameter,
    /// An entry in a module's `_buffers`.
    Buffer,
    /// The `.grad` of another tensor.
    Gradient,
    /// An entry in an optimizer's `state`.
    OptimizerState,
    /// In a cache of keys and values of transformers.
    KvCache,
    /// Saved for the backward pass by a live node of the graph, with no other known reference.
    Saved,
    /// None of the other kinds.
    Tensor,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Examples: `layers.0.weight`, `opt_g.exp_avg[G.0.weight]`, `Adam.exp_avg[layers.0.weight]`, `train.py:31 train() -> x`, `cache['kv'][0]`.
    pub text: Arc<str>,
    /// The rule that inferred it; `None` for a name that follows references only.
    pub inferred: Option<&'static str>,
}

impl Default for Tensor {
    fn default() -> Self {
        Self {
            object: 0,
            kind: TensorKind::Tensor,
            names: Vec::new(),
            shape: Some(Arc::default()),
            strides: Arc::default(),
            offset: 0,
            dtype: DType::FLOAT32,
            device: TensorDevice::Cpu,
            storage: None,
            content: None,
            requires_grad: false,
            grad_fn: None,
            gradient_of: Vec::new(),
            saved_by: None,
            module: None,
            called: None,
            class: None,
        }
    }
}

impl Tensor {
    /// `numel()`; `None` if the shape is unknown.
    pub fn elements(&self) -> Option<u64> {
        let sizes = self.shape.as_ref()?.iter();
        Some(sizes.fold(1, |product, &size| product.saturating_mul(size)))
    }

    /// `numel() * element_size()`, or the content of a sparse tensor; `None` for an unknown shape or element type.
    pub fn bytes(&self) -> Option<Bytes> {
        if self.content.is_some() {
            return self.content;
        }
        let size = self.dtype.size()?;
        Some(Bytes(self.elements()?.saturating_mul(size)))
    }
}

impl TensorKind {
    /// Every kind, most specific first.
    pub const ALL: [Self; 7] = [
        Self::Parameter,
        Self::Buffer,
        Self::OptimizerState,
        Self::Gradient,
        Self::KvCache,
        Self::Saved,
        Self::Tensor,
    ];
}

impl Name {
    /// The rules that infer names. A name read from a file has one of these, or [`Self::UNKNOWN_RULE`].
    pub const RULES: &[&str] = &[Self::BY_CLASS];
    /// The rule for a module that no variable leads to.
    pub const BY_CLASS: &str = "no variable leads to its module: named by the module's class";
    /// A rule that this version of memprobe does not know.
    pub const UNKNOWN_RULE: &str = "a rule that this memprobe does not know";

    pub fn rule(words: &str) -> &'static str {
        let known = Self::RULES.iter().find(|rule| **rule == words);
        known.copied().unwrap_or(Self::UNKNOWN_RULE)
    }
}

/// Prefix of a device that is known only by its number.
const OTHER_DEVICE: &str = "device type ";
/// Prefix of an element type that is known only by its number.
const OTHER_DTYPE: &str = "dtype ";

impl TensorDevice {
    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "cpu" => Some(Self::Cpu),
            "meta" => Some(Self::Meta),
            "cuda:?" => Some(Self::Cuda(DeviceIndex::UNKNOWN)),
            _ => match text.strip_prefix("cuda:") {
                Some(index) => digits(index).map(DeviceIndex).map(Self::Cuda),
                None => digits(text.strip_prefix(OTHER_DEVICE)?).map(Self::Other),
            },
        }
    }
}

/// Parses a number without a sign.
fn digits<N: std::str::FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

impl fmt::Display for TensorDevice {
    /// Writes the device as PyTorch does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(index) => fmt::Display::fmt(index, f),
            Self::Meta => f.pad("meta"),
            Self::Other(number) => f.pad(&format!("{OTHER_DEVICE}{number}")),
        }
    }
}

/// Name and element size in bytes of each type, by number. Types that pack several numbers into a byte have size 1 (torch/headeronly/core/ScalarType.h@v2.15.0).
const DTYPES: &[(&str, u64)] = &[
    ("uint8", 1),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("bool", 1),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("bfloat16", 2),
    ("quint4x2", 1),
    ("quint2x4", 1),
    ("bits1x8", 1),
    ("bits2x4", 1),
    ("bits4x2", 1),
    ("bits8", 1),
    ("bits16", 2),
    ("float8_e5m2", 1),
    ("float8_e4m3fn", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e4m3fnuz", 1),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("uint1", 1),
    ("uint2", 1),
    ("uint3", 1),
    ("uint4", 1),
    ("uint5", 1),
    ("uint6", 1),
    ("uint7", 1),
    ("int1", 1),
    ("int2", 1),
    ("int3", 1),
    ("int4", 1),
    ("int5", 1),
    ("int6", 1),
    ("int7", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("bcomplex32", 4),
];

impl DType {
    pub const FLOAT32: Self = Self(6);
    pub const FLOAT64: Self = Self(7);

    /// PyTorch's name without `torch.`; `None` for an unknown number.
    pub fn name(self) -> Option<&'static str> {
        Some(DTYPES.get(usize::from(self.0))?.0)
    }

    /// The element size in bytes; `None` for an unknown number.
    pub fn size(self) -> Option<u64> {
        Some(DTYPES.get(usize::from(self.0))?.1)
    }

    /// Parses the output of `Display`.
    pub fn parse(name: &str) -> Option<Self> {
        match DTYPES.iter().position(|(word, _)| *word == name) {
            Some(number) => u16::try_from(number).ok().map(Self),
            None => digits(name.strip_prefix(OTHER_DTYPE)?).map(Self),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => f.pad(&format!("{OTHER_DTYPE}{}", self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_element_types_are_read_as_they_are_written() {
        for device in [
            TensorDevice::Cpu,
            TensorDevice::Meta,
            TensorDevice::Cuda(DeviceIndex(0)),
            TensorDevice::Cuda(DeviceIndex::UNKNOWN),
            TensorDevice::Other(13),
        ] {
            assert_eq!(TensorDevice::parse(&device.to_string()), Some(device));
        }
        for number in 0..200 {
            assert_eq!(
                DType::parse(&DType(number).to_string()),
                Some(DType(number))
            );
        }
        for wrong in [
            "",
            "cuda",
            "cuda:",
            "cuda:+1",
            "cuda:256",
            "device type -1",
            "CPU",
        ] {
            assert_eq!(TensorDevice::parse(wrong), None, "{wrong}");
        }
        assert_eq!(DType::parse("dtype 70000"), None);
    }
}

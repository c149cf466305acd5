//! The tensors of a process at one moment, as plain data: what `inspect` finds in the memory of the target,
//! and what a file of `memprobe snapshot` keeps.
//!
//! Three layers, as PyTorch has them: the caching allocator's blocks, the storages that lie in them, the
//! tensors that look at storages. Nothing is added up here; that is `model::tensors`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{Address, Bytes, DeviceIndex, Frame, TimeNs, Totals};
use crate::model::snapshot::Target;

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TensorSnapshot {
    /// The process. Texts come from it and may hold anything: views clean them.
    pub target: Target,
    /// When, in milliseconds since 1970 (UTC).
    pub taken_ms: u64,
    /// The same on the clock of the events; 0 where it is not known to the nanosecond.
    pub moment: TimeNs,
    /// How far what was read belongs to one moment.
    pub consistency: Consistency,
    /// The caching allocator's own totals, by device; empty where there is none.
    pub devices: Vec<DeviceTotals>,
    /// The allocator's live blocks, by device and address.
    pub blocks: Vec<Block>,
    /// Storages, in no particular order; none twice.
    pub storages: Vec<Storage>,
    /// Tensors, in no particular order; none twice.
    pub tensors: Vec<Tensor>,
    /// Python objects that were looked at.
    pub objects: u64,
    /// What could not be read, and why, in words for people.
    pub unread: Vec<Arc<str>>,
}

/// How far what was read belongs to one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    /// The process stood still while it was read.
    Paused {
        /// For how long.
        pause: Duration,
        /// How often it was stopped before it could be read: it was stopped in the middle of a
        /// garbage collection, and was let go on.
        retries: u32,
    },
    /// The process ran on.
    #[default]
    Running,
}

/// The allocator's own word on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTotals {
    /// The device.
    pub device: DeviceIndex,
    /// Its totals.
    pub totals: Totals,
}

/// A live block of the caching allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Its address in device memory.
    pub addr: Address,
    /// Its bytes, as the allocator rounded them.
    pub size: Bytes,
    /// The bytes that were asked for; `None` where this is not known.
    pub requested: Option<Bytes>,
    /// Its device.
    pub device: DeviceIndex,
    /// The line that allocated it; `None` where that was not watched.
    pub site: Option<Frame>,
    /// What it was asked for, in words, by the events: a library's workspace, scratch, a tensor. `None`
    /// where that was not watched, or not told.
    pub purpose: Option<Arc<str>>,
}

/// Where a storage or a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// `cpu`.
    Cpu,
    /// `cuda:0`.
    Cuda(DeviceIndex),
    /// `meta`: it has no memory.
    Meta,
    /// Another, by its number in `c10::DeviceType` (c10/core/DeviceType.h@v2.15.0).
    Other(u8),
}

/// An element type, by its number in `c10::ScalarType` (c10/core/ScalarType.h@v2.15.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DType(pub u16);

/// A `c10::StorageImpl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Where the object lies in the target's own memory.
    pub object: u64,
    /// Its data: `untyped_storage().data_ptr()`; 0 where there are none.
    pub data: Address,
    /// `untyped_storage().nbytes()`.
    pub bytes: Bytes,
    /// Where the data lie.
    pub device: Device,
    /// Who keeps it alive; `None` where no name leads to it.
    pub kept: Option<Arc<Kept>>,
}

/// Who keeps memory alive: a way of references from a variable to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// The variable, or all slots of a container: `train.py:12 main() -> losses[*]`.
    pub by: Arc<str>,
    /// The class of that container, of the module or of the optimizer: `list`. `None` where `by` is a variable of
    /// the tensor itself.
    pub class: Option<Arc<str>>,
    /// The tensor of it that leads there: `train.py:12 main() -> losses[17]`; `None` where it has no name of its own.
    pub slot: Option<Arc<str>>,
    /// The first step beyond that tensor: `grad_fn AddmmBackward0`, `.grad`; `None` where the memory is its own.
    pub through: Option<Arc<str>>,
    /// Nobody else was found who keeps it.
    pub alone: bool,
}

/// A `c10::TensorImpl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Where the object lies in the target's own memory.
    pub object: u64,
    /// What it is for.
    pub kind: TensorKind,
    /// Its names, the best first; empty where it has none.
    pub names: Vec<Name>,
    /// `shape`, in elements; `None` where it cannot be told (nested tensors, sizes that are symbols).
    pub shape: Option<Vec<u64>>,
    /// `stride()`, in elements; empty where they cannot be told (sparse tensors).
    pub strides: Vec<u64>,
    /// `storage_offset()`, in elements.
    pub offset: u64,
    /// Its element type.
    pub dtype: DType,
    /// Where it lies.
    pub device: Device,
    /// Which of [`TensorSnapshot::storages`] it looks at; `None` where it has none (meta, sparse).
    pub storage: Option<usize>,
    /// `requires_grad`.
    pub requires_grad: bool,
    /// `grad_fn.name()`, such as `AddmmBackward0`; `None` for a leaf.
    pub grad_fn: Option<Arc<str>>,
    /// It is the `.grad` of these of [`TensorSnapshot::tensors`].
    pub gradient_of: Vec<usize>,
    /// The operation that keeps it for the backward pass, such as `MulBackward0`.
    pub saved_by: Option<Arc<str>>,
    /// The path of the module that it belongs to, such as `model.layers.0.mlp`.
    pub module: Option<Arc<str>>,
    /// The same from the class of the module at the top of its tree, such as `GPT.layers.0.mlp`; of parameters and buffers,
    /// where they were read just now.
    pub called: Option<Arc<str>>,
    /// The name of its Python type (`Tensor`, `Parameter`); `None` where no Python object stands for it.
    pub class: Option<Arc<str>>,
}

/// What a tensor is for, by exact rules alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorKind {
    /// In the `_parameters` of a module.
    Parameter,
    /// In the `_buffers` of a module.
    Buffer,
    /// The `.grad` of another.
    Gradient,
    /// In the `state` of an optimizer.
    OptimizerState,
    /// Kept for the backward pass by a live node of the graph, and by nothing else that is known.
    Saved,
    /// Anything else.
    Tensor,
}

/// A name of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Such as `layers.0.weight`, `Adam.exp_avg[layers.0.weight]`, `train.py:31 train() -> x`,
    /// `cache['kv'][0]`.
    pub text: Arc<str>,
    /// The rule that inferred it; `None` for a name that follows references alone.
    pub inferred: Option<&'static str>,
}

impl Default for Tensor {
    fn default() -> Self {
        Self {
            object: 0,
            kind: TensorKind::Tensor,
            names: Vec::new(),
            shape: Some(Vec::new()),
            strides: Vec::new(),
            offset: 0,
            dtype: DType::FLOAT32,
            device: Device::Cpu,
            storage: None,
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
    /// `numel()`; `None` where the shape is not known.
    pub fn elements(&self) -> Option<u64> {
        let sizes = self.shape.as_ref()?.iter();
        Some(sizes.fold(1, |product, &size| product.saturating_mul(size)))
    }

    /// `numel() * element_size()`; `None` for a shape or an element type that memprobe does not know.
    pub fn bytes(&self) -> Option<Bytes> {
        let size = self.dtype.size()?;
        Some(Bytes(self.elements()?.saturating_mul(size)))
    }
}

impl TensorKind {
    /// All of them, the most telling first.
    pub const ALL: [Self; 6] = [
        Self::Parameter,
        Self::Buffer,
        Self::OptimizerState,
        Self::Gradient,
        Self::Saved,
        Self::Tensor,
    ];

    /// The word used in files and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Buffer => "buffer",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer_state",
            Self::Saved => "saved",
            Self::Tensor => "tensor",
        }
    }

    /// The kind that [`Self::as_str`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl Name {
    /// The rules that infer names. What is read from a file is one of these.
    pub const RULES: &[&str] = &[Self::BY_CLASS];
    /// The rule for a module that no variable leads to.
    pub const BY_CLASS: &str = "no variable leads to its module: named by the module's class";
    /// Stands for a rule that this memprobe does not know.
    pub const UNKNOWN_RULE: &str = "a rule that this memprobe does not know";

    /// The rule of these words.
    pub fn rule(words: &str) -> &'static str {
        let known = Self::RULES.iter().find(|rule| **rule == words);
        known.copied().unwrap_or(Self::UNKNOWN_RULE)
    }
}

/// How a device is written whose type memprobe knows by its number alone.
const OTHER_DEVICE: &str = "device type ";
/// Likewise of an element type.
const OTHER_DTYPE: &str = "dtype ";

impl Device {
    /// The device that its `Display` wrote.
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

/// A plain number, without a sign.
fn digits<N: std::str::FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

impl fmt::Display for Device {
    /// As PyTorch writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(index) => fmt::Display::fmt(index, f),
            Self::Meta => f.pad("meta"),
            Self::Other(number) => f.pad(&format!("{OTHER_DEVICE}{number}")),
        }
    }
}

/// Name and bytes of an element of each type, by number; those of `None` are unused. Those that pack
/// several numbers into a byte have one byte (torch/headeronly/core/ScalarType.h@v2.15.0).
const DTYPES: &[Option<(&str, u64)>] = &[
    Some(("uint8", 1)),
    Some(("int8", 1)),
    Some(("int16", 2)),
    Some(("int32", 4)),
    Some(("int64", 8)),
    Some(("float16", 2)),
    Some(("float32", 4)),
    Some(("float64", 8)),
    Some(("complex32", 4)),
    Some(("complex64", 8)),
    Some(("complex128", 16)),
    Some(("bool", 1)),
    Some(("qint8", 1)),
    Some(("quint8", 1)),
    Some(("qint32", 4)),
    Some(("bfloat16", 2)),
    Some(("quint4x2", 1)),
    Some(("quint2x4", 1)),
    Some(("bits1x8", 1)),
    Some(("bits2x4", 1)),
    Some(("bits4x2", 1)),
    Some(("bits8", 1)),
    Some(("bits16", 2)),
    Some(("float8_e5m2", 1)),
    Some(("float8_e4m3fn", 1)),
    Some(("float8_e5m2fnuz", 1)),
    Some(("float8_e4m3fnuz", 1)),
    Some(("uint16", 2)),
    Some(("uint32", 4)),
    Some(("uint64", 8)),
    Some(("uint1", 1)),
    Some(("uint2", 1)),
    Some(("uint3", 1)),
    Some(("uint4", 1)),
    Some(("uint5", 1)),
    Some(("uint6", 1)),
    Some(("uint7", 1)),
    Some(("int1", 1)),
    Some(("int2", 1)),
    Some(("int3", 1)),
    Some(("int4", 1)),
    Some(("int5", 1)),
    Some(("int6", 1)),
    Some(("int7", 1)),
    Some(("float8_e8m0fnu", 1)),
    Some(("float4_e2m1fn_x2", 1)),
    Some(("bcomplex32", 4)),
];

impl DType {
    /// `torch.float32`.
    pub const FLOAT32: Self = Self(6);

    /// `torch.float64`.
    pub const FLOAT64: Self = Self(7);

    /// As PyTorch writes it, without `torch.`; `None` for a number that memprobe does not know.
    pub fn name(self) -> Option<&'static str> {
        Some(self.row()?.0)
    }

    /// Bytes of an element; `None` for a number that memprobe does not know.
    pub fn size(self) -> Option<u64> {
        Some(self.row()?.1)
    }

    /// The type that its `Display` wrote.
    pub fn parse(name: &str) -> Option<Self> {
        let is_it = |row: &Option<(&str, u64)>| row.is_some_and(|(word, _)| word == name);
        match DTYPES.iter().position(is_it) {
            Some(number) => u16::try_from(number).ok().map(Self),
            None => digits(name.strip_prefix(OTHER_DTYPE)?).map(Self),
        }
    }

    fn row(self) -> Option<(&'static str, u64)> {
        *DTYPES.get(usize::from(self.0))?
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
            Device::Cpu,
            Device::Meta,
            Device::Cuda(DeviceIndex(0)),
            Device::Cuda(DeviceIndex::UNKNOWN),
            Device::Other(13),
        ] {
            assert_eq!(Device::parse(&device.to_string()), Some(device));
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
            assert_eq!(Device::parse(wrong), None, "{wrong}");
        }
        assert_eq!(DType::parse("dtype 70000"), None);
    }
}

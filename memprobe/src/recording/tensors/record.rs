//! Serialized form of a tensor snapshot. The input is untrusted; the snapshot returned is checked.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::KvCachesRecord;
use super::bounded::Bounded;
use super::{MAX_ITEMS, MAX_OF_ONE};
use crate::event::tensors::{
    Block, Consistency, DType, DeviceTotals, Name, Storage, Tensor, TensorDevice, TensorSnapshot,
};
use crate::event::{
    Address, Bytes, DeviceIdentity, DeviceIndex, Frame, Target, Tgid, TimeNs, Totals,
};
use crate::recording::{RetainerRecord, hex};

/// `kind` of rows for memory without a tensor, which the reader skips: `blocks` and `storages` hold it.
const BLOCK: &str = "block";

#[derive(Deserialize)]
struct Format {
    memprobe_snapshot: u32,
}

/// Returns the format number, even of a truncated document; `None` if the document starts differently.
pub(super) fn format(text: &str) -> Option<u32> {
    if let Ok(Format { memprobe_snapshot }) = serde_json::from_str(text) {
        return Some(memprobe_snapshot);
    }
    // A truncated document is not valid JSON, but its beginning identifies it.
    let rest = text.trim_start().strip_prefix('{')?.trim_start();
    let rest = rest.strip_prefix("\"memprobe_snapshot\"")?.trim_start();
    let rest = rest.strip_prefix(':')?.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    rest[..digits.unwrap_or(rest.len())].parse().ok()
}

#[derive(Deserialize)]
pub(super) struct SnapshotRecord<'a> {
    pid: Option<u32>,
    inner_pid: Option<u32>,
    container: Option<String>,
    command: String,
    python: Option<String>,
    torch: Option<String>,
    #[serde(default)]
    gpus: Bounded<DeviceIdentity, 256>,
    taken_ms: u64,
    /// Time on the clock of the recorded machine; 0 if unknown.
    #[serde(default)]
    moment_ns: u64,
    /// `null` if the process was not paused.
    pause_ms: Option<f64>,
    #[serde(default)]
    retries: u32,
    objects: u64,
    unread: Bounded<Box<str>, MAX_OF_ONE>,
    #[serde(default)]
    tensor_limit: Option<u64>,
    #[serde(default)]
    missing_objects: Option<Box<str>>,
    #[serde(borrow, default)]
    kv_cache: Option<KvCachesRecord<'a>>,
    totals: Bounded<TotalsRecord<'a>, 256>,
    #[serde(borrow)]
    tensors: Bounded<Item<'a>, MAX_ITEMS>,
    #[serde(borrow)]
    storages: Bounded<StorageRecord<'a>, MAX_ITEMS>,
    #[serde(borrow)]
    blocks: Bounded<BlockRecord<'a>, MAX_ITEMS>,
}

#[derive(Deserialize)]
struct TotalsRecord<'a> {
    #[serde(borrow)]
    device: Cow<'a, str>,
    /// `null` if the allocator was not read.
    allocated: Option<u64>,
    reserved: Option<u64>,
}

/// Tensor, or a block listed among the tensors.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    object: Option<Cow<'a, str>>,
    #[serde(default)]
    names: Bounded<Box<str>, MAX_OF_ONE>,
    /// For each name, the rule that inferred it; empty if none was inferred.
    #[serde(borrow, default)]
    inferred: Bounded<Option<Cow<'a, str>>, MAX_OF_ONE>,
    shape: Option<Bounded<u64, MAX_OF_ONE>>,
    #[serde(default)]
    strides: Bounded<u64, MAX_OF_ONE>,
    #[serde(default)]
    offset: u64,
    dtype: Option<Cow<'a, str>>,
    #[serde(borrow)]
    device: Cow<'a, str>,
    bytes: Option<u64>,
    storage_index: Option<usize>,
    #[serde(default)]
    requires_grad: bool,
    grad_fn: Option<Box<str>>,
    #[serde(default)]
    gradient_of: Bounded<usize, MAX_OF_ONE>,
    saved_by: Option<Box<str>>,
    module: Option<Box<str>>,
    class: Option<Box<str>>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StorageRecord<'a> {
    #[serde(borrow)]
    object: Cow<'a, str>,
    #[serde(borrow)]
    data: Cow<'a, str>,
    bytes: u64,
    #[serde(borrow)]
    device: Cow<'a, str>,
    #[serde(borrow, alias = "kept", skip_serializing_if = "Option::is_none")]
    retained_by: Option<RetainerRecord<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct BlockRecord<'a> {
    #[serde(borrow)]
    addr: Cow<'a, str>,
    bytes: u64,
    /// Bytes requested; `null` if unknown.
    requested: Option<u64>,
    #[serde(borrow)]
    device: Cow<'a, str>,
    site: Option<SiteRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purpose: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct SiteRecord<'a> {
    file: Cow<'a, str>,
    line: Option<u32>,
    function: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Frame> for SiteRecord<'a> {
    fn from(frame: &'a Frame) -> Self {
        Self {
            file: (&*frame.file).into(),
            line: (frame.line != 0).then_some(frame.line),
            function: (&*frame.function).into(),
            library: frame.library.as_deref().map(Into::into),
        }
    }
}

impl<'a> From<&'a Storage> for StorageRecord<'a> {
    fn from(storage: &'a Storage) -> Self {
        Self {
            object: format!("{:#x}", storage.object).into(),
            data: storage.data.to_string().into(),
            bytes: storage.bytes.0,
            device: storage.device.to_string().into(),
            retained_by: storage.retainer.as_deref().map(RetainerRecord::from),
        }
    }
}

impl<'a> From<&'a Block> for BlockRecord<'a> {
    fn from(block: &'a Block) -> Self {
        Self {
            addr: block.addr.to_string().into(),
            bytes: block.size.0,
            requested: block.requested.map(|bytes| bytes.0),
            device: block.device.to_string().into(),
            site: block.site.as_deref().map(SiteRecord::from),
            purpose: block.purpose.as_deref().map(Into::into),
        }
    }
}

impl SnapshotRecord<'_> {
    pub(super) fn into_snapshot(self) -> Result<TensorSnapshot, String> {
        let consistency = match self.pause_ms {
            None => Consistency::Running,
            Some(pause) => Consistency::Paused {
                pause: Duration::try_from_secs_f64((pause * 1e6).round() / 1e9)
                    .map_err(|error| format!("pause_ms: {error}"))?,
                retries: self.retries,
            },
        };
        let mut devices = Vec::new();
        for totals in self.totals.0 {
            devices.extend(totals.into_totals()?);
        }
        let storages = all(self.storages.0, StorageRecord::into_storage)?;
        let blocks = all(self.blocks.0, BlockRecord::into_block)?;
        let items = self.tensors.0.into_iter();
        let items = items.filter(|item| item.kind != BLOCK);
        let tensors = all(items, |item| item.into_tensor(storages.len()))?;
        let is_there = |tensor: &Tensor| tensor.gradient_of.iter().all(|&of| of < tensors.len());
        if !tensors.iter().all(is_there) {
            return Err("a gradient of a tensor that is not there".to_owned());
        }
        Ok(TensorSnapshot {
            target: Target {
                tgid: self.pid.map(Tgid),
                inner_tgid: self.inner_pid.map(Tgid),
                container: self.container,
                command: self.command,
                python: self.python,
                torch: self.torch,
                gpus: self.gpus.0,
                allocator_conf: None,
                libraries: Vec::new(),
            },
            taken_ms: self.taken_ms,
            moment: TimeNs(self.moment_ns),
            consistency,
            devices,
            blocks,
            storages,
            tensors,
            objects: self.objects,
            optimizers: Vec::new(),
            tags: Vec::new(),
            unread: self.unread.0.into_iter().map(Into::into).collect(),
            limit: self.tensor_limit,
            missing_objects: self.missing_objects.map(Into::into),
            has_more_objects: false,
            kv: self
                .kv_cache
                .map_or_else(|| Ok(Default::default()), KvCachesRecord::read)?,
        })
    }
}

fn all<F, T>(
    items: impl IntoIterator<Item = F>,
    into: impl FnMut(F) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    items.into_iter().map(into).collect()
}

impl TotalsRecord<'_> {
    fn into_totals(self) -> Result<Option<DeviceTotals>, String> {
        let (Some(allocated), Some(reserved)) = (self.allocated, self.reserved) else {
            return Ok(None);
        };
        Ok(Some(DeviceTotals {
            device: cuda(&self.device)?,
            totals: Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(reserved),
            },
        }))
    }
}

impl StorageRecord<'_> {
    fn into_storage(self) -> Result<Storage, String> {
        let retainer = self
            .retained_by
            .map(|retainer| retainer.read(|text| text.into()));
        Ok(Storage {
            object: address(&self.object)?,
            data: Address(address(&self.data)?),
            bytes: Bytes(self.bytes),
            device: device(&self.device)?,
            retainer: retainer.transpose()?.map(Arc::new),
        })
    }
}

impl BlockRecord<'_> {
    fn into_block(self) -> Result<Block, String> {
        Ok(Block {
            addr: Address(address(&self.addr)?),
            size: Bytes(self.bytes),
            requested: self.requested.map(Bytes),
            device: cuda(&self.device)?,
            site: self.site.map(|site| {
                Arc::new(Frame {
                    file: site.file.into(),
                    line: site.line.unwrap_or(0),
                    function: site.function.into(),
                    library: site.library.map(Into::into),
                })
            }),
            purpose: self.purpose.map(Into::into),
        })
    }
}

impl Item<'_> {
    fn into_tensor(self, storages: usize) -> Result<Tensor, String> {
        let (Some(object), Some(dtype)) = (self.object, self.dtype) else {
            return Err("a tensor without object or dtype".to_owned());
        };
        if self.storage_index.is_some_and(|at| at >= storages) {
            return Err("a tensor on a storage that is not there".to_owned());
        }
        let mut rules = self.inferred.0.iter();
        let name = |text: Box<str>| Name {
            text: text.into(),
            inferred: rules
                .next()
                .and_then(|rule| rule.as_deref().map(Name::rule)),
        };
        let mut tensor = Tensor {
            object: address(&object)?,
            kind: (self.kind.parse()).map_err(|_| unknown("kind of tensor", &self.kind))?,
            names: self.names.0.into_iter().map(name).collect(),
            shape: self.shape.map(|sizes| sizes.0.into()),
            strides: self.strides.0.into(),
            offset: self.offset,
            dtype: DType::parse(&dtype).ok_or_else(|| unknown("dtype", &dtype))?,
            device: device(&self.device)?,
            storage: self.storage_index,
            content: None,
            requires_grad: self.requires_grad,
            grad_fn: self.grad_fn.map(Into::into),
            gradient_of: self.gradient_of.0,
            saved_by: self.saved_by.map(Into::into),
            module: self.module.map(Into::into),
            called: None,
            class: self.class.map(Into::into),
        };
        // Only a sparse tensor has other bytes than its shape says, and no storage.
        let content = self.bytes.map(Bytes);
        tensor.content = content.filter(|_| tensor.storage.is_none() && tensor.bytes() != content);
        Ok(tensor)
    }
}

fn address(text: &str) -> Result<u64, String> {
    hex(text).ok_or_else(|| unknown("address", text))
}

fn device(text: &str) -> Result<TensorDevice, String> {
    TensorDevice::parse(text).ok_or_else(|| unknown("device", text))
}

fn cuda(text: &str) -> Result<DeviceIndex, String> {
    match device(text)? {
        TensorDevice::Cuda(index) => Ok(index),
        _ => Err(unknown("CUDA device", text)),
    }
}

/// Returns the error for an unknown value, with its first 40 characters.
fn unknown(what: &str, text: &str) -> String {
    let shown: String = text.chars().take(40).collect();
    format!("{shown:?} is no {what}")
}

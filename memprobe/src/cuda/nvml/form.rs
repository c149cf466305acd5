//! Forms of NVML's process lists: bytes of an answer to checked entries, without I/O.
//!
//! One entry point has answered in several forms. The first drivers of R535 wrote 32 bytes an entry where nvml.h
//! documents 24 for `nvmlDeviceGetComputeRunningProcesses_v3` (nvitop pull 79), and a 16-byte answer was seen behind a
//! driver that calls itself 550.127.08 (nvitop pull 226). So no form is assumed. The buffer is filled with a pattern
//! before the call; the bytes that were overwritten tell the length of an entry, and the entries must make sense:
//! processes that exist, instance ids that can be, no more memory than the device has.

use std::collections::BTreeSet;

/// Fills the buffer before a call. No entry ends in this byte: the last byte of each form is the
/// highest of a number of bytes or of an instance id.
pub(super) const PATTERN: u8 = 0xa5;

/// Bytes of buffer for each announced entry: twice the longest known form.
pub(super) const BYTES_AN_ENTRY: usize = 64;

/// `NVML_VALUE_NOT_AVAILABLE` as an unsigned number (nvml.h 13.5), shown as `[N/A]` by `nvidia-smi`.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Instance id of a process outside of MIG (`nvmlProcessInfo_t`, nvml.h 13.5).
const NO_INSTANCE: u32 = u32::MAX;

/// Instance ids stay below this. A GPU has at most 15 GPU instance ids and 8 compute instance ids
/// (`KMIGMGR_MAX_GPU_SWIZZID`, open-gpu-kernel-modules 595.45.04).
const INSTANCE_IDS: u32 = 64;

/// Process ids of Linux stay below this (`PID_MAX_LIMIT`, include/linux/threads.h).
const PID_LIMIT: u32 = 1 << 22;

/// Memory of any device, in bytes, where the driver does not tell: 128 TiB.
const ANY_TOTAL: u64 = 1 << 47;

/// Process ids that NVML may name.
pub trait Pids {
    /// Says if there is such a process; `None` where that cannot be known, as in a PID namespace
    /// whose numbers are others than the driver's.
    fn exists(&self, pid: u32) -> Option<bool>;
}

/// An answer of one entry point, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawList {
    /// Entries that the driver says it wrote.
    pub(super) count: u32,
    /// Entries announced to the driver as capacity.
    pub(super) capacity: u32,
    /// The buffer, [`PATTERN`] where nothing was written.
    pub(super) bytes: Vec<u8>,
}

/// Layout of one entry. All begin with `u32 pid`, 4 bytes of padding, `u64 used`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `nvmlProcessInfo_v1_t`: nothing more.
    First,
    /// `nvmlProcessInfo_v2_t`: also `u32` GPU instance and `u32` compute instance.
    Instances,
    /// `nvmlProcessDetail_v1_t`: also `u64` protected bytes.
    Protected,
}

impl Form {
    const ALL: [Self; 3] = [Self::First, Self::Instances, Self::Protected];

    pub const fn size(self) -> usize {
        match self {
            Self::First => 16,
            Self::Instances => 24,
            Self::Protected => 32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FormEntry {
    pub(super) pid: u32,
    /// GPU instance and compute instance; `None` outside of MIG and where the form has none.
    pub(super) instance: Option<(u32, u32)>,
    /// Bytes on the device; `None` for `[N/A]`.
    pub(super) used: Option<u64>,
}

/// A list that makes sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decoded {
    /// Entries whose process exists, or may.
    pub(super) entries: Vec<FormEntry>,
    /// Entries left out because their process does not exist: it may have ended meanwhile.
    pub(super) missing: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Implausible {
    #[error("its length cannot be right")]
    Count,
    #[error("its length cannot be right")]
    Length,
    #[error("{0} is no process id")]
    Pid(u32),
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("it names process {0} twice")]
    Twice(u32),
    #[error("there is no MIG instance {0}")]
    Instance(u32),
    #[error("its processes hold more than the GPU has")]
    Sum,
    /// Two forms fit and give different numbers.
    #[error("its entries can be read in two ways")]
    Ambiguous,
}

/// Decodes an answer in the one form that fits. `total` is the memory of the device, in bytes.
pub fn decode(raw: &RawList, total: Option<u64>, pids: &impl Pids) -> Result<Decoded, Implausible> {
    if raw.count == 0 {
        return Ok(Decoded::default());
    }
    if raw.count > raw.capacity {
        return Err(Implausible::Count);
    }
    let measured = measured_forms(raw);
    let candidates = match measured.as_slice() {
        [] => Form::ALL.as_slice(),
        forms => forms,
    };
    let is_certain = measured.len() == 1;
    let mut fitting: Option<Decoded> = None;
    let mut refused = None;
    for form in candidates {
        match judged(raw, *form, total, pids, is_certain) {
            Ok(decoded) => match &fitting {
                Some(other) if !has_same_numbers(other, &decoded) => {
                    return Err(Implausible::Ambiguous);
                }
                // The longer form knows the instances too.
                _ => fitting = Some(decoded),
            },
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    fitting.ok_or(refused.unwrap_or(Implausible::Length))
}

/// Forms whose length fits the bytes that were written: entries alone, or all that there was room
/// for where the driver clears the buffer first.
fn measured_forms(list: &RawList) -> Vec<Form> {
    let untouched = list.bytes.iter().rev().take_while(|byte| **byte == PATTERN);
    let written = list.bytes.len() - untouched.count();
    let fits = |form: &Form| {
        [list.count, list.capacity]
            .iter()
            .any(|entries| form.size().checked_mul(*entries as usize) == Some(written))
    };
    Form::ALL.into_iter().filter(fits).collect()
}

fn judged(
    list: &RawList,
    form: Form,
    total: Option<u64>,
    pids: &impl Pids,
    is_certain: bool,
) -> Result<Decoded, Implausible> {
    let entries = entries(list, form)?;
    let mut seen = BTreeSet::new();
    let mut sum = 0_u64;
    for entry in &entries {
        if entry.pid == 0 || entry.pid >= PID_LIMIT {
            return Err(Implausible::Pid(entry.pid));
        }
        if let Some((gpu, compute)) = entry.instance {
            let is_id = |id| id < INSTANCE_IDS || id == NO_INSTANCE;
            if let Some(id) = [gpu, compute].into_iter().find(|id| !is_id(*id)) {
                return Err(Implausible::Instance(id));
            }
        }
        if !seen.insert((entry.pid, entry.instance)) {
            return Err(Implausible::Twice(entry.pid));
        }
        sum = sum.saturating_add(entry.used.unwrap_or(0));
    }
    if sum > total.unwrap_or(ANY_TOTAL) {
        return Err(Implausible::Sum);
    }
    let is_gone = |entry: &&FormEntry| pids.exists(entry.pid) == Some(false);
    let missing = entries.iter().filter(is_gone).count();
    if let Some(gone) = entries.iter().find(is_gone) {
        // Where the form is known by its length, a process that has ended disturbs nobody.
        if !is_certain || missing == entries.len() {
            return Err(Implausible::NoProcess(gone.pid));
        }
    }
    let entries = entries.into_iter().filter(|entry| !is_gone(&entry));
    Ok(Decoded {
        entries: entries.collect(),
        missing,
    })
}

fn entries(list: &RawList, form: Form) -> Result<Vec<FormEntry>, Implausible> {
    let length = form.size().checked_mul(list.count as usize);
    let bytes = length.and_then(|length| list.bytes.get(..length));
    let entry = |bytes: &[u8]| {
        let instance = match form {
            Form::First => None,
            Form::Instances | Form::Protected => Some((number(bytes, 16)?, number(bytes, 20)?)),
        };
        Some(FormEntry {
            pid: number(bytes, 0)?,
            instance: instance.filter(|ids| *ids != (NO_INSTANCE, NO_INSTANCE)),
            used: Some(u64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?))
                .filter(|used| *used != NOT_AVAILABLE),
        })
    };
    bytes
        .and_then(|bytes| bytes.chunks_exact(form.size()).map(entry).collect())
        .ok_or(Implausible::Length)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Compares processes and bytes; a form without instances has none to compare.
fn has_same_numbers(one: &Decoded, other: &Decoded) -> bool {
    let numbers = |entry: &FormEntry| (entry.pid, entry.used);
    let others = other.entries.iter().map(numbers);
    one.entries.iter().map(numbers).eq(others)
}

#[cfg(test)]
mod tests;

//! Process lists of a device: asks one entry point after the other until one makes sense.

use std::collections::BTreeMap;

use super::form::{self, FormEntry, Pids};
use super::memory;
use super::query::{DeviceQuery, EntryPoint, ListKind, MigDevice, QueryRefusal};
use crate::event::{Bytes, Tgid};

const FIRST_CAPACITY: u32 = 64;

/// Most entries that are asked for. The kernel's driver gives at most 950
/// (`NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT`, open-gpu-kernel-modules 595.45.04).
const MAX_ENTRIES: u32 = 4096;

/// Times that one entry point is asked: the list may grow and processes may end meanwhile.
const TRIES: usize = 3;

/// Bytes that each process holds on a device; `None` for `[N/A]`.
pub(super) type Held = BTreeMap<Tgid, Option<Bytes>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceProcesses {
    pub(super) held: Held,
    /// Reason why `held` may lack processes.
    pub(super) unknown: Option<String>,
}

/// Asks a device for the processes that hold memory on it. `total` is its memory, in bytes.
///
/// In MIG mode the device itself answers only who may see all instances, and some drivers give no
/// bytes then, so its MIG devices are asked too.
pub fn of_device<Q: DeviceQuery>(
    device: &Q,
    instances: &[MigDevice<Q>],
    total: Option<u64>,
    pids: &impl Pids,
) -> DeviceProcesses {
    let whole = list(device, ListKind::Compute, total, pids).map(|entries| sums(&entries));
    let has_gaps = |held: &Held| held.values().any(Option::is_none);
    let needs_instances = whole.as_ref().map_or(true, has_gaps);
    let unknown = whole.as_ref().err().filter(|_| instances.is_empty());
    let unknown = unknown.map(ToString::to_string);
    let held = whole.unwrap_or_default();
    let mut found = DeviceProcesses { held, unknown };
    if needs_instances {
        add(&mut found, of_instances(instances, ListKind::Compute, pids));
    }
    match list(device, ListKind::Mps, total, pids) {
        Ok(entries) => merge(&mut found.held, sums(&entries)),
        Err(_) if needs_instances && !instances.is_empty() => {
            add(&mut found, of_instances(instances, ListKind::Mps, pids));
        }
        Err(error) if error.means_none() => {}
        Err(error) => found.unknown = found.unknown.or(Some(error.to_string())),
    }
    found
}

/// Asks each MIG device. Entries of one process in one instance count once.
fn of_instances<Q: DeviceQuery>(
    instances: &[MigDevice<Q>],
    kind: ListKind,
    pids: &impl Pids,
) -> DeviceProcesses {
    let mut all: BTreeMap<(u32, Option<u32>, Option<u32>), FormEntry> = BTreeMap::new();
    let mut unknown = None;
    for (at, instance) in instances.iter().enumerate() {
        let memory = memory::usage(&instance.device).ok();
        let total = memory.map(|memory| memory.total.0);
        match list(&instance.device, kind, total, pids) {
            Ok(entries) => {
                for entry in entries {
                    let gpu = entry.instance.map(|ids| ids.0).or(instance.gpu_instance);
                    let compute = entry.instance.map(|ids| ids.1);
                    let known = all.entry((entry.pid, gpu, compute)).or_insert(entry);
                    known.used = known.used.max(entry.used);
                }
            }
            Err(error) if kind == ListKind::Mps && error.means_none() => {}
            Err(error) => unknown = unknown.or(Some(format!("MIG device {at}: {error}"))),
        }
    }
    let entries: Vec<FormEntry> = all.into_values().collect();
    let mut held = sums(&entries);
    if unknown.is_some() {
        // A process may hold more on the instance that does not answer.
        held.values_mut().for_each(|bytes| *bytes = None);
    }
    DeviceProcesses { held, unknown }
}

fn add(found: &mut DeviceProcesses, more: DeviceProcesses) {
    merge(&mut found.held, more.held);
    found.unknown = found.unknown.take().or(more.unknown);
}

/// Takes the larger number of each process: a client of MPS is in two lists, once without bytes on some drivers.
fn merge(held: &mut Held, more: Held) {
    for (tgid, bytes) in more {
        let known = held.entry(tgid).or_default();
        *known = (*known).max(bytes);
    }
}

/// One number a process: the sum over its MIG instances, unknown where one of them is.
fn sums(entries: &[FormEntry]) -> Held {
    let mut sums: BTreeMap<Tgid, Option<u64>> = BTreeMap::new();
    for entry in entries {
        let sum = sums.entry(Tgid(entry.pid)).or_insert(Some(0));
        *sum = sum
            .zip(entry.used)
            .map(|(sum, used)| sum.saturating_add(used));
    }
    let bytes = |(tgid, sum): (Tgid, Option<u64>)| (tgid, sum.map(Bytes));
    sums.into_iter().map(bytes).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum NoList {
    /// No entry point answers; the first that exists says why.
    #[error("{0}")]
    Refused(QueryRefusal),
    /// One answers, and its answer cannot be right.
    #[error("{0}")]
    Implausible(String),
}

impl NoList {
    /// Tells whether a device without MPS would say the same.
    fn means_none(&self) -> bool {
        use QueryRefusal::{Missing, NotSupported};
        matches!(self, Self::Refused(Missing | NotSupported))
    }
}

fn list<Q: DeviceQuery>(
    device: &Q,
    kind: ListKind,
    total: Option<u64>,
    pids: &impl Pids,
) -> Result<Vec<FormEntry>, NoList> {
    let mut implausible = None;
    let mut refused = None;
    for point in EntryPoint::ALL {
        match ask(device, kind, point, total, pids) {
            Ok(entries) => return Ok(entries),
            Err(NoList::Implausible(error)) => implausible = implausible.or(Some(error)),
            Err(NoList::Refused(QueryRefusal::Missing)) => {}
            Err(NoList::Refused(error)) => refused = refused.or(Some(error)),
        }
    }
    let refused = NoList::Refused(refused.unwrap_or(QueryRefusal::Missing));
    Err(implausible.map_or(refused, NoList::Implausible))
}

/// Asks one entry point until there is room for its list and its processes exist.
fn ask<Q: DeviceQuery>(
    device: &Q,
    kind: ListKind,
    point: EntryPoint,
    total: Option<u64>,
    pids: &impl Pids,
) -> Result<Vec<FormEntry>, NoList> {
    let mut capacity = FIRST_CAPACITY;
    let mut last = NoList::Refused(QueryRefusal::Missing);
    for attempt in 1..=TRIES {
        let answer = match device.processes(kind, point, capacity) {
            Ok(answer) => answer,
            Err(QueryRefusal::Room(count)) if count < MAX_ENTRIES => {
                last = NoList::Refused(QueryRefusal::Room(count));
                capacity = count.max(capacity).saturating_mul(2).min(MAX_ENTRIES);
                continue;
            }
            Err(error) => return Err(NoList::Refused(error)),
        };
        match form::decode(&answer, total, pids) {
            Ok(decoded) if decoded.missing == 0 || attempt == TRIES => return Ok(decoded.entries),
            // One that ended meanwhile is in no second answer.
            Ok(_) => {}
            Err(error) => {
                let name = point.name(kind);
                last = NoList::Implausible(format!(
                    "{name} answers in a form that memprobe does not know ({error})"
                ));
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;

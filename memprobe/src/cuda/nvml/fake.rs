//! A device of tests, and the bytes that drivers write.

use std::cell::{Cell, RefCell};

use super::form::{BYTES_AN_ENTRY, Form, PATTERN, Pids, RawList};
use super::query::{
    DeviceQuery, EntryPoint, ListKind, MigDevice, QueryRefusal, RawIdentity, RawMemory,
};

/// A process as a driver knows it: PID, bytes, GPU instance, compute instance.
pub(super) type KnownLibrary = (u32, u64, u32, u32);

/// `NVML_VALUE_NOT_AVAILABLE`.
pub(super) const NOT_AVAILABLE: u64 = u64::MAX;

/// A process outside of MIG.
pub(super) fn plain(pid: u32, used: u64) -> KnownLibrary {
    (pid, used, u32::MAX, u32::MAX)
}

/// The buffer of a driver that writes one form; padding is left as it was.
pub(super) fn written(form: Form, processes: &[KnownLibrary], capacity: u32) -> RawList {
    let mut bytes = vec![PATTERN; capacity as usize * BYTES_AN_ENTRY];
    for (place, (pid, used, gpu, compute)) in bytes.chunks_exact_mut(form.size()).zip(processes) {
        place[..4].copy_from_slice(&pid.to_ne_bytes());
        place[8..16].copy_from_slice(&used.to_ne_bytes());
        if form != Form::First {
            place[16..20].copy_from_slice(&gpu.to_ne_bytes());
            place[20..24].copy_from_slice(&compute.to_ne_bytes());
        }
        if form == Form::Protected {
            place[24..32].fill(0);
        }
    }
    RawList {
        count: processes.len() as u32,
        capacity,
        bytes,
    }
}

/// Processes that exist; `None` if that cannot be known.
pub(super) struct Existing(pub(super) Option<Vec<u32>>);

impl Pids for Existing {
    fn exists(&self, pid: u32) -> Option<bool> {
        self.0.as_ref().map(|pids| pids.contains(&pid))
    }
}

/// Only these.
pub(super) fn existing(pids: &[u32]) -> Existing {
    Existing(Some(pids.to_vec()))
}

/// An answer to one question about a list.
type Answer = (
    ListKind,
    EntryPoint,
    Result<(Form, Vec<KnownLibrary>), QueryRefusal>,
);

/// Device with prepared answers. It lacks every function without one.
#[derive(Clone)]
pub(super) struct FakeDevice {
    pub(super) memory_v2: Result<RawMemory, QueryRefusal>,
    pub(super) memory_v1: Result<RawMemory, QueryRefusal>,
    lists: RefCell<Vec<Answer>>,
    mig: Vec<(Option<u32>, FakeDevice)>,
    pub(super) identity: RawIdentity,
    /// Number of requests for lists.
    pub(super) asked: Cell<usize>,
}

impl Default for FakeDevice {
    fn default() -> Self {
        Self {
            memory_v2: Err(QueryRefusal::Missing),
            memory_v1: Err(QueryRefusal::Missing),
            lists: RefCell::default(),
            mig: Vec::new(),
            identity: RawIdentity::default(),
            asked: Cell::new(0),
        }
    }
}

impl FakeDevice {
    pub(super) fn with_memory_v2(mut self, memory: RawMemory) -> Self {
        self.memory_v2 = Ok(memory);
        self
    }

    pub(super) fn with_memory_v1(mut self, memory: RawMemory) -> Self {
        self.memory_v1 = Ok(memory);
        self
    }

    pub(super) fn with_list(
        self,
        kind: ListKind,
        point: EntryPoint,
        form: Form,
        processes: &[KnownLibrary],
    ) -> Self {
        let answer = Ok((form, processes.to_vec()));
        self.lists.borrow_mut().push((kind, point, answer));
        self
    }

    pub(super) fn with_refusal(
        self,
        kind: ListKind,
        point: EntryPoint,
        error: QueryRefusal,
    ) -> Self {
        self.lists.borrow_mut().push((kind, point, Err(error)));
        self
    }

    pub(super) fn with_mig(mut self, gpu_instance: Option<u32>, device: Self) -> Self {
        self.mig.push((gpu_instance, device));
        self
    }
}

impl DeviceQuery for FakeDevice {
    fn processes(
        &self,
        kind: ListKind,
        point: EntryPoint,
        capacity: u32,
    ) -> Result<RawList, QueryRefusal> {
        self.asked.set(self.asked.get() + 1);
        let lists = self.lists.borrow();
        let mut answers = lists.iter().filter(|(k, p, _)| (*k, *p) == (kind, point));
        let Some((.., answer)) = answers.next() else {
            return Err(QueryRefusal::Missing);
        };
        let (form, processes) = answer.clone()?;
        if processes.len() > capacity as usize {
            return Err(QueryRefusal::Room(processes.len() as u32));
        }
        Ok(written(form, &processes, capacity))
    }

    fn memory_v2(&self) -> Result<RawMemory, QueryRefusal> {
        self.memory_v2.clone()
    }

    fn memory_v1(&self) -> Result<RawMemory, QueryRefusal> {
        self.memory_v1.clone()
    }

    fn mig_devices(&self) -> Vec<MigDevice<Self>> {
        let devices = (0..).zip(&self.mig);
        let devices = devices.map(|(index, (gpu_instance, device))| MigDevice {
            device: device.clone(),
            gpu_instance: *gpu_instance,
            index,
        });
        devices.collect()
    }

    fn identity(&self) -> RawIdentity {
        self.identity.clone()
    }
}

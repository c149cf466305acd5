//! Data that views get about all processes of a host.

use std::time::Duration;

use super::{BudgetState, GrowthRate, Site};
use crate::event::{Bytes, DeviceIndex, Losses, Rank, Target, Tgid, TimeNs, Totals};

#[derive(Clone, Debug, PartialEq)]
pub struct HostSnapshot {
    pub started: TimeNs,
    pub now: TimeNs,
    /// One row for each process, by id.
    pub processes: Vec<ProcessRow>,
    pub driver: DriverSnapshot,
    pub health: HostHealth,
}

impl HostSnapshot {
    /// Returns the number of processes that memprobe has looked at, and of all; `None` if it has looked at all.
    pub fn looking(&self) -> Option<(usize, usize)> {
        let found = |row: &&ProcessRow| row.state == ProcessState::Found;
        let left = self.processes.iter().filter(found).count();
        let all = self.processes.len();
        (left > 0).then_some((all - left, all))
    }

    /// Returns true if the process is known to hold no GPU memory. Either its allocator was silent
    /// and the driver, which reports other processes, does not report it. Or it was forked from a
    /// process that uses the GPU, like a data loader's worker, and has done nothing of its own.
    pub fn holds_nothing(&self, row: &ProcessRow) -> bool {
        let names_any = self.processes.iter().any(|row| !row.driver.is_empty());
        let driver_lists_all = names_any && self.driver.unlisted().next().is_none();
        let is_copy = row.facts.forked_from.is_some() && row.devices.is_empty();
        // A suspended process is on no list, and its segments come back with it.
        let is_silent = row.events == 0 && row.driver.is_empty() && row.stopped.is_none();
        is_silent && (driver_lists_all || is_copy)
    }
}

/// One process. Its texts come from the process and may hold anything: views clean them.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessRow {
    /// Process id, as memprobe sees it.
    pub tgid: Tgid,
    pub target: Target,
    pub facts: ProcessFacts,
    pub state: ProcessState,
    /// Reason why it runs nothing until somebody continues it; `None` if it runs.
    pub stopped: Option<String>,
    /// Allocator totals of each device seen, by index; empty before the first allocator event.
    pub devices: Vec<DeviceRow>,
    /// Age of those totals while the probes are off for a budget, up to the end of the process; `None` if up to date.
    pub totals_age: Option<Duration>,
    /// Highest sums over all devices, each at its own time. With one device this includes the time
    /// before attach, if the allocator's statistics were readable.
    pub peak: Totals,
    /// Memory by device, as the driver reports it; empty if it does not.
    pub driver: Vec<DriverUse>,
    /// The process may hold memory on further devices: the driver did not list the processes of each.
    pub driver_is_partial: bool,
    pub trend: Trend,
    /// Growth of all devices together; `None` in the first seconds.
    pub growth: Option<GrowthRate>,
    pub top: Option<TopHolder>,
    pub note: Option<String>,
    pub events: u64,
    pub events_per_second: f64,
}

impl ProcessRow {
    /// Sums over all devices; `None` before the first allocator event.
    pub fn totals(&self) -> Option<Totals> {
        let sum = |sum: Totals, device: &DeviceRow| Totals {
            allocated: Bytes(sum.allocated.0.saturating_add(device.totals.allocated.0)),
            reserved: Bytes(sum.reserved.0.saturating_add(device.totals.reserved.0)),
        };
        (!self.devices.is_empty()).then(|| self.devices.iter().fold(Totals::default(), sum))
    }

    /// Memory on all devices, as the driver reports it; `None` if it does not report every device.
    pub fn driver_total(&self) -> Option<Bytes> {
        if self.driver.is_empty() || self.driver_is_partial {
            return None;
        }
        let add = |sum: Bytes, held: &DriverUse| Some(Bytes(sum.0.saturating_add(held.bytes?.0)));
        self.driver.iter().try_fold(Bytes(0), add)
    }

    /// Memory on the GPU behind an ordinal, as the driver reports it; `None` if that GPU or its bytes are unknown.
    pub fn driver_bytes(&self, device: DeviceIndex) -> Option<Bytes> {
        let index = self.target.gpu(device)?.index?;
        self.driver.iter().find(|held| held.device == index)?.bytes
    }

    /// The part of the bytes on all devices that the driver says; `None` where it says nothing.
    pub fn driver_at_least(&self) -> Option<Bytes> {
        let known = self.driver.iter().filter_map(|held| held.bytes);
        known.reduce(|sum, bytes| Bytes(sum.0.saturating_add(bytes.0)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProcessFacts {
    /// Name of its user, or the number if it has no name here.
    pub user: Option<String>,
    pub rank: Option<Rank>,
    /// Parent, if the process was forked and has not executed another program since. Its memory,
    /// including the allocator's tables, is a copy of the parent's.
    pub forked_from: Option<Tgid>,
}

/// State of memprobe's attachment to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Found, and not looked at yet.
    Found,
    /// Waiting for something, such as the import of torch.
    Waiting(String),
    Probed,
    Refused(String),
    /// Ended; its row is about to go.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// Index as the process numbers devices.
    pub index: DeviceIndex,
    pub totals: Totals,
    /// Highest totals, each at its own time. Includes the time before attach if the allocator's
    /// statistics were readable.
    pub peak: Totals,
}

/// Memory of one process on one device, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUse {
    /// Index as the driver numbers devices (`nvidia-smi`).
    pub device: u32,
    /// All memory of the process on the device, including its CUDA context; `None` if not reported.
    pub bytes: Option<Bytes>,
}

/// Maximum number of steps in a [`Trend`].
pub const TREND_STEPS: usize = 60;

/// Highest allocated bytes of each recent step, oldest first; at most [`TREND_STEPS`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Trend {
    /// Nanoseconds per step.
    pub step: u64,
    pub points: Vec<Bytes>,
}

/// Call site that holds the most memory of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct TopHolder {
    pub holder: Holder,
    /// Live bytes on the device where it holds most.
    pub live: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Holder {
    /// A line, or the reason that none is known.
    Site(Site),
    BeforeAttach,
}

/// Devices as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DriverSnapshot {
    #[default]
    Unasked,
    Silent(String),
    Devices(Vec<DriverDevice>),
}

impl DriverSnapshot {
    /// Its devices; none where it cannot be asked.
    pub fn devices(&self) -> &[DriverDevice] {
        match self {
            Self::Devices(devices) => devices,
            Self::Unasked | Self::Silent(_) => &[],
        }
    }

    /// Devices whose processes are not all known.
    pub fn unlisted(&self) -> impl Iterator<Item = &DriverDevice> {
        let devices = self.devices().iter();
        devices.filter(|device| device.processes.is_err())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverDevice {
    /// Index as the driver numbers devices (`nvidia-smi`).
    pub index: u32,
    /// Such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    pub uuid: Option<String>,
    pub pci_bus_id: Option<String>,
    pub memory: Result<DriverMemory, String>,
    /// Number of MIG devices summed in `memory`; `None` if it is the whole device's.
    pub mig_devices: Option<u32>,
    /// Reason why the driver's list of its processes is missing or has gaps.
    pub processes: Result<(), String>,
    /// Bytes in use that belong to no process that the driver lists; `None` if its lists do not say all.
    pub others: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverMemory {
    /// Bytes in use, without those that the driver reserves for itself (as `nvidia-smi` since R510).
    pub used: Bytes,
    pub total: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HostHealth {
    /// Memory events, including those of ended processes.
    pub events: u64,
    pub events_per_second: f64,
    /// Losses, including those of ended processes.
    pub losses: Losses,
    /// Differences between a ledger and its allocator that no loss explains.
    pub disagreements: u64,
    pub untracked: u64,
    /// Budget of `--max-overhead`, of the process that memprobe costs most.
    pub budget: Option<BudgetState>,
}

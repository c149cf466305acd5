//! What views see of all processes of a host together.

use super::{Site, Target};
use crate::event::{Bytes, DeviceIndex, Losses, Tgid, TimeNs, Totals};

/// Everything that a view of the host needs at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSnapshot {
    /// When memprobe began to look.
    pub started: TimeNs,
    /// The moment this snapshot stands for.
    pub now: TimeNs,
    /// One for each process, by number.
    pub processes: Vec<ProcessRow>,
    /// What the driver says of its devices.
    pub driver: DriverSnapshot,
    /// How the measurement itself is doing.
    pub health: HostHealth,
}

impl HostSnapshot {
    /// Whether a process is known to hold nothing: its allocator did nothing, and the driver, which
    /// tells of others, does not tell of it; or it is a copy of a process that uses the GPU, as
    /// workers that load data are, and has done nothing of its own.
    pub fn holds_nothing(&self, row: &ProcessRow) -> bool {
        let names_any = self.processes.iter().any(|row| !row.driver.is_empty());
        let driver_tells = names_any && self.driver.unlisted().next().is_none();
        let is_copy = row.facts.forked_from.is_some() && row.devices.is_empty();
        row.events == 0 && row.driver.is_empty() && (driver_tells || is_copy)
    }
}

/// One process. Texts come from the process and may hold anything: views clean them.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessRow {
    /// Its number, as memprobe sees it.
    pub tgid: Tgid,
    /// Its command, versions and container.
    pub target: Target,
    /// In whose name and what for it runs.
    pub facts: ProcessFacts,
    /// How memprobe gets on with it.
    pub state: ProcessState,
    /// What the allocator says of each device that was seen, by index; empty where it was not
    /// heard yet.
    pub devices: Vec<DeviceRow>,
    /// The highest that the sums over all devices were at once, each on its own; of one device also
    /// from before attach where the allocator could be asked.
    pub peak: Totals,
    /// What the driver says the process holds, by device; empty where the driver does not say.
    pub driver: Vec<DriverUse>,
    /// The process may hold memory on further devices: the driver did not list the processes of each.
    pub driver_is_partial: bool,
    /// Allocated bytes lately.
    pub trend: Trend,
    /// Who holds most of it.
    pub top: Option<TopHolder>,
    /// Something that whoever looks at it should know.
    pub note: Option<String>,
    /// Memory events so far.
    pub events: u64,
    /// Memory events per second, lately.
    pub events_per_second: f64,
}

impl ProcessRow {
    /// The sums over all devices; `None` where the allocator was not heard yet.
    pub fn totals(&self) -> Option<Totals> {
        let sum = |sum: Totals, device: &DeviceRow| Totals {
            allocated: Bytes(sum.allocated.0.saturating_add(device.totals.allocated.0)),
            reserved: Bytes(sum.reserved.0.saturating_add(device.totals.reserved.0)),
        };
        (!self.devices.is_empty()).then(|| self.devices.iter().fold(Totals::default(), sum))
    }

    /// Bytes that the driver says the process holds on all devices; `None` where it does not say so
    /// of each.
    pub fn driver_total(&self) -> Option<Bytes> {
        if self.driver.is_empty() || self.driver_is_partial {
            return None;
        }
        let add = |sum: Bytes, held: &DriverUse| Some(Bytes(sum.0.saturating_add(held.bytes?.0)));
        self.driver.iter().try_fold(Bytes(0), add)
    }

    /// The part of the bytes on all devices that the driver says; `None` where it says nothing.
    pub fn driver_at_least(&self) -> Option<Bytes> {
        let known = self.driver.iter().filter_map(|held| held.bytes);
        known.reduce(|sum, bytes| Bytes(sum.0.saturating_add(bytes.0)))
    }
}

/// In whose name and what for a process runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ProcessFacts {
    /// The name of its user, or the number where it has no name here.
    pub user: Option<String>,
    /// Its place among the processes of a distributed job.
    pub rank: Option<Rank>,
    /// The process that made it by `fork`, where it has not run a program of its own since. Its
    /// memory is a copy: what an allocator wrote down there is that of the other process.
    pub forked_from: Option<Tgid>,
}

/// A place among the processes of a distributed job, as its launcher told the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Its number in the whole job.
    pub global: u32,
    /// Its number on this machine.
    pub local: Option<u32>,
    /// How many there are in the whole job.
    pub world: Option<u32>,
}

/// How memprobe gets on with a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It is about to be probed, or waits for something, such as torch being imported.
    Waiting(String),
    /// Running and probed.
    Probed,
    /// It cannot be probed, and this is why.
    Refused(String),
    /// It has ended; its row is about to go.
    Ended,
}

/// What the allocator of one process says of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// Which device, as the process numbers them.
    pub index: DeviceIndex,
    /// The totals after the last event.
    pub totals: Totals,
    /// The highest totals, each on its own; also from before attach where the allocator could be
    /// asked.
    pub peak: Totals,
}

/// What the driver says one process holds on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUse {
    /// Which device, as the driver numbers them (`nvidia-smi`).
    pub device: u32,
    /// Everything the process holds there, its context included; `None` where the driver does
    /// not say.
    pub bytes: Option<Bytes>,
}

/// Steps that a [`Trend`] has at most.
pub const TREND_STEPS: usize = 60;

/// The highest allocated bytes of each of the last steps, oldest first; no more than
/// [`TREND_STEPS`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Trend {
    /// Nanoseconds a step.
    pub step: u64,
    /// Empty where the allocator was not heard yet.
    pub points: Vec<Bytes>,
}

/// Who holds the most memory of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct TopHolder {
    /// Who.
    pub holder: Holder,
    /// Bytes now live, on the device where it holds most.
    pub live: Bytes,
}

/// Who holds memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Holder {
    /// A line, or why there is none.
    Site(Site),
    /// Memory from before attach.
    BeforeAttach,
}

/// What the driver says of its devices.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DriverSnapshot {
    /// It was not asked yet.
    #[default]
    Unasked,
    /// It cannot be asked, and this is why.
    Silent(String),
    /// Its devices, by index.
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

/// One device as the driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverDevice {
    /// As the driver numbers them (`nvidia-smi`).
    pub index: u32,
    /// Such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Its memory, or why it is unknown.
    pub memory: Result<DriverMemory, String>,
    /// MIG devices whose memory `memory` is the sum of; `None` where it is that of the whole device.
    pub mig_devices: Option<u32>,
    /// Why the driver's list of its processes is missing or has gaps.
    pub processes: Result<(), String>,
}

/// The memory of one device as the driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverMemory {
    /// Bytes in use, without those that the driver reserves for itself (as `nvidia-smi` since R510).
    pub used: Bytes,
    /// Bytes it has.
    pub total: Bytes,
}

/// How the measurement itself is doing.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct HostHealth {
    /// Memory events so far, of processes that have ended too.
    pub events: u64,
    /// Memory events per second, lately.
    pub events_per_second: f64,
    /// What was lost, of processes that have ended too.
    pub losses: Losses,
    /// Where a ledger and its allocator last disagreed without a loss that explains it.
    pub disagreements: u64,
    /// Processes for which there was no room.
    pub not_kept: u64,
}

//! End of a rank: its first failed request, the end of its process, and its memory at any moment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::attribution::failures::{AllocationFailure, FailureFinder};
use crate::event::{Action, DeviceIndex, Event, TimeNs, Totals};
use crate::ledger::AnalyzedLedger;
use crate::recording::{EndReason, Header, Reader, RecordingError};
use crate::report::replay::RecordingReplay;

/// Facts about the end of a recording of one rank.
#[derive(Clone, Debug)]
pub struct RankEnd {
    /// Such as `rank 3`, or the name of the file.
    pub(super) name: String,
    pub(super) recording: String,
    path: Option<PathBuf>,
    /// Devices of PyTorch's CUDA allocator.
    pub(super) devices: Vec<DeviceIndex>,
    boot_id: Option<String>,
    /// Start of the recording, and the time of day then.
    pub(super) start: TimeNs,
    wall_start_ms: Option<u64>,
    /// Beginning of what the file still has.
    begin: TimeNs,
    /// Moment up to which the recording has every event.
    pub(super) until: TimeNs,
    /// Moment at which memprobe saw the end of the process.
    pub(super) exited: Option<TimeNs>,
    /// First failed request, and the number of all.
    pub(super) failure: Option<AllocationFailure>,
    pub(super) failures: u64,
    /// Iteration of the first failed request, if it is known.
    pub(super) iteration: Option<u64>,
}

/// Reason why the memory of a rank at a moment is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
pub enum UnknownMemory {
    #[strum(serialize = "the recordings have no common clock")]
    OtherClock,
    #[strum(serialize = "the recording begins later")]
    BeganLater,
    #[strum(serialize = "the recording ends earlier")]
    EndedEarlier,
    #[strum(serialize = "the recording cannot be read again")]
    Unreadable,
}

/// Memory of a rank at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankMemory {
    /// Totals of the devices that had an event until then.
    Known(BTreeMap<DeviceIndex, Totals>),
    /// The process had ended.
    Ended,
    Unknown(UnknownMemory),
}

impl RankEnd {
    /// Takes the facts of a replayed recording. `name` names the file.
    pub(in crate::report) fn of(
        name: &str,
        path: Option<&Path>,
        replay: &RecordingReplay,
        failures: FailureFinder,
    ) -> Self {
        let Header {
            start,
            wall_start_ms,
            boot_id,
            dropped,
            ..
        } = &replay.header;
        let end = replay.end.as_ref();
        let ended = end.and_then(|end| end.time);
        let devices = replay.snapshot.devices.iter().map(|device| device.index);
        Self {
            name: super::rank_name(name),
            recording: name.to_owned(),
            path: path.map(Path::to_owned),
            devices: devices.filter(|index| *index != DeviceIndex::CPU).collect(),
            boot_id: boot_id.clone(),
            start: dropped.map_or(*start, |dropped| dropped.start),
            wall_start_ms: *wall_start_ms,
            begin: *start,
            until: ended.unwrap_or_default().max(replay.snapshot.now),
            exited: ended.filter(|_| end.is_some_and(|end| end.reason == EndReason::TargetExited)),
            failures: failures.failures,
            failure: failures.found,
            iteration: None,
        }
    }

    /// True for a recording of a process that uses a GPU.
    pub(in crate::report) fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Time of the first failed request.
    pub(super) fn failed(&self) -> Option<TimeNs> {
        Some(self.failure.as_ref()?.event.time)
    }

    /// Milliseconds since 1970 of the first failed request, if the recording has the time of day.
    pub(super) fn failed_ms(&self) -> Option<u64> {
        let since = self.failed()?.0.checked_sub(self.begin.0)?;
        self.wall_start_ms?.checked_add(since / 1_000_000)
    }

    /// True if the first failed request was on a device, or on an unknown one and this is the first device.
    pub(super) fn failed_on(&self, device: DeviceIndex) -> bool {
        let failed = self.failure.as_ref();
        failed.is_some_and(|failure| match failure.event.device {
            Some(failed) => failed == device,
            None => self.devices.first() == Some(&device),
        })
    }

    /// True if times of both recordings are of the same clock.
    pub(super) fn has_clock_of(&self, other: &Self) -> bool {
        self.boot_id.is_some() && self.boot_id == other.boot_id
    }

    /// Reads the memory at a moment of the clock of `of`.
    pub(super) fn memory_at(&self, time: TimeNs, of: &Self) -> RankMemory {
        let is_same = std::ptr::eq(self, of);
        if !is_same && !self.has_clock_of(of) {
            return RankMemory::Unknown(UnknownMemory::OtherClock);
        }
        if self.exited.is_some_and(|exited| exited <= time) {
            return RankMemory::Ended;
        }
        if time < self.begin {
            return RankMemory::Unknown(UnknownMemory::BeganLater);
        }
        if time > self.until {
            return RankMemory::Unknown(UnknownMemory::EndedEarlier);
        }
        let totals = self.path.as_deref().map(|path| totals_at(path, time));
        match totals {
            Some(Ok(totals)) => RankMemory::Known(totals),
            _ => RankMemory::Unknown(UnknownMemory::Unreadable),
        }
    }
}

/// Returns the totals of each GPU after the last event at or before a time.
fn totals_at(path: &Path, time: TimeNs) -> Result<BTreeMap<DeviceIndex, Totals>, RecordingError> {
    let reader = Reader::open(path)?;
    let header = reader.header();
    let target = header.target.clone();
    if let Some((state, rest)) = reader.from_keyframe_at(time)
        && let Ok(replay) = AnalyzedLedger::of_keyframe(target.clone(), &state, ())
    {
        return followed(replay, rest, time);
    }
    let replay = AnalyzedLedger::new(target, header.start, ());
    followed(replay, reader, time)
}

fn followed(
    mut replay: AnalyzedLedger<()>,
    events: impl Iterator<Item = Result<Event, RecordingError>>,
    time: TimeNs,
) -> Result<BTreeMap<DeviceIndex, Totals>, RecordingError> {
    for event in events {
        let event = event?;
        let is_later = match &event {
            Event::Memory(memory) => memory.action != Action::Held && memory.time > time,
            Event::AtAttach(found) => found.time > time,
            _ => false,
        };
        if is_later {
            break;
        }
        replay.apply(&event);
    }
    let devices = replay.ledger.moments(time);
    let gpus = devices.filter(|(index, _)| *index != DeviceIndex::CPU);
    Ok(gpus.map(|(index, sample)| (index, sample.totals)).collect())
}

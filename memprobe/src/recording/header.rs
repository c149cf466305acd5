//! Header and end records of a recording.

use serde::{Deserialize, Serialize};

use super::dump::DumpFacts;
use super::pickle::HistoryFacts;
use crate::event::{
    AtAttach, Bytes, CaptureChange, DeviceIndex, Losses, ProbeStatus, Target, Tgid, TimeNs,
    TimeShare, Totals,
};

#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Header {
    /// Version of memprobe that recorded, such as `0.1.0`.
    pub version: String,
    /// Monotonic time of `ts` 0.
    #[serde(rename = "start_ns")]
    pub start: TimeNs,
    /// The same moment in milliseconds since 1970 (UTC); `None` if the wall clock was not set.
    pub wall_start_ms: Option<u64>,
    /// The kernel's ID of the boot in which it was recorded: times of recordings with the same one compare. `None` if it
    /// is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    #[serde(flatten)]
    pub target: Target,
    pub probes: Vec<ProbeStatus>,
    /// True if the live screen saved it: it begins with the blocks that were live then, as allocations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_live_screen: bool,
    /// Reason and circumstances of a file that `watch` wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Box<DumpFacts>>,
    /// Limits of PyTorch's own history; `None` if memprobe recorded.
    #[serde(skip)]
    pub history: Option<HistoryFacts>,
    /// Older part that `--max-size` dropped. [`Header::start`] is then the beginning of the rest.
    #[serde(skip)]
    pub dropped: Option<DroppedBeginning>,
}

/// Older part of a recording that its file has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedBeginning {
    pub events: u64,
    /// Start of the recording.
    pub start: TimeNs,
    /// Blocks that were live at the end of that part.
    pub blocks: u64,
}

impl Header {
    /// Makes a later moment the start.
    pub(crate) fn begin_later(&mut self, start: TimeNs, dropped: DroppedBeginning) {
        let later = start.0.saturating_sub(dropped.start.0) / 1_000_000;
        self.start = start;
        self.wall_start_ms = self.wall_start_ms.map(|wall| wall.saturating_add(later));
        self.dropped = Some(dropped);
    }
}

#[derive(Serialize)]
pub(crate) struct HeaderRecord<'a> {
    pub format: u32,
    #[serde(flatten)]
    pub header: &'a Header,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    /// Moment at which memprobe saw the end of the process, or ended the recording; `None` if it is unknown.
    pub time: Option<TimeNs>,
    pub events: u64,
    pub losses: Losses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumString)]
#[strum(const_into_str)]
pub enum EndReason {
    #[strum(serialize = "duration over")]
    Duration,
    #[strum(serialize = "interrupted")]
    Interrupted,
    #[strum(serialize = "target exited")]
    TargetExited,
    /// The command started by memprobe, or the process given to it, has ended. This process, a descendant, still runs.
    #[strum(serialize = "parent exited")]
    ParentExited,
    #[strum(serialize = "failed")]
    Failed,
    /// A request failed, or somebody asked for the file.
    #[strum(serialize = "dumped")]
    Dumped,
    /// PyTorch wrote its history and its allocator's state.
    #[strum(serialize = "snapshot taken")]
    SnapshotTaken,
}

impl EndReason {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct AtAttachRecord {
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    peak_reserved: u64,
    unread: Option<String>,
}

impl From<&AtAttach> for AtAttachRecord {
    fn from(found: &AtAttach) -> Self {
        Self {
            device: found.device,
            allocated: found.totals.allocated.0,
            reserved: found.totals.reserved.0,
            peak_allocated: found.peak.allocated.0,
            peak_reserved: found.peak.reserved.0,
            unread: found.unread.as_deref().map(str::to_owned),
        }
    }
}

impl AtAttachRecord {
    pub(crate) fn at(self, time: TimeNs, tgid: Tgid) -> AtAttach {
        let totals = |allocated, reserved| Totals {
            allocated: Bytes(allocated),
            reserved: Bytes(reserved),
        };
        AtAttach {
            time,
            tgid,
            device: self.device,
            totals: totals(self.allocated, self.reserved),
            peak: totals(self.peak_allocated, self.peak_reserved),
            unread: self.unread.map(Into::into),
        }
    }
}

/// A [`CaptureChange`].
#[derive(Serialize, Deserialize)]
pub(crate) struct CaptureRecord {
    pub level: String,
    pub overhead_ppm: TimeShare,
    pub budget_ppm: TimeShare,
}

impl From<&CaptureChange> for CaptureRecord {
    fn from(change: &CaptureChange) -> Self {
        Self {
            level: change.level.as_str().to_owned(),
            overhead_ppm: change.overhead,
            budget_ppm: change.budget,
        }
    }
}

impl CaptureRecord {
    /// Returns the change; `None` for an unknown level.
    pub(crate) fn at(self, time: TimeNs, tgid: Tgid) -> Option<CaptureChange> {
        Some(CaptureChange {
            time,
            tgid,
            level: self.level.parse().ok()?,
            overhead: self.overhead_ppm,
            budget: self.budget_ppm,
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct EndRecord {
    pub end: String,
    pub events: u64,
    pub lost_events: u64,
    pub lost_stacks: u64,
    pub malformed: u64,
    #[serde(default)]
    pub lost_uses: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<TimeNs>,
}

impl From<&End> for EndRecord {
    fn from(end: &End) -> Self {
        Self {
            end: end.reason.as_str().to_owned(),
            events: end.events,
            lost_events: end.losses.events,
            lost_stacks: end.losses.stacks,
            malformed: end.losses.malformed,
            lost_uses: end.losses.uses,
            time_ns: end.time,
        }
    }
}

impl EndRecord {
    pub(crate) fn into_end(self) -> Option<End> {
        Some(End {
            reason: self.end.parse().ok()?,
            time: self.time_ns,
            events: self.events,
            losses: Losses {
                events: self.lost_events,
                stacks: self.lost_stacks,
                malformed: self.malformed,
                uses: self.lost_uses,
            },
        })
    }
}

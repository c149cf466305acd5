//! Header and end records of a recording.

use serde::{Deserialize, Serialize};

use super::FORMAT;
use crate::event::{AtAttach, Bytes, DeviceIndex, Losses, Tgid, TimeNs, Totals};
use crate::event::{ProbeStatus, Target};

/// Facts known when a recording starts.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Header {
    /// Version of memprobe that recorded, such as `0.1.0`.
    pub version: String,
    /// Monotonic time of `ts` 0.
    pub start: TimeNs,
    /// The same moment in milliseconds since 1970 (UTC); `None` if the wall clock was not set.
    pub wall_start_ms: Option<u64>,
    pub target: Target,
    /// Probes that were attached.
    pub probes: Vec<ProbeStatus>,
}

/// Facts known when a recording ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    /// Memory events written.
    pub events: u64,
    /// Losses over the whole recording.
    pub losses: Losses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The requested duration has passed.
    Duration,
    /// The user or a signal ended it.
    Interrupted,
    TargetExited,
    /// The command started by memprobe, or the process given to it, has ended. This process, a descendant,
    /// still runs.
    ParentExited,
    /// memprobe failed.
    Failed,
}

impl EndReason {
    /// Returns the reason as text for users and recordings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Duration => "duration over",
            Self::Interrupted => "interrupted",
            Self::TargetExited => "target exited",
            Self::ParentExited => "parent exited",
            Self::Failed => "failed",
        }
    }

    /// Parses the text of [`Self::as_str`].
    pub fn parse(words: &str) -> Option<Self> {
        [
            Self::Duration,
            Self::Interrupted,
            Self::TargetExited,
            Self::ParentExited,
            Self::Failed,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == words)
    }
}

/// Serialized form of [`Header`].
#[derive(Serialize, Deserialize)]
pub(crate) struct HeaderRecord {
    pub format: u32,
    pub version: String,
    pub start_ns: u64,
    pub wall_start_ms: Option<u64>,
    pub pid: Option<u32>,
    /// PID in the process's own PID namespace, if that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub command: String,
    pub python: Option<String>,
    pub torch: Option<String>,
    pub probes: Vec<ProbeRecord>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ProbeRecord {
    function: String,
    library: String,
    offset: u64,
    emulated: bool,
}

impl From<&Header> for HeaderRecord {
    fn from(header: &Header) -> Self {
        let target = &header.target;
        let probe = |probe: &ProbeStatus| ProbeRecord {
            function: probe.function.clone(),
            library: probe.library.clone(),
            offset: probe.offset,
            emulated: probe.emulated,
        };
        Self {
            format: FORMAT,
            version: header.version.clone(),
            start_ns: header.start.0,
            wall_start_ms: header.wall_start_ms,
            pid: target.tgid.map(|tgid| tgid.0),
            inner_pid: target.inner_tgid.map(|tgid| tgid.0),
            container: target.container.clone(),
            command: target.command.clone(),
            python: target.python.clone(),
            torch: target.torch.clone(),
            probes: header.probes.iter().map(probe).collect(),
        }
    }
}

impl From<HeaderRecord> for Header {
    fn from(record: HeaderRecord) -> Self {
        let probe = |probe: ProbeRecord| ProbeStatus {
            function: probe.function,
            library: probe.library,
            offset: probe.offset,
            emulated: probe.emulated,
        };
        Self {
            version: record.version,
            start: TimeNs(record.start_ns),
            wall_start_ms: record.wall_start_ms,
            target: Target {
                tgid: record.pid.map(Tgid),
                inner_tgid: record.inner_pid.map(Tgid),
                container: record.container,
                command: record.command,
                python: record.python,
                torch: record.torch,
            },
            probes: record.probes.into_iter().map(probe).collect(),
        }
    }
}

/// Serialized form of [`AtAttach`], without its time and process.
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

/// Serialized form of [`End`].
#[derive(Serialize, Deserialize)]
pub(crate) struct EndRecord {
    pub end: String,
    pub events: u64,
    pub lost_events: u64,
    pub lost_stacks: u64,
    pub malformed: u64,
    #[serde(default)]
    pub lost_uses: u64,
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
        }
    }
}

impl EndRecord {
    /// Returns `None` for an unknown reason.
    pub(crate) fn into_end(self) -> Option<End> {
        Some(End {
            reason: EndReason::parse(&self.end)?,
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

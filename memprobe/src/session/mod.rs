//! Sessions: probed processes, from kernel records to a stream of events.

mod allocator_conf;
mod allocator_reading;
mod before_attach;
mod budget;
pub(crate) mod driver;
pub(crate) mod gpus;
pub(crate) mod host;
mod live_blocks;
pub(crate) mod loaded_libraries;
mod poll;
pub(crate) mod priority;
pub(crate) mod process;
pub(crate) mod process_monitor;
mod segments;
mod start_phases;
pub(crate) mod startup_check;

use crate::decode::{MemoryKind, Record};
use crate::event::{Event, MarkedPhase, ProbeStatus, Target, Tgid, TimeNs};
use crate::probe::attach::AttachError;
use crate::symbolize::marks;

/// Now, on the clock of the events (`bpf_ktime_get_ns` is `CLOCK_MONOTONIC`).
pub(crate) fn now() -> TimeNs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    TimeNs(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Output of a session, in order. [`HostItem::Found`] is the first of a process, [`HostItem::Ended`] the
/// last; after that its number may be another process's, which is found anew.
#[derive(Debug)]
pub(crate) struct HostEvent {
    pub(crate) tgid: Tgid,
    pub(crate) item: HostItem,
}

/// Targets are boxed: each event of a process moves through several queues in one of these.
#[derive(Debug)]
pub(crate) enum HostItem {
    Found {
        /// Parent process, if it is watched too.
        parent: Option<Tgid>,
        target: Box<Target>,
    },
    /// Not ready to be probed; says what is missing.
    Waiting(String),
    /// Probes are being placed, so many up to now.
    Placing(usize),
    /// Probes are in place, or more of them than before.
    Attached {
        target: Box<Target>,
        probes: Vec<ProbeStatus>,
        /// Sentences on what is not seen, for lack of a probe or of a kernel feature.
        missing: Vec<String>,
    },
    Event(Event),
    /// More is known of the GPUs behind its ordinals.
    Identified(Box<Target>),
    /// Reached a point worth a heap snapshot. Sent at once, before the events that led there.
    SnapshotPoint(SnapshotPoint),
    /// Something that whoever looks at it should know.
    Notice(String),
    /// Runs nothing until somebody continues it; says why, and how that is done.
    Stopped(String),
    /// Runs on after [`HostItem::Stopped`].
    Continued,
    /// Impossible to probe. Its events may still arrive, without lines.
    Refused(AttachError),
    /// Runs another program from now on; its memory is freed. Earlier events and probes were the old program's.
    Executed(Box<Target>),
    /// Ended; its memory is freed.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPoint {
    /// The first call of a module that is seen: there is a model.
    FirstCall,
    /// A step of an optimizer begins.
    Step,
    /// The allocator gave up: an out-of-memory error follows in the target.
    OutOfMemory,
}

impl SnapshotPoint {
    /// Point that a record of the kernel programs shows.
    fn of(record: &Record<'_>) -> Option<Self> {
        match record {
            Record::Memory(MemoryKind::OutOfMemory, ..) => Some(Self::OutOfMemory),
            Record::Mark(mark) => {
                let is_step = matches!(marks::parse(&mark.name), Some((MarkedPhase::Step, _)));
                is_step.then_some(Self::Step)
            }
            _ => None,
        }
    }
}

//! Output of a session.

use crate::event::{Event, ProbeStatus, Target, Tgid};
use crate::probe::attach::AttachError;

/// Output of a session, in order. [`HostItem::Found`] is the first of a process, [`HostItem::Ended`] the
/// last; after that its number may be another process's, which is found anew.
#[derive(Debug)]
pub(crate) struct HostEvent {
    pub(crate) tgid: Tgid,
    pub(crate) item: HostItem,
}

#[derive(Debug)]
pub(crate) enum HostItem {
    Found {
        /// Parent process, if it is watched too.
        parent: Option<Tgid>,
        target: Target,
    },
    /// Not ready to be probed; says what is missing.
    Waiting(String),
    /// Probes are in place, or more of them than before.
    Attached {
        target: Target,
        probes: Vec<ProbeStatus>,
        /// Sentences on what is not seen, for lack of a probe or of a kernel feature.
        missing: Vec<String>,
    },
    Event(Event),
    /// Reached a point worth a heap snapshot. Sent at once, before the events that led there.
    SnapshotPoint(SnapshotPoint),
    /// Something that whoever looks at it should know.
    Notice(String),
    /// Impossible to probe. Its events may still arrive, without lines.
    Refused(AttachError),
    /// Runs another program from now on; its memory is freed. Earlier events and probes were the old program's.
    Executed(Target),
    /// Ended; its memory is freed.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPoint {
    /// The first call of a module that is seen: there is a model.
    FirstCall,
    /// A step of an optimizer begins.
    Step,
}

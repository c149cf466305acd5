//! Allocation lines of the blocks that a process allocates between its snapshots.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, timeout_at};

use crate::commands::record::progress::Progress;
use crate::event::Tgid;
use crate::event::tensors::TensorSnapshot;
use crate::ledger::AnalyzedLedger;
use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::session::HostItem;
use crate::session::host::HostSession;
use crate::session::process::{self, ProcessOrigin};
use crate::tensors::Sites;

/// Time that the first snapshot waits for the probes: earlier blocks have no line.
const PATIENCE: Duration = Duration::from_secs(3);

/// The probes of a process, where there can be some, and the ledger that they feed.
pub(super) struct BlockTracker {
    session: Option<HostSession>,
    ledgers: AnalyzedLedger<Sites>,
    is_ready: bool,
}

impl BlockTracker {
    /// Begins to look. Without probes a snapshot says less, and why is said here.
    pub(super) fn open(
        tgid: Tgid,
        detail: Detail,
        ring_bytes: u32,
        progress: &mut Progress,
    ) -> Result<Self> {
        let target = process::identified(tgid);
        let ledgers = AnalyzedLedger::new(target, crate::session::now(), Sites::default());
        let session = match load(tgid, detail, ring_bytes) {
            Ok(session) => Some(session),
            Err(error) => {
                let reason = "because nothing can be probed";
                progress.say(&format!("blocks will have no line, {reason}: {error:#}"));
                None
            }
        };
        Ok(Self {
            is_ready: session.is_none(),
            session,
            ledgers,
        })
    }

    pub(super) async fn ready(&mut self, progress: &mut Progress) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready {
            match timeout_at(deadline, self.look(progress)).await {
                Ok(looked) => looked?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Waits for events and takes them; for ever where nothing is probed.
    pub(super) async fn look(&mut self, progress: &mut Progress) -> Result<()> {
        match &mut self.session {
            Some(session) => session.wait().await,
            None => std::future::pending().await,
        }
        self.take(progress)
    }

    fn take(&mut self, progress: &mut Progress) -> Result<()> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let (ledgers, is_ready) = (&mut self.ledgers, &mut self.is_ready);
        session.drain(|event| {
            match event.item {
                HostItem::Event(event) => ledgers.apply(&event),
                HostItem::Attached { .. } => *is_ready = true,
                HostItem::Executed(target) => {
                    *ledgers = AnalyzedLedger::new(target, crate::session::now(), Sites::default());
                }
                HostItem::Refused(error) => {
                    *is_ready = true;
                    progress.say(&format!("blocks will have no line: {error}"));
                }
                HostItem::Waiting(what) => progress.say_once(&what),
                HostItem::Notice(notice) => progress.say_once(&notice),
                HostItem::Found { .. } | HostItem::SnapshotPoint(_) | HostItem::Ended => {}
            }
            Ok(())
        })?;
        Ok(())
    }

    pub(super) fn begin(&mut self) {
        self.ledgers.analyses = Sites::default();
    }

    /// Gives the blocks of the snapshot that was begun their lines.
    pub(super) fn sign(
        &mut self,
        snapshot: &mut TensorSnapshot,
        progress: &mut Progress,
    ) -> Result<()> {
        self.take(progress)?;
        let AnalyzedLedger { ledger, analyses } = &self.ledgers;
        analyses.sign(ledger, snapshot);
        Ok(())
    }
}

fn load(tgid: Tgid, detail: Detail, ring_bytes: u32) -> Result<HostSession> {
    kernel::preflight()?;
    let wanted = Wanted {
        watch: Watch::One,
        detail,
        allocators: Allocators::Cuda,
        graph: GraphTracking::Off,
        driver: DriverCalls::Probed,
    };
    let mut session = HostSession::load(wanted, ring_bytes)?;
    session.add(Watched::open(tgid)?, ProcessOrigin::Running)?;
    Ok(session)
}

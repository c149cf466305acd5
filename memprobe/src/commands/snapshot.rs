//! `snapshot`: from the memory of a process to a table of its tensors, once or again and again.

pub use crate::torch::tensors::CaptureMode;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::Interrupts;
use super::record::progress::Progress;
use super::stdout::{self, OutputContent, Stdout};
use super::waiting::show_while;
use crate::event::tensors::{TensorDevice, TensorSnapshot};
use crate::event::{KvGap, Tgid};
use crate::ledger::{Analysis, AnalyzedLedger};
use crate::output::{OutputError, OutputPlan};
use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::process::facts;
use crate::python::PythonProcess;
use crate::report::{ReportError, TensorFormat, TensorOptions, write_tensor_diff, write_tensors};
use crate::session::host::HostSession;
use crate::session::process::{self, ProcessOrigin};
use crate::session::{HostItem, gpus, loaded_libraries};
use crate::tensors::{GroupBy, Sites, without};
use crate::torch::serving::pools_of;
use crate::torch::tensors::{ReadProgress, ReadStage, SnapshotError, take};
use crate::view::{consistency, count, counted};

/// Interval of checking for the end of a process that is not probed.
const LOOK: Duration = Duration::from_millis(250);

/// Probes that find the lines of new blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockProbes {
    pub detail: Detail,
    pub driver: DriverCalls,
    pub ring_bytes: u32,
}

pub struct Snapshots {
    pub tgid: Tgid,
    pub manner: CaptureMode,
    pub extent: Allocators,
    pub options: TensorOptions,
}

impl Snapshots {
    pub fn once(&self, output: Option<&Path>) -> Result<ExitCode> {
        // What cannot be written is not worth a pause.
        let plan = output.map(OutputPlan::check).transpose()?;
        // Says what is wrong with a number that is none of a process.
        drop(Watched::open(self.tgid)?);
        let mut snapshot = taken_with_gpus(self.tgid, self.manner, self.extent)?;
        if self.options.by == GroupBy::Request {
            add_scheduler(&mut snapshot, self.tgid, self.manner);
        }
        let snapshot = Arc::new(snapshot);
        let mut progress = Progress::new(false);
        if let Some(limit) = snapshot.limit {
            progress.say(&beyond_limit(limit));
        }
        let Some(plan) = plan.filter(|plan| !plan.is_stdout()) else {
            print(self.options.format, |out| {
                write_tensors(&snapshot, &self.options, out)
            })?;
            if self.options.format != TensorFormat::Text {
                progress.say(&consistency(snapshot.consistency));
            }
            return Ok(ExitCode::SUCCESS);
        };
        let path = write_file(plan, &snapshot, &self.options)?;
        let tensors = counted(snapshot.tensors.len() as u64, "tensor");
        let place = path.map_or_else(String::new, |path| format!(" in {}", path.display()));
        progress.say(&format!(
            "{tensors}{place}; {}",
            consistency(snapshot.consistency)
        ));
        // memprobe ends: to free millions of parts one by one takes longer.
        std::mem::forget(snapshot);
        Ok(ExitCode::SUCCESS)
    }

    /// Prints first the table, then the changes, until the process ends or somebody interrupts.
    pub fn watch(&self, interval: Duration, probes: BlockProbes) -> Result<ExitCode> {
        super::runtime()?.block_on(self.watch_inside(interval, probes))
    }

    async fn watch_inside(&self, interval: Duration, probes: BlockProbes) -> Result<ExitCode> {
        let mut interrupts = Interrupts::new()?;
        let watched = Watched::open(self.tgid)?;
        let mut tracker = BlockTracker::open(self.tgid, probes, || ());
        tokio::select! {
            _ = interrupts.next() => return Ok(ExitCode::SUCCESS),
            ready = tracker.ready() => ready?,
        }
        let mut before: Option<Arc<TensorSnapshot>> = None;
        loop {
            let next = Instant::now() + interval;
            match self.take_watched(&mut tracker).await {
                Ok(snapshot) => {
                    let snapshot = Arc::new(snapshot);
                    if let Some(limit) = snapshot.limit {
                        tracker.progress.say_once(&beyond_limit(limit));
                    }
                    let heard = match &before {
                        None => print(self.options.format, |out| {
                            write_tensors(&snapshot, &self.options, out)
                        })?,
                        Some(before) => print(self.options.format, |out| {
                            out.write_all(b"\n")?;
                            write_tensor_diff(before, &snapshot, &self.options, out)
                        })?,
                    };
                    if heard.is_none() {
                        return Ok(ExitCode::SUCCESS);
                    }
                    before = Some(snapshot);
                }
                Err(_) if watched.has_ended() => {}
                // What stands in the way of one need not stand in that of the next.
                Err(error) if before.is_some() => tracker.progress.say(&format!("{error:#}")),
                Err(error) => return Err(error),
            }
            tokio::select! {
                _ = interrupts.next() => return Ok(ExitCode::SUCCESS),
                rested = rest(&mut tracker, &watched, next) => rested?,
            }
            if watched.has_ended() {
                let ended = format!("process {} has ended", self.tgid.0);
                tracker.progress.say(&ended);
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    async fn take_watched(&self, tracker: &mut BlockTracker) -> Result<TensorSnapshot> {
        let (tgid, manner, extent) = (self.tgid, self.manner, self.extent);
        tracker.begin();
        let mut taking = tokio::task::spawn_blocking(move || taken_with_gpus(tgid, manner, extent));
        let outcome = loop {
            tokio::select! {
                outcome = &mut taking => break outcome,
                looked = tracker.look() => looked?,
            }
        };
        let mut snapshot = outcome.context("reading the process")??;
        tracker.sign(&mut snapshot)?;
        Ok(snapshot)
    }
}

/// Writes a whole file row by row. Returns its path (`None` for standard output).
pub(super) fn write_file(
    plan: OutputPlan,
    snapshot: &Arc<TensorSnapshot>,
    options: &TensorOptions,
) -> Result<Option<PathBuf>, OutputError> {
    plan.write_with(|file| match write_tensors(snapshot, options, file) {
        Ok(Some(())) => Ok(()),
        Ok(None) => Err(ErrorKind::BrokenPipe.into()),
        Err(ReportError::Output(error)) => Err(error),
        Err(error) => Err(std::io::Error::other(error)),
    })
}

/// Warning if the process has more tensors than memprobe reads.
fn beyond_limit(limit: u64) -> String {
    let limit = count(limit);
    format!(
        "the process has more than {limit} tensors: the others are missing, and their blocks have a row of their own"
    )
}

async fn rest(tracker: &mut BlockTracker, watched: &Watched, until: Instant) -> Result<()> {
    while !watched.has_ended() {
        tokio::select! {
            () = sleep_until(until) => break,
            () = sleep(LOOK) => {}
            looked = tracker.look() => looked?,
        }
    }
    Ok(())
}

/// Describes how far a reading is.
pub(super) fn read_line(progress: &ReadProgress) -> String {
    // The count stays after the last object: what follows may take longer than the reading of them.
    let objects = progress.objects().map(|(read, all)| match read < all {
        true => format!("{} of {} objects", count(read), count(all)),
        false => format!("{} objects", count(all)),
    });
    match (progress.stage(), objects) {
        (ReadStage::Running, None) => "finding what to copy, the process runs".to_owned(),
        (ReadStage::Running, Some(objects)) => {
            format!("finding what to copy: {objects}, the process runs")
        }
        (ReadStage::Paused, _) => "the process is paused".to_owned(),
        (ReadStage::Copy, None) => "reading the copy, the process runs again".to_owned(),
        (ReadStage::Copy, Some(objects)) => format!("reading {objects}, the process runs again"),
        (ReadStage::Naming, _) => "naming the tensors, the process runs again".to_owned(),
    }
}

/// Reason why a snapshot was not taken. Its text includes its causes, so it has no source.
#[derive(Debug, thiserror::Error)]
#[error("process {}: {error}", .tgid.0)]
pub(super) struct NotTaken {
    pub(super) tgid: Tgid,
    pub(super) error: SnapshotError,
}

impl NotTaken {
    /// True if the process is ending or has ended: its Python is gone.
    pub(super) fn is_of_the_end(&self) -> bool {
        self.error.is_of_the_end()
    }

    /// True if another attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        self.error.may_pass()
    }
}

/// A snapshot that names the GPUs behind its devices. Blocks while process and driver are asked.
pub(super) fn taken_with_gpus(
    tgid: Tgid,
    manner: CaptureMode,
    extent: Allocators,
) -> Result<TensorSnapshot> {
    let progress = ReadProgress::default();
    let line = || read_line(&progress);
    let mut snapshot = show_while(line, || taken(tgid, manner, extent, &progress))?;
    let devices: Vec<_> = snapshot
        .devices
        .iter()
        .map(|totals| totals.device)
        .collect();
    snapshot.target.gpus = gpus::identified(tgid, &devices);
    let python = PythonProcess::detect(tgid).ok();
    snapshot.target.libraries = loaded_libraries::read(tgid, python.as_ref());
    Ok(snapshot)
}

/// A snapshot with all that is known of the process. Blocks while the process is read; `progress` says how far it is.
pub(super) fn taken(
    tgid: Tgid,
    manner: CaptureMode,
    extent: Allocators,
    progress: &ReadProgress,
) -> Result<TensorSnapshot> {
    let mut snapshot = take(tgid, manner, progress).map_err(|error| NotTaken { tgid, error })?;
    let known = process::identified(tgid);
    snapshot.target.inner_tgid = known.inner_tgid;
    snapshot.target.container = known.container;
    Ok(match extent {
        Allocators::Cuda => without(snapshot, TensorDevice::Cpu),
        Allocators::CudaAndCpu => snapshot,
    })
}

/// Adds what the scheduler says whose process started this one, if this one has the tensors of a KV cache alone. Blocks
/// while that process is read.
pub(super) fn add_scheduler(snapshot: &mut TensorSnapshot, tgid: Tgid, manner: CaptureMode) {
    if snapshot.kv.gap != Some(KvGap::NoScheduler) {
        return;
    }
    let Some(parent) = facts::parent(tgid) else {
        return;
    };
    let none = format!(
        "neither this process nor PID {} has a scheduler's objects",
        parent.0
    );
    let gap = match pools_of(parent, manner) {
        Ok(found) if found.pools.is_empty() => match found.gap {
            Some(KvGap::Other(words)) => words,
            Some(KvGap::NoScheduler) | None => none.into(),
        },
        Ok(found) => {
            snapshot.kv.pools = found.pools;
            snapshot.kv.gap = found.gap;
            return;
        }
        Err(error) => format!("{none}, which cannot be read: {error}").into(),
    };
    snapshot.kv.gap = Some(KvGap::Other(gap));
}

/// Writes to standard output; `None` where its reader has gone.
fn print<E: Into<anyhow::Error>>(
    format: TensorFormat,
    write: impl FnOnce(&mut Stdout) -> Result<Option<()>, E>,
) -> Result<Option<()>> {
    let mut out = stdout::open(content(format));
    write(&mut out).map_err(Into::into)
}

pub fn content(format: TensorFormat) -> OutputContent {
    match format {
        TensorFormat::Text => OutputContent::Text,
        TensorFormat::Json | TensorFormat::Csv => OutputContent::Document,
    }
}

/// Time that the first snapshot waits for the probes: earlier blocks have no line.
const PATIENCE: Duration = Duration::from_secs(3);

/// The probes of a process, where there can be some, and the ledger that they feed: lines of blocks, and one more
/// analysis.
pub(super) struct BlockTracker<A = ()> {
    session: Option<HostSession>,
    pub(super) ledgers: AnalyzedLedger<(Sites, A)>,
    make: fn() -> A,
    is_ready: bool,
    pub(super) progress: Progress,
}

impl<A: Analysis> BlockTracker<A> {
    /// Begins to look. Without probes a snapshot says less, and why is said here.
    pub(super) fn open(tgid: Tgid, probes: BlockProbes, make: fn() -> A) -> Self {
        let mut progress = Progress::new(false);
        let target = process::identified(tgid);
        let analyses = (Sites::default(), make());
        let ledgers = AnalyzedLedger::new(target, crate::session::now(), analyses);
        let session = match load(tgid, probes) {
            Ok(session) => Some(session),
            Err(error) => {
                let reason = "because nothing can be probed";
                progress.say(&format!("blocks will have no line, {reason}: {error:#}"));
                None
            }
        };
        Self {
            is_ready: session.is_none(),
            session,
            ledgers,
            make,
            progress,
        }
    }

    /// True unless nothing can be probed.
    pub(super) const fn is_probed(&self) -> bool {
        self.session.is_some()
    }

    pub(super) async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready {
            match timeout_at(deadline, self.look()).await {
                Ok(looked) => looked?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Waits for events and takes them; for ever where nothing is probed.
    pub(super) async fn look(&mut self) -> Result<()> {
        match &mut self.session {
            Some(session) => session.wait().await,
            None => std::future::pending().await,
        }
        self.take()
    }

    fn take(&mut self) -> Result<()> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let (ledgers, is_ready, make) = (&mut self.ledgers, &mut self.is_ready, self.make);
        let progress = &mut self.progress;
        session.drain(|event| {
            match event.item {
                HostItem::Event(event) => ledgers.apply(&event),
                HostItem::Attached { .. } => *is_ready = true,
                HostItem::Executed(target) => {
                    let analyses = (Sites::default(), make());
                    *ledgers = AnalyzedLedger::new(*target, crate::session::now(), analyses);
                }
                HostItem::Refused(error) => {
                    *is_ready = true;
                    progress.say(&format!("blocks will have no line: {error}"));
                }
                HostItem::Stopped(reason) => progress.say(&reason),
                HostItem::Waiting(what) => progress.say_once(&what),
                HostItem::Notice(notice) => progress.say_once(&notice),
                HostItem::Found { .. }
                | HostItem::Identified(_)
                | HostItem::SnapshotPoint(_)
                | HostItem::Placing(_)
                | HostItem::Continued
                | HostItem::Ended => {}
            }
            Ok(())
        })?;
        Ok(())
    }

    pub(super) fn begin(&mut self) {
        self.ledgers.analyses.0 = Sites::default();
    }

    /// Gives the blocks of the snapshot that was begun their lines.
    pub(super) fn sign(&mut self, snapshot: &mut TensorSnapshot) -> Result<()> {
        self.take()?;
        let AnalyzedLedger { ledger, analyses } = &self.ledgers;
        analyses.0.sign(ledger, snapshot);
        Ok(())
    }
}

fn load(tgid: Tgid, probes: BlockProbes) -> Result<HostSession> {
    kernel::preflight()?;
    let wanted = Wanted {
        watch: Watch::One,
        detail: probes.detail,
        allocators: Allocators::Cuda,
        graph: GraphTracking::Off,
        driver: probes.driver,
    };
    let mut session = HostSession::load(wanted, probes.ring_bytes)?;
    session.add(Watched::open(tgid)?, ProcessOrigin::Running)?;
    Ok(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_objects_stays_in_the_line_until_the_stage_ends() {
        let progress = ReadProgress::default();
        progress.expect(1200);
        progress.reach(1000);
        let part = "finding what to copy: 1,000 of 1,200 objects, the process runs";
        assert_eq!(read_line(&progress), part);
        progress.reach(1200);
        let whole = "finding what to copy: 1,200 objects, the process runs";
        assert_eq!(read_line(&progress), whole);
        progress.begin(ReadStage::Copy);
        let copy = "reading the copy, the process runs again";
        assert_eq!(read_line(&progress), copy);
    }
}

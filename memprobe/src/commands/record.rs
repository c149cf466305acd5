//! `record`: from the probes to a file.

pub(crate) mod progress;
mod recorder;
pub(crate) mod started;
mod trace;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

use super::interrupts::Interrupts;
pub use super::naming::Naming;
use super::naming::{NameReader, Placed, Reading};
use super::record::progress::Progress;
use super::record::recorder::{Destination, Recorder};
use super::record::started::Started;
use super::snapshot::CaptureMode;
use crate::event::{Losses, Tgid};
use crate::probe::attach::AttachError;
use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::recording::EndReason;
use crate::session::event::{HostEvent, HostItem};
use crate::session::host::HostSession;
use crate::session::priority;
use crate::session::process::Origin;

/// Interval of flushing the file.
const FLUSH: Duration = Duration::from_secs(1);

pub enum Subject {
    /// A process that runs already.
    Process(Tgid),
    /// A process that runs already, and all that descend from it.
    Family(Tgid),
    /// A command to start, and all that descends from it: its program and arguments.
    Command(Vec<OsString>),
}

/// One run of `memprobe record`.
pub struct Recording {
    pub subject: Subject,
    /// Output file or directory.
    pub output: PathBuf,
    pub detail: Detail,
    /// Schedule of heap snapshots, for names.
    pub naming: Naming,
    pub allocators: Allocators,
    pub graph: GraphTracking,
    /// Treatment of libcuda.
    pub driver: DriverCalls,
    /// For how long at most.
    pub duration: Option<Duration>,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
    /// No output while recording.
    pub quiet: bool,
}

impl Recording {
    /// Records until the target ends, the time is over or somebody interrupts.
    ///
    /// # Errors
    /// When the target cannot be probed or the file not be written, with what to do.
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        super::runtime()?.block_on(self.run_inside())
    }

    async fn run_inside(self) -> Result<ExitCode> {
        let mut interrupts = Interrupts::new()?;
        let command = match &self.subject {
            Subject::Command(words) => Some(joined(words)),
            Subject::Process(_) | Subject::Family(_) => None,
        };
        let destination = Destination::check(&self.output, command)?;
        let watch = match &self.subject {
            Subject::Process(_) => Watch::One,
            Subject::Family(_) | Subject::Command(_) => Watch::Family,
        };
        let mut session = HostSession::load(
            Wanted {
                watch,
                detail: self.detail,
                allocators: self.allocators,
                graph: self.graph,
                driver: self.driver,
            },
            self.ring_bytes,
        )?;
        let (mut command, watched, origin) = match &self.subject {
            Subject::Process(tgid) | Subject::Family(tgid) => {
                (None, Watched::open(*tgid)?, Origin::Running)
            }
            Subject::Command(words) => {
                let command = Started::spawn(words)?;
                let watched = Watched::open(command.tgid())?;
                (Some(command), watched, Origin::Started)
            }
        };
        let root = watched.tgid;
        match watch {
            Watch::One => session.add(watched, origin)?,
            Watch::Family | Watch::Everyone => session.add_family(watched, origin)?,
        }
        // Not before: the command would inherit it.
        priority::come_first();
        let mut run = Run {
            session,
            intake: Intake {
                watch,
                root,
                recorder: Recorder::new(destination),
                names: NameReader::new(self.naming, self.allocators, CaptureMode::Paused),
                progress: Progress::new(self.quiet),
                duration: self.duration,
                deadline: None,
                refusal: None,
            },
        };
        let reason = run.record(&mut interrupts).await;
        let reason = reason.inspect_err(|_| {
            if let Some(command) = &mut command {
                command.leave_running(&mut Progress::new(self.quiet));
            }
        })?;
        let Some(reason) = reason else {
            run.intake
                .progress
                .say("interrupted before there was anything to record; nothing was written");
            return Ok(ExitCode::from(INTERRUPTED));
        };
        match &mut command {
            Some(command) if reason == EndReason::TargetExited => command.exit_code(),
            Some(command) => {
                command.leave_running(&mut run.intake.progress);
                Ok(ExitCode::SUCCESS)
            }
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Exit status where there was nothing to record when Ctrl-C came (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// A recording that is being made.
struct Run {
    session: HostSession,
    intake: Intake,
}

impl Run {
    /// Records until it is time to end; `None` where it was interrupted before there was anything to
    /// record.
    async fn record(&mut self, interrupts: &mut Interrupts) -> Result<Option<EndReason>> {
        let Self { session, intake } = self;
        let mut flushed = Instant::now();
        let reason = loop {
            match intake.wait(session, interrupts).await {
                Woken::Records => {
                    session.drain(|event| intake.take(event))?;
                }
                Woken::Read(reading) => {
                    intake.take_read(reading)?;
                    session.drain(|event| intake.take(event))?;
                }
                Woken::End(_) if !intake.recorder.has_attached() => return Ok(None),
                Woken::End(reason) => break reason,
            }
            intake.place(session)?;
            if !session.is_watched(intake.root) {
                break EndReason::TargetExited;
            }
            if let Some(refusal) = intake.refusal.take_if(|_| session.len() == 1) {
                return Err(refusal.into());
            }
            if flushed.elapsed() >= FLUSH {
                flushed = Instant::now();
                intake.recorder.flush()?;
            }
            if intake.recorder.has_attached() {
                intake
                    .progress
                    .show(intake.recorder.figures(session.losses));
            }
        };
        intake.read_names(session, reason).await?;
        session.drain_all(|event| intake.take(event))?;
        intake.finish(reason, session.losses)?;
        Ok(Some(reason))
    }
}

/// Consumer of the session's events.
struct Intake {
    watch: Watch,
    /// The process that was asked for, or the command.
    root: Tgid,
    recorder: Recorder,
    names: NameReader,
    progress: Progress,
    duration: Option<Duration>,
    deadline: Option<Instant>,
    /// Reason not to probe the root.
    refusal: Option<AttachError>,
}

/// Reason to wake up.
enum Woken {
    /// There may be records.
    Records,
    /// A process was read.
    Read(Reading),
    /// End of the recording.
    End(EndReason),
}

impl Intake {
    /// Waits for something to do, or for a reason to end.
    async fn wait(&mut self, session: &mut HostSession, interrupts: &mut Interrupts) -> Woken {
        let deadline = self.deadline;
        let over = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = interrupts.next() => Woken::End(EndReason::Interrupted),
            () = over => Woken::End(EndReason::Duration),
            read = self.names.next() => Woken::Read(read),
            () = session.wait() => Woken::Records,
        }
    }

    /// Reads the processes that go on and have not been read.
    async fn read_names(&mut self, session: &mut HostSession, reason: EndReason) -> Result<()> {
        let left = match reason {
            EndReason::TargetExited => Vec::new(),
            _ => self.recorder.written_to().collect(),
        };
        self.names.begin_last(left.into_iter());
        while self.names.is_reading() {
            tokio::select! {
                reading = self.names.next() => self.take_read(reading)?,
                () = session.wait() => {}
            }
            session.drain(|event| self.take(event))?;
            self.place(session)?;
        }
        Ok(())
    }

    fn take_read(&mut self, reading: Reading) -> Result<()> {
        let useless = self.names.take(reading);
        useless.into_iter().try_for_each(|it| self.take_named(it))
    }

    /// Inserts finished heap snapshots at their moment, once it is reached.
    fn place(&mut self, session: &HostSession) -> Result<()> {
        let placed = self.names.place(|tgid| session.is_settled(tgid));
        placed.into_iter().try_for_each(|it| self.take_named(it))
    }

    fn take_named(&mut self, placed: Placed) -> Result<()> {
        for event in placed.events {
            self.take_placed(event)?;
        }
        let tgid = placed.tgid.0;
        self.progress.say(&format!("PID {tgid}: {}", placed.said));
        Ok(())
    }

    fn take(&mut self, event: HostEvent) -> Result<()> {
        self.names.pass(event).each(|event| self.take_placed(event))
    }

    fn take_placed(&mut self, event: HostEvent) -> Result<()> {
        let is_root = event.tgid == self.root;
        match event.item {
            HostItem::Waiting(what) if is_root => {
                self.progress.say(&what);
                return Ok(());
            }
            HostItem::Refused(error) if is_root => {
                self.refusal = Some(error);
                return Ok(());
            }
            HostItem::Ended if is_root && self.recorder.has_attached() => {
                self.recorder.open_early(event.tgid, &mut self.progress)?;
            }
            _ => {}
        }
        let is_first =
            matches!(event.item, HostItem::Attached { .. }) && !self.recorder.has_attached();
        let tgid = event.tgid;
        self.recorder.take(event, &mut self.progress)?;
        if is_first {
            if self.watch == Watch::One {
                self.recorder.open_early(tgid, &mut self.progress)?;
            }
            self.progress.start();
            self.deadline = self.duration.map(|duration| Instant::now() + duration);
        }
        Ok(())
    }

    fn finish(&mut self, reason: EndReason, losses: Losses) -> Result<()> {
        if !self.recorder.has_attached() {
            return match self.refusal.take() {
                Some(refusal) => Err(refusal.into()),
                None => bail!(
                    "process {} ended before it used PyTorch's allocators",
                    self.root.0
                ),
            };
        }
        self.recorder.open_early(self.root, &mut self.progress)?;
        // Those that are left descend from the one that was asked for.
        let left = match reason {
            EndReason::TargetExited => EndReason::ParentExited,
            reason => reason,
        };
        self.recorder.finish(left)?;
        let figures = self.recorder.figures(losses);
        self.recorder.say_end(figures, reason, &mut self.progress);
        Ok(())
    }
}

/// A command as one line.
fn joined(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

//! `record`: from the probes to a file.

pub(crate) mod progress;
pub(in crate::commands) mod recorder;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::time::Instant;

use self::progress::Progress;
use self::recorder::{Destination, Recorder};
use super::before_attach::BaselineLabelers;
use super::naming::{NameReader, Naming, Placed, Reading};
use super::snapshot::CaptureMode;
use super::source::SourceRecording;
use super::waiting::{remove_probes, show_while};
use super::{BaselineReading, CommandUser, EndSignal, Interrupts, messages};
use crate::event::{Losses, Tgid, TimeNs, TimeShare};
use crate::probe::attach::AttachError;
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::process::caller::SudoCaller;
use crate::process::launch::start_as;
use crate::recording::{EndReason, RecordingFormat};
use crate::session::host::HostSession;
use crate::session::process::ProcessOrigin;
use crate::session::{HostEvent, HostItem};

const FLUSH: Duration = Duration::from_secs(1);

/// Longest wait for the blocks of a process whose probes are off at the end.
const MAX_CATCHING_UP: Duration = Duration::from_secs(2);

/// Longest wait for the readings of memory from before attach that are in progress at the end.
const MAX_LABELING: Duration = Duration::from_secs(3);

/// Longest wait for the names that are read after the end.
const MAX_READING: Duration = Duration::from_secs(30);

pub enum Subject {
    Process(Tgid),
    /// A command to start: its program and arguments.
    Command(Vec<OsString>, CommandUser),
}

pub struct Recording {
    pub subject: Subject,
    pub output: PathBuf,
    pub format: RecordingFormat,
    pub wanted: Wanted,
    pub naming: Naming,
    pub reading: BaselineReading,
    pub duration: Option<Duration>,
    /// Most bytes of a file (`--max-size`).
    pub max_size: Option<u64>,
    pub sources: SourceRecording,
    pub ring_bytes: u32,
    /// Share of each process's time that the probes may take (`--max-overhead`).
    pub max_overhead: Option<TimeShare>,
    pub quiet: bool,
}

impl Recording {
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        let runtime = super::runtime()?;
        let recorded = runtime.block_on(self.run_inside());
        // A reading that was given up goes on in its thread. To drop the runtime would wait for it.
        runtime.shutdown_background();
        recorded
    }

    async fn run_inside(self) -> Result<ExitCode> {
        let command = match &self.subject {
            Subject::Command(words, _) => Some(joined(words)),
            Subject::Process(_) => None,
        };
        // This may wait for the reader of a FIFO: until then, signals end memprobe at once.
        let destination = Destination::check(&self.output, command)?;
        if self.max_size.is_some() {
            destination.check_max_size(self.format)?;
        }
        let mut interrupts = Interrupts::new()?;
        let start = match &self.subject {
            Subject::Command(words, user) => Some(Start::of(words, *user)?),
            Subject::Process(_) => None,
        };
        let loading = || "loading memprobe's programs into the kernel".to_owned();
        let load = || HostSession::load(self.wanted, self.ring_bytes);
        let mut session = if self.quiet {
            load()?
        } else {
            show_while(loading, load)?
        };
        let (mut command, watched, origin) = match (&self.subject, start) {
            (Subject::Process(tgid), _) => (None, Watched::open(*tgid)?, ProcessOrigin::Running),
            (Subject::Command(..), start) => {
                let command = start.context("no command was given after --")?.spawn()?;
                let watched = Watched::open(command.tgid())?;
                (Some(command), watched, ProcessOrigin::Launched)
            }
        };
        let root = watched.tgid;
        session.set_max_overhead(self.max_overhead);
        match self.wanted.watch {
            Watch::One => session.add(watched, origin)?,
            Watch::Family | Watch::Everyone => session.add_family(watched, origin)?,
        }
        super::end_start()?;
        let mut intake = Intake {
            watch: self.wanted.watch,
            root,
            recorder: Recorder::new(destination, self.format, (self.max_size, self.sources)),
            names: NameReader::new(self.naming, self.wanted.allocators, CaptureMode::Paused),
            baseline: BaselineLabelers::new(self.reading),
            progress: Progress::new(self.quiet),
            duration: self.duration,
            deadline: None,
            end: None,
            refusal: None,
        };
        let outcome = intake.record(&mut session, &mut interrupts).await;
        let has_ended = matches!(
            outcome,
            Ok(Outcome::Ended(EndReason::TargetExited) | Outcome::Nothing(_))
        );
        if let Some(command) = command.as_mut().filter(|_| !has_ended) {
            command.leave_running(&mut intake.progress);
        }
        intake.progress.clear();
        if !self.quiet {
            remove_probes(session);
        }
        match (outcome?, &mut command) {
            (Outcome::Ended(EndReason::TargetExited), Some(command)) => {
                command.exit_status().map(ExitCode::from)
            }
            (Outcome::Ended(_), _) => Ok(ExitCode::SUCCESS),
            (Outcome::Interrupted(signal), _) => {
                let nothing =
                    "interrupted before there was anything to record; nothing was written";
                intake.progress.say(nothing);
                Ok(signal.exit_code())
            }
            (Outcome::Nothing(error), Some(command)) => match command.exit_status()? {
                0 => Err(error),
                status => {
                    messages::print(&format!("{error:#}"));
                    Ok(ExitCode::from(status))
                }
            },
            (Outcome::Nothing(error), None) => Err(error),
        }
    }
}

/// End of a recording.
enum Outcome {
    Ended(EndReason),
    /// A signal came before there was anything to record.
    Interrupted(EndSignal),
    /// The process ended without anything to record, for this reason.
    Nothing(anyhow::Error),
}

struct Intake {
    watch: Watch,
    /// The process that was asked for, or the command.
    root: Tgid,
    recorder: Recorder,
    names: NameReader,
    baseline: BaselineLabelers,
    progress: Progress,
    duration: Option<Duration>,
    deadline: Option<Instant>,
    /// The deadline on the clock of the events.
    end: Option<TimeNs>,
    refusal: Option<AttachError>,
}

impl Intake {
    /// Records until it is time to end.
    async fn record(
        &mut self,
        session: &mut HostSession,
        interrupts: &mut Interrupts,
    ) -> Result<Outcome> {
        let mut flushed = Instant::now();
        let reason = loop {
            let end = tokio::select! {
                biased;
                signal = interrupts.next() => {
                    if !self.recorder.has_attached {
                        return Ok(Outcome::Interrupted(signal));
                    }
                    Some(EndReason::Interrupted)
                }
                () = until(self.deadline) => Some(EndReason::Duration),
                reading = self.names.next() => self.take_read(reading).map(|()| None)?,
                () = self.baseline.taken() => None,
                () = session.wait() => None,
            };
            if let Some(reason) = end {
                break reason;
            }
            session.drain(|event| self.take(event))?;
            self.place(session)?;
            self.baseline.begin_due();
            self.names.begin_retries();
            if !session.is_watched(self.root) {
                break EndReason::TargetExited;
            }
            if let Some(refusal) = self.refusal.take_if(|_| session.len() == 1) {
                return Err(refusal.into());
            }
            if flushed.elapsed() >= FLUSH {
                flushed = Instant::now();
                self.recorder.flush()?;
            }
            if self.recorder.has_attached {
                self.progress.show(self.recorder.figures(session.losses));
            }
        };
        self.settle_blocks(session, reason)?;
        let losses = self.end_events(session, reason)?;
        self.end_baseline(session, interrupts).await?;
        self.read_names(session, interrupts, reason).await?;
        session.drain_all(|event| self.take(event))?;
        if !self.recorder.has_attached {
            return Ok(Outcome::Nothing(self.refusal.take().map_or_else(
                || {
                    let tgid = self.root.0;
                    anyhow!("process {tgid} ended before it {}", messages::FIRST_USE)
                },
                Into::into,
            )));
        }
        self.finish(reason, losses.unwrap_or(session.losses))?;
        Ok(Outcome::Ended(reason))
    }

    /// Waits for the readings of blocks from before attach: segments and owners are read after these.
    fn settle_blocks(&mut self, session: &mut HostSession, reason: EndReason) -> Result<()> {
        if let Some(end) = self.end.filter(|_| reason == EndReason::Duration) {
            self.names.end_at(end);
        }
        session.wait_for_baselines(|event| self.take(event))?;
        self.place(session)?;
        self.baseline.begin_due();
        Ok(())
    }

    /// Leaves out later events, and returns the losses until then; `None` if the process has ended by itself.
    fn end_events(
        &mut self,
        session: &mut HostSession,
        reason: EndReason,
    ) -> Result<Option<Losses>> {
        self.read_last_segments(session);
        let (end, duration) = match reason {
            EndReason::Duration => (self.end, self.duration),
            EndReason::Interrupted => (Some(crate::session::now()), None),
            _ => (None, None),
        };
        self.progress.end(duration);
        let Some(end) = end else {
            return Ok(None);
        };
        session.catch_up(end);
        self.names.end_at(end);
        session.drain(|event| self.take(event))?;
        let begun = Instant::now();
        while session.is_catching_up() && begun.elapsed() < MAX_CATCHING_UP {
            std::thread::sleep(Duration::from_millis(2));
            session.drain(|event| self.take(event))?;
        }
        self.names.is_over();
        Ok(Some(session.losses))
    }

    /// Reads the segments of all processes. A line on a terminal says how far that is.
    fn read_last_segments(&self, session: &mut HostSession) {
        if self.progress.is_quiet() {
            return session.read_last_segments(|| ());
        }
        let (all, read) = (session.len(), AtomicUsize::new(0));
        let line = || {
            let read = read.load(Ordering::Relaxed);
            format!("reading the allocator's segments: process {read} of {all}")
        };
        show_while(line, || {
            session.read_last_segments(|| {
                read.fetch_add(1, Ordering::Relaxed);
            });
        });
    }

    /// Waits for the readings of memory from before attach that are in progress.
    async fn end_baseline(
        &mut self,
        session: &mut HostSession,
        interrupts: &mut Interrupts,
    ) -> Result<()> {
        let limit = Instant::now() + MAX_LABELING;
        while self.baseline.is_reading() {
            self.progress
                .show_line("reading the objects that hold memory from before attach");
            let given_up = tokio::select! {
                biased;
                _ = interrupts.next() => Some("interrupted"),
                () = tokio::time::sleep_until(limit) => Some("the recording ended before it was read"),
                () = self.baseline.taken() => None,
                () = session.wait() => None,
            };
            if let Some(reason) = given_up {
                for tgid in self.baseline.unread() {
                    let said = "memory from before attach has no names";
                    self.progress
                        .say(&format!("PID {}: {said}: {reason}", tgid.0));
                }
                return Ok(());
            }
            session.drain(|event| self.take(event))?;
            self.place(session)?;
        }
        Ok(())
    }

    /// Reads the names of the processes that go on. Their events stay out of the recording.
    async fn read_names(
        &mut self,
        session: &mut HostSession,
        interrupts: &mut Interrupts,
        reason: EndReason,
    ) -> Result<()> {
        let left = match reason {
            EndReason::TargetExited => Vec::new(),
            _ => self.recorder.written_to().collect(),
        };
        self.names.begin_last(left.into_iter());
        if self.names.is_reading() && reason != EndReason::TargetExited {
            self.progress
                .say("the recording is over; memprobe reads names");
        }
        let all = self.names.left();
        let limit = Instant::now() + MAX_READING;
        while self.names.is_reading() {
            if let Some(line) = self.names.progress_line(all) {
                self.progress.show_line(&line);
            }
            let given_up = tokio::select! {
                biased;
                _ = interrupts.next() => Some("interrupted".to_owned()),
                () = tokio::time::sleep_until(limit) => {
                    Some(format!("not read within {} s", MAX_READING.as_secs()))
                }
                reading = self.names.next() => self.take_read(reading).map(|()| None)?,
                () = session.wait() => None,
            };
            if let Some(given_up) = given_up {
                let placed = self.names.abandon(&given_up);
                return placed.into_iter().try_for_each(|it| self.take_named(it));
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
        let placed = self.names.place(
            |tgid| session.is_settled(tgid),
            |tgid, calls| session.add_call_paths(tgid, calls),
        );
        placed.into_iter().try_for_each(|it| self.take_named(it))?;
        let labeled = self.baseline.place(
            |tgid| session.is_settled(tgid),
            |tgid, calls| session.add_call_paths(tgid, calls),
        );
        for (tgid, outcome) in labeled {
            if let Some(said) = outcome.said {
                self.progress.say(&format!("PID {}: {said}", tgid.0));
            }
            if let Some(event) = outcome.event {
                let item = HostItem::Event(event);
                self.take(HostEvent { tgid, item })?;
            }
        }
        Ok(())
    }

    fn take_named(&mut self, placed: Placed) -> Result<()> {
        for event in placed.events {
            self.take_placed(event)?;
        }
        let tgid = placed.tgid.0;
        self.progress.say(&format!("PID {tgid}: {}", placed.said));
        if let Some(wait) = placed.retry {
            let wait = wait.as_secs();
            self.progress
                .say(&format!("PID {tgid}: memprobe tries again in {wait} s"));
        }
        Ok(())
    }

    fn take(&mut self, event: HostEvent) -> Result<()> {
        self.baseline.apply(&event);
        // Nearly all events, without a move from queue to queue.
        if self.names.passes(&event)
            && let HostItem::Event(inner) = &event.item
        {
            return self.recorder.event(event.tgid, inner, &mut self.progress);
        }
        self.names.pass(event).each(|event| self.take_placed(event))
    }

    fn take_placed(&mut self, event: HostEvent) -> Result<()> {
        let is_root = event.tgid == self.root;
        match event.item {
            HostItem::Waiting(what) if is_root => {
                self.progress.say(&what);
                return Ok(());
            }
            HostItem::Placing(placed) if is_root && !self.recorder.has_attached => {
                self.progress
                    .show_line(&format!("placing probes: {placed}"));
                return Ok(());
            }
            HostItem::Refused(error) if is_root => {
                self.refusal = Some(error);
                return Ok(());
            }
            HostItem::Ended if is_root && self.recorder.has_attached => {
                self.recorder.open_early(event.tgid, &mut self.progress)?;
            }
            _ => {}
        }
        let is_first =
            matches!(event.item, HostItem::Attached { .. }) && !self.recorder.has_attached;
        let tgid = event.tgid;
        self.recorder.take(event, &mut self.progress)?;
        if is_first {
            if self.watch == Watch::One {
                self.recorder.open_early(tgid, &mut self.progress)?;
            }
            self.progress.start();
            self.set_deadline();
        }
        Ok(())
    }

    fn set_deadline(&mut self) {
        let Some(duration) = self.duration else {
            return;
        };
        self.deadline = Some(Instant::now() + duration);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let end = TimeNs(crate::session::now().0.saturating_add(nanoseconds));
        self.end = Some(end);
        // A late look at the clock records nothing more.
        self.names.end_at(end);
    }

    fn finish(&mut self, reason: EndReason, losses: Losses) -> Result<()> {
        self.recorder.open_early(self.root, &mut self.progress)?;
        self.progress.show_line("writing the end of the recording");
        // Those that are left descend from the one that was asked for.
        let left = match reason {
            EndReason::TargetExited => EndReason::ParentExited,
            reason => reason,
        };
        self.recorder.finish(left)?;
        let figures = self.recorder.figures(losses);
        self.recorder.say_end(figures, reason, &mut self.progress);
        if let Some(stops) = super::stops_line() {
            self.progress.say(&stops);
        }
        Ok(())
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn joined(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// A command to start, checked as far as possible.
pub(crate) struct Start {
    command: Command,
    name: String,
    caller: Option<SudoCaller>,
}

impl Start {
    pub(crate) fn of(words: &[OsString], user: CommandUser) -> Result<Self> {
        let (program, arguments) = words
            .split_first()
            .context("no command was given after --")?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(Self {
            command,
            name: program.to_string_lossy().into_owned(),
            caller: match user {
                CommandUser::Caller => SudoCaller::of_sudo()?,
                CommandUser::Same => None,
            },
        })
    }

    /// Starts the command. Ctrl-C at the terminal ends the recording; the command gets the same signal.
    pub(crate) fn spawn(mut self) -> Result<Started> {
        let name = self.name;
        let child = match &self.caller {
            None => self.command.spawn().with_context(|| {
                format!("starting {name}: give a program after --, such as `-- python train.py`")
            }),
            Some(caller) => start_as(&mut self.command, caller).with_context(|| {
                let user = &caller.name;
                format!(
                    "starting {name} as {user}: give a program after -- that {user} may run, or --as-root to run it \
                     as root"
                )
            }),
        };
        Ok(Started {
            child: child?,
            name,
        })
    }
}

pub(crate) struct Started {
    child: Child,
    name: String,
}

impl Started {
    pub(crate) fn tgid(&self) -> Tgid {
        Tgid(self.child.id())
    }

    /// The command's own exit status, as the shell would tell it.
    pub(crate) fn exit_status(&mut self) -> Result<u8> {
        let status = self.child.wait();
        let status = status.with_context(|| format!("waiting for {}", self.name))?;
        let by_signal = || status.signal().map(|signal| 128 + signal);
        let code = status.code().or_else(by_signal);
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    pub(crate) fn leave_running(&mut self, progress: &mut Progress) {
        if let Ok(None) = self.child.try_wait() {
            progress.say(&format!("{} (PID {}) runs on", self.name, self.child.id()));
        }
    }
}

//! `record`: from the probes to a file.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use tokio::time::Instant;

use super::command::Started;
use super::interrupts::Interrupts;
use super::process::Origin;
use super::progress::{Progress, Told};
use super::session::{HostEvent, HostItem, HostSession};
use crate::event::{Event, Tgid};
use crate::export::output::OutputPlan;
use crate::export::trace_event::TraceWriter;
use crate::label;
use crate::model::snapshot::{Grouping, ProbeStatus, Target};
use crate::probe::kernel;
use crate::probe::loader::Watch;
use crate::probe::watched::Watched;
use crate::recording::{EndReason, Header};

/// How often what was written is handed to the operating system.
const FLUSH: Duration = Duration::from_secs(1);

/// What to record.
pub enum Subject {
    /// A process that runs already.
    Running(Tgid),
    /// A command to start: its program and arguments.
    Command(Vec<OsString>),
}

/// One run of `memprobe record`.
pub struct Recording {
    /// What to record.
    pub subject: Subject,
    /// Where to.
    pub output: PathBuf,
    /// For how long at most.
    pub duration: Option<Duration>,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
    /// Whether to say nothing.
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
        let output = OutputPlan::check(&self.output)?;
        let mut session = HostSession::load(Watch::One, self.ring_bytes)?;
        let (mut command, watched, origin) = match &self.subject {
            Subject::Running(tgid) => (None, Watched::open(*tgid)?, Origin::Running),
            Subject::Command(words) => {
                let command = Started::spawn(words)?;
                let watched = Watched::open(command.tgid())?;
                (Some(command), watched, Origin::Started)
            }
        };
        let mut progress = Progress::new(self.quiet);
        let tgid = watched.tgid;
        session.add(watched, origin)?;
        let ready = wait_for_probes(&mut session, tgid, &mut progress);
        let ready = tokio::select! {
            ready = ready => ready.inspect_err(|_| {
                if let Some(command) = &mut command {
                    command.leave_running(&mut Progress::new(self.quiet));
                }
            })?,
            () = interrupts.next() => {
                progress.say("interrupted before there was anything to record; nothing was written");
                return Ok(ExitCode::from(130));
            }
        };
        progress.say(&format!(
            "recording {} to {}; press Ctrl-C to end",
            label::process(&ready.target).unwrap_or_default(),
            self.output.display()
        ));
        progress.start();
        let header = header(ready.target, ready.probes);
        let reason = self
            .write(
                session,
                (header, ready.events),
                output,
                &mut progress,
                &mut interrupts,
            )
            .await?;
        match &mut command {
            Some(command) if reason == EndReason::TargetExited => command.exit_code(),
            Some(command) => {
                command.leave_running(&mut progress);
                Ok(ExitCode::SUCCESS)
            }
            None => Ok(ExitCode::SUCCESS),
        }
    }

    /// Writes events until it is time to end, and the end.
    async fn write(
        &self,
        mut session: HostSession,
        (mut header, first): (Header, Vec<Event>),
        output: OutputPlan,
        progress: &mut Progress,
        interrupts: &mut Interrupts,
    ) -> Result<EndReason> {
        let out = output.create()?;
        let name = out.name();
        let mut writer = TraceWriter::new(out, name, &header, Grouping::default())?;
        for event in first {
            writer.event(&event)?;
        }
        let deadline = self.duration.map(|duration| Instant::now() + duration);
        let mut flushed = Instant::now();
        let reason = loop {
            let mut ended = false;
            let mut write = |event: HostEvent| {
                match event.item {
                    HostItem::Event(event) => writer.event(&event)?,
                    HostItem::Attached { target, probes, .. } => {
                        header.target = target;
                        header.probes = probes;
                        writer.describe(&header)?;
                    }
                    HostItem::Notice(notice) => progress.say(&notice),
                    HostItem::Executed(target) => {
                        header.target = target;
                        writer.describe(&header)?;
                    }
                    HostItem::Ended => ended = true,
                    HostItem::Found { .. } | HostItem::Waiting(_) | HostItem::Refused(_) => {}
                }
                Ok(())
            };
            match wait(&mut session, deadline, interrupts).await {
                ControlFlow::Continue(()) => session.drain(&mut write).map(drop)?,
                ControlFlow::Break(reason) => {
                    session.drain_all(&mut write)?;
                    break reason;
                }
            }
            if ended {
                break EndReason::TargetExited;
            }
            if flushed.elapsed() >= FLUSH {
                flushed = Instant::now();
                writer.flush()?;
            }
            progress.show(told(&session, &writer));
        };
        let told = told(&session, &writer);
        let written = writer.finish(reason)?.commit()?;
        progress.clear();
        progress.say(&format!("{} ({})", progress.line(told), reason.as_str()));
        if let Some(file) = written {
            let file = file.display();
            progress.say(&format!(
                "see it with `memprobe report {file}`, or open it in ui.perfetto.dev"
            ));
        }
        Ok(reason)
    }
}

/// A process whose probes are in place.
struct Ready {
    target: Target,
    probes: Vec<ProbeStatus>,
    /// What was told of it since.
    events: Vec<Event>,
}

/// Waits until the probes are in place.
async fn wait_for_probes(
    session: &mut HostSession,
    tgid: Tgid,
    progress: &mut Progress,
) -> Result<Ready> {
    let mut events = Vec::new();
    loop {
        let mut attached = None;
        session.drain(|event| {
            match event.item {
                HostItem::Waiting(what) => progress.say(&what),
                HostItem::Refused(error) => return Err(error.into()),
                HostItem::Attached {
                    target,
                    probes,
                    missing,
                } => {
                    for missing in missing {
                        progress.say(&missing);
                    }
                    attached = Some((target, probes));
                }
                HostItem::Ended => bail!(
                    "process {} ended before it used PyTorch's CUDA allocator",
                    tgid.0
                ),
                HostItem::Notice(notice) => progress.say(&notice),
                HostItem::Event(event) => events.push(event),
                HostItem::Executed(_) => events.clear(),
                HostItem::Found { .. } => {}
            }
            Ok(())
        })?;
        if let Some((target, probes)) = attached {
            return Ok(Ready {
                target,
                probes,
                events,
            });
        }
        session.wait().await;
    }
}

/// Waits for records, or for a reason to end.
async fn wait(
    session: &mut HostSession,
    deadline: Option<Instant>,
    interrupts: &mut Interrupts,
) -> ControlFlow<EndReason> {
    let over = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = interrupts.next() => ControlFlow::Break(EndReason::Interrupted),
        () = over => ControlFlow::Break(EndReason::Duration),
        () = session.wait() => ControlFlow::Continue(()),
    }
}

fn told<W: std::io::Write>(session: &HostSession, writer: &TraceWriter<W>) -> Told {
    Told {
        events: writer.events(),
        bytes: writer.bytes(),
        losses: session.losses(),
    }
}

/// What is known when the recording starts.
fn header(target: Target, probes: Vec<ProbeStatus>) -> Header {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    Header {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start: super::now(),
        wall_start_ms: since_1970.and_then(|time| u64::try_from(time.as_millis()).ok()),
        target,
        probes,
    }
}

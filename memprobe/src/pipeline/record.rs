//! `record`: from the probes to a file.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use tokio::time::Instant;

use super::interrupts::Interrupts;
use super::progress::{Progress, Told};
use super::session::{self, Flow, Origin, Session};
use crate::event::Tgid;
use crate::export::output::OutputPlan;
use crate::export::trace_event::TraceWriter;
use crate::label;
use crate::model::snapshot::Grouping;
use crate::probe::kernel;
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
        let loader = session::load(self.ring_bytes)?;
        let (mut command, watched, origin) = match &self.subject {
            Subject::Running(tgid) => (None, Watched::open(*tgid)?, Origin::Running),
            Subject::Command(words) => {
                let command = Started::spawn(words)?;
                let watched = Watched::open(command.tgid())?;
                (Some(command), watched, Origin::Started)
            }
        };
        let mut progress = Progress::new(self.quiet);
        let attach = Session::attach(loader, watched, origin, |what| progress.say(what));
        let session = tokio::select! {
            session = attach => session.inspect_err(|_| {
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
            label::process(session.target()).unwrap_or_default(),
            self.output.display()
        ));
        progress.start();
        let reason = self
            .write(session, output, &mut progress, &mut interrupts)
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
        mut session: Session,
        output: OutputPlan,
        progress: &mut Progress,
        interrupts: &mut Interrupts,
    ) -> Result<EndReason> {
        let header = header(&session);
        let file = output.create()?;
        let place = file.name();
        let mut writer = TraceWriter::new(file, place, &header, Grouping::User)?;
        let deadline = self.duration.map(|duration| Instant::now() + duration);
        let mut flushed = Instant::now();
        let reason = loop {
            let flow = wait(&mut session, deadline, interrupts).await;
            match flow {
                ControlFlow::Continue(()) => {
                    session.drain(|event| Ok(writer.event(event)?)).map(drop)?
                }
                ControlFlow::Break(reason) => {
                    session.drain_all(|event| Ok(writer.event(event)?))?;
                    break reason;
                }
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

/// Waits for records, or for a reason to end.
async fn wait(
    session: &mut Session,
    deadline: Option<Instant>,
    interrupts: &mut Interrupts,
) -> Flow {
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
        ended = session.wait_or_end() => if ended { ControlFlow::Break(EndReason::TargetExited) } else { ControlFlow::Continue(()) },
    }
}

fn told<W: std::io::Write>(session: &Session, writer: &TraceWriter<W>) -> Told {
    Told {
        events: writer.events(),
        bytes: writer.bytes(),
        losses: session.losses(),
    }
}

/// What is known when the recording starts.
fn header(session: &Session) -> Header {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    Header {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start: super::now(),
        wall_start_ms: since_1970.and_then(|time| u64::try_from(time.as_millis()).ok()),
        target: session.target().clone(),
        probes: session.probes().to_vec(),
    }
}

/// The command that memprobe started.
struct Started {
    child: Child,
    name: String,
}

impl Started {
    fn spawn(words: &[OsString]) -> Result<Self> {
        let (program, arguments) = words
            .split_first()
            .context("no command was given after --")?;
        let name = program.to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.args(arguments);
        // Ctrl-C at the terminal ends the recording; whether the command ends too is its own
        // affair, as it gets the same signal.
        let child = command.spawn().with_context(|| {
            format!("starting {name}: give a program after --, such as `memprobe record -o trace.json -- python train.py`")
        })?;
        Ok(Self { child, name })
    }

    fn tgid(&self) -> Tgid {
        Tgid(self.child.id())
    }

    /// The command's own exit status, as the shell would tell it.
    fn exit_code(&mut self) -> Result<ExitCode> {
        let status = self
            .child
            .wait()
            .with_context(|| format!("waiting for {}", self.name))?;
        let code = status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal))
            .unwrap_or(1);
        Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
    }

    fn leave_running(&mut self, progress: &mut Progress) {
        if let Ok(None) = self.child.try_wait() {
            progress.say(&format!("{} (PID {}) runs on", self.name, self.child.id()));
        }
    }
}

//! `estimate`: from a run on the CPU to what it would need on a GPU.

use std::ffi::OsString;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use hashbrown::HashMap;

use super::naming::{NameReader, Naming, Placed, Reading};
use super::record::Start;
use super::record::progress::Progress;
use super::snapshot::CaptureMode;
use super::stdout::{OutputContent, needs_cleaning};
use super::{CommandUser, Interrupts};
use crate::estimate::{Estimate, Estimator, OnHost};
use crate::event::bytes::human;
use crate::event::{Target, Tgid};
use crate::output::{OutputFile, OutputPlan};
use crate::probe::attach::AttachError;
use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::recording::Reader;
use crate::report::{DocumentFormat, EstimateOptions, EstimateSubject, write_estimate};
use crate::session::host::HostSession;
use crate::session::process::ProcessOrigin;
use crate::session::{HostEvent, HostItem};
use crate::view::{PrintableWriter, clean, counted, fit};

/// Columns of the name of a process that is mentioned.
const NAME: usize = 60;
/// Processes whose books are kept at once; the later ones of a command are counted.
const MAX_PROCESSES: usize = 256;

pub enum EstimateSource {
    Recording(PathBuf),
    /// A command to run on the CPU: its program and arguments.
    Command(Vec<OsString>, CommandUser),
}

pub struct Estimation {
    pub subject: EstimateSource,
    /// Lines whose tensors stay with the host.
    pub on_host: Vec<OnHost>,
    /// Reading of the processes' objects, for the parameters of each module.
    pub naming: Naming,
    pub options: EstimateOptions,
    /// Output file; `None` for standard output.
    pub output: Option<PathBuf>,
    pub driver: DriverCalls,
    pub ring_bytes: u32,
}

impl Estimation {
    pub fn run(self) -> Result<ExitCode> {
        match &self.subject {
            EstimateSource::Recording(file) => {
                let name = file.display().to_string();
                let written = self.run_on_recording(file).context(name);
                written.map(|()| ExitCode::SUCCESS)
            }
            EstimateSource::Command(words, user) => {
                kernel::preflight()?;
                let start = Start::of(words, *user)?;
                // Before minutes are spent on what cannot be kept.
                let output = self.create_output()?;
                match super::runtime()?.block_on(self.run_command(start)) {
                    Ok((Some((subject, estimate)), code)) => {
                        self.write(&subject, &estimate, output).map(|()| code)
                    }
                    Ok((None, code)) => {
                        output.discard();
                        Ok(code)
                    }
                    Err(error) => {
                        output.discard();
                        Err(error)
                    }
                }
            }
        }
    }

    fn create_output(&self) -> Result<OutputFile> {
        let path = self.output.as_deref().unwrap_or(Path::new("-"));
        Ok(OutputPlan::check(path)?.create_partial()?)
    }

    fn estimator(&self) -> Estimator {
        Estimator::new(self.options.device_memory, self.on_host.clone())
    }

    fn run_on_recording(&self, file: &Path) -> Result<()> {
        if file.is_dir() {
            bail!(
                "this is a directory: give one of its recordings, or print them with `memprobe report`"
            );
        }
        let mut reader = Reader::open(file)?;
        let mut estimator = self.estimator();
        for event in reader.by_ref() {
            estimator.apply(&event?);
        }
        if estimator.is_empty() {
            bail!(
                "the recording has no memory of the CPU: make it with `memprobe record -o cpu.mprb --cpu -- python train.py`"
            );
        }
        let mut notes = Vec::new();
        if reader.truncated() {
            notes.push(
                "the end of the recording is missing: the estimate covers what is there".to_owned(),
            );
        }
        let damage = reader.damage();
        notes.extend(damage.map(|damage| format!("{damage}: the estimate covers the rest")));
        let subject = EstimateSubject {
            target: reader.header().target.clone(),
            notes,
        };
        let output = self.create_output()?;
        self.write(&subject, &estimator.finish(), output)
    }

    /// Runs the command; returns its estimate and its exit status.
    async fn run_command(
        &self,
        start: Start,
    ) -> Result<(Option<(EstimateSubject, Estimate)>, ExitCode)> {
        let mut interrupts = Interrupts::new()?;
        let mut progress = Progress::new(false);
        let wanted = Wanted {
            watch: Watch::Family,
            detail: Detail::Tensors,
            graph: GraphTracking::On,
            allocators: Allocators::CudaAndCpu,
            driver: self.driver,
        };
        let mut session = HostSession::load(wanted, self.ring_bytes)?;
        let mut command = start.spawn()?;
        let root = command.tgid();
        session.add_family(Watched::open(root)?, ProcessOrigin::Launched)?;
        super::end_start()?;
        let mut run = Run::new(self, root, wanted.allocators);
        let ended = run.follow(&mut session, &mut interrupts).await;
        let is_over = ended.inspect_err(|_| command.leave_running(&mut progress))?;
        if let Some(stops) = super::stops_line() {
            progress.say(&stops);
        }
        let mut notes = Vec::new();
        let covers = "the estimate covers the run until then";
        let status = if is_over { command.exit_status()? } else { 0 };
        if !is_over {
            notes.push(format!("it was interrupted: {covers}"));
            command.leave_running(&mut progress);
        }
        let (failed, code) = (status != 0, ExitCode::from(status));
        let ended = format!("the command ended with status {status}");
        if failed {
            notes.push(format!("{ended}: {covers}. {ON_THE_CPU}"));
        }
        let Some((target, estimate)) = run.largest(&mut notes) else {
            return match (run.refusal.take(), failed) {
                (Some(refusal), _) => Err(refusal.into()),
                (None, true) => {
                    let nothing = "before it made a tensor on the CPU";
                    progress.say(&format!("{ended} {nothing}. {ON_THE_CPU}"));
                    Ok((None, code))
                }
                (None, false) => bail!(
                    "the command made no tensor on the CPU, so there is nothing to estimate. {ON_THE_CPU}"
                ),
            };
        };
        let subject = EstimateSubject { target, notes };
        Ok((Some((subject, estimate)), code))
    }

    fn write(
        &self,
        subject: &EstimateSubject,
        estimate: &Estimate,
        output: OutputFile,
    ) -> Result<()> {
        let content = match self.options.format {
            DocumentFormat::Text => OutputContent::Text,
            DocumentFormat::Json => OutputContent::Document,
        };
        let is_cleaned = output.lies_at().is_none() && needs_cleaning(content);
        let mut out = PrintableWriter::new(BufWriter::new(output), is_cleaned);
        let written = write_estimate(subject, estimate, &self.options, &mut out);
        let (output, _) = out.into_inner().into_parts();
        match written {
            Ok(Some(())) => {
                output.commit()?;
                Ok(())
            }
            // The reader of a pipe has gone.
            Ok(None) => Ok(()),
            Err(error) => {
                output.discard();
                Err(error.into())
            }
        }
    }
}

const ON_THE_CPU: &str = "A script must run on the CPU for this: if it calls .cuda() or .to(\"cuda\"), make the device a \
                          parameter of it, such as torch.device(\"cuda\" if torch.cuda.is_available() else \"cpu\")";

/// A process, with an [`Estimator`] while it runs and then with its [`Estimate`].
struct Estimated<E> {
    target: Target,
    estimate: E,
    /// Outcome of the last reading of its objects; `None` if there was none.
    read: Option<String>,
}

/// A command that is run, and the books of each of its processes.
struct Run<'a> {
    of: &'a Estimation,
    root: Tgid,
    running: HashMap<Tgid, Estimated<Estimator>>,
    /// The largest of those that have ended, and what the others are to be called.
    ended: Option<Estimated<Estimate>>,
    others: Vec<(u64, String)>,
    uncounted: u64,
    refusal: Option<AttachError>,
    names: NameReader,
    progress: Progress,
}

impl<'a> Run<'a> {
    fn new(of: &'a Estimation, root: Tgid, allocators: Allocators) -> Self {
        Self {
            // Of a step or two, which are run for this alone, no more than that must be over.
            names: NameReader::new(of.naming, allocators, CaptureMode::AtOnce),
            of,
            root,
            running: HashMap::new(),
            ended: None,
            others: Vec::new(),
            uncounted: 0,
            refusal: None,
            progress: Progress::new(false),
        }
    }

    /// Follows the command to its end; false where somebody interrupted.
    async fn follow(
        &mut self,
        session: &mut HostSession,
        interrupts: &mut Interrupts,
    ) -> Result<bool> {
        let is_over = loop {
            tokio::select! {
                biased;
                _ = interrupts.next() => break false,
                reading = self.names.next() => self.take_read(reading),
                () = session.wait() => {}
            }
            self.drain(session)?;
            self.names.begin_retries();
            if !session.is_watched(self.root) {
                break true;
            }
        };
        let left: Vec<_> = if is_over {
            Vec::new()
        } else {
            self.running.keys().copied().collect()
        };
        self.names.begin_last(left.into_iter());
        while self.names.is_reading() {
            tokio::select! {
                reading = self.names.next() => self.take_read(reading),
                () = session.wait() => {}
            }
            self.drain(session)?;
        }
        session.drain_all(|event| {
            self.take(event);
            Ok(())
        })?;
        Ok(is_over)
    }

    fn drain(&mut self, session: &mut HostSession) -> Result<()> {
        session.drain(|event| {
            let passed = self.names.pass(event);
            passed.each(|event| {
                self.take(event);
                Ok(())
            })
        })?;
        let placed = self.names.place(
            |tgid| session.is_settled(tgid),
            |tgid, calls| session.add_call_paths(tgid, calls),
        );
        for placed in placed {
            self.take_named(placed);
        }
        Ok(())
    }

    fn take_named(&mut self, placed: Placed) {
        if let Some(running) = self.running.get_mut(&placed.tgid) {
            running.read = Some(placed.said);
        }
        placed.events.into_iter().for_each(|event| self.take(event));
    }

    fn take_read(&mut self, reading: Reading) {
        if let Some(useless) = self.names.take(reading) {
            self.take_named(useless);
        }
    }

    fn take(&mut self, event: HostEvent) {
        let HostEvent { tgid, item } = event;
        match item {
            HostItem::Found { target, .. } => self.begin(tgid, *target),
            HostItem::Executed(target) => {
                self.end(tgid);
                self.begin(tgid, *target);
            }
            HostItem::Attached { target, .. } => match self.running.get_mut(&tgid) {
                Some(running) => running.target = *target,
                None => self.begin(tgid, *target),
            },
            HostItem::Event(event) => {
                if let Some(running) = self.running.get_mut(&tgid) {
                    running.estimate.apply(&event);
                }
            }
            HostItem::Refused(error) if tgid == self.root => self.refusal = Some(error),
            HostItem::Ended => self.end(tgid),
            HostItem::Stopped(reason) => self.progress.say(&reason),
            HostItem::Refused(_)
            | HostItem::Waiting(_)
            | HostItem::Placing(_)
            | HostItem::Identified(_)
            | HostItem::Continued
            | HostItem::Notice(_)
            | HostItem::SnapshotPoint(_) => {}
        }
    }

    fn begin(&mut self, tgid: Tgid, target: Target) {
        if self.running.len() >= MAX_PROCESSES {
            self.uncounted += 1;
            return;
        }
        let running = Estimated {
            target,
            estimate: self.of.estimator(),
            read: None,
        };
        self.running.insert(tgid, running);
    }

    fn end(&mut self, tgid: Tgid) {
        let Some(running) = self.running.remove(&tgid) else {
            return;
        };
        if running.estimate.is_empty() {
            return;
        }
        let this = Estimated {
            target: running.target,
            estimate: running.estimate.finish(),
            read: running.read,
        };
        let allocated = |whole: &Estimated<Estimate>| whole.estimate.peak.allocated;
        let is_less = |ended: &Estimated<Estimate>| allocated(ended) < allocated(&this);
        let less = if self.ended.as_ref().is_none_or(is_less) {
            self.ended.replace(this)
        } else {
            Some(this)
        };
        if let Some(less) = less {
            self.pass_over(&less.target, &less.estimate);
        }
    }

    fn pass_over(&mut self, target: &Target, estimate: &Estimate) {
        if self.others.len() >= MAX_PROCESSES {
            self.uncounted += 1;
            return;
        }
        let command = fit(&clean(&target.command), NAME, "…");
        let pid = target.tgid.map_or(0, |tgid| tgid.0);
        let allocated = estimate.peak.allocated;
        let name = format!("PID {pid} ({command}) {}", human(allocated));
        self.others.push((allocated.0, name));
    }

    /// Reason why the parameters of each module are unknown; `None` if they are known, or not asked for.
    fn unnamed_reason(&self, whole: &Estimated<Estimate>) -> Option<String> {
        let sizes = whole.estimate.sizes.as_ref();
        if sizes.is_none_or(|sizes| sizes.named) || self.of.naming == Naming::Off {
            return None;
        }
        let reason = whole.read.as_deref().unwrap_or(
            "no call of a module and no second optimizer step was seen, at which memprobe reads them",
        );
        Some(format!(
            "the parameters of each module are unknown: {reason}"
        ))
    }

    /// The process that would need most; what is not in its estimate is noted.
    fn largest(&mut self, notes: &mut Vec<String>) -> Option<(Target, Estimate)> {
        let left: Vec<_> = self.running.keys().copied().collect();
        for tgid in left {
            self.end(tgid);
        }
        let largest = self.ended.take()?;
        self.others.sort_by(|one, other| other.cmp(one));
        let named: Vec<_> = self.others.iter().map(|(_, name)| name.as_str()).collect();
        if let [first, rest @ ..] = named.as_slice() {
            let more = match rest.len() as u64 + self.uncounted {
                0 => String::new(),
                more => format!(", and {}", counted(more, "other")),
            };
            notes.push(format!(
                "the command has more processes that made tensors, which are not in this estimate: {first}{more}"
            ));
        }
        notes.extend(self.unnamed_reason(&largest));
        Some((largest.target, largest.estimate))
    }
}

//! `suspend` and `resume`: the driver's checkpoint calls on another process, with consent, limits and a way back.

mod calls;
mod command;
mod plan;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

pub use self::calls::CheckpointLimits;
use self::calls::{LimitedCalls, Presses};
use self::plan::{DeviceShare, SuspensionPlan, shares, total};
use super::record::Start;
use super::{CommandUser, EndSignal, Interrupts, messages, stdout};
use crate::cuda::checkpoint::{
    self, CheckpointCalls as _, CheckpointLibrary, CheckpointState, Resumed, StepFailure, Suspended,
};
use crate::cuda::nvml::Sample;
use crate::event::bytes::human;
use crate::event::{Bytes, Tgid};
use crate::probe::watched::Watched;
use crate::process::maps::Maps;
use crate::process::run_state::RunState;
use crate::process::{facts, host_memory};
use crate::session::process_monitor::{has_pids_of_the_driver, sample_driver};
use crate::view::{clean, fit, short_command, span};

/// Time that the driver's lists may take to follow.
const MAX_FOLLOWING: Duration = Duration::from_secs(3);

/// Interval of asking NVML.
const ASK: Duration = Duration::from_millis(200);

/// Columns of a command line in the plan.
const COMMAND_COLUMNS: usize = 60;

/// Patience with a process that the driver may have killed: the call returns before the kernel has freed its memory.
const KILLED_PROCESS_EXIT: Duration = Duration::from_secs(1);

/// Consent of the user to a change of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Given on the command line.
    Given,
    /// To be asked for.
    Asked,
}

/// `memprobe suspend`.
pub struct Suspend {
    pub tgid: Tgid,
    pub limits: CheckpointLimits,
    pub consent: Consent,
    /// Command for whose length the process is suspended, and its user.
    pub command: Option<(Vec<OsString>, CommandUser)>,
}

/// `memprobe resume`.
pub struct Resume {
    pub tgid: Tgid,
    pub limits: CheckpointLimits,
}

/// A process whose CUDA calls memprobe may stop.
struct Subject {
    tgid: Tgid,
    watched: Watched,
    calls: LimitedCalls,
    presses: Presses,
}

impl Subject {
    fn open(tgid: Tgid, limits: CheckpointLimits) -> Result<Self> {
        if tgid.0 == std::process::id() {
            bail!("memprobe cannot suspend itself: give another PID");
        }
        let watched = Watched::open(tgid)?;
        if let Some(reason) = RunState::of(tgid).pause_reason(tgid) {
            bail!("{reason}; the driver needs it to run");
        }
        let library = CheckpointLibrary::open()?;
        let presses = Presses::default();
        Ok(Self {
            tgid,
            watched,
            calls: LimitedCalls::new(library, tgid, limits, presses.clone()),
            presses,
        })
    }

    fn state(&mut self) -> Result<CheckpointState> {
        let pid = self.tgid.0;
        self.calls
            .state()
            .map_err(|cause| anyhow!("{}", words::no_state(pid, cause)))
    }

    /// Makes the steps on another thread. A first signal undoes what they have done, a second one gives up.
    async fn make<T: Send + 'static>(
        &self,
        interrupts: &mut Interrupts,
        steps: impl FnOnce(&mut LimitedCalls) -> Result<T, StepFailure> + Send + 'static,
        note: &str,
    ) -> Result<(Result<T, StepFailure>, Option<EndSignal>)> {
        let mut calls = self.calls.clone();
        let mut work = tokio::task::spawn_blocking(move || steps(&mut calls));
        let mut first = None;
        loop {
            tokio::select! {
                outcome = &mut work => {
                    return Ok((outcome.context("calling the driver")?, first));
                }
                signal = interrupts.next() => {
                    if self.presses.add() == 1 {
                        messages::print(note);
                    }
                    first.get_or_insert(signal);
                }
            }
        }
    }

    fn failed(&self, verb: &str, failure: StepFailure) -> anyhow::Error {
        let has_ended = self.watched.ends_within(KILLED_PROCESS_EXIT);
        if has_ended || RunState::of(self.tgid) == RunState::Exiting {
            return anyhow!("PID {} has ended", self.tgid.0);
        }
        anyhow!("{}", words::failure(self.tgid.0, verb, failure))
    }
}

impl Suspend {
    pub fn run(self) -> Result<ExitCode> {
        let start = self.command.as_ref();
        let start = start.map(|(words, user)| Start::of(words, *user));
        let start = start.transpose()?;
        let mut subject = Subject::open(self.tgid, self.limits)?;
        let pid = self.tgid.0;
        match subject.state()? {
            CheckpointState::Running => {}
            CheckpointState::Locked => messages::print(&format!(
                "PID {pid} is locked, by another program or by a memprobe that was ended: suspending goes on from there"
            )),
            CheckpointState::Checkpointed if start.is_some() => bail!(
                "PID {pid} is suspended already, perhaps for another command: `memprobe resume {pid}` first"
            ),
            CheckpointState::Checkpointed => {
                messages::print(&format!(
                    "PID {pid} is suspended already; `memprobe resume {pid}` brings it back"
                ));
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("{}", words::impossible(pid, "suspended", other)),
        }
        let plan = self.plan();
        if let Some(refusal) = plan.refusal() {
            bail!("{refusal}");
        }
        agree(&plan, self.consent)?;
        let runtime = super::runtime()?;
        let outcome = runtime.block_on(Suspension { subject, plan }.run(start, self.limits));
        // A call that does not return is left behind. To drop the runtime would wait for it.
        runtime.shutdown_background();
        outcome
    }

    fn plan(&self) -> SuspensionPlan {
        let tgid = self.tgid;
        let driver = sample_driver();
        let maps = Maps::of(tgid);
        let command = clean(&short_command(&facts::command_line(tgid)));
        SuspensionPlan {
            tgid,
            command: fit(&command, COMMAND_COLUMNS, "…"),
            devices: shares(&driver, has_pids_of_the_driver(), tgid),
            host: host_memory::available_to(tgid),
            has_nccl: maps.is_ok_and(|maps| maps.library("libnccl.so").is_some()),
            is_for_command: self.command.is_some(),
        }
    }
}

/// Shows the plan, and asks for consent if it was not given.
fn agree(plan: &SuspensionPlan, consent: Consent) -> Result<()> {
    plan.lines()
        .iter()
        .for_each(|line| messages::print_line(line));
    if consent == Consent::Given {
        return Ok(());
    }
    let pid = plan.tgid.0;
    if !stdout::has_keyboard() || !messages::go_to_a_terminal() {
        bail!(
            "suspending changes PID {pid}, and nobody can be asked, as standard input and error are no terminal: nothing \
             was changed. Give --yes to agree"
        );
    }
    if !messages::ask(&format!("Suspend PID {pid}? [y/N] ")).context("reading the answer")? {
        bail!("nothing was changed");
    }
    Ok(())
}

/// A suspension that the user has agreed to.
struct Suspension {
    subject: Subject,
    plan: SuspensionPlan,
}

impl Suspension {
    async fn run(self, start: Option<Start>, limits: CheckpointLimits) -> Result<ExitCode> {
        let mut interrupts = Interrupts::new()?;
        let pid = self.subject.tgid.0;
        let begun = Instant::now();
        let note = format!(
            "PID {pid}: what was begun is undone as soon as the driver is done; interrupt again to give up, with the \
             process in an unknown state"
        );
        let (outcome, signal) = self
            .subject
            .make(&mut interrupts, checkpoint::suspend, &note)
            .await?;
        match outcome.map_err(|failure| self.subject.failed("suspended", failure))? {
            Suspended::Done | Suspended::Already => {}
            Suspended::Undone => {
                messages::print(&format!("interrupted: PID {pid} runs on as before"));
                return Ok(signal.map_or(ExitCode::FAILURE, EndSignal::exit_code));
            }
            Suspended::Impossible(state) => {
                bail!("{}", words::impossible(pid, "suspended", state))
            }
        }
        let took = span(begun.elapsed());
        let returned = self.returned();
        messages::print(&format!("PID {pid} is suspended after {took}: {returned}"));
        let Some(start) = start else {
            messages::print(&format!("`memprobe resume {pid}` brings it back"));
            return Ok(ExitCode::SUCCESS);
        };
        // Whatever becomes of the command, the process is resumed before memprobe returns.
        let command = command::run(start, &mut interrupts).await;
        self.wait_for_free_memory(&mut interrupts, limits.call)
            .await?;
        let resumed = resume(&self.subject, &mut interrupts).await;
        match (command, resumed) {
            (Ok(status), Ok(())) => Ok(ExitCode::from(status)),
            (Err(error), Ok(())) => Err(error),
            (_, Err(error)) => Err(error),
        }
    }

    /// Returns a sentence on what NVML shows for the process by now.
    fn returned(&self) -> String {
        let Ok(before) = &self.plan.devices else {
            return "what the GPU got back is unknown".to_owned();
        };
        let until = Instant::now() + MAX_FOLLOWING;
        loop {
            let now = shares(&sample_driver(), true, self.subject.tgid);
            let left = now.as_deref().ok().and_then(total);
            match (total(before), left) {
                (Some(before), Some(Bytes(0))) => {
                    return format!("the GPU got back {}, by NVML", human(before));
                }
                (Some(_), Some(_)) if Instant::now() < until => std::thread::sleep(ASK),
                (Some(_), Some(left)) => {
                    return format!("NVML still counts {} of it", human(left));
                }
                _ => return "NVML does not say what the GPU got back".to_owned(),
            }
        }
    }

    /// Waits until each GPU has room for what the process had there. A restore that runs out of memory can be the last
    /// one: with driver 580 it never succeeded afterwards (cuda-checkpoint issue 44).
    async fn wait_for_free_memory(
        &self,
        interrupts: &mut Interrupts,
        limit: Duration,
    ) -> Result<()> {
        let Ok(devices) = &self.plan.devices else {
            return Ok(());
        };
        let missing = || sample_driver().ok().and_then(|now| lacking(devices, &now));
        let until = Instant::now() + limit;
        let mut left = missing();
        if let Some(lack) = &left {
            messages::print(&format!("waiting for free memory on the GPU: {lack}"));
        }
        let has_ended = || self.subject.watched.has_ended();
        while left.is_some() && !has_ended() && Instant::now() < until {
            tokio::select! {
                _ = interrupts.next() => break,
                () = tokio::time::sleep(ASK) => left = missing(),
            }
        }
        let pid = self.subject.tgid.0;
        match left {
            _ if has_ended() => Ok(()),
            None => Ok(()),
            Some(lack) => bail!(
                "PID {pid} stays suspended: {lack}. A restore without room could end it. Free memory on the GPU, then \
                 `memprobe resume {pid}`"
            ),
        }
    }
}

/// Returns a sentence on a GPU that has not enough free memory.
fn lacking(devices: &[DeviceShare], now: &Sample) -> Option<String> {
    devices.iter().find_map(|share| {
        let needed = share.bytes?;
        let found = now.devices.iter().find(|found| found.index == share.gpu)?;
        let usage = found.memory.as_ref().ok()?;
        let free = Bytes(usage.total.0.saturating_sub(usage.used.0));
        (free < needed).then(|| {
            let (gpu, needed, free) = (share.gpu, human(needed), human(free));
            format!("it had {needed} on GPU {gpu}, where {free} are free")
        })
    })
}

/// Brings the process back.
async fn resume(subject: &Subject, interrupts: &mut Interrupts) -> Result<()> {
    let pid = subject.tgid.0;
    if subject.watched.has_ended() {
        messages::print(&format!("PID {pid} has ended meanwhile"));
        return Ok(());
    }
    let begun = Instant::now();
    let note = format!(
        "PID {pid} is being resumed; interrupt again to give up, with the process in an unknown state"
    );
    let (outcome, _) = subject.make(interrupts, checkpoint::resume, &note).await?;
    let resumed = outcome.map_err(|failure| subject.failed("resumed", failure))?;
    let took = span(begun.elapsed());
    messages::print(&match resumed {
        Resumed::Restored => {
            format!("PID {pid} runs again; its memory was back on the GPU after {took}")
        }
        Resumed::Unlocked => {
            format!("PID {pid} runs again; it was locked, and its memory had never left the GPU")
        }
        Resumed::WasRunning => format!("PID {pid} is not suspended: nothing was to be done"),
        Resumed::Impossible(state) => bail!("{}", words::impossible(pid, "resumed", state)),
    });
    Ok(())
}

impl Resume {
    pub fn run(&self) -> Result<ExitCode> {
        let subject = Subject::open(self.tgid, self.limits)?;
        let runtime = super::runtime()?;
        let outcome = runtime.block_on(async {
            let mut interrupts = Interrupts::new()?;
            resume(&subject, &mut interrupts).await
        });
        runtime.shutdown_background();
        outcome.map(|()| ExitCode::SUCCESS)
    }
}

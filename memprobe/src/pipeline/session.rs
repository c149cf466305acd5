//! One process, probed: from the ring buffer to events.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::decode::decode;
use crate::event::{Event, Losses};
use crate::model::snapshot::{ProbeStatus, Target};
use crate::probe::attach::{Attaching, Step};
use crate::probe::heap;
use crate::probe::kernel;
use crate::probe::loader::{Counters, Loader};
use crate::probe::ring::Records;
use crate::probe::watched::Watched;
use crate::symbolize::python::CodeCache;
use crate::symbolize::{Past, Symbolizer};
use crate::target::facts;
use crate::target::memory::ProcessMemory;

/// How often the ring buffer is looked at while nobody wakes us: the programs send in silence.
const POLL: Duration = Duration::from_millis(5);

/// How often a process is looked at that is not ready to be probed.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How often a process is looked at that memprobe has started: its first allocation must be seen.
/// Between the mapping of PyTorch's libraries and that lies the rest of `import torch`.
const LOOK_SOON: Duration = Duration::from_millis(2);

/// How long a process that has only just been started may be something other than Python (a
/// shell script, a launcher).
const STARTING: Duration = Duration::from_secs(20);

/// The most records taken in one go, so that a flood does not starve screen and signals.
const BATCH: usize = 65_536;

/// How the target came to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was running.
    Running,
    /// memprobe started it just now.
    Started,
}

/// One process, probed.
pub(super) struct Session {
    pub(super) watched: Watched,
    records: Records,
    counters: Counters,
    symbolizer: Symbolizer<ProcessMemory>,
    losses: Losses,
    malformed: u64,
    target: Target,
    probes: Vec<ProbeStatus>,
    /// Dropped last: it holds the attachments.
    _loader: Loader,
}

/// Loads the programs into the kernel. Takes a good part of a second: do it before a command is
/// started, so that the probes are in place before its first allocation.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn load(ring_bytes: u32) -> Result<Loader> {
    let loader = Loader::new(kernel::fsbase_offset()?, ring_bytes)?;
    heap::give_back_freed();
    Ok(loader)
}

impl Session {
    /// Attaches to a process, waiting for it to import PyTorch if need be. `waiting` is told what
    /// is waited for, each time that changes.
    ///
    /// # Errors
    /// When the process cannot be probed, with what to do.
    pub(super) async fn attach(
        mut loader: Loader,
        watched: Watched,
        origin: Origin,
        mut waiting: impl FnMut(&str),
    ) -> Result<Self> {
        let records = Records::new(loader.take_records()?).context("watching the ring buffer")?;
        let counters = loader.take_counters()?;
        let tgid = watched.tgid;
        let started = tokio::time::Instant::now();
        let mut attaching = Attaching::new(tgid);
        let mut told = String::new();
        let python = loop {
            match attaching.step(&mut loader) {
                Ok(Step::Done(python)) => break python,
                Ok(Step::Waiting(what)) => {
                    if what != told {
                        waiting(&what);
                        told = what;
                    }
                }
                Err(error)
                    if origin == Origin::Started
                        && started.elapsed() < STARTING
                        && error.may_pass() => {}
                Err(error) => return Err(error.into()),
            }
            let again = match origin {
                Origin::Running => LOOK_AGAIN,
                Origin::Started => LOOK_SOON,
            };
            tokio::select! {
                () = watched.ended() => bail!("process {} ended before it used CUDA", tgid.0),
                () = tokio::time::sleep(again) => {}
            }
        };
        let (probes, missing) = attaching.into_probes();
        for missing in missing {
            waiting(&missing);
        }
        let target = Target {
            tgid: Some(tgid),
            command: facts::command_line(tgid),
            python: python.as_ref().map(|python| python.version.to_string()),
            torch: facts::torch_version(tgid),
        };
        let past = match origin {
            Origin::Started => Past::None,
            Origin::Running => Past::Unknown,
        };
        let code = python.as_ref().map(CodeCache::new);
        let symbolizer = Symbolizer::new(tgid, ProcessMemory::new(tgid), code, past);
        Ok(Self {
            watched,
            records,
            counters,
            symbolizer,
            losses: Losses::default(),
            malformed: 0,
            target,
            probes,
            _loader: loader,
        })
    }

    /// What is known of the target.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Where the probes sit.
    pub(super) fn probes(&self) -> &[ProbeStatus] {
        &self.probes
    }

    /// Waits until there may be something to read, or the process has ended; says which.
    pub(super) async fn wait_or_end(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.watched.ended() => true,
            () = self.records.woken() => false,
            () = tokio::time::sleep(POLL) => false,
        }
    }

    /// Passes on every event that is there, in order; says how many records were read.
    ///
    /// # Errors
    /// The first error of `sink`, after which nothing more is passed on.
    pub(super) fn drain(&mut self, mut sink: impl FnMut(&Event) -> Result<()>) -> Result<usize> {
        let mut taken = 0;
        while taken < BATCH {
            let (symbolizer, malformed) = (&mut self.symbolizer, &mut self.malformed);
            let more = self.records.next(|bytes| match decode(bytes) {
                Ok(record) => symbolizer.push(record),
                Err(_) => *malformed += 1,
            });
            if !more {
                break;
            }
            taken += 1;
        }
        // Before the records are settled: what they leave out must not be taken for known.
        self.tell_losses();
        self.symbolizer.settle();
        if taken == 0 {
            self.symbolizer.give_up();
        }
        while let Some(event) = self.symbolizer.pop() {
            sink(&event)?;
        }
        Ok(taken)
    }

    /// Drains until nothing is left: at the end.
    ///
    /// # Errors
    /// As [`Self::drain`].
    pub(super) fn drain_all(&mut self, mut sink: impl FnMut(&Event) -> Result<()>) -> Result<()> {
        loop {
            let taken = self.drain(&mut sink)?;
            if taken == 0 && !self.symbolizer.is_unsettled() {
                return Ok(());
            }
            // A record that a program is still writing hides those behind it.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Puts the running totals of losses into the stream when they have grown.
    fn tell_losses(&mut self) {
        let losses = Losses {
            events: self.counters.events_lost(),
            stacks: self.counters.stacks_lost(),
            malformed: self.malformed,
        };
        if losses != self.losses {
            if losses.stacks != self.losses.stacks {
                self.symbolizer.forget_waiting();
            }
            self.losses = losses;
            self.symbolizer.push_event(Event::Loss(losses));
        }
    }

    /// What was lost so far.
    pub(super) fn losses(&self) -> Losses {
        self.losses
    }
}

/// Whether a loop goes on.
pub(super) type Flow = ControlFlow<crate::recording::EndReason>;

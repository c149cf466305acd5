//! `watch`: a flight recorder that writes a file when a request for GPU memory fails.

mod cooldown;
mod dump;
mod flight;
mod folder;
mod hook;
mod processes;
mod request;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use self::folder::DumpFolder;
use self::hook::Hook;
use self::processes::{DumpOptions, WatchedProcesses};
use self::request::WatchLock;
use super::record::{Start, Started};
use super::waiting::{remove_probes, show_while};
use super::{CommandUser, Interrupts, messages};
use crate::event::bytes::human;
use crate::event::{Bytes, Tgid, TimeShare};
use crate::probe::attach::AttachError;
use crate::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use crate::probe::kernel;
use crate::probe::loader::{Wanted, Watch as Scope};
use crate::probe::watched::Watched;
use crate::process::process_scan::{HostScan, ScanResult};
use crate::session::HostItem;
use crate::session::host::HostSession;
use crate::session::process::ProcessOrigin;
use crate::session::process_monitor::ProcessMonitor;
use crate::torch::tensors::CaptureMode;

/// Longest wait for dumps in progress after a signal.
const MAX_ENDING: Duration = Duration::from_secs(5);

/// Processes to watch.
pub enum WatchSubject {
    /// A process and those that it makes.
    Process(Tgid),
    /// Every process of the machine.
    All,
    /// A command to start: its program and arguments.
    Command(Vec<OsString>, CommandUser),
}

/// Reading of a process's objects for a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpObjects {
    Read(CaptureMode),
    Unread,
}

pub struct FlightWatch {
    pub subject: WatchSubject,
    pub directory: PathBuf,
    /// Most bytes of all dumps in the directory.
    pub max_size: Bytes,
    /// Shortest time between two dumps of a process for failed requests.
    pub cooldown: Duration,
    pub on_oom: Option<OsString>,
    pub objects: DumpObjects,
    pub driver: DriverCalls,
    pub ring_bytes: u32,
    pub max_overhead: Option<TimeShare>,
}

/// Asks the running `watch` of this machine for a dump.
pub fn request_dump() -> Result<ExitCode> {
    let pid = request::request_dump()?;
    messages::print(&format!(
        "asked memprobe (PID {pid}) for a dump of each process that it watches; it prints their paths"
    ));
    Ok(ExitCode::SUCCESS)
}

impl FlightWatch {
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        let runtime = super::runtime()?;
        let watched = runtime.block_on(self.watch());
        // A reading that was given up goes on in its thread. To drop the runtime would wait for it.
        runtime.shutdown_background();
        watched
    }

    async fn watch(self) -> Result<ExitCode> {
        let folder = DumpFolder::check(&self.directory, self.max_size)?;
        let mut signals = Signals::new()?;
        let lock = WatchLock::take()?;
        if lock.is_none() {
            messages::print(
                "another `memprobe watch` runs, to which `watch --dump` goes; send this one SIGUSR1 for a dump",
            );
        }
        let start = match &self.subject {
            WatchSubject::Command(words, user) => Some(Start::of(words, *user)?),
            WatchSubject::Process(_) | WatchSubject::All => None,
        };
        let loading = || "loading memprobe's programs into the kernel".to_owned();
        let mut session = show_while(loading, || {
            HostSession::load(self.wanted(), self.ring_bytes)
        })?;
        session.set_max_overhead(self.max_overhead);
        let mut command = start.map(Start::spawn).transpose()?;
        let root = self.add(&mut session, command.as_ref())?;
        super::end_start()?;
        let scan = root.is_none().then(HostScan::default);
        let (monitor, found) = ProcessMonitor::begin(scan)?;
        self.print_start();
        let options = DumpOptions {
            cooldown: self.cooldown,
            objects: self.objects,
            hook: self.on_oom.map(Hook::new),
        };
        let mut watching = Watching {
            session,
            monitor,
            processes: WatchedProcesses::new(folder, options),
            root,
            refusal: None,
        };
        watching.find(found)?;
        let outcome = watching.run(&mut signals).await;
        let Watching {
            session, processes, ..
        } = watching;
        processes.print_end();
        remove_probes(session);
        let has_ended = outcome?;
        match &mut command {
            Some(command) if has_ended => command.exit_status().map(ExitCode::from),
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            watch: match self.subject {
                WatchSubject::All => Scope::Everyone,
                WatchSubject::Process(_) | WatchSubject::Command(..) => Scope::Family,
            },
            detail: Detail::Lines,
            allocators: Allocators::Cuda,
            graph: GraphTracking::Off,
            driver: self.driver,
        }
    }

    /// Adds the processes to the session; returns the one whose end ends the watch.
    fn add(&self, session: &mut HostSession, command: Option<&Started>) -> Result<Option<Tgid>> {
        let (tgid, origin) = match (&self.subject, command) {
            (WatchSubject::Process(tgid), _) => (*tgid, ProcessOrigin::Running),
            (_, Some(command)) => (command.tgid(), ProcessOrigin::Launched),
            _ => return Ok(None),
        };
        session.add_family(Watched::open(tgid)?, origin)?;
        Ok(Some(tgid))
    }

    fn print_start(&self) {
        let subject = match &self.subject {
            WatchSubject::Process(tgid) => format!("process {} and its children", tgid.0),
            WatchSubject::All => "all processes".to_owned(),
            WatchSubject::Command(..) => "the command and its children".to_owned(),
        };
        let limit = human(self.max_size);
        messages::print(&format!(
            "watching {subject}; an out-of-memory error writes a file to {} (at most {limit} there)",
            self.directory.display()
        ));
    }
}

/// Signals that end the watch, and the one that asks for a dump.
struct Signals {
    interrupts: Interrupts,
    dump: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupts: Interrupts::new()?,
            dump: signal(SignalKind::user_defined1()).context("listening for SIGUSR1")?,
        })
    }
}

struct Watching {
    session: HostSession,
    monitor: ProcessMonitor,
    processes: WatchedProcesses,
    root: Option<Tgid>,
    /// Reason why the process that was asked for cannot be probed. Its children may be.
    refusal: Option<AttachError>,
}

impl Watching {
    /// Watches until a signal, or the end of the process. Returns true for the latter.
    async fn run(&mut self, signals: &mut Signals) -> Result<bool> {
        let mut has_ended = false;
        loop {
            tokio::select! {
                biased;
                _ = signals.interrupts.next() => break,
                _ = signals.dump.recv() => self.processes.request_dumps(),
                seen = self.monitor.next() => {
                    self.find(seen.found)?;
                    self.processes.take_driver(seen.driver);
                }
                arrived = self.processes.next() => self.processes.take(arrived),
                () = self.session.wait() => {}
            }
            self.drain()?;
            if let Some(refusal) = self.refusal.take_if(|_| self.session.len() == 1) {
                return Err(refusal.into());
            }
            has_ended |= self.root.is_some_and(|root| !self.session.is_watched(root));
            if has_ended && !self.processes.has_pending() {
                return Ok(true);
            }
        }
        self.processes.give_up("memprobe was interrupted");
        let limit = Instant::now() + MAX_ENDING;
        while self.processes.has_pending() && Instant::now() < limit {
            self.drain()?;
            self.session.wait().await;
        }
        Ok(has_ended)
    }

    fn drain(&mut self) -> Result<()> {
        // Borrowed apart: the session is not among the fields that its events change.
        let mut events = Vec::new();
        let mut taken = 1;
        while taken > 0 {
            taken = self.session.drain(|event| {
                events.push(event);
                Ok(())
            })?;
            for event in events.drain(..) {
                match event.item {
                    HostItem::Refused(error) if Some(event.tgid) == self.root => {
                        self.refusal = Some(error);
                    }
                    _ => self.processes.handle(event),
                }
            }
        }
        if self.processes.needs_blocks() {
            self.session.end_pause();
        }
        self.processes.finish_dumps(&self.session);
        Ok(())
    }

    /// Watches processes that use CUDA, and one process for each dynamic loader, which reports others.
    fn find(&mut self, found: ScanResult) -> Result<()> {
        for tgid in found.users.into_iter().chain(found.loaders) {
            if self.session.is_watched(tgid) {
                continue;
            }
            if let Some(watched) = Watched::if_there(tgid) {
                self.session.add(watched, ProcessOrigin::Running)?;
            }
        }
        Ok(())
    }
}

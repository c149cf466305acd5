//! `attach`: from the probes to the screen.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use super::before_attach::BaselineOutcome;
use super::host::placing;
use super::process_view::ProcessView;
use super::screen::{ScreenThread, Sources, Turn};
use super::waiting::remove_probes;
use super::{BaselineReading, Interrupts};
use crate::cuda::nvml::Sample;
use crate::event::{Bytes, Event, Tgid, TimeShare};
use crate::ledger::snapshot::{Snapshot, TargetState};
use crate::ledger::suspension::{DriverListing, SuspensionTracker};
use crate::ledger::{Analysis, Ledger};
use crate::probe::kernel;
use crate::probe::loader::Wanted;
use crate::probe::watched::Watched;
use crate::recording::EndReason;
use crate::report::{ReportOptions, limit_warning, session_summary};
use crate::session::HostItem;
use crate::session::host::HostSession;
use crate::session::process::{self, ProcessOrigin};
use crate::session::process_monitor::{ProcessMonitor, has_pids_of_the_driver};
use crate::tui::{self, Command, ThemeChoice};

const REFRESH: Duration = Duration::from_millis(200);

pub struct LiveView {
    pub tgid: Tgid,
    pub wanted: Wanted,
    pub ring_bytes: u32,
    /// Share of the process's time that the probes may take (`--max-overhead`).
    pub max_overhead: Option<TimeShare>,
    pub reading: BaselineReading,
    pub theme: ThemeChoice,
    /// Style of the summary that is printed at the end.
    pub summary: ReportOptions,
}

impl LiveView {
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        let runtime = super::runtime()?;
        let shown = runtime.block_on(self.run_inside());
        // A reading of objects goes on in its thread. To drop the runtime would wait for it.
        runtime.shutdown_background();
        shown
    }

    async fn run_inside(self) -> Result<ExitCode> {
        let watched = Watched::open(self.tgid)?;
        let target = process::identified(self.tgid);
        let interrupts = Interrupts::new()?;
        let model = Ledger::new(target, crate::session::now());
        let opened = ProcessView::new(self.tgid, &model, crate::session::now(), self.reading);
        let mut screen = Screen::open(model, opened, interrupts, self.theme);
        let mut session = None;
        let outcome = self.show(watched, &mut screen, &mut session).await;
        screen.thread.close()?;
        remove_probes(session);
        let saved = screen.opened.saver.finish();
        if outcome.is_ok() || screen.model.health.events > 0 {
            screen.print_summary(&saved.recordings, &self.summary);
        }
        saved.without_recordings().print();
        if let Some(stops) = super::stops_line() {
            super::messages::print(&stops);
        }
        outcome
    }

    /// Shows the process until the screen is left. Returns the exit status.
    async fn show(
        &self,
        watched: Watched,
        screen: &mut Screen,
        session: &mut Option<HostSession>,
    ) -> Result<ExitCode> {
        screen.wait_for("the kernel to load memprobe's programs");
        let session = session.insert(HostSession::load(self.wanted, self.ring_bytes)?);
        session.set_max_overhead(self.max_overhead);
        session.add(watched, ProcessOrigin::Running)?;
        super::end_start()?;
        screen.wait_for(&placing(0));
        let mut seen = Seen::Nothing;
        let (mut monitor, _) = ProcessMonitor::begin(None)?;
        loop {
            tokio::select! {
                looked = monitor.next(), if seen != Seen::End => screen.note_driver(&looked.driver),
                left = screen.turn() => if let Some(status) = left { return Ok(status) },
                () = session.wait(), if seen != Seen::End => {}
            }
            session.drain(|event| {
                let model = &mut screen.model;
                match event.item {
                    HostItem::Event(event) => {
                        let change = model.apply(&event);
                        screen.opened.apply(&event, &change, model);
                    }
                    HostItem::Waiting(what) => {
                        // The screen writes "waiting for" itself.
                        let what = what.strip_prefix("waiting for ").unwrap_or(&what);
                        model.health.state = TargetState::Waiting(what.to_owned());
                    }
                    HostItem::Placing(placed) => {
                        model.health.state = TargetState::Waiting(placing(placed));
                    }
                    HostItem::Attached {
                        target,
                        probes,
                        missing,
                    } => {
                        model.target = *target;
                        model.health.probes = probes;
                        model.health.capture = self.wanted.capture();
                        model.health.missing = missing;
                        seen = Seen::Probes;
                    }
                    HostItem::Identified(target) => model.target = *target,
                    HostItem::Stopped(reason) => screen.run_stop = Some(reason),
                    HostItem::Continued => screen.run_stop = None,
                    HostItem::Refused(error) => return Err(error.into()),
                    HostItem::Ended if seen == Seen::Nothing => bail!(
                        "process {} ended before it {}",
                        self.tgid.0,
                        super::messages::FIRST_USE
                    ),
                    HostItem::Ended => {
                        model.health.state = TargetState::Exited;
                        screen.opened.saver.end(EndReason::TargetExited);
                        seen = Seen::End;
                    }
                    HostItem::Executed(target) => {
                        *model = Ledger::new(*target, crate::session::now());
                        // The blocks to wait for were those of the other program.
                        if seen == Seen::Probes {
                            seen = Seen::Blocks;
                        }
                        screen.opened.begin_anew();
                        screen.opened.saver.end(EndReason::TargetExited);
                    }
                    HostItem::Found { .. } | HostItem::Notice(_) | HostItem::SnapshotPoint(_) => {}
                }
                Ok(())
            })?;
            if seen == Seen::Probes {
                let state = &mut screen.model.health.state;
                if session.is_reading_blocks(self.tgid) {
                    *state = TargetState::Waiting("the allocator's blocks to be read".to_owned());
                } else {
                    *state = TargetState::Running;
                    seen = Seen::Blocks;
                }
            }
            let add_calls = |calls: &mut _| session.add_call_paths(self.tgid, calls);
            if let Some(names) = screen.opened.show_tensors(&screen.model, add_calls) {
                screen.apply(&names);
            }
            let is_settled = session.is_settled(self.tgid);
            let Screen { opened, model, .. } = &mut *screen;
            if let Some(outcome) = opened.label_baseline(model, is_settled, add_calls) {
                screen.take_labels(outcome);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// Its probes were in place.
    Probes,
    /// Its blocks from before attach were known, or one row.
    Blocks,
    /// Ended after its probes were in place.
    End,
}

struct Screen {
    model: Ledger,
    tgid: Tgid,
    /// Reason why a signal or a debugger has stopped the process.
    run_stop: Option<String>,
    suspension: SuspensionTracker,
    opened: ProcessView,
    thread: ScreenThread<Command>,
}

impl Screen {
    fn open(
        model: Ledger,
        opened: ProcessView,
        interrupts: Interrupts,
        theme: ThemeChoice,
    ) -> Self {
        let tgid = opened.tgid();
        let news = opened.news();
        let sources = Box::new(Sources::of(tgid));
        let thread = ScreenThread::start(interrupts, REFRESH, move |command, quit| {
            tui::run(news, command, sources, quit, theme)
        });
        Self {
            model,
            tgid,
            run_stop: None,
            suspension: SuspensionTracker::default(),
            opened,
            thread,
        }
    }

    fn apply(&mut self, event: &Event) {
        let change = self.model.apply(event);
        self.opened.apply(event, &change, &self.model);
    }

    fn take_labels(&mut self, outcome: BaselineOutcome) {
        match outcome.event {
            Some(labels) => self.apply(&labels),
            None => self.model.health.missing.extend(outcome.said),
        }
    }

    /// Waits for the next thing that the screen wants or gets. Returns an exit status if it was left.
    async fn turn(&mut self) -> Option<ExitCode> {
        let turn = tokio::select! {
            turn = self.thread.turn() => turn,
            () = self.opened.taken() => return None,
        };
        match turn {
            Turn::Closed | Turn::Asked(Command::Quit) => return Some(ExitCode::SUCCESS),
            Turn::Interrupted(signal) => return Some(signal.exit_code()),
            Turn::Asked(Command::ResetPeaks) => self.model.reset_peaks(crate::session::now()),
            Turn::Asked(command) => {
                let now = crate::session::now();
                self.opened.execute(command, &self.model, now);
            }
            Turn::Refresh => {}
        }
        let snapshot = self.snapshot();
        self.opened.show(snapshot, &self.model);
        None
    }

    /// Shows what memprobe does before the first event.
    fn wait_for(&mut self, what: &str) {
        self.model.health.state = TargetState::Waiting(what.to_owned());
        let snapshot = self.snapshot();
        self.opened.show(snapshot, &self.model);
    }

    /// Notes that the process is in the driver's lists, or no more.
    fn note_driver(&mut self, driver: &Result<Sample, String>) {
        let listing = match driver {
            _ if !has_pids_of_the_driver() => DriverListing::Unknown,
            Ok(sample) if sample.held.contains_key(&self.tgid) => DriverListing::Listed,
            Ok(sample) if sample.devices.iter().all(|device| device.processes.is_ok()) => {
                DriverListing::Absent
            }
            _ => DriverListing::Unknown,
        };
        self.suspension.update(listing, self.reserved());
    }

    fn reserved(&self) -> Option<Bytes> {
        self.model.totals().map(|totals| totals.reserved)
    }

    fn snapshot(&mut self) -> Snapshot {
        let now = crate::session::now();
        let stop = self.run_stop.clone();
        let suspension = || self.suspension.reason(self.tgid, self.reserved());
        let has_ended = self.model.health.state == TargetState::Exited;
        self.model.health.stopped = stop.or_else(suspension).filter(|_| !has_ended);
        self.model.tick(now);
        let mut snapshot = self.model.snapshot(now, self.opened.grouping);
        let limit = limit_warning("the process", &self.model.refused());
        snapshot.health.missing.extend(limit);
        snapshot
    }

    fn print_summary(&mut self, saved: &[String], style: &ReportOptions) {
        let options = ReportOptions {
            grouping: self.opened.grouping,
            ..style.clone()
        };
        let (snapshot, refused) = (self.snapshot(), self.model.refused());
        super::print_summary(&session_summary(&snapshot, &refused, saved, &options));
    }
}

//! `top`: from the processes of a host to the screen, or to a table that is printed once.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use super::host::{HostProbes, PATIENCE, Scope, Watching};
use super::record::progress::Progress;
use super::saving::SavedFiles;
use super::screen::{ScreenThread, Sources, Turn};
use super::stdout::{self, OutputContent};
use super::waiting::remove_probes;
use super::{EndSignal, Interrupts};
use crate::event::Tgid;
use crate::ledger::host::HostCaps;
use crate::ledger::snapshot::host::HostSnapshot;
use crate::probe::kernel;
use crate::report::{self, DocumentFormat};
use crate::tui::host::{HostCommand, HostTitle, HostView};
use crate::tui::{self, SourceText, ThemeChoice};
use crate::view::{counted, duration};

const REFRESH: Duration = Duration::from_millis(250);
/// Interval of screen updates without news, for trends and the clock.
const REFRESH_QUIET: Duration = Duration::from_secs(1);

pub struct Top {
    pub scope: Scope,
    pub probes: HostProbes,
    /// Time that an ended process stays; `None` for ever.
    pub keep_ended: Option<Duration>,
    pub theme: ThemeChoice,
    /// Style of the table that is printed at the end.
    pub summary: report::HostOptions,
}

pub struct Once {
    pub scope: Scope,
    pub probes: HostProbes,
    /// Time to watch before the table is printed.
    pub listen: Duration,
    pub options: report::HostOptions,
}

impl Top {
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        let runtime = super::runtime()?;
        let shown = runtime.block_on(self.run_inside());
        // A reading of objects goes on in its thread. To drop the runtime would wait for it.
        runtime.shutdown_background();
        shown
    }

    async fn run_inside(self) -> Result<ExitCode> {
        let interrupts = Interrupts::new()?;
        let fade = self
            .keep_ended
            .and_then(|time| u64::try_from(time.as_nanos()).ok());
        let caps = HostCaps {
            fade: fade.unwrap_or(u64::MAX),
            ..HostCaps::default()
        };
        let mut watching = Watching::begin(self.scope, self.probes, caps)?;
        let mut screen = Screen::open(&mut watching, self.scope, interrupts, self.theme);
        let outcome = show(&mut watching, &mut screen).await;
        screen.thread.close()?;
        let mut summary = Vec::new();
        let snapshot = watching.host.snapshot(crate::session::now());
        report::write_host(&snapshot, &self.summary, &mut summary)?;
        super::print_summary(&String::from_utf8_lossy(&summary));
        let saved = watching.finish_saving();
        remove_probes(watching);
        saved.iter().for_each(SavedFiles::print);
        if let Some(stops) = super::stops_line() {
            super::messages::print(&stops);
        }
        outcome
    }
}

/// Shows the processes until the screen is left. Returns the exit status.
async fn show(watching: &mut Watching, screen: &mut Screen) -> Result<ExitCode> {
    loop {
        let turn = tokio::select! {
            turn = screen.thread.turn() => Some(turn),
            waited = watching.wait() => waited.map(|()| None)?,
        };
        watching.drain()?;
        match turn {
            None => {}
            Some(Turn::Refresh) => screen.refresh_if_due(watching),
            Some(Turn::Closed | Turn::Asked(HostCommand::Quit)) => return Ok(ExitCode::SUCCESS),
            Some(Turn::Interrupted(signal)) => return Ok(signal.exit_code()),
            Some(Turn::Asked(command)) => screen.execute(command, watching),
        }
    }
}

impl Once {
    pub fn run(self) -> Result<ExitCode> {
        kernel::preflight()?;
        let snapshot = match super::runtime()?.block_on(self.look())? {
            Ok(snapshot) => snapshot,
            Err(signal) => {
                super::messages::print("interrupted before the table was complete");
                return Ok(signal.exit_code());
            }
        };
        let content = match self.options.format {
            DocumentFormat::Text => OutputContent::Text,
            DocumentFormat::Json => OutputContent::Document,
        };
        let mut out = stdout::open(content);
        let written = report::write_host(&snapshot, &self.options, &mut out);
        match written.and_then(|()| out.flush()) {
            // A reader that has seen enough (`| head`).
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written.context("writing the table")?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show_progress(&self, watching: &mut Watching, progress: &mut Progress) {
        let snapshot = watching.host.snapshot(crate::session::now());
        progress.show_line(&match snapshot.looking() {
            Some((looked, all)) => format!("looking at processes: {looked} of {all}"),
            None => {
                let processes = counted(snapshot.processes.len() as u64, "row");
                format!("watching for {}: {processes}", duration(self.listen))
            }
        });
    }

    /// Listens for as long as is asked, and until every process is probed or known not to be. Returns the signal that
    /// came before.
    pub(super) async fn look(&self) -> Result<Result<HostSnapshot, EndSignal>> {
        let mut interrupts = Interrupts::new()?;
        // The table shows neither purposes nor lines of the forward pass.
        let mut watching = Watching::begin(self.scope, self.probes, HostCaps::default())?;
        let begun = Instant::now();
        let mut progress = Progress::new(false);
        loop {
            let heard = begun.elapsed();
            let is_enough = heard >= self.listen && watching.is_settled();
            if is_enough || heard >= PATIENCE.max(self.listen) {
                break;
            }
            tokio::select! {
                signal = interrupts.next() => {
                    progress.clear();
                    return Ok(Err(signal));
                }
                waited = watching.wait() => waited?,
            }
            watching.drain()?;
            watching.host.tick(crate::session::now());
            self.show_progress(&mut watching, &mut progress);
        }
        watching.catch_up()?;
        progress.clear();
        let snapshot = watching.host.snapshot(crate::session::now());
        remove_probes(watching);
        Ok(Ok(snapshot))
    }
}

struct Screen {
    views: watch::Sender<HostView>,
    thread: ScreenThread<HostCommand>,
    refreshed: Instant,
}

impl Screen {
    fn open(
        watching: &mut Watching,
        scope: Scope,
        interrupts: Interrupts,
        theme: ThemeChoice,
    ) -> Self {
        let first = HostView {
            host: Arc::new(watching.host.snapshot(crate::session::now())),
            process: None,
        };
        let (views, shown) = watch::channel(first);
        let title = match scope {
            Scope::Host => HostTitle {
                name: "memprobe top".to_owned(),
                instead: "`memprobe top --once`",
            },
            Scope::Family(Tgid(root)) => HostTitle {
                name: format!("memprobe attach --children --pid {root}"),
                instead: "`memprobe record -o DIR/`",
            },
        };
        let thread = ScreenThread::start(interrupts, REFRESH, move |command, quit| {
            let sources =
                Box::new(|tgid| Box::new(Sources::of(tgid)) as Box<dyn SourceText + Send>);
            tui::host::run(shown, command, sources, quit, title, theme)
        });
        Self {
            views,
            thread,
            refreshed: Instant::now(),
        }
    }

    fn execute(&mut self, command: HostCommand, watching: &mut Watching) {
        match command {
            HostCommand::Open(tgid) => watching.open(tgid),
            HostCommand::Close => watching.close(),
            HostCommand::Ask(command) => watching.execute(command),
            HostCommand::Quit => {}
        }
        self.refresh(watching);
    }

    fn refresh_if_due(&mut self, watching: &mut Watching) {
        if std::mem::take(&mut watching.news) || self.refreshed.elapsed() >= REFRESH_QUIET {
            self.refresh(watching);
        }
    }

    fn refresh(&mut self, watching: &mut Watching) {
        let now = crate::session::now();
        self.refreshed = Instant::now();
        watching.host.tick(now);
        let process = watching.show_opened(now);
        self.views.send_replace(HostView {
            host: Arc::new(watching.host.snapshot(now)),
            process,
        });
    }
}

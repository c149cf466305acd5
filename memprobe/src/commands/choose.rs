//! The process of a verb: by number, by name, or chosen on the screen.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch;

use super::screen::{ScreenThread, Turn};
use super::{EndSignal, Interrupts, messages, stdout};
use crate::cuda::nvml::Sample;
use crate::event::{Bytes, Tgid};
use crate::probe::catalog::Allocators;
use crate::process::process_scan::GpuLibrary;
use crate::process::process_search::{MatchScope, ProcessCandidate, ProcessSearch};
use crate::process::user;
use crate::session::process_monitor::ProcessMonitor;
use crate::tui::ThemeChoice;
use crate::tui::picker::{self, Picked, ProcessChoice};
use crate::view::{clean, fit, short_command};

/// Most processes that an error lists.
const MAX_LISTED: usize = 20;
/// Columns of a command line in such a list.
const COMMAND_COLUMNS: usize = 70;
/// Interval of looking for signals besides those that the screen reports.
const REFRESH: Duration = Duration::from_secs(1);

/// A process as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessName {
    Number(Tgid),
    /// A script, or a part of the command line.
    Text(String),
    /// None was given.
    Unnamed,
}

/// A verb that needs a process.
#[derive(Clone, Copy, Debug)]
pub struct Chooser {
    /// Name of the verb, with the options that it needs besides the process: `record -o trace.json`.
    pub verb: &'static str,
    pub allocators: Allocators,
    pub scope: MatchScope,
    /// Colours of the screen to choose on.
    pub theme: ThemeChoice,
}

impl Chooser {
    pub const fn new(verb: &'static str, allocators: Allocators, scope: MatchScope) -> Self {
        Self {
            verb,
            allocators,
            scope,
            theme: ThemeChoice::Auto,
        }
    }

    /// Finds the process of a name. Without a name it lets the user choose on the screen, if there is a terminal; if the
    /// user chooses none, returns the exit status of Ctrl-C or of the signal that came.
    pub fn choose(self, name: &ProcessName) -> Result<Result<Tgid, ExitCode>> {
        match name {
            ProcessName::Number(tgid) => Ok(Ok(*tgid)),
            ProcessName::Text(name) => self.find(name).map(Ok),
            ProcessName::Unnamed if stdout::is_terminal() && stdout::has_keyboard() => {
                super::runtime()?.block_on(self.pick())
            }
            ProcessName::Unnamed => {
                let search = ProcessSearch::read().context("reading /proc")?;
                let verb = self.verb;
                let there = self.listed(&search.users(self.library()));
                bail!(
                    "name a process, as standard input and output are no terminal to choose one on: `memprobe {verb} \
                     1234` or `memprobe {verb} train.py`.{there}"
                )
            }
        }
    }

    /// The weakest library that a process must have.
    fn library(self) -> GpuLibrary {
        match self.allocators {
            Allocators::Cuda => GpuLibrary::Cuda,
            Allocators::CudaAndCpu => GpuLibrary::PyTorch,
        }
    }

    fn find(self, name: &str) -> Result<Tgid> {
        let search = ProcessSearch::read().context("reading /proc")?;
        let found = search.named(name, self.scope, true);
        let verb = self.verb;
        match found[..] {
            [one] => Ok(one.tgid),
            [] => bail!("{}", self.nothing_found(&search, name)),
            [first, ..] => {
                let (number, list) = (found.len(), list(&found));
                let pid = first.tgid.0;
                bail!(
                    "{number} processes match {name:?}; give the PID of one, such as `memprobe {verb} {pid}`, or more of \
                     its command line:\n{list}"
                )
            }
        }
    }

    fn nothing_found(self, search: &ProcessSearch, name: &str) -> String {
        let without = search.named(name, self.scope, false);
        let verb = self.verb;
        if let [first, ..] = without[..] {
            let (list, pid) = (list(&without), first.tgid.0);
            return format!(
                "no process with CUDA or PyTorch matches {name:?}. These match and have loaded neither; if one of them is \
                 meant, give its PID: `memprobe {verb} {pid}`:\n{list}"
            );
        }
        let mut text = format!("no process with CUDA or PyTorch matches {name:?}.");
        if !rustix::process::geteuid().is_root() {
            text += " Without root memprobe sees your own processes alone: try it with sudo.";
        }
        let there = self.listed(&search.users(GpuLibrary::PyTorch));
        if there.is_empty() {
            text += " No process has loaded them: `pgrep -af python` lists what runs.";
        }
        text + &there
    }

    /// The processes that could be meant; empty without any.
    fn listed(self, there: &[&ProcessCandidate]) -> String {
        if there.is_empty() {
            return String::new();
        }
        format!(" Processes that memprobe could watch:\n{}", list(there))
    }

    async fn pick(self) -> Result<Result<Tgid, ExitCode>> {
        let interrupts = Interrupts::new()?;
        let (mut monitor, _) = ProcessMonitor::begin(None)?;
        let mut users = HashMap::new();
        let first = self.choices(&Sample::default(), &mut users)?;
        let (sender, choices) = watch::channel(Arc::new(first));
        let (verb, theme) = (self.verb, self.theme);
        let mut screen = ScreenThread::start(interrupts, REFRESH, move |picked, quit| {
            picker::run(verb, choices, picked, quit, theme)
        });
        let chosen = loop {
            tokio::select! {
                turn = screen.turn() => match turn {
                    Turn::Asked(Picked::Process(tgid)) => break Ok(tgid),
                    Turn::Asked(Picked::Nothing) | Turn::Closed => break Err(EndSignal::INTERRUPT),
                    Turn::Interrupted(signal) => break Err(signal),
                    Turn::Refresh => {}
                },
                seen = monitor.next() => {
                    let sample = seen.driver.unwrap_or_default();
                    sender.send_replace(Arc::new(self.choices(&sample, &mut users)?));
                }
            }
        };
        screen.close()?;
        Ok(chosen.map_err(|signal| {
            messages::print("no process was chosen");
            signal.exit_code()
        }))
    }

    fn choices(
        self,
        driver: &Sample,
        users: &mut HashMap<u32, Option<String>>,
    ) -> Result<Vec<ProcessChoice>> {
        let search = ProcessSearch::read().context("reading /proc")?;
        let choice = |candidate: &ProcessCandidate| {
            let name = |uid| {
                let known = users.entry(uid).or_insert_with(|| user::name(uid));
                known.clone().unwrap_or_else(|| uid.to_string())
            };
            let held = driver.held.get(&candidate.tgid);
            let add = |sum: u64, bytes: Bytes| sum.saturating_add(bytes.0);
            let sum = |held: &Vec<(u32, Option<Bytes>)>| {
                let mut each = held.iter().map(|(_, bytes)| *bytes);
                each.try_fold(0, |sum, bytes| bytes.map(|bytes| add(sum, bytes)))
            };
            ProcessChoice {
                tgid: candidate.tgid,
                user: candidate.uid.map(name),
                gpu_memory: held.and_then(sum).map(Bytes),
                library: library_name(candidate),
                command: candidate.command(),
            }
        };
        let found = search.users(self.library());
        Ok(found.into_iter().map(choice).collect())
    }
}

fn library_name(candidate: &ProcessCandidate) -> &'static str {
    match candidate.library {
        Some(GpuLibrary::Cuda) => "CUDA",
        Some(GpuLibrary::PyTorch) => "PyTorch",
        None => "neither",
    }
}

/// One line a process: its PID, its user, and its command line.
fn list(found: &[&ProcessCandidate]) -> String {
    let mut text = String::new();
    for candidate in found.iter().take(MAX_LISTED) {
        let name = |uid| user::name(uid).unwrap_or_else(|| uid.to_string());
        let user = candidate.uid.map(name).unwrap_or_default();
        let command = fit(
            &clean(&short_command(&candidate.command())),
            COMMAND_COLUMNS,
            "…",
        );
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:>7}  {user:<8}  {command}", candidate.tgid.0);
    }
    let more = found.len().saturating_sub(MAX_LISTED);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
    text.trim_end().to_owned()
}

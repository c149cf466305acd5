//! Profilers of the training loop: inside the process (PyTorch's own) or attached from outside.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::process;

/// Time limit for attaching or detaching.
const LIMIT: Duration = Duration::from_secs(30);

/// Exit status of a screen that SIGTERM ended: 128 and the number of the signal, as of a shell.
const AFTER_TERM: i32 = 128 + 15;

/// Text that `probes_alone` and `memprobe record` print once the probes are attached.
const READY: [&str; 2] = ["ready", "recording PID"];

/// Programs that attach, and the folder for their recordings.
#[derive(Debug)]
pub struct Programs {
    pub memprobe: PathBuf,
    /// Another build of memprobe, measured in the same turns.
    pub other_memprobe: Option<PathBuf>,
    /// The example that attaches memprobe's probes and discards the records.
    pub probes_alone: PathBuf,
    pub recordings: PathBuf,
}

/// A build of memprobe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    Own,
    /// [`Programs::other_memprobe`].
    Other,
}

impl Build {
    fn program(self, programs: &Programs) -> &Path {
        match (self, &programs.other_memprobe) {
            (Self::Other, Some(other)) => other,
            _ => &programs.memprobe,
        }
    }
}

/// A profiler, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiler {
    None,
    /// Uprobes at memprobe's addresses whose programs return at once: the lower bound.
    FilteredProbes,
    /// Like [`Self::FilteredProbes`], by perf events: what kernels before 6.10 have instead of uprobe_multi links.
    FilteredPerfEvents,
    /// memprobe's probes; the records are discarded.
    ProbesAlone,
    /// Like [`Self::ProbesAlone`], plus the probes on tensor creation.
    TensorProbesAlone,
    /// `memprobe record` into a file.
    Record(Build),
    /// Like [`Self::Record`], with the tensor behind each block.
    RecordTensors(Build),
    /// Like [`Self::Record`], without the graph of autograd.
    RecordWithoutGraph(Build),
    /// `memprobe record` into `/dev/null`.
    RecordNowhere(Build),
    /// Like [`Self::RecordTensors`], with a budget of 1 %: after some seconds the probes are off most of the time.
    RecordWithinBudget(Build),
    /// `memprobe attach`, on a terminal of 160 columns and 50 rows.
    Attach(Build),
    /// `memprobe top` without a budget, on the same terminal.
    Top(Build),
    /// `memprobe top` with its budget of 1 %, likewise.
    TopWithinBudget,
    /// `memprobe watch`, with its budget of 1 %.
    Watch,
    /// `_record_memory_history(stacks="python")`.
    HistoryPython,
    /// `_record_memory_history(stacks="all")`.
    HistoryAll,
    /// `torch.profiler.profile(profile_memory=True)`, which is Kineto.
    KinetoMemory,
}

impl Profiler {
    /// Every profiler, in the order of the table.
    pub fn all(programs: &Programs) -> Vec<Self> {
        use Build::{Other, Own};
        let mut all = vec![
            Self::None,
            Self::FilteredProbes,
            Self::FilteredPerfEvents,
            Self::ProbesAlone,
            Self::TensorProbesAlone,
            Self::RecordNowhere(Own),
            Self::Record(Own),
            Self::RecordWithoutGraph(Own),
            Self::RecordTensors(Own),
            Self::RecordWithinBudget(Own),
            Self::Attach(Own),
            Self::Top(Own),
            Self::TopWithinBudget,
            Self::Watch,
            Self::HistoryPython,
            Self::HistoryAll,
            Self::KinetoMemory,
        ];
        if programs.other_memprobe.is_some() {
            all.extend([
                Self::RecordNowhere(Other),
                Self::Record(Other),
                Self::RecordWithoutGraph(Other),
                Self::RecordTensors(Other),
                Self::Attach(Other),
                Self::Top(Other),
            ]);
        }
        all
    }

    /// Label in the table.
    pub fn name(self) -> String {
        let name = match self {
            Self::None => "no profiler",
            Self::FilteredProbes => "empty uprobe at the same place",
            Self::FilteredPerfEvents => "empty uprobe there, by perf events",
            Self::ProbesAlone => "memprobe's probes, nothing read",
            Self::TensorProbesAlone => "those of --detail tensors, nothing read",
            Self::Record(_) => "memprobe record --detail lines -o FILE",
            Self::RecordWithoutGraph(_) => "memprobe record --detail lines --no-graph -o FILE",
            Self::RecordTensors(_) => "memprobe record --detail tensors -o FILE",
            Self::RecordNowhere(_) => "memprobe record --detail lines -o /dev/null",
            Self::RecordWithinBudget(_) => "memprobe record --max-overhead 1% -o FILE",
            Self::Attach(_) => "memprobe attach",
            Self::Top(_) => "memprobe top --max-overhead off",
            Self::TopWithinBudget => "memprobe top",
            Self::Watch => "memprobe watch",
            Self::HistoryPython => "PyTorch's history, stacks=\"python\"",
            Self::HistoryAll => "PyTorch's history, stacks=\"all\"",
            Self::KinetoMemory => "torch.profiler, profile_memory=True",
        };
        match self.build() {
            Some(Build::Other) => format!("the other {name}"),
            _ => name.to_owned(),
        }
    }

    fn build(self) -> Option<Build> {
        match self {
            Self::Record(build)
            | Self::RecordTensors(build)
            | Self::RecordNowhere(build)
            | Self::RecordWithoutGraph(build)
            | Self::RecordWithinBudget(build)
            | Self::Attach(build)
            | Self::Top(build) => Some(build),
            _ => None,
        }
    }

    /// Name of the recorder that the training loop enables itself.
    pub fn inside(self) -> &'static str {
        match self {
            Self::HistoryPython => "history-python",
            Self::HistoryAll => "history-all",
            Self::KinetoMemory => "torch-profiler",
            _ => "none",
        }
    }

    /// Attaches from outside, if this profiler does so; returns once the probes are attached.
    pub fn attach(self, programs: &Programs, pid: u32) -> Result<Option<Attached>> {
        let pid = pid.to_string();
        let memprobe = self.build().unwrap_or(Build::Own).program(programs);
        let record = |detail: &str, output: &Path| {
            let mut command = Command::new(memprobe);
            command.args(["record", "--detail", detail, "--pid", &pid, "-o"]);
            command.arg(output);
            command
        };
        let alone = |mode: &[&str]| {
            let mut command = Command::new(&programs.probes_alone);
            command.arg(&pid).args(mode);
            command
        };
        let file = programs.recordings.join("trace.mprb");
        let attached = match self {
            Self::None | Self::HistoryPython | Self::HistoryAll | Self::KinetoMemory => {
                return Ok(None);
            }
            Self::FilteredProbes => Attached::speaking(alone(&["filtered"]))?,
            Self::FilteredPerfEvents => Attached::speaking(alone(&["filtered-perf-events"]))?,
            Self::ProbesAlone => Attached::speaking(alone(&["discarded"]))?,
            Self::TensorProbesAlone => Attached::speaking(alone(&["discarded", "tensors"]))?,
            Self::RecordNowhere(_) => Attached::speaking(record("lines", Path::new("/dev/null")))?,
            Self::Record(_) => Attached::speaking(record("lines", &file))?,
            Self::RecordWithoutGraph(_) => {
                let mut command = record("lines", &file);
                command.arg("--no-graph");
                Attached::speaking(command)?
            }
            Self::RecordTensors(_) => Attached::speaking(record("tensors", &file))?,
            Self::RecordWithinBudget(_) => {
                let mut command = record("tensors", &file);
                command.args(["--max-overhead", "1%"]);
                Attached::speaking(command)?
            }
            Self::Attach(_) => {
                let mut command = Command::new(memprobe);
                command.args(["attach", "--pid", &pid]);
                Attached::on_a_terminal(command)?
            }
            Self::Top(_) => {
                let mut command = Command::new(memprobe);
                command.args(["top", "--max-overhead", "off"]);
                Attached::on_a_terminal(command)?
            }
            Self::TopWithinBudget => {
                let mut command = Command::new(memprobe);
                command.arg("top");
                Attached::on_a_terminal(command)?
            }
            Self::Watch => {
                let mut command = Command::new(memprobe);
                command.args(["watch", "--pid", &pid, "--dir"]);
                command.arg(&programs.recordings);
                Attached::on_a_terminal(command)?
            }
        };
        Ok(Some(attached))
    }
}

/// The allocator's eBPF program, timed by the kernel.
#[derive(Debug)]
pub struct TimedProbes(Attached);

/// Totals counted by the kernel so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTime {
    pub runs: u64,
    /// Nanoseconds of all runs together.
    pub nanoseconds: u64,
}

impl TimedProbes {
    pub fn attach(programs: &Programs, pid: u32) -> Result<Self> {
        let mut command = Command::new(&programs.probes_alone);
        command.args([&pid.to_string(), "timed"]);
        Attached::speaking(command).map(Self)
    }

    /// Reads the kernel's totals.
    pub fn run_time(&mut self) -> Result<RunTime> {
        let Some((input, output)) = self.0.input.as_mut().zip(self.0.output.as_mut()) else {
            bail!("the probes have no pipes");
        };
        writeln!(input)?;
        let mut line = String::new();
        output.read_line(&mut line)?;
        parse_run_time(&line).with_context(|| format!("probes_alone answered {line:?}"))
    }

    pub fn detach(self) -> Result<()> {
        self.0.detach().map(drop)
    }
}

fn parse_run_time(line: &str) -> Option<RunTime> {
    let (runs, nanoseconds) = line.trim().split_once(' ')?;
    Some(RunTime {
        runs: runs.parse().ok()?,
        nanoseconds: nanoseconds.parse().ok()?,
    })
}

/// A program attached from outside.
#[derive(Debug)]
pub struct Attached {
    child: Child,
    shown: String,
    input: Option<ChildStdin>,
    /// Output in which the program reports that it is ready.
    output: Option<BufReader<Box<dyn ReadAndDebug>>>,
    /// Drains the output after that, so that the program never blocks on a full pipe.
    draining: Option<JoinHandle<()>>,
    said: Said,
}

/// Output of a program that says how many records it lost.
#[derive(Debug, Clone, Default)]
enum Said {
    /// No count of losses.
    #[default]
    Nothing,
    Text(Arc<Mutex<Vec<u8>>>),
    Screen(Arc<Mutex<Screen>>),
}

/// A terminal's contents.
struct Screen(vt100::Parser);

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Screen")
    }
}

impl Said {
    /// Returns the number of lost records, if the program has said it.
    fn lost(&self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Text(text) => lost(&String::from_utf8_lossy(&text.lock().expect(ADDS))),
            Self::Screen(screen) => lost(&screen.lock().expect(ADDS).0.screen().contents()),
        }
    }

    /// Adds bytes of the output.
    fn add(&self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Text(text) => text.lock().expect(ADDS).extend_from_slice(bytes),
            Self::Screen(screen) => screen.lock().expect(ADDS).0.process(bytes),
        }
    }

    /// Reads an output to its end; an error ends it just as end of file does.
    fn drain(&self, mut output: impl Read) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut bytes) {
            self.add(&bytes[..count]);
        }
    }
}

/// Message for a lock that a panicking thread would poison.
const ADDS: &str = "adding bytes does not panic";

/// Time after which a screen shows all that happened before.
const REFRESHED: Duration = Duration::from_millis(1100);

/// Parses the number of lost records from the last line that mentions them.
pub(super) fn lost(said: &str) -> Option<u64> {
    let line = said.lines().rfind(|line| line.contains(" lost "))?;
    let (_, number) = line.split_once(" lost ")?;
    let number = number.split_whitespace().next()?;
    number.replace(',', "").parse().ok()
}

/// Source of a program's output.
trait ReadAndDebug: Read + std::fmt::Debug + Send {}

impl<T: Read + std::fmt::Debug + Send> ReadAndDebug for T {}

impl Attached {
    /// Starts a program that reports when its probes are attached.
    fn speaking(mut command: Command) -> Result<Self> {
        let is_record = command
            .get_args()
            .next()
            .is_some_and(|verb| verb == "record");
        if is_record {
            command.stdin(Stdio::null()).stderr(Stdio::piped());
        } else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        }
        let shown = process::shown(&command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let pipe: Option<Box<dyn ReadAndDebug>> = match (child.stdout.take(), child.stderr.take()) {
            (Some(output), _) => Some(Box::new(output)),
            (None, Some(errors)) => Some(Box::new(errors)),
            (None, None) => None,
        };
        let mut attached = Self {
            input: child.stdin.take(),
            child,
            shown,
            output: pipe.map(BufReader::new),
            draining: None,
            said: Said::default(),
        };
        attached.wait_until_ready()?;
        if is_record && let Some(output) = attached.output.take() {
            let said = Said::Text(Arc::default());
            attached.said = said.clone();
            attached.draining = Some(std::thread::spawn(move || said.drain(output)));
        }
        Ok(attached)
    }

    /// Reads the output until the program is ready.
    fn wait_until_ready(&mut self) -> Result<()> {
        let Some(output) = &mut self.output else {
            bail!("`{}` has no pipe", self.shown);
        };
        let mut said = String::new();
        loop {
            let begin = said.len();
            if output.read_line(&mut said)? == 0 {
                bail!("`{}` ended:\n{said}", self.shown);
            }
            if READY.iter().any(|ready| said[begin..].contains(ready)) {
                return Ok(());
            }
        }
    }

    /// Starts a program with a full-screen UI and waits until it has attached.
    pub(super) fn on_a_terminal(mut command: Command) -> Result<Self> {
        let (ours, theirs) = open_terminal()?;
        command
            .env("TERM", "xterm-256color")
            .stdin(theirs.try_clone()?)
            .stdout(theirs.try_clone()?)
            .stderr(theirs);
        let shown = process::shown(&command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        drop(command);
        let (columns, rows) = SIZE;
        let screen = Screen(vt100::Parser::new(rows, columns, 0));
        let said = Said::Screen(Arc::new(Mutex::new(screen)));
        let drained = said.clone();
        // Reading fails once the program has ended and the other side is closed.
        let draining = std::thread::spawn(move || drained.drain(File::from(ours)));
        let mut attached = Self {
            child,
            shown,
            input: None,
            output: None,
            draining: Some(draining),
            said,
        };
        wait_for_links(&mut attached.child, &attached.shown)?;
        Ok(attached)
    }

    /// Process ID of the profiler.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program and waits until its probes are gone. Returns the number of records that it
    /// lost, if it says so.
    pub fn detach(mut self) -> Result<Option<u64>> {
        let on_screen = match &self.said {
            Said::Screen(_) => {
                std::thread::sleep(REFRESHED);
                self.said.lost()
            }
            _ => None,
        };
        let terminated = match self.input.take() {
            Some(input) => {
                drop(input);
                None
            }
            None => {
                let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
                kill_process(pid.context("no such process")?, Signal::TERM)?;
                Some(AFTER_TERM)
            }
        };
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if start.elapsed() > LIMIT {
                bail!("`{}` does not end", self.shown);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() && status.code() != terminated {
            bail!("`{}` failed ({status})", self.shown);
        }
        if let Some(draining) = self.draining.take() {
            // The thread contains nothing that panics.
            let _ = draining.join();
        }
        Ok(on_screen.or_else(|| self.said.lost()))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a program holds probes and their number has stopped growing.
pub(super) fn wait_for_links(child: &mut Child, shown: &str) -> Result<()> {
    let start = Instant::now();
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(300));
        if let Some(status) = child.try_wait()? {
            bail!("`{shown}` ended ({status})");
        }
        let links = probe_links(child.id());
        if links > 0 && links == before {
            return Ok(());
        }
        before = links;
        if start.elapsed() > LIMIT {
            bail!("`{shown}` attached nothing in {} s", LIMIT.as_secs());
        }
    }
}

/// Counts the probe links and perf events that a process holds.
fn probe_links(pid: u32) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|link| {
            matches!(
                link.to_str(),
                Some("anon_inode:bpf_link" | "anon_inode:[perf_event]")
            )
        })
        .count()
}

/// Columns and rows of a pseudo-terminal.
const SIZE: (u16, u16) = (160, 50);

/// Opens both sides of a pseudo-terminal.
fn open_terminal() -> Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("cannot open a terminal")?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let (columns, rows) = SIZE;
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&ours, size)?;
    let path = ptsname(&ours, Vec::new())?;
    let theirs = File::options()
        .read(true)
        .write(true)
        .open(path.to_str().context("the terminal's path is not UTF-8")?)?;
    Ok((ours, theirs.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_ends_before_it_is_ready_is_an_error_with_its_words() {
        let error = Attached::speaking(shell("echo no such process")).unwrap_err();
        assert!(error.to_string().contains("no such process"), "{error}");
    }

    #[test]
    fn a_program_is_detached_by_the_end_of_its_input() {
        let attached = Attached::speaking(shell("echo ready; cat")).unwrap();
        attached.detach().unwrap();
    }

    #[test]
    fn losses_are_read_from_the_last_line_with_them() {
        let said = "memprobe: 00:00:01  5 events  1 KiB written  lost 0\n\
                    memprobe: 00:00:02  9 events  2 KiB written  lost 12,345 (target exited)\n\
                    memprobe: 8 recordings\n";
        assert_eq!(lost(said), Some(12_345));
        assert_eq!(lost("nothing"), None);
        let screen = Screen(vt100::Parser::new(4, 40, 0));
        let screen = Said::Screen(Arc::new(Mutex::new(screen)));
        screen.add(b" LIVE 5 ev/s   lost 1   6 probes ok\x1b[1;21H7");
        assert_eq!(screen.lost(), Some(7));
        let text = Said::Text(Arc::default());
        text.drain(said.as_bytes());
        assert_eq!((text.lost(), Said::Nothing.lost()), (Some(12_345), None));
    }

    #[test]
    fn a_program_that_fails_while_it_watches_is_an_error() {
        let attached = Attached::speaking(shell("echo ready; cat; exit 3")).unwrap();
        assert!(attached.detach().unwrap_err().to_string().contains('3'));
    }

    #[test]
    fn a_terminal_has_two_sides() {
        let (ours, theirs) = open_terminal().unwrap();
        File::from(theirs).write_all(b"hello").unwrap();
        let mut word = [0; 5];
        File::from(ours).read_exact(&mut word).unwrap();
        assert_eq!(&word, b"hello");
    }

    #[test]
    fn run_times_are_two_numbers() {
        let time = RunTime {
            runs: 3,
            nanoseconds: 900,
        };
        assert_eq!(parse_run_time("3 900\n"), Some(time));
        assert_eq!(parse_run_time("3\n"), None);
    }
}

//! `cargo xtask demo`: memprobe on an unmodified training script that is already running.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;
use crate::pytorch::{self, Interpreter};
use crate::repository::Repository;
use crate::requirements::{self, Task};

/// Output of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// A ten-second recording and its report.
    Report,
    /// The live screen.
    Live,
}

const RECORDED: &str = "10s";

/// Time limit for the script's first step. A cold import of PyTorch takes half a minute.
const START_LIMIT: Duration = Duration::from_secs(180);

/// Longer than anyone looks at the screen; the script ends with the demo.
const TRAINING_SECONDS: &str = "3600";

/// Runs the demo, from the build to the report.
pub fn run(repository: &Repository, interpreter: Option<Interpreter>, show: Show) -> Result<()> {
    requirements::check(repository, Task::Demo, 1)?;
    let interpreter = interpreter.unwrap_or_else(requirements::usual_python);
    let memprobe = build(repository)?;
    println!("\n== PyTorch");
    let request = pytorch::Request::new(interpreter, pytorch::DEFAULT_TORCH);
    let environment = pytorch::set_up(&request)?;
    let gpu = if environment.simulated {
        "simulated CUDA: this machine has no GPU"
    } else {
        "the GPU of this machine"
    };
    println!(
        "Python {}, PyTorch {}, {gpu}",
        environment.python_version, environment.torch
    );

    let interrupted = watch_for_interrupts()?;
    println!("\n== a training script, started without memprobe");
    let script = repository.root().join("tests/workloads/demo_train.py");
    let mut training = Training::start(&environment.python, &script)?;
    training.wait_for_first_step(&interrupted)?;
    println!("it trains: PID {}", training.pid());

    match show {
        Show::Live => {
            println!("\n== memprobe's live screen (q ends it)");
            run_as_root(
                &memprobe,
                &["attach", "--pid", &training.pid().to_string()],
                &interrupted,
            )?;
        }
        Show::Report => record_and_report(repository, &memprobe, &training, &interrupted)?,
    }
    if let Some(status) = training.ended()? {
        println!("the training script ended meanwhile ({status})");
    }
    Ok(())
}

fn build(repository: &Repository) -> Result<PathBuf> {
    println!("== memprobe");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    process::run(Command::new(cargo).current_dir(repository.root()).args([
        "build",
        "--release",
        "--package",
        "memprobe",
    ]))?;
    Ok(repository.built_memprobe())
}

fn record_and_report(
    repository: &Repository,
    memprobe: &Path,
    training: &Training,
    interrupted: &Interrupted,
) -> Result<()> {
    let folder = repository.target().join("demo");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let trace = folder.join("trace.json");
    let file = trace
        .to_str()
        .context("the path of trace.json is not UTF-8")?;

    println!("\n== memprobe attaches and records for {RECORDED}");
    let pid = training.pid().to_string();
    let arguments = ["record", "-o", file, "--pid", &pid, "--duration", RECORDED];
    run_as_root(memprobe, &arguments, interrupted)?;

    println!("\n== the report");
    process::run(Command::new(memprobe).args(["report", file]))?;
    println!("\nThe trace: {}", trace.display());
    println!("  open it in https://ui.perfetto.dev (Open trace file) or in chrome://tracing");
    println!(
        "  memprobe report {} --help shows other views",
        trace.display()
    );
    println!("The live screen: cargo xtask demo --tui");
    Ok(())
}

/// Runs memprobe in the foreground, through sudo unless the demo is root.
fn run_as_root(memprobe: &Path, arguments: &[&str], interrupted: &Interrupted) -> Result<()> {
    let mut command = if process::is_root() {
        Command::new(memprobe)
    } else {
        println!("attaching probes needs root: memprobe is started through sudo");
        let mut sudo = Command::new("sudo");
        sudo.arg(memprobe);
        sudo
    };
    command.args(arguments);
    eprintln!("  $ {}", process::shown(&command));
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
    let status = wait(&mut child, interrupted)?;
    if !status.success() {
        bail!("`{}` failed ({status})", process::shown(&command));
    }
    Ok(())
}

/// Waits for memprobe. Ctrl-C also reaches memprobe, which then ends by itself; after ten seconds
/// it is killed.
fn wait(child: &mut Child, interrupted: &Interrupted) -> Result<ExitStatus> {
    const GRACE: Duration = Duration::from_secs(10);
    let mut since = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupted.is_set() && since.get_or_insert_with(Instant::now).elapsed() > GRACE {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Flag set when a signal asks the demo to end.
#[derive(Debug, Clone, Default)]
struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn watch_for_interrupts() -> Result<Interrupted> {
    let interrupted = Interrupted::default();
    let seen = interrupted.clone();
    ctrlc::set_handler(move || seen.0.store(true, Ordering::Relaxed))
        .context("cannot watch for Ctrl-C")?;
    Ok(interrupted)
}

/// The training script, ended on drop.
#[derive(Debug)]
struct Training {
    child: Child,
    lines: Receiver<Said>,
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Output(String),
    Error(String),
}

impl Training {
    fn start(python: &Path, script: &Path) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(script).args(["--seconds", TRAINING_SECONDS]);
        println!("  $ {}", process::shown(&command));
        Self::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own process group, so that Ctrl-C reaches memprobe and the script keeps
            // running.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{}`", process::shown(command)))?;
        let (sender, lines) = channel();
        let read = |pipe: Box<dyn Read + Send>, said: fn(String) -> Said| {
            let sender = sender.clone();
            // Read to the end even without a listener: a full pipe would block the script.
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    let _ = sender.send(said(line));
                }
            });
        };
        if let Some(output) = child.stdout.take() {
            read(Box::new(output), Said::Output);
        }
        if let Some(errors) = child.stderr.take() {
            read(Box::new(errors), Said::Error);
        }
        Ok(Self { child, lines })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line `PID …`, which the script prints once its model is built.
    fn wait_for_first_step(&mut self, interrupted: &Interrupted) -> Result<()> {
        let start = Instant::now();
        let mut errors = Vec::new();
        loop {
            if interrupted.is_set() {
                bail!("interrupted");
            }
            if start.elapsed() > START_LIMIT {
                bail!(
                    "the training script did not begin to train in {} s:\n{}",
                    START_LIMIT.as_secs(),
                    errors.join("\n")
                );
            }
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(Said::Output(line)) => {
                    println!("  | {line}");
                    if line.starts_with("PID ") {
                        return Ok(());
                    }
                }
                Ok(Said::Error(line)) => errors.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!(
                        "the training script ended ({status}):\n{}",
                        errors.join("\n")
                    );
                }
            }
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Training {
        Training::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn training_has_begun_when_the_script_says_its_pid() {
        let mut training = shell("echo loading; echo PID 1; exec sleep 100");
        training
            .wait_for_first_step(&Interrupted::default())
            .unwrap();
        assert_eq!(training.ended().unwrap(), None);
    }

    #[test]
    fn a_script_that_fails_is_shown_with_its_own_words() {
        let mut training = shell("echo 'no module torch' >&2; exit 3");
        let error = training
            .wait_for_first_step(&Interrupted::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no module torch") && error.contains('3'),
            "{error}"
        );
    }

    #[test]
    fn the_script_ends_with_the_demo() {
        let training = shell("exec sleep 100");
        let folder = PathBuf::from(format!("/proc/{}", training.pid()));
        assert!(folder.exists());
        drop(training);
        assert!(!folder.exists());
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let mut training = shell("exec sleep 100");
        let interrupted = Interrupted::default();
        interrupted.0.store(true, Ordering::Relaxed);
        let error = training
            .wait_for_first_step(&interrupted)
            .unwrap_err()
            .to_string();
        assert_eq!(error, "interrupted");
    }
}

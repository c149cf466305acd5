//! The program `calls.c`: a process that calls functions of CUDA's libraries on request.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::process;

/// The source of the program.
const SOURCE: &str = include_str!("calls.c");

/// The longest that an answer may take: against a call that never returns.
const LIMIT: Duration = Duration::from_secs(60);

/// Compiles the program into a folder.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let source = folder.join("calls.c");
    fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
    let program = folder.join("calls");
    process::answer(
        Command::new("cc")
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-ldl"),
    )?;
    Ok(program)
}

/// A running `calls`. It ends when this value goes.
#[derive(Debug)]
pub struct Caller {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    printed: TempDir,
}

/// The reason why a command has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The program's own words.
    Refused(String),
    /// The process is gone: how it ended.
    Died(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(words) | Self::Died(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for Failure {}

/// An answer without content.
#[derive(Debug, Deserialize)]
pub struct Done {}

/// The answer to `call`.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Called {
    /// The value that the first call returned.
    pub result: i32,
    /// Every call returned that value.
    pub same: bool,
    /// Nanoseconds a call, in the best loop.
    pub ns: f64,
}

/// The answer to `compare`.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Compared {
    /// Number of bytes that are not the file's.
    pub differ: u32,
    /// Number of those that are a breakpoint (`0xcc`).
    pub breakpoints: u32,
}

/// The answer to `hook`: UCX's status code, 0 for success.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Hooked {
    pub result: i32,
}

/// The answer to `heard`.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Heard {
    pub heard: u64,
}

/// The answer to `programs`.
#[derive(Debug, Clone, Deserialize)]
pub struct Programs {
    pub programs: Vec<Program>,
}

/// A BPF program.
#[derive(Debug, Clone, Deserialize)]
pub struct Program {
    /// Its name, cut to 15 bytes by the kernel.
    pub name: String,
    /// Number of its runs while the kernel counted.
    pub runs: u64,
}

impl Programs {
    /// Runs of all programs of that name.
    pub fn runs_of(&self, name: &str) -> u64 {
        let named = self.programs.iter().filter(|program| program.name == name);
        named.map(|program| program.runs).sum()
    }
}

impl Caller {
    /// Starts the program. `driver` is the folder in which libraries find `libcuda.so.1`.
    pub fn start(program: &Path, driver: Option<&Path>) -> Result<Self> {
        let printed = tempfile::tempdir().context("cannot make a folder for what is printed")?;
        let mut command = Command::new(program);
        if let Some(folder) = driver {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let mut child = command
            // UCX then says which functions it rewrites.
            .env("UCX_MEM_LOG_LEVEL", "debug")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(printed.path().join("stderr"))?)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let commands = child.stdin.take().context("a pipe was asked for")?;
        let stdout = child.stdout.take().context("a pipe was asked for")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            commands,
            answers,
            printed,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that the libraries printed.
    pub fn printed(&self) -> String {
        let bytes = fs::read(self.printed.path().join("stderr")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a command and waits for its answer.
    pub fn ask<T: DeserializeOwned>(&mut self, words: &[&str]) -> Result<T, Failure> {
        let line = words.join("\t") + "\n";
        // Where the process is gone already, there is no answer either.
        let _ = self.commands.write_all(line.as_bytes());
        match self.answers.recv_timeout(LIMIT) {
            Ok(answer) => read(&answer),
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                Err(Failure::Died(format!(
                    "no answer to `{}` within {} s",
                    words.join(" "),
                    LIMIT.as_secs()
                )))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.child.wait().map(|status| status.to_string());
                Err(Failure::Died(
                    ended.unwrap_or_else(|error| error.to_string()),
                ))
            }
        }
    }

    /// Opens a library.
    pub fn load(&mut self, library: &Path) -> Result<(), Failure> {
        self.ask::<Done>(&["load", &library.to_string_lossy()])
            .map(drop)
    }

    /// Calls a function once, with zeros; its result.
    pub fn start_with(&mut self, function: &str) -> Result<i32, Failure> {
        let called: Called = self.ask(&["start", function])?;
        Ok(called.result)
    }

    /// Calls a function in loops.
    pub fn call(&mut self, function: &str, loops: u32, times: u32) -> Result<Called, Failure> {
        let (loops, times) = (loops.to_string(), times.to_string());
        self.ask(&["call", function, &loops, &times])
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read<T: DeserializeOwned>(answer: &str) -> Result<T, Failure> {
    let value: Value = serde_json::from_str(answer)
        .map_err(|error| Failure::Refused(format!("it answered {answer:?}: {error}")))?;
    if let Some(words) = value.get("error").and_then(Value::as_str) {
        return Err(Failure::Refused(words.to_owned()));
    }
    serde_json::from_value(value)
        .map_err(|error| Failure::Refused(format!("it answered {answer:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_an_error_is_one() {
        let called: Called = read(r#"{"result":3,"same":true,"ns":7.5}"#).unwrap();
        assert_eq!((called.result, called.same), (3, true));
        let refused = read::<Called>(r#"{"error":"no such command or function"}"#).unwrap_err();
        assert_eq!(
            refused,
            Failure::Refused("no such command or function".to_owned())
        );
        assert!(matches!(read::<Called>("{}"), Err(Failure::Refused(_))));
        assert!(matches!(read::<Called>("x"), Err(Failure::Refused(_))));
    }

    #[test]
    fn runs_are_summed_by_the_name_of_a_program() {
        let programs: Programs = read(
            r#"{"programs":[{"name":"cuda_enter","runs":3},{"name":"cuda_return","runs":2},
                {"name":"cuda_enter","runs":4}]}"#,
        )
        .unwrap();
        assert_eq!(programs.runs_of("cuda_enter"), 7);
        assert_eq!(programs.runs_of("cuda"), 0);
    }

    #[test]
    fn a_process_calls_functions_and_its_end_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let Ok(program) = build(folder.path()) else {
            println!("skipped: there is no C compiler");
            return;
        };
        let mut caller = Caller::start(&program, None).unwrap();
        caller.load(Path::new("libc.so.6")).unwrap();
        let called = caller.call("getppid", 1, 10).unwrap();
        assert_eq!(called.result, i32::try_from(std::process::id()).unwrap());
        assert!(called.same);
        assert!(matches!(
            caller.load(Path::new("/no/such/library")),
            Err(Failure::Refused(words)) if words.contains("/no/such/library")
        ));
        assert!(matches!(
            caller.call("abort", 1, 1),
            Err(Failure::Died(words)) if words.contains("signal: 6")
        ));
    }
}

//! Training loop under measurement: one process that executes commands from its standard input.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::process;

/// Library that the allocator's uprobe patches.
const PROBED: &str = "libc10.so";

/// Training loop to measure.
#[derive(Debug, Args)]
pub struct LoopOptions {
    /// The model that the loop trains
    #[arg(long, value_enum, default_value_t = LoopModel::Mlp)]
    model: LoopModel,
    /// Time that each step waits, as for a GPU: 20ms
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = humantime::parse_duration)]
    gpu_time: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoopModel {
    /// An 8-layer perceptron: it does little but allocate
    Mlp,
    /// Six layers of a GPT
    Gpt,
    /// 32 layers, each within the one before: deep stacks
    Nested,
}

impl LoopModel {
    fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Gpt => "gpt",
            Self::Nested => "nested",
        }
    }
}

impl LoopOptions {
    /// Describes a step in words.
    pub fn title(&self) -> String {
        let model = match self.model {
            LoopModel::Mlp => "8-layer perceptron with Adam",
            LoopModel::Gpt => "6-layer GPT with Adam",
            LoopModel::Nested => "32 layers nested in one another, with Adam",
        };
        if self.gpu_time.is_zero() {
            return model.to_owned();
        }
        let wait = humantime::format_duration(self.gpu_time);
        format!("{model}, and {wait} of waiting as for a GPU")
    }

    /// Name of the loop among the stored measurements; `None` if the documents do not have it.
    pub fn stored_name(&self) -> Option<&'static str> {
        match (self.model, self.gpu_time.is_zero()) {
            (LoopModel::Mlp, true) => Some("loop"),
            (LoopModel::Gpt, true) => Some("loop-gpt"),
            (LoopModel::Mlp, false) => Some("loop-waiting"),
            (LoopModel::Nested, true) => Some("loop-nested"),
            (LoopModel::Gpt | LoopModel::Nested, false) => None,
        }
    }

    /// Its words on the command line.
    pub fn words(&self) -> String {
        let mut words = String::new();
        if self.model != LoopModel::Mlp {
            words += &format!(" --model {}", self.model.name());
        }
        if !self.gpu_time.is_zero() {
            words += &format!(" --gpu-time {}", humantime::format_duration(self.gpu_time));
        }
        words
    }
}

/// The training loop's process.
#[derive(Debug)]
pub struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pid: u32,
    code: Code,
}

/// First line of the process, once it has warmed up.
#[derive(Debug, Clone, Deserialize)]
struct Started {
    pid: u32,
}

/// Result of a block of iterations.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
pub struct Block {
    pub iterations: u64,
    /// Allocator events in all iterations.
    pub events: u64,
    /// Mean time of an iteration, in microseconds.
    pub mean_us: f64,
    /// Median time of an iteration, in microseconds.
    pub median_us: f64,
}

/// Result of training at a fixed event rate.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Paced {
    /// Allocator events.
    pub events: u64,
    pub seconds: f64,
}

/// Result of a `hold` or `release` command.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Done {
    /// Allocator events.
    events: u64,
}

impl Target {
    /// Starts the loop and waits until it has warmed up.
    pub fn start(python: &Path, script: &Path, loop_options: &LoopOptions) -> Result<Self> {
        let mut command = Command::new(python);
        let gpu_time = loop_options.gpu_time.as_secs_f64().to_string();
        command
            .arg(script)
            .args(["--model", loop_options.model.name()])
            .args(["--gpu-time", &gpu_time])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        eprintln!("  $ {}", process::shown(&command));
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the training loop has no pipes");
        };
        let mut output = BufReader::new(output);
        let Started { pid } = answer(&mut output)?;
        let code = Code::of(pid)?;
        Ok(Self {
            child,
            input,
            output,
            pid,
            code,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Trains under one of PyTorch's own recorders; `none` means no recorder.
    pub fn block(&mut self, recorder: &str, warm: u32, iterations: u32) -> Result<Block> {
        self.ask(&format!("block {recorder} {warm} {iterations}"))
    }

    /// Starts training at `rate` events per second; [`Self::paced`] waits for the end.
    pub fn pace(&mut self, rate: u32, seconds: u64) -> Result<()> {
        self.send(&format!("pace {rate} {seconds}"))
    }

    /// Waits for the end of the training that [`Self::pace`] started.
    pub fn paced(&mut self) -> Result<Paced> {
        answer(&mut self.output)
    }

    /// Allocates `count` blocks below `depth` Python frames and keeps them; returns the number of
    /// allocator events.
    pub fn hold(&mut self, depth: u32, count: u32) -> Result<u64> {
        let done: Done = self.ask(&format!("hold {depth} {count}"))?;
        Ok(done.events)
    }

    /// Frees the blocks kept by [`Self::hold`]; returns the number of allocator events.
    pub fn release(&mut self) -> Result<u64> {
        let done: Done = self.ask("release")?;
        Ok(done.events)
    }

    /// Fails if a probe is still attached to the process, because it would distort the next
    /// measurement.
    pub fn check_clean(&self) -> Result<()> {
        if Code::of(self.pid)? != self.code {
            bail!(
                "{PROBED} of PID {} is still probed: is another memprobe attached to it?",
                self.pid
            );
        }
        Ok(())
    }

    pub fn end(mut self) -> Result<()> {
        self.send("quit")?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the training loop failed ({status})");
        }
        Ok(())
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &str) -> Result<T> {
        self.send(request)?;
        answer(&mut self.output)
    }

    fn send(&mut self, request: &str) -> Result<()> {
        writeln!(self.input, "{request}").context("the training loop has ended")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the next answer, skipping the lines that PyTorch's profiler writes.
fn answer<T: DeserializeOwned>(output: &mut impl BufRead) -> Result<T> {
    loop {
        let mut line = String::new();
        if output.read_line(&mut line)? == 0 {
            bail!("the training loop ended; what it said is above");
        }
        if line.starts_with('{') {
            return serde_json::from_str(&line)
                .with_context(|| format!("the training loop answered {line:?}"));
        }
    }
}

/// Code of the probed library as mapped into a process.
#[derive(Debug, PartialEq, Eq)]
struct Code(Vec<u8>);

impl Code {
    fn of(pid: u32) -> Result<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let maps = std::fs::read_to_string(process.join("maps"))?;
        let (start, length) =
            code_of(&maps, PROBED).with_context(|| format!("PID {pid} has no {PROBED}"))?;
        let mut bytes = vec![0; length];
        File::open(process.join("mem"))?.read_exact_at(&mut bytes, start)?;
        Ok(Self(bytes))
    }
}

/// Returns address and length of a library's executable mapping, from the text of `/proc/PID/maps`.
fn code_of(maps: &str, library: &str) -> Option<(u64, usize)> {
    let line = maps.lines().find(|line| {
        let mut words = line.split_whitespace();
        let path = words.next_back().unwrap_or_default();
        words.nth(1).is_some_and(|rights| rights.contains('x'))
            && Path::new(path).ends_with(library)
    })?;
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    Some((start, usize::try_from(end.checked_sub(start)?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_library_is_its_executable_mapping() {
        let maps = "1000-2000 r--p 00000000 08:01 5 /lib/libc10.so\n\
                    2000-5000 r-xp 00001000 08:01 5 /lib/libc10.so\n\
                    6000-7000 r-xp 00000000 08:01 6 /lib/libc10_cuda.so\n";
        assert_eq!(code_of(maps, "libc10.so"), Some((0x2000, 0x3000)));
        assert_eq!(code_of(maps, "libtorch.so"), None);
    }

    #[test]
    fn lines_that_are_no_answers_are_passed_over() {
        let mut output = "USDT: profiler_start\n{\"events\": 3}\n".as_bytes();
        assert_eq!(answer::<Done>(&mut output).unwrap().events, 3);
        assert!(answer::<Done>(&mut output).is_err(), "it ended");
    }
}

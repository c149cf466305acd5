//! `memprobe record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::options::{
    AsRootOption, CpuOption, DetailOption, NamesOption, PauseOption, ProbeOptions, is_default,
    parse_duration, parse_size, without_cpu,
};
use super::subject::ProcessOption;
use crate::commands::choose::Chooser;
use crate::commands::record::{Recording, Subject};
use crate::commands::{
    GraphTracking, MatchScope, Naming, SourceRecording, Wanted, Watch, check_kernel,
};
use crate::recording::RecordingFormat;

/// Least size of a recording that drops its oldest part, in bytes.
const LEAST_SIZE: u64 = 1 << 20;

/// Record every allocation of a process to a file, or of many to a directory
///
/// `memprobe report` prints the file. A name that ends in .json gets a trace for ui.perfetto.dev and chrome://tracing,
/// some 200 times as large; `report` reads both. memprobe follows every process of a command. Under sudo the command
/// runs as the user who called sudo. A path that ends in / is a directory: one file for each process with GPU
/// memory. A plain file has the first of them. Recording ends on Ctrl-C, when the process or command ends, or after
/// --duration.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe record -o trace.mprb 1234 --duration 30s
  sudo memprobe record -o trace.mprb train.py         a process that runs this script
  sudo memprobe record -o trace.mprb -- python train.py --epochs 3
  sudo memprobe record -o run/ -- torchrun --nproc-per-node 4 train.py
  sudo memprobe record -o run/ 1234 --children
  sudo memprobe record -o cpu.mprb --cpu -- python train_without_gpu.py
  sudo memprobe record -o trace.json 1234 --duration 5s    for ui.perfetto.dev
  sudo memprobe record -o trace.mprb --detail full -- python train.py
  sudo memprobe record -o trace.mprb --names 1234 --duration 30s
  sudo memprobe record -o trace.mprb --max-overhead 1% 1234 --duration 10m
  sudo memprobe record -o trace.mprb --max-size 500MB 1234   for days: the newest part stays
  memprobe report trace.mprb")]
#[command(mut_arg("detail", |arg| arg.default_value("tensors")))]
#[command(mut_arg("graph", is_default))]
#[command(mut_arg("max_overhead", without_cpu))]
pub struct RecordArgs {
    /// Output file (`-` for standard output, `DIR/` for a file for each process)
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Format of the files [default: json if FILE ends in .json or .jsonl, and otherwise mprb]
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        hide_default_value = true
    )]
    format: Option<FileFormat>,
    #[command(flatten)]
    process: ProcessOption,
    /// Also its child processes, running and future
    #[arg(short, long, conflicts_with = "command")]
    children: bool,
    /// Stop after this time, such as 30s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Keep the newest part of each file within this size, such as 500MB: older events are dropped
    #[arg(long, value_name = "SIZE", value_parser = parse_max_size)]
    max_size: Option<u64>,
    /// Leave the source text of the recorded lines out of the file
    #[arg(long)]
    no_source: bool,
    #[command(flatten)]
    cpu: CpuOption,
    #[command(flatten)]
    detail: DetailOption,
    #[command(flatten)]
    names: NamesOption,
    #[command(flatten)]
    pause: PauseOption,
    #[command(flatten)]
    probes: ProbeOptions,
    #[command(flatten)]
    as_root: AsRootOption,
    /// Print nothing while recording
    #[arg(short, long)]
    quiet: bool,
    /// Command to start and record from its first allocation
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["process", "pid"])]
    command: Vec<OsString>,
}

/// Reads a size that a recording can keep to.
fn parse_max_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size if size < LEAST_SIZE => Err("give at least 1MiB, such as 500MB".to_owned()),
        size => Ok(size),
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum FileFormat {
    /// Compact recording, for memprobe
    Mprb,
    /// Chrome trace, for ui.perfetto.dev and chrome://tracing too
    Json,
}

impl From<FileFormat> for RecordingFormat {
    fn from(format: FileFormat) -> Self {
        match format {
            FileFormat::Mprb => Self::Compact,
            FileFormat::Json => Self::Json,
        }
    }
}

impl RecordArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let is_command = !self.command.is_empty();
        let is_alone = !is_command && !self.children;
        let subject = if is_command {
            Subject::Command(self.command, self.as_root.user())
        } else {
            let scope = MatchScope::of_children(self.children);
            // Whoever may not probe would find no process either.
            check_kernel()?;
            let chooser = Chooser::new("record -o FILE", self.cpu.allocators(), scope);
            match self.process.choose(chooser)? {
                Ok(tgid) => Subject::Process(tgid),
                Err(status) => return Ok(status),
            }
        };
        let of_name = || RecordingFormat::of(&self.output);
        Recording {
            subject,
            format: self.format.map_or_else(of_name, Into::into),
            output: self.output,
            wanted: Wanted {
                watch: if is_alone { Watch::One } else { Watch::Family },
                detail: self.detail.detail,
                allocators: self.cpu.allocators(),
                graph: self.probes.graph_or(GraphTracking::On),
                driver: self.probes.driver(),
            },
            naming: self.names.naming_or(Naming::Off),
            reading: self.names.baseline(self.pause),
            duration: self.duration,
            max_size: self.max_size,
            sources: match self.no_source {
                true => SourceRecording::Off,
                false => SourceRecording::On,
            },
            ring_bytes: self.probes.ring_bytes(),
            max_overhead: self.probes.max_overhead(),
            quiet: self.quiet,
        }
        .run()
    }
}

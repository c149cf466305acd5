//! `memprobe record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::{Detail, Driver, allocators, graph, parse_buffer_size, parse_duration};
use crate::event::Tgid;
use crate::pipeline::record::{Naming, Recording, Subject};

/// Record every allocation of a process to a file, or of many to a directory
///
/// The file is a trace that opens in ui.perfetto.dev and chrome://tracing, and that `memprobe
/// report` prints. Of a command all processes are followed that it makes; a directory (a path that
/// ends in /) gets a file for each that uses GPU memory, a file holds the first of them. Recording
/// ends on Ctrl-C, when the process or command ends, or after --duration.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe record -o trace.json --pid 1234 --duration 30s
  sudo memprobe record -o trace.json -- python train.py --epochs 3
  sudo memprobe record -o run/ -- torchrun --nproc-per-node 4 train.py
  sudo memprobe record -o run/ --pid 1234 --children
  sudo memprobe record -o cpu.json --cpu -- python train_without_gpu.py
  sudo memprobe record -o trace.json --detail full -- python train.py
  sudo memprobe record -o trace.json --names --pid 1234 --duration 30s
  memprobe report trace.json")]
#[command(group = clap::ArgGroup::new("subject").required(true).args(["pid", "command"]))]
pub struct Record {
    /// Write the recording here (`-` for standard output, `DIR/` for a file a process)
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Record this running process
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Record the processes that descend from it too
    #[arg(short, long, requires = "pid")]
    children: bool,
    /// Detail of each block. Cost to the process: `tensors` a trap for each new tensor, `full` also a copy of the stack for
    /// each block without a tensor
    #[arg(long, value_enum, default_value_t = Detail::Tensors)]
    detail: Detail,
    /// Read the objects of each process now and then, so that blocks have the names and kinds of their tensors
    /// (`layers.0.weight`, a parameter), and who keeps them alive can be told: when it first calls a module, at the 2nd step of
    /// an optimizer, the 16th, the 128th and so on, and when the recording ends before the process does. The process is paused for that, each time for a
    /// fraction of a second
    #[arg(long)]
    names: bool,
    /// Record the memory of CPU tensors too; then any PyTorch will do, also without CUDA
    #[arg(long)]
    cpu: bool,
    /// Do not lead the memory of backward passes back to the lines of the forward pass; saves the process two traps for each
    /// operation of autograd
    #[arg(long)]
    no_graph: bool,
    #[command(flatten)]
    driver: Driver,
    /// Stop after this long, such as 30s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Room for events that were not read yet; more where events are lost
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_buffer_size)]
    buffer_size: u32,
    /// Say nothing while recording
    #[arg(short, long)]
    quiet: bool,
    /// Start this command and record it from its first allocation
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Record {
    pub(super) fn run(self) -> Result<ExitCode> {
        let subject = match self.pid {
            Some(pid) if self.children => Subject::Family(Tgid(pid)),
            Some(pid) => Subject::Process(Tgid(pid)),
            None => Subject::Command(self.command),
        };
        Recording {
            subject,
            output: self.output,
            detail: self.detail.into(),
            naming: if self.names {
                Naming::NowAndThen
            } else {
                Naming::Off
            },
            allocators: allocators(self.cpu),
            graph: graph(self.no_graph),
            driver: self.driver.calls(),
            duration: self.duration,
            ring_bytes: self.buffer_size,
            quiet: self.quiet,
        }
        .run()
    }
}

//! `memprobe watch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::options::{
    AsRootOption, BufferOption, DriverOption, MaxOverhead, parse_duration, parse_overhead,
    parse_size,
};
use super::subject::ProcessOption;
use crate::commands::choose::Chooser;
use crate::commands::snapshot::CaptureMode;
use crate::commands::watch::{DumpObjects, FlightWatch, WatchSubject, request_dump};
use crate::commands::{Allocators, MatchScope, check_kernel};
use crate::event::Bytes;

/// Write a file when a process runs out of GPU memory: what was live, and why the request failed
///
/// memprobe keeps the live blocks and the newest events of each process in its own memory, at most a minute of them, and
/// takes at most 1 % of the time of each process. At an out-of-memory error, caught or not, it writes a dump at once,
/// then asks the driver, reads the objects of the process while it handles the error (a pause of a fraction of a
/// second), and writes the dump again. `memprobe explain` names the cause; `report` and `export` read the file too.
/// SIGUSR1 writes a dump of each process. The watch ends on Ctrl-C, or when the process or command ends.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe watch --all --dir /var/lib/memprobe
  sudo memprobe watch 1234
  sudo memprobe watch -- torchrun --nproc-per-node 4 train.py
  sudo memprobe watch --all --on-oom ./notify.sh     with the path of the dump as argument
  sudo memprobe watch --dump                         a dump now, of all that the running watch sees
  memprobe explain memprobe-dumps/memprobe-oom-1234-20261125T031500123Z.mprb")]
#[command(mut_arg("buffer_size", |arg| arg.default_value("32MiB")))]
pub struct WatchArgs {
    #[command(flatten)]
    process: ProcessOption,
    /// All processes of this machine, also those that start later
    #[arg(short, long, conflicts_with_all = ["process", "pid", "command"])]
    all: bool,
    /// Directory of the dumps, which is made if it is missing
    #[arg(long, value_name = "DIR", default_value = "memprobe-dumps")]
    dir: PathBuf,
    /// Most bytes of all dumps in DIR. The oldest are removed; the newest one stays
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    max_size: u64,
    /// Time after a dump in which further out-of-memory errors of the process are only counted
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    cooldown: Duration,
    /// Program to run after each dump of an out-of-memory error, as the user who called sudo
    ///
    /// Its argument is the path of the dump. The environment has the path too (MEMPROBE_DUMP), the process
    /// (MEMPROBE_PID), and the cause (MEMPROBE_CAUSE), such as fragmentation. No shell is involved.
    #[arg(long, value_name = "PROGRAM")]
    on_oom: Option<OsString>,
    /// Do not read the objects of the process: no names of tensors, and nothing that tells what keeps them alive
    #[arg(long)]
    no_names: bool,
    /// Do not pause the process to read its objects. What it changes meanwhile may be read torn
    #[arg(long, conflicts_with = "no_names")]
    nonblocking: bool,
    /// Most of a process's time that the probes may take, such as 1%, or off. Above it memprobe records less, and says so
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse_overhead)]
    max_overhead: MaxOverhead,
    #[command(flatten)]
    driver: DriverOption,
    #[command(flatten)]
    buffer: BufferOption,
    #[command(flatten)]
    as_root: AsRootOption,
    /// Ask the `memprobe watch` that runs on this machine for a dump of each process, and exit
    #[arg(long, exclusive = true)]
    dump: bool,
    /// Command to start and watch, with its child processes
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["process", "pid"])]
    command: Vec<OsString>,
}

impl WatchArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.dump {
            return request_dump();
        }
        let subject = if self.all {
            WatchSubject::All
        } else if self.command.is_empty() {
            // Whoever may not probe would find no process either.
            check_kernel()?;
            let chooser = Chooser::new("watch", Allocators::Cuda, MatchScope::of_children(true));
            match self.process.choose(chooser)? {
                Ok(tgid) => WatchSubject::Process(tgid),
                Err(status) => return Ok(status),
            }
        } else {
            WatchSubject::Command(self.command, self.as_root.user())
        };
        FlightWatch {
            subject,
            directory: self.dir,
            max_size: Bytes(self.max_size),
            cooldown: self.cooldown,
            on_oom: self.on_oom,
            objects: match (self.no_names, self.nonblocking) {
                (true, _) => DumpObjects::Unread,
                (false, true) => DumpObjects::Read(CaptureMode::Running),
                (false, false) => DumpObjects::Read(CaptureMode::Paused),
            },
            driver: self.driver.calls(),
            ring_bytes: self.buffer.buffer_size,
            max_overhead: self.max_overhead.share(),
        }
        .run()
    }
}

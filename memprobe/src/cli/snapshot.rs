//! `memprobe snapshot`, and the options of tables of tensors.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::misplaced::process_instead;
use super::options::{
    BufferOption, Choice, CpuOption, DetailOption, DriverOption, FoldOption, Format, FormatOption,
    LimitOption, StdoutStyle, choice, choices, formats, parse_duration,
};
use super::subject::{ProcessOption, pid_of};
use crate::commands::choose::Chooser;
use crate::commands::snapshot::{BlockProbes, CaptureMode, Snapshots, content};
use crate::commands::{Allocators, MatchScope, stdout};
use crate::event::tensors::TensorSnapshot;
use crate::recording::{Reader, open_tensors, read_tensors};
use crate::report::{Colour, RowLimit, TensorFormat, TensorNames, TensorOptions, write_tensors};
use crate::tensors::{GroupBy, Order};

/// Print every tensor of a running process: name, shape, dtype, allocated bytes
///
/// Reading pauses the process for a fraction of a second; the output says how long. memprobe writes nothing into the
/// process. Parameters, buffers, gradients and optimizer state have the name of their module path, others of a variable,
/// attribute or slot; tensors saved for backward, of the operation that saved them. ALLOCATED adds up to
/// torch.cuda.memory_allocated(): if tensors share a storage, one row has its bytes and the others show (->which).
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe snapshot                     choose among the processes with CUDA
  sudo memprobe snapshot 1234
  sudo memprobe snapshot train.py            the one process that runs this script
  sudo memprobe snapshot 1234 --by shape
  sudo memprobe snapshot 1234 --by retainer  who keeps the memory alive
  sudo memprobe snapshot 1234 --by request   requests of vLLM or SGLang in the KV cache
  sudo memprobe snapshot 1234 -o a.json      to keep, and for `memprobe diff a.json b.json`
  memprobe snapshot a.json                   print a snapshot again; needs no root
  sudo memprobe snapshot 1234 --watch 5s     first all tensors, then each change
  sudo memprobe snapshot 1234 --cpu --limit all
  sudo memprobe snapshot 1234 --format json | jq '.tensors[] | select(.kind == \"saved\")'")]
#[command(mut_arg("format", formats(FORMATS)))]
#[command(mut_arg("no_fold", |arg| arg.help("With --by tensor: show identical unnamed tensors one by one")))]
#[command(mut_arg("limit", |arg| arg.help("Rows of each device in text, or `all` [default: 50]")))]
#[command(mut_arg("process", |arg| arg.value_name("PROCESS|FILE").help(
    "PID, or a script or part of a command line that one process with CUDA or PyTorch has; or a snapshot that `memprobe \
     snapshot -o` wrote (`-` for standard input), which needs no root. Without it, memprobe lists these processes to \
     choose from")))]
#[command(mut_arg("detail", |arg| arg.requires("watch").help(
    "With --watch: detail of each block allocated meanwhile, for blocks that no tensor reaches. Cost to the process: \
     `tensors` a trap for each new tensor, `full` also a copy of the stack for each block without a tensor")))]
#[command(mut_arg("no_driver", |arg| arg.requires("watch").help(
    "With --watch: put no probe into libcuda, for processes in which another tool rewrites its functions (UCX)")))]
#[command(mut_arg("buffer_size", |arg| arg.requires("watch").help("With --watch: room for unread events")))]
pub struct SnapshotArgs {
    #[command(flatten)]
    process: ProcessOption,
    /// Output file (`-` for standard output): JSON with all data, or a table if the name ends in .csv or .txt
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the changes at each interval, such as 5s. New blocks have their line
    #[arg(short, long, value_name = "TIME", value_parser = parse_interval, conflicts_with = "output")]
    watch: Option<Duration>,
    /// Do not pause the process. What it changes meanwhile may be read torn; the output says so
    #[arg(long)]
    nonblocking: bool,
    #[command(flatten)]
    cpu: CpuOption,
    #[command(flatten)]
    rows: TensorRows,
    #[command(flatten)]
    detail: DetailOption,
    #[command(flatten)]
    driver: DriverOption,
    #[command(flatten)]
    buffer: BufferOption,
}

impl SnapshotArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut options = self.rows.options()?;
        if options.by == GroupBy::Request && self.watch.is_some() {
            bail!("--watch compares tensors: leave out --by request");
        }
        if let Some(file) = self.file() {
            self.check_file(file)?;
            return print(file, &options);
        }
        let chooser = Chooser::new("snapshot", self.cpu.allocators(), MatchScope::Process);
        let tgid = match self.process.choose(chooser)? {
            Ok(tgid) => tgid,
            Err(status) => return Ok(status),
        };
        let is_file = |path: &&Path| path.as_os_str() != "-";
        if let Some(output) = self.output.as_deref().filter(is_file) {
            options.colour = Colour::Plain;
            if self.rows.format.format.is_none() {
                options.format = format_of(output);
            }
        }
        let snapshots = Snapshots {
            tgid,
            manner: if self.nonblocking {
                CaptureMode::Running
            } else {
                CaptureMode::Paused
            },
            extent: self.cpu.allocators(),
            options,
        };
        let probes = BlockProbes {
            detail: self.detail.detail,
            driver: self.driver.calls(),
            ring_bytes: self.buffer.buffer_size,
        };
        match self.watch {
            Some(interval) => snapshots.watch(interval, probes),
            None => snapshots.once(self.output.as_deref()),
        }
    }
}

impl SnapshotArgs {
    /// Returns the snapshot to print, if the argument is one: a name in JSON, a path, or a file that holds a snapshot.
    /// A number is a process; `./1234` is a file.
    fn file(&self) -> Option<&Path> {
        let text = self.process.process.as_deref()?;
        let path = Path::new(text);
        let is_named = [".json", ".mprb"]
            .iter()
            .any(|ending| text.ends_with(ending));
        let is_path = text == "-" || text.contains('/') || is_named;
        let is_file = || is_path || path.is_file() && open_tensors(path).is_ok();
        (pid_of(text.as_ref()).is_none() && is_file()).then_some(path)
    }

    /// Refuses options that read a process.
    fn check_file(&self, file: &Path) -> Result<()> {
        let reads = [
            ("--output", self.output.is_some()),
            ("--watch", self.watch.is_some()),
            ("--nonblocking", self.nonblocking),
            ("--cpu", self.cpu.allocators() == Allocators::CudaAndCpu),
        ];
        match reads.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => bail!(
                "{flag} reads a process, and {} is a file: leave it out, or give the PID of a process",
                file.display()
            ),
            None => Ok(()),
        }
    }
}

fn print(file: &Path, options: &TensorOptions) -> Result<ExitCode> {
    let snapshot = Arc::new(read(file)?);
    let mut out = stdout::open(content(options.format));
    write_tensors(&snapshot, options, &mut out)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn read(file: &Path) -> Result<TensorSnapshot> {
    let name = file.display();
    if file.as_os_str() == "-" {
        return read_tensors(std::io::stdin().lock()).context(name.to_string());
    }
    match open_tensors(file) {
        Err(_) if Reader::open(file).is_ok() => {
            bail!("{name}: this is a recording: print it with `memprobe report {name}`")
        }
        Err(error) => match process_instead(file) {
            Some(_) => bail!(
                "{name}: there is no such file. If it is a process, take two snapshots of it first: `memprobe snapshot \
                 {name} -o a.json`"
            ),
            None => Err(error).context(name.to_string()),
        },
        snapshot => snapshot.context(name.to_string()),
    }
}

/// Returns the format for an output file, by the ending of its name.
fn format_of(path: &Path) -> TensorFormat {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => TensorFormat::Csv,
        Some("txt") => TensorFormat::Text,
        _ => TensorFormat::Json,
    }
}

/// Parses an interval. Each snapshot pauses the process: no more than ten a second.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval < Duration::from_millis(100) {
        return Err("each snapshot pauses the process: give 100ms or more".to_owned());
    }
    Ok(interval)
}

/// Columns of a table that does not go to a terminal.
pub(super) const PIPED_WIDTH: usize = 140;

pub(super) const FORMATS: &[Format] = &[Format::Text, Format::Json, Format::Csv];

#[derive(Args)]
pub(super) struct TensorRows {
    /// Meaning of a row
    #[arg(short, long, default_value = "tensor", value_parser = choice(ROWS))]
    pub(super) by: GroupBy,
    #[command(flatten)]
    pub(super) format: FormatOption,
    /// Order of rows
    #[arg(short, long, default_value = "allocated", value_parser = choice(ORDERS))]
    pub(super) sort: Order,
    #[command(flatten)]
    pub(super) limit: LimitOption,
    #[command(flatten)]
    pub(super) fold: FoldOption,
    /// Show all names of each tensor, and the rules that inferred them
    #[arg(long)]
    pub(super) all_names: bool,
}

const ROWS: &[Choice<GroupBy>] = choices! {
    "tensor" => GroupBy::Unnamed, "A tensor; identical unnamed tensors are one row";
    "shape" => GroupBy::Shape, "Tensors of equal kind, shape and dtype, whatever their names: `3 * (256, 256, 3, 3)`";
    "kind" => GroupBy::Kind, "A kind: parameters, gradients, optimizer state";
    "module" => GroupBy::Module, "A module";
    "line" => GroupBy::Site, "The line that allocated it, if memprobe watched the allocation";
    "retainer" => GroupBy::Retainer, "The variable or container that keeps the memory alive, also through graphs of \
        tensors";
    "request" => GroupBy::Request, "A request of a server: the KV cache by request, shared, cached and free (vLLM, \
        SGLang)";
};

pub(super) const ORDERS: &[Choice<Order>] = choices! {
    "allocated" => Order::Holds, "Most bytes of the allocator first";
    "size" => Order::Size, "Most bytes of elements first, shared or not";
    "name" => Order::Name, "By name";
    "kind" => Order::Kind, "By kind";
    "count" => Order::Count, "Most tensors first";
};

impl TensorRows {
    pub(super) fn options(&self) -> Result<TensorOptions> {
        if self.fold.no_fold && self.by != GroupBy::Unnamed {
            bail!("--no-fold shows every tensor: leave out --by, or give --by tensor");
        }
        let style = StdoutStyle::detect();
        Ok(TensorOptions {
            format: match self.format.or_text() {
                Format::Json => TensorFormat::Json,
                Format::Csv => TensorFormat::Csv,
                Format::Text | Format::Jsonl => TensorFormat::Text,
            },
            by: if self.fold.no_fold {
                GroupBy::Nothing
            } else {
                self.by
            },
            order: self.sort,
            top: self.limit.limit.unwrap_or(RowLimit::Rows(50)),
            names: if self.all_names {
                TensorNames::All
            } else {
                TensorNames::Best
            },
            width: style.columns.unwrap_or(PIPED_WIDTH),
            colour: style.colour,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_file_says_how_it_is_written() {
        assert_eq!(format_of(Path::new("a.json")), TensorFormat::Json);
        assert_eq!(format_of(Path::new("a")), TensorFormat::Json);
        assert_eq!(format_of(Path::new("a.csv")), TensorFormat::Csv);
        assert_eq!(format_of(Path::new("a.txt")), TensorFormat::Text);
    }

    #[test]
    fn a_process_is_not_paused_all_the_time() {
        assert!(parse_interval("5s").is_ok());
        assert!(parse_interval("0").is_err());
        assert!(parse_interval("10ms").is_err());
    }
}

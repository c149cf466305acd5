//! `memprobe estimate`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::{
    AsRootOption, BufferOption, DriverOption, Format, FormatOption, LimitOption, NamesOption,
    StdoutStyle, formats, is_default, parse_size,
};
use crate::commands::Naming;
use crate::commands::estimate::{EstimateSource, Estimation};
use crate::estimate::OnHost;
use crate::event::Bytes;
use crate::report::{Colour, DocumentFormat, EstimateOptions, RowLimit};

/// Columns of an estimate that does not go to a terminal.
const PIPED_WIDTH: usize = 110;

/// Run a script on the CPU and print the GPU memory that it would need
///
/// memprobe applies the rules of the GPU allocator (rounding, pools, segments) to each block of PyTorch's CPU allocator.
/// Each difference between the two runs is a row with its bytes: buffers of CPU kernels are left out, temporary tensors
/// of multi-tensor optimizers are added. A second table has the intermediate variables of each module in one iteration,
/// without and with backward, and its parameters. One or two training steps are enough. The script must run on the CPU:
/// make its device a parameter. Under sudo it runs as the user who called sudo. memprobe exits with the status of the
/// command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe estimate -- python train.py --device cpu --steps 2
  sudo memprobe estimate --device-memory 24GiB -- python train.py --device cpu
  sudo memprobe estimate --on-host data.py:12 -- python train.py    that line stays on the host
  sudo memprobe estimate -o need.json -- python train.py
  sudo memprobe record -o cpu.mprb --cpu --names -- python train.py
  memprobe estimate cpu.mprb               the same from a recording, with parameters by --names")]
#[command(group = clap::ArgGroup::new("subject").required(true).args(["file", "command"]))]
#[command(mut_arg("format", formats(&[Format::Text, Format::Json])))]
#[command(mut_arg("limit", |arg| arg.help("Lines of Python in text, or `all` [default: 20]")))]
#[command(mut_arg("names", |arg| is_default(arg).requires("command")))]
#[command(mut_arg("no_names", |arg| arg.requires("command")))]
#[command(mut_arg("no_driver", |arg| arg.requires("command").help(
    "Put no probe into libcuda, for commands in which another tool rewrites its functions (UCX)")))]
pub struct EstimateArgs {
    /// A recording of `memprobe record --cpu`; needs no root
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Memory of the device, such as 24GiB: adds whether the run fits
    #[arg(short = 'm', long, value_name = "SIZE", value_parser = parse_memory)]
    device_memory: Option<Bytes>,
    /// Line whose tensors stay on the host in a run on a GPU, such as a data set's: `data.py:12`. Repeatable
    #[arg(long, value_name = "FILE:LINE", value_parser = parse_line)]
    on_host: Vec<OnHost>,
    #[command(flatten)]
    names: NamesOption,
    #[command(flatten)]
    format: FormatOption,
    /// Output file, apart from what the command prints: JSON if the name ends in .json, else text
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    limit: LimitOption,
    #[command(flatten)]
    as_root: AsRootOption,
    #[command(flatten)]
    driver: DriverOption,
    #[command(flatten)]
    buffer: BufferOption,
    /// Command to run on the CPU
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl EstimateArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let options = self.options();
        Estimation {
            subject: match self.file {
                Some(file) => EstimateSource::Recording(file),
                None => EstimateSource::Command(self.command, self.as_root.user()),
            },
            on_host: self.on_host,
            naming: self.names.naming_or(Naming::NowAndThen),
            options,
            output: self.output,
            driver: self.driver.calls(),
            ring_bytes: self.buffer.buffer_size,
        }
        .run()
    }

    fn options(&self) -> EstimateOptions {
        let is_json = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "json");
        let by_name = || {
            if self.output.as_ref().is_some_and(is_json) {
                Format::Json
            } else {
                Format::Text
            }
        };
        let style = StdoutStyle::detect();
        let (width, colour) = match self.output {
            None => (style.columns, style.colour),
            Some(_) => (None, Colour::Plain),
        };
        EstimateOptions {
            format: match self.format.format.unwrap_or_else(by_name) {
                Format::Json => DocumentFormat::Json,
                _ => DocumentFormat::Text,
            },
            top: self.limit.limit.unwrap_or(RowLimit::Rows(20)),
            device_memory: self.device_memory,
            width: width.unwrap_or(PIPED_WIDTH),
            colour,
        }
    }
}

/// Parses the memory of a device: `24GiB`, `80G`, or a plain number of bytes.
fn parse_memory(text: &str) -> Result<Bytes, String> {
    match parse_size(text)? {
        0 => Err("0 B is no memory: give that of the device, such as 24GiB".to_owned()),
        bytes => Ok(Bytes(bytes)),
    }
}

/// Parses a line of Python: `data.py:12`.
fn parse_line(text: &str) -> Result<OnHost, String> {
    let wrong = || "give a file and a line as the table prints them, such as data.py:12".to_owned();
    let (file, line) = text.rsplit_once(':').ok_or_else(wrong)?;
    let line = line.parse().map_err(|_| wrong())?;
    let file = file.to_owned();
    match file.is_empty() {
        true => Err(wrong()),
        false => Ok(OnHost { file, line }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_as_the_table_has_it() {
        let line = parse_line("loaders/data.py:12").expect("a line");
        assert_eq!((line.file.as_str(), line.line), ("loaders/data.py", 12));
        assert!(parse_line("data.py").is_err());
        assert!(parse_line(":12").is_err());
        assert!(parse_line("data.py:x").is_err());
    }

    #[test]
    fn the_memory_of_a_device_is_written_as_people_write_it() {
        assert_eq!(parse_memory("24GiB"), Ok(Bytes(24 << 30)));
        assert!(parse_memory("0").is_err());
        assert!(parse_memory("much").is_err());
    }
}

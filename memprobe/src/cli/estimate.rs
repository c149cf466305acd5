//! `memprobe estimate`.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::parse_buffer_size;
use crate::event::Bytes;
use crate::model::estimate::OnHost;
use crate::pipeline::estimate::{Estimation, Naming, Subject};
use crate::report::{Colour, EstimateFormat, EstimateOptions, Top};

/// Columns of an estimate that does not go to a terminal.
const PIPED_WIDTH: usize = 110;

/// Run a script on the CPU and print what it would need on a GPU, and how that comes about
///
/// Every block that PyTorch's CPU allocator hands out is handed to the rules of its GPU allocator: rounding, pools,
/// segments. What a GPU has no need of (copies of the CPU's kernels) is left out, what only a GPU does (steps of an
/// optimizer that take all parameters at once) is put in, and each such difference is a row with its bytes. What each
/// module makes in an iteration, without and with backward, is a table of its own, with its parameters, for which the objects of
/// the script are read while it is paused. A step or two of training are enough. The script must run on the CPU: make the device a parameter of it. The
/// command's exit status is passed on.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe estimate -- python train.py --device cpu --steps 2
  sudo memprobe estimate --device-memory 24GiB -- python train.py --device cpu
  sudo memprobe estimate --on-host data.py:12 -- python train.py    that line stays on the host
  sudo memprobe estimate --format json -o need.json -- python train.py
  sudo memprobe record -o cpu.json --cpu --names -- python train.py
  memprobe estimate cpu.json               the same from a recording, with what --names tells")]
#[command(group = clap::ArgGroup::new("subject").required(true).args(["file", "command"]))]
pub struct Estimate {
    /// A recording that `memprobe record --cpu` wrote; needs no root
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Say whether the run fits into a device with this much memory for it, such as 24GiB
    #[arg(short = 'm', long, value_name = "SIZE", value_parser = parse_memory)]
    device_memory: Option<Bytes>,
    /// Tensors of this line stay with the host in a run on a GPU, such as a data set's: `data.py:12`. Can be given
    /// again
    #[arg(long, value_name = "FILE:LINE", value_parser = parse_line)]
    on_host: Vec<OnHost>,
    /// Do not read the objects of the command, which tell the parameters of each module; it is paused for that, two or three
    /// times for a fraction of a second
    #[arg(long, requires = "command")]
    no_names: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Writing::Text)]
    format: Writing,
    /// Write the estimate to this file, apart from what the command prints
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show this many lines of Python
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 20,
        conflicts_with = "all"
    )]
    top: usize,
    /// Show all lines
    #[arg(short, long)]
    all: bool,
    /// Room for events that were not read yet; more where events are lost
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_buffer_size)]
    buffer_size: u32,
    /// The command to run on the CPU
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Writing {
    /// For people
    Text,
    /// One JSON document
    Json,
}

impl Estimate {
    pub(super) fn run(self) -> Result<ExitCode> {
        let options = self.options();
        Estimation {
            subject: match self.file {
                Some(file) => Subject::Recording(file),
                None => Subject::Command(self.command),
            },
            on_host: self.on_host,
            naming: match self.no_names {
                true => Naming::Off,
                false => Naming::NowAndThen,
            },
            options,
            output: self.output,
            ring_bytes: self.buffer_size,
        }
        .run()
    }

    fn options(&self) -> EstimateOptions {
        let terminal = self.output.is_none() && std::io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        EstimateOptions {
            format: match self.format {
                Writing::Text => EstimateFormat::Text,
                Writing::Json => EstimateFormat::Json,
            },
            top: match self.all {
                true => Top::All,
                false => Top::Rows(self.top),
            },
            device_memory: self.device_memory,
            width: if terminal && columns > 0 {
                columns
            } else {
                PIPED_WIDTH
            },
            colour: match terminal && wanted {
                true => Colour::Ansi,
                false => Colour::Plain,
            },
        }
    }
}

/// Parses the memory of a device: `24GiB`, `80G`, or a plain number of bytes.
fn parse_memory(text: &str) -> Result<Bytes, String> {
    match text.parse::<bytesize::ByteSize>()?.as_u64() {
        0 => Err("a device has more than that".to_owned()),
        bytes => Ok(Bytes(bytes)),
    }
}

/// Parses a line of Python: `data.py:12`.
fn parse_line(text: &str) -> Result<OnHost, String> {
    let wrong = || "write it like data.py:12, as the table has it".to_owned();
    let (file, line) = text.rsplit_once(':').ok_or_else(wrong)?;
    let line = line.parse().map_err(|_| wrong())?;
    if file.is_empty() {
        return Err(wrong());
    }
    Ok(OnHost {
        file: file.to_owned(),
        line,
    })
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

//! `memprobe top`.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::{Detail, Driver, graph, parse_buffer_size, parse_duration};
use crate::event::CaptureOptions;
use crate::pipeline::host::Scope;
use crate::pipeline::top::{Keep, Once, Top as Screen};
use crate::report::{Colour, HostExtent, HostFormat, HostOptions};

/// Watch every process on this machine that holds CUDA memory
///
/// One row a process: what its allocator has handed out and reserved, what the driver counts, and
/// the line of Python that holds most. Enter opens a process line by line, Esc leads back. Where
/// standard output is no terminal, the table is printed once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe top
  sudo memprobe top --once
  sudo memprobe top --once --format json | jq '.processes[] | [.pid, .allocated]'")]
pub struct Top {
    /// Print the table once and leave
    #[arg(short = '1', long)]
    once: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Writing::Text)]
    format: Writing,
    /// Time to watch before the table is printed. The driver knows older memory at once, each allocator
    /// reports it with its next allocation
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    duration: Duration,
    /// Print processes that hold nothing too, such as workers that load data
    #[arg(short, long)]
    all: bool,
    /// Time that an ended process stays on the screen
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    keep_ended: Duration,
    /// Detail of each block, for the screens of categories (`c`) and tensors (`t`) of an opened process. Cost to every
    /// process: `tensors` a trap for each new tensor, `full` also a copy of the stack for each block without a tensor
    #[arg(long, value_enum, default_value_t = Detail::Lines, conflicts_with = "once")]
    detail: Detail,
    /// Lead the memory of backward passes back to the lines of the forward pass; costs each process two traps for each
    /// operation of autograd. The table that is printed once does not need it
    #[arg(long, conflicts_with = "once")]
    graph: bool,
    #[command(flatten)]
    driver: Driver,
    /// Room for events that were not read yet; more where events are lost
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_buffer_size)]
    buffer_size: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Writing {
    /// For people
    Text,
    /// One JSON document
    Json,
}

impl Top {
    pub(super) fn run(self) -> Result<ExitCode> {
        let terminal = std::io::stdout().is_terminal();
        if !self.once && terminal && self.format == Writing::Text {
            return Screen {
                scope: Scope::Host,
                capture: CaptureOptions {
                    detail: self.detail.into(),
                    graph: graph(!self.graph),
                },
                driver: self.driver.calls(),
                ring_bytes: self.buffer_size,
                keep_ended: Keep::For(self.keep_ended),
            }
            .run();
        }
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Once {
            scope: Scope::Host,
            driver: self.driver.calls(),
            ring_bytes: self.buffer_size,
            listen: self.duration,
            options: HostOptions {
                format: match self.format {
                    Writing::Text => HostFormat::Text,
                    Writing::Json => HostFormat::Json,
                },
                extent: if self.all {
                    HostExtent::All
                } else {
                    HostExtent::Holders
                },
                width: (columns > 0).then_some(columns),
                colour: if terminal && wanted {
                    Colour::Ansi
                } else {
                    Colour::Plain
                },
            },
        }
        .run()
    }
}

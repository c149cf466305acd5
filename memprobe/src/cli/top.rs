//! `memprobe top`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::options::{
    BaselineOption, DetailOption, Format, FormatOption, ProbeOptions, StdoutStyle, ThemeOption,
    formats, is_default, parse_duration,
};
use crate::commands::GraphTracking;
use crate::commands::host::{HostProbes, Scope};
use crate::commands::stdout;
use crate::commands::top::{Once, Top as LiveScreen};
use crate::event::CaptureOptions;
use crate::report::{DocumentFormat, HostExtent, HostOptions};

/// Time to watch before the table is printed once.
const DURATION: Duration = Duration::from_secs(2);

/// Watch every process on this machine with CUDA memory
///
/// One row a process: allocated and reserved bytes of its allocator, bytes that the driver counts, and its top line of
/// Python. Enter opens a process line by line, Esc leads back. If standard output is no terminal, the table is printed
/// once. --detail and --graph are for the screens of an opened process; every process pays for them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe top
  sudo memprobe top --once
  sudo memprobe top --max-overhead off
  sudo memprobe top --once --format json | jq '.processes[] | [.pid, .allocated]'")]
#[command(mut_arg("format", formats(&[Format::Text, Format::Json])))]
#[command(mut_arg("detail", |arg| arg.conflicts_with("once")))]
#[command(mut_arg("graph", |arg| arg.conflicts_with("once")))]
#[command(mut_arg("pause", |arg| arg.conflicts_with("once")))]
#[command(mut_arg("no_names", |arg| arg.conflicts_with("once")))]
#[command(mut_arg("theme", |arg| arg.conflicts_with("once")))]
#[command(mut_arg("no_graph", is_default))]
#[command(mut_arg("buffer_size", |arg| arg.default_value("32MiB")))]
#[command(mut_arg("max_overhead", |arg| arg.default_value("1%")))]
pub struct TopArgs {
    /// Print the table once and exit
    #[arg(short = '1', long)]
    once: bool,
    #[command(flatten)]
    format: FormatOption,
    /// Time to watch before the table is printed once [default: 2s]
    ///
    /// The driver knows older memory at once; each allocator reports its totals with its next allocation.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Print also processes without memory, such as workers that load data
    #[arg(short, long)]
    all: bool,
    /// Time that an ended process stays on the screen
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, conflicts_with = "once")]
    keep_ended: Duration,
    #[command(flatten)]
    detail: DetailOption,
    #[command(flatten)]
    baseline: BaselineOption,
    #[command(flatten)]
    probes: ProbeOptions,
    #[command(flatten)]
    theme: ThemeOption,
}

impl TopArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let format = self.format.or_text();
        let probes = HostProbes {
            // Without a screen the defaults: nobody can open a process.
            capture: CaptureOptions {
                detail: self.detail.detail,
                graph: self.probes.graph_or(GraphTracking::Off),
            },
            driver: self.probes.driver(),
            ring_bytes: self.probes.ring_bytes(),
            max_overhead: self.probes.max_overhead(),
            reading: self.baseline.reading(),
        };
        if !self.once && stdout::is_terminal() && format == Format::Text {
            if self.all || self.duration.is_some() {
                bail!(
                    "--all and --duration are for the table that is printed once: give --once too"
                );
            }
            return LiveScreen {
                scope: Scope::Host,
                probes,
                keep_ended: Some(self.keep_ended),
                theme: self.theme.theme,
                summary: StdoutStyle::detect().host_options(),
            }
            .run();
        }
        let style = StdoutStyle::detect();
        Once {
            scope: Scope::Host,
            probes,
            listen: self.duration.unwrap_or(DURATION),
            options: HostOptions {
                format: match format {
                    Format::Json => DocumentFormat::Json,
                    _ => DocumentFormat::Text,
                },
                extent: if self.all {
                    HostExtent::All
                } else {
                    HostExtent::Holders
                },
                ..style.host_options()
            },
        }
        .run()
    }
}

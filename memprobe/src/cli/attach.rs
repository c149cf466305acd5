//! `memprobe attach`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::{
    CpuOption, DetailOption, ProbeOptions, StdoutStyle, ThemeOption, is_default, parse_pid,
};
use crate::commands::attach::LiveView;
use crate::commands::host::Scope;
use crate::commands::top::Top;
use crate::commands::{GraphTracking, Wanted, Watch};
use crate::event::Tgid;

/// Watch the memory of a running process, line by line
///
/// The process is not changed or restarted. Only `t` pauses it, to read its tensors, and shows for how long. If the
/// process has not imported PyTorch yet, memprobe waits. Press ? for the keys.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe attach --pid 1234
  sudo memprobe attach --pid $(pgrep -f train.py)
  sudo memprobe attach --detail full --pid 1234
  sudo memprobe attach --children --pid $(pgrep -of torchrun)
  sudo memprobe attach --theme light --pid 1234")]
#[command(mut_arg("graph", is_default))]
pub struct Attach {
    /// Process to watch
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pid: u32,
    /// Also its child processes, running and future: one row each, Enter opens one
    #[arg(short, long, conflicts_with = "cpu")]
    children: bool,
    #[command(flatten)]
    cpu: CpuOption,
    #[command(flatten)]
    detail: DetailOption,
    #[command(flatten)]
    probes: ProbeOptions,
    #[command(flatten)]
    theme: ThemeOption,
}

impl Attach {
    pub(super) fn run(self) -> Result<ExitCode> {
        let (tgid, ring_bytes) = (Tgid(self.pid), self.probes.ring_bytes());
        let style = StdoutStyle::detect();
        let wanted = Wanted {
            watch: Watch::One,
            detail: self.detail.detail,
            allocators: self.cpu.allocators(),
            graph: self.probes.graph_or(GraphTracking::On),
            driver: self.probes.driver(),
        };
        if self.children {
            return Top {
                scope: Scope::Family(tgid),
                capture: wanted.capture(),
                driver: wanted.driver,
                ring_bytes,
                keep_ended: None,
                theme: self.theme.theme,
                summary: style.host_options(),
            }
            .run();
        }
        LiveView {
            tgid,
            wanted,
            ring_bytes,
            theme: self.theme.theme,
            summary: style.report_options(),
        }
        .run()
    }
}

//! `memprobe attach`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::{
    BaselineOption, CpuOption, DetailOption, ProbeOptions, StdoutStyle, ThemeOption, is_default,
    without_cpu,
};
use super::subject::ProcessOption;
use crate::commands::attach::LiveView;
use crate::commands::choose::Chooser;
use crate::commands::host::{HostProbes, Scope};
use crate::commands::top::Top;
use crate::commands::{GraphTracking, MatchScope, Wanted, Watch, check_kernel};

/// Watch the memory of a running process, line by line
///
/// The process is not changed or restarted. memprobe reads its objects once, while it runs, to name memory from before
/// attach. Only `t` pauses it, to read its tensors, and shows for how long. If the process has not imported PyTorch
/// yet, memprobe waits. Press ? for the keys.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe attach                       choose among the processes with CUDA
  sudo memprobe attach 1234
  sudo memprobe attach train.py              the one process that runs this script
  sudo memprobe attach --detail full 1234
  sudo memprobe attach --children torchrun   a launcher and its ranks
  sudo memprobe attach --max-overhead 1% 1234
  sudo memprobe attach --theme light 1234
  NO_COLOR=1 sudo -E memprobe attach 1234")]
#[command(mut_arg("graph", is_default))]
#[command(mut_arg("max_overhead", without_cpu))]
pub struct Attach {
    #[command(flatten)]
    process: ProcessOption,
    /// Also its child processes, running and future: one row each, Enter opens one
    #[arg(short, long, conflicts_with = "cpu")]
    children: bool,
    #[command(flatten)]
    cpu: CpuOption,
    #[command(flatten)]
    detail: DetailOption,
    #[command(flatten)]
    baseline: BaselineOption,
    #[command(flatten)]
    probes: ProbeOptions,
    #[command(flatten)]
    theme: ThemeOption,
}

impl Attach {
    pub(super) fn run(self) -> Result<ExitCode> {
        // Whoever may not probe would find no process either.
        check_kernel()?;
        let scope = MatchScope::of_children(self.children);
        let chooser = Chooser {
            theme: self.theme.theme,
            ..Chooser::new("attach", self.cpu.allocators(), scope)
        };
        let tgid = match self.process.choose(chooser)? {
            Ok(tgid) => tgid,
            Err(status) => return Ok(status),
        };
        let ring_bytes = self.probes.ring_bytes();
        let max_overhead = self.probes.max_overhead();
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
                probes: HostProbes {
                    capture: wanted.capture(),
                    driver: wanted.driver,
                    ring_bytes,
                    max_overhead,
                    reading: self.baseline.reading(),
                },
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
            max_overhead,
            reading: self.baseline.reading(),
            theme: self.theme.theme,
            summary: style.report_options(),
        }
        .run()
    }
}

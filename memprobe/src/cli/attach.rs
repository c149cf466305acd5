//! `memprobe attach`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Detail, Driver, allocators, graph, parse_buffer_size};
use crate::event::{CaptureOptions, Tgid};
use crate::pipeline::host::Scope;
use crate::pipeline::live::Live;
use crate::pipeline::top::{Keep, Top};

/// Watch the memory of a running process, line by line
///
/// The process is not changed or restarted. Only `t` pauses it, to read its tensors, for a fraction of a
/// second that is shown. If it has not imported PyTorch yet, memprobe waits. Press ? for the keys.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe attach --pid 1234
  sudo memprobe attach --pid $(pgrep -f train.py)
  sudo memprobe attach --detail full --pid 1234
  sudo memprobe attach --children --pid $(pgrep -of torchrun)
  NO_COLOR=1 sudo -E memprobe attach --pid 1234")]
pub struct Attach {
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: u32,
    /// Watch the processes that it has made and will make too: one row each, Enter opens one
    #[arg(short, long)]
    children: bool,
    /// Watch the memory of CPU tensors too, as a device of its own; then any PyTorch will do, also
    /// without CUDA
    #[arg(long, conflicts_with = "children")]
    cpu: bool,
    /// Detail of each block, for the screens of categories (`c`) and tensors (`t`). Cost to the process: `tensors` a
    /// trap for each new tensor, `full` also a copy of the stack for each block without a tensor
    #[arg(long, value_enum, default_value_t = Detail::Lines)]
    detail: Detail,
    /// Do not lead the memory of backward passes back to the lines of the forward pass; saves the process two traps for each
    /// operation of autograd
    #[arg(long)]
    no_graph: bool,
    #[command(flatten)]
    driver: Driver,
    /// Room for events that were not read yet; more where events are lost
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_buffer_size)]
    buffer_size: u32,
}

impl Attach {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.children {
            return Top {
                scope: Scope::Family(Tgid(self.pid)),
                capture: CaptureOptions {
                    detail: self.detail.into(),
                    graph: graph(self.no_graph),
                },
                driver: self.driver.calls(),
                ring_bytes: self.buffer_size,
                keep_ended: Keep::Always,
            }
            .run();
        }
        Live {
            tgid: Tgid(self.pid),
            detail: self.detail.into(),
            allocators: allocators(self.cpu),
            graph: graph(self.no_graph),
            driver: self.driver.calls(),
            ring_bytes: self.buffer_size,
        }
        .run()
    }
}

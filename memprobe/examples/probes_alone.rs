//! Attaches memprobe's probes without the rest of memprobe, to measure the cost on the kernel's side.
//!
//! `probes_alone PID filtered` attaches them with a filter that rejects every process: the minimum cost of a
//! uprobe at these places; `filtered-perf-events` does so by the links of older kernels. `probes_alone PID
//! discarded` runs them in full and discards their records. All print `ready` and run until standard input ends.
//!
//! `probes_alone PID timed` works like `discarded`, and lets the kernel time the programs. For every line on
//! standard input it prints the totals so far of the allocator's program as `RUNS NANOSECONDS`.
//!
//! The probes are those of `--detail lines`, or of `--detail tensors` with a third argument `tensors`.

use std::io::BufRead as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use aya::maps::{MapData, RingBuf};
use aya::sys::{Stats, enable_stats};
use memprobe::event::{Tgid, TimeNs};
use memprobe::probe::attach::Located;
use memprobe::probe::attaching::{AttachStep, Attaching, Placement};
use memprobe::probe::catalog::{Allocators, Detail, DriverCalls, GraphTracking, PROBES};
use memprobe::probe::files::ProbedFiles;
use memprobe::probe::kernel::{self, TaskOffsets};
use memprobe::probe::loader::{ALLOCATOR_ENTRY, Link, Loader, Reach, UprobeLinks, Wanted, Watch};
use memprobe::process::maps::Maps;

/// memprobe's default size.
const RING_BYTES: u32 = 8 << 20;

/// memprobe's polling interval of the ring buffer.
const POLL: Duration = Duration::from_millis(5);

/// Name of the eBPF program behind the allocator's reports.
const ALLOCATOR: &str = ALLOCATOR_ENTRY;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (pid, mode, detail) = match arguments.as_slice() {
        [pid, mode] => (pid, mode, Detail::Lines),
        [pid, mode, detail] if detail == "tensors" => (pid, mode, Detail::Tensors),
        _ => {
            bail!("usage: probes_alone PID filtered|filtered-perf-events|discarded|timed [tensors]")
        }
    };
    let tgid = Tgid(pid.parse().with_context(|| format!("{pid:?} is no PID"))?);
    kernel::preflight()?;
    let links = match mode.as_str() {
        "filtered-perf-events" => UprobeLinks::PerfEvents,
        _ => UprobeLinks::Best,
    };
    let offsets = TaskOffsets::of_this_kernel()?;
    let mut loader = Loader::with_links(&offsets, Watch::One, RING_BYTES, links)?;
    match mode.as_str() {
        "filtered" | "filtered-perf-events" => {
            let _links = attach_unwatched(&mut loader, tgid, detail)?;
            wait_for_end(|| Ok(()))
        }
        "discarded" => {
            let _discarding = Discarding::start(loader.take_records()?);
            let _files = attach(&mut loader, tgid, detail)?;
            wait_for_end(|| Ok(()))
        }
        "timed" => {
            // The kernel keeps statistics until this descriptor is closed.
            let _counting =
                enable_stats(Stats::RunTime).context("asking the kernel to time programs")?;
            let _discarding = Discarding::start(loader.take_records()?);
            let _files = attach(&mut loader, tgid, detail)?;
            wait_for_end(|| {
                let time = loader.run_time(ALLOCATOR)?;
                println!("{} {}", time.runs, time.total.as_nanos());
                Ok(())
            })
        }
        other => {
            bail!("unknown mode {other:?}: filtered, filtered-perf-events, discarded or timed")
        }
    }
}

/// Attaches every probe on PyTorch as memprobe would, but admits no process. CUDA's probes are left out:
/// many share one link (uprobe_multi, from Linux 6.6 on), and they are seldom hit.
fn attach_unwatched(loader: &mut Loader, tgid: Tgid, detail: Detail) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    let maps = Maps::of(tgid)?;
    let wanted = wanted(detail);
    for probe in PROBES
        .iter()
        .filter(|probe| !probe.is_cuda() && probe.is_wanted(wanted))
    {
        let located = maps
            .library(probe.library)
            .map(|library| Located::find_in(probe, tgid, &library))
            .with_context(|| format!("{} is not mapped", probe.library))??;
        links.push(located.attach(loader, Reach::Process(tgid))?);
    }
    Ok(links)
}

/// Capture of one process as `memprobe record` requests it.
fn wanted(detail: Detail) -> Wanted {
    Wanted {
        watch: Watch::One,
        detail,
        allocators: Allocators::Cuda,
        graph: GraphTracking::On,
        driver: DriverCalls::Probed,
    }
}

/// Attaches the probes as memprobe does.
fn attach(loader: &mut Loader, tgid: Tgid, detail: Detail) -> Result<ProbedFiles> {
    let mut files = ProbedFiles::default();
    let mut attaching = Attaching::new(tgid, wanted(detail), Placement::Running);
    loader.admit(tgid, attaching.config(TimeNs(0)))?;
    loop {
        match attaching.step(loader, &mut files, TimeNs(0))? {
            AttachStep::Done => return Ok(files),
            AttachStep::Again => {}
            AttachStep::Waiting(what) => bail!("{what}: start it first"),
        }
    }
}

/// Prints `ready`, answers every line of standard input, and returns at its end.
fn wait_for_end(mut answer: impl FnMut() -> Result<()>) -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        line?;
        answer()?;
    }
    Ok(())
}

/// Thread that drains the ring buffer.
struct Discarding {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Discarding {
    fn start(mut records: RingBuf<MapData>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                while records.next().is_some() {}
                thread::sleep(POLL);
            }
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic: it only reads and sleeps.
            let _ = thread.join();
        }
    }
}

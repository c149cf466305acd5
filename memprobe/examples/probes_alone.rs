//! memprobe's probes in a process, without the rest of memprobe: what the kernel's side costs.
//!
//! `probes_alone PID filtered` attaches them with a filter that lets nothing through, which is the
//! floor of what any uprobe at these places costs. `probes_alone PID discarded` runs them in full
//! and throws away what they send. Both print `ready` and stay until standard input ends.
//! `probes_alone PID timed` does as `discarded` does and has the kernel time the programs: for
//! every line on standard input it prints `RUNS NANOSECONDS` of the allocator's program so far. The probes are those of
//! `--detail lines`, or with a third word `tensors` those of that.

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
use memprobe::probe::attaching::{Attaching, Step};
use memprobe::probe::catalog::{Allocators, Detail, Graph, PROBES};
use memprobe::probe::files::ProbedFiles;
use memprobe::probe::kernel::{self, TaskOffsets};
use memprobe::probe::loader::{Link, Loader, Reach, Wanted, Watch};
use memprobe::target::maps::Maps;

/// memprobe's own default.
const RING_BYTES: u32 = 8 << 20;

/// How often memprobe looks at the ring buffer.
const POLL: Duration = Duration::from_millis(5);

/// The allocator's program.
const ALLOCATOR: &str = "report_memory_usage";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (pid, mode, detail) = match arguments.as_slice() {
        [pid, mode] => (pid, mode, Detail::Lines),
        [pid, mode, detail] if detail == "tensors" => (pid, mode, Detail::Tensors),
        _ => bail!("usage: probes_alone PID filtered|discarded|timed [tensors]"),
    };
    let tgid = Tgid(pid.parse().with_context(|| format!("{pid:?} is no PID"))?);
    kernel::preflight()?;
    let mut loader = Loader::new(&TaskOffsets::of_this_kernel()?, Watch::One, RING_BYTES)?;
    match mode.as_str() {
        "filtered" => {
            let _links = attach_unwatched(&mut loader, tgid, detail)?;
            wait_for_end(|| Ok(()))
        }
        "discarded" => {
            let _discarding = Discarding::start(loader.take_records()?);
            let _files = attach(&mut loader, tgid, detail)?;
            wait_for_end(|| Ok(()))
        }
        "timed" => {
            // The kernel counts until this descriptor is closed.
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
        other => bail!("unknown mode {other:?}: filtered, discarded or timed"),
    }
}

/// Attaches every probe on PyTorch where memprobe would, and lets no process through. (Those on CUDA are
/// attached many at once, and seldom hit.)
fn attach_unwatched(loader: &mut Loader, tgid: Tgid, detail: Detail) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    let maps = Maps::of(tgid)?;
    for probe in PROBES.iter().filter(|probe| {
        probe.cookie.is_none() && probe.is_wanted(detail, Allocators::Cuda, Graph::Followed)
    }) {
        let located = Located::find(probe, tgid, &maps)
            .with_context(|| format!("{} is not mapped", probe.library))??;
        links.extend(located.attach(loader, Reach::Process(tgid))?);
    }
    Ok(links)
}

/// Attaches as memprobe does.
fn attach(loader: &mut Loader, tgid: Tgid, detail: Detail) -> Result<ProbedFiles> {
    let mut files = ProbedFiles::default();
    let mut attaching = Attaching::new(
        tgid,
        Wanted {
            watch: Watch::One,
            detail,
            allocators: Allocators::Cuda,
            graph: Graph::Followed,
        },
    );
    loader.admit(tgid, attaching.config(TimeNs(0)))?;
    loop {
        match attaching.step(loader, &mut files, TimeNs(0))? {
            Step::Done => return Ok(files),
            Step::Again => {}
            Step::Waiting(what) => bail!("{what}: start it first"),
        }
    }
}

/// Says that the probes are in place, answers every line, and returns when there are no more.
fn wait_for_end(mut answer: impl FnMut() -> Result<()>) -> Result<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        line?;
        answer()?;
    }
    Ok(())
}

/// A thread that empties the ring buffer.
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
            // It cannot panic: it only reads and sleeps.
            let _ = thread.join();
        }
    }
}

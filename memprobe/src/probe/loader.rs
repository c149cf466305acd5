//! The programs and maps in the kernel. Everything goes when the [`Loader`] is dropped or
//! memprobe dies: links are file descriptors, nothing is pinned.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::{Ebpf, EbpfLoader, Pod, include_bytes_aligned};
use memprobe_common::{ProcessConfig, ThreadLocal, counter};

use crate::event::Tgid;

/// The object that `cargo xtask ebpf` built.
static OBJECT: &[u8] = include_bytes_aligned!("../../../memprobe-ebpf/object/memprobe.bpf.o");

/// Names a file whose object is loaded instead of the built-in one; for trying a fresh build.
const OBJECT_VARIABLE: &str = "MEMPROBE_BPF_OBJECT";

/// A [`ProcessConfig`] as a map value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct ConfigValue(ProcessConfig);

// SAFETY: repr(C) integers without padding (its size is asserted beside its definition).
unsafe impl Pod for ConfigValue {}

/// A [`ThreadLocal`] as a map value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct ThreadLocalValue(ThreadLocal);

// SAFETY: repr(C), two integers of the same size.
unsafe impl Pod for ThreadLocalValue {}

/// The programs in the kernel, and their attachments.
pub struct Loader {
    ebpf: Ebpf,
}

impl Loader {
    /// Loads maps and programs; nothing runs before it is attached. `ring_bytes` is rounded up to
    /// a power of two of pages.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(fsbase_offset: u64, ring_bytes: u32) -> Result<Self> {
        let ring_bytes = ring_bytes.max(4096).next_power_of_two();
        let replaced = match std::env::var_os(OBJECT_VARIABLE) {
            Some(path) => Some(std::fs::read(&path).with_context(|| {
                format!(
                    "reading {} (named by {OBJECT_VARIABLE})",
                    Path::new(&path).display()
                )
            })?),
            None => None,
        };
        let mut ebpf = EbpfLoader::new()
            .override_global("FSBASE_OFFSET", &fsbase_offset, true)
            .map_max_entries("RECORDS", ring_bytes)
            .load(replaced.as_deref().unwrap_or(OBJECT))
            .context("loading memprobe's maps into the kernel")?;
        for (name, program) in ebpf.programs_mut() {
            let uprobe: &mut UProbe = program.try_into()?;
            uprobe
                .load()
                .with_context(|| format!("the kernel's verifier refused the program {name}"))?;
        }
        Ok(Self { ebpf })
    }

    /// The ring buffer's reading end. Can be taken once.
    ///
    /// # Errors
    /// When it was taken before.
    pub fn take_records(&mut self) -> Result<RingBuf<MapData>> {
        let map = self
            .ebpf
            .take_map("RECORDS")
            .context("the ring buffer is taken")?;
        Ok(RingBuf::try_from(map)?)
    }

    /// The counters of losses. Can be taken once.
    ///
    /// # Errors
    /// When they were taken before.
    pub fn take_counters(&mut self) -> Result<Counters> {
        let map = self
            .ebpf
            .take_map("COUNTERS")
            .context("the counters are taken")?;
        Ok(Counters(Array::try_from(map)?))
    }

    /// Lets the events of a process through.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch(&mut self, tgid: Tgid, config: ProcessConfig) -> Result<()> {
        let map = self
            .ebpf
            .map_mut("PROCESSES")
            .context("the object has no map PROCESSES")?;
        let mut processes: HashMap<_, u32, ConfigValue> = HashMap::try_from(map)?;
        processes.insert(tgid.0, ConfigValue(config), 0)?;
        Ok(())
    }

    /// Says where a process's threads keep the `GraphTask` that they work for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch_graph_tasks(&mut self, tgid: Tgid, place: ThreadLocal) -> Result<()> {
        let map = self
            .ebpf
            .map_mut("GRAPH_TASKS")
            .context("the object has no map GRAPH_TASKS")?;
        let mut places: HashMap<_, u32, ThreadLocalValue> = HashMap::try_from(map)?;
        places.insert(tgid.0, ThreadLocalValue(place), 0)?;
        Ok(())
    }

    /// Attaches a program at a file offset of a library, for one process; `cookie` tells a program
    /// that serves several functions which one it is.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(
        &mut self,
        program: &str,
        library: &Path,
        offset: u64,
        cookie: Option<u64>,
        tgid: Tgid,
    ) -> Result<()> {
        let scope = NonZeroU32::new(tgid.0)
            .map(UProbeScope::OneProcess)
            .context("PID 0 is the kernel's own")?;
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(offset),
            cookie,
        };
        let uprobe: &mut UProbe = self
            .ebpf
            .program_mut(program)
            .with_context(|| format!("the object has no program {program}"))?
            .try_into()?;
        uprobe.attach(point, library, scope).with_context(|| {
            format!(
                "attaching {program} to {} at {offset:#x}",
                library.display()
            )
        })?;
        Ok(())
    }

    /// How often a program ran and for how long. The kernel counts only while somebody asks it to
    /// (`kernel.bpf_stats_enabled`, `BPF_ENABLE_STATS`); otherwise both are zero.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn run_time(&self, program: &str) -> Result<RunTime> {
        let uprobe: &UProbe = self
            .ebpf
            .program(program)
            .with_context(|| format!("the object has no program {program}"))?
            .try_into()?;
        let info = uprobe
            .info()
            .with_context(|| format!("asking the kernel about {program}"))?;
        Ok(RunTime {
            runs: info.run_count(),
            total: info.run_time(),
        })
    }
}

/// What the kernel counted of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// Runs.
    pub runs: u64,
    /// Time of all runs together: the program alone, without the trap that leads to it.
    pub total: Duration,
}

/// What the programs could not send.
pub struct Counters(Array<MapData, u64>);

impl Counters {
    /// Memory records lost so far.
    pub fn events_lost(&self) -> u64 {
        self.0.get(&counter::EVENTS_LOST, 0).unwrap_or(0)
    }

    /// Stack records lost so far.
    pub fn stacks_lost(&self) -> u64 {
        self.0.get(&counter::STACKS_LOST, 0).unwrap_or(0)
    }
}

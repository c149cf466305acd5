//! The programs and maps in the kernel. Everything goes when the [`Loader`] is dropped or
//! memprobe dies: links are file descriptors, nothing is pinned.

use std::collections;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{Array, HashMap, MapData, MapError, RingBuf};
use aya::programs::uprobe::UProbeLink;
use aya::{Pod, include_bytes_aligned};
use memprobe_common::{ProcessConfig, counter};
use zerocopy::IntoBytes as _;

use super::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use super::diagnostics;
use super::kernel::TaskOffsets;
pub use super::multi::{ProbedFunction, detach};
use super::programs::Programs;
use super::refusal::Refusal;
use crate::event::{CaptureOptions, Tgid};

/// The object that `cargo xtask ebpf` built.
pub(super) static OBJECT: &[u8] = include_bytes_aligned!("../../object/memprobe.bpf.o");

/// Names a file whose object is loaded instead of the built-in one; for trying a fresh build. Release builds ignore it:
/// a variable must not choose the programs of the kernel.
const OBJECT_VARIABLE: &str = "MEMPROBE_BPF_OBJECT";

const IS_REPLACEABLE: bool = cfg!(any(debug_assertions, feature = "bpf-object-override"));

/// A [`ProcessConfig`] as a map value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct ConfigValue(ProcessConfig);

// SAFETY: repr(C) integers without padding (its size is asserted beside its definition).
unsafe impl Pod for ConfigValue {}

/// The programs that follow the life of processes, and the tracepoints that they belong to.
const LIFECYCLE: [(&str, &str); 3] = [
    ("process_forked", "sched_process_fork"),
    ("process_executed", "sched_process_exec"),
    ("thread_exited", "sched_process_exit"),
];

/// Rooms for threads that allocate (14.7 KiB each): of one process, and of many.
const THREADS_OF_ONE: u32 = 1024;
const THREADS_OF_MANY: u32 = 4096;

/// Instructions that the verifier follows before it gives up (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h).
pub const MAX_FOLLOWED: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub watch: Watch,
    pub detail: Detail,
    pub allocators: Allocators,
    pub graph: GraphTracking,
    pub driver: DriverCalls,
}

impl Wanted {
    pub fn capture(self) -> CaptureOptions {
        CaptureOptions {
            detail: self.detail,
            graph: self.graph,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    One,
    /// Admitted processes and their children.
    Family,
    /// Every one that uses a probed library.
    Everyone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modules {
    Told,
    /// The kernel's verifier cannot follow that.
    LeftOut,
}

impl Modules {
    /// Consequence for people, where modules are left out.
    pub const fn missing(self) -> Option<&'static str> {
        match self {
            Self::Told => None,
            Self::LeftOut => Some(
                "the verifier of this kernel cannot follow how modules are found, so which module asked for memory \
                 is not told",
            ),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    Process(Tgid),
    Everyone,
}

/// Kind of the links of uprobes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UprobeLinks {
    /// uprobe_multi links where the kernel has right ones, else perf events.
    Best,
    /// A perf event for each probe.
    PerfEvents,
}

/// One attachment; dropped, it is gone.
pub enum Link {
    PerfEvent(UProbeLink),
    Multi(OwnedFd),
}

/// The program on the allocator's reports, which goes on in [`EVENT_WITH_STACK`] where a block was handed out.
pub const ALLOCATOR_ENTRY: &str = "report_memory_usage";
pub const EVENT_WITH_STACK: &str = "event_with_stack";

/// The map with the programs that others go on in, and the index of [`EVENT_WITH_STACK`] (memprobe-ebpf/src/maps.rs).
const PROGRAMS: &str = "PROGRAMS";
const EVENT_WITH_STACK_INDEX: u32 = 0;

pub const CUDA_ENTRY: &str = "cuda_enter";
const CUDA_RETURN: &str = "cuda_return";

/// Values that the programs and maps are loaded with.
pub(super) struct Settings {
    /// Constants of the programs.
    pub(super) globals: [(&'static str, u64); 8],
    /// Numbers of entries, of maps whose number is not that of their definition.
    pub(super) entries: [(&'static str, u32); 3],
}

impl Settings {
    fn of(task: &TaskOffsets, watch: Watch, ring_bytes: u32, modules: Modules) -> Self {
        let threads = match watch {
            Watch::One => THREADS_OF_ONE,
            Watch::Family | Watch::Everyone => THREADS_OF_MANY,
        };
        Self {
            globals: [
                ("FSBASE_OFFSET", task.fsbase),
                ("PID_OFFSET", task.pid),
                ("TGID_OFFSET", task.tgid),
                ("SIGNAL_OFFSET", task.signal),
                ("LIVE_OFFSET", task.live),
                ("WATCH_ALL", (watch == Watch::Everyone).into()),
                ("REPORT_MODULES", (modules == Modules::Told).into()),
                ("DIAGNOSTICS", diagnostics::enabled().into()),
            ],
            entries: [
                (RECORDS, ring_bytes.max(4096).next_power_of_two()),
                (diagnostics::LINES, diagnostics::bytes()),
                ("THREADS", threads),
            ],
        }
    }

    /// The constants as [`aya_obj::Object::patch_map_data`] takes them; each must be there.
    pub(super) fn globals(&self) -> collections::HashMap<&str, (&[u8], bool)> {
        let globals = self.globals.iter();
        globals
            .map(|(name, value)| (*name, (value.as_bytes(), true)))
            .collect()
    }

    pub(super) fn entries(&self, map: &str) -> Option<u32> {
        let mut entries = self.entries.iter();
        entries
            .find(|(name, _)| *name == map)
            .map(|(_, entries)| *entries)
    }
}

/// The ring buffer of all records.
const RECORDS: &str = "RECORDS";

pub struct Loader {
    programs: Programs,
    pub modules: Modules,
    _diagnostics: Option<diagnostics::DiagnosticReader>,
}

impl Loader {
    /// Loads maps and programs; nothing runs before it is attached. `ring_bytes` is rounded up to
    /// a power of two of pages. Where the kernel's verifier cannot follow all of the programs, modules are not told.
    pub fn new(offsets: &TaskOffsets, watch: Watch, ring_bytes: u32) -> Result<Self> {
        Self::with_links(offsets, watch, ring_bytes, UprobeLinks::Best)
    }

    /// Loads like [`Self::new`], for links of a kind.
    pub fn with_links(
        offsets: &TaskOffsets,
        watch: Watch,
        ring_bytes: u32,
        links: UprobeLinks,
    ) -> Result<Self> {
        let load = |modules| Self::load(offsets, watch, ring_bytes, modules, links);
        match load(Modules::Told) {
            Err(error) if error.downcast_ref().is_some_and(Refusal::is_too_long) => {
                load(Modules::LeftOut)
            }
            loaded => loaded,
        }
    }

    fn load(
        task: &TaskOffsets,
        watch: Watch,
        ring_bytes: u32,
        modules: Modules,
        links: UprobeLinks,
    ) -> Result<Self> {
        let named = std::env::var_os(OBJECT_VARIABLE).filter(|_| IS_REPLACEABLE);
        let replaced = named.map(|path| {
            let name = || format!("reading {} (named by {OBJECT_VARIABLE})", path.display());
            std::fs::read(&path).with_context(name)
        });
        let replaced = replaced.transpose()?;
        let object = replaced.as_deref().unwrap_or(OBJECT);
        let settings = Settings::of(task, watch, ring_bytes, modules);
        let mut programs = Programs::load(object, &settings, links)?;
        programs.put(EVENT_WITH_STACK, PROGRAMS, EVENT_WITH_STACK_INDEX)?;
        let reader = diagnostics::DiagnosticReader::start(&mut programs);
        for (name, tracepoint) in LIFECYCLE {
            programs.follow(name, tracepoint)?;
        }
        Ok(Self {
            programs,
            modules,
            _diagnostics: reader,
        })
    }

    /// Loads the programs that otherwise are loaded when they are first attached.
    pub fn load_on_demand(&mut self) -> Result<()> {
        self.programs.load_on_demand()
    }

    pub fn programs(&self) -> usize {
        self.programs.count()
    }

    /// The most instructions that the kernel's verifier followed of one program; it gives up at [`MAX_FOLLOWED`].
    /// `None` before Linux 5.16, which does not say.
    pub fn followed(&self) -> Option<u32> {
        self.programs.followed()
    }

    /// The ring buffer's reading end. Can be taken once.
    pub fn take_records(&mut self) -> Result<RingBuf<MapData>> {
        let map = self.programs.take_map(RECORDS);
        Ok(RingBuf::try_from(map.context("the ring buffer is taken")?)?)
    }

    /// The counters of losses. Can be taken once.
    pub fn take_counters(&mut self) -> Result<Counters> {
        let mut take = |name| (self.programs.take_map(name)).context("the counters are taken");
        Ok(Counters {
            all: Array::try_from(take("COUNTERS")?)?,
            by_process: HashMap::try_from(take("LOST_BY")?)?,
        })
    }

    /// Lets the events of a process through; says whether they were not let through before. (The
    /// programs themselves admit the children of those that are watched.)
    pub fn admit(&mut self, tgid: Tgid, config: ProcessConfig) -> Result<bool> {
        /// `BPF_NOEXIST` (linux/bpf.h).
        const ONLY_IF_NEW: u64 = 1;
        self.configure(tgid, config, ONLY_IF_NEW)
    }

    /// Says anew what is known of a process, unless it has ended meanwhile.
    pub fn revise(&mut self, tgid: Tgid, config: ProcessConfig) -> Result<()> {
        /// `BPF_EXIST` (linux/bpf.h).
        const ONLY_IF_THERE: u64 = 2;
        self.configure(tgid, config, ONLY_IF_THERE).map(drop)
    }

    /// Writes the configuration of a process; returns false where `condition` does not hold.
    fn configure(&mut self, tgid: Tgid, config: ProcessConfig, condition: u64) -> Result<bool> {
        use std::io::ErrorKind::{AlreadyExists, NotFound};
        let written = (self.processes()?).insert(tgid.0, ConfigValue(config), condition);
        match written {
            Ok(()) => Ok(true),
            Err(MapError::KeyNotFound) => Ok(false),
            Err(MapError::SyscallError(error))
                if matches!(error.io_error.kind(), AlreadyExists | NotFound) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn dismiss(&mut self, tgid: Tgid) -> Result<()> {
        // It may have ended, and then is not there.
        let _ = self.processes()?.remove(&tgid.0);
        Ok(())
    }

    fn processes(&mut self) -> Result<HashMap<&mut MapData, u32, ConfigValue>> {
        Ok(HashMap::try_from(self.programs.map_mut("PROCESSES")?)?)
    }

    /// Attaches a program at a file offset of a library; `cookie` names the function to a program for several.
    pub fn attach(
        &mut self,
        program: &str,
        library: &Path,
        offset: u64,
        cookie: Option<u64>,
        reach: Reach,
    ) -> Result<Link> {
        self.programs.demand(program)?;
        let cookie = cookie.unwrap_or(0);
        let functions = [ProbedFunction { offset, cookie }];
        let links = self.programs.attach(program, library, &functions, reach)?;
        links.into_iter().next().context("no probe was attached")
    }

    /// Attaches the programs for CUDA's functions to some in a library, at their entries and their returns.
    pub fn attach_cuda(
        &mut self,
        library: &Path,
        functions: &[ProbedFunction],
        reach: Reach,
    ) -> Result<Vec<Link>> {
        let returns: Vec<_> = functions
            .iter()
            .map(|function| ProbedFunction {
                cookie: 0,
                ..*function
            })
            .collect();
        // The kernel takes the return address at the entry: nobody may be between the two.
        let mut links = self
            .programs
            .attach(CUDA_RETURN, library, &returns, reach)?;
        links.extend(
            self.programs
                .attach(CUDA_ENTRY, library, functions, reach)?,
        );
        Ok(links)
    }

    /// Runs and run time of a program. The kernel counts only while asked to
    /// (`kernel.bpf_stats_enabled`, `BPF_ENABLE_STATS`); otherwise both are zero.
    pub fn run_time(&self, program: &str) -> Result<RunTime> {
        self.programs.run_time(program)
    }
}

impl Loader {
    /// Runs and run time of every loaded uprobe program, as [`Self::run_time`].
    pub fn run_times(&self) -> Vec<(&str, RunTime)> {
        let names = self.programs.uprobes().into_iter();
        // One that is loaded on demand only may not be loaded.
        let known = names.filter_map(|name| Some((name, self.run_time(name).ok()?)));
        known.collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    pub runs: u64,
    /// Time of all runs together: the program alone, without the trap that leads to it.
    pub total: Duration,
}

/// Counters of records that the programs could not send.
pub struct Counters {
    all: Array<MapData, u64>,
    /// By [`counter::of_process`]. Entries are pushed out where thousands of processes lose something.
    by_process: HashMap<MapData, u64, u64>,
}

impl Counters {
    /// Count so far, by an index of [`counter`].
    pub fn total(&self, index: u32) -> u64 {
        self.all.get(&index, 0).unwrap_or(0)
    }

    /// Count of one process so far: memory or stack records lost, or failed calls not sent.
    pub fn of_process(&self, tgid: Tgid, index: u32) -> u64 {
        let key = counter::of_process(tgid.0, index);
        self.by_process.get(&key, 0).unwrap_or(0)
    }

    /// A process has ended: what it lost is not that of the next with its number.
    pub fn forget(&mut self, tgid: Tgid) {
        for index in [
            counter::EVENTS_LOST,
            counter::STACKS_LOST,
            counter::FAILURES_NOT_SENT,
        ] {
            // There is none of one that lost nothing.
            let _ = self.by_process.remove(&counter::of_process(tgid.0, index));
        }
    }
}

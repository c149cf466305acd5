//! The programs and maps in the kernel. Everything goes when the [`Loader`] is dropped or
//! memprobe dies: links are file descriptors, nothing is pinned.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{Array, HashMap, MapData, MapError, ProgramArray, RingBuf};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{Program, RawTracePoint, UProbe};
use aya::{Ebpf, EbpfLoader, Pod, include_bytes_aligned};
use memprobe_common::{ProcessConfig, counter};

use super::catalog::{Allocators, Detail, DriverCalls, GraphTracking};
use super::diagnostics;
use super::kernel::TaskOffsets;
use super::multi::MultiPrograms;
pub use super::multi::{ProbedFunction, detach};
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

/// Programs that few processes need: loaded when they are first attached, since the verifier takes long.
const ON_DEMAND: [&str; 1] = ["allocator_tracepoint"];

/// The program on the allocator's reports, which goes on in [`EVENT_WITH_STACK`] where a block was handed out.
pub const ALLOCATOR_ENTRY: &str = "report_memory_usage";
pub const EVENT_WITH_STACK: &str = "event_with_stack";

/// The map with the programs that others go on in, and the index of [`EVENT_WITH_STACK`] (memprobe-ebpf/src/maps.rs).
const PROGRAMS: &str = "PROGRAMS";
const EVENT_WITH_STACK_INDEX: u32 = 0;

pub const CUDA_ENTRY: &str = "cuda_enter";
const CUDA_RETURN: &str = "cuda_return";

pub struct Loader {
    ebpf: Ebpf,
    /// All uprobe programs, where the kernel attaches them to many functions at once.
    multi: Option<MultiPrograms>,
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
        let ring_bytes = ring_bytes.max(4096).next_power_of_two();
        let named = std::env::var_os(OBJECT_VARIABLE).filter(|_| IS_REPLACEABLE);
        let replaced = named.map(|path| {
            let name = || format!("reading {} (named by {OBJECT_VARIABLE})", path.display());
            std::fs::read(&path).with_context(name)
        });
        let replaced = replaced.transpose()?;
        let object = replaced.as_deref().unwrap_or(OBJECT);
        let threads = match watch {
            Watch::One => THREADS_OF_ONE,
            Watch::Family | Watch::Everyone => THREADS_OF_MANY,
        };
        let watch_all = u64::from(watch == Watch::Everyone);
        let diagnostics = u64::from(diagnostics::enabled());
        let report_modules = u64::from(modules == Modules::Told);
        let mut ebpf = EbpfLoader::new()
            .override_global("FSBASE_OFFSET", &task.fsbase, true)
            .override_global("PID_OFFSET", &task.pid, true)
            .override_global("TGID_OFFSET", &task.tgid, true)
            .override_global("SIGNAL_OFFSET", &task.signal, true)
            .override_global("LIVE_OFFSET", &task.live, true)
            .override_global("WATCH_ALL", &watch_all, true)
            .override_global("REPORT_MODULES", &report_modules, true)
            .override_global("DIAGNOSTICS", &diagnostics, true)
            .map_max_entries("RECORDS", ring_bytes)
            .map_max_entries(diagnostics::LINES, diagnostics::bytes())
            .map_max_entries("THREADS", threads)
            .load(object)
            .map_err(|error| Refusal::of_maps(&error))?;
        let multi = match links {
            UprobeLinks::Best => MultiPrograms::load(&ebpf, object, &ON_DEMAND),
            UprobeLinks::PerfEvents => None,
        };
        for (name, program) in ebpf.programs_mut() {
            let has_copy = multi.is_some() && matches!(program, Program::UProbe(_));
            if !has_copy && !ON_DEMAND.contains(&name) {
                load(name, program)?;
            }
        }
        connect(&mut ebpf, multi.as_ref())?;
        let reader = diagnostics::DiagnosticReader::start(&mut ebpf)?;
        for (name, tracepoint) in LIFECYCLE {
            let program: &mut RawTracePoint = ebpf
                .program_mut(name)
                .with_context(|| format!("the object has no program {name}"))?
                .try_into()?;
            program
                .attach(tracepoint)
                .with_context(|| format!("following processes through {tracepoint}"))?;
        }
        Ok(Self {
            ebpf,
            multi,
            modules,
            _diagnostics: reader,
        })
    }

    /// Loads the programs that otherwise are loaded when they are first attached.
    pub fn load_on_demand(&mut self) -> Result<()> {
        for name in ON_DEMAND {
            self.demand(name)?;
        }
        Ok(())
    }

    /// Loads a program unless it is loaded.
    fn demand(&mut self, name: &str) -> Result<()> {
        if let Some(multi) = &mut self.multi {
            return multi
                .demand(name)
                .with_context(|| format!("loading the program {name}"));
        }
        let program = self.program_mut(name)?;
        if program.fd().is_err() {
            load(name, program)?;
        }
        Ok(())
    }

    fn program_mut(&mut self, name: &str) -> Result<&mut Program> {
        self.ebpf
            .program_mut(name)
            .with_context(|| format!("the object has no program {name}"))
    }

    pub fn programs(&self) -> usize {
        self.ebpf.programs().count()
    }

    /// The most instructions that the kernel's verifier followed of one program; it gives up at [`MAX_FOLLOWED`].
    /// `None` before Linux 5.16, which does not say.
    pub fn followed(&self) -> Option<u32> {
        let programs = self.ebpf.programs();
        let by_aya = programs.filter_map(|(_, program)| followed(program));
        let multi = self.multi.iter().flat_map(MultiPrograms::infos);
        let counts = by_aya.chain(multi.map(|info| info.verified_insns));
        counts.max().filter(|&count| count > 0)
    }

    /// The ring buffer's reading end. Can be taken once.
    pub fn take_records(&mut self) -> Result<RingBuf<MapData>> {
        let map = self.ebpf.take_map("RECORDS");
        Ok(RingBuf::try_from(map.context("the ring buffer is taken")?)?)
    }

    /// The counters of losses. Can be taken once.
    pub fn take_counters(&mut self) -> Result<Counters> {
        let mut take = |name| self.ebpf.take_map(name).context("the counters are taken");
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
        let map = self.ebpf.map_mut("PROCESSES");
        Ok(HashMap::try_from(
            map.context("the object has no map PROCESSES")?,
        )?)
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
        self.demand(program)?;
        if let Some(multi) = &self.multi {
            let cookie = cookie.unwrap_or(0);
            let functions = [ProbedFunction { offset, cookie }];
            return attach_multi(multi, program, library, &functions, reach);
        }
        let scope = match reach {
            Reach::Process(tgid) => UProbeScope::OneProcess(
                NonZeroU32::new(tgid.0).context("PID 0 is the kernel's own")?,
            ),
            Reach::Everyone => UProbeScope::AllProcesses,
        };
        let uprobe: &mut UProbe = self.program_mut(program)?.try_into()?;
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(offset),
            cookie,
        };
        let link = uprobe
            .attach(point, library, scope)
            .map_err(|error| Refusal::of_probe(&library.display().to_string(), &error))?;
        Ok(Link::PerfEvent(uprobe.take_link(link)?))
    }

    /// Attaches the programs for CUDA's functions to some in a library, at their entries and their returns.
    pub fn attach_cuda(
        &mut self,
        library: &Path,
        functions: &[ProbedFunction],
        reach: Reach,
    ) -> Result<Vec<Link>> {
        // The kernel takes the return address at the entry: nobody may be between the two.
        const IN_ORDER: [&str; 2] = [CUDA_RETURN, CUDA_ENTRY];
        let mut links = Vec::new();
        if let Some(multi) = &self.multi {
            for program in IN_ORDER {
                links.push(attach_multi(multi, program, library, functions, reach)?);
            }
            return Ok(links);
        }
        for ProbedFunction { offset, cookie } in functions {
            for program in IN_ORDER {
                let cookie = (program == CUDA_ENTRY).then_some(*cookie);
                links.push(self.attach(program, library, *offset, cookie, reach)?);
            }
        }
        Ok(links)
    }

    /// Runs and run time of a program. The kernel counts only while asked to
    /// (`kernel.bpf_stats_enabled`, `BPF_ENABLE_STATS`); otherwise both are zero.
    pub fn run_time(&self, program: &str) -> Result<RunTime> {
        let asking = || format!("asking the kernel about {program}");
        if let Some(multi) = &self.multi {
            let info = multi.info(program).with_context(asking)?;
            return Ok(RunTime {
                runs: info.run_cnt,
                total: Duration::from_nanos(info.run_time_ns),
            });
        }
        let loaded = self.ebpf.program(program);
        let loaded = loaded.with_context(|| format!("the object has no program {program}"))?;
        let info = loaded.info().with_context(asking)?;
        Ok(RunTime {
            runs: info.run_count(),
            total: info.run_time(),
        })
    }
}

impl Loader {
    /// Runs and run time of every loaded uprobe program, as [`Self::run_time`].
    pub fn run_times(&self) -> Vec<(&str, RunTime)> {
        let programs = self.ebpf.programs();
        let uprobes = programs.filter(|(_, program)| matches!(program, Program::UProbe(_)));
        let names = uprobes.map(|(name, _)| name);
        // One that is loaded on demand only may not be loaded.
        let known = names.filter_map(|name| Some((name, self.run_time(name).ok()?)));
        known.collect()
    }
}

/// Puts the program that others go on in where they find it.
fn connect(ebpf: &mut Ebpf, multi: Option<&MultiPrograms>) -> Result<()> {
    let missing = || format!("the object has no map {PROGRAMS}");
    let putting = || format!("putting {EVENT_WITH_STACK} where {ALLOCATOR_ENTRY} goes on");
    if let Some(multi) = multi {
        let map = ebpf.map(PROGRAMS).with_context(missing)?;
        return multi
            .put(EVENT_WITH_STACK, map, EVENT_WITH_STACK_INDEX)
            .with_context(putting);
    }
    let program = ebpf.program(EVENT_WITH_STACK).with_context(putting)?;
    let fd = program.fd()?.try_clone()?;
    let map = ebpf.map_mut(PROGRAMS).with_context(missing)?;
    let mut programs = ProgramArray::try_from(map)?;
    programs
        .set(EVENT_WITH_STACK_INDEX, &fd, 0)
        .with_context(putting)
}

fn attach_multi(
    multi: &MultiPrograms,
    program: &str,
    library: &Path,
    functions: &[ProbedFunction],
    reach: Reach,
) -> Result<Link> {
    let link = multi.attach(program, library, functions, reach);
    let link = link.map_err(|error| Refusal::of_link(&library.display().to_string(), &error))?;
    Ok(Link::Multi(link))
}

fn load(name: &str, program: &mut Program) -> Result<()> {
    let loaded = match program {
        Program::UProbe(uprobe) => uprobe.load(),
        Program::RawTracePoint(tracepoint) => tracepoint.load(),
        _ => return Ok(()),
    };
    loaded.map_err(|error| Refusal::of_program(name, &error))?;
    if let Some(followed) = followed(program) {
        log::debug!("{name}: the verifier followed {followed} instructions");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    pub runs: u64,
    /// Time of all runs together: the program alone, without the trap that leads to it.
    pub total: Duration,
}

/// The instructions that the kernel's verifier followed of a program, if it says so.
fn followed(program: &Program) -> Option<u32> {
    program.info().ok()?.verified_instruction_count()
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

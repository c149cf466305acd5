//! The maps and programs in the kernel: loaded by memprobe itself for links of many functions, or by aya where the kernel
//! has no right ones.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::maps::{Map, ProgramArray};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{Program, RawTracePoint, UProbe};
use aya::{Ebpf, EbpfLoader};
use aya_log::EbpfLogger;
use log::Log;

use super::loader::{Link, Reach, RunTime, Settings, UprobeLinks};
use super::multi::{MultiPrograms, ProbedFunction};
use super::refusal::Refusal;

/// Programs that few processes need: loaded when they are first attached, since the verifier takes long.
const ON_DEMAND: [&str; 1] = ["allocator_tracepoint"];

pub(super) enum Programs {
    Multi(Box<MultiPrograms>),
    /// A perf event for each probe.
    PerfEvents(Box<Ebpf>),
}

impl Programs {
    /// Makes the maps and loads the programs; nothing runs before it is attached.
    pub(super) fn load(object: &[u8], settings: &Settings, links: UprobeLinks) -> Result<Self> {
        let multi = match links {
            UprobeLinks::Best => MultiPrograms::load(object, settings, &ON_DEMAND),
            UprobeLinks::PerfEvents => None,
        };
        if let Some(multi) = multi {
            return Ok(Self::Multi(Box::new(multi)));
        }
        let mut ebpf = load_with_aya(object, settings)?;
        for (name, program) in ebpf.programs_mut() {
            if !ON_DEMAND.contains(&name) {
                load(name, program)?;
            }
        }
        Ok(Self::PerfEvents(Box::new(ebpf)))
    }

    pub(super) fn map_mut(&mut self, name: &str) -> Result<&mut Map> {
        let map = match self {
            Self::Multi(multi) => multi.map_mut(name),
            Self::PerfEvents(ebpf) => ebpf.map_mut(name),
        };
        map.with_context(|| format!("the object has no map {name}"))
    }

    pub(super) fn take_map(&mut self, name: &str) -> Option<Map> {
        match self {
            Self::Multi(multi) => multi.take_map(name),
            Self::PerfEvents(ebpf) => ebpf.take_map(name),
        }
    }

    /// Loads the programs that otherwise are loaded when they are first attached.
    pub(super) fn load_on_demand(&mut self) -> Result<()> {
        ON_DEMAND.iter().try_for_each(|name| self.demand(name))
    }

    /// Loads a program unless it is loaded.
    pub(super) fn demand(&mut self, name: &str) -> Result<()> {
        match self {
            Self::Multi(multi) => multi
                .demand(name)
                .with_context(|| format!("loading the program {name}")),
            Self::PerfEvents(ebpf) => {
                let program = program_mut(ebpf, name)?;
                if program.fd().is_err() {
                    load(name, program)?;
                }
                Ok(())
            }
        }
    }

    /// Puts a program into an array of programs.
    pub(super) fn put(&mut self, name: &str, array: &str, index: u32) -> Result<()> {
        let putting = || format!("putting {name} into {array}");
        match self {
            Self::Multi(multi) => multi.put(name, array, index).with_context(putting),
            Self::PerfEvents(ebpf) => {
                let fd = program_mut(ebpf, name)?.fd()?.try_clone()?;
                let map = ebpf.map_mut(array).with_context(putting)?;
                let mut programs = ProgramArray::try_from(map)?;
                programs.set(index, &fd, 0).with_context(putting)
            }
        }
    }

    /// Runs a program at a tracepoint from now on.
    pub(super) fn follow(&mut self, name: &str, tracepoint: &str) -> Result<()> {
        let following = || format!("following processes through {tracepoint}");
        match self {
            Self::Multi(multi) => multi.follow(name, tracepoint).with_context(following),
            Self::PerfEvents(ebpf) => {
                let program: &mut RawTracePoint = program_mut(ebpf, name)?.try_into()?;
                program.attach(tracepoint).with_context(following)?;
                Ok(())
            }
        }
    }

    /// Attaches a program to functions of a library.
    pub(super) fn attach(
        &mut self,
        name: &str,
        library: &Path,
        functions: &[ProbedFunction],
        reach: Reach,
    ) -> Result<Vec<Link>> {
        match self {
            Self::Multi(multi) => {
                let link = multi.attach(name, library, functions, reach);
                let refused = |error| Refusal::of_link(&library.display().to_string(), &error);
                Ok(vec![Link::Multi(link.map_err(refused)?)])
            }
            Self::PerfEvents(ebpf) => {
                let uprobe: &mut UProbe = program_mut(ebpf, name)?.try_into()?;
                let functions = functions.iter();
                functions
                    .map(|function| attach_perf_event(uprobe, library, *function, reach))
                    .collect()
            }
        }
    }

    /// Reader of the programs' lines, for people.
    pub(super) fn logger(&mut self) -> Result<EbpfLogger<&'static dyn Log>> {
        Ok(match self {
            Self::Multi(multi) => {
                let mut infos = multi.infos();
                let program = infos.next().context("no program is loaded")?;
                EbpfLogger::init_from_id(program.id)?
            }
            Self::PerfEvents(ebpf) => EbpfLogger::init(ebpf)?,
        })
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::Multi(multi) => multi.names().count(),
            Self::PerfEvents(ebpf) => ebpf.programs().count(),
        }
    }

    /// The most instructions that the kernel's verifier followed of one program.
    pub(super) fn followed(&self) -> Option<u32> {
        let count = match self {
            Self::Multi(multi) => multi.infos().map(|info| info.verified_insns).max(),
            Self::PerfEvents(ebpf) => {
                let programs = ebpf.programs();
                programs.filter_map(|(_, program)| followed(program)).max()
            }
        };
        count.filter(|&count| count > 0)
    }

    /// The names of the uprobe programs.
    pub(super) fn uprobes(&self) -> Vec<&str> {
        match self {
            Self::Multi(multi) => multi.names().filter(|name| multi.is_uprobe(name)).collect(),
            Self::PerfEvents(ebpf) => {
                let programs = ebpf.programs();
                let uprobes = programs.filter(|(_, it)| matches!(it, Program::UProbe(_)));
                uprobes.map(|(name, _)| name).collect()
            }
        }
    }

    /// Runs and run time of a program, which the kernel counts only while it is asked to.
    pub(super) fn run_time(&self, name: &str) -> Result<RunTime> {
        let asking = || format!("asking the kernel about {name}");
        Ok(match self {
            Self::Multi(multi) => {
                let info = multi.info(name).with_context(asking)?;
                RunTime {
                    runs: info.run_cnt,
                    total: Duration::from_nanos(info.run_time_ns),
                }
            }
            Self::PerfEvents(ebpf) => {
                let program = ebpf.program(name);
                let program = program.with_context(|| missing(name))?;
                let info = program.info().with_context(asking)?;
                RunTime {
                    runs: info.run_count(),
                    total: info.run_time(),
                }
            }
        })
    }
}

fn load_with_aya(object: &[u8], settings: &Settings) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    for (name, value) in &settings.globals {
        loader.override_global(name, value, true);
    }
    for (name, entries) in &settings.entries {
        loader.map_max_entries(name, *entries);
    }
    let loaded = loader.load(object);
    Ok(loaded.map_err(|error| Refusal::of_maps(&error))?)
}

fn program_mut<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program> {
    ebpf.program_mut(name).with_context(|| missing(name))
}

fn missing(program: &str) -> String {
    format!("the object has no program {program}")
}

fn attach_perf_event(
    uprobe: &mut UProbe,
    library: &Path,
    function: ProbedFunction,
    reach: Reach,
) -> Result<Link> {
    let scope = match reach {
        Reach::Process(tgid) => {
            UProbeScope::OneProcess(NonZeroU32::new(tgid.0).context("PID 0 is the kernel's own")?)
        }
        Reach::Everyone => UProbeScope::AllProcesses,
    };
    let point = UProbeAttachPoint {
        location: UProbeAttachLocation::AbsoluteOffset(function.offset),
        cookie: (function.cookie != 0).then_some(function.cookie),
    };
    let link = uprobe
        .attach(point, library, scope)
        .map_err(|error| Refusal::of_probe(&library.display().to_string(), &error))?;
    Ok(Link::PerfEvent(uprobe.take_link(link)?))
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

/// The instructions that the kernel's verifier followed of a program, if it says so.
fn followed(program: &Program) -> Option<u32> {
    program.info().ok()?.verified_instruction_count()
}

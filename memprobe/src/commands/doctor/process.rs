//! `doctor`'s findings on one process: identity, Python, libraries, place of each probe.

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::cuda::calls::Api;
use crate::event::Tgid;
use crate::probe::attach::{AttachError, Located};
use crate::probe::attaching;
use crate::probe::catalog::{
    CODE_FREED, Need, PROBES, Probe, TRACEPOINT_LIBRARIES, TRACEPOINTS, WITHOUT_BLOCKS,
};
use crate::probe::finding::{Finding, Level};
use crate::probe::patch::{self, EntryState};
use crate::probe::prologue::written;
use crate::process::class_name::demangled;
use crate::process::container::{self, Container};
use crate::process::elf::{ElfImage, FunctionNames};
use crate::process::maps::{MappedFile, Maps};
use crate::process::memory::{Cause, ProcessMemory, ReadMemory as _};
use crate::process::namespace::{self, Kind};
use crate::process::run_state::RunState;
use crate::process::status::Status;
use crate::process::{facts, user};
use crate::python::{DetectError, PythonProcess};

/// The longest instruction of x86-64, in bytes.
const LONGEST_INSTRUCTION: usize = 15;
/// The driver's own library: not probed where libcudart is, but worth naming.
const DRIVER: &str = "libcuda.so";

/// One process. Texts come from it and may hold anything.
#[derive(Debug, Serialize)]
pub(super) struct ExaminedProcess {
    pub(super) pid: u32,
    /// Its number in its own PID namespace, where that is another.
    pub(super) inner_pid: Option<u32>,
    pub(super) command: String,
    pub(super) findings: Vec<Finding>,
    /// The libraries that matter, each copy.
    pub(super) libraries: Vec<Library>,
    pub(super) probes: Vec<ProbeFinding>,
}

#[derive(Debug, Serialize)]
pub(super) struct Library {
    /// Finding; fails if the file cannot be opened.
    pub(super) finding: Finding,
    pub(super) name: String,
    /// Path as the kernel shows it to memprobe.
    pub(super) path: String,
    pub(super) build_id: Option<String>,
    /// `major:minor` of its file system.
    pub(super) device: String,
    pub(super) inode: u64,
    /// Unlinked or replaced since it was loaded.
    pub(super) deleted: bool,
    pub(super) opened_as: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ProbeFinding {
    pub(super) finding: Finding,
    pub(super) function: String,
    pub(super) library: Option<String>,
    /// The name by which it was found in the library.
    pub(super) symbol: Option<String>,
    /// The function as the library's symbols name it, demangled.
    pub(super) demangled: Option<String>,
    pub(super) address: Option<u64>,
    /// Bytes from the function's first instruction.
    pub(super) offset: Option<u64>,
    pub(super) instruction: Option<String>,
    /// Treatment of that instruction by the kernel.
    pub(super) kind: Option<&'static str>,
}

impl ExaminedProcess {
    pub(super) fn examine(tgid: Tgid) -> Self {
        let mut process = Self {
            pid: tgid.0,
            inner_pid: None,
            command: facts::command_line(tgid),
            findings: Vec::new(),
            libraries: Vec::new(),
            probes: Vec::new(),
        };
        if let Err(finding) = process.look(tgid) {
            process.findings.push(finding);
        }
        process
    }

    /// Looks as far as it can; an error is the finding that stands in the way of the rest.
    fn look(&mut self, tgid: Tgid) -> Result<(), Finding> {
        let status = Status::of(tgid).map_err(|error| gone(tgid, &error))?;
        self.inner_pid = status.inner_tgid().map(|inner| inner.0);
        let container = container::of(tgid);
        self.findings.push(identity(tgid, &status));
        self.findings.push(surroundings(tgid, container.as_ref()));
        let maps = Maps::of(tgid).map_err(|error| unreadable("mappings", tgid, &error))?;
        self.findings.push(memory(tgid, &maps));
        let python = PythonProcess::detect_in(tgid, &maps);
        self.look_at_libraries(tgid, &maps, python.as_ref().ok());
        self.findings.push(match &python {
            Ok(python) => {
                let found = Some((&python.library, Located::find_code_freed(tgid, python)));
                self.probes
                    .push(ProbeFinding::of(tgid, &maps, &CODE_FREED, found));
                python_finding(python)
            }
            Err(DetectError::NotPython) if attaching::uses_cuda(&maps) => without_python(&maps),
            Err(error) => Finding::from_error("python", Level::Fail, error),
        });
        for probe in PROBES.iter() {
            self.look_for(probe, tgid, &maps);
        }
        self.look_for_tracepoints(tgid, &maps);
        self.findings
            .push(match (&python, maps.library("libc10.so")) {
                (Err(DetectError::NotPython), None) => Finding::note("pytorch", "not loaded"),
                _ => torch(tgid, &maps),
            });
        self.findings.push(self.layer());
        Ok(())
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        let libraries = self.libraries.iter().map(|library| &library.finding);
        let probes = self.probes.iter().map(|place| &place.finding);
        self.findings.iter().chain(libraries).chain(probes)
    }

    /// Locates a probe in each copy of its library: a process may have loaded several.
    fn look_for(&mut self, probe: &'static Probe, tgid: Tgid, maps: &Maps) {
        let copies = maps.libraries(probe.library);
        if copies.is_empty() {
            self.probes.push(ProbeFinding::of(tgid, maps, probe, None));
        }
        for file in &copies {
            let found = Some((file, Located::find_in(probe, tgid, file)));
            self.probes.push(ProbeFinding::of(tgid, maps, probe, found));
        }
    }

    /// Locates the tracepoints of a caching allocator without a report function.
    fn look_for_tracepoints(&mut self, tgid: Tgid, maps: &Maps) {
        let lacks = |place: &ProbeFinding| {
            let mut needed = PROBES.iter().filter(|probe| probe.need == Need::Allocator);
            needed.any(|probe| probe.function == place.function)
                && place.address.is_none()
                && maps.library("libc10.so").is_some()
        };
        if !self.probes.iter().any(lacks) {
            return;
        }
        for file in (TRACEPOINT_LIBRARIES.iter()).flat_map(|name| maps.libraries(name)) {
            for (probe, located) in Located::find_tracepoints(tgid, &file) {
                let found = Some((&file, located));
                self.probes.push(ProbeFinding::of(tgid, maps, probe, found));
            }
        }
    }

    fn look_at_libraries(&mut self, tgid: Tgid, maps: &Maps, python: Option<&PythonProcess>) {
        let mut names: Vec<&str> = PROBES.iter().map(|probe| probe.library).collect();
        names.push(DRIVER);
        names.sort_unstable();
        names.dedup();
        let mut files = Vec::from_iter(python.map(|python| python.library.clone()));
        files.extend(names.iter().flat_map(|name| maps.libraries(name)));
        self.libraries = files.iter().map(|file| Library::of(tgid, file)).collect();
    }

    /// From where memprobe will know of memory: the highest layer whose probes have a place.
    fn layer(&self) -> Finding {
        let is_placed = |probe: &&Probe| {
            let mut places = self.probes.iter();
            let place = places.find(|place| place.function == probe.function);
            place.is_some_and(|place| place.address.is_some())
        };
        let placed: Vec<_> = PROBES.iter().filter(is_placed).collect();
        let found = |layer: &'static str, words| Finding::ok("layer", words).with("layer", layer);
        if placed.iter().any(|probe| probe.need == Need::Allocator) {
            let words = "PyTorch's caching allocator, which reports each block";
            return found("allocator", words);
        }
        let has_tracepoint = |probe: &Probe| {
            let mut places = self.probes.iter();
            places.any(|place| place.function == probe.function && place.address.is_some())
        };
        if TRACEPOINTS.iter().all(has_tracepoint) {
            let words =
                "the tracepoints of PyTorch's caching allocator, which report requested bytes";
            return found("tracepoints", words);
        }
        for (api, layer) in [(Api::Runtime, "runtime"), (Api::Driver, "driver")] {
            if placed.iter().any(|probe| probe.library == api.library()) {
                let calls = format!("the calls into CUDA's {layer}");
                let words = format!("{calls}, as no caching allocator is there");
                return Finding::ok("layer", words).with("layer", layer);
            }
        }
        Finding::note("layer", "none yet: `attach` and `record` will wait")
            .with("layer", None::<&str>)
    }
}

fn gone(tgid: Tgid, error: &io::Error) -> Finding {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return unreadable("process", tgid, error);
    }
    Finding::fail(
        "process",
        format!("there is no process {}", tgid.0),
        "Find the right one with `pgrep -af python` (a thread's number is not enough: give the process's own).",
    )
}

fn unreadable(check: &'static str, tgid: Tgid, error: &io::Error) -> Finding {
    Finding::fail(
        check,
        format!("process {} may not be read: {error}", tgid.0),
        "Run memprobe with sudo; in a container, give it CAP_SYS_PTRACE too.",
    )
}

fn identity(tgid: Tgid, status: &Status) -> Finding {
    let mut text = format!("PID {}", tgid.0);
    if let Some(inner) = status.inner_tgid() {
        text += &format!(" (in its own namespace {})", inner.0);
    }
    let name = status.uid.and_then(user::name);
    if let Some(uid) = status.uid {
        text += &format!(", user {}", name.clone().unwrap_or_else(|| uid.to_string()));
    }
    if let Some(threads) = status.threads {
        text += &format!(", {threads} thread{}", if threads == 1 { "" } else { "s" });
    }
    let state = RunState::of(tgid);
    let finding = match (state, state.pause_reason(tgid)) {
        (RunState::Zombie(_) | RunState::Exiting | RunState::Gone, _) => {
            let end = DetectError::of_end(tgid).to_string();
            let end = end.lines().next().unwrap_or_default();
            let advice = "Find the right one with `pgrep -af python`.";
            Finding::fail(
                "process",
                format!("{text}: {}", end.trim_end_matches('.')),
                advice,
            )
        }
        (_, Some(reason)) => Finding::note("process", format!("{text}: {reason}")),
        (_, None) => Finding::ok("process", text),
    };
    finding
        .with("inner_pid", status.inner_tgid().map(|inner| inner.0))
        .with("uid", status.uid)
        .with("user", name)
        .with("threads", status.threads)
}

/// The container, and what it does not share with memprobe.
fn surroundings(tgid: Tgid, container: Option<&Container>) -> Finding {
    let foreign = namespace::foreign(tgid).into_iter();
    let foreign: Vec<&str> = foreign.map(Kind::name).collect();
    let chroot = namespace::has_other_root(tgid) == Some(true);
    let mut words = Vec::new();
    words.extend(container.map(Container::to_string));
    if !foreign.is_empty() {
        words.push(format!("namespaces of its own: {}", foreign.join(", ")));
    }
    if chroot {
        words.push("another root directory".to_owned());
    }
    let text = match words.len() {
        0 => "none: it sees the machine as memprobe does".to_owned(),
        _ => words.join("; "),
    };
    let pod = container.and_then(|container| container.pod.as_ref());
    let pod_namespace = pod.and_then(|pod| pod.namespace.as_deref());
    let host = container.and_then(|container| container.host.as_deref());
    Finding::ok("container", text)
        .with("engine", container.map(|container| container.engine.name()))
        .with("id", container.map(|container| container.id.as_str()))
        .with("host_name", host)
        .with("pod", pod.and_then(|pod| pod.name.as_deref()))
        .with("pod_uid", pod.map(|pod| pod.uid.as_str()))
        .with("pod_namespace", pod_namespace)
        .with("namespaces", foreign)
        .with("other_root", chroot)
}

/// Tests reading the process's memory, at the first readable mapping.
fn memory(tgid: Tgid, maps: &Maps) -> Finding {
    let Some(mapping) = maps.mappings().iter().find(|mapping| mapping.perms.read) else {
        return Finding::fail(
            "memory",
            "it has none (a kernel thread, or it has just ended)",
            "Find the right one with `pgrep -af python`.",
        );
    };
    match ProcessMemory::new(tgid).read_u64(mapping.start) {
        Ok(_) => Finding::ok("memory", "can be read"),
        Err(error) if error.cause == Cause::Denied => Finding::fail(
            "memory",
            "it may not be read (process_vm_readv: EPERM)",
            "Run memprobe with sudo; in a container, give it CAP_SYS_PTRACE; see `ptrace` above.",
        ),
        Err(error) => Finding::from_error("memory", Level::Fail, error),
    }
}

fn python_finding(python: &PythonProcess) -> Finding {
    let path = python.library.path.display().to_string();
    let threads = python.thread_states().map(|states| states.len());
    let checked = match &threads {
        Ok(1) => "checked on its only thread".to_owned(),
        Ok(threads) => format!("checked on {threads} threads"),
        Err(_) => "checked on every thread".to_owned(),
    };
    let source = python.layout_source();
    let text = format!(
        "{} in {path}; layout from {source}, {checked}",
        python.version
    );
    Finding::ok("python", text)
        .with("version", python.version.to_string())
        .with("library", path)
        .with("layout", source)
        .with("threads", threads.ok())
}

fn without_python(maps: &Maps) -> Finding {
    let text = match maps.library("libc10.so") {
        Some(_) => {
            "it runs no Python: blocks of PyTorch's allocator have no line, other CUDA memory has its native stack"
        }
        None => "it runs no Python: its CUDA memory has its native stack",
    };
    Finding::note("python", text)
        .with("version", None::<&str>)
        .with("library", None::<&str>)
}

fn torch(tgid: Tgid, maps: &Maps) -> Finding {
    let copies = maps.libraries("libc10.so").len();
    match (facts::torch_version(tgid), copies) {
        (_, 0) if attaching::has_driver(maps) => Finding::note(
            "pytorch",
            "not imported: `attach` and `record` show the calls into CUDA",
        ),
        (_, 0) => Finding::note(
            "pytorch",
            "not imported yet: `attach` and `record` will wait for it",
        ),
        (Some(version), 1) => Finding::ok("pytorch", version.as_str()).with("version", version),
        (Some(version), copies) => Finding::note(
            "pytorch",
            format!("{version}; {copies} copies of its libraries are loaded, and each is probed"),
        )
        .with("version", version),
        (None, _) => {
            let words = "its version.py cannot be read: the version is unknown";
            Finding::note("pytorch", words).with("version", None::<&str>)
        }
    }
}

impl Library {
    fn of(tgid: Tgid, file: &MappedFile) -> Self {
        let (open, opened_as) = match file.open(tgid) {
            Ok((open, path)) => (Ok(open), Some(path.display().to_string())),
            Err(error) => (Err(error.to_string()), None),
        };
        let image =
            open.and_then(|open| ElfImage::from_file(open).map_err(|error| error.to_string()));
        let path = file.path.display().to_string();
        let device = format!("{:02x}:{:02x}", file.dev.major, file.dev.minor);
        let finding = match &image {
            Ok(_) if file.deleted => Finding::note(
                "library",
                format!(
                    "{path} was deleted or replaced since it was loaded; memprobe reads the loaded one"
                ),
            ),
            Ok(_) => Finding::ok("library", path.as_str()),
            Err(error) => Finding::fail(
                "library",
                format!("{path} cannot be read: {error}"),
                "Run memprobe with sudo; in a container, give it CAP_SYS_ADMIN (or CAP_CHECKPOINT_RESTORE), with which \
                 files can be opened that have no name here.",
            ),
        };
        Self {
            finding,
            name: file.basename().to_string_lossy().into_owned(),
            path,
            build_id: image.ok().and_then(|image| image.build_id()),
            device,
            inode: file.inode,
            deleted: file.deleted,
            opened_as,
        }
    }
}

impl ProbeFinding {
    fn of(
        tgid: Tgid,
        maps: &Maps,
        probe: &Probe,
        found: Option<(&MappedFile, Result<Located, AttachError>)>,
    ) -> Self {
        let mut place = Self {
            finding: Finding::note("probe", format!("{} is not mapped yet", probe.library)),
            function: probe.function.to_owned(),
            library: None,
            symbol: None,
            demangled: None,
            address: None,
            offset: None,
            instruction: None,
            kind: None,
        };
        let Some((file, located)) = found else {
            return place;
        };
        let error = match located {
            Ok(located) => {
                place.fill(tgid, maps, file, &located);
                return place;
            }
            Err(error) => error,
        };
        if let (AttachError::NoFunction { .. }, Need::WhereItIs) = (&error, probe.need) {
            let words = format!("{} is not in this version", probe.function);
            place.finding = Finding::note("probe", words);
            return place;
        }
        let finding = Finding::from_error("probe", Level::Warn, error);
        let found = match probe.need {
            Need::WhereItIs => finding.found,
            Need::Allocator => format!("{}; {WITHOUT_BLOCKS}", finding.found),
            Need::Optional(without) => format!("{}; {without}", finding.found),
        };
        place.finding = Finding { found, ..finding };
        place
    }

    /// Writes down where it goes: what its library's file has there.
    fn fill(&mut self, tgid: Tgid, maps: &Maps, file: &MappedFile, located: &Located) {
        let offset = located.probed_offset();
        let names = located.probe.symbols;
        let image = ElfImage::open(&located.file).ok();
        let symbols = image.and_then(|image| image.symbols(names).ok());
        let at = symbols.and_then(|symbols| symbols.iter().position(Option::is_some));
        self.symbol = at.and_then(|at| Some((*names.get(at)?).to_owned()));
        self.library = Some(located.library.clone());
        self.offset = Some(located.place.offset);
        self.address = file.address_of(offset);
        self.instruction = self.address.and_then(|address| {
            let mut code = [0; LONGEST_INSTRUCTION];
            ProcessMemory::new(tgid).read(address, &mut code).ok()?;
            // A breakpoint is there where somebody probes the process already.
            written(&code, address)
        });
        self.kind = Some(if located.place.emulated {
            "emulated"
        } else {
            "single-stepped"
        });
        let names = ElfImage::open(&located.file).and_then(FunctionNames::of);
        let name = names.ok().and_then(|names| names.at(offset));
        self.demangled = name.map(|name| {
            let name_as_is = || String::from_utf8_lossy(&name).into_owned();
            demangled(&name).unwrap_or_else(name_as_is)
        });
        let name = Path::new(&located.library).file_name().unwrap_or_default();
        let text = format!("in {}", name.to_string_lossy());
        let entry = patch::entries(tgid, file, std::iter::once(&located.code)).pop();
        self.finding = match entry {
            Some(EntryState::PatchedOver(patch)) => {
                self.kind = Some("left alone");
                let found = format!("{text}; {}", patch.described(maps));
                Finding::warn("probe", found, patch::REMEDY)
            }
            Some(EntryState::PatchedBefore(patch)) => {
                let found = format!("{text}, behind a hook; {}", patch.described(maps));
                Finding::note("probe", found)
            }
            Some(EntryState::Writable) => {
                self.kind = Some("left alone");
                let writable = "the process may write this memory, where the kernel puts no probe";
                Finding::note("probe", format!("{text}; {writable}"))
            }
            _ if located.place.emulated => Finding::ok("probe", text),
            _ => Finding::note("probe", text),
        };
    }
}

//! Finding the probed functions in a process and attaching to them.

use std::fmt;
use std::path::PathBuf;

use memprobe_common::{ProcessConfig, ThreadLocal};

use super::catalog::{CODE_FREED, CURRENT_GRAPH_TASK, Need, PROBES, Probe, TORCH_CPU};
use super::loader::Loader;
use super::prologue::{Place, SEARCHED};
use crate::cuda::Api;
use crate::event::Tgid;
use crate::model::snapshot::ProbeStatus;
use crate::symbolize::python::{DetectError, PythonProcess};
use crate::target::elf::{ElfError, ElfImage, LoadedImage};
use crate::target::maps::{MappedFile, Maps};
use crate::target::memory::{ProcessMemory, ReadMemory as _};

/// The library that holds the caching allocator: only PyTorch built with CUDA has it.
const CUDA_ALLOCATOR: &str = "libc10_cuda.so";

/// The library that a PyTorch loads last, with or without CUDA.
const PYTHON_BINDINGS: &str = "libtorch_python.so";

/// One probe and where in this process it goes.
#[derive(Debug)]
pub struct Located {
    /// What is probed.
    pub probe: &'static Probe,
    /// The library file, as the kernel can open it.
    pub file: PathBuf,
    /// The library file, as people know it.
    pub library: String,
    /// Where in the file the function begins.
    pub function_offset: u64,
    /// Where in the function the entry program goes.
    pub place: Place,
}

impl Located {
    /// Finds a probe's function in a process; `None` while its library is not mapped.
    ///
    /// # Errors
    /// Where the library cannot be read or has no such function.
    pub fn find(
        probe: &'static Probe,
        tgid: Tgid,
        maps: &Maps,
    ) -> Option<Result<Self, AttachError>> {
        let library = maps.library(probe.library)?;
        Some(Self::find_at(probe, tgid, &library, |image| {
            let symbol = image.first_symbol(probe.symbols)?;
            Ok(symbol.map(|symbol| symbol.vaddr))
        }))
    }

    /// Finds the function by which a Python frees code objects.
    ///
    /// # Errors
    /// Where Python's file cannot be read.
    pub fn find_code_freed(tgid: Tgid, python: &PythonProcess) -> Result<Self, AttachError> {
        Self::find_at(&CODE_FREED, tgid, &python.library, |_| {
            Ok(Some(python.code_dealloc))
        })
    }

    fn find_at(
        probe: &'static Probe,
        tgid: Tgid,
        mapped: &MappedFile,
        address: impl FnOnce(&ElfImage) -> Result<Option<u64>, ElfError>,
    ) -> Result<Self, AttachError> {
        let library = mapped.path.display().to_string();
        let unreadable = |why: String| AttachError::Library {
            library: library.clone(),
            why,
        };
        let (open, file) = mapped
            .open(tgid)
            .map_err(|error| unreadable(error.to_string()))?;
        let image = ElfImage::from_file(open).map_err(|error| unreadable(error.to_string()))?;
        let address = address(&image)
            .map_err(|error| unreadable(error.to_string()))?
            .ok_or_else(|| AttachError::NoFunction {
                function: probe.function,
                library: library.clone(),
            })?;
        let code = image.bytes_at(address, SEARCHED).unwrap_or_default();
        let function_offset = image
            .file_offset_of(address)
            .ok_or_else(|| unreadable(format!("{} lies outside the file", probe.function)))?;
        // The kernel takes the return address at the entry: both programs go there.
        let place = if probe.returns.is_some() {
            Place::entry(&code)
        } else {
            Place::find(&code, probe.reads)
        };
        Ok(Self {
            probe,
            file,
            library,
            function_offset,
            place,
        })
    }

    /// What is told of it.
    pub fn status(&self) -> ProbeStatus {
        ProbeStatus {
            function: self.probe.function.to_owned(),
            library: self.library.clone(),
            offset: self.place.offset,
            emulated: self.place.emulated,
        }
    }

    fn attach(&self, loader: &mut Loader, tgid: Tgid) -> Result<(), AttachError> {
        let refused = |error: anyhow::Error| AttachError::Refused {
            function: self.probe.function,
            why: format!("{error:#}"),
        };
        if let Some(program) = self.probe.returns {
            loader
                .attach(program, &self.file, self.function_offset, None, tgid)
                .map_err(refused)?;
        }
        let entry = self.function_offset + self.place.offset;
        loader
            .attach(self.probe.entry, &self.file, entry, self.probe.cookie, tgid)
            .map_err(refused)
    }
}

/// Attaching to a process that may not be ready yet.
pub struct Attaching {
    tgid: Tgid,
    python: Option<PythonProcess>,
    /// Whether its events are let through.
    watched: bool,
    /// By probe: whether it was dealt with.
    done: Vec<bool>,
    attached: Vec<ProbeStatus>,
    missing: Vec<String>,
}

/// How far attaching has come.
pub enum Step {
    /// Every probe is in place. `None` in a process that runs no Python.
    Done(Option<PythonProcess>),
    /// Not yet, and what is waited for.
    Waiting(String),
}

impl Attaching {
    /// Nothing is attached yet.
    pub fn new(tgid: Tgid) -> Self {
        Self {
            tgid,
            python: None,
            watched: false,
            done: vec![false; PROBES.len()],
            attached: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Does what can be done now.
    ///
    /// # Errors
    /// When the process cannot be probed, with what to do.
    pub fn step(&mut self, loader: &mut Loader) -> Result<Step, AttachError> {
        let python = match &self.python {
            Some(python) => python.clone(),
            None if self.watched => return self.step_without_python(loader),
            None => match PythonProcess::detect(self.tgid) {
                Ok(python) => {
                    self.prepare(loader, &python)?;
                    self.python.insert(python).clone()
                }
                Err(DetectError::NotInitializedYet) => {
                    let what = format!("waiting for Python to start in PID {}", self.tgid.0);
                    return Ok(Step::Waiting(what));
                }
                Err(DetectError::NotPython) if uses_cuda(self.tgid) => {
                    self.watch(loader, ProcessConfig::default())?;
                    return self.step_without_python(loader);
                }
                Err(error) => return Err(AttachError::Python(self.tgid, error)),
            },
        };
        let maps =
            Maps::of(self.tgid).map_err(|error| AttachError::Gone(self.tgid, error.to_string()))?;
        self.attach_mapped(loader, &maps)?;
        if self.is_enough() {
            return Ok(Step::Done(Some(python)));
        }
        if was_built_without_cuda(self.tgid, &maps) {
            return Err(AttachError::NoCuda(self.tgid));
        }
        let what = format!("waiting for PID {} to import PyTorch", self.tgid.0);
        Ok(Step::Waiting(what))
    }

    /// Attaches to the CUDA of a program that runs no Python.
    fn step_without_python(&mut self, loader: &mut Loader) -> Result<Step, AttachError> {
        let maps =
            Maps::of(self.tgid).map_err(|error| AttachError::Gone(self.tgid, error.to_string()))?;
        self.attach_mapped(loader, &maps)?;
        Ok(Step::Done(None))
    }

    /// Whether every probe is in place that a PyTorch has.
    fn is_enough(&self) -> bool {
        let mut probes = PROBES.iter().zip(&self.done);
        probes.all(|(probe, done)| *done || probe.need == Need::WhereItIs)
    }

    /// Lets the process's events through and attaches to its Python.
    fn prepare(&mut self, loader: &mut Loader, python: &PythonProcess) -> Result<(), AttachError> {
        let config = ProcessConfig {
            python: python.kernel_config(),
            generation: 0,
        };
        self.watch(loader, config)?;
        let located = Located::find_code_freed(self.tgid, python);
        self.attach(loader, &CODE_FREED, located)
    }

    /// Lets the process's events through.
    fn watch(&mut self, loader: &mut Loader, config: ProcessConfig) -> Result<(), AttachError> {
        self.watched = true;
        loader
            .watch(self.tgid, config)
            .map_err(|error| AttachError::Refused {
                function: "the filter",
                why: format!("{error:#}"),
            })
    }

    /// Attaches every probe whose library is mapped.
    fn attach_mapped(&mut self, loader: &mut Loader, maps: &Maps) -> Result<(), AttachError> {
        let tgid = self.tgid;
        // All are located before the first is attached: from then on events come, and nobody reads
        // them yet.
        let pending = PROBES
            .iter()
            .zip(&mut self.done)
            .filter(|(_, done)| !**done);
        let located: Vec<_> = pending
            .filter_map(|(probe, done)| {
                let located = Located::find(probe, tgid, maps)?;
                *done = true;
                Some((probe, located))
            })
            .collect();
        for (probe, located) in located {
            if probe.library == TORCH_CPU {
                self.find_graph_task(loader, maps);
            }
            self.attach(loader, probe, located)?;
        }
        Ok(())
    }

    /// Tells the programs where autograd's threads keep the `GraphTask` that they work for. Where
    /// that is not known, only a backward pass that runs alone has a line.
    fn find_graph_task(&mut self, loader: &mut Loader, maps: &Maps) {
        let place = graph_task_place(self.tgid, maps);
        let known = place.is_some_and(|place| loader.watch_graph_tasks(self.tgid, place).is_ok());
        if !known {
            let why = "autograd's current_graph_task was not found: when several threads run backward() \
                       at once, their memory has no line";
            self.missing.push(why.to_owned());
        }
    }

    fn attach(
        &mut self,
        loader: &mut Loader,
        probe: &Probe,
        located: Result<Located, AttachError>,
    ) -> Result<(), AttachError> {
        let attached = located.and_then(|located| {
            located.attach(loader, self.tgid)?;
            Ok(located.status())
        });
        match (attached, probe.need) {
            (Ok(status), _) => self.attached.push(status),
            (Err(AttachError::NoFunction { .. }), Need::WhereItIs) => {}
            (Err(error), Need::WhereItIs) => self.missing.push(error.to_string()),
            (Err(error), Need::Optional(without)) => {
                self.missing.push(format!("{error}: {without}"))
            }
        }
        Ok(())
    }

    /// Where the probes sit, and what is missing for want of a probe.
    pub fn into_probes(self) -> (Vec<ProbeStatus>, Vec<String>) {
        (self.attached, self.missing)
    }
}

/// Where the threads of a process keep the `GraphTask` that they work for.
fn graph_task_place(tgid: Tgid, maps: &Maps) -> Option<ThreadLocal> {
    let library = maps.library(TORCH_CPU)?;
    let loaded = LoadedImage::open(&library, tgid).ok()?;
    let offset = loaded.image.thread_local(CURRENT_GRAPH_TASK).ok()??;
    let number = loaded.image.thread_local_number().ok()??;
    let module = ProcessMemory::new(tgid)
        .read_u64(number.wrapping_add(loaded.bias))
        .ok()
        .filter(|module| *module > 0)?;
    Some(ThreadLocal { module, offset })
}

/// Whether a process has loaded one of CUDA's libraries.
fn uses_cuda(tgid: Tgid) -> bool {
    Maps::of(tgid).is_ok_and(|maps| {
        let apis = [Api::Runtime, Api::Driver];
        apis.iter().any(|api| maps.library(api.library()).is_some())
    })
}

/// Whether the PyTorch of a process has no CUDA allocator. While it is being imported, its
/// libraries are mapped one by one; those that will be lie beside one another as files.
fn was_built_without_cuda(tgid: Tgid, maps: &Maps) -> bool {
    let Some(bindings) = maps.library(PYTHON_BINDINGS) else {
        return false;
    };
    let beside = bindings.path.with_file_name(CUDA_ALLOCATOR);
    let beside = beside.strip_prefix("/").unwrap_or(&beside);
    let root = PathBuf::from(format!("/proc/{}/root", tgid.0));
    maps.library(CUDA_ALLOCATOR).is_none() && !root.join(beside).exists()
}

/// Why a process cannot be probed.
#[derive(Debug)]
pub enum AttachError {
    /// The process has ended or may not be looked at.
    Gone(Tgid, String),
    /// It is not a Python that memprobe knows.
    Python(Tgid, DetectError),
    /// Its PyTorch was built without CUDA.
    NoCuda(Tgid),
    /// A library cannot be read.
    Library {
        /// The library.
        library: String,
        /// Why.
        why: String,
    },
    /// A library lacks a function.
    NoFunction {
        /// The function.
        function: &'static str,
        /// The library.
        library: String,
    },
    /// The kernel refused.
    Refused {
        /// What was to be attached.
        function: &'static str,
        /// What it said.
        why: String,
    },
}

impl AttachError {
    /// Whether it can pass by itself while a process is starting: a shell that will become Python.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Python(..) | Self::Gone(..))
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(tgid, why) => write!(f, "process {} cannot be looked at: {why}", tgid.0),
            Self::Python(tgid, error) => write!(f, "process {}: {error}", tgid.0),
            Self::NoCuda(tgid) => write!(
                f,
                "the PyTorch of process {} was built without CUDA: it has no GPU memory to show.\n\
                 Install PyTorch with CUDA to see GPU memory.",
                tgid.0
            ),
            Self::Library { library, why } => write!(f, "{library} cannot be read: {why}"),
            Self::NoFunction { function, library } => write!(
                f,
                "{library} has no function {function}: memprobe knows the official x86-64 wheels of PyTorch 2.0 to \
                 2.15.\nPlease report the version and where it comes from."
            ),
            Self::Refused { function, why } => write!(f, "attaching to {function}: {why}"),
        }
    }
}

impl std::error::Error for AttachError {}

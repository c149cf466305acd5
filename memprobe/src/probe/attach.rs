//! Finding a probed function in a library, and attaching to it.

use std::path::PathBuf;
use std::sync::Arc;

use memprobe_common::ThreadLocal;

use super::call_site;
use super::catalog::{CODE_FREED, Probe, TRACEPOINTS, ThreadVariable};
use super::loader::{Link, Loader, ProbedFunction, Reach};
use super::patch::FileCode;
use super::prologue::{ProbePlace, SEARCHED};
use super::tracepoint;
use crate::event::{ProbeStatus, Tgid};
use crate::process::elf::{ElfError, ElfImage, LoadedImage, Symbol, Tracepoint};
use crate::process::maps::{MappedFile, Maps};
use crate::process::memory::{ProcessMemory, ReadMemory as _};
use crate::process::root::ProcessRoot;
use crate::python::{DetectError, PythonProcess};

/// The library that holds the caching allocator: only PyTorch built with CUDA has it.
const CUDA_ALLOCATOR: &str = "libc10_cuda.so";

/// The library that a PyTorch loads last, with or without CUDA.
const PYTHON_BINDINGS: &str = "libtorch_python.so";

/// Libraries of PyTorch, in the order in which the import maps them.
const PYTORCH: [&str; 3] = ["libtorch_global_deps.so", "libtorch.so", "libc10.so"];

#[derive(Debug)]
pub struct Located {
    pub probe: &'static Probe,
    /// The library file, as the kernel can open it.
    pub file: PathBuf,
    pub library: String,
    /// The function's first bytes in the file.
    pub code: FileCode,
    pub place: ProbePlace,
    cookie: Option<u64>,
}

impl Located {
    pub fn find_in(probe: &'static Probe, tgid: Tgid, library: &MappedFile) -> Result<Self> {
        Self::find_at(probe, tgid, library, |image| {
            let function = image.first_symbol(probe.symbols)?;
            match (function, probe.callee) {
                (Some(caller), Some(callee)) => call_site::find(image, caller, callee).map(Some),
                _ => Ok(function),
            }
        })
    }

    pub fn find_code_freed(tgid: Tgid, python: &PythonProcess) -> Result<Self> {
        Self::find_at(&CODE_FREED, tgid, &python.library, |_| {
            Ok(Some(without_size(python.code_dealloc)))
        })
    }

    /// Finds the tracepoints of the caching allocator in one of the libraries of a process; each has a
    /// place wherever its function was inlined. Without [`AttachError::NoFunction`] for one that is not
    /// there: other libraries may have it.
    pub fn find_tracepoints(
        tgid: Tgid,
        library: &MappedFile,
    ) -> Vec<(&'static Probe, Result<Self>)> {
        let unreadable = |reason: String| AttachError::Library {
            library: library.path.display().to_string(),
            reason,
        };
        let image = library.open(tgid).map_err(ElfError::from);
        let image = match image.and_then(|(open, _)| ElfImage::from_file(open)) {
            Ok(image) => image,
            Err(error) => {
                let error = unreadable(error.to_string());
                let probe = TRACEPOINTS.first();
                return probe.map(|probe| (probe, Err(error))).into_iter().collect();
            }
        };
        let found = image.tracepoints();
        let mut located = Vec::new();
        for (probe, (number, function)) in TRACEPOINTS.iter().zip(crate::cuda::calls::tracepoints())
        {
            let is_it = |tracepoint: &&Tracepoint| {
                let name = function.name.split_once(':');
                name == Some((&tracepoint.provider, &tracepoint.name))
            };
            for tracepoint in found.iter().filter(is_it) {
                let cookie = tracepoint::cookie(number, tracepoint);
                let (Some(cookie), Some(places)) = (cookie, tracepoint::passed(&image, tracepoint))
                else {
                    let reason = match cookie {
                        Some(_) => "there is no certain place for a probe",
                        None => &tracepoint.operands,
                    };
                    let name = function.name;
                    let error = unreadable(format!(
                        "its tracepoint {name} is not understood ({reason})"
                    ));
                    located.push((probe, Err(error)));
                    continue;
                };
                let cookie = Some(cookie.to_word());
                for vaddr in places {
                    let symbol = without_size(vaddr);
                    let found = Self::find_at(probe, tgid, library, |_| Ok(Some(symbol)));
                    located.push((probe, found.map(|found| Self { cookie, ..found })));
                }
            }
        }
        // With only one of the two, blocks would never be freed, or be freed without an allocation.
        let has = |probe: &Probe| {
            let mut known = located.iter().filter(|(_, found)| found.is_ok());
            known.any(|(known, _): &(&Probe, _)| known.function == probe.function)
        };
        let is_whole =
            located.iter().all(|(_, found)| found.is_ok()) && TRACEPOINTS.iter().all(has);
        if !is_whole {
            located.retain(|(_, found)| found.is_err());
        }
        located
    }

    fn find_at(
        probe: &'static Probe,
        tgid: Tgid,
        mapped: &MappedFile,
        symbol: impl FnOnce(&ElfImage) -> Result<Option<Symbol>, ElfError>,
    ) -> Result<Self> {
        let library = mapped.path.display().to_string();
        let unreadable = |reason: String| AttachError::Library {
            library: library.clone(),
            reason,
        };
        let open = mapped.open(tgid).map_err(ElfError::from);
        let found = open.and_then(|(open, file)| {
            let image = ElfImage::from_file(open)?;
            let symbol = symbol(&image)?;
            Ok((file, image, symbol))
        });
        let (file, image, symbol) = found.map_err(|error| unreadable(error.to_string()))?;
        let symbol = symbol.ok_or_else(|| AttachError::NoFunction {
            function: probe.function,
            library: library.clone(),
        })?;
        let bytes = image.bytes_at(symbol.vaddr, SEARCHED).unwrap_or_default();
        let offset = image.file_offset_of(symbol.vaddr);
        let outside = || unreadable(format!("{} lies outside the file", probe.function));
        let offset = offset.ok_or_else(outside)?;
        let place = ProbePlace::find(&bytes, probe.reads);
        Ok(Self {
            probe,
            file,
            library,
            code: FileCode::new(offset, bytes, symbol.size, place),
            place,
            cookie: probe.cookie,
        })
    }

    /// Offset in the file of the probed instruction, in bytes.
    pub fn probed_offset(&self) -> u64 {
        self.code.offset + self.place.offset
    }

    pub fn status(&self) -> ProbeStatus {
        ProbeStatus {
            function: self.probe.function.to_owned(),
            library: self.library.clone(),
            offset: self.place.offset,
            emulated: self.place.emulated,
        }
    }

    /// Attaches a probe that is not on a function of CUDA ([`attach_cuda`]).
    pub fn attach(&self, loader: &mut Loader, reach: Reach) -> Result<Link> {
        let offset = self.probed_offset();
        let link = loader.attach(self.probe.entry, &self.file, offset, self.cookie, reach);
        link.map_err(|error| AttachError::refused(self.probe.function, &error))
    }
}

/// A function of which the address alone is known.
fn without_size(vaddr: u64) -> Symbol {
    Symbol { vaddr, size: 0 }
}

/// Attaches to functions of CUDA in one file; each has its own verdict, but they share the kernel's.
pub fn attach_cuda(located: &[Located], loader: &mut Loader, reach: Reach) -> Result<Vec<Link>> {
    let Some(first) = located.first() else {
        return Ok(Vec::new());
    };
    let function = |located: &Located| {
        Some(ProbedFunction {
            offset: located.probed_offset(),
            cookie: located.cookie?,
        })
    };
    let mut functions: Vec<_> = located.iter().filter_map(function).collect();
    // Two names of one function are one function.
    functions.sort_by_key(|function| function.offset);
    functions.dedup_by_key(|function| function.offset);
    loader
        .attach_cuda(&first.file, &functions, reach)
        .map_err(|error| AttachError::refused(first.probe.function, &error))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableSymbol {
    /// Offset of the variable in the library's thread-local block, in bytes.
    offset: u64,
    /// Address, in the file, of the word that holds the library's number among those with thread-local storage.
    number: u64,
}

impl VariableSymbol {
    /// Looks into a library; `None` where it does not say. The answer holds for every process with the file.
    pub fn find(tgid: Tgid, library: &MappedFile, variable: &ThreadVariable) -> Option<Self> {
        let image = ElfImage::from_file(library.open(tgid).ok()?.0).ok()?;
        Some(Self {
            offset: image.thread_local(variable.symbols).ok()??,
            number: image.thread_local_number().ok()??,
        })
    }

    /// Place of the variable in the threads of a process; `None` until the dynamic loader has numbered the library.
    pub fn place(self, tgid: Tgid, library: &MappedFile) -> Option<ThreadLocal> {
        let loaded = LoadedImage::open(library, tgid).ok()?;
        let number = self.number.wrapping_add(loaded.bias);
        let module = ProcessMemory::new(tgid).read_u64(number).ok()?;
        let offset = self.offset;
        (module > 0).then_some(ThreadLocal { module, offset })
    }
}

/// True if the process has PyTorch with a CUDA allocator, or its import has begun. It maps `libtorch_global_deps` before
/// all libraries of CUDA (torch/__init__.py@v2.15.0, `_load_global_deps`).
pub fn expects_allocator(tgid: Tgid, maps: &Maps) -> bool {
    let mut pytorch = PYTORCH.iter();
    pytorch.any(|name| maps.library(name).is_some()) && !was_built_without_cuda(tgid, maps)
}

/// True if the PyTorch of a process has no CUDA allocator. During the import its libraries are
/// mapped one by one, so the files beside those already mapped are looked at too.
pub fn was_built_without_cuda(tgid: Tgid, maps: &Maps) -> bool {
    let Some(bindings) = maps.library(PYTHON_BINDINGS) else {
        return false;
    };
    let sibling = bindings.path.with_file_name(CUDA_ALLOCATOR);
    let is_missing = || {
        let opened = ProcessRoot::of(tgid).and_then(|root| root.open_shown(&sibling));
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    maps.library(CUDA_ALLOCATOR).is_none() && !bindings.deleted && is_missing()
}

pub type Result<T, E = AttachError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process has ended or may not be looked at.
    #[error("process {tgid} cannot be looked at: {1}", tgid = .0.0)]
    Gone(Tgid, String),
    /// Not a Python that memprobe knows.
    #[error("process {tgid}: {1}", tgid = .0.0)]
    Python(Tgid, DetectError),
    #[error(
        "the PyTorch of process {} was built without CUDA: it has no GPU memory to show.\n\
         Give --cpu to see the memory of its CPU tensors.", .0.0
    )]
    NoCuda(Tgid),
    /// Neither Python nor a user of CUDA, so far.
    #[error(
        "process {}: it runs neither Python nor CUDA: only the driver's figure is known", .0.0
    )]
    Unrelated(Tgid),
    #[error("{library} cannot be read: {reason}")]
    Library { library: String, reason: String },
    #[error(
        "{library} has no function {function}: memprobe knows the official x86-64 wheels of PyTorch 2.0 to 2.15.\n\
         Please report the version and where it comes from."
    )]
    NoFunction {
        function: &'static str,
        library: String,
    },
    /// The process has rewritten the function in its memory.
    #[error("{function} of {library} is {how}: no probe may be there")]
    Patched {
        function: &'static str,
        library: String,
        how: String,
    },
    #[error("attaching to {function}: {reason}")]
    Refused {
        function: &'static str,
        reason: String,
    },
    /// Error of an earlier attempt on the same file, made for another process.
    #[error("{0}")]
    Shared(Arc<AttachError>),
}

impl AttachError {
    pub fn refused(function: &'static str, error: &anyhow::Error) -> Self {
        Self::Refused {
            function,
            reason: format!("{error:#}"),
        }
    }

    /// True if the error can pass while a process starts: a shell that will become Python.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Python(..) | Self::Gone(..))
    }

    /// True if the process is irrelevant to memprobe: a shell, a launcher.
    pub fn is_no_python(&self) -> bool {
        self.is_not_python()
            || match self {
                Self::Python(_, error) => error.is_of_the_end(),
                Self::Gone(..) => true,
                _ => false,
            }
    }

    /// True if a process that runs is another program than Python.
    pub fn is_not_python(&self) -> bool {
        matches!(self, Self::Python(_, DetectError::NotPython))
    }
}

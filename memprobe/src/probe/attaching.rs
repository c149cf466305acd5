//! One process on its way to being probed: what it is, and which of its files are probed.

use std::sync::Arc;
use std::time::Instant;

use memprobe_common::{ProcessConfig, ThreadLocal, process_flag};

use super::attach::{AttachError, Located, Result, expects_allocator, was_built_without_cuda};
use super::catalog::{
    Allocators, BY_TRACEPOINTS, CODE_FREED, CUDA_LIBRARIES, DYNAMIC_LOADERS, Detail, DriverCalls,
    EMPTY, EMPTY_STRIDED, LIBRARY_MAPPED, Need, PROBES, Probe, THREAD_VARIABLES,
    TRACEPOINT_LIBRARIES, TRACEPOINTS, ThreadVariable, WITHOUT_BLOCKS, WITHOUT_DRIVER,
};
use super::files::{FileKey, Probed, ProbedFiles, add_new};
use super::loader::{Loader, Reach, Wanted, Watch};
use crate::cuda::calls::{Api, FUNCTIONS};
use crate::event::{CaptureLevel, ProbeStatus, Tgid, TimeNs};
use crate::process::maps::{DeviceNumber, MappedFile, Maps};
use crate::process::pause::{Sleepers, while_paused};
use crate::python::{DetectError, PythonProcess};

#[derive(Debug)]
pub enum AttachStep {
    Again,
    /// Every probe is in place that memprobe cannot do without.
    Done,
    /// Not yet, and what is waited for.
    Waiting(String),
}

/// State of a process while probes are placed on the libraries that it has just mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Running,
    /// For programs that memprobe starts: none of their calls comes before its probe.
    Paused,
}

/// A process that is being probed, and stays so as it loads more.
#[derive(Clone)]
pub struct Attaching {
    tgid: Tgid,
    wanted: Wanted,
    placement: Placement,
    pub python: Option<PythonProcess>,
    /// The files that were there when no Python was found: with the same ones there is none.
    not_python: Option<Vec<(DeviceNumber, u64)>>,
    config: ProcessConfig,
    files: Vec<FileKey>,
    /// Its files with functions of CUDA, as they were mapped when they were looked at last.
    cuda_files: Vec<(FileKey, MappedFile)>,
    pub probes: Vec<ProbeStatus>,
    missing: Vec<String>,
    left_alone: Vec<String>,
    /// True if its dynamic loader reports each library that it maps, so that polling is not needed.
    pub has_loader: bool,
    /// Its caching allocator has no function to be heard by: what was looked for.
    lacks_allocator: Option<String>,
    variables: [Search; THREAD_VARIABLES.len()],
    is_starting: bool,
    /// True if CUDA's driver was mapped at the first look; `None` before it.
    had_driver: Option<bool>,
    /// Detail that the programs record at present.
    level: CaptureLevel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Search {
    /// Its library is not mapped.
    #[default]
    Unneeded,
    /// The loader has not set it up.
    Waiting,
    Over,
}

/// Family of the probes on tracepoints, distinct from others in the same file.
const TRACEPOINT_FAMILY: &str = "tracepoints";

impl Attaching {
    pub fn new(tgid: Tgid, wanted: Wanted, placement: Placement) -> Self {
        let flags = [
            (wanted.watch != Watch::One, process_flag::CHILDREN),
            (
                wanted.allocators == Allocators::CudaAndCpu,
                process_flag::CPU,
            ),
            (wanted.detail == Detail::Full, process_flag::BLOCK_STACKS),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set);
        Self {
            tgid,
            wanted,
            placement,
            python: None,
            not_python: None,
            config: ProcessConfig {
                flags: flags.fold(0, |all, (_, flag)| all | flag),
                ..ProcessConfig::default()
            },
            files: Vec::new(),
            cuda_files: Vec::new(),
            probes: Vec::new(),
            missing: Vec::new(),
            left_alone: Vec::new(),
            has_loader: false,
            lacks_allocator: None,
            variables: Default::default(),
            is_starting: false,
            had_driver: None,
            level: CaptureLevel::Full,
        }
    }

    /// The state of a process that this one has just made by `fork`: its memory is a copy, and the
    /// kernel's programs know of it what they knew of this one.
    pub fn fork(&self, child: Tgid, files: &mut ProbedFiles) -> Self {
        let mut copy = self.clone();
        copy.tgid = child;
        if let Some(python) = &mut copy.python {
            python.tgid = child;
        }
        copy.files.retain(|key| files.share(*key, child).is_some());
        copy
    }

    pub fn config(&self, now: TimeNs) -> ProcessConfig {
        let mut config = ProcessConfig {
            generation: now.0,
            ..self.config
        };
        if self.level >= CaptureLevel::WithoutShapes {
            // Every block would seem to be without a tensor, and come with a copy of the stack.
            config.flags &= !process_flag::BLOCK_STACKS;
        }
        if self.level >= CaptureLevel::WithoutGraph {
            config.evaluating_node = ThreadLocal::default();
        }
        if self.level >= CaptureLevel::WithoutModules {
            config.module_call = 0;
        }
        config
    }

    /// Sets the detail that the programs record from the start.
    pub fn begin_at(&mut self, level: CaptureLevel) {
        self.level = level;
    }

    /// Sets the detail that the programs record; the probes are set in [`ProbedFiles::set_level`].
    pub fn set_level(
        &mut self,
        loader: &mut Loader,
        level: CaptureLevel,
        now: TimeNs,
    ) -> Result<()> {
        self.level = level;
        self.update_filter(loader, now)
    }

    /// Forgets all: the process runs another program, or has ended.
    pub fn forget(&mut self, files: &mut ProbedFiles, now: Instant) {
        for key in &self.files {
            files.leave(*key, self.tgid, now);
        }
        let level = self.level;
        *self = Self::new(self.tgid, self.wanted, self.placement);
        self.level = level;
    }

    /// Finds out anew what Python it runs: what was known may be out of date.
    pub fn doubt(&mut self) {
        self.python = None;
        self.not_python = None;
        self.variables = Default::default();
    }

    /// True if memprobe has looked and found no Python.
    pub fn runs_no_python(&self) -> bool {
        self.python.is_none() && self.not_python.is_some()
    }

    /// Sentences on what is not seen, one for each missing probe.
    pub fn missing(&self) -> Vec<String> {
        let allocator = self.lacks_allocator.as_ref().map(|looked_for| {
            // One of the two tracepoints alone would give wrong totals.
            let mut probes = TRACEPOINTS.iter();
            let both = probes.all(|probe| self.has_function(probe.function));
            let instead = if both { BY_TRACEPOINTS } else { WITHOUT_BLOCKS };
            format!("{looked_for}: {instead}")
        });
        let driver = match self.wanted.driver {
            DriverCalls::Probed => None,
            DriverCalls::LeftAlone => Some(WITHOUT_DRIVER.to_owned()),
        };
        let others = self.missing.iter().chain(&self.left_alone).cloned();
        allocator.into_iter().chain(driver).chain(others).collect()
    }

    /// True if memprobe must poll for something that no probe reports.
    pub fn is_impatient(&self) -> bool {
        self.is_starting || self.variables.contains(&Search::Waiting)
    }

    /// Does what can be done now. Probes one file at most, or all if the process is paused for it.
    pub fn step(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        now: TimeNs,
    ) -> Result<AttachStep> {
        let maps =
            Maps::of(self.tgid).map_err(|error| AttachError::Gone(self.tgid, error.to_string()))?;
        self.had_driver.get_or_insert_with(|| has_driver(&maps));
        self.follow_loader(loader, files, &maps);
        for (_, file) in &mut self.cuda_files {
            if let Some(current) = maps.again(file) {
                *file = current;
            }
        }
        self.is_starting = false;
        if self.python.is_none() {
            match self.find_python(&maps) {
                Ok(python) => self.use_python(loader, files, python, now)?,
                Err(AttachError::Python(_, DetectError::NotInitializedYet)) => {
                    self.is_starting = true;
                    let what = format!("waiting for Python to start in PID {}", self.tgid.0);
                    return Ok(AttachStep::Waiting(what));
                }
                // A program without Python may use the GPU all the same.
                Err(AttachError::Python(_, DetectError::NotPython)) if uses_cuda(&maps) => {}
                Err(error) => return Err(error),
            }
        }
        if self.placement == Placement::Paused && self.pending(&maps).is_some() {
            return self.place_paused(loader, files, &maps, now);
        }
        self.place(loader, files, &maps, now)
    }

    /// Probes every file that is mapped by now while the process is paused. If it cannot be paused (a debugger may be
    /// attached), it runs on here and from now on; the startup check reports memory that comes before the probes.
    fn place_paused(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        maps: &Maps,
        now: TimeNs,
    ) -> Result<AttachStep> {
        let paused = while_paused(self.tgid, Sleepers::Left, || {
            loop {
                match self.place(loader, files, maps, now) {
                    Ok(AttachStep::Again) => {}
                    ended => break ended,
                }
            }
        });
        match paused {
            Ok(paused) => paused.result,
            Err(_) => {
                self.placement = Placement::Running;
                self.place(loader, files, maps, now)
            }
        }
    }

    fn place(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        maps: &Maps,
        now: TimeNs,
    ) -> Result<AttachStep> {
        // Before the probes: the first event may be in a backward pass.
        self.find_variables(loader, files, maps, now)?;
        if let Some((family, file)) = self.pending(maps) {
            self.probe(loader, files, family, &file)?;
            return Ok(AttachStep::Again);
        }
        if let Some(file) = self.untold(maps) {
            let probed = self.probe_file(loader, files, &file, TRACEPOINT_FAMILY, |tgid| {
                Located::find_tracepoints(tgid, &file)
            });
            self.note(&probed)?;
            return Ok(AttachStep::Again);
        }
        if self.is_complete(maps) {
            return Ok(AttachStep::Done);
        }
        let is_of_interest = self.wanted.allocators == Allocators::CudaAndCpu;
        if !is_of_interest && was_built_without_cuda(self.tgid, maps) {
            return Err(AttachError::NoCuda(self.tgid));
        }
        Ok(AttachStep::Waiting(self.missing_library(maps)))
    }

    fn missing_library(&self, maps: &Maps) -> String {
        let pid = self.tgid.0;
        let is_left_alone = self.wanted.driver == DriverCalls::LeftAlone && has_driver(maps);
        if is_left_alone && !expects_allocator(self.tgid, maps) {
            format!(
                "waiting for PID {pid} to load CUDA's runtime: it has libcuda alone, in which \
                 --no-driver leaves every function unprobed"
            )
        } else {
            format!("waiting for PID {pid} to import PyTorch or to load CUDA's driver")
        }
    }

    fn reach(&self) -> Reach {
        match self.wanted.watch {
            Watch::One => Reach::Process(self.tgid),
            Watch::Family | Watch::Everyone => Reach::Everyone,
        }
    }

    /// Has the process's dynamic loader tell of every library that it maps.
    fn follow_loader(&mut self, loader: &mut Loader, files: &mut ProbedFiles, maps: &Maps) {
        if self.has_loader {
            return;
        }
        let Some(file) = DYNAMIC_LOADERS.iter().find_map(|name| maps.library(name)) else {
            return;
        };
        let family = LIBRARY_MAPPED.library;
        let probed = self.probe_file(loader, files, &file, family, |tgid| {
            vec![(
                &LIBRARY_MAPPED,
                Located::find_in(&LIBRARY_MAPPED, tgid, &file),
            )]
        });
        // It is no probe of memory: that it is missing costs time alone.
        self.has_loader = !probed.probes.is_empty();
    }

    fn find_python(&mut self, maps: &Maps) -> Result<PythonProcess> {
        let error = |error| AttachError::Python(self.tgid, error);
        let executable = maps.files().into_iter().filter(MappedFile::is_executable);
        let executable: Vec<_> = executable.map(|file| (file.dev, file.inode)).collect();
        if self.not_python.as_ref() == Some(&executable) {
            return Err(error(DetectError::NotPython));
        }
        let found = PythonProcess::detect_in(self.tgid, maps);
        if matches!(found, Err(DetectError::NotPython)) {
            self.not_python = Some(executable);
        }
        found.map_err(error)
    }

    /// Tells the programs how to walk the stacks of a Python, and attaches to it.
    fn use_python(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        python: PythonProcess,
        now: TimeNs,
    ) -> Result<()> {
        self.config.python = python.kernel_config();
        self.update_filter(loader, now)?;
        let file = python.library.clone();
        let probed = self.probe_file(loader, files, &file, CODE_FREED.library, |tgid| {
            vec![(&CODE_FREED, Located::find_code_freed(tgid, &python))]
        });
        self.note(&probed)?;
        self.python = Some(python);
        Ok(())
    }

    /// Tells the programs what is known of the process; they send every stack anew.
    pub fn update_filter(&self, loader: &mut Loader, now: TimeNs) -> Result<()> {
        let revised = loader.revise(self.tgid, self.config(now));
        revised.map_err(|error| AttachError::refused("the filter", &error))
    }

    pub fn module_call(&self) -> Option<u64> {
        Some(self.config.module_call).filter(|&code| code != 0)
    }

    pub fn set_module_call(
        &mut self,
        loader: &mut Loader,
        code: Option<u64>,
        now: TimeNs,
    ) -> Result<()> {
        self.config.module_call = code.unwrap_or(0);
        self.update_filter(loader, now)
    }

    /// The next file to be probed, and its family: those with the most events last.
    fn pending(&self, maps: &Maps) -> Option<(&'static str, MappedFile)> {
        let mut families: Vec<&'static str> = Vec::new();
        // A family comes where its last probe comes.
        for probe in wanted_probes(self.wanted).rev() {
            if !families.contains(&probe.library) {
                families.insert(0, probe.library);
            }
        }
        families.into_iter().find_map(|family| {
            let mut libraries = maps.libraries(family).into_iter();
            let file = libraries.find(|file| !self.is_probed(file, family))?;
            Some((family, file))
        })
    }

    fn probe(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        family: &'static str,
        file: &MappedFile,
    ) -> Result<()> {
        let tgid = self.tgid;
        let mut probes: Vec<_> = wanted_probes(self.wanted).collect();
        probes.retain(|probe| {
            let mut is_found = |variable| files.variable(tgid, file, variable).is_some();
            probe.library == family && !probe.unless.is_some_and(&mut is_found)
        });
        let probed = self.probe_file(loader, files, file, family, |tgid| {
            // All are located before the first is attached: from then on events come, and nobody reads them yet.
            let located =
                (probes.into_iter()).map(|probe| (probe, Located::find_in(probe, tgid, file)));
            located.collect()
        });
        self.note(&probed)
    }

    /// A library that may have the tracepoints of a caching allocator that is not heard otherwise.
    fn untold(&self, maps: &Maps) -> Option<MappedFile> {
        self.lacks_allocator.as_ref()?;
        let names = TRACEPOINT_LIBRARIES.iter();
        let mut libraries = names.flat_map(|name| maps.libraries(name));
        libraries.find(|file| !self.is_probed(file, TRACEPOINT_FAMILY))
    }

    fn is_probed(&self, file: &MappedFile, family: &'static str) -> bool {
        let key = ProbedFiles::key(file, family, self.reach());
        self.files.contains(&key)
    }

    fn probe_file(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        file: &MappedFile,
        family: &'static str,
        locate: impl FnOnce(Tgid) -> Vec<(&'static Probe, Result<Located>)>,
    ) -> Arc<Probed> {
        let key = ProbedFiles::key(file, family, self.reach());
        let tgid = self.tgid;
        let probed = files
            .share(key, tgid)
            .or_else(|| files.share_twin(key, tgid, file))
            .unwrap_or_else(|| files.probe(loader, key, tgid, file, locate(tgid)));
        if !self.files.contains(&key) {
            self.files.push(key);
            if CUDA_LIBRARIES.contains(&family) {
                self.cuda_files.push((key, file.clone()));
            }
        }
        probed
    }

    /// Compares the probed functions of CUDA with the process's memory, where it may have rewritten them since. Says
    /// whether what is probed has changed, be it by another process that uses the same files.
    pub fn leave_patched(&mut self, loader: &mut Loader, files: &mut ProbedFiles) -> Result<bool> {
        for (key, file) in &self.cuda_files {
            files.leave_patched(loader, *key, self.tgid, file)?;
        }
        let probed = self.probed_cuda(files);
        let left_alone = Vec::from_iter(probed.flat_map(|probed| probed.left_alone.clone()));
        let has_changed = left_alone != self.left_alone;
        if has_changed {
            self.left_alone = left_alone;
            self.forget_left_probes(files);
        }
        Ok(has_changed)
    }

    fn forget_left_probes(&mut self, files: &ProbedFiles) {
        let is_cuda = |probe: &ProbeStatus| {
            let mut cuda = (FUNCTIONS.iter()).filter(|function| function.api != Api::Tracepoint);
            cuda.any(|function| function.symbol == probe.function)
        };
        let probed = self.probed_cuda(files);
        let there = Vec::from_iter(probed.flat_map(|probed| probed.probes.clone()));
        (self.probes).retain(|probe| !is_cuda(probe) || there.contains(probe));
    }

    fn probed_cuda<'a>(&self, files: &'a ProbedFiles) -> impl Iterator<Item = &'a Probed> {
        let keys = self.cuda_files.iter();
        keys.filter_map(|(key, _)| files.probed(*key))
    }

    fn note(&mut self, probed: &Probed) -> Result<()> {
        if let Some(error) = &probed.refused {
            return Err(AttachError::Shared(error.clone()));
        }
        add_new(&mut self.probes, &probed.probes);
        if self.lacks_allocator.is_none() {
            self.lacks_allocator.clone_from(&probed.lacks_allocator);
        }
        add_new(&mut self.missing, &probed.missing);
        add_new(&mut self.left_alone, &probed.left_alone);
        Ok(())
    }

    /// Tells the programs where threads keep PyTorch's variables.
    fn find_variables(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        maps: &Maps,
        now: TimeNs,
    ) -> Result<()> {
        let before = self.config;
        for (at, variable) in THREAD_VARIABLES.iter().enumerate() {
            if self.variables[at] != Search::Over && variable.graph <= self.wanted.graph {
                self.variables[at] = self.find_variable(variable, files, maps);
            }
        }
        if self.config == before {
            return Ok(());
        }
        self.update_filter(loader, now)
    }

    fn find_variable(
        &mut self,
        variable: &'static ThreadVariable,
        files: &mut ProbedFiles,
        maps: &Maps,
    ) -> Search {
        let Some(library) = maps.library(variable.library) else {
            return Search::Unneeded;
        };
        let Some(symbol) = files.variable(self.tgid, &library, variable) else {
            (self.missing).extend(variable.without.map(str::to_owned));
            return Search::Over;
        };
        let Some(place) = symbol.place(self.tgid, &library) else {
            return Search::Waiting;
        };
        *(variable.config_field)(&mut self.config) = place;
        Search::Over
    }

    fn is_complete(&self, maps: &Maps) -> bool {
        if self.python.is_none() {
            return !self.probes.is_empty();
        }
        self.has_seen_allocator() || self.uses_cuda_alone(maps)
    }

    /// True if PyTorch's CUDA allocator was there when the files were probed, whatever of it can be.
    fn has_seen_allocator(&self) -> bool {
        self.lacks_allocator.is_some() || self.has_allocator()
    }

    /// True if it may hold memory of CUDA from before the first look, and has no allocator of PyTorch to list it.
    pub fn may_hold_unlisted_memory(&self) -> bool {
        self.had_driver == Some(true) && !self.has_seen_allocator()
    }

    /// True if it has CUDA's driver, and no allocator of PyTorch is expected: JAX or an inference engine runs in it. The
    /// runtime alone is no sign, since programs load it with PyTorch or without ever using it.
    fn uses_cuda_alone(&self, maps: &Maps) -> bool {
        has_driver(maps) && !self.cuda_files.is_empty() && !expects_allocator(self.tgid, maps)
    }

    fn has_function(&self, name: &str) -> bool {
        let mut functions = self.probes.iter().map(|status| &status.function);
        functions.any(|function| function == name)
    }

    pub fn has_tensors(&self) -> bool {
        self.has_function(EMPTY) && self.has_function(EMPTY_STRIDED)
    }

    pub fn has_allocator(&self) -> bool {
        let mut needed = PROBES.iter().filter(|probe| probe.need == Need::Allocator);
        needed.all(|probe| self.has_function(probe.function))
    }
}

fn wanted_probes(wanted: Wanted) -> impl DoubleEndedIterator<Item = &'static Probe> {
    PROBES.iter().filter(move |probe| probe.is_wanted(wanted))
}

/// True if CUDA's driver is mapped.
pub fn has_driver(maps: &Maps) -> bool {
    maps.library(Api::Driver.library()).is_some()
}

/// True if a library of the catalog is mapped.
pub fn uses_cuda(maps: &Maps) -> bool {
    let mut libraries = PROBES.iter().map(|probe| probe.library);
    libraries.any(|library| maps.library(library).is_some())
}

//! Detects CPython in a process: its version, and the addresses and offsets that memprobe reads.

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use memprobe_common::PythonConfig;

use super::calibrate::{self, Claim, LayoutIs, Mismatch};
use super::debug_offsets;
use super::error::DetectError;
use super::heap::collector;
use super::interpreter::{self, Interpreter, PythonVersion};
use super::layout::{CollectorLayout, ObjectLayout, PythonLayout, StateSlot};
use super::slot::{self, StatePath};
use super::threads::{self, FrameChain, ThreadState};
use crate::event::Tgid;
use crate::process::maps::{MappedFile, Maps};
use crate::process::memory::{Cause, ProcessMemory, ReadMemory, ReadResult};
use crate::process::status::Status;

/// Attempts before a mismatch counts, and the first and the longest pause between them: on a busy machine, a
/// thread that holds the GIL and is creating a frame may be off the CPU for many milliseconds.
const ATTEMPTS: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

#[derive(Clone, Debug)]
pub struct PythonProcess {
    pub tgid: Tgid,
    pub version: PythonVersion,
    pub library: MappedFile,
    pub runtime: u64,
    pub interpreter: u64,
    pub code_type: u64,
    /// `PyCode_Type.tp_dealloc`, the function that frees code objects: its address before relocation.
    pub code_dealloc: u64,
    pub way: StatePath,
    pub layout: PythonLayout,
}

impl PythonProcess {
    pub fn detect(tgid: Tgid) -> Result<Self, DetectError> {
        let maps = Maps::of(tgid).map_err(|error| DetectError::of_access(tgid, error))?;
        Self::detect_in(tgid, &maps)
    }

    /// Like [`Self::detect`], with mappings that were just read.
    pub fn detect_in(tgid: Tgid, maps: &Maps) -> Result<Self, DetectError> {
        Self::find(tgid, maps).map_err(|error| error.unless_ending(tgid))
    }

    fn find(tgid: Tgid, maps: &Maps) -> Result<Self, DetectError> {
        let memory = ProcessMemory::new(tgid);
        let mut last = DetectError::NotPython;
        // A program with an embedded interpreter may also have loaded a Python library that never starts.
        for interpreter in interpreter::find_interpreters(tgid, maps, &memory)? {
            match Self::of_interpreter(tgid, interpreter) {
                Ok(process) => return Ok(process),
                Err(DetectError::NotInitializedYet) if !matches!(last, DetectError::NotPython) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn of_interpreter(tgid: Tgid, found: Interpreter) -> Result<Self, DetectError> {
        let memory = &ProcessMemory::new(tgid);
        let mut layout = layout_of(memory, &found)?;
        let code_type = found
            .code_type
            .ok_or_else(|| DetectError::NoSymbol(found.library.path.clone(), "PyCode_Type"))?;
        let interpreter = main_interpreter(memory, &layout, found.runtime)?;
        // Read only now: the loader has relocated the type, since Python is initialized.
        let code_dealloc = memory
            .read_u64(code_type.wrapping_add(ObjectLayout::TYPE_DEALLOC.into()))?
            .wrapping_sub(found.bias);
        let collector = &mut layout.heap.collector;
        collector.generations = generations_of(memory, collector, interpreter);
        let known_path = way_by_interpreter(memory, &layout, &found)?;
        let mut process = Self {
            tgid,
            version: found.version,
            library: found.library,
            runtime: found.runtime,
            interpreter,
            code_type,
            code_dealloc,
            way: StatePath::to_variable(0),
            layout,
        };
        process.way = process.validate_any_path(known_path)?;
        Ok(process)
    }

    pub fn layout_source(&self) -> &'static str {
        if self.version.minor >= debug_offsets::FIRST_MINOR {
            "its own _Py_DebugOffsets"
        } else {
            "memprobe's table of versions"
        }
    }

    pub fn kernel_config(&self) -> PythonConfig {
        /// The index of a pointer byte that is always 0: user addresses have at most 56 bits.
        const HIGHEST_BYTE: u16 = 7;
        let steps = self.way.steps();
        let mut tss_steps = [0; 3];
        tss_steps[..steps.len()].copy_from_slice(steps);
        let PythonLayout {
            thread,
            frame,
            code,
            heap,
            ..
        } = &self.layout;
        PythonConfig {
            tss_steps,
            tss_count: steps.len() as u32,
            ts_thread_id: thread.thread_id,
            ts_identity: thread.native_thread_id.unwrap_or(thread.id),
            ts_frame: thread.frame,
            ts_base_frame: thread.base_frame.unwrap_or(PythonConfig::NONE),
            cframe_current: thread.cframe_current.unwrap_or(PythonConfig::NONE),
            f_code: frame.code,
            f_previous: frame.previous,
            f_instr: frame.instr,
            f_owner: frame.owner.unwrap_or(frame.code + HIGHEST_BYTE),
            f_size: frame.size(),
            co_filename: code.file,
            co_lines: code.line_table,
            version: u32::from(self.version.major) << 8 | u32::from(self.version.minor),
            f_first_local: heap.locals.first,
            pad: 0,
        }
    }

    pub fn memory(&self) -> ProcessMemory {
        ProcessMemory::new(self.tgid)
    }

    /// True if Python has begun to shut down: from then on its objects are freed, and then its interpreters.
    pub fn is_finalizing(&self) -> ReadResult<bool> {
        is_finalizing(&self.memory(), &self.layout, self.runtime)
    }

    pub fn thread_states(&self) -> ReadResult<Vec<ThreadState>> {
        threads::thread_states(&self.memory(), &self.layout, self.interpreter)
    }

    pub fn frames(&self, state: &ThreadState) -> ReadResult<FrameChain> {
        self.layout.frames(&self.memory(), state.address)
    }
}

fn layout_of(memory: &impl ReadMemory, found: &Interpreter) -> Result<PythonLayout, DetectError> {
    let version = found.version;
    let row = PythonLayout::of(version.minor).filter(|_| version.major == 3);
    if version.minor >= debug_offsets::FIRST_MINOR {
        let head = debug_offsets::read_head(memory, found.runtime);
        if head.is_ok_and(|head| head.free_threaded) {
            return Err(DetectError::FreeThreaded(version));
        }
        if row.is_some() && !version.is_pre_release() {
            let head = head.map_err(|damage| DetectError::DebugOffsets(version, damage))?;
            if head.version != version.hex {
                let damage = debug_offsets::Damage::OtherVersion(head.version);
                return Err(DetectError::DebugOffsets(version, damage));
            }
        }
    }
    let row = row.ok_or(DetectError::UnsupportedVersion(version))?;
    if version.is_pre_release() {
        return Err(DetectError::PreRelease(version));
    }
    if found.is_debug_build {
        return Err(DetectError::DebugBuild(version));
    }
    debug_offsets::read_layout(memory, row, found.runtime)
        .map_err(|damage| DetectError::DebugOffsets(version, damage))
}

fn main_interpreter(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    runtime: u64,
) -> Result<u64, DetectError> {
    let at = |offset: u16| runtime.wrapping_add(offset.into());
    if is_finalizing(memory, layout, runtime)? {
        return Err(DetectError::Ending);
    }
    let interpreter = memory.read_u64(at(layout.runtime.main_interpreter))?;
    let is_initialized = match layout.runtime.initialized {
        Some(initialized) => memory.read_u32(at(initialized))? != 0,
        None => true,
    };
    let interpreter = Some(interpreter).filter(|at| is_initialized && *at != 0);
    interpreter.ok_or(DetectError::NotInitializedYet)
}

/// Returns the offset of the youngest generation in the collector. If no attempt proves one, returns the table's; should
/// it be wrong, objects cannot be read.
fn generations_of(memory: &impl ReadMemory, collector: &CollectorLayout, interpreter: u64) -> u16 {
    let proved = (0..ATTEMPTS / 2).find_map(|attempt| {
        pause_before(attempt);
        collector::generations_offset(memory, collector, interpreter)
    });
    proved.unwrap_or(collector.generations)
}

fn is_finalizing(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    runtime: u64,
) -> ReadResult<bool> {
    Ok(memory.read_u64(runtime.wrapping_add(layout.runtime.finalizing.into()))? != 0)
}

/// Returns the path to the thread states according to the interpreter: by its pthread key, or by the
/// instructions of its own accessor function.
fn way_by_interpreter(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    found: &Interpreter,
) -> Result<Option<StatePath>, DetectError> {
    match layout.runtime.slot {
        // The key's offset is uncertain if the structure differs from the known one.
        StateSlot::Key(_) if layout.runtime.initialized.is_none() => Ok(None),
        StateSlot::Key(key) => {
            let key = found.runtime.wrapping_add(key.into());
            if memory.read_u32(key)? == 0 {
                return Err(DetectError::NotInitializedYet);
            }
            Ok(StatePath::to_key(memory.read_u32(key.wrapping_add(4))?))
        }
        StateSlot::Variable => {
            let function = found.get_state.as_ref();
            Ok(function.and_then(|(address, code)| slot::way_of_function(memory, code, *address)))
        }
    }
}

impl PythonProcess {
    /// Validates the path that was found, or else one that is searched for: every thread must find its state,
    /// and its stack must be a chain of frames. Retries, since the process changes meanwhile.
    fn validate_any_path(&self, known_path: Option<StatePath>) -> Result<StatePath, DetectError> {
        let mut last = Mismatch::NothingProved;
        if let Some(way) = known_path {
            for attempt in 0..ATTEMPTS {
                pause_before(attempt);
                match self.validate_path(way)? {
                    Ok(()) => return Ok(way),
                    Err(mismatch) => last = mismatch,
                }
            }
        }
        if known_path.is_none() || matches!(last, Mismatch::State(..)) {
            for attempt in 0..ATTEMPTS {
                pause_before(attempt);
                match self.search()? {
                    Ok(way) => match self.validate_path(way)? {
                        Ok(()) => return Ok(way),
                        Err(mismatch) => last = mismatch,
                    },
                    Err(mismatch) if known_path.is_none() => last = mismatch,
                    Err(_) => {}
                }
            }
        }
        Err(match last {
            Mismatch::Threads(error) if matches!(error.cause, Cause::NoProcess | Cause::Denied) => {
                error.into()
            }
            mismatch => DetectError::Calibration(self.version, mismatch),
        })
    }

    fn validate_path(&self, way: StatePath) -> Result<Result<(), Mismatch>, DetectError> {
        let living = native_threads(self.tgid)?;
        let claim = Claim {
            layout: &self.layout,
            interpreter: self.interpreter,
            code_type: self.code_type,
            way,
            layout_is: if PythonLayout::of(self.layout.minor) == Some(&self.layout) {
                LayoutIs::Tested
            } else {
                LayoutIs::OnlyTold
            },
        };
        let is_alive = |native| living.contains(&native);
        let proved = calibrate::validate(&self.memory(), &claim, is_alive);
        Ok(proved.map(|_| ()))
    }

    /// Searches the living threads for a location that holds each thread's own state.
    fn search(&self) -> Result<Result<StatePath, Mismatch>, DetectError> {
        let living = native_threads(self.tgid)?;
        let mut states = match self.thread_states() {
            Ok(states) => states,
            Err(error) => return Ok(Err(Mismatch::Threads(error))),
        };
        states.retain(|state| living.contains(&state.native_thread_id));
        if states.is_empty() {
            return Ok(Err(Mismatch::NoThreads));
        }
        let memory = self.memory();
        let paths = match self.layout.runtime.slot {
            StateSlot::Key(_) => slot::find_key(&memory, &states).into_iter().collect(),
            StateSlot::Variable => slot::find_variables(&memory, &states),
        };
        Ok(match paths[..] {
            [way] => Ok(way),
            ref paths => Err(Mismatch::NoWay(paths.len())),
        })
    }
}

/// Sleeps between attempts; the pause doubles each time.
fn pause_before(attempt: u32) {
    if let Some(before) = attempt.checked_sub(1) {
        thread::sleep(FIRST_PAUSE.saturating_mul(1 << before).min(LONGEST_PAUSE));
    }
}

/// Returns the threads of a process, as its own PID namespace numbers them (`NSpid` in `proc(5)`).
fn native_threads(tgid: Tgid) -> io::Result<Vec<u64>> {
    let mut natives = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/task", tgid.0))? {
        // A thread that has just ended has no status file.
        let status = Status::read(entry?.path().join("status"));
        let native = status.ok().and_then(|status| status.tids.last().copied());
        natives.extend(native.map(u64::from));
    }
    Ok(natives)
}

//! UCX and memprobe in one process: UCX rewrites the entries of functions of libcuda to hear of memory that is freed.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::caller::{Caller, Compared, Failure, Heard, Hooked};
use super::fetch::find_file;
use super::library::Library;
use super::memprobe::{Diagnosis, Recording};
use super::results::{Order, Runs, UcxFunction, UcxResult};
use super::trial::{Tools, count, is_driver_function};

/// Functions that free memory; UCX reports their calls even if they fail
/// (src/ucm/cuda/cudamem.c of UCX 1.22.0).
const HEARD: [&str; 4] = [
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemFreeAsync",
    "cuMemUnmap",
];

/// UCX writes a near jump over this many bytes of a function.
const REWRITTEN_BYTES: usize = 5;

/// Calls of each function.
const CALLS: u32 = 16;

/// The libraries of UCX, in the order of loading.
#[derive(Debug, Clone)]
pub struct Ucx {
    libraries: Vec<PathBuf>,
}

impl Ucx {
    /// Finds them in an unpacked wheel.
    pub fn find(wheel: &Path) -> anyhow::Result<Self> {
        let names = ["libucs.so.0", "libucm.so.0", "libucm_cuda.so.0"];
        let libraries = names.iter().map(|name| {
            find_file(wheel, name).with_context(|| format!("the wheel of UCX has no {name}"))
        });
        Ok(Self {
            libraries: libraries.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Tries one order on one libcuda. The caller fills in the driver and the circumstances.
    pub fn try_order(
        &self,
        tools: &Tools,
        libcuda: &Path,
        order: Order,
    ) -> anyhow::Result<UcxResult> {
        let folder = libcuda.parent().context("a library lies in a folder")?;
        let mut caller = Caller::start(&tools.calls, Some(folder))?;
        caller.load(libcuda)?;
        let mut result = UcxResult::of(order);
        let mut recording = None;
        if order == Order::MemprobeFirst {
            recording = Some(Recording::start(&tools.memprobe, caller.pid())?);
        }
        for library in &self.libraries {
            caller.load(library)?;
        }
        match caller.ask::<Hooked>(&["hook"]) {
            Ok(hooked) => result.hook = Some(hooked.result),
            Err(failure) => result.complaint = Some(format!("hook: {failure}")),
        }
        if order == Order::UcxFirst && result.complaint.is_none() {
            recording = Some(Recording::start(&tools.memprobe, caller.pid())?);
        }
        let mut said = Vec::new();
        if result.complaint.is_none() {
            let tried = Trial {
                tools,
                caller: &mut caller,
                libcuda,
                recording: recording.as_ref(),
            }
            .try_functions(&mut result, &mut said);
            if let Err(failure) = tried? {
                result.complaint = Some(failure);
            }
        }
        let rewritten = installed(&caller.printed());
        result.rewritten = result.hook.is_some().then_some(rewritten);
        if let Some(recording) = recording {
            let recorded = match result.complaint {
                None => recording.interrupt()?,
                // memprobe ends with the process.
                Some(_) => recording.finish()?,
            };
            said.extend(recorded.said.lines().map(str::to_owned));
            if result.complaint.is_none() {
                call_after(&mut caller, &mut result);
            }
        }
        for function in &mut result.functions {
            let names_it = |line: &String| is_said_rewritten(line, &function.symbol);
            function.is_said_rewritten |= said.iter().any(names_it);
        }
        said.retain(|line| line.contains("rewritten"));
        said.dedup();
        let pid = format!("PID {}", caller.pid());
        result.memprobe_says = said
            .iter()
            .map(|line| line.replace(&pid, "PID N"))
            .collect();
        Ok(result)
    }
}

/// The calls of one order.
struct Trial<'a> {
    tools: &'a Tools,
    caller: &'a mut Caller,
    libcuda: &'a Path,
    recording: Option<&'a Recording>,
}

impl Trial<'_> {
    /// Calls each function; the inner error says how the process ended. memprobe's words on the process go to `said`.
    fn try_functions(
        &mut self,
        result: &mut UcxResult,
        said: &mut Vec<String>,
    ) -> anyhow::Result<Result<(), String>> {
        let library = Library::read(self.libcuda)?;
        let programs = self.recording.map(Recording::programs).transpose()?;
        let diagnosis = match self.recording {
            Some(_) => Some(Diagnosis::of(&self.tools.memprobe, self.caller.pid())?),
            None => None,
        };
        let lines = diagnosis.iter().flat_map(Diagnosis::lines);
        said.extend(lines.map(str::to_owned));
        for symbol in HEARD {
            let Some(code) = library.function(symbol) else {
                continue;
            };
            let mut probes = diagnosis.iter().flat_map(Diagnosis::probes);
            let probe = probes.find(|probe| probe.symbol() == symbol);
            let function = UcxFunction {
                symbol: symbol.to_owned(),
                entry: code.entry,
                place: probe.and_then(|probe| probe.place()),
                is_rewritten: false,
                calls: CALLS.into(),
                heard: 0,
                heard_after: None,
                runs: None,
                // The words on a probe need not repeat its name.
                is_said_rewritten: probe.is_some_and(|it| it.words().contains("rewritten")),
            };
            let file = (self.libcuda, code.offset);
            match try_function(self.caller, file, programs.as_deref(), function) {
                Ok(function) => result.functions.push(function),
                Err(failure) => return Ok(Err(format!("{symbol}: {failure}"))),
            }
        }
        Ok(Ok(()))
    }
}

/// Calls each function once more, after memprobe has taken its probes away: the kernel then writes the file's byte where a
/// breakpoint was, also into a function that was rewritten.
fn call_after(caller: &mut Caller, result: &mut UcxResult) {
    for function in &mut result.functions {
        let heard = caller
            .call(&function.symbol, 1, CALLS)
            .and_then(|_| caller.ask::<Heard>(&["heard"]));
        match heard {
            Ok(heard) => function.heard_after = Some(heard.heard),
            Err(failure) => {
                let words = format!("{} after memprobe had left: {failure}", function.symbol);
                result.complaint = Some(words);
                return;
            }
        }
    }
}

fn try_function(
    caller: &mut Caller,
    (file, offset): (&Path, u64),
    programs: Option<&[String]>,
    mut function: UcxFunction,
) -> Result<UcxFunction, Failure> {
    let (offset, length) = (offset.to_string(), REWRITTEN_BYTES.to_string());
    let file = file.to_string_lossy();
    let bytes: Compared = caller.ask(&["compare", &function.symbol, &file, &offset, &length])?;
    function.is_rewritten = bytes.differ > bytes.breakpoints;
    // What was heard before does not count.
    caller.ask::<Heard>(&["heard"])?;
    match programs {
        Some(programs) => {
            let runs: Runs = count(caller, programs, &function.symbol)?;
            function.calls = runs.calls;
            function.runs = Some(runs);
        }
        None => drop(caller.call(&function.symbol, 1, CALLS)?),
    }
    function.heard = caller.ask::<Heard>(&["heard"])?.heard;
    Ok(function)
}

/// Functions that UCX rewrote, by its log.
fn installed(log: &str) -> u32 {
    let lines = log
        .lines()
        .filter_map(|line| line.split_once("installed bistro hook for '"));
    let names = lines.filter(|(_, name)| is_driver_function(name));
    u32::try_from(names.count()).unwrap_or(u32::MAX)
}

/// A line of memprobe's names the function as one that was rewritten.
fn is_said_rewritten(line: &str, symbol: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    line.contains("rewritten")
        && line
            .split(|letter| !is_part(letter))
            .any(|word| word == symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_functions_are_counted_in_the_log_of_ucx() {
        let log = "[1.0] [vm:1:0] install.c:385 UCX DEBUG mmap: installing bistro hook for mmap = 0x7\n\
                   [1.0] [vm:1:0] cudamem.c:394 UCX DEBUG installed bistro hook for 'cuMemAlloc'\n\
                   [1.0] [vm:1:0] cudamem.c:394 UCX DEBUG installed bistro hook for 'cuMemFree_v2'\n";
        assert_eq!(installed(log), 2);
        assert_eq!(installed(""), 0);
    }

    #[test]
    fn a_function_is_named_by_a_whole_word() {
        let line =
            "memprobe: leaves cuMemFreeAsync_ptsz and cuMemFree_v2 alone: rewritten in memory";
        assert!(is_said_rewritten(line, "cuMemFree_v2"));
        assert!(!is_said_rewritten(line, "cuMemFreeAsync"));
        assert!(!is_said_rewritten("memprobe: cuMemFree_v2", "cuMemFree_v2"));
    }
}

//! UCX and memprobe in one process: UCX rewrites the entries of functions of libcuda to hear of memory that is freed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::caller::{Caller, Compared, Failure, Heard, Hooked};
use super::fetch::find_file;
use super::library::Library;
use super::memprobe::{Diagnosis, Recording};
use super::results::{Order, Runs, UcxFunction, UcxResult};
use super::trial::{Tools, count, is_driver_function};

/// Functions whose calls UCX reports also where they fail: all that give memory back
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
    pub fn find(wheel: &Path) -> Result<Self> {
        let names = ["libucs.so.0", "libucm.so.0", "libucm_cuda.so.0"];
        let libraries = names.iter().map(|name| {
            find_file(wheel, name).with_context(|| format!("the wheel of UCX has no {name}"))
        });
        Ok(Self {
            libraries: libraries.collect::<Result<_>>()?,
        })
    }

    /// Tries one order on one libcuda. What is known of the driver and the day is filled in by the caller.
    pub fn try_order(&self, tools: &Tools, libcuda: &Path, order: Order) -> Result<UcxResult> {
        let folder = libcuda.parent().context("a library lies in a folder")?;
        let mut caller = Caller::start(&tools.calls, Some(folder))?;
        caller.load(libcuda)?;
        let library = Library::read(libcuda)?;
        let mut result = UcxResult {
            driver: String::new(),
            ucx: String::new(),
            order,
            circumstances: Default::default(),
            hook: None,
            rewritten: None,
            functions: Vec::new(),
            memprobe_says: Vec::new(),
            died: None,
        };
        let mut recording = None;
        if order == Order::MemprobeFirst {
            recording = Some(Recording::start(&tools.memprobe, caller.pid())?);
        }
        for library in &self.libraries {
            caller.load(library)?;
        }
        match caller.ask::<Hooked>(&["hook"]) {
            Ok(hooked) => result.hook = Some(hooked.result),
            Err(failure) => result.died = Some(format!("hook: {failure}")),
        }
        if order == Order::UcxFirst && result.died.is_none() {
            recording = Some(Recording::start(&tools.memprobe, caller.pid())?);
        }
        let programs = recording.as_ref().map(Recording::programs).transpose()?;
        let mut lines = Vec::new();
        let mut places = Vec::new();
        if recording.is_some() && result.died.is_none() {
            let diagnosis = Diagnosis::of(&tools.memprobe, caller.pid())?;
            lines.extend(diagnosis.lines().map(str::to_owned));
            let probes = diagnosis.probes().iter();
            places.extend(probes.map(|probe| {
                (
                    probe.symbol().to_owned(),
                    probe.place(),
                    probe.words().to_owned(),
                )
            }));
        }
        for symbol in HEARD {
            let Some(code) = library.function(symbol) else {
                continue;
            };
            if result.died.is_some() {
                break;
            }
            let placed = places.iter().find(|(name, ..)| name == symbol);
            let function = UcxFunction {
                symbol: symbol.to_owned(),
                entry: code.entry,
                place: placed.and_then(|(_, place, _)| place.clone()),
                is_rewritten: false,
                calls: CALLS.into(),
                heard: 0,
                runs: None,
                // The words on a probe need not repeat its name.
                is_left_alone: placed.is_some_and(|(_, _, words)| words.contains("rewritten")),
            };
            let tried = try_function(
                &mut caller,
                libcuda,
                code.offset,
                programs.as_deref(),
                function,
            );
            match tried {
                Ok(function) => result.functions.push(function),
                Err(failure) => result.died = Some(format!("{symbol}: {failure}")),
            }
        }
        result.rewritten = Some(installed(&caller.printed())).filter(|_| result.hook.is_some());
        drop(caller);
        if let Some(recording) = recording {
            let recorded = recording.finish()?;
            lines.extend(recorded.said.lines().map(str::to_owned));
        }
        for function in &mut result.functions {
            function.is_left_alone |= lines
                .iter()
                .any(|line| says_left_alone(line, &function.symbol));
        }
        lines.retain(|line| line.contains("rewritten"));
        lines.dedup();
        result.memprobe_says = lines;
        Ok(result)
    }
}

fn try_function(
    caller: &mut Caller,
    libcuda: &Path,
    offset: u64,
    programs: Option<&[String]>,
    mut function: UcxFunction,
) -> std::result::Result<UcxFunction, Failure> {
    let (offset, length) = (offset.to_string(), REWRITTEN_BYTES.to_string());
    let file = libcuda.to_string_lossy();
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
fn says_left_alone(line: &str, symbol: &str) -> bool {
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
        assert!(says_left_alone(line, "cuMemFree_v2"));
        assert!(!says_left_alone(line, "cuMemFreeAsync"));
        assert!(!says_left_alone("memprobe: cuMemFree_v2", "cuMemFree_v2"));
    }
}

//! Each probed function of one library: called without memprobe and with it, and watched by uprobes of our own.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::caller::{Caller, Failure, Programs};
use super::library::Library;
use super::memprobe::{Diagnosis, Recording};
use super::results::{Code, Cost, FunctionResult, Returned, Runs, Watched};

/// Calls whose probe runs are counted.
const COUNTED: u32 = 16;

/// Loops of which the best counts, and their approximate length: short, so that on a busy machine some are not interrupted.
const LOOPS: u32 = 60;
const LOOP_NS: f64 = 1e6;

/// Bounds of the calls in a loop.
const FEWEST: f64 = 20.0;
const MOST: f64 = 20_000.0;

/// Library under trial.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The library whose functions are called.
    pub library: &'a Path,
    /// The folder in which it finds libcuda.
    pub driver: &'a Path,
    /// Tells its functions by their names.
    pub is_its: fn(&str) -> bool,
    /// The function that is called first of all, with zeros.
    pub first: Option<&'static str>,
}

/// The programs that a trial takes.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The program under test.
    pub memprobe: PathBuf,
    /// `calls`.
    pub calls: PathBuf,
}

/// The outcome for a library.
#[derive(Debug, Default)]
pub struct Outcome {
    pub first_answer: Option<i32>,
    pub functions: Vec<FunctionResult>,
    pub complaints: Vec<String>,
}

/// Names of the functions of libcuda.
pub fn is_driver_function(name: &str) -> bool {
    let rest = name.strip_prefix("cu");
    rest.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
}

/// Names of the functions of libcudart.
pub fn is_runtime_function(name: &str) -> bool {
    name.starts_with("cuda")
}

/// Tries each function. A function whose call ends the process is noted, and the others are tried in
/// another one.
pub fn try_library(tools: &Tools, subject: &Subject) -> Result<Outcome> {
    let library = Library::read(subject.library)?;
    let mut outcome = Outcome::default();
    let mut caller = start(tools, subject, &mut outcome)?;
    let diagnosis = Diagnosis::of(&tools.memprobe, caller.pid())?;
    for probe in diagnosis.probes() {
        let symbol = probe.symbol();
        let is_other = probe
            .library
            .as_ref()
            .is_some_and(|path| path.file_name() != subject.library.file_name());
        if is_other || !(subject.is_its)(symbol) {
            continue;
        }
        let code = library.function(symbol);
        let place = probe.place();
        outcome.functions.push(FunctionResult {
            symbol: symbol.to_owned(),
            without_place: place.is_none().then(|| probe.words().to_owned()),
            code: code.map(|function| Code {
                size: function.size,
                entry: function.entry,
            }),
            place,
            runs: None,
            watched: None,
            returned: None,
            cost: None,
            died: None,
        });
    }
    // Without probes; then, in the same process, with them.
    while let Err(death) = measure_without(&mut caller, &mut outcome.functions) {
        outcome.complaints.push(death);
        caller = start(tools, subject, &mut outcome)?;
    }
    loop {
        let recording = Recording::start(&tools.memprobe, caller.pid())?;
        let programs = recording.programs()?;
        let ended = measure_with(&mut caller, &programs, &library, subject, &mut outcome);
        let recorded = match ended {
            Ok(()) => recording.interrupt()?,
            Err(_) => recording.finish()?,
        };
        if !recorded.status.success() {
            outcome.complaints.push(format!(
                "memprobe record ended with {}: {}",
                recorded.status,
                recorded.said.trim()
            ));
        }
        match ended {
            Ok(()) => return Ok(outcome),
            Err(death) => outcome.complaints.push(death),
        }
        caller = start(tools, subject, &mut outcome)?;
    }
}

fn start(tools: &Tools, subject: &Subject, outcome: &mut Outcome) -> Result<Caller> {
    let mut caller = Caller::start(&tools.calls, Some(subject.driver))?;
    caller
        .load(subject.library)
        .with_context(|| format!("{} cannot be loaded", subject.library.display()))?;
    if let Some(first) = subject.first {
        let answer = caller.start_with(first);
        outcome.first_answer = Some(answer.with_context(|| format!("{first} cannot be called"))?);
    }
    Ok(caller)
}

/// Calls each function that was not called yet; fails with words where one ends the process.
fn measure_without(
    caller: &mut Caller,
    functions: &mut [FunctionResult],
) -> std::result::Result<(), String> {
    for function in functions {
        if function.code.is_none() || function.returned.is_some() || function.died.is_some() {
            continue;
        }
        match timed(caller, &function.symbol) {
            Ok((returned, same, ns)) => {
                function.returned = Some(Returned {
                    without: returned,
                    with: None,
                    same,
                });
                function.cost = Some(Cost {
                    without: ns,
                    with: None,
                });
            }
            Err(failure) => note(function, &failure, "without memprobe")?,
        }
    }
    Ok(())
}

/// Result, sameness and cost of a function.
fn timed(caller: &mut Caller, symbol: &str) -> std::result::Result<(i32, bool, f64), Failure> {
    let trial = caller.call(symbol, 3, 20)?;
    let times = (LOOP_NS / trial.ns.max(1.0)).clamp(FEWEST, MOST) as u32;
    let best = caller.call(symbol, LOOPS, times)?;
    let same = trial.same && best.same && trial.result == best.result;
    Ok((trial.result, same, best.ns))
}

/// Keeps a failure with the function. A process that ended is an error: no other function can be called there.
fn note(
    function: &mut FunctionResult,
    failure: &Failure,
    when: &str,
) -> std::result::Result<(), String> {
    function.died = Some(format!("{when}: {failure}"));
    match failure {
        Failure::Refused(_) => Ok(()),
        Failure::Died(how) => Err(format!("{} {when}: {how}", function.symbol)),
    }
}

/// Counts, watches and times each probed function; fails with words where one ends the process.
fn measure_with(
    caller: &mut Caller,
    programs: &[String],
    library: &Library,
    subject: &Subject,
    outcome: &mut Outcome,
) -> std::result::Result<(), String> {
    for function in &mut outcome.functions {
        let is_done = function.cost.is_none_or(|cost| cost.with.is_some());
        if function.place.is_none() || function.died.is_some() || is_done {
            continue;
        }
        let tried = count(caller, programs, &function.symbol).and_then(|runs| {
            function.runs = Some(runs);
            function.watched = watch(caller, library, subject.library, function)?;
            timed(caller, &function.symbol)
        });
        match tried {
            Ok((returned, same, ns)) => {
                if let Some(earlier) = &mut function.returned {
                    earlier.with = Some(returned);
                    earlier.same &= same;
                }
                if let Some(cost) = &mut function.cost {
                    cost.with = Some(ns);
                }
            }
            Err(failure) => note(function, &failure, "with memprobe")?,
        }
    }
    Ok(())
}

/// Runs of memprobe's programs during some calls.
pub fn count(
    caller: &mut Caller,
    programs: &[String],
    symbol: &str,
) -> std::result::Result<Runs, Failure> {
    use super::caller::Done;
    let mut question = vec!["programs"];
    question.extend(programs.iter().map(String::as_str));
    caller.ask::<Done>(&["statistics", "on"])?;
    let before: Programs = caller.ask(&question)?;
    caller.call(symbol, 1, COUNTED)?;
    let after: Programs = caller.ask(&question)?;
    caller.ask::<Done>(&["statistics", "off"])?;
    let runs = |name: &str| after.runs_of(name).saturating_sub(before.runs_of(name));
    Ok(Runs {
        calls: COUNTED.into(),
        entries: runs("cuda_enter"),
        returns: runs("cuda_return"),
    })
}

/// Uprobes of our own at the place of memprobe's.
fn watch(
    caller: &mut Caller,
    library: &Library,
    path: &Path,
    function: &FunctionResult,
) -> std::result::Result<Option<Watched>, Failure> {
    let (Some(code), Some(place)) = (library.function(&function.symbol), &function.place) else {
        return Ok(None);
    };
    let (times, offset) = (
        COUNTED.to_string(),
        (code.offset + place.offset).to_string(),
    );
    let path = path.to_string_lossy();
    caller
        .ask(&["watch", &function.symbol, &times, &path, &offset])
        .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::results::samples::function;

    #[test]
    fn the_driver_s_names_are_not_the_runtime_s() {
        assert!(is_driver_function("cuMemFree_v2") && !is_runtime_function("cuMemFree_v2"));
        assert!(is_runtime_function("cudaFree") && !is_driver_function("cudaFree"));
        assert!(!is_driver_function("ncclMemAlloc") && !is_driver_function("cu"));
    }

    #[test]
    fn only_the_end_of_a_process_stops_a_trial() {
        let mut one = function("cuMemFree_v2");
        let refused = Failure::Refused("no such command or function".to_owned());
        assert_eq!(note(&mut one, &refused, "with memprobe"), Ok(()));
        assert!(one.died.is_some());
        let died = Failure::Died("signal: 11 (SIGSEGV)".to_owned());
        let words = note(&mut one, &died, "with memprobe").unwrap_err();
        assert_eq!(words, "cuMemFree_v2 with memprobe: signal: 11 (SIGSEGV)");
    }
}

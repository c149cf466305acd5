//! `doctor`: whether memprobe can work here, and where each probe would sit.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;

use crate::event::Tgid;
use crate::probe::attach::{AttachError, Located};
use crate::probe::catalog::{CODE_FREED, Need, PROBES, Probe};
use crate::probe::{function, kernel};
use crate::symbolize::python::PythonProcess;
use crate::target::facts;
use crate::target::maps::Maps;

/// Exit status where something stands in the way.
const UNFIT: u8 = 2;

/// Looks and tells; attaches nothing.
///
/// # Errors
/// None so far: what is wrong is told on standard output.
pub fn run(tgid: Option<Tgid>) -> Result<ExitCode> {
    let mut findings = Findings::default();
    findings.add(
        "kernel",
        kernel::preflight().map(|()| "has what memprobe needs".to_owned()),
    );
    let offset = kernel::fsbase_offset()
        .map(|offset| format!("a thread's pointer lies {offset} bytes into its task"));
    findings.add("kernel types", offset);
    if let Some(tgid) = tgid {
        look_at(tgid, &mut findings);
    }
    Ok(if findings.fit {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(UNFIT)
    })
}

/// Looks at one process.
fn look_at(tgid: Tgid, findings: &mut Findings) {
    match PythonProcess::detect(tgid) {
        Ok(python) => {
            let found = format!("{}, layout checked on every thread", python.version);
            findings.add::<String>("Python", Ok(found));
            findings.add_place(&CODE_FREED, Located::find_code_freed(tgid, &python));
        }
        Err(error) => findings.add("Python", Err(error)),
    }
    let Ok(maps) = Maps::of(tgid) else { return };
    match facts::torch_version(tgid) {
        Some(version) => findings.add::<String>("PyTorch", Ok(version)),
        None => findings.note(
            "PyTorch",
            "not imported yet: `attach` and `record` will wait for it",
        ),
    }
    for probe in PROBES.iter() {
        match Located::find(probe, tgid, &maps) {
            Some(located) => findings.add_place(probe, located),
            None => findings.note(
                probe.function,
                &format!("{} is not mapped yet", probe.library),
            ),
        }
    }
}

/// Such as `+7 in /…/libc10.so (c10::f(void*)), emulated by the kernel`: the function as the
/// library's own symbols name it.
fn place_of(located: &Located) -> String {
    let how = if located.place.emulated {
        "emulated by the kernel"
    } else {
        "single-stepped (slow)"
    };
    let offset = located.place.offset;
    let function = function::at(&located.file, located.function_offset + offset);
    let function = function.unwrap_or_else(|| "no symbol".to_owned());
    format!("+{offset} in {} ({function}), {how}", located.library)
}

/// What was found, told line by line.
struct Findings {
    fit: bool,
}

impl Default for Findings {
    fn default() -> Self {
        Self { fit: true }
    }
}

impl Findings {
    fn add<E: std::fmt::Display>(&mut self, what: &str, found: Result<String, E>) {
        match found {
            Ok(found) => tell(&format!("ok    {what}: {found}")),
            Err(error) => {
                self.fit = false;
                tell(&format!("FAIL  {what}: {error:#}"));
            }
        }
    }

    fn add_place(&mut self, probe: &Probe, located: Result<Located, AttachError>) {
        match (located, probe.need) {
            (Ok(located), _) => self.add::<String>(probe.function, Ok(place_of(&located))),
            (Err(AttachError::NoFunction { .. }), Need::WhereItIs) => {}
            (Err(error), Need::WhereItIs) => self.note(probe.function, &error.to_string()),
            (Err(error), Need::Optional(without)) => {
                self.note(probe.function, &format!("{error}; {without}"));
            }
        }
    }

    fn note(&self, what: &str, found: &str) {
        tell(&format!("note  {what}: {found}"));
    }
}

/// Writes a line to standard output; a reader that has seen enough (`| head`) is no error.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

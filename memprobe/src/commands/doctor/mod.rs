//! `doctor`: whether memprobe can work here, and where each probe would sit. It tries for itself what
//! can be tried: the programs are loaded, and one is attached to memprobe's own.

mod process;
mod trial;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use self::process::{ExaminedProcess, Library, ProbeFinding};
use super::stdout::{self, OutputContent};
use crate::event::Tgid;
use crate::output::OutputPlan;
use crate::probe::finding::{Finding, Level};
use crate::probe::machine::Machine;
use crate::report::Colour;
use crate::view::table::Style;
use crate::view::{clean, width};

/// Exit status where something stands in the way.
const UNFIT: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoctorFormat {
    Text(Colour),
    Json,
}

pub struct Doctor {
    pub tgid: Option<Tgid>,
    pub format: DoctorFormat,
    /// File for the verifier's log of a program that the kernel refuses.
    pub verifier_log: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Examination {
    memprobe: &'static str,
    /// True if nothing keeps memprobe from working.
    fit: bool,
    machine: Vec<Finding>,
    process: Option<ExaminedProcess>,
}

impl Doctor {
    /// Examines the machine and the process, and prints the findings. The target is only read.
    pub fn run(self) -> Result<ExitCode> {
        let examination = self.examine()?;
        let (text, content) = match self.format {
            DoctorFormat::Text(colour) => (render(&examination, colour), OutputContent::Text),
            DoctorFormat::Json => {
                let json = serde_json::to_string_pretty(&examination)? + "\n";
                (json, OutputContent::Document)
            }
        };
        let mut out = stdout::open(content);
        // A reader that has seen enough (`| head`) is no error.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        Ok(if examination.fit {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(UNFIT)
        })
    }

    fn examine(&self) -> Result<Examination> {
        let plan = self.verifier_log.as_deref();
        let plan = plan.map(OutputPlan::check).transpose()?;
        let mut machine = Machine::read().findings();
        let trial = trial::of_the_kernel();
        if let Some(plan) = plan {
            let log = trial.log.as_deref();
            let nothing = "the kernel accepts every program of memprobe: there is no log\n";
            plan.write(log.unwrap_or(nothing).as_bytes())?;
        }
        // What was tried cannot go better than what stands in the way of it.
        let follows = machine.iter().any(|finding| finding.level == Level::Fail);
        for finding in trial.findings {
            let explained = follows && finding.level == Level::Fail;
            let first = explained.then(|| "Do what is said above first.".to_owned());
            machine.push(Finding {
                remedy: first.or(finding.remedy),
                ..finding
            });
        }
        let process = self.tgid.map(ExaminedProcess::examine);
        let fit = (machine.iter())
            .chain(process.iter().flat_map(ExaminedProcess::findings))
            .all(|finding| finding.level < Level::Fail);
        Ok(Examination {
            memprobe: env!("CARGO_PKG_VERSION"),
            fit,
            machine,
            process,
        })
    }
}

/// Columns of `ok`, `note`, `warn`, `FAIL`, and the space behind.
const LEVELS: usize = 6;
const BUILD_ID: usize = 16;

fn render(examination: &Examination, colour: Colour) -> String {
    let mut page = Page {
        text: String::new(),
        style: Style(colour),
    };
    page.heading("this machine");
    page.findings(&examination.machine);
    if let Some(process) = &examination.process {
        page.process(process);
    }
    page.verdict(examination);
    page.text
}

struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn heading(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text += &self.style.paint("1", text);
        self.text.push('\n');
    }

    /// Adds lines of a finding, its name and more about it; what to do goes below, under the finding's words.
    fn lines(&mut self, lines: Vec<(&Finding, String, String)>) {
        let names = lines.iter().map(|(_, name, _)| width(name));
        let widest = names.max().unwrap_or(0);
        for (finding, name, more) in lines {
            let code = match finding.level {
                Level::Ok => "32",
                Level::Note => "36",
                Level::Warn => "33",
                Level::Fail => "1;31",
            };
            let word = finding.level.word();
            let name = format!("{name}{}{more}", " ".repeat(widest - width(&name) + 2));
            let gap = " ".repeat(LEVELS - word.len());
            let (word, found) = (self.style.paint(code, word), clean(&finding.found));
            self.text += &format!("  {word}{gap}{name}{found}\n");
            if let Some(remedy) = &finding.remedy {
                let under = " ".repeat(2 + LEVELS + width(&name));
                self.text += &format!("{under}-> {}\n", clean(remedy));
            }
        }
    }

    fn findings(&mut self, findings: &[Finding]) {
        let lines = findings.iter();
        let lines = lines.map(|finding| (finding, finding.title(), String::new()));
        self.lines(lines.collect());
    }

    fn process(&mut self, process: &ExaminedProcess) {
        let command = clean(&process.command);
        self.heading(&format!("process {}  {command}", process.pid));
        self.findings(&process.findings);
        if !process.libraries.is_empty() {
            self.heading("libraries");
            self.libraries(&process.libraries);
        }
        if !process.probes.is_empty() {
            self.heading("probes");
            self.probes(&process.probes);
        }
    }

    fn libraries(&mut self, libraries: &[Library]) {
        let line = |library: &'_ Library| {
            let build = library.build_id.as_deref().unwrap_or("none");
            let build = build.get(..BUILD_ID).unwrap_or(build);
            format!(
                "build {build:<BUILD_ID$}  inode {:>8} on {}  ",
                library.inode, library.device
            )
        };
        let lines = libraries.iter();
        let lines = lines.map(|library| (&library.finding, clean(&library.name), line(library)));
        self.lines(lines.collect());
    }

    fn probes(&mut self, probes: &[ProbeFinding]) {
        let instructions = probes.iter().flat_map(|place| &place.instruction);
        let longest = instructions.map(String::len).max().unwrap_or(0);
        let line = |place: &ProbeFinding| {
            let (address, offset, kind) = (place.address?, place.offset?, place.kind?);
            let instruction = place.instruction.as_deref().unwrap_or("?");
            let offset = format!("+{offset}");
            Some(format!(
                "{address:#014x} {offset:<4} {instruction:<longest$}  {kind:<14}  "
            ))
        };
        let lines = probes.iter().map(|place| {
            let more = line(place).unwrap_or_default();
            (&place.finding, place.function.clone(), more)
        });
        self.lines(lines.collect());
    }

    fn verdict(&mut self, examination: &Examination) {
        let process = examination
            .process
            .iter()
            .flat_map(ExaminedProcess::findings);
        let all = examination.machine.iter().chain(process);
        let failed = all.filter(|finding| finding.level == Level::Fail).count();
        let text = match (failed, &examination.process) {
            (0, Some(process)) => format!("memprobe can attach to process {}", process.pid),
            (0, None) => {
                "memprobe can work here; `memprobe doctor --pid PID` looks at a process".to_owned()
            }
            (1, _) => "one problem is in the way".to_owned(),
            (failed, _) => format!("{failed} problems are in the way"),
        };
        self.text.push('\n');
        let code = if failed == 0 { "1;32" } else { "1;31" };
        self.text += &self.style.paint(code, &text);
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests;

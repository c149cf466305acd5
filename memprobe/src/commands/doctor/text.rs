//! The examination for people: one line a finding, aligned, with what to do below what fails.

use super::Examination;
use super::process::{ExaminedProcess, Library, ProbeFinding};
use crate::probe::finding::{Finding, Level};
use crate::report::Colour;
use crate::view::{clean, width};

/// Columns of `ok`, `note`, `warn`, `FAIL`, and the space behind.
const LEVELS: usize = 6;
const BUILD_ID: usize = 16;

pub(super) fn render(examination: &Examination, colour: Colour) -> String {
    let mut page = Page {
        text: String::new(),
        colour,
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
    colour: Colour,
}

impl Page {
    fn paint(&self, code: &str, text: &str) -> String {
        match self.colour {
            Colour::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
            Colour::Plain => text.to_owned(),
        }
    }

    fn heading(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text += &self.paint("1", text);
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
            let (word, found) = (self.paint(code, word), clean(&finding.found));
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
        self.text += &self.paint(code, &text);
        self.text.push('\n');
    }
}

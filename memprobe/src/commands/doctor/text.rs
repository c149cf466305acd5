//! The examination for people: one line a finding, aligned, with what to do below what fails.

use super::Examination;
use super::process::{ExaminedProcess, Library, ProbeFinding};
use crate::probe::finding::{Finding, Level};
use crate::report::Colour;
use crate::view::{clean, width};

/// Columns of `ok`, `note`, `warn`, `FAIL`, and the space behind.
const LEVELS: usize = 6;
/// Digits of a build id that are shown.
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

    fn findings(&mut self, findings: &[Finding]) {
        let titles: Vec<_> = findings.iter().map(Finding::title).collect();
        let widest = widest(titles.iter().map(String::as_str));
        for (finding, title) in findings.iter().zip(&titles) {
            let gap = " ".repeat(widest - width(title) + 2);
            self.line(finding, &format!("{title}{gap}"), &finding.found);
        }
    }

    /// One finding; what to do goes below it, under its words.
    fn line(&mut self, finding: &Finding, name: &str, found: &str) {
        let code = match finding.level {
            Level::Ok => "32",
            Level::Note => "36",
            Level::Warn => "33",
            Level::Fail => "1;31",
        };
        let word = finding.level.word();
        let gap = " ".repeat(LEVELS - word.len());
        let word = self.paint(code, word);
        self.text += &format!("  {word}{gap}{name}{}\n", clean(found));
        if let Some(remedy) = &finding.remedy {
            let under = " ".repeat(2 + LEVELS + width(name));
            self.text += &format!("{under}-> {}\n", clean(remedy));
        }
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
        let names = libraries.iter().map(|library| clean(&library.name));
        let names: Vec<_> = names.collect();
        let widest = widest(names.iter().map(String::as_str));
        for (library, name) in libraries.iter().zip(&names) {
            let build = library.build_id.as_deref().unwrap_or("none");
            let build = build.get(..BUILD_ID).unwrap_or(build);
            let gap = " ".repeat(widest - width(name) + 2);
            let name = format!(
                "{name}{gap}build {build:<BUILD_ID$}  inode {:>8} on {}  ",
                library.inode, library.device
            );
            self.line(&library.finding, &name, &library.finding.found);
        }
    }

    fn probes(&mut self, probes: &[ProbeFinding]) {
        let widest = widest(probes.iter().map(|place| place.function.as_str()));
        let instructions = probes.iter().flat_map(|place| &place.instruction);
        let longest = instructions.map(String::len).max().unwrap_or(0);
        for place in probes {
            let gap = " ".repeat(widest - width(&place.function) + 2);
            let mut name = format!("{}{gap}", place.function);
            if let (Some(address), Some(offset), Some(kind)) =
                (place.address, place.offset, place.kind)
            {
                let instruction = place.instruction.as_deref().unwrap_or("?");
                let offset = format!("+{offset}");
                name +=
                    &format!("{address:#014x} {offset:<4} {instruction:<longest$}  {kind:<14}  ");
            }
            self.line(&place.finding, &name, &place.finding.found);
        }
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

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(width).max().unwrap_or(0)
}

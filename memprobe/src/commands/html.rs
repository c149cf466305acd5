//! `report --html`: from a recording to a page.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};

use super::messages;
use super::source::source_of;
use super::stdout::{self, OutputContent};
use super::waiting::show_while;
use crate::attribution::iterations::IterationLine;
use crate::html::{PageOptions, PagePaths, write_page};
use crate::output::{OutputFile, OutputPlan};
use crate::recording::Reader;
use crate::report::{ReportError, warning_line};
use crate::view::{clean, counted};

/// Page of a recording.
pub struct HtmlPage<'a> {
    /// Recording of memprobe, or a memory snapshot that PyTorch pickled.
    pub file: &'a Path,
    /// `-` for standard output.
    pub output: &'a Path,
    pub iteration: Option<IterationLine>,
    pub paths: PagePaths,
}

impl HtmlPage<'_> {
    pub fn run(self) -> Result<ExitCode> {
        let name = self.file.display().to_string();
        // Before the recording is read, which may take minutes.
        let plan = OutputPlan::check(self.output)?;
        if plan.is_stdout() && stdout::is_terminal() {
            bail!("a terminal cannot show a page: give --html FILE, or pipe the output to a file");
        }
        let reader = Reader::open(self.file).with_context(|| name.clone())?;
        let progress = AtomicU64::new(0);
        let line = || {
            let events = progress.load(Ordering::Relaxed);
            format!("reading {}: {}", clean(&name), counted(events, "event"))
        };
        let written = show_while(line, || self.write(&name, reader, plan, &progress));
        let (lacks, path) = written.with_context(|| name.clone())?;
        for note in lacks {
            messages::print_line(&warning_line(&name, &note));
        }
        if let Some(path) = path {
            messages::print(&format!("wrote {}: open it in a browser", path.display()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns what the page lacks, and its path (`None` for standard output).
    fn write(
        &self,
        name: &str,
        reader: Reader<BufReader<File>>,
        plan: OutputPlan,
        progress: &AtomicU64,
    ) -> Result<(Vec<String>, Option<PathBuf>)> {
        let options = PageOptions {
            file: name,
            iteration: self.iteration.clone(),
            paths: self.paths,
            source_of: &source_of,
        };
        if plan.is_stdout() {
            let mut out = stdout::open(OutputContent::Document);
            return match write_page(reader, &options, progress, &mut out) {
                Err(ReportError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
                    Ok((Vec::new(), None))
                }
                lacks => Ok((lacks?, None)),
            };
        }
        let mut outcome = Ok(Vec::new());
        let written = plan.write_with(|out: &mut io::BufWriter<&mut OutputFile>| {
            match write_page(reader, &options, progress, out) {
                Err(ReportError::Output(error)) => return Err(error),
                ended => outcome = ended,
            }
            // The unfinished file goes, and the reason is in `outcome`.
            match outcome {
                Ok(_) => Ok(()),
                Err(_) => Err(io::Error::other("the recording could not be read")),
            }
        });
        Ok((outcome?, written?))
    }
}

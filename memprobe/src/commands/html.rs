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
use crate::html::{PageOptions, PagePaths, write_annotated_page, write_page, write_rank_page};
use crate::output::{OutputFile, OutputPlan};
use crate::recording::Reader;
use crate::report::{
    AnnotatedFile, Annotation, NamedRecording, RankComparison, ReportError, ReportOptions,
    SegmentMoment, warning_line,
};
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

/// Page of the ranks of a directory.
pub struct RankPage<'a> {
    /// Name of the directory.
    pub name: &'a str,
    /// Recordings with their names.
    pub recordings: Vec<(String, Reader<BufReader<File>>)>,
    /// `-` for standard output.
    pub output: &'a Path,
    pub options: &'a ReportOptions,
}

impl RankPage<'_> {
    pub fn run(self) -> Result<ExitCode> {
        let plan = checked_plan(self.output)?;
        let names: Vec<String> = self.recordings.iter().map(|it| it.0.clone()).collect();
        let recordings = names.iter().zip(self.recordings);
        let recordings = recordings.map(|(name, (_, reader))| NamedRecording { name, reader });
        let recordings = recordings.collect();
        let line = || format!("reading {}", clean(self.name));
        let read = || RankComparison::read(recordings, None, self.options);
        let (comparison, _) = show_while(line, read)?;
        if plan.is_stdout() {
            let mut out = stdout::open(OutputContent::Document);
            return printed(write_rank_page(&comparison, self.name, &mut out));
        }
        let path = plan.write_with(|out| write_rank_page(&comparison, self.name, out))?;
        print_path(path);
        Ok(ExitCode::SUCCESS)
    }
}

/// Page of a source file with the memory of its lines.
pub struct AnnotatedPage<'a> {
    pub reader: Reader<BufReader<File>>,
    /// `-` for standard output.
    pub output: &'a Path,
    pub moment: SegmentMoment,
    pub annotation: &'a Annotation,
}

impl AnnotatedPage<'_> {
    pub fn run(self) -> Result<ExitCode> {
        let plan = checked_plan(self.output)?;
        let (reader, moment, annotation) = (self.reader, self.moment, self.annotation);
        let annotated = AnnotatedFile::read(reader, moment, annotation)?;
        if plan.is_stdout() {
            let mut out = stdout::open(OutputContent::Document);
            return printed(write_annotated_page(&annotated, &mut out));
        }
        let path = plan.write_with(|out| write_annotated_page(&annotated, out))?;
        print_path(path);
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the outcome of a page on standard output, whose reader may close it early.
fn printed(written: io::Result<()>) -> Result<ExitCode> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Checks the output before anything is read, which may take minutes.
fn checked_plan(output: &Path) -> Result<OutputPlan> {
    let plan = OutputPlan::check(output)?;
    if plan.is_stdout() && stdout::is_terminal() {
        bail!("a terminal cannot show a page: give --html FILE, or pipe the output to a file");
    }
    Ok(plan)
}

fn print_path(path: Option<PathBuf>) {
    if let Some(path) = path {
        messages::print(&format!("wrote {}: open it in a browser", path.display()));
    }
}

impl HtmlPage<'_> {
    pub fn run(self) -> Result<ExitCode> {
        let name = self.file.display().to_string();
        let plan = checked_plan(self.output)?;
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
        print_path(path);
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

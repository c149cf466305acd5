//! `export`: from a recording to a file of another program.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};

use super::messages;
use super::partial_output::PartialOutputGuard;
use super::stdout::{self, OutputContent};
use super::waiting::show_while;
use crate::export::{ExportError, ExportFormat, ExportMoment, ExportRequest, write_export};
use crate::output::{OutputFile, OutputFolder, OutputPlan};
use crate::recording::write::directory::rank_in;
use crate::recording::{PICKLE_FIRST_BYTE, PickleCopyError, Reader, copy_pickle};
use crate::report::warning_line;
use crate::view::{clean, counted};

pub struct Export<'a> {
    /// Recording of memprobe, or a memory snapshot that PyTorch pickled.
    pub file: &'a Path,
    /// `-` for standard output.
    pub output: &'a Path,
    pub format: ExportFormat,
    pub moment: ExportMoment,
}

/// Exports of all recordings of a directory, into another one.
pub struct DirectoryExport<'a> {
    pub recordings: &'a [PathBuf],
    pub output: &'a Path,
    pub format: ExportFormat,
    /// Ending of the outputs, such as `.pb.gz`.
    pub ending: &'a str,
    pub moment: ExportMoment,
}

impl DirectoryExport<'_> {
    /// Goes on after a recording that cannot be exported.
    pub fn run(&self) -> Result<ExitCode> {
        let mut folder = OutputFolder::check(self.output)?;
        let mut failed = 0;
        for file in self.recordings {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            let plan = folder.plan(&format!("{stem}{}", self.ending))?;
            let export = Export {
                file,
                output: self.output,
                format: self.format,
                moment: self.moment,
            };
            if let Err(error) = export.run_to(plan) {
                messages::print(&format!("{error:#}"));
                failed += 1;
            }
        }
        if failed > 0 {
            let (failed, all) = (counted(failed, "recording"), self.recordings.len());
            bail!("{failed} of {all} could not be exported, for the reasons above");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A whole export.
struct Written {
    /// Sentences on what it lacks.
    notes: Vec<String>,
    /// `None` for standard output.
    path: Option<PathBuf>,
}

impl Export<'_> {
    pub fn run(&self) -> Result<ExitCode> {
        // Before the recording is read, which may take minutes.
        let plan = OutputPlan::check(self.output)?;
        self.run_to(plan)
    }

    fn run_to(&self, plan: OutputPlan) -> Result<ExitCode> {
        let name = self.file.display().to_string();
        if plan.is_stdout() && !self.format.is_text() && stdout::is_terminal() {
            bail!(
                "a terminal cannot show this format: give -o FILE, or pipe the output to a program"
            );
        }
        if self.format == ExportFormat::MemoryViz && is_pickle(self.file) {
            return self.copy(plan).context(name);
        }
        let reader = Reader::open(self.file).with_context(|| name.clone())?;
        let progress = AtomicU64::new(0);
        let line = || {
            let events = progress.load(Ordering::Relaxed);
            format!("exporting {}: {}", clean(&name), counted(events, "event"))
        };
        let written = show_while(line, || self.write(reader, plan, &progress));
        let Some(Written { notes, path }) = written.with_context(|| name.clone())? else {
            return Ok(ExitCode::SUCCESS);
        };
        for note in notes {
            messages::print_line(&warning_line(&name, &note));
        }
        self.print_path(path);
        Ok(ExitCode::SUCCESS)
    }

    fn print_path(&self, path: Option<PathBuf>) {
        if let Some(path) = path {
            let (path, next) = (path.display(), self.format.next_step());
            messages::print(&format!("wrote {path}: {next}"));
        }
    }

    /// Copies PyTorch's own snapshot as its page opens it. A replay would lose what events do not hold.
    fn copy(&self, plan: OutputPlan) -> Result<ExitCode> {
        let line = || format!("copying {}", clean(&self.file.display().to_string()));
        let input = BufReader::new(File::open(self.file)?);
        let mut outcome = Ok(());
        let guard = PartialOutputGuard::new()?;
        let copied = |out: &mut BufWriter<&mut OutputFile>| {
            guard.guard(out.get_ref());
            match copy_pickle(input, out) {
                Err(PickleCopyError::Output(error)) => Err(error),
                Err(error) => {
                    outcome = Err(error);
                    Err(io::Error::other("the snapshot could not be read"))
                }
                Ok(()) => Ok(()),
            }
        };
        let written = show_while(line, || plan.write_with(copied));
        outcome?;
        self.print_path(written?);
        Ok(ExitCode::SUCCESS)
    }

    /// Returns `None` if the reader of standard output closed it early.
    fn write(
        &self,
        reader: Reader<BufReader<File>>,
        plan: OutputPlan,
        progress: &AtomicU64,
    ) -> Result<Option<Written>> {
        let stem = self.file.file_stem().and_then(OsStr::to_str);
        let request = ExportRequest {
            format: self.format,
            moment: self.moment,
            rank: stem.and_then(rank_in),
        };
        if plan.is_stdout() {
            let mut out = stdout::open(OutputContent::Document);
            return match write_export(reader, request, progress, &mut out) {
                Err(ExportError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
                    Ok(None)
                }
                notes => Ok(Some(Written {
                    notes: notes?,
                    path: None,
                })),
            };
        }
        let mut outcome = Ok(Vec::new());
        let guard = PartialOutputGuard::new()?;
        let written = plan.write_with(|out| {
            guard.guard(out.get_ref());
            match write_export(reader, request, progress, out) {
                Err(ExportError::Output(error)) => return Err(error),
                ended => outcome = ended,
            }
            // The unfinished file goes, and the reason is in `outcome`.
            match outcome {
                Ok(_) => Ok(()),
                Err(_) => Err(io::Error::other("the recording could not be read")),
            }
        });
        Ok(Some(Written {
            notes: outcome?,
            path: written?,
        }))
    }
}

/// True for a file that begins as a pickle does.
fn is_pickle(file: &Path) -> bool {
    let mut first = [0];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first[0] == PICKLE_FIRST_BYTE
}

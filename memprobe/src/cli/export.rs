//! `memprobe export`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::options::{Choice, choice, choices};
use crate::commands::export::{DirectoryExport, Export};
use crate::export::{ExportFormat, ExportMoment};
use crate::recording::{open_tensors, recordings_in};

/// Write a recording in the format of another program: Perfetto, pprof, speedscope, flame graphs, memory_viz, CSV, Parquet
///
/// Reads recordings of `memprobe record` and PyTorch's own memory snapshots. Needs no root and no GPU. The format
/// follows from the ending of the output.
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe export trace.json -o peak.folded --at peak
  memprobe export trace.json -o - --format folded | inferno-flamegraph --countname bytes > peak.svg
  memprobe export trace.json -o peak.speedscope.json --at peak
  memprobe export trace.json -o live.pb.gz && go tool pprof -http : live.pb.gz
  memprobe export trace.json -o trace.pickle            for https://pytorch.org/memory_viz
  memprobe export trace.json -o trace.pftrace           for https://ui.perfetto.dev
  memprobe export trace.json -o allocations.parquet     or .csv
  memprobe export run/ --format pprof -o profiles/      every rank of a directory
  memprobe export snapshot.pickle -o live.folded        a snapshot that PyTorch pickled
  memprobe export snapshot.pickle -o old.pickle         the same in a protocol that memory_viz opens")]
pub struct ExportArgs {
    /// Recording that `memprobe record` wrote, a directory of them, or a pickle of PyTorch's memory snapshot
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output file (`-` for standard output), or directory for a directory; an earlier file is replaced
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Format [default: by the ending of OUT]
    #[arg(short, long, value_parser = choice(FORMATS))]
    format: Option<ExportFormat>,
    /// Moment whose live memory a profile shows [default: end]
    #[arg(long, value_parser = choice(MOMENTS))]
    at: Option<ExportMoment>,
}

const FORMATS: &[Choice<ExportFormat>] = choices! {
    "folded" => ExportFormat::Folded, "Live bytes by stack, one a line, for flamegraph.pl and inferno (.folded)";
    "speedscope" => ExportFormat::Speedscope, "The same for https://www.speedscope.app (.speedscope.json)";
    "pprof" => ExportFormat::Pprof, "Live and allocated bytes and blocks by stack, for `go tool pprof` (.pb.gz, .pprof)";
    "memory-viz" => ExportFormat::MemoryViz, "A memory snapshot of PyTorch, for https://pytorch.org/memory_viz: segments, \
        and every event with its stack, category and module (.pickle)";
    "perfetto" => ExportFormat::Perfetto, "A trace for https://ui.perfetto.dev: counters, iterations, phases, and heap \
        profiles at the peak and at keyframes (.pftrace, .perfetto-trace)";
    "csv" => ExportFormat::Csv, "A row for each allocation: time, size, stream, line, category, module, free (.csv)";
    "parquet" => ExportFormat::Parquet, "The same in compressed columns, for pandas, Polars and DuckDB (.parquet)";
};

/// Endings of output files. The longest comes first.
const ENDINGS: &[(&str, ExportFormat)] = &[
    (".speedscope.json", ExportFormat::Speedscope),
    (".speedscope", ExportFormat::Speedscope),
    (".folded", ExportFormat::Folded),
    (".collapsed", ExportFormat::Folded),
    (".pb.gz", ExportFormat::Pprof),
    (".pprof", ExportFormat::Pprof),
    (".pickle", ExportFormat::MemoryViz),
    (".pkl", ExportFormat::MemoryViz),
    (".pftrace", ExportFormat::Perfetto),
    (".perfetto-trace", ExportFormat::Perfetto),
    (".csv", ExportFormat::Csv),
    (".parquet", ExportFormat::Parquet),
];

const MOMENTS: &[Choice<ExportMoment>] = choices! {
    "end" => ExportMoment::End, "The end of the recording";
    "peak" => ExportMoment::Peak, "The highest allocated bytes of each device";
    "oom" => ExportMoment::OutOfMemory, "The last out-of-memory error";
};

impl ExportArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let is_directory = self.file.is_dir();
        let by_output = by_ending(&self.output).filter(|_| !is_directory);
        let Some(format) = self.format.or(by_output) else {
            if is_directory {
                bail!(
                    "{}: this is a directory of recordings: give --format, and a directory of outputs with -o",
                    self.file.display()
                );
            }
            let endings: Vec<_> = ENDINGS.iter().map(|(ending, _)| *ending).collect();
            bail!(
                "the ending of {} names no format: give --format, or an output that ends in {}",
                self.output.display(),
                endings.join(", ")
            );
        };
        self.check_file()?;
        if self.at.is_some() && !format.has_moment() {
            bail!(
                "--at is for the memory of a moment, and this format has every event: leave it out, or give --format \
                 folded, speedscope or pprof"
            );
        }
        let moment = self.at.unwrap_or(ExportMoment::End);
        if is_directory {
            return self.export_directory(format, moment);
        }
        Export {
            file: &self.file,
            output: &self.output,
            format,
            moment,
        }
        .run()
    }

    /// Exports every recording of a directory into another one.
    fn export_directory(&self, format: ExportFormat, moment: ExportMoment) -> Result<ExitCode> {
        let directory = self.file.display();
        if self.output.as_os_str() == "-" {
            bail!("{directory}: several recordings need a directory of outputs: give -o DIR");
        }
        let recordings = recordings_in(&self.file).with_context(|| directory.to_string())?;
        if recordings.is_empty() {
            bail!("{directory}: this is a directory without recordings: give a recording");
        }
        let ending = ENDINGS.iter().find(|(_, of)| *of == format);
        DirectoryExport {
            recordings: &recordings,
            output: &self.output,
            format,
            ending: ending.map_or("", |(ending, _)| ending),
            moment,
        }
        .run()
    }

    /// Refuses files that are no recording, with the verb that reads them.
    fn check_file(&self) -> Result<()> {
        let file = self.file.display();
        // What is read of a pipe cannot be read again.
        if self.file.is_file() && open_tensors(&self.file).is_ok() {
            bail!(
                "{file}: this is a snapshot of tensors: print it with `memprobe snapshot {file}`, or export a recording \
                 of `memprobe record`"
            );
        }
        Ok(())
    }
}

/// Returns the format that the ending of a file names.
fn by_ending(output: &Path) -> Option<ExportFormat> {
    let name = output.file_name()?.to_str()?;
    let found = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
    found.map(|(_, format)| *format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_the_output_names_the_format() {
        let of = |name: &str| by_ending(Path::new(name));
        assert_eq!(of("a/peak.folded"), Some(ExportFormat::Folded));
        assert_eq!(of("x.speedscope.json"), Some(ExportFormat::Speedscope));
        assert_eq!(of("heap.pb.gz"), Some(ExportFormat::Pprof));
        assert_eq!(of("trace.json"), None);
        assert_eq!(of("-"), None);
    }

    #[test]
    fn every_format_has_an_ending() {
        for (word, format, _) in FORMATS {
            let found = ENDINGS.iter().any(|(_, of)| of == format);
            assert!(found, "{word}");
        }
    }
}

//! `memprobe report`.

use std::io::{BufWriter, ErrorKind, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::event::Losses;
use crate::model::attribution::iterations::IterationLine;
use crate::model::snapshot::Grouping;
use crate::recording::{Reader, open_tensors, recordings_in};
use crate::report::{
    self, Alike, By, Colour, Format, LayersOf, Many, Outcome, ReportError, ReportOptions, Sort,
    TensorFormat, TensorOptions, Top, write_tensors,
};

/// Columns of a report that does not go to a terminal.
const PIPED_WIDTH: usize = 100;

/// Print what a recording holds: by line, tensor, module, iteration, category and more, or every event
///
/// For a directory that `record` wrote, prints every recording in turn and their sum. Needs no root, no
/// GPU and none of the recorded process's files.
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe report trace.json
  memprobe report trace.json --sort live --all
  memprobe report trace.json --by tensor
  memprobe report trace.json --by module --depth 2
  memprobe report trace.json --by peak
  memprobe report trace.json --by growth
  memprobe report trace.json --by iteration --format csv
  memprobe report trace.json --by layer --iteration all --format csv
  memprobe report trace.json --by category
  memprobe report run/
  memprobe report --by tensor a.json
  memprobe report trace.json --by event --format jsonl | jq 'select(.action == \"oom\")'")]
pub struct Report {
    /// The recording that `memprobe record` wrote, or a directory of them
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Meaning of a row
    #[arg(long, value_enum, default_value_t = RowOf::Line)]
    by: RowOf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Writing::Text)]
    format: Writing,
    /// The order of lines, tensors and modules, largest first [default: peak]
    #[arg(short, long, value_enum)]
    sort: Option<Order>,
    /// Show this many rows of each table [default: 30; 10 with --by peak and growth, which have several; all in JSON and CSV]
    #[arg(short, long, value_name = "N", conflicts_with = "all")]
    top: Option<usize>,
    /// Show all rows
    #[arg(short, long)]
    all: bool,
    /// Frame of a stack that names its line [default: user]
    #[arg(short, long, value_enum)]
    grouping: Option<Naming>,
    /// With --by module, layer or size: show this many levels below the outermost modules
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// With --by module, layer, saved or size: show each of modules that differ in number alone (layers.0, layers.1)
    #[arg(long)]
    each: bool,
    /// With --by layer: of which iterations, as 3, 3..9 or all. For programs without an optimizer: an iteration begins when
    /// memory is asked for from below this line (FILE:LINE), after the same thread asked for it from elsewhere
    ///
    /// Between two iterations, something must ask for memory from another line: where all of a loop's memory is
    /// asked for from below this one, its iterations are not told apart. FILE may be the end of a path.
    /// With --by layer, both may be given: --iteration serve.py:41 --iteration 3.
    #[arg(long, value_name = "N|N..M|all|FILE:LINE", value_parser = told_of_iterations)]
    iteration: Vec<OfIterations>,
}

/// Options for iterations.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OfIterations {
    /// Start of an iteration.
    BeginAt(IterationLine),
    /// Iterations to show.
    Show(LayersOf),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowOf {
    /// A line of Python
    Line,
    /// The tensors of one shape and element type that a line of Python made; each tensor, of a file
    /// that `memprobe snapshot -o` wrote
    Tensor,
    /// An event, in order
    Event,
    /// A module (torch.nn.Module) that asked for memory, below those that it is part of
    Module,
    /// Memory at the peak of each device: by line, by module, by tensor
    Peak,
    /// A line, a module or a tensor that holds more from iteration to iteration: suspects of leaks
    Growth,
    /// An iteration of a training loop: its peak, and what memory was for at that moment
    Iteration,
    /// Category of memory (parameters, gradients, activations, ...), and the rule behind it
    Category,
    /// Phase of the program that asked for memory: forward, backward, step, ...
    Phase,
    /// Memory saved for backward passes, by module, operation and line
    Saved,
    /// Size of a model: parameters, and memory of each module in one iteration, without and with backward
    Size,
    /// Memory of each module at its device's peak, in all or in an iteration: activations, weights, gradients, intermediate
    /// gradients
    Layer,
}

#[derive(Clone, Copy, ValueEnum)]
enum Writing {
    /// For people
    Text,
    /// One JSON document
    Json,
    /// One JSON object a row
    Jsonl,
    /// Comma-separated values
    Csv,
}

#[derive(Clone, Copy, ValueEnum)]
enum Order {
    /// The most bytes that were live at once
    Peak,
    /// The bytes that were live at the end
    Live,
    /// The blocks that were live at the end
    #[value(alias = "count")]
    Blocks,
    /// The number of allocations
    Allocs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Naming {
    /// The innermost frame of your own code, outside Python's library and installed packages
    User,
    /// The innermost frame
    Innermost,
}

impl RowOf {
    /// The expression as given.
    fn name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Report {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.check()?;
        let file = self.file.display().to_string();
        if self.file.is_dir() {
            return self.run_on_directory().context(file);
        }
        let reader = match Reader::open(&self.file) {
            Err(_) if self.by == RowOf::Tensor => return self.run_on_tensors().context(file),
            reader => reader.with_context(|| file.clone())?,
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        let options = self.options();
        let outcome = report::write(reader, &options, &mut out).context(file.clone())?;
        if matches!(options.format, Format::Jsonl | Format::Csv) {
            // Rows alone have no place for it.
            for warning in outcome.iter().flat_map(warnings) {
                // Nobody is left to tell where standard error is gone too.
                let _ = writeln!(std::io::stderr(), "memprobe: {file}: {warning}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses what would be left aside in silence.
    fn check(&self) -> Result<()> {
        use RowOf::*;
        let whys = [Peak, Growth, Iteration, Category, Phase, Saved, Layer, Size];
        let limited = [
            Line, Tensor, Module, Peak, Growth, Iteration, Saved, Layer, Size,
        ];
        let (lines, shown): (Vec<_>, Vec<_>) = self
            .iteration
            .iter()
            .partition(|it| matches!(it, OfIterations::BeginAt(_)));
        if lines.len() > 1 || shown.len() > 1 {
            bail!(
                "--iteration is given twice: give one line, and with --by layer one N, N..M or all"
            );
        }
        let flags: [(&str, bool, &[RowOf]); 7] = [
            ("--sort", self.sort.is_some(), &[Line, Tensor, Module]),
            ("--top", self.top.is_some(), &limited),
            (
                "--grouping",
                self.grouping.is_some(),
                &[Line, Tensor, Peak, Growth, Saved],
            ),
            ("--depth", self.depth.is_some(), &[Module, Layer, Size]),
            ("--each", self.each, &[Module, Layer, Saved, Size]),
            ("--iteration FILE:LINE", !lines.is_empty(), &whys),
            ("--iteration N", !shown.is_empty(), &[Layer]),
        ];
        for (flag, is_given, goes_with) in flags {
            if is_given && !goes_with.contains(&self.by) {
                let names = goes_with.iter().map(RowOf::name);
                let names: Vec<String> = names.collect();
                bail!(
                    "{flag} does nothing with --by {}: leave it out, or give --by {}",
                    self.by.name(),
                    names.join(", ")
                );
            }
        }
        Ok(())
    }

    /// The tensors of a snapshot.
    fn run_on_tensors(&self) -> Result<ExitCode> {
        let snapshot = open_tensors(&self.file)?;
        if self.sort.is_some() || self.grouping.is_some() {
            bail!(
                "tensors of a snapshot stand in the order of what they hold: leave out --sort and --grouping, which \
                 are for recordings"
            );
        }
        let lines = self.options();
        let options = TensorOptions {
            format: match lines.format {
                Format::Text => TensorFormat::Text,
                Format::Json => TensorFormat::Json,
                Format::Csv => TensorFormat::Csv,
                Format::Jsonl => {
                    bail!("tensors are written as text, json or csv: give one of these")
                }
            },
            top: lines.top,
            width: lines.width,
            colour: lines.colour,
            ..TensorOptions::default()
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        write_tensors(&snapshot, &options, &mut out)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Reports one recording after the other, then their sum.
    fn run_on_directory(&self) -> Result<ExitCode> {
        let options = self.options();
        let files = recordings_in(&self.file)?;
        let Some(first) = files.iter().find(|file| Reader::open(file).is_ok()) else {
            bail!(
                "this directory holds no recording: give one that `memprobe record -o DIR/` wrote"
            );
        };
        if !report::is_possible_for_many(&options) {
            bail!(
                "of a directory there is a table of lines, as text or JSON; for other reports give one of its \
                 files, such as {}",
                first.display()
            );
        }
        let mut out = BufWriter::new(std::io::stdout().lock());
        match report_on(&files, &options, &mut out) {
            Err(ReportError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
            outcome => outcome?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self) -> ReportOptions {
        let terminal = std::io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        ReportOptions {
            by: match self.by {
                RowOf::Line => By::Line,
                RowOf::Tensor => By::Tensor,
                RowOf::Event => By::Event,
                RowOf::Module => By::Module,
                RowOf::Peak => By::Peak,
                RowOf::Growth => By::Growth,
                RowOf::Iteration => By::Iteration,
                RowOf::Category => By::Category,
                RowOf::Phase => By::Phase,
                RowOf::Saved => By::Saved,
                RowOf::Size => By::Size,
                RowOf::Layer => By::Layer,
            },
            format: match self.format {
                Writing::Text => Format::Text,
                Writing::Json => Format::Json,
                Writing::Jsonl => Format::Jsonl,
                Writing::Csv => Format::Csv,
            },
            sort: match self.sort.unwrap_or(Order::Peak) {
                Order::Peak => Sort::Peak,
                Order::Live => Sort::Live,
                Order::Blocks => Sort::Blocks,
                Order::Allocs => Sort::Allocs,
            },
            top: match (self.top, self.format, self.by) {
                (Some(most), ..) => Top::Rows(most),
                // A program that adds up rows must not miss some.
                (None, Writing::Json | Writing::Jsonl | Writing::Csv, _) => Top::All,
                (None, Writing::Text, _) if self.all => Top::All,
                (None, Writing::Text, RowOf::Peak | RowOf::Growth) => Top::Rows(10),
                (None, Writing::Text, _) => Top::Rows(30),
            },
            grouping: match self.grouping.unwrap_or(Naming::User) {
                Naming::User => Grouping::User,
                Naming::Innermost => Grouping::Innermost,
            },
            depth: self.depth,
            alike: if self.each {
                Alike::Each
            } else {
                Alike::Folded
            },
            width: if columns > 0 { columns } else { PIPED_WIDTH },
            colour: if terminal && wanted {
                Colour::Ansi
            } else {
                Colour::Plain
            },
            iteration: self.iteration.iter().find_map(|it| match it {
                OfIterations::BeginAt(line) => Some(line.clone()),
                OfIterations::Show(_) => None,
            }),
            layers: self
                .iteration
                .iter()
                .find_map(|it| match it {
                    OfIterations::Show(of) => Some(of.clone()),
                    OfIterations::BeginAt(_) => None,
                })
                .unwrap_or(LayersOf::Peak),
        }
    }
}

/// Recording without the data for a report.
fn warnings(outcome: &Outcome) -> Vec<String> {
    let mut warnings = Vec::new();
    if outcome.truncated {
        warnings
            .push("the end of the recording is missing: the rows are of what is there".to_owned());
    }
    let Losses {
        events,
        stacks,
        malformed,
        uses,
    } = outcome.losses;
    if uses > 0 {
        warnings.push(format!(
            "what {uses} blocks without a tensor are for is not known: the ring buffer was half full; a larger \
             --buffer-size of `memprobe record` has room for more"
        ));
    }
    if events > 0 || stacks > 0 || malformed > 0 {
        warnings.push(format!(
            "lost while recording: {events} events, {stacks} stacks, {malformed} bad records; a larger --buffer-size of \
             `memprobe record` has room for more"
        ));
    }
    warnings
}

fn told_of_iterations(words: &str) -> Result<OfIterations, String> {
    if words == "all" {
        return Ok(OfIterations::Show(LayersOf::Each));
    }
    let (first, last) = words.split_once("..").unwrap_or((words, words));
    if let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>()) {
        return match (1..=last).contains(&first) {
            true => Ok(OfIterations::Show(LayersOf::Iterations(first..=last))),
            false => Err("iterations count from 1, and the first comes first".to_owned()),
        };
    }
    let line = IterationLine::parse(words).map(OfIterations::BeginAt);
    line.ok_or_else(|| {
        "give a number, two as in 3..9, all, or a file and a line, such as serve.py:41".to_owned()
    })
}

fn report_on(
    files: &[PathBuf],
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<(), ReportError> {
    let mut many = Many::begin(options, out)?;
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match Reader::open(path) {
            Ok(reader) => many.add(&name, reader)?,
            Err(error) => many.add_unreadable(&name, &error)?,
        }
    }
    many.finish()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        report: Report,
    }

    fn refused(flags: &str) -> Option<String> {
        let words = format!("report trace.json {flags}");
        let alone = Alone::try_parse_from(words.split(' ')).ok().unwrap();
        alone.report.check().err().map(|error| error.to_string())
    }

    #[test]
    fn a_flag_that_would_do_nothing_is_refused_with_what_it_goes_with() {
        assert_eq!(refused("--by module --depth 2"), None);
        assert_eq!(refused("--by iteration --iteration serve.py:41"), None);
        assert_eq!(refused("--by event --all"), None);
        assert_eq!(refused("--by layer --iteration all"), None);
        let both = "--by layer --iteration serve.py:41 --iteration 3..9";
        assert_eq!(refused(both), None);
        assert!(refused("--by layer --iteration 3 --iteration 4").is_some());
        assert!(refused("--by iteration --iteration 3").is_some());
        assert_eq!(
            refused("--depth 2").unwrap(),
            "--depth does nothing with --by line: leave it out, or give --by module, layer, size"
        );
        assert!(refused("--by category --top 3").is_some());
        assert!(refused("--by peak --sort live").is_some());
        assert!(refused("--by event --grouping user").is_some());
        assert!(refused("--iteration serve.py:41").is_some());
    }

    #[test]
    fn iterations_are_named_by_numbers_or_by_the_line_at_which_they_begin() {
        let of = |words| told_of_iterations(words).ok();
        let show = |numbers| Some(OfIterations::Show(LayersOf::Iterations(numbers)));
        assert_eq!(of("3"), show(3..=3));
        assert_eq!(of("3..9"), show(3..=9));
        assert_eq!(of("all"), Some(OfIterations::Show(LayersOf::Each)));
        assert!(matches!(of("serve.py:41"), Some(OfIterations::BeginAt(_))));
        for wrong in ["0", "9..3", "3..", "..", "serve.py", ""] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn rows_alone_come_with_a_word_on_what_is_missing() {
        let mut outcome = Outcome {
            events: 3,
            losses: Losses::default(),
            truncated: false,
        };
        assert!(warnings(&outcome).is_empty());
        outcome.truncated = true;
        outcome.losses.stacks = 2;
        let warnings = warnings(&outcome);
        assert!(warnings[0].contains("end of the recording is missing"));
        assert!(warnings[1].contains("2 stacks"), "{warnings:?}");
    }
}

//! `memprobe report`.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::html::PageOption;
use super::misplaced::process_instead;
use super::options::{
    Choice, FoldOption, Format as Writing, FormatOption, LimitOption, StdoutStyle, choice, choices,
    parse_depth, parse_size,
};
use crate::attribution::iterations::IterationLine;
use crate::commands::html::{AnnotatedPage, HtmlPage, RankPage};
use crate::commands::messages;
use crate::commands::source::annotation;
use crate::commands::stdout::{self, OutputContent};
use crate::estimate::AllocatorSettings;
use crate::event::Bytes;
use crate::ledger::snapshot::Grouping;
use crate::recording::{Reader, RecordingDamage, open_tensors, recordings_in};
use crate::report::{
    self, Alike, By, LayersOf, ManyReport, NamedRecording, Outcome, ReportError, ReportFormat,
    ReportOptions, RowLimit, SegmentMoment, Sort, WhatIfSettings,
};

/// Columns of a report that does not go to a terminal.
const PIPED_WIDTH: usize = 100;

/// Print a recording: by line, tensor, module, iteration, category and more, or every event
///
/// For a directory that `record` wrote, prints every recording in turn, and the sum of lines. Needs no root, no
/// GPU and none of the recorded process's files. Reads PyTorch's own memory snapshots too.
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe report trace.mprb
  memprobe report trace.mprb --sort live --limit all
  memprobe report trace.mprb --by tensor
  memprobe report trace.mprb --by module --depth 2
  memprobe report trace.mprb --by peak
  memprobe report trace.mprb --by growth
  memprobe report trace.mprb --by iteration --format csv
  memprobe report serve.mprb --by iteration --iteration-start serve.py:41
  memprobe report trace.mprb --by layer --iteration all --format csv
  memprobe report trace.mprb --by category
  memprobe report trace.mprb --by segment --request 512MiB
  memprobe report trace.mprb --by owner --at end
  memprobe report trace.mprb --what-if expandable_segments:True,max_split_size_mb:128
  memprobe report run/
  memprobe report trace.mprb --html report.html    # one file, which opens without network
  memprobe report trace.mprb --annotate train.py --function train_step
  memprobe report run/ --by rank
  memprobe report snapshot.pickle --by peak        # of torch.cuda.memory._dump_snapshot()
  memprobe report trace.mprb --by event --format jsonl | jq 'select(.action == \"oom\")'")]
#[command(mut_arg("limit", |arg| arg.help(
    "Rows of each table, or `all` [default: 30 in text, 10 with --by peak, growth and rank; all in JSON and CSV]")))]
#[command(mut_arg("no_fold", |arg| arg.help(
    "With --by module, layer, saved or size: show modules that differ only in a number (layers.0, layers.1) one by one")))]
pub struct Report {
    /// Recording that `memprobe record` wrote, a directory of them, or a pickle of PyTorch's memory snapshot
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Meaning of a row
    #[arg(short, long, default_value = "line", value_parser = choice(&ROWS), conflicts_with = "what_if")]
    by: By,
    #[command(flatten)]
    format: FormatOption,
    /// Order of lines, tensors and modules, largest first [default: peak]
    #[arg(short, long, value_parser = choice(ORDERS))]
    sort: Option<Sort>,
    #[command(flatten)]
    limit: LimitOption,
    #[command(flatten)]
    fold: FoldOption,
    /// Frame of a stack that names its line [default: user]
    #[arg(long, value_parser = choice(FRAMES))]
    frame: Option<Grouping>,
    /// With --by module, layer or size: show this many levels below the outermost modules
    #[arg(long, value_name = "N", value_parser = parse_depth)]
    depth: Option<usize>,
    /// With --by layer: iterations to show instead of the peak of the recording, as 3, 3..9 or all. With --by rank: iteration
    /// to compare the ranks in [default: the one with the highest peak]
    #[arg(long, value_name = "N|N..M|all", value_parser = parse_iterations)]
    iteration: Option<LayersOf>,
    /// Line at which an iteration starts, such as serve.py:41, for programs without an optimizer
    ///
    /// An iteration starts when code below this line allocates, after the same thread allocated elsewhere. So between two
    /// iterations, another line must allocate. FILE may be the end of a path.
    #[arg(long, value_name = "FILE:LINE", value_parser = parse_iteration_start)]
    iteration_start: Option<IterationLine>,
    /// With --by segment: moment to show [default: peak]; with --by owner and --annotate [default: end]
    #[arg(long, value_parser = choice(MOMENTS))]
    at: Option<SegmentMoment>,
    /// Replay the requests of PyTorch's allocator under other settings of PYTORCH_CUDA_ALLOC_CONF
    ///
    /// Prints the peak of reserved memory, what of it was not allocated then, and whether a failed request would have
    /// fitted. The replay first reproduces the recorded run, and prints differences. Known: expandable_segments,
    /// max_split_size_mb, max_non_split_rounding_mb and roundup_power2_divisions.
    #[arg(long, value_name = "SETTINGS", value_parser = parse_what_if)]
    what_if: Option<WhatIfSettings>,
    /// With --by segment: also show the free memory that a request of this size cannot use, such as 512MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_request)]
    request: Option<Bytes>,
    #[command(flatten)]
    page: PageOption,
}

/// Meanings of a row in the order of the help: breakdowns after the tables of iterations and categories.
static ROWS: LazyLock<Vec<Choice<By>>> = LazyLock::new(|| {
    let first = FIRST_ROWS.iter().copied();
    let all = first.chain(By::breakdowns());
    all.chain(LAST_ROWS.iter().copied()).collect()
});

const FIRST_ROWS: &[Choice<By>] = choices! {
    "line" => By::Line, "A line of Python";
    "tensor" => By::Tensor, "The tensors of one shape and dtype from one line of Python";
    "event" => By::Event, "An event, in order";
    "module" => By::Module, "A module (torch.nn.Module) that allocated memory, in the tree of the model";
    "peak" => By::Peak, "Memory at the peak of each device: by line, by module, by tensor";
    "growth" => By::Growth, "A line, module or tensor with more memory in each iteration: suspected leaks";
    "iteration" => By::Iteration, "An iteration of a training loop: its peak, by category";
    "category" => By::Category, "Category of memory (parameters, gradients, activations, ...), and the rule behind it";
    "phase" => By::Phase, "Phase of the program that allocated memory: forward, backward, step, ...";
    "saved" => By::Saved, "Memory saved for backward passes, by module, operation and line";
    "size" => By::Size, "Size of a model: parameters, and memory of each module in one iteration, without and with \
        backward";
    "layer" => By::Layer, "Memory of each module at its device's peak or in an iteration: activations, weights, \
        gradients, intermediate gradients";
};

const LAST_ROWS: &[Choice<By>] = choices! {
    "segment" => By::Segment, "A segment of the caching allocator: pool, stream, live, cached and split bytes, and what \
        empty_cache() would return";
    "owner" => By::Owner, "Owner of the process's memory, down from the driver's count: CUDA's context, libraries, PyTorch's \
        allocator with its cached and sleeping bytes";
    "rank" => By::Rank, "Of a directory: the ranks of a job in one iteration, the imbalance of lines, modules and \
        categories, and the first rank that failed";
};

const ORDERS: &[Choice<Sort>] = choices! {
    "peak" => Sort::Peak, "Most live bytes at once";
    "live" => Sort::Live, "Live bytes at the end";
    "blocks" => Sort::Blocks, "Live blocks at the end";
    "allocs" => Sort::Allocs, "Number of allocations";
};

const MOMENTS: &[Choice<SegmentMoment>] = choices! {
    "peak" => SegmentMoment::Peak, "The highest allocated bytes";
    "end" => SegmentMoment::End, "The end of the recording";
    "oom" => SegmentMoment::OutOfMemory, "The last out-of-memory error";
};

pub(super) const FRAMES: &[Choice<Grouping>] = choices! {
    "user" => Grouping::User, "The innermost frame of your own code, outside Python's library and installed packages";
    "innermost" => Grouping::Innermost, "The innermost frame";
};

fn name(by: By) -> &'static str {
    let row = ROWS.iter().find(|(_, value, _)| *value == by);
    row.map_or("", |(word, ..)| word)
}

impl Report {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.check()?;
        match (&self.page.annotate, &self.page.html) {
            (Some(source), output) => return self.run_annotated(source, output.as_deref()),
            (None, Some(output)) => return self.run_page(output),
            (None, None) => {}
        }
        let file = self.file.display().to_string();
        if self.file.is_dir() && self.by == By::Rank {
            return self.compare_ranks().context(file);
        }
        if self.file.is_dir() {
            return self.run_on_directory().context(file);
        }
        if self.by == By::Rank {
            bail!("{file}: --by rank compares the recordings of a directory: give the directory");
        }
        let reader = match Reader::open(&self.file) {
            Err(_) if open_tensors(&self.file).is_ok() => bail!(
                "{file}: this is a snapshot of tensors: print it with `memprobe snapshot {file}`, or compare it with a \
                 later one: `memprobe diff {file} LATER.json`"
            ),
            Err(error) => match process_instead(&self.file) {
                Some(suggestion) => bail!("{file}: there is no such file; {suggestion}"),
                None => Err(error),
            },
            reader => reader,
        };
        let reader = reader.with_context(|| file.clone())?;
        let options = self.options();
        let mut out = stdout::open(content(options.format));
        let outcome = report::write(reader, &options, &mut out).context(file.clone())?;
        warn(&options, &file, outcome.as_ref());
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses options without effect.
    fn check(&self) -> Result<()> {
        use By::*;
        self.check_what_if()?;
        let with_iterations = [
            Peak, Growth, Iteration, Category, Phase, Saved, Layer, Size, Rank,
        ];
        let rows = ROWS.iter().map(|(_, by, _)| *by);
        let limited: Vec<By> = rows
            .filter(|by| !matches!(by, Event | Category | Phase))
            .collect();
        let limit = matches!(self.limit.limit, Some(RowLimit::Rows(_)));
        let flags: [(&str, bool, &[By]); 9] = [
            ("--sort", self.sort.is_some(), &[Line, Tensor, Module]),
            ("--limit", limit, &limited),
            (
                "--frame",
                self.frame.is_some(),
                &[Line, Tensor, Peak, Growth, Saved, Owner, Rank],
            ),
            ("--depth", self.depth.is_some(), &[Module, Layer, Size]),
            (
                "--no-fold",
                self.fold.no_fold,
                &[Module, Layer, Saved, Size, Rank],
            ),
            (
                "--iteration-start",
                self.iteration_start.is_some(),
                &with_iterations,
            ),
            ("--iteration", self.iteration.is_some(), &[Layer, Rank]),
            (
                "--at",
                self.at.is_some() && self.page.annotate.is_none(),
                &[Segment, Owner],
            ),
            ("--request", self.request.is_some(), &[Segment]),
        ];
        for (flag, is_given, goes_with) in flags {
            if is_given && !goes_with.contains(&self.by) {
                let names: Vec<_> = goes_with.iter().map(|by| name(*by)).collect();
                let (given, names) = (name(self.by), names.join(", "));
                bail!("{flag} does nothing with --by {given}: leave it out, or give --by {names}");
            }
        }
        Ok(())
    }

    /// Writes the page of the recording, or of the ranks of a directory.
    fn run_page(&self, output: &Path) -> Result<ExitCode> {
        if self.file.is_dir() {
            let file = self.file.display().to_string();
            let recordings = self.open_directory().with_context(|| file.clone())?;
            return RankPage {
                name: &file,
                recordings,
                output,
                options: &self.options(),
            }
            .run()
            .context(file);
        }
        HtmlPage {
            file: &self.file,
            output,
            iteration: self.iteration_start.clone(),
            paths: self.page.paths(),
        }
        .run()
    }

    /// Refuses options of tables beside `--what-if`.
    fn check_what_if(&self) -> Result<()> {
        let flags = [
            ("--sort", self.sort.is_some()),
            ("--limit", self.limit.limit.is_some()),
            ("--frame", self.frame.is_some()),
            ("--depth", self.depth.is_some()),
            ("--no-fold", self.fold.no_fold),
            ("--iteration-start", self.iteration_start.is_some()),
            ("--iteration", self.iteration.is_some()),
            ("--at", self.at.is_some()),
            ("--request", self.request.is_some()),
        ];
        let given = flags.iter().find(|(_, is_given)| *is_given);
        match given.filter(|_| self.what_if.is_some()) {
            Some((flag, _)) => bail!("{flag} does nothing with --what-if: leave it out"),
            None => Ok(()),
        }
    }

    /// Prints a source file with the memory of its lines.
    fn run_annotated(&self, source: &Path, page: Option<&Path>) -> Result<ExitCode> {
        let file = self.file.display().to_string();
        let reader = Reader::open(&self.file).with_context(|| file.clone())?;
        let options = ReportOptions {
            moment: self.at.unwrap_or(SegmentMoment::End),
            ..self.options()
        };
        let annotation = annotation(source, self.page.function.clone());
        if let Some(output) = page {
            let page = AnnotatedPage {
                reader,
                output,
                moment: options.moment,
                annotation: &annotation,
            };
            return page.run().context(file.clone());
        }
        let mut out = stdout::open(content(options.format));
        let outcome = report::write_annotated(reader, &options, &annotation, &mut out);
        let outcome = outcome.context(file.clone())?;
        warn(&options, &file, outcome.as_ref());
        Ok(ExitCode::SUCCESS)
    }

    /// Compares the recordings of a directory.
    fn compare_ranks(&self) -> Result<ExitCode> {
        let iteration = match &self.iteration {
            None => None,
            Some(LayersOf::Iterations(numbers)) if numbers.start() == numbers.end() => {
                Some(*numbers.start())
            }
            Some(_) => {
                bail!("--by rank compares in one iteration: give its number, such as --iteration 3")
            }
        };
        let options = self.options();
        let opened = self.open_directory()?;
        let names: Vec<String> = opened.iter().map(|(name, _)| name.clone()).collect();
        let recordings = names.iter().zip(opened);
        let recordings = recordings.map(|(name, (_, reader))| NamedRecording { name, reader });
        let mut out = stdout::open(content(options.format));
        let outcomes = report::write_ranks(recordings.collect(), iteration, &options, &mut out)?;
        for (name, outcome) in names.iter().zip(outcomes.unwrap_or_default()) {
            warn(&options, name, Some(&outcome));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Opens the recordings of a directory, with their names. Prints why one cannot be read.
    fn open_directory(&self) -> Result<Vec<(String, Reader<BufReader<File>>)>> {
        let mut opened = Vec::new();
        for path in recordings_in(&self.file)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match Reader::open(&path) {
                Ok(reader) => opened.push((name.into_owned(), reader)),
                Err(error) => print_warning(&name, &error.to_string()),
            }
        }
        if opened.is_empty() {
            bail!(
                "this directory holds no recording: give one that `memprobe record -o DIR/` wrote"
            );
        }
        Ok(opened)
    }

    fn run_on_directory(&self) -> Result<ExitCode> {
        let options = self.options();
        let files = recordings_in(&self.file)?;
        if !files.iter().any(|file| Reader::open(file).is_ok()) {
            bail!(
                "this directory holds no recording: give one that `memprobe record -o DIR/` wrote"
            );
        }
        let mut out = stdout::open(content(options.format));
        match report_on(&files, &options, &mut out) {
            Err(ReportError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
            outcome => outcome?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self) -> ReportOptions {
        let style = StdoutStyle::detect();
        let format = self.format.or_text();
        ReportOptions {
            by: self.by,
            format: match format {
                Writing::Text => ReportFormat::Text,
                Writing::Json => ReportFormat::Json,
                Writing::Jsonl => ReportFormat::Jsonl,
                Writing::Csv => ReportFormat::Csv,
            },
            sort: self.sort.unwrap_or(Sort::Peak),
            top: match (self.limit.limit, format, self.by) {
                (Some(limit), ..) => limit,
                // A program that adds up rows must not miss some.
                (None, Writing::Json | Writing::Jsonl | Writing::Csv, _) => RowLimit::All,
                (None, Writing::Text, By::Peak | By::Growth | By::Rank) => RowLimit::Rows(10),
                (None, Writing::Text, _) => RowLimit::Rows(30),
            },
            grouping: self.frame.unwrap_or(Grouping::User),
            depth: self.depth,
            alike: if self.fold.no_fold {
                Alike::Each
            } else {
                Alike::Folded
            },
            width: style.columns.unwrap_or(PIPED_WIDTH),
            colour: style.colour,
            iteration: self.iteration_start.clone(),
            layers: self.iteration.clone().unwrap_or(LayersOf::Peak),
            moment: self.at.unwrap_or(match self.by {
                By::Owner => SegmentMoment::End,
                _ => SegmentMoment::Peak,
            }),
            request: self.request,
            what_if: self.what_if.clone(),
        }
    }
}

pub(super) fn content(format: ReportFormat) -> OutputContent {
    match format {
        ReportFormat::Text => OutputContent::Text,
        ReportFormat::Json | ReportFormat::Jsonl | ReportFormat::Csv => OutputContent::Document,
    }
}

/// Prints what is missing from rows in the formats that have no place for it.
fn warn(options: &ReportOptions, name: &str, outcome: Option<&Outcome>) {
    if matches!(options.format, ReportFormat::Jsonl | ReportFormat::Csv) {
        let warnings = outcome.into_iter().flat_map(warnings);
        warnings.for_each(|warning| print_warning(name, &warning));
    }
}

pub(super) fn print_warning(name: &str, warning: &str) {
    messages::print_line(&report::warning_line(name, warning));
}

pub(super) fn warnings(outcome: &Outcome) -> Vec<String> {
    let mut warnings = Vec::new();
    if outcome.truncated {
        warnings
            .push("the end of the recording is missing: the rows cover what is there".to_owned());
    }
    if let Some(damage) = outcome.damage {
        warnings.push(format!("{damage}: the rows cover the rest"));
    }
    let lost = RecordingDamage::losses_of_recording(outcome.damage, outcome.losses);
    let (events, stacks, malformed, uses) = (lost.events, lost.stacks, lost.malformed, lost.uses);
    if uses > 0 {
        warnings.push(format!(
            "the purpose of {uses} blocks without a tensor is unknown, because the ring buffer was half full: give \
             `memprobe record` a larger --buffer-size"
        ));
    }
    if events > 0 || stacks > 0 || malformed > 0 {
        warnings.push(format!(
            "lost while recording: {events} events, {stacks} stacks, {malformed} bad records: give `memprobe record` a \
             larger --buffer-size"
        ));
    }
    warnings
}

fn parse_iterations(text: &str) -> Result<LayersOf, String> {
    if text == "all" {
        return Ok(LayersOf::Each);
    }
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if (1..=last).contains(&first) => {
            Ok(LayersOf::Iterations(first..=last))
        }
        (Ok(_), Ok(_)) => {
            Err("iterations count from 1: give the first before the last, as in 3..9".to_owned())
        }
        _ => Err("give a number, two as in 3..9, or all".to_owned()),
    }
}

fn parse_what_if(text: &str) -> Result<WhatIfSettings, String> {
    let settings = AllocatorSettings::parse(text).map_err(|error| error.to_string())?;
    Ok(WhatIfSettings {
        text: text.to_owned(),
        settings,
    })
}

fn parse_request(text: &str) -> Result<Bytes, String> {
    parse_size(text).map(Bytes)
}

pub(super) fn parse_iteration_start(text: &str) -> Result<IterationLine, String> {
    IterationLine::parse(text)
        .ok_or_else(|| "give a file and a line, such as serve.py:41".to_owned())
}

fn report_on(
    files: &[PathBuf],
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<(), ReportError> {
    let mut many = ManyReport::begin(options, out)?;
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match Reader::open(path) {
            Ok(reader) => {
                let outcome = many.add(&name, reader)?;
                if outcome.is_none() {
                    return Ok(());
                }
                warn(options, &name, outcome.as_ref());
            }
            Err(error) => {
                many.add_unreadable(&name, &error)?;
                if options.format == ReportFormat::Csv {
                    print_warning(&name, &error.to_string());
                }
            }
        }
    }
    many.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::event::Losses;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        report: Report,
    }

    fn refused(flags: &str) -> Option<String> {
        let words = format!("report trace.mprb {flags}");
        let alone = Alone::try_parse_from(words.split(' ')).ok().unwrap();
        alone.report.check().err().map(|error| error.to_string())
    }

    #[test]
    fn a_flag_that_would_do_nothing_is_refused_with_what_it_goes_with() {
        assert_eq!(refused("--by module --depth 2"), None);
        assert_eq!(
            refused("--by iteration --iteration-start serve.py:41"),
            None
        );
        assert_eq!(refused("--by event --limit all"), None);
        assert_eq!(refused("--by layer --iteration all"), None);
        let both = "--by layer --iteration-start serve.py:41 --iteration 3..9";
        assert_eq!(refused(both), None);
        assert!(refused("--by iteration --iteration 3").is_some());
        assert_eq!(
            refused("--depth 2").unwrap(),
            "--depth does nothing with --by line: leave it out, or give --by module, layer, size"
        );
        assert!(refused("--by category --limit 3").is_some());
        assert_eq!(refused("--what-if expandable_segments:True"), None);
        assert_eq!(
            refused("--what-if expandable_segments:True --sort live").unwrap(),
            "--sort does nothing with --what-if: leave it out"
        );
        assert!(refused("--by peak --sort live").is_some());
        assert!(refused("--by event --frame user").is_some());
        assert!(refused("--iteration-start serve.py:41").is_some());
    }

    #[test]
    fn every_meaning_of_a_row_has_its_own_word() {
        let words: BTreeSet<&str> = ROWS.iter().map(|(word, ..)| *word).collect();
        assert_eq!(words.len(), ROWS.len());
        assert!(refused("--by thread --limit 3").is_none());
    }

    #[test]
    fn parses_iterations() {
        let show = |text| parse_iterations(text).ok();
        let numbers = |range| Some(LayersOf::Iterations(range));
        assert_eq!(show("3"), numbers(3..=3));
        assert_eq!(show("3..9"), numbers(3..=9));
        assert_eq!(show("all"), Some(LayersOf::Each));
        for wrong in ["0", "9..3", "3..", "..", "serve.py:41", ""] {
            let error = parse_iterations(wrong).unwrap_err();
            assert!(error.contains("give "), "{wrong}: {error}");
        }
        assert!(parse_iteration_start("serve.py:41").is_ok());
        for wrong in ["3", "3..9", "serve.py", ""] {
            assert!(parse_iteration_start(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_alone_come_with_a_word_on_what_is_missing() {
        let mut outcome = Outcome {
            events: 3,
            losses: Losses::default(),
            truncated: false,
            damage: None,
        };
        assert!(warnings(&outcome).is_empty());
        outcome.damage = Some(RecordingDamage {
            places: 1,
            bytes: 100,
            events: 7,
            offset: 12,
            reason: "no frame",
        });
        outcome.losses.events = 7;
        assert_eq!(
            warnings(&outcome),
            [
                "the recording is damaged in 1 place, the first at byte 12 (no frame): 100 bytes with 7 events cannot \
                 be read: the rows cover the rest"
            ]
        );
        (outcome.damage, outcome.losses.events) = (None, 0);
        outcome.truncated = true;
        outcome.losses.stacks = 2;
        let warnings = warnings(&outcome);
        assert!(warnings[0].contains("end of the recording is missing"));
        assert!(warnings[1].contains("2 stacks"), "{warnings:?}");
    }
}

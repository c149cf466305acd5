//! `memprobe diff`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;

use super::misplaced::process_instead;
use super::options::{
    Choice, FoldOption, Format, FormatOption, LimitOption, StdoutStyle, choice, choices,
};
use super::report::{FRAMES, print_warning, warnings};
use super::snapshot::{self, ORDERS, PIPED_WIDTH, TensorRows};
use crate::attribution::chosen_moments::ChosenMoment;
use crate::attribution::iterations::IterationLine;
use crate::commands::snapshot::content as snapshot_content;
use crate::commands::stdout;
use crate::compare::CompareBy;
use crate::ledger::snapshot::Grouping;
use crate::recording::{Reader, open_tensors};
use crate::report::{
    Alike, DiffOptions, NamedRecording, Outcome, ReportFormat, RowLimit, write_difference,
    write_tensor_diff,
};
use crate::tensors::{GroupBy, Order};

/// Compare two recordings, two moments of one, or two snapshots of tensors
///
/// Of recordings and PyTorch's memory snapshots: the memory of each line, tensor, module or category before and after,
/// at the peak, the end, an out-of-memory error or an iteration. FILE@3 is iteration 3 of a recording, FILE@end its end. A
/// line is the same if file, function and number are; if the code has moved, its line is inferred and marked with ~.
///
/// Of snapshots: `+` was added, `-` was removed, `~` has another name or another storage size. A tensor is the same in both
/// if object, data address, offset, shape and dtype are equal; else tensors of equal kind, name, shape and dtype match,
/// whatever their addresses.
///
/// The rows add up to the change of memory_allocated(). Needs no root, no GPU and not the process.
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe diff old.mprb new.mprb                  the peak of two runs, by line
  memprobe diff old.mprb new.mprb --by module
  memprobe diff trace.mprb --from 3 --to 40        two iterations of one recording
  memprobe diff trace.mprb --from 3 --to oom --by category
  memprobe diff run/rank0.mprb run/rank1.mprb --iteration 12
  memprobe diff old.mprb@10 new.mprb@12
  memprobe diff before.pickle after.pickle --at end   of torch.cuda.memory._dump_snapshot()
  memprobe diff old.mprb new.mprb --format csv
  memprobe diff a.json b.json                      tensors of `memprobe snapshot -o`
  memprobe diff a.json b.json --by shape")]
#[command(mut_arg("no_fold", |arg| arg.help(
    "Recordings, with --by module: show modules that differ only in a number one by one. Snapshots, with --by \
     tensor: show identical unnamed tensors one by one")))]
#[command(mut_arg("limit", |arg| arg.help(
    "Rows of each device in text, or `all` [default: 30 of recordings, 50 of snapshots]")))]
pub struct Diff {
    /// Earlier recording or snapshot (`-` for a snapshot on standard input)
    #[arg(value_name = "BEFORE[@MOMENT]")]
    before: PathBuf,
    /// Later one; without it, --from and --to name two moments of the first
    #[arg(value_name = "AFTER[@MOMENT]")]
    after: Option<PathBuf>,
    /// Meaning of a row [default: line of recordings, tensor of snapshots]
    #[arg(short, long, value_parser = choice(ROWS))]
    by: Option<DiffRows>,
    /// Recordings: moment of both [default: peak]
    #[arg(long, value_parser = choice(MOMENTS), conflicts_with_all = ["iteration", "from", "to"])]
    at: Option<ChosenMoment>,
    /// Recordings: iteration of both, at its peak
    #[arg(long, value_name = "N", value_parser = parse_iteration, conflicts_with_all = ["from", "to"])]
    iteration: Option<ChosenMoment>,
    /// Recordings: moment before, as the number of an iteration, or peak, end or oom
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment, requires = "to")]
    from: Option<ChosenMoment>,
    /// Recordings: moment after
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment, requires = "from")]
    to: Option<ChosenMoment>,
    /// Recordings: line at which an iteration starts, such as serve.py:41, for programs without an optimizer
    #[arg(long, value_name = "FILE:LINE", value_parser = super::report::parse_iteration_start)]
    iteration_start: Option<IterationLine>,
    /// Recordings: frame of a stack that names its line [default: user]
    #[arg(long, value_parser = choice(FRAMES))]
    frame: Option<Grouping>,
    #[command(flatten)]
    format: FormatOption,
    /// Snapshots: order of rows [default: allocated]
    #[arg(short, long, value_parser = choice(ORDERS))]
    sort: Option<Order>,
    #[command(flatten)]
    limit: LimitOption,
    #[command(flatten)]
    fold: FoldOption,
    /// Snapshots: show all names of each tensor, and the rules that inferred them
    #[arg(long)]
    all_names: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiffRows {
    Line,
    Tensor,
    Module,
    Category,
    Shape,
    Kind,
    Retainer,
}

const ROWS: &[Choice<DiffRows>] = choices! {
    "line" => DiffRows::Line, "A line of Python";
    "tensor" => DiffRows::Tensor, "Recordings: tensors of one shape and dtype; snapshots: a tensor";
    "module" => DiffRows::Module, "A module (torch.nn.Module)";
    "category" => DiffRows::Category, "Recordings: category of memory (parameters, gradients, activations, ...)";
    "shape" => DiffRows::Shape, "Snapshots: tensors of equal kind, shape and dtype, whatever their names";
    "kind" => DiffRows::Kind, "Snapshots: a kind, such as parameters";
    "retainer" => DiffRows::Retainer, "Snapshots: the variable or container that keeps the memory alive";
};

const MOMENTS: &[Choice<ChosenMoment>] = choices! {
    "peak" => ChosenMoment::Peak, "The most allocated bytes of each device";
    "end" => ChosenMoment::End, "The end of the recording";
    "oom" => ChosenMoment::OutOfMemory, "The last out-of-memory error";
};

/// Kind of file that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Recording,
    Snapshot,
}

impl FileKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Recording => "a recording",
            Self::Snapshot => "a snapshot of tensors",
        }
    }
}

impl DiffRows {
    fn of_recordings(self) -> Option<CompareBy> {
        Some(match self {
            Self::Line => CompareBy::Line,
            Self::Tensor => CompareBy::Tensor,
            Self::Module => CompareBy::Module,
            Self::Category => CompareBy::Category,
            Self::Shape | Self::Kind | Self::Retainer => return None,
        })
    }

    fn of_snapshots(self) -> Option<GroupBy> {
        Some(match self {
            Self::Line => GroupBy::Site,
            Self::Tensor => GroupBy::Unnamed,
            Self::Module => GroupBy::Module,
            Self::Shape => GroupBy::Shape,
            Self::Kind => GroupBy::Kind,
            Self::Retainer => GroupBy::Retainer,
            Self::Category => return None,
        })
    }
}

impl Diff {
    pub(super) fn run(self) -> Result<ExitCode> {
        let (before, from) = split_moment(&self.before);
        let after = self.after.as_deref().map(split_moment);
        let kind = kind_of(&before)?;
        let other = after.as_ref().map(|(path, _)| kind_of(path)).transpose()?;
        if let (Some(other), Some((path, _))) = (other, &after)
            && other != kind
        {
            bail!(
                "{} is {} and {} is {}: give two recordings, or two snapshots",
                before.display(),
                kind.name(),
                path.display(),
                other.name()
            );
        }
        match (kind, after) {
            (FileKind::Recording, after) => {
                let (after, to) = after.unzip();
                self.check_of_recordings(kind)?;
                self.compare_recordings(&before, after.as_deref(), [from, to.flatten()])
            }
            (FileKind::Snapshot, Some((after, to))) => {
                if from.or(to).is_some() {
                    bail!("a snapshot is one moment: leave @ and what follows it out");
                }
                self.check_of_snapshots(kind)?;
                self.compare_snapshots(&before, &after)
            }
            (FileKind::Snapshot, None) => bail!(
                "{0}: a snapshot is compared with a later one: `memprobe diff {0} LATER.json`",
                before.display()
            ),
        }
    }

    fn check_of_recordings(&self, kind: FileKind) -> Result<()> {
        let flags = [
            ("--sort", self.sort.is_some()),
            ("--all-names", self.all_names),
        ];
        refuse(&flags, kind)?;
        let by = self.by.unwrap_or(DiffRows::Line);
        if by.of_recordings().is_none() {
            bail!(
                "--by {} is for snapshots of tensors: give line, tensor, module or category",
                word(by)
            );
        }
        if self.frame.is_some() && by != DiffRows::Line {
            bail!(
                "--frame does nothing with --by {}: leave it out, or give --by line",
                word(by)
            );
        }
        if self.fold.no_fold && by != DiffRows::Module {
            bail!(
                "--no-fold does nothing with --by {}: leave it out, or give --by module",
                word(by)
            );
        }
        Ok(())
    }

    fn check_of_snapshots(&self, kind: FileKind) -> Result<()> {
        let flags = [
            ("--at", self.at.is_some()),
            ("--iteration", self.iteration.is_some()),
            ("--from", self.from.is_some()),
            ("--iteration-start", self.iteration_start.is_some()),
            ("--frame", self.frame.is_some()),
        ];
        refuse(&flags, kind)?;
        if self.format.format == Some(Format::Jsonl) {
            bail!("a difference of snapshots has no JSON lines: give --format json or csv");
        }
        Ok(())
    }

    /// Returns the moments before and after; `at` are those behind the names of the files.
    fn moments(
        &self,
        is_one_file: bool,
        at: [Option<ChosenMoment>; 2],
    ) -> Result<[ChosenMoment; 2]> {
        let both = self.at.or(self.iteration);
        if let (Some(_), true) = (both.or(self.from), at.iter().any(Option::is_some)) {
            bail!(
                "FILE@MOMENT names the moment already: leave out --at, --iteration, --from and --to"
            );
        }
        if let (Some(from), Some(to)) = (self.from, self.to) {
            return Ok([from, to]);
        }
        if is_one_file {
            bail!(
                "give a second recording, or two moments of this one, as in `memprobe diff {} --from 3 --to 40`",
                self.before.display()
            );
        }
        let both = both.unwrap_or(ChosenMoment::Peak);
        Ok(at.map(|moment| moment.unwrap_or(both)))
    }

    fn compare_recordings(
        &self,
        before: &Path,
        after: Option<&Path>,
        at: [Option<ChosenMoment>; 2],
    ) -> Result<ExitCode> {
        let moments = self.moments(after.is_none(), at)?;
        // The lines of one file are of one source.
        let after = after.filter(|after| !is_same_file(before, after));
        let names = [before, after.unwrap_or(before)].map(|path| path.display().to_string());
        let open = |path: &Path| Reader::open(path).with_context(|| path.display().to_string());
        let style = StdoutStyle::detect();
        let format = self.format.or_text();
        let options = DiffOptions {
            by: self
                .by
                .and_then(DiffRows::of_recordings)
                .unwrap_or(CompareBy::Line),
            moments,
            format: match format {
                Format::Text => ReportFormat::Text,
                Format::Json => ReportFormat::Json,
                Format::Jsonl => ReportFormat::Jsonl,
                Format::Csv => ReportFormat::Csv,
            },
            top: self.limit.limit.unwrap_or(RowLimit::Rows(30)),
            grouping: self.frame.unwrap_or(Grouping::User),
            alike: if self.fold.no_fold {
                Alike::Each
            } else {
                Alike::Folded
            },
            width: style.columns.unwrap_or(PIPED_WIDTH),
            colour: style.colour,
            iteration: self.iteration_start.clone(),
        };
        if format != Format::Text && self.limit.limit.is_some() {
            bail!("--limit is for text: {} has all rows", format_word(format));
        }
        let first = NamedRecording {
            name: &names[0],
            reader: open(before)?,
        };
        let second = after.map(|after| {
            anyhow::Ok(NamedRecording {
                name: &names[1],
                reader: open(after)?,
            })
        });
        let mut out = stdout::open(super::report::content(options.format));
        let outcomes = write_difference(first, second.transpose()?, &options, &mut out)?;
        if matches!(options.format, ReportFormat::Csv | ReportFormat::Jsonl) {
            warn(&names, outcomes.as_deref().unwrap_or_default());
        }
        Ok(ExitCode::SUCCESS)
    }

    fn compare_snapshots(self, before: &Path, after: &Path) -> Result<ExitCode> {
        let by = self.by.unwrap_or(DiffRows::Tensor);
        let Some(group) = by.of_snapshots() else {
            bail!(
                "--by category is for recordings: give tensor, shape, kind, module, line or retainer"
            );
        };
        let rows = TensorRows {
            by: group,
            format: self.format,
            sort: self.sort.unwrap_or(Order::Holds),
            limit: self.limit,
            fold: self.fold,
            all_names: self.all_names,
        };
        let options = rows.options()?;
        if before.as_os_str() == "-" && after.as_os_str() == "-" {
            bail!("standard input can be one of the two snapshots: name a file for the other");
        }
        let before = Arc::new(snapshot::read(before)?);
        let after = Arc::new(snapshot::read(after)?);
        let mut out = stdout::open(snapshot_content(options.format));
        write_tensor_diff(&before, &after, &options, &mut out)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn warn(names: &[String], outcomes: &[Outcome]) {
    for (name, outcome) in names.iter().zip(outcomes) {
        let warnings = warnings(outcome);
        warnings
            .iter()
            .for_each(|warning| print_warning(name, warning));
    }
}

fn refuse(flags: &[(&str, bool)], kind: FileKind) -> Result<()> {
    match flags.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => bail!("{flag} does nothing for {}: leave it out", kind.name()),
        None => Ok(()),
    }
}

fn word(by: DiffRows) -> &'static str {
    let row = ROWS.iter().find(|(_, value, _)| *value == by);
    row.map_or("", |(word, ..)| word)
}

const fn format_word(format: Format) -> &'static str {
    match format {
        Format::Csv => "CSV",
        _ => "JSON",
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Standard input is a snapshot: a recording is read twice.
fn kind_of(path: &Path) -> Result<FileKind> {
    if path.as_os_str() == "-" {
        return Ok(FileKind::Snapshot);
    }
    let name = path.display();
    if path.is_dir() {
        bail!(
            "{name} is a directory: give two of its recordings, or compare all: `memprobe report {name} --by rank`"
        );
    }
    if path.exists() && !path.is_file() {
        bail!("{name}: a recording is read twice, and a pipe cannot be: save it to a file first");
    }
    let error = match Reader::open(path) {
        Ok(_) => return Ok(FileKind::Recording),
        Err(error) => error,
    };
    if open_tensors(path).is_ok() {
        return Ok(FileKind::Snapshot);
    }
    Err(match process_instead(path) {
        Some(_) => anyhow!(
            "{name}: there is no such file. If it is a process, take two snapshots of it first: `memprobe snapshot {name} \
             -o a.json`"
        ),
        None => anyhow!(error).context(name.to_string()),
    })
}

/// Splits `FILE@MOMENT`, unless a file has this name.
fn split_moment(path: &Path) -> (PathBuf, Option<ChosenMoment>) {
    let split = || {
        let (file, moment) = path.to_str()?.rsplit_once('@')?;
        Some((PathBuf::from(file), parse_moment(moment).ok()?))
    };
    match split().filter(|_| !path.exists()) {
        Some((file, moment)) => (file, Some(moment)),
        None => (path.to_owned(), None),
    }
}

fn parse_moment(text: &str) -> Result<ChosenMoment, String> {
    let named = MOMENTS.iter().find(|(word, ..)| *word == text);
    match named {
        Some((_, moment, _)) => Ok(*moment),
        None => parse_iteration(text)
            .map_err(|_| "give the number of an iteration, or peak, end or oom".to_owned()),
    }
}

fn parse_iteration(text: &str) -> Result<ChosenMoment, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(ChosenMoment::Iteration(number)),
        _ => Err("give the number of an iteration, counted from 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        diff: Diff,
    }

    fn parsed(words: &str) -> Option<Diff> {
        let words = format!("diff {words}");
        let alone = Alone::try_parse_from(words.split(' ')).ok()?;
        Some(alone.diff)
    }

    fn refused(words: &str, kind: FileKind) -> Option<String> {
        let diff = parsed(words).expect("it parses");
        let checked = match kind {
            FileKind::Recording => diff.check_of_recordings(kind),
            FileKind::Snapshot => diff.check_of_snapshots(kind),
        };
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn an_option_that_would_do_nothing_is_refused() {
        use FileKind::{Recording, Snapshot};
        for fine in [
            "a b",
            "a b --by module --no-fold",
            "a b --by line --frame innermost",
        ] {
            assert_eq!(refused(fine, Recording), None, "{fine}");
        }
        for wrong in [
            "a b --sort size",
            "a b --all-names",
            "a b --by shape",
            "a b --by category --frame user",
            "a b --no-fold",
        ] {
            let error = refused(wrong, Recording).expect("refused");
            assert!(
                error.contains("leave it out") || error.contains("give line"),
                "{error}"
            );
        }
        assert_eq!(refused("a b --sort size --all-names", Snapshot), None);
        for wrong in [
            "a b --at end",
            "a b --iteration 3",
            "a b --from 1 --to 2",
            "a b --format jsonl",
        ] {
            assert!(refused(wrong, Snapshot).is_some(), "{wrong}");
        }
    }

    #[test]
    fn a_moment_is_given_once() {
        assert!(parsed("a b --at end --iteration 3").is_none());
        assert!(parsed("a --from 3").is_none());
        assert!(parsed("a --from 0 --to 2").is_none());
        let moments = |words: &str, at| {
            let diff = parsed(words).expect("it parses");
            diff.moments(diff.after.is_none(), at).ok()
        };
        let iteration = ChosenMoment::Iteration;
        assert_eq!(moments("a b", [None; 2]), Some([ChosenMoment::Peak; 2]));
        assert_eq!(
            moments("a b --iteration 3", [None; 2]),
            Some([iteration(3); 2])
        );
        assert_eq!(
            moments("a --from 3 --to oom", [None; 2]),
            Some([iteration(3), ChosenMoment::OutOfMemory])
        );
        assert_eq!(
            moments("a b", [Some(iteration(3)), None]),
            Some([iteration(3), ChosenMoment::Peak])
        );
        assert_eq!(moments("a", [None; 2]), None, "one moment of one file");
        assert_eq!(moments("a b --at end", [Some(iteration(3)), None]), None);
    }

    #[test]
    fn a_moment_follows_the_name_of_a_file() {
        let split = |text: &str| split_moment(Path::new(text));
        let path = PathBuf::from;
        assert_eq!(
            split("a.mprb@3"),
            (path("a.mprb"), Some(ChosenMoment::Iteration(3)))
        );
        assert_eq!(
            split("a@b.mprb@end"),
            (path("a@b.mprb"), Some(ChosenMoment::End))
        );
        for name in ["a.mprb", "me@host.mprb", "a@0"] {
            assert_eq!(split(name), (path(name), None));
        }
    }
}

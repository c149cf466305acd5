//! Table of iterations.

use super::{Notes, missing};
use crate::attribution::IntervalDevice;
use crate::attribution::category::Category;
use crate::attribution::iterations::{Cycle, Epochs, Iteration, IterationKind, Iterations, Source};
use crate::attribution::view::Coverage;
use crate::event::{DeviceIndex, TimeNs};
use crate::report::ReportOptions;
use crate::view::table::{Cell, Column, Output, Summand, Table, columns};
use crate::view::{ByCategory, category_columns, counted, headed_bytes};

/// An iteration on a device. Bytes by category are those at its peak.
pub(super) struct IterationEntry<'a> {
    index: DeviceIndex,
    start: TimeNs,
    name: String,
    /// `None` for the row of hidden iterations.
    of: Option<(&'a Iteration, &'a IntervalDevice)>,
}

type IterationColumn<'a> = Column<IterationEntry<'a>>;

impl IterationEntry<'_> {
    fn iteration<T: Into<Cell<'static>>>(&self, value: fn(&Iteration) -> T) -> Cell<'static> {
        self.of
            .map_or(Cell::Blank, |(iteration, _)| value(iteration).into())
    }

    fn device<T: Into<Cell<'static>>>(&self, value: fn(&IntervalDevice) -> T) -> Cell<'static> {
        self.of
            .map_or(Cell::Blank, |(_, device)| value(device).into())
    }

    /// Time between a moment of the iteration and an earlier one.
    fn since(&self, moment: fn(&Iteration) -> TimeNs, earlier: TimeNs) -> Cell<'static> {
        self.of.map_or(Cell::Blank, |(iteration, _)| {
            Cell::Nanoseconds(moment(iteration).0.saturating_sub(earlier.0))
        })
    }

    fn bytes(&self, value: fn(&IntervalDevice) -> u64) -> Cell<'static> {
        self.of
            .map_or(Cell::Blank, |(_, device)| Cell::Bytes(value(device)))
    }
}

impl ByCategory for IterationEntry<'_> {
    fn bytes(&self, category: Category) -> Cell<'static> {
        self.of.map_or(Cell::Blank, |(_, device)| {
            Cell::Bytes(device.peak.composition.of(category))
        })
    }
}

pub(super) fn columns<'a>() -> Vec<IterationColumn<'a>> {
    let mut columns = Vec::from(columns![|row: IterationEntry<'a>|
        data("device") => row.index,
        label("ITERATION") => &*row.name,
        data("iteration") => row.iteration(|it| it.number),
        data("kind") => row.iteration(|it| it.kind.as_str()),
        number("epoch", "EPOCH").priority(4) => row.iteration(|it| it.epoch),
        number("begin_ns", "BEGIN").priority(8) => row.since(|it| it.begin, row.start),
        number("duration_ns", "TIME").priority(6) =>
            row.of.map_or(Cell::Blank, |(it, _)| row.since(|it| it.end, it.begin)),
        number("peak_allocated", "PEAK") => row.device(|device| device.peak.totals.allocated),
        number("live_at_end", "AT END").priority(7) => row.device(|device| device.end.allocated),
        number("reserved", "RESERVED").priority(9) => row.device(|device| device.peak.totals.reserved),
        number("cached", "CACHED").priority(5) => row.bytes(|device| device.peak.totals.cached().0),
    ]);
    columns.extend(category_columns());
    columns.extend(columns![|row: IterationEntry<'a>|
        data("before_attach") => row.bytes(|device| device.peak.composition.before_attach),
        data("unaccounted") => row.device(|device| Cell::Signed(device.peak.composition.unaccounted)),
        figure("OTHER").part(Summand::Rest) => row.device(other),
        number("allocs", "ALLOCS").priority(10) => row.device(|device| device.allocs),
        number("alloc_bytes", "ALLOCATED").priority(11) => row.bytes(|device| device.alloc_bytes),
        data("provisional_bytes") => row.bytes(provisional),
        data("backward_passes") => row.iteration(|it| it.backwards),
        data("batches") => row.iteration(|it| it.batches),
    ]);
    columns
}

pub(super) fn notes(iterations: &Iterations, heard: Coverage) -> Notes {
    let mut legend = vec![delimiters(iterations).to_owned()];
    legend.extend(match iterations.cycle {
        Cycle::Single => None,
        Cycle::ByBatch => Some("Several optimizers step: an iteration is one batch.".to_owned()),
        Cycle::Repeats(passes) if iterations.source == Source::Backwards => Some(format!(
            "Several lines start backward passes in turn: {passes} passes are one iteration."
        )),
        Cycle::Repeats(steps) => Some(format!(
            "Several optimizers step in turn: {steps} steps are one iteration."
        )),
        Cycle::Irregular if iterations.source == Source::Backwards => None,
        Cycle::Irregular => {
            Some("Several optimizers step in no order: each step ends an iteration.".to_owned())
        }
    });
    if iterations.source != Source::Nothing {
        let columns = "PEAK is divided into inferred categories. INTERMED.: intermediate gradients. OTHER: the rest.";
        legend.push(columns.to_owned());
    }
    let mut facts = Vec::from_iter(epochs(iterations.epochs));
    facts.extend(doubts(iterations));
    if iterations.dropped > 0 {
        let dropped = counted(iterations.dropped, "stretch");
        facts.push(format!(
            "{dropped} before the first row are no longer available."
        ));
    }
    facts.extend(missing(heard));
    Notes { legend, facts }
}

/// Returns the events that delimit iterations, and the doubts about them.
pub(in crate::report) fn source(iterations: &Iterations) -> String {
    let mut sentences = vec![delimiters(iterations).to_owned()];
    sentences.extend(doubts(iterations));
    sentences.join(" ")
}

pub(super) fn delimiters(iterations: &Iterations) -> &'static str {
    match iterations.source {
        Source::Steps => "An iteration ends with Optimizer.step().",
        Source::ZeroGrads => {
            "An iteration starts with Optimizer.zero_grad(): no optimizer step was seen."
        }
        Source::Backwards => {
            "An iteration starts with the first forward pass after a backward pass (inferred): no optimizer step, \
             zero_grad() or batch was seen."
        }
        Source::Batches => {
            "An iteration starts with the next batch of a DataLoader: no optimizer was seen."
        }
        Source::Line if !iterations.rows.iter().any(Iteration::is_numbered) => {
            "No iterations found: no code below the given line allocated memory. Check its file and number, or give a \
             line that allocates."
        }
        Source::Line => {
            "An iteration starts when code below the given line allocates, after the same thread allocated elsewhere."
        }
        Source::Nothing => {
            "No iterations found: no optimizer step, no zero_grad() and no DataLoader batch was seen. Give the line \
             at which one starts, such as --iteration-start serve.py:41."
        }
    }
}

pub(super) fn doubts(iterations: &Iterations) -> impl Iterator<Item = String> {
    let inferred = (iterations.inferred_visits > 0).then(|| {
        format!(
            "{} inferred (on threads that allocate nowhere else): the line began again when none of its tensors was \
             live. A loop below the line looks the same.",
            counted(iterations.inferred_visits, "start")
        )
    });
    let stay = (iterations.threads_that_stay > 0).then(|| {
        format!(
            "{} allocated nowhere else since: further visits of the line cannot be told from the first. Give a line \
             within it, such as the first that allocates.",
            counted(iterations.threads_that_stay, "thread")
        )
    });
    inferred.into_iter().chain(stay)
}

pub(super) fn epochs(epochs: Epochs) -> Option<String> {
    Some(match epochs {
        Epochs::NoEnd => return None,
        Epochs::Told { batches } => {
            format!("An epoch is {batches} batches of a DataLoader (inferred).")
        }
        Epochs::Irregular => "Epochs are unknown: their ends came at unequal distances.".to_owned(),
        Epochs::SeveralLoaders => "Epochs are unknown: several lines request batches.".to_owned(),
    })
}

pub(super) fn table<'a>(
    iterations: &'a Iterations,
    index: DeviceIndex,
    start: TimeNs,
    options: &ReportOptions,
) -> Table<IterationEntry<'a>> {
    let of_device = iterations.rows.iter().filter_map(|iteration| {
        let (_, device) = iteration.devices.iter().find(|(at, _)| *at == index)?;
        Some((iteration, device))
    });
    let row = |name, of| IterationEntry {
        index,
        start,
        name,
        of,
    };
    let mut rows: Vec<IterationEntry<'_>> = of_device.map(|of| row(name(of.0), Some(of))).collect();
    let hidden = rows.len() - options.top.of(rows.len());
    let shown = rows.split_off(hidden);
    let mut table = Table::new(columns());
    table.extend(Output::Data, rows);
    if hidden > 0 {
        let name = format!("({} before)", counted(hidden as u64, "row"));
        table.push(Output::Text, row(name, None));
    }
    table.extend(Output::All, shown);
    table
}

/// Name of a row in text.
pub(super) fn name(iteration: &Iteration) -> String {
    match iteration.kind {
        IterationKind::Undivided => "(all)".to_owned(),
        IterationKind::Before => "(before)".to_owned(),
        IterationKind::Whole => iteration.number.to_string(),
        IterationKind::Evaluation => "(eval)".to_owned(),
        IterationKind::Unfinished => format!("{} (open)", iteration.number),
    }
}

/// Bytes whose category later events may change.
fn provisional(device: &IntervalDevice) -> u64 {
    let composition = &device.peak.composition;
    let categories = Category::ALL.iter();
    categories
        .map(|category| composition.provisional(*category))
        .sum()
}

/// Bytes without a column of their own in text.
fn other(device: &IntervalDevice) -> Cell<'static> {
    let composition = &device.peak.composition;
    let named = headed_bytes(|category| composition.of(category));
    let rest = i128::from(device.peak.totals.allocated.0) - i128::from(named);
    match u64::try_from(rest) {
        Ok(rest) => Cell::Bytes(rest),
        Err(_) => Cell::Signed(rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
    }
}

//! Table of iterations.

use super::{missing, purposes};
use crate::attribution::IntervalDevice;
use crate::attribution::category::Category;
use crate::attribution::iterations::{Cycle, Epochs, Iteration, IterationKind, Iterations, Source};
use crate::attribution::view::Coverage;
use crate::event::{DeviceIndex, TimeNs};
use crate::report::ReportOptions;
use crate::view::counted;
use crate::view::table::{Cell, Column, Output, Part, Table};

/// An iteration on a device. Bytes by category are those at its peak.
pub(super) struct Row<'a> {
    index: DeviceIndex,
    start: TimeNs,
    name: String,
    /// `None` for the row of hidden iterations.
    of: Option<(&'a Iteration, &'a IntervalDevice)>,
}

type IterationColumn<'a> = Column<Row<'a>>;

impl Row<'_> {
    fn iteration<T: Into<Cell<'static>>>(&self, value: fn(&Iteration) -> T) -> Cell<'static> {
        self.of
            .map_or(Cell::Blank, |(iteration, _)| value(iteration).into())
    }

    fn device<T: Into<Cell<'static>>>(&self, value: fn(&IntervalDevice) -> T) -> Cell<'static> {
        self.of
            .map_or(Cell::Blank, |(_, device)| value(device).into())
    }

    fn bytes(&self, value: fn(&IntervalDevice) -> u64) -> Cell<'static> {
        self.of
            .map_or(Cell::Blank, |(_, device)| Cell::Bytes(value(device)))
    }
}

impl purposes::ByCategory for Row<'_> {
    fn bytes(&self, category: Category) -> Cell<'static> {
        self.of.map_or(Cell::Blank, |(_, device)| {
            Cell::Bytes(device.peak.composition.of(category))
        })
    }
}

pub(super) fn columns<'a>() -> Vec<IterationColumn<'a>> {
    let mut columns: Vec<IterationColumn<'a>> = vec![
        Column::data("device", |row| row.index.into()),
        IterationColumn::label("ITERATION", |row| (&*row.name).into()),
        Column::data("iteration", |row| row.iteration(|it| it.number)),
        Column::data("kind", |row| row.iteration(kind)),
        Column::wide(4, "epoch", "EPOCH", |row| row.iteration(|it| it.epoch)),
        Column::wide(8, "begin_ns", "BEGIN", |row| match row.of {
            Some((it, _)) => Cell::Nanoseconds(it.begin.0.saturating_sub(row.start.0)),
            None => Cell::Blank,
        }),
        Column::wide(6, "duration_ns", "TIME", |row| {
            row.iteration(|it| Cell::Nanoseconds(it.end.0.saturating_sub(it.begin.0)))
        }),
        Column::number("peak_allocated", "PEAK", |row| {
            row.device(|device| device.peak.totals.allocated)
        }),
        Column::wide(7, "live_at_end", "AT END", |row| {
            row.device(|device| device.end.allocated)
        }),
        Column::wide(9, "reserved", "RESERVED", |row| {
            row.device(|device| device.peak.totals.reserved)
        }),
        Column::wide(5, "cached", "CACHED", |row| {
            row.bytes(|device| {
                let totals = device.peak.totals;
                totals.reserved.0.saturating_sub(totals.allocated.0)
            })
        }),
    ];
    columns.extend(purposes::columns());
    columns.extend([
        IterationColumn::data("before_attach", |row| {
            row.bytes(|device| device.peak.composition.before_attach)
        }),
        Column::data("unaccounted", |row| {
            row.device(|device| Cell::Signed(device.peak.composition.unaccounted))
        }),
        IterationColumn::figure("OTHER", |row| row.device(other)).part(Part::Rest),
        Column::wide(10, "allocs", "ALLOCS", |row| {
            row.device(|device| device.allocs)
        }),
        Column::wide(11, "alloc_bytes", "ALLOCATED", |row| {
            row.bytes(|device| device.alloc_bytes)
        }),
        Column::data("provisional_bytes", |row| row.bytes(provisional)),
        Column::data("backward_passes", |row| row.iteration(|it| it.backwards)),
        Column::data("batches", |row| row.iteration(|it| it.batches)),
    ]);
    columns
}

pub(super) fn notes(iterations: &Iterations, heard: Coverage) -> Vec<String> {
    let mut notes = vec![source(iterations).to_owned()];
    match iterations.cycle {
        Cycle::Single => {}
        Cycle::ByBatch => notes.push(
            "Several optimizers step: an iteration is the work on one batch.".to_owned(),
        ),
        Cycle::Repeats(steps) => notes.push(format!(
            "Several optimizers step in turn: {steps} steps are one iteration, counted from the first that was seen."
        )),
        Cycle::Irregular => notes.push(
            "Several optimizers step in no repeated order: each step ends an iteration.".to_owned(),
        ),
    }
    if iterations.source != Source::Nothing {
        notes.push(
            "Categories are inferred (--by category names the rules) and add up to the peak of each row. INTERMED.: \
             intermediate gradients. OTHER: temporaries, workspaces, unknown, before attach, unaccounted, and \
             categories without a column."
                .to_owned(),
        );
    }
    notes.extend(epochs(iterations.epochs));
    if iterations.dropped > 0 {
        notes.push(format!(
            "{} before the first row are no longer available.",
            counted(iterations.dropped, "stretch")
        ));
    }
    notes.extend(missing(heard));
    notes
}

pub(super) fn source(iterations: &Iterations) -> &'static str {
    match iterations.source {
        Source::Steps => "An iteration ends with Optimizer.step().",
        Source::ZeroGrads => {
            "An iteration starts with Optimizer.zero_grad(): no optimizer step was seen."
        }
        Source::Batches => {
            "An iteration starts with the next batch of a DataLoader: no optimizer was seen."
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

pub(super) fn epochs(epochs: Epochs) -> Option<String> {
    Some(match epochs {
        Epochs::NoEnd => return None,
        Epochs::Told { batches } => format!(
            "An epoch is {batches} batches of a DataLoader, counted from the first that was seen. Inferred: after \
             that many batches, one was requested without training."
        ),
        Epochs::Irregular => "Epochs are unknown: batches requested without training, as at the end of an epoch, came \
                              at unequal distances."
            .to_owned(),
        Epochs::SeveralLoaders => {
            "Epochs are unknown: several lines request the batches for training.".to_owned()
        }
    })
}

pub(super) fn table<'a>(
    iterations: &'a Iterations,
    index: DeviceIndex,
    start: TimeNs,
    options: &ReportOptions,
) -> Table<Row<'a>> {
    let of_device = iterations.rows.iter().filter_map(|iteration| {
        let (_, device) = iteration.devices.iter().find(|(at, _)| *at == index)?;
        Some((iteration, device))
    });
    let row = |name, of| Row {
        index,
        start,
        name,
        of,
    };
    let mut rows: Vec<Row<'_>> = of_device.map(|of| row(name(of.0), Some(of))).collect();
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

/// Kind of a row in CSV and JSON.
pub(super) fn kind(iteration: &Iteration) -> &'static str {
    match iteration.kind {
        IterationKind::Undivided => "undivided",
        IterationKind::Before => "before",
        IterationKind::Whole => "iteration",
        IterationKind::Evaluation => "evaluation",
        IterationKind::Unfinished => "unfinished",
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
    let named = purposes::named(|category| composition.of(category));
    let rest = i128::from(device.peak.totals.allocated.0) - i128::from(named);
    match u64::try_from(rest) {
        Ok(rest) => Cell::Bytes(rest),
        Err(_) => Cell::Signed(rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
    }
}

//! Table of iterations.

use super::grid::{Cell, Column, Grid, Row, RowAudience};
use super::{missing, purposes};
use crate::attribution::IntervalDevice;
use crate::attribution::category::Category;
use crate::attribution::iterations::{Cycle, Epochs, Iteration, IterationKind, Iterations, Source};
use crate::attribution::view::Coverage;
use crate::event::{DeviceIndex, TimeNs};
use crate::report::ReportOptions;
use crate::view::counted;

/// Bytes by category are those at the iteration's peak.
pub(super) const COLUMNS: &[Column] = &purposes::joined::<28>(&[
    &[
        Column::programs("device"),
        Column::people("ITERATION"),
        Column::programs("iteration"),
        Column::programs("kind"),
        Column::wide("epoch", "EPOCH", 4),
        Column::wide("begin_ns", "BEGIN", 8),
        Column::wide("duration_ns", "TIME", 6),
        Column::all("peak_allocated", "PEAK"),
        Column::wide("live_at_end", "AT END", 7),
        Column::wide("reserved", "RESERVED", 9),
        Column::wide("cached", "CACHED", 5),
    ],
    &purposes::COLUMNS,
    &[
        Column::programs("before_attach"),
        Column::programs("unaccounted"),
        Column::rest("OTHER"),
        Column::wide("allocs", "ALLOCS", 10),
        Column::wide("alloc_bytes", "ALLOCATED", 11),
        Column::programs("provisional_bytes"),
        Column::programs("backward_passes"),
        Column::programs("batches"),
    ],
]);

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

pub(super) fn grid(
    iterations: &Iterations,
    index: DeviceIndex,
    start: TimeNs,
    options: &ReportOptions,
) -> Grid {
    let of_device = iterations.rows.iter().filter_map(|row| {
        let (_, device) = row.devices.iter().find(|(at, _)| *at == index)?;
        Some((row, device))
    });
    let mut rows: Vec<Row> = of_device
        .map(|(iteration, device)| row(index, iteration, device, start))
        .collect();
    let hidden = rows.len() - options.top.of(rows.len());
    for row in &mut rows[..hidden] {
        row.seen = RowAudience::Programs;
    }
    if hidden > 0 {
        let mut cells = vec![Cell::Blank; COLUMNS.len()];
        cells[1] = Cell::Words(format!("({} before)", counted(hidden as u64, "row")));
        rows.insert(hidden, Row::new(cells).seen(RowAudience::People));
    }
    Grid {
        columns: COLUMNS,
        rows,
    }
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

/// Number, kind and epoch of a row in structured formats.
pub(super) fn keys(iteration: &Iteration) -> [Cell; 3] {
    let kind = match iteration.kind {
        IterationKind::Undivided => "undivided",
        IterationKind::Before => "before",
        IterationKind::Whole => "iteration",
        IterationKind::Evaluation => "evaluation",
        IterationKind::Unfinished => "unfinished",
    };
    [
        Cell::Count(iteration.number),
        Cell::words(kind),
        iteration.epoch.map_or(Cell::None, Cell::Count),
    ]
}

fn row(index: DeviceIndex, iteration: &Iteration, device: &IntervalDevice, start: TimeNs) -> Row {
    let [number, kind, epoch] = keys(iteration);
    let peak = &device.peak;
    let reserved = peak.totals.reserved.0;
    let composition = &peak.composition;
    let provisional = Category::ALL.iter();
    let provisional = provisional
        .map(|category| composition.provisional(*category))
        .sum();
    let mut cells = vec![
        Cell::Device(index),
        Cell::Words(name(iteration)),
        number,
        kind,
        epoch,
        Cell::Nanoseconds(iteration.begin.0.saturating_sub(start.0)),
        Cell::Nanoseconds(iteration.end.0.saturating_sub(iteration.begin.0)),
        Cell::Bytes(peak.totals.allocated.0),
        Cell::Bytes(device.end.allocated.0),
        Cell::Bytes(reserved),
        Cell::Bytes(reserved.saturating_sub(peak.totals.allocated.0)),
    ];
    cells.extend(purposes::cells(|category| composition.of(category)));
    cells.extend([
        Cell::Bytes(composition.before_attach),
        Cell::Signed(composition.unaccounted),
        other(device),
        Cell::Count(device.allocs),
        Cell::Bytes(device.alloc_bytes),
        Cell::Bytes(provisional),
        Cell::Count(iteration.backwards.into()),
        Cell::Count(iteration.batches.into()),
    ]);
    Row::new(cells)
}

/// Bytes without a column of their own in text.
fn other(device: &IntervalDevice) -> Cell {
    let composition = &device.peak.composition;
    let named = purposes::named(|category| composition.of(category));
    let rest = i128::from(device.peak.totals.allocated.0) - i128::from(named);
    match u64::try_from(rest) {
        Ok(rest) => Cell::Bytes(rest),
        Err(_) => Cell::Signed(rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
    }
}

//! Estimate as JSON. Numbers are bytes; unknown is null.

use std::io::{self, Write};

use serde::Serialize;

use super::{EstimateOptions, EstimateSubject};
use crate::estimate::{Difference, Estimate, Fit, LineAtPeak, Phase, WORKSPACE};
use crate::event::Totals;
use crate::ledger::snapshot::Site;
use crate::report::attribution::sizes_of_device;
use crate::report::document_old::json;
use crate::report::structured::CallSiteFields;
use crate::view::FileNames;

#[derive(Serialize)]
struct Document<'a, S> {
    memprobe: &'a str,
    command: &'a str,
    pid: Option<u32>,
    python: Option<&'a str>,
    torch: Option<&'a str>,
    events: u64,
    lost_events: u64,
    notes: &'a [String],
    /// Highest value of each total.
    peak: Sums,
    peak_with_workspace: Sums,
    workspace: u64,
    live_between_iterations: Option<Sums>,
    peak_in: &'static str,
    peak_at: Place<'a>,
    cpu_at_peak: u64,
    cpu_peak: u64,
    /// Differences that lead from `cpu_at_peak` to the allocated bytes at the peak.
    differences: Vec<Reason>,
    made_in: Vec<Made>,
    saved_for_backward: u64,
    device_memory: Option<u64>,
    fits: Option<&'static str>,
    refused: Option<Refused<'a>>,
    lines: Vec<Row<'a>>,
    /// The rows of `report --by size`.
    model_size: Option<S>,
    missing: Missing,
}

#[derive(Serialize)]
struct Sums {
    allocated: u64,
    reserved: u64,
}

#[derive(Serialize)]
struct Reason {
    why: &'static str,
    bytes: i64,
}

#[derive(Serialize)]
struct Made {
    phase: &'static str,
    bytes: u64,
}

#[derive(Serialize)]
struct Refused<'a> {
    requested: u64,
    #[serde(flatten)]
    place: Place<'a>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    place: Place<'a>,
    at_peak: u64,
    blocks: u64,
    saved_for_backward: u64,
}

/// A line and its name; without a line the name has the reason.
#[derive(Serialize)]
struct Place<'a> {
    name: String,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
}

#[derive(Serialize)]
struct Missing {
    blocks: u64,
    stacks: u64,
    optimizer_temporaries: u64,
    allocations_on_gpu: u64,
    before_attach: bool,
}

pub(super) fn write(
    subject: &EstimateSubject,
    estimate: &Estimate,
    options: &EstimateOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let target = &subject.target;
    let missing = estimate.missing;
    let sizes = estimate.sizes.as_ref();
    let document = Document {
        memprobe: env!("CARGO_PKG_VERSION"),
        command: &target.command,
        pid: target.tgid.map(|tgid| tgid.0),
        python: target.python.as_deref(),
        torch: target.torch.as_deref(),
        events: estimate.events,
        lost_events: missing.lost,
        notes: &subject.notes,
        peak: sums(estimate.peak),
        peak_with_workspace: sums(estimate.with_workspace),
        workspace: WORKSPACE.0,
        live_between_iterations: estimate.between_iterations.map(sums),
        peak_in: phase(estimate.peak_in),
        peak_at: place(&estimate.peak_at),
        cpu_at_peak: estimate.cpu_at_peak.0,
        cpu_peak: estimate.cpu_peak.0,
        differences: estimate.differences.iter().map(difference).collect(),
        made_in: estimate.phases.iter().map(made).collect(),
        saved_for_backward: estimate.saved.0,
        device_memory: options.device_memory.map(|bytes| bytes.0),
        fits: estimate.fit.as_ref().map(fits),
        refused: estimate.fit.as_ref().and_then(refused),
        lines: estimate.lines.iter().map(row).collect(),
        model_size: sizes.and_then(|sizes| sizes_of_device(sizes, &options.of_sizes())),
        missing: Missing {
            blocks: missing.blocks,
            stacks: missing.stacks,
            optimizer_temporaries: missing.steps,
            allocations_on_gpu: missing.on_gpu,
            before_attach: missing.past,
        },
    };
    json(&document, out)
}

fn sums(totals: Totals) -> Sums {
    Sums {
        allocated: totals.allocated.0,
        reserved: totals.reserved.0,
    }
}

fn difference((why, bytes): &(Difference, i64)) -> Reason {
    Reason {
        why: match why {
            Difference::OnHost => "on_host",
            Difference::Scratch => "cpu_scratch",
            Difference::Mask => "dropout_masks",
            Difference::Together => "optimizer_foreach",
            Difference::Rounding => "rounding",
        },
        bytes: *bytes,
    }
}

fn made((made_in, bytes): &(Phase, crate::event::Bytes)) -> Made {
    Made {
        phase: phase(*made_in),
        bytes: bytes.0,
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Step => "optimizer_step",
        Phase::Loading => "data_loading",
    }
}

fn fits(fit: &Fit) -> &'static str {
    match fit {
        Fit::Whole => "yes",
        Fit::WithoutCache { .. } => "without_cache",
        Fit::Not { .. } => "no",
    }
}

fn refused(fit: &Fit) -> Option<Refused<'_>> {
    match fit {
        Fit::Not { requested, site } => Some(Refused {
            requested: requested.0,
            place: place(site),
        }),
        Fit::Whole | Fit::WithoutCache { .. } => None,
    }
}

fn row(line: &LineAtPeak) -> Row<'_> {
    Row {
        place: place(&line.site),
        at_peak: line.held.0,
        blocks: line.blocks,
        saved_for_backward: line.saved.0,
    }
}

fn place(site: &Site) -> Place<'_> {
    let at = CallSiteFields::of(site);
    Place {
        name: FileNames::default().site(site),
        file: at.file,
        line: at.line,
        function: at.function,
    }
}

//! Estimate as JSON. Numbers are bytes; unknown is null.

use super::lines;
use super::{EstimateOptions, EstimateSubject};
use crate::estimate::{DeviceFit, Difference, Estimate, EstimatePhase, WORKSPACE};
use crate::event::{Bytes, Totals};
use crate::ledger::snapshot::Site;
use crate::report::attribution::sizes_of_device;
use crate::report::cells;
use crate::view::FileNames;
use crate::view::table::Cell;

pub(super) fn document<'a>(
    subject: &'a EstimateSubject,
    estimate: &'a Estimate,
    options: &EstimateOptions,
) -> Cell<'a> {
    let target = &subject.target;
    let missing = estimate.missing;
    let fit = estimate.fit.as_ref();
    let between_iterations = estimate.between_iterations.map(sums);
    let sizes = estimate.sizes.as_ref();
    let sizes = sizes.and_then(|sizes| sizes_of_device(sizes, &options.of_sizes()));
    Cell::Object(vec![
        ("memprobe", env!("CARGO_PKG_VERSION").into()),
        ("command", (&*target.command).into()),
        ("pid", target.tgid.map(|tgid| tgid.0).into()),
        ("python", target.python.as_deref().into()),
        ("torch", target.torch.as_deref().into()),
        ("events", estimate.events.into()),
        ("lost_events", missing.lost.into()),
        ("notes", Cell::list(&subject.notes)),
        // Highest value of each total.
        ("peak", sums(estimate.peak)),
        ("peak_with_workspace", sums(estimate.with_workspace)),
        ("workspace", WORKSPACE.into()),
        ("live_between_iterations", between_iterations.into()),
        ("peak_in", phase(estimate.peak_in).into()),
        ("peak_at", Cell::Object(place(&estimate.peak_at))),
        ("cpu_at_peak", estimate.cpu_at_peak.into()),
        ("cpu_peak", estimate.cpu_peak.into()),
        // Differences that lead from `cpu_at_peak` to the allocated bytes at the peak.
        (
            "differences",
            Cell::list(estimate.differences.iter().map(difference)),
        ),
        ("made_in", Cell::list(estimate.phases.iter().map(made))),
        ("saved_for_backward", estimate.saved.into()),
        ("device_memory", options.device_memory.into()),
        ("fits", fit.map(fits).into()),
        ("refused", fit.and_then(refused).into()),
        ("lines", lines::table(estimate).into()),
        // The rows of `report --by size`.
        ("model_size", sizes.into()),
        (
            "missing",
            Cell::Object(vec![
                ("blocks", missing.blocks.into()),
                ("stacks", missing.stacks.into()),
                ("optimizer_temporaries", missing.steps.into()),
                ("temporaries_of_mixed_groups", missing.mixed_groups.into()),
                ("allocations_on_gpu", missing.on_gpu.into()),
                ("before_attach", missing.past.into()),
            ]),
        ),
    ])
}

fn sums(totals: Totals) -> Cell<'static> {
    Cell::Object(vec![
        ("allocated", totals.allocated.into()),
        ("reserved", totals.reserved.into()),
    ])
}

fn difference((why, bytes): &(Difference, i64)) -> Cell<'static> {
    let reason = match why {
        Difference::OnHost => "on_host",
        Difference::Scratch => "cpu_scratch",
        Difference::Mask => "dropout_masks",
        Difference::Together => "optimizer_foreach",
        Difference::Rounding => "rounding",
    };
    Cell::Object(vec![
        ("why", reason.into()),
        ("bytes", Cell::Signed(*bytes)),
    ])
}

fn made((made_in, bytes): &(EstimatePhase, Bytes)) -> Cell<'static> {
    Cell::Object(vec![
        ("phase", phase(*made_in).into()),
        ("bytes", (*bytes).into()),
    ])
}

fn phase(phase: EstimatePhase) -> &'static str {
    match phase {
        EstimatePhase::Forward => "forward",
        EstimatePhase::Backward => "backward",
        EstimatePhase::Step => "optimizer_step",
        EstimatePhase::Loading => "data_loading",
    }
}

fn fits(fit: &DeviceFit) -> &'static str {
    match fit {
        DeviceFit::Whole => "yes",
        DeviceFit::WithoutCache { .. } => "without_cache",
        DeviceFit::Not { .. } => "no",
    }
}

fn refused(fit: &DeviceFit) -> Option<Cell<'_>> {
    match fit {
        DeviceFit::Not { requested, site } => {
            let mut fields = vec![("requested", (*requested).into())];
            fields.extend(place(site));
            Some(Cell::Object(fields))
        }
        DeviceFit::Whole | DeviceFit::WithoutCache { .. } => None,
    }
}

/// A line and its name; without a line the name has the reason.
fn place(site: &Site) -> Vec<(&'static str, Cell<'_>)> {
    vec![
        ("name", FileNames::default().site(site).into()),
        ("file", cells::file(Some(site))),
        ("line", cells::line(Some(site))),
        ("function", cells::function(Some(site))),
    ]
}

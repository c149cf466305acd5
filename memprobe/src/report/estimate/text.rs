//! Estimate as text.

use super::lines;
use super::{EstimateOptions, EstimateSubject};
use crate::estimate::{
    DeviceFit, Difference, Estimate, EstimatePhase, Missing, WORKSPACE, WORKSPACE_OF_HOPPER,
};
use crate::event::bytes::human;
use crate::event::{Bytes, Totals};
use crate::report::attribution::push_sizes;
use crate::report::tensors::heading;
use crate::view::table::{Cell, Output, Page, Table, columns};
use crate::view::{FileNames, counted, wrap};

pub(super) fn push(
    page: &mut Page,
    subject: &EstimateSubject,
    estimate: &Estimate,
    options: &EstimateOptions,
) {
    heading::push_target(page, &subject.target);
    page.fitted(&format!(
        "estimated from {} of a run on the CPU, for the default settings of the GPU allocator",
        counted(estimate.events, "event")
    ));
    let notes = subject.notes.iter().cloned();
    for note in notes.chain(warnings(&estimate.missing)) {
        page.warning(&format!("warning: {note}"));
    }
    let lines = estimate.lines.iter();
    let names = FileNames::of(lines.filter_map(|line| Some(&line.site.frame()?.file)));
    push_totals(page, estimate, &names);
    push_fit(page, estimate, &names, options);
    push_account(page, estimate);
    push_beyond(page);
    page.blank();
    page.table(&lines::shown(estimate, &names, options));
    page.note(
        "SAVED: allocated before a backward pass and freed during it, for the largest pass. Its end is inferred: the \
         first allocation outside it.",
    );
    if let Some(sizes) = &estimate.sizes {
        page.blank();
        page.strong("How large the model is on the GPU");
        push_sizes(page, sizes, estimate.heard, &options.of_sizes());
    }
}

fn warnings(missing: &Missing) -> Vec<String> {
    let mut warnings = Vec::new();
    if missing.on_gpu > 0 {
        warnings.push(format!(
            "the program used a GPU too ({}), and the estimate counts only CPU tensors. Run it on the CPU only: set \
             CUDA_VISIBLE_DEVICES=, or make its device a parameter.",
            counted(missing.on_gpu, "allocation")
        ));
    }
    if missing.past {
        warnings.push(
            "memory from before attach is unknown and not counted, so the estimate is too low. Start the program with \
             memprobe."
                .to_owned(),
        );
    }
    if missing.lost > 0 {
        warnings.push(format!(
            "{} were lost: the estimate may be off by their bytes. Give a larger --buffer-size.",
            counted(missing.lost, "event")
        ));
    }
    if missing.blocks > 0 || missing.stacks > 0 {
        warnings.push(format!(
            "the run exceeds the limits of memprobe: {} are not counted, {} have no line.",
            counted(missing.blocks, "block"),
            counted(missing.stacks, "stack"),
        ));
    }
    if missing.steps > 0 {
        warnings.push(format!(
            "on a GPU the optimizer updates all parameters at once, with temporary memory that is unknown for this \
             optimizer: {} are counted as on the CPU.",
            counted(missing.steps, "temporary tensor")
        ));
    }
    if missing.mixed_groups > 0 {
        warnings.push(format!(
            "an optimizer has parameter groups that it updates at once on a GPU and others that it does not: {} are \
             counted as if all were at once.",
            counted(missing.mixed_groups, "temporary tensor")
        ));
    }
    warnings
}

fn push_totals(page: &mut Page, estimate: &Estimate, names: &FileNames) {
    let mut table = Table::new(columns![|row: (Totals, String)|
        figure("ALLOCATED") => row.0.allocated,
        figure("RESERVED") => row.0.reserved,
        label("EXPECTED ON A GPU") => &*row.1,
    ]);
    let peak_at = format!(
        "peak: {}, {}",
        phase(estimate.peak_in),
        names.site(&estimate.peak_at)
    );
    let workspace = format!(
        "peak with a cuBLAS workspace of {} live throughout",
        human(WORKSPACE)
    );
    table.push(Output::Text, (estimate.peak, peak_at));
    table.push(Output::Text, (estimate.with_workspace, workspace));
    let between_iterations = estimate.between_iterations.into_iter();
    table.extend(
        Output::Text,
        between_iterations.map(|totals| (totals, "live between iterations".to_owned())),
    );
    page.blank();
    page.table(&table);
}

fn push_fit(page: &mut Page, estimate: &Estimate, names: &FileNames, options: &EstimateOptions) {
    let (Some(fit), Some(memory)) = (&estimate.fit, options.device_memory) else {
        return;
    };
    let device = human(memory);
    page.blank();
    match fit {
        DeviceFit::Whole => {
            let reserved = estimate.with_workspace.reserved;
            let left = human(Bytes(memory.0.saturating_sub(reserved.0)));
            let words = format!(
                "fits into {device}: {left} remain for CUDA's context and kernels, cuDNN, other libraries and other \
                 processes"
            );
            wrap(&words, page.width).iter().for_each(|line| page.strong(line));
        }
        DeviceFit::WithoutCache { flushes } => page.warning(&format!(
            "fits into {device} only by freeing cached memory and allocating it again ({}), which is slow; nothing \
             remains for CUDA's context and kernels",
            counted(*flushes, "time")
        )),
        DeviceFit::Not { requested, site } => page.warning(&format!(
            "does not fit into {device}: the first request without room is one of {} at {}",
            human(*requested),
            names.site(site)
        )),
    }
}

fn push_account(page: &mut Page, estimate: &Estimate) {
    let mut table = Table::new(columns![|row: (Cell<'static>, String)|
        figure("BYTES") => row.0.clone(),
        label("PART OF THE PEAK") => &*row.1,
    ]);
    let cpu = format!(
        "CPU allocator at that moment (its own peak is {})",
        human(estimate.cpu_peak)
    );
    table.push(Output::Text, (estimate.cpu_at_peak.into(), cpu));
    let differences = estimate.differences.iter().filter(|(_, bytes)| *bytes != 0);
    let differences = differences
        .map(|(difference, bytes)| (Cell::Signed(*bytes), reason(*difference).to_owned()));
    table.extend(Output::Text, differences);
    let allocated = "allocated on the GPU, of which".to_owned();
    table.push(Output::Text, (estimate.peak.allocated.into(), allocated));
    let phases = estimate.phases.iter().filter(|(_, bytes)| bytes.0 > 0);
    let phases = phases.map(|(phase, bytes)| {
        let words = format!("{:>11}  {}", human(*bytes), made_in(*phase));
        (Cell::Blank, words)
    });
    table.extend(Output::Text, phases);
    page.blank();
    page.table(&table);
}

/// Adds the memory that a run on the CPU cannot show.
fn push_beyond(page: &mut Page) {
    page.blank();
    page.strong("Not included, because a run on the CPU does not show it");
    let hopper = human(WORKSPACE_OF_HOPPER);
    for words in [
        "CUDA's context and kernels: outside the allocator, some hundred MiB on most GPUs".to_owned(),
        format!("cuBLAS: with CUBLAS_WORKSPACE_CONFIG unset as in the second row above, but {hopper} on a Hopper"),
        "cuDNN and others: workspaces of their algorithms, and memory that only the GPU kernel of an operator saves \
         (attention, recurrent layers, batch norm)"
            .to_owned(),
        "batches from worker processes of a DataLoader; use num_workers=0 to count them"
            .to_owned(),
    ] {
        for line in wrap(&words, page.width.saturating_sub(2)) {
            page.line(&format!("  {line}"));
        }
    }
}

fn phase(phase: EstimatePhase) -> &'static str {
    match phase {
        EstimatePhase::Forward => "in a forward pass",
        EstimatePhase::Backward => "in a backward pass",
        EstimatePhase::Step => "in an optimizer step",
        EstimatePhase::Loading => "while loading data",
    }
}

fn made_in(phase: EstimatePhase) -> &'static str {
    match phase {
        EstimatePhase::Forward => "from forward passes and the model: parameters, activations",
        EstimatePhase::Backward => "from backward passes: gradients and intermediate gradients",
        EstimatePhase::Step => "from optimizer steps: state and temporary tensors",
        EstimatePhase::Loading => "batches of a DataLoader, as their copies on the GPU",
    }
}

fn reason(difference: Difference) -> &'static str {
    match difference {
        Difference::OnHost => {
            "stays on the host: examples before they are a batch, numbers, lines of --on-host"
        }
        Difference::Scratch => "copies and buffers of CPU kernels, not for tensors",
        Difference::Mask => {
            "masks of dropout: one byte an element on a GPU (inferred from the line of torch)"
        }
        Difference::Together => {
            "the step updates all parameters at once (foreach, the default on a GPU), not one by one"
        }
        Difference::Rounding => {
            "rounding: blocks are multiples of 512 bytes, and small remainders stay with them"
        }
    }
}

//! Estimate as text.

use super::{EstimateOptions, EstimateSubject};
use crate::estimate::{
    Difference, Estimate, Fit, LineAtPeak, Missing, Phase, WORKSPACE, WORKSPACE_OF_HOPPER,
};
use crate::event::Target;
use crate::event::bytes::{human, signed};
use crate::event::{Bytes, Totals};
use crate::report::attribution::push_sizes;
use crate::report::table::{Style, push_line, warning, wrap};
use crate::report::tensors::heading;
use crate::view::{BLOCKS, CUT, FileNames, count, counted, fit, width};

/// Width of a column of bytes.
const NUMBER: usize = 11;

/// Returns the whole report.
pub(super) fn render(
    subject: &EstimateSubject,
    estimate: &Estimate,
    options: &EstimateOptions,
) -> String {
    let mut text = String::new();
    for line in heading(&subject.target, estimate) {
        push_line(&mut text, &fit(&line, options.width, CUT));
    }
    let style = Style(options.colour);
    let notes = subject.notes.iter().cloned();
    for note in notes.chain(warnings(&estimate.missing)) {
        for line in wrap(&format!("warning: {note}"), options.width) {
            push_line(&mut text, &warning(options.colour, &line));
        }
    }
    let names = names(estimate);
    push_totals(&mut text, estimate, &names, style, options);
    push_fit(&mut text, estimate, &names, style, options);
    push_account(&mut text, estimate, style, options);
    push_beyond(&mut text, style, options);
    push_lines(&mut text, estimate, &names, style, options);
    if let Some(sizes) = &estimate.sizes {
        push_line(&mut text, "");
        push_line(
            &mut text,
            &style.strong("How large the model is on the GPU"),
        );
        let mut page = crate::view::table::Page::new(options.width, options.colour);
        push_sizes(&mut page, sizes, estimate.heard, &options.of_sizes());
        text.push_str(&page.into_text());
    }
    text
}

fn heading(target: &Target, estimate: &Estimate) -> Vec<String> {
    let events = counted(estimate.events, "event");
    let mut lines = heading::target(target);
    lines.push(format!(
        "estimated from {events} of a run on the CPU, for the default settings of the GPU allocator"
    ));
    lines
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
    warnings
}

/// Shortest names that distinguish the files of the lines.
fn names(estimate: &Estimate) -> FileNames {
    let lines = estimate.lines.iter();
    FileNames::of(lines.filter_map(|line| Some(&line.site.frame()?.file)))
}

fn push_totals(
    text: &mut String,
    estimate: &Estimate,
    names: &FileNames,
    style: Style,
    options: &EstimateOptions,
) {
    push_line(text, "");
    let head = format!(
        "{:>NUMBER$}  {:>NUMBER$}  EXPECTED ON A GPU",
        "ALLOCATED", "RESERVED"
    );
    push_line(text, &style.strong(&head));
    let peak_at = format!(
        "peak: {}, {}",
        phase(estimate.peak_in),
        names.site(&estimate.peak_at)
    );
    let workspace = format!(
        "peak with a cuBLAS workspace of {} live throughout",
        human(WORKSPACE)
    );
    let mut rows: Vec<(Totals, String)> = vec![
        (estimate.peak, peak_at),
        (estimate.with_workspace, workspace),
    ];
    let between_iterations = || "live between iterations".to_owned();
    rows.extend(
        estimate
            .between_iterations
            .map(|totals| (totals, between_iterations())),
    );
    for (totals, what) in rows {
        let (allocated, reserved) = (human(totals.allocated), human(totals.reserved));
        let line = format!("{allocated:>NUMBER$}  {reserved:>NUMBER$}  {what}");
        push_line(text, &fit(&line, options.width, CUT));
    }
}

fn push_fit(
    text: &mut String,
    estimate: &Estimate,
    names: &FileNames,
    style: Style,
    options: &EstimateOptions,
) {
    let (Some(fit), Some(memory)) = (&estimate.fit, options.device_memory) else {
        return;
    };
    let device = human(memory);
    let reserved = estimate.with_workspace.reserved;
    let (words, is_bad) = match fit {
        Fit::Whole => {
            let left = human(Bytes(memory.0.saturating_sub(reserved.0)));
            (
                format!(
                    "fits into {device}: {left} remain for CUDA's context and kernels, cuDNN, other libraries and \
                     other processes"
                ),
                false,
            )
        }
        Fit::WithoutCache { flushes } => (
            format!(
                "fits into {device} only by freeing cached memory and allocating it again ({}), which is slow; \
                 nothing remains for CUDA's context and kernels",
                counted(*flushes, "time")
            ),
            true,
        ),
        Fit::Not { requested, site } => (
            format!(
                "does not fit into {device}: the first request without room is one of {} at {}",
                human(*requested),
                names.site(site)
            ),
            true,
        ),
    };
    push_line(text, "");
    for line in wrap(&words, options.width) {
        push_line(
            text,
            &if is_bad {
                warning(options.colour, &line)
            } else {
                style.strong(&line)
            },
        );
    }
}

fn push_account(text: &mut String, estimate: &Estimate, style: Style, options: &EstimateOptions) {
    push_line(text, "");
    push_line(text, &style.strong("Parts of the peak"));
    let cpu = format!(
        "CPU allocator at that moment (its own peak is {})",
        human(estimate.cpu_peak)
    );
    let mut rows = vec![(human(estimate.cpu_at_peak), cpu)];
    let differences = estimate.differences.iter().filter(|(_, bytes)| *bytes != 0);
    rows.extend(
        differences.map(|(difference, bytes)| (signed(*bytes), reason(*difference).to_owned())),
    );
    let allocated = human(estimate.peak.allocated);
    rows.push((allocated, "allocated on the GPU, of which".to_owned()));
    let phases = estimate.phases.iter().filter(|(_, bytes)| bytes.0 > 0);
    rows.extend(phases.map(|(phase, bytes)| {
        let bytes = human(*bytes);
        (
            String::new(),
            format!("{bytes:>NUMBER$}  {}", made_in(*phase)),
        )
    }));
    for (bytes, what) in rows {
        let line = format!("{bytes:>NUMBER$}  {what}");
        push_line(text, &fit(&line, options.width, CUT));
    }
}

/// Adds the memory that a run on the CPU cannot show.
fn push_beyond(text: &mut String, style: Style, options: &EstimateOptions) {
    push_line(text, "");
    push_line(
        text,
        &style.strong("Not included, because a run on the CPU does not show it"),
    );
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
        for line in wrap(&words, options.width.saturating_sub(2)) {
            push_line(text, &format!("  {line}"));
        }
    }
}

fn push_lines(
    text: &mut String,
    estimate: &Estimate,
    names: &FileNames,
    style: Style,
    options: &EstimateOptions,
) {
    push_line(text, "");
    let head = format!(
        "{:>NUMBER$}  {BLOCKS:>8}  {:>NUMBER$}  LINE",
        "AT PEAK", "SAVED"
    );
    push_line(text, &style.strong(&head));
    let shown = options.top.of(estimate.lines.len());
    let (shown, hidden) = estimate.lines.split_at(shown);
    for line in shown {
        push_row(text, line, &names.site(&line.site), options);
    }
    if !hidden.is_empty() {
        let others = counted(hidden.len() as u64, "other line");
        push_row(
            text,
            &sum(hidden, estimate),
            &format!("({others})"),
            options,
        );
    }
    push_row(text, &sum(&estimate.lines, estimate), "(total)", options);
    let saved = "SAVED: allocated before a backward pass and freed during it, for the largest pass. Its end is \
                 inferred: the first allocation outside it.";
    for line in wrap(saved, options.width) {
        push_line(text, &line);
    }
}

fn push_row(text: &mut String, line: &LineAtPeak, name: &str, options: &EstimateOptions) {
    let saved = human(line.saved);
    let row = format!(
        "{:>NUMBER$}  {:>8}  {saved:>NUMBER$}  {name}",
        human(line.held),
        count(line.blocks),
    );
    debug_assert!(width(&saved) <= NUMBER, "numbers have {NUMBER} columns");
    push_line(text, &fit(&row, options.width, CUT));
}

/// Sum of several lines.
fn sum(lines: &[LineAtPeak], estimate: &Estimate) -> LineAtPeak {
    let total = |of: fn(&LineAtPeak) -> u64| lines.iter().map(of).fold(0, u64::saturating_add);
    LineAtPeak {
        site: estimate.peak_at.clone(),
        held: Bytes(total(|line| line.held.0)),
        blocks: total(|line| line.blocks),
        saved: Bytes(total(|line| line.saved.0)),
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "in a forward pass",
        Phase::Backward => "in a backward pass",
        Phase::Step => "in an optimizer step",
        Phase::Loading => "while loading data",
    }
}

fn made_in(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "from forward passes and the model: parameters, activations",
        Phase::Backward => "from backward passes: gradients and intermediate gradients",
        Phase::Step => "from optimizer steps: state and temporary tensors",
        Phase::Loading => "batches of a DataLoader, as their copies on the GPU",
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

//! Remarks on a report of PyTorch's own memory history.

use crate::recording::HistoryFacts;
use crate::view::counted;

/// Describes the extent of a history.
pub(super) fn note(facts: &HistoryFacts) -> String {
    let mut text = match facts.is_exported {
        true => {
            "memprobe exported it: only the memory of the CPU and of other libraries than PyTorch is missing."
        }
        false => {
            "PyTorch records no threads, modules or tensors: tables of these need `memprobe record`."
        }
    }
    .to_owned();
    if facts.inferred_sizes > 0 {
        text += " Sizes of blocks that were freed before the snapshot are the requested bytes, rounded up.";
    }
    if facts.restated > 0 {
        text += &format!(
            " {} from before the history: shown as allocated at its begin.",
            counted(facts.restated, "block")
        );
    }
    if facts.before > 0 {
        text += " \"Before attach\" stands for before the history, if PyTorch kept no stack.";
    }
    text
}

/// Describes what is missing in a history.
pub(super) fn warnings(facts: &HistoryFacts) -> Vec<String> {
    let mut warnings = Vec::new();
    if facts.lacks_history {
        warnings.push(
            "the snapshot has no history: call torch.cuda.memory._record_memory_history() before the memory is \
             allocated."
                .to_owned(),
        );
    }
    if facts.lacks_times {
        warnings.push("this PyTorch recorded the order of events, but no times.".to_owned());
    }
    if facts.missing_events > 0 {
        warnings.push(format!(
            "{} missing: the history was off for a while. They are added at the next event of their address, or at \
             the end.",
            counted(facts.missing_events, "event")
        ));
    }
    if facts.unknown_entries > 0 {
        warnings.push(format!(
            "{} of a kind that this memprobe does not know, left out.",
            counted(facts.unknown_entries, "event")
        ));
    }
    if facts.refused_side_events > 0 {
        warnings.push(format!(
            "{} of marks or labels, left out: memprobe does not write such. Phases or names are missing.",
            counted(facts.refused_side_events, "record")
        ));
    }
    if facts.refused_stacks > 0 {
        warnings.push(format!(
            "{} beyond the limits of a recording, left out: their allocations have no line.",
            counted(facts.refused_stacks, "stack")
        ));
    }
    if facts.host_entries > 0 {
        warnings.push(format!(
            "{} of pinned host memory, left out.",
            counted(facts.host_entries, "record")
        ));
    }
    warnings
}

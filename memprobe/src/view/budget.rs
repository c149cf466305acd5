//! Text about the budget of `--max-overhead`.

use std::time::Duration;

use super::{counted, duration};
use crate::event::{CaptureLevel, TimeNs};
use crate::ledger::snapshot::BudgetState;

/// Detail that is recorded at a level.
pub const fn capture_level(level: CaptureLevel) -> &'static str {
    match level {
        CaptureLevel::Full => "all",
        CaptureLevel::WithoutShapes => "no shapes",
        CaptureLevel::WithoutGraph => "no shapes, no graph",
        CaptureLevel::WithoutModules => "no shapes, no graph, no modules",
        CaptureLevel::Paused => "nothing, probes off",
    }
}

/// Returns the budget and the estimate: `overhead 0.8 % of 1 %, no shapes`.
pub fn budget_fact(state: &BudgetState) -> String {
    let (overhead, budget) = (state.overhead, state.budget);
    let share = format!("overhead {overhead} of {budget}");
    match state.level {
        CaptureLevel::Full => share,
        CaptureLevel::Paused => format!("{share}, PROBES OFF"),
        level => format!("{share}, {}", capture_level(level)),
    }
}

/// Describes what was given up for the budget; `None` without a budget or if nothing was.
pub fn budget_warning(state: Option<&BudgetState>, now: TimeNs) -> Option<String> {
    let state = state?;
    let (overhead, budget) = (state.overhead, state.budget);
    let of = format!("for --max-overhead {budget} (estimated: {overhead} at last)");
    let parts = match state.deepest {
        CaptureLevel::Full | CaptureLevel::Paused => None,
        CaptureLevel::WithoutShapes => Some("shapes were"),
        CaptureLevel::WithoutGraph => Some("shapes and the graph of autograd were"),
        CaptureLevel::WithoutModules => Some("shapes, the graph of autograd and modules were"),
    };
    if state.pauses == 0 {
        return parts.map(|parts| format!("{parts} not recorded all the time, {of}."));
    }
    let paused = duration(Duration::from_nanos(state.paused_until(now)));
    let share = state.paused_share(now);
    let pauses = counted(state.pauses, "time");
    let parts = parts.map_or_else(String::new, |parts| {
        format!(" Between them {parts} not recorded all the time.")
    });
    let totals = match state.totals_age(now) {
        None => "The totals are the allocator's own and right.".to_owned(),
        Some(age) => format!(
            "They are off at the end: totals and rows are of {} before.",
            duration(age)
        ),
    };
    Some(format!(
        "the probes were off {pauses}, {paused} in all ({share} of the time), {of}. {totals} Blocks that \
         came and went meanwhile are missing, those that stayed are in the row \"(probes were off)\", and a block at the same address with the same size counts as the same.{parts}"
    ))
}

//! Text for memory attribution: modules, categories, iterations.

use super::names::{BEFORE_ATTACH, BEFORE_OPENING, UNACCOUNTED};
use crate::attribution::tables::{
    Additive, CategoryRule, CoverageStart, IterationKind, ModuleRow, ModuleScope, Portion,
    RuleStatus, Source, fold,
};

/// Display of modules that differ only in a number, such as a transformer's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alike {
    #[default]
    Folded,
    Each,
}

pub fn folded<S: Additive + Copy>(modules: Vec<ModuleRow<S>>, alike: Alike) -> Vec<ModuleRow<S>> {
    match alike {
        Alike::Folded => fold(modules),
        Alike::Each => modules,
    }
}

/// Returns the row name of memory that belongs to no known module.
pub fn no_module(place: &ModuleScope) -> &'static str {
    match place {
        ModuleScope::Outside => "(outside modules)",
        ModuleScope::BackwardUnknown => "(backward, module unknown)",
        ModuleScope::TooMany => "(too many modules to distinguish)",
        ModuleScope::Unknown | ModuleScope::Module(_) => "(module unknown)",
    }
}

/// Returns the row name of memory that was live when attribution started.
pub fn before(since: CoverageStart) -> &'static str {
    match since {
        CoverageStart::Attach => BEFORE_ATTACH,
        CoverageStart::Opening => BEFORE_OPENING,
    }
}

pub fn peak(since: CoverageStart) -> &'static str {
    match since {
        CoverageStart::Attach => "peak",
        CoverageStart::Opening => "peak since opened",
    }
}

pub fn portion(portion: Portion) -> &'static str {
    match portion {
        Portion::BeforeAttach => BEFORE_ATTACH,
        Portion::Of(category) => category.as_str(),
        Portion::Unaccounted => UNACCOUNTED,
    }
}

/// Returns the confidence of a rule's category: exact, inferred or provisional.
pub fn sureness(rule: CategoryRule) -> &'static str {
    match (rule, rule.status()) {
        // PyTorch's own function names reveal the purpose.
        (CategoryRule::NoTensor | CategoryRule::NamedUse, _) => "exact",
        // Read from PyTorch's objects in memory.
        _ if rule.is_exact() => "exact",
        (_, RuleStatus::Settled) => "inferred",
        (_, RuleStatus::Provisional) => "so far",
    }
}

pub fn iteration(number: u64, kind: IterationKind) -> String {
    match kind {
        IterationKind::Before => "before".to_owned(),
        IterationKind::Whole => number.to_string(),
        IterationKind::Evaluation => "evaluation".to_owned(),
        IterationKind::Undivided => "undivided".to_owned(),
        IterationKind::Unfinished => format!("{number} (now)"),
    }
}

/// Returns the events that delimit iterations.
pub fn iterations_by(source: Source) -> &'static str {
    match source {
        Source::Nothing => "nothing marks iterations",
        Source::Backwards => "backward passes",
        Source::Batches => "batches of a DataLoader",
        Source::ZeroGrads => "zero_grad()",
        Source::Steps => "Optimizer.step()",
        Source::Line => "the line given",
    }
}

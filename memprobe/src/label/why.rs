//! The words for why memory is there.

use crate::model::snapshot::why::{
    CategoryRule, IterationKind, Place, Portion, Since, Source, Standing,
};

use super::names::{BEFORE_ATTACH, BEFORE_OPENING, UNACCOUNTED};

/// What a place that is no module is called.
pub fn no_module(place: &Place) -> &'static str {
    match place {
        Place::Outside => "(outside of modules)",
        Place::BackwardUnknown => "(backward, module not known)",
        Place::TooMany => "(too many modules to tell apart)",
        Place::Unknown | Place::Module(_) => "(module not known)",
    }
}

/// What is called so that was live when it began to be known why memory is there.
pub fn before(since: Since) -> &'static str {
    match since {
        Since::Attach => BEFORE_ATTACH,
        Since::Opening => BEFORE_OPENING,
    }
}

/// What the highest moment is called of those that are known.
pub fn peak(since: Since) -> &'static str {
    match since {
        Since::Attach => "peak",
        Since::Opening => "peak since opened",
    }
}

/// What a part of a device's memory is called.
pub fn portion(portion: Portion) -> &'static str {
    match portion {
        Portion::BeforeAttach => BEFORE_ATTACH,
        Portion::Of(category) => category.as_str(),
        Portion::Unaccounted => UNACCOUNTED,
    }
}

/// How sure a category is that follows from a rule.
pub fn sureness(rule: CategoryRule) -> &'static str {
    match (rule, rule.standing()) {
        // What PyTorch itself made it for.
        (CategoryRule::NoTensor | CategoryRule::NamedUse, _) => "exact",
        // What its objects say.
        _ if rule.is_exact() => "exact",
        (_, Standing::Settled) => "inferred",
        (_, Standing::Provisional) => "so far",
    }
}

/// What a row of the table of iterations is called.
pub fn iteration(number: u64, kind: IterationKind) -> String {
    match kind {
        IterationKind::Before => "before".to_owned(),
        IterationKind::Whole => number.to_string(),
        IterationKind::Evaluation => "evaluation".to_owned(),
        IterationKind::Undivided => "undivided".to_owned(),
        IterationKind::Unfinished => format!("{number} (now)"),
    }
}

/// What iterations are told apart by.
pub fn iterations_by(source: Source) -> &'static str {
    match source {
        Source::Nothing => "nothing marks iterations",
        Source::Batches => "batches of a DataLoader",
        Source::ZeroGrads => "zero_grad()",
        Source::Steps => "Optimizer.step()",
        Source::Line => "the line given",
    }
}

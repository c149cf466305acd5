//! Text for memory attribution: modules, categories, iterations, and the table of threads.

use super::cells::Remainder;
use super::clean;
use super::names::{BEFORE_ATTACH, BEFORE_OPENING, BLOCKS, UNACCOUNTED};
use super::table::{Cell, Column, SortOrder, Tone, columns};
use crate::attribution::tables::{
    Additive, AllocatingThread, CategoryRule, CoverageStart, Holding, IterationKind, ModuleRow,
    ModuleScope, Portion, RuleStatus, Source, ThreadRow, fold,
};
use crate::event::{Bytes, DeviceIndex, Tid};

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
pub fn thread(row: &ThreadRow) -> String {
    match (&row.name, row.allocator) {
        (Some(name), _) => clean(name),
        (None, AllocatingThread::Thread(_)) => "(no name)".to_owned(),
        (None, AllocatingThread::BeforeOpening) => BEFORE_OPENING.to_owned(),
        (None, AllocatingThread::TooMany) => "(too many to distinguish)".to_owned(),
    }
}

/// A thread, a sum of threads, or bytes without one.
#[derive(Clone, Default)]
pub struct ThreadEntry {
    pub device: Option<DeviceIndex>,
    pub tid: Option<Tid>,
    pub kind: &'static str,
    pub name: String,
    /// Bytes now, and at the device's peak.
    pub bytes: [Cell<'static>; 2],
    pub peak: Option<Bytes>,
    /// Live blocks, and allocations.
    pub counts: Option<[u64; 2]>,
}

pub const THREAD_COLUMNS: [Column<ThreadEntry>; 9] = columns![|row: ThreadEntry|
    data("device") => row.device,
    number("live", "LIVE").screen(11, 0).tone(Tone::Strong) => row.bytes[0].clone(),
    number("at_peak", "AT PEAK").screen(11, 44) => row.bytes[1].clone(),
    number("peak", "PEAK").priority(1).screen(11, 100) => row.peak,
    number("live_blocks", BLOCKS).screen(7, 56) => row.counts.map(|it| it[0]),
    number("allocs", "ALLOCS").priority(2).screen(9, 90) => row.counts.map(|it| it[1]),
    number("tid", "TID").screen(8, 50).order(Some(SortOrder::Climbing)) => row.tid.map(|tid| tid.0),
    data("kind") => row.kind,
    text("name", "THREAD").name(0) => &row.name,
];

impl ThreadEntry {
    pub fn new(row: &ThreadRow) -> Self {
        let (kind, tid) = match row.allocator {
            AllocatingThread::Thread(tid) => ("thread", Some(tid)),
            AllocatingThread::BeforeOpening => ("before_opening", None),
            AllocatingThread::TooMany => ("too_many", None),
        };
        Self {
            tid,
            kind,
            ..Self::sum(&row.holding, thread(row))
        }
    }

    pub fn sum(holding: &Holding, name: String) -> Self {
        Self {
            name,
            bytes: [holding.live, holding.at_peak].map(Cell::from),
            peak: holding.peak,
            counts: Some([holding.live_blocks, holding.allocs]),
            ..Self::default()
        }
    }
}

impl From<Remainder> for ThreadEntry {
    fn from(rest: Remainder) -> Self {
        Self {
            kind: rest.kind,
            name: rest.name.to_owned(),
            bytes: rest.bytes,
            ..Self::default()
        }
    }
}

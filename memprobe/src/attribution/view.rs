//! Read-only views of the ledger.

use std::collections::HashMap;
use std::sync::Arc;

use super::category::{Category, CategoryRule};
use super::device::DeviceAttribution;
use super::high_water_mark::Holding;
use super::ledger::AttributionLedger;
use super::moments::Moment;
use super::phase::{ClassifiedPhase, Phase, PhaseRule};
use crate::event::{Module, Stack};
use crate::ledger::grouping;
use crate::ledger::snapshot::{Grouping, Site, Timeline};

/// Information available in the event stream, and data lost at the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub tensors: bool,
    pub grad: bool,
    pub nodes: bool,
    /// Optimizer steps, `zero_grad()` calls or batches.
    pub marks: bool,
    pub concurrent_training: bool,
    /// Stacks beyond the limit, which have no information.
    pub stacks_left_out: u64,
    /// Operations beyond the limit of their stack, which saved rows do not name.
    pub operations_left_out: u64,
    /// Threads forgotten at the limit and tracked afresh.
    pub threads_forgotten: u64,
    /// Marks from call sites beyond the limit, which share one number.
    pub marks_without_place: u64,
}

/// Start of the ledger's data; blocks live then count as before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CoverageStart {
    #[default]
    Attach,
    /// The opening of the process by the user, after its lines were tracked from attach on.
    Opening,
}

/// Memory of a device by category, phase and line.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'a> {
    ledger: &'a AttributionLedger,
    device: &'a DeviceAttribution,
}

/// Memory of blocks with the same rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryRow {
    pub rule: CategoryRule,
    pub live: u64,
    pub blocks: u64,
    /// Bytes at the device's peak.
    pub at_peak: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseRow {
    pub phase: Phase,
    pub holding: Holding,
    /// Bytes allocated by each rule that determined the phase.
    pub rules: Vec<(PhaseRule, u64)>,
}

/// Key of a [`SavedRow`]: line, module, operations.
type Saver = (Site, Module, Vec<Arc<str>>);

/// Memory saved for backward passes by one line of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRow {
    pub site: Site,
    pub module: Module,
    /// Nodes created on the same stacks, if their evaluation was seen.
    pub operations: Vec<Arc<str>>,
    pub holding: Holding,
}

impl<'a> DeviceView<'a> {
    pub(super) fn new(ledger: &'a AttributionLedger, device: &'a DeviceAttribution) -> Self {
        Self { ledger, device }
    }

    pub fn now(&self) -> &'a Moment {
        &self.device.now
    }

    /// First moment of most allocated bytes among those seen.
    pub fn peak(&self) -> &'a Moment {
        &self.device.peak
    }

    pub fn timeline(&self) -> &'a Timeline<Moment> {
        &self.device.timeline
    }

    /// Rows for all rules with bytes now or at the peak.
    pub fn categories(&self) -> Vec<CategoryRow> {
        let rules = CategoryRule::ALL.iter();
        rules
            .map(|rule| CategoryRow {
                rule: *rule,
                live: self.device.now.composition.by_rule(*rule),
                blocks: self.device.blocks[*rule as usize],
                at_peak: self.device.peak.composition.by_rule(*rule),
            })
            .filter(|row| row.live > 0 || row.blocks > 0 || row.at_peak > 0)
            .collect()
    }

    /// Rows for all phases with allocations, in the order of a training step.
    pub fn phases(&self) -> Vec<PhaseRow> {
        let phases = Phase::ALL.iter().filter_map(|phase| {
            let held = self.device.phases.get(phase)?;
            let judged = self.device.judged.iter();
            let mut rules: Vec<_> = judged
                .filter(|(judged, _)| judged.phase == *phase)
                .map(|(ClassifiedPhase { rule, .. }, bytes)| (*rule, *bytes))
                .collect();
            rules.sort_unstable();
            Some(PhaseRow {
                phase: *phase,
                holding: held.holding(self.device.peaks),
                rules,
            })
        });
        phases.collect()
    }

    /// Rows for all lines and modules that saved memory for backward passes, in no particular order.
    pub fn saved(&self, grouping: Grouping) -> Vec<SavedRow> {
        let mut rows: HashMap<Saver, Holding> = HashMap::new();
        let held = self.device.held.iter();
        let saved = held.filter(|((_, category), _)| *category == Category::Activation);
        for ((origin, _), stratum) in saved {
            let Some(stack) = self.ledger.origins.get(*origin as usize) else {
                continue;
            };
            let site = grouping::site(stack, grouping);
            let module = stack.context.module.clone();
            let row = rows.entry((site, module, self.operations(stack)));
            let sum: &mut Holding = row.or_default();
            *sum = sum.and(stratum.holding.holding(self.device.peaks));
        }
        let rows = rows.into_iter();
        let variables = &self.ledger.root_variables;
        rows.map(|((site, module, operations), holding)| SavedRow {
            site,
            module: variables.named_module(&module),
            operations,
            holding,
        })
        .collect()
    }

    /// Nodes created on a stack. A recomputation in the backward pass creates its nodes on another stack.
    fn operations(&self, stack: &Arc<Stack>) -> Vec<Arc<str>> {
        let names = self.ledger.operations.get(stack);
        names.into_iter().flatten().cloned().collect()
    }
}

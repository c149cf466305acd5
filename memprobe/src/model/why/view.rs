//! What views see of the ledger.

use std::collections::HashMap;
use std::sync::Arc;

use super::category::{Category, CategoryRule};
use super::device::Device;
use super::ledger::WhyLedger;
use super::moments::{Divided, Moment};
use super::phase::{Judged, Phase, PhaseRule};
use super::rows::Holding;
use crate::event::{Module, Stack};
use crate::model::grouping;
use crate::model::snapshot::{Grouping, Site};

/// What a stream of events says at all. What it does not say cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hearsay {
    /// What blocks are for: tensors, or none.
    pub tensors: bool,
    /// Whether grad was enabled.
    pub grad: bool,
    /// Nodes of autograd's graph.
    pub nodes: bool,
    /// Steps, zeroed gradients or batches.
    pub marks: bool,
    /// Several threads were seen to train at once.
    pub crowded: bool,
    /// Stacks that came when there was room for no more: nothing is known of them.
    pub stacks_left_out: u64,
    /// Operations that came when their stack had room for no more: what is saved there does not name them.
    pub operations_left_out: u64,
    /// Threads that were forgotten for want of room, and met anew.
    pub threads_forgotten: u64,
    /// Steps, zeroed gradients and batches from places for which there was no room: they count as one place.
    pub marks_without_place: u64,
}

/// From when on it is known why memory is there; what was live then is from before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Since {
    /// Since memprobe attached.
    #[default]
    Attach,
    /// Since somebody opened the process, which was probed before.
    Opening,
}

/// How the memory of a device divides.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'a> {
    ledger: &'a WhyLedger,
    device: &'a Device,
}

/// What the blocks hold whose category follows from one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryRow {
    /// The rule; it tells the category.
    pub rule: CategoryRule,
    /// Bytes now.
    pub live: u64,
    /// Blocks now.
    pub blocks: u64,
    /// Bytes when most was allocated on the device.
    pub at_peak: u64,
}

/// What was asked for in one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseRow {
    /// The phase.
    pub phase: Phase,
    /// Blocks that were made in it.
    pub holding: Holding,
    /// Bytes that were asked for, by the rule that told the phase.
    pub rules: Vec<(PhaseRule, u64)>,
}

/// What makes a [`SavedRow`]: line, module, operations.
type Saver = (Site, Module, Vec<Arc<str>>);

/// What one line of one module saved for backward passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRow {
    /// The line.
    pub site: Site,
    /// The module.
    pub module: Module,
    /// The nodes that were made on the same stacks, where they were seen to be evaluated.
    pub operations: Vec<Arc<str>>,
    /// What it holds.
    pub holding: Holding,
}

impl<'a> DeviceView<'a> {
    pub(super) fn new(ledger: &'a WhyLedger, device: &'a Device) -> Self {
        Self { ledger, device }
    }

    /// What is live now.
    pub fn now(&self) -> &'a Moment {
        &self.device.now
    }

    /// The first of the moments at which most was allocated, of those that were seen.
    pub fn peak(&self) -> &'a Moment {
        &self.device.peak
    }

    /// How that changed over time.
    pub fn timeline(&self) -> &'a Divided {
        &self.device.divided
    }

    /// One row for each rule that holds bytes now or held some at the peak.
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

    /// One row for each phase in which memory was asked for, in the order of a training step.
    pub fn phases(&self) -> Vec<PhaseRow> {
        let phases = Phase::ALL.iter().filter_map(|phase| {
            let holding = self.device.phases.get(phase)?;
            let judged = self.device.judged.iter();
            let mut rules: Vec<_> = judged
                .filter(|(judged, _)| judged.phase == *phase)
                .map(|(Judged { rule, .. }, bytes)| (*rule, *bytes))
                .collect();
            rules.sort_unstable();
            Some(PhaseRow {
                phase: *phase,
                holding: holding.as_of(self.device.peaks),
                rules,
            })
        });
        phases.collect()
    }

    /// One row for each line and module that saved something for backward passes, in no particular order.
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
            row.or_default()
                .join(stratum.holding.as_of(self.device.peaks));
        }
        let rows = rows.into_iter();
        rows.map(|((site, module, operations), holding)| SavedRow {
            site,
            module,
            operations,
            holding,
        })
        .collect()
    }

    /// The nodes that were made on a stack. What a backward pass computes again is made on another.
    fn operations(&self, stack: &Arc<Stack>) -> Vec<Arc<str>> {
        let names = self.ledger.operations.get(stack);
        names.into_iter().flatten().cloned().collect()
    }
}

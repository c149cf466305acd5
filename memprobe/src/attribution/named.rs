//! Categories from heap snapshots, and their comparison with the inferred ones.

use std::collections::BTreeMap;

use super::category::{Category, CategoryRule, Composition};
use super::ledger::AttributionLedger;
use super::lifecycle::{BlockState, Lifecycle};
use super::moments::Revision;
use super::phase::{ClassifiedPhase, Phase};
use crate::event::tensors::TensorKind;
use crate::event::{BlockLabels, DeviceIndex, LabeledBlock};
use crate::ledger::{BlockId, Ledger};

/// Comparison of inferred categories with heap snapshots, in bytes of blocks that both cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferenceCheck {
    pub pairs: BTreeMap<(Category, Category), u64>,
    /// Bytes of blocks from before attach, for which nothing is inferred.
    pub before_attach: u64,
    /// Bytes of blocks from before attach that labels of them alone gave a category.
    pub labeled: u64,
}

impl InferenceCheck {
    /// Bytes compared, including blocks inferred as unknown.
    pub fn compared(&self) -> u64 {
        self.sum(|_, _| true)
    }

    pub fn right(&self) -> u64 {
        self.sum(|inferred, named| inferred == named)
    }

    pub fn unknown(&self) -> u64 {
        self.sum(|inferred, _| inferred == Category::Unknown)
    }

    pub fn wrong(&self) -> u64 {
        self.sum(|inferred, named| inferred != named && inferred != Category::Unknown)
    }

    fn sum(&self, is_meant: impl Fn(Category, Category) -> bool) -> u64 {
        let pairs = self.pairs.iter();
        pairs
            .filter(|((inferred, named), _)| is_meant(*inferred, *named))
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// Rule for a tensor kind; `None` if the kind determines no category.
fn rule_of(kind: TensorKind) -> Option<CategoryRule> {
    match kind {
        TensorKind::Parameter => Some(CategoryRule::NamedParameter),
        TensorKind::Buffer => Some(CategoryRule::NamedBuffer),
        TensorKind::Gradient => Some(CategoryRule::NamedGradient),
        TensorKind::OptimizerState => Some(CategoryRule::NamedOptimizerState),
        TensorKind::KvCache => Some(CategoryRule::NamedCache),
        TensorKind::Saved => Some(CategoryRule::NamedSaved),
        TensorKind::Tensor => None,
    }
}

impl AttributionLedger {
    /// Applies a heap snapshot, which overrides inferred categories.
    pub(super) fn name(&mut self, names: &BlockLabels, ledger: &Ledger) {
        self.read = Some(names.time);
        self.root_variables.learn(names);
        if let Some(making) = &mut self.making {
            making.begin_reading();
        }
        let mut baseline = BTreeMap::<DeviceIndex, Composition>::new();
        let mut revisions = BTreeMap::<DeviceIndex, Vec<Revision>>::new();
        for named in &names.blocks {
            let id = ledger.block_at(named.device, named.addr);
            let Some(id) = id.filter(|id| ledger.block(*id).size == named.size) else {
                continue;
            };
            let Some(life) = self.blocks.get(id) else {
                continue;
            };
            let exact = named.kind.and_then(rule_of);
            let inferred = || {
                self.is_input_in_variable(&life, named)
                    .then_some(CategoryRule::HeldByVariable)
            };
            let Some(rule) = exact.or_else(inferred) else {
                continue;
            };
            if let Some(making) = &mut self.making {
                making.name(id, named, ledger);
            }
            if let Some(stack) = self.origins.get(life.origin as usize) {
                self.module_aliases.learn(named, stack);
            }
            match life.state {
                BlockState::BeforeAttach => {
                    let sum = &mut self.check.before_attach;
                    *sum = sum.saturating_add(named.size.0);
                    self.decide_baseline(id, life, named, rule);
                    let blocks = baseline.entry(named.device).or_default();
                    blocks.add(rule, named.size.0);
                }
                _ => {
                    let revision = self.decide(id, life, named, rule, ledger);
                    revisions.entry(named.device).or_default().extend(revision);
                }
            }
        }
        self.name_past(baseline);
        for (index, revisions) in revisions {
            self.intervals.revise_all(index, revisions);
        }
        if let Some(making) = &mut self.making {
            making.end_reading();
        }
    }

    /// Gives blocks from before attach the categories that labels of them alone determine.
    pub(super) fn name_baseline(&mut self, labels: &BlockLabels, ledger: &Ledger) {
        self.root_variables.learn(labels);
        let mut baseline = BTreeMap::<DeviceIndex, Composition>::new();
        for named in &labels.blocks {
            let id = ledger.block_at(named.device, named.addr);
            let is_meant = |id: &BlockId| {
                let block = ledger.block(*id);
                block.is_baseline && block.size == named.size
            };
            let Some(id) = id.filter(is_meant) else {
                continue;
            };
            let life = self.blocks.get(id);
            let life = life.filter(|life| matches!(life.state, BlockState::BeforeAttach));
            let Some((life, rule)) = life.zip(named.kind.and_then(rule_of)) else {
                continue;
            };
            self.check.labeled = self.check.labeled.saturating_add(named.size.0);
            self.decide_baseline(id, life, named, rule);
            let blocks = baseline.entry(named.device).or_default();
            blocks.add(rule, named.size.0);
        }
        self.name_past(baseline);
    }

    /// Gives blocks from before attach their category at all moments since.
    fn name_past(&mut self, baseline: BTreeMap<DeviceIndex, Composition>) {
        for (index, blocks) in baseline {
            if let Some(device) = self.devices.get_mut(&index) {
                device.name_past(&blocks);
            }
            self.intervals.name_past(index, &blocks);
        }
    }

    /// True for data that the program made once, as far as references and its age show. What it makes in each iteration
    /// is in a variable too, but not for as long.
    fn is_input_in_variable(&self, life: &Lifecycle, named: &LabeledBlock) -> bool {
        let is_from_outside = match life.state {
            BlockState::BeforeAttach => true,
            BlockState::Settled => {
                life.phase == Phase::Other
                    && matches!(
                        life.rule,
                        CategoryRule::LongLived
                            | CategoryRule::LikeLongLived
                            | CategoryRule::NothingTells
                    )
            }
            _ => false,
        };
        named.is_saved_variable && is_from_outside && self.recent_passes.is_before(life.born)
    }

    /// Gives a block its category for its whole life. Returns the change for the peaks of all step intervals.
    fn decide(
        &mut self,
        id: BlockId,
        life: Lifecycle,
        named: &LabeledBlock,
        rule: CategoryRule,
        ledger: &Ledger,
    ) -> Option<Revision> {
        // A category from an earlier snapshot is not inferred.
        if !life.rule.is_exact() && rule.is_exact() {
            let pair = (life.rule.category(), rule.category());
            let bytes = self.check.pairs.entry(pair).or_default();
            *bytes = bytes.saturating_add(named.size.0);
        }
        let revision = self.revise_since(0, id, &life, rule, ledger);
        self.blocks.settle(id, rule);
        if rule.is_exact() {
            self.learn(life.origin, rule);
        }
        self.count_in_module(id, life, named, rule);
        revision.map(|(_, revision)| revision)
    }

    /// Counts a block under the module that holds it, wherever it was allocated.
    fn count_in_module(
        &mut self,
        id: BlockId,
        life: Lifecycle,
        named: &LabeledBlock,
        rule: CategoryRule,
    ) {
        let Some(origin) = self.origin_in_module(named) else {
            return;
        };
        let life = Lifecycle {
            rule,
            state: BlockState::Settled,
            ..life
        };
        if let Some(device) = self.devices.get_mut(&named.device) {
            device.rename(&life, named.size.0, origin);
            self.blocks.insert(id, Lifecycle { origin, ..life });
        }
    }

    fn decide_baseline(
        &mut self,
        id: BlockId,
        life: Lifecycle,
        named: &LabeledBlock,
        rule: CategoryRule,
    ) {
        let size = named.size.0;
        let origin = self.origin_in_module(named).unwrap_or(life.origin);
        let Some(device) = self.devices.get_mut(&named.device) else {
            return;
        };
        let life = Lifecycle {
            // It was live at all recorded moments.
            born: 0,
            rule,
            state: BlockState::Settled,
            origin,
            ..life
        };
        device.name(&life, size, ClassifiedPhase::default());
        self.blocks.insert(id, life);
    }
}

//! Categories from heap snapshots, and their comparison with the inferred ones.

use std::collections::BTreeMap;

use super::category::{Category, CategoryRule};
use super::ledger::AttributionLedger;
use super::lifecycle::{Block, BlockState, Key};
use super::phase::{ClassifiedPhase, Phase, PhaseRule};
use crate::event::tensors::TensorKind;
use crate::event::{BlockLabels, LabeledBlock, TimeNs};

/// Comparison of inferred categories with heap snapshots, in bytes of blocks that both cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferenceCheck {
    /// Bytes by inferred and actual category.
    pub pairs: BTreeMap<(Category, Category), u64>,
    /// Bytes of blocks from before attach, for which nothing is inferred.
    pub before_attach: u64,
}

impl InferenceCheck {
    /// Bytes compared, including blocks inferred as unknown.
    pub fn compared(&self) -> u64 {
        self.sum(|_, _| true)
    }

    /// Bytes with the right category inferred.
    pub fn right(&self) -> u64 {
        self.sum(|inferred, named| inferred == named)
    }

    /// Bytes inferred as unknown.
    pub fn unknown(&self) -> u64 {
        self.sum(|inferred, _| inferred == Category::Unknown)
    }

    /// Bytes with a wrong category inferred.
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
        TensorKind::Saved => Some(CategoryRule::NamedSaved),
        TensorKind::Tensor => None,
    }
}

impl AttributionLedger {
    /// Comparison over all heap snapshots so far.
    pub fn check(&self) -> &InferenceCheck {
        &self.check
    }

    /// Time of the last heap snapshot; `None` without one.
    pub fn read(&self) -> Option<TimeNs> {
        self.read
    }

    /// Applies a heap snapshot, which overrides inferred categories.
    pub(super) fn name(&mut self, names: &BlockLabels) {
        self.read = Some(names.time);
        if let Some(making) = &mut self.making {
            making.begin_reading();
        }
        for named in &names.blocks {
            let Some(rule) = named.kind.and_then(rule_of) else {
                continue;
            };
            let key = (named.device, named.addr);
            let block = self.blocks.get(&key);
            if let Some(block) = block.filter(|block| block.size == named.size.0) {
                if let Some(making) = &mut self.making {
                    making.name(named);
                }
                if let Some(stack) = self.origins.get(block.origin as usize) {
                    self.module_aliases.learn(named, stack);
                }
                self.decide(key, block, named, rule);
            }
        }
        if let Some(making) = &mut self.making {
            making.end_reading();
        }
    }

    fn decide(&mut self, key: Key, block: Block, named: &LabeledBlock, rule: CategoryRule) {
        let size = named.size.0;
        if block.state != BlockState::BeforeAttach {
            // A category from an earlier snapshot is not inferred.
            if !block.rule.is_exact() {
                let pair = (block.rule.category(), rule.category());
                let bytes = self.check.pairs.entry(pair).or_default();
                *bytes = bytes.saturating_add(size);
            }
            self.revise(key, &block, rule);
            self.blocks.settle(&key, rule);
            if block.origin != 0 {
                self.learned.insert(block.origin, rule.category());
            }
            self.rename(key, Block { rule, ..block }, named);
            return;
        }
        self.check.before_attach = self.check.before_attach.saturating_add(size);
        let origin = self.origin_in_module(named).unwrap_or(block.origin);
        let Some(device) = self.devices.get_mut(&key.0) else {
            return;
        };
        let block = Block {
            // At past moments the block still counts as from before attach.
            born: self.ordinal + 1,
            rule,
            state: BlockState::Settled,
            origin,
            ..block
        };
        device.free_from_before(size);
        let judged = ClassifiedPhase {
            phase: Phase::Other,
            rule: PhaseRule::NoStack,
        };
        device.hold(&block, judged);
        self.blocks.insert(key, block);
    }

    /// Counts a block under the module that holds it, wherever it was allocated.
    fn rename(&mut self, key: Key, block: Block, named: &LabeledBlock) {
        let Some(origin) = self.origin_in_module(named) else {
            return;
        };
        if let Some(device) = self.devices.get_mut(&key.0) {
            device.rename(&block, origin);
            let stage = BlockState::Settled;
            self.blocks.insert(
                key,
                Block {
                    origin,
                    state: stage,
                    ..block
                },
            );
        }
    }
}

//! What becomes of a block: from where it was made, through what it lives, to where it is freed.

use std::collections::{HashMap, HashSet};

use super::category::{Category, CategoryRule};
use super::course::Course;
use super::phase::Phase;
use crate::event::{Address, DeviceIndex, Tid};

/// Passes forward that what is put into modules lives through at most.
const MOST_RUNS: u64 = 4;

/// Steps that what was saved for a backward pass lives through at most: where two networks train in turn, one steps
/// before the other goes back.
const MOST_STEPS: u64 = 2;

/// Where a live block is.
pub(super) type Key = (DeviceIndex, Address);

/// How far a block has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It was live at attach.
    BeforeAttach,
    /// What it is for is decided.
    Settled,
    /// Made in a forward pass, in this lap; no backward pass began since.
    Forward { lap: u64 },
    /// Made in a forward pass; when a backward pass began there had been so many steps.
    Saved { step: u64 },
    /// Made by a checkpoint that is computed again, after so many that were.
    Recompute { before: u64 },
    /// Made in a backward pass.
    Backward,
    /// Made in a step.
    Step,
    /// Made in `torch.utils.data`.
    Loading,
    /// Made in modules without grad.
    Evaluation,
    /// Made as parameters are.
    Built,
    /// Made outside of everything, for the next pass.
    Given,
    /// As above, and live through passes forward since this one.
    Carried { run: u64 },
    /// Made outside of everything.
    Loose,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) size: u64,
    /// The number of the event that made it.
    pub(super) born: u64,
    /// The stack that made it.
    pub(super) origin: u32,
    pub(super) phase: Phase,
    pub(super) rule: CategoryRule,
    pub(super) stage: Stage,
    pub(super) made_for: MadeFor,
}

/// What PyTorch asked for a block for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MadeFor {
    /// A tensor, or nothing says.
    Tensor,
    /// No tensor that it was making: a workspace, or the storage of a tensor that is resized.
    NoTensor,
}

impl MadeFor {
    /// What a rule comes to. Where no tensor was being made, only one who lives as no workspace does is a tensor that was resized:
    /// `index_select` makes its result so, and with it `embedding` (aten/src/ATen/native/cuda/Indexing.cu@v2.15.0).
    pub(super) const fn read(self, rule: CategoryRule) -> CategoryRule {
        match (self, rule) {
            (Self::Tensor, _)
            | (
                Self::NoTensor,
                CategoryRule::FreedInBackward
                | CategoryRule::Recomputed
                | CategoryRule::GivenToForward
                | CategoryRule::Loaded,
            ) => rule,
            (Self::NoTensor, _) => CategoryRule::NoTensor,
        }
    }
}

impl Stage {
    /// The stage of a block that is made now.
    pub(super) fn of(phase: Phase, course: &Course, made: Made) -> Self {
        match phase {
            Phase::Forward => Self::Forward { lap: course.laps() },
            Phase::Evaluation => Self::Evaluation,
            Phase::Recompute => Self::Recompute {
                before: course.recomputes(),
            },
            Phase::Backward => Self::Backward,
            Phase::OptimizerStep => Self::Step,
            Phase::DataLoading => Self::Loading,
            Phase::Other => match made {
                Made::AsParameter => Self::Built,
                Made::ForNextPass => Self::Given,
                Made::Anyhow => Self::Loose,
            },
        }
    }

    /// What it is likely to be for.
    pub(super) const fn likely(self) -> CategoryRule {
        match self {
            Self::Forward { .. } => CategoryRule::SoFarForward,
            Self::Saved { .. } => CategoryRule::SoFarSaved,
            Self::Recompute { .. } => CategoryRule::SoFarRecomputed,
            Self::Backward => CategoryRule::SoFarBackward,
            Self::Step => CategoryRule::SoFarStep,
            Self::Loading => CategoryRule::SoFarLoaded,
            Self::Evaluation => CategoryRule::SoFarEvaluation,
            Self::Built => CategoryRule::SoFarBuilt,
            Self::Carried { .. } => CategoryRule::SoFarGiven,
            Self::Given | Self::Loose | Self::BeforeAttach | Self::Settled => {
                CategoryRule::SoFarOther
            }
        }
    }

    /// What it was for, if it is freed now by a thread; `None` where that is decided already.
    pub(super) fn at_free(self, course: &Course, tid: Tid) -> Option<CategoryRule> {
        let by_backward = course.is_freed_by_backward(tid);
        Some(match self {
            Self::BeforeAttach | Self::Settled => return None,
            Self::Forward { lap } if lap == course.laps() => CategoryRule::WithinForward,
            Self::Forward { .. } => CategoryRule::NoBackward,
            Self::Saved { .. } if by_backward => CategoryRule::FreedInBackward,
            Self::Saved { .. } => CategoryRule::OutlivesItsPass,
            Self::Recompute { before } if before == course.recomputes() => {
                CategoryRule::WithinRecompute
            }
            Self::Recompute { .. } if by_backward => CategoryRule::Recomputed,
            Self::Recompute { .. } => CategoryRule::OutlivesRecompute,
            Self::Backward => CategoryRule::WithinBackward,
            Self::Step => CategoryRule::WithinStep,
            Self::Evaluation => CategoryRule::WithinEvaluation,
            Self::Loading | Self::Built | Self::Given | Self::Loose => CategoryRule::WithinOther,
            Self::Carried { .. } => CategoryRule::GivenToForward,
        })
    }

    /// Steps that it has been saved through are too many.
    pub(super) fn is_saved_too_long(self, course: &Course) -> bool {
        matches!(self, Self::Saved { step } if course.steps().saturating_sub(step) >= MOST_STEPS)
    }

    /// It is live through more passes forward than an input is.
    pub(super) fn is_carried_too_long(self, course: &Course) -> bool {
        matches!(self, Self::Carried { run } if course.runs().saturating_sub(run) >= MOST_RUNS)
    }

    const fn queue(self) -> Option<Queue> {
        match self {
            Self::BeforeAttach | Self::Settled => None,
            Self::Forward { .. } => Some(Queue::Forward),
            Self::Saved { .. } => Some(Queue::Saved),
            Self::Recompute { .. } => Some(Queue::Recompute),
            Self::Backward => Some(Queue::Backward),
            Self::Step => Some(Queue::Step),
            Self::Loading => Some(Queue::Loading),
            Self::Evaluation => Some(Queue::Evaluation),
            Self::Built | Self::Given | Self::Loose => Some(Queue::Outside),
            Self::Carried { .. } => Some(Queue::Carried),
        }
    }
}

/// How a block was made that was made outside of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    AsParameter,
    ForNextPass,
    Anyhow,
}

/// Blocks that wait for the same to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Forward,
    Saved,
    Recompute,
    Backward,
    Step,
    Loading,
    Evaluation,
    Outside,
    Carried,
}

const QUEUES: usize = Queue::Carried as usize + 1;

/// Blocks of one queue below which those that are gone are not sought.
const FEW: usize = 1024;

/// The live blocks, and for what they wait.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    live: HashMap<Key, Block>,
    /// Each with the number of the event that made it. Those that are gone stay until many are.
    queues: [Vec<(Key, u64)>; QUEUES],
    /// Lengths at which what is gone is sought.
    full: [usize; QUEUES],
}

impl Blocks {
    pub(super) fn get(&self, key: &Key) -> Option<Block> {
        self.live.get(key).copied()
    }

    pub(super) fn take(&mut self, key: &Key) -> Option<Block> {
        self.live.remove(key)
    }

    pub(super) fn insert(&mut self, key: Key, block: Block) {
        self.live.insert(key, block);
        if let Some(queue) = block.stage.queue() {
            self.queues[queue as usize].push((key, block.born));
            self.tidy(queue);
        }
    }

    /// What is decided of a block changes; it waits for nothing else by that.
    pub(super) fn settle(&mut self, key: &Key, rule: CategoryRule) {
        if let Some(block) = self.live.get_mut(key) {
            (block.rule, block.stage) = (rule, Stage::Settled);
        }
    }

    /// The sizes of parameters on each device, and of what may be one: blocks from before attach.
    pub(super) fn sizes_of_parameters(&self) -> HashSet<(DeviceIndex, u64)> {
        let like_parameters = self.live.iter().filter(|(_, block)| {
            block.stage == Stage::BeforeAttach || block.rule.category() == Category::Parameter
        });
        like_parameters
            .map(|((device, _), block)| (*device, block.size))
            .collect()
    }

    /// All that wait in a queue, which is empty then.
    pub(super) fn drain(&mut self, queue: Queue) -> Vec<(Key, Block)> {
        let waiting = std::mem::take(&mut self.queues[queue as usize]);
        self.full[queue as usize] = FEW;
        let live = waiting.into_iter().filter_map(|(key, born)| {
            let block = self.live.get(&key)?;
            let waits = block.born == born && block.stage.queue() == Some(queue);
            waits.then_some((key, *block))
        });
        live.collect()
    }

    /// Forgets blocks of a queue that are gone, when it has doubled.
    fn tidy(&mut self, queue: Queue) {
        let at = queue as usize;
        if self.queues[at].len() < self.full[at].max(FEW) {
            return;
        }
        let live = &self.live;
        self.queues[at].retain(|(key, born)| {
            live.get(key)
                .is_some_and(|block| block.born == *born && block.stage.queue() == Some(queue))
        });
        self.full[at] = (2 * self.queues[at].len()).max(FEW);
    }
}

/// Whether the bytes of a rule are saved for backward.
pub(super) fn is_saved(rule: CategoryRule) -> bool {
    rule.category() == Category::Activation
}

//! Block lifecycles: infers the category of a block from the phase that allocated it and the phases it
//! survives.

use std::collections::HashSet;

use super::caches::OutermostCall;
use super::category::{Category, CategoryRule};
use super::phase::Phase;
use super::phase_tracker::PhaseTracker;
use crate::event::{DeviceIndex, PurposeId, Tid};
use crate::ledger::{BlockId, Ledger, PerBlock};

/// Forward passes a module input may survive before it stops counting as input.
const MAX_INPUT_PASSES: u64 = 4;

/// Optimizer steps begun since the backward pass at which a saved block stops counting as saved. The first
/// one may belong to another network: two that train in turn step before each other's backward pass.
const MAX_STEPS: u64 = 2;

/// Progress of a live block through the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// Live at attach.
    BeforeAttach,
    /// Category decided.
    Settled,
    /// Allocated by a forward pass, when `step` steps and batches had begun; no backward pass began since.
    Forward { step: ShortCount },
    /// Allocated by a forward pass; a backward pass began when `step` optimizer steps had begun.
    Saved { step: ShortCount },
    /// Allocated by a recomputation, after `before` completed ones.
    Recompute { before: ShortCount },
    /// Allocated in a backward pass.
    Backward,
    /// Allocated in an optimizer step.
    Step,
    /// Allocated in `torch.utils.data`.
    Loading,
    /// Allocated by modules without grad.
    Evaluation,
    /// Allocated by parameter-building code.
    Built,
    /// Allocated outside all phases after a batch or step; a candidate for module input.
    InputCandidate,
    /// Input candidate that has been live since forward pass number `run`.
    SurvivingInput { run: ShortCount },
    /// Allocated outside all phases.
    Outside,
}

/// Number of steps or passes so far, modulo 2^32. Without alignment, so that a [`BlockState`] has 5 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShortCount([u8; 4]);

impl ShortCount {
    pub(super) const fn of(count: u64) -> Self {
        Self((count as u32).to_ne_bytes())
    }

    /// Steps or passes since then, if there were `now` in all.
    const fn until(self, now: u64) -> u64 {
        (now as u32).wrapping_sub(u32::from_ne_bytes(self.0)) as u64
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Lifecycle {
    /// Number of the event that allocated it.
    pub(super) born: u64,
    /// Index of the allocating stack, or of the module that holds the block.
    pub(super) origin: u32,
    pub(super) phase: Phase,
    pub(super) rule: CategoryRule,
    pub(super) state: BlockState,
    pub(super) tensor_info: TensorInfo,
}

// A million live blocks are common.
const _: () = assert!(size_of::<Option<Lifecycle>>() == 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorInfo {
    Tensor,
    /// The stream does not say: it holds no tensors, or the block came before they were certain.
    Unknown,
    /// PyTorch was making no tensor: a workspace, or the storage of a tensor being resized.
    NoTensor,
}

impl TensorInfo {
    pub(super) const fn of(id: PurposeId) -> Self {
        match id {
            PurposeId::NONE => Self::Unknown,
            PurposeId::NO_TENSOR => Self::NoTensor,
            _ => Self::Tensor,
        }
    }

    /// Corrects a rule by the tensor information, if the stream has any. A block without a tensor is a workspace,
    /// unless its lifetime shows a resized tensor. `index_select` resizes its result, and `embedding` calls it
    /// (aten/src/ATen/native/cuda/Indexing.cu@v2.15.0).
    pub(super) const fn read(self, rule: CategoryRule, has_tensors: bool) -> CategoryRule {
        match (self, rule) {
            (Self::Unknown, _) if !has_tensors => rule,
            (Self::Tensor, _)
            | (
                Self::NoTensor | Self::Unknown,
                CategoryRule::FreedInBackward
                | CategoryRule::Recomputed
                | CategoryRule::GivenToForward
                | CategoryRule::Loaded,
            ) => rule,
            (Self::NoTensor, _) => CategoryRule::NoTensor,
            (Self::Unknown, _) => CategoryRule::TensorOrWorkspace,
        }
    }
}

impl BlockState {
    pub(super) fn of(phase: Phase, course: &PhaseTracker, made: AllocationOrigin) -> Self {
        match phase {
            Phase::Forward => Self::Forward {
                step: ShortCount::of(course.steps_and_batches),
            },
            Phase::Evaluation => Self::Evaluation,
            Phase::Recompute => Self::Recompute {
                before: ShortCount::of(course.recomputes),
            },
            Phase::Backward => Self::Backward,
            Phase::OptimizerStep => Self::Step,
            Phase::DataLoading => Self::Loading,
            Phase::Other => match made {
                AllocationOrigin::AsParameter => Self::Built,
                AllocationOrigin::ForNextPass => Self::InputCandidate,
                AllocationOrigin::Anyhow => Self::Outside,
            },
        }
    }

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
            Self::SurvivingInput { .. } => CategoryRule::SoFarGiven,
            Self::InputCandidate | Self::Outside | Self::BeforeAttach | Self::Settled => {
                CategoryRule::SoFarOther
            }
        }
    }

    /// Rule of a block freed now by thread `tid`; `None` if already decided.
    pub(super) fn at_free(self, course: &PhaseTracker, tid: Tid) -> Option<CategoryRule> {
        let by_backward = course.is_freed_by_backward(tid);
        Some(match self {
            Self::BeforeAttach | Self::Settled => return None,
            Self::Forward { step } if step == ShortCount::of(course.steps_and_batches) => {
                CategoryRule::WithinForward
            }
            Self::Forward { .. } => CategoryRule::NoBackward,
            Self::Saved { .. } if by_backward => CategoryRule::FreedInBackward,
            Self::Saved { .. } => CategoryRule::OutlivesItsPass,
            Self::Recompute { before } if before == ShortCount::of(course.recomputes) => {
                CategoryRule::WithinRecompute
            }
            Self::Recompute { .. } if by_backward => CategoryRule::Recomputed,
            Self::Recompute { .. } => CategoryRule::OutlivesRecompute,
            Self::Backward => CategoryRule::WithinBackward,
            Self::Step => CategoryRule::WithinStep,
            Self::Evaluation => CategoryRule::WithinEvaluation,
            Self::Loading | Self::Built | Self::InputCandidate | Self::Outside => {
                CategoryRule::WithinOther
            }
            Self::SurvivingInput { .. } => CategoryRule::GivenToForward,
        })
    }

    /// True for a saved block after [`MAX_STEPS`] optimizer steps, and for an input after [`MAX_INPUT_PASSES`] passes.
    pub(super) fn is_too_old(self, course: &PhaseTracker) -> bool {
        match self {
            Self::Saved { step } => step.until(course.steps) >= MAX_STEPS,
            Self::SurvivingInput { run } => run.until(course.runs) >= MAX_INPUT_PASSES,
            _ => false,
        }
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
            Self::Built | Self::InputCandidate | Self::Outside => Some(Queue::Outside),
            Self::SurvivingInput { .. } => Some(Queue::Carried),
        }
    }
}

/// Numbers of the events before the last forward passes, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentPasses([Option<u64>; MAX_INPUT_PASSES as usize]);

impl RecentPasses {
    pub(super) fn begin(&mut self, ordinal: u64) {
        self.0.rotate_left(1);
        if let Some(last) = self.0.last_mut() {
            *last = Some(ordinal);
        }
    }

    /// True if event number `born` came before all of these passes.
    pub(super) fn is_before(&self, born: u64) -> bool {
        self.0[0].is_some_and(|oldest| born < oldest)
    }
}

/// Origin of a block allocated outside all phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllocationOrigin {
    AsParameter,
    ForNextPass,
    Anyhow,
}

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

/// Shortest queue that is scanned for freed blocks.
const FEW: usize = 1024;

/// Lifecycles of live blocks, and queues of the undecided ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Lifecycles {
    live: PerBlock<Lifecycle>,
    /// Outermost call that allocated each block, if any; few programs have such blocks.
    calls: PerBlock<OutermostCall>,
    /// Blocks, each with the number of the allocating event modulo 2^32. Freed blocks stay until the next scan.
    queues: [Vec<(BlockId, u32)>; QUEUES],
    /// Queue lengths at which freed blocks are removed.
    full: [usize; QUEUES],
}

impl Lifecycles {
    /// Bytes of a copy.
    pub(super) fn copy_bytes(&self) -> u64 {
        let queued: usize = self.queues.iter().map(Vec::len).sum();
        let queues = (queued * size_of::<(BlockId, u32)>()) as u64;
        self.live.bytes() + self.calls.bytes() + queues
    }

    pub(super) fn get(&self, id: BlockId) -> Option<Lifecycle> {
        self.live.get(id).copied()
    }

    /// Call of modules without grad that allocated a block; the default stands for none.
    pub(super) fn call(&self, id: BlockId) -> OutermostCall {
        self.calls.get(id).copied().unwrap_or_default()
    }

    pub(super) fn set_call(&mut self, id: BlockId, call: OutermostCall) {
        if call != OutermostCall::default() {
            self.calls.insert(id, call);
        }
    }

    pub(super) fn take(&mut self, id: BlockId) -> Option<Lifecycle> {
        self.calls.remove(id);
        self.live.remove(id)
    }

    pub(super) fn insert(&mut self, id: BlockId, life: Lifecycle) {
        self.live.insert(id, life);
        if let Some(queue) = life.state.queue() {
            self.queues[queue as usize].push((id, life.born as u32));
            self.tidy(queue);
        }
    }

    /// Decides the rule of a block and takes it out of its queue.
    pub(super) fn settle(&mut self, id: BlockId, rule: CategoryRule) {
        if let Some(life) = self.live.get_mut(id) {
            (life.rule, life.state) = (rule, BlockState::Settled);
        }
    }

    /// Sizes of parameters by device. Includes blocks from before attach, which may be parameters.
    pub(super) fn sizes_of_parameters(&self, ledger: &Ledger) -> HashSet<(DeviceIndex, u64)> {
        let like_parameters = self.live.iter().filter(|(_, life)| {
            life.state == BlockState::BeforeAttach || life.rule.category() == Category::Parameter
        });
        let blocks = like_parameters.map(|(id, _)| ledger.block(id));
        blocks.map(|block| (block.device, block.size.0)).collect()
    }

    /// Bytes of each known parameter on a device.
    pub(super) fn parameters<'a>(
        &'a self,
        device: DeviceIndex,
        ledger: &'a Ledger,
    ) -> impl Iterator<Item = u64> + 'a {
        let parameters = self
            .live
            .iter()
            .filter(|(_, life)| life.rule.category() == Category::Parameter);
        let blocks = parameters.map(|(id, _)| ledger.block(id));
        blocks
            .filter(move |block| block.device == device)
            .map(|block| block.size.0)
    }

    /// Numbers of the events that allocated the blocks of passes whose category is undecided.
    pub(super) fn undecided_of_passes(&self) -> impl Iterator<Item = u64> {
        const OF_PASSES: [Queue; 4] = [
            Queue::Forward,
            Queue::Saved,
            Queue::Recompute,
            Queue::Backward,
        ];
        OF_PASSES.into_iter().flat_map(move |queue| {
            let waiting = self.queues[queue as usize].iter();
            waiting.filter_map(move |(id, born)| {
                let life = self.live.get(*id)?;
                life.waits_in(queue, *born).then_some(life.born)
            })
        })
    }

    pub(super) fn drain(&mut self, queue: Queue) -> Vec<(BlockId, Lifecycle)> {
        let waiting = std::mem::take(&mut self.queues[queue as usize]);
        self.full[queue as usize] = FEW;
        let live = waiting.into_iter().filter_map(|(id, born)| {
            let life = self.live.get(id)?;
            life.waits_in(queue, born).then_some((id, *life))
        });
        live.collect()
    }

    /// Removes freed blocks from a queue that has doubled in length.
    fn tidy(&mut self, queue: Queue) {
        let at = queue as usize;
        if self.queues[at].len() < self.full[at].max(FEW) {
            return;
        }
        let live = &self.live;
        self.queues[at].retain(|(id, born)| {
            live.get(*id)
                .is_some_and(|life| life.waits_in(queue, *born))
        });
        self.full[at] = (2 * self.queues[at].len()).max(FEW);
    }
}

impl Lifecycle {
    /// True if the block that entered a queue as number `born` is this one, and still waits there.
    fn waits_in(&self, queue: Queue, born: u32) -> bool {
        self.born as u32 == born && self.state.queue() == Some(queue)
    }
}

/// True if the rule counts as saved for the backward pass.
pub(super) fn is_saved(rule: CategoryRule) -> bool {
    rule.category() == Category::Activation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_in_doubt_is_a_tensor_where_only_a_tensor_lives_so() {
        let read = |rule, has_tensors| TensorInfo::Unknown.read(rule, has_tensors);
        let backward = CategoryRule::WithinBackward;
        assert_eq!(read(backward, true), CategoryRule::TensorOrWorkspace);
        assert_eq!(read(backward, false), backward);
        let freed = CategoryRule::FreedInBackward;
        assert_eq!(read(freed, true), freed);
    }
}

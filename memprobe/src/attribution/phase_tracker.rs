//! Tracks the phase of a process across events, where a single stack does not determine it.

use std::collections::HashMap;

use super::phase::{ClassifiedPhase, Phase, PhaseRule};
use crate::event::{Grad, MarkedPhase, PhaseMark, Tid};

/// Threads tracked; at the limit all are forgotten and tracked afresh.
const MAX_THREADS: usize = 4096;

/// Last action of a thread that affects how its next allocation is classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    /// Loaded a batch or made a step: its next allocations are for the next pass.
    Began,
    /// Called a module, with grad enabled or unknown.
    Forward,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PhaseTransition {
    pub(super) ended: Phase,
    pub(super) began: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassifiedAllocation {
    pub(super) classified: ClassifiedPhase,
    pub(super) transition: Option<PhaseTransition>,
    /// True if allocated outside all phases by a thread whose last action was a batch or a step.
    pub(super) is_for_next_pass: bool,
}

/// Phase tracker of a process. Assumes that one thread trains at a time; [`Self::is_concurrent`] reports a
/// violation.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseTracker {
    pub(super) phase: Phase,
    /// Thread that called `backward()` or the optimizer step; `None` if the call was not seen.
    by: Option<Tid>,
    /// True once another thread than `by`, or one without history, has run nodes of this backward pass.
    has_engine: bool,
    threads: HashMap<Tid, ThreadState>,
    has_batches: bool,
    pub(super) is_concurrent: bool,
    /// Threads forgotten at the limit. Until their next tracked action only their stacks classify them.
    pub(super) forgotten: u64,
    pub(super) runs: u64,
    /// Optimizer steps begun, by marks.
    pub(super) steps: u64,
    /// Optimizer steps and batches begun, by marks.
    pub(super) steps_and_batches: u64,
    pub(super) recomputes: u64,
}

impl PhaseTracker {
    /// True if a free by this thread belongs to the backward pass. If autograd runs on threads of its own,
    /// the waiting thread frees only after the pass.
    pub(super) fn is_freed_by_backward(&self, tid: Tid) -> bool {
        self.phase.is_of_backward() && !(self.has_engine && self.by == Some(tid))
    }

    /// Ends the backward pass when the thread that waits for it frees a block: autograd runs on other threads.
    pub(super) fn on_free_after_backward(&mut self, tid: Tid) -> Option<PhaseTransition> {
        let is_over = self.phase.is_of_backward() && !self.is_freed_by_backward(tid);
        is_over.then(|| self.transition_to(Phase::Other)).flatten()
    }

    /// True if this thread is in a backward pass that it called and that runs on no other. Without marks of optimizers
    /// nothing shows its end.
    pub(super) fn is_in_own_backward(&self, tid: Tid) -> bool {
        let is_own = self.by == Some(tid) && !self.has_engine;
        self.phase.is_of_backward() && is_own && self.steps == 0
    }

    pub(super) fn on_allocation(
        &mut self,
        tid: Tid,
        by_stack: ClassifiedPhase,
        grad: Grad,
        in_node: bool,
    ) -> ClassifiedAllocation {
        let last = self.threads.get(&tid).copied();
        let judged = self.refine(by_stack, last, grad);
        let is_for_next_pass = last == Some(ThreadState::Began) && judged.phase == Phase::Other;
        self.detect_concurrent_training(tid, last, judged);
        let turn = self
            .decides(last, judged, in_node)
            .then(|| self.transition_to(judged.phase))
            .flatten();
        self.remember(tid, last, judged, in_node);
        ClassifiedAllocation {
            classified: judged,
            transition: turn,
            is_for_next_pass,
        }
    }

    /// Handles a mark: PyTorch begins a step, a batch or `zero_grad()`.
    pub(super) fn mark(&mut self, mark: &PhaseMark) -> Option<PhaseTransition> {
        let last = self.threads.get(&mark.tid).copied();
        match mark.phase {
            MarkedPhase::Step => {
                self.steps = self.steps.saturating_add(1);
                self.steps_and_batches = self.steps_and_batches.saturating_add(1);
                let turn = self.transition_to(Phase::OptimizerStep);
                self.by = Some(mark.tid);
                self.set(mark.tid, self.after_step());
                turn
            }
            MarkedPhase::NextBatch => {
                self.steps_and_batches = self.steps_and_batches.saturating_add(1);
                self.has_batches = true;
                self.set(mark.tid, ThreadState::Began);
                self.transition_to(Phase::DataLoading)
            }
            // `zero_grad()` between forward and backward begins nothing.
            MarkedPhase::ZeroGrad if last == Some(ThreadState::Forward) => None,
            MarkedPhase::ZeroGrad => {
                let next = match last {
                    Some(ThreadState::Began) => ThreadState::Began,
                    _ => self.after_step(),
                };
                self.set(mark.tid, next);
                self.transition_to(Phase::Other)
            }
        }
    }

    /// State of a thread after an optimizer step: preparing the next pass, unless batches begin passes.
    fn after_step(&self) -> ThreadState {
        if self.has_batches {
            ThreadState::Other
        } else {
            ThreadState::Began
        }
    }

    /// Reclassifies an allocation by the last action of its thread. A loss function between modules and the
    /// backward pass belongs to forward. The same holds for a function within them for which autograd
    /// disables grad, also if other threads call the modules with grad: `DataParallel` gathers their results.
    fn refine(
        &self,
        by_stack: ClassifiedPhase,
        last: Option<ThreadState>,
        grad: Grad,
    ) -> ClassifiedPhase {
        let notes = !matches!(grad, Grad::Disabled | Grad::Inference);
        let is_forward = last == Some(ThreadState::Forward);
        let rule = match by_stack.rule {
            PhaseRule::NothingTells if notes && is_forward => PhaseRule::AfterModule,
            PhaseRule::ForwardWithoutGrad if is_forward || self.phase == Phase::Forward => {
                PhaseRule::FunctionInForward
            }
            _ => return by_stack,
        };
        ClassifiedPhase {
            phase: Phase::Forward,
            rule,
        }
    }

    /// True if the allocation of this thread sets the phase of the process. Helper threads (loggers,
    /// prefetchers) never do. A hook inside a backward pass does not end it.
    fn decides(&self, last: Option<ThreadState>, judged: ClassifiedPhase, in_node: bool) -> bool {
        match judged.phase {
            Phase::Other => last.is_some() && judged.rule == PhaseRule::NothingTells,
            Phase::DataLoading => last.is_some(),
            Phase::OptimizerStep => !(in_node && self.phase.is_of_backward()),
            Phase::Forward | Phase::Evaluation | Phase::Recompute | Phase::Backward => true,
        }
    }

    fn detect_concurrent_training(
        &mut self,
        tid: Tid,
        last: Option<ThreadState>,
        judged: ClassifiedPhase,
    ) {
        let busy = self.phase.is_of_backward() || self.phase == Phase::OptimizerStep;
        let others = busy && self.by.is_some_and(|by| by != tid);
        let trains = matches!(
            judged.phase,
            Phase::Forward | Phase::Evaluation | Phase::OptimizerStep
        );
        self.is_concurrent |= others && trains && last.is_some() && judged.rule.is_certain();
    }

    fn transition_to(&mut self, began: Phase) -> Option<PhaseTransition> {
        let ended = self.phase;
        if ended == began {
            return None;
        }
        self.phase = began;
        if ended == Phase::Recompute {
            self.recomputes = self.recomputes.saturating_add(1);
        }
        if matches!(began, Phase::Forward | Phase::Evaluation) {
            self.runs = self.runs.saturating_add(1);
        }
        if !(ended.is_of_backward() && began.is_of_backward()) {
            self.by = None;
            self.has_engine = false;
        }
        if began.is_of_backward() && !ended.is_of_backward() {
            let forward = self.threads.values_mut();
            forward
                .filter(|last| **last == ThreadState::Forward)
                .for_each(|last| *last = ThreadState::Other);
        }
        Some(PhaseTransition { ended, began })
    }

    fn remember(
        &mut self,
        tid: Tid,
        last: Option<ThreadState>,
        judged: ClassifiedPhase,
        in_node: bool,
    ) {
        // A node may start a backward pass of its own (reentrant checkpoints).
        let is_nested = in_node && last.is_none();
        match judged.rule {
            PhaseRule::ModuleWithGrad
            | PhaseRule::ModuleOnly
            | PhaseRule::CompiledForward
            | PhaseRule::FunctionInForward => {
                self.set(tid, ThreadState::Forward);
            }
            PhaseRule::ModuleWithoutGrad => self.set(tid, ThreadState::Other),
            PhaseRule::EngineCalled if !is_nested => {
                self.by = Some(tid);
                self.set(tid, ThreadState::Other);
            }
            PhaseRule::EngineCalled | PhaseRule::EngineThread | PhaseRule::NodeEvaluated => {
                self.has_engine |= self.by.is_some_and(|by| by != tid) || last.is_none();
            }
            PhaseRule::OptimizerCalled if !self.phase.is_of_backward() => {
                self.by = Some(tid);
                self.set(tid, self.after_step());
            }
            PhaseRule::DataCalled if last.is_some() => self.set(tid, ThreadState::Began),
            _ => {}
        }
    }

    fn set(&mut self, tid: Tid, last: ThreadState) {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.forgotten = self.forgotten.saturating_add(self.threads.len() as u64);
            self.threads.clear();
        }
        self.threads.insert(tid, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{StackId, Tgid, TimeNs};

    const MAIN: Tid = Tid(1);
    const ENGINE: Tid = Tid(2);

    fn ask(
        course: &mut PhaseTracker,
        tid: Tid,
        phase: Phase,
        rule: PhaseRule,
    ) -> ClassifiedAllocation {
        course.on_allocation(tid, ClassifiedPhase { phase, rule }, Grad::Enabled, false)
    }

    fn forward(course: &mut PhaseTracker, tid: Tid) -> ClassifiedAllocation {
        ask(course, tid, Phase::Forward, PhaseRule::ModuleWithGrad)
    }

    fn outside(course: &mut PhaseTracker, tid: Tid) -> ClassifiedAllocation {
        ask(course, tid, Phase::Other, PhaseRule::NothingTells)
    }

    fn backward(course: &mut PhaseTracker) -> ClassifiedAllocation {
        ask(course, MAIN, Phase::Backward, PhaseRule::EngineCalled);
        ask(course, ENGINE, Phase::Backward, PhaseRule::NodeEvaluated)
    }

    fn mark(begins: MarkedPhase) -> PhaseMark {
        PhaseMark {
            time: TimeNs(1),
            tgid: Tgid(1),
            tid: MAIN,
            phase: begins,
            class: "Adam".into(),
            stack: StackId::NONE,
        }
    }

    #[test]
    fn a_loss_between_modules_and_backward_goes_forward() {
        let mut course = PhaseTracker::default();
        assert_eq!(outside(&mut course, MAIN).classified.phase, Phase::Other);
        forward(&mut course, MAIN);
        let loss = outside(&mut course, MAIN).classified;
        assert_eq!(
            (loss.phase, loss.rule),
            (Phase::Forward, PhaseRule::AfterModule)
        );
        backward(&mut course);
        let after = outside(&mut course, MAIN);
        assert_eq!(after.classified.phase, Phase::Other);
        assert_eq!(
            after.transition.map(|turn| turn.ended),
            Some(Phase::Backward)
        );
    }

    #[test]
    fn a_loss_of_what_other_threads_computed_goes_forward() {
        let mut course = PhaseTracker::default();
        let function = |course: &mut PhaseTracker| {
            let rule = PhaseRule::ForwardWithoutGrad;
            let by_stack = ClassifiedPhase {
                phase: Phase::Evaluation,
                rule,
            };
            let judged = course.on_allocation(MAIN, by_stack, Grad::Disabled, false);
            judged.classified.phase
        };
        // Replicas of the weights, before anything tells that grad is enabled.
        assert_eq!(function(&mut course), Phase::Evaluation);
        forward(&mut course, Tid(7));
        forward(&mut course, Tid(8));
        assert_eq!(function(&mut course), Phase::Forward);
        let loss = outside(&mut course, MAIN).classified;
        assert_eq!(loss.rule, PhaseRule::AfterModule);
    }

    #[test]
    fn a_thread_that_helps_ends_no_pass() {
        let mut course = PhaseTracker::default();
        forward(&mut course, MAIN);
        backward(&mut course);
        assert_eq!(outside(&mut course, Tid(9)).transition, None);
        assert!(course.is_freed_by_backward(ENGINE));
        assert!(!course.is_freed_by_backward(MAIN));
        assert!(!course.is_concurrent);
    }

    #[test]
    fn what_follows_a_batch_is_for_the_next_pass() {
        let mut course = PhaseTracker::default();
        course.mark(&mark(MarkedPhase::NextBatch));
        assert!(outside(&mut course, MAIN).is_for_next_pass);
        forward(&mut course, MAIN);
        course.mark(&mark(MarkedPhase::ZeroGrad));
        assert_eq!(outside(&mut course, MAIN).classified.phase, Phase::Forward);
        backward(&mut course);
        course.mark(&mark(MarkedPhase::Step));
        assert!(
            !outside(&mut course, MAIN).is_for_next_pass,
            "here a batch begins it"
        );
        let mut without_batches = PhaseTracker::default();
        without_batches.mark(&mark(MarkedPhase::Step));
        assert!(outside(&mut without_batches, MAIN).is_for_next_pass);
    }

    #[test]
    fn threads_that_are_forgotten_are_counted() {
        let mut course = PhaseTracker::default();
        for tid in 0..MAX_THREADS as u32 {
            forward(&mut course, Tid(tid));
        }
        assert_eq!(course.forgotten, 0);
        forward(&mut course, Tid(MAX_THREADS as u32));
        assert_eq!(course.forgotten, MAX_THREADS as u64);
    }

    #[test]
    fn two_threads_that_train_are_seen() {
        let mut course = PhaseTracker::default();
        forward(&mut course, Tid(7));
        forward(&mut course, MAIN);
        backward(&mut course);
        assert!(!course.is_concurrent);
        forward(&mut course, Tid(7));
        assert!(course.is_concurrent);
    }
}

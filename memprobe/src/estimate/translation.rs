//! Translation of requests to the CPU's allocator into requests to a GPU's.

use std::sync::Arc;

use super::accounting::{Accounting, BlockPair, PieceId};
use super::origin::{EstimateOrigin, EstimatePhase, ForeachTemporaries, Part};
use super::replay::Request;
use super::{Difference, Missing, OnHost};
use crate::event::tensors::DType;
use crate::event::{
    Action, Address, DeviceIndex, Event, MarkedPhase, MemoryEvent, PhaseMark, PurposeId, StackId,
    StepSettings, TensorSpec, Tid,
};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{BlockId, Change, PerBlock, PerStack, StackRef};

/// Maximum number of temporary tensors held until the end of an optimizer step.
const MAX_HELD: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Translation {
    on_host: Vec<OnHost>,
    /// Origin of each stack; true if its line stays on the host.
    stacks: PerStack<(EstimateOrigin, bool)>,
    live: PerBlock<Live>,
    /// Block that may be a dropout mask; the next allocation decides.
    mask: Option<Candidate>,
    step: Option<Step>,
    steps: u64,
    backward: Option<Tid>,
    last: EstimatePhase,
    /// Settings of all parameter groups; empty if they were not read.
    pub(super) optimizers: Vec<StepSettings>,
    /// Thread and class of the optimizer of the last step.
    optimizer: Option<(Tid, Arc<str>)>,
    pub(super) missing: Missing,
}

#[derive(Clone, Copy, Debug)]
enum Live {
    /// Its role is not decided yet.
    Waiting,
    /// In the accounting; `step` is the optimizer step that it ends with.
    Known { piece: PieceId, step: Option<u64> },
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    tid: Tid,
    stack: StackId,
    block: BlockId,
    /// Bytes of one element.
    element: u64,
    piece: BlockPair,
}

/// Optimizer step that handles one parameter after the other.
#[derive(Debug)]
struct Step {
    number: u64,
    tid: Tid,
    /// Pieces that the CPU freed and a GPU would hold until the end of the step.
    held: Vec<PieceId>,
    /// Stack and size of the first of two allocations in a row.
    first: Option<(StackId, u64)>,
    line: Option<StackId>,
}

impl Translation {
    pub(super) fn new(on_host: Vec<OnHost>) -> Self {
        Self {
            on_host,
            ..Self::default()
        }
    }

    pub(super) fn define_stack(&mut self, id: StackId, books: &Accounting) {
        let ledger = &books.replay.ledger;
        let stack = ledger.stack_ref(id);
        if stack == StackRef::UNKNOWN {
            self.missing.stacks += 1;
            return;
        }
        let (site, origin) = (
            ledger.site(stack, Grouping::User),
            EstimateOrigin::of(ledger.stack(stack)),
        );
        let is_on_host = match site {
            Site::Line(frame) => self.on_host.iter().any(|line| line.names(frame)),
            Site::Backward(_) | Site::Node { .. } | Site::NoLine { .. } => false,
        };
        self.stacks.insert(stack, (origin, is_on_host));
    }

    pub(super) fn mark(&mut self, mark: &PhaseMark, books: &mut Accounting) {
        self.phase(mark.tid, EstimatePhase::Step, books);
        self.end_step(mark.tid, books);
        if mark.phase == MarkedPhase::Step {
            self.optimizer = Some((mark.tid, Arc::clone(&mark.class)));
        }
    }

    /// True if the event belongs to a step of an optimizer with unknown settings, on which it depends.
    pub(super) fn lacks_settings(&self, event: &Event, books: &Accounting) -> bool {
        let Event::Memory(event) = event else {
            return false;
        };
        let stack = books.replay.ledger.stack_ref(event.stack);
        let origin = self.stacks.get(stack).map(|(origin, _)| origin.part);
        event.device == Some(DeviceIndex::CPU)
            && event.action == Action::Alloc
            && matches!(origin, Some(Part::Parameter(_)))
            && self.groups(event.tid).next().is_none()
    }

    /// True if all groups of the step have their parameters handled at once on a GPU, false if
    /// none; `None` if they differ, or are unknown.
    fn is_foreach(&self, together: ForeachTemporaries, tid: Tid) -> Option<bool> {
        let mut groups = self.groups(tid).map(|group| together.is_foreach(group));
        let first = groups.next()?;
        groups.all(|group| group == first).then_some(first)
    }

    /// Settings of the parameter groups of the optimizer that steps on this thread.
    fn groups(&self, tid: Tid) -> impl Iterator<Item = &StepSettings> {
        let optimizer = self.optimizer.as_ref().filter(|(by, _)| *by == tid);
        let class = optimizer.map(|(_, class)| &**class);
        let groups = self.optimizers.iter();
        groups.filter(move |group| class.is_none_or(|class| group.class == class))
    }

    /// Handles an event of the CPU's allocator, and the change that it made to the ledger.
    pub(super) fn apply(&mut self, event: &MemoryEvent, change: &Change, books: &mut Accounting) {
        for ended in change.ended() {
            self.free(*ended, books);
        }
        match change.allocated() {
            Some((block, true)) => self.alloc(event, block, books),
            Some((_, false)) => self.missing.blocks += 1,
            None => {}
        }
    }

    fn alloc(&mut self, event: &MemoryEvent, block: BlockId, books: &mut Accounting) {
        let ledger = &books.replay.ledger;
        let stack = ledger.stack_ref(event.stack);
        let line = ledger.site_ref(stack, Grouping::User);
        let known = self.stacks.get(stack).copied();
        let (origin, is_on_host) = known.unwrap_or_default();
        let piece = BlockPair {
            cpu: event.size.0,
            gpu: Some(event.size.0),
            difference: None,
            line,
            phase: origin.phase,
            asked: Request {
                tid: event.tid,
                stack: event.stack,
                shape: event.shape,
            },
        };
        if is_number(tensor(event.shape, books), origin) {
            let piece = books.begin(piece.on_cpu_alone(Difference::OnHost));
            return self.keep(block, piece, None);
        }
        if origin.part == Part::Helper {
            let piece = BlockPair {
                phase: self.last,
                ..piece
            };
            return self.keep(block, books.begin(piece), None);
        }
        self.phase(event.tid, origin.phase, books);
        let is_mask = self.settle_mask(Some(event), books);
        if !matches!(origin.part, Part::Parameter(_)) {
            self.end_step(event.tid, books);
        }
        let last = std::mem::replace(&mut self.last, origin.phase);
        if matches!(
            origin.phase,
            EstimatePhase::Forward | EstimatePhase::Loading
        ) {
            books.is_over(last);
        }
        if is_on_host || origin.part == Part::Sample {
            let piece = books.begin(piece.on_cpu_alone(Difference::OnHost));
            return self.keep(block, piece, None);
        }
        // oneDNN's reordered copies of images and weights, and buffers for sums.
        if uses_no_tensor(event.shape, books) {
            let piece = books.begin(piece.on_cpu_alone(Difference::Scratch));
            return self.keep(block, piece, None);
        }
        match origin.part {
            Part::Dropout if !is_mask => self.may_be_mask(event, block, piece, books),
            Part::Parameter(together) => self.alloc_in_step(event, block, (piece, together), books),
            Part::Dropout | Part::Plain | Part::Sample | Part::Helper => {
                self.keep(block, books.begin(piece), None);
            }
        }
    }

    fn free(&mut self, block: BlockId, books: &mut Accounting) {
        if self.mask.is_some_and(|mask| mask.block == block) {
            self.settle_mask(None, books);
        }
        let Some(Live::Known { piece, step }) = self.live.remove(block) else {
            return;
        };
        if let (Some(now), Some(number)) = (&mut self.step, step)
            && now.number == number
            && now.held.len() < MAX_HELD
        {
            books.end_on_cpu(piece, Difference::Together);
            now.held.push(piece);
            return;
        }
        let Some((piece, size)) = books.end(piece) else {
            return;
        };
        if self.backward.is_some() && piece.phase == EstimatePhase::Forward {
            books.lines.was_saved(piece.line, size);
        }
    }

    pub(super) fn piece_at(&self, addr: Address, books: &Accounting) -> Option<PieceId> {
        let block = books.replay.ledger.block_at(DeviceIndex::CPU, addr)?;
        match self.live.get(block)? {
            Live::Known { piece, .. } => Some(*piece),
            Live::Waiting => None,
        }
    }

    pub(super) fn finish(&mut self, books: &mut Accounting) {
        self.settle_mask(None, books);
        if let Some(tid) = self.step.as_ref().map(|step| step.tid) {
            self.end_step(tid, books);
        }
        if self.backward.take().is_some() {
            books.lines.backward_ended();
        }
    }

    fn keep(&mut self, block: BlockId, piece: PieceId, step: Option<u64>) {
        self.live.insert(block, Live::Known { piece, step });
    }

    /// Tracks the thread's entry into a backward pass and its return.
    fn phase(&mut self, tid: Tid, phase: EstimatePhase, books: &mut Accounting) {
        match (self.backward, phase) {
            (None, EstimatePhase::Backward) => self.backward = Some(tid),
            (Some(of), phase) if of == tid && phase != EstimatePhase::Backward => {
                self.backward = None;
                books.lines.backward_ended();
            }
            _ => {}
        }
    }

    /// Holds back a block that may be a dropout mask. `dropout` on the CPU allocates a mask of the
    /// input's element type, then the output. On a GPU the mask has one byte an element (`_dropout`
    /// and `native_dropout_cuda`, aten/src/ATen/native/Dropout.cpp@v2.15.0).
    fn may_be_mask(
        &mut self,
        event: &MemoryEvent,
        block: BlockId,
        piece: BlockPair,
        books: &mut Accounting,
    ) {
        let element = tensor(event.shape, books).and_then(|shape| {
            let is_whole = shape.requested == Some(event.size);
            shape.dtype.size().filter(|bytes| is_whole && *bytes > 1)
        });
        let Some(element) = element else {
            self.keep(block, books.begin(piece), None);
            return;
        };
        self.live.insert(block, Live::Waiting);
        self.mask = Some(Candidate {
            tid: event.tid,
            stack: event.stack,
            block,
            element,
            piece,
        });
    }

    /// Decides the candidate mask: it is one if `next` is the output made with it. Returns the
    /// decision.
    fn settle_mask(&mut self, next: Option<&MemoryEvent>, books: &mut Accounting) -> bool {
        let Some(mut candidate) = self.mask.take() else {
            return false;
        };
        let is_mask = next.is_some_and(|next| {
            next.tid == candidate.tid
                && next.stack == candidate.stack
                && next.size.0 == candidate.piece.cpu
        });
        if is_mask {
            candidate.piece.gpu = Some(candidate.piece.cpu / candidate.element);
            candidate.piece.difference = Some(Difference::Mask);
        }
        let piece = books.begin(candidate.piece);
        self.keep(candidate.block, piece, None);
        is_mask
    }

    /// Handles a temporary tensor of a step that handles one parameter after the other.
    fn alloc_in_step(
        &mut self,
        event: &MemoryEvent,
        block: BlockId,
        (piece, together): (BlockPair, ForeachTemporaries),
        books: &mut Accounting,
    ) {
        if self.step.as_ref().is_some_and(|step| step.tid != event.tid) {
            let piece = books.begin(piece);
            return self.keep(block, piece, None);
        }
        match self.is_foreach(together, event.tid) {
            Some(true) => {}
            Some(false) => {
                let piece = books.begin(piece);
                return self.keep(block, piece, None);
            }
            None => {
                let is_mixed = self.groups(event.tid).next().is_some();
                self.missing.mixed_groups += u64::from(is_mixed);
            }
        }
        let steps = &mut self.steps;
        let step = self.step.get_or_insert_with(|| {
            *steps += 1;
            Step {
                number: *steps,
                tid: event.tid,
                held: Vec::new(),
                first: None,
                line: None,
            }
        });
        let this = (event.stack, event.size.0);
        let line = *step.line.get_or_insert(event.stack);
        let (piece, is_held) = match together {
            ForeachTemporaries::Second if step.first.take() == Some(this) => (piece, true),
            ForeachTemporaries::Second => {
                step.first = Some(this);
                (piece.on_cpu_alone(Difference::Together), false)
            }
            ForeachTemporaries::Each => (piece, true),
            ForeachTemporaries::FirstLine => (piece, line == event.stack),
            ForeachTemporaries::Unknown => {
                self.missing.steps += 1;
                (piece, false)
            }
        };
        let number = step.number;
        let piece = books.begin(piece);
        self.keep(block, piece, is_held.then_some(number));
    }

    fn end_step(&mut self, tid: Tid, books: &mut Accounting) {
        if self.step.as_ref().is_none_or(|step| step.tid != tid) {
            return;
        }
        for piece in self.step.take().into_iter().flat_map(|step| step.held) {
            books.end(piece);
        }
    }
}

/// Tensor that a block was allocated for, if known.
fn tensor(id: PurposeId, books: &Accounting) -> Option<&TensorSpec> {
    books.replay.ledger.purpose(id)?.tensor()
}

fn uses_no_tensor(id: PurposeId, books: &Accounting) -> bool {
    let purpose = books.replay.ledger.purpose(id);
    id == PurposeId::NO_TENSOR || purpose.is_some_and(|purpose| purpose.tensor().is_none())
}

/// Returns true for the tensor of a Python number. It stays on the host even when combined with
/// tensors of a GPU. So do the counters of an optimizer.
fn is_number(tensor: Option<&TensorSpec>, origin: EstimateOrigin) -> bool {
    tensor.is_some_and(|tensor| {
        let is_one = tensor.sizes.is_empty() && tensor.more == 0;
        is_one
            && (tensor.dtype == DType::FLOAT64
                || origin.phase == EstimatePhase::Step
                || origin.part == Part::Dropout)
    })
}

impl BlockPair {
    fn on_cpu_alone(self, difference: Difference) -> Self {
        Self {
            gpu: None,
            difference: Some(difference),
            ..self
        }
    }
}

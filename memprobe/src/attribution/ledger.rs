//! Attribution ledger: the category of each block, updated by every event.
//!
//! After every event each device satisfies `allocated == sum of all categories + before attach +
//! unaccounted`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::caches::Caches;
use super::category::{Category, CategoryRule, accumulates, builds, builds_buffer, is_workspace};
use super::device::{DeviceAttribution, StackHistory};
use super::iterations::{IterationLine, Iterations};
use super::lifecycle::{
    AllocationOrigin, BlockState, Lifecycle, Lifecycles, Queue, RecentPasses, ShortCount,
    TensorInfo,
};
use super::line_visits::{LineAllocation, ThreadRole};
use super::module_aliases::{HoldingModule, ModuleAliases, RootVariables};
use super::moments::Revision;
use super::named::InferenceCheck;
use super::pass_tail::PassTail;
use super::phase::{ClassifiedPhase, Phase, PhaseRule, phase_of};
use super::phase_tracker::{PhaseTracker, PhaseTransition};
use super::size::AllocationCounts;
use super::step_interval::{Now, StepIntervals};
use super::view::{Coverage, CoverageStart, DeviceView};
use crate::event::{
    Action, BlockPurpose, DeviceIndex, Event, Grad, MemoryEvent, Node, PhaseMark, PurposeId, Stack,
    Tid, TimeNs,
};
use crate::ledger::definitions::lost_stack;
use crate::ledger::snapshot::Grouping;
use crate::ledger::{
    Analysis, BlockId, Change, Freed, Ledger, LiveBlock, PerStack, StackRef, TotalsSample,
};

const MAX_STACKS: usize = 1 << 18;

const MAX_OPERATIONS: usize = 16;

/// Properties of a stack; the default is an unknown one.
#[derive(Clone, Copy, Debug, Default)]
struct StackProperties {
    origin: u32,
    classified: ClassifiedPhase,
    grad: Grad,
    in_node: bool,
    builds: bool,
    builds_buffer: bool,
    accumulates: bool,
    at_line: bool,
}

/// Decided blocks of an origin.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    /// Category of the last one.
    category: Option<Category>,
    /// Blocks kept through several forward passes, and inputs.
    long_lived: u32,
    given: u32,
}

impl Learned {
    /// True if its blocks are rather kept than given to a pass, as those of a leak.
    const fn is_long_lived(self) -> bool {
        self.long_lived > self.given
    }
}

impl StackProperties {
    /// True for the gradient that a backward pass starts from, which its caller makes and frees.
    fn is_root_gradient(&self) -> bool {
        self.classified.rule == PhaseRule::EngineCalled && !self.in_node
    }
}

/// Category of each live block, with totals by device, phase and iteration.
#[derive(Clone, Debug, Default)]
pub struct AttributionLedger {
    line: Option<IterationLine>,
    phases: PhaseTracker,
    pub(super) intervals: StepIntervals,
    stack_properties: PerStack<StackProperties>,
    /// Stacks in the order of their definition, and stand-ins for modules that hold blocks. The first is unknown.
    pub(super) origins: Vec<Arc<Stack>>,
    learned: Vec<Learned>,
    caches: Caches,
    pub(super) operations: HashMap<Arc<Stack>, BTreeSet<Arc<str>>>,
    pub(super) blocks: Lifecycles,
    pub(super) devices: BTreeMap<DeviceIndex, DeviceAttribution>,
    /// Comparison over all heap snapshots so far.
    pub check: InferenceCheck,
    /// Time of the last heap snapshot.
    pub read: Option<TimeNs>,
    pub(super) follows: StackHistory,
    pub(super) module_aliases: ModuleAliases,
    pub(super) root_variables: RootVariables,
    /// Origins that stand for the module holding a block.
    pub(super) in_modules: HashMap<HoldingModule, u32>,
    /// Allocations by stack and kind, with [`Self::with_sizes`].
    pub(super) making: Option<AllocationCounts>,
    pub(super) ordinal: u64,
    pub(super) recent_passes: RecentPasses,
    pass_tail: PassTail,
    pub(super) since: CoverageStart,
    coverage: Coverage,
    /// Rule of the block freed by the last event; `None` without one, or if it was from before attach.
    pub ended: Option<CategoryRule>,
    /// True if the last event raised the peak of its device.
    pub(super) is_peak: bool,
}

impl AttributionLedger {
    pub fn new(line: Option<IterationLine>) -> Self {
        Self {
            intervals: StepIntervals::new(line.is_some()),
            line,
            origins: vec![lost_stack("".into())],
            learned: vec![Learned::default()],
            ..Self::default()
        }
    }

    /// Also counts allocations, for [`Self::sizes`].
    pub fn with_sizes(self) -> Self {
        let making = Some(AllocationCounts::default());
        Self { making, ..self }
    }

    /// Counts all blocks by stack, for [`Self::layering`] of any iteration.
    pub fn with_layers(self) -> Self {
        let follows = StackHistory::Everything;
        Self { follows, ..self }
    }

    /// Counts all blocks by stack, for [`Self::layering`] of the latest iterations in a session of any
    /// length.
    pub fn with_latest_layers(self) -> Self {
        let follows = StackHistory::Latest;
        Self { follows, ..self }
    }

    /// Starts from the current state of a ledger. Live blocks count as allocated before: their category depends
    /// on phases that were not seen.
    pub fn with_known(mut self, ledger: &Ledger, now: TimeNs) -> Self {
        for (stack, _) in ledger.stacks() {
            self.define(stack, ledger);
        }
        for (index, totals) in ledger.moments(now) {
            self.since = CoverageStart::Opening;
            self.find(index, totals);
        }
        for (id, _) in ledger.blocks() {
            self.hold(id);
        }
        self
    }

    pub fn iterations(&self) -> Iterations {
        Iterations::of(&self.intervals)
    }

    pub fn latest_iterations(&self, most: usize) -> Iterations {
        Iterations::latest(&self.intervals, most)
    }

    /// Current phase, set by the last mark or deciding allocation.
    pub fn phase(&self) -> Phase {
        self.phases.phase
    }

    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> {
        self.devices.keys().copied()
    }

    /// Step intervals ended so far. If an event increases it, the interval ended before that event, and an
    /// iteration may have too.
    pub fn intervals_ended(&self) -> u64 {
        self.intervals.ended
    }

    pub fn device(&self, index: DeviceIndex) -> Option<DeviceView<'_>> {
        let device = self.devices.get(&index)?;
        Some(DeviceView::new(self, device))
    }

    /// Current rule of a live block; `None` if it is not live or from before attach.
    pub fn rule_of(&self, id: BlockId) -> Option<CategoryRule> {
        let block = self.blocks.get(id)?;
        (block.state != BlockState::BeforeAttach).then_some(block.rule)
    }

    /// Path of a module in calls, as reports name it.
    pub fn named_module(&self, path: &Arc<str>) -> Arc<str> {
        self.root_variables.named(path)
    }

    /// Gaps and limits of the data, for notes under tables.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            concurrent_training: self.phases.is_concurrent,
            threads_forgotten: self
                .phases
                .forgotten
                .saturating_add(self.intervals.line_visits.forgotten),
            marks_without_place: self.intervals.unnamed,
            ..self.coverage
        }
    }

    fn define(&mut self, number: StackRef, ledger: &Ledger) {
        if number == StackRef::UNKNOWN {
            self.coverage.stacks_left_out = self.coverage.stacks_left_out.saturating_add(1);
            return;
        }
        if self.stack_properties.get(number).is_some() {
            return;
        }
        let stack = ledger.stack(number);
        let context = &stack.context;
        self.coverage.grad |= context.grad != Grad::Unknown;
        if let Some(node) = &context.node {
            self.coverage.nodes = true;
            self.name_operation(node);
        }
        let at_line = self.line.as_ref().is_some_and(|line| {
            let mut frames = stack.frames.iter();
            frames.any(|frame| line.is_at(&frame.file, frame.line))
        });
        let traits = StackProperties {
            origin: self.add_origin(Arc::clone(stack)),
            classified: phase_of(stack),
            grad: context.grad,
            in_node: context.node.is_some(),
            builds: builds(stack),
            builds_buffer: builds_buffer(stack),
            accumulates: accumulates(stack),
            at_line,
        };
        self.stack_properties.insert(number, traits);
    }

    /// Records that the node's operation ran on the stack that created the node.
    fn name_operation(&mut self, node: &Node) {
        let Some(forward) = &node.forward else { return };
        let is_known = self.operations.contains_key(forward);
        if is_known || self.operations.len() < MAX_STACKS {
            let names = self.operations.entry(Arc::clone(forward)).or_default();
            if names.contains(&node.name) {
                return;
            }
            if names.len() < MAX_OPERATIONS {
                names.insert(Arc::clone(&node.name));
                return;
            }
        }
        self.coverage.operations_left_out = self.coverage.operations_left_out.saturating_add(1);
    }

    pub(super) fn add_origin(&mut self, stack: Arc<Stack>) -> u32 {
        // Caps on stacks and modules keep this far below 2^32.
        let index = u32::try_from(self.origins.len()).unwrap_or(0);
        self.origins.push(stack);
        self.learned.push(Learned::default());
        index
    }

    /// Stores the rule of a decided block for later ones of its origin.
    pub(super) fn learn(&mut self, origin: u32, rule: CategoryRule) {
        let learned = self.learned.get_mut(origin as usize);
        let Some(learned) = learned.filter(|_| origin != 0) else {
            return;
        };
        learned.category = Some(rule.category());
        match rule {
            CategoryRule::LongLived => learned.long_lived = learned.long_lived.saturating_add(1),
            CategoryRule::GivenToForward => learned.given = learned.given.saturating_add(1),
            _ => {}
        }
    }

    fn learned(&self, origin: u32) -> Learned {
        let learned = self.learned.get(origin as usize);
        learned.copied().unwrap_or_default()
    }

    /// Rule of an undecided block of this origin in this state.
    fn likely(&self, origin: u32, state: BlockState) -> CategoryRule {
        let known = self.learned(origin).category;
        known.map_or(state.likely(), CategoryRule::as_before)
    }

    fn mark(&mut self, mark: &PhaseMark, ledger: &Ledger) {
        self.coverage.marks = true;
        if let Some(turn) = self.phases.mark(mark) {
            self.turn(turn, ledger);
        }
        let stack = Some(ledger.stack_ref(mark.stack)).filter(|stack| *stack != StackRef::UNKNOWN);
        let site = stack.map(|stack| ledger.site(stack, Grouping::User));
        self.intervals.mark(mark, site, now(&self.devices));
        self.end_intervals();
    }

    /// Stores the peaks of ended step intervals on each device.
    fn end_intervals(&mut self) {
        let interval = self.intervals.ended;
        for device in self.devices.values_mut() {
            device.held.pass_to(interval, device.now.ordinal);
        }
    }

    fn find(&mut self, index: DeviceIndex, start: TotalsSample) {
        self.intervals.start(start.time);
        let (follows, interval) = (self.follows, self.intervals.ended);
        self.devices
            .entry(index)
            .or_insert_with(|| DeviceAttribution::new(start, follows, interval));
    }

    fn memory(&mut self, event: &MemoryEvent, change: &Change, ledger: &Ledger) {
        let Some((index, after)) = counted_moment(event, change, ledger) else {
            return;
        };
        if !self.devices.contains_key(&index) {
            self.find(index, after.before(event));
        }
        if let Some(device) = self.devices.get_mut(&index) {
            device.pass(event.time);
        }
        self.ordinal += 1;
        let mut allocated = None;
        match change {
            Change::Allocated {
                block,
                is_tracked,
                replaced,
            } => {
                for ended in replaced {
                    self.remove_block(*ended, ledger);
                }
                self.alloc(*block, event.tid, *is_tracked, ledger);
                allocated = Some(event.size);
            }
            Change::Held(Some(id)) => self.hold(*id),
            Change::Freed(Freed::Known(id)) => self.free(*id, event.tid, ledger),
            Change::Freed(Freed::BeforeAttach(Some(id))) => self.remove_block(*id, ledger),
            _ => {}
        }
        let device = self.devices.get_mut(&index);
        if let Some(device) = device.filter(|_| event.action != Action::Held) {
            self.is_peak = device.report(after, self.ordinal);
            if self.intervals.record(index, &device.now, allocated) {
                device.held.reach(self.ordinal);
            }
        }
    }

    fn alloc(&mut self, id: BlockId, tid: Tid, is_tracked: bool, ledger: &Ledger) {
        let block = ledger.block(id);
        let traits = self.stack_properties.get(block.stack).copied();
        let traits = traits.unwrap_or_default();
        let asked = self
            .phases
            .on_allocation(tid, traits.classified, traits.grad, traits.in_node);
        if let Some(turn) = asked.transition {
            self.turn(turn, ledger);
            if turn.began.is_of_backward() && !turn.ended.is_of_backward() {
                let is_known = block.stack != StackRef::UNKNOWN;
                let site = is_known.then(|| ledger.site(block.stack, Grouping::User));
                self.intervals.begin_backward(site);
            }
        }
        if self.line.is_some() {
            let is_main = ledger.target.tgid.is_some_and(|tgid| tgid.0 == tid.0);
            let allocation = LineAllocation {
                tid,
                role: if is_main {
                    ThreadRole::Main
                } else {
                    ThreadRole::Other
                },
                stack: block.stack,
                at_line: traits.at_line,
                block: is_tracked.then_some(id),
                purpose: block.purpose,
            };
            self.intervals.ask(allocation, now(&self.devices));
            self.end_intervals();
        }
        let ClassifiedPhase { phase, .. } = asked.classified;
        self.intervals.pass(phase);
        if phase.is_of_backward() {
            self.pass_tail.allocate();
        }
        let made = match (traits.builds, asked.is_for_next_pass) {
            (true, _) => AllocationOrigin::AsParameter,
            (false, true) => AllocationOrigin::ForNextPass,
            (false, false) => AllocationOrigin::Anyhow,
        };
        let mut life = Lifecycle {
            born: self.ordinal,
            origin: traits.origin,
            phase,
            rule: CategoryRule::NothingTells,
            state: BlockState::Settled,
            tensor_info: TensorInfo::of(block.purpose),
        };
        let call = self
            .caches
            .allocate(tid, phase, traits.origin, content(id, ledger));
        match self.at_once(block.purpose, traits, ledger) {
            Some(rule) => life.rule = rule,
            None => {
                life.state = BlockState::of(phase, &self.phases, made);
                let likely = self.likely(traits.origin, life.state);
                life.rule = life.tensor_info.read(likely, self.coverage.tensors);
            }
        }
        if let Some(making) = &mut self.making {
            making.make(id, &life, self.intervals.ended, ledger);
        }
        let Some(device) = self.devices.get_mut(&block.device) else {
            return;
        };
        device.count(asked.classified, block.size);
        if is_tracked {
            device.hold(&life, block.size.0, asked.classified);
            self.blocks.insert(id, life);
            self.blocks.set_call(id, call);
        }
    }

    fn at_once(
        &mut self,
        id: PurposeId,
        traits: StackProperties,
        ledger: &Ledger,
    ) -> Option<CategoryRule> {
        self.coverage.tensors |= id != PurposeId::NONE;
        if let Some(BlockPurpose::Other(purpose)) = ledger.purpose(id).map(|purpose| &**purpose)
            && is_workspace(purpose)
        {
            return Some(match purpose.what {
                Some(_) => CategoryRule::NamedUse,
                None => CategoryRule::NoTensor,
            });
        }
        let is_tensor = id != PurposeId::NO_TENSOR;
        (traits.accumulates && is_tensor).then_some(CategoryRule::Accumulated)
    }

    fn hold(&mut self, id: BlockId) {
        let life = Lifecycle {
            born: self.ordinal,
            origin: 0,
            phase: Phase::Other,
            rule: CategoryRule::NothingTells,
            state: BlockState::BeforeAttach,
            tensor_info: TensorInfo::Tensor,
        };
        self.blocks.insert(id, life);
    }

    fn free(&mut self, id: BlockId, tid: Tid, ledger: &Ledger) {
        if let Some(mut life) = self.blocks.get(id) {
            let bytes = content(id, ledger);
            self.caches
                .free(tid, self.blocks.call(id), life.origin, bytes);
            let traits = self.stack_properties.get(ledger.block(id).stack);
            let is_result = traits.is_some_and(|traits| !traits.is_root_gradient());
            if life.state == BlockState::Backward
                && is_result
                && let Some(turn) = self.phases.on_free_after_backward(tid)
            {
                self.turn(turn, ledger);
                life = self.blocks.get(id).unwrap_or(life);
            }
            if let Some(rule) = self.at_free(id, &life, tid, ledger) {
                self.settle(id, &life, rule, ledger);
            }
            self.remove_block(id, ledger);
        }
    }

    /// Rule of a block that is freed now; `None` if already decided.
    fn at_free(
        &mut self,
        id: BlockId,
        block: &Lifecycle,
        tid: Tid,
        ledger: &Ledger,
    ) -> Option<CategoryRule> {
        let rule = block.state.at_free(&self.phases, tid)?;
        let LiveBlock { device, size, .. } = *ledger.block(id);
        // The free directly follows the allocation, so nothing was computed from it.
        let at_once = self.ordinal == block.born.saturating_add(1);
        Some(match rule {
            CategoryRule::WithinBackward
                if device == DeviceIndex::CPU && self.phases.is_in_own_backward(tid) =>
            {
                self.pass_tail.free(block.origin, size.0)
            }
            CategoryRule::WithinBackward if at_once && !self.coverage.tensors => {
                CategoryRule::FreedAtOnce
            }
            CategoryRule::GivenToForward if self.learned(block.origin).is_long_lived() => {
                CategoryRule::LikeLongLived
            }
            rule => rule,
        })
    }

    /// Removes a block. If its free was missed, it keeps its current rule.
    fn remove_block(&mut self, id: BlockId, ledger: &Ledger) {
        if let Some(making) = &mut self.making {
            making.release(id);
        }
        self.intervals.line_visits.release(id);
        let Some(life) = self.blocks.take(id) else {
            return;
        };
        let block = ledger.block(id);
        if life.state != BlockState::BeforeAttach
            && let Some(device) = self.devices.get_mut(&block.device)
        {
            device.release(&life, block.size.0);
            self.ended = Some(life.rule);
        }
    }

    fn settle(&mut self, id: BlockId, life: &Lifecycle, rule: CategoryRule, ledger: &Ledger) {
        let rule = if self.phases.is_concurrent && rule.goes_by_passes() {
            CategoryRule::Crowded
        } else {
            rule
        };
        let rule = life.tensor_info.read(rule, self.coverage.tensors);
        self.revise(id, life, rule, ledger);
        self.blocks.settle(id, rule);
        if life.tensor_info == TensorInfo::Tensor || !self.coverage.tensors {
            self.learn(life.origin, rule);
        }
    }

    fn promote(&mut self, id: BlockId, life: &Lifecycle, state: BlockState, ledger: &Ledger) {
        let likely = match state {
            BlockState::SurvivingInput { .. } => self.likely(life.origin, state),
            _ => state.likely(),
        };
        let rule = life.tensor_info.read(likely, self.coverage.tensors);
        self.revise(id, life, rule, ledger);
        let life = Lifecycle {
            rule,
            state,
            ..*life
        };
        self.blocks.insert(id, life);
    }

    fn revise(&mut self, id: BlockId, life: &Lifecycle, rule: CategoryRule, ledger: &Ledger) {
        let oldest = self.intervals.oldest_open();
        if let Some((index, revision)) = self.revise_since(oldest, id, life, rule, ledger) {
            self.intervals.revise(index, revision);
        }
    }

    /// Changes the rule of a block everywhere but at the peaks of step intervals: its stacks have the new rule in those
    /// from number `oldest` on. Returns the change for [`StepIntervals`], unless the block has this rule.
    pub(super) fn revise_since(
        &mut self,
        oldest: u64,
        id: BlockId,
        life: &Lifecycle,
        rule: CategoryRule,
        ledger: &Ledger,
    ) -> Option<(DeviceIndex, Revision)> {
        if rule == life.rule {
            return None;
        }
        if let Some(making) = &mut self.making {
            making.revise(id, life, rule.category(), ledger);
        }
        let block = ledger.block(id);
        let revision = Revision {
            born: life.born,
            size: block.size.0,
            from: life.rule,
            to: rule,
        };
        if let Some(device) = self.devices.get_mut(&block.device) {
            device.revise(life, revision, oldest);
        }
        Some((block.device, revision))
    }

    /// Handles a phase transition, which decides the category of many blocks.
    fn turn(&mut self, turn: PhaseTransition, ledger: &Ledger) {
        self.intervals.turn(turn, now(&self.devices));
        self.end_intervals();
        let PhaseTransition { ended, began } = turn;
        if matches!(began, Phase::Forward | Phase::Evaluation) {
            self.recent_passes.begin(self.ordinal);
        }
        if ended.is_of_backward() && !began.is_of_backward() {
            self.settle_survivors_of_backward(ledger);
            self.settle_all(Queue::Recompute, CategoryRule::OutlivesRecompute, ledger);
            self.settle_all(Queue::Step, CategoryRule::OutlivesStep, ledger);
        }
        match ended {
            Phase::OptimizerStep => {
                self.settle_all(Queue::Step, CategoryRule::OutlivesStep, ledger)
            }
            Phase::Evaluation => {
                for (id, life) in self.blocks.drain(Queue::Evaluation) {
                    let rule = if self.caches.has(life.origin) {
                        CategoryRule::KeptForNextCall
                    } else {
                        CategoryRule::OutlivesEvaluation
                    };
                    self.settle(id, &life, rule, ledger);
                }
            }
            _ => {}
        }
        match began {
            Phase::Other | Phase::DataLoading => return,
            Phase::Forward | Phase::Evaluation => {
                self.settle_all(Queue::Loading, CategoryRule::Loaded, ledger);
                self.settle_old(Queue::Carried, CategoryRule::LongLived, ledger);
            }
            Phase::Backward | Phase::Recompute if !ended.is_of_backward() => self.save(ledger),
            Phase::Backward | Phase::Recompute => {}
            Phase::OptimizerStep => {
                self.settle_old(Queue::Saved, CategoryRule::OutlivesItsPass, ledger);
            }
        }
        self.leave_outside(began, ledger);
    }

    /// Decides the blocks that outlived a backward pass: they are gradients. Without tensor information some
    /// are workspaces (autograd threads have their own for cuBLAS). Then only blocks with the size of a
    /// parameter count.
    fn settle_survivors_of_backward(&mut self, ledger: &Ledger) {
        let survivors = self.blocks.drain(Queue::Backward);
        self.pass_tail.end(survivors.len());
        let sizes = (!self.coverage.tensors && !survivors.is_empty())
            .then(|| self.blocks.sizes_of_parameters(ledger));
        for (id, life) in survivors {
            let block = ledger.block(id);
            let rule = match &sizes {
                Some(sizes) if !sizes.contains(&(block.device, block.size.0)) => {
                    CategoryRule::LikeNoParameter
                }
                _ => CategoryRule::OutlivesBackward,
            };
            self.settle(id, &life, rule, ledger);
        }
    }

    fn settle_all(&mut self, queue: Queue, rule: CategoryRule, ledger: &Ledger) {
        for (id, life) in self.blocks.drain(queue) {
            self.settle(id, &life, rule, ledger);
        }
    }

    /// Marks live blocks of the forward pass as saved when a backward pass begins.
    fn save(&mut self, ledger: &Ledger) {
        if self.phases.steps == 0 && self.devices.contains_key(&DeviceIndex::CPU) {
            let parameters = self.blocks.parameters(DeviceIndex::CPU, ledger);
            self.pass_tail.begin(parameters);
        }
        let step = ShortCount::of(self.phases.steps);
        for (id, life) in self.blocks.drain(Queue::Forward) {
            self.promote(id, &life, BlockState::Saved { step }, ledger);
        }
    }

    /// Settles the blocks of a queue that were live for too many steps or passes.
    fn settle_old(&mut self, queue: Queue, rule: CategoryRule, ledger: &Ledger) {
        for (id, life) in self.blocks.drain(queue) {
            if life.state.is_too_old(&self.phases) {
                self.settle(id, &life, rule, ledger)
            } else {
                self.blocks.insert(id, life)
            }
        }
    }

    /// Settles, at a new phase, blocks allocated outside all phases.
    fn leave_outside(&mut self, began: Phase, ledger: &Ledger) {
        let runs = matches!(began, Phase::Forward | Phase::Evaluation);
        let run = ShortCount::of(self.phases.runs);
        for (id, life) in self.blocks.drain(Queue::Outside) {
            match life.state {
                BlockState::Built => {
                    let traits = self.stack_properties.get(ledger.block(id).stack);
                    let rule = match traits.is_some_and(|traits| traits.builds_buffer) {
                        true => CategoryRule::BuiltBuffer,
                        false => CategoryRule::Built,
                    };
                    self.settle(id, &life, rule, ledger);
                }
                BlockState::InputCandidate if runs => {
                    self.promote(id, &life, BlockState::SurvivingInput { run }, ledger)
                }
                BlockState::InputCandidate => self.blocks.insert(id, life),
                _ => self.settle(id, &life, CategoryRule::NothingTells, ledger),
            }
        }
    }
}

impl Analysis for AttributionLedger {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        (self.ended, self.is_peak) = (None, false);
        match event {
            Event::Stack(..) => {
                if let Change::Stack(stack) = change {
                    self.define(*stack, ledger);
                }
            }
            Event::PhaseMark(mark) => self.mark(mark, ledger),
            Event::AtAttach(_) => {
                if let Some((index, totals)) = ledger.moment(event) {
                    self.find(index, totals);
                }
            }
            Event::Memory(event) => self.memory(event, change, ledger),
            Event::BlockLabels(names) => self.name(names, ledger),
            Event::BaselineLabels(names) => self.name_baseline(names, ledger),
            Event::BlockPurpose(..)
            | Event::Thread(..)
            | Event::Segments(_)
            | Event::Driver(_)
            | Event::Loss(_)
            | Event::Capture(_) => {}
        }
    }
}

/// Device of an event that has a number of its own, and its state after it.
pub(super) fn counted_moment(
    event: &MemoryEvent,
    change: &Change,
    ledger: &Ledger,
) -> Option<(DeviceIndex, TotalsSample)> {
    let moment = (event.device?, ledger.moment_of(event)?);
    (*change != Change::Malformed).then_some(moment)
}

/// Bytes of the tensor in a block, or of the block if they are unknown.
fn content(id: BlockId, ledger: &Ledger) -> u64 {
    let block = ledger.block(id);
    let tensor = ledger.purpose(block.purpose);
    let requested = tensor.and_then(|purpose| purpose.tensor()?.requested);
    requested.unwrap_or(block.size).0
}

fn now(devices: &BTreeMap<DeviceIndex, DeviceAttribution>) -> Now<'_> {
    let all = devices.iter();
    Now(all.map(|(index, device)| (*index, &device.now)).collect())
}

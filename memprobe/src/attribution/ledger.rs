//! Attribution ledger: the category of each block, updated by every event.
//!
//! It follows the block tracking of [`crate::ledger::Model`]: a block is live here as long as it is live
//! there. After every event each device satisfies `allocated == sum of all categories + before attach +
//! unaccounted`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::category::{Category, CategoryRule, accumulates, builds, is_workspace};
use super::device::{Device, StackHistory};
use super::iterations::{IterationLine, Iterations};
use super::lifecycle::{AllocationOrigin, Block, BlockState, Blocks, Key, Queue, TensorInfo};
use super::module_aliases::ModuleAliases;
use super::moments::Revision;
use super::named::InferenceCheck;
use super::phase::{ClassifiedPhase, Phase, PhaseRule, phase_of};
use super::phase_tracker::{PhaseTracker, PhaseTransition};
use super::size::AllocationCounts;
use super::step_interval::{Now, StepIntervals};
use super::view::{Coverage, CoverageStart, DeviceView};
use crate::event::{
    Action, Address, AtAttach, BlockPurpose, BlockPurposes, Bytes, DeviceIndex, Event, Grad,
    MemoryEvent, NoStack, Node, PhaseMark, PurposeId, Stack, StackId, StackKind, TimeNs,
};
use crate::ledger::applied::{Applied, Freed};
use crate::ledger::device::are_plausible;
use crate::ledger::snapshot::Grouping;
use crate::ledger::{Model, grouping};

/// Cap on stacks told apart; later ones share an entry without information.
const MOST_STACKS: usize = 1 << 18;

/// Operations stored for one stack.
const MOST_OPERATIONS: usize = 16;

/// Properties of a stack.
#[derive(Clone, Copy, Debug)]
struct StackProperties {
    origin: u32,
    classified: ClassifiedPhase,
    grad: Grad,
    in_node: bool,
    builds: bool,
    accumulates: bool,
    at_line: bool,
}

/// Properties of an unknown stack.
const NO_PROPERTIES: StackProperties = StackProperties {
    origin: 0,
    classified: ClassifiedPhase {
        phase: Phase::Other,
        rule: PhaseRule::NoStack,
    },
    grad: Grad::Unknown,
    in_node: false,
    builds: false,
    accumulates: false,
    at_line: false,
};

/// Category of each live block, with totals by device, phase and iteration.
#[derive(Debug)]
pub struct AttributionLedger {
    line: Option<IterationLine>,
    phases: PhaseTracker,
    intervals: StepIntervals,
    uses: BlockPurposes,
    stack_properties: HashMap<StackId, StackProperties>,
    pub(super) origins: Vec<Arc<Stack>>,
    by_stack: HashMap<Arc<Stack>, u32>,
    /// Category of the last decided block of each stack.
    pub(super) learned: HashMap<u32, Category>,
    pub(super) operations: HashMap<Arc<Stack>, BTreeSet<Arc<str>>>,
    pub(super) blocks: Blocks,
    pub(super) devices: BTreeMap<DeviceIndex, Device>,
    pub(super) check: InferenceCheck,
    /// Time of the last heap snapshot.
    pub(super) read: Option<TimeNs>,
    pub(super) follows: StackHistory,
    pub(super) module_aliases: ModuleAliases,
    /// Indices of stacks that represent the module holding a block, by a heap snapshot.
    pub(super) in_modules: HashSet<u32>,
    /// Allocations by stack and kind, with [`Self::with_sizes`].
    pub(super) making: Option<AllocationCounts>,
    pub(super) ordinal: u64,
    since: CoverageStart,
    coverage: Coverage,
    ended: Option<CategoryRule>,
}

impl AttributionLedger {
    /// Empty ledger. Iterations begin at `line`, if given.
    pub fn new(line: Option<IterationLine>) -> Self {
        let nobody = Arc::new(Stack {
            kind: StackKind::Unknown {
                thread: "".into(),
                reason: NoStack::Lost,
            },
            frames: Vec::new(),
            truncated: false,
            context: Default::default(),
        });
        Self {
            intervals: StepIntervals::new(line.is_some()),
            line,
            phases: PhaseTracker::default(),
            uses: BlockPurposes::default(),
            stack_properties: HashMap::new(),
            by_stack: HashMap::from([(Arc::clone(&nobody), 0)]),
            origins: vec![nobody],
            learned: HashMap::new(),
            operations: HashMap::new(),
            blocks: Blocks::default(),
            devices: BTreeMap::new(),
            check: InferenceCheck::default(),
            read: None,
            follows: StackHistory::Saved,
            module_aliases: ModuleAliases::default(),
            in_modules: HashSet::new(),
            making: None,
            ordinal: 0,
            since: CoverageStart::default(),
            coverage: Coverage::default(),
            ended: None,
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

    /// Starts from the current state of a model; `uses` resolves the shape ids of events. Live blocks count
    /// as allocated before: their category depends on phases that the ledger has not seen.
    pub fn with_known(mut self, model: &Model, uses: &BlockPurposes, now: TimeNs) -> Self {
        self.uses = uses.clone();
        for (id, stack) in model.stacks() {
            self.define(id, stack);
        }
        for (index, moment) in model.moments(now) {
            self.since = CoverageStart::Opening;
            self.intervals.start(now);
            let device = Device::late(&moment, self.follows, self.intervals.ended());
            self.devices.insert(index, device);
        }
        for block in model.live_blocks() {
            self.hold(block.device, block.addr, block.size);
        }
        self
    }

    /// Applies an event and the model's result for it.
    pub fn apply(&mut self, event: &Event, applied: &Applied) {
        self.ended = None;
        match event {
            Event::Stack(id, stack) => self.define(*id, stack),
            Event::BlockPurpose(id, is) => self.uses.define(*id, is),
            Event::PhaseMark(mark) => self.mark(mark),
            Event::AtAttach(found) => self.find(found),
            Event::Memory(event) => self.memory(event, applied),
            Event::BlockLabels(names) => self.name(names),
            Event::Thread(..) | Event::Loss(_) => {}
        }
    }

    /// Table of all iterations so far.
    pub fn iterations(&self) -> Iterations {
        Iterations::of(&self.intervals)
    }

    /// Last `most` rows of that table.
    pub fn latest_iterations(&self, most: usize) -> Iterations {
        Iterations::latest(&self.intervals, most)
    }

    /// Current phase, set by the last mark or deciding allocation.
    pub fn phase(&self) -> Phase {
        self.phases.phase()
    }

    /// Devices seen so far.
    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> {
        self.devices.keys().copied()
    }

    /// Step intervals ended so far. If an event increases it, the interval ended before that event, and an
    /// iteration may have too.
    pub fn intervals_ended(&self) -> u64 {
        self.intervals.ended()
    }

    pub fn device(&self, index: DeviceIndex) -> Option<DeviceView<'_>> {
        let device = self.devices.get(&index)?;
        Some(DeviceView::new(self, device))
    }

    /// Current rule of a live block; `None` if it is not live or from before attach.
    pub fn rule_of(&self, index: DeviceIndex, addr: Address) -> Option<CategoryRule> {
        let block = self.blocks.get(&(index, addr))?;
        (block.state != BlockState::BeforeAttach).then_some(block.rule)
    }

    /// Rule of the block freed by the last event; `None` without one, or if it was from before attach.
    pub fn ended(&self) -> Option<CategoryRule> {
        self.ended
    }

    /// Start of the ledger's data.
    pub fn since(&self) -> CoverageStart {
        self.since
    }

    /// Gaps and limits of the data, for notes under tables.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            concurrent_training: self.phases.is_concurrent(),
            threads_forgotten: self
                .phases
                .forgotten()
                .saturating_add(self.intervals.forgotten()),
            marks_without_place: self.intervals.unnamed(),
            ..self.coverage
        }
    }

    fn define(&mut self, id: StackId, stack: &Arc<Stack>) {
        if self.stack_properties.len() >= MOST_STACKS && !self.stack_properties.contains_key(&id) {
            self.coverage.stacks_left_out = self.coverage.stacks_left_out.saturating_add(1);
            return;
        }
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
            origin: self.origin(stack),
            classified: phase_of(stack),
            grad: context.grad,
            in_node: context.node.is_some(),
            builds: builds(stack),
            accumulates: accumulates(stack),
            at_line,
        };
        self.stack_properties.insert(id, traits);
    }

    /// Records that the node's operation ran on the stack that created the node.
    fn name_operation(&mut self, node: &Node) {
        let Some(forward) = &node.forward else { return };
        let is_known = self.operations.contains_key(forward);
        if is_known || self.operations.len() < MOST_STACKS {
            let names = self.operations.entry(Arc::clone(forward)).or_default();
            if names.contains(&node.name) {
                return;
            }
            if names.len() < MOST_OPERATIONS {
                names.insert(Arc::clone(&node.name));
                return;
            }
        }
        self.coverage.operations_left_out = self.coverage.operations_left_out.saturating_add(1);
    }

    pub(super) fn origin(&mut self, stack: &Arc<Stack>) -> u32 {
        if let Some(origin) = self.by_stack.get(stack) {
            return *origin;
        }
        let next = self.origins.len();
        match u32::try_from(next) {
            Ok(origin) if next <= MOST_STACKS => {
                self.origins.push(Arc::clone(stack));
                self.by_stack.insert(Arc::clone(stack), origin);
                origin
            }
            _ => {
                self.coverage.stacks_left_out = self.coverage.stacks_left_out.saturating_add(1);
                0
            }
        }
    }

    fn mark(&mut self, mark: &PhaseMark) {
        self.coverage.marks = true;
        if let Some(turn) = self.phases.mark(mark) {
            self.turn(turn);
        }
        let traits = self.stack_properties.get(&mark.stack);
        let stack = traits.and_then(|traits| self.origins.get(traits.origin as usize));
        let site = stack.map(|stack| grouping::site(stack, Grouping::User));
        self.intervals.mark(mark, site.as_ref(), now(&self.devices));
        self.end_intervals();
    }

    /// Stores the peaks of ended step intervals on each device.
    fn end_intervals(&mut self) {
        let interval = self.intervals.ended();
        for device in self.devices.values_mut() {
            device.held.pass_to(interval, device.now.ordinal);
        }
    }

    fn find(&mut self, found: &AtAttach) {
        let Some(index) = found.device else { return };
        let (follows, interval) = (self.follows, self.intervals.ended());
        if are_plausible(found.totals) && are_plausible(found.peak) {
            self.intervals.start(found.time);
            self.devices
                .entry(index)
                .or_insert_with(|| Device::found(found, follows, interval));
        }
    }

    fn memory(&mut self, event: &MemoryEvent, applied: &Applied) {
        let Some(index) = event.device else { return };
        if matches!(
            applied,
            Applied::Noted | Applied::Malformed | Applied::Segment | Applied::Cuda
        ) {
            return;
        }
        if !self.devices.contains_key(&index) {
            self.intervals.start(event.time);
            let device = Device::before(event, self.follows, self.intervals.ended());
            self.devices.insert(index, device);
        }
        if let Some(device) = self.devices.get_mut(&index) {
            device.pass(event.time);
        }
        self.ordinal += 1;
        let allocated = match applied {
            Applied::Alloc {
                replaced,
                is_tracked,
            } => {
                for ended in replaced {
                    self.remove_block(index, (index, ended.addr));
                }
                self.alloc(index, event, *is_tracked);
                Some(event.size)
            }
            Applied::Held { is_tracked: true } => {
                self.hold(index, event.addr, event.size);
                None
            }
            Applied::Free(freed) => {
                self.free(index, event, *freed);
                None
            }
            _ => None,
        };
        let device = self.devices.get_mut(&index);
        if let Some(device) = device.filter(|_| event.action != Action::Held) {
            device.report(event, self.ordinal);
            if self.intervals.record(index, &device.now, allocated) {
                device.held.reach(self.ordinal);
            }
        }
    }

    fn alloc(&mut self, index: DeviceIndex, event: &MemoryEvent, is_tracked: bool) {
        let traits = *self
            .stack_properties
            .get(&event.stack)
            .unwrap_or(&NO_PROPERTIES);
        let asked =
            self.phases
                .on_allocation(event.tid, traits.classified, traits.grad, traits.in_node);
        if let Some(turn) = asked.transition {
            self.turn(turn);
        }
        if self.line.is_some() {
            self.intervals
                .ask(event.tid, traits.at_line, now(&self.devices));
            self.end_intervals();
        }
        let ClassifiedPhase { phase, .. } = asked.classified;
        self.intervals.pass(phase);
        let made = match (traits.builds, asked.is_for_next_pass) {
            (true, _) => AllocationOrigin::AsParameter,
            (false, true) => AllocationOrigin::ForNextPass,
            (false, false) => AllocationOrigin::Anyhow,
        };
        let mut block = Block {
            size: event.size.0,
            born: self.ordinal,
            origin: traits.origin,
            phase,
            rule: CategoryRule::NothingTells,
            state: BlockState::Settled,
            tensor_info: match event.shape {
                PurposeId::NO_TENSOR => TensorInfo::NoTensor,
                _ => TensorInfo::Tensor,
            },
        };
        match self.at_once(event.shape, traits) {
            Some(rule) => block.rule = rule,
            None => {
                block.state = BlockState::of(phase, &self.phases, made);
                let learned = self.learned.get(&traits.origin);
                let likely = match learned {
                    Some(category) => CategoryRule::as_before(*category),
                    None => block.state.likely(),
                };
                block.rule = block.tensor_info.read(likely);
            }
        }
        if let Some(making) = &mut self.making {
            let tensor = self.uses.get(event.shape).and_then(|is| is.tensor());
            let bytes = tensor.and_then(|tensor| tensor.requested);
            let interval = self.intervals.ended();
            making.make(
                (index, event.addr),
                &block,
                bytes.map(|bytes| bytes.0),
                interval,
            );
        }
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        device.count(asked.classified, event.size);
        if is_tracked {
            device.hold(&block, asked.classified);
            self.blocks.insert((index, event.addr), block);
        }
    }

    /// Category known at allocation.
    fn at_once(&mut self, shape: PurposeId, traits: StackProperties) -> Option<CategoryRule> {
        self.coverage.tensors |= shape != PurposeId::NONE;
        if let Some(BlockPurpose::Other(purpose)) = self.uses.get(shape).map(|is| &**is)
            && is_workspace(purpose)
        {
            return Some(match purpose.what {
                Some(_) => CategoryRule::NamedUse,
                None => CategoryRule::NoTensor,
            });
        }
        let is_tensor = shape != PurposeId::NO_TENSOR;
        (traits.accumulates && is_tensor).then_some(CategoryRule::Accumulated)
    }

    fn hold(&mut self, index: DeviceIndex, addr: Address, size: Bytes) {
        let block = Block {
            size: size.0,
            born: self.ordinal,
            origin: 0,
            phase: Phase::Other,
            rule: CategoryRule::NothingTells,
            state: BlockState::BeforeAttach,
            tensor_info: TensorInfo::Tensor,
        };
        self.blocks.insert((index, addr), block);
    }

    fn free(&mut self, index: DeviceIndex, event: &MemoryEvent, freed: Freed) {
        let key = (index, event.addr);
        match freed {
            Freed::Known { .. } => {
                if let Some(block) = self.blocks.get(&key) {
                    if let Some(rule) = self.at_free(&block, event) {
                        self.settle(key, &block, rule);
                    }
                    self.remove_block(index, key);
                }
            }
            Freed::BeforeAttach => {
                if self.blocks.get(&key).is_some() {
                    self.remove_block(index, key);
                } else if let Some(device) = self.devices.get_mut(&index) {
                    device.free_from_before(event.size.0);
                }
            }
            Freed::Unknown => {}
        }
    }

    /// Rule of a block that is freed now; `None` if already decided.
    fn at_free(&self, block: &Block, event: &MemoryEvent) -> Option<CategoryRule> {
        let rule = block.state.at_free(&self.phases, event.tid)?;
        // The free directly follows the allocation, so nothing was computed from it.
        let at_once = self.ordinal == block.born.saturating_add(1);
        Some(match rule {
            CategoryRule::WithinBackward if at_once && !self.coverage.tensors => {
                CategoryRule::FreedAtOnce
            }
            rule => rule,
        })
    }

    /// Removes a block. If its free was missed, it keeps its current rule.
    fn remove_block(&mut self, index: DeviceIndex, key: Key) {
        if let Some(making) = &mut self.making {
            making.release(&key);
        }
        let block = self.blocks.take(&key);
        let device = self.devices.get_mut(&index);
        let (Some(block), Some(device)) = (block, device) else {
            // Not tracked here.
            return;
        };
        match block.state {
            BlockState::BeforeAttach => device.free_from_before(block.size),
            _ => {
                device.release(&block);
                self.ended = Some(block.rule);
            }
        }
    }

    /// Decides the category of a live block.
    fn settle(&mut self, key: Key, block: &Block, rule: CategoryRule) {
        let rule = match self.phases.is_concurrent() && rule.goes_by_passes() {
            true => CategoryRule::Crowded,
            false => rule,
        };
        let rule = block.tensor_info.read(rule);
        self.revise(key, block, rule);
        self.blocks.settle(&key, rule);
        if block.origin != 0 && block.tensor_info == TensorInfo::Tensor {
            self.learned.insert(block.origin, rule.category());
        }
    }

    /// Moves a block to another state.
    fn promote(&mut self, key: Key, block: &Block, stage: BlockState) {
        let rule = block.tensor_info.read(stage.likely());
        self.revise(key, block, rule);
        self.blocks.insert(
            key,
            Block {
                rule,
                state: stage,
                ..*block
            },
        );
    }

    pub(super) fn revise(&mut self, key: Key, block: &Block, rule: CategoryRule) {
        if rule == block.rule {
            return;
        }
        let (index, _) = key;
        if let Some(making) = &mut self.making {
            making.revise(key, block, rule.category());
        }
        let revision = Revision {
            born: block.born,
            size: block.size,
            from: block.rule,
            to: rule,
        };
        if let Some(device) = self.devices.get_mut(&index) {
            device.revise(block, revision, self.intervals.oldest_open());
        }
        self.intervals.revise(index, revision);
    }

    /// Handles a phase transition, which decides the category of many blocks.
    fn turn(&mut self, turn: PhaseTransition) {
        self.intervals.turn(turn, now(&self.devices));
        self.end_intervals();
        let PhaseTransition { ended, began } = turn;
        if ended.is_of_backward() && !began.is_of_backward() {
            self.settle_survivors_of_backward();
            self.settle_all(Queue::Recompute, CategoryRule::OutlivesRecompute);
            self.settle_all(Queue::Step, CategoryRule::OutlivesStep);
        }
        match ended {
            Phase::OptimizerStep => self.settle_all(Queue::Step, CategoryRule::OutlivesStep),
            Phase::Evaluation => {
                self.settle_all(Queue::Evaluation, CategoryRule::OutlivesEvaluation);
            }
            _ => {}
        }
        match began {
            Phase::Other | Phase::DataLoading => return,
            Phase::Forward | Phase::Evaluation => {
                self.settle_all(Queue::Loading, CategoryRule::Loaded);
                self.settle_old_inputs();
            }
            Phase::Backward | Phase::Recompute if !ended.is_of_backward() => self.save(),
            Phase::Backward | Phase::Recompute => {}
            Phase::OptimizerStep => self.drop_saved(),
        }
        self.leave_outside(began);
    }

    /// Decides the blocks that outlived a backward pass: they are gradients. Without tensor information some
    /// are workspaces (autograd threads have their own for cuBLAS). Then only blocks with the size of a
    /// parameter count.
    fn settle_survivors_of_backward(&mut self) {
        let survivors = self.blocks.drain(Queue::Backward);
        let sizes = (!self.coverage.tensors && !survivors.is_empty())
            .then(|| self.blocks.sizes_of_parameters());
        for (key, block) in survivors {
            let rule = match &sizes {
                Some(sizes) if !sizes.contains(&(key.0, block.size)) => {
                    CategoryRule::LikeNoParameter
                }
                _ => CategoryRule::OutlivesBackward,
            };
            self.settle(key, &block, rule);
        }
    }

    fn settle_all(&mut self, queue: Queue, rule: CategoryRule) {
        for (key, block) in self.blocks.drain(queue) {
            self.settle(key, &block, rule);
        }
    }

    /// Marks live blocks of the forward pass as saved when a backward pass begins.
    fn save(&mut self) {
        let step = self.phases.steps();
        for (key, block) in self.blocks.drain(Queue::Forward) {
            self.promote(key, &block, BlockState::Saved { step });
        }
    }

    /// Settles, at an optimizer step, blocks that stayed saved for too many steps.
    fn drop_saved(&mut self) {
        for (key, block) in self.blocks.drain(Queue::Saved) {
            match block.state.is_saved_too_long(&self.phases) {
                true => self.settle(key, &block, CategoryRule::OutlivesItsPass),
                false => self.blocks.insert(key, block),
            }
        }
    }

    /// Settles, at a new pass, input candidates that survived too many passes.
    fn settle_old_inputs(&mut self) {
        for (key, block) in self.blocks.drain(Queue::Carried) {
            match block.state.is_carried_too_long(&self.phases) {
                true => self.settle(key, &block, CategoryRule::LongLived),
                false => self.blocks.insert(key, block),
            }
        }
    }

    /// Settles, at a new phase, blocks allocated outside all phases.
    fn leave_outside(&mut self, began: Phase) {
        let runs = matches!(began, Phase::Forward | Phase::Evaluation);
        let run = self.phases.runs();
        for (key, block) in self.blocks.drain(Queue::Outside) {
            match block.state {
                BlockState::Built => self.settle(key, &block, CategoryRule::Built),
                BlockState::InputCandidate if runs => {
                    self.promote(key, &block, BlockState::SurvivingInput { run })
                }
                BlockState::InputCandidate => self.blocks.insert(key, block),
                _ => self.settle(key, &block, CategoryRule::NothingTells),
            }
        }
    }
}

fn now(devices: &BTreeMap<DeviceIndex, Device>) -> Now<'_> {
    let all = devices.iter();
    Now(all.map(|(index, device)| (*index, &device.now)).collect())
}

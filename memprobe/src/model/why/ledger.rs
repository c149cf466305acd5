//! Attribution ledger: the category of each block, updated by every event.
//!
//! It follows the block tracking of [`crate::model::Model`]: a block is live here as long as it is live
//! there. After every event each device satisfies `allocated == sum of all categories + before attach +
//! unaccounted`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::category::{Category, CategoryRule, accumulates, builds, is_workspace};
use super::course::{Course, Turn};
use super::device::{Device, Follows};
use super::fate::{Block, Blocks, Key, Made, MadeFor, Queue, Stage};
use super::iterations::{IterationLine, Iterations};
use super::laps::{Laps, Now};
use super::moments::Revision;
use super::named::Check;
use super::phase::{Judged, Phase, PhaseRule, phase_of};
use super::roots::Roots;
use super::size::Making;
use super::view::{DeviceView, Hearsay, Since};
use crate::event::{
    Action, Address, AtAttach, Bytes, DeviceIndex, Event, Grad, Mark, MemoryEvent, NoStack, Node,
    ShapeId, Stack, StackId, StackKind, TimeNs, Use, Uses,
};
use crate::model::applied::{Applied, Freed};
use crate::model::device::are_plausible;
use crate::model::snapshot::Grouping;
use crate::model::{Model, grouping};

/// Cap on stacks told apart; later ones share an entry without information.
const MOST_STACKS: usize = 1 << 18;

/// Operations stored for one stack.
const MOST_OPERATIONS: usize = 16;

/// Properties of a stack.
#[derive(Clone, Copy, Debug)]
struct Traits {
    origin: u32,
    told: Judged,
    grad: Grad,
    in_node: bool,
    builds: bool,
    accumulates: bool,
    at_line: bool,
}

/// Properties of an unknown stack.
const NO_TRAITS: Traits = Traits {
    origin: 0,
    told: Judged {
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
pub struct WhyLedger {
    line: Option<IterationLine>,
    course: Course,
    laps: Laps,
    uses: Uses,
    traits: HashMap<StackId, Traits>,
    pub(super) origins: Vec<Arc<Stack>>,
    by_stack: HashMap<Arc<Stack>, u32>,
    /// Category of the last decided block of each stack.
    pub(super) learned: HashMap<u32, Category>,
    pub(super) operations: HashMap<Arc<Stack>, BTreeSet<Arc<str>>>,
    pub(super) blocks: Blocks,
    pub(super) devices: BTreeMap<DeviceIndex, Device>,
    pub(super) check: Check,
    /// Time of the last heap snapshot.
    pub(super) read: Option<TimeNs>,
    pub(super) follows: Follows,
    pub(super) roots: Roots,
    /// Indices of stacks that represent the module holding a block, by a heap snapshot.
    pub(super) in_modules: HashSet<u32>,
    /// Allocations by stack and kind, with [`Self::with_sizes`].
    pub(super) making: Option<Making>,
    pub(super) ordinal: u64,
    since: Since,
    heard: Hearsay,
    ended: Option<CategoryRule>,
}

impl WhyLedger {
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
            laps: Laps::new(line.is_some()),
            line,
            course: Course::default(),
            uses: Uses::default(),
            traits: HashMap::new(),
            by_stack: HashMap::from([(Arc::clone(&nobody), 0)]),
            origins: vec![nobody],
            learned: HashMap::new(),
            operations: HashMap::new(),
            blocks: Blocks::default(),
            devices: BTreeMap::new(),
            check: Check::default(),
            read: None,
            follows: Follows::Saved,
            roots: Roots::default(),
            in_modules: HashSet::new(),
            making: None,
            ordinal: 0,
            since: Since::default(),
            heard: Hearsay::default(),
            ended: None,
        }
    }

    /// Also counts allocations, for [`Self::sizes`].
    pub fn with_sizes(self) -> Self {
        let making = Some(Making::default());
        Self { making, ..self }
    }

    /// Counts all blocks by stack, for [`Self::layering`] of any iteration.
    pub fn with_layers(self) -> Self {
        let follows = Follows::Everything;
        Self { follows, ..self }
    }

    /// Counts all blocks by stack, for [`Self::layering`] of the latest iterations in a session of any
    /// length.
    pub fn with_latest_layers(self) -> Self {
        let follows = Follows::Latest;
        Self { follows, ..self }
    }

    /// Starts from the current state of a model; `uses` resolves the shape ids of events. Live blocks count
    /// as allocated before: their category depends on phases that the ledger has not seen.
    pub fn with_known(mut self, model: &Model, uses: &Uses, now: TimeNs) -> Self {
        self.uses = uses.clone();
        for (id, stack) in model.stacks() {
            self.define(id, stack);
        }
        for (index, moment) in model.moments(now) {
            self.since = Since::Opening;
            self.laps.start(now);
            let device = Device::late(&moment, self.follows, self.laps.ended());
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
            Event::Use(id, is) => self.uses.define(*id, is),
            Event::Mark(mark) => self.mark(mark),
            Event::AtAttach(found) => self.find(found),
            Event::Memory(event) => self.memory(event, applied),
            Event::Names(names) => self.name(names),
            Event::Thread(..) | Event::Loss(_) => {}
        }
    }

    /// Table of all iterations so far.
    pub fn iterations(&self) -> Iterations {
        Iterations::of(&self.laps)
    }

    /// Last `most` rows of that table.
    pub fn latest_iterations(&self, most: usize) -> Iterations {
        Iterations::latest(&self.laps, most)
    }

    /// Current phase, set by the last mark or deciding allocation.
    pub fn phase(&self) -> Phase {
        self.course.phase()
    }

    /// Devices seen so far.
    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> {
        self.devices.keys().copied()
    }

    /// Step intervals ended so far. If an event increases it, the interval ended before that event, and an
    /// iteration may have too.
    pub fn laps_ended(&self) -> u64 {
        self.laps.ended()
    }

    pub fn device(&self, index: DeviceIndex) -> Option<DeviceView<'_>> {
        let device = self.devices.get(&index)?;
        Some(DeviceView::new(self, device))
    }

    /// Current rule of a live block; `None` if it is not live or from before attach.
    pub fn rule_of(&self, index: DeviceIndex, addr: Address) -> Option<CategoryRule> {
        let block = self.blocks.get(&(index, addr))?;
        (block.stage != Stage::BeforeAttach).then_some(block.rule)
    }

    /// Rule of the block freed by the last event; `None` without one, or if it was from before attach.
    pub fn ended(&self) -> Option<CategoryRule> {
        self.ended
    }

    /// Start of the ledger's data.
    pub fn since(&self) -> Since {
        self.since
    }

    /// Gaps and limits of the data, for notes under tables.
    pub fn heard(&self) -> Hearsay {
        Hearsay {
            crowded: self.course.is_crowded(),
            threads_forgotten: self
                .course
                .forgotten()
                .saturating_add(self.laps.forgotten()),
            marks_without_place: self.laps.unnamed(),
            ..self.heard
        }
    }

    fn define(&mut self, id: StackId, stack: &Arc<Stack>) {
        if self.traits.len() >= MOST_STACKS && !self.traits.contains_key(&id) {
            self.heard.stacks_left_out = self.heard.stacks_left_out.saturating_add(1);
            return;
        }
        let context = &stack.context;
        self.heard.grad |= context.grad != Grad::Unknown;
        if let Some(node) = &context.node {
            self.heard.nodes = true;
            self.name_operation(node);
        }
        let at_line = self.line.as_ref().is_some_and(|line| {
            let mut frames = stack.frames.iter();
            frames.any(|frame| line.is_at(&frame.file, frame.line))
        });
        let traits = Traits {
            origin: self.origin(stack),
            told: phase_of(stack),
            grad: context.grad,
            in_node: context.node.is_some(),
            builds: builds(stack),
            accumulates: accumulates(stack),
            at_line,
        };
        self.traits.insert(id, traits);
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
        self.heard.operations_left_out = self.heard.operations_left_out.saturating_add(1);
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
                self.heard.stacks_left_out = self.heard.stacks_left_out.saturating_add(1);
                0
            }
        }
    }

    fn mark(&mut self, mark: &Mark) {
        self.heard.marks = true;
        if let Some(turn) = self.course.mark(mark) {
            self.turn(turn);
        }
        let traits = self.traits.get(&mark.stack);
        let stack = traits.and_then(|traits| self.origins.get(traits.origin as usize));
        let site = stack.map(|stack| grouping::site(stack, Grouping::User));
        self.laps.mark(mark, site.as_ref(), now(&self.devices));
        self.pass_laps();
    }

    /// Stores the peaks of ended step intervals on each device.
    fn pass_laps(&mut self) {
        let lap = self.laps.ended();
        for device in self.devices.values_mut() {
            device.held.pass_to(lap, device.now.ordinal);
        }
    }

    fn find(&mut self, found: &AtAttach) {
        let Some(index) = found.device else { return };
        let (follows, lap) = (self.follows, self.laps.ended());
        if are_plausible(found.totals) && are_plausible(found.peak) {
            self.laps.start(found.time);
            self.devices
                .entry(index)
                .or_insert_with(|| Device::found(found, follows, lap));
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
            self.laps.start(event.time);
            let device = Device::before(event, self.follows, self.laps.ended());
            self.devices.insert(index, device);
        }
        if let Some(device) = self.devices.get_mut(&index) {
            device.pass(event.time);
        }
        self.ordinal += 1;
        let allocated = match applied {
            Applied::Alloc { replaced, kept } => {
                for ended in replaced {
                    self.miss(index, (index, ended.addr));
                }
                self.alloc(index, event, *kept);
                Some(event.size)
            }
            Applied::Held { kept: true } => {
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
            if self.laps.record(index, &device.now, allocated) {
                device.held.reach(self.ordinal);
            }
        }
    }

    fn alloc(&mut self, index: DeviceIndex, event: &MemoryEvent, kept: bool) {
        let traits = *self.traits.get(&event.stack).unwrap_or(&NO_TRAITS);
        let asked = self
            .course
            .ask(event.tid, traits.told, traits.grad, traits.in_node);
        if let Some(turn) = asked.turn {
            self.turn(turn);
        }
        if self.line.is_some() {
            self.laps.ask(event.tid, traits.at_line, now(&self.devices));
            self.pass_laps();
        }
        let Judged { phase, .. } = asked.judged;
        self.laps.pass(phase);
        let made = match (traits.builds, asked.is_for_next_pass) {
            (true, _) => Made::AsParameter,
            (false, true) => Made::ForNextPass,
            (false, false) => Made::Anyhow,
        };
        let mut block = Block {
            size: event.size.0,
            born: self.ordinal,
            origin: traits.origin,
            phase,
            rule: CategoryRule::NothingTells,
            stage: Stage::Settled,
            made_for: match event.shape {
                ShapeId::NO_TENSOR => MadeFor::NoTensor,
                _ => MadeFor::Tensor,
            },
        };
        match self.at_once(event.shape, traits) {
            Some(rule) => block.rule = rule,
            None => {
                block.stage = Stage::of(phase, &self.course, made);
                let learned = self.learned.get(&traits.origin);
                let likely = match learned {
                    Some(category) => CategoryRule::as_before(*category),
                    None => block.stage.likely(),
                };
                block.rule = block.made_for.read(likely);
            }
        }
        if let Some(making) = &mut self.making {
            let tensor = self.uses.get(event.shape).and_then(|is| is.shape());
            let bytes = tensor.and_then(|tensor| tensor.requested);
            let lap = self.laps.ended();
            making.make((index, event.addr), &block, bytes.map(|bytes| bytes.0), lap);
        }
        let Some(device) = self.devices.get_mut(&index) else {
            return;
        };
        device.count(asked.judged, event.size);
        if kept {
            device.hold(&block, asked.judged);
            self.blocks.insert((index, event.addr), block);
        }
    }

    /// Category known at allocation.
    fn at_once(&mut self, shape: ShapeId, traits: Traits) -> Option<CategoryRule> {
        self.heard.tensors |= shape != ShapeId::NONE;
        if let Some(Use::Other(purpose)) = self.uses.get(shape).map(|is| &**is)
            && is_workspace(purpose)
        {
            return Some(match purpose.what {
                Some(_) => CategoryRule::NamedUse,
                None => CategoryRule::NoTensor,
            });
        }
        let is_tensor = shape != ShapeId::NO_TENSOR;
        (traits.accumulates && is_tensor).then_some(CategoryRule::Accumulated)
    }

    fn hold(&mut self, index: DeviceIndex, addr: Address, size: Bytes) {
        let block = Block {
            size: size.0,
            born: self.ordinal,
            origin: 0,
            phase: Phase::Other,
            rule: CategoryRule::NothingTells,
            stage: Stage::BeforeAttach,
            made_for: MadeFor::Tensor,
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
                    self.miss(index, key);
                }
            }
            Freed::BeforeAttach => {
                if self.blocks.get(&key).is_some() {
                    self.miss(index, key);
                } else if let Some(device) = self.devices.get_mut(&index) {
                    device.free_from_before(event.size.0);
                }
            }
            Freed::Unknown => {}
        }
    }

    /// Rule of a block that is freed now; `None` if already decided.
    fn at_free(&self, block: &Block, event: &MemoryEvent) -> Option<CategoryRule> {
        let rule = block.stage.at_free(&self.course, event.tid)?;
        // The free directly follows the allocation, so nothing was computed from it.
        let at_once = self.ordinal == block.born.saturating_add(1);
        Some(match rule {
            CategoryRule::WithinBackward if at_once && !self.heard.tensors => {
                CategoryRule::FreedAtOnce
            }
            rule => rule,
        })
    }

    /// Removes a block. If its free was missed, it keeps its current rule.
    fn miss(&mut self, index: DeviceIndex, key: Key) {
        if let Some(making) = &mut self.making {
            making.release(&key);
        }
        let block = self.blocks.take(&key);
        let device = self.devices.get_mut(&index);
        let (Some(block), Some(device)) = (block, device) else {
            // Not tracked here.
            return;
        };
        match block.stage {
            Stage::BeforeAttach => device.free_from_before(block.size),
            _ => {
                device.release(&block);
                self.ended = Some(block.rule);
            }
        }
    }

    /// Decides the category of a live block.
    fn settle(&mut self, key: Key, block: &Block, rule: CategoryRule) {
        let rule = match self.course.is_crowded() && rule.goes_by_passes() {
            true => CategoryRule::Crowded,
            false => rule,
        };
        let rule = block.made_for.read(rule);
        self.revise(key, block, rule);
        self.blocks.settle(&key, rule);
        if block.origin != 0 && block.made_for == MadeFor::Tensor {
            self.learned.insert(block.origin, rule.category());
        }
    }

    /// Moves a block to another state.
    fn promote(&mut self, key: Key, block: &Block, stage: Stage) {
        let rule = block.made_for.read(stage.likely());
        self.revise(key, block, rule);
        self.blocks.insert(
            key,
            Block {
                rule,
                stage,
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
            device.revise(block, revision, self.laps.oldest_open());
        }
        self.laps.revise(index, revision);
    }

    /// Handles a phase transition, which decides the category of many blocks.
    fn turn(&mut self, turn: Turn) {
        self.laps.turn(turn, now(&self.devices));
        self.pass_laps();
        let Turn { ended, began } = turn;
        if ended.is_of_backward() && !began.is_of_backward() {
            self.settle_kept_by_backward();
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
                self.carry_on();
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
    fn settle_kept_by_backward(&mut self) {
        let kept = self.blocks.drain(Queue::Backward);
        let sizes =
            (!self.heard.tensors && !kept.is_empty()).then(|| self.blocks.sizes_of_parameters());
        for (key, block) in kept {
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
        let step = self.course.steps();
        for (key, block) in self.blocks.drain(Queue::Forward) {
            self.promote(key, &block, Stage::Saved { step });
        }
    }

    /// Settles, at an optimizer step, blocks that stayed saved for too many steps.
    fn drop_saved(&mut self) {
        for (key, block) in self.blocks.drain(Queue::Saved) {
            match block.stage.is_saved_too_long(&self.course) {
                true => self.settle(key, &block, CategoryRule::OutlivesItsPass),
                false => self.blocks.insert(key, block),
            }
        }
    }

    /// Settles, at a new pass, input candidates that survived too many passes.
    fn carry_on(&mut self) {
        for (key, block) in self.blocks.drain(Queue::Carried) {
            match block.stage.is_carried_too_long(&self.course) {
                true => self.settle(key, &block, CategoryRule::LongLived),
                false => self.blocks.insert(key, block),
            }
        }
    }

    /// Settles, at a new phase, blocks allocated outside all phases.
    fn leave_outside(&mut self, began: Phase) {
        let runs = matches!(began, Phase::Forward | Phase::Evaluation);
        let run = self.course.runs();
        for (key, block) in self.blocks.drain(Queue::Outside) {
            match block.stage {
                Stage::Built => self.settle(key, &block, CategoryRule::Built),
                Stage::Given if runs => self.promote(key, &block, Stage::Carried { run }),
                Stage::Given => self.blocks.insert(key, block),
                _ => self.settle(key, &block, CategoryRule::NothingTells),
            }
        }
    }
}

fn now(devices: &BTreeMap<DeviceIndex, Device>) -> Now<'_> {
    let all = devices.iter();
    Now(all.map(|(index, device)| (*index, &device.now)).collect())
}

//! Allocation groups: blocks of equal line, module, pass and tensor.
//!
//! Live blocks follow those of [`crate::ledger::Model`], so sums over groups equal its sums.

use std::collections::HashMap;
use std::sync::Arc;

use super::phase::{Phase, phase_of};
use crate::event::{
    Action, Address, BlockPurposes, Bytes, Context, DeviceIndex, Event, MemoryEvent, Module,
    NoStack, PurposeId, Stack, StackId,
};
use crate::ledger::applied::{Applied, Freed};
use crate::ledger::snapshot::{Grouping, PurposeInfo, Site};
use crate::ledger::{BlockOrigin, Model, grouping};

/// Cap on groups; the excess is one group per device.
const MOST_PARTS: usize = 1 << 18;

/// Cap on stacks with a stored origin; later ones count as unknown.
const MOST_STACKS: usize = 1 << 20;

/// Blocks that reports do not tell apart: equal origin and equal tensor type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllocationGroup {
    pub origin: Arc<AllocationSite>,
    /// Tensor type or other purpose.
    pub what: PurposeInfo,
}

/// Allocation site as far as reports tell it apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllocationSite {
    /// Source line.
    pub site: Site,
    /// Module scope.
    pub place: ModuleScope,
    /// Pass through the module.
    pub pass: Pass,
    /// Autograd node of a backward pass, such as `AddmmBackward0`, if known.
    pub node: Option<Arc<str>>,
}

/// Module that memory is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModuleScope {
    /// Module path; in a backward pass, the module whose forward operation is differentiated.
    Module(Arc<str>),
    /// No module was being called.
    Outside,
    /// A module of unknown path.
    Unknown,
    /// Backward pass through an operation whose module is unknown.
    BackwardUnknown,
    /// Beyond the cap.
    TooMany,
}

/// Kind of pass through the modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Forward, or outside modules.
    Forward,
    /// Recomputation within a backward pass (activation checkpointing).
    Recompute,
    Backward,
}

impl Pass {
    /// All passes, in table order.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Recompute, Self::Backward];

    /// Text for reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
        }
    }
}

/// Change of a group's blocks by an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Index of the group: [`AllocationGroups::part`].
    pub part: usize,
    pub size: Bytes,
    pub kind: ChangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// Became live.
    Added,
    /// Allocated, but beyond the model's cap on live blocks.
    NotTracked,
    /// Freed.
    Removed,
}

/// Groups of a process and its live blocks.
#[derive(Debug)]
pub(super) struct AllocationGroups {
    grouping: Grouping,
    uses: BlockPurposes,
    unknown: Arc<AllocationSite>,
    too_many: Arc<AllocationSite>,
    origins: HashMap<Arc<AllocationSite>, ()>,
    by_stack: HashMap<StackId, Arc<AllocationSite>>,
    parts: Vec<(DeviceIndex, AllocationGroup)>,
    by_key: HashMap<(DeviceIndex, AllocationGroup), usize>,
    /// `by_key` by the addresses of the two `Arc`s, because hashing a group hashes all its names. Each entry
    /// owns them, so the addresses stay valid.
    by_place: HashMap<(DeviceIndex, usize, usize), (usize, AllocationGroup)>,
    /// Group and bytes of each live block.
    live: HashMap<(DeviceIndex, Address), (usize, Bytes)>,
    knows_modules: bool,
}

impl AllocationGroups {
    pub(super) fn new(grouping: Grouping) -> Self {
        let nowhere = |reason, place| {
            Arc::new(AllocationSite {
                site: Site::NoLine {
                    thread: "".into(),
                    reason,
                },
                place,
                pass: Pass::Forward,
                node: None,
            })
        };
        Self {
            grouping,
            uses: BlockPurposes::default(),
            unknown: nowhere(NoStack::Lost.as_str(), ModuleScope::Unknown),
            too_many: nowhere("too many to tell apart", ModuleScope::TooMany),
            origins: HashMap::new(),
            by_stack: HashMap::new(),
            parts: Vec::new(),
            by_key: HashMap::new(),
            by_place: HashMap::new(),
            live: HashMap::new(),
            knows_modules: false,
        }
    }

    /// Applies an event and the model's result for it; calls `emit` for each change.
    pub(super) fn apply(&mut self, event: &Event, applied: &Applied, emit: impl FnMut(Change)) {
        match event {
            Event::Stack(id, stack) => self.define(*id, stack),
            Event::BlockPurpose(id, is) => self.uses.define(*id, is),
            Event::Memory(event) => self.apply_memory(event, applied, emit),
            // No other event concerns a block seen being allocated.
            _ => {}
        }
    }

    /// Group by index.
    pub(super) fn part(&self, name: usize) -> Option<&AllocationGroup> {
        self.parts.get(name).map(|(_, part)| part)
    }

    /// Group of a live block; `None` if no block of that size is known there.
    pub(super) fn at(&self, device: DeviceIndex, addr: Address, size: Bytes) -> Option<usize> {
        let (part, known) = self.live.get(&(device, addr))?;
        (*known == size).then_some(*part)
    }

    /// Groups of a device, with their indices.
    pub(super) fn of(
        &self,
        device: DeviceIndex,
    ) -> impl Iterator<Item = (usize, &AllocationGroup)> {
        let all = self.parts.iter().enumerate();
        all.filter(move |(_, (on, _))| *on == device)
            .map(|(name, (_, part))| (name, part))
    }

    /// True if any stack has module information; never without module tracing.
    pub(super) fn knows_modules(&self) -> bool {
        self.knows_modules
    }

    fn define(&mut self, id: StackId, stack: &Stack) {
        self.knows_modules |= stack.context.module != Module::Outside;
        if !self.by_stack.contains_key(&id) && self.by_stack.len() >= MOST_STACKS {
            return;
        }
        let origin = self.origin(stack);
        self.by_stack.insert(id, origin);
    }

    /// Origin of a stack, shared by all stacks with an equal one.
    fn origin(&mut self, stack: &Stack) -> Arc<AllocationSite> {
        let origin = Arc::new(origin(stack, self.grouping));
        match self.origins.get_key_value(&origin) {
            Some((known, ())) => Arc::clone(known),
            None => {
                self.origins.insert(Arc::clone(&origin), ());
                origin
            }
        }
    }

    fn apply_memory(
        &mut self,
        event: &MemoryEvent,
        applied: &Applied,
        mut emit: impl FnMut(Change),
    ) {
        let Some(device) = event.device else { return };
        match (event.action, applied) {
            (
                Action::Alloc,
                Applied::Alloc {
                    replaced,
                    is_tracked: kept,
                },
            ) => {
                for ended in replaced {
                    self.release(device, ended.addr, &mut emit);
                }
                self.hold(device, event, *kept, &mut emit);
            }
            (Action::Free, Applied::Free(Freed::Known { .. })) => {
                self.release(device, event.addr, &mut emit);
            }
            _ => {}
        }
    }

    /// Starts from the current state of a model; calls `emit` for each live block. Tensor types are unknown
    /// to the model.
    pub(super) fn take_in(&mut self, model: &Model, mut emit: impl FnMut(DeviceIndex, Change)) {
        for (id, stack) in model.stacks() {
            self.define(id, stack);
        }
        // Many blocks share a stack, whose address is stable while the model exists.
        let mut origins: HashMap<usize, Arc<AllocationSite>> = HashMap::new();
        for block in model.live_blocks() {
            let origin = match block.origin {
                BlockOrigin::BeforeAttach => continue,
                BlockOrigin::Unknown => Arc::clone(&self.unknown),
                BlockOrigin::Stack(stack) => {
                    let known = origins.entry(Arc::as_ptr(stack).addr());
                    Arc::clone(known.or_insert_with(|| self.origin(stack)))
                }
            };
            let what = PurposeInfo::Unknown;
            let part = self.name(block.device, AllocationGroup { origin, what });
            self.live
                .insert((block.device, block.addr), (part, block.size));
            let change = Change {
                part,
                size: block.size,
                kind: ChangeKind::Added,
            };
            emit(block.device, change);
        }
    }

    fn hold(
        &mut self,
        device: DeviceIndex,
        event: &MemoryEvent,
        is_tracked: bool,
        emit: &mut impl FnMut(Change),
    ) {
        let part = self.part_of(device, event);
        if is_tracked {
            self.live.insert((device, event.addr), (part, event.size));
        }
        emit(Change {
            part,
            size: event.size,
            kind: if is_tracked {
                ChangeKind::Added
            } else {
                ChangeKind::NotTracked
            },
        });
    }

    fn part_of(&mut self, device: DeviceIndex, event: &MemoryEvent) -> usize {
        let origin = self.by_stack.get(&event.stack).unwrap_or(&self.unknown);
        let (what, is_at) = match self.uses.get(event.shape) {
            Some(is) => (PurposeInfo::Known(Arc::clone(is)), Arc::as_ptr(is).addr()),
            // No `Arc` has address 0 or 1.
            None if event.shape == PurposeId::NO_TENSOR => (PurposeInfo::NoTensor, 0),
            None => (PurposeInfo::Unknown, 1),
        };
        let place = (device, Arc::as_ptr(origin).addr(), is_at);
        if let Some((name, _)) = self.by_place.get(&place) {
            return *name;
        }
        let origin = Arc::clone(origin);
        let part = AllocationGroup { origin, what };
        let name = self.name(device, part.clone());
        if self.by_place.len() >= MOST_PARTS {
            self.by_place.clear();
        }
        self.by_place.insert(place, (name, part));
        name
    }

    fn release(&mut self, device: DeviceIndex, addr: Address, emit: &mut impl FnMut(Change)) {
        if let Some((part, size)) = self.live.remove(&(device, addr)) {
            emit(Change {
                part,
                size,
                kind: ChangeKind::Removed,
            });
        }
    }

    fn name(&mut self, device: DeviceIndex, part: AllocationGroup) -> usize {
        let key = (device, part);
        if let Some(name) = self.by_key.get(&key) {
            return *name;
        }
        let key = match self.parts.len() < MOST_PARTS {
            true => key,
            false => {
                let origin = Arc::clone(&self.too_many);
                let what = PurposeInfo::TooMany;
                (device, AllocationGroup { origin, what })
            }
        };
        let next = self.parts.len();
        let name = *self.by_key.entry(key.clone()).or_insert(next);
        if name == next {
            self.parts.push(key);
        }
        name
    }
}

/// Origin of a stack.
fn origin(stack: &Stack, grouping: Grouping) -> AllocationSite {
    let (place, pass) = place_of(stack);
    let node = stack.context.node.as_ref();
    AllocationSite {
        site: grouping::site(stack, grouping),
        place,
        pass,
        node: node.map(|node| Arc::clone(&node.name)),
    }
}

/// Module scope and pass that allocations of a stack count under.
pub(super) fn place_of(stack: &Stack) -> (ModuleScope, Pass) {
    let node = stack.context.node.as_ref();
    let forward = node.and_then(|node| node.forward.as_ref());
    let pass = match phase_of(stack).phase {
        Phase::Backward => Pass::Backward,
        Phase::Recompute => Pass::Recompute,
        _ => Pass::Forward,
    };
    let place = match (pass, forward) {
        (Pass::Backward, None) => ModuleScope::BackwardUnknown,
        (Pass::Backward, Some(forward)) => match called(&forward.context) {
            ModuleScope::Unknown => ModuleScope::BackwardUnknown,
            place => place,
        },
        // A recomputation outside modules belongs to the operation being differentiated.
        (Pass::Recompute, Some(forward)) if stack.context.module == Module::Outside => {
            called(&forward.context)
        }
        (Pass::Forward | Pass::Recompute, _) => called(&stack.context),
    };
    (place, pass)
}

fn called(context: &Context) -> ModuleScope {
    match &context.module {
        Module::Called(path) => ModuleScope::Module(Arc::clone(path)),
        Module::Outside => ModuleScope::Outside,
        Module::Unknown => ModuleScope::Unknown,
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

//! What a block is part of: its line, its module, its pass, its tensor.
//!
//! It follows the blocks as the [`crate::model::Model`] does and goes by its word, so that what is counted here adds up to what is
//! counted there.

use std::collections::HashMap;
use std::sync::Arc;

use super::phase::{Phase, phase_of};
use crate::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, MemoryEvent, Module, NoStack, ShapeId,
    Stack, StackId, Uses,
};
use crate::model::applied::{Applied, Freed};
use crate::model::snapshot::{Grouping, Site, What};
use crate::model::{Maker, Model, grouping};

/// Parts that are told apart; what comes on top is one part a device.
const MOST_PARTS: usize = 1 << 18;

/// Stacks whose origin is remembered; of later ones it is not known.
const MOST_STACKS: usize = 1 << 20;

/// Blocks that nothing tells apart for a report: they have the same origin and are for the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Where they were asked for.
    pub origin: Arc<Origin>,
    /// What they are for.
    pub what: What,
}

/// Where memory was asked for, as far as reports tell it apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The line.
    pub site: Site,
    /// The module.
    pub place: Place,
    /// In which pass through it.
    pub pass: Pass,
    /// The step of a backward pass, such as `AddmmBackward0`, where it is known.
    pub node: Option<Arc<str>>,
}

/// The module that memory is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// This one, by its path; in a backward pass the one whose operation is gone back through.
    Module(Arc<str>),
    /// No module was being called.
    Outside,
    /// One was, but not which.
    Unknown,
    /// A backward pass, through an operation of which it is not known who called it.
    BackwardUnknown,
    /// More than are told apart.
    TooMany,
}

/// In which direction a program went through its modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Forward, or not through a module at all.
    Forward,
    /// Forward once more, within a backward pass: activation checkpointing.
    Recompute,
    /// Backward.
    Backward,
}

impl Pass {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Recompute, Self::Backward];

    /// The word used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
        }
    }
}

/// What an event did to the blocks of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Names the part: [`Parts::part`].
    pub part: usize,
    /// Bytes of the block.
    pub size: Bytes,
    /// What happened to it.
    pub way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is live from now on.
    Came,
    /// It was asked for, but the ledger has no room to follow it.
    NotFollowed,
    /// It is live no more.
    Went,
}

/// The parts of a process and its live blocks.
#[derive(Debug)]
pub(super) struct Parts {
    grouping: Grouping,
    uses: Uses,
    unknown: Arc<Origin>,
    too_many: Arc<Origin>,
    origins: HashMap<Arc<Origin>, ()>,
    by_stack: HashMap<StackId, Arc<Origin>>,
    parts: Vec<(DeviceIndex, Part)>,
    by_key: HashMap<(DeviceIndex, Part), usize>,
    /// The same by where the names lie in memory: to hash a part is to hash all that it is called. Each entry keeps them there.
    by_place: HashMap<(DeviceIndex, usize, usize), (usize, Part)>,
    /// Which part a live block belongs to, and its bytes.
    live: HashMap<(DeviceIndex, Address), (usize, Bytes)>,
    knows_modules: bool,
}

impl Parts {
    pub(super) fn new(grouping: Grouping) -> Self {
        let nowhere = |reason, place| {
            Arc::new(Origin {
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
            uses: Uses::default(),
            unknown: nowhere(NoStack::Lost.as_str(), Place::Unknown),
            too_many: nowhere("too many to tell apart", Place::TooMany),
            origins: HashMap::new(),
            by_stack: HashMap::new(),
            parts: Vec::new(),
            by_key: HashMap::new(),
            by_place: HashMap::new(),
            live: HashMap::new(),
            knows_modules: false,
        }
    }

    /// Takes the next event of the stream, and what the ledger of lines made of it; tells what it changed.
    pub(super) fn apply(&mut self, event: &Event, applied: &Applied, tell: impl FnMut(Change)) {
        match event {
            Event::Stack(id, stack) => self.define(*id, stack),
            Event::Use(id, is) => self.uses.define(*id, is),
            Event::Memory(event) => self.apply_memory(event, applied, tell),
            // Nothing else is about a block that was seen being made.
            _ => {}
        }
    }

    /// The part of that name.
    pub(super) fn part(&self, name: usize) -> Option<&Part> {
        self.parts.get(name).map(|(_, part)| part)
    }

    /// The part of a live block; `None` where no block of that size is known there.
    pub(super) fn at(&self, device: DeviceIndex, addr: Address, size: Bytes) -> Option<usize> {
        let (part, known) = self.live.get(&(device, addr))?;
        (*known == size).then_some(*part)
    }

    /// All parts of a device, with their names.
    pub(super) fn of(&self, device: DeviceIndex) -> impl Iterator<Item = (usize, &Part)> {
        let all = self.parts.iter().enumerate();
        all.filter(move |(_, (on, _))| *on == device)
            .map(|(name, (_, part))| (name, part))
    }

    /// Whether any stack says something of modules. None does where modules were not looked for.
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

    /// Where a stack asked for memory: one for all that asked there.
    fn origin(&mut self, stack: &Stack) -> Arc<Origin> {
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
        mut tell: impl FnMut(Change),
    ) {
        let Some(device) = event.device else { return };
        match (event.action, applied) {
            (Action::Alloc, Applied::Alloc { replaced, kept }) => {
                for ended in replaced {
                    self.release(device, ended.addr, &mut tell);
                }
                self.hold(device, event, *kept, &mut tell);
            }
            (Action::Free, Applied::Free(Freed::Known { .. })) => {
                self.release(device, event.addr, &mut tell);
            }
            _ => {}
        }
    }

    /// Takes what a ledger of lines knows already; tells what came. Which tensors blocks are for it does not know.
    pub(super) fn take_in(&mut self, model: &Model, mut tell: impl FnMut(DeviceIndex, Change)) {
        for (id, stack) in model.stacks() {
            self.define(id, stack);
        }
        // Many blocks have one stack, which lies at one place as long as the ledger is there.
        let mut origins: HashMap<usize, Arc<Origin>> = HashMap::new();
        for block in model.live_blocks() {
            let origin = match block.maker {
                Maker::BeforeAttach => continue,
                Maker::Unknown => Arc::clone(&self.unknown),
                Maker::Stack(stack) => {
                    let known = origins.entry(Arc::as_ptr(stack).addr());
                    Arc::clone(known.or_insert_with(|| self.origin(stack)))
                }
            };
            let what = What::Unknown;
            let part = self.name(block.device, Part { origin, what });
            self.live
                .insert((block.device, block.addr), (part, block.size));
            let change = Change {
                part,
                size: block.size,
                way: Way::Came,
            };
            tell(block.device, change);
        }
    }

    fn hold(
        &mut self,
        device: DeviceIndex,
        event: &MemoryEvent,
        kept: bool,
        tell: &mut impl FnMut(Change),
    ) {
        let part = self.part_of(device, event);
        if kept {
            self.live.insert((device, event.addr), (part, event.size));
        }
        tell(Change {
            part,
            size: event.size,
            way: if kept { Way::Came } else { Way::NotFollowed },
        });
    }

    fn part_of(&mut self, device: DeviceIndex, event: &MemoryEvent) -> usize {
        let origin = self.by_stack.get(&event.stack).unwrap_or(&self.unknown);
        let (what, is_at) = match self.uses.get(event.shape) {
            Some(is) => (What::Known(Arc::clone(is)), Arc::as_ptr(is).addr()),
            // No `Arc` lies at these.
            None if event.shape == ShapeId::NO_TENSOR => (What::NoTensor, 0),
            None => (What::Unknown, 1),
        };
        let place = (device, Arc::as_ptr(origin).addr(), is_at);
        if let Some((name, _)) = self.by_place.get(&place) {
            return *name;
        }
        let origin = Arc::clone(origin);
        let part = Part { origin, what };
        let name = self.name(device, part.clone());
        if self.by_place.len() >= MOST_PARTS {
            self.by_place.clear();
        }
        self.by_place.insert(place, (name, part));
        name
    }

    fn release(&mut self, device: DeviceIndex, addr: Address, tell: &mut impl FnMut(Change)) {
        if let Some((part, size)) = self.live.remove(&(device, addr)) {
            tell(Change {
                part,
                size,
                way: Way::Went,
            });
        }
    }

    fn name(&mut self, device: DeviceIndex, part: Part) -> usize {
        let key = (device, part);
        if let Some(name) = self.by_key.get(&key) {
            return *name;
        }
        let key = match self.parts.len() < MOST_PARTS {
            true => key,
            false => {
                let origin = Arc::clone(&self.too_many);
                let what = What::TooMany;
                (device, Part { origin, what })
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

/// Where a stack asked for memory.
fn origin(stack: &Stack, grouping: Grouping) -> Origin {
    let (place, pass) = place_of(stack);
    let node = stack.context.node.as_ref();
    Origin {
        site: grouping::site(stack, grouping),
        place,
        pass,
        node: node.map(|node| Arc::clone(&node.name)),
    }
}

/// The module that what a stack asked for is counted under, and in which pass through it.
pub(super) fn place_of(stack: &Stack) -> (Place, Pass) {
    let node = stack.context.node.as_ref();
    let forward = node.and_then(|node| node.forward.as_ref());
    let pass = match phase_of(stack).phase {
        Phase::Backward => Pass::Backward,
        Phase::Recompute => Pass::Recompute,
        _ => Pass::Forward,
    };
    let place = match (pass, forward) {
        (Pass::Backward, None) => Place::BackwardUnknown,
        (Pass::Backward, Some(forward)) => match called(&forward.context) {
            Place::Unknown => Place::BackwardUnknown,
            place => place,
        },
        // What is computed again outside of modules was of the operation that is gone back through.
        (Pass::Recompute, Some(forward)) if stack.context.module == Module::Outside => {
            called(&forward.context)
        }
        (Pass::Forward | Pass::Recompute, _) => called(&stack.context),
    };
    (place, pass)
}

fn called(context: &Context) -> Place {
    match &context.module {
        Module::Called(path) => Place::Module(Arc::clone(path)),
        Module::Outside => Place::Outside,
        Module::Unknown => Place::Unknown,
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

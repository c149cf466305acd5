//! Definitions from the event stream: stacks with their call sites, block purposes, thread names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use hashbrown::hash_map::EntryRef;

use super::caps::{Caps, Refused};
use super::dense::Dense;
use super::grouping;
use super::snapshot::{Grouping, Site};
use crate::event::{BlockPurposes, Event, NoStack, Stack, StackId, StackKind, Tid};

/// Number of an interned stack. Unlike a [`StackId`], it always means the same stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackRef(u32);

impl StackRef {
    /// A stack that was lost, or that the ledger had no room for.
    pub const UNKNOWN: Self = Self(0);
}

impl Dense for StackRef {
    fn index(self) -> usize {
        self.0 as usize
    }

    fn from_index(index: usize) -> Self {
        // `Caps::stacks` keeps the number of stacks far below 2^32.
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// Number of an interned call site within its grouping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct SiteRef(u32);

impl SiteRef {
    pub const UNKNOWN: Self = Self(0);
}

impl Dense for SiteRef {
    fn index(self) -> usize {
        self.0 as usize
    }

    fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Debug, Default)]
struct Sites {
    sites: Vec<Site>,
    by_site: hashbrown::HashMap<Site, SiteRef>,
}

impl Sites {
    fn intern(&mut self, site: Site) -> SiteRef {
        if let Some(known) = self.by_site.get(&site) {
            return *known;
        }
        let next = SiteRef::from_index(self.sites.len());
        self.sites.push(site.clone());
        self.by_site.insert(site, next);
        next
    }
}

/// A stack, and the call site that counts it in each grouping, as in [`slot`].
#[derive(Clone, Debug)]
pub(super) struct InternedStack {
    pub(super) stack: Arc<Stack>,
    pub(super) sites: [SiteRef; 2],
}

pub(super) fn slot(grouping: Grouping) -> usize {
    match grouping {
        Grouping::User => 0,
        Grouping::Innermost => 1,
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Definitions {
    by_id: hashbrown::HashMap<StackId, StackRef>,
    by_stack: hashbrown::HashMap<Arc<Stack>, StackRef>,
    /// Indexed by [`StackRef`]; the first one is unknown.
    stacks: Vec<InternedStack>,
    /// Indexed by [`slot`] of the grouping.
    sites: [Sites; 2],
    pub(super) purposes: BlockPurposes,
    threads: HashMap<Tid, Arc<str>>,
    frames: usize,
    caps: Caps,
    /// True if any stack was refused, so that an unknown one may be among them.
    pub(super) stacks_refused: bool,
}

impl Definitions {
    pub(super) fn new(caps: Caps) -> Self {
        let mut definitions = Self {
            caps,
            ..Self::default()
        };
        let unknown = definitions.with_sites(lost_stack("".into()));
        definitions.stacks.push(unknown);
        definitions
    }

    /// Interns a stack, which `id` means from now on. Returns [`StackRef::UNKNOWN`] if the store is full.
    pub(super) fn define(
        &mut self,
        id: StackId,
        stack: &Arc<Stack>,
        refused: &mut Refused,
    ) -> StackRef {
        let has_room = self.by_id.len() < self.caps.stacks || self.by_id.contains_key(&id);
        let interned = if has_room && id != StackId::NONE {
            self.intern(stack)
        } else {
            None
        };
        match interned {
            Some(interned) => {
                self.by_id.insert(id, interned);
                interned
            }
            None => {
                self.by_id.remove(&id);
                self.stacks_refused |= id != StackId::NONE;
                refused.stacks += 1;
                StackRef::UNKNOWN
            }
        }
    }

    /// Interns a stack; `None` if the store is full.
    pub(super) fn intern(&mut self, stack: &Arc<Stack>) -> Option<StackRef> {
        let new = match self.by_stack.entry_ref(stack) {
            EntryRef::Occupied(known) => return Some(*known.get()),
            EntryRef::Vacant(new) => new,
        };
        let frames = self.frames + stack.frames.len();
        if self.stacks.len() > self.caps.stacks || frames > self.caps.frames {
            return None;
        }
        self.frames = frames;
        let next = StackRef::from_index(self.stacks.len());
        new.insert_with_key(Arc::clone(stack), next);
        let interned = self.with_sites(Arc::clone(stack));
        self.stacks.push(interned);
        Some(next)
    }

    pub(super) fn with_sites(&mut self, stack: Arc<Stack>) -> InternedStack {
        let sites = self.intern_sites(|grouping| grouping::site(&stack, grouping));
        InternedStack { stack, sites }
    }

    pub(super) fn intern_sites(&mut self, site: impl Fn(Grouping) -> Site) -> [SiteRef; 2] {
        let [user, innermost] = &mut self.sites;
        [
            user.intern(site(Grouping::User)),
            innermost.intern(site(Grouping::Innermost)),
        ]
    }

    pub(super) fn site(&self, site: SiteRef, grouping: Grouping) -> &Site {
        &self.sites[slot(grouping)].sites[site.index()]
    }

    pub(super) fn name(&mut self, tid: Tid, name: &Arc<str>, refused: &mut Refused) {
        let full = self.threads.len() >= self.caps.threads;
        match self.threads.entry(tid) {
            Entry::Occupied(mut known) => {
                known.insert(Arc::clone(name));
            }
            Entry::Vacant(_) if full => refused.threads += 1,
            Entry::Vacant(free) => {
                free.insert(Arc::clone(name));
            }
        }
    }

    pub(super) fn stack_ref(&self, id: StackId) -> StackRef {
        self.by_id.get(&id).copied().unwrap_or(StackRef::UNKNOWN)
    }

    /// A stack; a placeholder for [`StackRef::UNKNOWN`].
    pub(super) fn stack(&self, stack: StackRef) -> &InternedStack {
        &self.stacks[stack.index()]
    }

    /// Stacks in the order of their definition.
    pub(super) fn stacks(&self) -> impl Iterator<Item = (StackRef, &Arc<Stack>)> {
        let known = self.stacks.iter().enumerate().skip(1);
        known.map(|(index, interned)| (StackRef::from_index(index), &interned.stack))
    }

    /// Definitions of the stacks that the ids of the stream mean now.
    pub(super) fn stack_ids(&self) -> impl Iterator<Item = Event> {
        let ids = self.by_id.iter();
        ids.map(|(id, stack)| Event::Stack(*id, Arc::clone(&self.stack(*stack).stack)))
    }

    /// Numbers of the stacks that the ids of the stream mean now, by id.
    pub(super) fn ids(&self) -> impl Iterator<Item = (StackId, u32)> {
        let mut ids: Vec<_> = self
            .by_id
            .iter()
            .map(|(id, stack)| (*id, stack.0))
            .collect();
        ids.sort_unstable();
        ids.into_iter()
    }

    /// Lets an id of the stream mean an interned stack.
    pub(super) fn mean(&mut self, id: StackId, stack: StackRef) {
        if self.by_id.len() < self.caps.stacks {
            self.by_id.insert(id, stack);
        }
    }

    /// Returns the interned stack with a number from outside.
    pub(super) fn numbered(&self, number: u32) -> Result<StackRef, &'static str> {
        let is_known = (number as usize) < self.stacks.len();
        let stack = is_known.then_some(StackRef(number));
        stack.ok_or("a keyframe with the number of no stack")
    }

    /// Names of the threads, by thread.
    pub(super) fn threads(&self) -> impl Iterator<Item = (Tid, Arc<str>)> {
        let threads = self.threads.iter();
        let mut threads: Vec<_> = threads
            .map(|(tid, name)| (*tid, Arc::clone(name)))
            .collect();
        threads.sort_unstable();
        threads.into_iter()
    }

    pub(super) fn thread_names(&self) -> impl Iterator<Item = Event> {
        let threads = self.threads.iter();
        threads.map(|(tid, name)| Event::Thread(*tid, Arc::clone(name)))
    }

    /// Name of a thread, or its number if it has no name.
    pub(super) fn thread(&self, tid: Tid) -> Arc<str> {
        match self.threads.get(&tid) {
            Some(name) => Arc::clone(name),
            None => format!("thread {}", tid.0).into(),
        }
    }
}

/// Placeholder for a stack that never arrived.
pub(crate) fn lost_stack(thread: Arc<str>) -> Arc<Stack> {
    let reason = NoStack::Lost;
    let kind = StackKind::Unknown { thread, reason };
    Arc::new(Stack::new(kind, Vec::new(), false))
}

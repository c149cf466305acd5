//! Definitions from the event stream: stacks and thread names, by id.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::caps::{Caps, Refused};
use crate::event::{Stack, StackId, Tid};

/// Effect of a stack's definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Definition {
    /// The id was undefined before.
    New,
    /// The id already had this stack.
    Same,
    /// The id had another stack before.
    Changed,
    /// The store is full.
    Refused,
}

/// Stacks and thread names, by id.
#[derive(Debug)]
pub(super) struct Names {
    stacks: HashMap<StackId, Arc<Stack>>,
    threads: HashMap<Tid, Arc<str>>,
    frames: usize,
    caps: Caps,
    stacks_refused: bool,
}

impl Names {
    pub(super) fn new(caps: Caps) -> Self {
        Self {
            stacks: HashMap::new(),
            threads: HashMap::new(),
            frames: 0,
            caps,
            stacks_refused: false,
        }
    }

    pub(super) fn define(
        &mut self,
        id: StackId,
        stack: &Arc<Stack>,
        refused: &mut Refused,
    ) -> Definition {
        let known = self.stacks.get(&id);
        if known.is_some_and(|known| Arc::ptr_eq(known, stack) || known == stack) {
            return Definition::Same;
        }
        let given_up = known.map_or(0, |known| known.frames.len());
        let frames = self.frames - given_up + stack.frames.len();
        let full = known.is_none() && self.stacks.len() >= self.caps.stacks;
        if id == StackId::NONE || full || frames > self.caps.frames {
            self.stacks_refused |= id != StackId::NONE;
            refused.stacks += 1;
            return Definition::Refused;
        }
        self.frames = frames;
        match self.stacks.insert(id, Arc::clone(stack)) {
            Some(_) => Definition::Changed,
            None => Definition::New,
        }
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

    pub(super) fn stack(&self, id: StackId) -> Option<&Arc<Stack>> {
        self.stacks.get(&id)
    }

    pub(super) fn stacks(&self) -> impl Iterator<Item = (StackId, &Arc<Stack>)> {
        self.stacks.iter().map(|(id, stack)| (*id, stack))
    }

    /// Returns true if any stack was refused, so that an unknown one may be among them.
    pub(super) fn stacks_refused(&self) -> bool {
        self.stacks_refused
    }

    /// Name of a thread, or its number if it has no name.
    pub(super) fn thread(&self, tid: Tid) -> Arc<str> {
        match self.threads.get(&tid) {
            Some(name) => Arc::clone(name),
            None => format!("thread {}", tid.0).into(),
        }
    }
}

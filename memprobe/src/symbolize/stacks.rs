//! Interned stacks: from the kernel's hashes to files, lines and functions.

use std::sync::Arc;

use hashbrown::HashMap;
use memprobe_common::{FrameRecord, StackHead};

use crate::event::{NoStack, Stack, StackId, StackKind};
use crate::symbolize::python::{CodeCache, Resolved};
use crate::target::memory::ReadMemory;

/// The most stacks that are told apart; those beyond count as lost.
const MOST: usize = 1 << 20;

/// Every stack that was defined, and how the kernel names it.
pub struct Stacks<M> {
    memory: M,
    code: CodeCache,
    by_hash: HashMap<u64, StackId>,
    frameless: HashMap<StackKind, StackId>,
    waiting: HashMap<(Arc<str>, StackId), StackId>,
    /// Python stacks by id, as those of waiting threads are made from them.
    defined: HashMap<StackId, Arc<Stack>>,
    next: u32,
}

/// A stack's name, and the stack itself where it is new.
type Interned = (StackId, Option<Arc<Stack>>);

impl<M: ReadMemory> Stacks<M> {
    /// No stacks yet; frames are resolved through `code`, which reads `memory`.
    pub fn new(memory: M, code: CodeCache) -> Self {
        Self {
            memory,
            code,
            by_hash: HashMap::new(),
            frameless: HashMap::new(),
            waiting: HashMap::new(),
            defined: HashMap::new(),
            next: StackId::NONE.0 + 1,
        }
    }

    /// Defines the stack behind a hash; `None` if it was known already. The kernel sends a stack
    /// again when it has forgotten that it was sent.
    pub fn define(
        &mut self,
        head: &StackHead,
        frames: &[FrameRecord],
    ) -> Option<(StackId, Arc<Stack>)> {
        if self.by_hash.contains_key(&head.hash) || self.by_hash.len() >= MOST {
            return None;
        }
        let mut resolved = Vec::with_capacity(frames.len());
        for frame in frames {
            match self
                .code
                .resolve(&self.memory, frame.code(), frame.instr, frame.owner())
            {
                Resolved::Frame(frame) => resolved.push(frame),
                Resolved::Skip => {}
                Resolved::Unreadable => resolved.push(unreadable()),
            }
        }
        let (id, stack) = self.add(Stack {
            kind: StackKind::Python,
            frames: resolved,
            truncated: head.truncated != 0,
        });
        self.by_hash.insert(head.hash, id);
        self.defined.insert(id, stack.clone());
        Some((id, stack))
    }

    /// The stack that the kernel names by a hash.
    pub fn by_hash(&self, hash: u64) -> Option<StackId> {
        self.by_hash.get(&hash).copied()
    }

    /// The stack of a thread without Python for which the thread at `waiting` waits.
    pub fn waiting(&mut self, thread: &Arc<str>, waiting: StackId) -> Interned {
        let key = (thread.clone(), waiting);
        if let Some(id) = self.waiting.get(&key) {
            return (*id, None);
        }
        let Some(python) = self.defined.get(&waiting).cloned() else {
            return self.unknown(thread, NoStack::NoPythonFrames);
        };
        let (id, stack) = self.add(Stack {
            kind: StackKind::Waiting {
                thread: thread.clone(),
            },
            frames: python.frames.clone(),
            truncated: python.truncated,
        });
        self.waiting.insert(key, id);
        (id, Some(stack))
    }

    /// The stack of a thread of which no stack is known.
    pub fn unknown(&mut self, thread: &Arc<str>, reason: NoStack) -> Interned {
        let kind = StackKind::Unknown {
            thread: thread.clone(),
            reason,
        };
        if let Some(id) = self.frameless.get(&kind) {
            return (*id, None);
        }
        let (id, stack) = self.add(Stack {
            kind: kind.clone(),
            frames: Vec::new(),
            truncated: false,
        });
        self.frameless.insert(kind, id);
        (id, Some(stack))
    }

    fn add(&mut self, stack: Stack) -> (StackId, Arc<Stack>) {
        let id = StackId(self.next);
        self.next = self.next.saturating_add(1);
        (id, Arc::new(stack))
    }
}

/// A frame whose code object could not be read.
fn unreadable() -> crate::event::Frame {
    crate::event::Frame {
        file: "<unreadable>".into(),
        line: 0,
        function: "?".into(),
    }
}

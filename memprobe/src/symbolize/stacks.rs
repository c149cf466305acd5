//! Interned stacks: from the kernel's hashes to files, lines and functions.

use std::sync::Arc;

use hashbrown::HashMap;
use memprobe_common::{FrameRecord, MAX_FRAMES, StackHead};

use crate::decode::FreedCode;
use crate::event::{Context, Frame, NoStack, Stack, StackId, StackKind};
use crate::symbolize::native::Unwound;
use crate::symbolize::python::{CodeCache, Resolved};
use crate::target::memory::{ReadMemory, Stretches};

/// The most stacks that are told apart; those beyond count as lost.
const MOST: usize = 1 << 20;

/// Hashes that are remembered before the older half of them is forgotten.
const HASHES: usize = 1 << 19;

/// Every stack that was defined, and how the kernel names it.
pub struct Stacks<M> {
    memory: M,
    code: Option<CodeCache>,
    /// The kernel's names, those since the last forgetting and those before.
    by_hash: [HashMap<u64, StackId>; 2],
    /// Every stack, by what it is: different hashes can stand for the same.
    ids: HashMap<Arc<Stack>, StackId>,
    waiting: HashMap<(Arc<str>, StackId), StackId>,
    /// Stacks of calls into CUDA, by the stack behind and the native code that called.
    called: HashMap<(StackId, Frame), StackId>,
    /// Stacks by id, as others are made from them.
    defined: HashMap<StackId, Arc<Stack>>,
    next: u32,
}

/// A stack's name, and the stack itself where it is new.
pub type Interned = (StackId, Option<Arc<Stack>>);

/// A stack whose frames were read, but whose code objects may have been freed before that.
#[derive(Debug)]
pub struct Pending {
    head: StackHead,
    frames: Vec<FrameRecord>,
    resolved: Vec<Reading>,
}

/// What was read of a frame.
#[derive(Debug)]
enum Reading {
    /// From the process's memory: right unless the code object was freed before that.
    Tentative(Resolved),
    /// From what the kernel kept of a code object that was freed: right whatever comes after.
    Kept(Resolved),
}

impl Reading {
    fn into_resolved(self) -> Resolved {
        match self {
            Self::Tentative(resolved) | Self::Kept(resolved) => resolved,
        }
    }
}

impl<M: ReadMemory> Stacks<M> {
    /// No stacks yet; frames are resolved through `code`, which reads `memory`.
    pub fn new(memory: M, code: Option<CodeCache>) -> Self {
        Self {
            memory,
            code,
            by_hash: Default::default(),
            ids: HashMap::new(),
            waiting: HashMap::new(),
            called: HashMap::new(),
            defined: HashMap::new(),
            next: StackId::NONE.0 + 1,
        }
    }

    /// Resolves frames through `code` from now on.
    pub fn set_code(&mut self, code: CodeCache) {
        self.code = Some(code);
    }

    /// Reads the code objects of a stack, as soon as it is known; `None` if the hash was known
    /// already. The kernel sends a stack again when it has forgotten that it was sent.
    pub fn read(&mut self, head: StackHead, frames: Vec<FrameRecord>) -> Option<Pending> {
        if self.by_hash(head.hash).is_some() {
            return None;
        }
        let resolved = frames
            .iter()
            .map(|frame| {
                let (code, owner) = (frame.code(), frame.owner());
                let memory = &self.memory;
                Reading::Tentative(match &mut self.code {
                    Some(known) => known.resolve(memory, code, frame.instr, owner),
                    None => Resolved::Unreadable,
                })
            })
            .collect();
        Some(Pending {
            head,
            frames,
            resolved,
        })
    }

    /// Mends the pending stacks that name a code object which was freed: it may have gone before
    /// it was read, or another may have been read in its place.
    pub fn freed<'a>(&mut self, freed: &FreedCode, pending: impl Iterator<Item = &'a mut Pending>) {
        let Some(code) = &mut self.code else { return };
        let memory: Stretches = freed.memory.iter().cloned().collect();
        for pending in pending {
            for (frame, reading) in pending.frames.iter().zip(&mut pending.resolved) {
                if frame.code() == freed.code && matches!(reading, Reading::Tentative(_)) {
                    let (instr, owner) = (frame.instr, frame.owner());
                    let kept = code.resolve_freed(&memory, freed.code, instr, owner);
                    *reading = Reading::Kept(kept);
                }
            }
        }
        code.forget(freed.code);
    }

    /// Defines a stack that was read; gives it where it is new.
    pub fn define(&mut self, pending: Pending) -> Option<(StackId, Arc<Stack>)> {
        let frames =
            pending
                .resolved
                .into_iter()
                .filter_map(|reading| match reading.into_resolved() {
                    Resolved::Frame(frame) => Some(frame),
                    Resolved::Skip => None,
                    Resolved::Unreadable => Some(unreadable()),
                });
        let mut frames: Vec<_> = frames.collect();
        let truncated = pending.head.truncated != 0 || frames.len() > MAX_FRAMES;
        frames.truncate(MAX_FRAMES);
        let (id, new) = self.intern(Stack {
            kind: StackKind::Python,
            frames,
            truncated,
            context: Context::default(),
        })?;
        if self.by_hash[0].len() >= HASHES {
            self.by_hash.swap(0, 1);
            self.by_hash[0].clear();
        }
        self.by_hash[0].insert(pending.head.hash, id);
        Some((id, new?))
    }

    /// The stack that the kernel names by a hash.
    pub fn by_hash(&self, hash: u64) -> Option<StackId> {
        self.by_hash
            .iter()
            .find_map(|hashes| hashes.get(&hash))
            .copied()
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
        let stack = Stack {
            kind: StackKind::Waiting {
                thread: thread.clone(),
            },
            frames: python.frames.clone(),
            truncated: python.truncated,
            context: Context::default(),
        };
        let Some((id, new)) = self.intern(stack) else {
            return (StackId::NONE, None);
        };
        self.waiting.insert(key, id);
        (id, new)
    }

    /// The stack of a call into CUDA by native code at `caller`, behind which lies the stack `id`.
    pub fn called(&mut self, id: StackId, caller: &Frame) -> Interned {
        let key = (id, caller.clone());
        if let Some(id) = self.called.get(&key) {
            return (*id, None);
        }
        let Some(behind) = self.defined.get(&id) else {
            return (id, None);
        };
        let mut frames = Vec::with_capacity(behind.frames.len() + 1);
        frames.push(caller.clone());
        frames.extend(behind.frames.iter().cloned());
        let stack = Stack {
            kind: behind.kind.clone(),
            frames,
            truncated: behind.truncated,
            context: behind.context.clone(),
        };
        let Some((called, new)) = self.intern(stack) else {
            return (id, None);
        };
        self.called.insert(key, called);
        (called, new)
    }

    /// The stack of native code alone.
    pub fn native(&mut self, unwound: Unwound) -> Interned {
        let stack = Stack {
            kind: StackKind::Native,
            frames: unwound.frames,
            truncated: unwound.truncated,
            context: Context::default(),
        };
        self.intern(stack).unwrap_or((StackId::NONE, None))
    }

    /// The stack of a thread of which no stack is known.
    pub fn unknown(&mut self, thread: &Arc<str>, reason: NoStack) -> Interned {
        let kind = StackKind::Unknown {
            thread: thread.clone(),
            reason,
        };
        let stack = Stack {
            kind,
            frames: Vec::new(),
            truncated: false,
            context: Context::default(),
        };
        self.intern(stack).unwrap_or((StackId::NONE, None))
    }

    /// The name of a stack, new or known; `None` where there are too many.
    fn intern(&mut self, stack: Stack) -> Option<Interned> {
        if let Some(id) = self.ids.get(&stack) {
            return Some((*id, None));
        }
        if self.ids.len() >= MOST {
            return None;
        }
        let id = StackId(self.next);
        self.next += 1;
        let stack = Arc::new(stack);
        self.ids.insert(stack.clone(), id);
        self.defined.insert(id, stack.clone());
        Some((id, Some(stack)))
    }
}

/// A frame whose code object could not be read.
fn unreadable() -> Frame {
    Frame {
        file: Frame::UNREADABLE.into(),
        line: 0,
        function: "?".into(),
        library: None,
    }
}

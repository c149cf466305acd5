//! Interned stacks: resolves the kernel's stack hashes to files, lines and functions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use memprobe_common::{FrameRecord, MAX_FRAMES, StackHead, grad_mode};

use crate::decode::FreedCode;
use crate::event::{Context, Frame, Grad, Module, NoStack, Node, Stack, StackId, StackKind};
use crate::process::memory::{PartialMemory, ReadMemory};
use crate::python::{CodeCache, FoundCode, Resolved};
use crate::symbolize::native::NativeStack;
use crate::symbolize::nodes::NodeName;
use crate::torch::module_calls::{CHECKS, Innermost, ModuleCalls, PendingModule};

/// The most distinct stacks; further ones count as lost.
const MOST: usize = 1 << 20;

/// Hashes in one of two generations; when the newer is full, the older is dropped.
const HASHES: usize = 1 << 19;

/// The wait of a stack, and of everything after it, for the name of its module. A busy machine delays the checks of
/// modules: a stack waits for [`CHECKS`] of them, up to [`LONGEST`].
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest wait of a stack.
const LONGEST: Duration = Duration::from_secs(5);

/// After a wait of [`PATIENCE`] without an answer, no stack waits for this many times as long.
const RESTS: u32 = 8;

pub struct Stacks<M> {
    pub memory: M,
    pub code: Option<CodeCache>,
    pub modules: ModuleCalls,
    /// The time until which no stack waits for the name of its module.
    rests: Option<Instant>,
    by_hash: [HashMap<u64, StackId>; 2],
    /// Every stack by content; different hashes can stand for the same stack.
    ids: HashMap<Arc<Stack>, StackId>,
    derived: HashMap<Derived, StackId>,
    /// Stacks by ID, from which other stacks are derived.
    defined: HashMap<StackId, Arc<Stack>>,
    next: u32,
}

#[derive(PartialEq, Eq, Hash)]
enum Derived {
    /// A thread waits, by name, for the thread with the stack.
    Waiting(Arc<str>, StackId),
    /// Native code calls into CUDA, with the stack behind it.
    Called(StackId, Frame),
    /// The thread with the stack evaluates a node: its name, and the stack of the operation that created it.
    Evaluating(StackId, NodeName, Option<StackId>),
}

/// A stack's ID, and the stack itself if it is new.
pub type Interned = (StackId, Option<Arc<Stack>>);

/// A stack that was read although some of its code objects may already have been freed.
#[derive(Debug)]
pub struct Pending {
    head: StackHead,
    frames: Vec<FrameRecord>,
    resolved: Vec<Reading>,
    context: Context,
    /// The modules that have no name yet, and the time of the first question.
    asked: Option<(PendingModule, Instant)>,
}

#[derive(Debug)]
struct Reading {
    resolved: Resolved,
    /// True if read from the copy that the kernel programs took of a freed code object. A reading from the process's
    /// memory is correct unless the code object had been freed before.
    is_final: bool,
}

/// Permission for a stack to wait for the name of its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Allowed,
    Over,
}

impl<M: ReadMemory> Stacks<M> {
    /// Creates an empty state; frames are resolved through `code`, which reads `memory`.
    pub fn new(memory: M, code: Option<CodeCache>) -> Self {
        Self {
            memory,
            code,
            modules: ModuleCalls::default(),
            rests: None,
            by_hash: Default::default(),
            ids: HashMap::new(),
            derived: HashMap::new(),
            defined: HashMap::new(),
            next: StackId::NONE.0 + 1,
        }
    }

    /// Reads the code objects of a stack as soon as it arrives; `None` if its hash is known already. The
    /// kernel programs send a stack again after they have forgotten that they sent it.
    pub fn read(&mut self, head: StackHead, frames: Vec<FrameRecord>) -> Option<Pending> {
        if self.by_hash(head.hash).is_some() {
            return None;
        }
        let mut found = FoundCode::default();
        let read = |frame: &FrameRecord| {
            let code = frame.code(&head);
            let resolved = match &mut self.code {
                Some(known) => {
                    let place = (known.instr_of(frame, code), frame.owner());
                    known.resolve_in_stack(&self.memory, code, place, &mut found)
                }
                None => Resolved::Unreadable,
            };
            Reading {
                resolved,
                is_final: false,
            }
        };
        let resolved: Vec<_> = frames.iter().map(read).collect();
        let readings = resolved.iter().map(|reading| &reading.resolved);
        let innermost = self.modules.innermost(&head, frames.iter().zip(readings));
        let (module, asked) = match innermost {
            Innermost::Is(module) => (module, None),
            Innermost::Asked(asked) => (Module::Unknown, Some((asked, Instant::now()))),
        };
        let context = Context {
            module,
            grad: grad_of(head.grad),
            ..Context::default()
        };
        Some(Pending {
            head,
            frames,
            resolved,
            context,
            asked,
        })
    }

    /// Asks again for the name of a stack's module. Returns true if the stack need not wait, even without a name.
    pub fn answer(&mut self, pending: &mut Pending, wait: Wait) -> bool {
        let Some((asked, since)) = &pending.asked else {
            return true;
        };
        match self.modules.ask_again(asked) {
            Some(module) => pending.context.module = module,
            None => {
                let now = Instant::now();
                let checks = self.modules.checks_since(asked);
                let is_late = is_late(now.duration_since(*since), checks);
                let rests = self.rests.is_some_and(|until| now < until);
                if wait == Wait::Allowed && !is_late && !rests {
                    return false;
                }
                if is_late && !rests {
                    self.rests = Some(now + PATIENCE * RESTS);
                }
                self.modules.give_up();
            }
        }
        pending.asked = None;
        true
    }

    /// Re-reads a freed code object in the pending stacks that refer to it, from the kernel's copy. The first
    /// read may have failed, or found another object at the address.
    pub fn freed<'a>(&mut self, freed: &FreedCode, pending: impl Iterator<Item = &'a mut Pending>) {
        self.modules.forget(freed.code);
        let Some(code) = &mut self.code else { return };
        let memory: PartialMemory = freed.memory.iter().cloned().collect();
        for pending in pending {
            let head = &pending.head;
            for (frame, reading) in pending.frames.iter().zip(&mut pending.resolved) {
                if frame.code(head) == freed.code && !reading.is_final {
                    let (instr, owner) = (code.instr_of(frame, freed.code), frame.owner());
                    *reading = Reading {
                        resolved: code.resolve_copy(&memory, freed.code, instr, owner),
                        is_final: true,
                    };
                }
            }
        }
        code.forget(freed.code);
    }

    /// Defines a stack that was read, and returns it if it is new.
    pub fn define(&mut self, pending: Pending) -> Option<(StackId, Arc<Stack>)> {
        let frame = |reading: Reading| match reading.resolved {
            Resolved::Frame(mut frame) => {
                let code = self.code.as_ref();
                let cell = code.and_then(|code| code.cell(&self.memory, &frame.file));
                frame.file = cell.unwrap_or(frame.file);
                Some(frame)
            }
            Resolved::Skip => None,
            Resolved::Unreadable => Some(unreadable()),
        };
        let mut frames: Vec<_> = pending.resolved.into_iter().filter_map(frame).collect();
        let truncated = pending.head.truncated != 0 || frames.len() > MAX_FRAMES;
        frames.truncate(MAX_FRAMES);
        let (id, new) = self.intern(Stack {
            context: pending.context,
            ..Stack::new(StackKind::Python, frames, truncated)
        })?;
        if self.by_hash[0].len() >= HASHES {
            self.by_hash.swap(0, 1);
            self.by_hash[0].clear();
        }
        self.by_hash[0].insert(pending.head.hash, id);
        Some((id, new?))
    }

    pub fn by_hash(&self, hash: u64) -> Option<StackId> {
        let mut generations = self.by_hash.iter();
        generations.find_map(|hashes| hashes.get(&hash)).copied()
    }

    /// Returns the stack of a thread without Python, for which the thread with the stack `waiting` waits.
    pub fn waiting(&mut self, thread: &Arc<str>, waiting: StackId) -> Interned {
        if !self.defined.contains_key(&waiting) {
            return self.unknown(thread, NoStack::NoPythonFrames);
        }
        let key = Derived::Waiting(thread.clone(), waiting);
        let interned = self.derive(waiting, key, |stack, _| {
            stack.kind = StackKind::Waiting {
                thread: thread.clone(),
            };
            // The waiting thread is still in its module, but its grad mode does not apply to this thread.
            stack.context = Context {
                module: std::mem::take(&mut stack.context.module),
                ..Context::default()
            };
        });
        interned.unwrap_or((StackId::NONE, None))
    }

    /// Returns the stack of a call into CUDA by native code at `caller`, with the stack `id` behind it.
    pub fn called(&mut self, id: StackId, caller: &Frame) -> Interned {
        let key = Derived::Called(id, caller.clone());
        let interned = self.derive(id, key, |stack, _| stack.frames.insert(0, caller.clone()));
        interned.unwrap_or((id, None))
    }

    /// Returns the stack `id` with the context of a node that the thread evaluates. `forward` is the stack of
    /// the operation that created the node.
    pub fn in_node(
        &mut self,
        id: StackId,
        (name, text): (NodeName, &Arc<str>),
        forward: Option<StackId>,
    ) -> Interned {
        let key = Derived::Evaluating(id, name, forward);
        let interned = self.derive(id, key, |stack, defined| {
            stack.context.node = Some(Arc::new(Node {
                name: text.clone(),
                forward: forward.and_then(|forward| defined.get(&forward).cloned()),
            }));
        });
        interned.unwrap_or((id, None))
    }

    /// Returns the stack that `change` makes of the stack `id`; `None` if that is unknown, or there are too many.
    fn derive(
        &mut self,
        id: StackId,
        key: Derived,
        change: impl FnOnce(&mut Stack, &HashMap<StackId, Arc<Stack>>),
    ) -> Option<Interned> {
        if let Some(id) = self.derived.get(&key) {
            return Some((*id, None));
        }
        let mut stack = Stack::clone(self.defined.get(&id)?);
        change(&mut stack, &self.defined);
        let interned = self.intern(stack)?;
        self.derived.insert(key, interned.0);
        Some(interned)
    }

    pub fn native(&mut self, unwound: &NativeStack) -> Interned {
        let (frames, truncated) = (unwound.frames.clone(), unwound.truncated);
        self.intern_or_none(Stack::new(StackKind::Native, frames, truncated))
    }

    pub fn unknown(&mut self, thread: &Arc<str>, reason: NoStack) -> Interned {
        let thread = thread.clone();
        let kind = StackKind::Unknown { thread, reason };
        self.intern_or_none(Stack::new(kind, Vec::new(), false))
    }

    fn intern_or_none(&mut self, stack: Stack) -> Interned {
        self.intern(stack).unwrap_or((StackId::NONE, None))
    }

    /// Returns the ID of a stack, new or known; `None` if there are too many stacks.
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

/// Returns true if a stack has waited long enough for the name of its module.
fn is_late(waited: Duration, checks: u64) -> bool {
    waited >= LONGEST || waited >= PATIENCE && checks >= CHECKS
}

fn grad_of(mode: u8) -> Grad {
    match mode {
        grad_mode::ENABLED => Grad::Enabled,
        grad_mode::DISABLED => Grad::Disabled,
        grad_mode::INFERENCE => Grad::Inference,
        _ => Grad::Unknown,
    }
}

fn unreadable() -> Frame {
    Frame {
        file: Frame::UNREADABLE.into(),
        line: 0,
        function: "?".into(),
        library: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_waits_longer_where_a_busy_machine_delays_the_checks() {
        assert!(!is_late(PATIENCE / 2, CHECKS));
        assert!(is_late(PATIENCE, CHECKS));
        assert!(!is_late(PATIENCE * 2, CHECKS - 1));
        assert!(is_late(LONGEST, 0));
    }
}

//! Threads that wait in `backward()` for the engine's threads, which run no Python.

use hashbrown::HashMap;

use crate::event::{NoStack, StackId, Tid};

/// The backward passes seen to start: the stack that waits for each `GraphTask`.
///
/// Addresses of `GraphTask`s are reused; each new one starts with another entry into the engine.
#[derive(Default)]
pub struct GraphTasks {
    stacks: HashMap<u64, StackId>,
}

const MAX_TASKS: usize = 65_536;

impl GraphTasks {
    pub fn begin(&mut self, graph_task: u64, stack: StackId) {
        if self.stacks.len() >= MAX_TASKS {
            self.stacks.clear();
        }
        self.stacks.insert(graph_task, stack);
    }

    /// Returns the stack that waits for `graph_task`; `None` for one that started before attach.
    pub fn waiting_for(&self, graph_task: u64) -> Option<StackId> {
        self.stacks.get(&graph_task).copied()
    }
}

/// The threads that have entered autograd's engine and are not known to have left it.
///
/// Used for PyTorch versions in which the `GraphTask` of a thread is unknown. The return from the engine is not probed,
/// because a return probe would cost more than the fact is worth. A thread has left once it acts from another stack.
#[derive(Default)]
pub struct Waiters {
    inside: HashMap<Tid, StackId>,
}

/// The most threads that are remembered as waiting.
const MOST: usize = 1024;

impl Waiters {
    pub fn enter(&mut self, tid: Tid, stack: StackId) {
        if self.inside.len() < MOST || self.inside.contains_key(&tid) {
            self.inside.insert(tid, stack);
        }
    }

    /// Records that `tid` acted from `stack`.
    pub fn seen(&mut self, tid: Tid, stack: StackId) {
        if !self.inside.is_empty() && self.inside.get(&tid).is_some_and(|inside| *inside != stack) {
            self.inside.remove(&tid);
        }
    }

    /// Returns the stack that waits for a thread without Python, if it is unique: one thread waits, or all
    /// waiting threads have the same stack.
    pub fn the_one(&self) -> Result<StackId, NoStack> {
        let mut stacks = self.inside.values();
        let Some(first) = stacks.next() else {
            return Err(NoStack::NoPythonFrames);
        };
        if stacks.all(|stack| stack == first) {
            Ok(*first)
        } else {
            Err(NoStack::SeveralWaiting)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backward_pass_has_the_stack_that_began_it_last() {
        let mut tasks = GraphTasks::default();
        assert_eq!(tasks.waiting_for(0x10), None);
        tasks.begin(0x10, StackId(5));
        tasks.begin(0x20, StackId(6));
        tasks.begin(0x10, StackId(7));
        assert_eq!(tasks.waiting_for(0x10), Some(StackId(7)));
        assert_eq!(tasks.waiting_for(0x20), Some(StackId(6)));
    }

    #[test]
    fn one_waiting_thread_is_named() {
        let mut waiters = Waiters::default();
        assert_eq!(waiters.the_one(), Err(NoStack::NoPythonFrames));
        waiters.enter(Tid(1), StackId(5));
        assert_eq!(waiters.the_one(), Ok(StackId(5)));
    }

    #[test]
    fn of_several_waiting_threads_none_is_named() {
        let mut waiters = Waiters::default();
        waiters.enter(Tid(1), StackId(5));
        waiters.enter(Tid(2), StackId(6));
        assert_eq!(waiters.the_one(), Err(NoStack::SeveralWaiting));
    }

    #[test]
    fn several_threads_that_wait_at_the_same_lines_are_named() {
        let mut waiters = Waiters::default();
        waiters.enter(Tid(1), StackId(5));
        waiters.enter(Tid(2), StackId(5));
        assert_eq!(waiters.the_one(), Ok(StackId(5)));
    }

    #[test]
    fn a_thread_that_continues_in_other_code_no_longer_waits() {
        let mut waiters = Waiters::default();
        waiters.enter(Tid(1), StackId(5));
        waiters.seen(Tid(1), StackId(5));
        assert_eq!(waiters.the_one(), Ok(StackId(5)), "still in the same call");
        waiters.seen(Tid(1), StackId(9));
        assert_eq!(waiters.the_one(), Err(NoStack::NoPythonFrames));
    }
}

//! Who waits in `backward()` for the threads that run no Python.

use hashbrown::HashMap;

use crate::event::{NoStack, StackId, Tid};

/// The threads that have entered autograd's engine and were not seen leaving it.
///
/// Leaving is not probed (a return probe would cost more than the fact is worth): a thread has
/// left when it does anything from another stack.
#[derive(Default)]
pub struct Waiters {
    inside: HashMap<Tid, StackId>,
}

/// The most threads that are remembered as waiting.
const MOST: usize = 1024;

impl Waiters {
    /// `tid` entered the engine from `stack`.
    pub fn enter(&mut self, tid: Tid, stack: StackId) {
        if self.inside.len() < MOST || self.inside.contains_key(&tid) {
            self.inside.insert(tid, stack);
        }
    }

    /// `tid` did something from `stack`.
    pub fn seen(&mut self, tid: Tid, stack: StackId) {
        if !self.inside.is_empty() && self.inside.get(&tid).is_some_and(|inside| *inside != stack) {
            self.inside.remove(&tid);
        }
    }

    /// The stack that waits for a thread without Python, where only one can be meant: one thread
    /// waits, or all that wait do so from the same lines.
    ///
    /// # Errors
    /// Why none is named.
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
    fn a_thread_that_goes_on_elsewhere_waits_no_more() {
        let mut waiters = Waiters::default();
        waiters.enter(Tid(1), StackId(5));
        waiters.seen(Tid(1), StackId(5));
        assert_eq!(waiters.the_one(), Ok(StackId(5)), "still in the same call");
        waiters.seen(Tid(1), StackId(9));
        assert_eq!(waiters.the_one(), Err(NoStack::NoPythonFrames));
    }
}

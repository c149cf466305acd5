//! A thread's stack of contexts, as far as it is known.

use crate::event::DeviceIndex;

/// The deepest stack of contexts that is followed.
const DEPTH: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StackedContext {
    /// Its number; `None` where that is not known.
    pub(super) context: Option<u64>,
    /// The device on which the runtime works while this is the current context, where the runtime said so.
    pub(super) runtime: Option<DeviceIndex>,
}

impl StackedContext {
    /// A context that was not set by the runtime.
    pub(super) fn of(context: u64) -> Self {
        Self {
            context: Some(context),
            runtime: None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    /// The last is current.
    stack: Vec<StackedContext>,
    /// True if `stack` is the whole stack; otherwise contexts below it are unknown.
    is_all: bool,
    /// The device whose context the runtime makes current where the thread has none.
    runtime: Option<DeviceIndex>,
}

impl Thread {
    pub(super) fn without_context() -> Self {
        Self {
            stack: Vec::new(),
            is_all: true,
            runtime: Some(DeviceIndex(0)),
        }
    }

    pub(super) fn top(&self) -> StackedContext {
        let without_context = StackedContext {
            context: None,
            runtime: self.runtime.filter(|_| self.is_all),
        };
        self.stack.last().copied().unwrap_or(without_context)
    }

    /// True if the thread is known to have no context.
    pub(super) fn is_empty(&self) -> bool {
        self.is_all && self.stack.is_empty()
    }

    pub(super) fn set(&mut self, entry: StackedContext) {
        self.stack.pop();
        self.stack.push(entry);
    }

    pub(super) fn push(&mut self, entry: StackedContext) {
        if self.stack.len() >= DEPTH {
            self.stack.remove(0);
            self.is_all = false;
        }
        self.stack.push(entry);
    }

    pub(super) fn pop(&mut self) {
        self.stack.pop();
    }

    /// The runtime works on that device from now on.
    pub(super) fn set_runtime(&mut self, device: DeviceIndex) {
        self.runtime = Some(device);
        if self.stack.is_empty() && !self.is_all {
            self.stack.push(StackedContext::default());
        }
        if let Some(top) = self.stack.last_mut() {
            top.runtime = Some(device);
        }
    }

    pub(super) fn has(&self, context: u64) -> bool {
        let mut stack = self.stack.iter();
        stack.any(|entry| entry.context == Some(context))
    }

    /// A context is not what it was.
    pub(super) fn lose(&mut self, context: u64) {
        for entry in &mut self.stack {
            if entry.context == Some(context) {
                entry.context = None;
            }
        }
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

//! Compares the module and the grad mode of every block with the process's own account.

use serde::Deserialize;

use crate::events::Event;

/// A process's own account of its modules.
#[derive(Debug, Deserialize)]
pub struct ModuleTruth {
    /// Threads that call modules.
    threads: Vec<ThreadMarks>,
    /// Accepted names of each module.
    names: Vec<Vec<String>>,
}

/// Marks of one thread.
#[derive(Debug, Deserialize)]
struct ThreadMarks {
    thread: u32,
    /// Number of blocks allocated before, then the innermost module and the grad mode from there
    /// on; `None` for a mode that the process took no note of.
    marks: Vec<(u64, Option<usize>, Option<String>)>,
}

impl ThreadMarks {
    /// Returns module and grad mode at the allocation of this block, counted from 1.
    fn at(&self, number: u64) -> Option<(Option<usize>, Option<&str>)> {
        let behind = self.marks.partition_point(|(blocks, ..)| *blocks < number);
        let (_, module, grad) = self.marks.get(behind.checked_sub(1)?)?;
        Some((*module, grad.as_deref()))
    }
}

/// Result of the comparison.
#[derive(Debug, Default)]
pub struct ModuleAgreement {
    pub in_a_module: usize,
    pub outside: usize,
    /// Compared blocks with grad disabled or in inference mode.
    pub without_grad: usize,
    /// Blocks whose module memprobe reports as unknown: in permanent modules, and in modules that
    /// live for one step. memprobe must never report a wrong module.
    pub unknown: usize,
    pub unknown_for_a_moment: usize,
    pub differences: Vec<String>,
}

impl ModuleAgreement {
    /// Compares the events of a process from its first block on. `is_short_lived` says of a
    /// module's name that the module lives for one step only, so that a later read may miss it.
    pub fn of(
        truth: &ModuleTruth,
        events: &[Event],
        is_short_lived: impl Fn(&str) -> bool,
    ) -> Self {
        let mut agreement = Self::default();
        let allocated = events.iter().filter(|event| event.action == "alloc");
        for (number, event) in (1..).zip(allocated) {
            let of_thread = |marks: &&ThreadMarks| event.tid == Some(marks.thread);
            let thread = truth.threads.iter().find(of_thread);
            let Some((module, grad)) = thread.and_then(|marks| marks.at(number)) else {
                continue;
            };
            if event.stack.is_empty() {
                continue;
            }
            if let Some(grad) = grad {
                agreement.compare_grad(number, event, grad);
            }
            let names = module.map(|module| truth.names[module].as_slice());
            agreement.compare(number, event, names, &is_short_lived);
        }
        agreement
    }

    fn compare_grad(&mut self, number: u64, event: &Event, grad: &str) {
        if event.grad.as_deref() != Some(grad) {
            let ours = &event.grad;
            self.differ(number, event, &format!("grad is {ours:?}, not {grad}"));
        }
        self.without_grad += usize::from(grad != "enabled");
    }

    fn compare(
        &mut self,
        number: u64,
        event: &Event,
        names: Option<&[String]>,
        is_short_lived: impl Fn(&str) -> bool,
    ) {
        let ours = event.module.as_deref();
        match names {
            Some(names) if event.module_unknown == Some(true) => {
                if names.iter().any(|name| is_short_lived(name)) {
                    self.unknown_for_a_moment += 1;
                } else {
                    self.unknown += 1;
                }
            }
            Some(names) if names.iter().any(|name| ours == Some(name)) => self.in_a_module += 1,
            None if event.module_unknown.is_none() && ours.is_none() => self.outside += 1,
            _ => self.differ(number, event, &format!("in {ours:?}, not in {names:?}")),
        }
    }

    fn differ(&mut self, number: u64, event: &Event, what: &str) {
        self.differences
            .push(format!("block {number}: {what}: {:?}", event.stack));
    }

    /// Blocks in modules and outside that were compared and found equal.
    pub fn equal(&self) -> usize {
        self.in_a_module + self.outside
    }
}

//! What a symbolizer knows of the modules that a process calls.

use super::Symbolizer;
use super::python::module_calls::NameModules;
use crate::target::memory::ReadMemory;

impl<M: ReadMemory> Symbolizer<M> {
    /// Names the modules on stacks by this from now on.
    pub fn set_module_names(&mut self, names: Box<dyn NameModules + Send>) {
        self.stacks.set_module_names(names);
    }

    /// The code object that every call of a `torch.nn.Module` passes, as far as it is known: the kernel
    /// tells of modules where it knows it.
    pub fn module_call(&self) -> Option<u64> {
        self.stacks.module_call()
    }

    /// Code objects of the process that this one is a copy of lie here at the same addresses.
    pub fn inherit_code(&mut self, parent: &Self) {
        self.stacks.inherit(&parent.stacks);
    }

    /// Whether stacks that were named may have other modules on them by now.
    /// `ran` tells for how long the process has run.
    pub fn look_at_modules(&mut self, ran: &dyn Fn() -> Option<u64>) -> bool {
        self.stacks.modules().look_again(ran)
    }
}

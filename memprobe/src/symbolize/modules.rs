//! Module names in the symbolizer.

use super::Symbolizer;
use crate::process::memory::ReadMemory;
use crate::torch::module_calls::NameModules;

impl<M: ReadMemory> Symbolizer<M> {
    pub fn set_module_names(&mut self, names: Box<dyn NameModules + Send>) {
        self.stacks.set_module_names(names);
    }

    /// Returns the code object that every call of a `torch.nn.Module` passes, if known. The kernel programs
    /// report modules only once they have it.
    pub fn module_call(&self) -> Option<u64> {
        self.stacks.module_call()
    }

    /// Takes over what is known of the parent's code objects; in a forked child they are at the same
    /// addresses.
    pub fn inherit_code(&mut self, parent: &Self) {
        self.stacks.inherit(&parent.stacks);
    }

    /// True if stacks that were already named may now have other modules. `ran` returns the CPU time of the
    /// process.
    pub fn look_at_modules(&mut self, ran: &dyn Fn() -> Option<u64>) -> bool {
        self.stacks.modules().look_again(ran)
    }
}

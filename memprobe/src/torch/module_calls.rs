//! Calls of `torch.nn.Module`s on a stack, and the code object that all of them pass.

use memprobe_common::{FrameRecord, StackHead};

use super::names::ModuleFunction;
use crate::event::{CallPaths, Module};
use crate::python::cache::Resolved;

/// Checks of unconfirmed modules after which most questions have their answer: twice as many as confirm a module tree,
/// since a tree may have to be read again once.
pub const CHECKS: u64 = 12;

pub trait NameModules {
    /// Returns the path of the last of these modules; each one was called by the one before.
    fn path(&mut self, calls: &Calls) -> Answer;

    /// Like [`Self::path`], for a question that [`Answer::Later`] deferred.
    fn path_later(&mut self, calls: &Calls, question: Question) -> Answer;

    /// Adds all modules that were called.
    fn add_paths(&self, known: &mut CallPaths);

    fn give_up(&mut self);

    /// Checks that the named modules still exist; `true` if a module named before may have another name now.
    /// `ran` returns the run time of the process, in any unit.
    fn look_again(&mut self, ran: &dyn Fn() -> Option<u64>) -> bool;

    /// Number of moments at which unconfirmed modules were checked so far.
    fn checks(&self) -> u64;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Is(Module),
    /// Not known yet: the module tree must first prove stable. Ask again in a moment.
    Later(Question),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question(pub u64);

#[derive(Debug)]
pub struct PendingModule {
    calls: Calls,
    question: Question,
    /// [`NameModules::checks`] at the time of the question.
    checks: u64,
}

#[derive(Debug)]
pub enum Innermost {
    Is(Module),
    Asked(PendingModule),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// The modules, outermost first; at least one.
    pub modules: Vec<ModuleCall>,
    /// True if outer calls may be missing.
    pub cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleCall {
    pub object: u64,
    /// The address of its class at the time of the call; 0 if unknown.
    pub class: u64,
}

impl ModuleCall {
    fn of(frame: &FrameRecord) -> Option<Self> {
        Some(Self {
            object: frame.module()?,
            class: frame.class(),
        })
    }
}

#[derive(Default)]
pub struct ModuleCalls {
    known: Option<(u64, ModuleFunction)>,
    names: Option<Box<dyn NameModules + Send>>,
}

impl ModuleCalls {
    pub fn set_names(&mut self, names: Box<dyn NameModules + Send>) {
        self.names = Some(names);
    }

    /// Returns the code object that every call of a module passes, once one was seen.
    pub fn code(&self) -> Option<u64> {
        self.known.map(|(code, _)| code)
    }

    pub fn inherit(&mut self, parent: &Self) {
        self.known = parent.known;
    }

    pub fn forget(&mut self, code: u64) {
        if self.code() == Some(code) {
            self.known = None;
        }
    }

    pub fn look_again(&mut self, ran: &dyn Fn() -> Option<u64>) -> bool {
        let names = self.names.as_mut();
        names.is_some_and(|names| names.look_again(ran))
    }

    pub fn innermost<'a>(
        &mut self,
        head: &StackHead,
        frames: impl Iterator<Item = (&'a FrameRecord, &'a Resolved)>,
    ) -> Innermost {
        let mut calls = Vec::new();
        for (frame, resolved) in frames {
            let callee = match resolved {
                Resolved::Frame(resolved) => ModuleFunction::of_frame(resolved),
                Resolved::Skip | Resolved::Unreadable => None,
            };
            calls.extend(callee.map(|callee| (callee, frame)));
        }
        let cut = head.truncated != 0;
        let Some(callee) = calls.iter().map(|(callee, _)| *callee).max() else {
            let module = if cut {
                Module::Unknown
            } else {
                Module::Outside
            };
            return Innermost::Is(module);
        };
        calls.retain(|call| call.0 == callee);
        let code = calls[0].1.code(head);
        if self.known.is_none_or(|(_, known)| known < callee) {
            self.known = Some((code, callee));
        }
        // Outermost first. A call that the kernel did not recognize as one leaves the path unknown.
        let modules = calls.iter().rev().map(|(_, call)| ModuleCall::of(call));
        let (Some(modules), Some(names)) = (modules.collect(), &mut self.names) else {
            return Innermost::Is(Module::Unknown);
        };
        let calls = Calls { modules, cut };
        match names.path(&calls) {
            Answer::Is(module) => Innermost::Is(module),
            Answer::Later(question) => Innermost::Asked(PendingModule {
                calls,
                question,
                checks: names.checks(),
            }),
        }
    }

    /// Asks again; `None` without an answer yet.
    pub fn ask_again(&mut self, asked: &PendingModule) -> Option<Module> {
        let Some(names) = &mut self.names else {
            return Some(Module::Unknown);
        };
        match names.path_later(&asked.calls, asked.question) {
            Answer::Is(module) => Some(module),
            Answer::Later(_) => None,
        }
    }

    /// Returns the number of checks of modules since a question was asked.
    pub fn checks_since(&self, asked: &PendingModule) -> u64 {
        let names = self.names.as_ref();
        names.map_or(0, |names| names.checks().saturating_sub(asked.checks))
    }

    pub fn add_paths(&self, known: &mut CallPaths) {
        if let Some(names) = &self.names {
            names.add_paths(known);
        }
    }

    pub fn give_up(&mut self) {
        if let Some(names) = &mut self.names {
            names.give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Frame;

    const WRAPPED: u64 = 0x1000;
    const PLAIN: u64 = 0x2000;

    /// Joins the addresses.
    struct Joined;

    impl NameModules for Joined {
        fn path(&mut self, calls: &Calls) -> Answer {
            let modules = calls.modules.iter().map(|called| called.object.to_string());
            Answer::Is(Module::Called(modules.collect::<Vec<_>>().join(".").into()))
        }

        fn path_later(&mut self, calls: &Calls, _: Question) -> Answer {
            self.path(calls)
        }

        fn add_paths(&self, _: &mut CallPaths) {}

        fn give_up(&mut self) {}

        fn look_again(&mut self, _: &dyn Fn() -> Option<u64>) -> bool {
            false
        }

        fn checks(&self) -> u64 {
            0
        }
    }

    fn calls() -> ModuleCalls {
        let mut calls = ModuleCalls::default();
        calls.set_names(Box::new(Joined));
        calls
    }

    fn frame(function: &str, word: u64) -> (FrameRecord, Resolved) {
        let record = FrameRecord {
            code_and_owner: word,
            instr: 0,
        };
        let frame = Frame {
            file: "/usr/lib/python3/torch/nn/modules/module.py".into(),
            line: 1,
            function: function.into(),
            library: None,
        };
        (record, Resolved::Frame(frame))
    }

    fn of(module: u64) -> u64 {
        module | FrameRecord::CALLS_MODULE
    }

    fn innermost(calls: &mut ModuleCalls, frames: &[(FrameRecord, Resolved)]) -> Module {
        let head = StackHead {
            module_call: WRAPPED,
            ..StackHead::default()
        };
        let frames = frames.iter().map(|(frame, resolved)| (frame, resolved));
        match calls.innermost(&head, frames) {
            Innermost::Is(module) => module,
            Innermost::Asked(asked) => panic!("{asked:?} has no answer"),
        }
    }

    fn called(path: &str) -> Module {
        Module::Called(path.into())
    }

    #[test]
    fn a_stack_without_a_call_of_a_module_is_outside_of_all() {
        let mut calls = calls();
        assert_eq!(innermost(&mut calls, &[frame("train", 9)]), Module::Outside);
        assert_eq!(calls.code(), None);
    }

    #[test]
    fn the_first_stack_with_a_call_says_which_code_calls_modules_and_not_which_one() {
        let mut calls = calls();
        let stack = [
            frame("_call_impl", PLAIN),
            frame("_wrapped_call_impl", WRAPPED),
        ];
        assert_eq!(innermost(&mut calls, &stack), Module::Unknown);
        assert_eq!(calls.code(), Some(WRAPPED));
        calls.forget(PLAIN);
        assert_eq!(calls.code(), Some(WRAPPED));
        calls.forget(WRAPPED);
        assert_eq!(calls.code(), None);
    }

    #[test]
    fn calls_are_named_from_the_outermost_on() {
        let stack = [
            frame("_call_impl", PLAIN),
            frame("_wrapped_call_impl", of(8)),
            frame("forward", 9),
            frame("_call_impl", PLAIN),
            frame("_wrapped_call_impl", of(4)),
        ];
        assert_eq!(innermost(&mut calls(), &stack), called("4.8"));
    }

    #[test]
    fn before_2_1_the_only_function_of_a_call_is_the_other_one() {
        let mut calls = calls();
        let before = [frame("_call_impl", PLAIN)];
        assert_eq!(innermost(&mut calls, &before), Module::Unknown);
        assert_eq!(calls.code(), Some(PLAIN));
        assert_eq!(
            innermost(&mut calls, &[frame("_call_impl", of(4))]),
            called("4")
        );
        // A call of the preferred function replaces the code object.
        innermost(&mut calls, &[frame("_wrapped_call_impl", WRAPPED)]);
        assert_eq!(calls.code(), Some(WRAPPED));
    }

    #[test]
    fn a_call_of_which_the_module_is_missing_leaves_those_within_unknown() {
        let stack = [
            frame("_wrapped_call_impl", of(8)),
            frame("_wrapped_call_impl", WRAPPED),
        ];
        assert_eq!(innermost(&mut calls(), &stack), Module::Unknown);
    }

    #[test]
    fn functions_of_such_names_in_other_files_call_no_modules() {
        let (record, _) = frame("_call_impl", PLAIN);
        let frame = Frame {
            file: "module.py".into(),
            line: 1,
            function: "_call_impl".into(),
            library: None,
        };
        let stack = [(record, Resolved::Frame(frame))];
        assert_eq!(innermost(&mut calls(), &stack), Module::Outside);
    }
}

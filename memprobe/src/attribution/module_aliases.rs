//! Module aliases: maps the path of a module in the heap to its path in calls.
//!
//! A parameter's module is named after the variable that holds the model (`model.layers.0`). A block's module
//! is named after the class of the outermost module called (`GPT.layers.0`). A gradient has both names: one
//! from its parameter, the other from the operation whose backward pass allocated it. Their common suffix
//! leaves the pair of roots. A module that was seen in a call has both names too. Before that, the class of the
//! root module decides, if it is unique.

use std::collections::HashMap;
use std::sync::Arc;

use super::allocation_groups::{AllocationGroup, ModuleScope, place_of};
use super::modules::ModuleRow;
use crate::event::tensors::TensorKind;
use crate::event::{BlockLabels, CallPathOrigin, LabeledBlock, Module, Stack};

/// Cap on roots; modules under further ones keep their heap path.
const MAX_ROOTS: usize = 1 << 12;

/// Module that holds a block, by a heap snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum HoldingModule {
    /// By its path in calls.
    Called(Arc<str>),
    /// By its path in the heap.
    Held(Arc<str>),
}

impl HoldingModule {
    pub(super) fn of(named: &LabeledBlock) -> Option<Self> {
        match &named.called {
            Some(called) if called.origin == CallPathOrigin::Call => {
                Some(Self::Called(Arc::clone(&called.path)))
            }
            _ => named.module.clone().map(Self::Held),
        }
    }
}

/// Pairs of holder (root path in the heap) and class (root path in calls).
#[derive(Clone, Debug, Default)]
pub(super) struct ModuleAliases {
    /// Called class by holder, from gradients and calls; `None` if ambiguous.
    known: HashMap<Arc<str>, Option<Arc<str>>>,
    /// Class of the module that a holder refers to; `None` if ambiguous.
    classes: HashMap<Arc<str>, Option<Arc<str>>>,
    /// Holder by class of its module; `None` if ambiguous.
    holders: HashMap<Arc<str>, Option<Arc<str>>>,
}

impl ModuleAliases {
    /// Learns from a block in a heap snapshot; `stack` allocated it.
    pub(super) fn learn(&mut self, named: &LabeledBlock, stack: &Stack) {
        let Some(held) = &named.module else { return };
        match (named.kind, &named.called) {
            (_, Some(called)) if called.origin == CallPathOrigin::Call => {
                if let Some((holder, root)) = roots_of(held, &called.path) {
                    note(&mut self.known, holder, root);
                    // Another holder of the class has another module.
                    let class = root.split_once('#').map_or(root, |(class, _)| class);
                    note(&mut self.holders, class, holder);
                }
            }
            (Some(TensorKind::Gradient), _) => {
                if let ModuleScope::Module(called) = place_of(stack).0
                    && let Some((holder, class)) = roots_of(held, &called)
                {
                    note(&mut self.known, holder, class);
                }
            }
            (Some(TensorKind::Parameter | TensorKind::Buffer), Some(called)) => {
                if let Some((holder, class)) = roots_of(held, &called.path) {
                    note(&mut self.classes, holder, class);
                    note(&mut self.holders, class, holder);
                }
            }
            _ => {}
        }
    }

    /// Call path of a module; its heap path if unknown.
    pub(super) fn called(&self, module: &HoldingModule) -> Arc<str> {
        let held = match module {
            HoldingModule::Called(path) => return Arc::clone(path),
            HoldingModule::Held(held) => held,
        };
        let ends = || {
            let ends = held.match_indices('.').map(|(at, _)| at);
            ends.chain([held.len()])
        };
        let known = ends().find_map(|end| Some((self.known.get(&held[..end])?.as_ref()?, end)));
        let known = known.or_else(|| ends().find_map(|end| Some((self.only(&held[..end])?, end))));
        match known {
            Some((class, end)) => format!("{class}{}", &held[end..]).into(),
            None => Arc::clone(held),
        }
    }

    /// Class of the module that a holder refers to, if no other holder has one of that class.
    fn only(&self, holder: &str) -> Option<&Arc<str>> {
        let class = self.classes.get(holder)?.as_ref()?;
        let is_only = self.holders.get(class)?.is_some();
        is_only.then_some(class)
    }
}

/// Variables that hold the outermost modules called. They name modules whose class has several roots.
#[derive(Clone, Debug, Default)]
pub struct RootVariables {
    /// Variable by root path in calls; `None` if ambiguous.
    variables: HashMap<Arc<str>, Option<Arc<str>>>,
    /// Root by variable; `None` if ambiguous.
    roots: HashMap<Arc<str>, Option<Arc<str>>>,
}

impl RootVariables {
    pub fn learn(&mut self, names: &BlockLabels) {
        for named in &names.blocks {
            if let (Some(held), Some(called)) = (&named.module, &named.called)
                && called.origin == CallPathOrigin::Call
                && let Some((holder, root)) = roots_of(held, &called.path)
            {
                note(&mut self.variables, root, holder);
                note(&mut self.roots, holder, root);
            }
        }
    }

    /// Variable of a root such as `Net` or `Net#2`; `None` if its class has one root only.
    fn variable(&self, root: &str) -> Option<&Arc<str>> {
        let variable = self.variables.get(root)?.as_ref()?;
        let is_only = self.roots.get(variable)?.is_some();
        let has_several = root.contains('#') || self.variables.contains_key(&*format!("{root}#2"));
        (is_only && has_several).then_some(variable)
    }

    /// Path of a module in calls, from the variable of its root if that tells more than the class.
    pub fn named(&self, path: &Arc<str>) -> Arc<str> {
        let root = path.split_once('.').map_or(&**path, |(root, _)| root);
        match self.variable(root) {
            Some(variable) => format!("{variable}{}", &path[root.len()..]).into(),
            None => Arc::clone(path),
        }
    }

    /// Returns a group whose module is named as in [`Self::named`].
    pub(super) fn named_group(&self, group: &AllocationGroup) -> AllocationGroup {
        let mut group = group.clone();
        if let ModuleScope::Module(path) = &group.origin.place {
            let name = self.named(path);
            if name != *path {
                Arc::make_mut(&mut group.origin).place = ModuleScope::Module(name);
            }
        }
        group
    }

    pub(super) fn named_module(&self, module: &Module) -> Module {
        match module {
            Module::Called(path) => Module::Called(self.named(path)),
            Module::Outside | Module::Unknown => module.clone(),
        }
    }

    pub(super) fn name_roots<S>(&self, rows: &mut [ModuleRow<S>]) {
        for row in rows {
            row.name = self.named(&row.name);
        }
    }
}

/// Stores a pair; a contradiction makes it ambiguous.
fn note(known: &mut HashMap<Arc<str>, Option<Arc<str>>>, of: &str, is: &str) {
    if let Some(known) = known.get_mut(of) {
        if known.as_deref() != Some(is) {
            *known = None;
        }
    } else if known.len() < MAX_ROOTS {
        known.insert(of.into(), Some(is.into()));
    }
}

/// Roots of the two paths of a module: its holder and its class.
fn roots_of<'a>(held: &'a str, called: &'a str) -> Option<(&'a str, &'a str)> {
    let shared = shared_end(held, called);
    let holder = held[..held.len() - shared].trim_end_matches('.');
    let class = called[..called.len() - shared].trim_end_matches('.');
    // Paths that differ beyond the roots mean a parameter used by another module.
    let is_root = !holder.is_empty() && !class.is_empty() && !class.contains('.');
    is_root.then_some((holder, class))
}

/// Bytes of the common suffix of whole names. The first name of each path is never part of it.
fn shared_end(one: &str, other: &str) -> usize {
    let (mut one, mut other, mut shared) = (one, other, 0);
    while let (Some((before, name)), Some((others, same))) =
        (one.rsplit_once('.'), other.rsplit_once('.'))
    {
        if name != same {
            break;
        }
        shared += name.len() + 1;
        (one, other) = (before, others);
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::allocation_groups::samples;
    use crate::event::{Address, Bytes, CalledModule, DeviceIndex, Tgid, TimeNs};

    fn called(roots: &ModuleAliases, held: &str) -> String {
        let module = HoldingModule::Held(held.into());
        roots.called(&module).to_string()
    }

    /// Learns the two paths of a gradient's module.
    fn hear(roots: &mut ModuleAliases, held: &str, called: &str) {
        if let Some((holder, class)) = roots_of(held, called) {
            note(&mut roots.known, holder, class);
        }
    }

    /// Learns a parameter from a heap snapshot.
    fn learn_of_parameter(roots: &mut ModuleAliases, held: &str, called: &str) {
        learn(roots, held, called, CallPathOrigin::Class);
    }

    fn learn(roots: &mut ModuleAliases, held: &str, called: &str, origin: CallPathOrigin) {
        roots.learn(&labeled(held, called, origin), &samples::called(1, ""));
    }

    fn labeled(held: &str, called: &str, origin: CallPathOrigin) -> LabeledBlock {
        LabeledBlock {
            addr: Address(512),
            size: Bytes(512),
            device: DeviceIndex::CPU,
            kind: Some(TensorKind::Parameter),
            name: None,
            module: Some(held.into()),
            called: Some(CalledModule {
                path: called.into(),
                origin,
            }),
            saved_by: None,
            retainer: None,
            is_saved_variable: false,
        }
    }

    #[test]
    fn before_gradients_the_class_of_the_root_decides() {
        let mut roots = ModuleAliases::default();
        learn_of_parameter(&mut roots, "self.model.layers.0", "GPT.layers.0");
        assert_eq!(called(&roots, "self.model.head"), "GPT.head");
        // Pairs from gradients take precedence: a wrapper may hold the model without being called.
        learn_of_parameter(&mut roots, "wrapper.net.head", "Wrapper.net.head");
        assert_eq!(called(&roots, "wrapper.net"), "Wrapper.net");
        hear(&mut roots, "wrapper.net.head", "Net.head");
        assert_eq!(called(&roots, "wrapper.net"), "Net");
    }

    #[test]
    fn calls_distinguish_two_models_of_one_class() {
        let mut roots = ModuleAliases::default();
        learn(&mut roots, "net.0", "Net.0", CallPathOrigin::Call);
        learn_of_parameter(&mut roots, "average.0", "Net.0");
        assert_eq!(called(&roots, "net.1"), "Net.1");
        assert_eq!(called(&roots, "average.1"), "average.1");
    }

    #[test]
    fn two_models_of_one_class_stay_ambiguous() {
        let mut roots = ModuleAliases::default();
        learn_of_parameter(&mut roots, "student.head", "Net.head");
        learn_of_parameter(&mut roots, "teacher.head", "Net.head");
        assert_eq!(called(&roots, "teacher.head"), "teacher.head");
    }

    #[test]
    fn a_holder_and_a_class_are_the_same_model_where_only_they_differ() {
        let mut roots = ModuleAliases::default();
        hear(&mut roots, "self.model.layers.0.mlp", "GPT.layers.0.mlp");
        assert_eq!(called(&roots, "self.model.head"), "GPT.head");
        assert_eq!(called(&roots, "self.model"), "GPT");
        assert_eq!(called(&roots, "self.models.head"), "self.models.head");
    }

    #[test]
    fn a_model_that_is_one_module_is_known_too() {
        let mut roots = ModuleAliases::default();
        hear(&mut roots, "layer", "Linear");
        assert_eq!(called(&roots, "layer"), "Linear");
    }

    #[test]
    fn a_parameter_that_another_module_uses_says_nothing() {
        let mut roots = ModuleAliases::default();
        hear(&mut roots, "model.embed", "GPT.head");
        assert_eq!(called(&roots, "model.embed"), "model.embed");
    }

    #[test]
    fn where_two_models_go_by_one_name_it_stays() {
        let mut roots = ModuleAliases::default();
        hear(&mut roots, "nets.0", "Sequential.0");
        hear(&mut roots, "nets.1", "Sequential#2.1");
        assert_eq!(called(&roots, "nets.0"), "nets.0");
    }

    #[test]
    fn roots_of_one_class_go_by_their_variables() {
        let mut roots = RootVariables::default();
        let learn = |roots: &mut RootVariables, pairs: &[[&str; 2]]| {
            let blocks = pairs
                .iter()
                .map(|[held, called]| labeled(held, called, CallPathOrigin::Call));
            roots.learn(&BlockLabels {
                time: TimeNs(1),
                tgid: Tgid(7),
                optimizers: Vec::new(),
                tags: Vec::new(),
                blocks: blocks.collect(),
            });
        };
        let named = |roots: &RootVariables, path: &str| roots.named(&path.into()).to_string();
        learn(
            &mut roots,
            &[["G.0", "Sequential.0"], ["model.head", "GPT.head"]],
        );
        assert_eq!(
            named(&roots, "Sequential.2"),
            "Sequential.2",
            "the only one"
        );
        learn(&mut roots, &[["D.0", "Sequential#2.0"]]);
        assert_eq!(named(&roots, "Sequential.2"), "G.2");
        assert_eq!(named(&roots, "Sequential#2"), "D");
        assert_eq!(named(&roots, "Sequential#3.0"), "Sequential#3.0");
        assert_eq!(named(&roots, "GPT.head"), "GPT.head");
        // A variable that held both names neither.
        learn(&mut roots, &[["D.0", "Sequential#3.0"]]);
        assert_eq!(named(&roots, "Sequential#2"), "Sequential#2");
    }
}

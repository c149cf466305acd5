//! How modules are called when their tensors are named, and how when they ask for memory.
//!
//! A parameter's module is named after what holds the model (`model.layers.0`), a block's after the class of the outermost module that
//! was called (`GPT.layers.0`). A gradient has both names: its parameter is in the one, and the operation whose backward pass made it
//! was done in the other. From where they begin to differ follows which root is which.

use std::collections::HashMap;
use std::sync::Arc;

use super::parts::{Place, place_of};
use crate::event::{NamedBlock, Stack};
use crate::tensors::TensorKind;

/// Roots that are told apart; what comes on top keeps its name.
const MOST_ROOTS: usize = 1 << 12;

/// Which holder's model is which class's.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// The class of a holder's model; `None` where several were heard.
    known: HashMap<Arc<str>, Option<Arc<str>>>,
}

impl Roots {
    /// Hears what the process's objects say of a block, which this stack made.
    pub(super) fn hear_of(&mut self, named: &NamedBlock, stack: &Stack) {
        if named.kind != Some(TensorKind::Gradient) {
            return;
        }
        if let (Some(module), Place::Module(called)) = (&named.module, place_of(stack).0) {
            self.hear(module, &called);
        }
    }

    /// Hears both names of one module.
    fn hear(&mut self, held: &str, called: &str) {
        let shared = shared_end(held, called);
        let holder = held[..held.len() - shared].trim_end_matches('.');
        let class = called[..called.len() - shared].trim_end_matches('.');
        // Where not only the roots differ, one module used another's parameter.
        if holder.is_empty() || class.is_empty() || class.contains('.') {
            return;
        }
        if let Some(known) = self.known.get_mut(holder) {
            if known.as_deref() != Some(class) {
                *known = None;
            }
        } else if self.known.len() < MOST_ROOTS {
            self.known.insert(holder.into(), Some(class.into()));
        }
    }

    /// The path of a module as it is called; as it is held where that is not known.
    pub(super) fn called(&self, held: &Arc<str>) -> Arc<str> {
        let ends = held.match_indices('.').map(|(at, _)| at);
        for end in ends.chain([held.len()]) {
            if let Some(Some(class)) = self.known.get(&held[..end]) {
                return format!("{class}{}", &held[end..]).into();
            }
        }
        Arc::clone(held)
    }
}

/// Bytes of the names at the end that both paths share; the first name of each is its root's.
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

    fn called(roots: &Roots, held: &str) -> String {
        roots.called(&held.into()).to_string()
    }

    #[test]
    fn a_holder_and_a_class_are_the_same_model_where_only_they_differ() {
        let mut roots = Roots::default();
        roots.hear("self.model.layers.0.mlp", "GPT.layers.0.mlp");
        assert_eq!(called(&roots, "self.model.head"), "GPT.head");
        assert_eq!(called(&roots, "self.model"), "GPT");
        assert_eq!(called(&roots, "self.models.head"), "self.models.head");
    }

    #[test]
    fn a_model_that_is_one_module_is_known_too() {
        let mut roots = Roots::default();
        roots.hear("layer", "Linear");
        assert_eq!(called(&roots, "layer"), "Linear");
    }

    #[test]
    fn a_parameter_that_another_module_uses_says_nothing() {
        let mut roots = Roots::default();
        roots.hear("model.embed", "GPT.head");
        assert_eq!(called(&roots, "model.embed"), "model.embed");
    }

    #[test]
    fn where_two_models_go_by_one_name_it_stays() {
        let mut roots = Roots::default();
        roots.hear("nets.0", "Sequential.0");
        roots.hear("nets.1", "Sequential#2.1");
        assert_eq!(called(&roots, "nets.0"), "nets.0");
    }
}

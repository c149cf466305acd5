//! The tree of `torch.nn.Module`s, and PyTorch's names for its members.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::contents::{BUFFERS, MODULES, PARAMETERS};
use super::{Heap, shortened};
use crate::process::memory::ReadMemory;

const LONGEST_PATH: usize = 1024;

/// Most modules, and most parameters, buffers and children of all modules together.
const MAX_MODULES: usize = 1 << 17;
const MAX_HELD: usize = 1 << 21;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleObject {
    pub object: u64,
    pub class: Arc<str>,
    pub class_address: u64,
    /// `_parameters`: name and tensor.
    pub parameters: Vec<(Arc<str>, u64)>,
    /// `_buffers`: name and tensor.
    pub buffers: Vec<(Arc<str>, u64)>,
    /// `_modules`: name and module.
    pub children: Vec<(Arc<str>, u64)>,
}

pub fn read(heap: &Heap<'_, impl ReadMemory>, objects: &[u64]) -> Vec<ModuleObject> {
    let mut left = MAX_HELD;
    let objects = objects.iter().take(MAX_MODULES);
    let modules = objects.filter_map(|&object| module(heap, object, &mut left));
    modules.collect()
}

fn module(heap: &Heap<'_, impl ReadMemory>, object: u64, left: &mut usize) -> Option<ModuleObject> {
    let class = heap.class_of(object)?;
    // Unreadable attributes count as absent.
    let (dicts, _) = heap.attributes_of(&class, object, [PARAMETERS, BUFFERS, MODULES]);
    let [parameters, buffers, children] = dicts.map(|dict| {
        let mut named = Vec::new();
        if let Some(dict) = dict {
            let _ = heap.entries(dict, |entry| {
                if *left > 0 {
                    *left -= 1;
                    named.extend(heap.text(entry.key).map(|name| (name, entry.value)));
                }
            });
        }
        named
    });
    Some(ModuleObject {
        object,
        class: class.short_name().into(),
        class_address: class.address,
        parameters,
        buffers,
        children,
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModulePlace {
    pub root: usize,
    /// Path from the root, as `named_modules()` gives it; empty for the root.
    pub path: Arc<str>,
}

#[derive(Clone, Debug, Default)]
pub struct ObjectTree {
    pub modules: Vec<ModuleObject>,
    /// First position of each module (`Module.named_modules` in `torch/nn/modules/module.py`@v2.15.0).
    pub places: Vec<ModulePlace>,
    /// Indices of the modules in the order of `named_modules()`.
    pub order: Vec<usize>,
    /// Further positions of modules that occur several times, as (index, position).
    pub others: Vec<(usize, ModulePlace)>,
}

impl ObjectTree {
    /// Assigns positions as `named_modules()` does, starting from every module that no other module holds.
    pub fn of(modules: Vec<ModuleObject>) -> Self {
        let objects = modules.iter().map(|module| module.object);
        let by_object: HashMap<u64, usize> = objects.zip(0..).collect();
        let children = modules.iter().flat_map(|module| &module.children);
        let held: HashSet<u64> = children.map(|(_, child)| *child).collect();
        let mut walk = Walk {
            places: vec![None; modules.len()],
            order: Vec::with_capacity(modules.len()),
            others: Vec::new(),
            modules: &modules,
            by_object,
        };
        for (root, module) in modules.iter().enumerate() {
            if !held.contains(&module.object) {
                walk.from(root);
            }
        }
        // The remaining modules are in cycles.
        for root in 0..modules.len() {
            walk.from(root);
        }
        let (others, order) = (walk.others, walk.order);
        // The walk has placed every module.
        Self {
            places: walk.places.into_iter().flatten().collect(),
            order,
            others,
            modules,
        }
    }

    pub fn every_place(&self) -> impl Iterator<Item = (&ModuleObject, &ModulePlace)> {
        let firsts = self.order.iter();
        let firsts = firsts.filter_map(|&at| Some((at, self.places.get(at)?)));
        let others = self.others.iter().map(|(at, place)| (*at, place));
        let all = firsts.chain(others);
        all.filter_map(|(at, place)| Some((self.modules.get(at)?, place)))
    }
}

struct Walk<'a> {
    modules: &'a [ModuleObject],
    by_object: HashMap<u64, usize>,
    places: Vec<Option<ModulePlace>>,
    order: Vec<usize>,
    others: Vec<(usize, ModulePlace)>,
}

impl Walk<'_> {
    /// Assigns positions to a module and its descendants, each module before its children and these in order.
    fn from(&mut self, root: usize) {
        // The index of a module, with the parent and child number by which it is met.
        let mut left = vec![(root, None)];
        while let Some((at, met)) = left.pop() {
            let known = self.places[at].is_some();
            if known && (met.is_none() || self.others.len() >= self.modules.len()) {
                continue;
            }
            let path = met.map_or_else(|| "".into(), |(parent, number)| self.path(parent, number));
            let place = ModulePlace { root, path };
            if known {
                self.others.push((at, place));
                continue;
            }
            for (number, (_, child)) in self.modules[at].children.iter().enumerate().rev() {
                if let Some(&child) = self.by_object.get(child) {
                    left.push((child, Some((at, number))));
                }
            }
            self.places[at] = Some(place);
            self.order.push(at);
        }
    }

    fn path(&self, parent: usize, number: usize) -> Arc<str> {
        let (name, _) = &self.modules[parent].children[number];
        let parent = self.places[parent].as_ref();
        joined(parent.map_or("", |place| &place.path), name)
    }
}

/// Joins `layers.0` and `weight` to `layers.0.weight`. Shortens long paths.
pub fn joined(path: &str, name: &str) -> Arc<str> {
    if path.is_empty() {
        return name.into();
    }
    if path.len() + name.len() > LONGEST_PATH {
        return format!("….{}", shortened(name, LONGEST_PATH / 2)).into();
    }
    format!("{path}.{name}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(object: u64, parameters: &[(&str, u64)], children: &[(&str, u64)]) -> ModuleObject {
        let named = |pairs: &[(&str, u64)]| {
            let pairs = pairs.iter();
            pairs.map(|&(name, object)| (name.into(), object)).collect()
        };
        ModuleObject {
            object,
            class: "Net".into(),
            class_address: 0,
            parameters: named(parameters),
            buffers: Vec::new(),
            children: named(children),
        }
    }

    fn paths(tree: &ObjectTree) -> Vec<&str> {
        tree.places.iter().map(|place| &*place.path).collect()
    }

    #[test]
    fn modules_have_the_paths_of_named_modules() {
        let tree = ObjectTree::of(vec![
            module(3, &[], &[]),
            module(1, &[], &[("a", 2), ("b", 3)]),
            module(2, &[], &[("0", 4)]),
            module(4, &[], &[]),
        ]);
        assert_eq!(paths(&tree), ["b", "", "a", "a.0"]);
        assert!(tree.places.iter().all(|place| place.root == 1));
    }

    #[test]
    fn a_module_in_two_places_has_the_first_one_and_another() {
        let tree = ObjectTree::of(vec![
            module(1, &[], &[("head", 2), ("tail", 2)]),
            module(2, &[], &[]),
        ]);
        assert_eq!(paths(&tree), ["", "head"]);
        assert_eq!(&*tree.others[0].1.path, "tail");
        assert_eq!(tree.every_place().count(), 3);
    }

    #[test]
    fn modules_that_hold_one_another_have_places_all_the_same() {
        let tree = ObjectTree::of(vec![
            module(1, &[], &[("other", 2)]),
            module(2, &[], &[("one", 1), ("me", 2)]),
        ]);
        assert_eq!(paths(&tree), ["", "other"]);
    }

    #[test]
    fn a_very_deep_tree_has_paths_of_bounded_length() {
        let deep = |object| module(object, &[], &[("a_rather_long_name", object + 1)]);
        let tree = ObjectTree::of((0..2_000).map(deep).collect());
        assert!(
            paths(&tree)
                .iter()
                .all(|path| path.len() <= LONGEST_PATH + 32)
        );
    }
}

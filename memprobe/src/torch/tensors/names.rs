//! Names tensors. The best name comes first: parameter, buffer, optimizer state, gradient, path
//! from a global or from a variable of a function.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::tensor_objects::TensorObjects;
use crate::event::tensors::{Name, Tensor, TensorKind};
use crate::event::{CallPathOrigin, CalledModule, ModuleAddress};
use crate::process::memory::ReadMemory;
use crate::python::heap::modules::{ModuleObject, ModulePlace, ObjectTree, joined};
use crate::python::heap::optimizers::Optimizers;
use crate::python::heap::paths::{PathBuffer, Paths};
use crate::torch::objects::TensorImplClass;

const MAX_NAMES: usize = 16;

/// Most bytes of path names.
const MAX_TEXT: usize = 256 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct ResolvedName {
    /// Purpose of the tensor according to its names; `None` if they do not show one.
    pub(super) kind: Option<TensorKind>,
    pub(super) names: Vec<Name>,
    /// Path of its module, from the variable that holds the root.
    pub(super) module: Option<Arc<str>>,
    /// The same path from the class of the root.
    pub(super) called: Option<CalledModule>,
}

impl ResolvedName {
    fn add(&mut self, kind: Option<TensorKind>, name: Name) {
        self.kind = self.kind.or(kind);
        self.add_name(name);
    }

    fn add_name(&mut self, name: Name) {
        if self.lacks(&name.text) {
            // Most tensors have one name.
            self.names.reserve_exact(usize::from(self.names.is_empty()));
            self.names.push(name);
        }
    }

    fn add_path(&mut self, text: &str) {
        if self.lacks(text) {
            self.add_name(exact(text.into()));
        }
    }

    /// True if there is room for a name, and none with this text.
    fn lacks(&self, text: &str) -> bool {
        self.names.len() < MAX_NAMES && self.names.iter().all(|known| &*known.text != text)
    }

    /// Takes the module of the parameter that it belongs to.
    fn belongs_to(&mut self, parameter: &Self) {
        if self.module.is_none() {
            self.module = parameter.module.clone();
            self.called = parameter.called.clone();
        }
    }
}

/// Names every tensor of a snapshot. `of_python` has the tensors of Python objects.
pub fn name(
    paths: &Paths<'_, impl ReadMemory>,
    tree: &ObjectTree,
    optimizers: &Optimizers,
    of_python: &TensorObjects,
    tensors: &[Tensor],
) -> Vec<ResolvedName> {
    let mut namer = Namer {
        paths,
        of_python,
        named: vec![ResolvedName::default(); tensors.len()],
    };
    namer.name_modules(tree);
    namer.name_optimizers(optimizers);
    namer.name_gradients(tensors);
    namer.name_paths();
    namer.named
}

/// Reads all memory that [`name`] needs.
pub fn touch(
    paths: &Paths<'_, impl ReadMemory>,
    tree: &ObjectTree,
    optimizers: &Optimizers,
    of_python: &TensorObjects,
) {
    let modules = tree.modules.iter().zip(&tree.places).enumerate();
    let roots = modules.filter(|(at, (_, place))| place.root == *at);
    let roots = roots.map(|(_, (module, _))| module.object);
    for object in roots.chain(optimizers.of_equal_class()) {
        paths.to_object(object);
    }
    each_path(paths, of_python, |_, _| ());
}

/// Calls `each` with the index of every tensor and the paths to it, up to a limit of all texts.
fn each_path(
    paths: &Paths<'_, impl ReadMemory>,
    of_python: &TensorObjects,
    mut each: impl FnMut(usize, &str),
) {
    let (mut bytes, mut buffer) = (0, PathBuffer::default());
    // In the order of their addresses, objects that lie side by side are read one after the other, and the same ones
    // have a name whenever there is too much text.
    for (object, at) in of_python.iter() {
        if bytes > MAX_TEXT {
            return;
        }
        paths.each_text(object, 2 * MAX_NAMES, &mut buffer, |text| {
            bytes += text.len();
            each(at, text);
        });
    }
}

struct Namer<'a, M> {
    paths: &'a Paths<'a, M>,
    of_python: &'a TensorObjects,
    named: Vec<ResolvedName>,
}

impl<M: ReadMemory> Namer<'_, M> {
    /// Gives parameters and buffers the names of `named_parameters()` and `named_buffers()`.
    fn name_modules(&mut self, tree: &ObjectTree) {
        let modules = tree.modules.iter().zip(&tree.places).enumerate();
        let holders = modules.map(|(at, (module, place))| {
            // Only roots need a holder.
            let is_root = place.root == at;
            let name = is_root.then(|| self.holder(module.object)).flatten();
            name.filter(|name| !name.is_empty())
        });
        let holders: Vec<_> = holders.collect();
        let colliding = colliding(tree);
        for kind in [TensorKind::Parameter, TensorKind::Buffer] {
            for (module, place) in tree.every_place() {
                let holder = holders.get(place.root).and_then(Option::as_deref);
                let tensors = match kind {
                    TensorKind::Parameter => &module.parameters,
                    _ => &module.buffers,
                };
                for (name, tensor) in tensors {
                    let Some(at) = self.of_python.tensor(*tensor) else {
                        continue;
                    };
                    let text = joined(&place.path, name);
                    let root = &tree.modules[place.root];
                    let name = match colliding.contains(&place.root) {
                        true => prefixed(holder, root, &text),
                        false => exact(text),
                    };
                    let named = &mut self.named[at];
                    named.add(Some(kind), name);
                    if named.module.is_none() {
                        named.module = module_path(holder, place);
                        named.called = called_module(module, root, place);
                    }
                }
            }
        }
    }

    /// Name of the root of modules.
    fn holder(&self, module: u64) -> Option<String> {
        Some(self.paths.to_object(module)?.name)
    }

    /// Names the state after the optimizer's class, or after its variable if the class has several optimizers.
    fn name_optimizers(&mut self, optimizers: &Optimizers) {
        let variables = optimizers.of_equal_class();
        let variables = variables.filter_map(|object| Some((object, self.holder(object)?)));
        let variables: HashMap<u64, String> = variables.collect();
        for state in &optimizers.state {
            let Some(at) = self.of_python.tensor(state.tensor) else {
                continue;
            };
            let parameter = state.parameter;
            let of = parameter.and_then(|parameter| self.of_python.tensor(parameter));
            let of = of.map(|of| self.named[of].clone()).unwrap_or_default();
            let position = parameter.and_then(|parameter| optimizers.positions.get(&parameter));
            let of_name = of.names.first().cloned().or_else(|| {
                // The position is shorter than the same path from the optimizer's variable.
                let is_other = |name: &Name| position.is_none_or(|at| !name.text.ends_with(&**at));
                self.variable(parameter?).filter(is_other)
            });
            let whose = match (&of_name, position) {
                (Some(name), _) => format!("[{}]", name.text),
                (None, Some(position)) => format!("[{position}]"),
                (None, None) => String::new(),
            };
            let variable = variables.get(&state.object).map(String::as_str);
            let optimizer = variable.unwrap_or(&state.optimizer);
            let text = format!("{optimizer}.{}{whose}", state.name);
            let named = &mut self.named[at];
            let inferred = of_name.and_then(|name| name.inferred);
            let text = text.into();
            named.add(Some(TensorKind::OptimizerState), Name { text, inferred });
            named.belongs_to(&of);
        }
    }

    /// Best path to a tensor, by its Python object.
    fn variable(&self, tensor: u64) -> Option<Name> {
        let path = self.paths.to_tensor(tensor, 1).pop()?;
        Some(exact(path.text.into()))
    }

    fn name_gradients(&mut self, tensors: &[Tensor]) {
        let owners = tensors.iter().flat_map(|tensor| &tensor.gradient_of);
        let owners: HashSet<usize> = owners.copied().collect();
        let unnamed = self.of_python.iter();
        let unnamed =
            unnamed.filter(|(_, at)| owners.contains(at) && self.named[*at].names.is_empty());
        let variables = unnamed.filter_map(|(object, at)| Some((at, self.variable(object)?)));
        let variables: HashMap<usize, Name> = variables.collect();
        for (at, tensor) in tensors.iter().enumerate() {
            for &of in &tensor.gradient_of {
                let Some(owner) = self.named.get(of).cloned() else {
                    continue;
                };
                let name = owner.names.first().or_else(|| variables.get(&of));
                let name = name.map(|name| Name {
                    text: format!("{}.grad", name.text).into(),
                    inferred: name.inferred,
                });
                let named = &mut self.named[at];
                if let Some(name) = name {
                    named.add_name(name);
                }
                named.belongs_to(&owner);
            }
        }
    }

    fn name_paths(&mut self) {
        let named = &mut self.named;
        each_path(self.paths, self.of_python, |at, text| {
            named[at].add_path(text);
        });
    }
}

/// A name that consists of references only.
fn exact(text: Arc<str>) -> Name {
    Name {
        text,
        inferred: None,
    }
}

fn prefixed(holder: Option<&str>, root: &ModuleObject, text: &str) -> Name {
    match holder {
        Some(holder) => exact(joined(holder, text)),
        None => Name {
            text: format!("<{}>.{text}", root.class).into(),
            inferred: Some(Name::BY_CLASS),
        },
    }
}

fn module_path(holder: Option<&str>, place: &ModulePlace) -> Option<Arc<str>> {
    match (holder, &*place.path) {
        (Some(holder), "") => Some(holder.into()),
        (Some(holder), path) => Some(joined(holder, path)),
        (None, "") => None,
        (None, path) => Some(path.into()),
    }
}

/// Path of a module from the class of its root.
fn called_module(
    module: &ModuleObject,
    root: &ModuleObject,
    place: &ModulePlace,
) -> Option<CalledModule> {
    let address = ModuleAddress {
        object: module.object,
        class: module.class_address,
    };
    Some(CalledModule {
        path: module_path(Some(&root.class), place)?,
        origin: CallPathOrigin::Unresolved(address),
    })
}

/// Roots with a parameter or buffer whose name occurs below another root too.
fn colliding(tree: &ObjectTree) -> HashSet<usize> {
    let mut roots: HashMap<Arc<str>, usize> = HashMap::new();
    let mut colliding = HashSet::new();
    for (module, place) in tree.every_place() {
        for (name, _) in module.parameters.iter().chain(&module.buffers) {
            let text = joined(&place.path, name);
            let root = *roots.entry(text).or_insert(place.root);
            if root != place.root {
                colliding.extend([root, place.root]);
            }
        }
    }
    colliding
}

/// Name of a tensor within a sparse one (`torch/_tensor_docs.py`@v2.15.0).
pub fn of_part(class: &TensorImplClass, number: usize, names: &[Name]) -> Option<Name> {
    let TensorImplClass::Other(class) = class else {
        return None;
    };
    let calls: &[&str] = match () {
        () if class.contains("SparseCsr") => &["crow_indices()", "col_indices()", "values()"],
        () if class.contains("Sparse") => &["indices()", "values()"],
        () => &[],
    };
    let name = names.first()?;
    Some(Name {
        text: format!("{}.{}", name.text, calls.get(number)?).into(),
        inferred: name.inferred,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(object: u64, parameters: &[&str], children: &[(&str, u64)]) -> ModuleObject {
        ModuleObject {
            object,
            class: "Sequential".into(),
            class_address: 1,
            parameters: parameters.iter().map(|name| ((*name).into(), 0)).collect(),
            buffers: Vec::new(),
            children: children
                .iter()
                .map(|&(name, child)| (name.into(), child))
                .collect(),
        }
    }

    #[test]
    fn all_names_of_a_root_are_prefixed_if_another_root_has_one_of_them() {
        let tree = ObjectTree::of(vec![
            module(10, &[], &[("0", 11), ("4", 12)]),
            module(11, &["weight"], &[]),
            module(12, &["weight"], &[]),
            module(20, &[], &[("0", 21)]),
            module(21, &["weight"], &[]),
            module(30, &["scale"], &[]),
        ]);
        assert_eq!(colliding(&tree), HashSet::from([0, 3]));
    }
}

//! Shortest paths by which a program reaches its objects, from globals and the variables of frames.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Heap;
use super::class::{Class, ContainerKind, TorchKind};
use super::contents::Step;
use super::frames::{Variable, is_library};
use super::process_scan::ProcessScan;
use crate::process::memory::ReadMemory;
use crate::python::layout::HeapLayout;

pub const MAX_STEPS: usize = 12;

/// Extra distance of the globals of a library's module.
const LIBRARY: usize = 3;

/// Extra distance of the globals of the program's modules other than `__main__`.
const IMPORTED: usize = 1;

/// Most paths kept to one tensor, and to all tensors together.
pub(super) const MAX_PATHS: usize = 32;
const MAX_OF_ALL: usize = 1 << 22;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathRoot {
    /// `train.py:31 train() -> x`, `torch.nn`; empty for `__main__`.
    pub(super) text: Arc<str>,
    name: Arc<str>,
    note: &'static str,
    /// The object that the root refers to, if the root is a variable.
    pub(super) value: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOrigin {
    Nowhere,
    /// The object is itself a root.
    Root(u32),
    /// Reached from another object by a step.
    From(u32, Step),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// `train.py:31 train() -> batch['x']`, `cache['kv'][0]`.
    pub text: String,
    /// The same without the frame: `batch['x']`.
    pub name: String,
    /// True if the object is itself a variable of a running frame.
    pub is_variable: bool,
}

#[derive(Debug)]
pub struct Paths<'a, M> {
    pub(crate) heap: &'a Heap<'a, M>,
    pub(crate) scan: &'a ProcessScan,
    pub(super) roots: Vec<PathRoot>,
    origins: Vec<PathOrigin>,
    places: HashMap<u64, u32>,
    /// Paths to each tensor, shortest first.
    pub(super) to_tensors: HashMap<u64, Vec<PathOrigin>>,
    /// Longest-lived name of each object: a global of the program, else a variable of the outermost frame.
    pub(super) longest: HashMap<u64, u32>,
}

impl<'a, M: ReadMemory> Paths<'a, M> {
    pub fn search(heap: &'a Heap<'a, M>, scan: &'a ProcessScan, variables: &[Variable]) -> Self {
        let places = scan.objects.iter().map(|object| object.address).zip(0..);
        let mut search = Search {
            paths: Self {
                heap,
                scan,
                roots: Vec::new(),
                origins: vec![PathOrigin::Nowhere; scan.objects.len()],
                places: places.collect(),
                to_tensors: HashMap::new(),
                longest: HashMap::new(),
            },
            next: vec![Vec::new(); MAX_STEPS + LIBRARY + 2],
            count: 0,
        };
        search.begin_at_modules();
        search.begin_at_variables(variables);
        for steps in 0..search.next.len() {
            for place in std::mem::take(&mut search.next[steps]) {
                search.visit(place, steps);
            }
        }
        search.end_at_resting(variables);
        search.paths
    }

    /// Returns up to `most` paths to a tensor, shortest first.
    pub fn to_tensor(&self, tensor: u64, most: usize) -> Vec<Path> {
        let paths = self.to_tensors.get(&tensor).into_iter().flatten();
        let paths = paths.take(most).filter_map(|origin| self.path(*origin));
        paths.collect()
    }

    /// Returns the shortest path to an object, or `None` if it is unreachable.
    pub fn to_object(&self, object: u64) -> Option<Path> {
        self.path(self.origin_of(object)?)
    }

    /// Name of the longest-lived variable that refers directly to an object, or `None`.
    pub fn longest_variable(&self, object: u64) -> Option<&str> {
        let root = *self.longest.get(&object)?;
        Some(&*self.roots.get(root as usize)?.name)
    }

    /// Index of an object in the scan. Returns `None` for an object that the collector does not track.
    pub fn place_of(&self, object: u64) -> Option<u32> {
        self.places.get(&object).copied()
    }

    pub(crate) fn object_at(&self, place: u32) -> Option<(u64, Arc<Class>)> {
        let object = self.scan.objects.get(place as usize)?;
        Some((object.address, self.heap.class_at(object.class)?))
    }

    pub(super) fn origin_of(&self, object: u64) -> Option<PathOrigin> {
        let origin = *self.origins.get(*self.places.get(&object)? as usize)?;
        (origin != PathOrigin::Nowhere).then_some(origin)
    }

    /// Root and steps of a path. Each step comes with the index of the object that it starts from.
    pub(super) fn steps_to(&self, origin: PathOrigin) -> Option<(u32, Vec<(u32, Step)>)> {
        let mut steps = Vec::new();
        let mut at = origin;
        let root = loop {
            match at {
                PathOrigin::Nowhere => return None,
                PathOrigin::Root(root) => break root,
                PathOrigin::From(place, step) => {
                    steps.push((place, step));
                    at = *self.origins.get(place as usize)?;
                }
            }
            if steps.len() > MAX_STEPS + LIBRARY + 2 {
                return None;
            }
        };
        steps.reverse();
        Some((root, steps))
    }

    fn path(&self, origin: PathOrigin) -> Option<Path> {
        let (root, steps) = self.steps_to(origin)?;
        let root = self.roots.get(root as usize)?;
        let mut name = root.name.to_string();
        for &(_, step) in &steps {
            self.heap.write_step(step, &mut name);
        }
        let beginning = root.text.strip_suffix(&*root.name).unwrap_or(&root.text);
        let note = match root.note {
            "" => String::new(),
            note => format!(" ({note})"),
        };
        Some(Path {
            text: format!("{beginning}{name}{note}"),
            is_variable: steps.is_empty() && root.note.is_empty(),
            name,
        })
    }
}

struct Search<'a, M> {
    paths: Paths<'a, M>,
    next: Vec<Vec<u32>>,
    count: usize,
}

impl<M: ReadMemory> Search<'_, M> {
    fn begin_at_modules(&mut self) {
        let heap = self.paths.heap;
        let mut roots = Vec::new();
        for &module in &self.paths.scan.globals {
            let dict = heap.word(module, HeapLayout::MODULE_DICT);
            let names = dict.and_then(|dict| heap.values_of(dict, ["__name__", "__file__"]));
            let [name, file] = names.unwrap_or_default();
            let Some(name) = name.and_then(|name| heap.text(name)) else {
                continue;
            };
            let file = file.and_then(|file| heap.text(file));
            let distance = match &*name {
                "__main__" => 0,
                // A duplicate of `__main__`, which `multiprocessing` creates for its children.
                "__mp_main__" => LIBRARY + 1,
                // Modules without a file are built into the interpreter.
                _ if file.is_none_or(|file| is_library(&file)) => LIBRARY,
                _ => IMPORTED,
            };
            roots.push((distance, name, module));
        }
        roots.sort();
        for (distance, name, module) in roots {
            let name = if distance == 0 { "".into() } else { name };
            let root = self.root(name);
            self.reach(module, PathOrigin::Root(root), distance);
        }
    }

    fn begin_at_variables(&mut self, variables: &[Variable]) {
        for variable in variables {
            let root = self.root_at(variable);
            let origin = PathOrigin::Root(root);
            if !variable.note.is_empty() {
                self.reach(variable.value, origin, LIBRARY);
                continue;
            }
            // Variables of libraries come last and do not count as longest-lived.
            if !variable.is_of_library() {
                self.paths.longest.insert(variable.value, root);
            }
            if self.paths.heap.is_tensor(variable.value) {
                self.add_way(variable.value, origin);
            }
            self.reach(variable.value, origin, 1);
        }
    }

    /// Adds variables of frames that do not run last, because other paths to the same tensor say more.
    fn end_at_resting(&mut self, variables: &[Variable]) {
        for variable in variables {
            if !variable.note.is_empty() && self.paths.heap.is_tensor(variable.value) {
                let root = self.root_at(variable);
                self.add_way(variable.value, PathOrigin::Root(root));
            }
        }
    }

    fn root_at(&mut self, variable: &Variable) -> u32 {
        self.add_root(PathRoot {
            text: variable.text.clone(),
            name: variable.name.clone(),
            note: variable.note,
            value: Some(variable.value),
        })
    }

    /// Adds a root that is no variable.
    fn root(&mut self, name: Arc<str>) -> u32 {
        let (text, note, value) = (name.clone(), "", None);
        self.add_root(PathRoot {
            text,
            name,
            note,
            value,
        })
    }

    fn add_root(&mut self, root: PathRoot) -> u32 {
        self.paths.roots.push(root);
        self.paths.roots.len() as u32 - 1
    }

    fn reach(&mut self, object: u64, origin: PathOrigin, steps: usize) {
        let Some(&place) = self.paths.places.get(&object) else {
            return;
        };
        let known = self.paths.origins.get_mut(place as usize);
        if let Some((known, next)) = known.zip(self.next.get_mut(steps))
            && *known == PathOrigin::Nowhere
        {
            *known = origin;
            next.push(place);
        }
    }

    fn add_way(&mut self, tensor: u64, origin: PathOrigin) {
        let paths = self.paths.to_tensors.entry(tensor).or_default();
        if paths.len() < MAX_PATHS && self.count < MAX_OF_ALL {
            self.count += 1;
            paths.push(origin);
        }
    }

    /// Continues from an object to the objects that it refers to.
    fn visit(&mut self, place: u32, steps: usize) {
        let heap = self.paths.heap;
        let Some((address, class)) = self.paths.object_at(place) else {
            return;
        };
        let (role, holds) = (class.role, class.holds);
        let mut held = Vec::new();
        // Objects that cannot be read are not reached.
        let _ = heap.contents(&class, address, |step, value| held.push((step, value)));
        for (step, value) in held {
            if holds == ContainerKind::Globals && steps <= IMPORTED {
                self.prefer_global(place, step, value);
            }
            let class = self.paths.place_of(value);
            let Some((_, class)) = class.and_then(|at| self.paths.object_at(at)) else {
                continue;
            };
            // A module reached through another module says less than its own name. Tensors that modules and
            // optimizers hold have names of their own.
            if class.holds == ContainerKind::Globals && holds == ContainerKind::Globals {
                continue;
            }
            let is_tensor = class.role == TorchKind::Tensor;
            let origin = PathOrigin::From(place, step);
            if is_tensor && !matches!(step, Step::Registered(_)) {
                self.add_way(value, origin);
            }
            let name = match step {
                Step::Attribute(name) if role == TorchKind::Optimizer => heap.text(name),
                _ => None,
            };
            if name.is_some_and(|name| &*name == "state") {
                continue;
            }
            self.reach(value, origin, steps + 1);
        }
    }

    /// Prefers a global of the program to a frame's variable as the longest-lived name of `value`.
    fn prefer_global(&mut self, module: u32, step: Step, value: u64) {
        let Step::Attribute(name) = step else { return };
        let known = self.paths.longest.get(&value);
        let known = known.and_then(|&root| self.paths.roots.get(root as usize));
        if known.is_none_or(|known| known.value.is_none()) {
            return;
        }
        let module = self.paths.origins.get(module as usize);
        let name = self.paths.heap.text(name);
        let Some((PathOrigin::Root(root), name)) = module.copied().zip(name) else {
            return;
        };
        let Some(module) = self.paths.roots.get(root as usize) else {
            return;
        };
        let text: Arc<str> = match &*module.text {
            "" => name,
            module => format!("{module}.{name}").into(),
        };
        let root = self.root(text);
        self.paths.longest.insert(value, root);
    }
}

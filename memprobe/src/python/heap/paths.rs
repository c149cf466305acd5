//! Paths by which a program reaches its objects: from the roots that live longest, by the fewest steps.
//!
//! Globals of the program live longest, then variables of its frames, outermost first, then those of frames that
//! do not run. Globals and frames of libraries follow in the same order.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::address_index::AddressIndex;
use super::class::{Class, ContainerKind, TorchKind};
use super::contents::Step;
use super::frames::{LIBRARY, Variable, is_library};
use super::path_origins::{OriginTable, TensorOrigins};
use super::process_scan::ProcessScan;
use super::untracked::{Peeked, Untracked};
use super::{Heap, notebook};
use crate::process::memory::ReadMemory;
use crate::python::layout::HeapLayout;

pub use super::path_origins::PathOrigin;

pub const MAX_STEPS: usize = 12;

/// Steps up to which the path from a root counts, even if one from a root with a shorter life is shorter.
const SHORT: u8 = 8;

/// Most steps that are searched, and one more.
const DEPTHS: usize = MAX_STEPS + 5;

/// The library without which no object is an array.
const NUMPY: &str = "numpy";

/// Depth of an object that was not reached.
const NOWHERE: u8 = u8::MAX;

/// Extra distance of the globals of the program's modules other than `__main__`.
const IMPORTED: usize = 1;

/// References of an object for which memory is kept after a visit.
const MAX_HELD: usize = 1 << 12;

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
    /// Order by length of life: 0 lives longest.
    pub(super) life: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// `train.py:31 train() -> batch['x']`, `cache['kv'][0]`.
    pub text: String,
    /// The same without the frame: `batch['x']`.
    pub name: String,
}

/// Memory for the texts of paths, which serves one after the other.
#[derive(Debug, Default)]
pub struct PathBuffer {
    steps: Vec<(u32, Step)>,
    path: Path,
}

#[derive(Debug)]
pub struct Paths<'a, M> {
    pub(crate) heap: &'a Heap<'a, M>,
    pub(crate) scan: &'a ProcessScan,
    /// Objects that the scan lacks: places continue here.
    untracked: Vec<(u64, u32)>,
    pub(super) roots: Vec<PathRoot>,
    origins: OriginTable,
    /// Indices of the objects of the scan, and of the others.
    places: AddressIndex,
    places_of_untracked: HashMap<u64, u32>,
    to_tensors: TensorOrigins,
}

impl<'a, M: ReadMemory> Paths<'a, M> {
    /// Searches from all modules, and from variables in the order of their rank.
    pub fn search(heap: &'a Heap<'a, M>, scan: &'a ProcessScan, variables: &[Variable]) -> Self {
        let peeked = Peeked(heap.memory);
        let addresses = scan.objects.iter().map(|object| object.address());
        let places = AddressIndex::of(addresses);
        let mut search = Search {
            paths: Self {
                heap,
                scan,
                untracked: Vec::new(),
                roots: Vec::new(),
                origins: OriginTable::nowhere(scan.objects.len()),
                places,
                places_of_untracked: HashMap::new(),
                to_tensors: TensorOrigins::of(&scan.tensors),
            },
            depths: vec![NOWHERE; scan.objects.len()],
            next: vec![Vec::new(); DEPTHS],
            globals: HashSet::new(),
            of_contexts: HashMap::new(),
            untracked: None,
            count: 0,
            held: Vec::new(),
        };
        for &leaf in &scan.contexts {
            // Values that cannot be read are not reached.
            let _ = heap.context_values(leaf, |variable, value| {
                search.of_contexts.entry(variable).or_default().push(value);
            });
        }
        let (own, libraries) = search.add_modules();
        let has_arrays = search.paths.roots.iter().any(|root| &*root.name == NUMPY);
        search.untracked = has_arrays.then(|| Untracked::of(heap, &peeked));
        let ranks = variables.partition_point(|variable| !variable.is_of_library());
        for (modules, variables) in [(own, &variables[..ranks]), (libraries, &variables[ranks..])] {
            for (steps, place) in modules {
                search.next[steps].push(place);
            }
            search.follow();
            for frame in variables.chunk_by(|one, other| one.rank == other.rank) {
                search.begin_at(frame);
                search.follow();
            }
        }
        search.end_at_resting(variables);
        search.paths
    }

    /// Returns up to `most` paths to a tensor, longest-lived first.
    pub fn to_tensor(&self, tensor: u64, most: usize) -> Vec<Path> {
        let paths = self.origins_of(tensor).take(most);
        let paths = paths.filter_map(|origin| self.path(origin));
        paths.collect()
    }

    /// Calls `each` with the text of up to `most` paths to a tensor, as [`Self::to_tensor`] returns them.
    pub fn each_text(
        &self,
        tensor: u64,
        most: usize,
        buffer: &mut PathBuffer,
        mut each: impl FnMut(&str),
    ) {
        for origin in self.origins_of(tensor).take(most) {
            if self.write(origin, buffer).is_some() {
                each(&buffer.path.text);
            }
        }
    }

    /// Paths to a tensor, longest-lived first.
    pub(super) fn origins_of(
        &self,
        tensor: u64,
    ) -> impl DoubleEndedIterator<Item = PathOrigin> + Clone {
        self.to_tensors.get(tensor)
    }

    /// Paths to all tensors.
    pub(super) fn origins_of_all(&self) -> impl Iterator<Item = PathOrigin> {
        self.to_tensors.all()
    }

    /// Returns the longest-lived path to an object, or `None` if it is unreachable.
    pub fn to_object(&self, object: u64) -> Option<Path> {
        self.path(self.origin_of(object)?)
    }

    /// Index of an object. Returns `None` for an object that the collector does not track and that no path needs.
    pub fn place_of(&self, object: u64) -> Option<u32> {
        let of_untracked = || self.places_of_untracked.get(&object).copied();
        self.places.get(object).or_else(of_untracked)
    }

    pub(crate) fn object_at(&self, place: u32) -> Option<(u64, Arc<Class>)> {
        let (address, class) = self.address_and_class(place)?;
        Some((address, self.heap.class_at(class)?))
    }

    fn kinds_at(&self, place: u32) -> Option<(TorchKind, ContainerKind)> {
        self.heap.kinds_at(self.address_and_class(place)?.1)
    }

    fn address_and_class(&self, place: u32) -> Option<(u64, u32)> {
        let place = place as usize;
        match self.scan.objects.get(place) {
            Some(object) => Some((object.address(), object.class())),
            None => self.untracked.get(place - self.scan.objects.len()).copied(),
        }
    }

    pub(super) fn origin_of(&self, object: u64) -> Option<PathOrigin> {
        let origin = self.origins.get(self.place_of(object)? as usize)?;
        (origin != PathOrigin::Nowhere).then_some(origin)
    }

    /// Root and steps of a path. Each step comes with the index of the object that it starts from.
    pub(super) fn steps_to(&self, origin: PathOrigin) -> Option<(u32, Vec<(u32, Step)>)> {
        let mut steps = Vec::new();
        let root = self.add_steps(origin, &mut steps)?;
        Some((root, steps))
    }

    /// Replaces `steps` by those of a path, and returns its root.
    fn add_steps(&self, origin: PathOrigin, steps: &mut Vec<(u32, Step)>) -> Option<u32> {
        steps.clear();
        let mut at = origin;
        let root = loop {
            match at {
                PathOrigin::Nowhere => return None,
                PathOrigin::Root(root) => break root,
                PathOrigin::From(place, step) => {
                    steps.push((place, step));
                    at = self.origins.get(place as usize)?;
                }
            }
            if steps.len() > DEPTHS {
                return None;
            }
        };
        steps.reverse();
        Some(root)
    }

    fn path(&self, origin: PathOrigin) -> Option<Path> {
        let mut buffer = PathBuffer::default();
        self.write(origin, &mut buffer)?;
        Some(buffer.path)
    }

    /// Replaces the path in the buffer.
    fn write(&self, origin: PathOrigin, buffer: &mut PathBuffer) -> Option<()> {
        let PathBuffer { steps, path } = buffer;
        let root = self.add_steps(origin, steps)?;
        let root = self.roots.get(root as usize)?;
        path.name.clear();
        path.name.push_str(&root.name);
        for &(_, step) in &*steps {
            self.heap.write_step(step, &mut path.name);
        }
        path.text.clear();
        let beginning = root.text.strip_suffix(&*root.name).unwrap_or(&root.text);
        path.text.extend([beginning, &path.name]);
        if !root.note.is_empty() {
            path.text.extend([" (", root.note, ")"]);
        }
        Some(())
    }
}

struct Search<'a, 'p, M> {
    paths: Paths<'a, M>,
    depths: Vec<u8>,
    /// Places to continue from, by depth.
    next: Vec<Vec<u32>>,
    /// Dicts of modules, whose entries the modules name.
    globals: HashSet<u64>,
    /// Values of context variables in all contexts.
    of_contexts: HashMap<u64, Vec<u64>>,
    /// `None` if the process has no numpy.
    untracked: Option<Untracked<'a, 'p, M>>,
    count: usize,
    /// Memory for the contents of one object after the other.
    held: Vec<(Step, u64)>,
}

/// Modules to continue from: depth and place of each.
type ModuleRoots = Vec<(usize, u32)>;

impl<M: ReadMemory> Search<'_, '_, M> {
    /// Makes every module a root. Returns the program's own, then those of libraries.
    fn add_modules(&mut self) -> (ModuleRoots, ModuleRoots) {
        let heap = self.paths.heap;
        let mut modules = Vec::new();
        for &module in &self.paths.scan.globals {
            let dict = heap.word(module, HeapLayout::MODULE_DICT);
            self.globals.extend(dict);
            let names = dict.and_then(|dict| heap.values_of(dict, ["__name__", "__file__"]));
            let [name, file] = names.unwrap_or_default();
            let Some(name) = name.and_then(|name| heap.text(name)) else {
                continue;
            };
            let file = file.and_then(|file| heap.text(file));
            let (is_own, depth) = match &*name {
                "__main__" => (true, 0),
                // A duplicate of `__main__`, which `multiprocessing` creates for its children.
                "__mp_main__" => (false, 1),
                // Modules without a file are built into the interpreter.
                _ if file.is_none_or(|file| is_library(&file)) => (false, 0),
                _ => (true, IMPORTED),
            };
            modules.push((!is_own, depth, name, module));
        }
        modules.sort();
        let (mut own, mut libraries) = (Vec::new(), Vec::new());
        for (is_library, depth, name, module) in modules {
            let is_main = !is_library && depth == 0;
            let (life, name) = (
                if is_library { LIBRARY } else { 0 },
                if is_main { "".into() } else { name },
            );
            let Some(place) = self.paths.place_of(module) else {
                continue;
            };
            let (text, note, value) = (Arc::clone(&name), "", None);
            let root = self.add_root(PathRoot {
                text,
                name,
                note,
                value,
                life,
            });
            self.paths
                .origins
                .set(place as usize, PathOrigin::Root(root));
            self.depths[place as usize] = 0;
            let modules = if is_library { &mut libraries } else { &mut own };
            modules.push((depth, place));
        }
        (own, libraries)
    }

    fn begin_at(&mut self, frame: &[Variable]) {
        for variable in frame {
            let origin = PathOrigin::Root(self.root_at(variable));
            if variable.note.is_empty() && self.paths.heap.is_tensor(variable.value) {
                self.add_way(variable.value, origin);
            }
            self.reach(variable.value, origin, 1);
            self.reach_elements(variable.value, 1);
        }
    }

    /// Reaches the models in a list or dict of several before the variables that were bound later: those of a loop over
    /// it are aliases of one element. The same holds for optimizers.
    fn reach_elements(&mut self, container: u64, steps: usize) {
        let Some(place) = self.place_of(container) else {
            return;
        };
        let Some((address, class)) = self.paths.object_at(place) else {
            return;
        };
        if !matches!(class.holds, ContainerKind::List | ContainerKind::Entries)
            || self.globals.contains(&address)
            || usize::from(self.depths[place as usize]) != steps
        {
            return;
        }
        let mut models = Vec::new();
        // Objects that cannot be read are not reached.
        let paths = &self.paths;
        let _ = paths.heap.contents(&class, address, |step, value| {
            let place = paths.place_of(value);
            let kinds = place.and_then(|place| paths.kinds_at(place));
            if let Some((role @ (TorchKind::Module | TorchKind::Optimizer), _)) = kinds {
                models.push((role, step, value));
            }
        });
        for role in [TorchKind::Module, TorchKind::Optimizer] {
            let roots: Vec<_> = models.iter().filter(|(of, ..)| *of == role).collect();
            if let [_, _, ..] = roots[..] {
                for &&(_, step, value) in &roots {
                    self.reach(value, PathOrigin::From(place, step), steps + 1);
                }
            }
        }
    }

    /// Visits the objects that were reached, and all that these lead to.
    fn follow(&mut self) {
        for steps in 0..self.next.len() {
            for place in std::mem::take(&mut self.next[steps]) {
                self.visit(place, steps);
            }
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
            life: variable.rank.saturating_add(1),
        })
    }

    fn add_root(&mut self, root: PathRoot) -> u32 {
        self.paths.roots.push(root);
        self.paths.roots.len() as u32 - 1
    }

    fn reach(&mut self, object: u64, origin: PathOrigin, steps: usize) {
        if let Some(place) = self.place_of(object) {
            self.reach_place(place, origin, steps);
        }
    }

    fn reach_place(&mut self, place: u32, origin: PathOrigin, steps: usize) {
        let place = place as usize;
        let (Some(next), Some(depth)) = (self.next.get_mut(steps), self.depths.get_mut(place))
        else {
            return;
        };
        let steps = steps as u8;
        if *depth == NOWHERE || *depth > SHORT && steps < *depth {
            *depth = steps;
            self.paths.origins.set(place, origin);
            next.push(place as u32);
        }
    }

    /// Index of an object, also of an untracked one that leads on to tracked ones.
    fn place_of(&mut self, object: u64) -> Option<u32> {
        let known = self.paths.place_of(object);
        let Some(untracked) = self.untracked.as_mut().filter(|_| known.is_none()) else {
            return known;
        };
        let mut found = Vec::new();
        let is_known = |object| self.paths.place_of(object).is_some();
        untracked.find(object, &is_known, &mut found);
        for (object, class) in found {
            let place = self.depths.len() as u32;
            self.paths.untracked.push((object, class));
            self.paths.origins.push(PathOrigin::Nowhere);
            self.depths.push(NOWHERE);
            self.paths.places_of_untracked.insert(object, place);
        }
        self.paths.place_of(object)
    }

    fn add_way(&mut self, tensor: u64, origin: PathOrigin) {
        if self.count >= MAX_OF_ALL {
            return;
        }
        let is_added = self.paths.to_tensors.add(tensor, origin, MAX_PATHS);
        self.count += usize::from(is_added);
    }

    /// Continues from an object to the objects that it refers to.
    fn visit(&mut self, place: u32, steps: usize) {
        let heap = self.paths.heap;
        let Some((address, class)) = self.paths.object_at(place) else {
            return;
        };
        let role = class.role;
        let mut held = std::mem::take(&mut self.held);
        // Objects that cannot be read are not reached.
        let _ = heap.contents(&class, address, |step, value| held.push((step, value)));
        let is_namespace = class.holds == ContainerKind::Globals;
        if is_namespace && steps == 0 {
            notebook::prefer_history(heap, &mut held);
        }
        let values = self.of_contexts.get(&address).into_iter().flatten();
        held.extend(values.map(|&value| (Step::Value, value)));
        for &(step, value) in &held {
            let found = self.place_of(value);
            let found = found.and_then(|at| Some((at, self.paths.kinds_at(at)?)));
            let Some((found, (kind, holds))) = found else {
                continue;
            };
            // The entries are globals of a module with a name of its own.
            if holds == ContainerKind::Entries && self.globals.contains(&value) {
                continue;
            }
            // Tensors that modules and optimizers hold have names of their own.
            let is_tensor = kind == TorchKind::Tensor;
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
            self.reach_place(found, origin, steps + 1);
            if is_namespace {
                self.reach_elements(value, steps + 1);
            }
        }
        held.clear();
        // One of a million items is rare.
        held.shrink_to(MAX_HELD);
        self.held = held;
    }
}

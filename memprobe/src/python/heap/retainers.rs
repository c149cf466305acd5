//! Roots that hold tensors: a variable, or a container with all its slots folded into one.
//!
//! A list of a thousand losses is one holder, `losses[*]`; so is `history[*]['loss']`. If functions pass an
//! object on, the longest-lived path to it holds it: from a global, otherwise from the outermost frame.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::Heap;
use super::class::ContainerKind;
use super::contents::Step;
use super::paths::{MAX_PATHS as MAX_OF_ONE, PathOrigin, Paths};
use crate::process::memory::ReadMemory;

/// Number of tensors in a dict from which on its keys are folded like list slots.
const MANY: u32 = 8;

/// Most paths resolved to holders, over all tensors.
const MAX_PATHS: usize = 1 << 20;

/// Placeholder for holders beyond the limits.
const MORE: &str = "(more ways than are followed)";

/// Stands for every slot of a container.
pub(crate) const EVERY: &str = "[*]";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapRetainer {
    /// `train.py:12 main() -> losses[*]`.
    pub path: Arc<str>,
    /// Class of the container before the first `[*]`, of the module, or of the optimizer.
    pub class: Option<Arc<str>>,
    /// Order by length of life: 0 lives longest.
    pub life: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedBy {
    pub retainer: u32,
    pub path: PathOrigin,
}

#[derive(Debug, Default)]
pub struct HeapRetainers {
    pub all: Vec<HeapRetainer>,
    /// Index by path and class.
    places: HashMap<(Arc<str>, Option<Arc<str>>), u32>,
    /// Holders by the container whose slots they fold.
    containers: HashMap<u32, u32>,
    /// Holders that are modules or optimizers, by address.
    objects: HashMap<u64, u32>,
    many: HashSet<u32>,
    followed: usize,
    /// Tensors with more paths than were resolved.
    pub not_followed: u64,
}

impl HeapRetainers {
    /// Starts with no holders. `paths` determines the dicts whose keys are folded.
    pub fn of(paths: &Paths<'_, impl ReadMemory>) -> Self {
        let mut tensors: HashMap<u32, u32> = HashMap::new();
        for way in paths.origins_of_all() {
            if let PathOrigin::From(place, Step::Key(_)) = way {
                *tensors.entry(place).or_default() += 1;
            }
        }
        let many = tensors.into_iter().filter(|(_, count)| *count >= MANY);
        Self {
            many: many.map(|(place, _)| place).collect(),
            ..Self::default()
        }
    }

    fn add(&mut self, holder: HeapRetainer) -> u32 {
        let next = self.all.len() as u32;
        let key = (Arc::clone(&holder.path), holder.class.clone());
        let place = *self.places.entry(key).or_insert(next);
        match self.all.get_mut(place as usize) {
            Some(known) => known.life = known.life.min(holder.life),
            None => self.all.push(holder),
        }
        place
    }

    /// The holder for a module or optimizer, by its address and class.
    pub fn object(
        &mut self,
        paths: &Paths<'_, impl ReadMemory>,
        (object, class): (u64, &Arc<str>),
    ) -> u32 {
        if let Some(known) = self.objects.get(&object) {
            return *known;
        }
        let origin = paths.origin_of(object);
        let found = origin.and_then(|origin| self.folded(paths, origin));
        let (path, life) = found.map_or_else(Default::default, |found| (found.path, found.life));
        let holder = self.add(HeapRetainer {
            path: match &*path {
                "" => format!("<{class}>").into(),
                _ => path,
            },
            class: Some(Arc::clone(class)),
            life,
        });
        self.objects.insert(object, holder);
        holder
    }

    /// The holders of a tensor, one for each path to it unless paths share one.
    pub fn by_paths(&mut self, paths: &Paths<'_, impl ReadMemory>, tensor: u64) -> Vec<RetainedBy> {
        let mut origins = paths.origins_of(tensor);
        let count = origins.clone().count();
        if count == 0 {
            return Vec::new();
        }
        self.followed = self.followed.saturating_add(count);
        let mut held: Vec<RetainedBy> = Vec::new();
        let is_followed = self.followed <= MAX_PATHS;
        let followed = if is_followed { count } else { 0 };
        for path in origins.clone().take(followed) {
            let path = paths.longest_lived(path);
            // The holder is the module.
            if matches!(path, PathOrigin::From(_, Step::Registered(_))) {
                continue;
            }
            let Some(retainer) = self.of_path(paths, path) else {
                continue;
            };
            if held.iter().all(|held| held.retainer != retainer) {
                held.push(RetainedBy { retainer, path });
            }
        }
        if !is_followed || count >= MAX_OF_ONE {
            self.not_followed += 1;
            // An extra holder prevents that one of the others counts as the only one.
            let retainer = self.add(HeapRetainer {
                path: MORE.into(),
                class: None,
                life: u32::MAX,
            });
            let last = origins.next_back();
            held.extend(last.map(|path| RetainedBy { retainer, path }));
        }
        held
    }

    fn of_path(&mut self, paths: &Paths<'_, impl ReadMemory>, origin: PathOrigin) -> Option<u32> {
        let container = match origin {
            PathOrigin::From(place, step) if self.is_slot(paths.heap, place, step) => Some(place),
            _ => None,
        };
        if let Some(known) = container.and_then(|place| self.containers.get(&place)) {
            return Some(*known);
        }
        let holder = self.folded(paths, origin)?;
        let holder = self.add(holder);
        if let Some(place) = container {
            self.containers.insert(place, holder);
        }
        Some(holder)
    }

    /// True if a step from the object at `place` is one of many similar slots.
    fn is_slot(&self, heap: &Heap<'_, impl ReadMemory>, place: u32, step: Step) -> bool {
        match step {
            Step::Index(_) | Step::Indices(..) | Step::Flat(_) | Step::Element => true,
            Step::Key(key) => {
                let class = heap.class_of(key);
                self.many.contains(&place)
                    || class.is_some_and(|class| class.holds == ContainerKind::Number)
            }
            _ => false,
        }
    }

    fn folded(&self, paths: &Paths<'_, impl ReadMemory>, way: PathOrigin) -> Option<HeapRetainer> {
        let (root, steps) = paths.steps_to(way)?;
        let root = paths.roots.get(root as usize)?;
        let (mut path, life) = (root.text.to_string(), root.life);
        let mut class = None;
        for (place, step) in steps {
            if !self.is_slot(paths.heap, place, step) {
                paths.heap.write_step(step, &mut path);
                continue;
            }
            path.push_str(EVERY);
            if class.is_none() {
                class = paths
                    .object_at(place)
                    .map(|(_, class)| class.short_name().into());
            }
        }
        let path = path.into();
        Some(HeapRetainer { path, class, life })
    }
}

impl<M: ReadMemory> Paths<'_, M> {
    /// A path to a tensor with every slot written out.
    pub fn slot(&self, way: PathOrigin) -> Option<Arc<str>> {
        let (root, steps) = self.steps_to(way)?;
        let mut path = self.roots.get(root as usize)?.text.to_string();
        for (_, step) in steps {
            self.heap.write_step(step, &mut path);
        }
        Some(path.into())
    }

    /// A path to a variable, or the longest-lived path to the same object.
    fn longest_lived(&self, way: PathOrigin) -> PathOrigin {
        let PathOrigin::Root(root) = way else {
            return way;
        };
        let root = self.roots.get(root as usize);
        let value = root.and_then(|root| root.value);
        value.and_then(|value| self.origin_of(value)).unwrap_or(way)
    }
}

//! Who holds tensors: a variable, or a container with all its slots as one.
//!
//! A list of a thousand losses is one holder, `losses[*]`, as `history[*]['loss']` is. Where an object is passed from function to
//! function, the variable that refers to it for longest holds it: a global, otherwise that of the outermost frame.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::Heap;
use super::census::Census;
use super::class::{Classes, Holds};
use super::contents::Step;
use super::paths::{MOST_WAYS as MOST_OF_ONE, Origin, Paths, Way};
use crate::target::memory::ReadMemory;

/// Tensors in a dict from which on its keys are slots like those of a list.
const MANY: u32 = 8;

/// Ways that are followed to their holders, of all tensors together.
const MOST_WAYS: usize = 1 << 20;

/// Stands for holders that are not told apart.
const MORE: &str = "(more ways than are followed)";

/// Stands for every slot of a container.
pub(in crate::inspect) const EVERY: &str = "[*]";

/// Somebody who holds tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// `train.py:12 main() -> losses[*]`.
    pub path: Arc<str>,
    /// The class of what is named before the first `[*]`, of a module or of an optimizer.
    pub class: Option<Arc<str>>,
}

/// That a holder holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its place among the holders.
    pub holder: u32,
    /// How.
    pub way: Way,
}

/// All who hold tensors, each once.
#[derive(Debug, Default)]
pub struct Holders {
    /// They.
    pub all: Vec<Holder>,
    places: HashMap<Holder, u32>,
    /// Containers whose slots are one.
    containers: HashMap<u32, u32>,
    /// Modules and optimizers.
    objects: HashMap<u64, u32>,
    /// Dicts with many tensors.
    many: HashSet<u32>,
    followed: usize,
    /// Tensors with more ways than were followed.
    pub not_followed: u64,
}

impl Holders {
    /// None yet, of tensors that these ways lead to.
    pub fn of(paths: &Paths) -> Self {
        let mut tensors: HashMap<u32, u32> = HashMap::new();
        for way in paths.ways.values().flatten() {
            if let Origin::From(place, Step::Key(_)) = way.origin {
                *tensors.entry(place).or_default() += 1;
            }
        }
        let many = tensors.into_iter().filter(|(_, count)| *count >= MANY);
        Self {
            many: many.map(|(place, _)| place).collect(),
            ..Self::default()
        }
    }

    fn add(&mut self, holder: Holder) -> u32 {
        let next = self.all.len() as u32;
        let place = *self.places.entry(holder.clone()).or_insert(next);
        if place == next {
            self.all.push(holder);
        }
        place
    }

    /// The module or the optimizer at an address, of a class.
    pub fn object(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        search: (&Paths, &Census),
        (object, class): (u64, &Arc<str>),
    ) -> u32 {
        if let Some(known) = self.objects.get(&object) {
            return *known;
        }
        let origin = search.0.origin_of(object);
        let found = origin.and_then(|origin| self.folded(heap, classes, search, origin));
        let path = found
            .map(|found| found.path)
            .filter(|path| !path.is_empty());
        let holder = self.add(Holder {
            path: path.unwrap_or_else(|| format!("<{class}>").into()),
            class: Some(Arc::clone(class)),
        });
        self.objects.insert(object, holder);
        holder
    }

    /// Who holds a tensor by the ways that lead to it.
    pub fn by_ways(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        search: (&Paths, &Census),
        tensor: u64,
    ) -> Vec<Held> {
        let Some(ways) = search.0.ways.get(&tensor) else {
            return Vec::new();
        };
        self.followed = self.followed.saturating_add(ways.len());
        let mut held: Vec<Held> = Vec::new();
        let is_followed = self.followed <= MOST_WAYS;
        let followed = if is_followed { ways.len() } else { 0 };
        for way in &ways[..followed] {
            let Some(holder) = self.of_way(heap, classes, search, way.origin) else {
                continue;
            };
            if held.iter().all(|held| held.holder != holder) {
                held.push(Held { holder, way: *way });
            }
        }
        if !is_followed || ways.len() >= MOST_OF_ONE {
            self.not_followed += 1;
            // So that none of the others is said to hold it alone.
            let holder = self.add(Holder {
                path: MORE.into(),
                class: None,
            });
            held.extend(ways.last().map(|way| Held { holder, way: *way }));
        }
        held
    }

    fn of_way(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        search: (&Paths, &Census),
        origin: Origin,
    ) -> Option<u32> {
        let container = match origin {
            Origin::From(place, step) if self.is_slot(heap, classes, place, step) => Some(place),
            _ => None,
        };
        if let Some(known) = container.and_then(|place| self.containers.get(&place)) {
            return Some(*known);
        }
        let holder = self.folded(heap, classes, search, origin)?;
        let holder = self.add(holder);
        if let Some(place) = container {
            self.containers.insert(place, holder);
        }
        Some(holder)
    }

    /// Whether a step from the object at a place is one of many that are alike.
    fn is_slot(
        &self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        place: u32,
        step: Step,
    ) -> bool {
        match step {
            Step::Index(_) | Step::Element => true,
            Step::Key(key) => {
                let class = classes.of(heap, key);
                self.many.contains(&place)
                    || class.is_some_and(|class| class.holds == Holds::Number)
            }
            _ => false,
        }
    }

    /// The holder at the end of a way, its slots as one.
    fn folded(
        &self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        (paths, census): (&Paths, &Census),
        origin: Origin,
    ) -> Option<Holder> {
        let (root, steps) = paths.steps_to(origin)?;
        let mut path = paths.longest_name(root)?;
        let mut class = None;
        for (place, step) in steps {
            if !self.is_slot(heap, classes, place, step) {
                heap.write_step(classes, step, &mut path);
                continue;
            }
            path.push_str(EVERY);
            if class.is_none() {
                let object = census.objects.get(place as usize);
                let of = object.and_then(|object| classes.get(object.class));
                class = of.map(|of| of.short_name().into());
            }
        }
        let path = path.into();
        Some(Holder { path, class })
    }
}

impl Paths {
    /// A way to a tensor in full, from the variable that refers to it for longest.
    pub fn slot(
        &self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        way: Way,
    ) -> Option<Arc<str>> {
        let (root, steps) = self.steps_to(way.origin)?;
        let mut path = self.longest_name(root)?;
        for (_, step) in steps {
            heap.write_step(classes, step, &mut path);
        }
        Some(path.into())
    }

    /// The name of a root, or of the variable that refers to the same for longer.
    fn longest_name(&self, root: u32) -> Option<String> {
        let root = self.roots.get(root as usize)?;
        let longest = root.value.and_then(|value| self.longest.get(&value));
        let longest = longest.and_then(|&longest| self.roots.get(longest as usize));
        Some(longest.unwrap_or(root).text.to_string())
    }
}

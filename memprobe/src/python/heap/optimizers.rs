//! Reads the state of optimizers, tensors by parameter, and the tensors of caches of keys and values.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Heap;
use super::class::{ContainerKind, TorchKind};
use super::contents::Step;
use crate::event::StepSettings;
use crate::process::memory::ReadMemory;

const MAX_STEPS: usize = 3;
const MAX_VALUES: usize = 4096;
const MAX_PARAMETERS: usize = 1 << 20;
/// Most different settings of parameter groups.
const MAX_SETTINGS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimizers {
    /// Objects and their classes.
    pub objects: Vec<(u64, Arc<str>)>,
    pub state: Vec<StateTensor>,
    /// Position of each parameter in `param_groups`: `param_groups[0]['params'][3]`.
    pub positions: HashMap<u64, Arc<str>>,
    /// Settings of the parameter groups, each once.
    pub settings: Vec<StepSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTensor {
    pub tensor: u64,
    pub object: u64,
    pub optimizer: Arc<str>,
    /// Name in the state, such as `exp_avg` or `old_dirs[0]`.
    pub name: Arc<str>,
    /// The parameter that it belongs to; `None` if the key of the state is not a tensor.
    pub parameter: Option<u64>,
}

impl Optimizers {
    /// Returns the optimizers whose class others have too.
    pub fn of_equal_class(&self) -> impl Iterator<Item = u64> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (_, class) in &self.objects {
            *counts.entry(class).or_default() += 1;
        }
        let equal = self
            .objects
            .iter()
            .filter(move |(_, class)| counts[&**class] > 1);
        equal.map(|(object, _)| *object)
    }
}

pub fn read(heap: &Heap<'_, impl ReadMemory>, objects: &[u64]) -> Optimizers {
    let mut found = Optimizers::default();
    for &object in objects {
        let Some(class) = heap.class_of(object) else {
            continue;
        };
        let name: Arc<str> = class.short_name().into();
        found.objects.push((object, name.clone()));
        // Unreadable attributes count as absent.
        let ([state, groups], _) = heap.attributes_of(&class, object, ["state", "param_groups"]);
        if let Some(groups) = groups {
            add_groups(heap, groups, &name, &mut found);
        }
        let mut entries = Vec::new();
        if let Some(state) = state {
            let _ = heap.entries(state, |entry| entries.push(entry));
        }
        entries.truncate(MAX_PARAMETERS.saturating_sub(found.state.len()));
        for entry in entries {
            let parameter = heap.is_tensor(entry.key);
            for (path, tensor) in tensors_in(heap, entry.value) {
                found.state.push(StateTensor {
                    tensor,
                    object,
                    optimizer: name.clone(),
                    name: path.into(),
                    parameter: parameter.then_some(entry.key),
                });
            }
        }
    }
    found
}

/// Tensors of caches of keys and values: a layer's `keys` and `values`; up to transformers 4.53 lists of a cache.
pub fn cached(heap: &Heap<'_, impl ReadMemory>, caches: &[u64]) -> Vec<u64> {
    let mut tensors = Vec::new();
    for &cache in caches {
        let Some(class) = heap.class_of(cache) else {
            continue;
        };
        let names = ["keys", "values", "key_cache", "value_cache"];
        // Unreadable attributes count as absent.
        let (held, _) = heap.attributes_of(&class, cache, names);
        let held = held.into_iter().flatten();
        let held = held.flat_map(|held| tensors_in(heap, held));
        tensors.extend(held.map(|(_, tensor)| tensor));
    }
    tensors
}

/// Returns the tensors in a tensor, list, tuple or dict, nested a few steps deep, each with its path.
pub(crate) fn tensors_in(heap: &Heap<'_, impl ReadMemory>, state: u64) -> Vec<(String, u64)> {
    use ContainerKind::{Entries, List, Tuple};
    let mut tensors = Vec::new();
    let mut left = vec![(String::new(), state, 0)];
    let mut seen = 0;
    while let Some((path, object, steps)) = left.pop() {
        let Some(class) = heap.class_of(object) else {
            continue;
        };
        if class.role == TorchKind::Tensor {
            tensors.push((path, object));
            continue;
        }
        if !matches!(class.holds, Entries | List | Tuple) || steps == MAX_STEPS {
            continue;
        }
        let mut held = Vec::new();
        let _ = heap.contents(&class, object, |step, value| {
            if held.len() < MAX_VALUES && matches!(step, Step::Key(_) | Step::Index(_)) {
                held.push((step, value));
            }
        });
        for (step, value) in held.into_iter().rev() {
            seen += 1;
            if seen > MAX_VALUES {
                return tensors;
            }
            let mut path = path.clone();
            match step {
                // `exp_avg` rather than `['exp_avg']`.
                Step::Key(key) if steps == 0 => match heap.text(key) {
                    Some(text) => path.push_str(&text),
                    None => heap.write_step(step, &mut path),
                },
                step => heap.write_step(step, &mut path),
            }
            left.push((path, value, steps + 1));
        }
    }
    tensors
}

fn add_groups(heap: &Heap<'_, impl ReadMemory>, groups: u64, class: &str, found: &mut Optimizers) {
    for (group, number) in list(heap, groups).into_iter().zip(0_u64..) {
        if let Some(settings) = settings_of(heap, group, class)
            && found.settings.len() < MAX_SETTINGS
            && !found.settings.contains(&settings)
        {
            found.settings.push(settings);
        }
        let Ok([Some(parameters)]) = heap.values_of(group, ["params"]) else {
            continue;
        };
        for (parameter, place) in list(heap, parameters).into_iter().zip(0_u64..) {
            if found.positions.len() < MAX_PARAMETERS {
                let position = format!("param_groups[{number}]['params'][{place}]");
                let known = found.positions.entry(parameter);
                known.or_insert_with(|| position.into());
            }
        }
    }
}

/// Settings of a parameter group (`defaults` in torch/optim/adam.py@v2.15.0). Optimizers without `fused` have no such
/// key.
fn settings_of(heap: &Heap<'_, impl ReadMemory>, group: u64, class: &str) -> Option<StepSettings> {
    let keys = ["foreach", "fused", "differentiable", "capturable", "lr"];
    let [foreach, fused, differentiable, capturable, rate] = heap.values_of(group, keys).ok()?;
    let is_set = |value: Option<u64>| value.and_then(|value| truth(heap, value));
    Some(StepSettings {
        class: class.to_owned(),
        foreach: is_set(foreach),
        fused: is_set(fused),
        differentiable: is_set(differentiable) == Some(true),
        has_tensor_rate: rate.is_some_and(|rate| heap.is_tensor(rate))
            && is_set(capturable) != Some(true),
    })
}

/// Value of a `bool`; `None` for every other object.
fn truth(heap: &Heap<'_, impl ReadMemory>, object: u64) -> Option<bool> {
    let class = heap.class_of(object)?;
    let is_bool = class.holds == ContainerKind::Number && &*class.name == "bool";
    is_bool
        .then(|| heap.number(object))?
        .map(|value| value != 0)
}

fn list(heap: &Heap<'_, impl ReadMemory>, object: u64) -> Vec<u64> {
    let mut items = Vec::new();
    let class = heap.class_of(object);
    if let Some(class) = class.filter(|class| class.holds == ContainerKind::List) {
        let _ = heap.contents(&class, object, |step, item| {
            if matches!(step, Step::Index(_)) {
                items.push(item);
            }
        });
    }
    items
}

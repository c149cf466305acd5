//! Reads the state of optimizers: tensors by parameter.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Heap;
use super::class::{Classes, ContainerKind, TorchKind};
use super::contents::Step;
use crate::process::memory::ReadMemory;

/// Deepest nesting of containers in the state of a parameter.
const MAX_STEPS: usize = 3;

const MAX_VALUES: usize = 4096;

const MAX_PARAMETERS: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimizers {
    /// Tensors in `state`.
    pub state: Vec<StateTensor>,
    /// Position of each parameter in `param_groups`: `param_groups[0]['params'][3]`.
    pub positions: HashMap<u64, Arc<str>>,
}

/// A tensor in the `state` of an optimizer.
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

/// Reads optimizers. Skips the parts that cannot be read.
pub fn read(
    heap: &Heap<'_, impl ReadMemory>,
    classes: &mut Classes,
    objects: &[u64],
) -> Optimizers {
    let mut found = Optimizers::default();
    for &object in objects {
        let Some(class) = classes.of(heap, object) else {
            continue;
        };
        let name: Arc<str> = class.short_name().into();
        let mut dicts = [None; 2];
        let names = ["state", "param_groups"];
        let _ = heap.attributes(class, object, |entry| heap.note(entry, &names, &mut dicts));
        let [state, groups] = dicts;
        if let Some(groups) = groups {
            add_positions(heap, classes, groups, &mut found.positions);
        }
        let mut entries = Vec::new();
        if let Some(state) = state {
            let _ = heap.entries(state, |entry| entries.push(entry));
        }
        entries.truncate(MAX_PARAMETERS.saturating_sub(found.state.len()));
        for entry in entries {
            let is_tensor = |class: &super::class::Class| class.role == TorchKind::Tensor;
            let parameter = classes.of(heap, entry.key).is_some_and(is_tensor);
            for (path, tensor) in tensors_in(heap, classes, entry.value) {
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

/// The tensors in the state of one parameter, each with its path.
fn tensors_in(
    heap: &Heap<'_, impl ReadMemory>,
    classes: &mut Classes,
    state: u64,
) -> Vec<(String, u64)> {
    let mut tensors = Vec::new();
    let mut left = vec![(String::new(), state, 0)];
    let mut seen = 0;
    while let Some((path, object, steps)) = left.pop() {
        let Some(class) = classes.of(heap, object) else {
            continue;
        };
        if class.role == TorchKind::Tensor {
            tensors.push((path, object));
            continue;
        }
        let is_container = matches!(
            class.holds,
            ContainerKind::Entries | ContainerKind::List | ContainerKind::Tuple
        );
        if !is_container || steps == MAX_STEPS {
            continue;
        }
        let mut held = Vec::new();
        let (class, place) = (class.clone(), 0);
        let _ = heap.contents(&class, place, object, |step, value| {
            if held.len() < MAX_VALUES && is_item(step) {
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
                    None => heap.write_step(classes, step, &mut path),
                },
                step => heap.write_step(classes, step, &mut path),
            }
            left.push((path, value, steps + 1));
        }
    }
    tensors
}

const fn is_item(step: Step) -> bool {
    matches!(step, Step::Key(_) | Step::Index(_))
}

fn add_positions(
    heap: &Heap<'_, impl ReadMemory>,
    classes: &mut Classes,
    groups: u64,
    positions: &mut HashMap<u64, Arc<str>>,
) {
    for (group, number) in list(heap, classes, groups).into_iter().zip(0_u64..) {
        let Ok([Some(parameters)]) = heap.values_of(group, ["params"]) else {
            continue;
        };
        for (parameter, place) in list(heap, classes, parameters).into_iter().zip(0_u64..) {
            if positions.len() < MAX_PARAMETERS {
                let position = format!("param_groups[{number}]['params'][{place}]");
                positions
                    .entry(parameter)
                    .or_insert_with(|| position.into());
            }
        }
    }
}

fn list(heap: &Heap<'_, impl ReadMemory>, classes: &mut Classes, object: u64) -> Vec<u64> {
    let mut items = Vec::new();
    let class = classes.of(heap, object);
    if let Some(class) = class.filter(|class| class.holds == ContainerKind::List) {
        let _ = heap.contents(class, 0, object, |step, item| {
            if matches!(step, Step::Index(_)) {
                items.push(item);
            }
        });
    }
    items
}

//! IPython's cells and its history, which the kernels of Jupyter share.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::Heap;
use super::contents::Step;
use crate::process::memory::ReadMemory;

/// Most cells whose number is kept.
const MAX_CELLS: usize = 1 << 16;

/// The history of results, twice in a namespace: `init_user_ns` in `IPython/core/interactiveshell.py`@8.12.3.
const HISTORY: [&str; 2] = ["Out", "_oh"];

/// Numbers of cells by the name of the file that the code objects of a cell have. ipykernel makes this name from a
/// hash (`_filename_map` in `IPython/core/compilerop.py`@8.12.3).
pub(super) fn cells(heap: &Heap<'_, impl ReadMemory>, compilers: &[u64]) -> HashMap<Arc<str>, i64> {
    let mut cells = HashMap::new();
    for &compiler in compilers {
        let Some(class) = heap.class_of(compiler) else {
            continue;
        };
        let ([names], _) = heap.attributes_of(&class, compiler, ["_filename_map"]);
        let mut add = |entry: super::dict::DictEntry| {
            let number = heap.number(entry.value).filter(|&number| number > 0);
            if let Some((name, number)) = heap.text(entry.key).zip(number)
                && cells.len() < MAX_CELLS
            {
                cells.insert(name, number);
            }
        };
        // A cell that cannot be read keeps the name of its file.
        let _ = names.map(|names| heap.entries(names, &mut add));
    }
    cells
}

/// Removes `_`, `__`, `___`, `_7` and `_oh` from the globals of a notebook where `Out` has the same value.
pub(super) fn prefer_history(heap: &Heap<'_, impl ReadMemory>, globals: &mut Vec<(Step, u64)>) {
    let name_of = |step: &Step| match step {
        Step::Attribute(name) => heap.text(*name),
        _ => None,
    };
    let value_of = |wanted: &str| {
        let mut globals = globals.iter();
        let found = globals.find(|(step, _)| name_of(step).is_some_and(|name| &*name == wanted));
        found.map(|(_, value)| *value)
    };
    let [Some(history), Some(same)] = HISTORY.map(value_of) else {
        return;
    };
    if history != same {
        return;
    }
    let mut results: HashSet<u64> = [history].into_iter().collect();
    // Results that cannot be read keep their other names.
    let _ = heap.entries(history, |entry| results.extend([entry.value]));
    let is_alias = |name: &str| {
        let number = name
            .strip_prefix('_')
            .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
        number || matches!(name, "__" | "___" | "_oh")
    };
    globals.retain(|(step, value)| {
        !results.contains(value) || !name_of(step).is_some_and(|name| is_alias(&name))
    });
}

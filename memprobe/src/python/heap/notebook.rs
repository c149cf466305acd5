//! IPython's cells and its history, which the kernels of Jupyter share.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Heap;
use super::contents::Step;
use super::dict::DictEntry;
use crate::process::memory::ReadMemory;
use crate::python::layout::PythonLayout;

/// Parts of the names of files that IPython and ipykernel give to cells.
const MARKS: [&str; 2] = ["/ipykernel_", "<ipython-input-"];

/// `im_self` of a method (`PyMethodObject` in `Include/cpython/classobject.h`@v3.9.18 to @v3.15.2).
const METHOD_SELF: u16 = 24;

/// The history of results, twice in a namespace: `init_user_ns` in `IPython/core/interactiveshell.py`@8.12.3.
const HISTORY: [&str; 2] = ["Out", "_oh"];

/// Returns the name of the cell that the code objects of a file belong to, such as `In[7]`. ipykernel makes the
/// file's name from a hash (`_filename_map` in `IPython/core/compilerop.py`@8.12.3). `None` for other files.
pub fn cell(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    interpreter: u64,
    file: &str,
) -> Option<Arc<str>> {
    if !MARKS.iter().any(|mark| file.contains(mark)) {
        return None;
    }
    let heap = Heap::of(memory, layout);
    let value = |dict: u64, name| heap.values_of(dict, [name]).ok()?[0];
    let attribute = |object: u64, name| {
        heap.attributes_of(&*heap.class_of(object)?, object, [name])
            .0[0]
    };
    let method = value(heap.globals_of(interpreter, "__main__")?, "get_ipython")?;
    let compiler = attribute(heap.word(method, METHOD_SELF).ok()?, "compile")?;
    let files = attribute(compiler, "_filename_map")?;
    let mut number = None;
    let find = |entry: DictEntry| {
        if number.is_none() && heap.text(entry.key).as_deref() == Some(file) {
            number = heap.number(entry.value);
        }
    };
    heap.entries(files, find).ok()?;
    let number = number.filter(|number| *number > 0)?;
    Some(format!("In[{number}]").into())
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
    let [name, same] = HISTORY;
    // Most modules have no such name: the other one is not looked for.
    let Some(history) = value_of(name) else {
        return;
    };
    if value_of(same) != Some(history) {
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

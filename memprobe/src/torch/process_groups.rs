//! Process groups of `torch.distributed` over NCCL, from the globals of its Python module.
//!
//! torch/distributed/distributed_c10d.py@v2.0.1 to @v2.15.0: `_pg_names` and `_pg_backend_config` have the name and the
//! backends of each group that the process belongs to, and `_pg_group_ranks` has its ranks.

use std::collections::HashMap;

use crate::event::ProcessGroup;
use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;
use crate::python::layout::PythonLayout;

const MODULE: &str = "torch.distributed.distributed_c10d";

/// Name of the backend over NCCL in `_pg_backend_config`, such as `cuda:nccl` or `cpu:gloo,cuda:nccl`.
const BACKEND: &str = "nccl";

/// Most groups of a process, and most ranks of all of them that are listed.
const MAX_GROUPS: usize = 1 << 10;
const MAX_RANKS: usize = 1 << 14;

/// Most entries of all tables, with `sys.modules`: a program waits for none of them, but its attach does.
const MAX_ITEMS: u64 = 1 << 18;

/// Reads the groups of a process, in the order of their making. A group without a name or without ranks is left out: it is
/// made or destroyed at that moment.
pub fn read(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    interpreter: u64,
) -> Vec<ProcessGroup> {
    let heap = &Heap::limited(memory, layout, MAX_ITEMS);
    let Some(globals) = heap.globals_of(interpreter, MODULE) else {
        return Vec::new();
    };
    let tables = ["_pg_names", "_pg_backend_config", "_pg_group_ranks"];
    let Ok([Some(names), Some(backends), Some(ranks)]) = heap.values_of(globals, tables) else {
        return Vec::new();
    };
    let [backends, ranks] = [backends, ranks].map(|table| by_group(heap, table));
    let mut found = Vec::new();
    let mut left = MAX_RANKS;
    // A table that changes is read as far as it can be.
    let _ = heap.entries(names, |entry| {
        let group = || {
            let backend = heap.string(*backends.get(&entry.key)?)?;
            let name = heap
                .string(entry.value)
                .filter(|_| backend.contains(BACKEND))?;
            let ranks = ranks_of(heap, *ranks.get(&entry.key)?)?;
            Some(ProcessGroup {
                name: name.to_string(),
                size: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
                ranks,
            })
        };
        if found.len() < MAX_GROUPS
            && let Some(mut group) = group()
        {
            match left.checked_sub(group.ranks.len()) {
                Some(rest) => left = rest,
                None => group.ranks.clear(),
            }
            found.push(group);
        }
    });
    found
}

/// Values of a table by the address of the group's object.
fn by_group(heap: &Heap<'_, impl ReadMemory>, table: u64) -> HashMap<u64, u64> {
    let mut values = HashMap::new();
    let _ = heap.entries(table, |entry| {
        if values.len() < MAX_GROUPS {
            values.insert(entry.key, entry.value);
        }
    });
    values
}

/// Global ranks of a group, ascending: the keys of a dict. `None` if one is no rank, or there is none.
fn ranks_of(heap: &Heap<'_, impl ReadMemory>, table: u64) -> Option<Vec<u32>> {
    let mut ranks = Vec::new();
    let mut are_all = true;
    let read = heap.entries(table, |entry| {
        match heap.natural(entry.key).map(u32::try_from) {
            Some(Ok(rank)) => ranks.push(rank),
            _ => are_all = false,
        }
    });
    read.ok()?;
    ranks.sort_unstable();
    (are_all && !ranks.is_empty()).then_some(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::fake::FakeMemory;
    use crate::python::heap::fake::FakeHeap;
    use crate::python::versions::LAYOUTS;

    /// The memory of an interpreter with these modules, by name.
    fn imported(mut heap: FakeHeap, modules: &[(&str, u64)]) -> (FakeMemory, u64) {
        let entries = modules
            .iter()
            .map(|&(name, module)| (heap.text(name), module))
            .collect::<Vec<_>>();
        let table = heap.dict(&entries);
        let offset: u64 = heap.layout.interpreter_modules.into();
        let (mut memory, interpreter) = heap.finish();
        memory.write(interpreter + offset, &table.to_le_bytes());
        (memory, interpreter)
    }

    fn group(name: &str, ranks: &[u32]) -> ProcessGroup {
        ProcessGroup {
            name: name.to_owned(),
            size: u32::try_from(ranks.len()).unwrap(),
            ranks: ranks.to_vec(),
        }
    }

    /// Five groups of which two are whole and over NCCL; returns also the tables of the module.
    fn five_groups(layout: &'static PythonLayout) -> (FakeMemory, u64, [u64; 3]) {
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("ProcessGroup", 0, 0);
        let objects: Vec<u64> = (0..5).map(|_| heap.object(class, 48)).collect();
        let names = ["0", "tp", "cpu", "torn", "odd"].map(|name| heap.text(name));
        let both = heap.text("cpu:gloo,cuda:nccl");
        let [nccl, gloo] = ["cuda:nccl", "cpu:gloo"].map(|backend| heap.text(backend));
        let backends = [both, nccl, gloo, nccl, nccl];
        let ranks = |heap: &mut FakeHeap, of: &[i32]| {
            let pairs = of.iter().map(|rank| (heap.int(*rank), heap.int(0)));
            let pairs: Vec<_> = pairs.collect();
            heap.dict(&pairs)
        };
        let odd = heap.dict(&[(names[0], names[0])]);
        let members = [
            ranks(&mut heap, &[0, 1, 2, 3]),
            ranks(&mut heap, &[3, 1]),
            ranks(&mut heap, &[0]),
            ranks(&mut heap, &[]),
            odd,
        ];
        let tables = [names, backends, members].map(|values| {
            let pairs: Vec<_> = objects.iter().copied().zip(values).collect();
            heap.dict(&pairs)
        });
        let globals = [
            ("_pg_names", tables[0]),
            ("_pg_backend_config", tables[1]),
            ("_pg_group_ranks", tables[2]),
        ];
        let module = heap.module(MODULE, &globals);
        let other = heap.module("torch", &[]);
        let modules = [("torch", other), (MODULE, module)];
        let (memory, interpreter) = imported(heap, &modules);
        (memory, interpreter, tables)
    }

    #[test]
    fn groups_over_nccl_have_their_names_and_ranks() {
        for layout in &LAYOUTS {
            let (memory, interpreter, _) = five_groups(layout);
            let read = read(&memory, layout, interpreter);
            assert_eq!(read, [group("0", &[0, 1, 2, 3]), group("tp", &[1, 3])]);
        }
    }

    #[test]
    fn damaged_tables_have_fewer_groups() {
        let layout = &LAYOUTS[LAYOUTS.len() - 1];
        let mut fewer = 0;
        for table in 0..3 {
            for word in 0..12 {
                let (mut memory, interpreter, tables) = five_groups(layout);
                memory.write(tables[table] + 8 * word, &u64::MAX.to_le_bytes());
                let found = read(&memory, layout, interpreter);
                assert!(found.len() <= 2, "{found:?}");
                fewer += usize::from(found.len() < 2);
            }
        }
        // Some of the words matter, and others do not.
        assert!((3..36).contains(&fewer), "{fewer}");
    }

    #[test]
    fn a_process_without_the_module_has_none() {
        for layout in &LAYOUTS {
            let mut heap = FakeHeap::new(layout);
            let torch = heap.module("torch", &[]);
            let (memory, interpreter) = imported(heap, &[("torch", torch)]);
            assert_eq!(read(&memory, layout, interpreter), []);
        }
    }
}

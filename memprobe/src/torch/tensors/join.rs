//! Joins Python's objects, PyTorch's objects and the allocator's blocks to one snapshot.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::Found;
use super::contexts::FunctionContexts;
use super::linked_tensors::{LinkedTensors, index_of};
use super::names::{self, ResolvedName};
use super::retainers::{self, HeldTensor, ReferenceGraph};
use super::tensor_objects::{self, TensorObjects};
use crate::event::Bytes;
use crate::event::tensors::{Block, DeviceTotals, Name, Tensor, TensorKind, TensorSnapshot};
use crate::process::memory::ReadMemory;
use crate::python::PythonProcess;
use crate::python::heap::Heap;
use crate::python::heap::capture::HeapScan;
use crate::python::heap::image::Image;
use crate::python::heap::modules::ObjectTree;
use crate::python::heap::optimizers::Optimizers;
use crate::python::heap::paths::Paths;
use crate::python::heap::retainers::HeapRetainers;
use crate::torch::objects::RawTensor;

/// Reads all memory that [`join`] needs. It drops what was read of PyTorch's objects, because another look at the memory
/// reads it again.
pub fn touch(
    image: &Image<impl ReadMemory>,
    python: &PythonProcess,
    moment: &mut HeapScan,
    found: &mut Found,
) {
    found.allocator = Ok(None);
    let mut graph = std::mem::take(&mut found.graph);
    graph.storages = Vec::new();
    let heap = Heap::with_classes(image, &python.layout, std::mem::take(&mut moment.classes));
    let tensors = graph.tensors.iter();
    let of_python = TensorObjects::of(&found.tensors, tensors.map(|raw| raw.object));
    for &(object, _) in &found.tensors {
        heap.class_of(object);
    }
    let tensors = graph.tensors.iter().map(|raw| raw.object);
    found.reached = tensor_objects::without_object(tensors, &found.tensors);
    // The contexts need the nodes alone.
    graph.tensors = Vec::new();
    let paths = Paths::search(&heap, &moment.objects, &moment.variables.all);
    let tree = ObjectTree::of(std::mem::take(&mut moment.modules));
    names::touch(&paths, &tree, &moment.optimizers, &of_python);
    holders(&paths, &tree, &moment.optimizers, &of_python, |_| ());
    FunctionContexts::search(&paths, &graph, &of_python);
    moment.classes = heap.into_classes();
}

/// Joins everything. Blocks, storages and shapes leave `found`.
pub fn join(
    image: &Image<impl ReadMemory>,
    python: &PythonProcess,
    moment: &mut HeapScan,
    found: &mut Found,
) -> TensorSnapshot {
    let mut snapshot = TensorSnapshot::default();
    let mut tensors = std::mem::take(&mut found.graph.tensors);
    snapshot.tensors = tensors.iter().map(|raw| tensor(raw, found)).collect();
    take_shapes(&mut tensors, &mut snapshot.tensors);
    let linked = LinkedTensors::of(tensors);
    take_blocks(found, &mut snapshot);
    snapshot.storages = std::mem::take(&mut found.graph.storages);
    let found = &*found;
    add_contents(&linked, &mut snapshot.tensors);
    add_gradients(&linked, &mut snapshot.tensors);
    add_saved(found, &linked, &mut snapshot.tensors);

    let heap = Heap::with_classes(image, &python.layout, std::mem::take(&mut moment.classes));
    let tensors = snapshot.tensors.iter();
    let of_python = TensorObjects::of(&found.tensors, tensors.map(|tensor| tensor.object));
    let mut classes: HashMap<u64, Arc<str>> = HashMap::new();
    for (object, at) in of_python.iter() {
        let class = heap.class_of(object);
        snapshot.tensors[at].class = class.map(|class| {
            let name = classes.entry(class.address);
            Arc::clone(name.or_insert_with(|| class.short_name().into()))
        });
    }
    let paths = Paths::search(&heap, &moment.objects, &moment.variables.all);
    let tree = ObjectTree::of(std::mem::take(&mut moment.modules));
    let optimizers = &moment.optimizers;
    snapshot.optimizers.clone_from(&optimizers.settings);
    snapshot.kv.clone_from(&found.kv);
    snapshot.tags.clone_from(&found.tags);
    let named = names::name(&paths, &tree, optimizers, &of_python, &snapshot.tensors);
    for (tensor, named) in snapshot.tensors.iter_mut().zip(named) {
        take_name(tensor, named);
    }
    for at in moment
        .cached
        .iter()
        .filter_map(|&object| of_python.tensor(object))
    {
        let tensor = &mut snapshot.tensors[at];
        if matches!(tensor.kind, TensorKind::Tensor | TensorKind::Saved) {
            tensor.kind = TensorKind::KvCache;
        }
    }
    name_parts(&linked, &mut snapshot.tensors);
    let mut held = Vec::new();
    let holders = holders(&paths, &tree, optimizers, &of_python, |tensor| {
        held.push(tensor);
    });
    let contexts = FunctionContexts::search(&paths, &found.graph, &of_python);
    name_attributes(contexts.names(&found.graph), &mut snapshot.tensors);
    let slot = |way| paths.slot(way);
    let all = &holders.all;
    let graph = ReferenceGraph {
        found,
        linked: &linked,
        contexts: &contexts,
    };
    let left_out = retainers::name_retainers(graph, all, &held, &mut snapshot, slot);
    if holders.not_followed > 0 {
        let not_followed = holders.not_followed;
        let words = format!("all who hold {not_followed} tensors: there are too many ways to them");
        snapshot.unread.push(words.into());
    }
    if left_out > 0 {
        let words = format!("{left_out} references: who keeps what alone is not told");
        snapshot.unread.push(words.into());
    }
    snapshot
}

/// Determines the holders of each tensor: modules, optimizers, and the objects at the start of paths. Calls `held` with
/// each tensor and each of its holders.
fn holders(
    paths: &Paths<'_, impl ReadMemory>,
    tree: &ObjectTree,
    optimizers: &Optimizers,
    of_python: &TensorObjects,
    mut held: impl FnMut(HeldTensor),
) -> HeapRetainers {
    let mut holders = HeapRetainers::of(paths);
    let mut hold = |object: u64, retainer: u32, path| {
        if let Some(tensor) = of_python.tensor(object) {
            held(HeldTensor {
                tensor: tensor as u32,
                retainer,
                path,
            });
        }
    };
    for (module, place) in tree.every_place() {
        let root = &tree.modules[place.root];
        let root = holders.object(paths, (root.object, &root.class));
        for (_, tensor) in module.parameters.iter().chain(&module.buffers) {
            hold(*tensor, root, None);
        }
    }
    for state in &optimizers.state {
        let holder = holders.object(paths, (state.object, &state.optimizer));
        hold(state.tensor, holder, None);
    }
    for (object, _) in of_python.iter() {
        for by in holders.by_paths(paths, object) {
            hold(object, by.retainer, Some(by.path));
        }
    }
    holders
}

fn take_blocks(found: &mut Found, snapshot: &mut TensorSnapshot) {
    let Ok(Some(tables)) = &mut found.allocator else {
        return;
    };
    let devices = tables.devices.iter().map(|counters| DeviceTotals {
        device: counters.device,
        totals: counters.totals,
    });
    snapshot.devices = devices.collect();
    let blocks = std::mem::take(&mut tables.blocks).into_iter();
    let blocks = blocks.map(|block| Block {
        addr: block.addr,
        size: block.size,
        requested: Some(block.requested),
        device: block.device,
        site: None,
        purpose: None,
    });
    snapshot.blocks = blocks.collect();
}

/// Moves shapes and strides to the tensors, which share equal ones.
fn take_shapes(all: &mut [RawTensor], tensors: &mut [Tensor]) {
    let mut known: HashSet<Arc<[u64]>> = HashSet::new();
    for (raw, tensor) in all.iter_mut().zip(tensors) {
        let Some(geometry) = raw.geometry.take() else {
            continue;
        };
        let strides = geometry.strides.iter();
        let strides: Option<Vec<u64>> = strides.map(|&stride| stride.try_into().ok()).collect();
        let strides = strides.unwrap_or_default();
        tensor.strides = Arc::clone(known.get_or_insert_with(&strides[..], |new| new.into()));
        tensor.shape = Some(Arc::clone(&geometry.shape));
        tensor.offset = geometry.offset;
    }
}

/// The tensor without its shape, which [`take_shapes`] moves.
fn tensor(raw: &RawTensor, found: &Found) -> Tensor {
    let storage = raw.storage;
    let storage = storage.and_then(|storage| found.graph.storage_index(storage));
    let references = raw.references();
    // PyTorch makes the node of such a view anew when it is asked (`VariableHooks::grad_fn`,
    // torch/csrc/autograd/variable.cpp@v2.15.0): the one that is there is of older values.
    let grad_fn = references.grad_fn.filter(|_| !references.outdated);
    let grad_fn = grad_fn.and_then(|node| found.graph.node(node));
    Tensor {
        object: raw.object,
        shape: None,
        dtype: raw.dtype,
        device: raw.device,
        storage,
        requires_grad: raw.requires_grad.unwrap_or(false),
        grad_fn: grad_fn.and_then(|node| node.name.clone()),
        ..Tensor::default()
    }
}

/// Sums the parts of each sparse tensor; its content is unknown unless all parts were read.
fn add_contents(linked: &LinkedTensors, tensors: &mut [Tensor]) {
    for (at, raw) in linked.iter() {
        let parts = &raw.references().parts;
        if parts.is_empty() {
            continue;
        }
        let mut parts = parts.iter().map(|part| {
            let part = index_of(tensors, *part)?;
            tensors[part].bytes()
        });
        let sum = parts.try_fold(0_u64, |sum, part| Some(sum.saturating_add(part?.0)));
        tensors[at].content = sum.map(Bytes);
    }
}

fn add_gradients(linked: &LinkedTensors, tensors: &mut [Tensor]) {
    for (of, raw) in linked.iter() {
        let grad = raw
            .references()
            .grad
            .and_then(|grad| index_of(tensors, grad));
        if let Some(grad) = grad.and_then(|at| tensors.get_mut(at)) {
            grad.gradient_of.push(of);
        }
    }
}

/// Records the operation that saves each tensor for the backward pass, the first one if there are several. An
/// operation that saves a view also keeps the view's base.
fn add_saved(found: &Found, linked: &LinkedTensors, tensors: &mut [Tensor]) {
    for saved in &found.graph.saved {
        let place = index_of(tensors, saved.tensor);
        if let Some((place, node)) = place.zip(found.graph.node(saved.node)) {
            let name = || node.name.clone().unwrap_or_else(|| Arc::from("?"));
            tensors[place].saved_by.get_or_insert_with(name);
        }
    }
    for (view, raw) in linked.iter() {
        let place = raw
            .references()
            .base
            .and_then(|base| index_of(tensors, base));
        if let Some(base) = place.filter(|&base| tensors[base].saved_by.is_none()) {
            tensors[base].saved_by = tensors[view].saved_by.clone();
        }
    }
}

fn take_name(tensor: &mut Tensor, named: ResolvedName) {
    tensor.kind = match named.kind {
        Some(kind) => kind,
        None if !tensor.gradient_of.is_empty() => TensorKind::Gradient,
        None if tensor.saved_by.is_some() && named.names.is_empty() => TensorKind::Saved,
        None => TensorKind::Tensor,
    };
    tensor.names = named.names;
    tensor.module = named.module;
    tensor.called = named.called;
}

/// Names the tensors that only the `ctx` of a Function leads to. It keeps them for the backward pass.
fn name_attributes(names: Vec<(usize, Arc<str>)>, tensors: &mut [Tensor]) {
    for (at, text) in names {
        let tensor = &mut tensors[at];
        if tensor.names.is_empty() && tensor.saved_by.is_none() {
            let inferred = None;
            tensor.names.push(Name { text, inferred });
            if tensor.kind == TensorKind::Tensor {
                tensor.kind = TensorKind::Saved;
            }
        }
    }
}

/// Names the tensors within sparse tensors after these.
fn name_parts(linked: &LinkedTensors, tensors: &mut [Tensor]) {
    for (of, raw) in linked.iter() {
        for (number, part) in raw.references().parts.iter().enumerate() {
            let Some(at) = index_of(tensors, *part) else {
                continue;
            };
            let name = names::of_part(&raw.class, number, &tensors[of].names);
            let (module, called) = (tensors[of].module.clone(), tensors[of].called.clone());
            let part = &mut tensors[at];
            if part.names.is_empty() {
                part.names.extend(name);
                (part.module, part.called) = (module, called);
            }
        }
    }
}

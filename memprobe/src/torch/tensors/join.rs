//! Joins Python's objects, PyTorch's objects and the allocator's blocks to one snapshot.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Found;
use super::contexts::Contexts;
use super::names::{self, Named};
use super::retainers::{self, HeldTensor};
use crate::event::tensors::{Block, DeviceTotals, Storage, Tensor, TensorKind, TensorSnapshot};
use crate::process::memory::ReadMemory;
use crate::python::PythonProcess;
use crate::python::heap::Heap;
use crate::python::heap::capture::HeapScan;
use crate::python::heap::image::Image;
use crate::python::heap::modules::Tree;
use crate::python::heap::paths::Paths;
use crate::python::heap::retainers::HeapRetainers;
use crate::torch::objects::RawTensor;

pub(super) fn join(
    image: &Image<impl ReadMemory>,
    python: &PythonProcess,
    moment: &mut HeapScan,
    found: &Found,
) -> TensorSnapshot {
    let mut snapshot = TensorSnapshot::default();
    add_blocks(found, &mut snapshot);
    let raw = &found.graph.storages;
    snapshot.storages = raw
        .iter()
        .map(|storage| Storage {
            object: storage.object,
            data: storage.data,
            bytes: storage.bytes,
            device: storage.device,
            retainer: None,
        })
        .collect();
    snapshot.tensors = found
        .graph
        .tensors
        .iter()
        .map(|raw| tensor(raw, found))
        .collect();
    add_gradients(found, &mut snapshot.tensors);
    add_saved(found, &mut snapshot.tensors);

    let heap = Heap::of(image, &python.layout);
    let places: HashMap<u64, usize> = snapshot
        .tensors
        .iter()
        .map(|tensor| tensor.object)
        .zip(0..)
        .collect();
    let of_python: HashMap<u64, usize> = found
        .tensors
        .iter()
        .filter_map(|(object, tensor)| Some((*object, *places.get(tensor)?)))
        .collect();
    for (object, &at) in &of_python {
        let class = moment.classes.of(&heap, *object);
        snapshot.tensors[at].class = class.map(|class| class.short_name().into());
    }
    let (scan, classes) = (&moment.objects, &mut moment.classes);
    let paths = Paths::search(&heap, classes, scan, &moment.variables.all);
    let tree = Tree::of(moment.modules.clone());
    let of = (&paths, &tree);
    let named = names::name(&heap, moment, of, &of_python, &snapshot.tensors);
    for (tensor, named) in snapshot.tensors.iter_mut().zip(named) {
        take_name(tensor, named);
    }
    name_parts(found, &places, &mut snapshot.tensors);
    let (holders, held) = holders(&heap, moment, of, &of_python);
    let not_followed = holders.not_followed;
    let search = (&paths, &moment.objects);
    let classes = &mut moment.classes;
    let contexts = Contexts::search(&heap, classes, search, &found.graph, &of_python);
    let slot = |way| paths.slot(&heap, classes, way);
    let all = &holders.all;
    let left_out = retainers::name_retainers(found, &contexts, all, &held, &mut snapshot, slot);
    if not_followed > 0 {
        let words = format!("all who hold {not_followed} tensors: there are too many ways to them");
        snapshot.unread.push(words.into());
    }
    if left_out > 0 {
        let words = format!("{left_out} references: who keeps what alone is not told");
        snapshot.unread.push(words.into());
    }
    snapshot
}

/// Determines the holders of each tensor: modules, optimizers, and the objects at the start of paths.
fn holders(
    heap: &Heap<'_, impl ReadMemory>,
    moment: &mut HeapScan,
    (paths, tree): (&Paths, &Tree),
    of_python: &HashMap<u64, usize>,
) -> (HeapRetainers, Vec<HeldTensor>) {
    let classes = &mut moment.classes;
    let search = (paths, &moment.objects);
    let mut holders = HeapRetainers::of(paths);
    let mut held = Vec::new();
    let mut hold = |object: &u64, holder: u32, way| {
        if let Some(&tensor) = of_python.get(object) {
            let held_so = HeldTensor {
                tensor,
                retainer: holder,
                path: way,
            };
            held.push(held_so);
        }
    };
    for (module, place) in tree.every_place() {
        let root = &tree.modules[place.root];
        let root = holders.object(heap, classes, search, (root.object, &root.class));
        for (_, tensor) in module.parameters.iter().chain(&module.buffers) {
            hold(tensor, root, None);
        }
    }
    for state in &moment.optimizers.state {
        let optimizer = (state.object, &state.optimizer);
        let holder = holders.object(heap, classes, search, optimizer);
        hold(&state.tensor, holder, None);
    }
    let mut objects: Vec<&u64> = of_python.keys().collect();
    objects.sort_unstable();
    for object in objects {
        for by in holders.by_paths(heap, classes, search, *object) {
            hold(object, by.retainer, Some(by.path));
        }
    }
    (holders, held)
}

fn add_blocks(found: &Found, snapshot: &mut TensorSnapshot) {
    let Ok(Some(tables)) = &found.allocator else {
        return;
    };
    snapshot.devices = tables
        .devices
        .iter()
        .map(|counters| DeviceTotals {
            device: counters.device,
            totals: counters.totals,
        })
        .collect();
    snapshot.blocks = tables
        .blocks
        .iter()
        .map(|block| Block {
            addr: block.addr,
            size: block.size,
            requested: Some(block.requested),
            device: block.device,
            site: None,
            purpose: None,
        })
        .collect();
}

fn tensor(raw: &RawTensor, found: &Found) -> Tensor {
    let shape = raw.geometry.as_ref();
    let shape = shape.map(|geometry| geometry.shape.clone());
    let geometry = raw.geometry.clone().unwrap_or_default();
    let strides = geometry.strides.iter();
    let strides: Option<Vec<u64>> = strides.map(|&stride| u64::try_from(stride).ok()).collect();
    let storage = raw.storage.and_then(|storage| {
        let storages = &found.graph.storages;
        let place = storages.binary_search_by_key(&storage, |storage| storage.object);
        place.ok()
    });
    let grad_fn = raw.grad_fn.and_then(|node| found.graph.node(node));
    Tensor {
        object: raw.object,
        shape,
        strides: strides.unwrap_or_default(),
        offset: geometry.offset,
        dtype: raw.dtype,
        device: raw.device,
        storage,
        requires_grad: raw.requires_grad.unwrap_or(false),
        grad_fn: grad_fn.and_then(|node| node.name.clone()),
        ..Tensor::default()
    }
}

/// Records for each tensor the tensors whose `.grad` it is.
fn add_gradients(found: &Found, tensors: &mut [Tensor]) {
    for (of, raw) in found.graph.tensors.iter().enumerate() {
        let Some(grad) = raw.grad else { continue };
        let place = tensors.binary_search_by_key(&grad, |tensor| tensor.object);
        if let Ok(place) = place {
            tensors[place].gradient_of.push(of);
        }
    }
}

/// Records the operation that saves each tensor for the backward pass, the first one if there are several. An
/// operation that saves a view also keeps the view's base.
fn add_saved(found: &Found, tensors: &mut [Tensor]) {
    for saved in &found.graph.saved {
        let place = tensors.binary_search_by_key(&saved.tensor, |tensor| tensor.object);
        let node = found.graph.node(saved.node);
        let (Ok(place), Some(node)) = (place, node) else {
            continue;
        };
        let by = &mut tensors[place].saved_by;
        if by.is_none() {
            *by = Some(node.name.clone().unwrap_or_else(|| Arc::from("?")));
        }
    }
    for (view, raw) in found.graph.tensors.iter().enumerate() {
        let place = raw.base.and_then(|base| {
            let place = tensors.binary_search_by_key(&base, |tensor| tensor.object);
            place.ok()
        });
        if let Some(base) = place.filter(|&base| tensors[base].saved_by.is_none()) {
            tensors[base].saved_by = tensors[view].saved_by.clone();
        }
    }
}

fn take_name(tensor: &mut Tensor, named: Named) {
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

/// Names the tensors within sparse tensors after these.
fn name_parts(found: &Found, places: &HashMap<u64, usize>, tensors: &mut [Tensor]) {
    for (of, raw) in found.graph.tensors.iter().enumerate() {
        for (number, part) in raw.parts.iter().enumerate() {
            let Some(&at) = places.get(part) else {
                continue;
            };
            let name = names::of_part(&raw.class, number, &tensors[of].names);
            let module = tensors[of].module.clone();
            let part = &mut tensors[at];
            if part.names.is_empty() {
                part.names.extend(name);
                part.module = module;
            }
        }
    }
}

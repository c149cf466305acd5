//! Determines the holder of each storage, through tensors, gradients, graphs and the `ctx` of Functions.
//!
//! A holder on every path to a storage keeps it alone. Otherwise the holder that lives longest is named: a global
//! before a call in progress. Of several, the shortest path counts, then the holder of most storages alone.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Found;
use super::contexts::FunctionContexts;
use super::dominators::{Graph, NONE, dominators};
use super::linked_tensors::{LinkedTensors, index_of};
use super::reference_paths::{ShortestPaths, Steps, VertexNumbers, references};
use crate::event::tensors::{Retainer, Tensor, TensorSnapshot};
use crate::python::heap::paths::PathOrigin;
use crate::python::heap::retainers::HeapRetainer;

const ROOT: u32 = 0;

/// Most references that are followed. Each takes about 20 bytes.
const MAX_EDGES: usize = 1 << 24;

#[derive(Default)]
struct Edges {
    all: Vec<(u32, u32)>,
    left_out: u64,
}

impl Edges {
    fn add(&mut self, edges: impl IntoIterator<Item = (u32, u32)>) {
        for edge in edges {
            if self.all.len() < MAX_EDGES {
                self.all.push(edge)
            } else {
                self.left_out += 1
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HeldTensor {
    pub(super) tensor: u32,
    pub(super) retainer: u32,
    /// The path to the tensor; `None` if the tensor's own name says more.
    pub(super) path: Option<PathOrigin>,
}

/// PyTorch's objects with their references, beside the tensors of a snapshot.
#[derive(Clone, Copy)]
pub(super) struct ReferenceGraph<'a> {
    pub(super) found: &'a Found,
    pub(super) linked: &'a LinkedTensors,
    pub(super) contexts: &'a FunctionContexts,
}

/// Records for each storage the holder that keeps it. `slot` returns the text of a path to a held tensor. Returns the
/// number of references that were not followed; if there are any, no holder is said to keep anything alone.
pub fn name_retainers(
    of: ReferenceGraph<'_>,
    holders: &[HeapRetainer],
    held: &[HeldTensor],
    snapshot: &mut TensorSnapshot,
    mut slot: impl FnMut(PathOrigin) -> Option<Arc<str>>,
) -> u64 {
    let ReferenceGraph {
        found, contexts, ..
    } = of;
    let numbers = VertexNumbers::of(holders.len(), found, contexts, snapshot);
    let holding = holding(numbers, held, holders.len());
    let (graph, left_out) = graph(of, &snapshot.tensors, numbers, &holding);
    let alone = alone(&graph, numbers, holders.len());
    let mut held: Vec<&HeldTensor> = held.iter().collect();
    let ranks = ranks(&alone, numbers, holders.len());
    let life = |held: &HeldTensor| holders.get(held.retainer as usize).map(|by| by.life);
    held.sort_by_key(|held| (life(held), Reverse(ranks.get(held.retainer as usize))));
    let paths = ShortestPaths::from(&graph, numbers, &held, life);
    // If references are missing, other holders may keep the storage too.
    let is_whole = found.graph.left_out.too_many == 0 && left_out == 0;
    let steps = Steps::of(contexts, numbers);
    // A held tensor can lead to many storages.
    let mut slots: Vec<Option<Option<Arc<str>>>> = vec![None; held.len()];
    for at in 0..snapshot.storages.len() {
        let vertex = numbers.storage(at);
        let Some((first, step)) = paths.to(vertex) else {
            continue;
        };
        let held = held[first];
        let by = holders.get(held.retainer as usize);
        let Some((by, tensor)) = by.zip(snapshot.tensors.get(held.tensor as usize)) else {
            continue;
        };
        let named = || match held.path {
            Some(way) => slot(way).map(|text| {
                // Mostly a name of the tensor, which then has the same text.
                let known = tensor.names.iter().find(|name| name.text == text);
                known.map_or(text, |name| Arc::clone(&name.text))
            }),
            None => tensor.names.first().map(|name| Arc::clone(&name.text)),
        };
        let slot = slots[first].get_or_insert_with(named);
        let beyond =
            step.and_then(|to| through(of, &snapshot.tensors, numbers, held.tensor as usize, to));
        let through = steps.beyond(found, (&paths, vertex), step).or(beyond);
        snapshot.storages[at].retainer = Some(Arc::new(Retainer {
            by: Arc::clone(&by.path),
            class: by.class.clone(),
            slot: slot.clone(),
            through,
            exclusive: is_whole && alone[vertex as usize] != NONE,
        }));
    }
    left_out
}

fn graph(
    of: ReferenceGraph<'_>,
    tensors: &[Tensor],
    numbers: VertexNumbers,
    holding: &[(u32, u32)],
) -> (Graph, u64) {
    let mut edges = Edges {
        left_out: of.contexts.left_out,
        ..Edges::default()
    };
    edges.add(holding.iter().copied());
    edges.add(references(of.contexts, numbers).map(|(from, to, _)| (from, to)));
    add_edges(of, tensors, numbers, &mut edges);
    // Python tensors that no name leads to are attached to the root, as kept by an unknown holder. Tensors
    // that named ones keep alive already have a path.
    let named = reached(&Graph::of(numbers.end as usize, &edges.all));
    let nameless = (0..tensors.len()).filter(|&at| {
        let vertex = numbers.tensor(at) as usize;
        tensors[at].class.is_some() && !named[vertex]
    });
    edges.add(nameless.map(|at| (ROOT, numbers.tensor(at))));
    let graph = Graph::of(numbers.end as usize, &edges.all);
    (graph, edges.left_out)
}

/// Text of the step from a tensor to a vertex. Returns `None` for the tensor's own storage.
fn through(
    of: ReferenceGraph<'_>,
    tensors: &[Tensor],
    numbers: VertexNumbers,
    tensor: usize,
    to: u32,
) -> Option<Arc<str>> {
    if to >= numbers.storages {
        return None;
    }
    let references = of.linked.references(tensor)?;
    if to >= numbers.nodes {
        let node = references.grad_fn;
        let node = node.and_then(|node| of.found.graph.node(node));
        let name = node.and_then(|node| node.name.as_deref());
        return Some(format!("grad_fn {}", name.unwrap_or("?")).into());
    }
    let target = numbers.as_tensor(to);
    let target = target.and_then(|at| Some(tensors.get(at)?.object));
    Some(match target {
        Some(_) if target == references.grad => ".grad".into(),
        Some(_) if target == references.base => "._base".into(),
        _ => "its elements".into(),
    })
}

fn holding(numbers: VertexNumbers, held: &[HeldTensor], holders: usize) -> Vec<(u32, u32)> {
    let mut edges: Vec<(u32, u32)> = (0..holders as u32).map(|at| (ROOT, 1 + at)).collect();
    let tensors = held.iter();
    edges.extend(tensors.map(|held| (1 + held.retainer, numbers.tensor(held.tensor as usize))));
    edges
}

fn add_edges(
    of: ReferenceGraph<'_>,
    tensors: &[Tensor],
    numbers: VertexNumbers,
    edges: &mut Edges,
) {
    let graph = &of.found.graph;
    let tensor = |object: u64| {
        let place = index_of(tensors, object);
        place.map(|at| numbers.tensor(at))
    };
    let node = |address| Some(numbers.nodes + graph.node_index(address)? as u32);
    let storages = tensors.iter().enumerate();
    let storages = storages.filter_map(|(at, tensor)| Some((at, tensor.storage?)));
    edges.add(storages.map(|(at, storage)| (numbers.tensor(at), numbers.storage(storage))));
    for (at, raw) in of.linked.iter() {
        let from = numbers.tensor(at);
        let references = raw.references();
        edges.add(references.grad.and_then(tensor).map(|to| (from, to)));
        edges.add(references.base.and_then(tensor).map(|to| (from, to)));
        let parts = references.parts.iter();
        edges.add(parts.filter_map(|part| Some((from, tensor(*part)?))));
        edges.add(references.grad_fn.and_then(node).map(|to| (from, to)));
    }
    for (at, raw) in graph.nodes.iter().enumerate() {
        let from = numbers.nodes + at as u32;
        let next = raw.next.iter().chain(&raw.within);
        edges.add(next.filter_map(|next| Some((from, node(*next)?))));
    }
    for saved in &graph.saved {
        edges.add(node(saved.node).zip(tensor(saved.tensor)));
    }
}

fn reached(graph: &Graph) -> Vec<bool> {
    let mut met = vec![false; graph.vertices()];
    let mut open = vec![ROOT];
    while let Some(vertex) = open.pop() {
        if !std::mem::replace(&mut met[vertex as usize], true) {
            open.extend(graph.next(vertex));
        }
    }
    met
}

/// The holder that dominates each vertex; [`NONE`] if there is none.
fn alone(graph: &Graph, numbers: VertexNumbers, holders: usize) -> Vec<u32> {
    let tree = dominators(graph, ROOT);
    let mut alone = vec![NONE; numbers.end as usize];
    for vertex in tree.order {
        let above = tree.dominators[vertex as usize];
        alone[vertex as usize] = match (1..=holders as u32).contains(&vertex) {
            true => vertex - 1,
            false if above == NONE => NONE,
            false => alone[above as usize],
        };
    }
    alone
}

fn ranks(alone: &[u32], numbers: VertexNumbers, holders: usize) -> Vec<u32> {
    let mut ranks = vec![0; holders];
    for holder in &alone[numbers.storages as usize..] {
        if let Some(rank) = ranks.get_mut(*holder as usize) {
            *rank += 1;
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::super::contexts::{Reference, To};
    use super::*;
    use crate::event::tensors::{DType, Storage, TensorDevice};
    use crate::event::{Address, Bytes};
    use crate::torch::objects::graph::{RawGraph, RawNode, Saved, SavedTensor};
    use crate::torch::objects::{RawTensor, TensorImplClass, TensorReferences};

    fn raw(object: u64, grad_fn: Option<u64>) -> RawTensor {
        RawTensor {
            object,
            class: TensorImplClass::Dense,
            geometry: None,
            dtype: DType::FLOAT32,
            device: TensorDevice::Cpu,
            storage: None,
            requires_grad: None,
            python: None,
            references: Some(Box::new(TensorReferences {
                grad_fn,
                ..TensorReferences::default()
            })),
        }
    }

    fn node(address: u64, next: &[u64]) -> RawNode {
        RawNode {
            address,
            name: Some("MulBackward0".into()),
            sequence: None,
            next: next.to_vec(),
            within: None,
            python: None,
        }
    }

    fn saved(tensor: u64, node: u64) -> SavedTensor {
        let saved = Saved::Original;
        SavedTensor {
            tensor,
            node,
            saved,
        }
    }

    fn holder(path: &str, class: &str) -> HeapRetainer {
        HeapRetainer {
            path: path.into(),
            class: Some(class.into()),
            life: 0,
        }
    }

    /// Two losses whose graphs share a node, a weight that the model and a graph keep, and the weight's
    /// gradient. One more Python tensor is without a name.
    fn found() -> Found {
        let mut weight = raw(0x50, None);
        weight.references.as_mut().unwrap().grad = Some(0x70);
        let mut nodes = vec![
            node(0x100, &[0x300]),
            node(0x200, &[0x300]),
            node(0x300, &[]),
        ];
        nodes.sort_by_key(|node| node.address);
        Found {
            layouts: None,
            tensors: Vec::new(),
            empty: Vec::new(),
            reached: Vec::new(),
            graph: RawGraph {
                tensors: vec![
                    raw(0x10, Some(0x100)),
                    raw(0x20, Some(0x200)),
                    raw(0x30, None),
                    raw(0x40, None),
                    weight,
                    raw(0x60, None),
                    raw(0x70, None),
                ],
                storages: Vec::new(),
                nodes,
                saved: vec![saved(0x30, 0x100), saved(0x40, 0x300), saved(0x50, 0x300)],
                left_out: Default::default(),
            },
            allocator: Ok(None),
            serving: Default::default(),
            kv: Default::default(),
            tags: Vec::new(),
            tagged_pools: Vec::new(),
        }
    }

    fn snapshot(found: &Found) -> TensorSnapshot {
        let tensors = found.graph.tensors.iter().enumerate();
        TensorSnapshot {
            tensors: tensors
                .map(|(at, raw)| Tensor {
                    object: raw.object,
                    storage: Some(at),
                    class: Some("Tensor".into()),
                    ..Tensor::default()
                })
                .collect(),
            storages: (0..7)
                .map(|at| Storage {
                    object: at,
                    data: Address(at),
                    bytes: Bytes(512),
                    device: TensorDevice::Cpu,
                    retainer: None,
                })
                .collect(),
            ..TensorSnapshot::default()
        }
    }

    /// For each storage: its holder, the step from the holder, and whether it is the only holder.
    fn retained(held: &[(usize, u32)], holders: &[HeapRetainer]) -> Vec<String> {
        retained_with(&FunctionContexts::default(), held, holders)
    }

    fn retained_with(
        contexts: &FunctionContexts,
        held: &[(usize, u32)],
        holders: &[HeapRetainer],
    ) -> Vec<String> {
        let found = found();
        let mut snapshot = snapshot(&found);
        let held = held.iter().map(|&(tensor, holder)| HeldTensor {
            tensor: tensor as u32,
            retainer: holder,
            path: None,
        });
        let held: Vec<_> = held.collect();
        let graph = ReferenceGraph {
            found: &found,
            linked: &LinkedTensors::of(found.graph.tensors.clone()),
            contexts,
        };
        name_retainers(graph, holders, &held, &mut snapshot, |_| None);
        let retainers = snapshot.storages.iter().map(|storage| &storage.retainer);
        retainers
            .map(|retainer| {
                retainer.as_ref().map_or_else(String::new, |retainer| {
                    let through = retainer.through.as_deref().unwrap_or("itself");
                    let alone = if retainer.exclusive {
                        "alone"
                    } else {
                        "with others"
                    };
                    format!("{} {through} {alone}", retainer.by)
                })
            })
            .collect()
    }

    #[test]
    fn a_container_on_all_paths_is_the_exclusive_retainer() {
        let holders = [holder("losses[*]", "list"), holder("model", "Net")];
        let through = "grad_fn MulBackward0";
        assert_eq!(
            retained(&[(0, 0), (1, 0), (4, 1)], &holders),
            [
                "losses[*] itself alone",
                "losses[*] itself alone",
                &format!("losses[*] {through} alone"),
                &format!("losses[*] {through} alone"),
                "model itself with others",
                "",
                "model .grad with others",
            ]
        );
    }

    #[test]
    fn memory_reached_from_two_variables_has_no_exclusive_retainer() {
        let holders = [holder("one", "list"), holder("other", "list")];
        let rows = retained(&[(0, 0), (1, 1)], &holders);
        assert_eq!(rows[2], "one grad_fn MulBackward0 alone");
        assert_eq!(rows[3], "one grad_fn MulBackward0 with others");
        assert_eq!(rows[6], "one grad_fn MulBackward0 with others");
    }

    #[test]
    fn a_global_retains_before_a_call_in_progress_however_near() {
        let mut holders = [
            holder("forward() -> x", "list"),
            holder("losses[*]", "list"),
        ];
        holders[0].life = 3;
        let rows = retained(&[(2, 0), (3, 0), (0, 1), (1, 1)], &holders);
        assert_eq!(rows[2], "losses[*] grad_fn MulBackward0 with others");
        assert_eq!(rows[3], "losses[*] grad_fn MulBackward0 with others");
    }

    #[test]
    fn memory_held_by_a_ctx_is_retained_by_the_retainer_of_its_node() {
        // The node 0x300, at index 2, has a `ctx` with a list of the tensor at index 5.
        let refer = |from, to, step: &str| Reference {
            from,
            to,
            step: step.into(),
        };
        let contexts = FunctionContexts {
            objects: 2,
            of_nodes: vec![(2, 0)],
            references: vec![
                refer(0, To::Object(1), ".kept"),
                refer(1, To::Tensor(5), "[*]"),
            ],
            left_out: 0,
        };
        let holders = [holder("losses[*]", "list")];
        let rows = retained_with(&contexts, &[(0, 0), (1, 0)], &holders);
        let named = contexts.names(&found().graph);
        assert_eq!(named, [(5, "MulBackward0.ctx.kept[*]".into())]);
        let words = "grad_fn MulBackward0 ... MulBackward0.ctx.kept[*]";
        assert_eq!(rows[5], format!("losses[*] {words} alone"));
        assert_eq!(rows[2], "losses[*] grad_fn MulBackward0 alone");
    }

    #[test]
    fn where_references_of_a_context_were_not_followed_nobody_keeps_anything_alone() {
        let contexts = FunctionContexts {
            left_out: 1,
            ..FunctionContexts::default()
        };
        let holders = [holder("losses[*]", "list")];
        let rows = retained_with(&contexts, &[(0, 0)], &holders);
        assert_eq!(rows[0], "losses[*] itself with others");
    }
}

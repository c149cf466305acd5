//! Shortest paths from holders to all that they keep alive, and the text of paths through a Function's `ctx`.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;

use super::Found;
use super::contexts::{FunctionContexts, To};
use super::dominators::{Graph, NONE};
use super::retainers::HeldTensor;
use crate::event::tensors::TensorSnapshot;
use crate::python::heap::paths::MAX_STEPS;

/// Numbering of the vertices: root, holders, tensors, autograd nodes, objects reachable from a `ctx`,
/// storages. Each field is the first number of its kind.
#[derive(Clone, Copy)]
pub(super) struct VertexNumbers {
    pub(super) tensors: u32,
    pub(super) nodes: u32,
    pub(super) objects: u32,
    pub(super) storages: u32,
    pub(super) end: u32,
}

impl VertexNumbers {
    pub fn of(
        holders: usize,
        found: &Found,
        contexts: &FunctionContexts,
        snapshot: &TensorSnapshot,
    ) -> Self {
        let after = |before: u32, count: usize| before.saturating_add(count as u32);
        let tensors = after(1, holders);
        let nodes = after(tensors, snapshot.tensors.len());
        let objects = after(nodes, found.graph.nodes.len());
        let storages = after(objects, contexts.objects);
        Self {
            tensors,
            nodes,
            objects,
            storages,
            end: after(storages, snapshot.storages.len()),
        }
    }

    pub fn tensor(self, at: usize) -> u32 {
        self.tensors + at as u32
    }

    pub fn storage(self, at: usize) -> u32 {
        self.storages + at as u32
    }

    pub fn as_node(self, vertex: u32) -> Option<usize> {
        let at = vertex.checked_sub(self.nodes)?;
        (vertex < self.objects).then_some(at as usize)
    }

    /// True if a vertex is a `ctx` or an object reachable from one.
    pub fn is_object(self, vertex: u32) -> bool {
        (self.objects..self.storages).contains(&vertex)
    }

    pub fn as_tensor(self, vertex: u32) -> Option<usize> {
        let is_one = (self.tensors..self.nodes).contains(&vertex);
        is_one.then(|| (vertex - self.tensors) as usize)
    }
}

pub(super) struct ShortestPaths {
    /// By vertex.
    from: Vec<Reached>,
}

/// Numbers of vertices, or [`NONE`]: there are millions.
#[derive(Clone, Copy)]
struct Reached {
    /// Index in `held` of the tensor at the start of the path; [`NONE`] if there is no path.
    held: u32,
    /// The first vertex after that tensor.
    first: u32,
    /// The previous vertex; [`NONE`] for the tensor itself.
    before: u32,
}

impl Reached {
    const NOT: Self = Self {
        held: NONE,
        first: NONE,
        before: NONE,
    };

    fn is_none(self) -> bool {
        self.held == NONE
    }
}

fn some(number: u32) -> Option<u32> {
    (number != NONE).then_some(number)
}

impl ShortestPaths {
    /// Searches from the tensors of each holder, in the order of the lives of the holders.
    pub fn from(
        graph: &Graph,
        numbers: VertexNumbers,
        held: &[&HeldTensor],
        life: impl Fn(&HeldTensor) -> Option<u32>,
    ) -> Self {
        let mut paths = Self {
            from: vec![Reached::NOT; graph.vertices()],
        };
        let mut first = 0;
        for held in held.chunk_by(|one, other| life(one) == life(other)) {
            paths.follow(graph, numbers, (first, held));
            first += held.len();
        }
        paths
    }

    fn follow(
        &mut self,
        graph: &Graph,
        numbers: VertexNumbers,
        (start, held): (usize, &[&HeldTensor]),
    ) {
        let from = &mut self.from;
        let mut open = VecDeque::new();
        for (at, held) in (start..).zip(held) {
            let vertex = numbers.tensor(held.tensor as usize);
            let known = &mut from[vertex as usize];
            if known.is_none() {
                *known = Reached {
                    held: at as u32,
                    ..Reached::NOT
                };
                open.push_back(vertex);
            }
        }
        while let Some(vertex) = open.pop_front() {
            let Reached { held, first, .. } = from[vertex as usize];
            for &to in graph.next(vertex) {
                let known = &mut from[to as usize];
                if known.is_none() {
                    *known = Reached {
                        held,
                        first: some(first).unwrap_or(to),
                        before: vertex,
                    };
                    open.push_back(to);
                }
            }
        }
    }

    pub fn to(&self, vertex: u32) -> Option<(usize, Option<u32>)> {
        let from = self.from.get(vertex as usize)?;
        Some((some(from.held)? as usize, some(from.first)))
    }

    pub fn before(&self, vertex: u32) -> Option<u32> {
        some(self.from.get(vertex as usize)?.before)
    }
}

/// Edges from nodes to their `ctx`, and from there on, with the text of each step.
pub fn references(
    contexts: &FunctionContexts,
    numbers: VertexNumbers,
) -> impl Iterator<Item = (u32, u32, Option<&Arc<str>>)> {
    let of_nodes = contexts.of_nodes.iter();
    let of_nodes = of_nodes
        .map(move |(node, object)| (numbers.nodes + *node as u32, numbers.objects + object, None));
    let others = contexts.references.iter().map(move |reference| {
        let to = match reference.to {
            To::Object(number) => numbers.objects + number,
            To::Tensor(place) => numbers.tensor(place),
        };
        (numbers.objects + reference.from, to, Some(&reference.step))
    });
    of_nodes.chain(others)
}

pub(super) struct Steps<'a> {
    numbers: VertexNumbers,
    words: HashMap<(u32, u32), &'a Arc<str>>,
}

impl<'a> Steps<'a> {
    pub fn of(contexts: &'a FunctionContexts, numbers: VertexNumbers) -> Self {
        let words = references(contexts, numbers)
            .filter_map(|(from, to, words)| Some(((from, to), words?)));
        Self {
            numbers,
            words: words.collect(),
        }
    }

    /// Text of the path to the storage at a vertex, if the last part of the path starts at the `ctx` of a
    /// Function. `first` is the first vertex after the held tensor.
    pub fn beyond(
        &self,
        found: &Found,
        (paths, storage): (&ShortestPaths, u32),
        first: Option<u32>,
    ) -> Option<Arc<str>> {
        let first = self.numbers.as_node(first?)?;
        let mut at = paths.before(storage)?;
        let mut before = paths.before(at)?;
        let mut steps = Vec::new();
        while self.numbers.is_object(before) {
            steps.push(self.words.get(&(before, at)).map_or("", |words| words));
            if steps.len() > MAX_STEPS {
                return None;
            }
            (at, before) = (before, paths.before(before)?);
        }
        let node = self.numbers.as_node(before).filter(|_| !steps.is_empty())?;
        let name = |at: usize| {
            let node = found.graph.nodes.get(at);
            node.and_then(|node| node.name.as_deref()).unwrap_or("?")
        };
        let way = if node == first {
            ""
        } else {
            &format!("{} ... ", name(first))
        };
        steps.reverse();
        Some(format!("grad_fn {way}{}.ctx{}", name(node), steps.concat()).into())
    }
}

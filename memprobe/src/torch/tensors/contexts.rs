//! Follows the attributes of the `ctx` of custom autograd Functions, as in `ctx.x = x`.
//!
//! A graph node owns the Python object of its Function (`PyNode` in
//! `torch/csrc/autograd/python_function.h`@v2.0.1 to @v2.15.0), and that owns its attributes. Its other
//! references (`to_save`, `dirty_tensors`, `non_differentiable`, `saved_for_forward`) end with the forward
//! pass of the Function (`process_outputs` in `python_function.cpp`@v2.15.0) and are not followed.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::tensor_objects::TensorObjects;
use crate::process::memory::ReadMemory;
use crate::python::heap::class::ContainerKind;
use crate::python::heap::contents::Step;
use crate::python::heap::paths::Paths;
use crate::python::heap::retainers::EVERY;
use crate::torch::objects::graph::RawGraph;

/// Most objects and references that are followed.
const MAX_OBJECTS: usize = 1 << 18;
const MAX_REFERENCES: usize = 1 << 19;

/// Longest path that gets another step.
const LONGEST_PATH: usize = 512;

/// Prefix while a step is formatted, so that an attribute gets its dot.
const CTX: &str = "ctx";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Object(u32),
    /// The tensor at this index of the snapshot.
    Tensor(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) from: u32,
    pub(super) to: To,
    /// Text of the step, such as `.x` or `[*]`.
    pub(super) step: Arc<str>,
}

/// Python objects reachable from the `ctx` of Functions, including these.
#[derive(Debug, Default)]
pub(super) struct FunctionContexts {
    pub(super) objects: usize,
    /// Index of a node in the graph, and the number of its `ctx`.
    pub(super) of_nodes: Vec<(usize, u32)>,
    pub(super) references: Vec<Reference>,
    /// References that were skipped because of a limit or because they could not be read.
    pub(super) left_out: u64,
}

impl FunctionContexts {
    /// Follows the references from the `ctx` of all nodes. `of_python` has the tensors of Python objects.
    pub fn search(
        paths: &Paths<'_, impl ReadMemory>,
        graph: &RawGraph,
        of_python: &TensorObjects,
    ) -> Self {
        let mut search = Search {
            paths,
            contexts: Self::default(),
            numbers: HashMap::new(),
            open: Vec::new(),
            steps: HashSet::new(),
        };
        for (at, node) in graph.nodes.iter().enumerate() {
            let Some(object) = node.python else { continue };
            let place = paths.place_of(object);
            match place.and_then(|place| search.number(place)) {
                Some(number) => search.contexts.of_nodes.push((at, number)),
                None => search.contexts.left_out += 1,
            }
        }
        while let Some((place, number)) = search.open.pop() {
            let Some((address, class)) = paths.object_at(place) else {
                continue;
            };
            let mut held = Vec::new();
            let each = |step, value| held.push((step, value));
            let read = paths.heap.contents(&class, address, each);
            search.contexts.left_out += u64::from(read.is_err());
            for (step, value) in held {
                let to = match of_python.tensor(value) {
                    Some(tensor) => Some(To::Tensor(tensor)),
                    None => search.object(step, value),
                };
                if let Some(to) = to {
                    search.refer(number, step, to);
                }
            }
        }
        search.contexts
    }

    /// Tensors that the `ctx` of a Function leads to, by the shortest path: `EnergyBackward.ctx.x`.
    pub fn names(&self, graph: &RawGraph) -> Vec<(usize, Arc<str>)> {
        let mut held: HashMap<u32, Vec<&Reference>> = HashMap::new();
        for reference in &self.references {
            held.entry(reference.from).or_default().push(reference);
        }
        let mut named = HashSet::new();
        let mut names = Vec::new();
        let mut open: VecDeque<(u32, String)> = VecDeque::new();
        for &(node, number) in &self.of_nodes {
            let name = graph.nodes[node].name.as_deref().unwrap_or("?");
            open.push_back((number, format!("{name}.ctx")));
        }
        // Each object is met once, at the end of a shortest path.
        while let Some((number, path)) = open.pop_front() {
            for reference in held.remove(&number).unwrap_or_default() {
                if path.len() > LONGEST_PATH {
                    continue;
                }
                let path = format!("{path}{}", reference.step);
                match reference.to {
                    To::Object(number) => open.push_back((number, path)),
                    To::Tensor(at) if named.insert(at) => names.push((at, path.into())),
                    To::Tensor(_) => {}
                }
            }
        }
        names
    }
}

struct Search<'a, M> {
    paths: &'a Paths<'a, M>,
    contexts: FunctionContexts,
    /// Numbers of objects by their index in the census.
    numbers: HashMap<u32, u32>,
    open: Vec<(u32, u32)>,
    /// Texts of steps, shared because most are equal.
    steps: HashSet<Arc<str>>,
}

impl<M: ReadMemory> Search<'_, M> {
    /// Number of the object at an index of the census. Returns `None` beyond the limit.
    fn number(&mut self, place: u32) -> Option<u32> {
        if let Some(known) = self.numbers.get(&place) {
            return Some(*known);
        }
        if self.contexts.objects >= MAX_OBJECTS {
            return None;
        }
        let number = self.contexts.objects as u32;
        self.contexts.objects += 1;
        self.numbers.insert(place, number);
        self.open.push((place, number));
        Some(number)
    }

    /// The object at the end of a step, if it may lead to tensors.
    fn object(&mut self, step: Step, value: u64) -> Option<To> {
        let place = self.paths.place_of(value)?;
        let (_, class) = self.paths.object_at(place)?;
        // Modules and classes live independently of the `ctx`.
        let is_apart = matches!(class.holds, ContainerKind::Globals | ContainerKind::Class);
        if is_apart || self.is_globals(step) {
            return None;
        }
        let number = self.number(place);
        self.contexts.left_out += u64::from(number.is_none());
        number.map(To::Object)
    }

    fn refer(&mut self, from: u32, step: Step, to: To) {
        if self.contexts.references.len() >= MAX_REFERENCES {
            self.contexts.left_out += 1;
            return;
        }
        let mut text = CTX.to_owned();
        match step {
            Step::Index(_) | Step::Indices(..) | Step::Flat(_) | Step::Element => {
                text.push_str(EVERY)
            }
            step => self.paths.heap.write_step(step, &mut text),
        }
        let text = text.split_off(CTX.len());
        let step = self
            .steps
            .get_or_insert_with(text.as_str(), |text| text.into());
        let step = Arc::clone(step);
        self.contexts.references.push(Reference { from, to, step });
    }

    fn is_globals(&self, step: Step) -> bool {
        let name = match step {
            Step::Member(class, number) => self.paths.heap.member(class, number),
            Step::Attribute(name) => self.paths.heap.text(name),
            _ => None,
        };
        name.is_some_and(|name| matches!(&*name, "__globals__" | "__builtins__"))
    }
}

//! Follows the attributes of the `ctx` of custom autograd Functions, as in `ctx.x = x`.
//!
//! A graph node owns the Python object of its Function (`PyNode` in
//! `torch/csrc/autograd/python_function.h`@v2.0.1 to @v2.15.0), and that owns its attributes. Its other
//! references (`to_save`, `dirty_tensors`, `non_differentiable`, `saved_for_forward`) end with the forward
//! pass of the Function (`process_outputs` in `python_function.cpp`@v2.15.0) and are not followed.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;
use crate::python::heap::class::{Classes, ContainerKind};
use crate::python::heap::contents::Step;
use crate::python::heap::paths::Paths;
use crate::python::heap::process_scan::ProcessScan;
use crate::python::heap::retainers::EVERY;
use crate::torch::objects::graph::RawGraph;

/// Most objects and references that are followed.
const MAX_OBJECTS: usize = 1 << 18;
const MAX_REFERENCES: usize = 1 << 19;

/// Prefix while a step is formatted, so that an attribute gets its dot.
const CTX: &str = "ctx";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Object(u32),
    /// The tensor at this index of the snapshot.
    Tensor(usize),
}

/// A reference from one object to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) from: u32,
    pub(super) to: To,
    /// Text of the step, such as `.x` or `[*]`.
    pub(super) step: Arc<str>,
}

/// Python objects reachable from the `ctx` of Functions, including these.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    pub(super) objects: usize,
    /// Index of a node in the graph, and the number of its `ctx`.
    pub(super) of_nodes: Vec<(usize, u32)>,
    pub(super) references: Vec<Reference>,
    /// References that were skipped because of a limit or because they could not be read.
    pub(super) left_out: u64,
}

impl Contexts {
    /// Follows the references from the `ctx` of all nodes. `of_python` maps Python objects to the indices of
    /// their tensors.
    pub(super) fn search(
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        (paths, scan): (&Paths, &ProcessScan),
        graph: &RawGraph,
        of_python: &HashMap<u64, usize>,
    ) -> Self {
        let mut search = Search {
            contexts: Self::default(),
            numbers: HashMap::new(),
            open: Vec::new(),
            steps: HashMap::new(),
        };
        for (at, node) in graph.nodes.iter().enumerate() {
            let Some(object) = node.python else { continue };
            match paths
                .place_of(object)
                .and_then(|place| search.number(place))
            {
                Some(number) => search.contexts.of_nodes.push((at, number)),
                None => search.contexts.left_out += 1,
            }
        }
        while let Some((place, number)) = search.open.pop() {
            let Some(object) = scan.objects.get(place as usize) else {
                continue;
            };
            let Some(class) = classes.get(object.class) else {
                continue;
            };
            let mut held = Vec::new();
            let read = heap.contents(class, object.class, object.address, |step, value| {
                held.push((step, value));
            });
            search.contexts.left_out += u64::from(read.is_err());
            for (step, value) in held {
                let to = match of_python.get(&value) {
                    Some(&tensor) => Some(To::Tensor(tensor)),
                    None => search.object(heap, classes, (paths, scan), (step, value)),
                };
                if let Some(to) = to {
                    search.refer(heap, classes, (number, step), to);
                }
            }
        }
        search.contexts
    }
}

struct Search {
    contexts: Contexts,
    /// Numbers of objects by their index in the census.
    numbers: HashMap<u32, u32>,
    /// Index and number of each object yet to be read.
    open: Vec<(u32, u32)>,
    /// Texts of steps, shared because most are equal.
    steps: HashMap<String, Arc<str>>,
}

impl Search {
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
    fn object(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &Classes,
        (paths, scan): (&Paths, &ProcessScan),
        (step, value): (Step, u64),
    ) -> Option<To> {
        let place = paths.place_of(value)?;
        let class = scan.objects.get(place as usize)?.class;
        let holds = classes.get(class)?.holds;
        // Modules and classes live independently of the `ctx`.
        if matches!(holds, ContainerKind::Globals | ContainerKind::Class)
            || is_globals(heap, classes, step)
        {
            return None;
        }
        let number = self.number(place);
        self.contexts.left_out += u64::from(number.is_none());
        number.map(To::Object)
    }

    fn refer(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        (from, step): (u32, Step),
        to: To,
    ) {
        if self.contexts.references.len() >= MAX_REFERENCES {
            self.contexts.left_out += 1;
            return;
        }
        let mut text = CTX.to_owned();
        match step {
            Step::Index(_) | Step::Element => text.push_str(EVERY),
            step => heap.write_step(classes, step, &mut text),
        }
        let text = text.split_off(CTX.len());
        let step = match self.steps.get(&text) {
            Some(known) => Arc::clone(known),
            None => {
                let step: Arc<str> = text.as_str().into();
                self.steps.insert(text, Arc::clone(&step));
                step
            }
        };
        let reference = Reference { from, to, step };
        self.contexts.references.push(reference);
    }
}

/// True if a step leads from a function to the globals of its module.
fn is_globals(heap: &Heap<'_, impl ReadMemory>, classes: &Classes, step: Step) -> bool {
    let name = match step {
        Step::Member(class, number) => classes
            .get(class)
            .and_then(|class| class.members.get(number as usize))
            .map(|member| Arc::clone(&member.name)),
        Step::Attribute(name) => heap.text(name),
        _ => None,
    };
    name.is_some_and(|name| matches!(&*name, "__globals__" | "__builtins__"))
}

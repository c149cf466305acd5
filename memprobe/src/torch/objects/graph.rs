//! Collects everything reachable from given tensors: gradients, bases, the graph behind `grad_fn`, and the
//! tensors saved for the backward pass.

use hashbrown::{HashMap, HashSet};

use super::NotOne;
use super::layout_versions::NodeLayout;
use super::layouts::{Layouts, lies_within};
use super::node;
use super::storage::RawStorage;
use super::tensor::RawTensor;
use crate::process::memory::ReadMemory;

pub use super::node::RawNode;
pub use super::saved::Saved;

/// Limits. Each tensor costs memprobe about 300 bytes, each node about 200.
const MAX_TENSORS: usize = 1 << 19;
const MAX_NODES: usize = 1 << 19;
const MAX_SAVED: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavedTensor {
    pub tensor: u64,
    pub node: u64,
    pub saved: Saved,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawGraph {
    /// Tensors sorted by address, without duplicates, including those without a Python object.
    pub tensors: Vec<RawTensor>,
    /// Their storages, sorted by address, without duplicates.
    pub storages: Vec<RawStorage>,
    /// Nodes sorted by address, without duplicates.
    pub nodes: Vec<RawNode>,
    /// Saved tensors, sorted by tensor. Several nodes may save the same tensor.
    pub saved: Vec<SavedTensor>,
    pub left_out: LeftOut,
}

/// Counts of objects that are missing from the graph, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Tensors that could not be read or whose fields contradict one another.
    pub tensors: u64,
    /// Tensors whose autograd metadata could not be read.
    pub without_autograd: u64,
    /// Tensors whose shape exceeds their storage.
    pub beyond_storage: u64,
    pub storages: u64,
    pub nodes: u64,
    /// Nodes of unknown size, which were not searched for saved tensors.
    pub unsearched: u64,
    /// Saved tensors that a hook packed into something other than a tensor.
    pub packed: u64,
    pub too_many: u64,
}

impl LeftOut {
    /// Describes the missing objects for users, one line per reason.
    pub fn words(&self) -> Vec<String> {
        let rows = [
            (
                self.tensors,
                "tensors could not be read: they changed or were torn down meanwhile",
            ),
            (
                self.without_autograd,
                "tensors have gradients and operations that could not be read",
            ),
            (
                self.beyond_storage,
                "tensors have a shape that asks for more than their storage has",
            ),
            (
                self.storages,
                "storages could not be read, such as those whose size is a symbol",
            ),
            (
                self.nodes,
                "operations of the backward pass could not be read",
            ),
            (
                self.unsearched,
                "operations of the backward pass were not searched for the tensors that they keep: \
                 neither their class nor the allocator tells their size, as with another malloc than that \
                 of the C library",
            ),
            (
                self.packed,
                "tensors kept for the backward pass are kept by hooks, as something else than tensors",
            ),
            (
                self.too_many,
                "tensors and operations are more than memprobe keeps",
            ),
        ];
        let missing = rows.into_iter().filter(|(count, _)| *count > 0);
        missing
            .map(|(count, words)| format!("{count} {words}"))
            .collect()
    }
}

impl RawGraph {
    pub fn tensor(&self, object: u64) -> Option<&RawTensor> {
        let found = self
            .tensors
            .binary_search_by_key(&object, |tensor| tensor.object);
        self.tensors.get(found.ok()?)
    }

    pub fn storage(&self, object: u64) -> Option<&RawStorage> {
        let found = self
            .storages
            .binary_search_by_key(&object, |storage| storage.object);
        self.storages.get(found.ok()?)
    }

    pub fn node(&self, address: u64) -> Option<&RawNode> {
        let found = self
            .nodes
            .binary_search_by_key(&address, |node| node.address);
        self.nodes.get(found.ok()?)
    }

    pub fn nodes_saving(&self, tensor: u64) -> impl Iterator<Item = &SavedTensor> {
        let start = self.saved.partition_point(|saved| saved.tensor < tensor);
        let from = self.saved[start..].iter();
        from.take_while(move |saved| saved.tensor == tensor)
    }
}

/// Collects everything reachable from `tensors` (`TensorImpl`s) and `nodes` (graph nodes that no tensor leads
/// to). Objects are read in the order of their addresses, so that each page is read once.
pub fn collect(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    tensors: &[u64],
    nodes: &[u64],
) -> RawGraph {
    let mut collector = Collector {
        memory,
        layouts,
        layout: None,
        tensors: Frontier::of(MAX_TENSORS),
        nodes: Frontier::of(MAX_NODES),
        storages: HashMap::new(),
        graph: RawGraph::default(),
    };
    collector.tensors.add(tensors.iter().copied());
    collector.nodes.add(nodes.iter().copied());
    while !collector.tensors.is_done() || !collector.nodes.is_done() {
        collector.read_tensors();
        collector.read_nodes();
    }
    collector.finish()
}

/// Addresses yet to be read, each once.
struct Frontier {
    met: HashSet<u64>,
    next: Vec<u64>,
    most: usize,
    beyond: u64,
}

impl Frontier {
    fn of(most: usize) -> Self {
        Self {
            met: HashSet::new(),
            next: Vec::new(),
            most,
            beyond: 0,
        }
    }

    fn add(&mut self, addresses: impl IntoIterator<Item = u64>) {
        for address in addresses {
            if self.met.contains(&address) {
                continue;
            }
            if self.met.len() >= self.most {
                self.beyond += 1;
                continue;
            }
            self.met.insert(address);
            self.next.push(address);
        }
    }

    fn is_done(&self) -> bool {
        self.next.is_empty()
    }

    /// Removes and returns the pending addresses, sorted.
    fn take(&mut self) -> Vec<u64> {
        let mut next = std::mem::take(&mut self.next);
        next.sort_unstable();
        next
    }
}

struct Collector<'a, M> {
    memory: &'a M,
    layouts: &'a Layouts,
    /// Layout of the graph, once nodes have shown it.
    layout: Option<NodeLayout>,
    tensors: Frontier,
    nodes: Frontier,
    /// `None` for storages that could not be read.
    storages: HashMap<u64, Option<RawStorage>>,
    graph: RawGraph,
}

impl<M: ReadMemory> Collector<'_, M> {
    fn read_tensors(&mut self) {
        for object in self.tensors.take() {
            let mut tensor = match self.layouts.tensor(self.memory, object) {
                Ok(tensor) => tensor,
                Err(NotOne::Undefined) => continue,
                Err(_) => {
                    self.graph.left_out.tensors += 1;
                    continue;
                }
            };
            self.tensors.add(tensor.grad.into_iter().chain(tensor.base));
            self.tensors.add(tensor.parts.iter().copied());
            self.nodes.add(tensor.grad_fn);
            self.graph.left_out.without_autograd += u64::from(tensor.requires_grad.is_none());
            self.look_at_storage(&mut tensor);
            self.graph.tensors.push(tensor);
        }
    }

    /// Reads the storage of a tensor. Clears the reference if the storage cannot be read.
    fn look_at_storage(&mut self, tensor: &mut RawTensor) {
        let Some(object) = tensor.storage else {
            return;
        };
        let read = || self.layouts.storage(self.memory, object).ok();
        let Some(storage) = *self.storages.entry(object).or_insert_with(read) else {
            tensor.storage = None;
            return;
        };
        let fits = tensor
            .geometry
            .as_ref()
            .is_none_or(|geometry| lies_within(geometry, tensor.dtype, storage.bytes));
        if !fits {
            self.graph.left_out.beyond_storage += 1;
        }
    }

    fn read_nodes(&mut self) {
        let nodes = self.nodes.take();
        if nodes.is_empty() {
            return;
        }
        if self.layout.is_none() {
            self.layout = self.layouts.of_nodes(self.memory, &nodes);
        }
        let Some(layout) = self.layout else {
            self.graph.left_out.nodes += nodes.len() as u64;
            return;
        };
        for address in nodes {
            let Some(read) = node::read(self.memory, self.layouts, &layout, address) else {
                self.graph.left_out.nodes += 1;
                continue;
            };
            let next = read.node.next.iter().copied();
            self.nodes.add(next.chain(read.node.within));
            self.graph.left_out.unsearched += u64::from(read.unsearched);
            self.graph.left_out.packed += read.saved.packed;
            for (tensor, saved) in read.saved.tensors {
                if self.graph.saved.len() >= MAX_SAVED {
                    self.graph.left_out.too_many += 1;
                    continue;
                }
                self.tensors.add([tensor]);
                self.graph.saved.push(SavedTensor {
                    tensor,
                    node: address,
                    saved,
                });
            }
            self.graph.nodes.push(read.node);
        }
    }

    fn finish(self) -> RawGraph {
        let mut graph = self.graph;
        graph.left_out.too_many += self.tensors.beyond + self.nodes.beyond;
        let unread = self.storages.values().filter(|storage| storage.is_none());
        graph.left_out.storages = unread.count() as u64;
        graph.storages = self.storages.into_values().flatten().collect();
        graph
            .storages
            .sort_unstable_by_key(|storage| storage.object);
        graph.tensors.sort_unstable_by_key(|tensor| tensor.object);
        graph.nodes.sort_unstable_by_key(|node| node.address);
        graph.saved.sort_unstable();
        graph.saved.dedup();
        graph
    }
}

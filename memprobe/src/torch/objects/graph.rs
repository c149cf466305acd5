//! Collects everything reachable from tensors: gradients, bases, graph nodes, and the tensors that these save.

use std::sync::Arc;

use hashbrown::HashSet;

use super::NotOne;
use super::layout_versions::NodeLayout;
use super::layouts::{ObjectReader, lies_within};
use super::tensor::{Geometry, RawTensor};
use crate::event::tensors::Storage;
use crate::process::memory::ReadMemory;

pub use super::node::RawNode;
pub use super::saved::Saved;

/// Most tensors and most nodes, of about 300 and 200 bytes in memprobe, and most saved tensors.
pub const MAX_REACHED: usize = 1 << 19;
const MAX_SAVED: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavedTensor {
    pub tensor: u64,
    pub node: u64,
    pub saved: Saved,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawGraph {
    /// Tensors sorted by address, without duplicates, including those without a Python object.
    pub tensors: Vec<RawTensor>,
    /// Their storages, sorted by address, without duplicates.
    pub storages: Vec<Storage>,
    pub nodes: Vec<RawNode>,
    /// Saved tensors, sorted by tensor. Several nodes may save the same tensor.
    pub saved: Vec<SavedTensor>,
    pub left_out: LeftOut,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Tensors that could not be read or whose fields contradict one another.
    pub tensors: u64,
    pub without_autograd: u64,
    pub beyond_storage: u64,
    pub storages: u64,
    pub nodes: u64,
    /// Nodes of unknown size, which were not searched for saved tensors.
    pub unsearched: u64,
    /// Saved tensors that a hook packed into something other than a tensor.
    pub packed: u64,
    pub too_many: u64,
    /// True if tensors are among these.
    pub has_more_tensors: bool,
}

impl LeftOut {
    /// Describes the missing objects for users, one line per reason.
    pub fn words(&self) -> Vec<String> {
        let of_tensors = [self.tensors, self.without_autograd, self.beyond_storage];
        let of_nodes = [
            self.storages,
            self.nodes,
            self.unsearched,
            self.packed,
            self.too_many,
        ];
        let counts = of_tensors.into_iter().chain(of_nodes);
        let missing = counts.zip(LEFT_OUT).filter(|(count, _)| *count > 0);
        missing
            .map(|(count, words)| format!("{count} {words}"))
            .collect()
    }
}

/// The words for each count of [`LeftOut`], in their order.
const LEFT_OUT: [&str; 8] = [
    "tensors could not be read: they changed or were torn down meanwhile",
    "tensors have gradients and operations that could not be read",
    "tensors have a shape that asks for more than their storage has",
    "storages could not be read, such as those whose size is a symbol",
    "operations of the backward pass could not be read",
    "operations of the backward pass were not searched for the tensors that they keep: neither their class nor \
     the allocator tells their size, as with another malloc than that of the C library",
    "tensors kept for the backward pass are kept by hooks, as something else than tensors",
    "references lead to tensors and operations beyond those that memprobe keeps (524,288 of each)",
];

impl RawGraph {
    pub fn tensor(&self, object: u64) -> Option<&RawTensor> {
        self.tensors.get(self.tensor_index(object)?)
    }

    pub fn tensor_index(&self, object: u64) -> Option<usize> {
        index_of(&self.tensors, object, |tensor| tensor.object)
    }

    pub fn storage(&self, object: u64) -> Option<&Storage> {
        self.storages.get(self.storage_index(object)?)
    }

    pub fn storage_index(&self, object: u64) -> Option<usize> {
        index_of(&self.storages, object, |storage| storage.object)
    }

    pub fn node(&self, address: u64) -> Option<&RawNode> {
        self.nodes.get(self.node_index(address)?)
    }

    pub fn node_index(&self, address: u64) -> Option<usize> {
        index_of(&self.nodes, address, |node| node.address)
    }
}

fn index_of<T>(sorted: &[T], key: u64, key_of: impl Fn(&T) -> u64) -> Option<usize> {
    sorted.binary_search_by_key(&key, key_of).ok()
}

/// Collects everything reachable from `tensors` (`TensorImpl`s) and `nodes` (graph nodes that no tensor leads
/// to). Objects are read in the order of their addresses, so that each page is read once.
pub fn collect(
    reader: &ObjectReader<'_, impl ReadMemory>,
    tensors: &[u64],
    nodes: &[u64],
) -> RawGraph {
    let mut collector = Collector {
        reader,
        layout: None,
        tensors: Frontier::default(),
        nodes: Frontier::default(),
        geometries: HashSet::new(),
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

/// Addresses of tensors or nodes yet to be read, each once.
#[derive(Default)]
struct Frontier {
    met: HashSet<u64>,
    next: Vec<u64>,
    beyond: u64,
}

impl Frontier {
    fn add(&mut self, addresses: impl IntoIterator<Item = u64>) {
        for address in addresses {
            if self.met.contains(&address) {
                continue;
            }
            if self.met.len() >= MAX_REACHED {
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

    fn take(&mut self) -> Vec<u64> {
        let mut next = std::mem::take(&mut self.next);
        next.sort_unstable();
        next
    }
}

struct Collector<'a, M> {
    reader: &'a ObjectReader<'a, M>,
    /// Layout of the graph, once nodes have shown it.
    layout: Option<NodeLayout>,
    tensors: Frontier,
    nodes: Frontier,
    /// Geometries of all tensors: many tensors have the same.
    geometries: HashSet<Arc<Geometry>>,
    graph: RawGraph,
}

impl<M: ReadMemory> Collector<'_, M> {
    fn read_tensors(&mut self) {
        for object in self.tensors.take() {
            let mut tensor = match self.reader.tensor(object) {
                Ok(tensor) => tensor,
                Err(NotOne::Undefined) => continue,
                Err(_) => {
                    self.graph.left_out.tensors += 1;
                    continue;
                }
            };
            let references = tensor.references();
            self.tensors
                .add(references.grad.into_iter().chain(references.base));
            self.tensors.add(references.parts.iter().copied());
            self.nodes.add(references.grad_fn);
            self.graph.left_out.without_autograd += u64::from(tensor.requires_grad.is_none());
            let geometry = tensor.geometry.take();
            tensor.geometry =
                geometry.map(|geometry| Arc::clone(self.geometries.get_or_insert(geometry)));
            self.graph.tensors.push(tensor);
        }
    }

    /// Reads the storages of all tensors, each once. Clears references to those that cannot be read.
    fn read_storages(&mut self) {
        let graph = &mut self.graph;
        let mut addresses: Vec<u64> = graph.tensors.iter().filter_map(|it| it.storage).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let (objects, layout) = (&self.reader.objects, self.reader.layouts.storage);
        let read = addresses
            .iter()
            .filter_map(|&object| objects.storage(layout, object).ok());
        graph.storages = read.collect();
        graph.left_out.storages = (addresses.len() - graph.storages.len()) as u64;
        for tensor in &mut graph.tensors {
            let place = tensor
                .storage
                .map(|object| index_of(&graph.storages, object, |storage| storage.object));
            match place {
                None => {}
                Some(None) => tensor.storage = None,
                Some(Some(place)) => {
                    let bytes = graph.storages[place].bytes;
                    let lies_beyond = |geometry| !lies_within(geometry, tensor.dtype, bytes);
                    let is_beyond = tensor.geometry.as_deref().is_some_and(lies_beyond);
                    graph.left_out.beyond_storage += u64::from(is_beyond);
                }
            }
        }
    }

    fn read_nodes(&mut self) {
        let nodes = self.nodes.take();
        if nodes.is_empty() {
            return;
        }
        if self.layout.is_none() {
            self.layout = self.reader.layout_of_nodes(&nodes);
        }
        let Some(layout) = self.layout else {
            self.graph.left_out.nodes += nodes.len() as u64;
            return;
        };
        for address in nodes {
            let Some(read) = self.reader.node(&layout, address) else {
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

    fn finish(mut self) -> RawGraph {
        self.read_storages();
        let mut graph = self.graph;
        graph.left_out.too_many += self.tensors.beyond + self.nodes.beyond;
        graph.left_out.has_more_tensors = self.tensors.beyond > 0;
        graph.tensors.sort_unstable_by_key(|tensor| tensor.object);
        graph.nodes.sort_unstable_by_key(|node| node.address);
        graph.saved.sort_unstable();
        graph.saved.dedup();
        graph
    }
}

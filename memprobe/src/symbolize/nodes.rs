//! Autograd nodes: the forward operation that created each node, and its name.

use std::sync::Arc;

use hashbrown::HashMap;
use memprobe_common::{NodeEnteredRecord, NodeMadeRecord};

use crate::event::{StackId, Tid};
use crate::process::cpp_class;
use crate::process::memory::ReadMemory;
use crate::torch::node_name;

/// Nodes in one of two generations; when the newer is full, the older is dropped. A node takes 40 bytes here.
const HALF_OF_NODES: usize = 1 << 19;

/// The most classes in the cache; PyTorch has some 2,000 node classes.
const MAX_CLASSES: usize = 1 << 14;

/// The most threads whose evaluated node is remembered.
const MAX_THREADS: usize = 65_536;

const UNNAMED: &str = "(unknown node)";

/// The name of a `torch.autograd.Function` node whose Python type could not be read.
const PYTHON_NODE: &str = "PyNode";

/// The suffix that PyTorch adds to the function's name for the Python type of its nodes
/// (torch/autograd/function.py@v2.15.0, `FunctionMeta`).
const PYTHON_SUFFIX: &str = "Backward";

/// The most names of nodes. A node of a further one is [`UNNAMED`].
const MAX_NAMES: usize = 1 << 16;

/// Number of a node's name in [`Nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeName(u32);

impl NodeName {
    const UNNAMED: Self = Self(0);
}

/// The known nodes. Addresses are reused by later nodes, so each node also has an identity.
pub struct Nodes {
    /// The newer and the older generation, by node address.
    made: [HashMap<u64, Made>; 2],
    entered: HashMap<Tid, Evaluated>,
    /// By address of the virtual table.
    classes: HashMap<u64, Class>,
    /// By number. The first is [`UNNAMED`].
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, NodeName>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            made: Default::default(),
            entered: HashMap::new(),
            classes: HashMap::new(),
            names: vec![UNNAMED.into()],
            numbers: HashMap::new(),
        }
    }
}

#[derive(Clone, Copy)]
struct Made {
    identity: u64,
    forward: StackId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Evaluated {
    number: u32,
    name: NodeName,
    forward: Option<StackId>,
}

#[derive(Clone, Copy)]
enum Class {
    Named(NodeName),
    /// Nodes are named after their own Python type.
    Python,
}

impl Nodes {
    pub fn make(&mut self, record: &NodeMadeRecord, forward: StackId) {
        if self.made[0].len() >= HALF_OF_NODES {
            self.made.swap(0, 1);
            self.made[0].clear();
        }
        let made = Made {
            identity: record.identity,
            forward,
        };
        self.made[0].insert(record.node, made);
    }

    /// Returns the name of a node. It must be called while the node's library is still loaded.
    pub fn name(&mut self, memory: &impl ReadMemory, record: &NodeEnteredRecord) -> NodeName {
        match self.class(memory, record.table) {
            Some(Class::Named(name)) => name,
            Some(Class::Python) => {
                // One of the two candidate addresses is not that of a type.
                let types = record.python_types.iter();
                let mut names = types.filter_map(|kind| node_name::of_python_type(memory, *kind));
                let name = names.find(|name| name.ends_with(PYTHON_SUFFIX));
                self.intern(name.as_deref().unwrap_or(PYTHON_NODE))
            }
            None => NodeName::UNNAMED,
        }
    }

    pub fn text(&self, name: NodeName) -> &Arc<str> {
        &self.names[name.0 as usize]
    }

    fn intern(&mut self, text: &str) -> NodeName {
        if let Some(name) = self.numbers.get(text) {
            return *name;
        }
        match u32::try_from(self.names.len()) {
            Ok(number) if self.names.len() < MAX_NAMES => {
                let text: Arc<str> = text.into();
                self.names.push(text.clone());
                self.numbers.insert(text, NodeName(number));
                NodeName(number)
            }
            _ => NodeName::UNNAMED,
        }
    }

    fn class(&mut self, memory: &impl ReadMemory, table: u64) -> Option<Class> {
        if let Some(known) = self.classes.get(&table) {
            return Some(*known);
        }
        let (_, mangled) = cpp_class::of_table(memory, table)?;
        let class = match &*mangled {
            node_name::PYTHON => Class::Python,
            mangled => Class::Named(self.intern(&node_name::of_class(mangled)?)),
        };
        if self.classes.len() < MAX_CLASSES {
            self.classes.insert(table, class);
        }
        Some(class)
    }

    pub fn enter(&mut self, record: &NodeEnteredRecord, name: NodeName) {
        let tid = Tid(record.tid);
        if self.entered.len() >= MAX_THREADS && !self.entered.contains_key(&tid) {
            self.entered.clear();
        }
        let made = self.made.iter().find_map(|made| made.get(&record.node));
        let made = made.filter(|made| made.identity == record.identity);
        let evaluated = Evaluated {
            number: record.number,
            name,
            forward: made.map(|made| made.forward),
        };
        self.entered.insert(tid, evaluated);
    }

    /// Returns the node that a thread evaluates, if its number is `number`: the name, and the stack of the
    /// operation that created it.
    pub fn evaluated(&self, tid: Tid, number: u32) -> Option<(NodeName, Option<StackId>)> {
        if number == 0 {
            return None;
        }
        let evaluated = self.entered.get(&tid)?;
        (evaluated.number == number).then_some((evaluated.name, evaluated.forward))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::PartialMemory;

    fn made(node: u64, identity: u64) -> NodeMadeRecord {
        NodeMadeRecord {
            node,
            identity,
            ..NodeMadeRecord::default()
        }
    }

    fn entered(node: u64, identity: u64, number: u32) -> NodeEnteredRecord {
        NodeEnteredRecord {
            tid: 7,
            number,
            node,
            identity,
            ..NodeEnteredRecord::default()
        }
    }

    fn forward(nodes: &mut Nodes, record: &NodeEnteredRecord) -> Option<StackId> {
        nodes.enter(record, NodeName::UNNAMED);
        nodes.evaluated(Tid(7), record.number).expect("it is").1
    }

    #[test]
    fn a_node_leads_back_to_the_operation_that_made_it() {
        let mut nodes = Nodes::default();
        nodes.make(&made(0x10, 1), StackId(5));
        nodes.make(&made(0x20, 2), StackId(6));
        assert_eq!(forward(&mut nodes, &entered(0x10, 1, 1)), Some(StackId(5)));
        assert_eq!(forward(&mut nodes, &entered(0x20, 2, 2)), Some(StackId(6)));
        assert_eq!(
            forward(&mut nodes, &entered(0x30, 3, 3)),
            None,
            "nobody told"
        );
    }

    #[test]
    fn another_node_at_the_same_address_is_not_taken_for_it() {
        let mut nodes = Nodes::default();
        nodes.make(&made(0x10, 1), StackId(5));
        assert_eq!(forward(&mut nodes, &entered(0x10, 9, 1)), None);
        nodes.make(&made(0x10, 9), StackId(6));
        assert_eq!(forward(&mut nodes, &entered(0x10, 9, 2)), Some(StackId(6)));
        assert_eq!(forward(&mut nodes, &entered(0x10, 1, 3)), None);
    }

    #[test]
    fn a_record_refers_to_the_last_node_of_its_thread_only() {
        let mut nodes = Nodes::default();
        nodes.enter(&entered(0x10, 1, 4), NodeName::UNNAMED);
        assert!(nodes.evaluated(Tid(7), 4).is_some());
        assert_eq!(nodes.evaluated(Tid(7), 3), None, "that one was lost");
        assert_eq!(nodes.evaluated(Tid(7), 0), None, "it evaluates nothing");
        assert_eq!(nodes.evaluated(Tid(8), 4), None, "another thread");
    }

    #[test]
    fn of_many_nodes_the_newer_half_is_remembered_at_least() {
        let mut nodes = Nodes::default();
        for node in 0..=2 * HALF_OF_NODES as u64 {
            nodes.make(&made(node, node), StackId(5));
        }
        assert_eq!(forward(&mut nodes, &entered(0, 0, 1)), None);
        let last = 2 * HALF_OF_NODES as u64;
        for node in [last, last - HALF_OF_NODES as u64] {
            assert!(forward(&mut nodes, &entered(node, node, 2)).is_some());
        }
    }

    #[test]
    fn nodes_are_called_as_pytorch_calls_them() {
        let mut nodes = Nodes::default();
        let memory = memory();
        let mut name = |table, python_types| {
            let record = NodeEnteredRecord {
                table,
                python_types,
                ..NodeEnteredRecord::default()
            };
            let name = nodes.name(&memory, &record);
            nodes.text(name).to_string()
        };
        assert_eq!(name(0x1_0000, [0; 2]), "AddmmBackward0");
        assert_eq!(name(0x1_1000, [0; 2]), "torch::autograd::AccumulateGrad");
        assert_eq!(name(0x1_2000, [0x2_0000, 0]), "SquareBackward");
        assert_eq!(name(0x1_2000, [0x2_1000, 0x2_0000]), "SquareBackward");
        assert_eq!(name(0x1_2000, [0x2_1000, 0x7]), "PyNode");
        assert_eq!(name(0x5_0000, [0; 2]), "(unknown node)");
    }

    /// Three C++ classes and two Python types.
    fn memory() -> PartialMemory {
        let classes = [
            "N5torch8autograd9generated14AddmmBackward0E",
            "N5torch8autograd14AccumulateGradE",
            node_name::PYTHON,
        ];
        let classes = (0x1_0000..).step_by(0x1000).zip(classes);
        let classes = classes.flat_map(|(table, name): (u64, &str)| {
            let words = [table + 0x100, 0, table + 0x200].map(u64::to_le_bytes);
            [
                (table - 8, words[0].to_vec()),
                (table + 0x108, words[2].to_vec()),
                (table + 0x200, text(name)),
            ]
        });
        let types = [(0x2_0000_u64, "SquareBackward"), (0x2_1000, "int")];
        let types = types.into_iter().flat_map(|(at, name)| {
            let pointer = (at + 0x100).to_le_bytes();
            [(at + 24, pointer.to_vec()), (at + 0x100, text(name))]
        });
        classes.chain(types).collect()
    }

    fn text(text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(64, 0);
        bytes
    }
}

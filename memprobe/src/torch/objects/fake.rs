//! A fake process with tensors, storages and a graph, laid out by the same rows that the readers use.

use super::layout_versions::{
    AutogradLayout, DeviceOrder, NodeLayout, StorageLayout, TensorLayout,
};
use crate::process::memory::fake::FakeMemory;

/// Base addresses of each kind of object.
const CLASSES: u64 = 0x10_0000;
const CODE: u64 = 0x1000_0000;
const OBJECTS: u64 = 0x5500_0000_0000;

/// Memory with objects in it.
#[derive(Debug, Default)]
pub(super) struct FakeObjects {
    pub(super) memory: FakeMemory,
    classes: u64,
    objects: u64,
    /// Address and size of each object, for tests that corrupt them.
    pub(super) all: Vec<(u64, usize)>,
}

impl FakeObjects {
    /// Maps an object after the header of a malloc chunk, and returns its address.
    pub(super) fn object(&mut self, bytes: &[u8]) -> u64 {
        let chunk = (bytes.len() + 8).next_multiple_of(16).max(32);
        let at = OBJECTS + self.objects;
        self.objects += chunk as u64 + 48;
        let mut all = vec![0; chunk + 16];
        all[8..16].copy_from_slice(&(chunk as u64 | 1).to_le_bytes());
        all[16..16 + bytes.len()].copy_from_slice(bytes);
        // The neighbour records that the chunk is in use.
        all[chunk + 8..chunk + 16].copy_from_slice(&0x21_u64.to_le_bytes());
        self.memory.map(at, all);
        self.all.push((at + 16, bytes.len()));
        at + 16
    }

    /// A class with a chain of base classes. Returns its virtual table.
    pub(super) fn class(&mut self, name: &str, bases: &[&str]) -> u64 {
        let mut base = 0;
        let names = std::iter::once(&name).chain(bases).collect::<Vec<_>>();
        for name in names.into_iter().rev() {
            base = self.information(name, base);
        }
        let at = CLASSES + self.classes;
        self.classes += 0x100;
        let words = [base, 0xdead, 0xbeef];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        self.memory.map(at, bytes.collect());
        at + 8
    }

    /// Gives a class a deleting destructor for objects of `size` bytes, as a compiler writes it: `push rbx;
    /// mov rbx, rdi; call …; mov rdi, rbx; mov esi, size; pop rbx; jmp …`.
    pub(super) fn deleter(&mut self, table: u64, size: u32) {
        let at = CODE + self.classes;
        self.classes += 0x2000;
        let mut code = vec![
            0x53, 0x48, 0x89, 0xfb, 0xe8, 0, 0, 0, 0x10, 0x48, 0x89, 0xdf, 0xbe,
        ];
        code.extend(size.to_le_bytes());
        code.extend([0x5b, 0xe9, 0, 0, 0, 0x10]);
        code.resize(0x1000, 0xcc);
        self.memory.map(at, code);
        self.memory.write(table + 8, &at.to_le_bytes());
    }

    /// The type information of a class.
    fn information(&mut self, name: &str, base: u64) -> u64 {
        let at = CLASSES + self.classes;
        self.classes += 0x400;
        let mut bytes: Vec<u8> = [0xdead, at + 0x40, base, 0]
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        bytes.resize(0x40, 0);
        bytes.extend(name.bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(32), 0xff);
        self.memory.map(at, bytes);
        at
    }
}

/// Builder for the fields of an object.
#[derive(Debug)]
pub(super) struct FakeBytes(pub(super) Vec<u8>);

impl FakeBytes {
    pub(super) fn of(len: usize) -> Self {
        Self(vec![0; len])
    }

    pub(super) fn word(&mut self, at: usize, word: u64) {
        self.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(super) fn byte(&mut self, at: usize, byte: u8) {
        self.0[at] = byte;
    }
}

/// A version of PyTorch in a process of its own.
#[derive(Debug)]
pub(super) struct FakeProcess {
    pub(super) heap: FakeObjects,
    pub(super) tensor: TensorLayout,
    pub(super) storage: StorageLayout,
    pub(super) autograd: AutogradLayout,
    pub(super) node: NodeLayout,
    tensor_class: u64,
    storage_class: u64,
    meta_class: u64,
    view_class: u64,
    undefined: u64,
}

/// Parameters of a new tensor. The default is a 2 by 3 float32 tensor on the CPU.
#[derive(Clone, Debug)]
pub(super) struct New {
    pub(super) shape: Vec<u64>,
    pub(super) dtype: u16,
    pub(super) device: [u8; 2],
    pub(super) requires_grad: bool,
    pub(super) grad: u64,
    pub(super) grad_fn: u64,
    pub(super) base: u64,
    /// Address of the data. The storage has as many bytes as the elements need at 4 bytes each.
    pub(super) data: u64,
}

impl Default for New {
    fn default() -> Self {
        Self {
            shape: vec![2, 3],
            dtype: 6,
            device: [0, 0xff],
            requires_grad: false,
            grad: 0,
            grad_fn: 0,
            base: 0,
            data: 0x7f00_0000_0000,
        }
    }
}

impl FakeProcess {
    pub(super) fn of(
        (tensor, storage): (TensorLayout, StorageLayout),
        autograd: AutogradLayout,
        node: NodeLayout,
    ) -> Self {
        let mut heap = FakeObjects::default();
        let meta = "N5torch8autograd12AutogradMetaE";
        let class = heap.class("N3c1019UndefinedTensorImplE", &["N3c1010TensorImplE"]);
        let mut undefined = FakeBytes::of(tensor.size());
        undefined.word(0, class);
        let undefined = heap.object(&undefined.0);
        Self {
            tensor_class: heap.class("N3c1010TensorImplE", &[]),
            storage_class: heap.class("N3c1011StorageImplE", &[]),
            meta_class: heap.class(meta, &[]),
            view_class: heap.class("N5torch8autograd22DifferentiableViewMetaE", &[meta]),
            undefined,
            heap,
            tensor,
            storage,
            autograd,
            node,
        }
    }

    /// A tensor without a Python object.
    pub(super) fn tensor(&mut self, new: &New) -> u64 {
        let elements: u64 = new.shape.iter().product();
        let storage = self.storage(new.data, elements * 4, new.device);
        self.tensor_in(new, storage)
    }

    pub(super) fn storage(&mut self, data: u64, size: u64, device: [u8; 2]) -> u64 {
        let mut bytes = FakeBytes::of(256);
        bytes.word(0, self.storage_class);
        bytes.word(self.storage.data, data);
        bytes.byte(self.storage.data + StorageLayout::DEVICE, device[0]);
        bytes.byte(self.storage.data + StorageLayout::DEVICE + 1, device[1]);
        bytes.word(self.storage.data + StorageLayout::BYTES, size);
        self.heap.object(&bytes.0)
    }

    pub(super) fn tensor_in(&mut self, new: &New, storage: u64) -> u64 {
        let layout = self.tensor;
        let mut bytes = FakeBytes::of(256);
        bytes.word(0, self.tensor_class);
        bytes.word(8, 1);
        bytes.word(layout.storage, storage);
        bytes.word(layout.autograd, self.meta(new));
        let mut counter = FakeBytes::of(64);
        counter.byte(layout.storage, 5);
        bytes.word(layout.version, self.heap.object(&counter.0));
        bytes.word(layout.dimensions, new.shape.len() as u64);
        let mut strides = vec![1; new.shape.len()];
        for at in (1..new.shape.len()).rev() {
            strides[at - 1] = strides[at] * new.shape[at];
        }
        if new.shape.len() <= 5 {
            for (at, (size, stride)) in new.shape.iter().zip(&strides).enumerate() {
                bytes.word(layout.dimensions + TensorLayout::SIZES + at * 8, *size);
                bytes.word(layout.dimensions + TensorLayout::STRIDES + at * 8, *stride);
            }
        } else {
            let outside = new.shape.iter().chain(&strides);
            let outside: Vec<u8> = outside.flat_map(|word| word.to_le_bytes()).collect();
            bytes.word(
                layout.dimensions + TensorLayout::SIZES,
                self.heap.object(&outside),
            );
        }
        bytes.word(
            layout.dimensions + TensorLayout::ELEMENTS,
            new.shape.iter().product(),
        );
        bytes.byte(layout.dimensions + TensorLayout::DTYPE, new.dtype as u8);
        let [kind, index] = new.device;
        let device = match layout.device {
            DeviceOrder::PresenceFirst => [1, kind, index],
            DeviceOrder::PresenceLast => [kind, index, 1],
        };
        for (at, byte) in device.into_iter().enumerate() {
            bytes.byte(layout.dimensions + TensorLayout::DEVICE + at, byte);
        }
        self.heap.object(&bytes.0)
    }

    fn meta(&mut self, new: &New) -> u64 {
        if !new.requires_grad && new.grad == 0 && new.grad_fn == 0 && new.base == 0 {
            return 0;
        }
        let layout = self.autograd;
        let mut bytes = FakeBytes::of(512);
        let is_view = new.base != 0;
        bytes.word(
            0,
            if is_view {
                self.view_class
            } else {
                self.meta_class
            },
        );
        let grad = if new.grad == 0 {
            self.undefined
        } else {
            new.grad
        };
        bytes.word(layout.grad, grad);
        bytes.word(layout.grad_fn, new.grad_fn);
        bytes.byte(layout.requires_grad, new.requires_grad.into());
        bytes.byte(
            layout.requires_grad + AutogradLayout::IS_VIEW,
            is_view.into(),
        );
        if is_view {
            bytes.word(layout.base, new.base);
            bytes.byte(layout.has_base, 1);
            bytes.byte(layout.version, 5);
        }
        self.heap.object(&bytes.0)
    }

    /// A Python object for a tensor, linked in both directions.
    pub(super) fn python(&mut self, tensor: u64) -> u64 {
        let mut bytes = FakeBytes::of(48);
        bytes.word(0, 1);
        bytes.word(self.tensor.handle as usize, tensor);
        let python = self.heap.object(&bytes.0);
        let at = tensor + self.tensor.python as u64;
        self.heap.memory.write(at, &python.to_le_bytes());
        python
    }

    /// A node of a class, with edges and with the bytes after the base class `Node`.
    pub(super) fn node(&mut self, class: &str, next: &[u64], sequence: u64, rest: &[u8]) -> u64 {
        let layout = self.node;
        let class = self.heap.class(class, &["N5torch8autograd4NodeE"]);
        let mut edges = FakeBytes::of(next.len() * layout.edge);
        for (at, node) in next.iter().enumerate() {
            edges.word(at * layout.edge, *node);
        }
        let mut bytes = FakeBytes::of(layout.size);
        bytes.word(0, class);
        bytes.word(layout.sequence, sequence);
        if !next.is_empty() {
            let begin = self.heap.object(&edges.0);
            let end = begin + edges.0.len() as u64;
            for (at, word) in [begin, end, end].into_iter().enumerate() {
                bytes.word(layout.edges + at * 8, word);
            }
        }
        bytes.0.extend_from_slice(rest);
        self.heap.object(&bytes.0)
    }

    /// The bytes of a saved variable.
    pub(super) fn saved(&self, tensor: u64, is_original: bool) -> Vec<u8> {
        let layout = self.node.saved;
        let mut bytes = FakeBytes::of(layout.size());
        bytes.word(0, tensor);
        bytes.byte(layout.flags + 2, is_original.into());
        bytes.0
    }

    /// The bytes of an empty saved variable.
    pub(super) fn released(&self) -> Vec<u8> {
        self.saved(self.undefined, false)
    }

    /// The three pointers of a vector of these elements.
    pub(super) fn list(&mut self, things: &[Vec<u8>]) -> Vec<u8> {
        let bytes = things.concat();
        let begin = self.heap.object(&bytes);
        let end = begin + bytes.len() as u64;
        [begin, end, end]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }
}

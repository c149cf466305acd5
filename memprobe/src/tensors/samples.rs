//! Sample snapshot with tensors of every kind, for tests.

use std::sync::Arc;
use std::time::Duration;

use crate::event::Target;
use crate::event::tensors::{
    Block, Consistency, DType, DeviceTotals, Name, Retainer, Storage, Tensor, TensorDevice,
    TensorKind, TensorSnapshot,
};
use crate::event::{
    Address, Bytes, DeviceIndex, Frame, KvCaches, KvPool, KvRequest, KvUnit, PrivateFree, Tgid,
    Totals,
};

/// Address of the first block.
pub(crate) const BASE: u64 = 0x7f20_0000_0000;

pub(crate) fn name(text: &str) -> Name {
    Name {
        text: text.into(),
        inferred: None,
    }
}

pub(crate) fn line(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

/// Builder of a snapshot; each block follows the previous one.
pub(crate) struct Building {
    pub(crate) snapshot: TensorSnapshot,
    next: u64,
}

impl Building {
    pub(crate) fn new() -> Self {
        let snapshot = TensorSnapshot {
            target: Target {
                tgid: Some(Tgid(20292)),
                command: "python train.py --epochs 3".to_owned(),
                python: Some("3.11.7".to_owned()),
                torch: Some("2.15.0+cu132".to_owned()),
                ..Target::default()
            },
            taken_ms: 1_764_000_000_000,
            consistency: Consistency::Paused {
                pause: Duration::from_micros(12_345),
                retries: 0,
            },
            objects: 181_234,
            ..TensorSnapshot::default()
        };
        Self {
            snapshot,
            next: BASE,
        }
    }

    /// Adds a block of `cuda:0` for `bytes`, rounded as the allocator does.
    pub(crate) fn block(&mut self, bytes: u64, site: Option<Frame>) -> Address {
        let addr = Address(self.next);
        let size = bytes.div_ceil(512) * 512;
        self.next += size;
        self.snapshot.blocks.push(Block {
            addr,
            size: Bytes(size),
            requested: Some(Bytes(bytes)),
            device: DeviceIndex(0),
            site: site.map(Arc::new),
            purpose: None,
        });
        addr
    }

    pub(crate) fn storage(&mut self, data: Address, bytes: u64, device: TensorDevice) -> usize {
        self.snapshot.storages.push(Storage {
            object: 0x5500_0000 + 0x40 * self.snapshot.storages.len() as u64,
            data,
            bytes: Bytes(bytes),
            device,
            retainer: None,
        });
        self.snapshot.storages.len() - 1
    }

    /// Gives a storage an exclusive retainer.
    pub(crate) fn retain(&mut self, storage: usize, by: &str, class: Option<&str>) {
        self.snapshot.storages[storage].retainer = Some(Arc::new(Retainer {
            by: by.into(),
            class: class.map(Into::into),
            slot: None,
            through: None,
            exclusive: true,
        }));
    }

    /// Adds a tensor on all or a part of a storage, by default from its beginning.
    pub(crate) fn tensor(&mut self, storage: usize, shape: &[u64], tensor: Tensor) -> usize {
        let mut strides: Vec<u64> = Vec::new();
        let mut step = 1;
        for size in shape.iter().rev() {
            strides.insert(0, step);
            step *= size;
        }
        self.snapshot.tensors.push(Tensor {
            object: 0x5600_0000 + 0x100 * self.snapshot.tensors.len() as u64,
            shape: Some(shape.into()),
            strides: strides.into(),
            device: self.snapshot.storages[storage].device,
            storage: Some(storage),
            ..tensor
        });
        self.snapshot.tensors.len() - 1
    }

    /// Adds a float32 tensor on a block of its own.
    pub(crate) fn alone(&mut self, shape: &[u64], tensor: Tensor, site: Option<Frame>) -> usize {
        let bytes = 4 * shape.iter().product::<u64>();
        let block = self.block(bytes, site);
        let storage = self.storage(block, bytes, TensorDevice::Cuda(DeviceIndex(0)));
        self.tensor(storage, shape, tensor)
    }

    /// Sets the allocator's total to the sum of the blocks.
    pub(crate) fn finish(mut self) -> TensorSnapshot {
        let allocated: u64 = self.snapshot.blocks.iter().map(|block| block.size.0).sum();
        self.snapshot.devices = vec![DeviceTotals {
            device: DeviceIndex(0),
            totals: Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(allocated.next_multiple_of(2 << 20)),
            },
        }];
        self.snapshot
    }
}

pub(crate) fn parameter(text: &str) -> Tensor {
    Tensor {
        kind: TensorKind::Parameter,
        names: vec![name(text)],
        requires_grad: true,
        class: Some("Parameter".into()),
        module: text.rsplit_once('.').map(|(module, _)| module.into()),
        ..Tensor::default()
    }
}

pub(crate) fn plain(text: &str) -> Tensor {
    Tensor {
        names: vec![name(text)],
        class: Some("Tensor".into()),
        ..Tensor::default()
    }
}

pub(crate) fn unnamed() -> Tensor {
    Tensor {
        class: Some("Tensor".into()),
        ..Tensor::default()
    }
}

fn gradient(of: usize, text: &str) -> Tensor {
    Tensor {
        kind: TensorKind::Gradient,
        names: vec![name(&format!("{text}.grad"))],
        class: Some("Tensor".into()),
        gradient_of: vec![of],
        ..Tensor::default()
    }
}

/// Middle of a training step. It has parameters with gradients and optimizer state, an LSTM whose
/// weights share one storage, tied weights, and saved activations. It also has a small view of a
/// large storage, blocks without a tensor, memory of another library, host tensors, and hostile
/// names.
pub(crate) fn training() -> TensorSnapshot {
    let mut made = Building::new();
    let at = |number: u32, function: &str| Some(line("/home/me/train.py", number, function));
    let shapes: [(&str, &[u64]); 3] = [
        ("encoder.layers.0.weight", &[1024, 4096]),
        ("encoder.layers.0.bias", &[1024]),
        ("head.weight", &[10, 1024]),
    ];
    for (text, shape) in shapes {
        let tensor = made.alone(shape, parameter(text), at(12, "build"));
        made.alone(shape, gradient(tensor, text), at(31, "step"));
        for moment in ["exp_avg", "exp_avg_sq"] {
            let state = Tensor {
                kind: TensorKind::OptimizerState,
                ..plain(&format!("Adam.{moment}[{text}]"))
            };
            made.alone(shape, state, at(33, "step"));
        }
    }
    // LSTM: four weights in one flat storage.
    let bytes = 4 * (2 * 256 * 64 + 2 * 256);
    let block = made.block(bytes, at(14, "build"));
    let flat = made.storage(block, bytes, TensorDevice::Cuda(DeviceIndex(0)));
    let mut offset = 0;
    for (text, shape) in [
        ("lstm.weight_ih_l0", vec![256, 64]),
        ("lstm.weight_hh_l0", vec![256, 64]),
        ("lstm.bias_ih_l0", vec![256]),
        ("lstm.bias_hh_l0", vec![256]),
    ] {
        let tensor = Tensor {
            offset,
            ..parameter(text)
        };
        offset += shape.iter().product::<u64>();
        made.tensor(flat, &shape, tensor);
    }
    // Tied weights: one tensor with two names.
    let tied = Tensor {
        names: vec![name("embedding.weight"), name("decoder.weight")],
        ..parameter("embedding.weight")
    };
    made.alone(&[5000, 64], tied, at(15, "build"));
    for _ in 0..3 {
        let saved = Tensor {
            kind: TensorKind::Saved,
            saved_by: Some("ReluBackward0".into()),
            grad_fn: Some("AddmmBackward0".into()),
            class: None,
            ..unnamed()
        };
        made.alone(&[64, 3, 256, 256], saved, at(22, "forward"));
    }
    let loss = Tensor {
        names: vec![Name {
            text: "train.py:31 step() -> loss".into(),
            inferred: Some(Name::RULES[0]),
        }],
        requires_grad: true,
        grad_fn: Some("NllLossBackward0".into()),
        ..unnamed()
    };
    made.alone(&[], loss, at(30, "step"));
    // A view of eight bytes keeps four megabytes alive.
    let block = made.block(4 << 20, at(40, "evaluate"));
    let large = made.storage(block, 4 << 20, TensorDevice::Cuda(DeviceIndex(0)));
    made.tensor(large, &[2], plain("history[0]"));
    made.alone(&[60, 3, 512, 512], plain("a\x1b[31m\n\u{202e}b"), None);
    // Blocks without storages.
    made.block(8_519_680, at(22, "forward"));
    made.block(8_519_680, at(22, "forward"));
    made.block(1000, None);
    // Memory of another library, through DLPack.
    let theirs = made.storage(
        Address(0x7f90_0000_0000),
        1 << 20,
        TensorDevice::Cuda(DeviceIndex(0)),
    );
    made.tensor(theirs, &[512, 512], plain("frames"));
    // On the host.
    let host = made.storage(Address(0x55aa_0000), 16 << 20, TensorDevice::Cpu);
    made.tensor(host, &[4096, 1024], plain("dataset.images"));
    let view = Tensor {
        dtype: DType(4),
        ..plain("batch['ids']")
    };
    made.tensor(host, &[64, 128], view);
    made.snapshot.tensors.push(Tensor {
        object: 0x5700_0000,
        shape: Some([1 << 20, 1 << 10].into()),
        strides: [1 << 10, 1].into(),
        device: TensorDevice::Meta,
        ..plain("skeleton.weight")
    });
    made.snapshot.unread = vec![Arc::from(
        "2 objects of a type that changed while it was read",
    )];
    made.finish()
}

/// Forward pass whose graph saves transposed weights, and activations shared by two operations.
pub(crate) fn graph() -> TensorSnapshot {
    let mut made = Building::new();
    let saved = |by: &str| Tensor {
        kind: TensorKind::Saved,
        saved_by: Some(by.into()),
        class: None,
        requires_grad: true,
        ..unnamed()
    };
    for layer in 0..40 {
        let at = |number: u32| Some(line("/home/me/net.py", number, "forward"));
        let weight = made.alone(&[64, 64], parameter(&format!("{layer}.weight")), None);
        let weight = made.snapshot.tensors[weight].storage.expect("it has one");
        made.tensor(weight, &[64, 64], saved("AddmmBackward0"));
        let hidden = made.alone(&[32, 64], saved("ReluBackward0"), at(7 + layer % 2));
        let hidden = made.snapshot.tensors[hidden].storage.expect("it has one");
        made.tensor(hidden, &[32, 64], saved("AddmmBackward0"));
    }
    let first = made.snapshot.tensors[0].storage.expect("it has one");
    made.tensor(first, &[64, 64], plain("main.py:3 main() -> view"));
    made.finish()
}

/// A server with a KV cache of 8 blocks in two layers, two of its requests with a common prefix.
pub(crate) fn server() -> TensorSnapshot {
    let mut made = Building::new();
    made.alone(&[64, 64], parameter("layers.0.weight"), None);
    for layer in 0..2 {
        let cache = Tensor {
            kind: TensorKind::KvCache,
            ..plain(&format!("runner.kv_caches[{layer}]"))
        };
        made.alone(&[8, 1024], cache, None);
    }
    made.alone(&[300], plain("serve.py:9 serve() -> logits"), None);
    let request = |id: &str, own, shared| KvRequest {
        id: id.into(),
        own,
        shared,
    };
    made.snapshot.kv = KvCaches {
        pools: vec![KvPool {
            scheduler: Some(Tgid(4242)),
            class: "BlockPool".into(),
            unit: KvUnit::Block,
            total: 8,
            tokens_per_unit: Some(16),
            requests: vec![request("chat-1", 1, 1), request("chat-\u{1b}2", 2, 1)],
            shared: 1,
            cached: 1,
            free: 2,
            reserved: 1,
            unclaimed: 0,
            undivided: 0,
            configured: Some(Bytes(64 << 10)),
        }],
        gap: None,
        private_free: vec![PrivateFree {
            device: DeviceIndex(0),
            bytes: Bytes(512 << 10),
        }],
    };
    made.finish()
}

/// [`training`] a little later: an activation is freed, gradients are new, a name has changed.
pub(crate) fn later() -> TensorSnapshot {
    let mut snapshot = training();
    snapshot.taken_ms += 5000;
    let saved = |tensor: &Tensor| tensor.kind == TensorKind::Saved;
    let places: Vec<usize> = (0..snapshot.tensors.len())
        .filter(|&at| saved(&snapshot.tensors[at]))
        .collect();
    let mut gone = Vec::new();
    for &place in &places[1..] {
        let storage = snapshot.tensors[place].storage.take();
        gone.extend(storage.map(|at| snapshot.storages[at].data));
        snapshot.tensors[place].device = TensorDevice::Meta;
        snapshot.tensors[place].kind = TensorKind::Tensor;
    }
    for data in &gone {
        snapshot.storages.iter_mut().for_each(|storage| {
            if storage.data == *data {
                storage.data = Address(0);
                storage.bytes = Bytes(0);
                storage.device = TensorDevice::Meta;
            }
        });
    }
    snapshot.blocks.retain(|block| !gone.contains(&block.addr));
    for tensor in &mut snapshot.tensors {
        if tensor
            .names
            .first()
            .is_some_and(|name| &*name.text == "history[0]")
        {
            tensor.names[0] = name("best");
        }
    }
    let mut made = Building {
        next: BASE + (1 << 36),
        snapshot,
    };
    let at = |number: u32, function: &str| Some(line("/home/me/train.py", number, function));
    made.alone(&[60, 3, 512, 512], plain("cache['kv'][0]"), at(50, "serve"));
    for _ in 0..4 {
        made.alone(&[30, 3, 512, 512], unnamed(), at(51, "serve"));
    }
    made.finish()
}

//! Sample programs that allocate memory, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::Target;
use crate::event::tensors::{DType, Retainer, TensorKind};
use crate::event::{
    Action, Address, AtAttach, BlockLabels, BlockPurpose, Bytes, CallPathOrigin, CalledModule,
    Context, DeviceIndex, Event, Frame, Grad, LabeledBlock, MarkedPhase, MemoryEvent, Module, Node,
    PhaseMark, PurposeId, Stack, StackId, StackKind, TensorSpec, Tgid, Tid, TimeNs, Totals,
};
use crate::ledger::{Analysis, AnalyzedLedger, Change, Ledger};

pub(crate) const DEVICE: DeviceIndex = DeviceIndex(0);
const MICROSECOND: u64 = 1_000;

/// Events of a program and its live blocks.
pub(crate) struct Program {
    pub(crate) events: Vec<Event>,
    live: BTreeMap<u64, u64>,
    allocated: u64,
    reserved: u64,
    time: u64,
    stacks: u32,
    shapes: u32,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            events: Vec::new(),
            live: BTreeMap::new(),
            allocated: 0,
            reserved: 0,
            time: 5_000_000_000,
            stacks: 0,
            shapes: 1,
        }
    }
}

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

fn module_of(path: &str) -> Module {
    match path {
        "" => Module::Outside,
        "?" => Module::Unknown,
        path => Module::Called(path.into()),
    }
}

/// Stack of a line of `train.py` within a module: `""` for none, `"?"` for an unknown one.
pub(crate) fn called(line: u32, module: &str) -> Stack {
    Stack {
        kind: StackKind::Python,
        frames: vec![frame("/home/me/train.py", line, "main")],
        truncated: false,
        context: Context {
            module: module_of(module),
            grad: Grad::Enabled,
            node: None,
        },
    }
}

/// Autograd thread that differentiates an operation of stack `forward`; `None` if unknown.
pub(crate) fn backward(line: u32, node: &str, forward: Option<Stack>) -> Stack {
    Stack {
        kind: StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        },
        context: Context {
            node: Some(Arc::new(Node {
                name: node.into(),
                forward: forward.map(Arc::new),
            })),
            ..Context::default()
        },
        ..called(line, "")
    }
}

/// Module called again by a checkpoint within a backward pass.
pub(crate) fn again(line: u32, module: &str) -> Stack {
    let mut stack = called(line, module);
    stack.frames.insert(
        0,
        frame(
            "/v/site-packages/torch/nn/modules/module.py",
            1,
            "_call_impl",
        ),
    );
    stack.context.node = Some(Arc::new(Node {
        name: "CheckpointBackward".into(),
        forward: None,
    }));
    stack
}

impl Program {
    /// Program with `held` bytes live at attach.
    pub(crate) fn attached_at(held: u64) -> Self {
        let mut program = Self {
            allocated: held,
            reserved: held,
            ..Self::default()
        };
        program.events.push(Event::AtAttach(AtAttach {
            time: TimeNs(program.time),
            tgid: Tgid(1234),
            device: Some(DEVICE),
            totals: program.totals(),
            peak: program.totals(),
            unread: None,
        }));
        program
    }

    pub(crate) fn stack(&mut self, stack: Stack) -> StackId {
        self.stacks += 1;
        let id = StackId(self.stacks);
        self.events.push(Event::Stack(id, Arc::new(stack)));
        id
    }

    pub(crate) fn shape(&mut self, sizes: &[u64]) -> PurposeId {
        self.shapes += 1;
        let id = PurposeId(self.shapes);
        let is = BlockPurpose::Tensor(TensorSpec {
            sizes: sizes.to_vec(),
            more: 0,
            dtype: DType::FLOAT32,
            requested: Some(Bytes(4 * sizes.iter().product::<u64>())),
        });
        self.events.push(Event::BlockPurpose(id, Arc::new(is)));
        id
    }

    pub(crate) fn alloc(&mut self, stack: StackId, size: u64) -> u64 {
        self.alloc_of(stack, PurposeId::NONE, size)
    }

    /// Allocates for a tensor of as many bytes.
    pub(crate) fn alloc_tensor(&mut self, stack: StackId, size: u64) -> u64 {
        let shape = self.shape(&[size / 4]);
        self.alloc_of(stack, shape, size)
    }

    /// Allocates at the lowest free address.
    pub(crate) fn alloc_of(&mut self, stack: StackId, shape: PurposeId, size: u64) -> u64 {
        let mut addr = 0x1000;
        for (at, bytes) in &self.live {
            if addr + size <= *at {
                break;
            }
            addr = at + bytes;
        }
        self.live.insert(addr, size);
        self.allocated += size;
        self.reserved = self.reserved.max(self.allocated);
        self.memory(Action::Alloc, addr, size, stack, shape);
        addr
    }

    pub(crate) fn free(&mut self, addr: u64) {
        let size = self.live.remove(&addr).expect("a live block");
        self.allocated -= size;
        self.memory(Action::Free, addr, size, StackId::NONE, PurposeId::NONE);
    }

    /// A request of the allocator that fails.
    pub(crate) fn fail(&mut self, stack: StackId, size: u64) {
        self.memory(Action::OutOfMemory, 0, size, stack, PurposeId::NONE);
    }

    /// Frees memory that was live at attach.
    pub(crate) fn free_from_before(&mut self, size: u64) {
        self.allocated -= size;
        self.memory(Action::Free, 1 << 40, size, StackId::NONE, PurposeId::NONE);
    }

    pub(crate) fn mark(&mut self, begins: MarkedPhase, class: &str) {
        self.mark_at(begins, class, StackId::NONE);
    }

    pub(crate) fn mark_at(&mut self, begins: MarkedPhase, class: &str, stack: StackId) {
        self.time += MICROSECOND;
        self.events.push(Event::PhaseMark(PhaseMark {
            time: TimeNs(self.time),
            tgid: Tgid(1234),
            tid: Tid(1234),
            phase: begins,
            class: class.into(),
            stack,
        }));
    }

    /// Adds a heap snapshot; `keeps` gives the retainer of each live block.
    pub(crate) fn read(&mut self, keeps: impl Fn(u64) -> Option<Retainer>) {
        self.label(|block| LabeledBlock {
            saved_by: Some("MulBackward0".into()),
            retainer: keeps(block.addr.0).map(Arc::new),
            ..block
        });
    }

    /// Adds a heap snapshot in which each live block has a path of its module in the heap and in calls.
    pub(crate) fn read_modules(&mut self, paths: &[(u64, &str, &str)]) {
        self.label(|block| {
            let of = paths.iter().find(|(addr, ..)| *addr == block.addr.0);
            LabeledBlock {
                module: of.map(|(_, held, _)| (*held).into()),
                called: of.map(|(_, _, called)| CalledModule {
                    path: (*called).into(),
                    origin: CallPathOrigin::Call,
                }),
                ..block
            }
        });
    }

    /// Adds a heap snapshot in which all live blocks are of one kind.
    pub(crate) fn read_as(&mut self, kind: TensorKind) {
        self.label(|block| LabeledBlock {
            kind: Some(kind),
            ..block
        });
    }

    fn label(&mut self, label: impl Fn(LabeledBlock) -> LabeledBlock) {
        self.time += MICROSECOND;
        let blocks = self.live.iter().map(|(addr, size)| {
            label(LabeledBlock::unlabeled(
                Address(*addr),
                Bytes(*size),
                DEVICE,
            ))
        });
        self.events.push(Event::BlockLabels(Arc::new(BlockLabels {
            time: TimeNs(self.time),
            tgid: Tgid(1234),
            blocks: blocks.collect(),
            optimizers: Vec::new(),
            tags: Vec::new(),
        })));
    }

    pub(crate) fn nth_live(&self, nth: usize) -> Option<u64> {
        let at = nth.checked_rem(self.live.len())?;
        self.live.keys().nth(at).copied()
    }

    pub(crate) fn wait(&mut self, micros: u64) {
        self.time += micros * MICROSECOND;
    }

    fn totals(&self) -> Totals {
        Totals {
            allocated: Bytes(self.allocated),
            reserved: Bytes(self.reserved),
        }
    }

    fn memory(&mut self, action: Action, addr: u64, size: u64, stack: StackId, shape: PurposeId) {
        self.time += MICROSECOND;
        self.events.push(Event::Memory(MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1234),
            tid: Tid(1234),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DEVICE),
            totals: Some(self.totals()),
            stack,
            shape,
            call: None,
        }));
    }

    /// Applies the events to a ledger and passes each one on to `hear`.
    pub(crate) fn play(&self, mut hear: impl FnMut(&Event, &Change, &Ledger)) -> Ledger {
        let mut ledger = Ledger::new(Target::default(), TimeNs(5_000_000_000));
        for event in &self.events {
            let change = ledger.apply(event);
            hear(event, &change, &ledger);
        }
        ledger
    }

    /// Applies the events to a ledger and its analyses.
    pub(crate) fn analyzed<A: Analysis>(&self, analyses: A) -> AnalyzedLedger<A> {
        let mut ledger = AnalyzedLedger::new(Target::default(), TimeNs(5_000_000_000), analyses);
        self.events.iter().for_each(|event| ledger.apply(event));
        ledger
    }
}

/// One training step of a transformer with two layers and a head. It has a loss outside modules, one
/// recomputed layer and a parameter from before attach.
pub(crate) fn learning() -> Program {
    const MIB: u64 = 1 << 20;
    let mut program = Program::attached_at(10 * MIB);
    let of = |path: &str| called(31, path);
    let hidden = program.shape(&[512, 512]);
    let mut saved = Vec::new();
    for layer in ["GPT.layers.0", "GPT.layers.1"] {
        for (part, size) in [("attn", 3), ("mlp", 4)] {
            let stack = program.stack(of(&format!("{layer}.{part}")));
            saved.push(program.alloc_of(stack, hidden, size * MIB));
        }
    }
    let head = program.stack(of("GPT.head"));
    saved.push(program.alloc_tensor(head, 8 * MIB));
    let loss = program.stack(called(40, ""));
    saved.push(program.alloc_tensor(loss, 512));
    let through_head = program.stack(backward(41, "AddmmBackward0", Some(of("GPT.head"))));
    let gradient = program.alloc_tensor(through_head, 6 * MIB);
    let unknown = program.stack(backward(41, "AccumulateGrad", None));
    program.alloc_tensor(unknown, MIB);
    let recomputed = program.stack(again(31, "GPT.layers.1.mlp"));
    let again = program.alloc_tensor(recomputed, 2 * MIB);
    for addr in saved.into_iter().chain([gradient, again]) {
        program.free(addr);
    }
    program
}

/// Trains a net, and keeps the loss of each iteration selected by `keeps`.
pub(crate) fn learning_for(iterations: u64, keeps: impl Fn(u64) -> bool) -> Program {
    const KIB: u64 = 1 << 10;
    let mut program = Program::default();
    let forward = program.stack(called(31, "Net.layer"));
    let loss = program.stack(called(32, ""));
    let through = program.stack(backward(33, "MmBackward0", Some(called(31, "Net.layer"))));
    let scalar = program.shape(&[]);
    let hidden = program.shape(&[256, 1024]);
    let whole = program.shape(&[256, 256]);
    for iteration in 0..iterations {
        program.mark(MarkedPhase::ZeroGrad, "SGD");
        let saved = program.alloc_of(forward, hidden, 1024 * KIB);
        let last = program.alloc_of(loss, scalar, 512);
        let gradient = program.alloc_of(through, whole, 256 * KIB);
        program.free(saved);
        program.mark(MarkedPhase::Step, "SGD");
        program.free(gradient);
        if !keeps(iteration) {
            program.free(last);
        }
        program.wait(900);
    }
    program
}

/// Retainer: a slot of `losses` that owns the memory or keeps it through its graph.
pub(crate) fn retained_by_losses(slot: u64, through: Option<&str>) -> Retainer {
    Retainer {
        by: "train.py:40 main() -> losses[*]".into(),
        class: Some("list".into()),
        slot: Some(format!("train.py:40 main() -> losses[{slot}]").into()),
        through: through.map(Into::into),
        exclusive: true,
    }
}

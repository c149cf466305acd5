//! Made-up training run as events, applied to the attribution ledgers.

use std::collections::HashMap;
use std::sync::Arc;

use memprobe::attribution::breakdown::BreakdownLedgers;
use memprobe::attribution::modules::ModuleLedger;
use memprobe::attribution::views;
use memprobe::attribution::waterfall::waterfalls;
use memprobe::attribution::{AttributionLedger, WithCategories};
use memprobe::event::Target;
use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, Frame, Grad, MarkedPhase, MemoryEvent,
    Module, Node, PhaseMark, PurposeId, Stack, StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use memprobe::ledger::AnalyzedLedger;
use memprobe::ledger::snapshot::Grouping;
use memprobe::tui::{AttributionQuery, AttributionTables};

const MIB: u64 = 1 << 20;
const LAYERS: u64 = 24;
/// Nanoseconds between two actions of the program.
const PACE: u64 = 20_000_000;

/// Next action of the program.
#[derive(Clone, Copy)]
enum Doing {
    Forward(u64),
    Backward(u64),
    Step,
}

/// The program, and the ledgers that receive its events.
pub struct Trainer {
    ledgers: AnalyzedLedger<WithCategories<(ModuleLedger, BreakdownLedgers)>>,
    stacks: HashMap<String, StackId>,
    live: Vec<(u64, u64)>,
    gradients: Vec<(u64, u64)>,
    allocated: u64,
    next: u64,
    time: u64,
    doing: Doing,
    steps: u64,
}

impl Trainer {
    pub fn new() -> Self {
        let mut trainer = Self {
            ledgers: AnalyzedLedger::new(
                Target::default(),
                TimeNs(0),
                WithCategories {
                    categories: AttributionLedger::new(None).with_latest_layers(),
                    table: <(ModuleLedger, BreakdownLedgers)>::default(),
                },
            ),
            stacks: HashMap::new(),
            live: Vec::new(),
            gradients: Vec::new(),
            allocated: 1100 * MIB,
            next: 0x1000_0000_0000,
            time: 0,
            doing: Doing::Forward(0),
            steps: 0,
        };
        let mut convert = torch("nn/modules/module.py", "convert", 52);
        // `Module._apply` moves parameters so.
        convert.context.grad = Grad::Disabled;
        let built = trainer.stack("built", convert);
        for _ in 0..LAYERS {
            trainer.alloc(built, 20 * MIB);
        }
        trainer
    }

    /// Runs the program until `time`, in nanoseconds.
    pub fn advance_to(&mut self, time: u64) {
        while self.time < time {
            self.time += PACE;
            self.doing = match self.doing {
                Doing::Forward(layer) => self.forward(layer),
                Doing::Backward(layer) => self.backward(layer),
                Doing::Step => self.step(),
            };
        }
    }

    /// Returns the attribution table that a screen requests.
    pub fn tables(&self, wanted: AttributionQuery) -> AttributionTables {
        let WithCategories {
            categories,
            table: (modules, breakdowns),
        } = &self.ledgers.analyses;
        let snapshot = self
            .ledgers
            .ledger
            .snapshot(TimeNs(self.time), Grouping::User);
        match wanted {
            AttributionQuery::Nothing => AttributionTables::Nothing,
            AttributionQuery::Modules => {
                AttributionTables::Modules(Arc::new(views::modules(modules, &snapshot)))
            }
            AttributionQuery::Breakdown(breakdown) => {
                let devices = breakdowns.devices(breakdown, &snapshot);
                AttributionTables::Breakdown(breakdown, Arc::new(devices))
            }
            // The program has no allocator whose tables could be read.
            AttributionQuery::Segments => AttributionTables::Segments(Arc::default()),
            AttributionQuery::Owners => {
                let ledger = &self.ledgers.ledger;
                let owners = waterfalls(ledger, &snapshot, &[], Grouping::User);
                AttributionTables::Owners(Arc::new(owners))
            }
            AttributionQuery::Categories => {
                let iterations = categories.latest_iterations(100);
                let all = views::categories(categories, &iterations, snapshot.now);
                AttributionTables::Categories(Arc::new(all))
            }
            AttributionQuery::Layers(which) => {
                let iterations = categories.latest_iterations(100);
                AttributionTables::Layers(Arc::new(views::layers(categories, &iterations, which)))
            }
        }
    }

    fn forward(&mut self, layer: u64) -> Doing {
        if layer == 0 {
            self.mark(MarkedPhase::ZeroGrad);
            let batch = self.stack("batch", called("", 29));
            let block = self.alloc(batch, 16 * MIB);
            self.live.push(block);
        }
        if layer == LAYERS {
            let head = self.stack("head", called("GPT.lm_head", 61));
            let block = self.alloc(head, 480 * MIB);
            self.live.push(block);
            return Doing::Backward(LAYERS);
        }
        for (part, size) in [("attn", 92), ("mlp.fc", 108), ("mlp.proj", 27)] {
            let path = format!("GPT.layers.{layer}.{part}");
            let stack = self.stack(&path, called(&path, 61));
            let temporary = self.alloc(stack, 40 * MIB);
            let block = self.alloc(stack, size * MIB);
            self.live.push(block);
            self.free(temporary);
        }
        Doing::Forward(layer + 1)
    }

    fn backward(&mut self, layer: u64) -> Doing {
        let path = match layer {
            LAYERS => "GPT.lm_head".to_owned(),
            layer => format!("GPT.layers.{layer}.mlp.fc"),
        };
        let stack = self.stack(&format!("{path} back"), backward(&path));
        let passing = self.alloc(stack, 60 * MIB);
        let gradient = self.alloc(stack, 20 * MIB);
        self.gradients.push(gradient);
        for _ in 0..if layer == LAYERS { 1 } else { 3 } {
            if let Some(block) = self.live.pop() {
                self.free(block);
            }
        }
        self.free(passing);
        match layer {
            0 => Doing::Step,
            layer => Doing::Backward(layer - 1),
        }
    }

    fn step(&mut self) -> Doing {
        self.mark(MarkedPhase::Step);
        let stack = self.stack("step", torch("optim/optimizer.py", "step", 35));
        for _ in 0..if self.steps == 0 { LAYERS } else { 0 } {
            self.alloc(stack, 40 * MIB);
        }
        let temporary = self.alloc(stack, 60 * MIB);
        self.free(temporary);
        for block in std::mem::take(&mut self.gradients)
            .into_iter()
            .chain(self.live.pop())
        {
            self.free(block);
        }
        self.steps += 1;
        Doing::Forward(0)
    }

    fn emit(&mut self, event: &Event) {
        self.ledgers.apply(event);
    }

    fn stack(&mut self, name: &str, stack: Stack) -> StackId {
        if let Some(id) = self.stacks.get(name) {
            return *id;
        }
        let id = StackId(self.stacks.len() as u32 + 1);
        self.stacks.insert(name.to_owned(), id);
        self.emit(&Event::Stack(id, Arc::new(stack)));
        id
    }

    fn mark(&mut self, begins: MarkedPhase) {
        let stack = self.stack("main", called("", 58));
        self.emit(&Event::PhaseMark(PhaseMark {
            time: TimeNs(self.time),
            tgid: Tgid(1234),
            tid: Tid(1234),
            phase: begins,
            class: "AdamW".into(),
            stack,
        }));
    }

    fn alloc(&mut self, stack: StackId, size: u64) -> (u64, u64) {
        let addr = self.next;
        self.next += size;
        self.allocated += size;
        self.memory(Action::Alloc, (addr, size), stack);
        (addr, size)
    }

    fn free(&mut self, block: (u64, u64)) {
        self.allocated -= block.1;
        self.memory(Action::Free, block, StackId::NONE);
    }

    fn memory(&mut self, action: Action, (addr, size): (u64, u64), stack: StackId) {
        self.time += 1_000;
        self.emit(&Event::Memory(MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1234),
            tid: Tid(1234),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DeviceIndex(0)),
            totals: Some(Totals {
                allocated: Bytes(self.allocated),
                reserved: Bytes(12_288 * MIB),
            }),
            stack,
            shape: PurposeId::NONE,
            call: None,
        }));
    }
}

/// Returns a stack in `train.py` that calls `module`; an empty `module` means none.
fn called(module: &str, line: u32) -> Stack {
    Stack {
        kind: StackKind::Python,
        frames: vec![frame("/home/ada/gpt/train.py", line, "train_step")],
        truncated: false,
        context: Context {
            module: match module {
                "" => Module::Outside,
                path => Module::Called(path.into()),
            },
            grad: Grad::Enabled,
            node: None,
        },
    }
}

/// Returns the stack of an autograd thread in the backward pass of `module`.
fn backward(module: &str) -> Stack {
    let mut stack = called("", 33);
    stack.kind = StackKind::Waiting {
        thread: "pt_autograd_0".into(),
    };
    stack.context.node = Some(Arc::new(Node {
        name: "AddmmBackward0".into(),
        forward: Some(Arc::new(called(module, 61))),
    }));
    stack
}

/// Returns a stack with an inner frame in PyTorch.
fn torch(file: &str, function: &str, line: u32) -> Stack {
    let file = format!("/opt/venv/lib/python3.12/site-packages/torch/{file}");
    let mut stack = called("", line);
    stack.frames.insert(0, frame(&file, 1, function));
    stack
}

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

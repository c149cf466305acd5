//! Small training loops: categories of blocks, and iterations.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::AttributionLedger;
use super::category::{Category, CategoryRule};
use super::iterations::{Cycle, IterationKind, IterationLine, Iterations, Source};
use super::phase::Phase;
use crate::event::Target;
use crate::event::tensors::TensorKind;
use crate::event::{
    Action, Address, AtAttach, BlockLabels, Bytes, Context, DeviceIndex, Event, Frame, Grad,
    LabeledBlock, Losses, MarkedPhase, MemoryEvent, Module, Node, PhaseMark, PurposeId, Stack,
    StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use crate::ledger::snapshot::Grouping;
use crate::ledger::{Analysis, Ledger};

const DEVICE: DeviceIndex = DeviceIndex(0);
const MAIN: Tid = Tid(1);
const ENGINE: Tid = Tid(2);

/// Origin of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Outside = 1,
    Build,
    Forward,
    Evaluation,
    BackwardCall,
    Backward,
    Accumulate,
    Recompute,
    Step,
    Loader,
    StepOfOther,
    OtherLine,
    NestedCall,
    KeepKeys,
    BuildBuffer,
}

const STACKS: [From; 15] = [
    From::Outside,
    From::Build,
    From::Forward,
    From::Evaluation,
    From::BackwardCall,
    From::Backward,
    From::Accumulate,
    From::Recompute,
    From::Step,
    From::Loader,
    From::StepOfOther,
    From::OtherLine,
    From::NestedCall,
    From::KeepKeys,
    From::BuildBuffer,
];

mod peaks;
mod rules;

impl From {
    fn thread(self) -> Tid {
        match self {
            Self::Backward | Self::Accumulate | Self::Recompute | Self::NestedCall => ENGINE,
            _ => MAIN,
        }
    }

    fn stack(self) -> Stack {
        let module = ("torch/nn/modules/module.py", "_call_impl");
        let train = ("train.py", "main");
        let frames = match self {
            Self::Outside | Self::OtherLine | Self::Backward | Self::Accumulate => vec![train],
            Self::Build | Self::BuildBuffer => {
                vec![("torch/nn/modules/module.py", "convert"), train]
            }
            Self::Forward | Self::Evaluation => vec![("model.py", "forward"), module, train],
            Self::BackwardCall | Self::NestedCall => {
                vec![("torch/autograd/__init__.py", "backward"), train]
            }
            Self::Recompute => {
                vec![
                    ("model.py", "forward"),
                    module,
                    ("torch/utils/checkpoint.py", "unpack_hook"),
                ]
            }
            Self::KeepKeys => vec![("cache.py", "update"), module, train],
            Self::Step => vec![("torch/optim/optimizer.py", "wrapper"), train],
            Self::StepOfOther => vec![("torch/optim/optimizer.py", "wrapper"), ("gan.py", "g")],
            Self::Loader => vec![("torch/utils/data/_utils/fetch.py", "fetch"), train],
        };
        let frame = |(file, function): (&str, &str)| Frame {
            file: file.into(),
            line: self as u32,
            function: function.into(),
            library: None,
        };
        let node = |name: &str, forward: Option<Arc<Stack>>| {
            Some(Arc::new(Node {
                name: name.into(),
                forward,
            }))
        };
        Stack {
            kind: match self {
                Self::Backward | Self::Accumulate => StackKind::Waiting {
                    thread: "pt_autograd_0".into(),
                },
                _ => StackKind::Python,
            },
            frames: frames.into_iter().map(frame).collect(),
            truncated: false,
            context: Context {
                module: match self {
                    Self::Forward | Self::Evaluation => Module::Called("Net.mlp".into()),
                    _ => Module::Outside,
                },
                grad: match self {
                    Self::Build | Self::Evaluation | Self::KeepKeys | Self::Step => Grad::Disabled,
                    _ => Grad::Enabled,
                },
                node: match self {
                    Self::Backward | Self::Recompute | Self::NestedCall => {
                        node("AddmmBackward0", Some(Arc::new(Self::Forward.stack())))
                    }
                    Self::Accumulate => node("torch::autograd::AccumulateGrad", None),
                    _ => None,
                },
            },
        }
    }
}

/// Program whose events go to a ledger and an attribution ledger.
struct Program {
    ledger: Ledger,
    attribution: AttributionLedger,
    time: u64,
    next: u64,
    live: BTreeMap<u64, u64>,
    shape: PurposeId,
}

impl Program {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(line: Option<IterationLine>) -> Self {
        let mut program = Self {
            ledger: Ledger::new(Target::default(), TimeNs(0)),
            attribution: AttributionLedger::new(line),
            time: 0,
            next: 0x1000,
            live: BTreeMap::new(),
            shape: PurposeId(2),
        };
        for from in STACKS {
            program.hear(Event::Stack(StackId(from as u32), Arc::new(from.stack())));
        }
        program
    }

    fn hear(&mut self, event: Event) {
        let change = self.ledger.apply(&event);
        self.attribution.apply(&event, &change, &self.ledger);
        self.check();
    }

    /// On each device, after every event, all parts add up to the allocator's total.
    fn check(&self) {
        let lines = self.ledger.snapshot(TimeNs(self.time), Grouping::User);
        for device in lines.devices {
            let view = self
                .attribution
                .device(device.index)
                .expect("the same devices");
            for moment in [view.now(), view.peak()]
                .into_iter()
                .chain(&view.timeline().points)
            {
                let composition = &moment.composition;
                let categories = Category::ALL.iter().map(|it| composition.of(*it));
                let sum = i128::from(categories.sum::<u64>())
                    + i128::from(composition.before_attach)
                    + i128::from(composition.unaccounted);
                assert_eq!(sum, i128::from(moment.totals.allocated.0));
            }
            let now = view.now();
            assert_eq!(now.totals, device.totals);
            // Labels move blocks out of before attach.
            let named = device.before_attach.labeled.is_some();
            let before = (now.composition.before_attach, device.before_attach.live.0);
            assert!(
                before.0 == before.1 || named && before.0 < before.1,
                "{before:?}"
            );
            assert_eq!(now.composition.unaccounted, device.unaccounted);
            let saved = view.saved(Grouping::User);
            let of = |of: fn(&super::high_water_mark::Holding) -> u64| {
                saved.iter().map(|row| of(&row.holding)).sum::<u64>()
            };
            assert_eq!(
                of(|row| row.live.0),
                now.composition.of(Category::Activation)
            );
            let peak = &view.peak().composition;
            assert_eq!(of(|row| row.at_peak.0), peak.of(Category::Activation));
            let phases = view.phases();
            let live: u64 = phases.iter().map(|row| row.holding.live.0).sum();
            assert_eq!(live, now.composition.known());
            let at_peak: u64 = phases.iter().map(|row| row.holding.at_peak.0).sum();
            assert_eq!(at_peak, peak.known());
        }
    }

    fn event(&mut self, action: Action, addr: u64, size: u64, tid: Tid, stack: u32) -> Event {
        self.time += 1_000_000;
        Event::Memory(MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            tid,
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DEVICE),
            totals: Some(Totals {
                allocated: Bytes(self.live.values().sum()),
                reserved: Bytes(1 << 20),
            }),
            stack: StackId(stack),
            shape: match action {
                Action::Alloc => self.shape,
                _ => PurposeId::NONE,
            },
            call: None,
        })
    }

    fn alloc(&mut self, from: From, size: u64) -> u64 {
        let addr = self.next;
        self.next += size.next_multiple_of(512);
        self.live.insert(addr, size);
        let event = self.event(Action::Alloc, addr, size, from.thread(), from as u32);
        self.hear(event);
        addr
    }

    fn free(&mut self, addr: u64, tid: Tid) {
        let size = self.live.remove(&addr).expect("a live block");
        let event = self.event(Action::Free, addr, size, tid, 0);
        self.hear(event);
    }

    /// Begins with a block from before attach.
    fn attach(&mut self, addr: u64, size: u64) {
        self.live.insert(addr, size);
        let totals = Totals {
            allocated: Bytes(size),
            reserved: Bytes(1 << 20),
        };
        self.hear(Event::AtAttach(AtAttach {
            time: TimeNs(0),
            tgid: Tgid(1),
            device: Some(DEVICE),
            totals,
            peak: totals,
            unread: None,
        }));
    }

    fn mark(&mut self, begins: MarkedPhase, from: From) {
        self.time += 1_000;
        self.hear(Event::PhaseMark(PhaseMark {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            tid: MAIN,
            phase: begins,
            class: "Adam".into(),
            stack: StackId(from as u32),
        }));
    }

    /// Adds a heap snapshot with a kind for each live block.
    fn name(&mut self, kind_of: impl Fn(u64) -> Option<TensorKind>) {
        self.label(|block| LabeledBlock {
            kind: kind_of(block.addr.0),
            ..block
        });
    }

    /// Adds labels of memory from before attach, of this kind, that list every live block.
    fn name_baseline(&mut self, kind: TensorKind) {
        let labels = self.labels(|block| LabeledBlock {
            kind: Some(kind),
            ..block
        });
        self.hear(Event::BaselineLabels(Arc::new(labels)));
    }

    fn label(&mut self, label: impl Fn(LabeledBlock) -> LabeledBlock) {
        let labels = self.labels(label);
        self.hear(Event::BlockLabels(Arc::new(labels)));
    }

    fn labels(&mut self, label: impl Fn(LabeledBlock) -> LabeledBlock) -> BlockLabels {
        self.time += 1_000;
        let blocks = self.live.iter().map(|(addr, size)| {
            label(LabeledBlock::unlabeled(
                Address(*addr),
                Bytes(*size),
                DEVICE,
            ))
        });
        BlockLabels {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            blocks: blocks.collect(),
            optimizers: Vec::new(),
            tags: Vec::new(),
        }
    }

    /// Adds a heap snapshot in which variables refer to these blocks, and nodes save them.
    fn name_variables(&mut self, variables: &[u64]) {
        self.label(|block| LabeledBlock {
            kind: Some(TensorKind::Tensor),
            is_saved_variable: variables.contains(&block.addr.0),
            ..block
        });
    }

    fn now(&self, category: Category) -> u64 {
        let view = self.attribution.device(DEVICE).expect("a device");
        view.now().composition.of(category)
    }

    fn rules(&self) -> Vec<(CategoryRule, u64)> {
        let view = self.attribution.device(DEVICE).expect("a device");
        let rows = view.categories();
        let live = rows.iter().filter(|row| row.live > 0);
        live.map(|row| (row.rule, row.live)).collect()
    }

    /// One iteration of a plain training loop.
    fn iterate(&mut self, state: &mut Vec<u64>) {
        self.mark(MarkedPhase::NextBatch, From::Outside);
        let input = self.alloc(From::Outside, 1024);
        let saved = self.alloc(From::Forward, 4096);
        let temporary = self.alloc(From::Forward, 512);
        self.free(temporary, MAIN);
        let root = self.alloc(From::BackwardCall, 512);
        let gradient = self.alloc(From::Backward, 2048);
        let passing = self.alloc(From::Backward, 1536);
        self.free(saved, ENGINE);
        self.free(passing, ENGINE);
        self.free(root, MAIN);
        self.mark(MarkedPhase::Step, From::Step);
        if state.is_empty() {
            state.push(self.alloc(From::Step, 8192));
        }
        let scratch = self.alloc(From::Step, 512);
        self.free(scratch, MAIN);
        self.mark(MarkedPhase::ZeroGrad, From::Outside);
        self.free(gradient, MAIN);
        self.free(input, MAIN);
    }
}

fn kinds(iterations: &Iterations) -> Vec<(u64, IterationKind)> {
    let rows = iterations.rows.iter();
    rows.map(|row| (row.number, row.kind)).collect()
}

#[test]
fn a_training_loop_divides_into_what_its_blocks_are_for() {
    let mut program = Program::new();
    program.alloc(From::Build, 2048);
    let mut state = Vec::new();
    for _ in 0..3 {
        program.iterate(&mut state);
    }
    assert_eq!(
        program.rules(),
        [
            (CategoryRule::Built, 2048),
            (CategoryRule::OutlivesStep, 8192)
        ]
    );
    let view = program.attribution.device(DEVICE).expect("a device");
    let peak = &view.peak().composition;
    let at_peak: Vec<_> = Category::ALL
        .iter()
        .map(|category| (peak.of(*category), peak.provisional(*category)))
        .collect();
    // Parameters, gradients, state, activations, input, no cache, intermediate gradients; no others.
    assert_eq!(
        at_peak[..7],
        [
            (2048, 0),
            (2048, 0),
            (8192, 0),
            (4096, 0),
            (1024, 0),
            (0, 0),
            (2048, 0)
        ]
    );
    assert!(at_peak[7..].iter().all(|(bytes, _)| *bytes == 0));
    let saved = view.saved(Grouping::User);
    assert_eq!(saved.len(), 1);
    assert_eq!(saved[0].module, Module::Called("Net.mlp".into()));
    assert_eq!(saved[0].operations, ["AddmmBackward0".into()]);
    assert_eq!(
        (saved[0].holding.live, saved[0].holding.at_peak),
        (Bytes(0), Bytes(4096))
    );
}

#[test]
fn without_tensors_what_a_backward_pass_keeps_is_a_gradient_if_it_has_a_parameters_size() {
    let mut program = Program::new();
    program.shape = PurposeId::NONE;
    program.alloc(From::Build, 2048);
    program.alloc(From::Forward, 4096);
    program.alloc(From::Backward, 2048);
    let scratch = program.alloc(From::Backward, 8192);
    program.free(scratch, ENGINE);
    program.alloc(From::Backward, 8_519_680);
    program.mark(MarkedPhase::Step, From::Step);
    let rules = program.rules();
    assert!(rules.contains(&(CategoryRule::OutlivesBackward, 2048)));
    assert!(rules.contains(&(CategoryRule::LikeNoParameter, 8_519_680)));
    let view = program.attribution.device(DEVICE).expect("a device");
    let peak = &view.peak().composition;
    assert_eq!(peak.of(Category::Gradient), 2048);
    assert_eq!(peak.of(Category::IntermediateGradient), 0);
}

#[test]
fn what_is_made_for_no_tensor_is_a_workspace_unless_the_backward_pass_frees_it() {
    let mut program = Program::new();
    program.shape = PurposeId::NO_TENSOR;
    let resized = program.alloc(From::Forward, 4096);
    let workspace = program.alloc(From::Forward, 8192);
    program.free(workspace, MAIN);
    assert_eq!(program.attribution.ended, Some(CategoryRule::NoTensor));
    program.alloc(From::Backward, 1024);
    assert_eq!(program.now(Category::Workspace), 4096 + 1024);
    program.free(resized, ENGINE);
    assert_eq!(
        program.attribution.ended,
        Some(CategoryRule::FreedInBackward)
    );
    program.mark(MarkedPhase::Step, From::Step);
    assert_eq!(program.rules(), [(CategoryRule::NoTensor, 1024)]);
    let view = program.attribution.device(DEVICE).expect("a device");
    assert_eq!(view.peak().composition.of(Category::Activation), 4096);
}

#[test]
fn heap_snapshots_decide_categories_and_score_the_inference() {
    let mut program = Program::new();
    let parameter = program.alloc(From::Build, 2048);
    let outside = program.alloc(From::Outside, 512);
    let mut state = Vec::new();
    program.iterate(&mut state);
    program.mark(MarkedPhase::NextBatch, From::Outside);
    let lost = program.alloc(From::Forward, 1024);
    program.name(|addr| match addr {
        _ if addr == parameter => Some(TensorKind::Parameter),
        // Stands for a gradient assigned by the program.
        _ if addr == lost => Some(TensorKind::Gradient),
        _ if addr == outside => Some(TensorKind::Buffer),
        _ if addr == state[0] => Some(TensorKind::OptimizerState),
        _ => None,
    });
    assert_eq!(
        program.rules(),
        [
            (CategoryRule::NamedParameter, 2048),
            (CategoryRule::NamedBuffer, 512),
            (CategoryRule::NamedGradient, 1024),
            (CategoryRule::NamedOptimizerState, 8192),
        ]
    );
    let check = &program.attribution.check;
    let (right, unknown, wrong) = (check.right(), check.unknown(), check.wrong());
    assert_eq!((right, unknown, wrong), (2048 + 8192, 512, 1024));
    // A decided category stays.
    program.iterate(&mut state);
    assert_eq!(program.now(Category::Gradient), 1024);
}

#[test]
fn an_iteration_ends_with_its_step() {
    let mut program = Program::new();
    program.alloc(From::Build, 2048);
    let mut state = Vec::new();
    for _ in 0..3 {
        program.iterate(&mut state);
    }
    let iterations = program.attribution.iterations();
    assert_eq!(iterations.source, Source::Steps);
    assert_eq!(
        kinds(&iterations)[..4],
        [
            (0, IterationKind::Before),
            (1, IterationKind::Whole),
            (2, IterationKind::Whole),
            (3, IterationKind::Whole)
        ]
    );
    let second = &iterations.rows[2];
    let (_, device) = &second.devices[0];
    assert_eq!((second.backwards, second.batches), (1, 1));
    assert_eq!((device.allocs, device.alloc_bytes), (7, 10_240));
    assert_eq!(device.peak.composition.of(Category::Activation), 4096);
    assert_eq!(
        device.end.allocated.0,
        2048 + 8192 + 2048 + 1024,
        "the gradient and the input are live when a step ends"
    );
}

#[test]
fn accumulated_gradients_are_one_iteration_with_several_backward_passes() {
    let mut program = Program::new();
    for _ in 0..2 {
        for _ in 0..4 {
            let saved = program.alloc(From::Forward, 4096);
            program.alloc(From::BackwardCall, 512);
            program.free(saved, ENGINE);
        }
        program.mark(MarkedPhase::Step, From::Step);
        program.mark(MarkedPhase::ZeroGrad, From::Outside);
    }
    let iterations = program.attribution.iterations();
    let backwards: Vec<u32> = iterations.rows.iter().map(|row| row.backwards).collect();
    assert_eq!(backwards, [0, 4, 4]);
}

#[test]
fn two_optimizers_in_turn_make_one_iteration() {
    let mut program = Program::new();
    for _ in 0..4 {
        for step in [From::Step, From::StepOfOther] {
            let saved = program.alloc(From::Forward, 4096);
            program.alloc(From::BackwardCall, 512);
            program.free(saved, ENGINE);
            program.mark(MarkedPhase::Step, step);
        }
    }
    program.mark(MarkedPhase::ZeroGrad, From::Outside);
    let iterations = program.attribution.iterations();
    assert_eq!(iterations.cycle, Cycle::Repeats(2));
    let whole = iterations.rows.iter();
    let whole: Vec<u32> = whole
        .filter(|row| row.kind == IterationKind::Whole)
        .map(|row| row.backwards)
        .collect();
    assert_eq!(whole, [2, 2, 2, 2]);
}

#[test]
fn what_waits_for_the_second_backward_pass_is_an_activation_too() {
    let mut program = Program::new();
    let generated = program.alloc(From::Forward, 4096);
    program.alloc(From::BackwardCall, 512);
    program.mark(MarkedPhase::Step, From::Step);
    program.alloc(From::Forward, 512);
    program.alloc(From::BackwardCall, 512);
    program.alloc(From::Backward, 512);
    program.free(generated, ENGINE);
    let view = program.attribution.device(DEVICE).expect("a device");
    assert_eq!(
        view.peak().composition.by_rule(CategoryRule::SoFarSaved),
        512
    );
    assert!(
        view.peak()
            .composition
            .by_rule(CategoryRule::FreedInBackward)
            >= 4096
    );
}

#[test]
fn evaluation_loops_stand_between_iterations() {
    let mut program = Program::new();
    let mut state = Vec::new();
    program.iterate(&mut state);
    program.iterate(&mut state);
    for _ in 0..3 {
        program.mark(MarkedPhase::NextBatch, From::Outside);
        let output = program.alloc(From::Evaluation, 4096);
        program.free(output, MAIN);
    }
    program.iterate(&mut state);
    let kinds = kinds(&program.attribution.iterations());
    assert_eq!(
        kinds[..4],
        [
            (0, IterationKind::Before),
            (1, IterationKind::Whole),
            (2, IterationKind::Whole),
            (2, IterationKind::Evaluation)
        ]
    );
    assert_eq!(kinds[4], (3, IterationKind::Whole));
}

#[test]
fn a_teacher_that_evaluates_in_every_iteration_is_part_of_it() {
    let mut program = Program::new();
    for _ in 0..3 {
        program.alloc(From::Evaluation, 512);
        program.alloc(From::Forward, 512);
        program.alloc(From::BackwardCall, 512);
        program.mark(MarkedPhase::Step, From::Step);
    }
    let kinds = kinds(&program.attribution.iterations());
    assert!(
        kinds
            .iter()
            .all(|(_, kind)| *kind != IterationKind::Evaluation)
    );
    assert_eq!(kinds.last().map(|(number, _)| *number), Some(3));
}

#[test]
fn a_checkpoint_makes_temporaries_and_activations_in_the_backward_pass() {
    let mut program = Program::new();
    program.alloc(From::BackwardCall, 512);
    let within = program.alloc(From::Recompute, 1024);
    program.free(within, ENGINE);
    let saved = program.alloc(From::Recompute, 4096);
    program.alloc(From::Backward, 512);
    program.free(saved, ENGINE);
    let view = program.attribution.device(DEVICE).expect("a device");
    let peak = &view.peak().composition;
    assert_eq!(peak.by_rule(CategoryRule::Recomputed), 4096);
    let phases: Vec<Phase> = view.phases().iter().map(|row| row.phase).collect();
    assert_eq!(phases, [Phase::Recompute, Phase::Backward]);
}

#[test]
fn a_server_has_iterations_by_the_line_that_the_user_names() {
    let line = IterationLine {
        file: "model.py".into(),
        line: From::Evaluation as u32,
    };
    let mut program = Program::with(Some(line));
    program.alloc(From::Build, 2048);
    for _ in 0..3 {
        let request = program.alloc(From::Outside, 512);
        let first = program.alloc(From::Evaluation, 4096);
        let second = program.alloc(From::Evaluation, 4096);
        for addr in [first, second, request] {
            program.free(addr, MAIN);
        }
    }
    let iterations = program.attribution.iterations();
    assert_eq!(iterations.source, Source::Line);
    assert_eq!(
        kinds(&iterations),
        [
            (0, IterationKind::Before),
            (1, IterationKind::Whole),
            (2, IterationKind::Whole),
            (3, IterationKind::Unfinished)
        ]
    );
    let without = Program::new().attribution.iterations();
    assert_eq!((without.source, without.rows.len()), (Source::Nothing, 0));
}

#[test]
fn gradients_that_autograd_accumulates_and_workspaces_are_known_at_once() {
    let mut program = Program::new();
    program.alloc(From::Accumulate, 512);
    program.shape = PurposeId::NO_TENSOR;
    program.alloc(From::Backward, 1024);
    assert_eq!(
        program.rules(),
        [
            (CategoryRule::Accumulated, 512),
            (CategoryRule::NoTensor, 1024)
        ]
    );
}

/// Next action of a random program.
#[derive(Clone, Debug)]
enum Next {
    Alloc(usize, u64),
    Free(usize),
    Mark(usize),
    Name(u64),
    Lose(u64),
}

fn nexts() -> impl Strategy<Value = Vec<Next>> {
    let next = prop_oneof![
        10 => (0..STACKS.len(), 1..8_u64).prop_map(|(from, pages)| Next::Alloc(from, pages)),
        8 => any::<usize>().prop_map(Next::Free),
        2 => (0..3_usize).prop_map(Next::Mark),
        1 => any::<u64>().prop_map(Next::Name),
        1 => (1..4_u64).prop_map(Next::Lose),
    ];
    prop::collection::vec(next, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_sum_is_the_allocators(nexts in nexts(), held in 0..4_u64, attached in any::<bool>()) {
        let mut program = Program::new();
        for _ in 0..held {
            program.live.insert(program.next, 512);
            program.next += 512;
        }
        if attached {
            let allocated = Bytes(held * 512);
            let totals = Totals { allocated, reserved: Bytes(1 << 20) };
            program.hear(Event::AtAttach(AtAttach {
                time: TimeNs(0),
                tgid: Tgid(1),
                device: Some(DEVICE),
                totals,
                peak: totals,
                unread: None,
            }));
            for addr in program.live.keys().copied().collect::<Vec<_>>() {
                let event = program.event(Action::Held, addr, 512, Tid::UNKNOWN, 0);
                program.hear(event);
            }
        }
        for next in nexts {
            match next {
                Next::Alloc(from, pages) => {
                    program.alloc(STACKS[from], pages * 512);
                }
                Next::Free(pick) => {
                    let pick = pick.checked_rem(program.live.len());
                    if let Some(addr) = pick.and_then(|at| program.live.keys().nth(at).copied()) {
                        program.free(addr, if pick.is_some_and(|at| at % 2 == 0) { MAIN } else { ENGINE });
                    }
                }
                Next::Mark(which) => {
                    let begins = [MarkedPhase::Step, MarkedPhase::ZeroGrad, MarkedPhase::NextBatch][which];
                    program.mark(begins, STACKS[which]);
                }
                Next::Name(pick) => program.name(|addr| {
                    let at = ((addr / 512) ^ pick) % 8;
                    TensorKind::ALL.get(at as usize).copied()
                }),
                // Blocks change unseen; memprobe gets only the number of missed events.
                Next::Lose(pages) => {
                    if pages == 1 {
                        program.live.pop_first();
                    } else {
                        program.live.insert(program.next, pages * 512);
                        program.next += pages * 512;
                    }
                    program.hear(Event::Loss(Losses { events: 1, ..Losses::default() }));
                }
            }
        }
        let iterations = program.attribution.iterations();
        for row in &iterations.rows {
            prop_assert!(row.begin <= row.end);
            for (_, device) in &row.devices {
                let peak = &device.peak;
                let composition = &peak.composition;
                let sum = i128::from(composition.known())
                    + i128::from(composition.before_attach)
                    + i128::from(composition.unaccounted);
                prop_assert_eq!(sum, i128::from(peak.totals.allocated.0));
            }
        }
    }
}

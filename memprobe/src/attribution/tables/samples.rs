//! Sample training program for tests of screens.

use std::sync::Arc;

use super::{
    Breakdown, DeviceBreakdown, DeviceCategories, DeviceModules, IterationChoice, IterationLayers,
};
use crate::attribution::allocation_groups::samples::{Program, backward, called};
use crate::attribution::breakdown::BreakdownLedger;
use crate::attribution::modules::ModuleLedger;
use crate::attribution::views;
use crate::attribution::{AttributionLedger, WithCategories};
use crate::event::{
    Event, Frame, Grad, MarkedPhase, PhaseMark, PurposeId, Stack, StackId, StackKind, Tgid, Tid,
    TimeNs,
};
use crate::ledger::snapshot::Grouping;

const MIB: u64 = 1 << 20;

/// A line inside PyTorch, called from `train.py`.
fn torch(file: &str, function: &str, line: u32) -> Stack {
    let mut stack = called(line, "");
    stack.frames.insert(
        0,
        Frame {
            file: format!("/v/site-packages/torch/{file}").into(),
            line: 1,
            function: function.into(),
            library: None,
        },
    );
    stack.kind = StackKind::Python;
    stack
}

/// A transformer that trains for some steps and is in the middle of one.
struct Training {
    program: Program,
    layers: Vec<(StackId, StackId)>,
    head: (StackId, StackId),
    batch: StackId,
    step: StackId,
    unknown: StackId,
}

impl Training {
    fn new() -> Self {
        let mut program = Program::attached_at(96 * MIB);
        let mut convert = torch("nn/modules/module.py", "convert", 12);
        // `Module._apply` moves parameters so.
        convert.context.grad = Grad::Disabled;
        let built = program.stack(convert);
        for _ in 0..6 {
            program.alloc_tensor(built, 24 * MIB);
        }
        let mut pair = |path: &str| {
            let forward = called(31, path);
            let back = backward(33, "AddmmBackward0", Some(forward.clone()));
            (program.stack(forward), program.stack(back))
        };
        let paths = (0..4)
            .flat_map(|layer| ["attn", "mlp.fc"].map(|part| format!("GPT.layers.{layer}.{part}")));
        let layers = paths.map(|path| pair(&path)).collect();
        let head = pair("GPT.lm_head");
        Self {
            layers,
            head,
            batch: program.stack(called(29, "")),
            step: program.stack(torch("optim/optimizer.py", "step", 35)),
            unknown: program.stack(backward(33, "MulBackward0", None)),
            program,
        }
    }

    fn begin(&mut self, what: MarkedPhase) {
        let time = self
            .program
            .events
            .iter()
            .rev()
            .find_map(|event| match event {
                Event::Memory(event) => Some(event.time),
                _ => None,
            });
        self.program.events.push(Event::PhaseMark(PhaseMark {
            time: time.unwrap_or(TimeNs(0)),
            tgid: Tgid(1234),
            tid: Tid(1234),
            phase: what,
            class: "AdamW".into(),
            stack: self.step,
        }));
    }

    fn forward(&mut self) -> Vec<u64> {
        self.begin(MarkedPhase::ZeroGrad);
        let mut saved = vec![self.program.alloc_tensor(self.batch, 2 * MIB)];
        for at in 0..self.layers.len() {
            let (stack, _) = self.layers[at];
            let temporary = self.program.alloc_tensor(stack, 3 * MIB);
            saved.push(self.program.alloc_tensor(stack, (10 + at as u64) * MIB));
            self.program.free(temporary);
            self.program.wait(900);
        }
        saved.push(self.program.alloc_tensor(self.head.0, 40 * MIB));
        saved
    }

    fn backward(&mut self, saved: Vec<u64>, gradients: usize) -> Vec<u64> {
        let mut survivors = vec![self.program.alloc_tensor(self.unknown, MIB)];
        let workspace = self
            .program
            .alloc_of(self.head.1, PurposeId::NO_TENSOR, 8 * MIB);
        for (at, addr) in saved.into_iter().rev().enumerate() {
            let (_, stack) = self.layers[at % self.layers.len()];
            let passing = self.program.alloc_tensor(stack, 5 * MIB);
            if at < gradients {
                survivors.push(self.program.alloc_tensor(stack, 6 * MIB));
            }
            self.program.free(addr);
            self.program.free(passing);
            self.program.wait(1_800);
        }
        self.program.free(workspace);
        survivors
    }

    fn train(mut self, steps: u64) -> Program {
        for step in 0..steps {
            let saved = self.forward();
            let gradients = self.backward(saved, 6);
            self.begin(MarkedPhase::Step);
            if step == 0 {
                for _ in 0..2 {
                    self.program.alloc_tensor(self.step, 48 * MIB);
                }
            }
            let temporary = self.program.alloc_tensor(self.step, 4 * MIB);
            self.program.free(temporary);
            self.program.wait(2_500);
            for addr in gradients {
                self.program.free(addr);
            }
        }
        let mut saved = self.forward();
        let rest = saved.split_off(6);
        self.backward(rest, 3);
        self.program
    }
}

fn views_of(program: &Program) -> (Vec<DeviceModules>, Vec<DeviceCategories>) {
    let played = program.analyzed(WithCategories::new(ModuleLedger::default()));
    let WithCategories {
        categories,
        table: modules,
    } = played.analyses;
    let last = program.events.iter().rev().find_map(|event| match event {
        Event::Memory(event) => Some(event.time),
        _ => None,
    });
    let now = last.unwrap_or_default();
    let snapshot = played.ledger.snapshot(now, Grouping::User);
    (
        views::modules(&modules, &snapshot),
        views::categories(&categories, &categories.latest_iterations(100), now),
    )
}

/// A breakdown of the memory of the sample program.
pub(crate) fn breakdown(breakdown: Breakdown) -> Arc<Vec<DeviceBreakdown>> {
    let analyses = WithCategories::new(BreakdownLedger::new(breakdown));
    let played = Training::new().train(12).analyzed(analyses);
    let snapshot = played.ledger.snapshot(TimeNs(0), Grouping::User);
    Arc::new(played.analyses.table.devices(&snapshot))
}

/// Modules of the sample program.
pub(crate) fn modules() -> Arc<Vec<DeviceModules>> {
    Arc::new(views_of(&Training::new().train(12)).0)
}

/// Categories of the sample program.
pub(crate) fn categories() -> Arc<Vec<DeviceCategories>> {
    Arc::new(views_of(&Training::new().train(12)).1)
}

/// Layers of the sample program in an iteration.
pub(crate) fn layers(which: IterationChoice) -> Arc<Vec<IterationLayers>> {
    let ledger = AttributionLedger::new(None).with_latest_layers();
    let ledger = Training::new().train(12).analyzed(ledger).analyses;
    let table = ledger.latest_iterations(100);
    Arc::new(views::layers(&ledger, &table, which))
}

/// A program with a single module of this name, which holds 1 MiB.
pub(crate) fn module(name: &str) -> Arc<Vec<DeviceModules>> {
    let mut program = Program::default();
    let stack = program.stack(called(1, name));
    program.alloc(stack, MIB);
    Arc::new(views_of(&program).0)
}

/// A program without marks and module calls.
pub(crate) fn silent() -> (Arc<Vec<DeviceModules>>, Arc<Vec<DeviceCategories>>) {
    let mut program = Program::attached_at(5 * MIB);
    let stack = program.stack(called(1, ""));
    program.alloc(stack, 3 * MIB);
    let (modules, categories) = views_of(&program);
    (Arc::new(modules), Arc::new(categories))
}

//! Tests of estimates, each from a short stream of events.

use std::sync::Arc;

use super::*;
use crate::event::tensors::{DType, TensorKind};
use crate::event::{
    Address, AtAttach, BlockLabels, BlockPurpose, Context, LabeledBlock, MarkedPhase, MemoryEvent,
    PhaseMark, PurposeId, Stack, StackId, StackKind, StepSettings, TensorSpec, Tgid, Tid, TimeNs,
};

const MIB: u64 = 1 << 20;

/// Line numbers of the test program.
const FORWARD: u32 = 1;
const BACKWARD: u32 = 2;
const ADAM: u32 = 3;
const DROPOUT: u32 = 4;
const EXAMPLE: u32 = 5;
const STATE: u32 = 6;
const RMSPROP: u32 = 7;

/// A run on the CPU.
struct Run {
    estimator: Estimator,
    shapes: u32,
    next: u64,
}

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

fn torch(file: &str, function: &str) -> Frame {
    frame(
        &format!("/v/lib/python3.13/site-packages/torch/{file}"),
        7,
        function,
    )
}

fn stack(frames: Vec<Frame>) -> Arc<Stack> {
    Arc::new(Stack {
        kind: StackKind::Python,
        frames,
        truncated: false,
        context: Context::default(),
    })
}

impl Run {
    fn new() -> Self {
        Self::on(None, Vec::new())
    }

    fn on(memory: Option<Bytes>, on_host: Vec<OnHost>) -> Self {
        let mut estimator = Estimator::new(memory, on_host);
        let own = |line| frame("/home/me/train.py", line, "main");
        let step = || torch("optim/adam.py", "step");
        let fetch = || torch("utils/data/_utils/fetch.py", "fetch");
        for (id, frames) in [
            (FORWARD, vec![own(10)]),
            (
                BACKWARD,
                vec![torch("autograd/graph.py", "_engine_run_backward"), own(20)],
            ),
            (
                ADAM,
                vec![
                    torch("optim/adam.py", "_single_tensor_adam"),
                    step(),
                    own(30),
                ],
            ),
            (DROPOUT, vec![torch("nn/functional.py", "dropout"), own(11)]),
            (
                EXAMPLE,
                vec![frame("/home/me/data.py", 5, "__getitem__"), fetch(), own(9)],
            ),
            (
                STATE,
                vec![torch("optim/adam.py", "_init_group"), step(), own(30)],
            ),
            (
                RMSPROP,
                vec![
                    torch("optim/rmsprop.py", "_single_tensor_rmsprop"),
                    step(),
                    own(30),
                ],
            ),
        ] {
            estimator.apply(&Event::Stack(StackId(id), stack(frames)));
        }
        Self {
            estimator,
            shapes: PurposeId::FIRST.0,
            next: 0x1000,
        }
    }

    fn event(&self, action: Action, addr: u64, size: u64, device: DeviceIndex) -> MemoryEvent {
        MemoryEvent {
            time: TimeNs(self.next),
            tgid: Tgid(1),
            tid: Tid(1),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(device),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        }
    }

    fn block(&mut self, line: u32, bytes: u64, shape: PurposeId) -> u64 {
        self.next += 1 << 32;
        let event = MemoryEvent {
            stack: StackId(line),
            shape,
            ..self.event(Action::Alloc, self.next, bytes, DeviceIndex::CPU)
        };
        self.estimator.apply(&Event::Memory(event));
        self.next
    }

    /// Allocates a tensor of 4-byte elements.
    fn tensor(&mut self, line: u32, bytes: u64) -> u64 {
        self.tensor_of(line, vec![bytes / 4], DType::FLOAT32, bytes)
    }

    fn tensor_of(&mut self, line: u32, sizes: Vec<u64>, dtype: DType, bytes: u64) -> u64 {
        let shape = TensorSpec {
            sizes,
            more: 0,
            dtype,
            requested: Some(Bytes(bytes)),
        };
        let id = PurposeId(self.shapes);
        self.shapes += 1;
        self.estimator.apply(&Event::BlockPurpose(
            id,
            Arc::new(BlockPurpose::Tensor(shape)),
        ));
        self.block(line, bytes, id)
    }

    fn free(&mut self, addr: u64) {
        let event = self.event(Action::Free, addr, 0, DeviceIndex::CPU);
        self.estimator.apply(&Event::Memory(event));
    }

    /// Finishes the estimate, and checks that its rows add up.
    fn finish(self) -> Estimate {
        let estimate = self.estimator.finish();
        let differences: i64 = estimate.differences.iter().map(|(_, bytes)| bytes).sum();
        let allocated = i64::try_from(estimate.peak.allocated.0).unwrap();
        let cpu = i64::try_from(estimate.cpu_at_peak.0).unwrap();
        assert_eq!(cpu + differences, allocated, "{estimate:?}");
        let lines: u64 = estimate.lines.iter().map(|line| line.held.0).sum();
        assert_eq!(lines, estimate.peak.allocated.0, "{estimate:?}");
        let phases: u64 = estimate.phases.iter().map(|(_, bytes)| bytes.0).sum();
        assert_eq!(phases, estimate.peak.allocated.0, "{estimate:?}");
        estimate
    }
}

fn differences(estimate: &Estimate) -> Vec<(Difference, i64)> {
    let all = estimate.differences.iter().copied();
    all.filter(|(_, bytes)| *bytes != 0).collect()
}

#[test]
fn what_is_alive_at_the_peak_counts_as_the_allocator_rounds_it() {
    let mut run = Run::new();
    let first = run.tensor(FORWARD, 1000);
    run.tensor(FORWARD, 2000);
    run.free(first);
    run.tensor(FORWARD, 100);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(1024 + 2048));
    assert_eq!(estimate.peak.reserved, Bytes(2 * MIB));
    assert_eq!(estimate.cpu_at_peak, Bytes(3000));
    assert_eq!(differences(&estimate), [(Difference::Rounding, 72)]);
}

#[test]
fn the_mask_of_a_dropout_has_a_byte_an_element() {
    let mut run = Run::new();
    run.tensor(DROPOUT, 4 * MIB);
    run.tensor_of(DROPOUT, vec![], DType::FLOAT64, 8);
    run.tensor(DROPOUT, 4 * MIB);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(5 * MIB));
    let expected = [(Difference::OnHost, -8), (Difference::Mask, -3 * 1_048_576)];
    assert_eq!(differences(&estimate), expected);
}

#[test]
fn a_dropout_in_place_has_a_mask_as_large_as_on_the_cpu() {
    let mut run = Run::new();
    run.tensor(DROPOUT, 4 * MIB);
    run.tensor(FORWARD, 4 * MIB);
    assert_eq!(run.finish().peak.allocated, Bytes(8 * MIB));
    let mut freed = Run::new();
    let mask = freed.tensor(DROPOUT, 4 * MIB);
    freed.free(mask);
    freed.tensor(DROPOUT, 4 * MIB);
    assert_eq!(freed.finish().peak.allocated, Bytes(4 * MIB));
}

#[test]
fn a_step_of_adam_has_one_temporary_tensor_of_each_parameter_at_once() {
    let mut run = Run::new();
    let mut before = None;
    for _ in 0..3 {
        let root = run.tensor(ADAM, 2 * MIB);
        let denominator = run.tensor(ADAM, 2 * MIB);
        run.free(root);
        if let Some(before) = before.replace(denominator) {
            run.free(before);
        }
    }
    run.free(before.unwrap());
    run.tensor(FORWARD, MIB);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(6 * MIB));
    assert_eq!(estimate.peak_in, EstimatePhase::Step);
    // The CPU has three at that moment: two denominators and a root.
    assert_eq!(estimate.cpu_at_peak, Bytes(6 * MIB));
    assert_eq!(differences(&estimate), []);
}

#[test]
fn a_step_of_rmsprop_has_all_its_temporary_tensors_at_once() {
    let mut run = Run::new();
    for _ in 0..5 {
        let average = run.tensor(RMSPROP, 2 * MIB);
        run.free(average);
    }
    run.tensor(FORWARD, MIB);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(10 * MIB));
    let more = (Difference::Together, 8 * 1_048_576);
    assert_eq!(differences(&estimate), [more]);
}

/// Names nothing; tells how an optimizer of this class handles its parameters.
fn settings(class: &str, foreach: Option<bool>) -> Event {
    Event::BlockLabels(Arc::new(BlockLabels {
        time: TimeNs(1),
        tgid: Tgid(1),
        blocks: Vec::new(),
        optimizers: vec![StepSettings {
            class: class.into(),
            foreach,
            fused: None,
            differentiable: false,
            has_tensor_rate: false,
        }],
        tags: Vec::new(),
    }))
}

#[test]
fn a_step_with_foreach_turned_off_takes_one_parameter_after_the_other() {
    let peak = |known_early: Option<&Event>, known_late: Option<&Event>| {
        let mut run = Run::new();
        known_early
            .into_iter()
            .for_each(|event| run.estimator.apply(event));
        run.estimator.apply(&Event::PhaseMark(PhaseMark {
            time: TimeNs(1),
            tgid: Tgid(1),
            tid: Tid(1),
            phase: MarkedPhase::Step,
            class: "RMSprop".into(),
            stack: StackId::NONE,
        }));
        for _ in 0..5 {
            let average = run.tensor(RMSPROP, 2 * MIB);
            run.free(average);
        }
        known_late
            .into_iter()
            .for_each(|event| run.estimator.apply(event));
        run.tensor(FORWARD, MIB);
        run.finish().peak.allocated.0 / MIB
    };
    let off = settings("RMSprop", Some(false));
    let by_default = settings("RMSprop", None);
    assert_eq!(peak(Some(&off), None), 2);
    assert_eq!(peak(None, Some(&off)), 2, "read after its first step");
    assert_eq!(peak(Some(&by_default), None), 10);
    assert_eq!(peak(None, None), 10, "never read");
    let other = settings("Adam", Some(false));
    assert_eq!(peak(Some(&other), None), 10, "of another optimizer");
    assert_eq!(peak(Some(&other), Some(&off)), 2);
}

#[test]
fn what_stays_with_the_host_is_not_counted() {
    let on_host = OnHost {
        file: "train.py".into(),
        line: 10,
    };
    let mut run = Run::on(None, vec![on_host]);
    run.tensor(FORWARD, 3 * MIB);
    run.tensor(EXAMPLE, MIB);
    run.tensor(BACKWARD, 2 * MIB);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(2 * MIB));
    let stays = (Difference::OnHost, -4 * 1_048_576);
    assert_eq!(differences(&estimate), [stays]);
}

#[test]
fn a_file_is_named_by_the_end_of_its_path_at_a_slash() {
    let line = |file: &str| OnHost {
        file: file.into(),
        line: 5,
    };
    let of = frame("/home/me/data.py", 5, "f");
    assert!(line("data.py").names(&of));
    assert!(line("me/data.py").names(&of));
    assert!(line("/home/me/data.py").names(&of));
    assert!(!line("ata.py").names(&of));
    assert!(!line("data.py").names(&frame("/home/me/data.py", 6, "f")));
}

#[test]
fn buffers_of_the_cpus_kernels_are_not_counted() {
    let mut run = Run::new();
    run.tensor(FORWARD, MIB);
    run.block(FORWARD, 5 * MIB, PurposeId::NO_TENSOR);
    let weights = run.tensor(FORWARD, MIB);
    run.free(weights);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(2 * MIB));
    assert_eq!(estimate.cpu_peak, Bytes(7 * MIB));
    let scratch = (Difference::Scratch, -5 * 1_048_576);
    assert_eq!(differences(&estimate), [scratch]);
}

#[test]
fn saved_is_what_a_backward_pass_gives_back() {
    let mut run = Run::new();
    run.tensor(FORWARD, 8 * MIB);
    let activations: Vec<u64> = (0..3).map(|_| run.tensor(FORWARD, 2 * MIB)).collect();
    run.tensor(BACKWARD, 512);
    for activation in &activations[1..] {
        run.free(*activation);
    }
    run.tensor(STATE, 512);
    run.free(activations[0]);
    run.tensor(FORWARD, 512);
    let estimate = run.finish();
    assert_eq!(estimate.saved, Bytes(4 * MIB));
    assert_eq!(estimate.lines[0].saved, Bytes(4 * MIB));
    let between_iterations = estimate.between_iterations.expect("an iteration followed");
    assert_eq!(between_iterations.allocated, Bytes(8 * MIB + 1024));
}

#[test]
fn how_large_the_model_is_counts_what_the_gpu_has() {
    let mut run = Run::new();
    let weight = run.tensor(FORWARD, MIB);
    run.tensor(DROPOUT, 4 * MIB);
    run.tensor(DROPOUT, 4 * MIB);
    run.block(FORWARD, 5 * MIB, PurposeId::NO_TENSOR);
    let named = LabeledBlock {
        addr: Address(weight),
        size: Bytes(MIB),
        device: DeviceIndex::CPU,
        kind: Some(TensorKind::Parameter),
        name: None,
        module: Some("Net".into()),
        called: None,
        saved_by: None,
        retainer: None,
        is_saved_variable: false,
    };
    let time = TimeNs(run.next);
    run.estimator
        .apply(&Event::BlockLabels(Arc::new(BlockLabels {
            time,
            tgid: Tgid(1),
            blocks: vec![named],
            optimizers: Vec::new(),
            tags: Vec::new(),
        })));
    let sizes = run.finish().sizes.expect("something was made");
    let on_gpu = &sizes.devices[&DeviceIndex(0)];
    let made = on_gpu.others.iter().map(|(_, size)| size.made().bytes);
    // The weight, a mask of one byte an element, and the output.
    assert_eq!(made.sum::<u64>(), (1 + 1 + 4) * MIB);
    let [module] = on_gpu.modules.as_slice() else {
        panic!("{:?}", on_gpu.modules);
    };
    assert_eq!(module.total.parameters.bytes, MIB);
}

#[test]
fn a_workspace_of_cublas_is_a_figure_of_its_own() {
    let mut run = Run::new();
    run.tensor(FORWARD, MIB);
    let estimate = run.finish();
    assert_eq!(estimate.peak.allocated, Bytes(MIB));
    let with = estimate.with_workspace;
    assert_eq!(with.allocated.0, MIB + WORKSPACE.0);
    assert_eq!(with.reserved, Bytes(22 * MIB));
}

#[test]
fn a_run_that_does_not_fit_names_the_first_refused_line() {
    let estimate = |memory: u64| {
        let mut run = Run::on(Some(Bytes(memory)), Vec::new());
        let first = run.tensor(FORWARD, 30 * MIB);
        run.free(first);
        run.tensor(BACKWARD, 40 * MIB);
        run.finish().fit.expect("it was asked for")
    };
    assert_eq!(estimate(100 * MIB), DeviceFit::Whole);
    assert_eq!(estimate(70 * MIB), DeviceFit::WithoutCache { flushes: 1 });
    let DeviceFit::Not { requested, site } = estimate(50 * MIB) else {
        panic!("40 MiB and a workspace in 20 MiB do not fit");
    };
    assert_eq!(requested, Bytes(40 * MIB));
    assert_eq!(site.frame().map(|frame| frame.line), Some(20));
}

#[test]
fn reports_what_the_estimate_leaves_out() {
    let mut run = Run::new();
    run.estimator.apply(&Event::AtAttach(AtAttach {
        time: TimeNs(1),
        tgid: Tgid(1),
        device: Some(DeviceIndex::CPU),
        totals: Totals::default(),
        peak: Totals::default(),
        unread: Some("it keeps no books".into()),
    }));
    for (line, addr) in [(FORWARD, 0x10), (ADAM, 0x20)] {
        let event = MemoryEvent {
            stack: StackId(line),
            ..run.event(Action::Alloc, addr, 512, DeviceIndex(0))
        };
        run.estimator.apply(&Event::Memory(event));
        assert!(run.estimator.is_empty(), "memory of a GPU says nothing");
    }
    run.free(0x7777);
    let missing = run.finish().missing;
    assert!(missing.past);
    assert_eq!(missing.on_gpu, 2);
}

#[test]
fn sizes_that_nobody_has_do_no_harm() {
    let mut run = Run::new();
    for line in [FORWARD, DROPOUT, ADAM, ADAM, RMSPROP] {
        let block = run.tensor(line, u64::MAX);
        run.free(block);
    }
    let _ = run.estimator.finish();
}

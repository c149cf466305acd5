use super::*;
use crate::attribution::AttributionLedger;
use crate::attribution::allocation_groups::samples::{
    DEVICE, Program, backward, called, learning, learning_for,
};
use crate::attribution::iterations::IterationKind;
use crate::attribution::modules::ModuleRow;
use crate::event::{Address, BlockLabels, Bytes, Event, MarkedPhase, Tgid, TimeNs};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn ledger_of(program: &Program) -> AttributionLedger {
    program
        .analyzed(AttributionLedger::new(None).with_sizes())
        .analyses
}

fn sizes_of(program: &Program) -> Sizes {
    ledger_of(program).sizes().expect("something was made")
}

fn part<'a>(rows: &'a [ModuleRow<ModuleSize>], path: &str) -> &'a ModuleRow<ModuleSize> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let row = rows.iter().find(|row| &*row.name == first);
    let row = row.unwrap_or_else(|| panic!("no {first} of {path}"));
    match rest {
        "" => row,
        rest => part(&row.parts, rest),
    }
}

fn all(size: &ModelSize) -> ModuleSize {
    use crate::attribution::modules::Additive;
    let modules = size.modules.iter().map(|row| &row.total);
    let others = size.others.iter().map(|(_, size)| size);
    modules
        .chain(others)
        .fold(ModuleSize::default(), ModuleSize::and)
}

#[test]
fn allocations_of_passes_are_counted_by_module_in_tensor_bytes() {
    let sizes = sizes_of(&learning());
    let device = &sizes.devices[&DEVICE];
    let model = part(&device.modules, "GPT");
    assert_eq!(model.total.forward().bytes, 4 * MIB + 8 * MIB);
    assert_eq!(model.total.forward().rounded, 14 * MIB + 8 * MIB);
    assert_eq!(model.total.recomputed.bytes, 2 * MIB);
    let head = part(&device.modules, "GPT.head");
    assert_eq!(
        (head.own.backward.bytes, head.own.both().bytes),
        (6 * MIB, 14 * MIB)
    );
    assert_eq!(
        all(device).gradients.bytes,
        MIB,
        "of AccumulateGrad, in no module"
    );
    assert_eq!(model.total.gradients, Amount::default());
}

#[test]
fn what_was_made_adds_up_to_what_was_allocated_in_the_iteration() {
    for program in [
        learning(),
        learning_for(5, |_| false),
        learning_for(3, |_| true),
    ] {
        let sizes = sizes_of(&program);
        let (_, device) = &sizes.iteration.devices[0];
        let made = all(&sizes.devices[&DEVICE]).made();
        assert_eq!(
            (made.rounded, made.blocks),
            (device.alloc_bytes, device.allocs)
        );
    }
}

#[test]
fn the_last_of_the_largest_iterations_is_looked_at() {
    let sizes = sizes_of(&learning_for(5, |_| false));
    assert_eq!(sizes.iteration.kind, IterationKind::Whole);
    assert_eq!((sizes.iteration.number, sizes.of), (5, 5));
    let layer = part(&sizes.devices[&DEVICE].modules, "Net.layer");
    assert_eq!(layer.own.saved.bytes, 1024 * KIB);
    assert_eq!(layer.own.saved.blocks, 1, "of one iteration");
}

#[test]
fn an_iteration_whose_blocks_are_decided_comes_before_a_later_one() {
    let mut program = Program::default();
    let forward = program.stack(called(31, "Net.layer"));
    let through = program.stack(backward(33, "MmBackward0", Some(called(31, "Net.layer"))));
    let steps = [41, 42].map(|line| program.stack(called(line, "")));
    // Attached between the two optimizers' steps, so that an iteration ends with the first one's.
    let [discriminator, generator] = steps;
    let mut image = None;
    for _ in 0..6 {
        program.mark_at(MarkedPhase::Step, "SGD", generator);
        let next = program.alloc_tensor(forward, 1024 * KIB);
        if let Some(last) = image.replace(next) {
            program.free(last);
        }
        let gradient = program.alloc_tensor(through, 256 * KIB);
        program.free(gradient);
        program.mark_at(MarkedPhase::Step, "SGD", discriminator);
        let verdict = program.alloc_tensor(forward, 512 * KIB);
        let gradient = program.alloc_tensor(through, 256 * KIB);
        program.free(verdict);
        program.free(gradient);
    }
    let sizes = sizes_of(&program);
    let layer = part(&sizes.devices[&DEVICE].modules, "Net.layer");
    assert_eq!(layer.own.saved.bytes, 512 * KIB, "{:?}", sizes.iteration);
    assert_eq!(layer.own.unsaved.bytes, 1024 * KIB);
}

#[test]
fn an_iteration_with_a_block_that_may_be_a_workspace_is_not_shown() {
    let mut program = learning_for(2, |_| false);
    let forward = program.stack(called(31, "Net.layer"));
    program.mark(MarkedPhase::ZeroGrad, "SGD");
    let tensor = program.alloc_tensor(forward, 1024 * KIB);
    let in_doubt = program.alloc(forward, 8 * MIB);
    program.free(tensor);
    program.free(in_doubt);
    for phase in [MarkedPhase::Step, MarkedPhase::ZeroGrad, MarkedPhase::Step] {
        program.mark(phase, "SGD");
    }
    let ledger = ledger_of(&program);
    let sizes = ledger.sizes().expect("something was made");
    assert_eq!((sizes.iteration.number, sizes.of), (2, 2));
    let kinds = ledger.iterations().rows.into_iter().map(|row| row.kind);
    let whole = kinds.filter(|kind| *kind == IterationKind::Whole);
    assert_eq!(whole.count(), 3);
}

#[test]
fn parameters_are_in_the_modules_that_the_processes_objects_name() {
    let mut program = learning_for(4, |_| false);
    let gradient = |event: &Event| match event {
        Event::Memory(event) if event.size.0 == 256 * KIB => Some(event.addr),
        _ => None,
    };
    let at = program
        .events
        .iter()
        .position(|event| gradient(event).is_some());
    let at = at.expect("a gradient");
    let block = |addr, size, kind, module: &str| LabeledBlock {
        addr: Address(addr),
        size: Bytes(size),
        device: DEVICE,
        kind: Some(kind),
        name: None,
        module: Some(module.into()),
        called: None,
        saved_by: None,
        retainer: None,
        is_saved_variable: false,
    };
    let addr = gradient(&program.events[at]).expect("a gradient").0;
    // The saved block stands in for a parameter; it only has to be live.
    let names = BlockLabels {
        time: TimeNs(0),
        tgid: Tgid(1234),
        optimizers: Vec::new(),
        tags: Vec::new(),
        blocks: vec![
            block(addr, 256 * KIB, TensorKind::Gradient, "model.layer"),
            block(0x1000, 1024 * KIB, TensorKind::Parameter, "model.layer"),
            block(0x9999, 512, TensorKind::Parameter, "model.nobody"),
        ],
    };
    // An ending program has freed its model at the last snapshot.
    let last = BlockLabels {
        blocks: vec![block(addr, 256 * KIB, TensorKind::Gradient, "model.layer")],
        optimizers: Vec::new(),
        tags: Vec::new(),
        ..names
    };
    program
        .events
        .insert(at + 1, Event::BlockLabels(last.into()));
    program
        .events
        .insert(at + 1, Event::BlockLabels(names.into()));
    let sizes = sizes_of(&program);
    assert!(sizes.named);
    let layer = part(&sizes.devices[&DEVICE].modules, "Net.layer");
    assert_eq!(layer.own.parameters.bytes, 1024 * KIB);
    assert_eq!(all(&sizes.devices[&DEVICE]).parameters.blocks, 1);
}

#[test]
fn of_too_much_the_oldest_is_forgotten() {
    let mut making = AllocationCounts::default();
    let mut program = Program::default();
    let stack = program.stack(called(1, ""));
    program.alloc(stack, 512);
    let ledger = program.analyzed(()).ledger;
    let (id, _) = ledger.blocks().next().expect("a block");
    let mut block = Lifecycle {
        born: 0,
        origin: 0,
        phase: Phase::Forward,
        rule: crate::attribution::category::CategoryRule::SoFarForward,
        state: super::super::lifecycle::BlockState::Settled,
        tensor_info: super::super::lifecycle::TensorInfo::Tensor,
    };
    for number in 0..MAX_SUMS as u64 + 10 {
        block.born = number;
        block.origin = u32::try_from(number % 1000).unwrap();
        making.make(id, &block, number / 1000, &ledger);
    }
    assert!(making.sums <= MAX_SUMS && making.forgotten > 0);
    assert_eq!(
        making.sums,
        making
            .intervals
            .iter()
            .map(|lap| lap.made.len())
            .sum::<usize>()
    );
}

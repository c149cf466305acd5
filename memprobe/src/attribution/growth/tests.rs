use super::super::allocation_groups::ModuleScope;
use super::super::allocation_groups::samples::{DEVICE, Program, called, retained_by_losses};
use super::*;
use crate::event::{MarkedPhase, StackId};

const MIB: u64 = 1 << 20;

/// Growth at the end of a program; an iteration ends after each event number in `ends`.
fn growth(program: &Program, ends: &[usize]) -> Growth {
    let mut ledger = GrowthLedger::new(Grouping::User, None);
    let mut at = 0;
    program.play(|event, change, model| {
        ledger.follow(event, change, model);
        at += 1;
        if ends.contains(&at) {
            ledger.end_interval();
        }
    });
    let intervals = (!ends.is_empty()).then_some(1.0);
    ledger.growth(DEVICE, intervals).expect("a device")
}

/// A training program that keeps a tensor in each step selected by `keeps`.
fn steps(steps: u64, keeps: impl Fn(u64) -> bool) -> (Program, Vec<usize>) {
    let mut program = Program::default();
    let work = program.stack(called(31, "Net.layer"));
    let list = program.stack(called(40, "Net.head"));
    let state = program.stack(called(50, ""));
    let shape = program.shape(&[32, 64]);
    let mut ends = Vec::new();
    for step in 0..steps {
        let work = program.alloc(work, MIB + 512 * (step * 7 % 5));
        if step == 0 {
            program.alloc(state, 4 * MIB);
        }
        if keeps(step) {
            program.alloc_of(list, shape, 8192);
        }
        program.free(work);
        program.wait(900);
        ends.push(program.events.len());
    }
    (program, ends)
}

fn line(suspect: &Suspect) -> u32 {
    suspect.part.origin.site.frame().expect("a line").line
}

#[test]
fn a_list_that_keeps_a_tensor_of_each_iteration_is_named() {
    let (program, ends) = steps(40, |_| true);
    let growth = growth(&program, &ends);
    assert_eq!(growth.step, StepUnit::Iterations(1.0));
    assert_eq!((growth.points, growth.left_out), (36, 4));
    let [suspect] = &growth.lines[..] else {
        panic!("{:?}", growth.lines)
    };
    assert_eq!(line(suspect), 40);
    assert_eq!(
        (suspect.rate.bytes, suspect.rate.blocks, suspect.rate.grew),
        (8192.0, 1.0, 1.0)
    );
    assert_eq!(suspect.rate.last.0, 40 * 8192);
    let [module] = &growth.modules[..] else {
        panic!("{:?}", growth.modules)
    };
    assert_eq!(
        module.part.origin.place,
        ModuleScope::Module("Net.head".into())
    );
    let [tensor] = &growth.tensors[..] else {
        panic!("{:?}", growth.tensors)
    };
    assert_eq!(
        tensor.part.what.shape().map(|shape| shape.sizes.clone()),
        Some(vec![32, 64])
    );
    assert_eq!(growth.total.map(|total| total.bytes), Some(8192.0));
}

#[test]
fn where_nothing_grows_nobody_is_named() {
    let (program, ends) = steps(40, |_| false);
    let growth = growth(&program, &ends);
    assert!(growth.lines.is_empty() && growth.modules.is_empty() && growth.tensors.is_empty());
    assert_eq!(growth.total, None);
}

#[test]
fn what_grows_while_a_program_warms_up_is_not_named() {
    let (program, ends) = steps(40, |step| step < 4);
    assert!(growth(&program, &ends).lines.is_empty());
}

#[test]
fn occasional_growth_is_reported_by_iteration() {
    let (program, ends) = steps(200, |step| step % 10 == 3);
    let growth = growth(&program, &ends);
    let rate = growth.lines[0].rate;
    assert!((700.0..950.0).contains(&rate.bytes), "{rate:?}");
    assert!((0.09..0.12).contains(&rate.grew), "{rate:?}");
}

#[test]
fn of_many_iterations_several_are_looked_at_together_and_the_rate_stays() {
    let (program, ends) = steps(1500, |_| true);
    let growth = growth(&program, &ends);
    assert_eq!(growth.step, StepUnit::Iterations(8.0));
    assert_eq!(growth.points + growth.left_out, 1500 / 8);
    assert_eq!(growth.lines[0].rate.bytes, 8192.0);
}

#[test]
fn a_few_iterations_say_nothing() {
    let (program, ends) = steps(6, |_| true);
    let growth = growth(&program, &ends);
    assert!(growth.points < growth.needed);
    assert!(growth.lines.is_empty());
}

#[test]
fn without_iterations_uses_the_minimum_of_each_time_window() {
    let (program, _) = steps(2000, |_| true);
    let growth = growth(&program, &[]);
    let StepUnit::Window(length) = growth.step else {
        panic!("{:?}", growth.step)
    };
    assert!(length > FIRST_WINDOW);
    assert_eq!(growth.lines.len(), 1);
    // A step takes 903 microseconds.
    let rate = growth.lines[0].rate;
    let expected = 8192.0 / 903e-6;
    assert!(
        (rate.bytes / expected - 1.0).abs() < 0.02,
        "{} of {expected}",
        rate.bytes
    );
    assert!(growth.total.is_some());
}

#[test]
fn without_iterations_what_comes_and_goes_is_not_named() {
    let (program, _) = steps(2000, |_| false);
    let growth = growth(&program, &[]);
    assert!(growth.lines.is_empty(), "{:?}", growth.lines);
    assert_eq!(growth.total, None);
}

#[test]
fn a_long_silence_is_passed_over() {
    let mut program = Program::default();
    let stack: StackId = program.stack(called(1, ""));
    program.alloc(stack, 512);
    program.wait(3_600_000_000);
    program.alloc(stack, 512);
    let growth = growth(&program, &[]);
    assert!(growth.points + growth.left_out <= MAX_STEPS as usize);
}

#[test]
fn alternating_intervals_of_an_iteration_do_not_hide_growth() {
    let mut program = Program::default();
    let (step, list) = (
        program.stack(called(31, "")),
        program.stack(called(31, "Gan.list")),
    );
    let mut ledger = GrowthLedger::new(Grouping::User, None);
    let mut ends = Vec::new();
    let mut held = None;
    for lap in 0..60 {
        match held.take() {
            Some(addr) => program.free(addr),
            None => held = Some(program.alloc(step, MIB)),
        }
        if lap % 2 == 0 {
            program.alloc(list, 4096);
        }
        ends.push(program.events.len());
    }
    let mut at = 0;
    program.play(|event, change, model| {
        ledger.follow(event, change, model);
        at += 1;
        if ends.contains(&at) {
            ledger.end_interval();
        }
    });
    let growth = ledger.growth(DEVICE, Some(2.0)).expect("a device");
    assert_eq!(
        (growth.step, growth.points + growth.left_out),
        (StepUnit::Iterations(1.0), 30)
    );
    assert_eq!(
        growth.lines.first().map(|line| line.rate.bytes),
        Some(4096.0)
    );
}

#[test]
fn retainers_of_growth_add_up_to_its_live_blocks() {
    let (mut program, mut ends) = steps(40, |_| true);
    // Some blocks have further retainers, and some have none.
    program.read(|addr| match addr >> 13 & 3 {
        0 => None,
        1 => Some(crate::event::tensors::Retainer {
            exclusive: false,
            ..retained_by_losses(addr, Some("grad_fn MulBackward0"))
        }),
        _ => Some(retained_by_losses(addr, None)),
    });
    ends.push(program.events.len());
    let growth = growth(&program, &ends);
    assert!(growth.read.is_some());
    let retained = &growth.lines[0].retained;
    assert_eq!(retained, &growth.retained, "one line grows");
    assert_eq!(retained.live.bytes.0, 40 * 8192);
    let sum: u64 = retained
        .retainers
        .iter()
        .map(|keeper| keeper.retained.bytes.0)
        .sum();
    assert_eq!(
        sum + retained.others.bytes.0 + retained.nobody.bytes.0,
        retained.live.bytes.0
    );
    for keeper in &retained.retainers {
        let expected = match keeper.through {
            Some(_) => RetainerAmount::default(),
            None => keeper.retained,
        };
        assert_eq!(keeper.exclusive, expected, "{keeper:?}");
    }
    assert_eq!(retained.retainers.len(), 2);
    assert_eq!(growth.modules[0].retained.live, retained.live);
}

#[test]
fn without_reading_nobody_is_said_to_keep_anything() {
    let (program, ends) = steps(40, |_| true);
    let growth = growth(&program, &ends);
    assert_eq!(
        (growth.read, &growth.lines[0].retained),
        (None, &RetainedGrowth::default())
    );
}

#[test]
fn growing_modules_of_one_class_go_by_their_variables() {
    let mut program = Program::default();
    let paths = ["Sequential.0", "Sequential#2.0"];
    let [one, other] = paths.map(|path| program.stack(called(1, path)));
    let weights = [program.alloc(one, 512), program.alloc(other, 512)];
    let (first, second) = (weights[0], weights[1]);
    program.read_modules(&[(first, "G.0", paths[0]), (second, "D.0", paths[1])]);
    for _ in 0..40 {
        program.mark(MarkedPhase::ZeroGrad, "SGD");
        program.alloc(other, 8192);
        program.wait(900);
    }
    let ledger = program.analyzed(GrowthLedger::new(Grouping::User, None));
    let growth = ledger.analyses.growth(DEVICE, None).expect("a device");
    let [module] = &growth.modules[..] else {
        panic!("{:?}", growth.modules)
    };
    let named = ModuleScope::Module("D.0".into());
    assert_eq!(module.part.origin.place, named);
    assert_eq!(growth.lines[0].part.origin.place, named);
}

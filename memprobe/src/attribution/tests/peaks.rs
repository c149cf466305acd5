//! Peaks of equal height, and names that are read after a peak.

use super::*;

#[test]
fn what_was_there_before_attach_has_the_category_that_the_objects_say() {
    let mut program = Program::new();
    program.attach(0x800, 512);
    let held = program.event(Action::Held, 0x800, 512, Tid::UNKNOWN, 0);
    program.hear(held);
    program.alloc(From::Outside, 1024);
    program.name(|addr| (addr == 0x800).then_some(TensorKind::Parameter));
    assert_eq!(program.now(Category::Parameter), 512);
    program.free(0x800, MAIN);
    assert_eq!(program.now(Category::Parameter), 0);
    // It was there at all moments so far.
    let device = &program.attribution.devices[&DEVICE];
    let iterations = program.attribution.iterations();
    let (_, iteration) = &iterations.rows[0].devices[0];
    let moments = device.timeline.points.iter();
    for moment in moments.chain([&device.peak, &iteration.peak]) {
        let of = |category| moment.composition.of(category);
        let known = (of(Category::Parameter), moment.composition.before_attach);
        assert_eq!(known, (512, 0), "{moment:?}");
    }
}

#[test]
fn labels_of_memory_from_before_attach_give_no_other_block_a_category() {
    let mut program = Program::new();
    program.attach(0x800, 512);
    let held = program.event(Action::Held, 0x800, 512, Tid::UNKNOWN, 0);
    program.hear(held);
    program.alloc(From::Outside, 1024);
    program.name_baseline(TensorKind::Parameter);
    assert_eq!(program.now(Category::Parameter), 512);
    program.free(0x800, MAIN);
    assert_eq!(program.now(Category::Parameter), 0);
    // The check of inferred categories is for readings of all blocks.
    let check = &program.attribution.check;
    assert_eq!(
        (check.compared(), check.before_attach, check.labeled),
        (0, 0, 512)
    );
}

#[test]
fn of_equal_peaks_the_best_known_is_the_peak() {
    let mut program = Program::new();
    program.attach(0x800, 512);
    let first = program.alloc(From::Outside, 1024);
    program.free(first, MAIN);
    program.free(0x800, MAIN);
    for size in [512, 1024] {
        program.alloc(From::Outside, size);
    }
    let peak = &program.attribution.devices[&DEVICE].peak;
    assert_eq!(peak.totals.allocated, Bytes(1536));
    assert_eq!(peak.composition.before_attach, 0);
}

#[test]
fn of_equal_peaks_the_one_with_known_categories_is_the_peak() {
    let mut program = Program::new();
    let first = program.alloc(From::OtherLine, 1024);
    let forward = program.alloc(From::Forward, 512);
    for addr in [first, forward] {
        program.free(addr, MAIN);
    }
    let peak = |program: &Program| program.attribution.devices[&DEVICE].peak.clone();
    let unknown = |program: &Program| peak(program).composition.of(Category::Unknown);
    assert_eq!(unknown(&program), 1024);
    program.alloc(From::Build, 1024);
    let forward = program.alloc(From::Forward, 512);
    assert_eq!(unknown(&program), 0);
    // A third one that is known no better changes nothing.
    let known = peak(&program);
    program.free(forward, MAIN);
    program.alloc(From::Forward, 512);
    assert_eq!(peak(&program).time, known.time);
}

#[test]
fn names_hold_for_the_whole_life_of_a_block() {
    let mut program = Program::new();
    program.alloc(From::Build, 2048);
    let named = program.alloc(From::OtherLine, 512);
    let mut state = Vec::new();
    for _ in 0..40 {
        program.iterate(&mut state);
    }
    program.name(|addr| (addr == named).then_some(TensorKind::Buffer));
    let iterations = program.attribution.iterations();
    assert!(iterations.rows.len() > 40);
    for row in &iterations.rows {
        let composition = &row.devices[0].1.peak.composition;
        let known = composition.by_rule(CategoryRule::NamedBuffer);
        let unknown = composition.of(Category::Unknown);
        // The input of the first iteration is unknown.
        assert_eq!(known, 512, "{row:?}");
        assert!(unknown == 0 || row.number < 2, "{row:?}");
    }
}

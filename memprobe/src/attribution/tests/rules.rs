//! Inputs and leaks, and optimizers that are none of PyTorch's.

use super::*;

/// Category of one live block, by its size.
fn category_of(program: &Program, size: u64) -> Category {
    let rules = program.rules();
    let rule = rules.iter().find(|(_, live)| *live == size);
    rule.unwrap_or_else(|| panic!("{rules:?}")).0.category()
}

/// One iteration of a program that keeps a block after each step.
fn leak(program: &mut Program, kept: &mut Vec<u64>, input: &mut Option<u64>) {
    let next = program.alloc(From::Outside, 1024);
    if let Some(last) = input.replace(next) {
        program.free(last, MAIN);
    }
    let saved = program.alloc(From::Forward, 4096);
    let root = program.alloc(From::BackwardCall, 512);
    let gradient = program.alloc(From::Backward, 2048);
    program.free(saved, ENGINE);
    program.free(root, MAIN);
    program.mark(MarkedPhase::Step, From::Step);
    program.mark(MarkedPhase::ZeroGrad, From::Outside);
    program.free(gradient, MAIN);
    kept.push(program.alloc(From::OtherLine, 8192));
}

#[test]
fn a_leak_after_each_step_is_never_an_input() {
    let mut program = Program::new();
    let (mut kept, mut input) = (Vec::new(), None);
    for iteration in 0..12 {
        leak(&mut program, &mut kept, &mut input);
        let inputs = program.now(Category::Input);
        assert!(inputs <= 1024, "iteration {iteration}: {inputs} bytes");
    }
    program.alloc(From::Forward, 4096);
    assert_eq!(category_of(&program, 1024), Category::Input);
    for addr in kept {
        program.free(addr, MAIN);
        assert_eq!(
            program.attribution.ended.map(CategoryRule::category),
            Some(Category::Unknown)
        );
    }
}

#[test]
fn gradients_that_the_program_frees_after_the_backward_pass_are_gradients() {
    let mut program = Program::new();
    for _ in 0..4 {
        let saved = program.alloc(From::Forward, 4096);
        let root = program.alloc(From::BackwardCall, 512);
        let gradient = program.alloc(From::Backward, 2048);
        let passing = program.alloc(From::Backward, 1536);
        program.free(passing, ENGINE);
        program.free(saved, ENGINE);
        program.free(root, MAIN);
        program.free(gradient, MAIN);
        let ended = program.attribution.ended;
        assert_eq!(ended, Some(CategoryRule::OutlivesBackward));
    }
    let iterations = program.attribution.iterations();
    assert_eq!(iterations.source, Source::Backwards);
    let expected = (1..=3).map(|number| (number, IterationKind::Whole));
    let expected: Vec<_> = expected.chain([(4, IterationKind::Unfinished)]).collect();
    assert_eq!(kinds(&iterations)[kinds(&iterations).len() - 4..], expected);
}

#[test]
fn one_backward_pass_makes_no_iterations() {
    let mut program = Program::new();
    program.alloc(From::Forward, 4096);
    program.alloc(From::BackwardCall, 512);
    program.alloc(From::Outside, 512);
    program.alloc(From::Forward, 4096);
    assert_eq!(program.attribution.iterations().source, Source::Nothing);
}

#[test]
fn marks_of_pytorch_take_precedence_over_backward_passes() {
    let mut program = Program::new();
    for _ in 0..3 {
        for _ in 0..4 {
            program.alloc(From::Forward, 4096);
            program.alloc(From::BackwardCall, 512);
        }
        program.mark(MarkedPhase::Step, From::Step);
    }
    let iterations = program.attribution.iterations();
    assert_eq!(iterations.source, Source::Steps);
    let backwards: Vec<u32> = iterations.rows.iter().map(|row| row.backwards).collect();
    assert_eq!(backwards.last(), Some(&4), "{iterations:#?}");
}

#[test]
fn a_backward_pass_within_a_node_has_no_waiting_thread_of_its_own() {
    let mut program = Program::new();
    program.alloc(From::Forward, 4096);
    program.alloc(From::BackwardCall, 512);
    program.alloc(From::Backward, 2048);
    program.alloc(From::NestedCall, 512);
    let passing = program.alloc(From::Backward, 1536);
    program.free(passing, ENGINE);
    let ended = program.attribution.ended;
    assert_eq!(ended, Some(CategoryRule::WithinBackward));
}

#[test]
fn outputs_that_a_program_collects_are_no_activations() {
    let mut program = Program::new();
    for _ in 0..4 {
        program.alloc(From::Forward, 4096);
        program.alloc(From::BackwardCall, 512);
        program.mark(MarkedPhase::Step, From::Step);
    }
    let unknown = program.now(Category::Unknown);
    assert_eq!(unknown, 3 * 4096, "the second step after they were made");
    assert_eq!(program.now(Category::Gradient), 4 * 512);
}

/// One call of a model without grad; `held` keeps a block from one call to the next, and a block of `bytes` takes its
/// place within the call, or after it.
fn call(program: &mut Program, held: &mut Option<u64>, bytes: u64, is_within: bool) {
    let hidden = program.alloc(From::Evaluation, 1024);
    let last = held.replace(program.alloc(From::KeepKeys, bytes));
    let (within, after) = last.into_iter().partition::<Vec<_>, _>(|_| is_within);
    within.into_iter().for_each(|last| program.free(last, MAIN));
    if is_within {
        let scores = program.alloc(From::Evaluation, 4096);
        program.free(scores, MAIN);
    }
    after.into_iter().for_each(|last| program.free(last, MAIN));
    let word = program.alloc(From::Outside, 512);
    program.free(hidden, MAIN);
    program.free(word, MAIN);
}

#[test]
fn keys_that_grow_in_each_call_of_the_modules_are_a_cache() {
    let mut program = Program::new();
    for request in 0..2 {
        let mut keys = None;
        for word in 1..=8 {
            call(&mut program, &mut keys, 2048 * word, true);
            let cached = program.now(Category::KvCache);
            let is_known = request > 0 || word > 2;
            assert_eq!(cached, if is_known { 2048 * word } else { 0 }, "{word}");
        }
        program.free(keys.expect("keys"), MAIN);
        let ended = program.attribution.ended;
        assert_eq!(ended, Some(CategoryRule::KeptForNextCall));
    }
}

#[test]
fn outputs_and_states_of_fixed_size_are_no_cache() {
    for (growth, is_within) in [(2048, false), (0, true)] {
        let mut program = Program::new();
        let mut held = None;
        for number in 1..=8 {
            let bytes = 2048 + growth * number;
            call(&mut program, &mut held, bytes, is_within);
            assert_eq!(program.now(Category::KvCache), 0, "{growth} {is_within}");
        }
    }
}

#[test]
fn data_of_a_variable_from_before_the_loop_is_input() {
    let mut program = Program::new();
    program.alloc(From::Build, 2048);
    let data = program.alloc(From::OtherLine, 1024);
    let mut state = Vec::new();
    for pass in 1..8 {
        program.iterate(&mut state);
        // What is made in each iteration has the same references, for a while.
        let made = program.alloc(From::Outside, 512);
        program.name_variables(&[data, made]);
        let expected = if pass < 4 { 0 } else { 1024 };
        let view = program.attribution.device(DEVICE).expect("a device");
        for moment in [view.now(), view.peak()] {
            let composition = &moment.composition;
            let found = composition.by_rule(CategoryRule::HeldByVariable);
            assert_eq!(found, expected, "pass {pass}");
        }
    }
    // The inference alone did not tell it, and the references do not for certain.
    assert_eq!(program.attribution.check.compared(), 0);
    assert!(!CategoryRule::HeldByVariable.is_exact());
}

#[test]
fn data_of_a_variable_from_before_attach_is_input_after_some_passes() {
    let mut program = Program::new();
    program.attach(0x800, 512);
    let held = program.event(Action::Held, 0x800, 512, Tid::UNKNOWN, 0);
    program.hear(held);
    let mut state = Vec::new();
    for pass in 1..6 {
        program.iterate(&mut state);
        program.name_variables(&[0x800]);
        let expected = if pass < 4 { 0 } else { 512 };
        assert_eq!(program.now(Category::Input), expected, "pass {pass}");
    }
}

#[test]
fn activations_in_variables_are_no_inputs() {
    let mut program = Program::new();
    let mut state = Vec::new();
    program.iterate(&mut state);
    program.mark(MarkedPhase::NextBatch, From::Outside);
    let output = program.alloc(From::Forward, 12_288);
    for _ in 0..6 {
        program.iterate(&mut state);
        program.name_variables(&[output]);
    }
    assert_eq!(category_of(&program, 12_288), Category::Unknown);
}

#[test]
fn separates_buffers_from_parameters_that_a_module_moves() {
    let mut program = Program::new();
    program.attribution = AttributionLedger::new(None).with_sizes();
    for from in STACKS {
        program.hear(Event::Stack(StackId(from as u32), Arc::new(from.stack())));
    }
    program.alloc(From::Build, 2048);
    program.alloc(From::BuildBuffer, 512);
    let mut state = Vec::new();
    program.iterate(&mut state);
    let rules = program.rules();
    assert!(rules.contains(&(CategoryRule::Built, 2048)), "{rules:?}");
    assert!(
        rules.contains(&(CategoryRule::BuiltBuffer, 512)),
        "{rules:?}"
    );
    assert_eq!(program.now(Category::Parameter), 2560);
    let sizes = program.attribution.sizes().expect("allocations");
    let (_, outside) = &sizes.devices[&DEVICE].others[0];
    assert_eq!(
        (outside.parameters.bytes, outside.buffers.bytes),
        (2048, 512)
    );
}

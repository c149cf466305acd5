use super::samples::{again, backward, called};
use super::*;

fn scope_and_pass(stack: &Stack) -> (ModuleScope, Pass) {
    place_of(stack)
}

fn module(path: &str) -> ModuleScope {
    ModuleScope::Module(path.into())
}

#[test]
fn what_is_computed_belongs_to_the_module_that_was_called() {
    assert_eq!(
        scope_and_pass(&called(1, "GPT.head")),
        (module("GPT.head"), Pass::Forward)
    );
    assert_eq!(
        scope_and_pass(&called(1, "")),
        (ModuleScope::Outside, Pass::Forward)
    );
    assert_eq!(
        scope_and_pass(&called(1, "?")),
        (ModuleScope::Unknown, Pass::Forward)
    );
}

#[test]
fn a_backward_pass_belongs_to_the_module_whose_operation_it_goes_back_through() {
    let of = |forward: Option<Stack>| scope_and_pass(&backward(1, "AddmmBackward0", forward));
    let head = called(1, "GPT.head");
    assert_eq!(of(Some(head)), (module("GPT.head"), Pass::Backward));
    assert_eq!(
        of(Some(called(1, ""))),
        (ModuleScope::Outside, Pass::Backward)
    );
    let unknown = (ModuleScope::BackwardUnknown, Pass::Backward);
    assert_eq!(of(Some(called(1, "?"))), unknown);
    assert_eq!(of(None), unknown);
}

#[test]
fn the_module_of_a_thread_that_waits_for_a_backward_pass_is_not_that_of_the_pass() {
    let mut waiting = backward(1, "AddmmBackward0", None);
    waiting.context.module = Module::Called("Trainer".into());
    assert_eq!(
        scope_and_pass(&waiting),
        (ModuleScope::BackwardUnknown, Pass::Backward)
    );
}

#[test]
fn what_a_module_computes_again_is_its_own() {
    assert_eq!(
        scope_and_pass(&again(1, "GPT.mlp")),
        (module("GPT.mlp"), Pass::Recompute)
    );
}

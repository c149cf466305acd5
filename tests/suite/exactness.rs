//! Memprobe records what PyTorch's own recorder does: every event, frame and total.

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::gated_workload::BothSides;
use memprobe_tests::workloads::Workload;

/// Records a workload from both sides. `cargo xtask matrix` covers every workload on every PyTorch.
fn agree(name: &str, on: On) {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = Workload::named(name).expect("a workload");
    for pytorch in environment.pytorches_on(on) {
        let both = BothSides::record(&environment, pytorch, workload.command, workload.settings);
        let agreement = both.agree(name);
        let missing = workload
            .least
            .missing(&both, agreement.stacks, agreement.backward);
        assert_eq!(missing, None, "the comparison says nothing");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn every_event_of_a_perceptron_with_adam_agrees_with_pytorch() {
    agree("perceptron", On::Each);
}

#[test]
fn every_event_of_a_convolutional_net_agrees_with_pytorch() {
    agree("convolution", On::Newest);
}

#[test]
fn every_event_of_a_transformer_agrees_with_pytorch() {
    agree("transformer", On::Newest);
}

#[test]
fn every_event_with_data_loader_workers_and_pinned_memory_agrees_with_pytorch() {
    agree("data loader", On::Newest);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn every_event_of_threads_that_allocate_at_once_agrees_with_pytorch() {
    agree("threads", On::Each);
}

#[test]
fn every_event_below_generators_and_coroutines_agrees_with_pytorch() {
    agree("generators", On::Newest);
}

#[test]
fn every_event_of_a_deep_recursion_agrees_with_pytorch() {
    agree("recursion", On::Newest);
}

#[test]
fn every_event_of_a_script_that_runs_out_of_memory_and_goes_on_agrees_with_pytorch() {
    agree("out of memory", On::Newest);
}

#[test]
fn every_event_on_two_devices_agrees_with_pytorch() {
    agree("two devices", On::Newest);
}

#[test]
fn a_program_that_memprobe_started_is_recorded_from_its_first_allocation() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = ["mlp_adam.py", "--steps", "5", "--hidden", "256"];
    let pytorch = environment.pytorch();
    let options = ["--detail", "tensors"];
    let both = BothSides::record_from_the_start(&environment, pytorch, &options, &workload);
    let agreement = both.agree("mlp_adam.py started");
    assert!(agreement.stacks >= 100, "too little was compared");
    let of_tensors = both
        .events
        .iter()
        .filter(|event| event.action == "alloc" && event.tensor != Some(false));
    assert_eq!(agreement.requested, of_tensors.count(), "requested bytes");
    assert!(agreement.requested >= 100, "too little was compared");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn backward_passes_that_run_at_once_lead_to_their_own_lines() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let both = BothSides::record(&environment, pytorch, &["backward_lines.py"], &[]);
        both.agree("backward lines");
        for (function, size) in [("first", 240_128), ("second", 480_256), ("third", 960_000)] {
            let of_it = both.events.iter().filter(|event| {
                event.action == "alloc" && event.size == Some(size) && event.stack.is_empty()
            });
            let mut compared = 0;
            for event in of_it {
                let waiting = event.waiting.as_deref().unwrap_or_default();
                let own = waiting.iter().find(|frame| !frame.file.starts_with('/'));
                let own = own.map(|frame| frame.function.as_str());
                assert_eq!(own, Some(function), "{event:?}");
                compared += 1;
            }
            assert!(compared >= 200, "only {compared} events of {function}");
        }
    }
}

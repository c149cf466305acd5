//! Memprobe sees what PyTorch's own recorder sees: every event, every frame, every total.

use memprobe_tests::ground::Ground;
use memprobe_tests::rehearsal::BothSides;

/// Records a workload on every Python from both sides.
fn agree(workload: &[&str], settings: &[(&str, &str)], least: Least) {
    let Some(ground) = Ground::take() else { return };
    for pytorch in &ground.pytorches {
        let both = BothSides::record(&ground, pytorch, workload, settings);
        let agreement = both.agree(workload[0]);
        assert!(agreement.stacks >= least.stacks, "too little was compared");
        assert!(
            agreement.backward >= least.backward,
            "too little of backward"
        );
        for (action, count) in least.actions {
            assert!(both.reference.count(action) >= *count, "no {action}");
        }
    }
}

/// What must have happened for a comparison to mean something.
#[derive(Default)]
struct Least {
    stacks: usize,
    backward: usize,
    actions: &'static [(&'static str, usize)],
}

#[test]
fn every_event_of_a_perceptron_with_adam_agrees_with_pytorch() {
    let least = Least {
        stacks: 400,
        backward: 200,
        ..Least::default()
    };
    agree(&["mlp_adam.py", "--hidden", "512"], &[], least);
}

#[test]
fn every_event_of_a_convolutional_net_agrees_with_pytorch() {
    let least = Least {
        stacks: 200,
        backward: 50,
        ..Least::default()
    };
    agree(&["convnet.py"], &[], least);
}

#[test]
fn every_event_of_a_transformer_agrees_with_pytorch() {
    let least = Least {
        stacks: 200,
        backward: 50,
        ..Least::default()
    };
    agree(&["transformer.py"], &[], least);
}

#[test]
fn every_event_with_data_loader_workers_and_pinned_memory_agrees_with_pytorch() {
    let least = Least {
        stacks: 50,
        ..Least::default()
    };
    agree(&["dataloader_pinned.py"], &[], least);
}

#[test]
fn every_event_of_threads_that_allocate_at_once_agrees_with_pytorch() {
    let least = Least {
        stacks: 400,
        ..Least::default()
    };
    agree(&["threads.py"], &[], least);
}

#[test]
fn every_event_below_generators_and_coroutines_agrees_with_pytorch() {
    let least = Least {
        stacks: 50,
        ..Least::default()
    };
    agree(&["generators.py"], &[], least);
}

#[test]
fn every_event_of_a_deep_recursion_agrees_with_pytorch() {
    let least = Least {
        stacks: 100,
        ..Least::default()
    };
    agree(&["recursion.py"], &[], least);
}

#[test]
fn every_event_of_a_script_that_runs_out_of_memory_and_goes_on_agrees_with_pytorch() {
    let least = Least {
        stacks: 20,
        actions: &[("oom", 1), ("segment_free", 1)],
        ..Least::default()
    };
    agree(&["oom.py"], &[], least);
}

#[test]
fn every_event_on_two_devices_agrees_with_pytorch() {
    let least = Least {
        stacks: 100,
        ..Least::default()
    };
    agree(&["two_devices.py"], &[("CUDASIM_DEVICES", "2")], least);
}

#[test]
fn a_program_that_memprobe_started_is_recorded_from_its_first_allocation() {
    let Some(ground) = Ground::take() else { return };
    for pytorch in &ground.pytorches {
        let workload = ["mlp_adam.py", "--steps", "5", "--hidden", "256"];
        let both = BothSides::record_from_the_start(&ground, pytorch, &workload);
        let agreement = both.agree("mlp_adam.py started");
        assert!(agreement.stacks >= 100, "too little was compared");
    }
}

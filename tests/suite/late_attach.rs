//! Late attach: memory allocated earlier is in the table from the first moment, block by block.

use std::time::Duration;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::queryable_target::{Blocks, QueryableTarget, attach_repeatedly, record};

/// Number of attaches to a busy process, over all Pythons.
const ATTACHED: usize = 20;

#[test]
#[ignore = "long: cargo xtask test --all"]
fn attached_to_a_busy_process_memprobe_knows_every_block_that_was_there() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let devices = if pytorch.has_devices(2) { "2" } else { "1" };
        let settings = [("CUDASIM_DEVICES", devices), ("CUDASIM_EVENT_US", "500")];
        let times = ATTACHED.div_ceil(environment.pytorches.len());
        let attached = attach_repeatedly(&environment, pytorch, times, &settings);
        attached.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn blocks_in_expandable_segments_are_known_too() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let settings = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    for pytorch in &environment.pytorches {
        let mut command = pytorch.command();
        let script = "import torch; torch.empty(1, device='cuda')";
        let accepted = command.envs(settings).args(["-c", script]).output();
        if accepted.expect("Python starts").status.success() {
            let attached = attach_repeatedly(&environment, pytorch, 3, &settings);
            attached.unwrap_or_else(|error| panic!("{error}"));
        } else {
            println!(
                "skipped in part: PyTorch {} has no expandable segments",
                pytorch.release()
            );
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_idle_process_is_known_completely_at_once() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let target = QueryableTarget::start(pytorch, &["--threads", "0", "--blocks", "3000"], &[]);
        let file = target.path("idle.json");
        let (events, answer) = record(&environment, &target, &file, Duration::from_millis(50))
            .unwrap_or_else(|error| panic!("{error}"));
        let blocks = Blocks::at(&events, u64::MAX).expect("a ledger");
        assert_eq!(blocks.held, events.len(), "nothing happened");
        blocks
            .check(&answer)
            .unwrap_or_else(|error| panic!("{error}"));
        let report = environment.report(&file);
        let (ours, theirs) = (&report["devices"][0], &answer.devices[0]);
        for (name, truth) in [
            ("allocated", theirs.allocated),
            ("reserved", theirs.reserved),
            ("peak_allocated", theirs.peak_allocated),
            ("peak_reserved", theirs.peak_reserved),
            ("before_attach", theirs.allocated),
            ("before_attach_blocks", theirs.blocks.len() as u64),
            ("live_blocks", theirs.blocks.len() as u64),
            ("unaccounted", 0),
        ] {
            assert_eq!(ours[name], truth, "{name}");
        }
        target.end();
    }
}

#[test]
fn another_allocator_than_the_native_one_is_named() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let settings = [("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")];
    let mut command = environment.pytorch().command();
    let script = "import time, torch; x = torch.empty(1000, device='cuda'); print('ready', flush=True); time.sleep(600)";
    command.envs(settings).args(["-c", script]);
    let mut target = Background::start(&mut command);
    target.wait_for("ready");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("async.json");
    let recording = environment.record(target.pid(), &file, &[]);
    let mut recording = recording;
    recording.memprobe.wait_for("cannot be told block by block");
    let printed = recording.interrupt();
    assert!(
        printed.stderr.contains("cudaMallocAsync"),
        "{}",
        printed.stderr
    );
}

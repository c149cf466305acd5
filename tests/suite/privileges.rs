//! Privileges that memprobe keeps while it runs, and variables that a released memprobe ignores.

use std::fs;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::terminal::Terminal;

/// Numbers of the capabilities that memprobe needs until its end (include/uapi/linux/capability.h): `CHOWN`,
/// `DAC_OVERRIDE`, `DAC_READ_SEARCH`, `FOWNER`, `SYS_PTRACE`, `SYS_ADMIN`, `PERFMON`, `BPF`, `CHECKPOINT_RESTORE`.
const NEEDED: [u32; 9] = [0, 1, 2, 3, 19, 21, 38, 39, 40];

/// Capabilities of each thread of a process, effective and permitted.
fn capabilities(pid: u32) -> Vec<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let statuses = tasks.filter_map(|task| {
        let status = task.expect("an entry").path().join("status");
        fs::read_to_string(status).ok()
    });
    let sets = |status: String| -> Vec<u64> {
        let lines = status.lines().filter_map(|line| line.split_once(":\t"));
        let lines =
            lines.filter(|(name, _)| ["CapEff", "CapPrm", "CapInh", "CapAmb"].contains(name));
        lines
            .map(|(_, set)| u64::from_str_radix(set, 16).expect("hexadecimal"))
            .collect()
    };
    statuses.flat_map(sets).collect()
}

/// Waits until no thread of memprobe has more than it needs.
fn keeps_what_it_needs(pid: u32) {
    let needed = NEEDED.iter().fold(0, |set, number| set | 1_u64 << number);
    wait_until("no thread has more capabilities than it needs", || {
        let sets = capabilities(pid);
        let is_needed = |set: &u64| set & !needed == 0;
        // Reading processes of others needs CAP_SYS_PTRACE.
        let has_some = sets.iter().any(|set| set >> 19 & 1 == 1);
        (has_some && sets.iter().all(is_needed)).then_some(())
    });
}

const WAITS: &str = "import time\nprint('up', flush=True)\ntime.sleep(600)\n";

#[test]
fn memprobe_gives_up_the_capabilities_that_it_does_not_need() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut target = Background::start(environment.pytorch().command().args(["-c", WAITS]));
    target.wait_for("up");
    let pid = target.pid().to_string();
    let mut record = environment.memprobe();
    record.args(["record", "-o", "/dev/null", "--log", "debug", "--pid", &pid]);
    let mut memprobe = Background::start(&mut record);
    memprobe.wait_for("waiting for");
    keeps_what_it_needs(memprobe.pid());
    let mut attach = environment.memprobe();
    attach.args(["attach", "--pid", &pid]);
    let terminal = Terminal::start(&mut attach);
    keeps_what_it_needs(terminal.pid());
}

#[test]
fn a_released_memprobe_loads_no_other_programs_than_its_own() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let is_release = environment
        .memprobe
        .components()
        .any(|part| part.as_os_str() == "release");
    // A run of the tests on a fresh object builds memprobe such that it heeds the variable.
    let is_replaceable = !is_release || std::env::var_os("MEMPROBE_BPF_OBJECT").is_some();
    let mut doctor = environment.memprobe();
    doctor.args(["doctor", "--format", "json"]);
    doctor.env("MEMPROBE_BPF_OBJECT", "/nonexistent/object");
    let finished = Background::start(&mut doctor).finish();
    let has_read = finished.stdout.contains("/nonexistent/object");
    assert_eq!(has_read, is_replaceable, "{}", finished.stdout);
}

//! Records targets with another view of the machine than memprobe: every event matches PyTorch's
//! own recorder.

use std::path::Path;
use std::time::Duration;

use memprobe_tests::confinement::{Confined, Confinement, HOST_NAME};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, Finished};
use memprobe_tests::pytorch::PyTorch;
use serde_json::Value;

const WORKLOAD: [&str; 5] = ["mlp_adam.py", "--hidden", "256", "--steps", "20"];

/// Libraries that contain memprobe's probes.
const PROBED: [&str; 2] = ["libc10.so", "libtorch_cpu.so"];

/// Returns the findings of `doctor` about a process.
fn doctor(environment: &TestEnvironment, pid: u32) -> Value {
    let printed = environment
        .run(&["doctor", "--pid", &pid.to_string(), "--format", "json"])
        .succeeded();
    let examination: Value = serde_json::from_str(&printed.stdout).expect("JSON");
    assert_eq!(examination["fit"], true, "{}", printed.stdout);
    examination["process"].clone()
}

/// Returns the finding of this check about a process.
fn found<'a>(process: &'a Value, check: &str) -> &'a Value {
    let findings = process["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("no finding {check}: {process}"))
}

/// Records the target from its first allocation to its end; both sides must agree. Returns
/// `record`'s messages and the report.
fn agrees(environment: &TestEnvironment, confined: Confined, name: &str) -> (String, Value) {
    let (both, file, _folder, said) = confined.record(environment);
    let agreement = both.agree(name);
    assert!(agreement.stacks >= 100, "too little was compared");
    (said, environment.report(&file))
}

/// Runs on one PyTorch only, because confinement affects all versions alike.
fn on_a_pytorch(run: impl Fn(&TestEnvironment, &PyTorch)) {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    run(&environment, environment.pytorch());
}

#[test]
fn a_process_in_namespaces_of_its_own_is_recorded_exactly_under_both_its_numbers() {
    on_a_pytorch(|environment, pytorch| {
        let Some(confined) = Confined::start(pytorch, Confinement::Namespaces, &WORKLOAD) else {
            return;
        };
        let pid = confined.pid();
        let process = doctor(environment, pid);
        assert_eq!(
            (&process["pid"], &process["inner_pid"]),
            (&pid.into(), &1.into())
        );
        let namespaces = found(&process, "container")["facts"]["namespaces"].to_string();
        for kind in ["mount", "PID", "host name"] {
            assert!(namespaces.contains(kind), "{namespaces}");
        }
        let (said, report) = agrees(environment, confined, "namespaces");
        let numbers = format!("PID {pid} (1 in its own namespace)");
        assert!(said.contains(&numbers), "{said}");
        assert_eq!(
            (&report["pid"], &report["inner_pid"]),
            (&pid.into(), &1.into())
        );
    });
}

#[test]
fn a_process_in_a_container_is_named_by_it() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(group) = ControlGroup::of_docker() else {
        return;
    };
    let pytorch = environment.pytorch();
    let Some(confined) = Confined::start(pytorch, Confinement::Namespaces, &WORKLOAD) else {
        return;
    };
    group.take(confined.pid());
    let process = doctor(&environment, confined.pid());
    let facts = &found(&process, "container")["facts"];
    assert_eq!(facts["engine"], "docker");
    assert_eq!(facts["id"], ControlGroup::ID);
    assert_eq!(facts["host_name"], HOST_NAME);
    let (said, report) = agrees(&environment, confined, "container");
    assert!(said.contains(&format!("(1 in {HOST_NAME})")), "{said}");
    assert_eq!(report["container"], HOST_NAME);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_process_in_a_chroot_is_recorded_exactly() {
    on_a_pytorch(|environment, pytorch| {
        let Some(confined) = Confined::start(pytorch, Confinement::Chroot, &WORKLOAD) else {
            return;
        };
        let process = doctor(environment, confined.pid());
        assert_eq!(found(&process, "container")["facts"]["other_root"], true);
        assert!(
            found(&process, "pytorch")["facts"]["version"].is_string(),
            "{process}"
        );
        // Seen from its own mount namespace, the target is only in a chroot.
        let mut command = confined.in_its_mounts(&environment.memprobe);
        command.args([
            "doctor",
            "--pid",
            &confined.pid().to_string(),
            "--format",
            "json",
        ]);
        let printed = Background::start(&mut command).finish().succeeded();
        let examination: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        let facts = &found(&examination["process"], "container")["facts"];
        assert_eq!(facts["namespaces"], Value::Array(Vec::new()));
        assert_eq!(facts["other_root"], true);
        assert!(found(&examination["process"], "pytorch")["facts"]["version"].is_string());
        agrees(environment, confined, "chroot");
    });
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_process_of_another_user_that_may_not_be_dumped_is_recorded_exactly() {
    on_a_pytorch(|environment, pytorch| {
        let Some(confined) = Confined::start(pytorch, Confinement::OtherUser, &WORKLOAD) else {
            return;
        };
        let process = doctor(environment, confined.pid());
        assert_eq!(found(&process, "process")["facts"]["uid"], 65534);
        agrees(environment, confined, "other user");
    });
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_process_on_an_overlay_file_system_is_recorded_exactly_after_its_libraries_are_deleted() {
    on_a_pytorch(|environment, pytorch| {
        let Some(confined) = Confined::start(pytorch, Confinement::Overlay, &WORKLOAD) else {
            return;
        };
        let loaded = |process: &Value| {
            assert!(found(process, "pytorch")["facts"]["version"].is_string());
        };
        loaded(&doctor(environment, confined.pid()));
        for file in confined.loaded(&PROBED) {
            let mut remove = confined.in_its_mounts(Path::new("rm"));
            Background::start(remove.arg(&file)).finish().succeeded();
        }
        are_deleted(&doctor(environment, confined.pid()));
        agrees(environment, confined, "overlay, deleted");
    });
}

#[test]
fn a_process_whose_libraries_were_upgraded_since_is_recorded_exactly_by_those_that_it_has_loaded() {
    on_a_pytorch(|environment, pytorch| {
        let Some(confined) = Confined::start(pytorch, Confinement::OwnLibraries, &WORKLOAD) else {
            return;
        };
        for file in confined.loaded(&PROBED) {
            // Replace the file as package managers do: a new file takes the old name.
            let new = file.with_extension("new");
            std::fs::write(&new, "a library of another version").expect("written");
            std::fs::rename(&new, &file).expect("replaced");
        }
        let process = doctor(environment, confined.pid());
        are_deleted(&process);
        let version = &found(&process, "pytorch")["facts"]["version"];
        assert_eq!(
            *version,
            Value::Null,
            "the version may be that of the new files"
        );
        agrees(environment, confined, "upgraded");
    });
}

#[test]
fn a_process_killed_during_inspection_is_reported_in_words() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for after in [0, 2, 5, 10, 20, 50, 100, 200, 400, 800] {
        for verb in [
            &["doctor", "--format", "json"][..],
            &["record", "-q", "-o", "/dev/null"],
        ] {
            let wait = "print('up', flush=True); import time; time.sleep(600)";
            let mut command = environment.pytorch().command();
            let mut target = Background::start(command.args(["-c", wait]));
            target.wait_for("up");
            let pid = target.pid().to_string();
            let mut looking = environment.memprobe();
            let looking = Background::start(looking.args(verb).args(["--pid", &pid]));
            std::thread::sleep(Duration::from_millis(after));
            drop(target);
            let finished = looking.finish();
            assert!(
                !finished.stderr.contains("panicked"),
                "after {after} ms: {finished:?}"
            );
            match verb[0] {
                "doctor" => assert_examined(&finished, &pid),
                _ => drop(finished.one_clear_error()),
            }
        }
    }
}

/// Asserts that `doctor` examined a process, or says in a failed check that it is ending or no longer there.
fn assert_examined(finished: &Finished, pid: &str) {
    let examination: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let findings = examination["process"]["findings"].as_array();
    let findings = findings.unwrap_or_else(|| panic!("no findings: {finished:?}"));
    let is_fit = examination["fit"] == true;
    assert_eq!(finished.status.code() == Some(0), is_fit, "{finished:?}");
    if is_fit {
        assert!(findings.len() > 1, "{finished:?}");
        return;
    }
    let gone = format!("there is no process {pid}");
    let says_so = findings.iter().any(|finding| {
        finding["level"] == "fail"
            && finding["found"]
                .as_str()
                .is_some_and(|it| it.contains(&gone) || it.contains("it is ending"))
    });
    assert!(says_so, "{finished:?}");
}

/// Asserts that the probed libraries are deleted files and were found nevertheless.
fn are_deleted(process: &Value) {
    for name in PROBED {
        let libraries = process["libraries"].as_array().expect("libraries");
        let library = libraries.iter().find(|library| library["name"] == name);
        let library = library.unwrap_or_else(|| panic!("no {name}: {process}"));
        assert_eq!(library["deleted"], true, "{library}");
        assert!(library["build_id"].is_string(), "{library}");
    }
    let probes = process["probes"].as_array().expect("probes");
    // Not every CUDA version has every function.
    let mut found = probes.iter().filter(|probe| probe["library"].is_string());
    assert!(found.clone().count() > PROBED.len(), "{process}");
    assert!(
        found.all(|probe| probe["address"].is_u64()),
        "a probe without an address: {process}"
    );
}

/// A control group named like Docker's.
struct ControlGroup(std::path::PathBuf);

impl ControlGroup {
    const ID: &str = "3f1e9abc0123d5c5e5f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6";

    /// Creates the group; returns `None` and prints a line if that is impossible.
    fn of_docker() -> Option<Self> {
        let name = format!("docker-{}.scope", Self::ID);
        let made = ["", "unified", "pids", "freezer"]
            .map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy))
            .into_iter()
            .filter(|folder| folder.join("cgroup.procs").exists())
            .map(|folder| folder.join(&name))
            .find(|group| std::fs::create_dir(group).is_ok() || group.is_dir());
        if made.is_none() {
            println!("skipped: no control group can be made");
        }
        made.map(Self)
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("moved");
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Removal fails while a process is in the group; a later run reuses it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

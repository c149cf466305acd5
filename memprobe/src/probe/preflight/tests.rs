use super::*;
use crate::probe::kernel::Release;
use crate::process::container::{Container, Engine};

/// A machine on which memprobe can work, run as root.
fn healthy() -> Machine {
    Machine {
        release: "6.1.0-40-amd64".to_owned(),
        version: Some(Release(6, 1, 0)),
        types: true,
        effective: Capabilities(0x1ff_ffff_ffff),
        bounding: Capabilities(0x1ff_ffff_ffff),
        seccomp: 0,
        pid_namespace: Some(Namespace::FIRST_PID),
        user_namespace: Some(Namespace::FIRST_USER),
        container: None,
        lockdown: Some("integrity".to_owned()),
        perf_event_paranoid: Some(2),
        unprivileged_bpf_disabled: Some(2),
        jit: Some(1),
        ptrace_scope: Some(1),
        uprobes: true,
        tracefs: Some("/sys/kernel/tracing".into()),
        locked_memory: Some(8 << 20),
        memory_limit: None,
    }
}

/// Problems found, without those that depend on the kernel of this machine.
fn complaints(machine: &Machine) -> String {
    let complaints = machine
        .findings()
        .into_iter()
        .filter(|finding| finding.level > Level::Ok && finding.check != "thread_pointer");
    complaints
        .map(|finding| {
            let (level, check) = (finding.level.word(), finding.check);
            format!("{level} {check}: {finding}\n")
        })
        .collect()
}

#[test]
fn a_healthy_machine_gives_nothing_to_complain_of() {
    assert_eq!(complaints(&healthy()), "");
}

#[test]
fn obstacles_are_reported_with_advice() {
    let mut texts = String::new();
    let mut case = |name: &str, change: &dyn Fn(&mut Machine)| {
        let mut machine = healthy();
        change(&mut machine);
        texts += &format!("== {name}\n{}", complaints(&machine));
    };
    case("an old kernel", &|machine| {
        machine.release = "5.10.0-30-amd64".to_owned();
        machine.version = Some(Release(5, 10, 0));
    });
    case("a kernel without a version", &|machine| {
        machine.release = "custom".to_owned();
        machine.version = None;
    });
    case("a kernel without types and uprobes", &|machine| {
        machine.types = false;
        machine.uprobes = false;
    });
    case("no root", &|machine| machine.effective = Capabilities(0));
    case(
        "CAP_BPF and CAP_PERFMON on a kernel that needs more",
        &|machine| {
            machine.effective = Capabilities(1 << 38 | 1 << 39);
            machine.release = "6.12.48".to_owned();
            machine.version = Some(Release(6, 12, 48));
        },
    );
    case(
        "CAP_BPF and CAP_PERFMON on a kernel that may not",
        &|machine| {
            machine.effective = Capabilities(1 << 38 | 1 << 39 | 1 << 19);
        },
    );
    case("Docker without any rights", &|machine| {
        machine.effective = Capabilities(0xa804_25fb);
        machine.bounding = machine.effective;
        machine.seccomp = 2;
        machine.pid_namespace = Some(Namespace::FIRST_USER);
        machine.jit = None;
        machine.tracefs = None;
        machine.memory_limit = Some(64 << 20);
        machine.container = Some(Container {
            engine: Engine::Docker,
            id: "3f1e9abc0123".to_owned(),
            pod: None,
            host: None,
        });
    });
    case("a rootless container", &|machine| {
        machine.user_namespace = Some(Namespace::FIRST_PID);
    });
    case("/proc without namespaces", &|machine| {
        machine.user_namespace = None;
        machine.pid_namespace = None;
    });
    case("lockdown for confidentiality", &|machine| {
        machine.lockdown = Some("confidentiality".to_owned());
    });
    case("ptrace forbidden", &|machine| {
        machine.ptrace_scope = Some(3)
    });
    case("programs interpreted", &|machine| machine.jit = Some(0));
    insta::assert_snapshot!(texts);
}

#[test]
fn every_failure_says_what_to_do() {
    let mut machine = healthy();
    machine.version = None;
    machine.types = false;
    machine.effective = Capabilities(0);
    machine.user_namespace = Some(Namespace::FIRST_PID);
    machine.pid_namespace = Some(Namespace::FIRST_USER);
    machine.lockdown = Some("confidentiality".to_owned());
    machine.uprobes = false;
    machine.ptrace_scope = Some(3);
    for finding in machine.needed() {
        assert_eq!(finding.level, Level::Fail, "{finding}");
        assert!(
            finding
                .remedy
                .is_some_and(|remedy| remedy.ends_with(['.', '…']))
        );
        assert!(!finding.found.ends_with('.'));
    }
}

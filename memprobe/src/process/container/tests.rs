use super::*;

/// A container ID.
const ID: &str = "3f1e9abc0123d5c5e5f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6";
const OTHER: &str = "aa1e9abc0123d5c5e5f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f6";
const UID: &str = "5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8";

/// Returns engine, ID and pod of a control group text.
fn identified(groups: &str) -> Option<(Engine, String, Option<String>)> {
    let container = parse(&groups.replace("ID", ID).replace("OTHER", OTHER))?;
    let pod = container.pod.map(|pod| pod.uid);
    Some((container.engine, container.id, pod))
}

fn is(groups: &str, engine: Engine, id: &str, pod: Option<&str>) {
    let expected = (engine, id.to_owned(), pod.map(str::to_owned));
    assert_eq!(identified(groups), Some(expected), "{groups}");
}

#[test]
fn containers_of_docker_are_known() {
    for groups in [
        // Version 2 with systemd, version 2 with cgroupfs, version 1, rootless.
        "0::/system.slice/docker-ID.scope\n",
        "0::/docker/ID\n",
        "12:pids:/docker/ID\n1:name=systemd:/docker/ID\n0::/system.slice/containerd.service\n",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope\n",
        "0::/docker/buildkit/ID\n",
        // A process in a group that its container created.
        "0::/system.slice/docker-ID.scope/init.scope\n",
        // Docker in Docker.
        "0::/docker/OTHER/docker/ID\n",
    ] {
        is(groups, Engine::Docker, ID, None);
    }
}

#[test]
fn containers_of_kubernetes_name_their_pod() {
    let systemd = "0::/kubepods.slice/kubepods-burstable.slice/\
        kubepods-burstable-pod5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8.slice";
    let of = |scope: &str| format!("{systemd}/{scope}\n");
    is(
        &of("cri-containerd-ID.scope"),
        Engine::Containerd,
        ID,
        Some(UID),
    );
    is(&of("crio-ID.scope"), Engine::CriO, ID, Some(UID));
    is(&of("docker-ID.scope"), Engine::Docker, ID, Some(UID));
    is(
        "0::/kubepods.slice/kubepods-pod5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8.slice/crio-ID.scope/container\n",
        Engine::CriO,
        ID,
        Some(UID),
    );
    is(
        "11:memory:/kubepods/besteffort/pod5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8/ID\n",
        Engine::Unknown,
        ID,
        Some(UID),
    );
    is(
        "3:cpu:/kubepods/pod5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8/crio-ID\n",
        Engine::CriO,
        ID,
        Some(UID),
    );
    is(
        "1:name=systemd:/system.slice/containerd.service/\
         kubepods-burstable-pod5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8.slice:cri-containerd:ID\n",
        Engine::Containerd,
        ID,
        Some(UID),
    );
    // kind: Kubernetes in Docker.
    is(
        "0::/system.slice/docker-OTHER.scope/kubelet.slice/kubelet-kubepods.slice/\
         kubelet-kubepods-pod5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8.slice/cri-containerd-ID.scope\n",
        Engine::Containerd,
        ID,
        Some(UID),
    );
    // The UID of a static pod is a hash.
    is(
        "0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/ID\n",
        Engine::Unknown,
        ID,
        Some("0123456789abcdef0123456789abcdef"),
    );
}

#[test]
fn recognizes_podman_containers_but_not_their_monitors() {
    is(
        "0::/machine.slice/libpod-ID.scope/container\n",
        Engine::Podman,
        ID,
        None,
    );
    is(
        "4:devices:/libpod_parent/libpod-ID\n",
        Engine::Podman,
        ID,
        None,
    );
    is(
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope\n",
        Engine::Podman,
        ID,
        None,
    );
    is(
        "0::/machine.slice/machine-libpod_pod_OTHER.slice/libpod-ID.scope\n",
        Engine::Podman,
        ID,
        Some(OTHER),
    );
    assert_eq!(
        identified("0::/machine.slice/libpod-conmon-ID.scope\n"),
        None
    );
    assert_eq!(identified("0::/system.slice/crio-conmon-ID.scope\n"), None);
}

#[test]
fn other_engines_are_known() {
    is(
        "0::/system.slice/nerdctl-ID.scope\n",
        Engine::Nerdctl,
        ID,
        None,
    );
    is(
        "0::/machine.slice/machine-gpu\\x2dbox.scope\n",
        Engine::Nspawn,
        "gpu-box",
        None,
    );
    is(
        "0::/machine.slice/systemd-nspawn@trainer.service/payload\n",
        Engine::Nspawn,
        "trainer",
        None,
    );
    is("9:memory:/lxc/trainer\n", Engine::Lxc, "trainer", None);
    is(
        "0::/lxc/105/ns/system.slice/x.service\n",
        Engine::Lxc,
        "105",
        None,
    );
    is(
        "0::/lxc.payload.trainer/init.scope\n",
        Engine::Lxc,
        "trainer",
        None,
    );
    is("0::/lxc.payload/trainer\n", Engine::Lxc, "trainer", None);
    is(
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/apptainer-4711.scope\n",
        Engine::Apptainer,
        "4711",
        None,
    );
    is(
        "5:memory:/ecs/0123456789abcdef0123456789abcdef/ID\n",
        Engine::Ecs,
        ID,
        None,
    );
    is(
        "0::/ecs/0123456789abcdef0123456789abcdef/0123456789abcdef0123456789abcdef-3000001\n",
        Engine::Ecs,
        "0123456789abcdef0123456789abcdef-3000001",
        None,
    );
    is(
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
        Engine::Slurm,
        "4711.0",
        None,
    );
    is(
        "4:memory:/slurm/uid_1000/job_4711/step_batch\n",
        Engine::Slurm,
        "4711.batch",
        None,
    );
    is(
        "4:memory:/slurm/uid_1000/job_4711\n",
        Engine::Slurm,
        "4711",
        None,
    );
    is(
        "4:memory:/slurm/uid_1000/job_4711/step_x y\n",
        Engine::Slurm,
        "4711",
        None,
    );
    is("0::/somewhere/ID\n", Engine::Unknown, ID, None);
}

#[test]
fn a_process_of_the_host_is_in_no_container() {
    for groups in [
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        "0::/system.slice/docker.service\n",
        "0::/init.scope\n",
        "12:pids:/\n1:name=systemd:/\n0::/\n",
        "0::/machine.slice/machine-qemu\\x2d1\\x2dwindows.scope\n",
        "0::/lxc.monitor.trainer\n",
        "0::/job_4711\n",
        "0::/podrick\n",
        "0::/docker/short\n",
        "",
        "nonsense\n::::\n0:\n",
    ] {
        assert_eq!(identified(groups), None, "{groups}");
    }
}

#[test]
fn the_group_that_names_its_engine_takes_precedence() {
    is(
        "9:memory:/elsewhere/ID\n3:cpu:/docker/ID\n",
        Engine::Docker,
        ID,
        None,
    );
}

#[test]
fn a_container_is_shown_by_what_people_know_it_by() {
    let mut container = parse(&format!("0::/docker/{ID}\n")).unwrap();
    assert_eq!(container.label(), "docker:3f1e9abc0123");
    assert_eq!(container.to_string(), "docker 3f1e9abc0123");
    // Docker's default host name adds no information.
    container.host = Some(ID[..12].to_owned());
    assert_eq!(container.label(), "docker:3f1e9abc0123");
    container.host = Some("trainer".to_owned());
    assert_eq!(container.label(), "trainer");
    assert_eq!(container.to_string(), "docker 3f1e9abc0123 (trainer)");
    container.engine = Engine::Containerd;
    container.host = Some("trainer-0".to_owned());
    container.pod = Some(Pod {
        uid: UID.to_owned(),
        name: Some("trainer-0".to_owned()),
        namespace: Some("ml".to_owned()),
    });
    assert_eq!(container.label(), "trainer-0");
    assert_eq!(
        container.to_string(),
        "pod trainer-0 in ml, containerd 3f1e9abc0123"
    );
}

#[test]
fn a_name_is_taken_from_the_first_variable_that_has_one() {
    let environment = Environment("A=b\0MY_POD_NAME=\0K8S_POD_NAME=trainer-0\0".to_owned());
    assert_eq!(environment.first(&POD_NAMES).as_deref(), Some("trainer-0"));
    assert_eq!(environment.first(&["NAME"]), None);
    let endless = Environment(format!("HOSTNAME={}", "x".repeat(LONGEST + 1)));
    assert_eq!(endless.first(&["HOSTNAME"]), None);
}

#[test]
fn escapes_that_are_none_stay() {
    assert_eq!(unescape("a\\x2db\\xzz\\x"), "a-b\\xzz\\x");
    assert_eq!(unescape("\\xff"), "\\xff");
}

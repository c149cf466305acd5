//! The container, pod or batch job of a process, from its control group paths and its environment.

use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;

use super::namespace::{self, Kind};
use super::root::ProcessRoot;
use crate::event::Tgid;

/// The most bytes read of a control group file or an environment.
const MOST: u64 = 256 << 10;

/// The longest name or ID that is accepted. A Docker container ID has 64 digits; a host or pod name has up to
/// 253 characters.
const LONGEST: usize = 253;

/// Digits of a container ID that people are shown, as in `docker ps`.
const SHORT: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "kebab-case")]
pub enum Engine {
    /// Docker, also under Kubernetes.
    Docker,
    Containerd,
    CriO,
    Podman,
    /// nerdctl, the command line of containerd.
    Nerdctl,
    /// systemd-nspawn and systemd-machined.
    Nspawn,
    /// LXC, LXD, Incus, Proxmox.
    Lxc,
    /// Apptainer, formerly Singularity.
    Apptainer,
    /// Amazon ECS.
    Ecs,
    /// A Slurm job: not a container, but the name by which users of a cluster know a process.
    Slurm,
    /// An engine that the control group path does not name.
    #[strum(serialize = "container")]
    Unknown,
}

impl Engine {
    pub const fn name(self) -> &'static str {
        self.into_str()
    }
}

/// A container, as far as it is known. Its strings come from the target; views sanitize them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub engine: Engine,
    /// The container's ID or name in the engine; empty if only the engine is known.
    pub id: String,
    pub pod: Option<Pod>,
    /// The host name inside: the start of a Docker container's ID, or a name that a user chose.
    pub host: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Pod {
    /// The pod's ID: a UUID in Kubernetes.
    pub uid: String,
    pub name: Option<String>,
    pub namespace: Option<String>,
}

impl Container {
    /// Returns the shortest familiar name, for a column: the pod's name, a host name that a user chose, or
    /// `docker:3f1e9abc0123`.
    pub fn label(&self) -> String {
        if let Some(name) = self.pod.as_ref().and_then(|pod| pod.name.as_ref()) {
            return name.clone();
        }
        match &self.host {
            Some(host) if !self.id.starts_with(host.as_str()) => host.clone(),
            _ => self.engine_and_id(":"),
        }
    }

    pub fn short_id(&self) -> &str {
        if is_hex(&self.id) {
            self.id.get(..SHORT).unwrap_or(&self.id)
        } else {
            &self.id
        }
    }

    fn engine_and_id(&self, between: &str) -> String {
        match self.short_id() {
            "" => self.engine.name().to_owned(),
            id => format!("{}{between}{id}", self.engine.name()),
        }
    }
}

/// Writes `pod trainer-0 in ml, containerd 3f1e9abc0123` or `docker 3f1e9abc0123 (trainer)`.
impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pod) = &self.pod {
            write!(f, "pod {}", pod.name.as_ref().unwrap_or(&pod.uid))?;
            if let Some(namespace) = &pod.namespace {
                write!(f, " in {namespace}")?;
            }
            f.write_str(", ")?;
        }
        f.write_str(&self.engine_and_id(" "))?;
        let named = self.pod.as_ref().is_some_and(|pod| pod.name == self.host);
        match &self.host {
            Some(host) if !named && !self.id.starts_with(host.as_str()) => write!(f, " ({host})"),
            _ => Ok(()),
        }
    }
}

/// Returns the container of a process; `None` if it runs on the host itself or memprobe may not inspect it.
pub fn of(tgid: Tgid) -> Option<Container> {
    let folder = format!("/proc/{}", tgid.0);
    let mut container = parse(&read(&format!("{folder}/cgroup"))?)?;
    let environment = Environment(read(&format!("{folder}/environ")).unwrap_or_default());
    let foreign = namespace::foreign(tgid);
    if foreign.contains(&Kind::Uts) {
        container.host = environment
            .first(&["HOSTNAME"])
            .or_else(|| name_in_file(tgid, &foreign, "/etc/hostname"));
    }
    if let Some(pod) = &mut container.pod {
        pod.name = environment
            .first(&POD_NAMES)
            .or_else(|| container.host.clone());
        pod.namespace = environment
            .first(&POD_NAMESPACES)
            .or_else(|| name_in_file(tgid, &foreign, SERVICE_ACCOUNT));
    }
    Some(container)
}

/// Returns the container that memprobe itself runs in, by its control group or by files that engines create.
pub fn of_memprobe() -> Option<Container> {
    const MARKS: [(&str, Engine); 3] = [
        ("/.dockerenv", Engine::Docker),
        ("/run/.containerenv", Engine::Podman),
        ("/var/run/secrets/kubernetes.io", Engine::Unknown),
    ];
    of(Tgid(std::process::id())).or_else(|| {
        let (_, engine) = MARKS
            .into_iter()
            .find(|(mark, _)| fs::exists(mark).unwrap_or(false))?;
        Some(Container {
            engine,
            id: String::new(),
            pod: None,
            host: None,
        })
    })
}

/// Environment variables that tell a pod its own name (Kubernetes's downward API, OpenTelemetry).
const POD_NAMES: [&str; 4] = [
    "POD_NAME",
    "K8S_POD_NAME",
    "MY_POD_NAME",
    "KUBERNETES_POD_NAME",
];
const POD_NAMESPACES: [&str; 4] = [
    "POD_NAMESPACE",
    "K8S_POD_NAMESPACE",
    "MY_POD_NAMESPACE",
    "KUBERNETES_NAMESPACE",
];
/// The file in which Kubernetes gives every pod its namespace.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// `/proc/PID/environ`: the initial environment of the process.
struct Environment(String);

impl Environment {
    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| {
            let mut entries = self.0.split('\0');
            believable(entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))?)
        })
    }
}

fn believable(name: &str) -> Option<String> {
    (!name.is_empty() && name.len() <= LONGEST).then(|| name.to_owned())
}

/// Reads a name from a file in the process's mount namespace; `None` if the process shares memprobe's.
fn name_in_file(tgid: Tgid, foreign: &[Kind], path: &str) -> Option<String> {
    if !foreign.contains(&Kind::Mount) {
        return None;
    }
    let file = ProcessRoot::of(tgid).ok()?.open(path.as_ref()).ok()?;
    believable(text_of(file)?.trim())
}

fn read(path: &str) -> Option<String> {
    text_of(File::open(path).ok()?)
}

fn text_of(file: File) -> Option<String> {
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds a container in the text of `/proc/PID/cgroup` (`cgroups(7)`), version 1 or 2.
pub fn parse(groups: &str) -> Option<Container> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut found: Option<Container> = None;
    for container in paths.filter_map(in_path) {
        // In version 1, controllers may place the process at different depths.
        let is_known = container.engine != Engine::Unknown;
        if found
            .as_ref()
            .is_none_or(|first| first.engine == Engine::Unknown && is_known)
        {
            found = Some(container);
        }
    }
    found
}

fn in_path(path: &str) -> Option<Container> {
    let mut found = None;
    let mut pod = None;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for (at, part) in parts.iter().enumerate() {
        // containerd under systemd, configured for cgroupfs: SLICE:cri-containerd:ID.
        if let [slice, engine, id] = part.split(':').collect::<Vec<_>>()[..] {
            pod = pod_of(slice).or(pod);
            if is_id(id) {
                let of_engine = |(prefix, _): &&(&str, _)| prefix.strip_suffix('-') == Some(engine);
                let known = PREFIXES.iter().find(of_engine);
                let engine = known.map_or(Engine::Unknown, |(_, engine)| *engine);
                found = Some((engine, id.to_owned()));
            }
            continue;
        }
        pod = pod_of(part).or(pod);
        found = container_of(part, &parts[..at]).or(found);
    }
    let (engine, id) = found.filter(|(_, id)| id.len() <= LONGEST)?;
    Some(Container {
        engine,
        id,
        pod: pod.map(|uid| Pod {
            uid,
            ..Pod::default()
        }),
        host: None,
    })
}

/// Returns the pod ID in a group name: `kubepods-burstable-podUID.slice` (systemd writes `-` as `_`),
/// `podUID` (cgroupfs), `machine-libpod_pod_ID.slice` (Podman).
fn pod_of(part: &str) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) if slice.contains("kubepods") => slice.rsplit_once("-pod")?.1,
        Some(slice) => slice.split_once("libpod_pod_")?.1,
        None => part.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let is_uid = uid.len() >= 32
        && uid.len() <= 64
        && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    is_uid.then_some(uid)
}

/// Prefixes of the groups that systemd creates for engines: `docker-ID.scope`, `crio-ID` and so on.
const PREFIXES: [(&str, Engine); 5] = [
    ("docker-", Engine::Docker),
    ("cri-containerd-", Engine::Containerd),
    ("crio-", Engine::CriO),
    ("libpod-", Engine::Podman),
    ("nerdctl-", Engine::Nerdctl),
];

fn container_of(part: &str, above: &[&str]) -> Option<(Engine, String)> {
    let parent = above.last().copied().unwrap_or_default();
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    let prefixed = PREFIXES.iter().find_map(|(prefix, engine)| {
        let id = scope.strip_prefix(prefix)?;
        // `crio-conmon-ID` leaves `conmon-ID`, which is no ID: that group holds the container's monitor.
        is_id(id).then(|| (*engine, id.to_owned()))
    });
    prefixed
        .or_else(|| machine(part).map(|name| (Engine::Nspawn, name)))
        .or_else(|| lxc(part, parent))
        .or_else(|| {
            let pid = part.strip_prefix("apptainer-")?.strip_suffix(".scope")?;
            Some((Engine::Apptainer, pid.to_owned()))
        })
        .or_else(|| {
            let job = part.strip_prefix("job_")?;
            let below = above.iter().any(|group| group.starts_with("slurm"));
            (below && is_number(job)).then(|| (Engine::Slurm, job.to_owned()))
        })
        .or_else(|| {
            // A step as `sacct` writes it: `4711.0`, `4711.batch`.
            let step = part.strip_prefix("step_")?;
            let job = parent.strip_prefix("job_")?;
            let below = above.iter().any(|group| group.starts_with("slurm"));
            let is_step = is_number(step) || ["batch", "extern", "interactive"].contains(&step);
            (below && is_number(job) && is_step).then(|| (Engine::Slurm, format!("{job}.{step}")))
        })
        .or_else(|| {
            let ecs = above.contains(&"ecs");
            let fargate = part.split_once('-').is_some_and(|(task, number)| {
                task.len() == 32 && is_hex(task) && is_number(number)
            });
            (ecs && (is_id(part) || fargate)).then(|| (Engine::Ecs, part.to_owned()))
        })
        .or_else(|| {
            let engine = match parent {
                "docker" | "buildkit" => Engine::Docker,
                "libpod_parent" => Engine::Podman,
                _ => Engine::Unknown,
            };
            is_id(part).then(|| (engine, part.to_owned()))
        })
}

/// Returns the name of a systemd machine: `machine-NAME.scope` or `systemd-nspawn@NAME.service`, with
/// escapes. Virtual machines have the same form and are excluded.
fn machine(part: &str) -> Option<String> {
    let scope = part
        .strip_prefix("machine-")
        .and_then(|rest| rest.strip_suffix(".scope"));
    let service = || {
        part.strip_prefix("systemd-nspawn@")?
            .strip_suffix(".service")
    };
    let name = unescape(scope.or_else(service)?);
    (!name.starts_with("qemu-")).then_some(name)
}

/// Returns an LXC container: `lxc/NAME`, `lxc.payload/NAME`, `lxc.payload.NAME`.
fn lxc(part: &str, parent: &str) -> Option<(Engine, String)> {
    let name = match part.strip_prefix("lxc.payload.") {
        Some(name) => name,
        None if matches!(parent, "lxc" | "lxc.payload") => part,
        None => return None,
    };
    Some((Engine::Lxc, name.to_owned()))
}

/// Undoes systemd's escapes (`systemd-escape(1)`): `\x2d` is `-`.
fn unescape(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let hex = part.get(..2);
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(&part[2..]);
            }
            _ => {
                plain.push_str("\\x");
                plain.push_str(part);
            }
        }
    }
    plain
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;

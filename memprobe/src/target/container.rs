//! The container, pod or batch job that a process runs in: from the names of its control groups, and
//! from what its environment calls it.

use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;

use super::namespace::{self, Kind};
use super::root::Root;
use crate::event::Tgid;

/// The most that is read of a control group file or of an environment.
const MOST: u64 = 256 << 10;

/// The longest name or number that is believed. A Docker container's has 64 digits, the name of a
/// host or a pod up to 253 letters.
const LONGEST: usize = 253;

/// Digits of a container's number that people are shown, as `docker ps` does.
const SHORT: usize = 12;

/// What runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Docker, also below Kubernetes.
    Docker,
    /// containerd below Kubernetes.
    Containerd,
    /// CRI-O.
    CriO,
    /// Podman (libpod).
    Podman,
    /// containerd's own command.
    Nerdctl,
    /// systemd-nspawn and machined.
    Nspawn,
    /// LXC, LXD, Incus, Proxmox.
    Lxc,
    /// Apptainer, once Singularity.
    Apptainer,
    /// Amazon's ECS.
    Ecs,
    /// A job of Slurm: not a container, but what people on a cluster know a process by.
    Slurm,
    /// A container by its number, of an engine that its group does not name.
    Unknown,
}

impl Engine {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Podman => "podman",
            Self::Nerdctl => "nerdctl",
            Self::Nspawn => "nspawn",
            Self::Lxc => "lxc",
            Self::Apptainer => "apptainer",
            Self::Ecs => "ecs",
            Self::Slurm => "slurm",
            Self::Unknown => "container",
        }
    }
}

/// A container, as far as it is known. Texts come from the target and may hold anything: views
/// clean them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What runs it.
    pub engine: Engine,
    /// Its number, or the name that the engine knows it by; empty where only the engine is known.
    pub id: String,
    /// The Kubernetes or Podman pod that it belongs to.
    pub pod: Option<Pod>,
    /// The name of its host, which Docker sets to the beginning of its number, and people to
    /// something that they know.
    pub host: Option<String>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its number: a UUID in Kubernetes.
    pub uid: String,
    /// Its name.
    pub name: Option<String>,
    /// The Kubernetes namespace that the name is of.
    pub namespace: Option<String>,
}

impl Container {
    /// The shortest that people know it by, for a column: the pod's name, the host's name where
    /// somebody gave it one, or `docker:3f1e9abc0123`.
    pub fn label(&self) -> String {
        if let Some(name) = self.pod.as_ref().and_then(|pod| pod.name.as_ref()) {
            return name.clone();
        }
        match &self.host {
            Some(host) if !self.id.starts_with(host.as_str()) => host.clone(),
            _ => self.engine_and_id(":"),
        }
    }

    /// The beginning of its number, or its whole name.
    pub fn short_id(&self) -> &str {
        match is_hex(&self.id) {
            true => self.id.get(..SHORT).unwrap_or(&self.id),
            false => &self.id,
        }
    }

    fn engine_and_id(&self, between: &str) -> String {
        match self.short_id() {
            "" => self.engine.name().to_owned(),
            id => format!("{}{between}{id}", self.engine.name()),
        }
    }
}

/// Such as `pod trainer-0 in ml, containerd 3f1e9abc0123` or `docker 3f1e9abc0123 (trainer)`.
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

/// The container of a process; `None` where it runs on the host itself, or memprobe may not look.
pub fn of(tgid: Tgid) -> Option<Container> {
    let folder = format!("/proc/{}", tgid.0);
    let mut container = parse(&read(&format!("{folder}/cgroup"))?)?;
    let environment = Environment(read(&format!("{folder}/environ")).unwrap_or_default());
    let foreign = namespace::foreign(tgid);
    if foreign.contains(&Kind::Uts) {
        container.host = environment
            .first(&["HOSTNAME"])
            .or_else(|| told_by(tgid, &foreign, "/etc/hostname"));
    }
    if let Some(pod) = &mut container.pod {
        pod.name = environment
            .first(&POD_NAMES)
            .or_else(|| container.host.clone());
        pod.namespace = environment
            .first(&POD_NAMESPACES)
            .or_else(|| told_by(tgid, &foreign, SERVICE_ACCOUNT));
    }
    Some(container)
}

/// The container that memprobe itself runs in. A control group namespace may hide its group; then
/// the marks tell that the engines leave in a container's files.
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

/// Variables by which people pass the name of a pod to it (the downward API's documentation, and
/// OpenTelemetry's).
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
/// Where Kubernetes tells every pod its namespace.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// `/proc/PID/environ`: the environment that the process was started with.
struct Environment(String);

impl Environment {
    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| {
            let value = self
                .0
                .split('\0')
                .find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))?;
            believable(value)
        })
    }
}

fn believable(name: &str) -> Option<String> {
    (!name.is_empty() && name.len() <= LONGEST).then(|| name.to_owned())
}

/// What a file of the process's own says, where it does not see memprobe's.
fn told_by(tgid: Tgid, foreign: &[Kind], path: &str) -> Option<String> {
    if !foreign.contains(&Kind::Mount) {
        return None;
    }
    let file = Root::of(tgid).ok()?.open(path.as_ref()).ok()?;
    believable(text_of(file)?.trim())
}

fn read(path: &str) -> Option<String> {
    text_of(File::open(path).ok()?)
}

/// Up to [`MOST`] bytes of a file.
fn text_of(file: File) -> Option<String> {
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds a container in the text of `/proc/PID/cgroup` (`cgroups(7)`), of version 1 or 2.
pub fn parse(groups: &str) -> Option<Container> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut found: Option<Container> = None;
    for container in paths.filter_map(in_path) {
        // A group of version 1 may lie higher for one controller than for another.
        let better = match &found {
            None => true,
            Some(first) => first.engine == Engine::Unknown && container.engine != Engine::Unknown,
        };
        if better {
            found = Some(container);
        }
    }
    found
}

/// The innermost container on the path of a control group.
fn in_path(path: &str) -> Option<Container> {
    let mut found = None;
    let mut pod = None;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for (at, part) in parts.iter().enumerate() {
        // containerd below systemd, told to use cgroupfs: SLICE:cri-containerd:ID.
        if let [slice, engine, id] = part.split(':').collect::<Vec<_>>()[..] {
            pod = pod_of(slice).or(pod);
            if is_id(id) {
                found = Some((engine_named(engine), id.to_owned()));
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

/// The pod that a group is of: `kubepods-burstable-podUID.slice` (systemd writes `-` as `_` there),
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

/// Prefixes of groups that systemd makes for engines: `docker-ID.scope`, `crio-ID` and so on.
const PREFIXES: [(&str, Engine); 5] = [
    ("docker-", Engine::Docker),
    ("cri-containerd-", Engine::Containerd),
    ("crio-", Engine::CriO),
    ("libpod-", Engine::Podman),
    ("nerdctl-", Engine::Nerdctl),
];

fn engine_named(name: &str) -> Engine {
    let prefix = format!("{name}-");
    let known = PREFIXES.iter().find(|(known, _)| *known == prefix);
    known.map_or(Engine::Unknown, |(_, engine)| *engine)
}

/// The container that one group is of, by its name and those above it.
fn container_of(part: &str, above: &[&str]) -> Option<(Engine, String)> {
    let parent = above.last().copied().unwrap_or_default();
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    let prefixed = PREFIXES.iter().find_map(|(prefix, engine)| {
        let id = scope.strip_prefix(prefix)?;
        // What remains of `crio-conmon-ID` is no number: that is the container's keeper.
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

/// A machine of systemd: `machine-NAME.scope` or `systemd-nspawn@NAME.service`, with letters
/// escaped. Virtual machines are named likewise and are none.
fn machine(part: &str) -> Option<String> {
    let name = part
        .strip_prefix("machine-")
        .and_then(|rest| rest.strip_suffix(".scope"))
        .or_else(|| {
            part.strip_prefix("systemd-nspawn@")?
                .strip_suffix(".service")
        })?;
    let name = unescape(name);
    (!name.starts_with("qemu-")).then_some(name)
}

/// A container of LXC: `lxc/NAME`, `lxc.payload/NAME`, `lxc.payload.NAME`.
fn lxc(part: &str, parent: &str) -> Option<(Engine, String)> {
    let name = match part.strip_prefix("lxc.payload.") {
        Some(name) => name,
        None if matches!(parent, "lxc" | "lxc.payload") => part,
        None => return None,
    };
    Some((Engine::Lxc, name.to_owned()))
}

/// Undoes systemd's escapes (`systemd-escape(1)`): `\x2d` for `-`.
fn unescape(name: &str) -> String {
    let mut parts = name.split("\\x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
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

/// The number of a container: 64 hexadecimal digits.
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

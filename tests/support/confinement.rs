//! Targets with another view of the machine than memprobe: other namespaces, a chroot, another
//! user, other file systems. All mounts are in the target's own mount namespace and disappear with
//! the target.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::environment::TestEnvironment;
use crate::gated_workload::BothSides;
use crate::memprobe::lost;
use crate::process::{Background, wait_until};
use crate::pytorch::{PyTorch, workloads};
use crate::reference::Reference;

/// UID of the user `nobody`.
pub const NOBODY: u32 = 65534;

/// Host name inside [`Confinement::Namespaces`].
pub const HOST_NAME: &str = "trainer-0";

/// Kind of confinement of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Own PID, mount and UTS namespaces, as in a container.
    Namespaces,
    /// Chroot in a mount namespace, with PyTorch and the workloads at paths that exist nowhere
    /// else.
    Chroot,
    /// User `nobody`, with the process marked as not dumpable.
    OtherUser,
    /// PyTorch on an overlay file system, as in a container image.
    Overlay,
    /// A private copy of PyTorch's own libraries, as separate files.
    OwnLibraries,
}

/// Sets the host name, then runs the remaining arguments.
const NAMED: &str =
    "echo \"$1\" > /proc/sys/kernel/hostname; export HOSTNAME=\"$1\"; shift; exec \"$@\"";

/// Builds a root directory and enters it. Arguments: root, environment, workloads, command.
const CHROOT: &str = "set -e
root=$1; environment=$2; workloads=$3; shift 3
mount --rbind / \"$root\"
mount -t tmpfs -o mode=755 memprobe-tests \"$root/mnt\"
mkdir \"$root/mnt/environment\" \"$root/mnt/workloads\"
mount --bind \"$environment\" \"$root/mnt/environment\"
mount --bind \"$workloads\" \"$root/mnt/workloads\"
exec chroot \"$root\" sh -c 'cd /mnt/workloads && exec \"$@\"' sh \"$@\"";

/// Mounts an overlay of the environment. Arguments: working folder, environment, command.
const OVERLAY: &str = "set -e
folder=$1; environment=$2; shift 2
mount -t overlay -o \"lowerdir=$environment,upperdir=$folder/upper,workdir=$folder/work\" overlay \"$folder/root\"
exec \"$@\"";

/// Mounts one folder over another. Arguments: both folders, command.
const INSTEAD: &str = "set -e
mount --bind \"$1\" \"$2\"; shift 2
exec \"$@\"";

/// Runs a script as a process that only root may inspect (`PR_SET_DUMPABLE`).
const UNDUMPABLE: &str = "
import ctypes, runpy, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
sys.argv = sys.argv[1:]
sys.path.insert(0, '')
runpy.run_path(sys.argv[0], run_name='__main__')
";

/// Opens a folder that only its owner may enter, in a mount namespace of its own. Arguments: folder, command.
const OPENED: &str = "set -e
folder=$1; shift
mount -t tmpfs -o mode=755 memprobe-tests /mnt
for entry in \"$folder\"/* \"$folder\"/.[!.]*; do
    test -d \"$entry\" || continue
    mkdir \"/mnt/${entry##*/}\"
    mount --bind \"$entry\" \"/mnt/${entry##*/}\"
done
mount --rbind /mnt \"$folder\"
exec \"$@\"";

/// Returns a command that starts memprobe as sudo does for the user `nobody`.
pub fn with_sudo(environment: &TestEnvironment) -> Command {
    let mut command = environment.memprobe();
    command.env("SUDO_UID", NOBODY.to_string());
    command.env("SUDO_GID", NOBODY.to_string());
    command.env("SUDO_USER", "nobody");
    command
}

/// Returns `command` such that every user can run the interpreter of `pytorch`, which may lie in root's home.
///
/// # Panics
///
/// If two folders on its path are closed.
pub fn readable_by_all(pytorch: &PyTorch, command: &Command) -> Command {
    let closed: Vec<_> = pytorch
        .python()
        .ancestors()
        .skip(1)
        .filter(|folder| !is_open(folder))
        .collect();
    assert!(closed.len() < 2, "closed to other users: {closed:?}");
    let mut opened = match closed.first() {
        Some(folder) => mounting(OPENED, &[folder, Path::new(command.get_program())]),
        None => Command::new(command.get_program()),
    };
    opened.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => opened.env(name, value),
            None => opened.env_remove(name),
        };
    }
    opened
}

/// True if every user may enter a folder.
fn is_open(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let there = std::fs::metadata(folder).expect("a folder");
    there.permissions().mode() & 0o001 != 0
}

/// A confined workload under PyTorch's own recorder, before its first allocation.
pub struct Confined {
    outermost: Background,
    pid: u32,
    folder: TempDir,
    confinement: Confinement,
    environment: PathBuf,
}

impl Confined {
    /// Starts the workload; returns once CUDA is initialised, before any allocation. Returns `None`
    /// and prints the reason if this machine does not support the confinement.
    pub fn start(pytorch: &PyTorch, confinement: Confinement, workload: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        open_to_all(folder.path());
        if let Some(why) = confinement.is_impossible(folder.path(), pytorch) {
            println!("skipped: {confinement:?}: {why}");
            return None;
        }
        let environment = pytorch.environment();
        let mut command = confinement.command(pytorch, folder.path());
        command
            .arg("--out")
            .arg(folder.path().join("reference.json"));
        command.arg("--wait-file").arg(folder.path().join("go"));
        command.args(workload);
        let mut outermost = Background::start(&mut command);
        outermost.wait_for("ready ");
        let pid = match confinement {
            Confinement::Namespaces => only_child(outermost.pid()),
            _ => outermost.pid(),
        };
        Some(Self {
            outermost,
            pid,
            folder,
            confinement,
            environment,
        })
    }

    /// Returns the PID in this process's namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a command that runs in the target's mount namespace.
    pub fn in_its_mounts(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.pid))
            .arg(program);
        command
    }

    /// Returns the paths of loaded PyTorch libraries, as seen in the target's mount namespace.
    pub fn loaded(&self, names: &[&str]) -> Vec<PathBuf> {
        let folder = match self.confinement {
            Confinement::OwnLibraries => self.folder.path().join("lib"),
            // Use the path inside the namespace: its mounts are invisible here.
            _ => {
                let theirs = libraries(&self.environment);
                let within = theirs.strip_prefix(&self.environment);
                let root = self.folder.path().join("root");
                root.join(within.expect("libraries lie in their environment"))
            }
        };
        names.iter().map(|name| folder.join(name)).collect()
    }

    /// Records the workload to its end and pairs the events with PyTorch's.
    pub fn record(self, environment: &TestEnvironment) -> (BothSides, PathBuf, TempDir, String) {
        let file = self.folder.path().join("trace.json");
        let recording = environment.record(self.pid, &file, &[]);
        std::fs::write(self.folder.path().join("go"), "").expect("written");
        let printed = recording.finish();
        assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
        self.outermost.finish().succeeded();
        let reference = Reference::read(&self.folder.path().join("reference.json"));
        let events = environment.events(&file);
        let both = BothSides::until_the_end_of(reference.expect("the reference"), events);
        (both, file, self.folder, printed.stderr)
    }
}

impl Confinement {
    /// Tries the confinement; returns the reason if this machine does not support it.
    fn is_impossible(self, folder: &Path, pytorch: &PyTorch) -> Option<String> {
        let mut trial = match self {
            Self::Namespaces => {
                let mut command = Command::new("unshare");
                command.args([
                    "--pid",
                    "--fork",
                    "--mount",
                    "--uts",
                    "--mount-proc",
                    "true",
                ]);
                command
            }
            Self::Chroot => mounting("mount -t tmpfs none /mnt", &[]),
            Self::OtherUser => {
                let mut command = as_nobody();
                command.arg("true");
                command
            }
            Self::Overlay => {
                for name in ["upper", "work", "root"] {
                    std::fs::create_dir(folder.join(name)).expect("a folder");
                }
                mounting(
                    OVERLAY,
                    &[folder, &pytorch.environment(), Path::new("true")],
                )
            }
            Self::OwnLibraries => {
                let own = folder.join("lib");
                std::fs::create_dir(&own).expect("a folder");
                let theirs = libraries(&pytorch.environment());
                for entry in std::fs::read_dir(theirs).expect("PyTorch's libraries") {
                    let entry = entry.expect("an entry");
                    if !entry.path().is_file() {
                        continue;
                    }
                    // Hard links avoid copying gigabytes.
                    if let Err(error) =
                        std::fs::hard_link(entry.path(), own.join(entry.file_name()))
                    {
                        return Some(format!("no hard links to PyTorch's libraries: {error}"));
                    }
                }
                mounting("mount -t tmpfs none /mnt", &[])
            }
        };
        let output = trial.output().ok()?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        (!output.status.success()).then_some(complaint)
    }

    /// Returns a command that starts `reference.py`, without its arguments.
    fn command(self, pytorch: &PyTorch, folder: &Path) -> Command {
        let environment = pytorch.environment();
        let python = |root: &Path| {
            let within = pytorch.python().strip_prefix(&environment);
            root.join(within.expect("the interpreter lies in its environment"))
        };
        let mut confined = match self {
            Self::Namespaces => {
                let mut command = Command::new("unshare");
                command.args(["--pid", "--fork", "--kill-child", "--mount", "--uts"]);
                command.args(["--mount-proc", "sh", "-c", NAMED, "sh", HOST_NAME]);
                command.arg(pytorch.python());
                command
            }
            Self::Chroot => {
                let root = folder.join("root");
                std::fs::create_dir(&root).expect("a folder");
                let there = python(Path::new("/mnt/environment"));
                mounting(CHROOT, &[&root, &environment, &workloads(), &there])
            }
            Self::OtherUser => {
                let mut command = as_nobody();
                command.arg(pytorch.python()).args(["-c", UNDUMPABLE]);
                command
            }
            Self::Overlay => {
                let there = python(&folder.join("root"));
                mounting(OVERLAY, &[folder, &environment, &there])
            }
            Self::OwnLibraries => mounting(
                INSTEAD,
                &[
                    &folder.join("lib"),
                    &libraries(&environment),
                    pytorch.python(),
                ],
            ),
        };
        pytorch.settle(&mut confined);
        confined.arg("reference.py");
        confined
    }
}

/// Returns a command that runs a shell script in its own mount namespace.
fn mounting(script: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.args(arguments);
    command
}

/// Runs as `nobody`, with permission to read every file: the environment may be in root's home.
fn as_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.args([
        "--inh-caps",
        "+dac_read_search",
        "--ambient-caps",
        "+dac_read_search",
    ]);
    command
}

/// Returns the folder of PyTorch's own libraries in an environment.
fn libraries(environment: &Path) -> PathBuf {
    let lib = environment.join("lib");
    let pythons = std::fs::read_dir(&lib);
    let python = pythons.ok().and_then(|mut entries| {
        entries.find_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.starts_with("python3").then_some(name)
        })
    });
    lib.join(python.unwrap_or_default())
        .join("site-packages/torch/lib")
}

/// Waits for a process's child and returns its PID.
fn only_child(pid: u32) -> u32 {
    wait_until("the child of unshare", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.ok()?.split_whitespace().next()?.parse().ok()
    })
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o1777)).expect("opened");
}

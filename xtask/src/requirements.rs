//! Requirements of the tasks, checked before anything is downloaded. What is missing is named by the
//! package of this distribution.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::apt;
use crate::process;
use crate::python;
use crate::pytorch::{self, Interpreter, PythonVersion};
use crate::repository::{Repository, cache_folder};

/// Disk space of one environment (1.3 to 1.8 GB), with the wheel that pip unpacks into it.
const ENVIRONMENT_BYTES: u64 = 2_500_000_000;

/// Disk space of NVIDIA's libraries, on a machine with a GPU.
const CUDA_BYTES: u64 = 6_000_000_000;

/// Disk space of the build outputs of all packages and tests.
const BUILD_BYTES: u64 = 8_000_000_000;

/// A task with requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Trains and attaches.
    Demo,
    /// Runs the integration tests of some features.
    Features,
    /// Runs all checks and tests.
    Tests,
}

/// Family of distributions with common package names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Debian,
    Fedora,
    Suse,
    Arch,
    Unknown,
}

/// Packages of a requirement, one for each family.
struct Packages {
    debian: &'static str,
    fedora: &'static str,
    suse: &'static str,
    arch: &'static str,
}

const PYTHON: Packages = Packages {
    debian: "python3 python3-venv",
    fedora: "python3 python3-pip",
    suse: "python3 python3-pip",
    arch: "python python-pip",
};

const C: Packages = Packages {
    debian: "gcc libc6-dev",
    fedora: "gcc glibc-devel",
    suse: "gcc glibc-devel",
    arch: "gcc",
};

const CXX: Packages = Packages {
    debian: "g++",
    fedora: "gcc-c++",
    suse: "gcc-c++",
    arch: "gcc",
};

const BINUTILS: Packages = Packages {
    debian: "binutils",
    fedora: "binutils",
    suse: "binutils",
    arch: "binutils",
};

const E2FSPROGS: Packages = Packages {
    debian: "e2fsprogs",
    fedora: "e2fsprogs",
    suse: "e2fsprogs",
    arch: "e2fsprogs",
};

const UTIL_LINUX: Packages = Packages {
    debian: "util-linux mount",
    fedora: "util-linux",
    suse: "util-linux",
    arch: "util-linux",
};

/// Programs that the tests run.
const PROGRAMS: [(&str, &Packages); 6] = [
    ("mke2fs", &E2FSPROGS),
    ("addr2line", &BINUTILS),
    ("unshare", &UTIL_LINUX),
    ("nsenter", &UTIL_LINUX),
    ("setpriv", &UTIL_LINUX),
    ("mount", &UTIL_LINUX),
];

/// The formatter, in the packaging of the compiler that is new enough.
const RUSTFMT: Packages = Packages {
    debian: "rustfmt-web",
    fedora: "rustfmt",
    suse: "rust",
    arch: "rust",
};

const CLIPPY: Packages = Packages {
    debian: "rust-web-clippy",
    fedora: "clippy",
    suse: "rust",
    arch: "rust",
};

/// Programs of cargo that the checks of the sources run, which Debian packages apart and a minimal rustup lacks.
/// Each with rustup's name of it.
const CARGO_TOOLS: [(&str, &str, &Packages); 2] =
    [("fmt", "rustfmt", &RUSTFMT), ("clippy", "clippy", &CLIPPY)];

/// A missing requirement.
struct Lack {
    what: String,
    packages: Option<&'static Packages>,
}

/// Checks everything that a task needs of this machine. `environments` is the number of PyTorches
/// that it may set up.
///
/// # Errors
///
/// If something is missing; the message lists all of it, and the packages to install.
pub fn check(repository: &Repository, task: Task, environments: u64) -> Result<()> {
    let mut lacks = Vec::new();
    lacks.extend(rights(task));
    lacks.extend(kernel(&read("/proc/sys/kernel/osrelease")));
    lacks.extend(python());
    lacks.extend(compilers(task));
    if task == Task::Tests {
        let absent = CARGO_TOOLS.iter().filter(|(tool, ..)| !cargo_has(tool));
        lacks.extend(absent.map(|(tool, component, packages)| Lack {
            what: format!(
                "there is no `cargo {tool}` (with rustup: rustup component add {component})"
            ),
            packages: Some(packages),
        }));
    }
    if task != Task::Demo {
        let absent = PROGRAMS
            .iter()
            .filter(|(name, _)| process::on_path(name).is_none());
        lacks.extend(absent.map(|(name, packages)| Lack {
            what: format!("the program {name} is missing"),
            packages: Some(packages),
        }));
    }
    let missing = environments.saturating_sub(pytorch::environments_here()?);
    let mut needed = missing * ENVIRONMENT_BYTES;
    if missing > 0 && Path::new("/dev/nvidia0").exists() {
        needed += CUDA_BYTES;
    }
    lacks.extend(disk(&cache_folder()?, needed));
    if !repository.target().join("release").exists() {
        lacks.extend(disk(&repository.target(), BUILD_BYTES));
    }
    if lacks.is_empty() {
        return Ok(());
    }
    bail!(
        "{}",
        message(&lacks, Distribution::of(&read("/etc/os-release")))
    )
}

/// Returns the newest Python that is here and has a wheel of this PyTorch.
pub fn newest_python(torch: &str) -> Option<Interpreter> {
    newest_where(torch, |interpreter| interpreter.present().is_some())
}

/// Returns the newest Python for the default PyTorch that this machine can run directly: one that was unpacked from a
/// distribution runs behind a dynamic loader, which its command line shows.
pub fn installed_python() -> Interpreter {
    newest_where(pytorch::DEFAULT_TORCH, |interpreter| {
        let info = interpreter.present();
        info.is_some_and(|info| !python::is_unpacked(&info.executable))
    })
    .unwrap_or_else(usual_python)
}

fn newest_where(torch: &str, is_wanted: impl Fn(&Interpreter) -> bool) -> Option<Interpreter> {
    let release = pytorch::release_of(torch)?;
    let mut minors = release.pythons.to_vec();
    minors.sort_unstable_by(|one, other| other.cmp(one));
    minors
        .into_iter()
        .map(|minor| Interpreter::Version(PythonVersion::three(minor)))
        .find(is_wanted)
}

/// Returns the newest Python for the default PyTorch: one that is here, or else one that this process
/// may install.
pub fn usual_python() -> Interpreter {
    newest_python(pytorch::DEFAULT_TORCH)
        .unwrap_or_else(|| Interpreter::Version(PythonVersion::three(13)))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

fn rights(task: Task) -> Option<Lack> {
    let what = match task {
        _ if process::is_root() => return None,
        Task::Demo if process::on_path("sudo").is_some() => return None,
        Task::Demo => "attaching needs root: run this as root, or install sudo",
        Task::Features | Task::Tests => {
            "the integration tests attach probes, which needs root. Run\n\
             \x20   sudo -E env \"PATH=$PATH\" cargo xtask test\n\
             \x20 or, for the tests that need neither root nor PyTorch,\n\
             \x20   cargo xtask test --no-pytorch"
        }
    };
    Some(Lack {
        what: what.to_owned(),
        packages: None,
    })
}

fn kernel(release: &str) -> Vec<Lack> {
    let mut lacks = Vec::new();
    let mut lack = |what: String| {
        lacks.push(Lack {
            what,
            packages: None,
        });
    };
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    if version < (Some(5), Some(15)) {
        lack(format!(
            "the kernel is {}, and memprobe needs Linux 5.15",
            release.trim()
        ));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        lack("the kernel has no BTF (/sys/kernel/btf/vmlinux; CONFIG_DEBUG_INFO_BTF)".to_owned());
    }
    lacks
}

fn python() -> Option<Lack> {
    let Some(interpreter) = newest_python(pytorch::DEFAULT_TORCH) else {
        return (!apt::can_install()).then(|| Lack {
            what: format!(
                "no Python of PyTorch {} is here: one of 3.11 to 3.15",
                pytorch::DEFAULT_TORCH
            ),
            packages: Some(&PYTHON),
        });
    };
    let info = interpreter.present()?;
    let makes_environments =
        process::answer(Command::new(&info.executable).args(["-c", "import venv, ensurepip"]));
    (makes_environments.is_err() && !apt::can_install()).then(|| Lack {
        what: format!("{} has no module venv", info.executable.display()),
        packages: Some(&PYTHON),
    })
}

/// Returns the missing compilers: C for the simulated CUDA and the tests' programs, C++ for
/// `torch.compile`.
fn compilers(task: Task) -> Vec<Lack> {
    let simulates = !Path::new("/dev/nvidia0").exists();
    let mut lacks = Vec::new();
    if simulates || task != Task::Demo {
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        lacks.extend(compiler_of(&compiler, "c", "#include <pthread.h>\n", &C));
    }
    if task != Task::Demo {
        lacks.extend(compiler_of("c++", "c++", "#include <vector>\n", &CXX));
    }
    lacks
}

fn compiler_of(
    program: &str,
    language: &str,
    source: &str,
    packages: &'static Packages,
) -> Option<Lack> {
    let lack = |what: String| {
        Some(Lack {
            what,
            packages: Some(packages),
        })
    };
    let child = Command::new(program)
        .args(["-fsyntax-only", "-x", language, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        return lack(format!("there is no compiler {program}"));
    };
    if let Some(mut input) = child.stdin.take() {
        // A compiler that does not read fails by its status.
        let _ = input.write_all(source.as_bytes());
    }
    if child.wait().is_ok_and(|status| status.success()) {
        return None;
    }
    lack(format!(
        "{program} does not compile {}: headers are missing",
        source.trim()
    ))
}

/// True if cargo has a program of this name that runs.
fn cargo_has(tool: &str) -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    process::answer(Command::new(cargo).args([tool, "--version"])).is_ok()
}

/// Returns a lack if a folder's file system has less free space.
fn disk(folder: &Path, needed: u64) -> Option<Lack> {
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let found = rustix::fs::statvfs(existing).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    (free < needed).then(|| Lack {
        what: format!(
            "{:.1} GB are free for {}, and {:.0} GB are needed",
            free as f64 / 1e9,
            folder.display(),
            needed as f64 / 1e9
        ),
        packages: None,
    })
}

impl Distribution {
    /// Reads the family in the text of `/etc/os-release` (os-release(5)).
    fn of(text: &str) -> Self {
        let values = text.lines().filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            matches!(name, "ID" | "ID_LIKE").then(|| value.trim_matches('"'))
        });
        for word in values.flat_map(str::split_whitespace) {
            match word {
                "debian" | "ubuntu" => return Self::Debian,
                "fedora" | "rhel" | "centos" => return Self::Fedora,
                "suse" | "opensuse" => return Self::Suse,
                "arch" => return Self::Arch,
                _ => {}
            }
        }
        Self::Unknown
    }

    /// Returns the command that installs packages.
    fn command(self) -> &'static str {
        match self {
            Self::Debian => "apt-get install",
            Self::Fedora => "dnf install",
            Self::Suse => "zypper install",
            Self::Arch => "pacman -S",
            Self::Unknown => "install, by the names of Debian:",
        }
    }

    fn names(self, packages: &Packages) -> &'static str {
        match self {
            Self::Debian | Self::Unknown => packages.debian,
            Self::Fedora => packages.fedora,
            Self::Suse => packages.suse,
            Self::Arch => packages.arch,
        }
    }
}

fn message(lacks: &[Lack], distribution: Distribution) -> String {
    let mut text = "this machine lacks something; nothing was downloaded:".to_owned();
    let mut names: Vec<&str> = Vec::new();
    for lack in lacks {
        text += &format!("\n- {}", lack.what);
        let of_it = lack.packages.map(|packages| distribution.names(packages));
        for name in of_it.into_iter().flat_map(str::split_whitespace) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if !names.is_empty() {
        text += &format!("\nAs root: {} {}", distribution.command(), names.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lack(what: &str, packages: &'static Packages) -> Lack {
        Lack {
            what: what.to_owned(),
            packages: Some(packages),
        }
    }

    #[test]
    fn packages_have_the_names_of_the_distribution() {
        let lacks = [
            lack("no compiler", &C),
            lack("no C++", &CXX),
            lack("no cc", &C),
        ];
        for (os_release, command) in [
            ("ID=debian\n", "apt-get install gcc libc6-dev g++"),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                "apt-get install gcc libc6-dev g++",
            ),
            (
                "NAME=x\nID=\"rocky\"\nID_LIKE=\"rhel fedora\"\n",
                "dnf install gcc glibc-devel gcc-c++",
            ),
            ("ID=arch\n", "pacman -S gcc"),
            (
                "ID=nixos\n",
                "install, by the names of Debian: gcc libc6-dev g++",
            ),
        ] {
            let text = message(&lacks, Distribution::of(os_release));
            assert!(text.ends_with(&format!("As root: {command}")), "{text}");
            assert!(text.contains("\n- no compiler\n- no C++\n"), "{text}");
        }
    }

    #[test]
    fn a_compiler_that_is_missing_or_has_no_headers_is_a_lack() {
        let missing = compiler_of("/no/such/cc", "c", "", &C).expect("it is missing");
        assert_eq!(missing.what, "there is no compiler /no/such/cc");
        let without = compiler_of("/bin/false", "c", "#include <stdio.h>\n", &C);
        let without = without.expect("it fails");
        assert!(
            without.what.contains("headers are missing"),
            "{}",
            without.what
        );
        assert!(compiler_of("/bin/true", "c", "", &C).is_none());
    }

    #[test]
    fn an_old_kernel_is_a_lack() {
        let lacks = kernel("5.10.0-9-amd64\n");
        assert!(lacks[0].what.starts_with("the kernel is 5.10.0-9-amd64"));
        let newer = kernel("6.1.0");
        assert!(
            newer
                .iter()
                .all(|lack| !lack.what.starts_with("the kernel is"))
        );
    }

    #[test]
    fn a_program_of_cargo_that_does_not_run_is_missing() {
        assert!(cargo_has("clippy"));
        assert!(!cargo_has("no-such-program"));
    }

    #[test]
    fn a_full_disk_is_a_lack() {
        let folder = Path::new("/tmp/no/such/folder");
        assert!(disk(folder, 0).is_none());
        let lack = disk(folder, u64::MAX).expect("it is too small");
        assert!(lack.what.contains("/tmp/no/such/folder"), "{}", lack.what);
    }
}

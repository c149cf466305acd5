//! Builds the guests' two read-only disks. The system disk (C library, Python, PyTorch) is made
//! once, the test disk for every build.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use crate::process;
use crate::pytorch::Environment;

/// Mount point of the test disk in the guest.
pub const TESTS: &str = "/run/tests";

/// Parts of a Python that no test needs.
const LEFT_OUT: [&str; 5] = [
    "test",
    "site-packages",
    "dist-packages",
    "idlelib",
    "ensurepip",
];

/// Version of the system disk's layout; increment it when [`system`] changes.
const EDITION: u32 = 2;

/// Paths of a Python.
struct Python {
    /// The program, with all links resolved.
    program: PathBuf,
    /// Folder of the standard library.
    library: PathBuf,
    /// Virtual environment with PyTorch.
    environment: PathBuf,
}

impl Python {
    fn of(environment: &Environment) -> Result<Self> {
        let question = "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); \
                        print(sysconfig.get_path('stdlib')); print(sys.prefix)";
        let answer = process::answer(Command::new(&environment.python).args(["-c", question]))?;
        let mut lines = answer.lines().map(PathBuf::from);
        let mut next = || lines.next().context("Python does not say where it lies");
        Ok(Self {
            program: next()?,
            library: next()?,
            environment: next()?,
        })
    }
}

/// Makes the system disk: a Python with PyTorch at the same paths as here, the shared libraries of
/// both, and `mount_point`, an empty folder.
pub fn system(
    environment: &Environment,
    busybox: &Path,
    mount_point: &Path,
    cache: &Path,
) -> Result<PathBuf> {
    let python = Python::of(environment)?;
    let verified = fs::metadata(python.environment.join("memprobe-verified"))?.modified()?;
    let words = format!(
        "{EDITION} {} {} {} {verified:?}",
        python.environment.display(),
        python.program.display(),
        mount_point.display()
    );
    let name = format!("system-{}", short_digest(&words));
    let disk = cache.join(format!("{name}.ext4"));
    if disk.exists() {
        return Ok(disk);
    }
    forget_older(cache)?;
    eprintln!("  making the guests' disk with PyTorch, {}", disk.display());
    let stage = cache.join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    for folder in [
        "bin", "dev", "etc", "lib64", "proc", "root", "run", "sys", "tmp", "var",
    ] {
        fs::create_dir_all(stage.join(folder))?;
    }
    fs::create_dir_all(below(&stage, mount_point))?;
    copy_tree(&python.environment, &stage, &[])?;
    copy_tree(&python.library, &stage, &LEFT_OUT)?;
    copy_file(&python.program, &stage)?;
    for library in libraries_of(&[&python.environment, &python.library, &python.program])? {
        copy_file(&library, &stage)?;
    }
    fs::copy(busybox, stage.join("bin/busybox"))?;
    make(&stage, "system", &disk)?;
    fs::remove_dir_all(&stage)?;
    Ok(disk)
}

/// Makes the test disk: `files` by their names below [`TESTS`], and the script.
pub fn tests(files: &[(PathBuf, String)], script: &str, cache: &Path) -> Result<PathBuf> {
    let stage = cache.join("tests");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    fs::create_dir_all(&stage)?;
    for (from, name) in files {
        let to = stage.join(name);
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        let from = from.as_os_str();
        process::run_unseen(Command::new("cp").arg("-rL").arg(from).arg(&to))?;
    }
    fs::write(stage.join("run.sh"), script)?;
    let disk = cache.join("tests.ext4");
    make(&stage, "tests", &disk)?;
    fs::remove_dir_all(&stage)?;
    Ok(disk)
}

/// Makes an ext4 image of a folder, with a tenth of free space (guests only read it).
fn make(stage: &Path, label: &str, disk: &Path) -> Result<()> {
    let used = process::answer(Command::new("du").arg("-sk").arg(stage))?;
    let kib: u64 = used
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .context("du gives no number")?;
    let partial = disk.with_extension("partial");
    if partial.exists() {
        fs::remove_file(&partial)?;
    }
    process::answer(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-O", "^has_journal", "-L", label, "-d"])
            .arg(stage)
            .arg(&partial)
            .arg(format!("{}k", kib + kib / 10 + 32 * 1024)),
    )?;
    fs::rename(&partial, disk)?;
    Ok(())
}

/// Copies a folder to the same path below `stage`, by hard links where possible.
fn copy_tree(folder: &Path, stage: &Path, left_out: &[&str]) -> Result<()> {
    let to = below(stage, folder);
    fs::create_dir_all(&to)?;
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if left_out.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let linked = Command::new("cp")
            .arg("-al")
            .arg(entry.path())
            .arg(&to)
            .output()
            .context("cannot start cp")?;
        // Hard links fail across file systems.
        if !linked.status.success() {
            process::run_unseen(
                Command::new("cp")
                    .args(["-a", "--remove-destination"])
                    .arg(entry.path())
                    .arg(&to),
            )?;
        }
    }
    Ok(())
}

/// Copies a file to the same path below `stage`; a link is replaced by its target.
fn copy_file(file: &Path, stage: &Path) -> Result<()> {
    let to = below(stage, file);
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn below(stage: &Path, path: &Path) -> PathBuf {
    stage.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the system's shared libraries that the programs and libraries below `places` need.
fn libraries_of(places: &[&Path]) -> Result<BTreeSet<PathBuf>> {
    let found = process::answer(
        Command::new("find")
            .args(places)
            .args(["-type", "f", "(", "-name", "*.so*", "-o", "-perm", "-100"])
            .args([")", "-print0"]),
    )?;
    let files: Vec<&str> = found
        .split('\0')
        .filter(|file| is_elf(Path::new(file)))
        .collect();
    let mut libraries = BTreeSet::new();
    for some in files.chunks(200) {
        // ldd fails if one file is not dynamic, but still prints the others.
        let output = Command::new("ldd")
            .args(some)
            .output()
            .context("cannot start ldd")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        libraries.extend(
            needed(&printed)
                .filter(|library| !places.iter().any(|place| library.starts_with(place))),
        );
    }
    Ok(libraries)
}

/// Parses ldd(1) output: `libm.so.6 => /lib/libm.so.6 (0x…)` or `/lib64/ld.so (0x…)`.
fn needed(printed: &str) -> impl Iterator<Item = PathBuf> {
    printed.lines().filter_map(|line| {
        let line = line.trim();
        let path = line.split_once("=> ").map_or(line, |(_, path)| path);
        let (path, _) = path.split_once(" (0x")?;
        path.starts_with('/').then(|| PathBuf::from(path))
    })
}

/// True if a file is a program or a library, and no script.
pub fn is_elf(file: &Path) -> bool {
    use std::io::Read as _;
    let mut start = [0; 4];
    fs::File::open(file).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
        && start == *b"\x7fELF"
}

/// Removes the system disks of earlier environments.
fn forget_older(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("system-") && name.ends_with(".ext4") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn short_digest(words: &str) -> String {
    let digest = Sha256::digest(words.as_bytes());
    digest
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_ldd_are_its_paths() {
        let printed = "/a/python:\n\tlinux-vdso.so.1 (0x00007ffd)\n\
                       \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                       \tlibc10.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\
                       \tstatically linked\n";
        let found: Vec<_> = needed(printed).collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libm.so.6"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn a_disk_holds_the_files_of_its_folder() {
        if process::on_path("mke2fs").is_none() {
            println!("skipped: e2fsprogs is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("words");
        fs::write(&file, "some words").unwrap();
        let disk = tests(&[(file, "bin/words".to_owned())], "echo", folder.path()).unwrap();
        let words = process::answer(
            Command::new("debugfs")
                .args(["-R", "cat bin/words"])
                .arg(&disk),
        );
        assert_eq!(words.unwrap(), "some words");
    }
}

//! Packages of this system, installed with apt-get.

use std::fs::File;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::process;
use crate::repository::cache_folder;

/// True if this process can install packages.
pub fn can_install() -> bool {
    process::is_root() && process::on_path("apt-get").is_some()
}

/// Installs packages. Waits for another task of this repository that installs some: the tests set up
/// environments while they compile.
///
/// # Errors
///
/// If apt-get is missing or fails, knows no such package or would remove others, or this process is not root.
pub fn install<T: AsRef<str>>(packages: &[T]) -> Result<()> {
    if process::on_path("apt-get").is_none() {
        bail!("this system has no apt-get");
    }
    if !process::is_root() {
        bail!("apt-get needs root");
    }
    let packages: Vec<&str> = packages.iter().map(AsRef::as_ref).collect();
    let _turn = turn()?;
    update_lists()?;
    for package in &packages {
        let shown = process::answer(Command::new("apt-cache").args(["show", package]));
        if !shown.is_ok_and(|shown| describes(&shown, package)) {
            bail!("apt-get knows no package {package}");
        }
    }
    eprintln!("Installing with apt-get: {}", packages.join(" "));
    process::run(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            // A package that conflicts, such as rustup with Debian's compilers, is not ours to remove.
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .arg("--no-remove")
            .args(packages),
    )
}

/// Updates the lists of packages, once in a process.
///
/// # Errors
///
/// If apt-get fails.
pub fn update() -> Result<()> {
    let _turn = turn()?;
    update_lists()
}

fn update_lists() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_none() {
        process::run(Command::new("apt-get").args(["update", "-q"]))?;
        DONE.get_or_init(|| ());
    }
    Ok(())
}

/// Waits for other tasks that use apt-get, until the file is closed.
fn turn() -> Result<File> {
    let cache = cache_folder()?;
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("cannot create {}", cache.display()))?;
    let turn = File::create(cache.join("apt.lock")).context("cannot lock apt-get")?;
    flock(&turn, FlockOperation::LockExclusive).context("cannot lock apt-get")?;
    Ok(turn)
}

/// True if the output of `apt-cache show` is of this package (`NAME` or `NAME=VERSION`). Of an unknown
/// package apt shows those of similar names.
fn describes(shown: &str, package: &str) -> bool {
    let (name, version) = match package.split_once('=') {
        Some((name, version)) => (name, Some(version)),
        None => (package, None),
    };
    shown.split("\n\n").any(|one| {
        let is = |field: &str, value: &str| {
            let line = |line: &str| line.strip_prefix(field).is_some_and(|it| it == value);
            one.lines().any(line)
        };
        is("Package: ", name) && version.is_none_or(|version| is("Version: ", version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_a_similar_name_is_another_one() {
        let shown =
            "Package: postgresql-plpython3-15\nVersion: 15.20\n\nPackage: gcc\nVersion: 12\n";
        assert!(describes(shown, "gcc") && describes(shown, "gcc=12"));
        assert!(!describes(shown, "python3.15") && !describes(shown, "gcc=13"));
        assert!(!describes("", "gcc"));
    }
}

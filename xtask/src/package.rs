//! Builds memprobe from its own packages alone, as `cargo install memprobe` builds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::repository::Repository;

/// Packages that users install, each after those that it depends on.
const PACKAGES: [&str; 2] = ["memprobe-common", "memprobe"];

/// Profile of the repository's manifest whose dependencies a release and the tests share.
pub const PROFILE: &str = "checks";

/// Section of the manifest with the settings of the repository's own packages in [`PROFILE`].
const OWN_SETTINGS: &str = "[profile.checks.package]";

/// Packages memprobe, unpacks the packages outside of the repository's packages, and builds the release with
/// the repository's lock file. A file outside of its package is an error of the compiler. Returns the program's path.
pub fn build(repository: &Repository) -> Result<PathBuf> {
    let mut package = cargo(repository.root());
    package.args(["package", "--no-verify", "--allow-dirty", "--quiet"]);
    for name in PACKAGES {
        package.args(["--package", name]);
    }
    process::run(&mut package)?;
    let folder = repository.target().join("packages-alone");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let version = env!("CARGO_PKG_VERSION");
    for name in PACKAGES {
        let file = format!("package/{name}-{version}.crate");
        let mut unpack = Command::new("tar");
        // Touched: cargo packs files with one old date, by which a later check would look fresh.
        unpack.arg("-xmzf").arg(repository.target().join(file));
        process::run_unseen(unpack.arg("-C").arg(&folder))?;
    }
    let root = fs::read_to_string(repository.root().join("Cargo.toml"))?;
    fs::write(folder.join("Cargo.toml"), workspace(&root, version))
        .with_context(|| format!("cannot write {}", folder.display()))?;
    fs::copy(
        repository.root().join("Cargo.lock"),
        folder.join("Cargo.lock"),
    )?;
    // In the repository's folder of outputs, which other builds may have filled with the dependencies.
    let mut build = cargo(&folder);
    build.args(["build", "--profile", PROFILE, "--package", "memprobe"]);
    build.arg("--target-dir").arg(repository.target());
    process::run(&mut build)?;
    fs::remove_dir_all(&folder)?;
    // The repository's own build in this profile has the same path, and comes later: its tests run that program.
    let packaged = repository.target().join("packaged/release");
    fs::create_dir_all(&packaged)?;
    let program = packaged.join("memprobe");
    fs::copy(repository.target().join(PROFILE).join("memprobe"), &program)?;
    Ok(program)
}

fn cargo(folder: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(folder);
    command
}

/// Returns the manifest of a workspace of the unpacked packages, with the profiles of the repository:
/// with others the dependencies would be built anew. [`OWN_SETTINGS`] are left out, so that [`PROFILE`] is a release.
fn workspace(root: &str, version: &str) -> String {
    let mut text = "[workspace]\nresolver = \"3\"\nmembers = [".to_owned();
    let folders = PACKAGES.map(|name| format!("\"{name}-{version}\""));
    text += &format!("{}]\n\n[patch.crates-io]\n", folders.join(", "));
    for name in PACKAGES {
        text += &format!("{name} = {{ path = \"{name}-{version}\" }}\n");
    }
    let mut is_profile = false;
    for line in root.lines() {
        if line.starts_with('[') {
            is_profile = line.starts_with("[profile.") && line != OWN_SETTINGS;
        }
        if is_profile {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_are_built_without_the_settings_of_the_repositorys_own_packages() {
        let root = fs::read_to_string(Repository::here().root().join("Cargo.toml")).unwrap();
        let is_there = |section: &str| root.lines().any(|line| line == section);
        assert!(is_there(&format!("[profile.{PROFILE}]")) && is_there(OWN_SETTINGS));
        let packages = workspace(&root, "0.1.0");
        assert!(packages.contains("inherits = \"release\"\nlto = \"off\"\n"));
        assert!(!packages.contains(OWN_SETTINGS));
    }

    #[test]
    fn the_workspace_of_the_packages_has_the_profiles_and_nothing_else() {
        let root = "[workspace]\nmembers = [\"xtask\"]\n\n[profile.dev]\ndebug = 1\n\n[profile.checks.package]\nmemprobe \
                    = { opt-level = 0 }\n\n[workspace.lints.rust]\nx = 1\n";
        let text = workspace(root, "0.1.0");
        assert!(text.contains("members = [\"memprobe-common-0.1.0\", \"memprobe-0.1.0\"]"));
        assert!(text.contains("memprobe-common = { path = \"memprobe-common-0.1.0\" }"));
        assert!(text.ends_with("[profile.dev]\ndebug = 1\n\n"), "{text}");
    }
}

//! A root file system in the cache, and commands in it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::system::Description;
use crate::apt;
use crate::process;
use crate::repository::cache_folder;

/// Program that makes root file systems of Debian and Ubuntu.
const BOOTSTRAP: &str = "mmdebstrap";

/// Runs a command in a root file system. It is the root of a mount namespace of its own: after a plain chroot, programs
/// cannot make user namespaces. Nothing is mounted below the folder for this machine, when it is removed.
const ENTER: &str = "root=$1; shift
mount --bind \"$root\" \"$root\"
for folder in proc sys dev; do mount --rbind /$folder \"$root/$folder\"; done
cd \"$root\"
pivot_root . run
cd /
umount --lazy /run
exec \"$@\"";

/// Files of this machine without which its network cannot be used: names, certificates, settings of pip and cargo.
const SETTINGS: [&str; 6] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/root/.config/pip/pip.conf",
    "/root/.cargo/config.toml",
    "/usr/local/share/ca-certificates",
];

/// A root file system.
pub struct RootFolder(PathBuf);

impl RootFolder {
    /// Makes a root file system with nothing but apt; an earlier one of this name goes.
    pub fn create(system: &Description) -> Result<Self> {
        if process::on_path(BOOTSTRAP).is_none() {
            apt::install(&[BOOTSTRAP])?;
        }
        let keys = system.archive.keyring()?;
        let folder = cache_folder()?.join("bare").join(system.suite);
        let root = Self(folder);
        root.remove()?;
        fs::create_dir_all(root.path())
            .with_context(|| format!("cannot make {}", root.path().display()))?;
        let mut sources = vec![(system.archive.mirror, system.suite)];
        sources.extend(system.updates);
        let mut bootstrap = Command::new(BOOTSTRAP);
        bootstrap
            .args(["--quiet", "--variant=minbase", "--include=apt"])
            .arg(format!("--keyring={}", keys.display()))
            .arg(system.suite)
            .arg(root.path());
        for (mirror, suite) in sources {
            bootstrap.arg(format!(
                "deb {mirror} {suite} {}",
                system.archive.components
            ));
        }
        process::run(&mut bootstrap)?;
        // The answer to the question of `apt-get install`.
        let answers = root.inner(Path::new("/etc/apt/apt.conf.d/yes"));
        fs::write(answers, "APT::Get::Assume-Yes \"true\";\n")?;
        root.copy_settings()?;
        Ok(root)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Copies this machine's settings of the network.
    fn copy_settings(&self) -> Result<()> {
        for file in SETTINGS
            .map(Path::new)
            .into_iter()
            .filter(|file| file.exists())
        {
            let copy = self.inner(file);
            fs::create_dir_all(copy.parent().unwrap_or(&self.0))?;
            if file.is_dir() {
                fs::create_dir_all(&copy)?;
            }
            let source = match file.is_dir() {
                true => file.join("."),
                false => file.to_owned(),
            };
            process::run_unseen(Command::new("cp").arg("-rL").arg(source).arg(copy))?;
        }
        Ok(())
    }

    /// Returns the path here of a path in it.
    fn inner(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Runs a line of the shell in it, as root, without this process's environment.
    pub fn run(&self, folder: &str, line: &str) -> Result<()> {
        println!("$ {line}");
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-ec",
                ENTER,
                "sh",
            ])
            .arg(&self.0)
            .args(["env", "-i", "HOME=/root", "TERM=dumb", "LANG=C.UTF-8"])
            .arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .arg("DEBIAN_FRONTEND=noninteractive")
            .args(network_variables())
            .args(["sh", "-ec", "cd \"$0\" && eval \"$1\"", folder])
            .arg(line);
        let status = command.status().context("cannot start unshare")?;
        if !status.success() {
            bail!("`{line}` failed ({status})");
        }
        Ok(())
    }

    /// Removes it. Nothing is mounted there: see [`ENTER`].
    pub fn remove(&self) -> Result<()> {
        process::run_unseen(
            Command::new("rm")
                .args(["-rf", "--one-file-system"])
                .arg(&self.0),
        )
    }
}

/// Returns the variables by which this process reaches the network, as `NAME=VALUE`.
fn network_variables() -> Vec<OsString> {
    let settings = std::env::vars_os().filter(|(name, _)| is_for_network(&name.to_string_lossy()));
    settings
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect()
}

fn is_for_network(name: &str) -> bool {
    const BEGINNINGS: [&str; 7] = [
        "PIP_",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_SOURCE_",
        "RUSTUP_DIST_",
        "SSL_CERT_",
    ];
    // A folder of this machine.
    name != "PIP_FIND_LINKS"
        && (name.to_ascii_lowercase().ends_with("_proxy")
            || BEGINNINGS.iter().any(|begin| name.starts_with(begin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_the_network_are_handed_on() {
        for name in [
            "https_proxy",
            "NO_PROXY",
            "PIP_INDEX_URL",
            "CARGO_HTTP_CAINFO",
        ] {
            assert!(is_for_network(name), "{name}");
        }
        for name in ["PATH", "HOME", "CARGO_PKG_NAME", "PIP_FIND_LINKS", "CARGO"] {
            assert!(!is_for_network(name), "{name}");
        }
    }
}

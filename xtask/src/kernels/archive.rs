//! Downloads kernel packages by apt with its own folders: installs nothing and leaves this
//! machine's sources alone. apt verifies the archives' signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::catalog::{Distribution, Kernel};
use crate::process;

const DEBIAN: &str = "http://deb.debian.org/debian";
const DEBIAN_SECURITY: &str = "http://deb.debian.org/debian-security";
const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";

/// Debian's keys, from its package `debian-archive-keyring`.
const DEBIAN_KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Ubuntu's keys, from Debian's package `ubuntu-keyring` (since Debian 13) or from Ubuntu itself.
const UBUNTU_KEYS: &str = "/usr/share/keyrings/ubuntu-archive-keyring.gpg";

/// Archive component of free software.
const MAIN: &str = "main";

/// Name prefixes of the packages that make up a kernel image.
const PARTS: [&str; 3] = ["linux-image-", "linux-modules-", "linux-binary-"];

/// An apt configuration with its own sources, lists and cache.
pub struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Configures apt for a kernel's archive below `folder` and updates the lists.
    pub fn of(kernel: &Kernel, folder: &Path) -> Result<Self> {
        let sources = match kernel.distribution {
            Distribution::Debian => debian_sources(kernel.suites),
            Distribution::Ubuntu => {
                let keys = ubuntu_keys(folder)?;
                sources(UBUNTU, kernel.suites, MAIN, &keys)
            }
        };
        Self::with_sources(&sources, &folder.join("apt").join(kernel.name))
    }

    /// Configures apt for these suites of Debian.
    pub fn debian(suites: &[&str], folder: &Path) -> Result<Self> {
        Self::with_sources(&debian_sources(suites), folder)
    }

    /// Debian's archive of software that is not free, of one suite.
    pub fn debian_non_free(suite: &str, folder: &Path) -> Result<Self> {
        let keys = Path::new(DEBIAN_KEYS);
        Self::with_sources(&sources(DEBIAN, &[suite], "non-free", keys), folder)
    }

    fn with_sources(sources: &str, folder: &Path) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial", "packages"] {
            let part = folder.join(part);
            fs::create_dir_all(&part)
                .with_context(|| format!("cannot create {}", part.display()))?;
        }
        fs::write(folder.join("sources.list"), sources).context("cannot write sources.list")?;
        let archive = Self {
            folder: folder.to_owned(),
        };
        process::answer(archive.apt("apt-get").arg("update"))
            .context("the archive's lists cannot be fetched")?;
        Ok(archive)
    }

    /// Returns an apt command that knows only this archive.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let settings = [
            ("Dir::Etc::SourceList", self.folder.join("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".into()),
            ("Dir::State::Lists", self.folder.join("lists")),
            ("Dir::State::Status", "/dev/null".into()),
            ("Dir::Cache", self.folder.join("cache")),
            ("APT::Sandbox::User", "root".into()),
            ("APT::Architecture", "amd64".into()),
        ];
        for (name, value) in settings {
            command
                .arg("-o")
                .arg(format!("{name}={}", value.to_string_lossy()));
        }
        command.env("LC_ALL", "C.UTF-8");
        command
    }

    /// Resolves a metapackage such as `linux-image-amd64` to the packages of the image.
    pub fn image(&self, package: &str) -> Result<Vec<Package>> {
        let mut wanted = vec![package.to_owned()];
        let mut at = 0;
        while let Some(package) = wanted.get(at) {
            let depends = process::answer(self.apt("apt-cache").args(["depends", package]))?;
            for part in parts(&depends) {
                if !wanted.contains(&part) {
                    wanted.push(part);
                }
            }
            at += 1;
        }
        if wanted.len() == 1 {
            bail!("{package} depends on no kernel image");
        }
        // The first entry is the metapackage itself.
        wanted[1..].iter().map(|name| self.find(name)).collect()
    }

    /// Finds the newest version of a package.
    pub fn find(&self, name: &str) -> Result<Package> {
        let shown =
            process::answer(
                self.apt("apt-cache")
                    .args(["show", "--no-all-versions", name]),
            )?;
        let version = field(&shown, "Version")
            .with_context(|| format!("the archive has no version of {name}"))?;
        let bytes = field(&shown, "Size").and_then(|size| size.parse().ok());
        Ok(Package {
            name: name.to_owned(),
            version: version.to_owned(),
            bytes: bytes.unwrap_or(0),
        })
    }

    /// Downloads a package and unpacks it below `into`.
    pub fn unpack(&self, package: &Package, into: &Path) -> Result<()> {
        let place = self.folder.join("packages");
        let words = format!("{}={}", package.name, package.version);
        process::answer(
            self.apt("apt-get")
                .current_dir(&place)
                .args(["download", &words]),
        )?;
        let start = format!("{}_", package.name);
        let file = fs::read_dir(&place)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&start) && name.ends_with(".deb")
            })
            .with_context(|| format!("apt-get download {words} left no package"))?;
        let unpacked = process::answer(Command::new("dpkg-deb").arg("-x").arg(&file).arg(into));
        fs::remove_file(&file)?;
        unpacked.map(drop)
    }
}

/// A package in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// Size of the download.
    pub bytes: u64,
}

/// Formats lines of a sources.list(5) that restrict apt to package lists, without descriptions and
/// icons.
fn sources(address: &str, suites: &[&str], component: &str, keys: &Path) -> String {
    let mut text = String::new();
    for suite in suites {
        text += &format!(
            "deb [arch=amd64 target=Packages signed-by={}] {address} {suite} {component}\n",
            keys.display()
        );
    }
    text
}

/// Like [`sources`] for Debian, whose security updates are in an archive of their own.
fn debian_sources(suites: &[&str]) -> String {
    let lines = suites.iter().map(|suite| {
        let address = if suite.ends_with("-security") {
            DEBIAN_SECURITY
        } else {
            DEBIAN
        };
        sources(address, &[*suite], MAIN, Path::new(DEBIAN_KEYS))
    });
    lines.collect()
}

/// Returns Ubuntu's keys: this machine's, or those from Debian's signed package.
fn ubuntu_keys(folder: &Path) -> Result<PathBuf> {
    if Path::new(UBUNTU_KEYS).is_file() {
        return Ok(UBUNTU_KEYS.into());
    }
    let unpacked = folder.join("ubuntu-keyring");
    let keys = unpacked.join(UBUNTU_KEYS.trim_start_matches('/'));
    if !keys.is_file() {
        let debian = Archive::debian(&["trixie"], &folder.join("apt/keyring"))?;
        debian.unpack(&debian.find("ubuntu-keyring")?, &unpacked)?;
    }
    Ok(keys)
}

/// Returns the packages of a kernel image in the output of `apt-cache depends`.
fn parts(depends: &str) -> Vec<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| PARTS.iter().any(|part| name.starts_with(part)))
        // Skip extra drivers, which a virtual machine does not need, and the unsigned copy of the
        // kernel.
        .filter(|name| !name.starts_with("linux-modules-extra-"))
        .filter(|name| !name.starts_with("linux-image-unsigned-"))
        .map(str::to_owned)
        .collect()
}

/// Returns a field of a package's description.
fn field<'a>(description: &'a str, name: &str) -> Option<&'a str> {
    description
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_and_its_modules_are_parts_of_a_kernel_and_firmware_is_not() {
        let depends = "linux-image-generic\n  Depends: linux-image-5.15.0-25-generic\n  \
                       Depends: linux-modules-extra-5.15.0-25-generic\n  Depends: linux-firmware\n  \
                       |Depends: linux-image-a\n  Depends: linux-image-unsigned-5.15.0-25-generic\n  \
                       Depends: linux-modules-5.15.0-25-generic\n  Suggests: linux-image-x\n";
        assert_eq!(
            parts(depends),
            [
                "linux-image-5.15.0-25-generic",
                "linux-modules-5.15.0-25-generic"
            ]
        );
    }

    #[test]
    fn security_updates_come_from_their_own_archive() {
        let text = debian_sources(&["bookworm", "bookworm-security"]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("http://deb.debian.org/debian bookworm main"));
        assert!(lines[1].ends_with("http://deb.debian.org/debian-security bookworm-security main"));
        assert!(
            text.contains("signed-by=/usr/share/keyrings/"),
            "unsigned: {text}"
        );
    }

    #[test]
    fn software_that_is_not_free_is_asked_for_by_its_component() {
        let text = sources(DEBIAN, &["sid"], "non-free", Path::new(DEBIAN_KEYS));
        assert!(text.ends_with(" sid non-free\n"), "{text}");
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let shown = "Package: x\nInstalled-Size: 9\nSize: 12\nVersion: 6.1.192-2\n";
        assert_eq!(field(shown, "Size"), Some("12"));
        assert_eq!(field(shown, "Version"), Some("6.1.192-2"));
        assert_eq!(field(shown, "Vers"), None);
    }
}

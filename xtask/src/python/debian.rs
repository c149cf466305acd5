//! Pythons from releases of Debian and Ubuntu, unpacked into the cache together with their C
//! library. Changes nothing on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::pytorch::{PythonVersion, install_with_apt};
use crate::repository::cache_folder;

/// Archive of a distribution.
#[derive(Clone, Copy)]
pub struct Archive {
    pub mirror: &'static str,
    pub components: &'static str,
    /// Keyring that verifies the indexes; `keys_package` contains it.
    keys: &'static str,
    keys_package: &'static str,
}

/// A distribution release and the Pythons used from it.
struct Release {
    suite: &'static str,
    archive: Archive,
    c_library: CLibrary,
    /// Minor versions.
    pythons: &'static [u8],
}

/// C library that a release's Pythons run with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CLibrary {
    /// The release's own.
    Own,
    /// This machine's: the release's loader is too old for `--argv0` (glibc 2.33).
    OfThisMachine,
}

pub const DEBIAN: Archive = Archive {
    mirror: "http://deb.debian.org/debian",
    components: "main",
    keys: "usr/share/keyrings/debian-archive-keyring.gpg",
    keys_package: "debian-archive-keyring",
};

pub const UBUNTU: Archive = Archive {
    mirror: "http://archive.ubuntu.com/ubuntu",
    components: "main universe",
    keys: "usr/share/keyrings/ubuntu-archive-keyring.gpg",
    keys_package: "ubuntu-keyring",
};

/// Release of Debian with the keys of all archives.
const RELEASE_WITH_KEYS: &str = "trixie";

/// Releases, one for each group of Pythons that the others lack.
const RELEASES: [Release; 6] = [
    Release {
        suite: "sid",
        archive: DEBIAN,
        c_library: CLibrary::Own,
        pythons: &[14, 15],
    },
    Release {
        suite: "trixie",
        archive: DEBIAN,
        c_library: CLibrary::Own,
        pythons: &[13],
    },
    Release {
        suite: "noble",
        archive: UBUNTU,
        c_library: CLibrary::Own,
        pythons: &[12],
    },
    Release {
        suite: "bookworm",
        archive: DEBIAN,
        c_library: CLibrary::Own,
        pythons: &[11],
    },
    Release {
        suite: "jammy",
        archive: UBUNTU,
        c_library: CLibrary::Own,
        pythons: &[10],
    },
    Release {
        suite: "bullseye",
        archive: DEBIAN,
        c_library: CLibrary::OfThisMachine,
        pythons: &[9],
    },
];

/// Possible folders of a release's C library.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// Marker file of a completely unpacked release.
const WHOLE: &str = "memprobe-whole";

/// Returns the Python of this version if it is already unpacked.
pub fn present(version: PythonVersion) -> Option<PathBuf> {
    let release = RELEASES
        .iter()
        .find(|release| release.pythons.contains(&version.minor()))?;
    let folder = release.folder().ok()?;
    let program = wrapper(&folder, version.minor());
    (folder.join(WHOLE).exists() && program.exists()).then_some(program)
}

/// True for a Python that was unpacked from a distribution.
pub fn is_unpacked(program: &Path) -> bool {
    let mut folders = RELEASES.iter().filter_map(|release| release.folder().ok());
    folders.any(|folder| program.starts_with(folder))
}

/// Returns the Python of this version; downloads and unpacks it if it is missing.
///
/// # Errors
///
/// If no release has it, or the download fails.
pub fn unpack(version: PythonVersion) -> Result<PathBuf> {
    if let Some(program) = present(version) {
        return Ok(program);
    }
    let Some(release) = RELEASES
        .iter()
        .find(|release| release.pythons.contains(&version.minor()))
    else {
        bail!("no release of Debian or Ubuntu that is known here has Python {version}");
    };
    for program in ["apt-get", "dpkg-deb"] {
        if process::on_path(program).is_none() {
            bail!(
                "Python {version} comes from {}, which takes {program}",
                release.suite
            );
        }
    }
    release
        .unpack()
        .with_context(|| format!("Python {version} could not be had from {}", release.suite))?;
    present(version).with_context(|| format!("{} has no Python {version} any more", release.suite))
}

/// Returns the script that runs the Python of an unpacked release. The script lies in `usr/bin`,
/// from which Python locates its standard library.
fn wrapper(folder: &Path, minor: u8) -> PathBuf {
    folder.join(format!("usr/bin/memprobe-python3.{minor}"))
}

impl Release {
    fn folder(&self) -> Result<PathBuf> {
        Ok(cache_folder()?.join("python").join(self.suite))
    }

    /// Downloads the packages with a separate apt state, and unpacks them.
    fn unpack(&self) -> Result<()> {
        let folder = self.folder()?;
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let apt = AptState::create(folder.join("apt"), &self.archive, self.suite)?;
        let pythons = self.pythons.iter();
        let mut packages: Vec<_> = pythons.clone().map(|it| format!("python3.{it}")).collect();
        packages.extend(pythons.map(|it| format!("python3.{it}-venv")));
        packages.push("libstdc++6".to_owned());
        apt.download(&packages)?;
        apt.unpack_into(&folder, |package| {
            self.c_library == CLibrary::Own || !package.starts_with("libc6_")
        })?;
        // Everything needed is unpacked; the index alone takes 60 MB.
        apt.remove()?;
        for &minor in self.pythons {
            write_wrapper(&folder, self.c_library, minor)?;
        }
        fs::write(folder.join(WHOLE), "").context("cannot write into the cache")
    }
}

impl Archive {
    /// Returns the keyring: this machine's, or else the one that Debian packages.
    ///
    /// # Errors
    ///
    /// If it is not here and cannot be downloaded.
    pub fn keyring(&self) -> Result<PathBuf> {
        let here = Path::new("/").join(self.keys);
        if here.exists() || install_with_apt(&[self.keys_package]) && here.exists() {
            return Ok(here);
        }
        if self.mirror == DEBIAN.mirror {
            bail!(
                "the keys of its index are missing: install the package {}",
                self.keys_package
            );
        }
        let folder = cache_folder()?.join("keys");
        let unpacked = folder.join(self.keys);
        if !unpacked.exists() {
            let apt = AptState::create(folder.join("apt"), &DEBIAN, RELEASE_WITH_KEYS)?;
            apt.download(&[self.keys_package.to_owned()])?;
            apt.unpack_into(&folder, |package| package.starts_with(self.keys_package))?;
            apt.remove()?;
        }
        Ok(unpacked)
    }
}

/// State of apt for one release alone, with no package installed.
struct AptState {
    folder: PathBuf,
}

impl AptState {
    fn create(folder: PathBuf, archive: &Archive, suite: &str) -> Result<Self> {
        let keys = archive.keyring()?;
        for part in ["state/lists/partial", "cache/archives/partial", "etc"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let at = folder.display();
        let user = if process::is_root() {
            // apt's download user cannot access the cache.
            "APT::Sandbox::User \"root\";\n"
        } else {
            ""
        };
        let configuration = format!(
            "Dir::State \"{at}/state\";\n\
             Dir::State::status \"{at}/status\";\n\
             Dir::Cache \"{at}/cache\";\n\
             Dir::Etc::sourcelist \"{at}/sources.list\";\n\
             Dir::Etc::sourceparts \"{at}/etc\";\n\
             Dir::Etc::preferencesparts \"{at}/etc\";\n\
             APT::Architecture \"amd64\";\n\
             APT::Architectures {{ \"amd64\"; }};\n\
             APT::Install-Recommends \"false\";\n\
             Acquire::Languages \"none\";\n\
             {user}"
        );
        let source = format!(
            "deb [signed-by={}] {} {suite} {}\n",
            keys.display(),
            archive.mirror,
            archive.components
        );
        for (name, text) in [
            ("apt.conf", configuration.as_str()),
            ("sources.list", source.as_str()),
            ("status", ""),
        ] {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Self { folder })
    }

    /// Downloads packages, and those that they depend on.
    fn download(&self, packages: &[String]) -> Result<()> {
        let get = || {
            let mut command = Command::new("apt-get");
            command.env("APT_CONFIG", self.folder.join("apt.conf"));
            command.arg("-qq");
            command
        };
        process::run(get().arg("update"))?;
        let mut install = get();
        install.args(["install", "--yes", "--download-only"]);
        process::run(install.args(packages))
    }

    /// Unpacks the downloaded packages whose file names are wanted.
    fn unpack_into(&self, folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
        for package in fs::read_dir(self.folder.join("cache/archives"))? {
            let package = package?.path();
            let name = package.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with(".deb") && is_wanted(&name) {
                let mut unpack = Command::new("dpkg-deb");
                process::run_unseen(unpack.arg("-x").arg(&package).arg(folder))?;
            }
        }
        Ok(())
    }

    fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.folder)
            .with_context(|| format!("cannot remove {}", self.folder.display()))
    }
}

/// Writes the script that starts a Python with its own C library. It passes on the name it was
/// called by, from which Python recognizes a virtual environment.
fn write_wrapper(folder: &Path, c_library: CLibrary, minor: u8) -> Result<()> {
    let own = || {
        let places = LIBRARIES.iter();
        places
            .map(|place| folder.join(place).join("ld-linux-x86-64.so.2"))
            .find(|loader| loader.exists())
            .context("there is no C library in it")
    };
    let loader = match c_library {
        CLibrary::Own => own()?,
        CLibrary::OfThisMachine => PathBuf::from("/lib64/ld-linux-x86-64.so.2"),
    };
    let libraries = LIBRARIES.map(|place| folder.join(place).display().to_string());
    let script = format!(
        "#!/bin/sh\n\
         exec '{}' --library-path '{}' --argv0 \"$0\" '{}' \"$@\"\n",
        loader.display(),
        libraries.join(":"),
        folder.join(format!("usr/bin/python3.{minor}")).display()
    );
    let path = wrapper(folder, minor);
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_comes_from_one_release() {
        for minor in crate::python::MINORS {
            let releases = RELEASES
                .iter()
                .filter(|release| release.pythons.contains(&minor));
            assert!(releases.count() <= 1, "3.{minor}");
        }
    }

    #[test]
    fn a_wrapper_names_its_loader_its_libraries_and_its_python() {
        let folder = tempfile::tempdir().unwrap();
        let loader = folder.path().join("lib/x86_64-linux-gnu");
        fs::create_dir_all(&loader).unwrap();
        fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        assert!(write_wrapper(folder.path(), CLibrary::Own, 14).is_err());
        fs::write(loader.join("ld-linux-x86-64.so.2"), "").unwrap();
        write_wrapper(folder.path(), CLibrary::Own, 14).unwrap();
        let script = fs::read_to_string(wrapper(folder.path(), 14)).unwrap();
        assert!(script.contains("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2' --library-path"));
        assert!(
            script.ends_with("/usr/bin/python3.14' \"$@\"\n"),
            "{script}"
        );
    }
}

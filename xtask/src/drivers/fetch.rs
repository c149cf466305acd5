//! Downloads of drivers and wheels, into the cache. apt and pip fetch them; nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::catalog::{Driver, Wheel};
use crate::kernels::archive::Archive;
use crate::process;
use crate::pytorch::Interpreter;

/// The file whose presence says that a folder is complete.
const RECORD: &str = "memprobe-package.json";

/// Programs that fetch and build, each with the Debian package that has it.
const NEEDED: [(&str, &str); 4] = [
    ("apt-get", "apt"),
    ("apt-cache", "apt"),
    ("dpkg-deb", "dpkg"),
    ("cc", "gcc"),
];

/// A driver in the cache.
#[derive(Debug, Clone)]
pub struct FetchedDriver {
    /// libcuda itself: no link.
    pub libcuda: PathBuf,
    /// NVML itself, where it was fetched.
    pub nvml: Option<PathBuf>,
    /// Debian's version of the package.
    pub package_version: String,
}

/// The record of a fetched package.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    package_version: String,
}

/// Fails with words where a program is missing.
pub fn check_programs() -> Result<()> {
    let missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|(program, _)| process::on_path(program).is_none())
        .map(|(_, package)| package)
        .collect();
    if !missing.is_empty() {
        bail!(
            "something is missing. On Debian or Ubuntu run\n  sudo apt-get install {}",
            missing.join(" ")
        );
    }
    Ok(())
}

impl Driver {
    /// Downloads and unpacks the driver, unless the cache has it.
    pub fn fetch(&self, cache: &Path) -> Result<FetchedDriver> {
        let folder = cache.join("packages").join(self.version);
        let record = match read_record(&folder) {
            Some(record) => record,
            None => self
                .download(&folder, cache)
                .with_context(|| format!("driver {} of Debian {}", self.version, self.suite))?,
        };
        let file = |start: &str| find_file(&folder, &format!("{start}.{}", self.version));
        Ok(FetchedDriver {
            libcuda: file("libcuda.so").with_context(|| {
                format!("{} of Debian has no libcuda {}", self.cuda, self.version)
            })?,
            nvml: file("libnvidia-ml.so"),
            package_version: record.package_version,
        })
    }

    fn download(&self, folder: &Path, cache: &Path) -> Result<Record> {
        remove(folder)?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let archive = Archive::debian_non_free(self.suite, &cache.join("apt").join(self.suite))?;
        let mut package_version = String::new();
        for name in [Some(self.cuda), self.nvml].into_iter().flatten() {
            let package = archive.find(name)?;
            if !package.version.starts_with(&format!("{}-", self.version)) {
                bail!(
                    "Debian {} has {name} {} by now, not {}: bring the list in catalog.rs up to date",
                    self.suite,
                    package.version,
                    self.version
                );
            }
            println!(
                "  fetching {name} {} from Debian {} (non-free), {:.1} MB",
                package.version,
                self.suite,
                package.bytes as f64 / 1e6
            );
            archive.unpack(&package, folder)?;
            if name == self.cuda {
                package_version = package.version;
            }
        }
        write_record(folder, package_version)
    }
}

impl Wheel {
    /// Downloads and unpacks the wheel, unless the cache has it; returns its folder.
    pub fn fetch(&self, cache: &Path) -> Result<PathBuf> {
        let name = format!("{}-{}", self.package, self.version);
        let folder = cache.join("wheels").join(&name);
        if read_record(&folder).is_none() {
            self.download(&folder)
                .with_context(|| format!("wheel {name}"))?;
        }
        Ok(folder)
    }

    fn download(&self, folder: &Path) -> Result<()> {
        remove(folder)?;
        let downloads = folder.join("download");
        fs::create_dir_all(&downloads)
            .with_context(|| format!("cannot create {}", downloads.display()))?;
        let python = python_with_pip()?;
        println!("  fetching {} {} by pip", self.package, self.version);
        process::answer(
            Command::new(&python)
                .args(["-m", "pip", "download", "--quiet", "--no-deps"])
                .args([
                    "--disable-pip-version-check",
                    "--no-cache-dir",
                    "--only-binary",
                    ":all:",
                ])
                .args(["--platform", "manylinux2014_x86_64"])
                .args(["--platform", "manylinux_2_28_x86_64"])
                .arg("--dest")
                .arg(&downloads)
                .arg(format!("{}=={}", self.package, self.version)),
        )?;
        for wheel in fs::read_dir(&downloads)? {
            process::answer(
                Command::new(&python)
                    .args(["-m", "zipfile", "-e"])
                    .arg(wheel?.path())
                    .arg(folder),
            )?;
        }
        remove(&downloads)?;
        write_record(folder, self.version.to_owned()).map(drop)
    }
}

/// A Python that can run pip.
fn python_with_pip() -> Result<PathBuf> {
    let on_path = process::on_path("python3");
    let known = || {
        let interpreter: Interpreter = "3.11".parse().ok()?;
        Some(interpreter.present()?.executable)
    };
    let has_pip = |python: &PathBuf| {
        process::answer(Command::new(python).args(["-m", "pip", "--version"])).is_ok()
    };
    let found = on_path.filter(has_pip).or_else(|| known().filter(has_pip));
    found.context(
        "the wheels come by pip, which no Python here has: run\n  sudo apt-get install python3-pip",
    )
}

/// A file of this name below a folder; links do not count.
pub fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    find(folder, &|found| found == name)
}

/// The first file, by path, below a folder whose name passes; links do not count.
pub fn find(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let kind = entry.file_type().ok()?;
        let found = match (kind.is_dir(), entry.file_name().to_str()) {
            (true, _) => find(&entry.path(), wanted),
            (false, Some(name)) if kind.is_file() && wanted(name) => Some(entry.path()),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn read_record(folder: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()
}

fn write_record(folder: &Path, package_version: String) -> Result<Record> {
    let record = Record { package_version };
    let path = folder.join(RECORD);
    fs::write(&path, serde_json::to_vec_pretty(&record)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(record)
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_file_in_any_folder_and_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("usr/lib/nvidia");
        fs::create_dir_all(&deep).unwrap();
        std::os::unix::fs::symlink("libcuda.so.1.2", deep.join("libcuda.so.1")).unwrap();
        assert_eq!(find_file(folder.path(), "libcuda.so.1"), None);
        fs::write(deep.join("libcuda.so.1.2"), "").unwrap();
        assert_eq!(
            find_file(folder.path(), "libcuda.so.1.2"),
            Some(deep.join("libcuda.so.1.2"))
        );
    }

    #[test]
    fn an_interrupted_download_is_not_taken_for_a_package() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_record(folder.path()).is_none());
        write_record(folder.path(), "1.2-3".to_owned()).unwrap();
        let record = read_record(folder.path()).unwrap();
        assert_eq!(record.package_version, "1.2-3");
    }
}

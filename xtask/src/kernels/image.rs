//! Bootable kernel: its image and the modules for virtual disks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::archive::{Archive, Package};
use super::catalog::Kernel;
use crate::process;

/// Drivers for a guest's disks and file system. ext4 requests its checksum module by name at run
/// time.
const DRIVERS: [&str; 4] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"];

/// Description file in a kernel's cache folder; written last.
const RECORD: &str = "kernel.json";

/// A kernel in the cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    /// Package of the image.
    pub package: String,
    /// Version of the package.
    pub version: String,
    /// Modules in load order: file names in the folder `modules`.
    modules: Vec<String>,
    #[serde(skip)]
    folder: PathBuf,
}

/// Policy for a cached kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Use it, whatever its age.
    Cached,
    /// Use it only if the archive has no newer one.
    Newest,
}

impl Image {
    /// Returns the kernel from the cache, or downloads it.
    pub fn fetch(kernel: &Kernel, cache: &Path, freshness: Freshness) -> Result<Self> {
        let folder = cache.join("kernel").join(kernel.name);
        let cached = Self::cached(&folder);
        if let (Some(image), Freshness::Cached) = (&cached, freshness) {
            return Ok(image.clone());
        }
        let archive = Archive::of(kernel, cache)?;
        let packages = archive.image(kernel.package)?;
        let newest = &packages[0];
        match cached {
            Some(image) if image.package == newest.name && image.version == newest.version => {
                Ok(image)
            }
            _ => Self::download(&archive, &packages, &folder),
        }
    }

    fn cached(folder: &Path) -> Option<Self> {
        let record = fs::read(folder.join(RECORD)).ok()?;
        let image: Self = serde_json::from_slice(&record).ok()?;
        Some(Self {
            folder: folder.to_owned(),
            ..image
        })
    }

    fn download(archive: &Archive, packages: &[Package], folder: &Path) -> Result<Self> {
        let unpacked = folder.with_extension("unpacked");
        for old in [folder, &unpacked] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
            fs::create_dir_all(old)?;
        }
        for package in packages {
            eprintln!(
                "  downloading {} {} ({} MB)",
                package.name,
                package.version,
                package.bytes / 1_000_000
            );
            archive.unpack(package, &unpacked)?;
        }
        fs::copy(kernel_in(&unpacked)?, folder.join("vmlinuz"))?;
        let image = Self {
            package: packages[0].name.clone(),
            version: packages[0].version.clone(),
            modules: keep_modules(&unpacked, &folder.join("modules"))?,
            folder: folder.to_owned(),
        };
        fs::remove_dir_all(&unpacked)?;
        fs::write(folder.join(RECORD), serde_json::to_vec_pretty(&image)?)?;
        Ok(image)
    }

    pub fn vmlinuz(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Returns the module files in load order.
    pub fn modules(&self) -> Vec<PathBuf> {
        let place = self.folder.join("modules");
        self.modules.iter().map(|name| place.join(name)).collect()
    }
}

/// Returns the kernel of unpacked packages: `boot/vmlinuz-RELEASE`, or beside the modules.
fn kernel_in(unpacked: &Path) -> Result<PathBuf> {
    let in_modules = modules_in(unpacked)?.join("vmlinuz");
    if in_modules.is_file() {
        return Ok(in_modules);
    }
    let boot = fs::read_dir(unpacked.join("boot")).context("the packages have no kernel")?;
    boot.filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("vmlinuz-")
        })
        .context("the packages have no kernel")
}

/// Returns the module folder of unpacked packages: `lib/modules/RELEASE`.
fn modules_in(unpacked: &Path) -> Result<PathBuf> {
    let tree = ["lib/modules", "usr/lib/modules"]
        .into_iter()
        .map(|place| unpacked.join(place))
        .find(|place| place.is_dir())
        .context("the packages have no modules")?;
    let release = fs::read_dir(&tree)?.next();
    Ok(release.context("the packages have no modules")??.path())
}

/// Copies the drivers and their dependencies, uncompressed; returns their names in load order.
/// Drivers built into the kernel have no file.
fn keep_modules(unpacked: &Path, into: &Path) -> Result<Vec<String>> {
    fs::create_dir_all(into)?;
    let release = modules_in(unpacked)?;
    let tree = release.parent().context("it lies in a folder")?;
    // depmod requires the modules below lib/modules.
    if !unpacked.join("lib/modules").exists() {
        fs::create_dir_all(unpacked.join("lib"))?;
        std::os::unix::fs::symlink(tree, unpacked.join("lib/modules"))?;
    }
    let name = release.file_name().unwrap_or_default();
    process::answer(Command::new("depmod").arg("-b").arg(unpacked).arg(name))?;
    let dependencies = fs::read_to_string(release.join("modules.dep")).context("no modules.dep")?;
    let mut modules = Vec::new();
    for file in in_order(&dependencies, &DRIVERS) {
        modules.push(uncompressed(&release.join(file), into)?);
    }
    Ok(modules)
}

/// Returns the files of these modules and their dependencies in load order. The text is a
/// modules.dep(5), which lists the dependencies of each file, the first to load last.
fn in_order<'a>(dependencies: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let mut files: Vec<&str> = Vec::new();
    for name in wanted {
        let line = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(file, _)| module_name(file) == *name);
        let Some((file, needs)) = line else { continue };
        for file in needs.split_whitespace().rev().chain([file]) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    files
}

/// Returns the module name, such as `ext4` for `kernel/fs/ext4/ext4.ko.xz`. Dashes become
/// underscores, because both mean the same.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

/// Writes a module uncompressed; returns its file name.
fn uncompressed(file: &Path, into: &Path) -> Result<String> {
    let path = file.to_string_lossy();
    let name = format!("{}.ko", module_name(&path));
    let bytes = match path.rsplit('.').next() {
        Some("ko") => fs::read(file)?,
        Some("xz") => output(Command::new("xz").arg("-dc").arg(file))?,
        Some("zst") => output(Command::new("zstd").arg("-dcq").arg(file))?,
        _ => bail!("{path} has a compression that is not known here"),
    };
    fs::write(into.join(&name), bytes)?;
    Ok(name)
}

/// Returns the bytes that a command prints.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .output()
        .with_context(|| format!("cannot start `{}`", process::shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", process::shown(command), output.status);
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "\
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko
";

    #[test]
    fn modules_are_loaded_after_what_they_need_and_once() {
        assert_eq!(
            in_order(DEPENDENCIES, &["virtio_blk", "virtio", "ext4", "built_in"]),
            [
                "kernel/drivers/virtio/virtio_ring.ko",
                "kernel/drivers/virtio/virtio.ko",
                "kernel/drivers/block/virtio_blk.ko.xz",
                "kernel/lib/crc16.ko",
                "kernel/fs/ext4/ext4.ko",
            ]
        );
    }

    #[test]
    fn a_module_is_named_without_its_compression() {
        assert_eq!(
            module_name("kernel/arch/x86/crypto/crc32c-intel.ko.zst"),
            "crc32c_intel"
        );
    }
}

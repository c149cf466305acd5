//! Initial RAM file system of a guest.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::image::Image;

/// Script that the guest runs as init.
const INIT: &str = include_str!("init.sh");

/// Writes a kernel's initramfs: a static busybox, the drivers and [`INIT`].
pub fn write(image: &Image, busybox: &Path, file: &Path) -> Result<()> {
    let folder = file.with_extension("folder");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    for part in ["bin", "modules", "proc", "sys", "dev", "root"] {
        fs::create_dir_all(folder.join(part))?;
    }
    fs::copy(busybox, folder.join("bin/busybox"))?;
    let mut order = String::new();
    for module in image.modules() {
        let name = module.file_name().context("a module has a name")?;
        fs::copy(&module, folder.join("modules").join(name))
            .with_context(|| format!("cannot copy {}", module.display()))?;
        order += &format!("{}\n", name.to_string_lossy());
    }
    fs::write(folder.join("modules/order"), order)?;
    let init = folder.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    pack(&folder, busybox, file)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Packs a folder in the format the kernel expects (cpio "newc";
/// Documentation/driver-api/early-userspace).
fn pack(folder: &Path, busybox: &Path, file: &Path) -> Result<()> {
    let script = format!("find . | '{}' cpio -o -H newc", busybox.display());
    let status = Command::new("sh")
        .args(["-c", &script])
        .current_dir(folder)
        .stdout(File::create(file)?)
        .stderr(Stdio::null())
        .status()
        .context("cannot start sh")?;
    if !status.success() {
        bail!("the initramfs cannot be packed ({status})");
    }
    Ok(())
}

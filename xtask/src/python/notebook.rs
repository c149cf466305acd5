//! Packages of the tests that run a notebook: a kernel, and a client without a browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process;
use crate::repository::cache_folder;

/// Environment variable with the folder of the packages.
pub const NOTEBOOK_PACKAGES: &str = "MEMPROBE_TEST_NOTEBOOK_PACKAGES";

const REQUIREMENTS: [&str; 2] = ["ipykernel==7.4.0", "nbclient==0.11.0"];

/// Installs the packages for an interpreter into a folder of their own, once. Returns the folder.
///
/// # Errors
///
/// If pip cannot install them.
pub fn packages(python: &Path, version: &str) -> Result<PathBuf> {
    let parent = cache_folder()?.join("notebook");
    let names = REQUIREMENTS.join("-").replace("==", "");
    let folder = parent.join(format!("python{version}-{names}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&parent)?;
    let partial = parent.join(format!(".partial-{}", std::process::id()));
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check"])
        .args(["--quiet", "--target"])
        .arg(&partial)
        .args(REQUIREMENTS);
    process::run(&mut pip).context("the packages of notebooks cannot be installed")?;
    match fs::rename(&partial, &folder) {
        // Another run was faster.
        Err(_) if folder.is_dir() => fs::remove_dir_all(&partial)?,
        renamed => renamed?,
    }
    Ok(folder)
}

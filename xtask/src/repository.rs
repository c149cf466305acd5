//! Where the things of this repository lie.

use std::path::{Path, PathBuf};

/// A checkout of memprobe, by its root folder.
#[derive(Debug, Clone)]
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// The checkout whose `cargo xtask` runs, or else the one that this program was built from.
    ///
    /// The two differ where checkouts share a target folder.
    pub fn here() -> Self {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        Self {
            root: package.parent().unwrap_or(&package).to_path_buf(),
        }
    }

    /// A checkout at `root`.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// The root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The package of the eBPF programs.
    pub fn ebpf_package(&self) -> PathBuf {
        self.root.join("memprobe-ebpf")
    }

    /// The compiled eBPF programs that are committed and embedded in memprobe.
    pub fn ebpf_object(&self) -> PathBuf {
        self.root.join("memprobe-ebpf/object/memprobe.bpf.o")
    }

    /// The record of what [`Self::ebpf_object`] was built from.
    pub fn ebpf_record(&self) -> PathBuf {
        self.root.join("memprobe-ebpf/object/memprobe.bpf.json")
    }

    /// The folder of build outputs: `$CARGO_TARGET_DIR`, or `target`.
    pub fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
            Some(folder) => self.root.join(folder),
            None => self.root.join("target"),
        }
    }
}

/// The folder for downloads and tools that outlive one checkout: `$MEMPROBE_CACHE`,
/// `$XDG_CACHE_HOME/memprobe` or `~/.cache/memprobe`.
pub fn cache_folder() -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("MEMPROBE_CACHE") {
        return Ok(folder.into());
    }
    if let Some(folder) = set("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(folder).join("memprobe"));
    }
    match set("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".cache/memprobe")),
        None => anyhow::bail!(
            "no folder for downloads is known: HOME is not set. Set MEMPROBE_CACHE to a folder"
        ),
    }
}

//! Paths in this repository.

use std::path::{Path, PathBuf};

/// A checkout of memprobe.
#[derive(Debug, Clone)]
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// Returns the checkout whose `cargo xtask` runs, or else the one this program was built from.
    ///
    /// The two differ if checkouts share a target folder.
    pub fn here() -> Self {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        Self {
            root: package.parent().unwrap_or(&package).to_path_buf(),
        }
    }

    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the package folder of the eBPF programs.
    pub fn ebpf_package(&self) -> PathBuf {
        self.root.join("memprobe-ebpf")
    }

    /// Returns the path of the committed eBPF object, which memprobe embeds.
    pub fn ebpf_object(&self) -> PathBuf {
        self.root.join("memprobe/object/memprobe.bpf.o")
    }

    /// Returns the path of the build record of [`Self::ebpf_object`].
    pub fn ebpf_record(&self) -> PathBuf {
        self.root.join("memprobe/object/memprobe.bpf.json")
    }

    /// Returns the folder of build outputs: `$CARGO_TARGET_DIR`, or `target`.
    pub fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
            Some(folder) => self.root.join(folder),
            None => self.root.join("target"),
        }
    }

    /// Returns the path of memprobe after `cargo build --release`.
    pub fn built_memprobe(&self) -> PathBuf {
        self.target().join("release/memprobe")
    }
}

/// Returns the folder for downloads and tools, shared by checkouts: `$MEMPROBE_CACHE`,
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

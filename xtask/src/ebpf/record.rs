//! Record of the sources and the toolchain behind the committed object.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::repository::Repository;

/// Versions of every tool that affects the object's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolchainVersions {
    /// Output of `rustc --version`.
    pub rustc: String,
    /// LLVM version inside `rustc`.
    pub llvm: String,
    /// Output of `bpf-linker --version`, and the version of its LLVM.
    pub bpf_linker: String,
}

impl std::fmt::Display for ToolchainVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            rustc,
            llvm,
            bpf_linker,
        } = self;
        write!(f, "{rustc}, LLVM {llvm}, {bpf_linker}")
    }
}

/// The record beside the committed object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`source_sha256`] of the sources.
    pub source_sha256: String,
    /// SHA-256 of the object file.
    pub object_sha256: String,
    pub toolchain: ToolchainVersions,
}

impl Record {
    /// Reads the record of `repository`; `None` if there is no file.
    pub fn read(repository: &Repository) -> Result<Option<Self>> {
        let path = repository.ebpf_record();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let record = serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged; make it anew with `cargo xtask ebpf`",
                path.display()
            )
        })?;
        Ok(Some(record))
    }

    pub fn write(&self, repository: &Repository) -> Result<()> {
        let path = repository.ebpf_record();
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 of all inputs of the build, sorted by path. Inputs are sources, manifests
/// and lock file of the eBPF package, and sources and manifest of `memprobe-common`.
pub fn source_sha256(repository: &Repository) -> Result<String> {
    let mut files = vec![
        PathBuf::from("memprobe-common/Cargo.toml"),
        PathBuf::from("memprobe-ebpf/Cargo.lock"),
        PathBuf::from("memprobe-ebpf/Cargo.toml"),
    ];
    for folder in ["memprobe-common/src", "memprobe-ebpf/src"] {
        collect_files(repository.root(), Path::new(folder), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let bytes = fs::read(repository.root().join(&file))
            .with_context(|| format!("cannot read {}", file.display()))?;
        // Hash lengths too, so that different sets of files never give the same byte stream.
        let name = file.to_string_lossy();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(hexadecimal(&hash.finalize()))
}

fn collect_files(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let listing = fs::read_dir(root.join(folder))
        .with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in listing {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect_files(root, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("memprobe-common/Cargo.toml", "[package]"),
            ("memprobe-common/src/lib.rs", "common"),
            ("memprobe-ebpf/Cargo.toml", "[package]"),
            ("memprobe-ebpf/Cargo.lock", "version = 4"),
            ("memprobe-ebpf/src/main.rs", "main"),
            ("memprobe-ebpf/src/walk/mod.rs", "walk"),
        ] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_same_sources_in_two_folders_have_one_hash() {
        let (one, other) = (checkout(), checkout());
        assert_eq!(
            source_sha256(&Repository::at(one.path())).unwrap(),
            source_sha256(&Repository::at(other.path())).unwrap()
        );
    }

    #[test]
    fn every_compiled_file_counts_in_the_hash() {
        let root = checkout();
        let repository = Repository::at(root.path());
        let mut seen = vec![source_sha256(&repository).unwrap()];
        for name in [
            "memprobe-common/Cargo.toml",
            "memprobe-common/src/lib.rs",
            "memprobe-ebpf/Cargo.toml",
            "memprobe-ebpf/Cargo.lock",
            "memprobe-ebpf/src/walk/mod.rs",
        ] {
            fs::write(root.path().join(name), "changed").unwrap();
            let now = source_sha256(&repository).unwrap();
            assert!(!seen.contains(&now), "a change of {name} was not seen");
            seen.push(now);
        }
        fs::rename(
            root.path().join("memprobe-ebpf/src/walk/mod.rs"),
            root.path().join("memprobe-ebpf/src/walk/frames.rs"),
        )
        .unwrap();
        assert!(!seen.contains(&source_sha256(&repository).unwrap()));
    }

    #[test]
    fn a_record_reads_back_as_written_and_a_damaged_one_says_what_to_do() {
        let root = checkout();
        let repository = Repository::at(root.path());
        assert_eq!(Record::read(&repository).unwrap(), None);
        fs::create_dir_all(repository.ebpf_record().parent().unwrap()).unwrap();
        let record = Record {
            source_sha256: "aa".into(),
            object_sha256: "bb".into(),
            toolchain: ToolchainVersions {
                rustc: "rustc 1.96.0".into(),
                llvm: "22.1.8".into(),
                bpf_linker: "bpf-linker 0.13.0 (LLVM 22.1.8)".into(),
            },
        };
        record.write(&repository).unwrap();
        assert_eq!(Record::read(&repository).unwrap(), Some(record));
        fs::write(repository.ebpf_record(), "{").unwrap();
        let error = Record::read(&repository).unwrap_err().to_string();
        assert!(error.contains("cargo xtask ebpf"), "{error}");
    }
}

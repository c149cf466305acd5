//! `cargo xtask ebpf`: builds the eBPF programs and checks the committed object against its
//! sources.
//!
//! The object is committed so that memprobe builds with a stable compiler alone. A record beside it
//! ([`record::Record`]) holds the hash of the sources and the toolchain; `--check` verifies both.

mod compile;
mod install;
mod object_file;
mod record;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use compile::stand_in_for_rustc;
use compile::{Lock, compile};
pub use record::sha256;
use record::{Record, ToolchainVersions, source_sha256};
use toolchain::Toolchain;

use crate::repository::{Repository, cache_folder};

/// Action for a missing toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Print installation instructions.
    Explain,
    Install,
}

/// Result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// Rebuilding gave the committed object, byte for byte.
    Same,
    /// Another toolchain than the recorded one built this other object from the same sources. The
    /// caller must run the tests on it too.
    OtherToolchain(PathBuf),
}

/// Builds the programs and writes the object and its record.
pub fn build(repository: &Repository, missing: Missing) -> Result<()> {
    // A damaged record only loses the preference for its toolchain; the build writes a new one.
    let recorded = Record::read(repository).unwrap_or_default();
    let toolchain = toolchain_for(recorded.as_ref(), missing)?;
    let object = compile(repository, &toolchain, Lock::Update)?;
    let path = repository.ebpf_object();
    let folder = path.parent().context("the object has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(&path, &object).with_context(|| format!("cannot write {}", path.display()))?;
    let record = Record {
        // Hash after the build, which may have updated the lock file.
        source_sha256: source_sha256(repository)?,
        object_sha256: sha256(&object),
        toolchain: toolchain.versions,
    };
    record.write(repository)?;
    let news = match recorded.map(|recorded| recorded.object_sha256 == record.object_sha256) {
        Some(true) => ", the same as before",
        Some(false) | None => "",
    };
    println!("{} ({} bytes{news})", path.display(), object.len());
    println!("built with {}", record.toolchain);
    Ok(())
}

/// Rebuilds the programs and compares them with the committed object.
pub fn check(repository: &Repository, missing: Missing) -> Result<Checked> {
    let record = committed(repository)?;
    let toolchain = toolchain_for(Some(&record), missing)?;
    let object = compile(repository, &toolchain, Lock::Keep)?;
    let fresh = fresh_object(repository);
    fs::write(&fresh, &object).with_context(|| format!("cannot write {}", fresh.display()))?;
    judge(&record, &toolchain.versions, &object, fresh)
}

/// Compares a rebuilt object, kept in `fresh`, with the record of the committed one.
///
/// # Errors
///
/// If the same toolchain built another object: the committed one does not come from its sources.
fn judge(
    record: &Record,
    toolchain: &ToolchainVersions,
    object: &[u8],
    fresh: PathBuf,
) -> Result<Checked> {
    let is_same = sha256(object) == record.object_sha256;
    let is_recorded = *toolchain == record.toolchain;
    match (is_same, is_recorded) {
        (true, true) => println!(
            "eBPF object: rebuilt, the same {} bytes as committed, SHA-256 {}",
            object.len(),
            record.object_sha256
        ),
        (true, false) => println!(
            "eBPF object: rebuilt by {toolchain}, the same as committed, SHA-256 {}",
            record.object_sha256
        ),
        (false, true) => bail!(
            "the committed object is not what its sources give: the same toolchain ({}) built another one, {}. Run \
             `cargo xtask ebpf` and commit both files of memprobe/object",
            record.toolchain,
            fresh.display()
        ),
        (false, false) => {
            println!("eBPF object: sources unchanged, but this machine has another toolchain");
            println!("  committed: {}", record.toolchain);
            println!("  here:      {toolchain}");
            println!(
                "  to try the fresh one: MEMPROBE_BPF_OBJECT={}",
                fresh.display()
            );
            return Ok(Checked::OtherToolchain(fresh));
        }
    }
    Ok(Checked::Same)
}

/// Checks the committed object and the sources against the record, without a build.
pub fn check_record(repository: &Repository) -> Result<()> {
    committed(repository).map(drop)
}

/// Compares the committed object with the one that the last [`check`] built.
pub fn compared(repository: &Repository) -> Result<Checked> {
    let fresh = fresh_object(repository);
    let read =
        |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    if read(&fresh)? == read(&repository.ebpf_object())? {
        return Ok(Checked::Same);
    }
    Ok(Checked::OtherToolchain(fresh))
}

/// True if a compiler and a linker of the programs are installed.
pub fn has_toolchain(repository: &Repository) -> Result<bool> {
    let recorded = Record::read(repository).unwrap_or_default();
    let recorded = recorded.as_ref().map(|record| &record.toolchain);
    Ok(toolchain::find(recorded, &cache_folder()?).is_ok())
}

fn fresh_object(repository: &Repository) -> PathBuf {
    repository.target().join("ebpf/memprobe.bpf.o")
}

/// Reads the record and verifies it against the committed object and the sources.
fn committed(repository: &Repository) -> Result<Record> {
    let record = Record::read(repository)?.with_context(|| {
        format!(
            "{} is missing; run `cargo xtask ebpf`",
            repository.ebpf_record().display()
        )
    })?;
    let path = repository.ebpf_object();
    let object = fs::read(&path)
        .with_context(|| format!("cannot read {}; run `cargo xtask ebpf`", path.display()))?;
    if sha256(&object) != record.object_sha256 {
        bail!(
            "{} is not the object of its record; run `cargo xtask ebpf`",
            path.display()
        );
    }
    if source_sha256(repository)? != record.source_sha256 {
        bail!("the eBPF sources changed without a rebuild: run `cargo xtask ebpf`");
    }
    Ok(record)
}

fn toolchain_for(record: Option<&Record>, missing: Missing) -> Result<Toolchain> {
    let tools = cache_folder()?;
    let recorded = record.map(|record| &record.toolchain);
    match (toolchain::find(recorded, &tools), missing) {
        (Ok(toolchain), Missing::Install) => {
            let other = recorded.filter(|recorded| toolchain.versions != **recorded);
            let Some(recorded) = other else {
                return Ok(toolchain);
            };
            match install::install_recorded(&tools, recorded) {
                Ok(recorded) => Ok(recorded),
                Err(error) => {
                    eprintln!("the recorded toolchain cannot be installed: {error:#}");
                    Ok(toolchain)
                }
            }
        }
        (Ok(toolchain), Missing::Explain) => Ok(toolchain),
        (Err(error), Missing::Install) => {
            eprintln!("{error}");
            install::install(&tools)
        }
        (Err(error), Missing::Explain) => bail!("{error}\n{}", install::by_hand()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout() -> (tempfile::TempDir, Repository) {
        let root = tempfile::tempdir().unwrap();
        let repository = Repository::at(root.path());
        for (name, text) in [
            ("memprobe-common/Cargo.toml", "[package]"),
            ("memprobe-common/src/lib.rs", "common"),
            ("memprobe-ebpf/Cargo.toml", "[package]"),
            ("memprobe-ebpf/Cargo.lock", "version = 4"),
            ("memprobe-ebpf/src/main.rs", "main"),
            ("memprobe/object/memprobe.bpf.o", "object"),
        ] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let record = Record {
            source_sha256: source_sha256(&repository).unwrap(),
            object_sha256: sha256(b"object"),
            toolchain: ToolchainVersions {
                rustc: "rustc".into(),
                llvm: "22".into(),
                bpf_linker: "bpf-linker".into(),
            },
        };
        record.write(&repository).unwrap();
        (root, repository)
    }

    fn refusal(repository: &Repository) -> String {
        format!("{:#}", committed(repository).unwrap_err())
    }

    #[test]
    fn an_untouched_checkout_is_accepted() {
        let (_root, repository) = checkout();
        committed(&repository).unwrap();
    }

    #[test]
    fn sources_that_changed_without_a_rebuild_are_refused() {
        let (root, repository) = checkout();
        fs::write(root.path().join("memprobe-ebpf/src/main.rs"), "changed").unwrap();
        assert!(refusal(&repository).contains("changed without a rebuild: run `cargo xtask ebpf`"));
    }

    #[test]
    fn an_object_that_is_not_the_recorded_one_is_refused() {
        let (_root, repository) = checkout();
        fs::write(repository.ebpf_object(), "another").unwrap();
        assert!(refusal(&repository).contains("not the object of its record"));
        fs::remove_file(repository.ebpf_object()).unwrap();
        assert!(refusal(&repository).contains("cannot read"));
    }

    #[test]
    fn an_object_that_its_sources_do_not_give_is_refused() {
        let (_root, repository) = checkout();
        let record = committed(&repository).unwrap();
        let judge_by = |rustc: &str, object: &[u8]| {
            let toolchain = ToolchainVersions {
                rustc: rustc.into(),
                ..record.toolchain.clone()
            };
            judge(&record, &toolchain, object, "/fresh.o".into())
        };
        let error = judge_by("rustc", b"another").unwrap_err().to_string();
        assert!(
            error.contains("not what its sources give") && error.contains("/fresh.o"),
            "{error}"
        );
        assert_eq!(judge_by("rustc", b"object").unwrap(), Checked::Same);
        assert_eq!(judge_by("rustc 2", b"object").unwrap(), Checked::Same);
        let other = Checked::OtherToolchain("/fresh.o".into());
        assert_eq!(judge_by("rustc 2", b"another").unwrap(), other);
    }

    #[test]
    fn a_missing_record_says_which_command_makes_it() {
        let (_root, repository) = checkout();
        fs::remove_file(repository.ebpf_record()).unwrap();
        assert!(refusal(&repository).contains("run `cargo xtask ebpf`"));
    }
}

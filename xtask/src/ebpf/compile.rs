//! Reproducible build of the eBPF programs: the same sources and toolchain give the same bytes in
//! every folder and for every user.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::object_file;
use super::record::sha256;
use super::toolchain::{Origin, Toolchain, clean};
use crate::process;
use crate::repository::Repository;

const TARGET: &str = "bpfel-unknown-none";

/// Set for the inner cargo, whose `RUSTC_WRAPPER` is this program; see [`stand_in_for_rustc`].
const WRAPPING: &str = "MEMPROBE_XTASK_WRAPS_RUSTC";

/// Policy for the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// cargo may update the lock file to match a changed manifest.
    Update,
    /// An outdated lock file is an error.
    Keep,
}

/// Compiles the programs and returns an object that is ready to embed.
pub fn compile(repository: &Repository, toolchain: &Toolchain, lock: Lock) -> Result<Vec<u8>> {
    // One folder per toolchain: cargo would not relink for another bpf-linker.
    let identity = sha256(toolchain.versions.to_string().as_bytes());
    let target = repository.target().join("ebpf").join(&identity[..8]);
    let folders = MappedFolders::of(repository, toolchain)?;
    let mut cargo = clean(Command::new(&toolchain.cargo));
    cargo
        .current_dir(repository.ebpf_package())
        .args([
            "build",
            "--release",
            "--target",
            TARGET,
            "-Z",
            "build-std=core",
        ])
        .arg("--target-dir")
        .arg(&target)
        .env("PATH", path_with(&toolchain.bpf_linker)?)
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_WRAPPER", std::env::current_exe()?)
        .env(WRAPPING, "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&folders));
    if toolchain.origin == Origin::Debian {
        // Debian's compiler is stable; its unstable options are those of a nightly of the same day.
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    if lock == Lock::Keep {
        cargo.arg("--locked");
    }
    process::run(&mut cargo).context("the eBPF programs do not compile")?;
    let built = target.join(TARGET).join("release/memprobe");
    let object = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let object = object_file::without_dwarf(&object)?;
    object_file::check(&object, &folders.local())?;
    Ok(object)
}

/// Folders of this machine whose names must not reach the object, each with its replacement.
struct MappedFolders(Vec<(String, &'static str)>);

impl MappedFolders {
    fn of(repository: &Repository, toolchain: &Toolchain) -> Result<Self> {
        let mut folders = Vec::new();
        let mut map = |folder: &Path, stands: &'static str| {
            // Map the name as given and with links resolved, because rustc may write either.
            for folder in [Some(folder.to_path_buf()), fs::canonicalize(folder).ok()]
                .into_iter()
                .flatten()
            {
                let pair = (folder.to_string_lossy().into_owned(), stands);
                if !folders.contains(&pair) {
                    folders.push(pair);
                }
            }
        };
        map(repository.root(), "/memprobe-sources");
        map(&toolchain.rust_sources, "/rust-sources");
        map(
            &toolchain.rust_sources.join("library"),
            "/rust-sources/library",
        );
        let sources = cargo_home()?.join("registry/src");
        map(&sources, "/crates");
        // One folder per registry, named by a hash of its address.
        for registry in fs::read_dir(&sources).into_iter().flatten().flatten() {
            map(&registry.path(), "/crates");
        }
        Ok(Self(folders))
    }

    fn local(&self) -> Vec<&str> {
        self.0.iter().map(|(folder, _)| folder.as_str()).collect()
    }
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}

/// Returns the flags of every crate, in the encoding of `CARGO_ENCODED_RUSTFLAGS`.
///
/// rustc applies the last matching `--remap-path-prefix`, so narrower prefixes come last.
fn rust_flags(folders: &MappedFolders) -> String {
    let mut flags = vec![
        r#"--cfg=bpf_target_arch="x86_64""#.to_owned(),
        // bpf-linker generates BTF from the debug information.
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ];
    for (folder, stands) in &folders.0 {
        flags.push(format!("--remap-path-prefix={folder}={stands}"));
    }
    flags.join("\u{1f}")
}

/// Returns `PATH` with the linker's folder first.
fn path_with(linker: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = linker.parent().map(Path::to_path_buf).into_iter();
    Ok(std::env::join_paths(
        folders.chain(std::env::split_paths(&path)),
    )?)
}

/// If cargo runs this program in place of rustc, runs rustc and does not return.
///
/// cargo passes `-C metadata`, a hash that distinguishes crates of one name. The hash includes the
/// absolute folder of a crate outside the workspace (memprobe-common, and `core` itself). Every
/// mangled name contains the hash, so it also determines the order of functions. This wrapper
/// derives it from the crate's name and version alone, which are unique in this build and equal on
/// every machine.
pub fn stand_in_for_rustc() {
    if std::env::var_os(WRAPPING).is_none() {
        return;
    }
    let mut arguments = std::env::args_os().skip(1);
    let Some(rustc) = arguments.next() else {
        return;
    };
    let variable = |name| std::env::var(name).unwrap_or_default();
    let identity = format!(
        "{}-{}",
        variable("CARGO_PKG_NAME"),
        variable("CARGO_PKG_VERSION")
    );
    let error = Command::new(&rustc)
        .args(with_metadata(arguments.collect(), &identity))
        .exec();
    eprintln!("cannot start {}: {error}", Path::new(&rustc).display());
    std::process::exit(1);
}

/// Replaces cargo's metadata hash in the arguments of a crate compiled for the eBPF target.
fn with_metadata(arguments: Vec<OsString>, metadata: &str) -> Vec<OsString> {
    if !arguments.iter().any(|argument| argument == TARGET) {
        return arguments;
    }
    arguments
        .into_iter()
        .map(|argument| match argument.to_str() {
            Some(text) if text.starts_with("metadata=") => format!("metadata={metadata}").into(),
            _ => argument,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_metadata_of_kernel_crates_does_not_depend_on_their_folder() {
        let given = words(&[
            "--crate-name",
            "common",
            "-C",
            "metadata=6f",
            "--target",
            TARGET,
        ]);
        let wanted = words(&[
            "--crate-name",
            "common",
            "-C",
            "metadata=common-0.1.0",
            "--target",
            TARGET,
        ]);
        assert_eq!(with_metadata(given, "common-0.1.0"), wanted);
    }

    #[test]
    fn crates_of_the_host_and_questions_to_rustc_pass_unchanged() {
        for given in [
            words(&["-vV"]),
            words(&["--crate-name", "syn", "-C", "metadata=6f"]),
        ] {
            assert_eq!(with_metadata(given.clone(), "syn-2"), given);
        }
    }

    #[test]
    fn every_mapped_folder_becomes_a_flag_in_order() {
        let folders = MappedFolders(vec![("/a".into(), "/x"), ("/a/b".into(), "/y")]);
        let flags = rust_flags(&folders);
        let maps: Vec<_> = flags
            .split('\u{1f}')
            .filter(|flag| flag.contains("remap"))
            .collect();
        assert_eq!(
            maps,
            ["--remap-path-prefix=/a=/x", "--remap-path-prefix=/a/b=/y"]
        );
    }
}

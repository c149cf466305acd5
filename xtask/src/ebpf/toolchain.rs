//! Compilers that can build the eBPF programs.
//!
//! The target `bpfel-unknown-none` has no precompiled `core`. The compiler must therefore come with
//! the sources of `core` and accept `-Z build-std`. Two do: rustup's nightly with `rust-src`, and
//! Debian's `rustc-web` with `rust-web-src`. Both pass their bitcode to bpf-linker.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::record::ToolchainVersions;
use crate::process;

/// Source of a compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `rustup toolchain install nightly --component rust-src`.
    Rustup,
    /// Debian's packages `rustc-web`, `cargo-web` and `rust-web-src`.
    Debian,
}

impl Origin {
    /// Every origin, the usual one first.
    pub const ALL: [Self; 2] = [Self::Rustup, Self::Debian];

    fn name(self) -> &'static str {
        match self {
            Self::Rustup => "rustup's nightly",
            Self::Debian => "Debian's rustc-web",
        }
    }
}

/// A compiler with the sources of `core`, and a matching linker.
#[derive(Debug, Clone)]
pub struct Toolchain {
    pub origin: Origin,
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    /// Folder that contains `library/core`.
    pub rust_sources: PathBuf,
    pub bpf_linker: PathBuf,
    pub versions: ToolchainVersions,
}

/// An installed compiler, with or without a linker.
#[derive(Debug, Clone)]
pub struct Compiler {
    pub origin: Origin,
    rustc: PathBuf,
    cargo: PathBuf,
    rust_sources: PathBuf,
    /// Output of `rustc --version`.
    version: String,
    llvm: String,
}

impl Compiler {
    /// Finds the compiler of this origin; the error names the missing part.
    pub fn find(origin: Origin) -> Result<Self> {
        let (rustc, cargo) = match origin {
            Origin::Rustup => (rustup_which("rustc")?, rustup_which("cargo")?),
            Origin::Debian => (
                PathBuf::from("/usr/bin/rustc"),
                PathBuf::from("/usr/bin/cargo"),
            ),
        };
        for program in [&rustc, &cargo] {
            if !program.is_file() {
                bail!("{} is not installed", program.display());
            }
        }
        let verbose = process::answer(clean(Command::new(&rustc)).arg("-vV"))?;
        let version = verbose.lines().next().unwrap_or_default().to_owned();
        let llvm = field(&verbose, "LLVM version")
            .with_context(|| format!("{} names no LLVM version", rustc.display()))?;
        let release = field(&verbose, "release").unwrap_or_default();
        if minor_release(&release).is_none_or(|minor| minor < OLDEST_MINOR) {
            bail!(
                "{} is Rust {release}; 1.{OLDEST_MINOR} or newer is needed",
                rustc.display()
            );
        }
        let sysroot = process::answer(clean(Command::new(&rustc)).args(["--print", "sysroot"]))?;
        let rust_sources = Path::new(&sysroot).join("lib/rustlib/src/rust");
        if !rust_sources.join("library/core/src/lib.rs").is_file() {
            bail!(
                "{version} has no sources of `core` at {}",
                rust_sources.display()
            );
        }
        Ok(Self {
            origin,
            rustc,
            cargo,
            rust_sources,
            version,
            llvm,
        })
    }

    /// Returns the major version of LLVM, which bpf-linker must share.
    pub fn llvm_major(&self) -> &str {
        self.llvm.split('.').next().unwrap_or(&self.llvm)
    }

    /// Adds a bpf-linker that reads the bitcode of the compiler's LLVM, searched for in `tools` and
    /// on `PATH`.
    pub fn with_linker(self, tools: &Path) -> Result<Toolchain> {
        let linker = [
            Some(linker_in(tools, self.llvm_major())),
            process::on_path("bpf-linker"),
        ]
        .into_iter()
        .flatten()
        .find(|program| program.is_file())
        .context("bpf-linker is not installed")?;
        let version = process::answer(Command::new(&linker).arg("--version"))?;
        let linker_llvm = linker_llvm(&linker)?;
        if let Some(linker_llvm) = &linker_llvm
            && major(linker_llvm) < major(&self.llvm)
        {
            bail!(
                "{} uses LLVM {linker_llvm} and cannot read the bitcode of LLVM {}",
                linker.display(),
                self.llvm
            );
        }
        let bpf_linker = match linker_llvm {
            Some(llvm) => format!("{version} (LLVM {llvm})"),
            None => format!("{version} (LLVM linked in)"),
        };
        Ok(Toolchain {
            origin: self.origin,
            rustc: self.rustc,
            cargo: self.cargo,
            rust_sources: self.rust_sources,
            bpf_linker: linker,
            versions: ToolchainVersions {
                rustc: self.version,
                llvm: self.llvm,
                bpf_linker,
            },
        })
    }
}

/// Oldest minor version of Rust 1: aya-ebpf 0.2.1 needs 1.87, edition 2024 with let chains 1.88.
const OLDEST_MINOR: u32 = 88;

/// Path of our own bpf-linker for one LLVM. The path includes the linker's version, so that an
/// older program never serves a newer pin.
pub fn linker_in(tools: &Path, llvm_major: &str) -> PathBuf {
    linker_root(tools, llvm_major).join("bin/bpf-linker")
}

/// The `--root` argument with which `cargo install` installs [`linker_in`].
pub fn linker_root(tools: &Path, llvm_major: &str) -> PathBuf {
    tools.join(format!(
        "bpf-linker-{}-llvm-{llvm_major}",
        super::install::BPF_LINKER_VERSION
    ))
}

/// Finds a toolchain: the recorded one if this machine has it, else the first complete one. The
/// error lists the missing parts of each.
pub fn find(recorded: Option<&ToolchainVersions>, tools: &Path) -> Result<Toolchain> {
    let (whole, lacking) = survey(tools);
    choose(whole, recorded).with_context(|| {
        format!(
            "no compiler for the eBPF programs is complete here:\n{}",
            lacking.join("\n")
        )
    })
}

/// Returns the complete toolchains of this machine, and a line about each incomplete one.
fn survey(tools: &Path) -> (Vec<Toolchain>, Vec<String>) {
    let (mut whole, mut lacking) = (Vec::new(), Vec::new());
    for origin in Origin::ALL {
        match Compiler::find(origin).and_then(|compiler| compiler.with_linker(tools)) {
            Ok(toolchain) => whole.push(toolchain),
            Err(error) => lacking.push(format!("  {}: {error:#}", origin.name())),
        }
    }
    (whole, lacking)
}

fn choose(whole: Vec<Toolchain>, recorded: Option<&ToolchainVersions>) -> Option<Toolchain> {
    let same = whole
        .iter()
        .position(|found| Some(&found.versions) == recorded);
    whole.into_iter().nth(same.unwrap_or(0))
}

fn rustup_which(program: &str) -> Result<PathBuf> {
    if process::on_path("rustup").is_none() {
        bail!("rustup is not installed");
    }
    let mut command = clean(Command::new("rustup"));
    command.args(["which", "--toolchain", "nightly", program]);
    // rustup's message is clear: "toolchain 'nightly-…' is not installed".
    process::answer(&mut command).map(PathBuf::from)
}

/// Removes the variables that the outer cargo and the user set for other builds. Left in place,
/// such variables change the compiler, its flags or its output.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let keep = [
            "CARGO_HOME",
            "CARGO_HTTP_",
            "CARGO_NET_",
            "CARGO_REGISTR",
            "CARGO_TERM_",
        ];
        let foreign = text.starts_with("CARGO") || text.starts_with("RUSTC") || text == "RUSTFLAGS";
        if text == "RUSTUP_TOOLCHAIN" || foreign && !keep.iter().any(|name| text.starts_with(name))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns the version of the LLVM library that `linker` loads; `None` if LLVM is linked
/// statically.
///
/// The library does the actual work, so its version matters as much as the linker's. Every LLVM
/// installation has `llvm-config` in `bin`, beside `lib`.
fn linker_llvm(linker: &Path) -> Result<Option<String>> {
    let libraries = process::answer(Command::new("ldd").arg(linker)).unwrap_or_default();
    let Some(library) = llvm_library(&libraries) else {
        return Ok(None);
    };
    let library = std::fs::canonicalize(&library)
        .with_context(|| format!("{} needs {library}, which is missing", linker.display()))?;
    let prefixes = library.ancestors().skip(2).take(1).map(Path::to_path_buf);
    let named = std::env::var_os("LLVM_PREFIX").map(PathBuf::from);
    // Debian: /usr/lib/x86_64-linux-gnu/libLLVM.so.22.1, with its tools in /usr/lib/llvm-22.
    let debian = soname_major(&library).map(|major| format!("/usr/lib/llvm-{major}").into());
    for prefix in prefixes.chain(debian).chain(named) {
        let config = prefix.join("bin/llvm-config");
        if config.is_file() {
            return process::answer(Command::new(config).arg("--version")).map(Some);
        }
    }
    Ok(soname_version(&library))
}

/// Returns the path of libLLVM in the output of `ldd`.
fn llvm_library(libraries: &str) -> Option<String> {
    libraries.lines().find_map(|line| {
        let (name, found) = line.split_once("=>")?;
        if !name.trim().starts_with("libLLVM") {
            return None;
        }
        Some(found.split_whitespace().next()?.to_owned())
    })
}

/// Returns `22.1` for `libLLVM.so.22.1`.
fn soname_version(library: &Path) -> Option<String> {
    let name = library.file_name()?.to_str()?;
    let version = name.split_once(".so.")?.1;
    Some(version.to_owned())
}

fn soname_major(library: &Path) -> Option<u32> {
    soname_version(library)?.split('.').next()?.parse().ok()
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Returns the value of a `name: value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .map(str::to_owned)
}

/// Returns `95` for `1.95.0`; `None` for anything but Rust 1.
fn minor_release(release: &str) -> Option<u32> {
    release.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(rustc: &str) -> Toolchain {
        Toolchain {
            origin: Origin::Rustup,
            rustc: "rustc".into(),
            cargo: "cargo".into(),
            rust_sources: "rust".into(),
            bpf_linker: "bpf-linker".into(),
            versions: ToolchainVersions {
                rustc: rustc.into(),
                llvm: "22.1.8".into(),
                bpf_linker: "bpf-linker 0.13.0".into(),
            },
        }
    }

    #[test]
    fn the_recorded_toolchain_is_preferred_to_the_first() {
        let whole = vec![toolchain("nightly"), toolchain("debian")];
        let recorded = toolchain("debian").versions;
        assert_eq!(
            choose(whole.clone(), Some(&recorded))
                .unwrap()
                .versions
                .rustc,
            "debian"
        );
        assert_eq!(
            choose(whole.clone(), None).unwrap().versions.rustc,
            "nightly"
        );
        let gone = toolchain("of last year").versions;
        assert_eq!(
            choose(whole, Some(&gone)).unwrap().versions.rustc,
            "nightly"
        );
        assert!(choose(Vec::new(), Some(&gone)).is_none());
    }

    #[test]
    fn the_llvm_library_is_found_among_the_others() {
        let libraries = "\tlinux-vdso.so.1 (0x7ff)\n\
             \tlibLLVM.so.22.1 => /usr/lib/llvm-22/lib/libLLVM.so.22.1 (0x7ff3d7800000)\n\
             \tlibc.so.6 => /lib/libc.so.6 (0x1)\n";
        let library = llvm_library(libraries).unwrap();
        assert_eq!(library, "/usr/lib/llvm-22/lib/libLLVM.so.22.1");
        assert_eq!(soname_version(Path::new(&library)).as_deref(), Some("22.1"));
        assert_eq!(soname_major(Path::new(&library)), Some(22));
        assert_eq!(llvm_library("\tstatically linked\n"), None);
    }

    #[test]
    fn versions_are_read_from_the_verbose_answer() {
        let verbose =
            "rustc 1.96.0 (ac68faa20 2026-05-25)\nrelease: 1.96.0-nightly\nLLVM version: 22.1.8";
        assert_eq!(field(verbose, "LLVM version").as_deref(), Some("22.1.8"));
        assert_eq!(minor_release(&field(verbose, "release").unwrap()), Some(96));
        assert_eq!(minor_release("2.0.0"), None);
    }
}

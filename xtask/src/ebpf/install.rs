//! Installation of a toolchain for the eBPF programs, if this machine allows it.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::record::ToolchainVersions;
use super::toolchain::{self, Compiler, Origin, Toolchain};
use crate::{apt, process};

/// Version of bpf-linker that this module installs.
pub const BPF_LINKER_VERSION: &str = "0.13.0";

/// LLVM version of Debian's `rustc-web`.
const DEBIAN_LLVM: &str = "22";

/// A package of the recorded toolchain.
struct Pinned {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
}

/// Packages that built the committed object, of Debian 12's security archive. crates.io keeps
/// bpf-linker and its lock file as they are. `cargo xtask ebpf` with another compiler asks to change
/// them.
const PINNED: [Pinned; 4] = [
    Pinned {
        name: "rustc-web",
        version: "1.96.0+dfsg1-1~deb12u2",
        sha256: "8fefe1d6377fe4082f5a9d2a47e095e2d20319eaab9754bd2f0275155c9adf90",
    },
    Pinned {
        name: "cargo-web",
        version: "1.96.0+dfsg1-1~deb12u2",
        sha256: "daa5189c56b7e0895f9c89335aae3fc909272f5df332c101c80405695014b149",
    },
    Pinned {
        name: "rust-web-src",
        version: "1.96.0+dfsg1-1~deb12u2",
        sha256: "9de8597c464d0a9283672973ed7e50092b49a92b95861429043fe8b57468a208",
    },
    Pinned {
        name: "llvm-22-dev",
        version: "1:22.1.8-1~deb12u1",
        sha256: "72250802fb65f281aa88bffe317bec70d6ddbe21134736c354a4f13ed24709ad",
    },
];

/// Installs missing parts and returns the toolchain.
///
/// An existing compiler is kept and only gets its linker. Otherwise, root on a system whose apt
/// knows `rustc-web` gets its packages.
pub fn install(tools: &Path) -> Result<Toolchain> {
    let mut obstacles = Vec::new();
    for origin in [Origin::Debian, Origin::Rustup] {
        match install_from(origin, tools) {
            Ok(toolchain) => return Ok(toolchain),
            Err(error) => obstacles.push(format!("  {error:#}")),
        }
    }
    bail!(
        "nothing could be installed:\n{}\n{}",
        obstacles.join("\n"),
        by_hand()
    )
}

/// Installs the toolchain that made the committed object.
///
/// # Errors
///
/// If this machine cannot have it.
pub fn install_recorded(tools: &Path, recorded: &ToolchainVersions) -> Result<Toolchain> {
    install_debian()?;
    let toolchain = install_from(Origin::Debian, tools)?;
    if toolchain.versions != *recorded {
        bail!("{} is what could be installed", toolchain.versions);
    }
    Ok(toolchain)
}

/// Returns the instructions for installing by hand.
pub fn by_hand() -> String {
    format!(
        "Install one of these and run the command again:\n\
         \x20 with rustup:  rustup toolchain install nightly --component rust-src\n\
         \x20               and bpf-linker {BPF_LINKER_VERSION} for its LLVM, on the PATH \
         (https://github.com/aya-rs/bpf-linker/releases)\n\
         \x20 on Debian:    as root, `cargo xtask ebpf --install` installs the packages {} \
         and builds bpf-linker",
        debian_packages().join(" ")
    )
}

fn debian_packages() -> Vec<String> {
    ["rustc-web", "cargo-web", "rust-web-src"]
        .into_iter()
        .map(str::to_owned)
        .chain([format!("llvm-{DEBIAN_LLVM}-dev")])
        .collect()
}

fn install_from(origin: Origin, tools: &Path) -> Result<Toolchain> {
    let compiler = match Compiler::find(origin) {
        Ok(compiler) => compiler,
        Err(missing) => {
            match origin {
                Origin::Debian => {
                    install_debian().map_err(|error| error.context(missing.to_string()))?
                }
                Origin::Rustup => {
                    install_nightly().map_err(|error| error.context(missing.to_string()))?
                }
            }
            Compiler::find(origin)?
        }
    };
    match compiler.clone().with_linker(tools) {
        Ok(toolchain) => Ok(toolchain),
        Err(_) => {
            install_linker(tools, compiler.llvm_major())?;
            compiler.with_linker(tools)
        }
    }
}

/// Installs the pinned packages, or those that the archive has instead. The latter build another
/// object than the committed one.
fn install_debian() -> Result<()> {
    if apt::can_install() {
        apt::update()?;
    }
    let lacking = PINNED.iter().find(|pinned| {
        let package = format!("{}={}", pinned.name, pinned.version);
        let shown = process::answer(Command::new("apt-cache").args(["show", &package]));
        !shown.is_ok_and(|shown| has_hash(&shown, pinned.sha256))
    });
    let Some(lacking) = lacking else {
        let exact = PINNED.map(|pinned| format!("{}={}", pinned.name, pinned.version));
        return install_packages(&exact);
    };
    eprintln!(
        "apt-get has no {} {} (SHA-256 {}), which built the committed object; installing what it has",
        lacking.name, lacking.version, lacking.sha256
    );
    install_packages(&debian_packages())
}

/// True if a description of a package (`apt-cache show`) names this hash.
fn has_hash(description: &str, sha256: &str) -> bool {
    let hashes = description
        .lines()
        .filter_map(|line| line.strip_prefix("SHA256: "));
    hashes.into_iter().any(|hash| hash.trim() == sha256)
}

fn install_packages(packages: &[String]) -> Result<()> {
    eprintln!("The compiler of the eBPF programs downloads up to 260 MB.");
    apt::install(packages)
}

fn install_nightly() -> Result<()> {
    if process::on_path("rustup").is_none() {
        bail!("rustup is not installed");
    }
    eprintln!("Installing rustup's nightly with rust-src, which downloads about 120 MB.");
    process::run(toolchain::clean(Command::new("rustup")).args([
        "toolchain",
        "install",
        "nightly",
        "--profile",
        "minimal",
        "--component",
        "rust-src",
    ]))
}

fn install_linker(tools: &Path, llvm_major: &str) -> Result<()> {
    let prefix = format!("/usr/lib/llvm-{llvm_major}");
    if !Path::new(&prefix).join("bin/llvm-config").is_file() {
        install_packages(&[format!("llvm-{llvm_major}-dev")]).map_err(|error| {
            error.context(format!(
                "bpf-linker needs LLVM {llvm_major}, and {prefix} is not there"
            ))
        })?;
    }
    let root = toolchain::linker_root(tools, llvm_major);
    eprintln!(
        "Building bpf-linker {BPF_LINKER_VERSION} into {} (downloads about 15 MB of sources from \
         crates.io, takes a minute or two).",
        root.display()
    );
    process::run(
        toolchain::clean(Command::new("cargo"))
            .env("LLVM_PREFIX", &prefix)
            .env(format!("LLVM_SYS_{llvm_major}1_PREFIX"), &prefix)
            .args([
                "install",
                "bpf-linker",
                "--locked",
                "--version",
                BPF_LINKER_VERSION,
            ])
            .args([
                "--no-default-features",
                "--features",
                &format!("llvm-{llvm_major}"),
            ])
            .arg("--root")
            .arg(&root),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::record::Record;
    use crate::repository::Repository;

    #[test]
    fn the_pinned_packages_are_those_of_the_committed_object() {
        let record = Record::read(&Repository::here())
            .unwrap()
            .expect("a record");
        let [rustc, cargo, sources, llvm] = &PINNED;
        let upstream = rustc.version.split('+').next().unwrap_or_default();
        let named = format!("rustc {upstream} ");
        assert!(
            record.toolchain.rustc.starts_with(&named),
            "{}",
            record.toolchain
        );
        assert_eq!(rustc.version, cargo.version);
        assert_eq!(rustc.version, sources.version);
        let linked = format!(":{}-", record.toolchain.llvm);
        assert!(llvm.version.contains(&linked), "{}", record.toolchain);
        let linker = format!("bpf-linker {BPF_LINKER_VERSION} ");
        assert!(record.toolchain.bpf_linker.starts_with(&linker));
    }

    #[test]
    fn a_package_is_known_by_its_hash() {
        let shown = "Package: rustc-web\nSHA256: ab12\n\nPackage: rustc-web\nSHA256: cd\n";
        assert!(has_hash(shown, "ab12") && has_hash(shown, "cd"));
        assert!(!has_hash(shown, "ab"));
    }
}

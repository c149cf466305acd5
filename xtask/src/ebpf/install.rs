//! Installation of a toolchain for the eBPF programs, if this machine allows it.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::toolchain::{self, Compiler, Origin, Toolchain};
use crate::process;

/// Version of bpf-linker that this module installs.
pub const BPF_LINKER_VERSION: &str = "0.13.0";

/// LLVM version of Debian's `rustc-web`.
const DEBIAN_LLVM: &str = "22";

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
                Origin::Debian => install_packages(&debian_packages())
                    .map_err(|error| error.context(missing.to_string()))?,
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

fn install_packages(packages: &[String]) -> Result<()> {
    if process::on_path("apt-get").is_none() {
        bail!("this system has no apt-get");
    }
    if !process::is_root() {
        bail!("apt-get needs root");
    }
    eprintln!(
        "Installing with apt-get, which downloads up to 260 MB: {}",
        packages.join(" ")
    );
    process::run(Command::new("apt-get").arg("update"))?;
    process::run(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages),
    )
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

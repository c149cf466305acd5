//! Lints of the sources: by clippy alone, or while they are compiled for the tests.

use std::process::Command;

use anyhow::{Result, bail};

use super::programs::Build;
use crate::process;

/// Newest clippy whose lints the sources were written for, as the minor version of Rust. A user's compiler may be newer,
/// and bring further lints.
const NEWEST_KNOWN: u32 = 96;

/// Runs clippy. Its warnings are errors, but for those of a clippy newer than [`NEWEST_KNOWN`].
pub fn check(cargo: impl Fn() -> Command) -> Result<()> {
    let mut clippy = cargo();
    clippy.args(["clippy", "--workspace", "--all-targets"]);
    if warnings_are_errors(&cargo)? {
        clippy.args(["--", "-D", "warnings"]);
    }
    process::run(&mut clippy)
}

/// Lets a build of cargo compile this workspace with clippy's compiler, which warns as clippy does: each source is read
/// once for both. Other packages are compiled as ever (`RUSTC_WORKSPACE_WRAPPER` in The Cargo Book).
pub fn compile_with_clippy(build: &mut Command) -> &mut Command {
    build.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

/// Judges a build of [`compile_with_clippy`].
///
/// # Errors
///
/// If it warned, unless its clippy is newer than [`NEWEST_KNOWN`].
pub fn judge(build: &Build, cargo: impl Fn() -> Command) -> Result<()> {
    if build.has_warnings && warnings_are_errors(&cargo)? {
        bail!("the compiler warns: see above");
    }
    Ok(())
}

fn warnings_are_errors(cargo: &impl Fn() -> Command) -> Result<bool> {
    let version = process::answer(cargo().args(["clippy", "--version"]))?;
    let is_known = is_known(&version);
    if !is_known {
        println!("{version} is newer than the sources: its warnings are no errors");
    }
    Ok(is_known)
}

/// Reads the output of `clippy --version`, such as `clippy 0.1.95 (59807616e1 2026-04-14)`. One that cannot be read
/// counts as known.
fn is_known(version: &str) -> bool {
    let number = version.split_whitespace().nth(1).unwrap_or_default();
    let minor = number.split('.').nth(2).and_then(|it| it.parse().ok());
    minor.is_none_or(|minor: u32| minor <= NEWEST_KNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lints_of_a_newer_clippy_are_no_errors() {
        assert!(is_known("clippy 0.1.95 (59807616e1 2026-04-14)"));
        assert!(is_known("clippy 0.1.96"));
        assert!(!is_known("clippy 0.1.99 (58cf8f9c3e 2026-10-13)"));
        assert!(is_known("something else"));
    }
}

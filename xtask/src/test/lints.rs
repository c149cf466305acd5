//! Lints of the sources.

use std::process::Command;

use anyhow::Result;

use crate::process;

/// Newest clippy whose lints the sources were written for, as the minor version of Rust. A user's compiler may be newer,
/// and bring further lints.
const NEWEST_KNOWN: u32 = 96;

/// Runs clippy. Its warnings are errors, but for those of a clippy newer than [`NEWEST_KNOWN`].
pub fn check(cargo: impl Fn() -> Command) -> Result<()> {
    let version = process::answer(cargo().args(["clippy", "--version"]))?;
    let mut clippy = cargo();
    clippy.args(["clippy", "--workspace", "--all-targets"]);
    if is_known(&version) {
        clippy.args(["--", "-D", "warnings"]);
    } else {
        println!("{version} is newer than the sources: its warnings are no errors");
    }
    process::run(&mut clippy)
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

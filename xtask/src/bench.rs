//! `cargo xtask bench`: the speed of memprobe's own code.

use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::repository::Repository;

/// Runs the benchmarks whose names hold `filter`, all of them without one.
pub fn run(repository: &Repository, filter: Option<&str>) -> Result<()> {
    code(repository, filter)
}

/// The criterion benchmarks of the rooms: no root, no target process.
fn code(repository: &Repository, filter: Option<&str>) -> Result<()> {
    println!(
        "== memprobe's code (criterion; reports in {}/criterion)",
        repository.target().display()
    );
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    // Every `[[bench]]`, and not the libtest harness of the library, which knows no criterion flag.
    cargo
        .current_dir(repository.root())
        .args(["bench", "--package", "memprobe", "--bench", "*"]);
    cargo.args(["--", "--noplot"]).args(filter);
    process::run(&mut cargo).context("the benchmarks did not run to their end")
}

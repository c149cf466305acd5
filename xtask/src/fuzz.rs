//! `cargo xtask fuzz`: a reader of hostile input under libFuzzer, guided by coverage.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::repository::Repository;

/// The readers, each with the folder of its committed inputs (`READERS` in `fuzz/src/lib.rs`).
const READERS: [(&str, &str); 10] = [
    ("records", "records"),
    ("recording", "recording"),
    ("columns", "columns"),
    ("pickle", "pickle"),
    ("elf", "elf"),
    ("stack", "stack"),
    ("heap", "heap"),
    ("classes", "heap"),
    ("tensors", "tensors"),
    ("allocator", "allocator"),
];

/// Flags by which stable Rust counts the edges that an input takes (clang's SanitizerCoverage,
/// `-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp`).
const COVERAGE: &str = "-Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Cdebug-assertions -Coverflow-checks";

/// memprobe's only platform.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Longest that one input may take, in seconds, and most memory, in MiB.
const MAX_SECONDS: u32 = 10;
const MAX_MIB: u32 = 2048;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The reader: records, recording, columns, pickle, elf, stack, heap, classes, tensors or allocator
    reader: String,
    /// Duration of the run, in minutes
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Add the inputs that reach new code to the committed ones
    #[arg(long)]
    keep: bool,
}

/// Builds the readers for libFuzzer and runs one. An input that fails is kept, and named.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    let folder = repository.root().join("fuzz");
    let inputs = folder.join("corpus").join(folder_of(&options.reader)?);
    let own = repository
        .target()
        .join("fuzz/corpus")
        .join(&options.reader);
    let failures = repository
        .target()
        .join("fuzz/failures")
        .join(&options.reader);
    for folder in [&own, &failures] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let program = build(repository)?;
    let mut fuzz = Command::new(&program);
    fuzz.env("MEMPROBE_FUZZ_READER", &options.reader)
        .arg(format!("-max_total_time={}", 60 * options.minutes))
        .arg(format!("-timeout={MAX_SECONDS}"))
        .arg(format!("-rss_limit_mb={MAX_MIB}"))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        .arg("-print_final_stats=1")
        .args([&own, &inputs]);
    if process::run(&mut fuzz).is_err() {
        bail!(
            "the reader of {} failed: the input is in {}. Repeat it with\n\
             \x20 MEMPROBE_FUZZ_READER={} {} FILE",
            options.reader,
            failures.display(),
            options.reader,
            program.display()
        );
    }
    if options.keep {
        let mut merge = Command::new(&program);
        merge.env("MEMPROBE_FUZZ_READER", &options.reader).args([
            "-merge=1".as_ref(),
            inputs.as_os_str(),
            own.as_os_str(),
        ]);
        process::run(&mut merge)?;
    }
    Ok(())
}

/// Folder of a reader's committed inputs.
fn folder_of(reader: &str) -> Result<&'static str> {
    let found = READERS.into_iter().find(|(name, _)| *name == reader);
    found.map(|(_, inputs)| inputs).with_context(|| {
        let names = READERS.map(|(name, _)| name).join(", ");
        format!("no reader {reader}: there are {names}")
    })
}

fn build(repository: &Repository) -> Result<PathBuf> {
    if process::on_path("c++").is_none() {
        bail!("libFuzzer needs a C++ compiler: install g++ (Debian, Ubuntu) or gcc-c++ (Fedora)");
    }
    let target = repository.target().join("fuzz");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(repository.root())
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", &target)
        .args(["build", "--release", "--package", "memprobe-fuzz"])
        .args(["--features", "libfuzzer", "--bin", "fuzz"])
        // With a target named, build scripts are built without these flags.
        .args(["--target", TARGET]);
    process::run(&mut cargo)?;
    Ok(target.join(TARGET).join("release/fuzz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_has_a_folder_of_inputs() {
        let corpus = Repository::here().root().join("fuzz/corpus");
        for (reader, _) in READERS {
            let folder = folder_of(reader).unwrap();
            assert!(corpus.join(folder).is_dir(), "{reader}");
        }
        let readers = Repository::here().root().join("fuzz/src/lib.rs");
        let readers = fs::read_to_string(readers).unwrap();
        let all = readers.matches("        name: \"").count();
        assert_eq!(all, READERS.len());
        for (reader, inputs) in READERS {
            let row = format!("name: \"{reader}\",\n        inputs: \"{inputs}\"");
            assert!(readers.contains(&row), "{reader}");
        }
        assert!(folder_of("other").is_err());
    }
}

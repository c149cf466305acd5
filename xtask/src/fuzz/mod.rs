//! `cargo xtask fuzz`: a reader of hostile input under libFuzzer, guided by coverage.

mod outcome;
mod runs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repository::Repository;
use crate::{pages, process};
use runs::FuzzRun;
pub use runs::page_of;

/// A reader of `READERS` in `fuzz/src/lib.rs`.
#[derive(Debug, Clone, Copy)]
struct FuzzReader {
    name: &'static str,
    /// Folder of its committed inputs in `fuzz/corpus`.
    inputs: &'static str,
    /// Content of its inputs, for people.
    input: &'static str,
}

const READERS: [FuzzReader; 13] = [
    reader("records", "records", "records of the kernel programs"),
    reader("recording", "recording", "recordings in both formats"),
    reader(
        "columns",
        "columns",
        "frames of a compact recording, with right checksums",
    ),
    reader("curve", "curve", "frames of a recording's curve"),
    reader(
        "replay",
        "recording",
        "compact recordings, opened from keyframes and curve",
    ),
    reader("pickle", "pickle", "PyTorch's snapshots"),
    reader("elf", "elf", "libraries and programs of a process"),
    reader("stack", "stack", "copied native stacks, to unwind"),
    reader(
        "unwind",
        "unwind",
        "unwind tables of a library, and a stack",
    ),
    reader(
        "heap",
        "heap",
        "the memory of a Python process: its objects",
    ),
    reader("classes", "heap", "the same: classes and dictionaries"),
    reader("tensors", "tensors", "the same: tensors and autograd nodes"),
    reader(
        "allocator",
        "allocator",
        "the same: the tables of PyTorch's allocator",
    ),
];

const fn reader(name: &'static str, inputs: &'static str, input: &'static str) -> FuzzReader {
    FuzzReader {
        name,
        inputs,
        input,
    }
}

/// Flags by which stable Rust counts the edges that an input takes (clang's SanitizerCoverage,
/// `-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp`).
const COVERAGE: &str = "-Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// memprobe's only platform.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Longest that one input may take, in seconds, and most memory, in MiB.
const MAX_SECONDS: u32 = 10;
const MAX_MIB: u32 = 2048;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The reader: records, recording, columns, curve, replay, pickle, elf, stack, unwind, heap, classes, tensors or allocator; each
    /// in turn if none is named
    reader: Option<String>,
    /// Duration of each reader's run, in minutes
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Add the run to docs/fuzzing.md
    #[arg(long)]
    keep: bool,
    /// Add the inputs that reach new code to the committed ones: thousands of files after an hour
    #[arg(long)]
    add_inputs: bool,
}

/// Builds the readers for libFuzzer and runs one, or each in turn. An input that fails is kept, and named.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    let chosen = match &options.reader {
        Some(name) => vec![named(name)?],
        None => READERS.to_vec(),
    };
    // Asked before the build: other work may be committed while the readers run.
    let commit = options.keep.then(|| commit(repository)).transpose()?;
    let program = build(repository)?;
    for reader in chosen {
        run_reader(repository, &program, reader, options, commit.as_deref())?;
    }
    Ok(())
}

fn commit(repository: &Repository) -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(repository.root());
    process::answer(git.args(["rev-parse", "--short=8", "HEAD"]))
}

/// Runs a reader. The run is kept if the commit of the program is given.
fn run_reader(
    repository: &Repository,
    program: &Path,
    reader: FuzzReader,
    options: &Options,
    commit: Option<&str>,
) -> Result<()> {
    let inputs = repository.root().join("fuzz/corpus").join(reader.inputs);
    let own = repository.target().join("fuzz/corpus").join(reader.name);
    let failures = repository.target().join("fuzz/failures").join(reader.name);
    for folder in [&own, &failures] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let mut fuzz = Command::new(program);
    fuzz.env("MEMPROBE_FUZZ_READER", reader.name)
        .arg(format!("-max_total_time={}", 60 * options.minutes))
        .arg(format!("-timeout={MAX_SECONDS}"))
        .arg(format!("-rss_limit_mb={MAX_MIB}"))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        .arg("-print_final_stats=1")
        .args([&own, &inputs]);
    let outcome = outcome::watch(&mut fuzz)?;
    if let Some(commit) = commit {
        let docs = repository.root().join("docs");
        let run = FuzzRun {
            reader: reader.name.to_owned(),
            date: process::today()?,
            commit: commit.to_owned(),
            cpu_seconds: outcome.cpu_seconds,
            executions: outcome.executions,
            edges: outcome.edges,
            failures: u64::from(!outcome.status.success()),
        };
        runs::keep(&docs, run)?;
        pages::write_fuzzing(&docs)?;
    }
    if !outcome.status.success() {
        bail!(
            "the reader of {} failed: the input is in {}. Repeat it with\n\
             \x20 MEMPROBE_FUZZ_READER={} {} FILE",
            reader.name,
            failures.display(),
            reader.name,
            program.display()
        );
    }
    if options.add_inputs {
        let mut merge = Command::new(program);
        merge.env("MEMPROBE_FUZZ_READER", reader.name).args([
            "-merge=1".as_ref(),
            inputs.as_os_str(),
            own.as_os_str(),
        ]);
        process::run(&mut merge)?;
    }
    Ok(())
}

fn named(name: &str) -> Result<FuzzReader> {
    let found = READERS.into_iter().find(|reader| reader.name == name);
    found.with_context(|| {
        let names = READERS.map(|reader| reader.name).join(", ");
        format!("no reader {name}: there are {names}")
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
        .args(["build", "--profile", "fuzz", "--package", "memprobe-fuzz"])
        .args(["--features", "libfuzzer", "--bin", "fuzz"])
        // With a target named, build scripts are built without these flags.
        .args(["--target", TARGET]);
    process::run(&mut cargo)?;
    Ok(target.join(TARGET).join("fuzz/fuzz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_has_a_folder_of_inputs() {
        let corpus = Repository::here().root().join("fuzz/corpus");
        for reader in READERS {
            assert!(corpus.join(reader.inputs).is_dir(), "{}", reader.name);
            assert_eq!(named(reader.name).unwrap().inputs, reader.inputs);
        }
        let readers = Repository::here().root().join("fuzz/src/lib.rs");
        let readers = fs::read_to_string(readers).unwrap();
        let all = readers.matches("        name: \"").count();
        assert_eq!(all, READERS.len());
        for FuzzReader { name, inputs, .. } in READERS {
            let row = format!("name: \"{name}\",\n        inputs: \"{inputs}\"");
            assert!(readers.contains(&row), "{name}");
        }
        assert!(named("other").is_err());
    }
}

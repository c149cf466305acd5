//! Tasks of this repository: set-up, eBPF build, demo, tests, benchmarks.

mod ebpf;
mod process;
mod repository;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use repository::Repository;

/// Tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Compile the eBPF programs into memprobe-ebpf/object, with a record of how.
    ///
    /// Needs rustup's nightly with rust-src, or Debian's rustc-web, and bpf-linker.
    Ebpf {
        /// Only rebuild and compare with what is committed.
        #[arg(long)]
        check: bool,
        /// Install the compiler and the linker where they are missing.
        #[arg(long)]
        install: bool,
    },
}

fn main() -> ExitCode {
    ebpf::stand_in_for_rustc();
    let repository = Repository::here();
    let result = match Arguments::parse().verb {
        Verb::Ebpf { check, install } => {
            let missing = if install {
                ebpf::Missing::Install
            } else {
                ebpf::Missing::Explain
            };
            if check {
                ebpf::check(&repository, missing).map(|_| ())
            } else {
                ebpf::build(&repository, missing)
            }
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! Tasks of this repository: set-up, eBPF build, demo, tests, benchmarks.

mod apt;
mod bare;
mod bench;
mod categories;
mod consumers;
mod demo;
mod drivers;
mod ebpf;
mod fuzz;
mod kernels;
mod markdown;
mod matrix;
mod package;
mod package_files;
mod pages;
mod process;
mod python;
mod pytorch;
mod repository;
mod requirements;
mod screens;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use repository::Repository;

/// Tasks of this repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the main job: attach to a training script that runs already, record, report
    Demo {
        /// Open the live screen instead of recording
        #[arg(long)]
        tui: bool,
        /// The Python: a version such as 3.11, or the path of an interpreter; the newest that is
        /// here otherwise
        #[arg(long, value_name = "PYTHON")]
        python: Option<pytorch::Interpreter>,
    },
    /// Run the checks and tests, each feature once; as root
    Test(test::Options),
    /// Set up the environments of the tests, and write their variables to a file
    #[command(hide = true)]
    Environments {
        #[arg(long)]
        all: bool,
        #[arg(long, value_name = "FILE")]
        out: std::path::PathBuf,
    },
    /// Measure what memprobe costs the program that it watches, beside PyTorch's own recorders, and
    /// what it takes for itself; as root
    Bench(bench::Options),
    /// Try memprobe on every PyTorch and Python, against PyTorch's own history, and keep the table in
    /// docs/matrix.md; as root
    ///
    /// Each environment is downloaded (0.5 to 0.9 GB), used and deleted, but for those that the
    /// tests use. An interrupted run goes on where it was. With --frameworks, it tries programs of frameworks on one
    /// PyTorch instead, and keeps the table in docs/frameworks.md.
    Matrix(matrix::Options),
    /// Compare memprobe's categories with each workload's own account, and keep the shares in
    /// docs/categories.md; as root
    Categories,
    /// Try memprobe's probes on NVIDIA's own libraries, and keep the tables in docs/drivers.md; as root
    ///
    /// Downloads NVIDIA's proprietary driver libraries (libcuda, libnvidia-ml; as Debian packages them
    /// in non-free), CUDA runtimes and UCX (wheels) into the cache: about 100 MB. Installs nothing.
    /// Needs no GPU: the calls fail, which is enough to see the probes fire. Where there is a GPU,
    /// calls that succeed are tried too, with the system's own driver.
    Drivers(drivers::Options),
    /// Run README.md's two commands in a new root file system of Debian or Ubuntu; as root
    ///
    /// Installs what README.md names for it and nothing else. Downloads 1.5 GB into the cache, and removes it at the end.
    Bare(bare::Options),
    /// Write the pictures of the guide, and capture the screens of README.md and the guide again; as root
    ///
    /// The pictures are drawn from sample data. A unit test compares them with the screens.
    Screens {
        /// Only write the pictures, which needs neither root nor PyTorch
        #[arg(long)]
        pictures: bool,
    },
    /// Write what packages install beside memprobe: manual pages, and completions for bash, zsh and fish
    PackageFiles {
        /// Folder to write into, such as /usr/local
        #[arg(value_name = "PREFIX")]
        prefix: std::path::PathBuf,
    },
    /// Write the pages of figures in docs again, from the JSON beside them
    ///
    /// Figures of another eBPF object than the committed one are marked. `cargo xtask ebpf` does it too.
    Pages,
    /// Compile the eBPF programs into memprobe/object, with a record of how
    ///
    /// Needs rustup's nightly with rust-src, or Debian's rustc-web, and bpf-linker.
    Ebpf {
        /// Only rebuild and compare with what is committed
        #[arg(long)]
        check: bool,
        /// Install the compiler and the linker where they are missing
        #[arg(long)]
        install: bool,
    },
    /// Run a reader of hostile input under libFuzzer, guided by coverage
    ///
    /// New inputs and failures go to target/fuzz. Needs a C++ compiler, for libFuzzer.
    Fuzz(fuzz::Options),
    /// Try memprobe on other kernels than this machine's, each in a virtual machine
    Kernels(kernels::Options),
    /// Make a PyTorch to try memprobe on, with simulated GPUs where there are none
    SetUp {
        /// The Python: a version such as 3.11, or the path of an interpreter; the newest that is
        /// here otherwise
        #[arg(long, value_name = "PYTHON")]
        python: Option<pytorch::Interpreter>,
        /// The version of PyTorch
        #[arg(long, value_name = "VERSION", default_value = pytorch::DEFAULT_TORCH)]
        torch: String,
        /// The environment of `cargo xtask matrix --frameworks` instead: 1 GB of downloads, 2 GB
        #[arg(long, conflicts_with_all = ["python", "torch"])]
        frameworks: bool,
    },
}

fn main() -> ExitCode {
    ebpf::stand_in_for_rustc();
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    let repository = Repository::here();
    match verb {
        Verb::Demo { tui, python } => {
            let show = if tui {
                demo::Show::Live
            } else {
                demo::Show::Report
            };
            demo::run(&repository, python, show)
        }
        Verb::Test(options) => test::run(&repository, &options),
        Verb::Environments { all, out } => {
            let extent = if all {
                test::Extent::Everything
            } else {
                test::Extent::Short
            };
            test::environments::run(extent, &out)
        }
        Verb::Matrix(options) => matrix::run(&repository, &options),
        Verb::Categories => categories::run(&repository),
        Verb::Bench(options) => bench::run(&repository, &options),
        Verb::Bare(options) => bare::run(&repository, &options),
        Verb::Drivers(options) => drivers::run(&repository, &options),
        Verb::Fuzz(options) => fuzz::run(&repository, &options),
        Verb::Screens { pictures: true } => screens::write_pictures(&repository),
        Verb::Screens { pictures: false } => screens::run(&repository),
        Verb::PackageFiles { prefix } => package_files::write(&repository, &prefix),
        Verb::Pages => pages::write(&repository),
        Verb::Kernels(options) => kernels::run(&repository, &options),
        Verb::Ebpf { check, install } => {
            let missing = if install {
                ebpf::Missing::Install
            } else {
                ebpf::Missing::Explain
            };
            if check {
                ebpf::check(&repository, missing).map(drop)
            } else {
                ebpf::build(&repository, missing)?;
                pages::write(&repository)
            }
        }
        Verb::SetUp {
            frameworks: true, ..
        } => matrix::frameworks::set_up().map(|environment| show(&environment)),
        Verb::SetUp { python, torch, .. } => {
            let newest = || requirements::newest_python(&torch);
            let python = python.or_else(newest);
            let python = python.unwrap_or_else(requirements::usual_python);
            let environment = pytorch::set_up(&pytorch::Request::new(python, &torch))?;
            show(&environment);
            Ok(())
        }
    }
}

/// Prints the interpreter, and on standard error its versions.
fn show(environment: &pytorch::Environment) {
    println!("{}", environment.python.display());
    eprintln!(
        "Python {}, PyTorch {}, {}",
        environment.python_version,
        environment.torch,
        match (environment.simulated, &environment.cuda_libraries) {
            (true, Some(folder)) => format!("simulated CUDA in {}", folder.display()),
            _ => "the GPUs of this machine".to_owned(),
        }
    );
}

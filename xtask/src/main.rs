//! Tasks of this repository: set-up, eBPF build, demo, tests, benchmarks.

mod process;
mod pytorch;
mod repository;

use clap::Parser;

/// Tasks of this repository.
#[derive(Parser)]
enum Task {
    /// Makes a PyTorch that memprobe can be tried on, with simulated GPUs where there are none.
    SetUp {
        /// The Python: a version such as 3.11, or the path of an interpreter.
        #[arg(long, default_value = "3.11")]
        python: pytorch::Interpreter,
        /// The version of PyTorch.
        #[arg(long, default_value = pytorch::DEFAULT_TORCH)]
        torch: String,
    },
}

fn main() -> anyhow::Result<()> {
    let Task::SetUp { python, torch } = Task::parse();
    let environment = pytorch::set_up(&pytorch::Request {
        interpreter: python,
        torch,
    })?;
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
    Ok(())
}

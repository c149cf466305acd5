//! `cargo xtask matrix --frameworks`: compares memprobe with programs of frameworks, on one PyTorch.

mod cell;
mod page;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};

use super::store::Store;
use super::{BUSY, Options, Run, alone, check_free_space, check_root, workloads, write_page};
use crate::pages::CommittedObject;
use crate::pytorch::{
    self, DEFAULT_TORCH, Environment, Gpus, Interpreter, Packages, PythonVersion, Request,
};
use crate::repository::Repository;
use cell::Cell;

/// Minor version of Python for which the list of packages was made.
const PYTHON: u8 = 13;

/// The frameworks, and what they depend on (PyPI, 2026-11-23 and 2026-12-01).
const PACKAGES: Packages = Packages {
    name: "frameworks",
    requirements: include_str!("requirements.txt"),
    sources: &["deepspeed==0.19.8"],
    // DeepSpeed otherwise asks for CUDA's compiler.
    settings: &[("DS_IGNORE_CUDA_DETECTION", "1"), ("DS_BUILD_OPS", "0")],
};

/// Runs the requested programs that have no result for this build, and stores each result.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    let page = repository.root().join("docs/frameworks.md");
    let mut store = Store::<Cell>::open(&repository.root().join("docs/frameworks.json"))?;
    if options.show {
        let committed = CommittedObject::of(repository)?;
        print!("{}", page::render(store.cells(), &committed));
        return Ok(());
    }
    check_root()?;
    let run = Run::prepare(repository)?;
    let list = ["--frameworks", "--list"];
    let known = workloads(&run, &list, &[])?;
    let wanted = workloads(&run, &list, &options.workload)?;
    let mut alone = alone()?;
    let _alone = alone.try_write().map_err(|_| anyhow!(BUSY))?;
    let environment = set_up()?;
    let mut bad = 0;
    for name in wanted {
        if !options.again && store.has(&run.build, |cell: &Cell| cell.program == name) {
            continue;
        }
        let cell = try_program(&run, &environment, &known, name);
        bad += usize::from(!cell.is_exact());
        store.put(cell);
        store.save()?;
        write_page(&page, &page::render(store.cells(), &run.committed))?;
        if bad > 0 && options.fail_fast {
            break;
        }
    }
    println!("\n{}", page::render(store.cells(), &run.committed));
    println!("kept in {}", page.display());
    if bad > 0 {
        bail!("{bad} programs are not exact: see the notes of the table");
    }
    Ok(())
}

/// Returns the page from the cells in a folder.
pub fn page_of(docs: &Path, committed: &CommittedObject) -> Result<String> {
    let store = Store::<Cell>::open(&docs.join("frameworks.json"))?;
    Ok(page::render(store.cells(), committed))
}

/// Sets up the environment of the programs: a PyTorch on simulated GPUs with the frameworks' packages.
///
/// # Errors
///
/// As [`pytorch::set_up`], or if too little space is free.
pub fn set_up() -> Result<Environment> {
    check_free_space()?;
    let python = Interpreter::Version(PythonVersion::three(PYTHON));
    pytorch::set_up(&Request {
        gpus: Gpus::Simulated,
        packages: Some(&PACKAGES),
        ..Request::new(python, DEFAULT_TORCH)
    })
}

/// Runs a program and prints its result. `known` are all programs, in order.
fn try_program(run: &Run, environment: &Environment, known: &[String], name: String) -> Cell {
    let start = Instant::now();
    let result = super::cell::attempt(
        &run.cell_program,
        &run.memprobe,
        &environment.python,
        &["--frameworks", &name],
    );
    let cell = Cell {
        order: known.iter().position(|other| *other == name),
        program: name,
        torch: environment.torch.clone(),
        date: run.date.clone(),
        kernel: run.kernel.clone(),
        build: run.build.clone(),
        object: Some(run.committed.digits().to_owned()),
        result,
    };
    println!(
        "  {:<24} {} ({:.1} s)",
        cell.program,
        cell.in_a_line(),
        start.elapsed().as_secs_f64()
    );
    cell
}

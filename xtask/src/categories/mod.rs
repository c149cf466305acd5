//! `cargo xtask categories`: compares memprobe's categories with each workload's own account of its memory.

mod page;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::matrix;
use crate::pages::{CommittedObject, digits};
use crate::process;
use crate::pytorch::{self, Gpus, Request};
use crate::repository::Repository;
use crate::test::interpreter_of;

/// Program that runs the workloads.
const PROGRAM: &str = "memprobe-category-shares";

/// Every share, with the build that it was measured on.
#[derive(Debug, Serialize, Deserialize)]
struct Results {
    /// Date of the run (UTC).
    date: String,
    kernel: String,
    /// The first 12 digits of the SHA-256 of the memprobe program.
    memprobe: String,
    /// The first 12 digits of the SHA-256 of its eBPF object.
    ebpf_object: String,
    /// Full version of Python, by release of PyTorch.
    pythons: BTreeMap<String, String>,
    rows: Vec<Row>,
}

/// Right, unknown and wrong bytes, by true purpose; `Tensors` is their sum without blocks that have no tensor.
type Shares = BTreeMap<String, [u64; 3]>;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    workload: String,
    script: String,
    /// Options of `record`.
    options: String,
    torch: String,
    from_start: Shares,
    /// `None` if memprobe did not attach late.
    late: Option<Shares>,
}

/// Runs every workload, and writes `docs/categories.json` and the page.
pub fn run(repository: &Repository) -> Result<()> {
    if !process::is_root() {
        bail!("memprobe attaches probes, which needs root: run this with sudo -E");
    }
    let mut pythons = BTreeMap::new();
    let mut interpreters = Vec::new();
    for pair in pytorch::TESTED {
        let Some(interpreter) = interpreter_of(pair) else {
            println!("SKIPPED: PyTorch {}: no Python for it", pair.torch);
            continue;
        };
        let mut request = Request::new(interpreter, pair.torch);
        request.gpus = Gpus::Simulated;
        let environment = pytorch::set_up(&request)?;
        let version = environment.python_version;
        pythons.entry(pair.torch.to_owned()).or_insert(version);
        interpreters.push(environment.python);
    }
    let first = interpreters.first().context("no Python to test on")?;
    matrix::build(repository, PROGRAM)?;
    let memprobe = repository.built_memprobe();
    let rows = process::answer(
        Command::new(repository.target().join("debug").join(PROGRAM))
            .stderr(Stdio::inherit())
            .env("MEMPROBE_BIN", &memprobe)
            .env("MEMPROBE_TEST_PYTHON", first)
            .env(
                "MEMPROBE_TEST_EACH_PYTHON",
                std::env::join_paths(&interpreters)?,
            ),
    )?;
    // Workloads that cannot run print why.
    let rows = rows.lines().filter(|line| line.starts_with('{'));
    let rows: Result<_, _> = rows.map(serde_json::from_str).collect();
    let results = Results {
        date: process::today()?,
        kernel: process::answer(Command::new("uname").arg("-sr"))?,
        memprobe: digits(&memprobe)?,
        ebpf_object: digits(&repository.ebpf_object())?,
        pythons,
        rows: rows.context("the shares of the workloads")?,
    };
    let docs = repository.root().join("docs");
    let text = serde_json::to_string_pretty(&results)? + "\n";
    fs::write(docs.join("categories.json"), text)?;
    fs::write(
        docs.join("categories.md"),
        page::render(&results, &CommittedObject::of(repository)?),
    )?;
    Ok(())
}

/// Returns the page from the shares in a folder.
pub fn page_of(docs: &Path, committed: &CommittedObject) -> Result<String> {
    let results = fs::read(docs.join("categories.json")).context("cannot read categories.json")?;
    Ok(page::render(&serde_json::from_slice(&results)?, committed))
}

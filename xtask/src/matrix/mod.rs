//! `cargo xtask matrix`: compares memprobe with PyTorch's own history on every Python and PyTorch,
//! event by event.

mod cell;
pub mod frameworks;
mod page;
mod store;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use crate::pages::CommittedObject;
use crate::process;
use crate::python;
use crate::pytorch::{
    self, Gpus, Interpreter, Lifetime, PythonVersion, RELEASES, Release, Request,
};
use crate::repository::{Repository, cache_folder};
use cell::{Answer, Cell, Outcome};
use store::Store;

/// Disk space for setting up one environment: the wheel and its unpacked files.
const NEEDED_BYTES: u64 = 5_000_000_000;

/// Program that runs one cell.
const CELL_PROGRAM: &str = "memprobe-matrix-cell";

/// Error of a second run.
const BUSY: &str = "another `cargo xtask matrix` runs on this machine: wait for its end";

/// Selection of cells.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Try programs of frameworks instead, on one PyTorch, and keep the table in docs/frameworks.md
    #[arg(long, conflicts_with_all = ["python", "torch"])]
    frameworks: bool,
    /// Only these Pythons: versions such as 3.11, or paths of interpreters
    #[arg(long, value_name = "PYTHON", value_delimiter = ',')]
    python: Vec<Interpreter>,
    /// Only these versions of PyTorch, such as 2.6.0
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    torch: Vec<String>,
    /// Only these workloads, such as perceptron
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Try also the cells that this very memprobe was tried on
    #[arg(long)]
    again: bool,
    /// End with the first cell that is neither exact nor refused
    #[arg(long)]
    fail_fast: bool,
    /// Keep the environments: about 1.5 GB each
    #[arg(long)]
    keep: bool,
    /// Only print the table that the repository has
    #[arg(long)]
    show: bool,
}

/// A Python and a PyTorch release with a wheel for it.
struct Pair {
    interpreter: Interpreter,
    /// Minor version, such as `3.11`.
    python: String,
    release: &'static Release,
}

/// State shared by all cells of a run.
struct Run {
    cell_program: PathBuf,
    memprobe: PathBuf,
    /// Folder of both programs.
    _programs: TempDir,
    /// Identifies the build of memprobe and of the comparison.
    build: String,
    committed: CommittedObject,
    date: String,
    kernel: String,
}

/// Runs the requested cells that have no result for this build, and stores each result.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    if options.frameworks {
        return frameworks::run(repository, options);
    }
    let page = repository.root().join("docs/matrix.md");
    let mut store = Store::<Cell>::open(&repository.root().join("docs/matrix.json"))?;
    if options.show {
        let committed = CommittedObject::of(repository)?;
        print!("{}", page::render(store.cells(), &committed));
        return Ok(());
    }
    check_root()?;
    let pairs = pairs(options)?;
    let run = Run::prepare(repository)?;
    let workloads = workloads(&run, &["--list"], &options.workload)?;
    let mut alone = alone()?;
    let _alone = alone.try_write().map_err(|_| anyhow!(BUSY))?;
    pytorch::discard()?;
    let mut bad = 0;
    for (at, pair) in pairs.iter().enumerate() {
        let wanted: Vec<&String> = workloads
            .iter()
            .filter(|name| {
                let is_it = |cell: &Cell| cell.is_of(&pair.python, pair.release.torch, name);
                options.again || !store.has(&run.build, is_it)
            })
            .collect();
        println!(
            "\n== {} of {}: Python {}, PyTorch {}: {} of {} workloads to try",
            at + 1,
            pairs.len(),
            pair.python,
            pair.release.torch,
            wanted.len(),
            workloads.len()
        );
        if wanted.is_empty() {
            continue;
        }
        try_pair(&run, pair, &wanted, options.keep, |cell| {
            bad += usize::from(cell.outcome.is_bad());
            store.put(cell);
            store.save()?;
            write_page(&page, &page::render(store.cells(), &run.committed))
        })?;
        if bad > 0 && options.fail_fast {
            break;
        }
    }
    println!("\n{}", page::render(store.cells(), &run.committed));
    println!("kept in {}", page.display());
    if bad > 0 {
        bail!("{bad} cells are neither exact nor refused: see the notes of the table");
    }
    Ok(())
}

/// Returns the page from the cells in a folder.
pub fn page_of(docs: &Path, committed: &CommittedObject) -> Result<String> {
    let store = Store::<Cell>::open(&docs.join("matrix.json"))?;
    Ok(page::render(store.cells(), committed))
}

fn check_root() -> Result<()> {
    if !process::is_root() {
        bail!(
            "the matrix attaches probes, which needs root. Run\n\
             \x20 sudo -E env \"PATH=$PATH\" cargo xtask matrix"
        );
    }
    Ok(())
}

/// Returns a lock on the temporary environments.
fn alone() -> Result<fd_lock::RwLock<fs::File>> {
    let cache = cache_folder()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let path = cache.join("matrix.lock");
    let file =
        fs::File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(fd_lock::RwLock::new(file))
}

/// Sets up a pair, runs its workloads, and deletes it unless it is to be kept. Passes each cell to
/// `done` immediately, so an interrupted run loses none.
fn try_pair(
    run: &Run,
    pair: &Pair,
    workloads: &[&String],
    keep: bool,
    mut done: impl FnMut(Cell) -> Result<()>,
) -> Result<()> {
    let request = Request {
        interpreter: pair.interpreter.clone(),
        torch: pair.release.torch.to_owned(),
        gpus: Gpus::Simulated,
        lifetime: if keep || is_tested(pair) {
            Lifetime::Permanent
        } else {
            Lifetime::Temporary
        },
        packages: None,
    };
    check_free_space()?;
    let environment = match pytorch::set_up(&request) {
        Ok(environment) => environment,
        Err(error) => {
            println!("  cannot be set up: {error:#}");
            let outcome = Outcome::failed(&format!("cannot be set up: {error:#}"));
            pytorch::discard()?;
            return workloads
                .iter()
                .try_for_each(|name| done(run.cell(pair, name, "", outcome.clone())));
        }
    };
    for name in workloads {
        let start = Instant::now();
        let outcome: Outcome = cell::attempt(
            &run.cell_program,
            &run.memprobe,
            &environment.python,
            &[name],
        );
        println!(
            "  {name:<14} {} ({:.1} s)",
            outcome.in_a_line(),
            start.elapsed().as_secs_f64()
        );
        done(run.cell(pair, name, &environment.python_version, outcome))?;
    }
    if request.lifetime == Lifetime::Temporary {
        pytorch::discard()?;
    }
    Ok(())
}

/// True if the tests use this pair too.
fn is_tested(pair: &Pair) -> bool {
    pytorch::TESTED.iter().any(|tested| {
        let version = |minor: &u8| Interpreter::Version(PythonVersion::three(*minor));
        let first = tested
            .pythons
            .iter()
            .map(version)
            .find(|python| python.present().is_some());
        tested.torch == pair.release.torch && first.as_ref() == Some(&pair.interpreter)
    })
}

/// Returns the requested pairs that have a wheel on PyPI and a Python here or installable.
fn pairs(options: &Options) -> Result<Vec<Pair>> {
    for torch in &options.torch {
        if pytorch::release_of(torch).is_none() {
            let known: Vec<&str> = RELEASES.iter().map(|release| release.torch).collect();
            bail!(
                "the matrix has no PyTorch {torch}: it has {}",
                known.join(", ")
            );
        }
    }
    let asked = if options.python.is_empty() {
        python::MINORS
            .map(|minor| Interpreter::Version(PythonVersion::three(minor)))
            .collect()
    } else {
        options.python.clone()
    };
    let mut pythons = Vec::new();
    for interpreter in asked {
        match interpreter.find() {
            Ok(info) => pythons.push((interpreter, info.minor_version())),
            Err(missing) => println!("SKIPPED: {interpreter}: {missing:#}"),
        }
    }
    let mut pairs = Vec::new();
    for release in RELEASES {
        if !options.torch.is_empty() && !options.torch.iter().any(|torch| torch == release.torch) {
            continue;
        }
        for (interpreter, python) in &pythons {
            let minor = |text: &str| text.strip_prefix("3.")?.parse().ok();
            if minor(python).is_some_and(|minor: u8| release.pythons.contains(&minor)) {
                pairs.push(Pair {
                    interpreter: interpreter.clone(),
                    python: python.clone(),
                    release,
                });
            }
        }
    }
    if pairs.is_empty() {
        bail!("no Python of this machine and no PyTorch that is asked for go together");
    }
    Ok(pairs)
}

/// Returns the requested workloads, in the order in which the program lists them.
fn workloads(run: &Run, list: &[&str], asked: &[String]) -> Result<Vec<String>> {
    let known = process::answer(Command::new(&run.cell_program).args(list))?;
    let known: Vec<String> = known.lines().map(str::to_owned).collect();
    if let Some(unknown) = asked.iter().find(|name| !known.contains(name)) {
        bail!(
            "there is no workload {unknown:?}: there are {}",
            known.join(", ")
        );
    }
    let is_asked = |name: &String| asked.is_empty() || asked.contains(name);
    Ok(known.into_iter().filter(is_asked).collect())
}

/// Builds memprobe, and a program of the tests' packages.
pub fn build(repository: &Repository, program: &str) -> Result<()> {
    let cargo = || {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(program);
        command.current_dir(repository.root()).arg("build");
        command
    };
    process::run(cargo().args(["--release", "--package", "memprobe"]))?;
    process::run(cargo().args(["--workspace", "--bin", program]))
}

impl Run {
    /// Builds memprobe and the program that runs a cell.
    fn prepare(repository: &Repository) -> Result<Self> {
        build(repository, CELL_PROGRAM)?;
        // Run copies, because a concurrent build would replace the programs mid-run.
        let programs = tempfile::tempdir().context("cannot make a folder for the programs")?;
        let memprobe = copy(&repository.built_memprobe(), &programs)?;
        let built = repository.target().join("debug").join(CELL_PROGRAM);
        let cell_program = copy(&built, &programs)?;
        let read =
            |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        Ok(Self {
            build: pytorch::fingerprint([read(&memprobe)?.as_slice(), &read(&cell_program)?])[..12]
                .to_owned(),
            memprobe,
            cell_program,
            committed: CommittedObject::of(repository)?,
            _programs: programs,
            date: process::today()?,
            kernel: process::answer(Command::new("uname").arg("-sr"))?,
        })
    }

    fn cell(&self, pair: &Pair, workload: &str, python_version: &str, outcome: Outcome) -> Cell {
        Cell {
            torch: pair.release.torch.to_owned(),
            python: pair.python.clone(),
            workload: workload.to_owned(),
            python_version: python_version.to_owned(),
            date: self.date.clone(),
            kernel: self.kernel.clone(),
            build: self.build.clone(),
            object: Some(self.committed.digits().to_owned()),
            outcome,
        }
    }
}

fn copy(program: &Path, folder: &TempDir) -> Result<PathBuf> {
    let name = program.file_name().unwrap_or_default();
    let copy = folder.path().join(name);
    fs::copy(program, &copy)
        .with_context(|| format!("cannot copy {} to {}", program.display(), copy.display()))?;
    Ok(copy)
}

/// Checks free disk space first; otherwise pip fails with an obscure error on a full disk.
fn check_free_space() -> Result<()> {
    let cache = cache_folder()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let disk = rustix::fs::statvfs(&cache)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < NEEDED_BYTES {
        bail!(
            "{:.1} GB are free for {}, and setting up a PyTorch needs {:.0} GB: make room, or set \
             MEMPROBE_CACHE to a folder on another disk, and run this again",
            free as f64 / 1e9,
            cache.display(),
            NEEDED_BYTES as f64 / 1e9
        );
    }
    Ok(())
}

fn write_page(page: &Path, text: &str) -> Result<()> {
    fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))
}

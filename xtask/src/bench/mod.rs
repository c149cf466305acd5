//! `cargo xtask bench`: the cost of memprobe for the profiled program, and for itself.
//!
//! Candidates run in one process and in turns, each in a random order (A B C, B C A, …), so a slow phase
//! of the machine affects all of them. Results are ratios within one turn.

mod code;
mod footprint;
mod kernel;
mod machine;
mod overhead;
mod profiler;
mod ranks;
mod recording;
mod scale;
mod snapshot;
mod statistics;
mod stored;
mod table;
mod target;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::pages::{CommittedObject, digits};
use crate::process;
use crate::pytorch::{self, Interpreter};
use crate::repository::Repository;
use profiler::Programs;
use stored::StoredPart;
use table::{Style, Table};
use target::{LoopOptions, Target};

/// Python of the figures that the documents have.
const DEFAULT_PYTHON: &str = "3.11";

const DEFAULT_ROUNDS: u32 = 15;
const DEFAULT_ITERATIONS: u32 = 400;

/// Measurements to make, and the format of the output.
#[derive(Debug, Args)]
pub struct Options {
    /// Measure only this; may be given several times
    #[arg(long, value_enum, value_name = "WHAT")]
    only: Vec<Part>,
    /// Print tables in Markdown; progress goes to standard error
    #[arg(long)]
    markdown: bool,
    /// Turns of the training loop: each has one block of every profiler. Of `scale` at most three
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROUNDS, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Iterations of the training loop in a block
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ITERATIONS, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// The Python: a version such as 3.11, or the path of an interpreter
    #[arg(long, value_name = "PYTHON", default_value = DEFAULT_PYTHON)]
    python: Interpreter,
    /// Only the benchmarks of memprobe's own code, and the cases of `scale`, with this text in their names
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Another memprobe, such as that of an earlier commit, in the same turns of the training loop
    #[arg(long, value_name = "MEMPROBE")]
    other: Option<PathBuf>,
    #[command(flatten)]
    training_loop: LoopOptions,
    /// Keep the measurements in docs/cost.json, and write the tables of README.md and the guide from it
    #[arg(long, conflicts_with_all = ["other", "filter"])]
    keep: bool,
}

/// A part of the benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A training loop under each profiler
    Loop,
    /// memprobe's own CPU time and memory
    Footprint,
    /// The run time of the program in the kernel, by depth of the Python stack
    Kernel,
    /// Cost of a snapshot of all tensors, by objects and modules
    Snapshot,
    /// Eight ranks at once that do hardly more than allocate
    Ranks,
    /// Deep models and very many tensors
    Scale,
    /// A recording of ten million events, beside PyTorch's own snapshot
    Recording,
    /// memprobe's own code, event by event (needs neither root nor PyTorch)
    Code,
}

/// Runs the chosen benchmarks and prints their tables to standard output.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    let in_process = [Part::Loop, Part::Footprint, Part::Kernel];
    let in_the_loop = in_process.into_iter().any(wanted);
    let on_their_own = [Part::Snapshot, Part::Ranks, Part::Scale, Part::Recording];
    let attaches = in_the_loop || on_their_own.into_iter().any(wanted);
    if attaches && !process::is_root() {
        bail!(
            "these benchmarks attach probes, which needs root. Run\n\
             \x20 sudo -E env \"PATH=$PATH\" cargo xtask bench\n\
             or, for the one that needs neither root nor PyTorch,\n\
             \x20 cargo xtask bench --only code"
        );
    }
    if options.keep {
        check_stored_loop(options)?;
    }
    let mut tables = Vec::new();
    let mut python = None;
    if attaches {
        let programs = Programs {
            other_memprobe: options.other.clone(),
            ..build(repository)?
        };
        eprintln!("== PyTorch");
        let request = pytorch::Request::new(options.python.clone(), pytorch::DEFAULT_TORCH);
        let environment = pytorch::set_up(&request)?;
        let workloads = repository.root().join("tests/workloads");
        if in_the_loop {
            let script = workloads.join("bench_loop.py");
            let mut target = Target::start(&environment.python, &script, &options.training_loop)?;
            if wanted(Part::Loop) {
                tables.push((
                    Part::Loop,
                    overhead::measure(&mut target, &programs, options)?,
                ));
            }
            if wanted(Part::Footprint) {
                tables.push((Part::Footprint, footprint::measure(&mut target, &programs)?));
            }
            if wanted(Part::Kernel) {
                tables.push((Part::Kernel, kernel::measure(&mut target, &programs)?));
            }
            target.end()?;
        }
        if wanted(Part::Snapshot) {
            let script = workloads.join("many_objects.py");
            let table = snapshot::measure(&environment.python, &script, &programs)?;
            tables.push((Part::Snapshot, table));
        }
        if wanted(Part::Ranks) {
            let script = workloads.join("rush.py");
            let table = ranks::measure(&environment.python, &script, &programs)?;
            tables.push((Part::Ranks, table));
        }
        if wanted(Part::Scale) {
            let filter = options.filter.as_deref().unwrap_or_default();
            let rounds = options.rounds;
            let table = scale::measure(&environment.python, &workloads, &programs, filter, rounds)?;
            tables.push((Part::Scale, table));
        }
        if wanted(Part::Recording) {
            let table = recording::measure(&environment.python, &workloads, &programs)?;
            tables.push((Part::Recording, table));
        }
        python = Some(environment.python);
    }
    if wanted(Part::Code) {
        let table = code::measure(repository, options.filter.as_deref())?;
        tables.push((Part::Code, table));
    }
    let style = if options.markdown {
        Style::Markdown
    } else {
        Style::Terminal
    };
    let machine = machine::describe(python.as_deref())?;
    print(&machine, &tables, style);
    let parts = parts(repository, options, &machine, tables, attaches)?;
    write_samples(repository, &parts)?;
    if options.keep {
        stored::put(repository.root(), parts)?;
        write_documents(repository)?;
    }
    Ok(())
}

/// Refuses to keep a loop that the documents do not have, or what other parts measure in it.
fn check_stored_loop(options: &Options) -> Result<()> {
    let name = options.training_loop.stored_name();
    let name =
        name.context("the documents have the loop with --model or --gpu-time, not with both")?;
    if name != Part::Loop.name() && options.only != [Part::Loop] {
        bail!("the documents have other parts without --model and --gpu-time: add --only loop");
    }
    Ok(())
}

/// Writes the tables in README.md and the guide from the stored measurements.
pub fn write_documents(repository: &Repository) -> Result<()> {
    for (path, text) in documents(repository)? {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns README.md and the page of the guide as the stored measurements make them.
pub fn documents(repository: &Repository) -> Result<Vec<(PathBuf, String)>> {
    stored::documents(repository.root(), &CommittedObject::of(repository)?)
}

impl Part {
    /// Name on the command line.
    fn name(self) -> String {
        let value = self.to_possible_value().expect("no part is hidden");
        value.get_name().to_owned()
    }
}

/// Returns the tables with their measurements, and the builds that they are of.
fn parts(
    repository: &Repository,
    options: &Options,
    machine: &[String],
    tables: Vec<(Part, Table)>,
    attaches: bool,
) -> Result<Vec<StoredPart>> {
    let memprobe = repository.built_memprobe();
    let memprobe = attaches.then(|| digits(&memprobe)).transpose()?;
    let date = process::today()?;
    let object = CommittedObject::of(repository)?;
    let python = options.python.to_string();
    let python = match python.strip_prefix("Python ").unwrap_or(&python) {
        DEFAULT_PYTHON => String::new(),
        other => format!(" --python {other}"),
    };
    let of_loop = loop_words(options);
    let of_scale = rounds_words(options);
    let name = |part| match part {
        Part::Loop => options.training_loop.stored_name().map(str::to_owned),
        _ => None,
    };
    let parts = tables.into_iter().map(|(part, table)| StoredPart {
        part: name(part).unwrap_or_else(|| part.name()),
        command: format!(
            "cargo xtask bench --keep --only {}{}{python}",
            part.name(),
            match part {
                Part::Loop => &*of_loop,
                Part::Scale => &*of_scale,
                _ => "",
            }
        ),
        date: date.clone(),
        machine: machine.to_vec(),
        memprobe: memprobe.clone(),
        object: object.digits().to_owned(),
        table,
    });
    Ok(parts.collect())
}

/// Words of the command line that decide how the loop is measured.
fn loop_words(options: &Options) -> String {
    let mut words = options.training_loop.words();
    if options.iterations != DEFAULT_ITERATIONS {
        words += &format!(" --iterations {}", options.iterations);
    }
    words + &rounds_words(options)
}

/// Words of the command line that say how often it is measured.
fn rounds_words(options: &Options) -> String {
    match options.rounds {
        DEFAULT_ROUNDS => String::new(),
        rounds => format!(" --rounds {rounds}"),
    }
}

/// Writes the measurements behind the tables.
fn write_samples(repository: &Repository, parts: &[StoredPart]) -> Result<()> {
    let folder = repository.target().join("bench");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("samples.json");
    std::fs::write(&path, serde_json::to_string_pretty(parts)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nThe measurements: {}", path.display());
    Ok(())
}

fn print(machine: &[String], tables: &[(Part, Table)], style: Style) {
    for line in machine {
        println!("{line}{}", if style == Style::Markdown { "  " } else { "" });
    }
    for (_, table) in tables {
        println!("\n{}", table.render(style));
    }
}

/// Builds memprobe and the example that attaches its probes alone.
fn build(repository: &Repository) -> Result<Programs> {
    eprintln!("== memprobe");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for what in [&["--bin", "memprobe"], &["--example", "probes_alone"]] {
        process::run(
            Command::new(&cargo)
                .current_dir(repository.root())
                .args(["build", "--release", "--package", "memprobe"])
                .args(what),
        )?;
    }
    let release: PathBuf = repository.target().join("release");
    let recordings = repository.target().join("bench");
    std::fs::create_dir_all(&recordings)?;
    Ok(Programs {
        memprobe: release.join("memprobe"),
        other_memprobe: None,
        probes_alone: release.join("examples/probes_alone"),
        recordings,
    })
}

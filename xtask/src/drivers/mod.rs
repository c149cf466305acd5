//! `cargo xtask drivers`: memprobe's probes on NVIDIA's own libcuda, libcudart and NVML, and beside UCX.

mod caller;
mod catalog;
mod faults;
mod fetch;
mod gpu;
mod library;
mod memprobe;
mod nvml;
mod others;
mod page;
mod results;
mod trial;
mod ucx;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use crate::pages::{CommittedObject, digits};
use crate::process;
use crate::repository::{Repository, cache_folder};
use catalog::{DRIVERS, Driver, Part, RUNTIMES, UCX, Wheel};
use fetch::FetchedDriver;
use results::{Circumstances, LibraryResult, Order, Results};
use trial::{Outcome, Subject, Tools};

/// The driver beside which runtimes and UCX are tried: the newest.
const NEWEST: usize = DRIVERS.len() - 1;

/// Error of a trial during which another memprobe watched.
const DISTURBED: &str =
    "another memprobe watched all processes meanwhile: end it, and try this again";

/// Selection of libraries.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these versions of the driver or of libcudart, such as 550.163.01 or 12.4.127
    #[arg(long, value_name = "VERSION", value_delimiter = ',', value_parser = known_version)]
    only: Vec<String>,
    /// Only these groups of trials
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    part: Vec<Part>,
    /// Try this memprobe instead of building one
    #[arg(long, value_name = "FILE")]
    memprobe: Option<PathBuf>,
    /// Try the calls that succeed with this libcuda instead of the system's (a simulated one, say);
    /// the result is only printed
    #[arg(long, value_name = "FILE")]
    libcuda: Option<PathBuf>,
    /// Only list the downloads, with origin and licence
    #[arg(long)]
    list: bool,
    /// Only print the page that the repository has
    #[arg(long)]
    show: bool,
}

fn known_version(text: &str) -> Result<String, String> {
    let versions = || {
        let drivers = DRIVERS.iter().map(|driver| driver.version);
        drivers.chain(RUNTIMES.iter().map(|wheel| wheel.version))
    };
    if versions().any(|version| version == text) {
        return Ok(text.to_owned());
    }
    let known: Vec<&str> = versions().collect();
    Err(format!("the versions are: {}", known.join(", ")))
}

impl Options {
    fn wants(&self, part: Part, version: &str) -> bool {
        (self.part.is_empty() || self.part.contains(&part))
            && (self.only.is_empty() || self.only.iter().any(|only| only == version))
    }

    /// The calls that succeed are tried where no version or their part is asked for.
    fn wants_gpu(&self) -> bool {
        match self.part.is_empty() {
            true => self.only.is_empty(),
            false => self.part.contains(&Part::Gpu),
        }
    }
}

/// Returns the page from the results in a folder.
pub fn page_of(docs: &Path, committed: &CommittedObject) -> Result<String> {
    Ok(page::render(
        &Results::read(&docs.join("drivers.json"))?,
        committed,
    ))
}

/// Fetches the libraries, tries them, and keeps the results in `docs/drivers.json` and `docs/drivers.md`.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    let docs = repository.root().join("docs");
    if options.show {
        print!("{}", page_of(&docs, &CommittedObject::of(repository)?)?);
        return Ok(());
    }
    println!("{}", catalog::origins());
    if options.list {
        return Ok(());
    }
    if !process::is_root() {
        bail!(
            "probes are attached, which needs root. Run\n\
             \x20 sudo -E env \"PATH=$PATH\" cargo xtask drivers"
        );
    }
    fetch::check_programs()?;
    let cache = cache_folder()?.join("drivers");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let lock = cache.join("lock");
    let file =
        fs::File::create(&lock).with_context(|| format!("cannot open {}", lock.display()))?;
    let mut alone = fd_lock::RwLock::new(file);
    let _alone = alone.try_write().map_err(|_| {
        anyhow!("another `cargo xtask drivers` runs on this machine: wait for its end")
    })?;
    let run = Run::prepare(repository, options, cache)?;
    if let Some(libcuda) = &options.libcuda {
        return run.print_success(libcuda);
    }
    let committed = CommittedObject::of(repository)?;
    let keep = |new: Results| -> Result<()> {
        let path = docs.join("drivers.json");
        let mut all = Results::read(&path)?;
        all.put(new);
        all.write(&path)?;
        let page = docs.join("drivers.md");
        fs::write(&page, page::render(&all, &committed))
            .with_context(|| format!("cannot write {}", page.display()))
    };
    for driver in &DRIVERS {
        run.try_driver(options, driver, &keep)?;
    }
    for wheel in &RUNTIMES {
        if options.wants(Part::Runtime, wheel.version) {
            let result = run.try_runtime(wheel)?;
            keep(Results {
                runtimes: vec![result],
                ..Results::default()
            })?;
        }
    }
    if options.wants_gpu() {
        run.try_gpu(&keep)?;
    }
    let all = Results::read(&docs.join("drivers.json"))?;
    println!("\n{}", page::render(&all, &committed));
    println!("kept in {}", docs.join("drivers.md").display());
    let faults = faults::faults(&all);
    if !faults.is_empty() {
        bail!(
            "{} things are not as they should be: see the page",
            faults.len()
        );
    }
    Ok(())
}

/// Common state of all trials of a run.
struct Run {
    tools: Tools,
    circumstances: Circumstances,
    cache: PathBuf,
    /// The folder of the programs.
    _programs: TempDir,
}

impl Run {
    fn prepare(repository: &Repository, options: &Options, cache: PathBuf) -> Result<Self> {
        let built = match &options.memprobe {
            Some(file) => file.clone(),
            None => {
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                process::run(Command::new(cargo).current_dir(repository.root()).args([
                    "build",
                    "--release",
                    "--package",
                    "memprobe",
                ]))?;
                repository.built_memprobe()
            }
        };
        // A copy: a build meanwhile would otherwise be tried half-way through.
        let programs = tempfile::tempdir().context("cannot make a folder for the programs")?;
        let memprobe = programs.path().join("memprobe");
        fs::copy(&built, &memprobe).with_context(|| format!("cannot copy {}", built.display()))?;
        let calls = caller::build(programs.path())?;
        Ok(Self {
            circumstances: Circumstances {
                date: process::today()?,
                kernel: process::answer(Command::new("uname").arg("-sr"))?,
                memprobe: digits(&memprobe)?,
                ebpf_object: digits(&repository.ebpf_object())?,
            },
            tools: Tools { memprobe, calls },
            cache,
            _programs: programs,
        })
    }

    /// libcuda, UCX and NVML of one driver; each result is kept at once.
    fn try_driver(
        &self,
        options: &Options,
        driver: &Driver,
        keep: &dyn Fn(Results) -> Result<()>,
    ) -> Result<()> {
        let wants = |part| options.wants(part, driver.version);
        if ![Part::Cuda, Part::Ucx, Part::Nvml].into_iter().any(wants) {
            return Ok(());
        }
        println!("\n== driver {}", driver.version);
        let fetched = driver.fetch(&self.cache)?;
        if wants(Part::Cuda) {
            let package = format!("{} {}", driver.cuda, fetched.package_version);
            let result =
                self.try_libcuda(&fetched.libcuda, driver.version, package, Some("cuInit"))?;
            keep(Results {
                drivers: vec![result],
                ..Results::default()
            })?;
        }
        if wants(Part::Ucx) {
            let ucx = self.try_ucx(driver, &fetched)?;
            keep(Results {
                ucx,
                ..Results::default()
            })?;
        }
        if let Some(library) = fetched.nvml.filter(|_| wants(Part::Nvml)) {
            let circumstances = self.circumstances.clone();
            let nvml = nvml::try_nvml(&self.tools, &library, driver.version, circumstances)?;
            println!(
                "  NVML: nvmlInit_v2 answers {:?}; top {}",
                nvml.init, nvml.top_status
            );
            keep(Results {
                nvml: vec![nvml],
                ..Results::default()
            })?;
        }
        Ok(())
    }

    fn try_libcuda(
        &self,
        libcuda: &Path,
        version: &str,
        package: String,
        first: Option<&'static str>,
    ) -> Result<LibraryResult> {
        let subject = Subject {
            library: libcuda,
            driver: libcuda.parent().context("a library lies in a folder")?,
            is_its: trial::is_driver_function,
            first,
        };
        let start = Instant::now();
        let outcome = self
            .try_library(&subject)
            .with_context(|| format!("libcuda {version}"))?;
        let result = self.library_result(version, package, None, outcome);
        println!(
            "  libcuda: {} ({:.0} s)",
            page::in_a_line(&result),
            start.elapsed().as_secs_f64()
        );
        Ok(result)
    }

    fn try_runtime(&self, wheel: &Wheel) -> Result<LibraryResult> {
        println!("\n== libcudart {}", wheel.version);
        let folder = wheel.fetch(&self.cache)?;
        let library = libcudart(&folder)?;
        let driver = DRIVERS[NEWEST].fetch(&self.cache)?;
        let subject = Subject {
            library: &library,
            driver: driver
                .libcuda
                .parent()
                .context("a library lies in a folder")?,
            is_its: trial::is_runtime_function,
            first: Some("cudaFree"),
        };
        let start = Instant::now();
        let outcome = self
            .try_library(&subject)
            .with_context(|| format!("libcudart {}", wheel.version))?;
        let driver = Some(DRIVERS[NEWEST].version.to_owned());
        let package = format!("{} {}", wheel.package, wheel.version);
        let result = self.library_result(wheel.version, package, driver, outcome);
        println!(
            "  libcudart: {} ({:.0} s)",
            page::in_a_line(&result),
            start.elapsed().as_secs_f64()
        );
        Ok(result)
    }

    fn try_library(&self, subject: &Subject) -> Result<Outcome> {
        let (mut outcome, is_disturbed) =
            others::undisturbed(|| trial::try_library(&self.tools, subject))?;
        if is_disturbed {
            outcome.complaints.push(DISTURBED.to_owned());
        }
        Ok(outcome)
    }

    fn library_result(
        &self,
        version: &str,
        package: String,
        driver: Option<String>,
        outcome: Outcome,
    ) -> LibraryResult {
        LibraryResult {
            version: version.to_owned(),
            package,
            driver,
            circumstances: self.circumstances.clone(),
            first_answer: outcome.first_answer,
            functions: outcome.functions,
            complaints: outcome.complaints,
        }
    }

    fn try_ucx(&self, driver: &Driver, fetched: &FetchedDriver) -> Result<Vec<results::UcxResult>> {
        let ucx = ucx::Ucx::find(&UCX.fetch(&self.cache)?)?;
        let mut tried = Vec::new();
        for order in [Order::UcxAlone, Order::UcxFirst, Order::MemprobeFirst] {
            let (mut result, is_disturbed) =
                others::undisturbed(|| ucx.try_order(&self.tools, &fetched.libcuda, order))
                    .with_context(|| format!("UCX with driver {}", driver.version))?;
            if is_disturbed {
                result.complaint.get_or_insert(DISTURBED.to_owned());
            }
            driver.version.clone_into(&mut result.driver);
            UCX.version.clone_into(&mut result.ucx);
            result.circumstances = self.circumstances.clone();
            println!("  UCX: {}", page::ucx_in_a_line(&result));
            tried.push(result);
        }
        Ok(tried)
    }

    /// The system's own driver and the calls that succeed, where there is a GPU.
    fn try_gpu(&self, keep: &dyn Fn(Results) -> Result<()>) -> Result<()> {
        println!("\n== calls that succeed");
        if let Some(reason) = gpu::absence() {
            println!("  {reason}");
            return keep(Results {
                gpu: Some(gpu::absent(reason, self.circumstances.clone())),
                ..Results::default()
            });
        }
        let libcuda = gpu::system_libcuda()?;
        let version = gpu::version_of(&libcuda);
        // Without cuInit every call fails at once here too.
        let package = "of the machine".to_owned();
        let functions = self.try_libcuda(&libcuda, &version, package, None)?;
        keep(Results {
            drivers: vec![functions],
            ..Results::default()
        })?;
        let runtime = RUNTIMES[2].fetch(&self.cache)?;
        let result = gpu::try_success(
            &self.tools.memprobe,
            &libcuda,
            Some(&libcudart(&runtime)?),
            self.circumstances.clone(),
        )?;
        print!("{}", page::gpu(&result));
        keep(Results {
            gpu: Some(result),
            ..Results::default()
        })
    }

    /// The calls that succeed with a libcuda of the user's choice, and a libcudart beside it.
    fn print_success(&self, libcuda: &Path) -> Result<()> {
        let runtime = libcuda.parent().and_then(|folder| libcudart(folder).ok());
        let result = gpu::try_success(
            &self.tools.memprobe,
            libcuda,
            runtime.as_deref(),
            self.circumstances.clone(),
        )?;
        print!("{}", page::gpu(&result));
        if !result.complaints.is_empty() {
            bail!("memprobe's events are not what the program holds");
        }
        Ok(())
    }
}

/// The libcudart below a folder.
fn libcudart(folder: &Path) -> Result<PathBuf> {
    fetch::find(folder, &|name| name.starts_with("libcudart.so"))
        .with_context(|| format!("{} has no libcudart", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_is_answered_with_the_list() {
        assert_eq!(known_version("550.163.01").unwrap(), "550.163.01");
        let error = known_version("570.1").unwrap_err();
        assert!(
            error.contains("450.248.02") && error.contains("13.5.37"),
            "{error}"
        );
    }

    #[test]
    fn parts_and_versions_choose_the_trials() {
        let options = |only: &[&str], part: &[Part]| Options {
            only: only.iter().map(|&it| it.to_owned()).collect(),
            part: part.to_vec(),
            memprobe: None,
            libcuda: None,
            list: false,
            show: false,
        };
        let all = options(&[], &[]);
        assert!(all.wants(Part::Ucx, "450.248.02") && all.wants_gpu());
        let one = options(&["555.58.02"], &[]);
        assert!(one.wants(Part::Cuda, "555.58.02"));
        assert!(!one.wants(Part::Cuda, "450.248.02") && !one.wants_gpu());
        let nvml = options(&[], &[Part::Nvml]);
        assert!(nvml.wants(Part::Nvml, "555.58.02") && !nvml.wants(Part::Cuda, "555.58.02"));
        assert!(options(&["555.58.02"], &[Part::Gpu]).wants_gpu());
    }
}

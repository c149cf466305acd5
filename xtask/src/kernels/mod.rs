//! `cargo xtask kernels`: tests memprobe on other kernels, each in a virtual machine.

pub mod archive;
mod build;
mod catalog;
mod disk;
mod guest;
mod image;
mod initramfs;
mod report;
mod script;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::apt;
use crate::pages::{CommittedObject, digits};
use crate::process;
use crate::pytorch::{self, Environment, Interpreter};
use crate::repository::{Repository, cache_folder};
pub use build::Programs;
use catalog::{Extent, KERNELS, Kernel, PROGRAMS, Program};
use guest::{Accelerator, Guest};
use image::{Freshness, Image};
use report::Row;
use script::GuestOutput;

/// Time limit of a guest under KVM, in case it hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Required programs, each with its Debian package.
const NEEDED: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mke2fs", "e2fsprogs"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("dpkg-deb", "dpkg"),
];

/// Selection of kernels and tests.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only this kernel, by the name in the list; can be given again
    #[arg(long = "kernel", value_name = "NAME", value_parser = known_kernel)]
    kernels: Vec<&'static Kernel>,
    /// Only this program of tests (exactness, robustness, ...); can be given again
    #[arg(long = "only", value_name = "PROGRAM", value_parser = known_program)]
    only: Vec<&'static str>,
    /// Only the few tests that the test command runs
    #[arg(long, alias = "brief")]
    quick: bool,
    /// Look for newer kernels than those in the cache
    #[arg(long)]
    update: bool,
    /// Only list the kernels
    #[arg(long)]
    list: bool,
}

fn known_kernel(name: &str) -> Result<&'static Kernel, String> {
    let names = || KERNELS.map(|kernel| kernel.name).join(", ");
    Kernel::named(name).ok_or_else(|| format!("the kernels are: {}", names()))
}

fn known_program(name: &str) -> Result<&'static str, String> {
    let mut names = PROGRAMS.map(|program| program.name).to_vec();
    names.dedup();
    let found = names.iter().find(|known| **known == name).copied();
    found.ok_or_else(|| format!("the programs are: {}", names.join(", ")))
}

/// Runs the chosen tests on the chosen kernels and prints a table. Updates `docs/kernels.md`,
/// unless only single programs were chosen.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    if options.list {
        for kernel in &KERNELS {
            println!(
                "{:<10} {:<16} {}",
                kernel.name,
                kernel.origin(),
                kernel.reason
            );
        }
        return Ok(());
    }
    let kernels: Vec<&'static Kernel> = match options.kernels.is_empty() {
        true => KERNELS.iter().collect(),
        false => options.kernels.clone(),
    };
    let freshness = match options.update {
        true => Freshness::Newest,
        false => Freshness::Cached,
    };
    let extent = match options.quick {
        true => Extent::Quick,
        false => Extent::Whole,
    };
    let programs = catalog::programs(extent, &options.only);

    install_needed()?;
    let built = build::build(repository, &programs)?;
    let factory = GuestFactory::prepare(repository, &programs, built)?;
    let images = fetch(&kernels, &factory.cache, freshness)?;
    let accelerator = Accelerator::find(&images[0].vmlinuz(), &factory.cache)?;
    println!("guests are run by {accelerator}");
    let mut rows = Vec::new();
    for (kernel, image) in kernels.into_iter().zip(images) {
        let row = factory.try_kernel(kernel, &image, &accelerator, &programs)?;
        if options.only.is_empty() {
            report::keep(
                std::slice::from_ref(&row),
                &repository.root().join("docs"),
                &factory.committed,
            )?;
        }
        rows.push(row);
    }
    print!("\n{}", report::table(&rows, &factory.committed));
    factory.judge(&rows)
}

/// Returns why the test command skips the guest: too slow, or impossible here.
fn obstacle() -> Option<String> {
    if let Some(reason) = Accelerator::without_kvm() {
        return Some(format!("it takes long without KVM ({reason})"));
    }
    if process::on_path("apt-get").is_none() {
        return Some("it comes by apt-get, which is not here".to_owned());
    }
    let gpu = Path::new("/dev/nvidia0").exists();
    gpu.then(|| "its guest needs PyTorch on simulated CUDA, and here is a GPU".to_owned())
}

/// True if [`run_quick`] will run anything.
pub fn can_be_quick() -> bool {
    obstacle().is_none()
}

/// Runs a few tests on the typical kernel, if KVM makes that quick. Returns the reason if it does
/// not run them.
pub fn run_quick(repository: &Repository, built: Programs) -> Result<Option<String>> {
    if let Some(reason) = obstacle() {
        return Ok(Some(reason));
    }
    let programs = catalog::programs(Extent::Quick, &[]);
    install_needed()?;
    let factory = GuestFactory::prepare(repository, &programs, built)?;
    let kernel = Kernel::named(catalog::TYPICAL).context("a kernel of the list")?;
    let image = Image::fetch(kernel, &factory.cache, Freshness::Cached)?;
    let accelerator = Accelerator::find(&image.vmlinuz(), &factory.cache)?;
    if let Accelerator::Tcg { reason } = &accelerator {
        return Ok(Some(format!("it takes long without KVM ({reason})")));
    }
    let rows = [factory.try_kernel(kernel, &image, &accelerator, &programs)?];
    print!("\n{}", report::table(&rows, &factory.committed));
    factory.judge(&rows)?;
    Ok(None)
}

/// Returns the Python of the guests: the one of most tests, whose environment is there then. A Python
/// that is started by a script does not start in a guest.
fn interpreter() -> Result<Interpreter> {
    let usual = crate::test::interpreter_of(pytorch::TESTED[0]);
    let is_program = |it: &Interpreter| {
        let info = it.present();
        info.is_some_and(|info| disk::is_elf(&info.executable))
    };
    match usual.filter(is_program) {
        Some(usual) => Ok(usual),
        None => "3.11".parse(),
    }
}

/// Returns the page from the rows in a folder.
pub fn page_of(docs: &Path, committed: &CommittedObject) -> Result<String> {
    let rows = fs::read(docs.join("kernels.json")).context("cannot read kernels.json")?;
    Ok(report::page(
        &serde_json::from_slice::<Vec<Row>>(&rows)?,
        committed,
    ))
}

fn fetch(kernels: &[&'static Kernel], cache: &Path, freshness: Freshness) -> Result<Vec<Image>> {
    kernels
        .iter()
        .map(|kernel| {
            let image = Image::fetch(kernel, cache, freshness)
                .with_context(|| format!("kernel {} of {}", kernel.name, kernel.origin()))?;
            println!("{}: {} {}", kernel.name, image.package, image.version);
            Ok(image)
        })
        .collect()
}

/// Everything that guests need except the kernel.
struct GuestFactory {
    /// Folder of kernels, disks and logs.
    cache: PathBuf,
    repository: PathBuf,
    memprobe: PathBuf,
    committed: CommittedObject,
    environment: Environment,
    busybox: PathBuf,
    system: PathBuf,
    /// Contents of the test disk: source path and name on the disk.
    files: Vec<(PathBuf, String)>,
    /// Lock on `cache`, which only one run at a time may write.
    _turn: File,
}

impl GuestFactory {
    fn prepare(repository: &Repository, programs: &[Program], built: Programs) -> Result<Self> {
        let cache = cache_folder()?.join("kernels");
        fs::create_dir_all(cache.join("log"))
            .with_context(|| format!("cannot create {}", cache.display()))?;
        let turn = turn(&cache)?;
        let environment = pytorch::set_up(&pytorch::Request {
            gpus: pytorch::Gpus::Simulated,
            ..pytorch::Request::new(interpreter()?, pytorch::DEFAULT_TORCH)
        })?;
        let busybox = busybox(&cache)?;
        let system = disk::system(&environment, &busybox, repository.root(), &cache)?;
        Ok(Self {
            files: build::files(repository, programs, &built)?,
            repository: repository.root().to_owned(),
            memprobe: built.memprobe,
            committed: CommittedObject::of(repository)?,
            environment,
            busybox,
            system,
            cache,
            _turn: turn,
        })
    }

    /// Fails if memprobe did not behave as expected on a kernel.
    fn judge(&self, rows: &[Row]) -> Result<()> {
        let bad: Vec<&str> = rows
            .iter()
            .filter(|row| !row.is_good())
            .map(|row| row.kernel.as_str())
            .collect();
        if bad.is_empty() {
            return Ok(());
        }
        bail!(
            "memprobe does not do what it should on {}; the guests' words are in {}",
            bad.join(", "),
            self.cache.join("log").display()
        )
    }

    /// Boots a kernel and runs the programs meant for it.
    fn try_kernel(
        &self,
        kernel: &'static Kernel,
        image: &Image,
        accelerator: &Accelerator,
        programs: &[Program],
    ) -> Result<Row> {
        println!("\n== {}: {}", kernel.name, kernel.reason);
        let programs: Vec<Program> = programs
            .iter()
            .filter(|program| program.on == kernel.expected)
            .copied()
            .collect();
        let python = &self.environment.python;
        let pythons = fs::canonicalize(python)?;
        let script = script::script(
            &self.repository,
            python,
            pythons
                .parent()
                .context("an interpreter lies in a folder")?,
            accelerator.patience(),
            &programs,
        );
        let initramfs = self.cache.join("initramfs.cpio");
        initramfs::write(image, &self.busybox, &initramfs)?;
        let log = |kind: &str| self.cache.join(format!("log/{}-{kind}.log", kernel.name));
        let guest = Guest {
            vmlinuz: image.vmlinuz(),
            initramfs,
            disks: [
                self.system.clone(),
                disk::tests(&self.files, &script, &self.cache)?,
            ],
            console: log("console"),
            log: log("tests"),
            limit: LIMIT * accelerator.patience(),
        };
        let start = Instant::now();
        let printed = guest.run(accelerator, |line| {
            if line.starts_with("test ") || line.starts_with("memprobe-guest") {
                println!("  {line}");
            }
        });
        let took = start.elapsed();
        let (output, mut complaints) = match printed {
            Ok(lines) => (GuestOutput::read(&lines), Vec::new()),
            Err(error) => {
                eprintln!("{error:#}");
                (
                    GuestOutput::default(),
                    vec!["the guest did not end".to_owned()],
                )
            }
        };
        complaints.extend(output.programs.iter().filter_map(script::Ran::complaint));
        if complaints.is_empty() && (!output.over || output.programs.len() != programs.len()) {
            complaints.push("the guest ended early".to_owned());
            eprintln!("{}", guest.last_words());
        }
        for complaint in &complaints {
            println!("  {complaint}: see {}", log("tests").display());
        }
        println!("  {} in {} s", output.release, took.as_secs());
        let day = process::today()?;
        Ok(Row {
            by: accelerator.name().to_owned(),
            date: day,
            memprobe: Some(digits(&self.memprobe)?),
            object: Some(self.committed.digits().to_owned()),
            ..Row::of(kernel, &image.version, &output, complaints)
        })
    }
}

/// Locks the cache, waiting for other runs; closing the file releases the lock.
fn turn(cache: &Path) -> Result<File> {
    let file = File::create(cache.join("lock"))?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    if locked == Err(Errno::WOULDBLOCK) {
        eprintln!("waiting for another `cargo xtask kernels`");
        flock(&file, FlockOperation::LockExclusive)?;
    } else {
        locked?;
    }
    Ok(file)
}

/// Installs missing programs, if apt is present and the process is root.
fn install_needed() -> Result<()> {
    let mut missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|(_, package)| package)
        .collect();
    if !Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").is_file() {
        missing.push("debian-archive-keyring");
    }
    if missing.is_empty() {
        return Ok(());
    }
    if process::on_path("apt-get").is_none() {
        bail!(
            "the kernels come by apt-get, which this system does not have; use a Debian or Ubuntu"
        );
    }
    if !process::is_root() {
        bail!(
            "something is missing. Run\n  sudo apt-get install {}",
            missing.join(" ")
        );
    }
    apt::install(&missing)
}

/// Also searches the sbin folders, which a user's `PATH` may lack.
fn is_installed(program: &str) -> bool {
    let sbin = ["/usr/sbin", "/sbin"]
        .into_iter()
        .any(|folder| Path::new(folder).join(program).is_file());
    sbin || process::on_path(program).is_some()
}

/// Returns a static busybox, the guests' shell.
fn busybox(cache: &Path) -> Result<PathBuf> {
    let unpacked = cache.join("busybox");
    for place in ["bin/busybox", "usr/bin/busybox"] {
        let busybox = unpacked.join(place);
        if busybox.is_file() {
            return Ok(busybox);
        }
    }
    let archive = archive::Archive::debian(&["bookworm"], &cache.join("apt/busybox"))?;
    archive.unpack(&archive.find("busybox-static")?, &unpacked)?;
    Ok(unpacked.join("bin/busybox"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_not_listed_is_answered_with_the_list() {
        let error = known_kernel("4.4").unwrap_err();
        assert!(error.contains("5.15") && error.contains("6.1"), "{error}");
    }
}

//! Virtual environments with PyTorch.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::interpreter::{self, PythonInfo};
use super::releases::release_of;
use super::{Cuda, Packages};
use crate::process;

/// Pure Python packages that PyTorch needs for training, besides numpy; pip adds their
/// dependencies.
const DEPENDENCIES: [&str; 6] = [
    "typing_extensions",
    "sympy",
    "networkx",
    "filelock",
    "jinja2",
    "fsspec",
];

/// Packages with which more is tried, each with a file or folder of it and its purpose. `torch.compile` needs setuptools for
/// CPU code, besides a C++ compiler (torch/utils/cpp_extension.py@v2.15.0 imports it); to build a wheel it must be 70.1 or
/// newer, and that of Debian 12 is older.
const OPTIONAL: [(&str, &str, &str); 2] = [
    (
        "setuptools>=70.1",
        "setuptools/command/bdist_wheel.py",
        "torch.compile",
    ),
    (
        "torch_memory_saver==0.0.10",
        "torch_memory_saver",
        "memory that sleeps",
    ),
];

/// Modules that programs import, with the modules that they import.
const COMPILED: [&str; 7] = [
    "torch",
    "torch.utils.data",
    "torch.utils.checkpoint",
    "torch.profiler",
    "torch.distributed.run",
    "torch._dynamo",
    "torch._inductor.compile_fx",
];

/// Marker file of a complete environment.
const RECORD: &str = "memprobe-environment.json";

/// File that names the CUDA libraries with which this PyTorch is known to work.
const VERIFIED: &str = "memprobe-verified";

/// File that names the packages beside PyTorch.
const PACKAGES: &str = "memprobe-packages";

/// A complete virtual environment.
#[derive(Debug)]
pub struct Venv {
    folder: PathBuf,
    record: Record,
}

/// Description of an environment's creation.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    python_version: String,
    base: PathBuf,
    torch: String,
}

/// True if the set-up of the environment in this folder has ended.
pub fn is_complete(folder: &Path) -> bool {
    folder.join(RECORD).exists()
}

/// Returns the size of PyTorch's wheel, for display.
pub fn wheel_size(torch: &str) -> String {
    match release_of(torch) {
        Some(release) => format!("{} MB", release.wheel_mb),
        None => "500 to 900 MB".to_owned(),
    }
}

impl Venv {
    /// Opens the environment in this folder if it is complete and its Python still runs. Removes
    /// the remains of an interrupted set-up.
    pub fn open(folder: &Path, torch: &str) -> Result<Option<Self>> {
        let record = match fs::read(folder.join(RECORD)) {
            Ok(bytes) => serde_json::from_slice::<Record>(&bytes).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", folder.display()));
            }
        };
        if let Some(record) = record.filter(|record| record.torch == torch) {
            let venv = Self {
                folder: folder.to_owned(),
                record,
            };
            if interpreter::probe(&venv.python())
                .is_ok_and(|info| info.version == venv.record.python_version)
            {
                return Ok(Some(venv));
            }
        }
        remove(folder)?;
        Ok(None)
    }

    /// Downloads and installs everything into a new environment.
    pub fn create(folder: &Path, base: &PythonInfo, torch: &str, cuda: Cuda) -> Result<Self> {
        let pip = create_empty(folder, base)?;
        let requirement = format!("torch=={torch}");
        let numpy = release_of(torch).map_or("numpy", |release| release.numpy);
        match cuda {
            Cuda::Simulated => {
                // No NVIDIA wheels: the simulated libraries take their place in PyTorch's RPATH.
                // Install PyTorch last, or pip complains about their absence.
                let mut dependencies = DEPENDENCIES.to_vec();
                dependencies.push(numpy);
                pip.install(&dependencies)?;
                pip.install(&["--no-deps", &requirement])?;
            }
            Cuda::Real => pip.install(&[&requirement, numpy])?,
        }
        let record = Record {
            python_version: base.version.clone(),
            base: base.executable.clone(),
            torch: torch.to_owned(),
        };
        write_whole(&folder.join(RECORD), &serde_json::to_vec_pretty(&record)?)?;
        Ok(Self {
            folder: folder.to_owned(),
            record,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn python(&self) -> PathBuf {
        python_in(&self.folder)
    }

    /// Full version of Python, such as `3.11.7`.
    pub fn python_version(&self) -> &str {
        &self.record.python_version
    }

    pub fn torch(&self) -> &str {
        &self.record.torch
    }

    /// Returns the folder of PyTorch's shared libraries.
    pub fn torch_libraries(&self) -> Result<PathBuf> {
        self.installed("torch/lib")?
            .with_context(|| format!("no torch/lib below {}", self.folder.display()))
    }

    /// Installs missing packages of [`OPTIONAL`]. Everything else works without, so a failure is only printed.
    pub fn add_optional_packages(&self) -> Result<()> {
        for (package, part, purpose) in OPTIONAL {
            if self.installed(part)?.is_some() {
                continue;
            }
            eprintln!(
                "Adding {package} (some MB) to {}, with which {purpose} is tried",
                self.folder.display()
            );
            // Without a network, retries would delay every run.
            let words = ["--retries", "1", "--no-deps", package];
            if let Err(error) = Pip(self.python()).install(&words) {
                eprintln!("  without it: {error:#}; what tries {purpose} will be skipped");
            }
        }
        Ok(())
    }

    /// Installs packages unless exactly these were installed before.
    pub fn add_packages(&self, packages: &Packages) -> Result<()> {
        let sources = packages.sources.join("\n");
        let wanted = super::fingerprint([packages.requirements.as_bytes(), sources.as_bytes()]);
        let note = self.folder.join(PACKAGES);
        if fs::read_to_string(&note).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        let list = self.folder.join("requirements.txt");
        write_whole(&list, packages.requirements.as_bytes())?;
        eprintln!("Adding the packages of {}", list.display());
        // Their own dependencies would bring NVIDIA's libraries and another PyTorch.
        let list = list.to_string_lossy();
        let pip = Pip(self.python());
        pip.install(&["--no-deps", "--requirement", &list])?;
        for source in packages.sources {
            let words = [
                "--no-deps",
                "--no-build-isolation",
                "--no-binary",
                ":all:",
                source,
            ];
            pip.install_with(&words, packages.settings)?;
        }
        write_whole(&note, wanted.as_bytes())
    }

    /// Returns whether Python has compiled PyTorch's modules, which pip did not.
    pub fn is_compiled(&self) -> Result<bool> {
        Ok(self.installed("torch/__pycache__")?.is_some())
    }

    /// Imports the modules that programs commonly import, so that Python writes them compiled. Otherwise each
    /// start of a program compiles a thousand of them, which doubles its time.
    pub fn compile_modules(&self) -> Result<()> {
        eprintln!(
            "Compiling PyTorch's Python modules in {}",
            self.folder.display()
        );
        // Older versions lack some, others want packages that are not here.
        let imports = "import importlib, sys\n\
             for name in sys.argv[1:]:\n    \
                 try: importlib.import_module(name)\n    \
                 except Exception as error: print(f'  without {name}: {error}')";
        let mut python = Command::new(self.python());
        python.args(["-c", imports]).args(COMPILED);
        python.env_remove("PYTHONDONTWRITEBYTECODE");
        // PyTorch 2.3 starts a pool of compilers at the import, and may wait for one for ever if it ends at once.
        python.env("TORCHINDUCTOR_COMPILE_THREADS", "1");
        let failed = process::answer(&mut python)?;
        if !failed.is_empty() {
            eprintln!("{failed}");
        }
        Ok(())
    }

    /// Returns a file or folder among the installed packages, if it exists.
    fn installed(&self, below: &str) -> Result<Option<PathBuf>> {
        let lib = self.folder.join("lib");
        let entries =
            fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
        let mut paths =
            entries.filter_map(|entry| Some(entry.ok()?.path().join("site-packages").join(below)));
        Ok(paths.find(|path| path.exists()))
    }

    /// True if this PyTorch is known to work with the current CUDA libraries.
    pub fn is_verified(&self, libraries: Option<&Path>) -> Result<bool> {
        let seen = fs::read_to_string(self.folder.join(VERIFIED)).unwrap_or_default();
        Ok(seen == verification(libraries)?)
    }

    /// Records that PyTorch works with the current CUDA libraries.
    pub fn mark_verified(&self, libraries: Option<&Path>) -> Result<()> {
        write_whole(
            &self.folder.join(VERIFIED),
            verification(libraries)?.as_bytes(),
        )
    }
}

/// Identifies the CUDA libraries of a verification: a build of the simulated ones, or the real
/// ones.
fn verification(libraries: Option<&Path>) -> Result<String> {
    match libraries {
        Some(folder) => Ok(super::simulated_cuda::installed_build(folder)
            .context("the simulated CUDA vanished while it was set up: run it again")?),
        None => Ok("real".to_owned()),
    }
}

/// Writes a file atomically.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes)
        .and_then(|()| fs::rename(&partial, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn python_in(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        eprintln!("Removing the unfinished or outdated {}", folder.display());
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// pip of an environment, run by its own interpreter.
struct Pip(PathBuf);

impl Pip {
    fn install(&self, requirements: &[&str]) -> Result<()> {
        self.install_with(requirements, &[])
    }

    fn install_with(&self, requirements: &[&str], settings: &[(&str, &str)]) -> Result<()> {
        let mut command = Command::new(&self.0);
        command
            .args(["-m", "pip"])
            // The environment itself is the cache: pip's copy of each wheel would double the disk
            // use. Packages without a wheel are an error, because nothing is compiled.
            .args(["install", "--disable-pip-version-check", "--no-cache-dir"])
            .args(["--only-binary", ":all:"])
            // Most of PyTorch's modules are never imported, and compiling all takes longer than the
            // download.
            .arg("--no-compile")
            .args(requirements)
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .envs(settings.iter().copied());
        process::run(&mut command).context(
            "pip could not install what PyTorch needs: where its own words above do not say why, \
             check the network (and PIP_INDEX_URL), then run `cargo xtask set-up` again",
        )
    }
}

/// Creates an environment without packages, and a pip to fill it. Debian packages venv and
/// ensurepip apart from Python, so both may be missing.
fn create_empty(folder: &Path, base: &PythonInfo) -> Result<Pip> {
    let venv = |extra: &[&str]| {
        process::answer(
            Command::new(&base.executable)
                .args(["-m", "venv", "--clear"])
                .args(extra)
                .arg(folder),
        )
    };
    let pip = Pip(python_in(folder));
    if venv(&[]).is_ok() {
        return Ok(pip);
    }
    let package = format!("python{}-venv", base.minor_version());
    if let Err(error) = venv(&["--without-pip"]) {
        let installed = base.executable.starts_with("/usr/bin")
            && interpreter::install_with_apt(&[&package])
            && venv(&[]).is_ok();
        if installed {
            return Ok(pip);
        }
        return Err(error.context(format!(
            "{} cannot make virtual environments: install its venv module \
             (`sudo apt-get install {package}` on Debian) or name another Python with --python",
            base.executable.display()
        )));
    }
    if install_own_pip(base, &pip.0)? {
        return Ok(pip);
    }
    let packages = folder.join(format!("lib/python{}/site-packages", base.minor_version()));
    lend_pip(&packages).with_context(|| {
        format!(
            "{} has no pip, and that of another Python could not be used to get one: install it \
             (`sudo apt-get install {package}` on Debian) or name another Python with --python",
            base.executable.display()
        )
    })?;
    Ok(pip)
}

/// Installs the pip that a distribution ships as a wheel beside its Python. Returns false if there
/// is none. (Its ensurepip looks for that wheel only where the distribution is installed.)
fn install_own_pip(base: &PythonInfo, target: &Path) -> Result<bool> {
    let prefix = base.executable.parent().and_then(Path::parent);
    let wheels = prefix.map(|prefix| prefix.join("share/python-wheels"));
    let Some(Ok(entries)) = wheels.map(fs::read_dir) else {
        return Ok(false);
    };
    let is_pip = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("pip-") && name.ends_with(".whl")
    };
    let wheel = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(is_pip);
    let Some(wheel) = wheel else {
        return Ok(false);
    };
    // Python can run pip from the wheel, which installs itself.
    process::answer(
        Command::new(target)
            .arg(wheel.join("pip"))
            .args(["install", "--no-index", "--no-cache-dir"])
            .arg(&wheel)
            .env("PIP_ROOT_USER_ACTION", "ignore"),
    )
    .map(|_| true)
}

/// Installs the newest pip, which is pure Python, by this machine's own pip. The latter may be too
/// old to install packages for a newer Python.
fn lend_pip(packages: &Path) -> Result<()> {
    let python = process::on_path("python3").context("there is no python3 in PATH")?;
    process::run(
        Command::new(python)
            .args(["-m", "pip", "install", "--disable-pip-version-check"])
            .args(["--no-cache-dir", "--no-deps", "--target"])
            .arg(packages)
            .arg("pip"),
    )
}

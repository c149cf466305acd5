//! Sets up a PyTorch for tests and the demo: a virtual environment in the cache folder. A machine
//! without a GPU gets simulated CUDA libraries.

mod imports;
mod interpreter;
mod releases;
mod simulated_cuda;
mod stubs;
mod venv;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

pub use interpreter::{Interpreter, PythonVersion, install_with_apt};
pub use releases::{RELEASES, Release, TESTED, TestedPair, release_of};

use crate::{process, repository};
use interpreter::PythonInfo;
use venv::Venv;

/// Default version of PyTorch.
pub const DEFAULT_TORCH: &str = "2.15.0";

/// Environment to set up.
#[derive(Debug, Clone)]
pub struct Request {
    pub interpreter: Interpreter,
    /// Version of PyTorch, such as `2.15.0`.
    pub torch: String,
    pub gpus: Gpus,
    /// Lifetime of the environment.
    pub lifetime: Lifetime,
    /// Packages beside PyTorch.
    pub packages: Option<&'static Packages>,
}

/// Packages of an environment beside PyTorch.
#[derive(Debug)]
pub struct Packages {
    /// Suffix of the environment's folder.
    pub name: &'static str,
    /// Requirements of pip, one a line, each with its version. Packages that they depend on must be among them.
    pub requirements: &'static str,
    /// Requirements that no wheel exists of; each is built from its source.
    pub sources: &'static [&'static str],
    /// Environment variables for these.
    pub settings: &'static [(&'static str, &'static str)],
}

impl Request {
    /// Requests a permanent environment on this machine's GPUs.
    pub fn new(interpreter: Interpreter, torch: &str) -> Self {
        Self {
            interpreter,
            torch: torch.to_owned(),
            gpus: Gpus::OfThisMachine,
            lifetime: Lifetime::Permanent,
            packages: None,
        }
    }
}

/// GPUs of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpus {
    /// This machine's; simulated ones if it has none.
    OfThisMachine,
    /// Always simulated: an old PyTorch may not support a new GPU.
    Simulated,
}

/// Lifetime of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until someone deletes it.
    Permanent,
    /// Only this run; the requester removes it ([`discard`]).
    Temporary,
}

impl Lifetime {
    fn folder(self) -> Result<PathBuf> {
        let name = match self {
            Self::Permanent => "pytorch",
            Self::Temporary => "pytorch-passing",
        };
        Ok(repository::cache_folder()?.join(name))
    }
}

/// A working PyTorch.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Interpreter with the requested `torch`.
    pub python: PathBuf,
    /// Full version of Python, such as `3.11.7`.
    pub python_version: String,
    /// Version of PyTorch.
    pub torch: String,
    /// True if the GPUs are simulated.
    pub simulated: bool,
    /// Folder of the simulated CUDA libraries; `None` on real GPUs.
    pub cuda_libraries: Option<PathBuf>,
}

/// CUDA implementation of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cuda {
    Real,
    Simulated,
}

/// Returns the environment, making it if needed. Announces each download, and prints progress.
///
/// An interrupted call leaves nothing that a later call mistakes for a complete environment.
///
/// # Errors
///
/// If there is no such Python, a download or a compilation fails, or the new PyTorch sees no GPU.
pub fn set_up(request: &Request) -> Result<Environment> {
    check_torch_version(&request.torch)?;
    let cuda = match request.gpus {
        Gpus::OfThisMachine => present_cuda(),
        Gpus::Simulated => Cuda::Simulated,
    };
    let cache = request.lifetime.folder()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;

    let folder = cache.join(folder_name(request, cuda)?);
    let mut lock = lock_for(&folder)?;
    let _held = hold(&mut lock, &folder)?;

    let venv = match Venv::open(&folder, &request.torch)? {
        Some(venv) => venv,
        None => create(&folder, request, cuda)?,
    };
    if request.torch == DEFAULT_TORCH && request.lifetime == Lifetime::Permanent {
        venv.add_optional_packages()?;
    }
    let cuda_libraries = match cuda {
        Cuda::Real => None,
        Cuda::Simulated => Some(simulated_cuda::install(&venv)?),
    };
    if let Some(packages) = request.packages {
        // What is built from its source may import PyTorch, which needs a CUDA.
        venv.add_packages(packages)?;
    }
    if !venv.is_compiled()? {
        venv.compile_modules()?;
    }
    if !venv.is_verified(cuda_libraries.as_deref())? {
        verify(&venv, cuda)?;
        venv.mark_verified(cuda_libraries.as_deref())?;
    }
    Ok(Environment {
        python: venv.python(),
        python_version: venv.python_version().to_owned(),
        torch: request.torch.clone(),
        simulated: cuda == Cuda::Simulated,
        cuda_libraries,
    })
}

/// Removes the temporary environments, including those of interrupted runs.
///
/// # Errors
///
/// If their folder cannot be removed.
pub fn discard() -> Result<()> {
    let folder = Lifetime::Temporary.folder()?;
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Counts the complete permanent environments.
pub fn environments_here() -> Result<u64> {
    let folder = Lifetime::Permanent.folder()?;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    Ok(entries
        .filter(|entry| venv::is_complete(&entry.path()))
        .count() as u64)
}

fn create(folder: &Path, request: &Request, cuda: Cuda) -> Result<Venv> {
    let base = request.interpreter.find()?;
    announce(&base, request, cuda, folder);
    Venv::create(folder, &base, &request.torch, cuda)
}

fn announce(base: &PythonInfo, request: &Request, cuda: Cuda, folder: &Path) {
    let size = match cuda {
        Cuda::Simulated => format!(
            "{} for PyTorch's wheel and about 30 MB for the packages it needs",
            venv::wheel_size(&request.torch)
        ),
        Cuda::Real => format!(
            "{} for PyTorch's wheel and about 2.5 GB for NVIDIA's libraries",
            venv::wheel_size(&request.torch)
        ),
    };
    eprintln!(
        "Setting up PyTorch {} on Python {} ({})",
        request.torch,
        base.version,
        base.executable.display()
    );
    eprintln!("  into {}", folder.display());
    eprintln!("  downloads {size}");
    if cuda == Cuda::Simulated {
        eprintln!("  CUDA will be simulated");
    }
}

/// Checks that the environment's PyTorch sees a GPU and can train one step.
fn verify(venv: &Venv, cuda: Cuda) -> Result<()> {
    // Sleep before exit: right after backward(), autograd's threads still release Python objects,
    // and the interpreter may abort.
    let question = "import time, torch, torch.utils.data\n\
         print(torch.cuda.is_available())\n\
         model = torch.nn.Linear(2, 2).to('cuda')\n\
         optimizer = torch.optim.Adam(model.parameters())\n\
         model(torch.ones(1, 2, device='cuda')).sum().backward()\n\
         optimizer.step()\n\
         time.sleep(0.2)";
    let answer = process::answer(
        std::process::Command::new(venv.python())
            .args(["-c", question])
            .env_remove("CUDA_VISIBLE_DEVICES"),
    )
    .with_context(|| {
        format!(
            "the PyTorch just set up does not run; delete {} and run `cargo xtask set-up` again",
            venv.folder().display()
        )
    })?;
    if !answer.starts_with("True") {
        match cuda {
            Cuda::Real => bail!(
                "PyTorch sees no GPU although /dev/nvidia0 is here: \
                 check the driver with `nvidia-smi`"
            ),
            Cuda::Simulated => bail!(
                "PyTorch does not see the simulated GPU: delete {} and run `cargo xtask set-up` again",
                venv.folder().display()
            ),
        }
    }
    Ok(())
}

/// Returns real CUDA if the machine has an NVIDIA GPU and the driver library.
fn present_cuda() -> Cuda {
    const FOLDERS: [&str; 7] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/cuda/compat",
    ];
    let driver = FOLDERS
        .iter()
        .any(|folder| Path::new(folder).join("libcuda.so.1").exists());
    if driver && Path::new("/dev/nvidia0").exists() {
        Cuda::Real
    } else {
        Cuda::Simulated
    }
}

/// Validates the version, which becomes part of a path and of pip's command line.
fn check_torch_version(version: &str) -> Result<()> {
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if version.split('.').count() != 3 || !version.split('.').all(plain) {
        bail!(
            "{version:?} is no version of PyTorch: give all three numbers, such as {DEFAULT_TORCH}"
        );
    }
    Ok(())
}

/// Returns the folder's name: one per Python (version, or interpreter path), PyTorch and CUDA.
fn folder_name(request: &Request, cuda: Cuda) -> Result<String> {
    let python = match &request.interpreter {
        Interpreter::Version(version) => version.to_string(),
        Interpreter::Path(path) => {
            let version = interpreter::probe(path)?.minor_version();
            format!(
                "{version}-{}",
                &fingerprint([path.as_os_str().as_encoded_bytes()])[..8]
            )
        }
    };
    let suffix = match cuda {
        Cuda::Real => "",
        Cuda::Simulated => "-simulated",
    };
    let packages = request
        .packages
        .map(|packages| format!("-{}", packages.name));
    Ok(format!(
        "python{python}-torch{}{suffix}{}",
        request.torch,
        packages.unwrap_or_default()
    ))
}

/// Returns the SHA-256 of the parts, each preceded by its length, in hexadecimal.
pub fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn lock_for(folder: &Path) -> Result<fd_lock::RwLock<fs::File>> {
    let mut path = folder.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    Ok(fd_lock::RwLock::new(file))
}

/// Locks the environment, waiting for another set-up of it.
fn hold<'a>(
    lock: &'a mut fd_lock::RwLock<fs::File>,
    folder: &Path,
) -> Result<fd_lock::RwLockWriteGuard<'a, fs::File>> {
    if lock.try_write().is_err() {
        eprintln!("Waiting for another set-up of {}", folder.display());
    }
    lock.write()
        .with_context(|| format!("cannot lock {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_torch_has_three_numbers() {
        assert!(check_torch_version("2.15.0").is_ok());
        for wrong in ["2.15", "", "2.15.0+cu132", "../../etc", "2..0"] {
            assert!(check_torch_version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn fingerprints_separate_parts() {
        let one = fingerprint([b"ab".as_slice(), b"c"]);
        let other = fingerprint([b"a".as_slice(), b"bc"]);
        assert_ne!(one, other);
        assert_eq!(one.len(), 64);
    }

    #[test]
    fn environments_of_different_pythons_and_cudas_lie_apart() {
        let request = Request::new("3.12".parse().unwrap(), DEFAULT_TORCH);
        assert_eq!(
            folder_name(&request, Cuda::Simulated).unwrap(),
            "python3.12-torch2.15.0-simulated"
        );
        assert_eq!(
            folder_name(&request, Cuda::Real).unwrap(),
            "python3.12-torch2.15.0"
        );
    }
}

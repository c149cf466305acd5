//! Builds the simulated CUDA (`tests/cuda-sim`) for a PyTorch and puts it where that looks for
//! NVIDIA's libraries.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::imports::{ImportedLibrary, Imports, base_name};
use super::venv::{Venv, write_whole};
use super::{fingerprint, stubs};
use crate::process;
use crate::repository::Repository;

/// Changes whenever what is built from the same sources does.
const GENERATOR: [&[u8]; 3] = [
    include_bytes!("imports.rs"),
    include_bytes!("simulated_cuda.rs"),
    include_bytes!("stubs.rs"),
];

/// The file in the folder of libraries that names what they were built from.
const STAMP: &str = "memprobe-simulated-cuda";

/// Functions begin with `push %rbp`, as probes on compiled functions commonly find them.
const COMPILER_FLAGS: [&str; 9] = [
    "-std=gnu2x",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-omit-frame-pointer",
    "-fno-shrink-wrap",
];

/// The libraries that PyTorch loads by name, or that others of these link, though it imports none
/// of their functions.
const LOADED_BY_NAME: [&str; 2] = [DRIVER.0, "libnvidia-ml.so.1"];

/// The driver, and the form of its functions' entries (`include/entry.h`): that of NVIDIA's 470 to 555.
const DRIVER: (&str, &str) = ("libcuda.so.1", "-DENTRY_TRAMPOLINE");

/// The same library with entries as in NVIDIA's 575 and later, for processes that load it with
/// `LD_PRELOAD`: one library of a name satisfies all that link it.
const OTHER_DRIVER: (&str, &str) = ("push-entries/libcuda.so.1", "-DENTRY_PUSH");

/// The libraries that call the simulated driver.
const CALLERS_OF_THE_DRIVER: [&str; 3] = ["cudart", "nccl", "nvidia-ml"];

/// Builds and installs the libraries unless those that are there are of the same sources. Returns
/// their folder.
///
/// # Errors
///
/// Where there is no C compiler, it fails, or the PyTorch is not built for CUDA.
pub fn install(venv: &Venv) -> Result<PathBuf> {
    let sources = Sources::read(&Repository::here().root().join("tests/cuda-sim"))?;
    let build = sources.fingerprint(venv.torch());
    let note = venv.folder().join(STAMP);
    if let Ok(folder) = fs::read_to_string(&note).map(PathBuf::from)
        && installed_build(&folder).is_some_and(|installed| installed == build)
    {
        return Ok(folder);
    }

    eprintln!("Building the simulated CUDA for PyTorch {}", venv.torch());
    let imports = Imports::read(&venv.torch_libraries()?)?;
    let folder = library_folder(&imports)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    let work = venv.folder().join("simulated-cuda-build");
    let built = build_all(&sources, &imports, &work)?;

    // From here until the new stamp the folder holds a mixture, and says so by having none.
    let stamp = folder.join(STAMP);
    if stamp.exists() {
        fs::remove_file(&stamp)?;
    }
    for (name, path) in &built {
        let installed = folder.join(name);
        if let Some(parent) = installed.parent() {
            fs::create_dir_all(parent)?;
        }
        // A rename: a process that runs on the old file keeps it.
        fs::rename(path, installed)
            .with_context(|| format!("cannot install {name} into {}", folder.display()))?;
    }
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    write_whole(&stamp, build.as_bytes())?;
    write_whole(&note, folder.as_os_str().as_encoded_bytes())?;
    eprintln!("  {} libraries in {}", built.len(), folder.display());
    Ok(folder)
}

/// Returns the fingerprint of the sources of a folder's libraries, if they are complete.
pub fn installed_build(folder: &Path) -> Option<String> {
    fs::read_to_string(folder.join(STAMP)).ok()
}

/// The C sources: a folder per library, and `include`.
struct Sources {
    root: PathBuf,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Sources {
    fn read(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for folder in
            fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))?
        {
            let folder = folder?.path();
            if !folder.is_dir() {
                continue;
            }
            for file in fs::read_dir(&folder)? {
                let path = file?.path();
                if path.extension().is_some_and(|end| end == "c" || end == "h") {
                    files.insert(path.clone(), fs::read(&path)?);
                }
            }
        }
        Ok(Self {
            root: root.to_owned(),
            files,
        })
    }

    fn fingerprint(&self, torch: &str) -> String {
        let files = self.files.iter().flat_map(|(path, bytes)| {
            let name = path.strip_prefix(&self.root).unwrap_or(path);
            [name.as_os_str().as_encoded_bytes(), bytes.as_slice()]
        });
        fingerprint(GENERATOR.into_iter().chain([torch.as_bytes()]).chain(files))
    }

    /// The hand-written sources of a library, none for one that is all generated.
    fn of(&self, base: &str) -> impl Iterator<Item = &Path> {
        let folder = self.root.join(base);
        self.files.keys().map(PathBuf::as_path).filter(move |path| {
            path.parent() == Some(&folder) && path.extension().is_some_and(|end| end == "c")
        })
    }
}

/// The folder on PyTorch's search path where the wheel of the CUDA runtime would put its libraries.
fn library_folder(imports: &Imports) -> Result<PathBuf> {
    let own = format!("nvidia/cu{}/lib", imports.cuda_major()?);
    imports
        .search_path
        .iter()
        .find(|path| path.ends_with(&own) || path.ends_with("nvidia/cuda_runtime/lib"))
        .cloned()
        .with_context(|| {
            format!(
                "PyTorch does not look for the CUDA runtime in {own}: {:?}",
                imports.search_path
            )
        })
}

/// Compiles every library into `work`; the driver first, which others link.
fn build_all(sources: &Sources, imports: &Imports, work: &Path) -> Result<Vec<(String, PathBuf)>> {
    fs::create_dir_all(work).with_context(|| format!("cannot create {}", work.display()))?;
    let mut libraries = imports.libraries.clone();
    for name in LOADED_BY_NAME {
        libraries.entry(name.to_owned()).or_default();
    }
    let mut names: Vec<&String> = libraries.keys().collect();
    names.sort_by_key(|name| base_name(name) != Some("cuda"));

    let major = imports.cuda_major()?;
    let mut built = Vec::new();
    let mut add = |file: &str, library: &str| {
        let path = build(file, &libraries[library], sources, major, work)?;
        built.push((file.to_owned(), path));
        anyhow::Ok(())
    };
    for name in names {
        add(name, name)?;
    }
    add(OTHER_DRIVER.0, DRIVER.0)?;
    Ok(built)
}

/// `8` of `libcudnn.so.8`; 0 where the name has no number.
fn major_of(file: &str) -> u32 {
    let number = file.split_once(".so.").map(|(_, number)| number);
    let major = number.and_then(|number| number.split('.').next());
    major.and_then(|major| major.parse().ok()).unwrap_or(0)
}

fn build(
    file: &str,
    library: &ImportedLibrary,
    sources: &Sources,
    cuda_major: u32,
    work: &Path,
) -> Result<PathBuf> {
    let output = work.join(file);
    if let Some(parent) = output.parent() {
        fs::create_dir_all(parent)?;
    }
    let entries = [DRIVER, OTHER_DRIVER];
    let entries = entries.iter().find(|(driver, _)| *driver == file);
    let name = file.rsplit('/').next().unwrap_or(file);
    let base = base_name(name).unwrap_or(name);
    let stubs = work.join(format!("{file}.stubs.c"));
    fs::write(&stubs, stubs::source(name, library))?;

    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command
        .args(COMPILER_FLAGS)
        .arg("-shared")
        .arg(format!("-DCUDA_MAJOR={cuda_major}"))
        .arg(format!("-DLIBRARY_MAJOR={}", major_of(name)))
        .args(entries.map(|(_, form)| form))
        .arg("-I")
        .arg(sources.root.join("include"))
        .args(sources.of(base))
        .arg(&stubs)
        .arg("-o")
        .arg(&output)
        .arg(format!("-Wl,-soname,{name}"))
        .args(["-lpthread", "-ldl"]);
    if cfg!(target_arch = "x86_64") {
        command.arg("-fcf-protection=none");
    }
    if CALLERS_OF_THE_DRIVER.contains(&base) {
        command.arg(work.join(DRIVER.0)).arg("-Wl,-rpath,$ORIGIN");
    }
    if let Some(script) = stubs::version_script(library) {
        let path = work.join(format!("{file}.map"));
        fs::write(&path, script)?;
        command.arg(format!("-Wl,--version-script={}", path.display()));
    }
    match command.output() {
        Err(error) => bail!(
            "cannot start the C compiler ({error}): install one \
             (`sudo apt-get install gcc libc6-dev` on Debian) or name it in CC"
        ),
        Ok(result) if !result.status.success() => bail!(
            "{file} of the simulated CUDA does not compile:\n$ {}\n{}",
            process::shown(&command),
            String::from_utf8_lossy(&result.stderr)
        ),
        Ok(result) => {
            // Warnings of our own sources are for whoever changes them.
            eprint!("{}", String::from_utf8_lossy(&result.stderr));
            Ok(output)
        }
    }
}

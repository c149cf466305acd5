//! C programs on the simulated CUDA, without PyTorch and without Python.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::events::Event;
use crate::process::{Background, Finished};
use crate::pytorch::succeed;

/// Linkage of CUDA's runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cudart {
    /// A shared library in the program's folder.
    Dynamic,
    /// Linked into the program, without a name that could be probed.
    Static,
}

/// Forms that the entries of the driver's functions have (`cuda-sim/include/entry.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entries {
    /// A comparison, a conditional jump and a jump out of the function, as in libcuda 470 to 555.
    Trampolines,
    /// `push %rbp`, as in libcuda 575 and later.
    Push,
}

impl Entries {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Trampolines, Self::Push];

    fn option(self) -> &'static str {
        match self {
            Self::Trampolines => "-DENTRY_TRAMPOLINE",
            Self::Push => "-DENTRY_PUSH",
        }
    }
}

/// The simulated CUDA, built for programs of the tests.
pub struct Cuda {
    folder: TempDir,
    entries: Entries,
}

/// Compiler flags of the static library.
const FLAGS: [&str; 6] = [
    "-std=gnu2x",
    "-O2",
    "-g",
    "-fPIC",
    "-fomit-frame-pointer",
    "-fcf-protection=none",
];

impl Cuda {
    /// Builds the driver and the runtime, once with each form of the driver's entries.
    pub fn build_each() -> impl Iterator<Item = Self> {
        Entries::ALL.into_iter().map(Self::build)
    }

    /// Builds the driver and the runtime, or copies them from an earlier build of the same sources: tests would spend
    /// minutes on it.
    ///
    /// # Panics
    ///
    /// Where there is no C compiler, or it fails.
    pub fn build(entries: Entries) -> Self {
        let test = std::env::current_exe().expect("a test has a path");
        let profile = test.ancestors().nth(2);
        let builds = profile.expect("tests lie in target/PROFILE/deps");
        let builds = builds.join("simulated-cuda");
        fs::create_dir_all(&builds).expect("a folder for builds");
        let built = builds.join(format!("{entries:?}-{:016x}", digest_of_sources()));
        if !built.exists() {
            let build = Self::build_in(&builds, entries);
            // It fails where another test has built them meanwhile.
            let _ = fs::rename(build.folder.path(), &built);
        }
        let folder = tempfile::tempdir().expect("a folder for what is built");
        // No links: probes are placed by file, and would fire in the processes of other tests.
        for file in fs::read_dir(&built).expect("the build") {
            let file = file.expect("a file");
            let copy = folder.path().join(file.file_name());
            fs::copy(file.path(), copy).expect("copied");
        }
        Self { folder, entries }
    }

    /// Builds the driver and the runtime in a new folder below this one.
    fn build_in(builds: &Path, entries: Entries) -> Self {
        let folder = tempfile::tempdir_in(builds).expect("a folder for a build");
        let cuda = Self { folder, entries };
        let hidden = ["-fvisibility=hidden", "-shared"];
        let driver = [hidden[0], hidden[1], entries.option()];
        cuda.compile("libcuda.so.1", "cuda", &driver, &[]);
        let driver = cuda.path("libcuda.so.1");
        cuda.compile("libcudart.so.13", "cudart", &hidden, &[&driver]);
        cuda.compile("cudart.o", "cudart", &["-r"], &[]);
        // Nobody outside sees these names, as in NVIDIA's own libraries.
        succeed(
            Command::new("ar")
                .arg("rcs")
                .arg(cuda.path("libcudart_static.a"))
                .arg(cuda.path("cudart.o")),
        );
        cuda
    }

    /// Form of the driver's entries.
    pub fn entries(&self) -> Entries {
        self.entries
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compile(&self, name: &str, folder: &str, options: &[&str], with: &[&Path]) {
        let root = simulation();
        let sources = files_in(&root.join(folder))
            .into_iter()
            .filter(|path| path.extension().is_some_and(|end| end == "c"));
        let mut command = compiler();
        command
            .args(options)
            .arg("-DCUDA_MAJOR=13")
            .arg("-I")
            .arg(root.join("include"))
            .args(sources)
            .args(with)
            .arg("-o")
            .arg(self.path(name));
        if options.contains(&"-shared") {
            command.arg(format!("-Wl,-soname,{name},-rpath,$ORIGIN"));
        }
        succeed(&mut command);
    }

    /// Builds a library that calls CUDA, `libNAME.so`.
    pub fn library(&self, name: &str, cudart: Cudart) -> PathBuf {
        let path = self.path(&format!("lib{name}.so"));
        let mut command = compiler();
        command
            .args(["-shared", "-fvisibility=hidden"])
            .arg(format!("-DLIBRARY={name}"))
            .arg(source("library.c"));
        self.link(&mut command, cudart);
        succeed(command.arg("-o").arg(&path));
        path
    }

    /// Builds a program.
    pub fn program(&self, name: &str, cudart: Cudart, libraries: &[PathBuf]) -> PathBuf {
        let path = self.path(&format!("{name}-{cudart:?}"));
        let mut command = compiler();
        command
            .args(["-Wall", "-Wextra", "-Werror"])
            .arg(source(&format!("{name}.c")))
            .args(libraries);
        self.link(&mut command, cudart);
        succeed(command.arg("-o").arg(&path));
        path
    }

    /// Builds the simulated NVML into a new folder below that of the simulated driver.
    ///
    /// # Panics
    ///
    /// If the build fails.
    pub fn nvml(&self, folder: &Path, options: &[&str]) {
        fs::create_dir(folder).expect("a new folder");
        let root = simulation();
        let mut command = compiler();
        command
            .args(["-Wall", "-Wextra", "-Werror"])
            .args(["-fvisibility=hidden", "-shared", "-DCUDA_MAJOR=13"])
            .arg("-Wl,-soname,libnvidia-ml.so.1,-rpath,$ORIGIN/..")
            .args(options)
            .arg("-I")
            .arg(root.join("include"))
            .arg(root.join("nvidia-ml/nvml.c"))
            .arg(self.path("libcuda.so.1"))
            .arg("-o")
            .arg(folder.join("libnvidia-ml.so.1"));
        succeed(&mut command);
    }

    fn link(&self, command: &mut Command, cudart: Cudart) {
        let runtime = match cudart {
            Cudart::Dynamic => "libcudart.so.13",
            Cudart::Static => "libcudart_static.a",
        };
        command
            .arg(self.path(runtime))
            .arg(self.path("libcuda.so.1"))
            .args(["-Wl,--exclude-libs,ALL,-rpath,$ORIGIN", "-lpthread"]);
    }

    /// A file in the folder of what was built.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path(name)
    }
}

fn compiler() -> Command {
    let mut command = Command::new(compiler_name());
    command.args(FLAGS);
    command
}

fn compiler_name() -> OsString {
    std::env::var_os("CC").unwrap_or_else(|| "cc".into())
}

/// Folder of the simulated CUDA's sources.
fn simulation() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-sim")
}

/// Files of a folder, by name: functions lie in a library in the order of its sources.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("the simulation's sources");
    let files = files.map(|file| file.expect("a file").path());
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Digest of all from which [`Cuda::build_in`] makes its files, but for the compiler's version.
fn digest_of_sources() -> u64 {
    let mut digest = DefaultHasher::new();
    (compiler_name(), FLAGS, include_str!("cuda_programs.rs")).hash(&mut digest);
    for folder in ["cuda", "cudart", "include"] {
        for file in files_in(&simulation().join(folder)) {
            fs::read(&file).expect("a source").hash(&mut digest);
            file.hash(&mut digest);
        }
    }
    digest.finish()
}

fn source(name: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    programs.join(name)
}

/// Builds `programs/pluggable.c`, an allocator for PyTorch that uses the process's CUDA.
pub fn pluggable_allocator(folder: &Path) -> PathBuf {
    library_of_process(folder, "pluggable.c", "libpluggable.so")
}

/// Builds a library that uses the CUDA of the process that loads it.
pub fn library_of_process(folder: &Path, program: &str, name: &str) -> PathBuf {
    let path = folder.join(name);
    let mut command = compiler();
    command
        .args(["-shared", "-Wl,--unresolved-symbols=ignore-all"])
        .arg(source(program));
    succeed(command.arg("-o").arg(&path));
    path
}

/// Starts a program that waits until `go` is there, with variables for the simulation.
pub fn start(program: &Path, go: &Path, variables: &[(&str, &str)]) -> Background {
    let mut command = Command::new(program);
    command.arg(go).envs(variables.iter().copied());
    start_command(command)
}

/// Starts a command whose program says when it is ready.
pub fn start_command(mut command: Command) -> Background {
    command.env("CUDASIM_DEVICES", "2");
    let mut program = Background::start(&mut command);
    program.wait_for("ready");
    program
}

/// Parses the bytes that a program reports as live, by kind of memory.
pub fn truth(program: &Finished) -> BTreeMap<String, u64> {
    account(program, "truth")
}

/// Parses numbers that a program reports, by kind of memory. The first word of a line says of what.
///
/// # Panics
///
/// If a line has no number.
pub fn account(program: &Finished, of: &str) -> BTreeMap<String, u64> {
    let lines = program.stdout.lines().filter_map(|line| {
        let (first, rest) = line.split_once(' ')?;
        (first == of).then_some(rest)
    });
    let numbers = lines.map(|line| {
        let (kind, number) = line.split_once(' ').expect("a kind and a number");
        (kind.to_owned(), number.parse().expect("a number"))
    });
    numbers.collect()
}

/// Bytes that are live at the end by the events, for each kind of memory.
///
/// # Panics
///
/// Where an event is of another kind, or no call into CUDA.
pub fn live<'a>(
    events: &[Event],
    kinds: impl Iterator<Item = &'a String>,
) -> BTreeMap<String, u64> {
    let mut live: BTreeMap<String, u64> = kinds.map(|kind| (kind.clone(), 0)).collect();
    for event in events {
        let space = event.space.clone().expect("a call into CUDA has a space");
        // Neither has a size in its calls.
        if space == "context" || space == "imported" {
            continue;
        }
        let size = event.size.unwrap_or(0);
        let bytes = live.get_mut(&space).expect("a kind that the program knows");
        match event.action.as_str() {
            "cuda_oom" => {}
            "cuda_alloc" => *bytes += size,
            "cuda_free" => *bytes -= size,
            other => panic!("a program without a caching allocator has no {other}"),
        }
    }
    live
}

//! Requirements of a test.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::pytorch::PyTorch;

/// Environment variable with the file to which each test adds its time in its slots: seconds, program and test, with
/// tabs between them.
pub const TEST_TIMES: &str = "MEMPROBE_TEST_TIMES";

/// Root, a memprobe to run, PyTorches, and a slot among the tests that run at once.
pub struct TestEnvironment {
    /// PyTorches for version-dependent tests, newest first.
    pub pytorches: Vec<PyTorch>,
    /// PyTorch for all other tests; `None` for tests that need none.
    newest: Option<PyTorch>,
    /// Path of the memprobe under test.
    pub memprobe: PathBuf,
    _slots: Slots,
}

/// PyTorches of a test. Version-dependent tests run on each, the others on the newest, so that the
/// suite ends in time.
#[derive(Clone, Copy)]
pub enum On {
    /// The newest.
    Newest,
    /// Every one of them.
    Each,
}

impl TestEnvironment {
    /// Returns the PyTorches to run on, newest first.
    pub fn pytorches_on(&self, on: On) -> &[PyTorch] {
        match on {
            On::Newest => std::slice::from_ref(self.pytorch()),
            On::Each => &self.pytorches,
        }
    }

    /// Waits for a slot. Without root or PyTorch, prints why the test is skipped.
    pub fn take() -> Option<Self> {
        Self::with_pytorch(Company::Welcome)
    }

    /// Like [`Self::take`], but no other test runs meanwhile: for tests that inspect the whole machine.
    pub fn take_alone() -> Option<Self> {
        Self::with_pytorch(Company::None)
    }

    /// Like [`Self::take`], for tests that need no PyTorch.
    pub fn without_pytorch() -> Option<Self> {
        Self::bare(Company::Welcome)
    }

    /// Like [`Self::take_alone`], for tests that need no PyTorch.
    pub fn alone_without_pytorch() -> Option<Self> {
        Self::bare(Company::None)
    }

    fn with_pytorch(company: Company) -> Option<Self> {
        let newest = PyTorch::of_this_run()?;
        let mut pytorches = PyTorch::each();
        if pytorches.is_empty() {
            pytorches.push(newest.clone());
        }
        let environment = Self::bare(company)?;
        Some(Self {
            pytorches,
            newest: Some(newest),
            ..environment
        })
    }

    fn bare(company: Company) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: attaching probes needs root; run `sudo -E cargo xtask test`");
            return None;
        }
        Some(Self {
            pytorches: Vec::new(),
            newest: None,
            memprobe: built_memprobe(),
            _slots: Slots::take(company),
        })
    }

    /// Returns the PyTorch for tests that do not depend on its version.
    ///
    /// # Panics
    ///
    /// If the test asked for none.
    pub fn pytorch(&self) -> &PyTorch {
        self.newest.as_ref().expect("the test asked for a PyTorch")
    }
}

/// Returns the program in `MEMPROBE_BIN`, or the one built with this test.
fn built_memprobe() -> PathBuf {
    if let Some(named) = std::env::var_os("MEMPROBE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("tests lie in target/PROFILE/deps");
    let same_profile = profile.join("memprobe");
    let release = profile.with_file_name("release").join("memprobe");
    match [same_profile, release]
        .into_iter()
        .find(|path| path.exists())
    {
        Some(path) => path,
        None => {
            panic!("there is no memprobe to test: run `cargo build` first, or set MEMPROBE_BIN")
        }
    }
}

/// Permission for other tests to run at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Company {
    Welcome,
    None,
}

/// Number of slots: more than two processors, since much of a test waits for a process to reach a state.
const SLOTS: usize = 3;

/// Locked slots, until they are dropped. A test that runs CUDA programs without memprobe takes one too:
/// tests of the whole machine add up every process on it.
pub struct Slots {
    _files: Vec<File>,
    since: Instant,
}

impl Slots {
    /// Locks one slot, or all of them.
    pub fn take(company: Company) -> Self {
        let files: Vec<File> = (0..SLOTS).map(slot).collect();
        if company == Company::None {
            // Each in turn, so that two who want all cannot wait for each other.
            for file in &files {
                flock(file, FlockOperation::LockExclusive).expect("the turn can be waited for");
            }
            return Self::locked(files);
        }
        loop {
            for file in &files {
                if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    let file = file.try_clone().expect("another handle of the lock");
                    return Self::locked(vec![file]);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn locked(files: Vec<File>) -> Self {
        Self {
            _files: files,
            since: Instant::now(),
        }
    }

    /// Adds a line for the test of this thread.
    fn add_time(&self, file: &Path) -> std::io::Result<()> {
        let program = std::env::current_exe()?;
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        let seconds = self.since.elapsed().as_secs_f64();
        let line = format!("{seconds:.1}\t{program}\t{test}\n");
        let mut file = File::options().create(true).append(true).open(file)?;
        file.write_all(line.as_bytes())
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let Some(file) = std::env::var_os(TEST_TIMES) else {
            return;
        };
        if let Err(error) = self.add_time(Path::new(&file)) {
            eprintln!(
                "cannot add a time to {}: {error}",
                Path::new(&file).display()
            );
        }
    }
}

fn slot(number: usize) -> File {
    let path = std::env::temp_dir().join(format!("memprobe-tests.{number}.lock"));
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .expect("the lock file can be opened")
}

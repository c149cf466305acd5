//! What a test stands on.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::pytorch::PyTorch;

/// Root, a memprobe to run, a PyTorch, and a place among the tests that run at once.
pub struct TestEnvironment {
    /// The PyTorches that what depends on versions runs on, the newest first.
    pub pytorches: Vec<PyTorch>,
    /// The one that all else runs on; none for tests that need none.
    newest: Option<PyTorch>,
    /// The memprobe to try.
    pub memprobe: PathBuf,
    _places: Vec<File>,
}

/// On which PyTorches a test runs. What depends on a version runs on each; the rest on the newest, so
/// that the suite ends in time.
#[derive(Clone, Copy)]
pub enum On {
    /// The newest.
    Newest,
    /// Every one of them.
    Each,
}

impl TestEnvironment {
    /// The PyTorches to run on, the newest first.
    pub fn pytorches_on(&self, on: On) -> &[PyTorch] {
        match on {
            On::Newest => std::slice::from_ref(self.pytorch()),
            On::Each => &self.pytorches,
        }
    }

    /// Waits for a place. Without root or PyTorch, says in a line why the test is skipped.
    pub fn take() -> Option<Self> {
        Self::with_pytorch(Company::Welcome)
    }

    /// As [`Self::take`], for tests that look at more than what they started: no other runs meanwhile.
    pub fn take_alone() -> Option<Self> {
        Self::with_pytorch(Company::None)
    }

    /// As [`Self::take`], for tests that need no PyTorch.
    pub fn without_pytorch() -> Option<Self> {
        Self::bare(Company::Welcome)
    }

    /// As [`Self::take_alone`], for tests that need no PyTorch.
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
            _places: places(company),
        })
    }

    /// The PyTorch for tests that do not depend on its version.
    ///
    /// # Panics
    ///
    /// In tests that said they need none.
    pub fn pytorch(&self) -> &PyTorch {
        self.newest.as_ref().expect("the test asked for a PyTorch")
    }
}

/// The program that the environment names, or the one that was built with this test.
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

/// Whether other tests may run at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    Welcome,
    None,
}

/// How many tests run at once. Most of a test is a program that starts, on one core.
const PLACES: usize = 2;

/// Locks that last until the files are closed: one place, or all of them.
fn places(company: Company) -> Vec<File> {
    let mut files = (0..PLACES).map(place);
    if company == Company::None {
        // Each in turn, so that two who want all cannot wait for each other.
        return files
            .inspect(|file| {
                flock(file, FlockOperation::LockExclusive).expect("the turn can be waited for");
            })
            .collect();
    }
    let files: Vec<File> = files.by_ref().collect();
    loop {
        for file in &files {
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return vec![file.try_clone().expect("another handle of the lock")];
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn place(number: usize) -> File {
    let path = std::env::temp_dir().join(format!("memprobe-tests.{number}.lock"));
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .expect("the lock file can be opened")
}

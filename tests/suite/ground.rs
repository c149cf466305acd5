//! What a test stands on.

use std::fs::File;
use std::path::PathBuf;

use crate::pytorch::PyTorch;

/// Root, a memprobe to run, a PyTorch, and the turn: no other test runs while this lives.
pub struct Ground {
    /// The PyTorches that the environment names, the newest first.
    pub pytorches: Vec<PyTorch>,
    /// The memprobe to try.
    pub memprobe: PathBuf,
    _turn: File,
}

/// On which PyTorches a test runs. What depends on a version runs on each; the rest on the newest, so
/// that the suite ends in time.
#[derive(Clone, Copy)]
pub enum On {
    /// The newest.
    Newest,
    /// Every one of this run.
    Each,
}

impl Ground {
    /// The PyTorches to run on, the newest first.
    pub fn pytorches_on(&self, on: On) -> &[PyTorch] {
        match on {
            On::Newest => &self.pytorches[..1],
            On::Each => &self.pytorches,
        }
    }

    /// Waits for the turn. Without root or PyTorch, says in a line why the test is skipped.
    pub fn take() -> Option<Self> {
        let mut pytorches = vec![PyTorch::of_this_run()?];
        pytorches.extend(PyTorch::older());
        let ground = Self::without_pytorch()?;
        Some(Self {
            pytorches,
            ..ground
        })
    }

    /// As [`Self::take`], for tests that need no PyTorch.
    pub fn without_pytorch() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: attaching probes needs root; run `sudo -E cargo xtask test`");
            return None;
        }
        Some(Self {
            pytorches: Vec::new(),
            memprobe: built_memprobe(),
            _turn: turn(),
        })
    }

    /// The newest PyTorch, for tests that do not depend on its version.
    pub fn pytorch(&self) -> &PyTorch {
        &self.pytorches[0]
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
    let beside = profile.join("memprobe");
    let release = profile.with_file_name("release").join("memprobe");
    match [beside, release].into_iter().find(|path| path.exists()) {
        Some(path) => path,
        None => {
            panic!("there is no memprobe to test: run `cargo build` first, or set MEMPROBE_BIN")
        }
    }
}

/// A lock that lasts until the file is closed.
fn turn() -> File {
    let path = std::env::temp_dir().join("memprobe-tests.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .expect("the lock file can be opened");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .expect("the turn can be waited for");
    file
}

//! Programs in C that stand for what would take a GPU or a minute.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::pytorch::succeed;

/// `programs/family.c` and the libraries that it uses, built.
pub struct Family {
    folder: TempDir,
}

impl Family {
    /// Builds it with the machine's own compiler.
    ///
    /// # Panics
    ///
    /// Where that fails.
    pub fn build() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let family = Self { folder };
        family.library("libc10.so", "C10");
        family.library("libcudart.so.13", "CUDART");
        let mut compiler = family.compiler("family", "family.c");
        compiler.args(["libc10.so", "libcudart.so.13", "-ldl", "-Wl,-rpath,$ORIGIN"]);
        succeed(&mut compiler);
        std::fs::create_dir(family.path("ledgers")).expect("a folder");
        family
    }

    fn library(&self, name: &str, what: &str) {
        let mut compiler = self.compiler(name, "allocator.c");
        // With its code at the same offsets in the file as in memory.
        compiler.args(["-shared", "-fPIC", "-Wl,-z,noseparate-code"]);
        succeed(compiler.arg(format!("-D{what}")));
    }

    fn compiler(&self, name: &str, source: &str) -> Command {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let mut compiler = Command::new("cc");
        compiler.current_dir(self.folder.path());
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o", name]);
        compiler.arg(sources.join(source));
        compiler
    }

    /// Something in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A second copy of one of its libraries: another file with the same content.
    pub fn copy(&self, library: &str) -> PathBuf {
        let copies = self.path("copies");
        std::fs::create_dir_all(&copies).expect("a folder");
        let copy = copies.join(library);
        std::fs::copy(self.path(library), &copy).expect("copied");
        copy
    }

    /// Throws away what its processes wrote of themselves.
    ///
    /// # Panics
    ///
    /// Where that fails.
    pub fn forget(&self) {
        let ledgers = self.path("ledgers");
        std::fs::remove_dir_all(&ledgers).expect("removed");
        std::fs::create_dir(ledgers).expect("a folder");
    }

    /// A command that runs it.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("family"));
        command.arg(self.path("ledgers")).args(words);
        command
    }

    /// What each of its processes wrote of itself.
    ///
    /// # Panics
    ///
    /// Where that cannot be read.
    pub fn ledgers(&self) -> Vec<Ledger> {
        let files = std::fs::read_dir(self.path("ledgers")).expect("the folder");
        let names = files.filter_map(|file| file.expect("an entry").file_name().into_string().ok());
        names
            .filter_map(|name| name.parse().ok())
            .map(|pid: u32| {
                let path = self.path("ledgers").join(pid.to_string());
                let text = std::fs::read_to_string(path).expect("read");
                let numbers: Vec<u64> = text
                    .split_whitespace()
                    .map(|word| word.parse().expect("a number"))
                    .collect();
                Ledger {
                    pid,
                    events: numbers[0] + numbers[1],
                    allocated: numbers[2],
                    reserved: numbers[3],
                }
            })
            .collect()
    }
}

/// Builds `programs/malloc.c`, an allocator for `LD_PRELOAD`.
///
/// # Panics
///
/// Where that fails.
pub fn malloc(folder: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let path = folder.join("libmalloc.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-fno-builtin"]);
    compiler
        .args(["-shared", "-fPIC"])
        .arg(sources.join("malloc.c"));
    succeed(compiler.arg("-o").arg(&path));
    path
}

/// What a process did, in its own words.
#[derive(Debug)]
pub struct Ledger {
    /// Its number.
    pub pid: u32,
    /// Blocks that it got or gave back.
    pub events: u64,
    /// Bytes that it held at the end.
    pub allocated: u64,
    /// Bytes of its segments at the end.
    pub reserved: u64,
}

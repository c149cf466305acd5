//! C programs that replace workloads which would need a GPU or minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::pytorch::succeed;

/// Built `programs/family.c`, with the libraries that it uses.
pub struct Family {
    folder: TempDir,
}

impl Family {
    /// Builds the program with the system compiler.
    ///
    /// # Panics
    ///
    /// If the build fails.
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
        // Code has the same offsets in the file as in memory.
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

    /// Returns a path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Copies one of its libraries to another file with the same content.
    pub fn copy(&self, library: &str) -> PathBuf {
        let copies = self.path("copies");
        std::fs::create_dir_all(&copies).expect("a folder");
        let copy = copies.join(library);
        std::fs::copy(self.path(library), &copy).expect("copied");
        copy
    }

    /// Deletes the ledgers of its processes.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn forget(&self) {
        let ledgers = self.path("ledgers");
        std::fs::remove_dir_all(&ledgers).expect("removed");
        std::fs::create_dir(ledgers).expect("a folder");
    }

    /// Returns a command that runs the program.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("family"));
        command.arg(self.path("ledgers")).args(words);
        command
    }

    /// Reads the ledgers that its processes wrote.
    ///
    /// # Panics
    ///
    /// If a ledger cannot be read.
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
/// If the build fails.
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

/// A process's own account.
#[derive(Debug)]
pub struct Ledger {
    pub pid: u32,
    /// Allocations and frees of blocks.
    pub events: u64,
    /// Bytes held at the end.
    pub allocated: u64,
    /// Bytes of its segments at the end.
    pub reserved: u64,
}

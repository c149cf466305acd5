//! The Pythons that memprobe is tested on: of this machine, and of distributions that have those
//! which this machine lacks.

mod debian;

pub use debian::{present, unpack};

use std::ffi::OsString;
use std::path::PathBuf;

use crate::pytorch::{Interpreter, PythonVersion};

/// The minor versions that memprobe reads.
pub const MINORS: std::ops::RangeInclusive<u8> = 9..=15;

/// Names the interpreters to the tests, as `PATH` does folders.
pub const TEST_PYTHONS: &str = "MEMPROBE_TEST_PYTHONS";

/// An interpreter of every version, as far as there is one, each version with its own word on why
/// there is none. Those that other distributions left here in an earlier run come along.
pub fn for_tests() -> OsString {
    let mut found: Vec<PathBuf> = Vec::new();
    for minor in MINORS {
        let version = PythonVersion::three(minor);
        match Interpreter::Version(version).find() {
            Ok(info) => {
                println!("Python {:<8} {}", info.version, info.executable.display());
                found.push(info.executable);
            }
            Err(missing) => println!("SKIPPED: Python {version}: {missing:#}"),
        }
        if let Some(python) = present(version).filter(|python| !found.contains(python)) {
            println!("Python {version:<8} {}", python.display());
            found.push(python);
        }
    }
    std::env::join_paths(found).unwrap_or_default()
}

//! Pythons to test memprobe on: this machine's, and missing versions from distributions.

mod debian;

pub use debian::{present, unpack};

use std::ffi::OsString;
use std::path::PathBuf;

use crate::pytorch::{Interpreter, PythonVersion};

/// Minor versions that memprobe supports.
pub const MINORS: std::ops::RangeInclusive<u8> = 9..=15;

/// Environment variable with the tests' interpreters, in the format of `PATH`.
pub const TEST_PYTHONS: &str = "MEMPROBE_TEST_PYTHONS";

/// Returns an interpreter of every available version; prints a reason for each missing one.
/// Includes Pythons that an earlier run unpacked from distributions.
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

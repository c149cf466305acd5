//! Pythons to test memprobe on: this machine's, and missing versions from distributions.

mod debian;
mod notebook;

pub use debian::{Archive, DEBIAN, UBUNTU, is_unpacked, present, unpack};
pub use notebook::{NOTEBOOK_PACKAGES, packages as notebook_packages};

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::pytorch::{Interpreter, PythonVersion};
use crate::test::Extent;

/// Minor versions that memprobe supports.
pub const MINORS: std::ops::RangeInclusive<u8> = 9..=15;

/// Minor versions of which a run of everything tests the distribution's build too: the collector of 3.13.5 is not laid
/// out as that of 3.13.0.
const ALSO_OF_DISTRIBUTION: [u8; 1] = [13];

/// Environment variable with the tests' interpreters, in the format of `PATH`.
pub const TEST_PYTHONS: &str = "MEMPROBE_TEST_PYTHONS";

/// Returns an interpreter of every version that is here or, in a run of everything, can be
/// installed. The tests print a line for each missing one. Includes Pythons that an earlier run
/// unpacked from distributions.
pub fn for_tests(extent: Extent) -> OsString {
    let mut found: Vec<PathBuf> = Vec::new();
    for minor in MINORS {
        let version = PythonVersion::three(minor);
        let interpreter = Interpreter::Version(version);
        let usable = match extent {
            Extent::Everything => interpreter.find(),
            _ => interpreter.present().context("it is not here"),
        };
        match usable {
            Ok(info) => {
                println!("Python {:<8} {}", info.version, info.executable.display());
                found.push(info.executable);
            }
            Err(missing) => println!("no Python {version}: {missing:#}"),
        }
        if extent == Extent::Everything
            && ALSO_OF_DISTRIBUTION.contains(&minor)
            && let Err(error) = unpack(version)
        {
            println!("no Python {version} of a distribution: {error:#}");
        }
        if let Some(python) = present(version).filter(|python| !found.contains(python)) {
            println!("Python {version:<8} {}", python.display());
            found.push(python);
        }
    }
    std::env::join_paths(found).unwrap_or_default()
}

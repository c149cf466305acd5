//! The committed eBPF object, rebuilt beside the other checks.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::background::Background;
use crate::ebpf::{self, Checked};
use crate::repository::Repository;

/// Starts to rebuild the committed object, after a check of its record that takes no time.
pub fn start_check(repository: &Repository) -> Result<Background> {
    ebpf::check_record(repository)?;
    Background::start(repository, "ebpf", &["ebpf", "--check", "--install"])
}

/// Waits for the rebuilt object; returns it if it is another one than the committed object.
///
/// # Errors
///
/// If the build failed, or another toolchain than the recorded one made another object in CI.
pub fn finish_check(repository: &Repository, rebuilding: Background) -> Result<Option<PathBuf>> {
    rebuilding.finish()?;
    fresh_object(&ebpf::compared(repository)?, is_ci())
}

/// Returns the object on which the suite runs once more. CI must have the recorded toolchain: without
/// it nobody knows that the committed object comes from the sources.
fn fresh_object(checked: &Checked, is_ci: bool) -> Result<Option<PathBuf>> {
    match checked {
        Checked::Same => Ok(None),
        Checked::OtherToolchain(object) if is_ci => bail!(
            "CI has another toolchain than the recorded one, which made {}: the committed object \
             is not proved. Run `cargo xtask ebpf` with this toolchain, and change the packages in \
             xtask/src/ebpf/install.rs",
            object.display()
        ),
        Checked::OtherToolchain(object) => {
            println!("  the suite runs on the committed object, then on the fresh one");
            Ok(Some(object.clone()))
        }
    }
}

/// True in CI, which sets this variable everywhere.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_object_is_a_failure_in_ci_and_a_second_run_outside() {
        let other = || Checked::OtherToolchain("/fresh.o".into());
        let error = fresh_object(&other(), true).unwrap_err().to_string();
        assert!(
            error.contains("another toolchain than the recorded one"),
            "{error}"
        );
        let fresh = fresh_object(&other(), false).unwrap();
        assert_eq!(fresh, Some(PathBuf::from("/fresh.o")));
        assert_eq!(fresh_object(&Checked::Same, true).unwrap(), None);
    }
}

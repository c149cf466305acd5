//! The committed eBPF object, rebuilt beside the other checks.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::Extent;
use super::background::Background;
use super::outcome::{Skip, Skipped};
use crate::ebpf::{self, Checked};
use crate::repository::Repository;

/// Rebuild of the committed object.
#[derive(Debug)]
pub enum Rebuild {
    Running(Background),
    /// No toolchain is installed here.
    NoToolchain,
}

/// Starts to rebuild the committed object, after a check of its record that takes no time. Only a run of everything
/// installs a toolchain for it.
pub fn start_check(repository: &Repository, extent: Extent) -> Result<Rebuild> {
    ebpf::check_record(repository)?;
    let mut arguments = vec!["ebpf", "--check"];
    if extent == Extent::Everything {
        arguments.push("--install");
    } else if !ebpf::has_toolchain(repository)? {
        return Ok(Rebuild::NoToolchain);
    }
    Background::start(repository, "ebpf", &arguments).map(Rebuild::Running)
}

/// Outcome of a rebuild.
#[derive(Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// No other object is to be tested.
    Settled,
    /// The object of another toolchain, on which the suite runs once more.
    Another(PathBuf),
    NotTried(Skip),
}

/// Waits for the rebuilt object.
///
/// # Errors
///
/// If the build failed, or another toolchain than the recorded one made another object in CI.
pub fn finish_check(repository: &Repository, extent: Extent, rebuild: Rebuild) -> Result<Rebuilt> {
    let Rebuild::Running(rebuilding) = rebuild else {
        let reason = "no compiler for the eBPF programs is installed (cargo xtask ebpf --install)";
        println!("{reason}; the committed object has the hash of its record");
        return Ok(Rebuilt::NotTried(Skip {
            test: "eBPF object".to_owned(),
            extent: Skipped::Part,
            reason: reason.to_owned(),
        }));
    };
    rebuilding.finish()?;
    settle(&ebpf::compared(repository)?, extent, is_ci())
}

/// Decides on the object on which the suite runs once more. CI must have the recorded toolchain: without it nobody
/// knows that the committed object comes from the sources.
fn settle(checked: &Checked, extent: Extent, is_ci: bool) -> Result<Rebuilt> {
    match checked {
        Checked::Same => Ok(Rebuilt::Settled),
        Checked::OtherToolchain(object) if is_ci => bail!(
            "CI has another toolchain than the recorded one, which made {}: the committed object \
             is not proved. Run `cargo xtask ebpf` with this toolchain, and change the packages in \
             xtask/src/ebpf/install.rs",
            object.display()
        ),
        Checked::OtherToolchain(object) if extent == Extent::Everything => {
            println!("  the suite runs on the committed object, then on the fresh one");
            Ok(Rebuilt::Another(object.clone()))
        }
        Checked::OtherToolchain(_) => {
            println!("  the suite runs on the committed object; with --all on the fresh one too");
            Ok(Rebuilt::Settled)
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
    fn another_object_is_a_failure_in_ci_and_a_second_run_of_everything_outside() {
        let other = || Checked::OtherToolchain("/fresh.o".into());
        let error = settle(&other(), Extent::Everything, true).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("another toolchain than the recorded one"),
            "{error}"
        );
        let fresh = settle(&other(), Extent::Everything, false).unwrap();
        assert_eq!(fresh, Rebuilt::Another("/fresh.o".into()));
        let short = settle(&other(), Extent::Short, false).unwrap();
        assert_eq!(short, Rebuilt::Settled);
        let same = settle(&Checked::Same, Extent::Everything, true).unwrap();
        assert_eq!(same, Rebuilt::Settled);
    }
}

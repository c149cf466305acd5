//! `cargo xtask bare`: the two commands of README.md in a new root file system of a distribution, with the packages that
//! README.md names and no others.

mod root;
mod system;

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::repository::Repository;
use root::RootFolder;
use system::System;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The distribution
    system: System,
    /// Only the tests of this feature; can be given again. None of the tests with `none`
    #[arg(long, value_name = "FEATURE")]
    only: Vec<String>,
    /// Keep the root file system, to look into it
    #[arg(long)]
    keep: bool,
}

/// Builds the root file system and runs the commands. Prints each with its time.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    if !process::is_root() {
        bail!("a root file system and its probes need root: run this with sudo -E");
    }
    let changes = process::answer(git(repository).args(["status", "--porcelain"]))?;
    if !changes.is_empty() {
        eprintln!("The clone will lack what is not committed:\n{changes}");
    }
    let system = options.system.description();
    let name = format!("root file system of {}", system.name);
    let root = timed(&name, || RootFolder::create(&system))?;
    let outcome = inside(repository, options, &root);
    match outcome {
        Ok(()) if options.keep => println!("It stays in {}", root.path().display()),
        Ok(()) => root.remove()?,
        Err(error) => {
            return Err(error.context(format!(
                "the root file system stays in {}",
                root.path().display()
            )));
        }
    }
    Ok(())
}

fn inside(repository: &Repository, options: &Options, root: &RootFolder) -> Result<()> {
    let system = options.system.description();
    timed("packages", || {
        root.run("/", &format!("apt-get update -q && {}", system.install))
    })?;
    let clone = root.path().join(CLONE.trim_start_matches('/'));
    process::run(git(repository).args(["clone", "--quiet", "."]).arg(clone))?;
    timed("cargo xtask demo", || root.run(CLONE, "cargo xtask demo"))?;
    if let Some(test) = test_command(&options.only) {
        timed(&test, || root.run(CLONE, &test))?;
    }
    Ok(())
}

/// The clone in the root file system.
const CLONE: &str = "/root/memprobe";

/// Returns the second command, for some features alone if any is named.
fn test_command(only: &[String]) -> Option<String> {
    if only.iter().any(|feature| feature == "none") {
        return None;
    }
    let mut command = "cargo xtask test".to_owned();
    for feature in only {
        command += &format!(" --only {feature}");
    }
    Some(command)
}

fn git(repository: &Repository) -> std::process::Command {
    let mut git = std::process::Command::new("git");
    git.current_dir(repository.root());
    git
}

fn timed<T>(name: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n=== {name}");
    let start = Instant::now();
    let result = step().with_context(|| format!("{name} failed"))?;
    println!("=== {name}: passed after {} s", start.elapsed().as_secs());
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_handed_to_the_second_command() {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(test_command(&[]).as_deref(), Some("cargo xtask test"));
        let some = test_command(&names(&["top", "doctor"]));
        let expected = "cargo xtask test --only top --only doctor";
        assert_eq!(some.as_deref(), Some(expected));
        assert_eq!(test_command(&names(&["none"])), None);
    }
}

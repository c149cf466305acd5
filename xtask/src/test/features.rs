//! Test programs by name, for `--only`.

use anyhow::{Result, bail};
use serde::Deserialize;

use super::programs::TestProgram;
use crate::process;
use crate::repository::Repository;

/// A test program that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    name: String,
    /// Package of a library or program with tests beside its code; `None` for a program of its own.
    package: Option<String>,
}

impl Feature {
    fn is(&self, program: &TestProgram) -> bool {
        self.name.replace('-', "_") == program.name.replace('-', "_")
    }
}

/// Returns cargo's options that select the programs of these features.
pub fn selection(features: &[Feature]) -> Vec<String> {
    let (own, beside): (Vec<&Feature>, Vec<_>) =
        (features.iter()).partition(|feature| feature.package.is_none());
    let mut options: Vec<String> = (own.iter())
        .flat_map(|feature| ["--test".to_owned(), feature.name.clone()])
        .collect();
    // cargo takes these once.
    if !beside.is_empty() {
        options.extend(["--lib".to_owned(), "--bins".to_owned()]);
    }
    options
}

/// Returns the programs of these features; all if no feature was asked for.
pub fn among(features: &[Feature], mut programs: Vec<TestProgram>) -> Vec<TestProgram> {
    programs.retain(|program| {
        features.is_empty() || features.iter().any(|feature| feature.is(program))
    });
    programs
}

/// Returns the features with these names.
///
/// # Errors
///
/// If there is no such test program; the message lists all.
pub fn chosen(repository: &Repository, names: &[String]) -> Result<Vec<Feature>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut metadata = super::cargo(repository);
    metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
    choose(names, &features(&process::answer(&mut metadata)?)?)
}

fn choose(names: &[String], all: &[Feature]) -> Result<Vec<Feature>> {
    let mut found = Vec::new();
    for name in names {
        let mut of_name = all.iter().filter(|feature| feature.name == *name);
        match of_name.next() {
            Some(feature) => found.push(feature.clone()),
            None => {
                let mut all: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
                all.sort_unstable();
                all.dedup();
                bail!(
                    "there are no tests of {name:?}; there are {}",
                    all.join(", ")
                );
            }
        }
    }
    Ok(found)
}

/// Returns the test programs in the output of `cargo metadata`.
fn features(metadata: &str) -> Result<Vec<Feature>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
        test: bool,
    }
    let metadata: Metadata = serde_json::from_str(metadata)?;
    let mut found = Vec::new();
    for package in metadata.packages {
        for target in package.targets.into_iter().filter(|target| target.test) {
            let is = |kind: &str| target.kind.iter().any(|it| it == kind);
            if is("test") || is("lib") || is("bin") {
                found.push(Feature {
                    package: (!is("test")).then(|| package.name.clone()),
                    name: target.name.clone(),
                });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"name": "memprobe-tests", "targets": [
            {"name": "memprobe_tests", "kind": ["lib"], "test": true},
            {"name": "memprobe-matrix-cell", "kind": ["bin"], "test": false},
            {"name": "top", "kind": ["test"], "test": true}]},
        {"name": "memprobe", "targets": [
            {"name": "memprobe", "kind": ["lib"], "test": true},
            {"name": "ledger", "kind": ["bench"], "test": false}]}]}"#;

    #[test]
    fn a_feature_is_a_test_program_or_a_library() {
        let all = features(METADATA).expect("metadata");
        let names = ["top".to_owned(), "memprobe".to_owned()];
        let found = choose(&names, &all).expect("both are there");
        assert_eq!(selection(&found), ["--test", "top", "--lib", "--bins"]);
        let twice = [found[1].clone(), found[1].clone()];
        assert_eq!(selection(&twice), ["--lib", "--bins"]);
    }

    #[test]
    fn an_unknown_feature_is_answered_with_the_list() {
        let all = features(METADATA).expect("metadata");
        let error = choose(&["tops".to_owned()], &all).unwrap_err().to_string();
        assert_eq!(
            error,
            "there are no tests of \"tops\"; there are memprobe, memprobe_tests, top"
        );
    }
}

//! Finds the Pythons of this machine.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};

use crate::apt;
use crate::process;
use crate::python;

/// Choice of a Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interpreter {
    /// Any interpreter of this version.
    Version(PythonVersion),
    /// Exactly this program.
    Path(PathBuf),
}

/// A version of Python without its patch number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion {
    major: u8,
    minor: u8,
}

/// An interpreter's own answer to [`probe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonInfo {
    pub executable: PathBuf,
    /// Full version, such as `3.11.7`.
    pub version: String,
}

impl PythonInfo {
    /// Returns the version without its patch number, such as `3.11`.
    pub fn minor_version(&self) -> String {
        self.version
            .split('.')
            .take(2)
            .collect::<Vec<_>>()
            .join(".")
    }
}

impl PythonVersion {
    /// Returns version `3.minor`.
    pub fn three(minor: u8) -> Self {
        Self { major: 3, minor }
    }

    /// Returns 11 for `3.11`.
    pub fn minor(self) -> u8 {
        self.minor
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "Python {version}"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Interpreter {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.contains('/') {
            return Ok(Self::Path(text.into()));
        }
        let numbers = text.split_once('.').and_then(|(major, minor)| {
            Some(PythonVersion {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        numbers.map(Self::Version).ok_or_else(|| {
            anyhow!("{text:?} is neither a version such as 3.11 nor the path of an interpreter")
        })
    }
}

impl Interpreter {
    /// Returns the interpreter if this machine already has it.
    pub fn present(&self) -> Option<PythonInfo> {
        match self {
            Self::Path(path) => probe(path).ok(),
            Self::Version(version) => first_of(*version),
        }
    }

    /// Returns the interpreter; installs a missing one if this process may.
    pub fn find(&self) -> Result<PythonInfo> {
        match self {
            Self::Path(path) => probe(path),
            Self::Version(version) => find_version(*version),
        }
    }
}

fn find_version(version: PythonVersion) -> Result<PythonInfo> {
    if let Some(found) = first_of(version) {
        return Ok(found);
    }
    if install_with_apt(&[
        &format!("python{version}"),
        &format!("python{version}-venv"),
    ]) && let Some(found) = first_of(version)
    {
        return Ok(found);
    }
    let unpacked = python::unpack(version).and_then(|program| probe(&program));
    let Err(error) = unpacked else {
        return unpacked;
    };
    eprintln!("{error:#}");
    bail!(
        "no Python {version} found: looked for python{version} in PATH, among pyenv's versions and \
         in /usr/bin.\nInstall one, for instance with `pyenv install {version}` or \
         `sudo apt-get install python{version} python{version}-venv`, \
         or name an interpreter with --python /path/to/python"
    );
}

fn first_of(version: PythonVersion) -> Option<PythonInfo> {
    candidates(version)
        .into_iter()
        .filter_map(|path| probe(&path).ok())
        .find(|info| info.minor_version() == version.to_string())
}

/// Returns the existing interpreters of this version, best first.
fn candidates(version: PythonVersion) -> Vec<PathBuf> {
    let name = format!("python{version}");
    let mut paths: Vec<PathBuf> = process::on_path(&name).into_iter().collect();
    paths.extend(
        pyenv_versions(version)
            .into_iter()
            .map(|folder| folder.join("bin").join(&name)),
    );
    paths.extend(["/usr/local/bin", "/usr/bin"].map(|folder| Path::new(folder).join(&name)));
    paths.extend(python::present(version));
    let mut seen = HashSet::new();
    paths.retain(|path| path.is_file() && seen.insert(path.clone()));
    paths
}

/// Returns pyenv's folders of this minor version, newest patch first.
fn pyenv_versions(version: PythonVersion) -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let Some(Ok(entries)) = root.map(|root| fs::read_dir(root.join("versions"))) else {
        return Vec::new();
    };
    let prefix = format!("{version}.");
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let patch = entry
                .file_name()
                .to_str()?
                .strip_prefix(&prefix)?
                .parse()
                .ok()?;
            Some((patch, entry.path()))
        })
        .collect();
    versions.sort_by_key(|(patch, _)| std::cmp::Reverse(*patch));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

/// Runs the interpreter to get its version and its real path (behind pyenv's shims).
pub fn probe(path: &Path) -> Result<PythonInfo> {
    let question = "import sys; print('%d.%d.%d' % sys.version_info[:3]); print(sys.executable)";
    let answer =
        process::answer(Command::new(path).args(["-I", "-c", question])).with_context(|| {
            format!(
                "{} is no Python that runs: give --python a version such as 3.11 or another path",
                path.display()
            )
        })?;
    let (version, executable) = answer
        .split_once('\n')
        .with_context(|| format!("{} does not answer like Python", path.display()))?;
    Ok(PythonInfo {
        executable: executable.trim().into(),
        version: version.trim().to_owned(),
    })
}

/// Installs packages if this process may; returns true on success.
pub fn install_with_apt(packages: &[&str]) -> bool {
    apt::can_install()
        && apt::install(packages)
            .inspect_err(|error| eprintln!("  {error:#}"))
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_a_version_or_a_path() {
        let version = PythonVersion {
            major: 3,
            minor: 11,
        };
        assert_eq!(
            "3.11".parse::<Interpreter>().unwrap(),
            Interpreter::Version(version)
        );
        assert_eq!(
            "/usr/bin/python3".parse::<Interpreter>().unwrap(),
            Interpreter::Path("/usr/bin/python3".into())
        );
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        for wrong in ["", "3", "python3", "3.x"] {
            let error = wrong.parse::<Interpreter>().unwrap_err().to_string();
            assert!(error.contains("such as 3.11"), "{error}");
        }
    }

    #[test]
    fn a_program_that_is_no_python_is_refused() {
        let error = format!("{:#}", probe(Path::new("/bin/false")).unwrap_err());
        assert!(
            error.contains("/bin/false is no Python that runs"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_python_error_says_what_to_install() {
        // Call `first_of`, so that no package manager starts.
        assert_eq!(
            first_of(PythonVersion {
                major: 9,
                minor: 99
            }),
            None
        );
    }
}

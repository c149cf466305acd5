//! Finds the Python interpreters of this machine for tests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Versions that memprobe supports.
const SUPPORTED: [&str; 7] = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"];

/// Environment variable that lists further interpreters, in the format of `PATH`. `cargo xtask
/// test` sets it.
const TEST_PYTHONS: &str = "MEMPROBE_TEST_PYTHONS";

/// Returns this machine's interpreters of a version: from `PATH`, Debian, pyenv and
/// [`TEST_PYTHONS`].
pub fn interpreters(version: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.push("/usr/bin".into());
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv")));
    if let Some(pyenv) = pyenv {
        let versions = fs::read_dir(pyenv.join("versions"))
            .into_iter()
            .flatten()
            .flatten();
        places.extend(versions.map(|entry| entry.path().join("bin")));
    }
    let named = std::env::var_os(TEST_PYTHONS).unwrap_or_default();
    let name = format!("python{version}");
    let mut found: Vec<PathBuf> = places
        .into_iter()
        .map(|place| place.join(&name))
        .chain(std::env::split_paths(&named))
        .filter_map(|python| interpreter_of(&python, version))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns the interpreter that a program starts, if it has this version. The interpreter reports
/// its own path, because a pyenv shim is a script.
fn interpreter_of(program: &Path, version: &str) -> Option<PathBuf> {
    let question = "import os, sys; print('%d.%d' % sys.version_info[:2]); \
                    print(os.path.realpath(sys.executable))";
    let output = Command::new(program)
        .args(["-c", question])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (found, path) = text.split_once('\n')?;
    (output.status.success() && found == version).then(|| path.trim().into())
}

/// Returns every supported interpreter of this machine; panics if there is none.
pub fn supported() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for version in SUPPORTED {
        let found = interpreters(version);
        if found.is_empty() {
            println!("skipped in part: no Python {version} is here");
        }
        all.extend(found);
    }
    assert!(
        !all.is_empty(),
        "no Python to test with: install python3.11 or python3.12"
    );
    all
}

/// Starts a process and returns it with its first line of output. Later ones are in its `stdout`.
pub fn started(command: &mut Command) -> (Child, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    child.stdout = Some(output.into_inner());
    (child, line)
}

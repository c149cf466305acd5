//! Servers that fork workloads of the tests (`tests/workloads/fork_server.py`), one for each PyTorch.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::environments::{DEFAULT_PYTHON, VERSION_PYTHONS};
use super::{SUITE_FOLDER, Variables};
use crate::repository::Repository;

/// Environment variable with the folder of the servers' sockets, for the tests.
const FORK_SERVERS: &str = "MEMPROBE_TEST_FORK_SERVERS";

/// Environment variable with the path of a server's socket, for the server.
const SOCKET: &str = "MEMPROBE_FORK_SERVER";

/// Servers of a run. A test that finds no socket of its Python yet starts its workloads itself.
#[derive(Debug)]
pub struct ForkServers {
    folder: TempDir,
    servers: Vec<Server>,
}

/// A Python that imports PyTorch and then serves. Killed on drop; the kernel ends it if this process is killed.
#[derive(Debug)]
struct Server {
    python: PathBuf,
    log: PathBuf,
    child: Child,
}

impl ForkServers {
    /// Starts a server for each PyTorch of the tests. They live as long as the thread that calls this.
    ///
    /// # Errors
    ///
    /// If a Python does not start.
    pub fn start(repository: &Repository, variables: &Variables) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for sockets")?;
        let workloads = repository.root().join(SUITE_FOLDER).join("workloads");
        let mut servers = Vec::new();
        for python in pythons(variables) {
            servers.push(Server::start(&workloads, folder.path(), python)?);
        }
        Ok(Self { folder, servers })
    }

    /// Returns the variable by which the tests find them.
    pub fn variable(&self) -> (String, OsString) {
        (FORK_SERVERS.to_owned(), self.folder.path().into())
    }

    /// Ends them.
    ///
    /// # Errors
    ///
    /// If one has ended before.
    pub fn finish(mut self) -> Result<()> {
        for server in &mut self.servers {
            if let Some(status) = server.child.try_wait()? {
                let log = fs::read_to_string(&server.log).unwrap_or_default();
                bail!(
                    "the fork server of {} has ended ({status}):\n{log}",
                    server.python.display()
                );
            }
        }
        Ok(())
    }
}

impl Server {
    /// Starts a server; its socket has the name of the Python's virtual environment.
    fn start(workloads: &Path, sockets: &Path, python: PathBuf) -> Result<Self> {
        let environment = python.parent().and_then(Path::parent);
        let name = environment.and_then(Path::file_name);
        let name = name.with_context(|| format!("{} is in no environment", python.display()))?;
        let socket = sockets.join(name);
        let log = sockets.join(format!("{}.log", name.display()));
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        // Instead of a script: room for the name of each workload.
        let placeholder = format!("/{}", "workload-".repeat(60));
        let mut command = Command::new(&python);
        command
            .arg(placeholder)
            .current_dir(workloads)
            .env("PYTHONPATH", workloads)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("PYTHONUNBUFFERED")
            .env(SOCKET, socket)
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CUDASIM_") {
                command.env_remove(name);
            }
        }
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {}", python.display()))?;
        Ok(Self { python, log, child })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the Pythons of the tests, each once.
fn pythons(variables: &Variables) -> Vec<PathBuf> {
    let named = variables
        .iter()
        .filter(|(name, _)| [DEFAULT_PYTHON, VERSION_PYTHONS].contains(&name.as_str()));
    let mut pythons: Vec<PathBuf> = named
        .flat_map(|(_, value)| std::env::split_paths(value))
        .filter(|python| !python.as_os_str().is_empty())
        .collect();
    pythons.sort();
    pythons.dedup();
    pythons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_python_has_one_server() {
        let variables = [
            (DEFAULT_PYTHON, "/a/bin/python"),
            ("MEMPROBE_BIN", "/a/memprobe"),
            (VERSION_PYTHONS, "/b/bin/python:/a/bin/python"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.into()));
        let found = pythons(&variables.to_vec());
        assert_eq!(
            found,
            [Path::new("/a/bin/python"), Path::new("/b/bin/python")]
        );
    }

    #[test]
    fn a_server_that_ends_is_an_error_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("environment/bin/python");
        fs::create_dir_all(python.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/bin/false", &python).unwrap();
        let mut server = Server::start(folder.path(), folder.path(), python).unwrap();
        fs::write(&server.log, "no module named torch").unwrap();
        server.child.wait().unwrap();
        let servers = ForkServers {
            folder,
            servers: vec![server],
        };
        let error = servers.finish().unwrap_err().to_string();
        assert!(
            error.contains("has ended") && error.contains("no module"),
            "{error}"
        );
    }
}

//! Starts workloads through `fork_server.py`, whose process has imported PyTorch: an import takes 3 to 5 s of CPU time.
//! `cargo xtask test` runs the servers.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::pytorch::workloads;

/// Environment variable with the folder of the servers' sockets. Without it each workload is a process of its own from
/// the start.
pub const FORK_SERVERS: &str = "MEMPROBE_TEST_FORK_SERVERS";

/// Environment variables that `PyTorch::settle` sets for a server too.
const OF_A_SERVER: [&str; 2] = ["PYTHONDONTWRITEBYTECODE", "PYTHONPATH"];

/// Options of Python that a server can give a workload.
const QUIET: [&str; 2] = ["-W", "ignore"];

/// Setting of the simulated driver that it reads when it is loaded, as a server has done.
const READ_AT_LOAD: &str = "CUDASIM_OTHER_BRANCH";

/// A workload that a server has forked.
pub struct Forked {
    pid: u32,
    connection: BufReader<UnixStream>,
    line: String,
    status: Option<ExitStatus>,
}

/// A line to the server.
#[derive(Serialize)]
struct Request<'a> {
    /// Options of Python.
    options: Vec<&'a str>,
    /// A script and its arguments.
    arguments: Vec<&'a str>,
    directory: &'a Path,
    settings: HashMap<&'a str, &'a str>,
    stdout: &'a Path,
    stderr: &'a Path,
}

impl Forked {
    /// Starts a command if a server can: a script of an interpreter with a server, with settings that are read after
    /// PyTorch was loaded. `None` if it cannot. A user or a name of its own would be ignored: a [`Command`] does not
    /// show them.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn start(command: &Command, stdout: &Path, stderr: &Path) -> io::Result<Option<Self>> {
        let Some(socket) = socket(Path::new(command.get_program())) else {
            return Ok(None);
        };
        let Some(request) = Request::of(command, stdout, stderr) else {
            return Ok(None);
        };
        let mut connection = UnixStream::connect(socket)?;
        let mut line = serde_json::to_string(&request)?;
        line.push('\n');
        connection.write_all(line.as_bytes())?;
        let mut connection = BufReader::new(connection);
        let mut answer = String::new();
        connection.read_line(&mut answer)?;
        let pid = answer
            .strip_prefix("pid ")
            .and_then(|pid| pid.trim().parse().ok());
        let pid = pid.ok_or_else(|| io::Error::other(format!("the server answers {answer:?}")))?;
        connection.get_ref().set_nonblocking(true)?;
        Ok(Some(Self {
            pid,
            connection,
            line: String::new(),
            status: None,
        }))
    }

    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Like [`std::process::Child::try_wait`].
    ///
    /// # Errors
    ///
    /// If the server has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_some() {
            return Ok(self.status);
        }
        match self.connection.read_line(&mut self.line) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        let status = self.line.strip_prefix("status ");
        let status = status.and_then(|status| status.trim().parse().ok());
        let status = status.ok_or_else(|| io::Error::other("the server has ended"))?;
        self.status = Some(ExitStatus::from_raw(status));
        Ok(self.status)
    }

    /// Kills the workload, unless it has ended, and waits for its end.
    pub fn kill(&mut self) {
        if let Ok(None) = self.try_wait() {
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            // These fail only if it ends in this moment, or with its server.
            let _ = rustix::process::kill_process(pid.expect("a process"), Signal::KILL);
            let _ = self.connection.get_ref().set_nonblocking(false);
            let _ = self.try_wait();
        }
    }
}

impl<'a> Request<'a> {
    fn of(command: &'a Command, stdout: &'a Path, stderr: &'a Path) -> Option<Self> {
        let arguments: Option<Vec<&str>> = command.get_args().map(OsStr::to_str).collect();
        let mut options = arguments?;
        let arguments = options.split_off(if options.starts_with(&QUIET) { 2 } else { 0 });
        if !arguments.first()?.ends_with(".py") {
            return None;
        }
        let directory = command.get_current_dir()?;
        let mut settings = HashMap::new();
        for (name, value) in command.get_envs() {
            let (name, Some(value)) = (name.to_str()?, value) else {
                // `PyTorch::settle` removes what a server is started without.
                continue;
            };
            if name == "PYTHONPATH" && Path::new(value) != workloads() {
                return None;
            }
            if OF_A_SERVER.contains(&name) {
                continue;
            }
            if !name.starts_with("CUDASIM_") || name == READ_AT_LOAD {
                return None;
            }
            settings.insert(name, value.to_str()?);
        }
        Some(Self {
            options,
            arguments,
            directory,
            settings,
            stdout,
            stderr,
        })
    }
}

/// True if this run has servers.
pub fn are_here() -> bool {
    std::env::var_os(FORK_SERVERS).is_some()
}

/// True if the server of an interpreter has imported PyTorch and accepts connections.
pub fn has_server(python: &Path) -> bool {
    socket(python).is_some()
}

/// Returns the socket of an interpreter's server, if it serves. It has the name of the virtual environment.
fn socket(python: &Path) -> Option<PathBuf> {
    let folder = std::env::var_os(FORK_SERVERS)?;
    let environment = python.parent()?.parent()?.file_name()?;
    let socket = Path::new(&folder).join(environment);
    socket.exists().then_some(socket)
}

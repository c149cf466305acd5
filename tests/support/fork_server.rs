//! Starts workloads through `fork_server.py`, whose process has imported PyTorch: an import takes 3 to 5 s of CPU time.
//! `cargo xtask test` runs the servers.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::pytorch::workloads;

/// Environment variable with the folder of the servers' sockets. Without it each workload is a process of its own from
/// the start.
pub const FORK_SERVERS: &str = "MEMPROBE_TEST_FORK_SERVERS";

/// Environment variables that `PyTorch::settle` sets for a server too.
const OF_A_SERVER: [&str; 2] = ["PYTHONDONTWRITEBYTECODE", "PYTHONPATH"];

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
    arguments: Vec<&'a str>,
    directory: &'a Path,
    settings: HashMap<&'a str, &'a str>,
    stdout: &'a Path,
    stderr: &'a Path,
}

impl Forked {
    /// Starts a command if a server can: a script of an interpreter with a server, with settings that are read after
    /// PyTorch was loaded. `None` if it cannot.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn start(command: &Command, stdout: &Path, stderr: &Path) -> io::Result<Option<Self>> {
        let Some(servers) = std::env::var_os(FORK_SERVERS) else {
            return Ok(None);
        };
        let Some(request) = Request::of(command, stdout, stderr) else {
            return Ok(None);
        };
        let Some(socket) = socket_name(command.get_program()) else {
            return Ok(None);
        };
        let socket = Path::new(&servers).join(socket);
        if !socket.exists() {
            return Ok(None);
        }
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
        match self.connection.read_to_string(&mut self.line) {
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
        let arguments = arguments?;
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
            arguments,
            directory,
            settings,
            stdout,
            stderr,
        })
    }
}

/// Returns the name of an interpreter's socket: that of its virtual environment.
fn socket_name(python: &OsStr) -> Option<&OsStr> {
    Path::new(python).parent()?.parent()?.file_name()
}

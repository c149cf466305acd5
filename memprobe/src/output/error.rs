//! Reasons why a file cannot be written.

use std::io;
use std::path::{Path, PathBuf};

use crate::process::caller::CallerError;
use crate::process::user;

/// Reason why a file cannot be written. The message ends with a remedy. It has no source, because the message
/// already contains the I/O error's.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {path}: {problem}")]
pub struct OutputError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("it is a directory; name a file in it, such as {0}")]
    Directory(PathBuf),
    #[error("it is no directory; remove it, or name another one")]
    NoDirectory,
    #[error("there is no directory {0}; make it with `mkdir -p {0}`")]
    NoParent(PathBuf),
    #[error("it is a symbolic link; name what it points to, {0}")]
    Link(PathBuf),
    #[error("it belongs to {0}; remove it, or name another file")]
    Foreign(OwnerId),
    #[error("it was exchanged meanwhile; name a file in a directory that only you can write to")]
    Exchanged,
    #[error(
        "the directory {0} belongs to {1}, who could exchange the file; name a directory of yours, or `-` for standard \
         output"
    )]
    ForeignFolder(PathBuf, OwnerId),
    #[error(
        "every user can exchange files in the directory {0}; end that with `chmod +t {0}`, or name another directory"
    )]
    OpenFolder(PathBuf),
    #[error("{0} is a symbolic link of {1}; name the file without that link")]
    ForeignLink(PathBuf, OwnerId),
    #[error("{0} leads through too many symbolic links; name the file without them")]
    Links(PathBuf),
    #[error(
        "descriptor {0} is not open (sudo closes those from 3 on); use `-` for standard output"
    )]
    Closed(i32),
    #[error("{0}")]
    Caller(#[from] CallerError),
    #[error("{0}; name another file or directory")]
    Io(io::Error),
}

impl Problem {
    pub(super) fn at(self, path: &Path) -> OutputError {
        OutputError {
            path: path.to_owned(),
            problem: self,
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Problem {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// User ID of an owner, shown with the name.
#[derive(Debug)]
pub(super) struct OwnerId(pub u32);

impl std::fmt::Display for OwnerId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match user::name(self.0) {
            Some(name) => write!(out, "user {name}"),
            None => write!(out, "user {}", self.0),
        }
    }
}

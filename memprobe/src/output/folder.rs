//! Directory of outputs.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use super::error::{OutputError, Problem};
use super::owners::Owners;
use super::place::{Place, open_folder};
use super::plan::OutputPlan;

/// Directory for several files, made with the first of them.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    owners: Owners,
    state: State,
}

/// Regular file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    pub name: String,
    pub bytes: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified: i64,
}

impl StoredFile {
    fn new(name: &str, stat: &Stat) -> Self {
        let seconds = stat.st_mtime.saturating_mul(1_000_000_000);
        Self {
            name: name.to_owned(),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: seconds.saturating_add(stat.st_mtime_nsec.try_into().unwrap_or(0)),
        }
    }
}

#[derive(Debug)]
enum State {
    Missing(Place),
    Opened(Arc<OwnedFd>),
}

impl OutputFolder {
    /// Opens the directory if it exists; creates nothing.
    pub fn check(path: &Path) -> Result<Self, OutputError> {
        Self::of(path).map_err(|problem| problem.at(path))
    }

    fn of(path: &Path) -> Result<Self, Problem> {
        // Without the `/` at the end, which would follow a link.
        let path: PathBuf = path.components().collect();
        let owners = Owners::detect()?;
        let opened = |folder| State::Opened(Arc::new(folder));
        let state = if path.file_name().is_none() {
            // `.`, `..` and `/` are no names in a directory.
            opened(open_folder(&path, &owners)?)
        } else {
            let place = Place::of(&path, &owners)?;
            match place.open_folder(&owners) {
                Err(Problem::Io(error)) if error.kind() == ErrorKind::NotFound => {
                    State::Missing(place)
                }
                folder => opened(folder?),
            }
        };
        Ok(Self {
            path,
            owners,
            state,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if there is anything of this name, also a link.
    pub fn has(&self, name: &str) -> bool {
        match &self.state {
            State::Missing(_) => false,
            State::Opened(folder) => self.place(folder, name).stat().is_ok(),
        }
    }

    /// Returns the plan of a file in the directory, which is created if it is missing.
    pub fn plan(&mut self, name: &str) -> Result<OutputPlan, OutputError> {
        let folder = match &self.state {
            State::Opened(folder) => Arc::clone(folder),
            State::Missing(place) => {
                let made = place.create_folder(&self.owners);
                Arc::new(made.map_err(|problem| problem.at(&self.path))?)
            }
        };
        self.state = State::Opened(Arc::clone(&folder));
        let place = self.place(&folder, name);
        let path = place.path.clone();
        OutputPlan::at(place, self.owners.clone()).map_err(|problem| problem.at(&path))
    }

    /// Returns the regular files of the directory. Names that are no text are left out.
    pub fn files(&self) -> Result<Vec<StoredFile>, OutputError> {
        let State::Opened(folder) = &self.state else {
            return Ok(Vec::new());
        };
        let files = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let listed = openat(&**folder, ".", flags, Mode::empty())?;
            let mut files = Vec::new();
            for entry in Dir::new(listed)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else {
                    continue;
                };
                // It may be gone by now.
                let Ok(stat) = self.place(folder, name).stat() else {
                    continue;
                };
                if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                    files.push(StoredFile::new(name, &stat));
                }
            }
            Ok::<_, Errno>(files)
        };
        files().map_err(|error| Problem::Io(error.into()).at(&self.path))
    }

    /// Removes a file of the directory. One that is gone already is no error.
    pub fn remove(&self, name: &str) -> Result<(), OutputError> {
        let State::Opened(folder) = &self.state else {
            return Ok(());
        };
        let place = self.place(folder, name);
        match place.remove() {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Problem::Io(error.into()).at(&place.path)),
        }
    }

    fn place(&self, folder: &Arc<OwnedFd>, name: &str) -> Place {
        Place::within(Arc::clone(folder), &self.path, name)
    }
}

//! Directory of outputs.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

    fn place(&self, folder: &Arc<OwnedFd>, name: &str) -> Place {
        Place::within(Arc::clone(folder), &self.path, name)
    }
}

//! Destination of an output.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::error::{OutputError, Problem};
use super::file::OutputFile;
use super::owners::{Owners, change_owner};
use super::place::{ExistingFile, Place};

/// Unfinished outputs of earlier runs beside a file at which creation gives up.
const MAX_PARTIAL: u32 = 1000;

/// Bytes gathered before a write.
const BUFFER: usize = 256 << 10;

/// Permission bits that a replaced file hands on: no set-user-ID and the like.
pub(super) const PERMISSIONS: u32 = 0o777;

/// Destination of an output, checked as far as possible without creating anything.
#[derive(Debug)]
pub struct OutputPlan(Destination);

#[derive(Debug)]
enum Destination {
    Stdout,
    /// Descriptor that memprobe was started with, such as of `>(gzip)` in a shell; a device, or a FIFO. A FIFO waits
    /// for its reader when it is opened, so that is done before anything that should not wait.
    Opened(File, PathBuf),
    /// A file, new or to be replaced.
    Named(Place, ExistingFile, Owners),
}

impl OutputPlan {
    /// Inspects `path`; `-` means standard output. Creates nothing. Opens a device or FIFO, and waits for the reader of
    /// a FIFO.
    pub fn check(path: &Path) -> Result<Self, OutputError> {
        Self::of(path).map_err(|problem| problem.at(path))
    }

    fn of(path: &Path) -> Result<Self, Problem> {
        if path.as_os_str() == "-" {
            return Ok(Self(Destination::Stdout));
        }
        if let Some(number) = descriptor(path) {
            let destination = match number {
                1 => Destination::Stdout,
                _ => Destination::Opened(inherited(number)?, path.to_owned()),
            };
            return Ok(Self(destination));
        }
        let owners = Owners::detect()?;
        let place = Place::of(path, &owners)?;
        Self::at(place, owners)
    }

    pub(super) fn at(place: Place, owners: Owners) -> Result<Self, Problem> {
        let existing = place.inspect(&owners)?;
        if existing == ExistingFile::Folder {
            return Err(Problem::Directory(place.path.join("trace.json")));
        }
        if existing == ExistingFile::Special {
            let file = place.open_special(&owners)?;
            return Ok(Self(Destination::Opened(file, place.path)));
        }
        Ok(Self(Destination::Named(place, existing, owners)))
    }

    /// True for a file with a name: no descriptor, device or FIFO.
    pub fn is_named_file(&self) -> bool {
        matches!(self.0, Destination::Named(..))
    }

    pub fn is_stdout(&self) -> bool {
        matches!(self.0, Destination::Stdout)
    }

    /// Opens the file. To be called when the recording starts, because it creates files.
    pub fn create(self) -> Result<OutputFile, OutputError> {
        self.open(|place, owners| match place.create_new() {
            // Another process created the file since `check`.
            Err(Errno::EXIST) => replacement(place, owners),
            file => {
                let file = file?;
                owners.give(&file)?;
                Ok(OutputFile::Direct {
                    file,
                    path: place.path.clone(),
                    place: Some(place),
                })
            }
        })
    }

    /// Opens the file as [`Self::create`] does, but creates a new file under a temporary name until it is whole.
    pub fn create_partial(self) -> Result<OutputFile, OutputError> {
        self.open(replacement)
    }

    /// Writes a whole file; an earlier one stays until all is written. Returns its path (`None` for standard output).
    pub fn write(self, content: &[u8]) -> Result<Option<PathBuf>, OutputError> {
        self.write_with(|file| file.write_all(content))
    }

    /// Writes a whole file as [`Self::write`] does, from a function that writes it in parts.
    pub fn write_with(
        self,
        write: impl FnOnce(&mut BufWriter<&mut OutputFile>) -> io::Result<()>,
    ) -> Result<Option<PathBuf>, OutputError> {
        let mut file = self.create_partial()?;
        let mut parts = BufWriter::with_capacity(BUFFER, &mut file);
        let written = write(&mut parts).and_then(|()| parts.flush());
        // What is left in it after an error would be written on drop.
        drop(parts.into_parts());
        if let Err(error) = written {
            let path = PathBuf::from(file.name());
            file.discard();
            return Err(Problem::Io(error).at(&path));
        }
        file.commit()
    }

    /// Opens the destination; `create` makes a new file.
    fn open(
        self,
        create: impl FnOnce(Place, Owners) -> Result<OutputFile, Problem>,
    ) -> Result<OutputFile, OutputError> {
        let (place, existing, owners) = match self.0 {
            Destination::Stdout => return Ok(OutputFile::Stdout(io::stdout())),
            Destination::Opened(file, path) => {
                return Ok(OutputFile::Direct {
                    file,
                    path,
                    place: None,
                });
            }
            Destination::Named(place, existing, owners) => (place, existing, owners),
        };
        let path = place.path.clone();
        let opened = match existing {
            ExistingFile::Regular => replacement(place, owners),
            ExistingFile::Nothing | ExistingFile::Folder | ExistingFile::Special => {
                create(place, owners)
            }
        };
        opened.map_err(|problem| problem.at(&path))
    }
}

/// Creates a file beside a place that will replace what is there, with its owner and permissions.
fn replacement(place: Place, owners: Owners) -> Result<OutputFile, Problem> {
    let before = match place.inspect(&owners)? {
        ExistingFile::Nothing => None,
        ExistingFile::Regular => Some(place.stat()?),
        ExistingFile::Folder | ExistingFile::Special => return Err(Problem::Exchanged),
    };
    let (file, partial) = new_partial(&place)?;
    match before {
        None => owners.give(&file)?,
        Some(before) => {
            change_owner(&file, before.st_uid, before.st_gid)?;
            let mode = rustix::fs::Mode::from_raw_mode(before.st_mode & PERMISSIONS);
            rustix::fs::fchmod(&file, mode)?;
        }
    }
    Ok(OutputFile::Temporary {
        file,
        partial,
        place,
        owners,
    })
}

/// Creates a file beside a place, to be moved there later. Unfinished outputs of earlier runs stay.
pub(super) fn new_partial(place: &Place) -> Result<(File, Place), Problem> {
    for attempt in 0..MAX_PARTIAL {
        let partial = match attempt {
            0 => place.with_ending(".partial"),
            again => place.with_ending(&format!(".partial.{again}")),
        };
        match partial.create_new() {
            Err(Errno::EXIST) => {}
            file => return Ok((file?, partial)),
        }
    }
    Err(Problem::Io(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("{MAX_PARTIAL} unfinished outputs are in that directory"),
    )))
}

/// Returns the number of the descriptor that a path denotes: `/dev/stdout`, `/dev/fd/63`.
fn descriptor(path: &Path) -> Option<i32> {
    let path = path.to_str()?;
    match path {
        "/dev/stdout" => return Some(1),
        "/dev/stderr" => return Some(2),
        _ => {}
    }
    let number = ["/dev/fd/", "/proc/self/fd/"]
        .iter()
        .find_map(|folder| path.strip_prefix(folder))?;
    number.parse().ok().filter(|number| *number >= 0)
}

/// Duplicates a descriptor that memprobe was started with. Its position and mode stay those of the original, which a
/// second opening of the file would not have.
fn inherited(number: i32) -> Result<File, Problem> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let file: OwnedFd = match pidfd_getfd(this, number, PidfdGetfdFlags::empty()) {
        Err(Errno::BADF) => return Err(Problem::Closed(number)),
        file => file?,
    };
    if rustix::fs::fcntl_getfl(&file)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(Problem::Io(Errno::BADF.into()));
    }
    Ok(file.into())
}

#[cfg(test)]
mod tests;

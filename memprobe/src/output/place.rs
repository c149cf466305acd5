//! Name in an opened directory. The way to the directory is walked one name at a time, so that nobody else's link or
//! directory is on it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, fstatfs, mkdirat, openat, readlinkat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::error::Problem;
use super::owners::Owners;

/// Symbolic links on the way at which the walk gives up, as the kernel does (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// An opened directory: a descriptor for names below it.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Permissions of every new file: recordings hold paths, names and command lines of the target.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Name in an opened directory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) folder: Arc<OwnedFd>,
    name: OsString,
    /// Path for messages.
    pub(super) path: PathBuf,
}

/// Kind of file at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExistingFile {
    Nothing,
    Regular,
    Folder,
    /// A device, a FIFO or a socket.
    Special,
}

impl Place {
    /// Opens the directory of a path.
    pub(super) fn of(path: &Path, owners: &Owners) -> Result<Self, Problem> {
        let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
        let Some(name) = path.file_name().filter(|_| !is_folder) else {
            return Err(Problem::Directory(path.join("trace.json")));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let folder = match open_folder(parent, owners) {
            Err(Problem::Io(error)) if is_missing(&error) => {
                return Err(Problem::NoParent(parent.to_owned()));
            }
            folder => folder?,
        };
        Ok(Self {
            folder: Arc::new(folder),
            name: name.to_owned(),
            path: path.to_owned(),
        })
    }

    pub(super) fn within(folder: Arc<OwnedFd>, parent: &Path, name: &str) -> Self {
        Self {
            folder,
            name: name.into(),
            path: parent.join(name),
        }
    }

    /// Returns the place beside this one whose name has `ending` appended.
    pub(super) fn with_ending(&self, ending: &str) -> Self {
        let appended = |text: &OsStr| {
            let mut text = text.to_owned();
            text.push(ending);
            text
        };
        Self {
            folder: Arc::clone(&self.folder),
            name: appended(&self.name),
            path: appended(self.path.as_os_str()).into(),
        }
    }

    /// Looks at the place; refuses links, and files of others.
    pub(super) fn inspect(&self, owners: &Owners) -> Result<ExistingFile, Problem> {
        let stat = match self.stat() {
            Err(Errno::NOENT) => return Ok(ExistingFile::Nothing),
            stat => stat?,
        };
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => return Err(Problem::Link(self.link_target()?)),
            FileType::Directory => return Ok(ExistingFile::Folder),
            FileType::RegularFile => ExistingFile::Regular,
            _ => ExistingFile::Special,
        };
        owners.check_file(&stat)?;
        Ok(kind)
    }

    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        statat(&*self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn link_target(&self) -> Result<PathBuf, Problem> {
        let target = readlinkat(&*self.folder, &self.name, Vec::new())?;
        Ok(OsStr::from_bytes(target.as_bytes()).into())
    }

    /// Creates a file to write and read again; fails if there is anything already, also a link.
    pub(super) fn create_new(&self) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(&*self.folder, &self.name, flags | OFlags::CLOEXEC, PRIVATE).map(File::from)
    }

    /// Opens a device or FIFO.
    pub(super) fn open_special(&self, owners: &Owners) -> Result<File, Problem> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&*self.folder, &self.name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            return Err(Problem::Exchanged);
        }
        owners.check_file(&stat)?;
        Ok(file.into())
    }

    /// Creates the directory, open to its owner alone, or opens the existing one.
    pub(super) fn create_folder(&self, owners: &Owners) -> Result<OwnedFd, Problem> {
        match mkdirat(&*self.folder, &self.name, Mode::RWXU) {
            Err(Errno::EXIST) => return self.open_folder(owners),
            made => made?,
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&*self.folder, &self.name, flags, Mode::empty())?;
        owners.check_folder(&fstat(&folder)?, &self.path)?;
        owners.give(&folder)?;
        Ok(folder)
    }

    /// Opens the directory; refuses links, and directories in which others can exchange files.
    pub(super) fn open_folder(&self, owners: &Owners) -> Result<OwnedFd, Problem> {
        let flags = FOLDER | OFlags::NOFOLLOW;
        let folder = openat(&*self.folder, &self.name, flags, Mode::empty())?;
        let stat = fstat(&folder)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => return Err(Problem::Link(self.link_target()?)),
            FileType::Directory => {}
            _ => return Err(Problem::NoDirectory),
        }
        owners.check_folder(&stat, &self.path)?;
        Ok(folder)
    }

    /// Moves the file at this place to another one in the same directory.
    pub(super) fn rename(&self, to: &Self) -> Result<(), Errno> {
        renameat(&*self.folder, &self.name, &*to.folder, &to.name)
    }

    pub(super) fn remove(&self) -> Result<(), Errno> {
        unlinkat(&*self.folder, &self.name, AtFlags::empty())
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR)
    )
}

/// Opens a directory, one name after the other.
pub(super) fn open_folder(path: &Path, owners: &Owners) -> Result<OwnedFd, Problem> {
    let mut names: VecDeque<OsString> = parts(path);
    let mut walked = PathBuf::new();
    let start = Path::new(if path.has_root() { "/" } else { "." });
    let mut folder = enter(CWD, start, &walked, owners)?;
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        let before = walked.clone();
        walked.push(&name);
        let next = openat(&folder, &name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fstat(&next)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            owners.check_folder(&stat, &walked)?;
            folder = next;
            continue;
        }
        owners.check_link(&stat, &walked)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(Problem::Links(path.to_owned()));
        }
        if fstatfs(&next)?.f_type == libc::PROC_SUPER_MAGIC {
            // Links such as /proc/1/root lead elsewhere than their text.
            folder = enter(&folder, Path::new(&name), &walked, owners)?;
            continue;
        }
        let target = readlinkat(&next, "", Vec::new())?;
        let target = parts(Path::new(OsStr::from_bytes(target.as_bytes())));
        target
            .into_iter()
            .rev()
            .for_each(|name| names.push_front(name));
        walked = before;
    }
    Ok(folder)
}

/// Opens one directory, following its link.
fn enter(
    folder: impl AsFd,
    name: &Path,
    walked: &Path,
    owners: &Owners,
) -> Result<OwnedFd, Problem> {
    let opened = openat(folder, name, FOLDER | OFlags::DIRECTORY, Mode::empty())?;
    let shown = if walked.as_os_str().is_empty() {
        name
    } else {
        walked
    };
    owners.check_folder(&fstat(&opened)?, shown)?;
    Ok(opened)
}

/// Returns the names of a path; an absolute one begins with `/`.
fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .map(|component| component.as_os_str().to_owned())
        .collect()
}

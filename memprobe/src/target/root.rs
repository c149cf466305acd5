//! The files of a process as the process itself sees them: below its own root directory, be that a
//! container's or a chroot's.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::event::Tgid;

/// The root directory of a process. Links are followed as the process would follow them: an
/// absolute one begins at its root and not at memprobe's, and none leads out.
pub struct Root {
    directory: OwnedFd,
    /// How memprobe names that directory: `/` unless the process lives in a chroot.
    named: PathBuf,
    /// How memprobe names the process's working directory.
    working: Option<PathBuf>,
}

impl Root {
    /// That of a process.
    ///
    /// # Errors
    /// `NotFound` where there is no such process, `PermissionDenied` where memprobe may not look.
    pub fn of(tgid: Tgid) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{}", tgid.0));
        let link = process.join("root");
        let directory = openat(
            CWD,
            &link,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            directory,
            named: fs::read_link(&link)?,
            working: fs::read_link(process.join("cwd")).ok(),
        })
    }

    /// Opens a regular file by the path that the process has for it, relative ones from its working
    /// directory; never waits at a FIFO.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let path = self.below_root(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let opened = match openat2(&self.directory, &path, flags, Mode::empty(), resolve) {
            // A filter of system calls that does not know it (it is as old as Linux 5.6): only a
            // path without links is the same for everybody.
            Err(Errno::NOSYS | Errno::PERM) => {
                let flags = flags | OFlags::NOFOLLOW;
                openat(&self.directory, &path, flags, Mode::empty())
            }
            opened => opened,
        };
        let file = File::from(opened?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            )),
        }
    }

    /// Opens a regular file by the path that `/proc/PID/maps` and the like show to memprobe for it:
    /// of a process in a chroot that begins with the chroot's own path.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_shown(&self, path: &Path) -> io::Result<File> {
        self.open(&self.inside(path))
    }

    /// The process's path for what memprobe is shown as `path`.
    fn inside(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.named) {
            Ok(within) => Path::new("/").join(within),
            Err(_) => path.to_owned(),
        }
    }

    /// The path from the root on, without a leading `/`.
    fn below_root(&self, path: &Path) -> io::Result<PathBuf> {
        let whole = match (path.is_absolute(), &self.working) {
            (true, _) => path.to_owned(),
            (false, Some(working)) => self.inside(working).join(path),
            (false, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(whole
            .components()
            .filter(|part| !matches!(part, Component::RootDir))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    /// A root made of a folder, as that of a process in a chroot.
    fn chroot(folder: &Path) -> Root {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Root {
            directory: openat(CWD, folder, flags, Mode::empty()).unwrap(),
            named: folder.to_owned(),
            working: Some(folder.join("srv")),
        }
    }

    fn read(file: io::Result<File>) -> String {
        let mut text = String::new();
        file.unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn links_are_followed_as_the_process_follows_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir(at("srv")).unwrap();
        fs::write(at("srv/train.py"), "inside").unwrap();
        fs::write(at("secret"), "inside too").unwrap();
        symlink("/srv/train.py", at("link")).unwrap();
        symlink("../../../../../../secret", at("srv/out")).unwrap();
        let root = chroot(folder.path());
        assert_eq!(read(root.open("/srv/train.py".as_ref())), "inside");
        assert_eq!(read(root.open("/link".as_ref())), "inside");
        assert_eq!(read(root.open("train.py".as_ref())), "inside");
        assert_eq!(read(root.open("/srv/out".as_ref())), "inside too");
        assert_eq!(read(root.open_shown(&at("srv/train.py"))), "inside");
        assert!(root.open(&at("srv/train.py")).is_err());
        assert!(root.open("/etc/passwd".as_ref()).is_err());
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let root = Root::of(Tgid(std::process::id())).unwrap();
        assert!(root.open("/dev/zero".as_ref()).is_err());
        assert!(root.open("/tmp".as_ref()).is_err());
        assert!(root.open("/proc/self/exe".as_ref()).is_err());
    }

    #[test]
    fn this_process_sees_its_own_files() {
        let root = Root::of(Tgid(std::process::id())).unwrap();
        assert!(root.open("Cargo.toml".as_ref()).is_ok());
        let program = std::env::current_exe().unwrap();
        assert!(root.open_shown(&program).is_ok());
        assert!(Root::of(Tgid(u32::MAX)).is_err());
    }
}

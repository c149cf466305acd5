//! Files of a process by its own paths, below its own root directory (that of a container or a chroot).

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::maps::regular;
use crate::event::Tgid;

/// The root directory of a process. Symbolic links resolve as for the process: an absolute one starts at the
/// process's root, and none leads outside.
pub struct ProcessRoot {
    directory: OwnedFd,
    /// memprobe's path of that directory: `/` unless the process is in a chroot.
    named: PathBuf,
    working: Option<PathBuf>,
}

impl ProcessRoot {
    /// Opens the root directory of a process.
    /// Fails with `NotFound` if there is no such process, `PermissionDenied` if memprobe may not inspect it.
    pub fn of(tgid: Tgid) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{}", tgid.0));
        let link = process.join("root");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            directory: openat(CWD, &link, flags, Mode::empty())?,
            named: fs::read_link(&link)?,
            working: fs::read_link(process.join("cwd")).ok(),
        })
    }

    /// Opens a regular file by the process's path, relative to its working directory; no FIFO blocks it.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let path = self.below_root(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let opened = match openat2(&self.directory, &path, flags, Mode::empty(), resolve) {
            // A seccomp filter may not know `openat2` (Linux 5.6). Then only a path without links is safe.
            Err(Errno::NOSYS | Errno::PERM) => {
                let flags = flags | OFlags::NOFOLLOW;
                openat(&self.directory, &path, flags, Mode::empty())
            }
            opened => opened,
        };
        regular(File::from(opened?))
    }

    /// Opens a regular file by the path that `/proc/PID/maps` and the like show to memprobe. For a process in
    /// a chroot, that path starts with the path of the chroot.
    pub fn open_shown(&self, path: &Path) -> io::Result<File> {
        self.open(&self.inside(path))
    }

    fn inside(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.named) {
            Ok(within) => Path::new("/").join(within),
            Err(_) => path.to_owned(),
        }
    }

    fn below_root(&self, path: &Path) -> io::Result<PathBuf> {
        let whole = match (path.is_absolute(), &self.working) {
            (true, _) => path.to_owned(),
            (false, Some(working)) => self.inside(working).join(path),
            (false, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        let below = whole
            .components()
            .filter(|part| !matches!(part, Component::RootDir));
        Ok(below.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    /// Returns the root of a process in a chroot at `folder`.
    fn chroot(folder: &Path) -> ProcessRoot {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        ProcessRoot {
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
        let root = ProcessRoot::of(Tgid(std::process::id())).unwrap();
        assert!(root.open("/dev/zero".as_ref()).is_err());
        assert!(root.open("/tmp".as_ref()).is_err());
        assert!(root.open("/proc/self/exe".as_ref()).is_err());
    }

    #[test]
    fn this_process_sees_its_own_files() {
        let root = ProcessRoot::of(Tgid(std::process::id())).unwrap();
        assert!(root.open("Cargo.toml".as_ref()).is_ok());
        let program = std::env::current_exe().unwrap();
        assert!(root.open_shown(&program).is_ok());
        assert!(ProcessRoot::of(Tgid(u32::MAX)).is_err());
    }
}

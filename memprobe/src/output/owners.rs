//! Users whose files memprobe may replace, and whose directories it may write to.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, Stat, Uid, fchown};
use rustix::io::Errno;

use super::error::{OwnerId, Problem};
use crate::process::caller::SudoCaller;

#[derive(Clone, Debug)]
pub(super) struct Owners {
    /// True for root. Others have no right that somebody beside them could misuse.
    is_root: bool,
    caller: Option<SudoCaller>,
}

impl Owners {
    pub(super) fn detect() -> Result<Self, Problem> {
        Ok(Self {
            is_root: rustix::process::geteuid().is_root(),
            caller: SudoCaller::of_sudo()?,
        })
    }

    fn includes(&self, uid: u32) -> bool {
        let is_caller = |caller: &SudoCaller| caller.uid == uid;
        !self.is_root || uid == 0 || self.caller.as_ref().is_some_and(is_caller)
    }

    /// Refuses a file of somebody else.
    pub(super) fn check_file(&self, stat: &Stat) -> Result<(), Problem> {
        match self.includes(stat.st_uid) {
            true => Ok(()),
            false => Err(Problem::Foreign(OwnerId(stat.st_uid))),
        }
    }

    /// Refuses a symbolic link of somebody else within a path.
    pub(super) fn check_link(&self, stat: &Stat, path: &Path) -> Result<(), Problem> {
        match self.includes(stat.st_uid) {
            true => Ok(()),
            false => Err(Problem::ForeignLink(path.to_owned(), OwnerId(stat.st_uid))),
        }
    }

    /// Refuses a directory in which somebody else can exchange files.
    pub(super) fn check_folder(&self, stat: &Stat, path: &Path) -> Result<(), Problem> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if !self.includes(stat.st_uid) {
            return Err(Problem::ForeignFolder(
                path.to_owned(),
                OwnerId(stat.st_uid),
            ));
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if self.is_root && mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
            return Err(Problem::OpenFolder(path.to_owned()));
        }
        Ok(())
    }

    /// Gives a new file or directory to the user who called sudo.
    pub(super) fn give(&self, file: impl AsFd) -> Result<(), Problem> {
        let Some(caller) = &self.caller else {
            return Ok(());
        };
        change_owner(file, caller.uid, caller.gid)
    }
}

/// Changes the owner of a file that memprobe created.
pub(super) fn change_owner(file: impl AsFd, uid: u32, gid: u32) -> Result<(), Problem> {
    match fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
        // File systems without owners, such as vfat. Their files belong to whom the mount says.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

//! Requests of another memprobe: `watch --dump` sends SIGUSR1 to the memprobe that holds the lock on a file of root.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Directory of root for the file.
const FOLDER: &str = "/run/memprobe";

/// File with the process id of the memprobe that watches. It holds a lock on it.
const FILE: &str = "/run/memprobe/watch.pid";

/// Longest content of the file, in bytes.
const MAX_LENGTH: u64 = 32;

/// Holds the lock until it is dropped.
pub(super) struct WatchLock {
    _file: File,
}

impl WatchLock {
    /// Takes the lock and writes this process's id; `None` if another memprobe has it.
    pub(super) fn take() -> Result<Option<Self>> {
        Self::take_at(Path::new(FOLDER), Path::new(FILE))
    }

    fn take_at(folder: &Path, file: &Path) -> Result<Option<Self>> {
        let shown = file.display();
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("making {}", folder.display()));
            }
            _ => {}
        }
        check_owner(folder)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(file, flags, Mode::RUSR | Mode::WUSR);
        let mut opened = File::from(opened.with_context(|| format!("opening {shown}"))?);
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked.with_context(|| format!("locking {shown}"))?,
        }
        opened.set_len(0)?;
        writeln!(opened, "{}", std::process::id())?;
        Ok(Some(Self { _file: opened }))
    }
}

/// Refuses a directory in which another user than this one could exchange the file.
fn check_owner(folder: &Path) -> Result<()> {
    let facts = std::fs::symlink_metadata(folder)?;
    let own = rustix::process::geteuid().as_raw();
    let is_own = facts.is_dir() && facts.uid() == own && facts.mode() & 0o022 == 0;
    ensure!(
        is_own,
        "{}: others can write there; remove it",
        folder.display()
    );
    Ok(())
}

/// Asks the memprobe that watches for a dump of each process. Returns its process id.
pub(super) fn request_dump() -> Result<u32> {
    request_at(Path::new(FOLDER), Path::new(FILE))
}

fn request_at(folder: &Path, file: &Path) -> Result<u32> {
    const NONE: &str = "no `memprobe watch` runs; start one, such as `sudo memprobe watch --all`";
    if !folder.exists() {
        bail!(NONE);
    }
    check_owner(folder).context("run `memprobe watch --dump` as root")?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match open(file, flags, Mode::empty()) {
        Err(Errno::NOENT) => bail!(NONE),
        opened => File::from(opened.with_context(|| format!("opening {}", file.display()))?),
    };
    let is_held = || match flock(&opened, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(true),
        locked => locked.map(|()| false),
    };
    if !is_held()? {
        bail!(NONE);
    }
    let mut text = String::new();
    (&opened).take(MAX_LENGTH).read_to_string(&mut text)?;
    let number: i32 = text
        .trim()
        .parse()
        .context("the running memprobe has just started; ask again")?;
    let pid = Pid::from_raw(number).context(NONE)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context(NONE)?;
    // The number was that of the holder while it held the lock; the descriptor stays with that process.
    if !is_held()? {
        bail!(NONE);
    }
    pidfd_send_signal(&process, Signal::USR1).context("sending SIGUSR1")?;
    Ok(number.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_memprobe_has_the_lock_and_without_one_nobody_gets_a_signal() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("memprobe");
        let file = folder.join("watch.pid");
        let error = request_at(&folder, &file).unwrap_err().to_string();
        assert!(error.contains("no `memprobe watch` runs"), "{error}");
        let lock = WatchLock::take_at(&folder, &file).unwrap();
        assert!(lock.is_some());
        assert!(WatchLock::take_at(&folder, &file).unwrap().is_none());
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.trim(), std::process::id().to_string());
        drop(lock);
        // The file stays, with a number that may be another process's by then.
        let error = request_at(&folder, &file).unwrap_err().to_string();
        assert!(error.contains("no `memprobe watch` runs"), "{error}");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("memprobe");
        DirBuilder::new().mode(0o777).create(&folder).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&folder, open).unwrap();
        assert!(WatchLock::take_at(&folder, &folder.join("watch.pid")).is_err());
    }
}

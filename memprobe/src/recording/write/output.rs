//! Output file of a recording. An earlier file is kept until the new recording is whole.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};

/// Unfinished recordings of earlier runs beside a file at which creation gives up.
const MAX_PARTIAL: u32 = 1000;

/// Destination of a recording, checked as far as possible without creating anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPlan {
    Stdout,
    New(PathBuf),
    /// Regular file, replaced once the recording is whole.
    Replace(PathBuf),
    Special(PathBuf),
}

/// Reason why a file cannot be recorded to. The message ends with a remedy. It has no source, because the message
/// already contains the I/O error's.
#[derive(Debug, thiserror::Error)]
#[error("cannot record to {path}: {problem}")]
pub struct OutputError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("it is a directory; name a file in it, such as {0}")]
    Directory(PathBuf),
    #[error("there is no directory {0}; make it with `mkdir -p {0}`")]
    NoParent(PathBuf),
    #[error("{0}; name another file with -o")]
    Io(io::Error),
}

impl OutputError {
    fn io(path: PathBuf, error: io::Error) -> Self {
        let problem = Problem::Io(error);
        Self { path, problem }
    }
}

impl OutputPlan {
    /// Inspects `path`; `-` means standard output. Creates and opens nothing.
    pub fn check(path: &Path) -> Result<Self, OutputError> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        let fail = |problem| OutputError {
            path: path.to_owned(),
            problem,
        };
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => Err(fail(Problem::Directory(path.join("trace.json")))),
            Ok(there) if is_special(&there) => Ok(Self::Special(path.to_owned())),
            // The target of a symbolic link is replaced, not the link.
            Ok(_) => fs::canonicalize(path)
                .map(Self::Replace)
                .map_err(|error| fail(Problem::Io(error))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = parent(path);
                match fs::metadata(parent) {
                    Ok(there) if there.is_dir() => Ok(Self::New(path.to_owned())),
                    _ => Err(fail(Problem::NoParent(parent.to_owned()))),
                }
            }
            Err(error) => Err(fail(Problem::Io(error))),
        }
    }

    /// Opens the file. To be called when the recording starts, because it creates files.
    pub fn create(self) -> Result<OutputFile, OutputError> {
        let (path, opened) = match self {
            Self::Stdout => return Ok(OutputFile::Stdout(io::stdout())),
            Self::Special(path) => {
                let opened = OpenOptions::new().write(true).open(&path);
                (path.clone(), direct(opened, path))
            }
            Self::New(path) => match create_new(&path) {
                // Another process created the file since `check`: do not overwrite it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    (path.clone(), partial(path))
                }
                opened => (path.clone(), direct(opened, path)),
            },
            Self::Replace(path) => (path.clone(), partial(path)),
        };
        opened.map_err(|error| OutputError::io(path, error))
    }

    /// Opens the file as [`Self::create`] does, but creates a new file under a temporary name until it is whole.
    pub fn create_partial(self) -> Result<OutputFile, OutputError> {
        let Self::New(path) = self else {
            return self.create();
        };
        partial_file(&path, |_| Ok(())).map_err(|error| OutputError::io(path, error))
    }
}

/// File being recorded to. If it is dropped without [`OutputFile::commit`], the data stays at
/// [`OutputFile::lies_at`], and an earlier file stays too.
#[derive(Debug)]
pub enum OutputFile {
    Stdout(io::Stdout),
    Direct {
        file: File,
        path: PathBuf,
    },
    /// Temporary file beside the one that it will replace.
    Temporary {
        file: File,
        partial: PathBuf,
        path: PathBuf,
    },
}

impl OutputFile {
    /// Returns the path of the data being written; `None` for standard output.
    pub fn lies_at(&self) -> Option<&Path> {
        match self {
            Self::Stdout(_) => None,
            Self::Direct { path, .. } => Some(path),
            Self::Temporary { partial, .. } => Some(partial),
        }
    }

    pub fn name(&self) -> String {
        let path = self.lies_at().unwrap_or(Path::new("standard output"));
        path.display().to_string()
    }

    pub fn discard(self) {
        if let Self::Temporary { partial, .. } = self {
            // If this fails, the extension `.partial` marks the file as unfinished.
            let _ = fs::remove_file(partial);
        }
    }

    /// Flushes, and moves a temporary file to its final path. Returns that path (`None` for standard output).
    pub fn commit(mut self) -> Result<Option<PathBuf>, OutputError> {
        let flushed = self.flush();
        let (path, done) = match self {
            Self::Stdout(_) => ("standard output".into(), flushed.map(|()| None)),
            Self::Direct { path, .. } => (path.clone(), flushed.map(|()| Some(path))),
            Self::Temporary { partial, path, .. } => {
                let renamed = flushed.and_then(|()| fs::rename(&partial, &path));
                (partial, renamed.map(|()| Some(path)))
            }
        };
        done.map_err(|error| OutputError::io(path, error))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::Direct { file, .. } | Self::Temporary { file, .. } => file.write(bytes),
        }
    }

    /// Removes a partial last line if not all of `bytes` can be written. chrome://tracing opens a recording
    /// without its end, but not one that ends inside a record.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match self {
            Self::Stdout(out) => return out.write_all(bytes),
            Self::Direct { file, .. } | Self::Temporary { file, .. } => file,
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => rest = &rest[taken..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // If this fails, the partial line stays, and the first error says more.
                    let _ = remove_torn_line(file, &bytes[..bytes.len() - rest.len()]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::Direct { file, .. } | Self::Temporary { file, .. } => file.flush(),
        }
    }
}

/// Removes a partial last line from a regular file. `written` are the last bytes, from the start of a line on.
fn remove_torn_line(file: &mut File, written: &[u8]) -> io::Result<()> {
    let torn = written.iter().rev().take_while(|byte| **byte != b'\n');
    let torn = i64::try_from(torn.count()).map_err(io::Error::other)?;
    if torn == 0 || !file.metadata()?.is_file() {
        return Ok(());
    }
    let end = file.seek(SeekFrom::Current(-torn))?;
    file.set_len(end)
}

fn direct(opened: io::Result<File>, path: PathBuf) -> io::Result<OutputFile> {
    opened.map(|file| OutputFile::Direct { file, path })
}

/// Creates a file next to `path` that will replace it, with its owner and permissions.
fn partial(path: PathBuf) -> io::Result<OutputFile> {
    let before = fs::metadata(&path)?;
    partial_file(&path, |file| {
        file.set_permissions(before.permissions())?;
        // Without the right to change owners, the file stays ours.
        match fchown(file, Some(before.uid()), Some(before.gid())) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok(()),
        }
    })
}

/// Creates a file next to `path` that will replace it, and calls `prepare` on it.
fn partial_file(path: &Path, prepare: impl Fn(&File) -> io::Result<()>) -> io::Result<OutputFile> {
    for attempt in 0..MAX_PARTIAL {
        let mut name = OsString::from(path);
        name.push(".partial");
        if attempt > 0 {
            name.push(format!(".{attempt}"));
        }
        let partial = PathBuf::from(name);
        match create_new(&partial) {
            Ok(file) => {
                prepare(&file)?;
                return Ok(OutputFile::Temporary {
                    file,
                    partial,
                    path: path.to_owned(),
                });
            }
            // Unfinished recording of an earlier run: keep it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("{MAX_PARTIAL} unfinished recordings are in that directory"),
    ))
}

/// Creates a file; never follows an existing symbolic link, because memprobe often runs as root.
fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn is_special(there: &Metadata) -> bool {
    let kind = there.file_type();
    kind.is_fifo() || kind.is_char_device() || kind.is_block_device() || kind.is_socket()
}

pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn record(path: &Path, text: &str) -> OutputFile {
        let mut file = OutputPlan::check(path).unwrap().create().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_new_file_is_created_when_recording_starts_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let plan = OutputPlan::check(&path).unwrap();
        assert!(!path.exists());
        let file = plan.create().unwrap();
        assert_eq!(file.lies_at(), Some(&*path));
        assert_eq!(file.commit().unwrap(), Some(path));
    }

    #[test]
    fn a_new_file_can_appear_only_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let mut file = OutputPlan::check(&path).unwrap().create_partial().unwrap();
        file.write_all(b"whole").unwrap();
        assert!(!path.exists());
        assert_eq!(file.commit().unwrap(), Some(path.clone()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_was_there_stays_until_the_new_recording_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let file = record(&path, "new");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(
            file.lies_at().unwrap(),
            dir.path().join("trace.json.partial")
        );
        assert_eq!(
            file.commit().unwrap().unwrap(),
            fs::canonicalize(&path).unwrap()
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_unfinished_recording_stays_next_to_the_old_one_and_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        fs::write(&path, "old").unwrap();
        let first = record(&path, "first").lies_at().unwrap().to_owned();
        let second = record(&path, "second").lies_at().unwrap().to_owned();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_to_string(first).unwrap(), "first");
        assert_eq!(fs::read_to_string(second).unwrap(), "second");
    }

    #[test]
    fn a_link_stays_a_link_and_its_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("real.json"), dir.path().join("link.json"));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        record(&link, "new").commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn a_file_that_somebody_creates_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let plan = OutputPlan::check(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        let mut file = plan.create().unwrap();
        file.write_all(b"ours").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn a_line_that_did_not_fit_is_taken_off_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        for (written, left) in [
            ("{1},\n{2},\n{\"ph", "[\n{1},\n{2},\n"),
            ("{1},\n", "[\n{1},\n"),
            ("{1", "[\n"),
            ("", "[\n"),
        ] {
            let mut file = File::create(&path).unwrap();
            file.write_all(b"[\n").unwrap();
            file.write_all(written.as_bytes()).unwrap();
            remove_torn_line(&mut file, written.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), left);
        }
    }

    #[test]
    fn devices_are_written_directly() {
        let file = OutputPlan::check(Path::new("/dev/null"))
            .unwrap()
            .create()
            .unwrap();
        assert_eq!(file.commit().unwrap().unwrap(), Path::new("/dev/null"));
        assert_eq!(
            OutputPlan::check(Path::new("-")).unwrap(),
            OutputPlan::Stdout
        );
    }

    #[test]
    fn what_cannot_work_is_said_before_recording_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let text = OutputPlan::check(dir.path()).unwrap_err().to_string();
        assert!(
            text.contains("it is a directory; name a file in it, such as"),
            "{text}"
        );
        let text = OutputPlan::check(&dir.path().join("a/b.json"))
            .unwrap_err()
            .to_string();
        assert!(text.contains("there is no directory"), "{text}");
        assert!(text.contains("mkdir -p"), "{text}");
    }
}

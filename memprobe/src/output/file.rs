//! File being written.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::{OutputError, Problem};
use super::owners::Owners;
use super::place::{ExistingFile, Place};

/// File being written. If it is dropped without [`OutputFile::commit`], the data stays at
/// [`OutputFile::lies_at`], and an earlier file stays too.
#[derive(Debug)]
pub enum OutputFile {
    Stdout(io::Stdout),
    Direct {
        file: File,
        path: PathBuf,
    },
    /// Temporary file beside the one that it will replace.
    #[allow(private_interfaces)]
    Temporary {
        file: File,
        partial: Place,
        place: Place,
        owners: Owners,
    },
}

/// Temporary file of an unfinished output.
#[derive(Debug)]
pub struct PartialFile(Place);

impl PartialFile {
    /// Removes it, unless the whole output has its final name already.
    pub fn remove(&self) {
        // If this fails, the extension `.partial` marks the file as unfinished.
        let _ = self.0.remove();
    }
}

impl OutputFile {
    /// Returns the path of the data being written; `None` for standard output.
    pub fn lies_at(&self) -> Option<&Path> {
        match self {
            Self::Stdout(_) => None,
            Self::Direct { path, .. } => Some(path),
            Self::Temporary { partial, .. } => Some(&partial.path),
        }
    }

    pub fn name(&self) -> String {
        let path = self.lies_at().unwrap_or(Path::new("standard output"));
        path.display().to_string()
    }

    pub fn discard(self) {
        if let Some(partial) = self.partial() {
            partial.remove();
        }
    }

    /// The temporary file, if there is one.
    pub fn partial(&self) -> Option<PartialFile> {
        match self {
            Self::Temporary { partial, .. } => Some(PartialFile(partial.clone())),
            Self::Stdout(_) | Self::Direct { .. } => None,
        }
    }

    /// Flushes, and moves a temporary file to its final path. Returns that path (`None` for standard output).
    pub fn commit(mut self) -> Result<Option<PathBuf>, OutputError> {
        let flushed = self.flush().map_err(Problem::from);
        let (path, done) = match self {
            Self::Stdout(_) => ("standard output".into(), flushed.map(|()| None)),
            Self::Direct { path, .. } => (path.clone(), flushed.map(|()| Some(path))),
            Self::Temporary {
                partial,
                place,
                owners,
                ..
            } => {
                let moved = flushed.and_then(|()| replace(&partial, &place, &owners));
                (partial.path, moved.map(|()| Some(place.path)))
            }
        };
        done.map_err(|problem| problem.at(&path))
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

/// Moves a whole file to its place, unless somebody else's file or a link has come there meanwhile.
fn replace(partial: &Place, place: &Place, owners: &Owners) -> Result<(), Problem> {
    match place.inspect(owners)? {
        ExistingFile::Nothing | ExistingFile::Regular => Ok(partial.rename(place)?),
        ExistingFile::Folder | ExistingFile::Special => Err(Problem::Exchanged),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
}

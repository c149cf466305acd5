//! File being written.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::error::{OutputError, Problem};
use super::owners::{Owners, change_owner};
use super::place::{ExistingFile, Place};
use super::plan::{PERMISSIONS, new_partial};

/// Bytes copied at once.
const COPIED: usize = 256 << 10;

/// File being written. If it is dropped without [`OutputFile::commit`], the data stays at
/// [`OutputFile::lies_at`], and an earlier file stays too.
#[derive(Debug)]
pub enum OutputFile {
    Stdout(io::Stdout),
    #[allow(private_interfaces)]
    Direct {
        file: File,
        path: PathBuf,
        /// Its name; `None` for a descriptor, a device or a FIFO.
        place: Option<Place>,
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

    /// True for a file with a name, whose beginning can be replaced while it is written.
    pub fn is_named_file(&self) -> bool {
        matches!(
            self,
            Self::Direct { place: Some(_), .. } | Self::Temporary { .. }
        )
    }

    /// Replaces everything before an offset by `head`. The new contents are written beside the file and get its name by
    /// one rename: whoever reads it meets the old contents or the new ones.
    pub fn replace_beginning(&mut self, head: &[u8], from: u64) -> io::Result<()> {
        let (file, place) = match self {
            Self::Direct {
                file,
                place: Some(place),
                ..
            } => (file, &*place),
            Self::Temporary { file, partial, .. } => (file, &*partial),
            Self::Stdout(_) | Self::Direct { .. } => return Err(io::ErrorKind::Unsupported.into()),
        };
        let (mut copy, name) = new_partial(place).map_err(io::Error::other)?;
        let written = copy_rest(file, &mut copy, head, from)
            .and_then(|()| has_place(file, place))
            .and_then(|()| Ok(name.rename(place)?));
        if let Err(error) = written {
            // The old contents stay.
            let _ = name.remove();
            return Err(error);
        }
        *file = copy;
        Ok(())
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

/// Writes `head`, and another file from an offset on, with that file's owner and permissions.
fn copy_rest(file: &File, copy: &mut File, head: &[u8], from: u64) -> io::Result<()> {
    let data = file.metadata()?;
    change_owner(&*copy, data.uid(), data.gid()).map_err(io::Error::other)?;
    let mode = rustix::fs::Mode::from_raw_mode(data.mode() & PERMISSIONS);
    rustix::fs::fchmod(&*copy, mode)?;
    copy.write_all(head)?;
    let mut offset = from;
    let mut buffer = vec![0; COPIED];
    loop {
        match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                copy.write_all(&buffer[..read])?;
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Refuses a place with another file.
fn has_place(file: &File, place: &Place) -> io::Result<()> {
    let (data, there) = (file.metadata()?, place.stat()?);
    if (data.dev(), data.ino()) == (there.st_dev, there.st_ino) {
        return Ok(());
    }
    Err(io::Error::other(Problem::Exchanged))
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
    use crate::output::OutputPlan;

    #[test]
    fn a_replaced_beginning_leaves_one_file_with_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.mprb");
        for earlier in [None, Some("earlier")] {
            if let Some(text) = earlier {
                fs::write(&path, text).unwrap();
            }
            let mut out = OutputPlan::check(&path).unwrap().create().unwrap();
            assert!(out.is_named_file());
            out.write_all(b"0123456789").unwrap();
            out.replace_beginning(b"head-", 7).unwrap();
            out.write_all(b"abc").unwrap();
            out.replace_beginning(b"", 5).unwrap();
            out.write_all(b"d").unwrap();
            let data = out.lies_at().unwrap().to_owned();
            assert_eq!(fs::read_to_string(&data).unwrap(), "789abcd");
            out.commit().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "789abcd");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn the_beginning_of_an_exchanged_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.mprb");
        let mut out = OutputPlan::check(&path).unwrap().create().unwrap();
        out.write_all(b"0123").unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        let error = out.replace_beginning(b"x", 2).unwrap_err();
        assert!(error.to_string().contains("exchanged"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let stdout = OutputPlan::check(Path::new("-")).unwrap().create().unwrap();
        assert!(!stdout.is_named_file());
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
}

//! Source text of a recording's files, from this machine.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::screen::Sources;
use crate::event::Tgid;
use crate::process::root::ProcessRoot;
use crate::recording::RecordedSources;
use crate::recording::write::sources::{MAX_SOURCE, ReadSource, SourceOfProcess};
use crate::report::{Annotation, SourceFile, SourceOrigin};
use crate::tui::SourceText;

/// Largest source file.
const LARGEST: u64 = 4 << 20;

/// Reads the text of a Python file that a recording names. An error is the reason for missing text.
///
/// A recording may come from anybody and name any file. Only files of Python are read, so that a page which somebody
/// passes on holds no others.
pub(super) fn source_of(file: &str) -> Result<String, String> {
    if !file.ends_with(".py") {
        return Err("it is no file of Python".to_owned());
    }
    read_source(Path::new(file))
}

/// Reads a source file. An error is the reason for missing text.
pub(super) fn read_source(path: &Path) -> Result<String, String> {
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "it is not on this machine".to_owned(),
        _ => format!("it cannot be read: {error}"),
    };
    let data = std::fs::metadata(path).map_err(missing)?;
    if !data.is_file() {
        return Err("it is no regular file".to_owned());
    }
    if data.len() > LARGEST {
        return Err("it is larger than 4 MiB".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(missing)?;
    file.take(LARGEST)
        .read_to_end(&mut bytes)
        .map_err(missing)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A source file to annotate. The text comes from the given file, or else from the file in the recording.
pub fn annotation(source: &Path, functions: Vec<String>) -> Annotation {
    let given = source.display().to_string();
    let resolved = source.canonicalize();
    let resolved = resolved.map_or_else(|_| given.clone(), |path| path.display().to_string());
    let source = source.to_owned();
    let text_of = move |recorded: &str| {
        let path = match source.exists() {
            true => &*source,
            false => Path::new(recorded),
        };
        Ok(SourceFile {
            text: read_source(path)?,
            modified_ms: modified_ms(path),
            origin: SourceOrigin::Machine,
        })
    };
    Annotation {
        paths: [given, resolved],
        functions,
        text_of: Box::new(text_of),
    }
}

fn modified_ms(path: &Path) -> Option<u64> {
    since_1970(&std::fs::metadata(path).ok()?)
}

/// Time of a file's last change in milliseconds since 1970.
fn since_1970(data: &std::fs::Metadata) -> Option<u64> {
    let since = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// Choice to put source text into a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRecording {
    On,
    Off,
}

impl SourceRecording {
    /// Returns the reader of a process's source files; `None` if they are not wanted, or not readable.
    ///
    /// The root directory is opened now: the text can still be read after the process has ended.
    pub(super) fn reader(self, tgid: Tgid) -> Option<ReadSource> {
        if self == Self::Off {
            return None;
        }
        let root = ProcessRoot::of(tgid).ok()?;
        let reader = std::fs::metadata(format!("/proc/{}", tgid.0)).ok()?;
        let (uid, gid) = (reader.uid(), reader.gid());
        Some(Box::new(move |file: &str| {
            read_of_process(&root, (uid, gid), file)
        }))
    }
}

/// Reads a source file of a process, which may name any file. It gets no text that its own user could not read.
fn read_of_process(
    root: &ProcessRoot,
    (uid, gid): (u32, u32),
    file: &str,
) -> Option<SourceOfProcess> {
    let opened = root.open(Path::new(file)).ok()?;
    let data = opened.metadata().ok()?;
    let mode = data.mode();
    let is_readable = mode & 0o004 != 0
        || uid == 0
        || mode & 0o400 != 0 && data.uid() == uid
        || mode & 0o040 != 0 && data.gid() == gid;
    if !is_readable || data.len() > MAX_SOURCE as u64 {
        return None;
    }
    let mut bytes = Vec::new();
    let most = MAX_SOURCE as u64;
    opened.take(most).read_to_end(&mut bytes).ok()?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    // A file that is no UTF-8 grows.
    if text.len() > MAX_SOURCE {
        text.truncate(text.floor_char_boundary(MAX_SOURCE));
    }
    Some(SourceOfProcess {
        text,
        modified_ms: since_1970(&data),
    })
}

/// Source text of a recording's files: what was recorded, or else the files of this machine.
pub(super) struct RecordedText {
    recorded: RecordedSources,
    machine: Sources,
}

impl RecordedText {
    pub(super) fn new(recorded: RecordedSources) -> Self {
        let machine = Sources::of(Tgid(std::process::id()));
        Self { recorded, machine }
    }
}

impl SourceText for RecordedText {
    fn line(&mut self, file: &str, line: u32) -> Option<String> {
        match self.recorded.file(file) {
            Some(source) => source.line(line).map(str::to_owned),
            None => self.machine.line(file, line),
        }
    }

    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>> {
        let Some(source) = self.recorded.file(file) else {
            return self.machine.around(file, line, radius);
        };
        let lines = line.saturating_sub(radius).max(1)..=line.saturating_add(radius);
        let found = lines.filter_map(|line| Some((line, source.line(line)?.to_owned())));
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then_some(found)
    }

    fn edit(&mut self, file: &str, line: u32) -> Result<(), String> {
        self.machine.edit(file, line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_python_or_not_there_have_a_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.py");
        let name = path.to_str().expect("UTF-8");
        assert_eq!(source_of(name), Err("it is not on this machine".to_owned()));
        std::fs::write(&path, "import torch\n").expect("written");
        assert_eq!(source_of(name), Ok("import torch\n".to_owned()));
        assert_eq!(
            source_of("/etc/passwd"),
            Err("it is no file of Python".to_owned())
        );
        let directory = folder.path().join("x.py");
        std::fs::create_dir(&directory).expect("made");
        assert_eq!(
            read_source(&directory),
            Err("it is no regular file".to_owned())
        );
    }
}

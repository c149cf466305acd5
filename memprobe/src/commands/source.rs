//! Source text of a recording's files, from this machine.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::report::{Annotation, SourceFile};

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
        })
    };
    Annotation {
        paths: [given, resolved],
        functions,
        text_of: Box::new(text_of),
    }
}

fn modified_ms(path: &Path) -> Option<u64> {
    let modified = std::fs::metadata(path).and_then(|data| data.modified());
    let since = modified.ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
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

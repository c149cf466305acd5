//! Directory of dumps: its names, and its limit.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;

use crate::event::{Bytes, Tgid};
use crate::output::{OutputFile, OutputFolder, StoredFile};
use crate::recording::{DumpReason, RecordingFormat};

/// Beginning of the names of dumps, by reason. No other file of the directory is ever removed.
const PREFIXES: [(DumpReason, &str); 2] = [
    (DumpReason::OutOfMemory, "memprobe-oom-"),
    (DumpReason::Requested, "memprobe-dump-"),
];

pub(super) struct DumpFolder {
    folder: OutputFolder,
    limit: Bytes,
}

impl DumpFolder {
    /// Opens the directory, or notes that it is to be made.
    pub(super) fn check(path: &Path, limit: Bytes) -> Result<Self> {
        Ok(Self {
            folder: OutputFolder::check(path)?,
            limit,
        })
    }

    /// Name of a new dump, with the time to the millisecond.
    pub(super) fn name(tgid: Tgid, reason: DumpReason) -> String {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let time = time.replace(['-', ':', '.'], "");
        let prefix = PREFIXES.iter().find(|(of, _)| *of == reason);
        let prefix = prefix.map_or("", |(_, prefix)| prefix);
        let ending = RecordingFormat::Compact.ending();
        format!("{prefix}{}-{time}.{ending}", tgid.0)
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Begins a file under a temporary name, in place of an earlier one of the same name.
    pub(super) fn create(&mut self, name: &str) -> Result<OutputFile> {
        Ok(self.folder.plan(name)?.create_partial()?)
    }

    /// Removes the oldest dumps until the rest fits the limit. The newest one, `kept`, stays in any case.
    pub(super) fn prune(&self, kept: &str) -> Result<()> {
        let files = self.folder.files()?;
        let dumps: Vec<StoredFile> = files
            .into_iter()
            .filter(|file| is_dump(&file.name))
            .collect();
        for name in excess(dumps, kept, self.limit) {
            self.folder.remove(&name)?;
        }
        Ok(())
    }
}

/// True for dumps, and for those that were not finished.
fn is_dump(name: &str) -> bool {
    let ending = format!(".{}", RecordingFormat::Compact.ending());
    let mut prefixes = PREFIXES.iter();
    prefixes.any(|(_, prefix)| name.starts_with(prefix)) && name.contains(&ending)
}

/// Names of the oldest files whose removal brings the rest below the limit.
fn excess(mut files: Vec<StoredFile>, kept: &str, limit: Bytes) -> Vec<String> {
    files.sort_by(|one, other| (one.modified, &one.name).cmp(&(other.modified, &other.name)));
    let mut sum: u64 = files.iter().map(|file| file.bytes).sum();
    let mut excess = Vec::new();
    for file in files {
        if sum <= limit.0 {
            break;
        }
        if file.name != kept {
            sum -= file.bytes;
            excess.push(file.name);
        }
    }
    excess
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, modified: i64, bytes: u64) -> StoredFile {
        StoredFile {
            name: name.to_owned(),
            bytes,
            modified,
        }
    }

    #[test]
    fn the_oldest_dumps_are_removed_until_the_rest_fits() {
        let files = vec![file("c", 3, 40), file("a", 1, 40), file("b", 2, 40)];
        let removed = |limit| excess(files.clone(), "c", Bytes(limit));
        assert_eq!(removed(120), Vec::<String>::new());
        assert_eq!(removed(119), ["a"]);
        assert_eq!(removed(79), ["a", "b"]);
        // The newest stays, even beyond the limit.
        assert_eq!(removed(1), ["a", "b"]);
    }

    #[test]
    fn a_thousand_dumps_stay_within_the_limit_and_other_files_are_left_alone() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("notes.mprb"), [0; 100]).unwrap();
        let mut folder = DumpFolder::check(place.path(), Bytes(1000)).unwrap();
        for pid in 0..1000 {
            let name = DumpFolder::name(Tgid(pid), DumpReason::OutOfMemory);
            let mut out = folder.create(&name).unwrap();
            std::io::Write::write_all(&mut out, &[0; 90]).unwrap();
            out.commit().unwrap();
            folder.prune(&name).unwrap();
        }
        let left = folder.folder.files().unwrap();
        let dumps = left.iter().filter(|file| is_dump(&file.name));
        assert_eq!(dumps.clone().count(), 11);
        assert!(dumps.map(|file| file.bytes).sum::<u64>() <= 1000);
        assert!(left.iter().any(|file| file.name == "notes.mprb"));
    }

    #[test]
    fn names_say_process_reason_and_time() {
        let name = DumpFolder::name(Tgid(7), DumpReason::OutOfMemory);
        assert!(name.starts_with("memprobe-oom-7-2"), "{name}");
        assert!(is_dump(&name) && is_dump(&format!("{name}.partial")));
        assert!(!is_dump("trace.mprb") && !is_dump("memprobe-oom-7.txt"));
    }
}

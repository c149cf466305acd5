//! Directory of recordings: one file a process, and an index.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::output::{OutputError, OutputFolder, OutputPlan};

pub const INDEX: &str = "index.json";

/// Version of the index format. New fields do not change it.
const FORMAT: u32 = 1;

/// Longest part of a command in a file name, in bytes.
const LONGEST_WORD: usize = 40;

#[derive(Debug)]
pub struct OutputDirectory {
    folder: OutputFolder,
}

/// Reason why a directory cannot be recorded to. The message ends with a remedy. It has no source, because the message
/// already contains the I/O error's.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error(
        "cannot record to {0}: it has an earlier recording ({INDEX}); name another directory, or remove that one with \
         `rm -r {0}`"
    )]
    Taken(PathBuf),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot write to {0}: {1}; name another directory with -o")]
    Io(PathBuf, io::Error),
}

/// Returns true if a path denotes a directory: it is one, or ends in `/`.
pub fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}

impl OutputDirectory {
    /// Checks that a directory can be recorded to; creates nothing.
    pub fn check(path: &Path) -> Result<Self, DirectoryError> {
        let folder = OutputFolder::check(path)?;
        if folder.has(INDEX) {
            return Err(DirectoryError::Taken(folder.path().to_owned()));
        }
        Ok(Self { folder })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the file name and plan for a process's recording. `ending` has no dot. If the name exists, a number is
    /// appended: the process runs a second program, or another process got its PID. Creates the directory if it is
    /// missing.
    pub fn plan(
        &mut self,
        stem: &str,
        ending: &str,
    ) -> Result<(String, OutputPlan), DirectoryError> {
        let mut name = format!("{stem}.{ending}");
        let mut again = 1;
        while self.folder.has(&name) {
            again += 1;
            name = format!("{stem}-{again}.{ending}");
        }
        let plan = self.folder.plan(&name)?;
        Ok((name, plan))
    }

    /// Writes the index, replacing an earlier one atomically.
    pub fn write_index(&mut self, index: &Index) -> Result<(), DirectoryError> {
        let refused = |error| DirectoryError::Io(self.path().join(INDEX), error);
        let mut text = serde_json::to_vec_pretty(index).map_err(|error| refused(error.into()))?;
        text.push(b'\n');
        self.folder.plan(INDEX)?.write(&text)?;
        Ok(())
    }
}

#[derive(Debug, Serialize)]
pub struct Index {
    format: u32,
    version: &'static str,
    /// True if memprobe ended the recording; false while it records, or if it was killed.
    pub finished: bool,
    pub command: Option<String>,
    pub processes: Vec<RecordedProcess>,
}

impl Index {
    pub fn new(command: Option<String>) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            finished: false,
            command,
            processes: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct RecordedProcess {
    pub pid: u32,
    /// Parent process, if that was watched.
    pub parent: Option<u32>,
    /// Rank in a distributed job, if the process states it.
    pub rank: Option<u32>,
    pub command: String,
    /// File name of the recording; `None` if the process used no GPU memory.
    pub file: Option<String>,
    pub events: u64,
    /// Reason why the recording ended; `None` while it runs.
    pub end: Option<&'static str>,
    pub notices: Vec<String>,
}

/// Returns the file name of a process's recording without its extension: `rank0-1234-train`.
pub fn file_stem(pid: u32, rank: Option<u32>, command: &str) -> String {
    let word = program_word(command);
    let mut stem = match rank {
        Some(rank) => format!("rank{rank}-{pid}"),
        None => pid.to_string(),
    };
    if !word.is_empty() {
        stem.push('-');
        stem.push_str(&word);
    }
    stem
}

/// Rank in the name of a recording, as [`file_stem`] wrote it.
pub fn rank_in(stem: &str) -> Option<u32> {
    let (rank, _) = stem.strip_prefix("rank")?.split_once('-')?;
    rank.parse().ok()
}

/// Returns the name of the program: the script or module for Python, the executable otherwise. The result has
/// no character with a meaning in shells or paths.
fn program_word(command: &str) -> String {
    let mut words = command.split_whitespace();
    let mut program = basename(words.next().unwrap_or_default());
    if program.starts_with("ld-linux") || program.starts_with("ld-musl") {
        program = loaded(&mut words).unwrap_or(program);
    }
    let name = if program.starts_with("python") || program.starts_with("pypy") {
        script(words).unwrap_or(program)
    } else {
        program
    };
    let name = name.strip_suffix(".py").unwrap_or(name);
    let mut plain = String::new();
    for letter in name.chars() {
        if plain.len() >= LONGEST_WORD {
            break;
        }
        let harmless = letter.is_ascii_alphanumeric() || "_.+".contains(letter);
        plain.push(if harmless { letter } else { '-' });
    }
    plain.trim_matches(['-', '.']).to_owned()
}

/// Returns the program among the arguments of an explicitly invoked dynamic loader (ld.so(8)).
fn loaded<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<&'a str> {
    while let Some(word) = words.next() {
        match word {
            "--library-path"
            | "--argv0"
            | "--preload"
            | "--audit"
            | "--inhibit-rpath"
            | "--glibc-hwcaps-prepend"
            | "--glibc-hwcaps-mask" => {
                words.next();
            }
            _ if word.starts_with('-') => {}
            _ => return Some(basename(word)),
        }
    }
    None
}

/// Returns the script or module among the arguments of Python (`python --help`).
fn script<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    while let Some(word) = words.next() {
        match word {
            "-m" => return words.next(),
            "-c" => return multiprocessing(words),
            // Options with a separate value.
            "-W" | "-X" | "--check-hash-based-pycs" => {
                words.next();
            }
            _ if word.starts_with('-') => {}
            _ => return Some(basename(word)),
        }
    }
    None
}

/// Returns the name of what a command of `multiprocessing` runs (`-c "from multiprocessing.spawn import spawn_main;
/// spawn_main(...)"`, `Lib/multiprocessing/spawn.py` and its siblings): `spawn`, `forkserver` or `resource_tracker`.
fn multiprocessing<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    words.next().filter(|word| *word == "from")?;
    words.next()?.strip_prefix("multiprocessing.")
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_by_rank_number_and_script() {
        let stem = |rank, command| file_stem(1234, rank, command);
        assert_eq!(
            stem(Some(0), "python3 -u train.py --lr 1"),
            "rank0-1234-train"
        );
        assert_eq!(
            stem(None, "/usr/bin/python -X dev -m torch.distributed.run t.py"),
            "1234-torch.distributed.run"
        );
        assert_eq!(
            stem(None, "/venv/bin/python3.12 -c import torch"),
            "1234-python3.12"
        );
        for (start, code) in [
            (
                "spawn",
                "import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6) --multiprocessing-fork",
            ),
            ("forkserver", "import main; main(3, 5, ['__main__'])"),
        ] {
            let command = format!("python -B -Wignore -c from multiprocessing.{start} {code}");
            assert_eq!(file_stem(1234, None, &command), format!("1234-{start}"));
        }
        assert_eq!(
            stem(None, "python -c import multiprocessing.pool"),
            "1234-python"
        );
        assert_eq!(stem(None, "/opt/a/b/solver -n 3"), "1234-solver");
        assert_eq!(stem(None, ""), "1234");
    }

    #[test]
    fn a_command_cannot_name_a_file_in_another_directory() {
        assert_eq!(file_stem(1, None, "../../etc/..passwd"), "1-passwd");
        assert_eq!(
            file_stem(1, None, "python x;rm\u{1b}[31m.py"),
            "1-x-rm--31m"
        );
        assert_eq!(file_stem(1, None, "/.."), "1");
        let loader = "/lib64/ld-linux-x86-64.so.2 --argv0 python /usr/bin/python3.15 -u train.py";
        assert_eq!(file_stem(1, None, loader), "1-train");
        assert!(file_stem(1, None, &"x".repeat(500)).len() < 64);
    }

    #[test]
    fn a_directory_is_a_path_that_ends_so_or_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(is_directory(folder.path()));
        assert!(is_directory(Path::new("run/")));
        assert!(!is_directory(Path::new("run")));
        assert!(!is_directory(Path::new("-")));
    }

    #[test]
    fn a_directory_with_an_earlier_recording_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run/");
        let mut directory = OutputDirectory::check(&run).expect("it can be made");
        assert!(!run.exists(), "made too early");
        directory.write_index(&Index::new(None)).expect("written");
        let error = OutputDirectory::check(&run).expect_err("it is taken");
        assert!(error.to_string().contains("rm -r"), "{error}");
        let missing = folder.path().join("a/b/");
        let error = OutputDirectory::check(&missing).expect_err("no parent");
        assert!(error.to_string().contains("mkdir -p"), "{error}");
    }

    #[test]
    fn a_second_program_of_a_process_gets_a_second_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut directory = OutputDirectory::check(folder.path()).expect("it is there");
        let (name, plan) = directory.plan("7-train", "mprb").expect("planned");
        assert_eq!(name, "7-train.mprb");
        drop(plan.create().expect("created"));
        assert_eq!(
            directory.plan("7-train", "mprb").expect("planned").0,
            "7-train-2.mprb"
        );
    }
}

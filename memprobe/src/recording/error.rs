//! Errors of reading a recording. Each message ends with a remedy.

use std::fmt;
use std::io;

use super::FORMAT;

/// Reason why a recording cannot be read. The message ends with a remedy.
#[derive(Debug)]
pub enum RecordingError {
    /// The file cannot be opened or read.
    Io(io::Error),
    /// The file is empty, or ends before its first whole record.
    Empty,
    /// The file is not a recording of memprobe.
    Foreign,
    /// The file was written by a later memprobe.
    Newer {
        /// Format version of the file.
        format: u32,
    },
    /// A record is invalid, and others follow it.
    Damaged {
        /// Line number, from 1.
        line: u64,
        /// Offset of the line, in bytes from the start of the file.
        offset: u64,
        reason: String,
        /// Memory events that precede it.
        events: u64,
    },
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(
                f,
                "cannot be read: {error}; give the file that `memprobe record -o FILE` wrote"
            ),
            Self::Empty => f.write_str(
                "the file ends before its first record: the recording was stopped before it began; record again",
            ),
            Self::Foreign => f.write_str(
                "not a recording of memprobe: give the file that `memprobe record -o FILE` wrote",
            ),
            Self::Newer { format } => write!(
                f,
                "written by a later memprobe (format {format}, this one reads up to {FORMAT}): update memprobe"
            ),
            Self::Damaged { line, offset, reason, events } => write!(
                f,
                "line {line} (at byte {offset}) is damaged: {reason}; {} before it can be read: \
                 cut the file there with `head -n {} FILE > whole.json` and report that",
                Counted(*events, "event"),
                line - 1
            ),
        }
    }
}

struct Counted(u64, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}{}",
            self.0,
            self.1,
            if self.0 == 1 { "" } else { "s" }
        )
    }
}

impl std::error::Error for RecordingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // This error's message already contains that of the I/O error.
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<io::Error> for RecordingError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

//! Errors of reading a recording. Each message ends with a remedy.

use std::io;

use super::pickle::PickleError;

/// Reason why a recording cannot be read. The message ends with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("cannot be read: {0}; give the file that `memprobe record -o FILE` wrote")]
    Io(io::Error),
    /// The file is empty, or ends before its first whole record.
    #[error(
        "the file ends before its first record: the recording was stopped before it began; record again"
    )]
    Empty,
    #[error("not a recording of memprobe: give the file that `memprobe record -o FILE` wrote")]
    Foreign,
    /// The file was written by a later memprobe, in this format version.
    #[error(
        "written by a later memprobe (format {format}, this one reads up to {known}): update memprobe"
    )]
    Newer { format: u32, known: u32 },
    #[error("a second recording begins at byte {offset}: give each recording in a file of its own")]
    SecondRecording { offset: u64 },
    #[error(
        "line {line} (at byte {offset}) is damaged: {reason}; {events} event{} before it can be read: cut the file \
         there with `head -n {} FILE > whole.json` and report that",
        if *events == 1 { "" } else { "s" },
        line - 1
    )]
    Damaged {
        /// Line number, from 1.
        line: u64,
        /// Offset of the line, in bytes from the start of the file.
        offset: u64,
        reason: String,
        events: u64,
    },
    #[error(
        "the pickle ends at byte {offset}, in the middle: copy it again, or write it again with \
         `torch.cuda.memory._dump_snapshot(FILE)`"
    )]
    PickleTruncated { offset: u64 },
    #[error(
        "the pickle is damaged at byte {offset}: {reason}; write it again with `torch.cuda.memory._dump_snapshot(FILE)`"
    )]
    PickleDamaged { offset: u64, reason: String },
    /// An opcode would import, call or make an object.
    #[error(
        "the pickle has an object of a class at byte {offset}, and memprobe executes nothing from a file: give the file \
         that `torch.cuda.memory._dump_snapshot(FILE)` wrote"
    )]
    PickledObject { offset: u64 },
    #[error(
        "the pickle has the same list for several segments or devices, which PyTorch never writes: give the file that \
         `torch.cuda.memory._dump_snapshot(FILE)` wrote"
    )]
    PickleRepeated,
    #[error(
        "a pickle, but not of PyTorch's memory: give the file that `torch.cuda.memory._dump_snapshot(FILE)` wrote"
    )]
    ForeignPickle,
}

impl From<PickleError> for RecordingError {
    fn from(error: PickleError) -> Self {
        match error {
            PickleError::Io(error) => Self::Io(error),
            PickleError::Truncated { offset } => Self::PickleTruncated { offset },
            PickleError::Damaged { offset, reason } => Self::PickleDamaged { offset, reason },
            PickleError::Object { offset } => Self::PickledObject { offset },
            PickleError::Repeated => Self::PickleRepeated,
            PickleError::Foreign => Self::ForeignPickle,
        }
    }
}

impl From<io::Error> for RecordingError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

//! Errors of writing a recording.

use std::fmt;
use std::io;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct WriteError {
    place: String,
    pub(super) source: Arc<io::Error>,
}

impl WriteError {
    /// Returns the error of writing to `place`.
    pub(super) fn new(place: &str, source: io::Error) -> Self {
        Self {
            place: place.to_owned(),
            source: Arc::new(source),
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}", self.place, self.source)?;
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => f.write_str(
                "; what was recorded so far can be read: free some space or record to another disk",
            ),
            _ => Ok(()),
        }
    }
}

// Without `source`: the message already contains the I/O error's.
impl std::error::Error for WriteError {}
